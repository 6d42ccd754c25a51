//! What the store does behind the answer: the history and sled, until both hold all that was handed over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use concord_storage::{Batch, LogRange, Position, Store, StoreOptions};
use divan::{Bencher, counter::ItemsCount};

use crate::data::World;

const CONFIGS: u64 = 1000;
const WRITES: u64 = 2000;
const DEADLINE: Duration = Duration::from_secs(60);

/// A store with configs in it, all of them mirrored.
struct Filled {
    _directory: tempfile::TempDir,
    store: Store,
    world: World,
}

impl Filled {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let log = LogRange { purged: 0, last: 0 };
        let (store, _) =
            Store::open(directory.path(), StoreOptions::default(), log).expect("it is a fresh one");
        let mut filled = Self { _directory: directory, store, world: World::new(0) };
        filled.write(CONFIGS, 0);
        filled.settle();
        filled
    }

    /// Updates configs by turns, eight in a run, as the log brings them.
    fn write(&mut self, count: u64, seed: u64) {
        let mut number = 0;
        while number < count {
            let run = (number..count).take(8);
            let changes: Vec<Arc<_>> =
                run.map(|number| self.world.run(self.world.write(number % CONFIGS, number + seed))).collect();
            number += 8;
            let state = self.world.state.clone();
            let index = state.revision();
            self.store.enqueue(Batch { state, position: position(index), changes });
            self.store.flushed(index);
        }
    }

    /// Waits until sled has come after.
    fn settle(&self) {
        let begin = Instant::now();
        while self.store.figures().mirrored < self.world.state.revision() {
            assert!(begin.elapsed() < DEADLINE, "sled does not come after");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn position(index: u64) -> Position {
    Position { index, raft_meta: vec![0; 64] }
}

/// Two writes of each config, enqueued, and the stop, which mirrors everything and makes it durable.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn mirror(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(WRITES)).with_inputs(Filled::new).bench_local_values(|mut filled| {
        filled.write(WRITES, 1);
        filled.store.close();
    });
}

/// A snapshot file, written and fsynced.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn snapshot(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(CONFIGS)).with_inputs(Filled::new).bench_local_values(|filled| {
        let state = &filled.world.state;
        filled.store.build_snapshot(state, &position(state.revision()))
    });
}
