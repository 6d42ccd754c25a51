//! How a node's part in the agreement begins.
//!
//! 1. The log is opened. A damaged one is refused, so is one that is missing where one was seen before: this
//!    member has forgotten its vote.
//! 2. The log's mark and the identity must name the same member.
//! 3. The store is opened with what the log holds; it answers with the newest whole state.
//! 4. When it has none, a peer's newest snapshot is fetched and adopted.
//! 5. The log is made to agree with the state, and openraft starts: it applies the log behind the state.
//!
//! **Invariant:** openraft is made last, of a log and a state that fit. Before that this node answers no vote.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use openraft::{Config, SnapshotPolicy};
use tokio::sync::{Notify, mpsc, watch};

use super::{
    Consensus, Start, StartError, Timers,
    codec::Mark,
    consensus::{self, Inner},
    divergence::Comparer,
    log::{Log, Wal},
    machine::Machine,
    network::{Links, Network},
    snapshot::{self, Keeper},
    types::Raft,
    wire::{self, Head, Stamp},
};
use crate::{
    peer::{Member, NodeId, client::Peers, identity::Identity},
    state::State,
    store::{Loaded, LogRange, Options, Position, Store},
};

/// Entries of one append; bytes are bounded by the log's reader.
const APPEND_ENTRIES_MAX: u64 = 1024;
/// Calls that wait for openraft's core; writes beyond it wait in their callers.
const API_QUEUE: u64 = 8192;
/// How long sending a snapshot may take: 1 GB on a link of 10 MB/s.
const SNAPSHOT_TIMEOUT_MS: u64 = 120_000;
/// Waits of openraft before it calls a dead member again.
const BACKOFF: &str = "50ms 100ms 200ms ...500ms";
/// So many that openraft never purges or sends snapshots by a count of its own.
const NEVER: u64 = u64::MAX / 4;
/// Members that answer again and are not yet told to openraft.
const REVIVED_QUEUE: usize = 64;
/// Rounds over all members before a node that has lost its state gives up, and the pause between them.
const RESCUE_ROUNDS: u32 = 30;
const RESCUE_PAUSE: Duration = Duration::from_secs(1);
/// How long fetching a snapshot may stall before its first byte.
const RESCUE_TIMEOUT: Duration = Duration::from_secs(10);

impl Consensus {
    /// Opens log and store, checks that they belong together, starts openraft. (Fetches a snapshot from a peer
    /// first when the store has nothing whole.)
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(start: Start) -> Result<Self, StartError> {
        let Start { me, directory, store, peers, timers, snapshot_log_bytes, rescue } = start;
        if peers.me.get_or_init(|| me.clone()) != &me {
            return Err(StartError::Refused("the calls to peers bear another identity".into()));
        }
        let opening = (me.clone(), directory.clone());
        let wal = blocking(move || open_log(&opening.0, &opening.1)).await??;
        let range = wal.range();
        let (store, loaded) = open_store(&directory, store, range).await?;
        let log = wal.with(Arc::new(store.clone()));
        let (state, position) = match loaded {
            Loaded::State(state, position) => (state, position),
            Loaded::Nothing => {
                let named = log.clone();
                let mut helpers = blocking(move || named.members()).await?.map_err(failed)?;
                helpers.extend(rescue);
                let noted =
                    store.invalidation_note().and_then(|note| wire::from_bytes::<Vec<Member>>(&note).ok());
                helpers.extend(noted.unwrap_or_default());
                helpers.retain(|member| member.id != me.node_id);
                Rescue { peers: &peers, store: &store, log: &log, purged: range.purged }.run(&helpers).await?
            }
        };
        let stamp = Stamp::decode(&position.raft_meta).map_err(StartError::Refused)?;
        if let Some(applied) = stamp.last {
            log.settle(applied).await.map_err(failed)?;
        }
        let machine = Machine::new(state, &position, store.clone(), log.clone()).map_err(failed)?;
        Parts { id: me.node_id, store, log, machine, timers, log_bytes: snapshot_log_bytes }.join(peers).await
    }
}

fn failed(error: impl std::fmt::Display) -> StartError {
    StartError::Failed(error.to_string())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Opens the log and checks whose it is. Blocking.
fn open_log(me: &Identity, directory: &Path) -> Result<Wal, StartError> {
    let path = directory.join("log");
    let mut wal = Wal::open(&path).map_err(|error| {
        let text = format!("the log in {} can't be opened: {error}", path.display());
        if error.kind() == io::ErrorKind::InvalidData {
            StartError::Refused(format!(
                "{text}. It is damaged and may lack votes and entries that were acknowledged: \
                 remove this member and let it rejoin under a new id"
            ))
        } else {
            StartError::Failed(text)
        }
    })?;
    let mine = Mark { cluster: *me.cluster_id.as_bytes(), node: me.node_id, installing: None };
    let seen = Identity::log_was_seen(directory).map_err(failed)?;
    match wal.mark() {
        Some(mark) if (mark.cluster, mark.node) != (mine.cluster, mine.node) => {
            return Err(StartError::Refused(format!(
                "the log in {} belongs to node {} of cluster {}, identity.json names node {} of cluster {}",
                path.display(),
                mark.node,
                uuid::Uuid::from_bytes(mark.cluster),
                me.node_id,
                me.cluster_id
            )));
        }
        Some(_) => {}
        None if seen || !wal.is_pristine() => {
            return Err(StartError::Refused(format!(
                "the log in {} is missing: node {} has taken part before and would forget its vote. \
                 Remove this member and let it rejoin under a new id",
                path.display(),
                me.node_id
            )));
        }
        None => wal.set_mark(mine).map_err(failed)?,
    }
    if !seen {
        me.log_is_seen(directory).map_err(failed)?;
    }
    Ok(wal)
}

async fn open_store(
    directory: &Path,
    options: Options,
    log: LogRange,
) -> Result<(Store, Loaded), StartError> {
    let path = directory.join("store");
    Ok(blocking(move || Store::open(&path, options, log)).await??)
}

/// How a node that has lost its state gets one.
struct Rescue<'a> {
    peers: &'a Peers,
    store: &'a Store,
    log: &'a Log,
    purged: u64,
}

impl Rescue<'_> {
    async fn run(&self, helpers: &[Member]) -> Result<(State, Position), StartError> {
        let mut last = "no other member is known".to_owned();
        for round in 0..RESCUE_ROUNDS {
            if round > 0 {
                tokio::time::sleep(RESCUE_PAUSE).await;
            }
            for helper in helpers {
                match self.from(helper).await {
                    Ok(rescued) => return Ok(rescued),
                    Err(why) => {
                        tracing::warn!(member = helper.id, %why, "no snapshot from this member");
                        last = format!("member {}: {why}", helper.id);
                    }
                }
            }
            if helpers.is_empty() {
                break;
            }
        }
        Err(StartError::Failed(format!(
            "nothing whole is left of this node's state, and no member has given a snapshot: {last}"
        )))
    }

    async fn from(&self, helper: &Member) -> Result<(State, Position), String> {
        let fetched = self.peers.fetch_snapshot(helper.id, &helper.peer_addr, RESCUE_TIMEOUT).await;
        let (head, body) = fetched.map_err(|error| error.to_string())?;
        let head = Head::from_header(&head).map_err(|error| error.to_string())?;
        if head.index < self.purged {
            return Err(format!(
                "its snapshot ends at {}, this log begins behind {}",
                head.index, self.purged
            ));
        }
        let stamp = Stamp::decode(&head.stamp)?;
        let file = snapshot::receive(self.store, &head, body).await.map_err(|error| error.to_string())?;
        self.log.set_installing(stamp.last).await.map_err(|error| error.to_string())?;
        let store = self.store.clone();
        let installed = tokio::task::spawn_blocking(move || store.install(&file.path)).await;
        let (state, file) =
            installed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        tracing::info!(member = helper.id, revision = file.position.index, "adopted a snapshot");
        Ok((state, file.position))
    }
}

/// All that openraft is made of.
struct Parts {
    id: NodeId,
    store: Store,
    log: Log,
    machine: Machine,
    timers: Timers,
    log_bytes: u64,
}

impl Parts {
    async fn join(self, peers: Arc<Peers>) -> Result<Consensus, StartError> {
        let Self { id, store, log, machine, timers, log_bytes } = self;
        let (publisher, machine_gone) = (machine.publisher(), machine.gone());
        let (revived, mut answering) = mpsc::channel(REVIVED_QUEUE);
        let links = Arc::new(Links {
            peers: Arc::clone(&peers),
            store: store.clone(),
            sending: AtomicUsize::new(0),
            rebuild: Notify::new(),
            revived,
        });
        let settings = Arc::new(settings(&timers)?);
        let raft = Raft::new(id, settings, Network(Arc::clone(&links)), log.clone(), machine);
        let raft = raft.await.map_err(failed)?;

        let stopping = Arc::new(AtomicBool::new(false));
        let (tell_leader, leader) = watch::channel(None);
        let follow =
            consensus::follow(raft.clone(), Arc::clone(&publisher), tell_leader, Arc::clone(&stopping));
        let keeper = Keeper {
            raft: raft.clone(),
            publisher: Arc::clone(&publisher),
            store: store.clone(),
            links,
            log: log.clone(),
            log_bytes,
        };
        let comparer = Comparer { id, peers, publisher: Arc::clone(&publisher), store: store.clone() };
        let caller = raft.clone();
        let revive = async move {
            while let Some(member) = answering.recv().await {
                if caller.trigger().reset_backoff([member]).await.is_err() {
                    return;
                }
            }
        };
        let tasks = vec![
            tokio::spawn(follow).abort_handle(),
            tokio::spawn(keeper.work()).abort_handle(),
            tokio::spawn(revive).abort_handle(),
            tokio::spawn(comparer.work()).abort_handle(),
        ];
        let inner = Inner { id, raft, publisher, machine_gone, store, log, timers, leader, stopping, tasks };
        Ok(Consensus { inner: Arc::new(inner) })
    }
}

/// openraft's settings; its defaults are wrong for real disks.
fn settings(timers: &Timers) -> Result<Config, StartError> {
    let settings = Config {
        cluster_name: "concord".into(),
        heartbeat_interval: timers.heartbeat_ms,
        election_timeout_min: timers.election_min_ms,
        election_timeout_max: timers.election_max_ms,
        enable_pre_vote: Some(true),
        // A leader that resumes its term within its lease would confirm reads on a state that lags.
        enable_leader_restore: Some(crate::sabotage::is("leader-restore")),
        // Lets a majority elect while the old leader still reaches some of it.
        quorum_loss_probe_interval: Some(timers.election_max_ms.saturating_mul(4)),
        max_payload_entries: APPEND_ENTRIES_MAX,
        api_channel_size: Some(API_QUEUE),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: NEVER,
        replication_lag_threshold: NEVER,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        backoff: BACKOFF.into(),
        ..Config::default()
    };
    settings.validate().map_err(|error| StartError::Refused(format!("the timers do not fit: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node_id: u64) -> Identity {
        Identity { cluster_id: uuid::Uuid::from_u128(5), node_id, format: 1 }
    }

    #[test]
    fn openraft_takes_our_settings() {
        let settings = settings(&Timers::default()).unwrap();
        assert_eq!(settings.enable_pre_vote, Some(true));
        assert_eq!(settings.enable_leader_restore, Some(false));
    }

    #[test]
    fn a_log_of_another_member_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(open_log(&identity(1), directory.path()).unwrap());
        drop(open_log(&identity(1), directory.path()).unwrap());
        let refusal = open_log(&identity(2), directory.path()).err().unwrap();
        assert!(
            matches!(&refusal, StartError::Refused(text) if text.contains("belongs to node 1")),
            "{refusal}"
        );
    }

    #[test]
    fn a_member_whose_log_was_emptied_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(open_log(&identity(1), directory.path()).unwrap());
        std::fs::remove_dir_all(directory.path().join("log")).unwrap();
        let refusal = open_log(&identity(1), directory.path()).err().unwrap();
        assert!(matches!(&refusal, StartError::Refused(text) if text.contains("new id")), "{refusal}");
    }
}
