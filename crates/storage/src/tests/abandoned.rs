//! Dropping a store that was not closed.

use super::{super::sled::mirror::Mirror, *};

#[test]
fn a_stalled_disk_blocks_only_the_thread_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (release, hung) = std::sync::mpsc::channel::<()>();
    let open::Opened { snapshots, history, start, .. } =
        open::open(directory.path(), &StoreOptions::default(), LogRange { purged: 0, last: 0 }).unwrap();
    let newest = start.newest.clone();
    // Closed as the thread closes it: sled may hang when a database is only dropped.
    Mirror::new(start, 1).abandon();
    let inner = Inner {
        directory: directory.path().into(),
        snapshots,
        shared: Arc::new(Shared::new(newest, 0, &history)),
        history: history.history(),
        thread: Mutex::new(Some(std::thread::spawn(move || {
            hung.recv().unwrap_err();
        }))),
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
