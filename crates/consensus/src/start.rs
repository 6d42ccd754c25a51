//! Starts consensus on a node, in five steps.
//!
//! 1. Complete a recovery that was interrupted. Open the keys of an encrypted directory and the log. If the state is
//!    distrusted, the log is discarded first. The node does not start if a newer version has written to the directory, if
//!    the log is damaged, or if it is missing although one existed: this member no longer knows its vote.
//! 2. Check that the log's header and the directory's identity name the same member.
//! 3. Open the store with the range of the log. It returns the newest whole state.
//! 4. If it has none, fetch and install another member's newest snapshot, unless a majority contradicts the log.
//! 5. Reconcile the log with the state and start openraft, which applies the log after the state.
//! 6. Ask the other members whether the disk of this one was rolled back (`witness`).
//!
//! **Invariant:** openraft is started last, with a log and a state that belong together. Before that this node
//! answers no vote request, and it votes and confirms only after the last step.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use openraft::{Config, SnapshotPolicy};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::sleep,
};

use super::{
    Consensus, LOG_DIRECTORY, Leadership, STORE_DIRECTORY, Start, StartError, Timers,
    codec::LogHeader,
    consensus::ConsensusInner,
    contact::Contacts,
    directory_format::DirectoryFormat,
    divergence::{self, DivergenceDetector, Proof},
    figures::ConsensusCounts,
    group::WriteGroups,
    leadership::{LastHeard, LeaderFollower, Transfers},
    lease::Leases,
    log::{self, Log, Wal},
    machine::Machine,
    network::{Network, NetworkContext},
    receive::Contradicted,
    recover, slow_flush,
    snapshot::{self, SnapshotScheduler},
    standstill::Standstill,
    types::Raft,
    wire::{self, SnapshotHeader, StateMetadata, WireLogId},
    witness::{Witness, WitnessTask},
};
use concord_net::{Member, NodeId, client::Peers, identity::Identity};
use concord_state::State;
use concord_storage::{Loaded, LogRange, Position, Store, StoreError, StoreOptions, at_rest::AtRest};

/// Most entries of one append; the log's reader bounds the bytes.
const APPEND_ENTRIES_MAX: u64 = 1024;
/// Most calls that wait for openraft's core; further writes wait in their callers.
const API_QUEUE_CALLS_MAX: u64 = 8192;
/// How long sending a snapshot may take: 1 GB on a link of 10 MB/s.
const SNAPSHOT_TIMEOUT_MS: u64 = 120_000;
/// openraft's pauses before it calls an unreachable member again.
const BACKOFF: &str = "50ms 100ms 200ms ...500ms";
/// A count of entries that is never reached: openraft neither purges nor sends snapshots by a count of its own.
const COUNT_POLICY_OFF: u64 = u64::MAX / 4;
/// Most recovered members whose back-off openraft has not yet ended.
const RECOVERED_QUEUE_MAX: usize = 64;
/// Rounds over all members in which a node without a state asks for a snapshot before it gives up.
const RECOVERY_ROUNDS_MAX: u32 = 30;
/// Pause between two rounds.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);
/// How long a member may take until its snapshot begins.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

impl Consensus {
    /// Opens log and store, checks that they belong together, and starts openraft. Fetches a snapshot from another
    /// member first if the store has no whole state.
    ///
    /// # Errors
    /// See [`StartError`].
    // Boxed: an async function is compiled anew in each crate that awaits it, and this one has all of openraft below
    // it.
    pub fn start(start: Start) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::open_and_start(start))
    }

    async fn open_and_start(start: Start) -> Result<Self, StartError> {
        let Start { me, directory, mut store, data_key_file, peers, timers, .. } = start;
        let Start { snapshot_log_bytes, log_stall_timeout, rescue, runtime, .. } = start;
        if peers.me.get_or_init(|| me.clone()) != &me {
            return Err(StartError::Refused("the client for peer RPCs has another identity".into()));
        }
        let opening = (me.clone(), directory.clone(), data_key_file);
        let opened = blocking(move || {
            let (me, directory, key_file) = opening;
            recover::finish(&directory, &me).map_err(failed)?;
            let at_rest = open_keys(&directory, key_file.as_deref())?;
            let is_distrusted = Store::is_distrusted(&directory.join(STORE_DIRECTORY))
                && !concord_model::sabotage::is("distrusted-replayed");
            if is_distrusted {
                discard_log(&directory, &at_rest).map_err(failed)?;
            }
            let wal = open_log(&me, &directory, &at_rest)?;
            let witness = Witness::open(&me, &directory, wal.position()).map_err(failed)?;
            Ok::<_, StartError>((wal, at_rest, witness, Proof::new(!is_distrusted)))
        });
        let (wal, at_rest, witness, proof) = opened.await??;
        store.at_rest = at_rest.clone();
        let (range, has_voted) = (wal.range(), !wal.is_pristine());
        let (store, loaded) = open_store(&directory, store, range).await?;
        blocking(move || at_rest.converted()).await?.map_err(failed)?;
        let log = wal.with_listener(Arc::new(store.clone()), DirectoryFormat::new(&directory, me.format));
        let (state, position) = match loaded {
            Loaded::State(state, position) => (state, position),
            Loaded::Nothing => {
                let log_of_members = log.clone();
                let members = blocking(move || log_of_members.members()).await?.map_err(failed)?;
                // As agreed as a node without a state knows.
                peers.set_members(members.iter().map(|one| (one.id, one.peer_addr.clone())).collect());
                let mut sources = members;
                sources.extend(rescue);
                sources.extend(noted_members(&directory.join(STORE_DIRECTORY)));
                sources.retain(|member| member.id != me.node_id);
                let recovery =
                    StateRecovery { peers: &peers, store: &store, log: &log, purged: range.purged };
                recovery.run(&sources).await?
            }
        };
        let metadata = StateMetadata::decode(&position.raft_meta).map_err(StartError::Refused)?;
        if let Some(applied) = metadata.last_log_id {
            log.reconcile(applied).await.map_err(failed)?;
        }
        let machine = Machine::new(state, &position, store.clone(), log.clone(), Arc::clone(&peers));
        let machine = machine.map_err(failed)?;
        let watched = machine.publisher().supervisor.clone();
        log.watch(log_stall_timeout, move |why| watched.fail(why)).map_err(failed)?;
        let (witness, proof, id) = (Arc::new(witness), Arc::new(proof), me.node_id);
        if let Some(promised) = witness.promised_lease().filter(|_| has_voted) {
            // This member may have acknowledged a leader just before its process ended, and openraft forgets when: with
            // its vote another one could lead while the first still answers by its lease.
            sleep(Duration::from_millis(promised)).await;
        }
        let (remembering, lease) = (Arc::clone(&witness), timers.lease());
        blocking(move || remembering.promise_lease(lease)).await?.map_err(failed)?;
        let parts = ConsensusParts { id, store, log, machine, timers, snapshot_log_bytes, witness, proof };
        runtime.spawn(parts.start(peers)).await.map_err(failed)?
    }
}

fn failed(error: impl std::fmt::Display) -> StartError {
    StartError::Failed(error.to_string())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    crate::blocking::blocking(work).await.map_err(failed)
}

/// Opens the keys of the directory, and writes them if encryption is turned on. Refuses first, and changes nothing
/// then. Blocking.
fn open_keys(directory: &Path, key_file: Option<&Path>) -> Result<AtRest, StartError> {
    let at_rest = AtRest::open(directory, key_file).map_err(StartError::Refused)?;
    Store::refuse_newer(&directory.join(STORE_DIRECTORY), &at_rest)?;
    at_rest.prepare().map_err(StartError::Failed)?;
    Ok(at_rest)
}

/// Discards the log of a directory whose state is distrusted, and notes the members that it names: the state that named
/// them is removed next. Blocking.
fn discard_log(directory: &Path, at_rest: &AtRest) -> io::Result<()> {
    let store = directory.join(STORE_DIRECTORY);
    log::discard(&directory.join(LOG_DIRECTORY), at_rest, |discarded| {
        tracing::warn!("the log on this disk is discarded, too; it is kept as `{LOG_DIRECTORY}.distrusted`");
        Witness::discard(directory, discarded.position)?;
        if !noted_members(&store).is_empty() || discarded.members.is_empty() {
            return Ok(());
        }
        Store::invalidate_in(&store, &wire::to_bytes(&discarded.members)).map_err(io::Error::other)
    })
}

/// The members that were noted when the state in a store was marked as wrong.
fn noted_members(store: &Path) -> Vec<Member> {
    let noted = Store::invalidation_note(store).and_then(|note| wire::from_bytes(&note).ok());
    noted.unwrap_or_default()
}

/// Opens the log and checks that it is this member's. Blocking.
fn open_log(me: &Identity, directory: &Path, at_rest: &AtRest) -> Result<Wal, StartError> {
    let path = directory.join(LOG_DIRECTORY);
    let opened = log::convert(&path, at_rest).and_then(|()| Wal::open(&path));
    let mut wal = opened.map(|wal| wal.with_keys(at_rest)).map_err(|error| {
        let text = format!("the log in {} can't be opened: {error}", path.display());
        if error.kind() == io::ErrorKind::Unsupported {
            StartError::Refused(text)
        } else if error.kind() == io::ErrorKind::InvalidData {
            StartError::Refused(format!(
                "{text}. It is damaged and may lack votes and entries that were acknowledged: \
                 remove this member and let it rejoin under a new id"
            ))
        } else {
            StartError::Failed(text)
        }
    })?;
    let own = LogHeader { cluster: *me.cluster_id.as_bytes(), node: me.node_id, installing: None };
    let existed = Identity::log_existed(directory).map_err(failed)?;
    match wal.header() {
        Some(header) if (header.cluster, header.node) != (own.cluster, own.node) => {
            return Err(StartError::Refused(format!(
                "the log in {} belongs to node {} of cluster {}, identity.json names node {} of cluster {}",
                path.display(),
                header.node,
                uuid::Uuid::from_bytes(header.cluster),
                me.node_id,
                me.cluster_id
            )));
        }
        Some(_) => {}
        None if existed || !wal.is_pristine() => {
            return Err(StartError::Refused(format!(
                "the log in {} is missing: node {} has taken part in the cluster and no longer knows its vote. \
                 Remove this member and let it rejoin under a new id",
                path.display(),
                me.node_id
            )));
        }
        None => wal.set_header(own).map_err(failed)?,
    }
    if !existed {
        me.record_log(directory).map_err(failed)?;
    }
    Ok(wal)
}

async fn open_store(
    directory: &Path,
    options: StoreOptions,
    log: LogRange,
) -> Result<(Store, Loaded), StartError> {
    let path = directory.join(STORE_DIRECTORY);
    Ok(blocking(move || Store::open(&path, options, log)).await??)
}

/// Fetches a state for a node that has lost its own.
struct StateRecovery<'a> {
    peers: &'a Peers,
    store: &'a Store,
    log: &'a Log,
    /// The last purged entry: the state must hold it.
    purged: u64,
}

/// Why a snapshot of another member is of no use.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Failed(String),
    /// The log of this node has another committed entry there.
    #[error("its snapshot is of another history: entry {} of the log of this node is committed, and differs", .0.index)]
    Contradiction(WireLogId),
}

impl From<String> for FetchError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl StateRecovery<'_> {
    async fn run(&self, sources: &[Member]) -> Result<(State, Position), StartError> {
        let mut last_error = "no other member is known".to_owned();
        let mut contradicting = BTreeSet::new();
        for round in 0..RECOVERY_ROUNDS_MAX {
            if round > 0 {
                sleep(RECOVERY_PAUSE).await;
            }
            for source in sources {
                match self.fetch_from(source).await {
                    Ok(recovered) => return Ok(recovered),
                    Err(error) => {
                        let why = error.to_string();
                        tracing::warn!(member = source.id, %why, "this node can't use a snapshot of that member");
                        last_error = format!("member {}: {why}", source.id);
                        if let FetchError::Contradiction(own) = error {
                            contradicting.insert(source.id);
                            self.end_if_contradicted(sources, &contradicting, own).await?;
                        }
                    }
                }
            }
            if sources.is_empty() {
                break;
            }
        }
        Err(StartError::Failed(format!(
            "this node has no complete state, and no member sent a snapshot that it can use: {last_error}"
        )))
    }

    /// Ends this start if a majority has another history than the log: the log is then kept, and the state fetched. One
    /// member alone may be the one that is wrong.
    async fn end_if_contradicted(
        &self,
        sources: &[Member],
        contradicting: &BTreeSet<NodeId>,
        own: WireLogId,
    ) -> Result<(), StartError> {
        // The same member may be a source twice. This node is one more.
        let members = sources.iter().map(|source| source.id).collect::<BTreeSet<_>>().len() + 1;
        if contradicting.len() * 2 <= members {
            return Ok(());
        }
        let place = format!("entry {} of the log", own.index);
        Err(StartError::Failed(divergence::distrust_with(sources, self.store, &place).await))
    }

    async fn fetch_from(&self, source: &Member) -> Result<(State, Position), FetchError> {
        let fetched = self.peers.fetch_snapshot(source.id, &source.peer_addr, FETCH_TIMEOUT).await;
        let (header, body) = fetched.map_err(|error| error.to_string())?;
        let header = SnapshotHeader::from_header(&header).map_err(|error| error.to_string())?;
        if header.index < self.purged {
            return Err(FetchError::Failed(format!(
                "its snapshot ends at entry {}, this log begins after {}",
                header.index, self.purged
            )));
        }
        let metadata = StateMetadata::decode(&header.metadata)?;
        if let Some(last) = metadata.last_log_id {
            let contradiction = self.log.contradicted_by(last, &metadata.terms).await;
            if let Some(own) = contradiction.map_err(|error| error.to_string())? {
                return Err(FetchError::Contradiction(own));
            }
        }
        let file = snapshot::receive(self.store, &header, body).await.map_err(|error| error.to_string())?;
        self.log.set_installing(metadata.last_log_id).await.map_err(|error| error.to_string())?;
        let (store, format) = (self.store.clone(), self.log.format().clone());
        let installed = crate::blocking::blocking(move || {
            let level = store.feature_level_of(&file.path)?;
            format.require(level).map_err(|error| StoreError::Newer(error.to_string()))?;
            store.install(&file.path)
        });
        let installed = installed.await;
        let (state, file) =
            installed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        tracing::info!(member = source.id, revision = file.revision, "installed a snapshot");
        Ok((state, file.position))
    }
}

/// What openraft and its tasks are started with.
pub(super) struct ConsensusParts {
    pub(super) id: NodeId,
    pub(super) store: Store,
    pub(super) log: Log,
    pub(super) machine: Machine,
    pub(super) timers: Timers,
    pub(super) snapshot_log_bytes: u64,
    pub(super) witness: Arc<Witness>,
    pub(super) proof: Arc<Proof>,
}

/// What follows openraft, and the members that it has recovered.
type Assembled = (ConsensusInner, LeaderFollower, mpsc::Receiver<NodeId>);

impl ConsensusParts {
    async fn start(self, peers: Arc<Peers>) -> Result<Consensus, StartError> {
        let snapshot_log_bytes = self.snapshot_log_bytes;
        let (inner, follower, recovered_members) = self.assemble(&peers).await?;
        inner.spawn_tasks(follower, recovered_members, peers, snapshot_log_bytes);
        Ok(Consensus { inner: Arc::new(inner) })
    }

    /// Starts openraft, and nothing beside it.
    pub(super) async fn assemble(self, peers: &Arc<Peers>) -> Result<Assembled, StartError> {
        let Self { id, store, log, machine, timers, witness, proof, .. } = self;
        let (publisher, machine_dropped) = (machine.publisher(), machine.dropped());
        let (recovered, recovered_members) = mpsc::channel(RECOVERED_QUEUE_MAX);
        let context = Arc::new(NetworkContext {
            peers: Arc::clone(peers),
            store: store.clone(),
            snapshots_in_flight: AtomicUsize::new(0),
            rebuild: Notify::new(),
            recovered,
            counts: ConsensusCounts::default(),
            leases: Leases::default(),
            witness: Arc::clone(&witness),
        });
        let config = Arc::new(config(&timers)?);
        let raft = Raft::new(id, config, Network(Arc::clone(&context)), log.clone(), machine);
        let raft = raft.await.map_err(failed)?;
        // Before its core has started, openraft's metrics name no members: nobody would be asked, any members would be a
        // majority of none, and a member that has moved would not be told. The core answers this once it has written them.
        raft.is_initialized().await.map_err(failed)?;

        let stopping = Arc::new(AtomicBool::new(false));
        let (leader_sender, leader) = watch::channel(None);
        let (leadership_sender, leadership) = watch::channel(Leadership::default());
        let last_heard = Arc::new(LastHeard::new(timers.silence_max()));
        let (groups, transfers) = (WriteGroups::default(), Arc::new(Transfers::default()));
        let standstill = Arc::new(Standstill::default());
        let follower = LeaderFollower {
            leader: leader_sender,
            leadership: leadership_sender,
            groups: groups.clone(),
            stopping: Arc::clone(&stopping),
            transfers: Arc::clone(&transfers),
            standstill: Arc::clone(&standstill),
            context: Arc::clone(&context),
            last_heard: Arc::clone(&last_heard),
        };
        let witnesses = WitnessTask {
            id,
            raft: raft.clone(),
            publisher: Arc::clone(&publisher),
            store: store.clone(),
            log: log.clone(),
            peers: Arc::clone(peers),
            witness,
            proof: Arc::clone(&proof),
            caution: Duration::from_millis(timers.election_max_ms.saturating_mul(3)),
        };
        let inner = ConsensusInner {
            id,
            raft,
            publisher,
            machine_dropped,
            store,
            log,
            timers,
            leader,
            stopping,
            groups,
            context,
            contacts: Contacts::new(standstill),
            leadership,
            transfers,
            witnesses,
            proof,
            contradicted: Contradicted::default(),
            last_heard,
            #[cfg(any(test, feature = "testing"))]
            fake: None,
        };
        Ok((inner, follower, recovered_members))
    }
}

impl ConsensusInner {
    /// Starts what runs beside openraft until this node stops.
    fn spawn_tasks(
        &self,
        follower: LeaderFollower,
        mut recovered_members: mpsc::Receiver<NodeId>,
        peers: Arc<Peers>,
        snapshot_log_bytes: u64,
    ) {
        let snapshots = SnapshotScheduler {
            raft: self.raft.clone(),
            publisher: Arc::clone(&self.publisher),
            store: self.store.clone(),
            context: Arc::clone(&self.context),
            log: self.log.clone(),
            log_bytes_min: snapshot_log_bytes,
        };
        let divergence = DivergenceDetector {
            id: self.id,
            peers,
            publisher: Arc::clone(&self.publisher),
            store: self.store.clone(),
            proof: Arc::clone(&self.proof),
        };
        let trigger = self.raft.clone();
        let end_back_off = async move {
            while let Some(member) = recovered_members.recv().await {
                // An error means that openraft has ended, which `follow-metrics` reports with the reason.
                if trigger.trigger().reset_backoff([member]).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let supervisor = &self.publisher.supervisor;
        supervisor.spawn("follow-metrics", follower.follow(self.raft.clone()));
        supervisor.spawn("follow-contacts", self.contacts.clone().follow(self.raft.clone()));
        supervisor.spawn("snapshots", snapshots.run());
        supervisor.spawn("report-slow-flushes", slow_flush::report(self.log.clone()));
        supervisor.spawn("end-back-off", end_back_off);
        supervisor.spawn("compare-states", divergence.run());
        supervisor.spawn("witness", self.witnesses.clone().run());
    }
}

/// openraft's configuration; its defaults do not suit real disks.
fn config(timers: &Timers) -> Result<Config, StartError> {
    let config = Config {
        cluster_name: "concord".into(),
        heartbeat_interval: timers.heartbeat_ms,
        election_timeout_min: timers.election_min_ms,
        election_timeout_max: timers.election_max_ms,
        enable_pre_vote: Some(true),
        // A leader that restarts within its lease would otherwise resume its term and confirm reads on a state that
        // lags.
        enable_leader_restore: Some(concord_model::sabotage::is("leader-restore")),
        // Lets a majority elect a leader while the old one still reaches some of its members.
        quorum_loss_probe_interval: Some(timers.election_max_ms.saturating_mul(4)),
        max_payload_entries: APPEND_ENTRIES_MAX,
        api_channel_size: Some(API_QUEUE_CALLS_MAX),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: COUNT_POLICY_OFF,
        replication_lag_threshold: COUNT_POLICY_OFF,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        backoff: BACKOFF.into(),
        // A member may have lost entries (`witness`). It then votes within its bound, and the leader sends the entries
        // again. Without this setting, openraft would forever try to continue after the last entry that the member had.
        allow_log_reversion: Some(true),
        ..Config::default()
    };
    config.validate().map_err(|error| StartError::Refused(format!("the timers are invalid: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node_id: u64) -> Identity {
        Identity { cluster_id: uuid::Uuid::from_u128(5), node_id, format: 1 }
    }

    #[test]
    fn openraft_accepts_the_configuration() {
        let config = config(&Timers::default()).unwrap();
        assert_eq!(config.enable_pre_vote, Some(true));
        assert_eq!(config.enable_leader_restore, Some(false));
    }

    #[test]
    fn a_log_of_another_member_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        drop(open_log(&identity(1), directory.path(), &AtRest::default()).unwrap());
        drop(open_log(&identity(1), directory.path(), &AtRest::default()).unwrap());
        let refusal = open_log(&identity(2), directory.path(), &AtRest::default()).err().unwrap();
        assert!(
            matches!(&refusal, StartError::Refused(text) if text.contains("belongs to node 1")),
            "{refusal}"
        );
    }

    #[test]
    fn a_member_with_an_emptied_log_does_not_start() {
        let directory = tempfile::tempdir().unwrap();
        drop(open_log(&identity(1), directory.path(), &AtRest::default()).unwrap());
        std::fs::remove_dir_all(directory.path().join("log")).unwrap();
        let refusal = open_log(&identity(1), directory.path(), &AtRest::default()).err().unwrap();
        assert!(matches!(&refusal, StartError::Refused(text) if text.contains("new id")), "{refusal}");
    }
}
