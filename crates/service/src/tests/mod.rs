//! A node without consensus: what it rejects, and why.

pub(crate) mod logins;
mod permissions;
mod readers;
mod virtual_time;

use super::*;
use crate::testing::service;
use concord_consensus::StartError;
use concord_model::command::Expect;
use concord_net::identity::{FORMAT, Identity};

fn write() -> (Caller, Write) {
    let caller = Caller {
        principal: Principal::root(),
        reason: None,
        idempotency_key: None,
        dry_run: false,
        listed_variants: concord_model::schema::ListedVariants::default(),
        bypass: None,
    };
    let write = Write::DeleteConfig { definition: "app".into(), key: "db".into(), expect: Expect::Present };
    (caller, write)
}

#[tokio::test]
async fn a_node_without_a_cluster_rejects_everything_with_that_reason() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    service.members.start().await.unwrap();
    let (caller, write) = write();
    let refusals = [
        service.writes.write(caller, write).await.unwrap_err(),
        service
            .freshness
            .view(Consistency { level: Level::Linearizable, min_revision: None })
            .await
            .unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal, Refusal::Unavailable("this node belongs to no cluster yet".into()));
    }
    assert!(service.members.ready().is_err());
    assert_eq!(service.cx.revision(), 0);
    assert_eq!(service.members.cluster(&Principal::root()).unwrap().cluster_id, None);
}

#[tokio::test]
async fn writes_above_the_limit_are_rejected_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits { writes_in_flight: 0, ..Limits::default() });
    let (caller, write) = write();
    assert_eq!(service.writes.write(caller, write).await.unwrap_err(), Refusal::Overloaded);
}

#[tokio::test]
async fn a_member_without_its_log_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 1, format: FORMAT };
    identity.write(directory.path()).unwrap();
    // It exited while it joined: it waits until that is requested again.
    let joining = service(directory.path(), Limits::default());
    joining.members.start().await.unwrap();
    assert!(joining.cx.consensus().is_none());
    identity.record_log(directory.path()).unwrap();
    let refused = service(directory.path(), Limits::default()).members.start().await;
    assert!(matches!(refused, Err(StartError::Refused(text)) if text.contains("no log")));
}

#[tokio::test]
async fn the_directory_of_another_node_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 2, format: FORMAT };
    identity.write(directory.path()).unwrap();
    std::fs::create_dir(directory.path().join("log")).unwrap();
    let refused = service(directory.path(), Limits::default()).members.start().await;
    assert!(matches!(refused, Err(StartError::Refused(text)) if text.contains("names node 2")));
}

#[test]
fn the_clock_reads_microseconds_of_this_century() {
    let year_2020 = Timestamp::parse("2020-01-01T00:00:00Z").unwrap();
    let year_2100 = Timestamp::parse("2100-01-01T00:00:00Z").unwrap();
    assert!((year_2020..year_2100).contains(&now()));
}
