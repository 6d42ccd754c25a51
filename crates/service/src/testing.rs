//! A service without consensus, for the tests of this crate and of `http`.

use std::{path::Path, sync::Arc, time::Duration};

#[cfg(test)]
pub(crate) use scripted::{Scripted, virtual_wall};

use concord_consensus::Timers;
use concord_model::{
    access_key::{AccessKey, Grant, Grants, KeyId, Pattern, Quota, Verb},
    limits::Limits,
    time::Timestamp,
};
use concord_net::{
    client::{Peers, Secrets},
    outgoing::address::OutgoingPolicy,
};
use concord_storage as store;

use crate::{Access, Options, Principal, Retention, Service, audit};

/// The secret of the cluster.
pub const SECRET: &str = "a-cluster-secret";
/// The root key.
pub const KEY: &str = "a-root-key-of-length";

/// A principal with a stored key with these grants: verbs, and patterns of definitions.
pub fn key(grants: &[(&[Verb], &[&str])]) -> Principal {
    let pattern = |text: &&str| Pattern::parse(text).expect("a fixture is valid");
    let grant = |(verbs, patterns): &(&[Verb], &[&str])| Grant {
        verbs: verbs.iter().copied().collect(),
        definitions: patterns.iter().map(pattern).collect(),
    };
    let key = AccessKey {
        id: KeyId::parse("abcdefghijkl").expect("a fixture is valid"),
        name: "some".into(),
        grants: Grants(grants.iter().map(grant).collect()),
        quota: Quota::default(),
        expires_at: None,
        created_at: Timestamp(1),
        created_by: "root".into(),
        modified_at: Timestamp(1),
        revision: 1,
        secrets: Vec::new(),
        last_used_day: None,
        person: None,
        attestation: None,
        half_attested: None,
    };
    Principal::of_key(Arc::new(key), 1)
}

/// A principal with a stored key with these verbs for all definitions.
pub fn owner(verbs: &[Verb]) -> Principal {
    key(&[(verbs, &["*"])])
}

/// Node 1, without consensus.
pub fn service(directory: &Path, limits: Limits) -> Service {
    with_options(options(directory, limits))
}

/// Node 1, without consensus, with timeouts that are long enough for a busy machine.
pub fn patient_service(directory: &Path) -> Service {
    let time = Duration::from_secs(60);
    let options = options(directory, Limits::default());
    with_options(Options { write_timeout: time, read_timeout: time, ..options })
}

/// The same, with a limit on failed credentials of an address in a minute.
pub fn throttling_service(directory: &Path, failed_credentials: u64) -> Service {
    let time = Duration::from_secs(60);
    let options = Options { failed_credentials, ..options(directory, Limits::default()) };
    with_options(Options { write_timeout: time, read_timeout: time, ..options })
}

/// Node 1, without consensus, with an audit log.
pub fn audited_service(directory: &Path, audit: audit::AuditOptions) -> Service {
    with_options(Options { audit, ..options(directory, Limits::default()) })
}

fn with_options(options: Options) -> Service {
    Service::new(options, Access::new([KEY]), Arc::new(Peers::new(Secrets(vec![SECRET.into()]))))
}

fn options(directory: &Path, limits: Limits) -> Options {
    Options {
        retention: Retention::default(),
        feature_level_max: concord_model::feature::level_max(),
        caller_tls: None,
        node_id: 1,
        directory: directory.into(),
        limits,
        write_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        watch_heartbeat: Duration::from_secs(1),
        consensus_runtime: None,
        timers: Timers { heartbeat_ms: 200, election_min_ms: 600, election_max_ms: 900, lease_reads: false },
        store: store::StoreOptions::default(),
        snapshot_log_bytes: 1,
        log_stall_timeout: Duration::from_secs(60),
        disk_reserve_bytes: 0,
        rescue: Vec::new(),
        audit: audit::AuditOptions::off(),
        quotas: Quota::default(),
        spans: None,
        identity_calls: OutgoingPolicy::Off,
        failed_credentials: 0,
        data_key_file: None,
        backup_envelope: None,
    }
}

/// Nodes in virtual time.
#[cfg(test)]
mod scripted {
    use std::{cell::Cell, sync::Arc, time::Duration};

    use concord_consensus::fake::FakeConsensus;
    use concord_model::{limits::Limits, time::Timestamp};
    use concord_net::{
        NodeId,
        identity::{FORMAT, Identity},
    };
    use tokio::time::Instant;

    use super::{options, with_options};
    use crate::{Options, Service};

    thread_local! {
        /// A moment of virtual time, and what the wall clock showed then.
        static WALL: Cell<Option<(Instant, Timestamp)>> = const { Cell::new(None) };
    }

    /// The wall clock of the test that runs on this thread, if it has one of its own.
    pub(crate) fn virtual_wall() -> Option<Timestamp> {
        let (moment, wall) = WALL.get()?;
        Some(after(wall, moment.elapsed()))
    }

    fn after(wall: Timestamp, time: Duration) -> Timestamp {
        Timestamp(wall.0 + u64::try_from(time.as_micros()).expect("no test lasts so long"))
    }

    /// Node 1 of three. Its consensus is scripted, time is virtual, and so is its wall clock.
    pub(crate) struct Scripted {
        pub(crate) service: Service,
        pub(crate) fake: Arc<FakeConsensus>,
        begin: Instant,
        directory: tempfile::TempDir,
    }

    /// What right clocks show at the beginning.
    const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000);

    impl Scripted {
        pub(crate) async fn start() -> Self {
            Self::start_with(|_| ()).await
        }

        pub(crate) async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let mut options = options(directory.path(), Limits::default());
            change(&mut options);
            let service = with_options(options);
            let me = Identity { cluster_id: uuid::Uuid::from_u128(3), node_id: 1, format: FORMAT };
            let peers = Arc::clone(&service.cx.peers);
            peers.me.set(me.clone()).expect("it is new");
            let (consensus, fake) =
                FakeConsensus::start(directory.path(), me, peers).await.expect("a fresh directory");
            service.cx.consensus.set(consensus).expect("it is new");
            tokio::time::pause();
            let node = Self { service, fake, begin: Instant::now(), directory };
            node.set_wall(node.true_time());
            node
        }

        /// What a right clock shows now.
        pub(crate) fn true_time(&self) -> Timestamp {
            after(BEGIN, self.begin.elapsed())
        }

        /// Sets this node's wall clock. It goes on from there.
        pub(crate) fn set_wall(&self, wall: Timestamp) {
            WALL.set(Some((Instant::now(), wall)));
        }

        /// This node has just asked the other voters, and their clocks show this.
        pub(crate) fn hear_clocks(&self, others: &[(NodeId, Timestamp)]) {
            let last_at = self.service.cx.last_at();
            self.service.clock.hear_all(others, last_at);
        }

        /// Ends it, in real time.
        pub(crate) async fn stop(self) {
            tokio::time::resume();
            WALL.set(None);
            self.service.shutdown().await;
            drop(self.directory);
        }
    }
}
