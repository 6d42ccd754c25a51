//! Records what the clients did, as it happens, so that a run that dies leaves what it has seen.
//!
//! With a file each record is a line of it, written when it is made, so that any checker can read it:
//!
//! | line | what |
//! |---|---|
//! | `{"begin":{…}}` | an operation on one key that is sent now |
//! | `{"end":{…}}` | the same with its answer; a `begin` without an `end` has an unknown outcome |
//! | `{"list":{…}}`, `{"point_in_time":{…}}` | a read that was answered |
//! | `{"transaction_begin":{…}}`, `{"transaction_end":{…}}` | a transaction, likewise |
//! | `{"contradiction":"…"}` | what one client saw to be wrong by itself |
//! | `{"fault":{"at":ns,"text":"…"}}` | a fault begins or ends |
//! | `{"deed_begin":{…}}`, `{"deed_end":{…}}` | what somebody did to a change request (`changes/deed.rs`), likewise |
//! | `{"key_ended":{"by":…,"end":{"at":ns,"revision":…}}}` | it was acknowledged that a credential may write no more |
//!
//! An operation is `{"number":7,"client":3,"key":"def/cfg","op":"get|create|put|upsert|patch|delete|rollback","value":…,
//! "expected":…,"tested":…,"to":…,"batch":…,"by":…,"call":ns,"return":ns|0,"status":200,"result":…,"revision":…,"state":…}`:
//! `return` 0 is an unknown outcome; `value` is unique per write, but for a rollback, which writes the value of revision
//! `to` again; `result` is the value that was read; `revision` is the record's for a decided write or a read that found
//! something. A batch is an operation on each of its keys, with the batch's number. A transaction is a batch for each of
//! its two branches, an operation for each read, and a line of its own that says what it rests on. `by` is
//! the access key in whose name it was sent, and which of its texts.
//!
//! **Invariant:** an operation is in the file before its request is sent.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::changes::deed::{By, Deed, What};

/// What an operation does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Get,
    Create,
    Put,
    /// A put that may create.
    Upsert,
    /// A merge patch, or a JSON patch that tests the value first.
    Patch,
    Delete,
    /// The value of an earlier revision again.
    Rollback,
}

/// One operation on one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Joins the end to the begin.
    pub(crate) number: u64,
    pub(crate) client: usize,
    pub(crate) key: String,
    pub(crate) op: Kind,
    pub(crate) value: Option<String>,
    /// The revision that `If-Match` named.
    pub(crate) expected: Option<u64>,
    /// The value that a JSON patch tests for.
    pub(crate) tested: Option<String>,
    /// The revision that a rollback names.
    pub(crate) to: Option<u64>,
    /// The number of the batch that it is a part of.
    pub(crate) batch: Option<u64>,
    /// In whose name it was sent; none: the root key's.
    #[serde(default)]
    pub(crate) by: Option<String>,
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
            number: 0,
            client,
            key,
            op,
            value: None,
            expected: None,
            tested: None,
            to: None,
            batch: None,
            by: None,
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

/// What a condition of a transaction says of a config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Is {
    Absent,
    Present,
    Revision(u64),
    Value(String),
}

impl Is {
    /// Whether it holds of a config with this revision and this value.
    pub(crate) fn holds(&self, config: Option<(u64, &str)>) -> bool {
        match (self, config) {
            (Self::Absent, None) | (Self::Present, Some(_)) => true,
            (Self::Revision(expected), Some((revision, _))) => *expected == revision,
            (Self::Value(expected), Some((_, value))) => expected == value,
            (Self::Absent, Some(_)) | (Self::Present | Self::Revision(_) | Self::Value(_), None) => false,
        }
    }
}

/// A batch that is chosen by conditions, with what its answer says of both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transaction {
    /// The batches of the operations of `then` and of `else`.
    pub(crate) branches: [u64; 2],
    /// Whether these change anything.
    pub(crate) changes: [bool; 2],
    /// (key, what it must be).
    pub(crate) conditions: Vec<(String, Is)>,
    /// The keys that both branches read.
    pub(crate) reads: Vec<String>,
    /// What was decided; `None` when it was refused or is unknown.
    pub(crate) decided: Option<Chosen>,
}

/// The decision on a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chosen {
    pub(crate) succeeded: bool,
    pub(crate) revision: u64,
    /// The revision and the value of each config that was read; `None` where one is not known any more.
    pub(crate) found: Option<Vec<Option<(u64, String)>>>,
}

impl Transaction {
    /// The revision of the state that a decision rests on.
    pub(crate) fn before(&self, chosen: &Chosen) -> u64 {
        chosen.revision - u64::from(self.changes[usize::from(!chosen.succeeded)])
    }
}

/// A read of a config as of a revision.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PointInTimeRead {
    pub(crate) key: String,
    pub(crate) at: u64,
    /// The answer was that this revision is not retained any more.
    pub(crate) is_gone: bool,
    /// Its revision and its value.
    pub(crate) found: Option<(u64, String)>,
}

/// A list of all configs of one definition, or of one group, at one revision.
#[derive(Debug, Clone, Serialize, Deserialize)]
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

/// The end of a credential's right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// When it was acknowledged.
    pub(crate) at: u64,
    /// The revision of the acknowledgement, where no other credential of the same key goes on.
    pub(crate) revision: Option<u64>,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begin(Operation),
    End(Operation),
    List(ListRead),
    PointInTime(PointInTimeRead),
    TransactionBegin(Transaction),
    TransactionEnd(Transaction),
    DeedBegin(Deed),
    DeedEnd(Deed),
    Contradiction(String),
    Fault { at: u64, text: String },
    KeyEnded { by: String, end: End },
}

/// Gets each line of the record when it is made.
pub(crate) type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// Everything that was recorded.
pub(crate) struct History {
    start: Instant,
    sink: Option<Mutex<Sink>>,
    numbers: AtomicU64,
    /// Operations that were sent and have not ended, by number.
    in_flight: Mutex<BTreeMap<u64, Operation>>,
    operations: Mutex<Vec<Operation>>,
    list_reads: Mutex<Vec<ListRead>>,
    point_in_time_reads: Mutex<Vec<PointInTimeRead>>,
    /// By their numbers.
    deeds: Mutex<BTreeMap<u64, Deed>>,
    /// By the batch of `then`.
    transactions: Mutex<BTreeMap<u64, Transaction>>,
    /// Contradictions that one client saw by itself, as when a repeated request got another answer.
    contradictions: Mutex<Vec<String>>,
    ends: Mutex<BTreeMap<String, End>>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("start", &self.start).finish_non_exhaustive()
    }
}

impl History {
    /// A record that is also written to a file, if one is named.
    pub(crate) fn new(path: Option<&str>) -> Self {
        let sink = path.map(|path| {
            let mut file = File::create(path).expect("HISTORY can be created");
            // One system call a line, so that it is whole in the file when the process dies after it.
            let write = move |line: &[u8]| file.write_all(line).expect("HISTORY can be written");
            Box::new(write) as Sink
        });
        Self::with_sink(sink)
    }

    /// A record whose lines somebody else gets too.
    pub(crate) fn with_sink(sink: Option<Sink>) -> Self {
        Self {
            start: Instant::now(),
            sink: sink.map(Mutex::new),
            numbers: AtomicU64::new(1),
            in_flight: Mutex::default(),
            operations: Mutex::default(),
            list_reads: Mutex::default(),
            point_in_time_reads: Mutex::default(),
            deeds: Mutex::default(),
            transactions: Mutex::default(),
            contradictions: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    /// What a run has left in a file. Its last line may be torn.
    pub(crate) fn read(path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let (history, lines) = (Self::new(None), text.lines().collect::<Vec<_>>());
        for (place, line) in lines.iter().enumerate() {
            match serde_json::from_str(line) {
                Ok(line) => history.add(line),
                Err(_) if place + 1 == lines.len() && !text.ends_with('\n') => {}
                Err(error) => return Err(format!("line {} of {path}: {error}", place + 1)),
            }
        }
        Ok(history)
    }

    fn add(&self, line: Line) {
        match line {
            Line::Begin(operation) => drop(locked(&self.in_flight).insert(operation.number, operation)),
            Line::End(operation) => {
                locked(&self.in_flight).remove(&operation.number);
                locked(&self.operations).push(operation);
            }
            Line::List(list) => locked(&self.list_reads).push(list),
            Line::PointInTime(read) => locked(&self.point_in_time_reads).push(read),
            Line::TransactionBegin(made) | Line::TransactionEnd(made) => {
                drop(locked(&self.transactions).insert(made.branches[0], made));
            }
            Line::DeedBegin(deed) | Line::DeedEnd(deed) => {
                drop(locked(&self.deeds).insert(deed.number, deed));
            }
            Line::Contradiction(text) => locked(&self.contradictions).push(text),
            Line::Fault { .. } => {}
            // The first end counts.
            Line::KeyEnded { by, end } => {
                locked(&self.ends).entry(by).or_insert(end);
            }
        }
    }

    fn keep(&self, line: Line) {
        if let Some(sink) = &self.sink {
            let mut bytes = serde_json::to_vec(&line).expect("a line is plain data");
            bytes.push(b'\n');
            locked(sink)(&bytes);
        }
        self.add(line);
    }

    /// Nanoseconds since the start; never 0.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a run is shorter than centuries") + 1
    }

    /// Notes an operation that is about to be sent, and gives it its number.
    pub(crate) fn begin(&self, operation: &mut Operation) {
        operation.number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.keep(Line::Begin(operation.clone()));
    }

    /// Notes what became of an operation that was begun.
    pub(crate) fn record(&self, operation: Operation) {
        self.keep(Line::End(operation));
    }

    pub(crate) fn record_list(&self, list: ListRead) {
        self.keep(Line::List(list));
    }

    pub(crate) fn record_point_in_time(&self, read: PointInTimeRead) {
        self.keep(Line::PointInTime(read));
    }

    /// Notes a transaction that is about to be sent.
    pub(crate) fn begin_transaction(&self, transaction: Transaction) {
        self.keep(Line::TransactionBegin(transaction));
    }

    /// Notes what became of it.
    pub(crate) fn record_transaction(&self, transaction: Transaction) {
        self.keep(Line::TransactionEnd(transaction));
    }

    /// A deed that begins now.
    pub(crate) fn deed(&self, what: What, by: &By) -> Deed {
        Deed { what, by: by.clone(), call: self.now(), ..Deed::default() }
    }

    /// Notes a deed that is about to be done, and gives it its number.
    pub(crate) fn begin_deed(&self, deed: &mut Deed) {
        deed.number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.keep(Line::DeedBegin(deed.clone()));
    }

    /// Notes what became of it.
    pub(crate) fn record_deed(&self, deed: Deed) {
        self.keep(Line::DeedEnd(deed));
    }

    /// All deeds. Those in flight are unknown.
    pub(crate) fn deeds(&self) -> Vec<Deed> {
        locked(&self.deeds).values().cloned().collect()
    }

    pub(crate) fn record_fault(&self, text: &str) {
        crate::harness::tell(self.now(), text);
        self.keep(Line::Fault { at: self.now(), text: text.to_owned() });
    }

    /// Notes that a credential may write no more.
    pub(crate) fn record_end(&self, by: &str, end: End) {
        self.keep(Line::KeyEnded { by: by.to_owned(), end });
    }

    pub(crate) fn ends(&self) -> BTreeMap<String, End> {
        locked(&self.ends).clone()
    }

    pub(crate) fn contradict(&self, text: String) {
        self.keep(Line::Contradiction(text));
    }

    /// The operations that have ended, and those in flight, whose outcome is unknown.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        let in_flight: Vec<Operation> = locked(&self.in_flight).values().cloned().collect();
        [locked(&self.operations).clone(), in_flight].concat()
    }

    pub(crate) fn list_reads(&self) -> Vec<ListRead> {
        locked(&self.list_reads).clone()
    }

    pub(crate) fn point_in_time_reads(&self) -> Vec<PointInTimeRead> {
        locked(&self.point_in_time_reads).clone()
    }

    /// All transactions, whatever is known of them.
    pub(crate) fn transactions(&self) -> Vec<Transaction> {
        locked(&self.transactions).values().cloned().collect()
    }

    pub(crate) fn contradictions(&self) -> Vec<String> {
        locked(&self.contradictions).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no recorder panics")
}

/// A seed for a run that names none.
#[expect(clippy::disallowed_methods, reason = "a seed is no input of the service; it is printed")]
pub(crate) fn any_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_dies_leaves_what_it_has_seen_and_what_was_in_flight() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let path = path.to_str().unwrap();
        let history = History::new(Some(path));
        let mut ended = Operation::new(1, "d/k".into(), Kind::Create, 5);
        let mut flying =
            Operation { value: Some("v2".into()), ..Operation::new(2, "d/k".into(), Kind::Put, 8) };
        history.begin(&mut ended);
        history.begin(&mut flying);
        (ended.ret, ended.status, ended.revision) = (7, 201, Some(u64::MAX));
        history.record(ended.clone());
        history.record_point_in_time(PointInTimeRead {
            key: "d/k".into(),
            at: 3,
            is_gone: false,
            found: Some((2, "v1".into())),
        });
        let begun = Transaction {
            branches: [3, 4],
            changes: [true, false],
            conditions: vec![("d/k".into(), Is::Revision(7)), ("d/l".into(), Is::Absent)],
            reads: vec!["d/k".into()],
            decided: None,
        };
        history.begin_transaction(begun.clone());
        let found = Some(vec![Some((7, "v1".into()))]);
        let decided = Some(Chosen { succeeded: true, revision: 9, found });
        let answered = Transaction { branches: [5, 6], decided, ..begun.clone() };
        history.begin_transaction(Transaction { decided: None, ..answered.clone() });
        history.record_transaction(answered.clone());
        history.record_fault("KillAll");
        history.contradict("wrong".into());
        // The record is not closed in any way: what is in the file is what a killed process leaves there.
        let read = History::read(path).unwrap();
        assert_eq!(read.operations(), [ended.clone(), flying]);
        assert_eq!(read.point_in_time_reads()[0].found, Some((2, "v1".into())));
        assert_eq!(read.contradictions(), ["wrong"]);
        assert_eq!(read.transactions(), [begun, answered]);
        let whole = std::fs::read(path).unwrap();
        std::fs::write(path, &whole[..whole.len() - 3]).unwrap();
        assert_eq!(History::read(path).unwrap().operations().len(), 2, "a torn last line is left out");
        std::fs::write(path, [b"{\n".as_slice(), &whole].concat()).unwrap();
        assert!(History::read(path).unwrap_err().contains("line 1"));
        drop(history);
    }
}
