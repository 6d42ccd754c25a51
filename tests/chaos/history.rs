//! What the clients did, one operation a line, so that any checker can judge it.
//!
//! `{"client":3,"key":"def/cfg","op":"get|create|put|patch|delete","value":…,"expected":…,"tested":…,"batch":…,
//! "call":ns,"return":ns|0,"status":200,"result":…,"revision":…}`: `return` 0 is an unknown outcome; `value` is
//! unique per write; `result` is the value that was read; `revision` is the record's for a decided write or a read
//! that found something. A batch is an operation on each of its keys, with the batch's number. Lists and reads of
//! the past are kept beside them.

use std::{
    io::Write,
    sync::Mutex,
    time::{Instant, SystemTime},
};

use serde::Serialize;

/// What was asked of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Get,
    Create,
    Put,
    /// A merge patch, or a JSON patch that tests the value first.
    Patch,
    Delete,
}

/// One operation on one key.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    pub(crate) key: String,
    pub(crate) op: Kind,
    pub(crate) value: Option<String>,
    /// The revision that `If-Match` named.
    pub(crate) expected: Option<u64>,
    /// The value that a JSON patch tests for.
    pub(crate) tested: Option<String>,
    /// The batch that it is a part of.
    pub(crate) batch: Option<u64>,
    pub(crate) call: u64,
    /// 0: unknown.
    #[serde(rename = "return")]
    pub(crate) ret: u64,
    pub(crate) status: u16,
    pub(crate) result: Option<String>,
    pub(crate) revision: Option<u64>,
    /// The revision of the state that answered.
    pub(crate) state: Option<u64>,
}

impl Operation {
    /// One that has no answer yet.
    pub(crate) fn new(client: usize, key: String, op: Kind, call: u64) -> Self {
        Self {
            client,
            key,
            op,
            value: None,
            expected: None,
            tested: None,
            batch: None,
            call,
            ret: 0,
            status: 0,
            result: None,
            revision: None,
            state: None,
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        self.op != Kind::Get
    }

    /// Whether it was acknowledged: known, and done.
    pub(crate) fn is_done(&self) -> bool {
        self.ret != 0 && (200..300).contains(&self.status)
    }
}

/// A read of a config as it was at a revision.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) key: String,
    pub(crate) at: u64,
    /// Its revision and its value.
    pub(crate) found: Option<(u64, String)>,
}

/// A whole list of one definition, taken at one revision.
#[derive(Debug, Clone)]
pub(crate) struct Sweep {
    pub(crate) definition: String,
    /// The group that was asked for, when the list was a query by index.
    pub(crate) group: Option<String>,
    pub(crate) call: u64,
    pub(crate) ret: u64,
    pub(crate) state: u64,
    /// (config key, value).
    pub(crate) found: Vec<(String, String)>,
}

/// Everything that was recorded.
#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    operations: Mutex<Vec<Operation>>,
    sweeps: Mutex<Vec<Sweep>>,
    looks: Mutex<Vec<Look>>,
    /// Contradictions that a client saw by itself (a retried request with another answer).
    complaints: Mutex<Vec<String>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            operations: Mutex::default(),
            sweeps: Mutex::default(),
            looks: Mutex::default(),
            complaints: Mutex::default(),
        }
    }

    /// Nanoseconds since the start; never 0.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a run is shorter than centuries") + 1
    }

    pub(crate) fn record(&self, operation: Operation) {
        self.operations.lock().expect("no recorder panics").push(operation);
    }

    pub(crate) fn sweep(&self, sweep: Sweep) {
        self.sweeps.lock().expect("no recorder panics").push(sweep);
    }

    pub(crate) fn look(&self, look: Look) {
        self.looks.lock().expect("no recorder panics").push(look);
    }

    pub(crate) fn complain(&self, text: String) {
        self.complaints.lock().expect("no recorder panics").push(text);
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn sweeps(&self) -> Vec<Sweep> {
        self.sweeps.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        self.looks.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().expect("no recorder panics").clone()
    }

    /// Writes the operations as JSON lines.
    pub(crate) fn write(&self, path: &str) {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("HISTORY can be created"));
        for operation in self.operations() {
            serde_json::to_writer(&mut file, &operation).expect("an operation is plain data");
            file.write_all(b"\n").expect("HISTORY can be written");
        }
        file.flush().expect("HISTORY can be written");
    }
}

/// A seed for a run that names none.
#[expect(clippy::disallowed_methods, reason = "a seed is no input of the service; it is printed")]
pub(crate) fn any_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |time| time.as_secs())
}
