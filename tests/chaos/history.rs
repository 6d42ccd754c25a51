//! Records what the clients did, one operation a line, so that any checker can read it.
//!
//! `{"client":3,"key":"def/cfg","op":"get|create|put|patch|delete","value":…,"expected":…,"tested":…,"batch":…,
//! "call":ns,"return":ns|0,"status":200,"result":…,"revision":…}`: `return` 0 is an unknown outcome; `value` is
//! unique per write; `result` is the value that was read; `revision` is the record's for a decided write or a read
//! that found something. A batch is an operation on each of its keys, with the batch's number. Lists and
//! point-in-time reads are recorded apart.

use std::{
    io::Write,
    sync::Mutex,
    time::{Instant, SystemTime},
};

use serde::Serialize;

/// What an operation does to its key.
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
    /// The number of the batch that it is a part of.
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
    /// An operation without an answer.
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

/// A read of a config as of a revision.
#[derive(Debug, Clone)]
pub(crate) struct PointInTimeRead {
    pub(crate) key: String,
    pub(crate) at: u64,
    /// Its revision and its value.
    pub(crate) found: Option<(u64, String)>,
}

/// A list of all configs of one definition, or of one group, at one revision.
#[derive(Debug, Clone)]
pub(crate) struct ListRead {
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
    list_reads: Mutex<Vec<ListRead>>,
    point_in_time_reads: Mutex<Vec<PointInTimeRead>>,
    /// Contradictions that one client saw by itself, as when a repeated request got another answer.
    contradictions: Mutex<Vec<String>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            operations: Mutex::default(),
            list_reads: Mutex::default(),
            point_in_time_reads: Mutex::default(),
            contradictions: Mutex::default(),
        }
    }

    /// Nanoseconds since the start; never 0.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a run is shorter than centuries") + 1
    }

    pub(crate) fn record(&self, operation: Operation) {
        self.operations.lock().expect("no recorder panics").push(operation);
    }

    pub(crate) fn record_list(&self, list: ListRead) {
        self.list_reads.lock().expect("no recorder panics").push(list);
    }

    pub(crate) fn record_point_in_time(&self, read: PointInTimeRead) {
        self.point_in_time_reads.lock().expect("no recorder panics").push(read);
    }

    pub(crate) fn contradict(&self, text: String) {
        self.contradictions.lock().expect("no recorder panics").push(text);
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        self.operations.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn list_reads(&self) -> Vec<ListRead> {
        self.list_reads.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn point_in_time_reads(&self) -> Vec<PointInTimeRead> {
        self.point_in_time_reads.lock().expect("no recorder panics").clone()
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        self.contradictions.lock().expect("no recorder panics").clone()
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
