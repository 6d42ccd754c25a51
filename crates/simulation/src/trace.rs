//! The trace of a run: a hash over everything that happened, in its order, with its virtual time.
//!
//! Every message of the network is in it, with its bytes; what the nodes log; what they apply, and in which term; each
//! fault; each operation of a client. Two runs with one seed have the same hash, or something that is not simulated
//! has influenced one of them.
//!
//! With a file, each event is a line of it: the first line that differs shows where two runs parted.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    fs::File,
    io::{BufWriter, Write as _},
    time::Duration,
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};
use xxhash_rust::xxh3::Xxh3;

thread_local! {
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

struct Trace {
    hash: Xxh3,
    counts: Counts,
    now: Duration,
    line: String,
    file: Option<BufWriter<File>>,
    /// Whether the logs of the nodes are printed.
    is_printed: bool,
}

/// How much has happened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) messages: u64,
    pub(crate) log_lines: u64,
    pub(crate) applied: u64,
    pub(crate) leaders: u64,
    pub(crate) faults: u64,
    pub(crate) operations: u64,
}

/// Begins the trace of this thread.
pub(crate) fn begin(path: Option<&str>, is_printed: bool) {
    let file = path.map(|path| BufWriter::new(File::create(path).expect("the file of the trace")));
    let trace = Trace {
        hash: Xxh3::new(),
        counts: Counts::default(),
        now: Duration::ZERO,
        line: String::new(),
        file,
        is_printed,
    };
    TRACE.set(Some(trace));
}

/// Ends it. Returns the hash.
pub(crate) fn end() -> (u64, Counts) {
    let trace = TRACE.take().expect("it was begun");
    if let Some(mut file) = trace.file {
        file.flush().expect("the file of the trace");
    }
    (trace.hash.digest(), trace.counts)
}

/// Sets the virtual time of what follows.
pub(crate) fn set_now(now: Duration) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.now = now;
        }
    });
}

/// Notes that something has happened.
pub(crate) fn note(count: impl FnOnce(&mut Counts), what: impl fmt::Display) {
    // What happens after the end is no part of it.
    TRACE.with(|cell| {
        let Ok(mut trace) = cell.try_borrow_mut() else { return };
        let Some(trace) = trace.as_mut() else { return };
        count(&mut trace.counts);
        trace.counts.events += 1;
        trace.line.clear();
        let ms = trace.now.as_millis();
        // Writing to a string does not fail.
        let _ = writeln!(trace.line, "{ms} {what}");
        trace.hash.update(trace.line.as_bytes());
        if let Some(file) = &mut trace.file {
            file.write_all(trace.line.as_bytes()).expect("the file of the trace");
        }
    });
}

/// Notes what the simulated network and the nodes log.
pub(crate) struct TraceLayer;

impl<S: Subscriber> Layer<S> for TraceLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let is_network = metadata.target() == "turmoil";
        let (text, is_last) = (format!("{} host {}", metadata.target(), crate::machine::host()), false);
        let mut text = Fields { text, is_network, is_last };
        event.record(&mut text);
        let text = text.text;
        if is_network {
            // The steps are no events: each takes one millisecond.
            if !text.contains(" message=step ") {
                note(|counts| counts.messages += 1, &text);
            }
            return;
        }
        let is_printed = TRACE.with(|cell| {
            cell.try_borrow().is_ok_and(|trace| trace.as_ref().is_some_and(|trace| trace.is_printed))
        });
        if is_printed && *metadata.level() <= Level::INFO {
            let ms = TRACE.with_borrow(|trace| trace.as_ref().map_or(0, |trace| trace.now.as_millis()));
            eprintln!("{ms:>8} {} {}", metadata.level(), text);
        }
        note(|counts| counts.log_lines += 1, &text);
    }
}

struct Fields {
    text: String,
    is_network: bool,
    /// The bytes of a message were noted when it was sent.
    is_last: bool,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.is_last {
            return;
        }
        // As above.
        let _ = write!(self.text, " {}={value:?}", field.name());
        self.is_last = self.is_network && field.name() == "dst" && !self.text.contains("message=Send");
    }
}
