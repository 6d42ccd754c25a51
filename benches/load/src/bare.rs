//! The disk and the loopback by themselves, as a log and a peer use them.
//!
//! **Invariant:** nothing is between the clock and the system but the standard library.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::Barrier,
    thread,
    time::Instant,
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::report::middle;

/// Of an entry in a log and between nodes: a value of 300 bytes with what a write brings beside it.
pub(crate) const ENTRY_BYTES: usize = 600;
/// Times that an entry is made durable.
pub(crate) const SYNCS: usize = 400;
/// Times that one goes and comes.
pub(crate) const TRIPS: usize = 5000;
const TRIPS_BEFORE: usize = 500;

/// A file to write entries to; `over`: with as many bytes in it already.
fn file(path: &Path, over: bool) -> io::Result<File> {
    let mut file = File::create(path)?;
    if over {
        file.write_all(&[b'y'; ENTRY_BYTES].repeat(SYNCS))?;
        file.sync_all()?;
        file.rewind()?;
    }
    Ok(file)
}

/// Writes an entry and makes it durable, again and again; the milliseconds of each.
fn syncs(mut file: File) -> io::Result<Vec<f64>> {
    let mut took = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = Instant::now();
        file.write_all(&[b'x'; ENTRY_BYTES])?;
        file.sync_data()?;
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// The same on so many files at once, as nodes on one disk do; all that was seen.
pub(crate) fn syncs_at_once(data: &Path, count: usize, over: bool) -> io::Result<Vec<f64>> {
    let files = (0..count).map(|n| file(&data.join(format!("log{n}")), over));
    let files: Vec<File> = files.collect::<Result<_, _>>()?;
    let ready = Barrier::new(count);
    let node = |file| {
        ready.wait();
        syncs(file)
    };
    thread::scope(|scope| {
        let running: Vec<_> = files.into_iter().map(|file| scope.spawn(|| node(file))).collect();
        let mut all = Vec::new();
        for thread in running {
            all.extend(thread.join().map_err(|_| io::Error::other("a writer panicked"))??);
        }
        Ok(all)
    })
}

/// Median µs of an entry's way to another thread and back, each thread on its core.
fn round_trip([own, other]: [usize; 2]) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    // Ends when the near end is dropped.
    let echo = move || -> io::Result<()> {
        stay(other)?;
        let mut entry = [0; ENTRY_BYTES];
        while far.read_exact(&mut entry).and_then(|()| far.write_all(&entry)).is_ok() {}
        Ok(())
    };
    let ask = move || -> io::Result<f64> {
        stay(own)?;
        let (mut entry, mut took) = ([b'x'; ENTRY_BYTES], Vec::with_capacity(TRIPS));
        for trip in 0..TRIPS_BEFORE + TRIPS {
            let begin = Instant::now();
            near.write_all(&entry)?;
            near.read_exact(&mut entry)?;
            if trip >= TRIPS_BEFORE {
                took.push(begin.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(middle(took))
    };
    let panicked = |_| io::Error::other("an end panicked");
    // Threads of their own, because whatever a thread that stays on a core starts stays there too.
    let (echo, ask) = (thread::spawn(echo), thread::spawn(ask));
    let took = ask.join().map_err(panicked)?;
    echo.join().map_err(panicked)??;
    took
}

/// Keeps this thread on a core.
fn stay(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Round trips on one core, and between two where there are two.
pub(crate) fn round_trips() -> io::Result<[f64; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().unwrap_or_default();
    Ok([round_trip([first, first])?, round_trip([first, cores.next().unwrap_or(first)])?])
}
