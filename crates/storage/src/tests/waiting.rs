//! Changes that wait for the history's disk are counted, and block nobody else.

use super::{super::*, fixture::Fixture};
use concord_model::limits::APPLIED_CHANGES_BYTES_MAX;

#[test]
fn changes_that_wait_for_the_history_are_counted_until_they_are_written() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    let mut most = 0;
    for name in 0..50 {
        fixture.write("d", name..name + 1, &format!("{{\"a\":\"{}\"}}", "x".repeat(100_000)));
        most = most.max(fixture.store().waiting_bytes());
    }
    // The thread gathers changes for some milliseconds before it takes them.
    assert!(most >= 100_000, "{most}");
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while fixture.store().waiting_bytes() > 0 {
        assert!(std::time::Instant::now() < end, "{} bytes wait", fixture.store().waiting_bytes());
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn applying_waits_while_too_much_waits_for_the_history() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let shared = &store.inner.shared;
    shared.waiting_bytes.store(APPLIED_CHANGES_BYTES_MAX, Ordering::Relaxed);
    store.wait_for_room().await;
    shared.waiting_bytes.fetch_add(1, Ordering::Relaxed);
    let mut waiting = Box::pin(store.wait_for_room());
    assert!(futures::poll!(&mut waiting).is_pending());
    shared.waiting_bytes.store(0, Ordering::Relaxed);
    shared.drained.notify_waiters();
    waiting.await;
}

#[test]
fn a_stalled_disk_blocks_only_the_thread_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (release, hung) = std::sync::mpsc::channel::<()>();
    let open::OpenedStore { snapshots, history, start, .. } =
        open::open(directory.path(), &StoreOptions::default(), LogRange { purged: 0, last: 0 }).unwrap();
    let inner = StoreInner {
        at_rest: Default::default(),
        directory: directory.path().into(),
        snapshots,
        shared: Arc::new(WriterShared::new(start.newest.clone(), 0, &history)),
        history: history.history(),
        writer: writer::Writer::of(std::thread::spawn(move || {
            hung.recv().unwrap_err();
        })),
        received: AtomicU64::new(0),
    };
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    let dropping = std::thread::spawn(move || {
        drop(inner);
        dropped.send(()).unwrap();
    });
    is_dropped.recv_timeout(Duration::from_secs(60)).unwrap();
    dropping.join().unwrap();
    drop(release);
}
