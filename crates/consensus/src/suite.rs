//! The crate with the real log, state machine and store: openraft's own storage suite, which does not test reopening, and a
//! cluster of one node that is stopped and started.

use std::{path::Path, sync::Arc, time::Duration};

use futures::FutureExt as _;
use openraft::{
    EntryPayload, RaftTypeConfig, StorageError,
    raft::{AppendEntriesRequest, VoteRequest},
    testing::{
        log::{StoreBuilder, Suite},
        runtime::Suite as RuntimeSuite,
    },
};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::{
    Confirmation, Consensus, ReadIndex, Start, StartError, Timers, WriteError,
    directory_format::DirectoryFormat,
    log::{Log, Wal},
    machine::Machine,
    receive::AppendRefusal,
    types::{Entry, TypeConfig},
    wire::{WireLogId, WireVote},
};
use concord_model::{
    access_key::Author,
    command::{Command, Expect, Proposal, Verdict},
    key::Key,
    time::Timestamp,
};
use concord_net::{
    Member,
    client::{Peers, Secrets},
    identity::{FORMAT, Identity},
};
use concord_storage::{Loaded, LogRange, Store, StoreOptions};

struct SuiteBuilder;

/// What a test holds while it runs: the directory, and the store, which is closed before the directory is removed.
struct Guard {
    _directory: TempDir,
    store: Store,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.store.close();
    }
}

impl StoreBuilder<TypeConfig, Log, Machine, Guard> for SuiteBuilder {
    async fn build(&self) -> Result<(Guard, Log, Machine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().unwrap();
        let wal = Wal::open(&directory.path().join("log")).unwrap();
        let range = LogRange { purged: 0, last: 0 };
        let opened = Store::open(&directory.path().join("store"), StoreOptions::default(), range).unwrap();
        let (store, Loaded::State(state, position)) = opened else {
            panic!("a fresh store has a whole state")
        };
        let log = wal.with_listener(Arc::new(store.clone()), DirectoryFormat::new(directory.path(), FORMAT));
        let machine = Machine::new(
            state,
            &position,
            store.clone(),
            log.clone(),
            Arc::new(Peers::new(Secrets(Vec::new()))),
        )
        .unwrap();
        Ok((Guard { _directory: directory, store }, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_accepts_our_storage() {
    Suite::test_all(SuiteBuilder).await.unwrap();
}

#[test]
fn openraft_accepts_our_runtime() {
    RuntimeSuite::<<TypeConfig as RaftTypeConfig>::AsyncRuntime>::test_all();
}

fn identity() -> Identity {
    Identity { cluster_id: uuid::Uuid::from_u128(3), node_id: 1, format: FORMAT }
}

pub(super) async fn start(directory: &Path) -> Result<Consensus, StartError> {
    let me = identity();
    Consensus::start(Start {
        me,
        directory: directory.into(),
        store: StoreOptions::default(),
        peers: Arc::new(Peers::new(Secrets(vec!["secret".into()]))),
        // A lease that a busy machine's pauses do not outlast.
        timers: Timers { heartbeat_ms: 50, election_min_ms: 500, election_max_ms: 700, lease_reads: false },
        snapshot_log_bytes: 1 << 20,
        log_stall_timeout: Duration::from_secs(60),
        rescue: Vec::new(),
        data_key_file: None,
        runtime: Handle::current(),
    })
    .await
}

fn proposal(number: u64) -> Proposal {
    let key = Key::parse(&format!("definition-{number}")).unwrap();
    let command = Command::CreateDefinition { key, indexes: Vec::new(), schema: None };
    let (at, by) = (Timestamp(number), "root".into());
    Proposal {
        at,
        by,
        reason: None,
        request: None,
        definition_read: None,
        command,
        author: Author::Root,
        tail: None,
    }
}

async fn write(consensus: &Consensus, number: u64) -> u64 {
    loop {
        match consensus.write(proposal(number)).await {
            Ok(Verdict::Decided(Ok(applied))) => return applied.revision,
            Ok(verdict) => panic!("{verdict:?}"),
            // A new leader has no lease yet.
            Err(_) => consensus.wait_read(read_index(consensus).await).await,
        }
    }
}

/// A read index, once this node leads and has its lease.
async fn read_index(consensus: &Consensus) -> ReadIndex {
    let confirmed = async {
        loop {
            match consensus.read_index(Confirmation::Quorum).await {
                Ok(index) => return index,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), confirmed).await.expect("a node alone elects itself")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_a_member_is_served_until_the_member_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let member = |id| Member { id, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() };
    let consensus = start(directory.path()).await.unwrap();
    consensus.initialize(vec![member(1)]).await.unwrap();
    let added = consensus.add_learner(member(2)).await.unwrap();
    consensus.wait_applied(added).await;

    let mut served = Box::pin(consensus.serve_member(2, std::future::pending()));
    assert!(served.as_mut().now_or_never().is_none(), "it is a member");
    consensus.serve_member(2, std::future::ready(())).await;
    consensus.remove_learner(2).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("it is removed");
    // Nor is one served that it opens afterwards.
    consensus.serve_member(2, std::future::pending()).await;

    let other = consensus.clone();
    let served = tokio::spawn(async move { other.serve_member(1, std::future::pending()).await });
    consensus.shutdown().await;
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("the node has stopped").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_keeps_its_writes_over_a_restart_and_rejects_an_emptied_log() {
    let directory = tempfile::tempdir().unwrap();
    let me = Member { id: 1, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() };

    let consensus = start(directory.path()).await.unwrap();
    assert!(!consensus.is_initialized().await);
    consensus.initialize(vec![me.clone()]).await.unwrap();
    assert_eq!(consensus.leader(), Some(me));
    let mut last = 0;
    for number in 1..=20 {
        last = write(&consensus, number).await;
    }
    consensus.wait_read(read_index(&consensus).await).await;
    assert!(consensus.state().revision() >= last);
    let digest = consensus.state().digest();
    consensus.shutdown().await;

    let consensus = start(directory.path()).await.unwrap();
    assert!(consensus.is_initialized().await);
    consensus.wait_applied(last).await;
    assert_eq!(consensus.state().digest(), digest);
    assert!(write(&consensus, 21).await > last);
    consensus.shutdown().await;

    std::fs::remove_dir_all(directory.path().join("log")).unwrap();
    assert!(matches!(start(directory.path()).await, Err(StartError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_confirms_nothing_that_contradicts_what_it_has_committed() {
    let directory = tempfile::tempdir().unwrap();
    let me = Member { id: 1, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() };
    let consensus = start(directory.path()).await.unwrap();
    consensus.initialize(vec![me]).await.unwrap();
    write(&consensus, 1).await;
    let own = consensus.inner.log.position().await.unwrap().last.expect("the log has the write");
    // Node 2 leads in a later term. The entries before its first new one end with `last`.
    let leader = WireVote { term: own.term + 7, node: 2, committed: true };
    let append = async |last: WireLogId| {
        let next = WireLogId { index: last.index + 1, term: leader.term, node: 2 };
        consensus
            .judge_append(&AppendEntriesRequest {
                vote: leader.into(),
                prev_log_id: Some(last.into()),
                entries: vec![Entry { log_id: next.into(), payload: EntryPayload::Blank }],
                leader_commit: None,
            })
            .await
    };
    let may_be_elected = async || {
        let last = WireLogId { index: own.index + 9, term: leader.term, node: 2 };
        let request = VoteRequest::new(WireVote { committed: false, ..leader }.into(), Some(last.into()));
        consensus.judge_vote(&(&request).into()).await.unwrap().is_none()
    };
    append(own).await.unwrap();
    assert_eq!(consensus.inner.contradicted.get(), None);
    assert!(may_be_elected().await);

    // What a leader of an earlier term sent arrives late: it was replaced since, and its entry as well.
    let before = WireVote { term: own.term - 1, node: 2, committed: true };
    let late = AppendEntriesRequest {
        vote: before.into(),
        prev_log_id: Some(WireLogId { term: before.term, node: 2, ..own }.into()),
        entries: Vec::new(),
        leader_commit: None,
    };
    let refused = consensus.judge_append(&late).await.expect_err("another one was elected since");
    assert!(matches!(refused, AppendRefusal::HigherVote(vote) if vote.term == own.term), "{refused:?}");
    assert_eq!(consensus.inner.contradicted.get(), None);

    let other = WireLogId { term: own.term + 1, node: 2, ..own };
    let refused = append(other).await.expect_err("another entry was committed at that place");
    assert!(
        matches!(&refused, AppendRefusal::Failed(why) if why.contains("different content")),
        "{refused:?}"
    );
    assert_eq!(consensus.inner.contradicted.get(), Some((2, own.index)));
    assert!(!may_be_elected().await, "a leader that lacks a committed entry is not elected again");

    // Beyond what is committed here, nothing contradicts.
    append(WireLogId { index: own.index + 5, term: leader.term, node: 2 }).await.unwrap();
    assert_eq!(consensus.inner.contradicted.get(), Some((2, own.index)));
    append(own).await.unwrap();
    assert_eq!(consensus.inner.contradicted.get(), None, "the leader has this member's entry after all");
    consensus.shutdown().await;
}

/// A write of a config; sent again while this node does not lead yet.
async fn set(consensus: &Consensus, name: &str, turn: u64) -> u64 {
    let (definition, key) = (Key::parse("definition-1").unwrap(), Key::parse(name).unwrap());
    let (data, entries, expect) = (format!("{{\"n\":{turn}}}").into(), Box::default(), Expect::Any);
    let command = Command::WriteConfig { definition, key, data, entries, expect };
    let proposal = Proposal { command, ..proposal(turn) };
    loop {
        match consensus.write(proposal.clone()).await {
            Ok(Verdict::Decided(Ok(applied))) => return applied.revision,
            Err(WriteError::NotLeader(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_share_entries() {
    const WRITERS: u64 = 48;
    const TURNS: u64 = 10;
    let directory = tempfile::tempdir().unwrap();
    let me = Member { id: 1, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() };
    let consensus = start(directory.path()).await.unwrap();
    consensus.initialize(vec![me]).await.unwrap();
    write(&consensus, 1).await;
    let mut seen = std::collections::BTreeSet::new();
    let writers = (0..WRITERS).map(|writer| {
        let consensus = consensus.clone();
        tokio::spawn(async move {
            let mut revisions = Vec::new();
            for turn in 0..TURNS {
                revisions.push(set(&consensus, &format!("k{writer}"), turn).await);
            }
            assert!(revisions.is_sorted(), "{revisions:?}");
            revisions
        })
    });
    for revisions in futures::future::join_all(writers).await {
        for revision in revisions.unwrap() {
            assert!(seen.insert(revision), "{revision} was given out twice");
        }
    }
    let (entries, revision) = (consensus.metrics().last_log_index.unwrap(), consensus.state().revision());
    assert!(entries < revision, "{entries} entries, {revision} revisions");
    let in_history = |consensus: &Consensus| {
        let revision = consensus.state().revision();
        assert!(consensus.store().wait_for_history(revision, Duration::from_secs(60)));
        let changes = consensus.store().history().changes_from(1).unwrap();
        changes.map(|change| change.unwrap().revision).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(in_history(&consensus).is_superset(&seen));
    let (digest, revision) = (consensus.state().digest(), consensus.state().revision());
    consensus.shutdown().await;

    let consensus = start(directory.path()).await.unwrap();
    consensus.wait_applied(revision).await;
    assert_eq!(consensus.state().digest(), digest);
    // An index of the log that is less than the revision: a read waits for the one and not for the other.
    consensus.wait_read(read_index(&consensus).await).await;
    assert!(set(&consensus, "k0", TURNS).await > revision);
    assert!(in_history(&consensus).is_superset(&seen));
    consensus.shutdown().await;
}
