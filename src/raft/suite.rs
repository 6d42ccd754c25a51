//! openraft's own storage suite on the real log, machine and store. It does not test reopening: `log` does.

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use super::{
    log::{Log, Wal},
    machine::Machine,
    types::Kind,
};
use crate::store::{Loaded, LogRange, Options, Store};

struct Builder;

/// What a test holds while it works: the directory, and the store that is to be closed before it goes.
struct Guard {
    _directory: TempDir,
    store: Store,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.store.close();
    }
}

impl StoreBuilder<Kind, Log, Machine, Guard> for Builder {
    async fn build(&self) -> Result<(Guard, Log, Machine), StorageError<Kind>> {
        let directory = tempfile::tempdir().unwrap();
        let wal = Wal::open(&directory.path().join("log")).unwrap();
        let range = LogRange { purged: 0, last: 0 };
        let opened = Store::open(&directory.path().join("store"), Options::default(), range).unwrap();
        let (store, Loaded::State(state, position)) = opened else {
            panic!("a fresh store has a whole state")
        };
        let log = wal.with(std::sync::Arc::new(store.clone()));
        let machine = Machine::new(state, &position, store.clone(), log.clone()).unwrap();
        Ok((Guard { _directory: directory, store }, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_accepts_our_storage() {
    Suite::test_all(Builder).await.unwrap();
}
