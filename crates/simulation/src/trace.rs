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
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use xxhash_rust::xxh3::Xxh3;

/// What the nodes say, with the most detailed level that is traced. The messages of the network are traced by turmoil.
const TRACED: [(&str, Level); 2] = [("openraft", Level::INFO), ("concord_", Level::DEBUG)];

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

/// Notes what the simulated network and the nodes log. It has no spans: nobody reads them, and the network enters one for each
/// host and millisecond.
pub(crate) struct NodeLogs;

impl Subscriber for NodeLogs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        // The steps are no events: each takes one millisecond. What happens to a whole host is noted as a fault.
        let is_step = || metadata.file().is_some_and(|file| file.ends_with("sim.rs"));
        let is_traced = || TRACED.iter().any(|(of, most)| target.starts_with(of) && metadata.level() <= most);
        metadata.is_event() && (if target == "turmoil" { !is_step() } else { is_traced() })
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let is_network = metadata.target() == "turmoil";
        let (text, is_last) = (format!("{} host {}", metadata.target(), crate::machine::host()), false);
        let mut text = Fields { text, is_network, is_last };
        event.record(&mut text);
        let text = text.text;
        if is_network {
            return note(|counts| counts.messages += 1, &text);
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
