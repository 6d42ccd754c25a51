//! A service without consensus, for the tests of this crate and of `http`.

use std::{path::Path, sync::Arc, time::Duration};

use concord_consensus::Timers;
use concord_model::{
    access_key::{AccessKey, Grant, Grants, KeyId, Pattern, Quota, Verb},
    limits::Limits,
    time::Timestamp,
};
use concord_net::client::{Peers, Secrets};
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
        failed_credentials: 0,
        data_key_file: None,
        backup_envelope: None,
    }
}
