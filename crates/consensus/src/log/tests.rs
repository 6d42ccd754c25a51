//! The log holds what was written to it after it is reopened, and reports damage.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use openraft::storage::RaftLogStorageExt;

use super::*;
use crate::types::{EncodedProposal, Membership, Payload};
use concord_model::feature::level_max;
use concord_net::Member;

#[derive(Default)]
struct RecordingListener {
    flushed: AtomicU64,
    truncated: AtomicU64,
}

impl LogListener for RecordingListener {
    fn flushed(&self, index: u64) {
        self.flushed.store(index, Ordering::SeqCst);
    }

    fn truncated(&self, last: u64) {
        self.truncated.store(last, Ordering::SeqCst);
    }
}

fn open(directory: &Path) -> (Log, Arc<RecordingListener>) {
    let listener = Arc::new(RecordingListener::default());
    (
        Wal::open(directory).unwrap().with_listener(listener.clone(), DirectoryFormat::new(directory, 1)),
        listener,
    )
}

#[test]
fn figures_do_not_wait_for_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (log, _) = open(directory.path());
    let before = log.figures();
    assert!(before.disk_bytes > 0, "{before:?}");
    let change = log.shared.opened.lock().unwrap();
    assert_eq!(log.figures().disk_bytes, before.disk_bytes, "what was seen last");
    drop(change);
}

fn id(term: u64, index: u64) -> LogId {
    WireLogId { index, term, node: 1 }.into()
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let mut data = vec![u8::try_from(index % 251).unwrap(); bytes];
    // The feature level that every version knows.
    data[0] = 1;
    Entry { log_id: id(term, index), payload: Payload::Normal(EncodedProposal(data.into())) }
}

fn members() -> Entry {
    let node = |id: u64| Member { id, api_addr: format!("a:{id}"), peer_addr: format!("p:{id}") };
    let membership = Membership::new(
        vec![[1, 2].into()],
        [(1, node(1)), (2, node(2)), (3, node(3))].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    );
    Entry { log_id: id(0, 0), payload: Payload::Membership(membership.unwrap()) }
}

fn vote(term: u64) -> Vote {
    WireVote { term, node: 1, committed: true }.into()
}

fn header() -> LogHeader {
    LogHeader { cluster: [7; 16], node: 1, installing: None }
}

/// All that a log holds.
async fn contents(log: &mut Log) -> io::Result<String> {
    let header = log.look(|wal| wal.log_state().user_data.clone()).await?;
    let vote = log.read_vote().await?;
    let state = log.get_log_state().await?;
    let committed = log.read_committed().await?;
    let entries = log.try_get_log_entries(..).await?;
    let entries: Vec<_> =
        entries.iter().map(|entry| (entry.log_id, LogPayload::from(&entry.payload))).collect();
    Ok(format!("{header:?} {vote:?} {state:?} {committed:?} {entries:?}"))
}

async fn filled(directory: &Path) -> String {
    let path = directory.to_owned();
    let new = move || Wal::open(&path).unwrap().set_header(header()).unwrap();
    tokio::task::spawn_blocking(new).await.unwrap();
    let (mut log, _) = open(directory);
    log.save_vote(&vote(1)).await.unwrap();
    log.blocking_append([members(), entry(1, 1, 20), entry(1, 2, 3), entry(1, 3, 3)]).await.unwrap();
    log.save_committed(Some(id(1, 2))).await.unwrap();
    log.truncate_after(Some(id(1, 2))).await.unwrap();
    log.save_vote(&vote(2)).await.unwrap();
    log.blocking_append([entry(2, 3, 30), Entry { log_id: id(2, 4), payload: Payload::Blank }])
        .await
        .unwrap();
    log.save_committed(Some(id(2, 4))).await.unwrap();
    log.purge(id(0, 0)).await.unwrap();
    let contents = contents(&mut log).await.unwrap();
    log.close();
    contents
}

#[tokio::test]
async fn a_reopened_log_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let held = filled(directory.path()).await;
    let (mut log, _) = open(directory.path());
    assert_eq!(contents(&mut log).await.unwrap(), held);
    assert!(held.contains("last_purged_log_id: Some"), "{held}");
    assert_eq!(log.try_get_log_entries(3..4).await.unwrap(), vec![entry(2, 3, 30)]);
}

#[tokio::test]
async fn the_listener_is_notified_of_flushes_and_truncations() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, listener) = open(directory.path());
    log.blocking_append([members(), entry(1, 1, 20), entry(1, 2, 3)]).await.unwrap();
    assert_eq!(listener.flushed.load(Ordering::SeqCst), 2);
    log.truncate_after(Some(id(1, 1))).await.unwrap();
    assert_eq!(listener.truncated.load(Ordering::SeqCst), 1);
    log.truncate_after(Some(id(1, 1))).await.unwrap();
    log.truncate_after(None).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, None);
}

fn only_file(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut files = files.filter(|path| path.extension().is_some_and(|extension| extension == "wal"));
    let file = files.next().unwrap();
    assert_eq!(files.next(), None);
    file
}

#[tokio::test]
async fn a_flipped_bit_never_shortens_the_log_silently() {
    let directory = tempfile::tempdir().unwrap();
    let held = filled(directory.path()).await;
    let path = only_file(directory.path());
    let bytes = std::fs::read(&path).unwrap();
    let mut harmless = 0;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        if let Ok(wal) = Wal::open(directory.path()) {
            let mut log = wal.with_listener(
                Arc::new(RecordingListener::default()),
                DirectoryFormat::new(directory.path(), 1),
            );
            assert_eq!(contents(&mut log).await.unwrap(), held, "bit {bit} of {}", bytes.len() * 8);
            harmless += 1;
        }
    }
    assert_eq!(harmless, 0, "every byte is under a checksum");
}

#[tokio::test]
async fn a_torn_end_is_truncated_and_the_records_before_it_stay() {
    let directory = tempfile::tempdir().unwrap();
    drop(filled(directory.path()).await);
    let path = only_file(directory.path());
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (mut log, _) = open(directory.path());
    // The purge was written last.
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, None);
    assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 5);
}

/// A file system may make a file longer before all that was written is on the disk: the rest reads as zeros.
#[tokio::test]
async fn a_record_with_sectors_that_never_came_is_torn() {
    const SECTOR: usize = 512;
    let directory = tempfile::tempdir().unwrap();
    drop(filled(directory.path()).await);
    let path = only_file(directory.path());
    let before = std::fs::read(&path).unwrap();
    {
        let (mut log, _) = open(directory.path());
        log.blocking_append([entry(2, 5, 4 * SECTOR)]).await.unwrap();
        log.close();
    }
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole[..before.len()], before);
    let mut tears = 0;
    for missing in (before.len().next_multiple_of(SECTOR)..whole.len()).step_by(SECTOR) {
        let mut torn = whole.clone();
        torn[missing..].fill(0);
        std::fs::write(&path, &torn).unwrap();
        let (mut log, _) = open(directory.path());
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(2, 4)), "{missing}");
        log.close();
        assert!(std::fs::read(&path).unwrap().starts_with(&before));
        std::fs::remove_dir_all(directory.path()).unwrap();
        drop(filled(directory.path()).await);
        tears += 1;
    }
    assert!(tears >= 4, "{tears}");
    // Zeros that end before the file does, or that are no whole sector, are damage.
    let (first, last) = (before.len().next_multiple_of(SECTOR), whole.len() - 1);
    for zeros in [first..last, last / SECTOR * SECTOR + 1..whole.len()] {
        let mut damaged = whole.clone();
        damaged[zeros.clone()].fill(0);
        damaged[last] |= u8::from(zeros.end == last);
        std::fs::write(&path, &damaged).unwrap();
        assert!(Wal::open(directory.path()).is_err(), "{zeros:?}");
    }
}

#[tokio::test]
async fn a_committed_entry_beyond_the_log_is_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    log.blocking_append([members(), entry(1, 1, 3)]).await.unwrap();
    log.save_committed(Some(id(1, 9))).await.unwrap();
    assert_eq!(log.read_committed().await.unwrap(), None);
    log.save_committed(Some(id(1, 1))).await.unwrap();
    log.save_committed(Some(id(0, 0))).await.unwrap();
    assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 1)));
}

#[tokio::test]
async fn a_long_read_is_cut_but_never_empty() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    log.blocking_append([members(), entry(1, 1, 3 << 20), entry(1, 2, 1 << 20), entry(1, 3, 1 << 19)])
        .await
        .unwrap();
    assert_eq!(log.limited_get_log_entries(1, 4).await.unwrap().len(), 1);
    assert_eq!(log.limited_get_log_entries(2, 4).await.unwrap().len(), 2);
    assert_eq!(log.limited_get_log_entries(4, 4).await.unwrap(), Vec::new());
    let streamed: Vec<_> = log.entries_stream(1..4).await.try_collect().await.unwrap();
    assert_eq!(streamed, log.try_get_log_entries(1..4).await.unwrap());
}

#[tokio::test]
async fn a_purge_beyond_a_tail_of_a_newer_term_leaves_no_tail() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    log.blocking_append([members(), entry(1, 1, 3), entry(3, 2, 3)]).await.unwrap();
    log.purge(id(2, 10)).await.unwrap();
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_log_id, state.last_purged_log_id), (Some(id(2, 10)), Some(id(2, 10))));
    log.blocking_append([entry(4, 11, 3)]).await.unwrap();
    log.close();
    let (mut log, _) = open(directory.path());
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), vec![entry(4, 11, 3)]);
}

#[tokio::test]
async fn a_log_is_reconciled_with_the_state_of_another_node() {
    let at = |term, index| WireLogId { index, term, node: 1 };
    for (applied, last, entries) in [
        (at(1, 1), id(3, 3), 4),   // the log holds it: nothing changes
        (at(2, 2), id(2, 2), 0),   // another entry has this index
        (at(2, 10), id(2, 10), 0), // the log ends before it
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, listener) = open(directory.path());
        log.blocking_append([members(), entry(1, 1, 3), entry(3, 2, 3), entry(3, 3, 3)]).await.unwrap();
        log.save_committed(Some(id(1, 1))).await.unwrap();
        log.reconcile(applied).await.unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(last), "{applied:?}");
        assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), entries, "{applied:?}");
        assert_eq!(listener.flushed.load(Ordering::SeqCst), last.index, "{applied:?}");
    }
}

#[tokio::test]
async fn an_installing_snapshot_counts_for_the_range_until_the_log_is_purged_up_to_it() {
    let directory = tempfile::tempdir().unwrap();
    drop(filled(directory.path()).await);
    let (log, _) = open(directory.path());
    log.set_installing(Some(WireLogId { index: 10, term: 2, node: 1 })).await.unwrap();
    log.close();
    let wal = Wal::open(directory.path()).unwrap();
    assert_eq!((wal.range().purged, wal.range().last), (0, 10));
    let mut log =
        wal.with_listener(Arc::new(RecordingListener::default()), DirectoryFormat::new(directory.path(), 1));
    log.purge(id(2, 10)).await.unwrap();
    log.close();
    let wal = Wal::open(directory.path()).unwrap();
    assert_eq!(wal.header(), Some(header()));
    assert_eq!((wal.range().purged, wal.range().last), (10, 10));
}

#[tokio::test]
async fn the_newest_membership_of_the_log_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = open(directory.path());
    assert_eq!(log.members().unwrap(), Vec::new());
    log.blocking_append([members(), entry(1, 1, 3)]).await.unwrap();
    let members: Vec<_> = log.members().unwrap().iter().map(|member| member.id).collect();
    assert_eq!(members, [1, 2, 3]);
}

#[tokio::test]
async fn an_entry_of_an_unknown_level_is_not_appended_and_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = Bytes::from(vec![u8::try_from(level_max() + 1).unwrap(), 7, 7]);
    let unknown = Entry { log_id: id(1, 2), payload: Payload::Normal(EncodedProposal(data)) };
    let (mut log, _) = open(directory.path());
    log.blocking_append([entry(1, 1, 100)]).await.unwrap();
    let refused = log.append([unknown.clone()], IOFlushed::noop()).await.unwrap_err();
    assert!(refused.to_string().contains("start a newer version"), "{refused}");
    // What a newer version would have appended.
    let record = (WireLogId::from(unknown.log_id), LogPayload::from(&unknown.payload));
    log.change_durably(|wal| wal.append([record]).map(drop)).await.unwrap();
    log.close();
    drop(log);
    let before = files(directory.path());
    let error = Wal::open(directory.path()).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    assert_eq!(files(directory.path()), before);
}

/// The files of a directory with their bytes.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}
