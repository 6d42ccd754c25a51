//! A state that is continued by the history is the state that the cluster had at that point.

use std::{collections::BTreeMap, fs, sync::Arc};

use fastrand::Rng;
use serde_json::{Value, json};

use super::*;
use crate::{Position, at_rest::KEYS, history::writer::HistoryWriter, snapshot::file};
use concord_model::{
    access_key::{Author, Grants, KeyId, Quota},
    command::{
        AccessCommand, BatchStep, ChangeAction, Command, ConfigThen, ContentThen, Expect, IdempotencyKey,
        KeyTerms, Proposal, SystemCommand, Undeletion,
    },
    index::{self, Indexing},
    limits::REINDEX_CONFIGS_MAX,
    record::{Definition, IndexEntries},
    schema::{Formats, StoredSchema},
    system::{
        SystemRecord,
        change::{Change, ChangeId, CloseReason, Content, NewEdition, Phase, Scope, Timing},
        environment::{Direct, Environment, EnvironmentName, Freeze},
    },
};
use concord_state::Collection;

const PATHS: [&str; 3] = ["n", "tags", "o.*"];
const BEGIN: u64 = 1_763_000_000_000_000;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn some_key(prefix: &str, count: u64, random: &mut Rng) -> Key {
    key(&format!("{prefix}{}", random.u64(0..count)))
}

fn some_paths(random: &mut Rng) -> Vec<String> {
    PATHS.iter().filter(|_| random.bool()).map(|path| (*path).to_owned()).collect()
}

fn data(random: &mut Rng) -> Value {
    match random.u8(0..3) {
        0 => json!({"n": random.u8(0..9)}),
        1 => json!({"tags": ["a", random.u8(0..3)], "o": {"x": 1, "y": random.bool()}}),
        _ => json!({}),
    }
}

fn entries(definition: &Definition, data: &Value) -> IndexEntries {
    index::all_entries(&index::stored_paths(definition), data)
}

fn write(state: &State, definition: Key, config: Key, data: &Value) -> Command {
    let found = state.definition(definition.as_str());
    let entries = found.map(|found| entries(&found.definition, data)).unwrap_or_default();
    let data = data.to_string().into();
    Command::WriteConfig { definition, key: config, data, entries, expect: Expect::Any }
}

/// A command that may be a step of a batch.
fn step(state: &State, random: &mut Rng) -> Command {
    let definition = some_key("d", 4, random);
    match random.u8(0..16) {
        0 => Command::CreateDefinition { key: definition, indexes: some_paths(random), schema: None },
        1 => Command::SetIndexes { key: definition, indexes: some_paths(random), expect: Expect::Any },
        2 => {
            let schema = StoredSchema {
                text: format!(r#"{{"title":"{}"}}"#, random.u8(..)).into(),
                formats: Formats::Asserted,
            };
            let schema = random.bool().then_some(schema);
            Command::SetSchema { key: definition, schema, expect: Expect::Any, configs_read: None }
        }
        3 => Command::SetProtection { key: definition, protected: random.u8(0..4) == 0, expect: Expect::Any },
        4 => {
            let keep = (random.u8(0..5) > 0).then(|| random.u64(1000..20_000));
            Command::DeleteDefinition { key: definition, expect: Expect::Any, restrict: false, keep }
        }
        5..=6 => Command::DeleteConfig { definition, key: some_key("k", 12, random), expect: Expect::Any },
        _ => write(state, definition, some_key("k", 12, random), &data(random)),
    }
}

fn batch(state: &State, random: &mut Rng) -> Command {
    let mut scratch = state.clone();
    let mut steps = Vec::new();
    for place in 0..random.u32(1..9) {
        let command = step(&scratch, random);
        if scratch.try_step(place, &command).is_ok() {
            steps.push(BatchStep { definition_read: None, command });
        }
    }
    Command::Batch(steps)
}

fn undelete(state: &State, random: &mut Rng) -> Option<Command> {
    let count = state.deleted().count();
    let kept = (count > 0).then(|| state.deleted().nth(random.usize(0..count)))??;
    let mut back: Vec<ConfigThen> = Vec::new();
    for config in kept.configs() {
        if random.u8(0..4) > 0 {
            continue;
        }
        let data = data(random);
        let then = ContentThen {
            data: data.to_string().into(),
            entries: entries(&kept.definition, &data),
            created_at: config.created_at,
        };
        back.push(ConfigThen { key: config.key.clone(), then: random.bool().then_some(then) });
    }
    let (key, of) = (kept.definition.key.clone(), kept.deleted_id());
    Some(Command::UndeleteDefinition(Undeletion { key, of, back }))
}

fn new_key(random: &mut Rng) -> Command {
    let id = KeyId::parse(&format!("{:012}", random.u8(..))).unwrap();
    let terms =
        KeyTerms { name: "n".into(), grants: Grants(Vec::new()), quota: Quota::default(), expires_at: None };
    Command::Access(AccessCommand::Create { id, terms, sha256: [1; 32], person: None })
}

/// A change of an environment, of which there are no definitions: it rejects nothing here.
fn environment(state: &State, random: &mut Rng) -> Command {
    let name = EnvironmentName::parse(["staging", "prod", "dev"][random.usize(0..3)]).unwrap();
    let expect = Expect::Any;
    if random.u8(0..4) == 0 {
        return Command::System(SystemCommand::DeleteEnvironment { name, expect });
    }
    let from = state.last_at().0 + random.u64(0..5_000_000);
    let freeze = Freeze { from: Timestamp(from), until: Timestamp(from + random.u64(0..3_000_000)) };
    let after = Environment { direct: Direct::Allow, approvals: random.u8(0..3), freezes: vec![freeze] };
    let text = format!(r#"{{"n":{}}}"#, random.u8(..)).into();
    Command::System(SystemCommand::PutEnvironment { name, after, text, expect })
}

fn edition(digest: u8, title: u8) -> NewEdition {
    NewEdition {
        digest: [digest; 32],
        scope: Scope::Definitions(vec![key("large")]),
        text: format!(r#"{{"title":"{title}"}}"#).into(),
        operations: "[]".into(),
        content: Content::new(Vec::new(), [9; 32]),
        timing: Timing::default(),
    }
}

/// An action on one of a few change requests, which are others as time goes by. The history has their records, and no content.
fn change_request(state: &State, random: &mut Rng) -> Command {
    let id = ChangeId::parse(&format!("{:012}", state.revision() / 100 + random.u64(0..8))).unwrap();
    let edition = edition(random.u8(..), random.u8(..));
    let found = state.change(&id);
    let action = match found {
        None => ChangeAction::Create(edition.into()),
        Some(_) if random.u8(0..8) == 0 => ChangeAction::Withdraw { comment: String::new() },
        Some(found) => {
            let after = found.edition.number;
            ChangeAction::Edit { after, expect: Expect::Any, edition: edition.into() }
        }
    };
    let is_ended = found.is_some_and(|found| !found.is_pending());
    if is_ended && random.u8(0..4) == 0 {
        return Command::System(SystemCommand::SweepChanges { now: Timestamp(u64::MAX) });
    }
    if random.u8(0..10) == 0 {
        return Command::System(SystemCommand::HoldChanges);
    }
    Command::System(SystemCommand::Change { id, action })
}

fn command(state: &State, random: &mut Rng) -> Command {
    if let Some(building) = state.building().next().filter(|_| random.u8(0..4) == 0) {
        let build = building.indexing.build.clone().expect("it is being built");
        return Command::BuildIndex { key: building.key.clone(), begun: build.begun, cursor: build.cursor };
    }
    match random.u8(0..40) {
        0 => Command::Compact { compaction_revision: state.revision().saturating_sub(random.u64(0..300)) },
        1 => Command::Forget { upto: state.revision().saturating_sub(random.u64(20..200)) },
        2 => new_key(random),
        19..=20 => environment(state, random),
        21..=22 => change_request(state, random),
        3..=6 => undelete(state, random).unwrap_or_else(|| step(state, random)),
        7..=12 => batch(state, random),
        // The definition that is too large to be indexed at once.
        13 => Command::SetIndexes { key: key("large"), indexes: some_paths(random), expect: Expect::Any },
        14..=18 => {
            write(state, key("large"), some_key("k", REINDEX_CONFIGS_MAX + 200, random), &data(random))
        }
        _ => step(state, random),
    }
}

/// A cluster: its state at each revision, and its history on a disk.
struct Model {
    directory: tempfile::TempDir,
    at_rest: AtRest,
    states: Vec<State>,
    /// The revisions and the times of the changes that the history has.
    changes: Vec<(Revision, Timestamp)>,
    writer: HistoryWriter,
    random: Rng,
}

impl Model {
    fn new(seed: u64, is_encrypted: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at_rest =
            if is_encrypted { AtRest::for_tests(directory.path(), KEYS[0]) } else { AtRest::default() };
        let writer = HistoryWriter::open(&directory.path().join("history"), 16 << 10, &at_rest).unwrap();
        let random = Rng::with_seed(seed);
        let states = vec![State::new()];
        let mut model = Self { directory, at_rest, states, changes: Vec::new(), writer, random };
        let create = Command::CreateDefinition { key: key("large"), indexes: vec!["n".into()], schema: None };
        model.apply(Proposal::new(Timestamp(BEGIN), "root", Author::Root, create));
        for part in 0..3 {
            let steps = (0..500).map(|n| BatchStep {
                definition_read: None,
                command: write(
                    model.now(),
                    key("large"),
                    key(&format!("k{}", part * 500 + n)),
                    &json!({"n": n}),
                ),
            });
            let proposal =
                Proposal::new(Timestamp(BEGIN), "root", Author::Root, Command::Batch(steps.collect()));
            model.apply(proposal);
        }
        model
    }

    fn now(&self) -> &State {
        self.states.last().expect("the first one is there")
    }

    fn apply(&mut self, proposal: Proposal) {
        let mut state = self.now().clone();
        let (_, change) = state.apply(state.revision() + 1, &proposal);
        if let Some(change) = change {
            self.writer.write(&change).unwrap();
            if change.edits.iter().any(concord_state::Edit::is_in_history) {
                self.changes.push((change.revision, change.at));
            }
        }
        self.writer.advance(state.revision()).unwrap();
        self.states.push(state);
    }

    fn grow(&mut self, count: u64) {
        for _ in 0..count {
            let mut random = self.random.clone();
            let command = command(self.now(), &mut random);
            let at = Timestamp(self.now().last_at().0 + random.u64(0..2_000_000));
            let mut proposal = Proposal::new(at, "root", Author::Root, command);
            if random.u8(0..4) == 0 {
                let id = [random.u8(0..60); 16];
                proposal.request = Some(IdempotencyKey { id, fingerprint: [1; 16] });
            }
            self.random = random;
            self.apply(proposal);
        }
        self.writer.flush().unwrap();
    }

    fn history(&self) -> StoppedHistory {
        StoppedHistory::open(&self.directory.path().join("history"), &self.at_rest).unwrap()
    }

    /// The state at a revision; the revisions ascend by one.
    fn at(&self, revision: Revision) -> &State {
        &self.states[usize::try_from(revision).unwrap()]
    }

    /// The last change at a time or before it.
    fn last_until(&self, time: Timestamp) -> Option<(Revision, Timestamp)> {
        self.changes.iter().rev().find(|(_, at)| *at <= time).copied()
    }
}

/// A definition and its configs, with all indexes complete.
fn complete(collection: &Collection) -> (Definition, Vec<Config>) {
    let definition = Definition::clone(&collection.definition);
    let was_building = definition.indexing.build.is_some();
    let indexing = Indexing { build: None, ..definition.indexing.clone() };
    let definition = Definition { indexing, ..definition };
    let configs = collection.configs().map(|config| {
        let data: Value = serde_json::from_str(&config.data).unwrap();
        let config = Config::clone(config);
        if was_building { Config { entries: entries(&definition, &data), ..config } } else { config }
    });
    let configs = configs.collect();
    (definition, configs)
}

/// The change requests. One that is pending has been closed since if it has lost its content.
fn changes(state: &State) -> Vec<(Key, Change)> {
    let pending = |phase: &Phase| match phase {
        Phase::Open
        | Phase::Scheduled { .. }
        | Phase::Rolling { .. }
        | Phase::Held
        | Phase::Closed { reason: CloseReason::Restored, .. } => true,
        Phase::Applied { .. } | Phase::Closed { .. } => false,
    };
    let each = state.changes().map(|record| {
        let change = record.change().unwrap().clone();
        let phase = if pending(&change.phase) { Phase::Open } else { change.phase.clone() };
        (record.name.clone(), Change { phase, ..change })
    });
    each.collect()
}

/// Everything that the history has of a state.
type HistoryContent = (
    Vec<(Definition, Vec<Config>)>,
    Vec<concord_state::RememberedOutcome>,
    Vec<Arc<SystemRecord>>,
    Vec<(Key, Change)>,
);

fn content(state: &State) -> HistoryContent {
    let definitions = state.stored_definitions().map(|collection| complete(collection)).collect();
    let environments = state.environments().cloned().collect();
    (definitions, state.requests().cloned().collect(), environments, changes(state))
}

/// A state that is written to a file is read again only if its digest is that of its records.
fn has_its_digest(state: &State) {
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("snapshot");
    let position = Position { index: state.revision(), raft_meta: Vec::new() };
    file::write(&path, state, &position, 1 << 16, &AtRest::default()).unwrap();
    let (read, _) = file::read(&path, &AtRest::default()).unwrap();
    assert_eq!(content(&read), content(state));
    assert_eq!(read.config_count(), state.config_count());
}

#[test]
fn a_backup_and_the_history_after_it_give_the_state_at_every_later_revision() {
    for (seed, is_encrypted) in [(1, false), (2, false), (3, true), (4, false)] {
        let mut model = Model::new(seed, is_encrypted);
        model.grow(1200);
        let history = model.history();
        let last = model.now().revision();
        let (mut seen, mut lost, mut still_pending) = (BTreeMap::new(), 0, 0);
        for round in 0..60 {
            let backup = model.random.u64(0..=last);
            let at = model.random.u64(backup..=last);
            let state = model.at(backup).clone();
            let (restored, reached) = history.continued(state, Point::Revision(at)).unwrap();
            let expected = model.at(at);
            let what = format!("seed {seed}, round {round}: from {backup} to {at}");
            assert_eq!(content(&restored), content(expected), "{what}");
            assert_eq!((restored.revision(), reached.revision), (at, at), "{what}");
            assert_eq!(
                (restored.definition_count(), restored.config_count(), restored.deleted_config_count()),
                (expected.definition_count(), expected.config_count(), expected.deleted_config_count()),
                "{what}"
            );
            for content in restored.change_contents() {
                assert_eq!(expected.change_content_record(content.name.as_str()), Some(content), "{what}");
            }
            let pending = restored.pending_change_count();
            assert_eq!(restored.change_contents().count() as u64, pending, "{what}");
            lost += expected.pending_change_count() - pending;
            still_pending += pending;
            assert_eq!(restored.access_key_count(), model.at(backup).access_key_count(), "{what}");
            let added = model.changes.iter().filter(|(of, _)| (backup + 1..=at).contains(of)).count();
            assert_eq!(reached.changes, added as u64, "{what}");
            let next = model.changes.iter().find(|(of, _)| *of > at).copied();
            assert_eq!(reached.next.map(|next| (next.revision, next.at)), next, "{what}");
            if round % 10 == 0 {
                has_its_digest(&restored);
            }
            let kept = restored.deleted().count();
            *seen.entry((kept > 0, restored.request_count() > 0, backup < at)).or_insert(0) += 1;
        }
        assert!(seen.contains_key(&(true, true, true)), "{seen:?}");
        assert!(lost > 10 && still_pending > 10, "{lost} {still_pending}");
    }
}

#[test]
fn a_time_is_the_last_change_at_it_or_before_it() {
    let mut model = Model::new(7, false);
    model.grow(400);
    let history = model.history();
    let last = model.changes.last().expect("there are many").1;
    for _ in 0..60 {
        let backup = model.random.u64(5..model.now().revision() - 20);
        let state = model.at(backup).clone();
        let time = Timestamp(model.random.u64(state.last_at().0..last.0));
        let (restored, reached) = history.continued(state.clone(), Point::Time(time)).unwrap();
        let (revision, at) =
            model.last_until(time).filter(|(of, _)| *of > backup).unwrap_or((backup, state.last_at()));
        assert_eq!((reached.revision, reached.at), (revision, at), "from {backup} to {time}");
        assert_eq!(content(&restored), content(model.at(revision)), "from {backup} to {time}");
    }
    // Of a batch all or nothing, whatever the times of its steps are.
    let (revision, at) = model.changes[model.changes.len() / 2];
    let state = model.at(revision - 1).clone();
    let to = |time| history.continued(state.clone(), Point::Time(Timestamp(time))).unwrap().1.revision;
    assert_eq!((to(at.0 - 1), to(at.0)), (revision - 1, revision));
    // What was changed between the last change and the stop is not known.
    let after = history.continued(state.clone(), Point::Time(Timestamp(last.0))).unwrap_err();
    assert!(matches!(after, PointError::AfterHistory { .. }), "{after}");
}

fn refused(history: &StoppedHistory, state: &State, point: Point) -> String {
    history.continued(state.clone(), point).unwrap_err().to_string()
}

#[test]
fn a_point_that_the_history_does_not_lead_to_is_an_error() {
    let mut model = Model::new(11, false);
    model.grow(900);
    let history = model.history();
    let (last, state) = (model.now().revision(), model.at(200));
    let text = refused(&history, state, Point::Revision(199));
    assert!(text.contains("the backup is of revision 200") && text.contains("older backup"), "{text}");
    let before = Point::Time(Timestamp(state.last_at().0 - 1));
    assert!(refused(&history, state, before).contains("older backup"));
    let text = refused(&history, state, Point::Revision(last + 1));
    assert!(text.contains(&format!("ends at revision {last}")), "{text}");

    // Without the first segments, and with one that is missing.
    let directory = model.directory.path().join("history");
    let segments = format::segments(&directory).unwrap();
    assert!(segments.len() > 5, "{}", segments.len());
    let (missing, next) = (&segments[segments.len() - 3], &segments[segments.len() - 2]);
    let hide = |segment: &Segment| {
        let path = segment.path(&directory);
        let to = path.with_extension("hidden");
        fs::rename(&path, &to).unwrap();
        move || fs::rename(&to, &path).unwrap()
    };
    let back = hide(missing);
    let gap = model.history();
    let text = refused(&gap, state, Point::Revision(next.after));
    assert!(text.contains(&format!("after revision {} up to {}", missing.after, next.after)), "{text}");
    // Up to the gap nothing is missing.
    let (restored, reached) = gap.continued(state.clone(), Point::Revision(missing.after)).unwrap();
    assert_eq!((content(&restored), reached.next), (content(model.at(missing.after)), None));
    let text = refused(&gap, model.at(missing.after + 1), Point::Revision(next.after));
    assert!(text.contains("lacks the changes after revision") && text.contains("newer backup"), "{text}");
    back();
    for segment in &segments[..2] {
        fs::remove_file(segment.path(&directory)).unwrap();
    }
    let begin = segments[2].after;
    let cut = model.history();
    let text = refused(&cut, model.at(begin - 1), Point::Revision(last));
    assert!(text.contains(&format!("up to revision {begin}")), "{text}");
    assert!(cut.continued(model.at(begin).clone(), Point::Revision(last)).is_ok(), "it begins there");

    // A byte that has changed, in the part that is needed.
    let path = next.path(&directory);
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() / 3;
    bytes[place] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let text = refused(&model.history(), model.at(begin), Point::Revision(last));
    assert!(text.contains("damaged"), "{text}");
    // The end of a file is missing: it is named, and what comes before it can be restored.
    bytes[place] ^= 1;
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let cut = model.history();
    assert!(cut.damage()[0].contains(&path.display().to_string()), "{:?}", cut.damage());
    let text = refused(&cut, model.at(begin), Point::Revision(last));
    assert!(text.contains("lacks the changes after revision"), "{text}");
    assert!(cut.continued(model.at(begin).clone(), Point::Revision(next.after)).is_ok());
}

#[test]
fn the_history_of_another_cluster_is_rejected() {
    let mut model = Model::new(21, false);
    let mut other = Model::new(22, false);
    model.grow(500);
    other.grow(500);
    let last = other.now().revision();
    for backup in [30, 100, 250, 400] {
        let text = refused(&other.history(), model.at(backup), Point::Revision(last));
        assert!(text.contains("another cluster"), "{backup}: {text}");
    }
    // A backup that has one change more than the history: what a lost majority had decided.
    for backup in [100, 250] {
        let (revision, at) = *model.changes.iter().find(|(of, _)| *of > backup).unwrap();
        let mut state = model.at(revision - 1).clone();
        let command = write(&state, key("large"), key("another"), &json!({}));
        state.apply(revision, &Proposal::new(at, "root", Author::Root, command));
        let text = refused(&model.history(), &state, Point::Revision(model.now().revision()));
        assert!(text.contains("another cluster"), "{text}");
    }
    // The same of an environment, and of a change request: the data tells nothing of it.
    let put = Command::System(SystemCommand::PutEnvironment {
        name: EnvironmentName::parse("of-another").unwrap(),
        after: Environment::default(),
        text: "{}".into(),
        expect: Expect::Any,
    });
    let action = ChangeAction::Create(edition(1, 1).into());
    let create =
        Command::System(SystemCommand::Change { id: ChangeId::parse("ofanother001").unwrap(), action });
    for (command, what) in [(put, "environment `of-another`"), (create, "change request `ofanother001`")] {
        let (revision, at) = *model.changes.iter().find(|(of, _)| *of > 250).unwrap();
        let mut state = model.at(revision - 1).clone();
        state.apply(revision, &Proposal::new(at, "root", Author::Root, command));
        let text = refused(&model.history(), &state, Point::Revision(model.now().revision()));
        assert!(text.contains("another cluster") && text.contains(what), "{text}");
    }
}

#[test]
fn a_recovered_cluster_goes_on_and_what_it_has_skipped_is_no_point() {
    let mut model = Model::new(31, false);
    model.grow(50);
    let decided = model.now().revision();
    let to = decided + 1_000_000;
    let mut state = model.now().clone();
    let (_, change) = state.apply(
        decided + 1,
        &Proposal::new(Timestamp(0), "cluster", Author::Cluster, Command::SkipRevisions { to }),
    );
    model.writer.write(&change.expect("the history says what was skipped")).unwrap();
    model.writer.advance(state.revision()).unwrap();
    assert_eq!(state.revision(), to);
    let mut after = state.clone();
    let command = write(&after, key("large"), key("after"), &json!({"n": 1}));
    let (_, change) = after.apply(to + 1, &Proposal::new(Timestamp(0), "root", Author::Root, command));
    model.writer.write(&change.unwrap()).unwrap();
    model.writer.flush().unwrap();
    let history = model.history();
    let backup = model.at(decided - 20);
    for (at, expected) in [(decided, model.now()), (to, &state), (to + 1, &after)] {
        let (restored, reached) = history.continued(backup.clone(), Point::Revision(at)).unwrap();
        assert_eq!((content(&restored), reached.revision), (content(expected), at));
    }
    for at in [decided + 1, to - 1] {
        let text = refused(&history, backup, Point::Revision(at));
        assert!(text.contains("the point is of revision") && text.contains("skipped"), "{text}");
    }
    // A backup of what the lost members had decided.
    let mut lost = model.now().clone();
    let command = write(&lost, key("large"), key("lost"), &json!({"n": 1}));
    lost.apply(decided + 1, &Proposal::new(Timestamp(0), "root", Author::Root, command));
    let text = refused(&history, &lost, Point::Revision(to + 1));
    assert!(text.contains("the backup is of revision") || text.contains("another cluster"), "{text}");
    let mut silent = model.now().clone();
    silent.advance(decided + 1);
    let text = refused(&history, &silent, Point::Revision(to + 1));
    assert!(text.contains("the backup is of revision"), "{text}");
}

#[test]
fn nothing_is_written_where_a_history_is_read() {
    let mut model = Model::new(41, true);
    model.grow(100);
    let directory = model.directory.path().join("history");
    // As a crash leaves it: the end is torn, and a file was not complete yet.
    let newest = format::segments(&directory).unwrap().pop().unwrap().path(&directory);
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() - 5]).unwrap();
    fs::write(directory.join("segment-1.tmp"), b"x").unwrap();
    let all = || -> BTreeMap<_, _> {
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    let before = all();
    let history = model.history();
    let upto = history.upto();
    assert!(upto < model.now().revision() && upto > 50, "{upto}");
    let (restored, _) = history.continued(model.at(20).clone(), Point::Revision(upto)).unwrap();
    assert_eq!(content(&restored), content(model.at(upto)));
    assert_eq!(all(), before);
    let without_key = StoppedHistory::open(&directory, &AtRest::default()).unwrap_err();
    assert!(without_key.to_string().contains("no key"), "{without_key}");
    let empty = tempfile::tempdir().unwrap();
    let none = StoppedHistory::open(empty.path(), &AtRest::default()).unwrap_err();
    assert!(none.to_string().contains("has no history"), "{none}");
}
