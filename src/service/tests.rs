//! A node without consensus: what it refuses and why.

use std::path::Path;

use super::*;
use crate::{
    model::{
        access_key::{AccessKey, Grant, Grants, KeyId, Pattern, Quota, Verb},
        command::Expect,
    },
    peer::{
        client::Secrets,
        identity::{FORMAT, Identity},
    },
    raft::StartError,
};

pub(crate) const SECRET: &str = "a-cluster-secret";
pub(crate) const KEY: &str = "a-root-key-of-length";

/// The owner of a stored key with these verbs for all definitions.
pub(crate) fn owner(verbs: &[Verb]) -> Principal {
    let definitions = vec![Pattern::parse("*").unwrap()];
    let key = AccessKey {
        id: KeyId::parse("abcdefghijkl").unwrap(),
        name: "some".into(),
        grants: Grants(vec![Grant { verbs: verbs.iter().copied().collect(), definitions }]),
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

/// Node 1, without consensus.
pub(crate) fn service(directory: &Path, limits: Limits) -> Service {
    with_options(options(directory, limits))
}

/// Node 1, without consensus, which waits for itself however busy the machine is.
pub(crate) fn patient_service(directory: &Path) -> Service {
    let time = Duration::from_secs(60);
    let options = options(directory, Limits::default());
    with_options(Options { write_timeout: time, read_timeout: time, ..options })
}

/// The same, where so many failed credentials of an address in a minute are looked at.
pub(crate) fn throttling_service(directory: &Path, failed_credentials: u64) -> Service {
    let time = Duration::from_secs(60);
    let options = Options { failed_credentials, ..options(directory, Limits::default()) };
    with_options(Options { write_timeout: time, read_timeout: time, ..options })
}

/// Node 1, without consensus, with an audit log.
pub(crate) fn audited_service(directory: &Path, audit: audit::Options) -> Service {
    with_options(Options { audit, ..options(directory, Limits::default()) })
}

fn with_options(options: Options) -> Service {
    Service::new(options, Access::new([KEY]), Arc::new(Peers::new(Secrets(vec![SECRET.into()]))))
}

fn options(directory: &Path, limits: Limits) -> Options {
    Options {
        retention: Retention::default(),
        feature_level_max: crate::model::feature::level_max(),
        caller_tls: None,
        node_id: 1,
        directory: directory.into(),
        limits,
        write_timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        watch_heartbeat: Duration::from_secs(1),
        consensus_runtime: None,
        timers: Timers { heartbeat_ms: 200, election_min_ms: 600, election_max_ms: 900, lease_reads: false },
        store: store::Options::default(),
        snapshot_log_bytes: 1,
        log_stall_timeout: Duration::from_secs(60),
        disk_reserve_bytes: 0,
        rescue: Vec::new(),
        audit: audit::Options::off(),
        quotas: Quota::default(),
        spans: None,
        failed_credentials: 0,
        data_key_file: None,
        backup_envelope: None,
    }
}

fn write() -> (Caller, Write) {
    let caller = Caller { principal: Principal::root(), reason: None, idempotency_key: None, dry_run: false };
    let write = Write::DeleteConfig { definition: "app".into(), key: "db".into(), expect: Expect::Present };
    (caller, write)
}

#[tokio::test]
async fn a_node_that_belongs_to_no_cluster_refuses_everything_with_that_reason() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    service.start().await.unwrap();
    let (caller, write) = write();
    let refusals = [
        service.write(caller, write).await.unwrap_err(),
        service.view(Consistency { level: Level::Linearizable, min_revision: None }).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal, Refusal::Unavailable("this node belongs to no cluster yet".into()));
    }
    assert!(service.ready().is_err());
    assert_eq!(service.revision(), 0);
    assert_eq!(service.cluster(&Principal::root()).unwrap().cluster_id, None);
}

#[tokio::test]
async fn writes_above_the_limit_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits { writes_in_flight: 0, ..Limits::default() });
    let (caller, write) = write();
    assert_eq!(service.write(caller, write).await.unwrap_err(), Refusal::Overloaded);
}

#[tokio::test]
async fn a_member_without_its_log_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 1, format: FORMAT };
    identity.write(directory.path()).unwrap();
    let refused = service(directory.path(), Limits::default()).start().await;
    assert!(matches!(refused, Err(StartError::Refused(text)) if text.contains("no log")));
}

#[tokio::test]
async fn the_directory_of_another_node_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 2, format: FORMAT };
    identity.write(directory.path()).unwrap();
    std::fs::create_dir(directory.path().join("log")).unwrap();
    let refused = service(directory.path(), Limits::default()).start().await;
    assert!(matches!(refused, Err(StartError::Refused(text)) if text.contains("names node 2")));
}

#[test]
fn the_clock_reads_microseconds_of_this_century() {
    let year_2020 = Timestamp::parse("2020-01-01T00:00:00Z").unwrap();
    let year_2100 = Timestamp::parse("2100-01-01T00:00:00Z").unwrap();
    assert!((year_2020..year_2100).contains(&now()));
}
