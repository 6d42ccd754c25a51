//! The whole layer on the real log, state machine and store: openraft's own storage suite, which does not test
//! reopening, and a cluster of one node that is stopped and started.

use std::{path::Path, sync::Arc, time::Duration};

use futures::FutureExt as _;
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use super::{
    Consensus, Start, StartError, Timers,
    directory_format::DirectoryFormat,
    log::{Log, Wal},
    machine::Machine,
    types::TypeConfig,
};
use crate::{
    model::{
        command::{Command, Proposal, Verdict},
        key::Key,
        time::Timestamp,
    },
    peer::{
        Member,
        client::{Peers, Secrets},
        identity::{FORMAT, Identity},
    },
    store::{Loaded, LogRange, Options, Store},
};

struct Builder;

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

impl StoreBuilder<TypeConfig, Log, Machine, Guard> for Builder {
    async fn build(&self) -> Result<(Guard, Log, Machine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().unwrap();
        let wal = Wal::open(&directory.path().join("log")).unwrap();
        let range = LogRange { purged: 0, last: 0 };
        let opened = Store::open(&directory.path().join("store"), Options::default(), range).unwrap();
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
    Suite::test_all(Builder).await.unwrap();
}

async fn start(directory: &Path) -> Result<Consensus, StartError> {
    let me = Identity { cluster_id: uuid::Uuid::from_u128(3), node_id: 1, format: FORMAT };
    Consensus::start(Start {
        me,
        directory: directory.into(),
        store: Options::default(),
        peers: Arc::new(Peers::new(Secrets(vec!["secret".into()]))),
        // A lease that a busy machine's pauses do not outlast.
        timers: Timers { heartbeat_ms: 50, election_min_ms: 500, election_max_ms: 700 },
        snapshot_log_bytes: 1 << 20,
        log_stall_timeout: Duration::from_secs(60),
        rescue: Vec::new(),
    })
    .await
}

fn proposal(number: u64) -> Proposal {
    let key = Key::parse(&format!("definition-{number}")).unwrap();
    let command = Command::CreateDefinition { key, indexes: Vec::new(), schema: None };
    let (at, by) = (Timestamp(number), "root".into());
    Proposal { at, by, reason: None, request: None, definition_read: None, command }
}

async fn write(consensus: &Consensus, number: u64) -> u64 {
    loop {
        match consensus.write(proposal(number)).await {
            Ok(Verdict::Decided(Ok(applied))) => return applied.revision,
            Ok(verdict) => panic!("{verdict:?}"),
            // A new leader has no lease yet.
            Err(_) => consensus.wait_applied(read_index(consensus).await).await,
        }
    }
}

/// A read index, once this node leads and has its lease.
async fn read_index(consensus: &Consensus) -> u64 {
    let confirmed = async {
        loop {
            match consensus.read_index().await {
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
async fn a_cluster_of_one_keeps_its_writes_over_a_stop_and_refuses_an_emptied_log() {
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
    assert!(read_index(&consensus).await >= last);
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
