//! What it costs to make entries durable.
//!
//! This is the library's log, raft-log by itself, with the settings that `crates/consensus/src/log/mod.rs` gives it: the node's own
//! type around it takes openraft's entries, and both are no public items. What is missing here is the bytes of an
//! entry (`proposal_there_and_back`) and the word to openraft behind the flush.

use std::{
    io,
    num::NonZeroU64,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use divan::{Bencher, counter::ItemsCount};
use raft_log::{Config, RaftLog, Types, api::raft_log_writer::RaftLogWriter as _};

const ENTRIES: u64 = 16;
const ENTRY_BYTES: usize = 600;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Layout;

impl Types for Layout {
    /// Term and index.
    type LogId = (u64, u64);
    type LogPayload = String;
    type Vote = (u64, u64);
    type Callback = SyncSender<io::Result<()>>;
    type UserData = String;

    fn log_index(id: &(u64, u64)) -> u64 {
        id.1
    }

    fn payload_size(payload: &String) -> u64 {
        payload.len() as u64
    }
}

fn open(directory: &str) -> io::Result<RaftLog<Layout>> {
    // As a node does at its start; else the wait for company is ten times as long. The log's thread inherits it.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut config = Config::new(directory);
    config.wal.chunk_max_size = Some(4 << 20);
    config.wal.chunk_max_records = Some(12_500);
    config.wal.flush_batch_wait = Some(Duration::from_micros(5));
    config.log_cache_capacity = Some(24 << 20);
    config.log_cache_max_items = Some(usize::MAX);
    RaftLog::open(Arc::new(config))
}

/// Back when they are durable.
fn append(log: &mut RaftLog<Layout>, entries: Vec<((u64, u64), String)>) -> io::Result<()> {
    let (tell, told) = sync_channel(1);
    log.append(entries)?;
    log.flush(true, Some(tell))?;
    told.recv().map_err(io::Error::other)?
}

/// Sixteen entries of 600 bytes in one append, and the wait until they are fsynced.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn log_append(bencher: Bencher<'_, '_>) {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut log = open(&directory.path().to_string_lossy()).expect("it is a fresh one");
    let payload = "x".repeat(ENTRY_BYTES);
    let mut next = 0;
    let entries = || {
        let entries: Vec<_> = (next..next + ENTRIES).map(|index| ((1, index), payload.clone())).collect();
        next += ENTRIES;
        entries
    };
    bencher.counter(ItemsCount::new(ENTRIES)).with_inputs(entries).bench_local_values(|entries| {
        append(&mut log, entries).expect("the disk takes them");
    });
}
