//! A recovery changes everything or nothing, wherever it is interrupted.

use std::fs;

use super::*;
use concord_model::key::Key;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn member(id: NodeId) -> Member {
    Member { id, api_addr: format!("host{id}:1"), peer_addr: format!("host{id}:2") }
}

fn id(index: u64) -> WireLogId {
    WireLogId { index, term: 3, node: 2 }
}

fn proposal(command: Command) -> Payload {
    EntryPayload::Normal(EncodedProposal(Bytes::from(
        Proposal::new(Timestamp(7), "root", Author::Root, command).to_bytes(),
    )))
}

fn definition(key: &str) -> Payload {
    let key = Key::parse(key).unwrap();
    proposal(Command::CreateDefinition { key, indexes: Vec::new(), schema: None })
}

fn members(ids: &[NodeId], voters: &[NodeId]) -> Payload {
    let nodes = ids.iter().map(|id| (*id, member(*id))).collect();
    EntryPayload::Membership(WireMembership { voters: vec![voters.to_vec()], nodes }.try_into().unwrap())
}

/// The directory of node 1 of three voters and a learner, with five entries.
fn survivor(directory: &Path) -> Identity {
    let me = Identity { cluster_id: uuid::Uuid::from_u128(9), node_id: 1, format: 1 };
    me.replace(directory).unwrap();
    fs::write(directory.join("witness"), b"of the old cluster").unwrap();
    let nothing = tempfile::tempdir().unwrap();
    let header = LogHeader { cluster: *me.cluster_id.as_bytes(), node: 1, installing: None };
    let entries = [
        members(&[1, 2, 3, 4], &[1, 2, 3]),
        EntryPayload::Blank,
        definition("a"),
        definition("b"),
        definition("c"),
    ];
    let continuation = Continuation {
        header,
        vote: WireVote { term: 5, node: 3, committed: false },
        state: None,
        kept_upto: 0,
        appended: (0..).map(id).zip(entries).collect(),
    };
    let empty = Wal::open(nothing.path()).unwrap();
    empty.write_continued(&directory.join(LOG_DIRECTORY), continuation).unwrap();
    me
}

/// What the log of a directory says of itself.
fn log(directory: &Path) -> (Option<LogHeader>, Option<WireLogId>, Vec<Payload>) {
    let wal = Wal::open(&directory.join(LOG_DIRECTORY)).unwrap();
    let entries = wal.entries(0).map(|entry| entry.unwrap().payload).collect();
    (wal.header(), wal.committed(), entries)
}

fn plan(directory: &Path) -> Result<SingleRecovery, String> {
    SingleRecovery::plan(directory, None, NOW)
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_survivor_keeps_its_entries_and_is_the_only_voter_of_another_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let me = survivor(directory.path());
    let recovery = plan(directory.path()).unwrap();
    let report = recovery.report().clone();
    assert_eq!((report.last_revision, report.last_entry), (4, (4, 3)));
    assert_eq!((report.lost_voters.clone(), report.lost_learners.clone()), (vec![2, 3], vec![4]));
    assert_eq!((report.records, report.member.clone()), ((3, 0, 0), member(1)));
    assert_eq!(report.void.first, 5);
    assert_eq!(recovery.make(directory.path()).unwrap(), report);

    let now = Identity::read(directory.path()).unwrap().unwrap();
    assert_eq!(now, Identity { cluster_id: report.cluster_id, ..me });
    assert_eq!(names(directory.path()), ["identity.json", "log"]);
    let (header, committed, entries) = log(directory.path());
    assert_eq!(header.unwrap().cluster, *report.cluster_id.as_bytes());
    // The term is above that of every vote, and another recovery would have chosen another one.
    assert!(is_by_recovery(committed, 7), "{committed:?}");
    assert_eq!(entries.len(), 8);
    assert_eq!(entries[2], definition("a"));
    let added = [skipped_to(report.void.last + 1), held_changes(), members(&[1], &[1])];
    assert_eq!(entries[5..], added);
    assert!(plan(directory.path()).unwrap_err().contains("the only voter"));
}

/// Whether an entry at this place has a term that nobody had voted in.
fn is_by_recovery(entry: Option<WireLogId>, index: u64) -> bool {
    entry.is_some_and(|entry| entry.index == index && entry.node == 1 && entry.term > 1 << 20)
}

/// The entry that skips revisions, at the time of the third change: each is later than the one before.
fn skipped_to(to: Revision) -> Payload {
    let proposal = Proposal::new(Timestamp(9), AUTHOR, Author::Cluster, Command::SkipRevisions { to });
    EntryPayload::Normal(EncodedProposal(Bytes::from(proposal.to_bytes())))
}

/// The entry that holds all change requests.
fn held_changes() -> Payload {
    let command = Command::System(SystemCommand::HoldChanges);
    let proposal = Proposal::new(Timestamp(9), AUTHOR, Author::Cluster, command);
    EntryPayload::Normal(EncodedProposal(Bytes::from(proposal.to_bytes())))
}

#[test]
fn entries_that_the_survivor_did_not_know_to_be_decided_get_other_revisions() {
    let directory = tempfile::tempdir().unwrap();
    let me = survivor(directory.path());
    assert_eq!(plan(directory.path()).unwrap().report().undecided_entries, 0);
    // A log with two entries more, of which nobody has said that they are committed.
    let wal = Wal::open(&directory.path().join(LOG_DIRECTORY)).unwrap();
    let more = directory.path().join("more");
    let header = LogHeader { cluster: *me.cluster_id.as_bytes(), node: 1, installing: None };
    let appended = vec![(id(5), definition("d")), (id(6), definition("e"))];
    let vote = WireVote { term: 5, node: 3, committed: false };
    wal.write_uncommitted(&more, Continuation { header, vote, state: None, kept_upto: u64::MAX, appended })
        .unwrap();
    drop(wal);
    log::replace(&directory.path().join(LOG_DIRECTORY), &more).unwrap();
    let report = plan(directory.path()).unwrap().make(directory.path()).unwrap();
    assert_eq!((report.undecided_entries, report.last_entry, report.records.0), (2, (6, 3), 5));
    // The lost members may have given out their revisions for something else.
    assert_eq!((report.last_revision, report.void.first), (4, 5));
    let (_, committed, entries) = log(directory.path());
    assert!(is_by_recovery(committed, 9), "{committed:?}");
    assert_eq!(entries[4], definition("c"));
    // What may have been confirmed comes before everything is held.
    let cut_off = [definition("d"), definition("e")];
    let end = [&[skipped_to(report.void.last + 1)], &cut_off[..], &[held_changes(), members(&[1], &[1])]];
    assert_eq!(entries[5..], end.concat());
}

#[test]
fn an_interrupted_recovery_is_completed_once_it_is_decided_and_removed_before() {
    let directory = tempfile::tempdir().unwrap();
    let me = survivor(directory.path());
    let before = log(directory.path());
    let at = |name: &str| directory.path().join(name);
    let recovered = |cluster: uuid::Uuid| -> PathBuf { log_of(directory.path(), cluster) };
    // Begun, and not whole.
    fs::create_dir(recovered(uuid::Uuid::from_u128(11))).unwrap();
    fs::write(recovered(uuid::Uuid::from_u128(11)).join("part"), b"part").unwrap();
    assert!(plan(directory.path()).is_ok());
    assert!(!finish(directory.path(), &me).unwrap());
    assert_eq!(
        (log(directory.path()), names(directory.path())),
        (before, ["identity.json", "log", "witness"].map(str::to_owned).to_vec())
    );

    // Whole and decided; the log has its old name, has lost it, and has been replaced.
    let SingleRecovery { wal, continuation, report, .. } = plan(directory.path()).unwrap();
    wal.write_continued(&recovered(report.cluster_id), continuation).unwrap();
    drop(wal);
    let me = Identity { cluster_id: report.cluster_id, ..me };
    me.replace(directory.path()).unwrap();
    assert!(plan(directory.path()).unwrap_err().contains("interrupted"));
    fs::rename(at("log"), at("log.old")).unwrap();
    assert!(has_log(directory.path(), &me));
    assert!(finish(directory.path(), &me).unwrap());
    assert_eq!(log(directory.path()).2.len(), 8);
    assert_eq!(names(directory.path()), ["identity.json", "log"]);
    assert!(!finish(directory.path(), &me).unwrap());
}

#[test]
fn a_directory_that_is_no_survivor_s_is_refused() {
    let refused = |prepare: &dyn Fn(&Path), expected: &str| {
        let directory = tempfile::tempdir().unwrap();
        survivor(directory.path());
        prepare(directory.path());
        let before = names(directory.path());
        let refusal = plan(directory.path()).unwrap_err();
        assert!(refusal.contains(expected), "{refusal}");
        assert_eq!(names(directory.path()), before);
    };
    refused(&|path| fs::remove_dir_all(path.join("log")).unwrap(), "has no log");
    refused(&|path| fs::remove_file(path.join("identity.json")).unwrap(), "belongs to no node");
    let other = Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 };
    refused(&|path| other.replace(path).unwrap(), "is not that of node 1");
    let distrusted = |path: &Path| {
        fs::create_dir(path.join("store")).unwrap();
        fs::write(path.join("store/distrusted"), b"").unwrap();
    };
    refused(&distrusted, "differ from that of a majority");
}
