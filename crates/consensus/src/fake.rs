//! A consensus that a test scripts: who leads, how long a decision takes, and what its proposer learns of it.
//!
//! Only openraft's core is not asked. The state machine, the store, the feed, group commit and everything that
//! waits for a revision are the real ones. Nothing else happens by itself: an hour of virtual time costs only what the
//! test does in it. A cluster of real nodes in virtual time is `crates/simulation`.
//!
//! **Invariant:** as with openraft, a write that was rejected with `NotLeader` is certainly not applied, and one whose
//! outcome is unknown may be applied later.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use openraft::{EntryPayload, LogId as RaftLogId};
use tokio::{sync::watch, time::sleep};

use super::{
    Consensus, LOG_DIRECTORY, Leadership, ReadError, ReadIndex, STORE_DIRECTORY, StartError, Timers,
    WriteError,
    directory_format::DirectoryFormat,
    divergence::Proof,
    group::WriteGroups,
    log::Wal,
    machine::Machine,
    start::ConsensusParts,
    term::Term,
    types::{EncodedProposal, Entry, LeaderId, LogId},
    wire::WireLogId,
    witness::Witness,
};
use concord_model::{
    command::{Proposal, Verdict},
    entry,
};
use concord_net::{Member, NodeId, client::Peers, identity::Identity};
use concord_storage::{Loaded, LogRange, Store, StoreOptions};

/// Longer than any test: openraft's core, which has nothing to do, does it once a year.
const TIMERS: Timers = Timers {
    heartbeat_ms: 365 * 24 * 3_600_000,
    election_min_ms: 2 * 365 * 24 * 3_600_000,
    election_max_ms: 3 * 365 * 24 * 3_600_000,
    lease_reads: false,
};

/// What becomes of an entry that this node proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is decided, and the proposer learns the verdicts.
    Decided,
    /// It is rejected without having been appended: leadership was lost before.
    NotAppended,
    /// The proposer learns nothing; it is applied all the same.
    LostAndApplied,
    /// The proposer learns nothing, and it is never applied.
    LostAndGone,
}

type Script = Box<dyn FnMut() -> (Duration, Fate) + Send>;

/// What a test scripts. The [`Consensus`] that belongs to it asks it instead of openraft.
pub struct FakeConsensus {
    me: NodeId,
    machine: Mutex<Machine>,
    leader: watch::Sender<Option<Member>>,
    leadership: watch::Sender<Leadership>,
    groups: WriteGroups,
    script: Mutex<Script>,
}

impl fmt::Debug for FakeConsensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeConsensus").field("me", &self.me).finish_non_exhaustive()
    }
}

fn failed(error: impl fmt::Display) -> StartError {
    StartError::Failed(error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn member(id: NodeId) -> Member {
    // Nobody listens there.
    Member { id, api_addr: "127.0.0.1:1".into(), peer_addr: "127.0.0.1:2".into() }
}

impl FakeConsensus {
    /// A node of a cluster of which no leader is known yet. Each entry is decided at once, until [`Self::script`] says
    /// otherwise.
    ///
    /// # Errors
    /// When the directory can't be used.
    pub async fn start(
        directory: &Path,
        me: Identity,
        peers: Arc<Peers>,
    ) -> Result<(Consensus, Arc<Self>), StartError> {
        let id = me.node_id;
        let wal = Wal::open(&directory.join(LOG_DIRECTORY)).map_err(failed)?;
        let witness = Arc::new(Witness::open(&me, directory, wal.position()).map_err(failed)?);
        let range = LogRange { purged: 0, last: 0 };
        let opened = Store::open(&directory.join(STORE_DIRECTORY), StoreOptions::default(), range)?;
        let (store, Loaded::State(state, position)) = opened else {
            return Err(StartError::Failed("a fresh store has a whole state".into()));
        };
        let format = DirectoryFormat::new(directory, me.format);
        let log = wal.with_listener(Arc::new(store.clone()), format);
        // openraft gets one of its own, which stays empty.
        let machine = |state| {
            let machine = Machine::new(state, &position, store.clone(), log.clone(), Arc::clone(&peers));
            machine.map_err(failed)
        };
        let (mut own, idle) = (machine(state.clone())?, machine(state)?);
        own.apply_alone(Entry { log_id: log_id(0, 1, id), payload: EntryPayload::Blank }).map_err(failed)?;
        let publisher = own.publisher();
        let parts = ConsensusParts {
            id,
            store,
            log,
            machine: idle,
            timers: TIMERS,
            snapshot_log_bytes: u64::MAX,
            witness,
            proof: Arc::new(Proof::new(true)),
        };
        let (mut inner, follower, _) = parts.assemble(&peers).await?;
        let fake = Arc::new(Self {
            me: id,
            machine: Mutex::new(own),
            leader: follower.leader,
            leadership: follower.leadership,
            groups: follower.groups,
            script: Mutex::new(Box::new(|| (Duration::ZERO, Fate::Decided))),
        });
        inner.publisher = publisher;
        inner.fake = Some(Arc::clone(&fake));
        Ok((Consensus { inner: Arc::new(inner) }, fake))
    }

    /// From now on this node knows this leader, in the next term.
    pub fn lead(&self, leader: Option<NodeId>) {
        let term = self.leadership.borrow().term + 1;
        self.leader.send_replace(leader.map(member));
        self.groups.reset();
        self.leadership.send_replace(Leadership { leader_id: leader, term, why: "scripted".into() });
    }

    /// From now on each entry of this node has the fate that `script` gives it, after so long.
    pub fn script(&self, script: impl FnMut() -> (Duration, Fate) + Send + 'static) {
        *lock(&self.script) = Box::new(script);
    }

    /// Applies what another member has proposed.
    pub fn decide(&self, proposal: &Proposal) -> Verdict {
        let entry = entry::encode(vec![proposal.to_bytes()]);
        self.apply(entry.into()).pop().expect("an entry with a proposal has a verdict")
    }

    fn apply(&self, entry: Bytes) -> Vec<Verdict> {
        let term = self.leadership.borrow().term.max(1);
        let leader = self.leadership.borrow().leader_id.unwrap_or(self.me);
        let mut machine = lock(&self.machine);
        let index = machine.last().map_or(0, |last| last.index + 1);
        let payload = EntryPayload::Normal(EncodedProposal(entry));
        let applied = machine.apply_alone(Entry { log_id: log_id(index, term, leader), payload });
        applied.expect("what a test proposes can be applied").verdicts
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().leader_id == Some(self.me)
    }

    /// The leader, if it is another node.
    fn other_leader(&self) -> Option<NodeId> {
        self.leadership.borrow().leader_id.filter(|leader| *leader != self.me)
    }

    pub(super) async fn propose(&self, entry: Bytes) -> Result<Vec<Verdict>, WriteError> {
        if !self.leads() {
            return Err(WriteError::NotLeader(self.other_leader()));
        }
        let (after, fate) = (*lock(&self.script))();
        sleep(after).await;
        let lost = || Err(WriteError::Undecided("scripted".into()));
        match fate {
            Fate::Decided => Ok(self.apply(entry)),
            Fate::NotAppended => Err(WriteError::NotLeader(self.other_leader())),
            Fate::LostAndApplied => {
                self.apply(entry);
                lost()
            }
            Fate::LostAndGone => lost(),
        }
    }

    pub(super) fn read_index(&self) -> Result<ReadIndex, ReadError> {
        if !self.leads() {
            return Err(ReadError::NotLeader(self.other_leader()));
        }
        Ok(ReadIndex::of(lock(&self.machine).last().map(WireLogId::from)))
    }
}

fn log_id(index: u64, term: u64, leader: NodeId) -> LogId {
    RaftLogId { leader_id: LeaderId { term: Term(term), node_id: leader }, index }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::Author,
        command::{Command, Expect},
        key::Key,
        time::Timestamp,
    };
    use concord_net::{client::Secrets, identity::FORMAT};

    fn create(number: u64) -> Proposal {
        let key = Key::parse(&format!("d{number}")).unwrap();
        let command = Command::CreateDefinition { key, indexes: Vec::new(), schema: None };
        Proposal::new(Timestamp(number), "root", Author::Root, command)
    }

    async fn start(directory: &Path) -> (Consensus, Arc<FakeConsensus>) {
        let me = Identity { cluster_id: uuid::Uuid::from_u128(3), node_id: 1, format: FORMAT };
        let peers = Arc::new(Peers::new(Secrets(vec!["secret".into()])));
        let started = FakeConsensus::start(directory, me, peers).await.unwrap();
        tokio::time::pause();
        started
    }

    #[tokio::test]
    async fn a_scripted_node_decides_as_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (consensus, fake) = start(directory.path()).await;
        assert_eq!(consensus.write(create(1)).await, Err(WriteError::NotLeader(None)));
        fake.lead(Some(2));
        assert_eq!(consensus.write(create(1)).await, Err(WriteError::NotLeader(Some(2))));
        assert_eq!(consensus.state().revision(), 0);
        fake.lead(Some(1));
        assert_eq!(consensus.leader_id(), Some(1));
        let begun = tokio::time::Instant::now();
        fake.script(|| (Duration::from_secs(3600), Fate::Decided));
        assert!(matches!(consensus.write(create(1)).await, Ok(Verdict::Decided(Ok(_)))));
        assert_eq!(begun.elapsed().as_secs(), 3600);
        let index = consensus.read_index(super::super::Confirmation::Quorum).await.unwrap();
        consensus.wait_read(index).await;
        for (fate, definitions) in [(Fate::LostAndApplied, 2), (Fate::LostAndGone, 2)] {
            fake.script(move || (Duration::ZERO, fate));
            let lost = consensus.write(create(definitions)).await;
            assert!(matches!(lost, Err(WriteError::Undecided(_))), "{lost:?}");
            assert_eq!(consensus.state().definitions().count(), 2);
        }
        let delete = Command::DeleteDefinition {
            key: Key::parse("d1").unwrap(),
            expect: Expect::Present,
            restrict: false,
            keep: None,
        };
        let decided = fake.decide(&Proposal::new(Timestamp(9), "root", Author::Root, delete));
        assert!(matches!(decided, Verdict::Decided(Ok(_))), "{decided:?}");
        assert_eq!(consensus.state().definitions().count(), 1);
        tokio::time::resume();
        consensus.shutdown().await;
    }
}
