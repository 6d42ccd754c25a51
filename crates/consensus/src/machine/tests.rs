//! Entries with several proposals: however proposals are grouped into entries, the outcome is the same.

use fastrand::Rng;
use futures::stream;
use tempfile::TempDir;

use super::*;
use crate::{
    log::Wal,
    types::{EncodedProposal, Payload},
};
use concord_model::{
    access_key::Author,
    command::{Command, Expect, IdempotencyKey, Proposal},
    entry::GROUP_PROPOSALS_MAX,
    key::Key,
    record::IndexEntry,
    time::Timestamp,
};
use concord_net::{client::Secrets, identity::FORMAT};
use concord_state::feed::EventPageMax;
use concord_storage::{Loaded, LogRange, StoreOptions, StoredChange, StoredEdit};

/// Applied when the state has its definitions, and the log has as many entries as revisions.
const BEGUN: u64 = 3;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// What a leader would propose; `None` is an entry without a proposal.
fn proposals(seed: u64, count: u64) -> Vec<Option<Proposal>> {
    let mut random = Rng::with_seed(seed);
    let plain = |at, command, definition_read, request| {
        let (at, by, reason) = (Timestamp(at), "root".to_owned(), Some(format!("reason {at}")));
        Some(Proposal { at, by, reason, request, definition_read, command, author: Author::Root, tail: None })
    };
    let define = |name| Command::CreateDefinition { key: key(name), indexes: vec!["a".into()], schema: None };
    let mut all = vec![
        plain(1, define("d1"), None, None),
        plain(2, define("d2"), None, None),
        plain(3, define("d3"), None, None),
    ];
    for number in 0..count {
        if random.u8(0..40) == 0 {
            all.push(None);
            continue;
        }
        let created = random.u64(2..=3);
        let (definition, config) = (key(&format!("d{created}")), key(&format!("k{}", random.u8(0..9))));
        let recent = number.saturating_sub(random.u64(0..6)) + BEGUN;
        let expect = match random.u8(0..8) {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::At(recent),
            3 => Expect::Read(Some(recent)),
            4 => Expect::None,
            _ => Expect::Any,
        };
        let command = if random.u8(0..5) == 0 {
            Command::DeleteConfig { definition, key: config, expect }
        } else {
            let entries = Box::new([IndexEntry { slot: 0, value: vec![0x40, random.u8(..)].into() }]);
            let data = format!("{{\"a\":{number}}}").into();
            Command::WriteConfig { definition, key: config, data, entries, expect }
        };
        // Sometimes of a definition that has changed since.
        let read = if random.u8(0..12) == 0 { 1 } else { created };
        let request = (random.u8(0..4) == 0)
            .then(|| IdempotencyKey { id: [random.u8(0..30); 16], fingerprint: [random.u8(0..2); 16] });
        all.push(plain(1000 + number.saturating_sub(random.u64(0..3)), command, Some(read), request));
    }
    all
}

/// The entries of a log, with at most so many proposals each, drawn at random.
fn entries(all: &[Option<Proposal>], most: usize, seed: u64) -> Vec<Entry> {
    let mut random = Rng::with_seed(seed);
    // The first entry of a cluster.
    let mut payloads = vec![Payload::Blank];
    let mut group: Vec<Vec<u8>> = Vec::new();
    let mut size = 1;
    let normal = |group: &mut Vec<Vec<u8>>| {
        let bytes = entry::encode(std::mem::take(group));
        Payload::Normal(EncodedProposal(bytes.into()))
    };
    for proposal in all {
        let shares = proposal.as_ref().is_some_and(Proposal::may_share_entry);
        if !group.is_empty() && (!shares || group.len() == size) {
            payloads.push(normal(&mut group));
        }
        match proposal {
            None => payloads.push(Payload::Blank),
            Some(one) if shares => {
                if group.is_empty() {
                    size = random.usize(1..=most);
                }
                group.push(one.to_bytes());
            }
            Some(one) => payloads.push(normal(&mut vec![one.to_bytes()])),
        }
    }
    if !group.is_empty() {
        payloads.push(normal(&mut group));
    }
    let entry = |(index, payload)| Entry { log_id: WireLogId { index, term: 1, node: 1 }.into(), payload };
    (0..).zip(payloads).map(entry).collect()
}

/// The same change in a segment that has all before it: a stop ends one.
fn as_in_one_segment(mut change: StoredChange) -> StoredChange {
    for edit in &mut change.edits {
        if let StoredEdit::ConfigWithBefore { definition, before, after } = edit {
            let (key, before) = (before.key.clone(), Some(before.revision));
            *edit = StoredEdit::Config { definition: *definition, key, before, after: after.take() };
        } else if let StoredEdit::DefinitionWithBefore { before, after } = edit {
            let (id, key, before) = (before.id, before.key.clone(), Some(before.revision));
            *edit = StoredEdit::Definition { id, key, before, after: after.take() };
        }
    }
    change
}

/// A state machine on a directory.
struct TestNode {
    directory: TempDir,
    store: Store,
    machine: Machine,
}

fn open(directory: &TempDir, last: LogIndex) -> (Store, Machine) {
    let range = LogRange { purged: 0, last };
    let opened = Store::open(&directory.path().join("store"), StoreOptions::default(), range).unwrap();
    let (store, Loaded::State(state, position)) = opened else { panic!("the log has all of it") };
    let wal = Wal::open(&directory.path().join("log")).unwrap();
    let log = wal.with_listener(Arc::new(store.clone()), DirectoryFormat::new(directory.path(), FORMAT));
    let peers = Arc::new(Peers::new(Secrets(Vec::new())));
    let machine = Machine::new(state, &position, store.clone(), log, peers).unwrap();
    (store, machine)
}

impl TestNode {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (store, machine) = open(&directory, 0);
        Self { directory, store, machine }
    }

    async fn apply(&mut self, entries: &[Entry]) {
        let items: Vec<_> = entries.iter().map(|entry| Ok((entry.clone(), None))).collect();
        self.machine.apply(stream::iter(items)).await.unwrap();
        self.store.flushed(entries.last().map_or(0, |entry| entry.log_id.index));
    }

    /// Stops and starts; returns the index after which the log has to be applied again.
    fn restart(self, last: LogIndex, is_clean: bool) -> (Self, LogIndex) {
        let Self { directory, store, machine } = self;
        if is_clean {
            store.close();
        }
        machine.log.close();
        drop((store, machine));
        let (store, machine) = open(&directory, last);
        let applied = index_of(machine.last_log_id);
        (Self { directory, store, machine }, applied)
    }

    fn history(&self) -> Vec<StoredChange> {
        let applied = self.machine.publisher.applied.load_full();
        self.store.build_snapshot(&applied.state, &applied.position()).unwrap();
        let changes = self.store.history().changes_from(1).unwrap();
        changes.map(|change| as_in_one_segment(change.unwrap())).collect()
    }

    /// What a watch sees that begins with the first change.
    fn events(&self) -> Vec<(Revision, String)> {
        let max = EventPageMax { events: usize::MAX, bytes: usize::MAX };
        let page = self.machine.publisher.feed.after(0, max).unwrap();
        assert_eq!(page.upto, self.machine.state.revision());
        let text = |event: &Arc<feed::Event>| format!("{:?} {:?} {:?}", event.at, event.reason, event.items);
        page.events.iter().map(|event| (event.revision, text(event))).collect()
    }
}

#[tokio::test]
async fn any_grouping_of_proposals_gives_the_same_state_history_and_events() {
    for seed in 1..=3 {
        let all = proposals(seed, 700);
        // Each by itself, without a log.
        let (mut state, mut changes, mut digests) = (State::new(), Vec::new(), vec![]);
        for (revision, proposal) in (1..).zip(&all) {
            match proposal {
                None => state.advance(revision),
                Some(proposal) => changes.extend(state.apply(revision, proposal).1),
            }
            digests.push(state.digest());
        }
        assert!(changes.len() > 200, "they do something");
        let stored: Vec<StoredChange> = changes.iter().map(|change| StoredChange::of(change, 0)).collect();
        let mut seen = None;
        for most in [1, 2, 40, GROUP_PROPOSALS_MAX] {
            let log = entries(&all, most, seed);
            let mut node = TestNode::new();
            for part in log.chunks(7) {
                node.apply(part).await;
                let applied = node.machine.publisher.applied.load_full();
                let at = usize::try_from(applied.state.revision()).unwrap();
                assert_eq!(
                    applied.state.digest(),
                    at.checked_sub(1).map_or(State::new().digest(), |at| digests[at])
                );
                assert_eq!(Some(applied.last_log_id), part.last().map(|entry| Some(entry.log_id)));
            }
            assert_eq!(node.machine.state.revision(), all.len() as u64);
            assert_eq!(node.machine.state.last_at(), state.last_at());
            assert_eq!(log.len() == all.len() + 1, most == 1, "{} entries", log.len());
            assert_eq!(node.history(), stored, "groups of {most}");
            let events = node.events();
            assert_eq!(seen.get_or_insert_with(|| events.clone()), &events);
            let recorded = node.machine.publisher.digests.list_with(&node.machine.state, Revision::MAX);
            assert_eq!(recorded.len(), all.len() / 256 + 1);
            for (revision, digest) in recorded {
                assert_eq!(digest, digests[usize::try_from(revision).unwrap() - 1], "at {revision}");
            }
            node.store.close();
        }
    }
}

#[tokio::test]
async fn a_restart_anywhere_continues_revisions_and_history() {
    let all = proposals(9, 300);
    let log = entries(&all, 20, 9);
    let last = log.len() as u64 - 1;
    let mut whole = TestNode::new();
    whole.apply(&log).await;
    let (history, digest) = (whole.history(), whole.machine.state.digest());
    whole.store.close();
    for (part, is_clean) in [(3, true), (10, false), (25, true), (26, false), (log.len(), true)] {
        let mut node = TestNode::new();
        let part = part.min(log.len());
        node.apply(&log[..part]).await;
        let before = node.machine.state.revision();
        let (mut node, applied) = node.restart(last, is_clean);
        assert!(!is_clean || node.machine.state.revision() == before);
        // A fresh node has applied nothing, not the first entry.
        let again =
            if node.machine.last_log_id.is_none() { 0 } else { usize::try_from(applied).unwrap() + 1 };
        node.apply(&log[again..]).await;
        assert_eq!((node.machine.state.revision(), node.machine.state.digest()), (all.len() as u64, digest));
        assert_eq!(node.history(), history, "after {part} entries, clean: {is_clean}");
        node.store.close();
    }
}

#[tokio::test]
async fn waiters_for_an_entry_and_for_a_revision_are_independent() {
    use futures::FutureExt as _;

    let all = proposals(4, 60);
    let log = entries(&all, 30, 4);
    let mut node = TestNode::new();
    let publisher = node.machine.publisher();
    let (entries, revisions) = (log.len() as u64 - 1, all.len() as u64);
    assert!(entries < revisions);
    let mut entry = Box::pin(publisher.index_waiters.wait(entries));
    let mut next = Box::pin(publisher.index_waiters.wait(entries + 1));
    let mut revision = Box::pin(publisher.revision_waiters.wait(revisions));
    node.apply(&log[..log.len() - 1]).await;
    assert!(node.machine.state.revision() >= entries, "the revision is ahead of the index");
    assert!(entry.as_mut().now_or_never().is_none() && revision.as_mut().now_or_never().is_none());
    node.apply(&log[log.len() - 1..]).await;
    assert!(entry.now_or_never().is_some() && revision.now_or_never().is_some());
    assert!(next.as_mut().now_or_never().is_none());
    drop(next);
    node.store.close();
}

#[tokio::test]
async fn a_damaged_group_ends_the_node_and_nothing_of_it_is_published() {
    let all = proposals(5, 40);
    let mut log = entries(&all, 40, 5);
    let mut node = TestNode::new();
    let Payload::Normal(last) = &log[log.len() - 1].payload else { panic!("the last one is a group") };
    let cut = EncodedProposal(last.0.slice(..last.0.len() - 1));
    let end = log.len() - 1;
    log[end].payload = Payload::Normal(cut);
    node.apply(&log[..end]).await;
    let revision = node.machine.state.revision();
    let items = vec![Ok((log[end].clone(), None))];
    let error = node.machine.apply(stream::iter(items)).await.unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(node.machine.publisher.applied.load().state.revision(), revision);
    assert!(node.machine.publisher.supervisor.failed().await.contains("damaged"));
    node.store.close();
}
