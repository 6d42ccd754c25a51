//! A store, the state it holds and what the Raft log above it would hold.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    sled::{keys, trees},
    *,
};
use concord_model::{
    access_key::Author,
    command::{
        ChangeAction, IdempotencyKey, Proposal, SystemCommand,
        source::{Source, Tail},
    },
    record::IndexEntry,
    system::{
        change::{ChangeId, Content, NewEdition, Scope, Timing},
        environment::{Environment, EnvironmentName, Freeze},
    },
};

/// How long a test waits for a condition that must become true.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// A directory, its store, and the state after everything that was applied.
pub(super) struct Fixture {
    pub(super) directory: tempfile::TempDir,
    pub(super) options: StoreOptions,
    pub(super) store: Option<Store>,
    pub(super) state: State,
    pub(super) log: LogRange,
}

pub(super) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(StoreOptions { segment_bytes: 4 << 10, block_bytes: 1 << 10, ..StoreOptions::default() })
    }

    pub(super) fn with(options: StoreOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = LogRange { purged: 0, last: 0 };
        let mut fixture = Self { directory, options, store: None, state: State::new(), log };
        fixture.open();
        fixture
    }

    pub(super) fn open(&mut self) {
        match self.try_open().unwrap() {
            Loaded::State(state, position) => {
                assert_eq!(index(state.revision()), position.index);
                self.state = state;
            }
            Loaded::Nothing => self.state = State::new(),
        }
    }

    pub(super) fn try_open(&mut self) -> Result<Loaded, StoreError> {
        self.store = None;
        let (store, loaded) = Store::open(self.directory.path(), self.options.clone(), self.log)?;
        self.store = Some(store);
        Ok(loaded)
    }

    pub(super) fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    pub(super) fn position(&self) -> Position {
        position(self.state.revision())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Applies and enqueues commands as one batch; the log is durable up to it.
    pub(super) fn apply(&mut self, commands: Vec<Command>) {
        self.apply_from(&Source::Direct, commands);
    }

    /// The same of a command of the cluster itself, at a time.
    pub(super) fn apply_as_cluster_at(&mut self, at: Timestamp, command: Command) {
        let revision = self.state.revision() + 1;
        let proposal = proposal(&self.state, revision, command);
        let proposal = Proposal { at, author: Author::Cluster, ..proposal };
        let changes = self.state.apply(revision, &proposal).1.map(Arc::new).into_iter().collect();
        self.enqueue(changes);
    }

    /// The same of commands that come from somewhere.
    pub(super) fn apply_from(&mut self, source: &Source, commands: Vec<Command>) {
        let mut changes = Vec::new();
        for command in commands {
            let revision = self.state.revision() + 1;
            let proposal = proposal(&self.state, revision, command);
            let proposal = Proposal { tail: Tail::of(source.clone(), Vec::new()), ..proposal };
            changes.extend(self.state.apply(revision, &proposal).1.map(Arc::new));
        }
        self.enqueue(changes);
    }

    fn enqueue(&mut self, changes: Vec<Arc<Change>>) {
        self.log.last = self.log.last.max(index(self.state.revision()));
        self.store().enqueue(Batch { state: self.state.clone(), position: self.position(), changes });
        self.store().flushed(index(self.state.revision()));
    }

    pub(super) fn define(&mut self, name: &str) {
        let indexes = vec!["a".into()];
        self.apply(vec![Command::CreateDefinition { key: key(name), indexes, schema: None }]);
    }

    /// Writes configs, each in a batch of its own.
    pub(super) fn write(&mut self, definition: &str, names: std::ops::Range<u32>, data: &str) {
        for name in names {
            self.apply(vec![write(definition, &format!("k{name:04}"), data)]);
        }
    }

    pub(super) fn snapshot(&self) -> SnapshotFile {
        self.store().build_snapshot(&self.state, &self.position()).unwrap()
    }

    pub(super) fn close(&mut self) {
        self.store().close();
        self.store().close();
        self.store = None;
    }

    /// Drops the store, as a crash of the process does.
    pub(super) fn crash(&mut self) {
        self.store = None;
    }

    pub(super) fn sled(&self) -> PathBuf {
        self.path("sled").join(fs::read_to_string(self.path("sled/CURRENT")).unwrap())
    }

    pub(super) fn revisions(&self) -> Vec<Revision> {
        self.store().history().changes_from(1).unwrap().map(|change| change.unwrap().revision).collect()
    }

    /// Waits until sled has caught up.
    pub(super) fn wait_for_mirror(&self) {
        let deadline = Instant::now() + DEADLINE;
        while self.store().figures().mirrored < self.state.revision() {
            assert!(Instant::now() < deadline, "sled does not catch up: {:?}", self.store().figures());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The revision of the checkpoint and the merge target in a copy of sled's files, taken while sled is working;
    /// `None` if the copy can't be read.
    pub(super) fn sled_on_disk(&self) -> Option<(Revision, Option<LogIndex>)> {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.sled()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                // One of sled's own threads may have removed it since.
                fs::copy(&path, copy.path().join(path.file_name().unwrap())).ok()?;
            }
        }
        let trees = trees::Trees::open(copy.path(), 1 << 20, &AtRest::default()).ok()?;
        let found =
            trees.checkpoint().and_then(|checkpoint| trees.merge_target().map(|target| (checkpoint, target)));
        trees.close().unwrap();
        let (checkpoint, target) = found.ok()?;
        Some((checkpoint?.revision, target))
    }

    /// The revisions in the history, once everything is written.
    pub(super) fn revisions_when_written(&self) -> Vec<Revision> {
        self.snapshot();
        self.revisions()
    }

    /// Opens sled of the closed store.
    pub(super) fn with_sled<T>(&self, read: impl FnOnce(&::sled::Db) -> T) -> T {
        let db = ::sled::open(self.sled()).unwrap();
        let found = read(&db);
        drop(db);
        // sled's threads may hold the file a little longer.
        fs::File::open(self.sled().join("db")).unwrap().lock().unwrap();
        found
    }

    /// The rows of all trees of the closed store.
    pub(super) fn rows(&self) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
        self.with_sled(|db| {
            let mut rows = BTreeMap::new();
            for name in ["definitions", "configs", "indexes", "requests", "audit_anchors", "system"] {
                for row in &db.open_tree(name).unwrap() {
                    let (key, value) = row.unwrap();
                    rows.insert((name.into(), key.to_vec()), value.to_vec());
                }
            }
            rows
        })
    }

    /// The rows of the state, built from the state alone.
    pub(super) fn expected_rows(&self) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
        let mut rows = BTreeMap::new();
        for collection in self.state.stored_definitions() {
            let id = collection.definition.id;
            for (chunk, bytes) in keys::chunks(&keys::encode(&*collection.definition)) {
                rows.insert(("definitions".into(), keys::definition(id, chunk)), bytes.to_vec());
            }
            for config in collection.by_key.from(0) {
                for (chunk, bytes) in keys::chunks(&keys::encode(&*config.record)) {
                    rows.insert(
                        ("configs".into(), keys::config(id, &config.record.key, chunk)),
                        bytes.to_vec(),
                    );
                }
                for entry in &config.record.entries {
                    let row = keys::index(id, entry.slot, &entry.value, &config.record.key);
                    rows.insert(("indexes".into(), row), Vec::new());
                }
            }
        }
        for request in self.state.requests() {
            let row = keys::request(request.revision).to_vec();
            rows.insert(("requests".into(), row), keys::encode(request));
        }
        for anchors in self.state.audit_anchors() {
            let row = keys::anchored_log(&anchors.log);
            rows.insert(("audit_anchors".into(), row), keys::encode(&**anchors));
        }
        for record in self.state.system_records() {
            for (chunk, bytes) in keys::chunks(&keys::encode(&**record)) {
                rows.insert(("system".into(), keys::system(&record.key(), chunk)), bytes.to_vec());
            }
        }
        rows
    }

    /// Closes, compares sled with the state row by row, opens again and compares the states.
    pub(super) fn check(&mut self) {
        let expected = self.expected_rows();
        let (digest, revision) = (self.state.digest(), self.state.revision());
        self.close();
        assert!(self.rows() == expected, "sled holds other rows than the state");
        self.open();
        assert_eq!((self.state.digest(), self.state.revision()), (digest, revision));
        assert_eq!((self.store().figures().rebuilds, self.store().figures().applied), (0, revision));
    }
}

/// The entry of the log after which the state has a revision. In a cluster it is the same or less; here it is another
/// number for every revision, so that a test fails where one is taken for the other.
pub(super) fn index(revision: Revision) -> LogIndex {
    2 * revision
}

pub(super) fn position(revision: Revision) -> Position {
    Position { index: index(revision), raft_meta: vec![7; 3] }
}

pub(super) fn write(definition: &str, name: &str, data: &str) -> Command {
    let value = format!("\x40{}", &data[..data.len().min(600)]);
    let entries = Box::new([IndexEntry { slot: 0, value: value.into_bytes().into() }]);
    let data = format!("{{\"a\":\"{data}\"}}").into();
    Command::WriteConfig { definition: key(definition), key: key(name), data, entries, expect: Expect::Any }
}

/// The environment `name` with a freeze that has not begun and a text of so many bytes.
pub(super) fn put_environment(name: &str, bytes: usize) -> Command {
    let freezes = vec![Freeze { from: Timestamp(u64::MAX - 1), until: Timestamp(u64::MAX) }];
    Command::System(SystemCommand::PutEnvironment {
        name: EnvironmentName::parse(name).unwrap(),
        after: Environment { freezes, ..Environment::default() },
        text: format!(r#"{{"a":"{}"}}"#, "a telling text ".repeat(bytes / 15)).into(),
        expect: Expect::Any,
    })
}

pub(super) fn delete_environment(name: &str) -> Command {
    let (name, expect) = (EnvironmentName::parse(name).unwrap(), Expect::Any);
    Command::System(SystemCommand::DeleteEnvironment { name, expect })
}

/// Creates the change request of this number, or replaces its edition, with operations of so many bytes.
pub(super) fn change_request(state: &State, number: u64, bytes: usize) -> Command {
    let id = ChangeId::parse(&format!("{number:012}")).unwrap();
    let edition = NewEdition {
        digest: [7; 32],
        scope: Scope::Definitions(vec![key("d")]),
        text: r#"{"title":"a telling text"}"#.into(),
        operations: format!(r#"["{}"]"#, "a telling text ".repeat(bytes / 15)).into(),
        content: Content::new(Vec::new(), [9; 32]),
        timing: Timing::default(),
    };
    let action = match state.change(&id) {
        None => ChangeAction::Create(edition.into()),
        Some(change) => {
            let after = change.edition.number;
            ChangeAction::Edit { after, expect: Expect::Any, edition: edition.into() }
        }
    };
    Command::System(SystemCommand::Change { id, action })
}

/// Withdraws the change request of this number.
pub(super) fn withdraw(number: u64) -> Command {
    let (id, comment) = (ChangeId::parse(&format!("{number:012}")).unwrap(), String::new());
    Command::System(SystemCommand::Change { id, action: ChangeAction::Withdraw { comment } })
}

pub(super) fn proposal(state: &State, revision: Revision, command: Command) -> Proposal {
    let definition_read = match &command {
        Command::WriteConfig { definition, .. } => {
            state.definition(definition.as_str()).map(|collection| collection.definition.revision)
        }
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::UndeleteDefinition { .. }
        | Command::SetProtection { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::SkipRevisions { .. }
        | Command::Audit(_)
        | Command::System(_)
        | Command::Access(_)
        | Command::SetSchema { .. }
        | Command::SetUnique { .. }
        | Command::BuildIndex { .. }
        | Command::Transaction(_)
        | Command::Batch(_) => None,
    };
    // A step of an index build has no caller.
    let has_caller = !matches!(command, Command::BuildIndex { .. });
    let request = (has_caller && revision.is_multiple_of(5))
        .then(|| IdempotencyKey { id: u128::from(revision).to_be_bytes(), fingerprint: [0; 16] });
    Proposal {
        at: Timestamp(revision * 10),
        by: "root".into(),
        reason: None,
        request,
        definition_read,
        command,
        author: Author::Root,
        tail: None,
    }
}

pub(super) fn flip(path: &Path, byte: usize) {
    let mut bytes = fs::read(path).unwrap();
    let byte = byte % bytes.len();
    bytes[byte] ^= 4;
    fs::write(path, bytes).unwrap();
}
