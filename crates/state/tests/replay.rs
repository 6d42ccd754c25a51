//! The same proposals give the same verdicts and the same state, however they are cut into runs and however often the
//! state is rebuilt from its records in between. Equal replicas and restarts depend on it.

use std::{collections::BTreeMap, sync::Arc};

use concord_model::{
    access_key::{AccessKey, Author, Grant, Grants, KeyId, KeyUse, Pattern, Quota, Verb},
    audit::{AnchoredLog, AuditAnchors},
    command::{
        AccessCommand, AuditCommand, BatchStep, Command, ConfigThen, ContentThen, DecodeError, Expect,
        IdempotencyKey, KeyTerms, Proposal, SystemCommand, Undeletion, Verdict,
    },
    error::Rejection,
    index::{self, Indexing},
    key::Key,
    record::{Config, Definition, DeletedId, IndexEntries},
    schema::{Formats, StoredSchema},
    system::{
        SystemKey, SystemRecord,
        environment::{Direct, Environment, EnvironmentName, Freeze},
        person::PersonLabel,
    },
    time::Timestamp,
};
use concord_state::{Change, Edit, RememberedOutcome, State, builder::StateBuilder};
use fastrand::Rng;
use serde_json::{Value, json};

/// Two of an environment, one of another, one of `default`.
const DEFINITIONS: [&str; 4] = ["a.d0", "a.d1", "b.d2", "d3"];
const CONFIGS: u64 = 12;
const PATHS: [&str; 6] = ["n", "tags", "o.k", "o.*", "items[].n", "*.k"];

fn key(prefix: &str, count: u64, random: &mut Rng) -> Key {
    Key::parse(&format!("{prefix}{}", random.u64(0..count))).unwrap()
}

fn definition_key(random: &mut Rng) -> Key {
    Key::parse(DEFINITIONS[random.usize(0..DEFINITIONS.len())]).unwrap()
}

fn some_paths(random: &mut Rng) -> Vec<String> {
    PATHS.iter().filter(|_| random.bool()).map(|path| (*path).to_owned()).collect()
}

fn data(random: &mut Rng) -> Value {
    match random.u8(0..6) {
        0 => json!({}),
        5 => json!({"o": {"a": 1, "k": [1, "x"]}, "items": [{"n": random.u8(0..3)}, {"n": null}, {}]}),
        1 => json!({"n": null, "tags": []}),
        2 => json!({"n": random.i64(-3..3), "o": {"k": random.bool()}}),
        3 => json!({"n": 1.5, "tags": ["a", "b", "a", random.u8(0..3)]}),
        _ => json!({"n": "text", "o": {"k": {"deep": random.u8(..)}}}),
    }
}

fn expect(random: &mut Rng, revision: u64) -> Expect {
    match random.u8(0..6) {
        0 => Expect::Any,
        1 => Expect::Absent,
        2 => Expect::None,
        3 => Expect::At(revision),
        _ => Expect::Present,
    }
}

/// The index entries of data by the definition as the state has it, and the revision that was read.
fn entries(state: &State, definition: &Key, data: &Value) -> (IndexEntries, Option<u64>) {
    let Some(found) = state.definition(definition.as_str()) else { return (Box::default(), None) };
    let paths = index::stored_paths(&found.definition);
    (index::entries(&paths, data).unwrap(), Some(found.definition.revision))
}

fn write(state: &State, random: &mut Rng) -> (Command, Option<u64>) {
    let (definition, config) = (definition_key(random), key("k", CONFIGS, random));
    let data = data(random);
    let (entries, read) = entries(state, &definition, &data);
    let current = state.definition(definition.as_str()).and_then(|found| found.config(config.as_str()));
    let expect = expect(random, current.map_or(1, |config| config.revision));
    // Sometimes the definition has changed since it was read.
    let read = if random.u8(0..20) == 0 { read.map(|revision| revision.saturating_sub(1)) } else { read };
    (Command::WriteConfig { definition, key: config, data: data.to_string().into(), entries, expect }, read)
}

fn schema(text: &str, random: &mut Rng) -> StoredSchema {
    let formats = [Formats::Asserted, Formats::Annotated][random.usize(0..2)];
    StoredSchema { text: text.into(), formats }
}

/// Another schema or other unique paths, validated against the configs or not, sometimes too early.
fn redefine(state: &State, random: &mut Rng, key: Key) -> (Command, Option<u64>) {
    let found = state.definition(key.as_str()).map(|found| &found.definition);
    let read = found.map(|definition| definition.revision);
    let configs_read = random.bool().then(|| state.revision().saturating_sub(random.u64(0..3)));
    let expect = Expect::Present;
    let command = if random.bool() {
        let schema = random.bool().then(|| schema(r#"{"title":"other"}"#, random));
        Command::SetSchema { key, schema, expect, configs_read }
    } else {
        let indexes = found.map(|definition| definition.indexes.clone()).unwrap_or_default();
        let paths = indexes.into_iter().filter(|_| random.bool()).collect();
        Command::SetUnique { key, paths, expect, configs_read }
    };
    (command, read)
}

/// A command for the state, valid or not, and the revision that was read for it.
fn command(state: &State, random: &mut Rng) -> (Command, Option<u64>) {
    let definition = definition_key(random);
    let revision = state.definition(definition.as_str()).map_or(1, |found| found.definition.revision);
    match random.u8(0..30) {
        29 => (Command::System(system(state, random)), None),
        28 => (Command::Audit(audit(random)), None),
        27 => {
            let protected = random.u8(0..3) == 0;
            (Command::SetProtection { key: definition, protected, expect: Expect::Any }, None)
        }
        25..=26 => (undelete(state, random), None),
        23..=24 => (Command::Access(access(state, random)), None),
        22 => (Command::Forget { upto: random.u64(0..=state.revision() + 3) }, None),
        21 => (Command::RaiseFeatureLevel { to: random.u32(0..=3) }, None),
        20 => (Command::Compact { compaction_revision: random.u64(0..=state.revision() + 3) }, None),
        0..=2 => {
            let schema = random.bool().then(|| schema(r#"{"type":"object"}"#, random));
            (Command::CreateDefinition { key: definition, indexes: some_paths(random), schema }, None)
        }
        3 => {
            let expect = if random.bool() { Expect::At(revision) } else { Expect::Present };
            (Command::SetIndexes { key: definition, indexes: some_paths(random), expect }, Some(revision))
        }
        4 => {
            let expect = if random.bool() { Expect::At(revision) } else { Expect::Present };
            (
                Command::DeleteDefinition {
                    key: definition,
                    expect,
                    restrict: random.bool() && random.bool(),
                    keep: keep(random),
                },
                None,
            )
        }
        5 if random.bool() => redefine(state, random, definition),
        6 if random.bool() => (batch(state, random), None),
        5..=6 => {
            let config = key("k", CONFIGS, random);
            let current =
                state.definition(definition.as_str()).and_then(|found| found.config(config.as_str()));
            let at = Expect::At(current.map_or(1, |config| config.revision));
            let expect = if random.bool() { at } else { Expect::Present };
            (Command::DeleteConfig { definition, key: config, expect }, None)
        }
        _ => write(state, random),
    }
}

/// Whether a deleted definition is kept, in room that some of them fill.
fn keep(random: &mut Rng) -> Option<u64> {
    (random.u8(0..5) > 0).then(|| random.u64(0..40_000))
}

/// Undoes a deletion, mostly one that is kept.
fn undelete(state: &State, random: &mut Rng) -> Command {
    let count = state.deleted().count();
    let found = (count > 0).then(|| state.deleted().nth(random.usize(0..count)).unwrap());
    let (key, mut of) = match found {
        Some(kept) => (kept.definition.key.clone(), kept.deleted_id()),
        None => {
            let of = DeletedId { deleted: random.u64(0..1 << 10), id: random.u64(0..1 << 20) };
            (definition_key(random), of)
        }
    };
    of.deleted += u64::from(random.u8(0..10) == 0);
    let then = |number: u8| ContentThen {
        data: format!(r#"{{"n":{number}}}"#).into(),
        entries: Box::default(),
        created_at: Timestamp(u64::from(number)),
    };
    let one = |random: &mut Rng| {
        let then = random.bool().then(|| then(random.u8(..)));
        ConfigThen { key: self::key("k", CONFIGS, random), then }
    };
    let mut back: Vec<ConfigThen> = (0..random.u8(0..3)).map(|_| one(random)).collect();
    back.dedup_by(|one, other| one.key == other.key);
    Command::UndeleteDefinition(Undeletion { key, of, back })
}

/// A change of the access keys, on a key that may not exist, sometimes read too early. Most have one of three persons.
pub(super) fn access(state: &State, random: &mut Rng) -> AccessCommand {
    let id = KeyId::parse(&format!("{:012}", random.u8(0..6))).unwrap();
    let labels = [None, Some("ada"), Some("Bob"), Some("carl")];
    let person = labels[random.usize(0..4)].map(|label| PersonLabel::parse(label).unwrap());
    let current = state.access_key(&id).map(|key| key.revision);
    let expect = match random.u8(0..5) {
        0 => Expect::At(current.unwrap_or(1)),
        1 => Expect::Read(current.map(|revision| revision - u64::from(random.u8(0..4) == 0))),
        _ => Expect::Present,
    };
    let verbs = Verb::ALL.into_iter().filter(|_| random.bool()).collect();
    let grants = Grants(vec![Grant { verbs, definitions: vec![Pattern::parse("d*").unwrap()] }]);
    let expires_at = (random.u8(0..5) == 0).then(|| Timestamp(state.last_at().0 + random.u64(0..1000)));
    let terms = KeyTerms { name: "n".into(), grants, quota: Quota::default(), expires_at };
    match random.u8(0..10) {
        0..=2 => AccessCommand::Create { id, terms, sha256: [1; 32], person },
        3 => {
            let revision = current.unwrap_or(1) - u64::from(random.u8(0..8) == 0);
            AccessCommand::Attest { id, revision }
        }
        4 => AccessCommand::Change { id, terms, expect },
        5 => AccessCommand::Revoke { id, expect },
        6 => AccessCommand::Rotate { id, sha256: [2; 32], grace_us: random.u64(0..1000), expect },
        7 => AccessCommand::MarkUsed { ids: vec![id] },
        8 if random.u8(0..3) == 0 => AccessCommand::DisableRoot,
        _ => AccessCommand::EnableRoot,
    }
}

/// A change of the anchors of one of a few logs.
fn audit(random: &mut Rng) -> AuditCommand {
    let log = AnchoredLog { cluster: [random.u8(0..2); 16], node: random.u64(0..3) };
    if random.u8(0..4) == 0 {
        return AuditCommand::Accept { log };
    }
    AuditCommand::Anchor { log, seq: random.u64(0..100), sha256: [random.u8(..); 32] }
}

/// A change of the rules of an environment, with freezes of some proposals. Where changes are refused, they stay refused.
fn system(state: &State, random: &mut Rng) -> SystemCommand {
    let text = ["a", "b", "default"][random.usize(0..3)];
    let name = EnvironmentName::parse(text).unwrap();
    let current = state.environment(text).map(|record| record.revision);
    let expect = match random.u8(0..6) {
        0 => Expect::At(current.unwrap_or(1)),
        1 => Expect::Read(current.map(|revision| revision - u64::from(random.u8(0..4) == 0))),
        2 => Expect::None,
        _ => Expect::Any,
    };
    if random.u8(0..4) == 0 {
        return SystemCommand::DeleteEnvironment { name, expect };
    }
    let freeze = |random: &mut Rng| {
        // While the clock is behind, each change takes a microsecond.
        let from = state.last_at().0.saturating_sub(5) + random.u64(0..15);
        Freeze { from: Timestamp(from), until: Timestamp(from + random.u64(0..20)) }
    };
    let freezes = (0..random.u8(0..3)).map(|_| freeze(random)).collect();
    let direct = if text == "b" && random.u8(0..30) == 0 { Direct::Refuse } else { Direct::Allow };
    let after = Environment { direct, approvals: random.u8(0..2), freezes };
    SystemCommand::PutEnvironment {
        name,
        after,
        text: format!(r#"{{"n":{}}}"#, random.u8(..)).into(),
        expect,
    }
}

/// In whose name a proposal is made: mostly the root key's or the cluster's, as its command is, else that of a key as it
/// is or was.
fn author(state: &State, random: &mut Rng, command: &Command) -> Author {
    let count = usize::try_from(state.access_key_count()).unwrap();
    if count == 0 || random.u8(0..4) > 0 {
        let is_of_the_cluster = command.is_of_the_cluster() ^ (random.u8(0..40) == 0);
        return if is_of_the_cluster { Author::Cluster } else { Author::Root };
    }
    let key = state.access_keys().nth(random.usize(0..count)).unwrap();
    let secret = key.secrets[random.usize(0..key.secrets.len())].made;
    let revision = key.revision - u64::from(random.u8(0..4) == 0);
    Author::Key(KeyUse { id: key.id.clone(), revision, secret })
}

/// Several commands as one, each made on the state after those before it.
fn batch(state: &State, random: &mut Rng) -> Command {
    let mut scratch = state.clone();
    let mut steps = Vec::new();
    for place in 0..random.u32(1..8) {
        let (command, definition_read) = loop {
            let (command, read) = command(&scratch, random);
            let is_no_step = matches!(
                command,
                Command::UndeleteDefinition { .. } | Command::System(_) | Command::Forget { .. }
            );
            if !is_no_step && !matches!(command, Command::Batch(_) | Command::Access(_) | Command::Audit(_)) {
                break (command, read);
            }
        };
        // Most batches hold only commands that can be applied, as a leader's do.
        if scratch.try_step(place, &command).is_ok() || random.u8(0..10) == 0 {
            steps.push(BatchStep { definition_read, command });
        }
    }
    Command::Batch(steps)
}

/// Proposals as a leader would make them, each on the state after the ones before it.
fn proposals(seed: u64, count: u64) -> Vec<(u64, Option<Proposal>)> {
    let mut random = Rng::with_seed(seed);
    let mut state = State::new();
    let mut all = Vec::new();
    let (mut revision, mut at) = (0, 1_763_000_000_000_000);
    for _ in 0..count {
        revision += 1;
        // Entries without a command: blank and membership.
        if random.u8(0..15) == 0 {
            state.advance(revision);
            all.push((revision, None));
            continue;
        }
        // The clock stops, advances, goes back, jumps a day: each leader has its own.
        at = match random.u8(0..10) {
            0 => at,
            1 => at - 1_000_000,
            2 => at + 30 * 60 * 60 * 1_000_000 * u64::from(random.u8(0..10) == 0),
            _ => at + random.u64(1..1000),
        };
        let (command, definition_read) = command(&state, &mut random);
        let request = (random.u8(0..3) == 0)
            .then(|| IdempotencyKey { id: [random.u8(0..40); 16], fingerprint: [random.u8(0..2); 16] });
        let reason = random.bool().then(|| "because".to_owned());
        let author = author(&state, &mut random, &command);
        let by = if let Author::Key(key) = &author { key.id.to_string() } else { "root".into() };
        let proposal =
            Proposal { at: Timestamp(at), by, reason, request, definition_read, command, author, tail: None };
        state.apply(revision, &proposal);
        all.push((revision, Some(proposal)));
    }
    all
}

/// The same state, built from its records as at a start.
pub(crate) fn rebuilt(state: &State) -> State {
    let mut builder = StateBuilder::new();
    for collection in state.stored_definitions() {
        builder.definition(collection.definition.as_ref().clone()).unwrap();
        for config in collection.by_key.from(0) {
            builder.config(collection.definition.id, config.record.as_ref().clone()).unwrap();
        }
    }
    for request in state.requests() {
        builder.request(request.clone()).unwrap();
    }
    for key in state.access_keys() {
        builder.access_key((**key).clone()).unwrap();
    }
    for anchors in state.audit_anchors() {
        builder.audit_anchors((**anchors).clone()).unwrap();
    }
    for record in state.system_records() {
        builder.system_record((**record).clone()).unwrap();
    }
    finish(builder, state)
}

/// The state of these records, with what no record has from another state.
fn finish(mut builder: StateBuilder, state: &State) -> State {
    builder.root_disabled(state.is_root_disabled());
    builder.compaction_revision(state.compaction_revision());
    builder.void_revisions(state.void_revisions());
    builder.feature_level(state.feature_level());
    builder.finish(state.revision(), state.last_at()).unwrap()
}

type Trace = Vec<(Verdict, Option<Change>, u128)>;

/// Applies all, rebuilding the state after each run.
fn replay(all: &[(u64, Option<Proposal>)], run: usize) -> (State, Trace) {
    let mut state = State::new();
    let mut trace = Vec::new();
    for piece in all.chunks(run) {
        for (revision, proposal) in piece {
            let Some(proposal) = proposal else {
                state.advance(*revision);
                continue;
            };
            // As the log stores it.
            let proposal = match Proposal::from_bytes(&proposal.to_bytes()) {
                // An entry for a level that this program does not know: a newer one applies it.
                Err(DecodeError::Unknown(_)) => proposal.clone(),
                decoded => decoded.unwrap(),
            };
            let (verdict, change) = state.apply(*revision, &proposal);
            trace.push((verdict, change, state.digest()));
        }
        let again = rebuilt(&state);
        assert_eq!(again.digest(), state.digest(), "built from its records at {}", state.revision());
        assert_eq!(again.config_count(), state.config_count());
        assert_eq!(again.compaction_revision(), state.compaction_revision());
        assert_eq!(again.void_revisions(), state.void_revisions());
        state = again;
    }
    (state, trace)
}

#[test]
fn runs_of_any_length_give_the_same_verdicts_changes_and_digests() {
    for seed in 1..=4 {
        let all = proposals(seed, 1500);
        let (whole, expected) = replay(&all, all.len());
        let decided = expected.iter().filter(|(verdict, _, _)| matches!(verdict, Verdict::Decided(Ok(_))));
        assert!(decided.count() > 300, "the proposals do something");
        for run in [1, 7, 64] {
            let (state, trace) = replay(&all, run);
            for (place, (one, other)) in expected.iter().zip(&trace).enumerate() {
                assert_eq!(one, other, "seed {seed}, runs of {run}, proposal {place}");
            }
            assert_eq!(state.revision(), whole.revision());
            assert_eq!(state.last_at(), whole.last_at());
            assert_eq!(state.digest(), whole.digest());
        }
    }
}

/// A definition without what its indexes imply, with its configs, likewise.
pub(crate) fn content(state: &State, definition: &str) -> Option<(Definition, Vec<Config>)> {
    let found = state.definition(definition)?;
    let definition = Definition { indexing: Indexing::fresh(0), ..Definition::clone(&found.definition) };
    let configs = found.configs().map(|config| Config { entries: Box::default(), ..Config::clone(config) });
    Some((definition, configs.collect()))
}

#[test]
fn no_content_changes_against_the_rules_of_its_environment() {
    let (mut rejected, mut changed_beside_rules) = (0, 0);
    for seed in 11..=18 {
        let mut state = State::new();
        for (revision, proposal) in proposals(seed, 1500) {
            let Some(proposal) = proposal else {
                state.advance(revision);
                continue;
            };
            let before = state.clone();
            let (verdict, change) = state.apply(revision, &proposal);
            let first = proposal.at.after(before.last_at());
            let last = change.as_ref().map_or(first, |change| change.at);
            if let Verdict::Decided(Err(rejection)) = verdict {
                let rejection =
                    if let Rejection::InBatch { rejection, .. } = rejection { *rejection } else { rejection };
                let is_by_rules = matches!(
                    rejection,
                    Rejection::ChangeRequired { .. } | Rejection::EnvironmentFrozen { .. }
                );
                if is_by_rules {
                    rejected += 1;
                    assert_eq!((change, state.digest()), (None, before.digest()), "{proposal}");
                }
            }
            for definition in DEFINITIONS {
                if content(&before, definition) == content(&state, definition) {
                    continue;
                }
                let name = definition.split_once('.').map_or("default", |(name, _)| name);
                let record = before.environment(name).or_else(|| before.environment("default"));
                let Some(rules) = record.and_then(|record| record.environment()) else { continue };
                changed_beside_rules += 1;
                assert_eq!(
                    rules.direct,
                    Direct::Allow,
                    "seed {seed}, {revision}: {proposal} of `{definition}`"
                );
                for at in first.0..=last.0 {
                    let is_frozen =
                        rules.freezes.iter().any(|freeze| freeze.from.0 <= at && at < freeze.until.0);
                    assert!(!is_frozen, "seed {seed}, {revision}: {proposal} of `{definition}` at {at}");
                }
            }
        }
    }
    assert!(rejected > 300 && changed_beside_rules > 300, "{rejected} {changed_beside_rules}");
}

/// The records as whoever sees only the edits has them.
#[derive(Default)]
struct Edited {
    definitions: BTreeMap<u64, Arc<Definition>>,
    configs: BTreeMap<(u64, Key), Arc<Config>>,
    requests: BTreeMap<u64, RememberedOutcome>,
    access_keys: BTreeMap<KeyId, Arc<AccessKey>>,
    audit_anchors: BTreeMap<AnchoredLog, Arc<AuditAnchors>>,
    system: BTreeMap<SystemKey, Arc<SystemRecord>>,
}

fn set<K: Ord, T>(records: &mut BTreeMap<K, T>, key: K, after: Option<T>) {
    match after {
        Some(after) => drop(records.insert(key, after)),
        None => drop(records.remove(&key)),
    }
}

impl Edited {
    /// `state`: after the change; of a definition that was indexed again, only the state has the configs.
    fn add(&mut self, edit: &Edit, state: &State) {
        match edit {
            Edit::Definition { before, after } => {
                let id = after.as_ref().or(before.as_ref()).unwrap().id;
                set(&mut self.definitions, id, after.clone());
            }
            Edit::Building { after, .. } => drop(self.definitions.insert(after.id, Arc::clone(after))),
            Edit::Deleted { definition, kept: Some(kept), .. } => {
                self.definitions.insert(*definition, Arc::clone(kept));
            }
            Edit::Deleted { definition: id, kept: None, .. } => self.configs.retain(|(of, _), _| of != id),
            Edit::Dropped { kept } => {
                self.definitions.remove(&kept.id);
                self.configs.retain(|(of, _), _| *of != kept.id);
            }
            Edit::Reindexed { definition } => {
                let mut all = state.stored_definitions();
                let found = all.find(|found| found.definition.id == *definition);
                for config in found.iter().flat_map(|found| found.configs()) {
                    self.configs.insert((*definition, config.key.clone()), Arc::clone(config));
                }
            }
            Edit::Config { definition, before, after } => {
                let key = after.as_ref().or(before.as_ref()).unwrap().key.clone();
                set(&mut self.configs, (*definition, key), after.clone());
            }
            Edit::Entries { definition, after, .. } => {
                self.configs.insert((*definition, after.key.clone()), Arc::clone(after));
            }
            Edit::Remember(outcome) => drop(self.requests.insert(outcome.revision, outcome.clone())),
            Edit::Forget(outcome) => drop(self.requests.remove(&outcome.revision)),
            Edit::AccessKey { before, after } => {
                let id = after.as_ref().or(before.as_ref()).unwrap().id.clone();
                set(&mut self.access_keys, id, after.clone());
            }
            Edit::AuditAnchors { before, after } => {
                let log = after.as_ref().or(before.as_ref()).unwrap().log;
                set(&mut self.audit_anchors, log, after.clone());
            }
            Edit::System { before, after } => {
                let key = after.as_ref().or(before.as_ref()).unwrap().key();
                set(&mut self.system, key, after.clone());
            }
            // Its definition comes with an edit of its own, its configs were there all the time.
            Edit::Undeleted { .. } => {}
            // No record.
            Edit::Skipped(_) => {}
        }
    }

    fn build(&self, state: &State) -> State {
        let mut builder = StateBuilder::new();
        for definition in self.definitions.values() {
            builder.definition(Definition::clone(definition)).unwrap();
        }
        for ((definition, _), config) in &self.configs {
            builder.config(*definition, Config::clone(config)).unwrap();
        }
        self.requests.values().for_each(|outcome| builder.request(outcome.clone()).unwrap());
        self.access_keys.values().for_each(|key| builder.access_key(AccessKey::clone(key)).unwrap());
        let anchors = self.audit_anchors.values();
        anchors.for_each(|anchors| builder.audit_anchors(AuditAnchors::clone(anchors)).unwrap());
        let system = self.system.values();
        system.for_each(|record| builder.system_record(SystemRecord::clone(record)).unwrap());
        finish(builder, state)
    }
}

#[test]
fn a_state_that_is_built_from_edits_equals_the_state() {
    for seed in 21..=22 {
        let (mut state, mut edited, mut of_environments) = (State::new(), Edited::default(), 0);
        for (revision, proposal) in proposals(seed, 1500) {
            let Some(proposal) = proposal else {
                state.advance(revision);
                continue;
            };
            let (_, change) = state.apply(revision, &proposal);
            let edits = change.iter().flat_map(|change| &change.edits);
            for edit in edits {
                edited.add(edit, &state);
                of_environments += u64::from(matches!(edit, Edit::System { .. }));
            }
            let built = edited.build(&state);
            assert_eq!(built.digest(), state.digest(), "seed {seed}, {revision}: {proposal}");
        }
        assert!(of_environments > 10 && !edited.definitions.is_empty(), "seed {seed}: {of_environments}");
    }
}

/// More configs than are indexed at once, then writes, changes of the indexes and steps of the builds, as they come.
fn builds(seed: u64) -> Vec<(u64, Option<Proposal>)> {
    const NAMES: u64 = 1500;
    let mut random = Rng::with_seed(seed);
    let mut state = State::new();
    let mut all = Vec::new();
    let definition = Key::parse("d").unwrap();
    for revision in 1..=1400 {
        let name = if revision < 1200 { revision } else { random.u64(0..NAMES) };
        let config = Key::parse(&format!("k{name}")).unwrap();
        let step = state.building().next().and_then(|found| found.indexing.build.clone());
        let (command, definition_read) = match (revision, random.u8(0..10)) {
            (1, _) => {
                let (key, indexes) = (definition.clone(), some_paths(&mut random));
                (Command::CreateDefinition { key, indexes, schema: None }, None)
            }
            (1200.., 0) => {
                let (key, indexes) = (definition.clone(), some_paths(&mut random));
                (Command::SetIndexes { key, indexes, expect: Expect::Any }, None)
            }
            (1200.., 1) => {
                let definition = definition.clone();
                (Command::DeleteConfig { definition, key: config, expect: Expect::Any }, None)
            }
            (1200.., 2..=5) if step.is_some() => {
                let build = step.unwrap();
                // Sometimes one that was applied already.
                let cursor = if random.u8(0..5) == 0 { None } else { build.cursor };
                (Command::BuildIndex { key: definition.clone(), begun: build.begun, cursor }, None)
            }
            _ => {
                let data = data(&mut random);
                let (entries, read) = entries(&state, &definition, &data);
                let (definition, data) = (definition.clone(), data.to_string().into());
                (Command::WriteConfig { definition, key: config, data, entries, expect: Expect::Any }, read)
            }
        };
        let (by, at) = ("root".to_owned(), Timestamp(1_763_000_000_000_000 + revision));
        let proposal = Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read,
            command,
            author: Author::Root,
            tail: None,
        };
        state.apply(revision, &proposal);
        all.push((revision, Some(proposal)));
    }
    all
}

#[test]
fn index_builds_continue_after_a_restart_as_if_there_had_been_none() {
    for seed in 1..=3 {
        let all = builds(seed);
        let (whole, expected) = replay(&all, all.len());
        let is_step = |change: &Change| change.edits.iter().any(|edit| matches!(edit, Edit::Building { .. }));
        let steps = expected.iter().filter(|(_, change, _)| change.as_ref().is_some_and(is_step)).count();
        assert!(steps > 10, "{steps} steps were taken");
        // Rebuilds only while indexes are built: rebuilding 1200 records after every entry would take minutes.
        let (first, rest) = all.split_at(1200);
        for run in [5, 64] {
            let (mut state, _) = replay(first, first.len());
            for piece in rest.chunks(run) {
                for (revision, proposal) in piece {
                    let Some(proposal) = proposal else { continue };
                    let (verdict, change) = state.apply(*revision, proposal);
                    let place = usize::try_from(*revision).unwrap() - 1;
                    assert_eq!((verdict, change, state.digest()), expected[place], "seed {seed}, {place}");
                }
                state = rebuilt(&state);
            }
            assert_eq!(state.digest(), whole.digest());
        }
    }
}

#[test]
fn different_states_have_different_digests() {
    let all = proposals(9, 300);
    let (_, trace) = replay(&all, all.len());
    let changed: Vec<&(Verdict, Option<Change>, u128)> = trace
        .iter()
        .filter(|(_, change, _)| change.as_ref().is_some_and(|change| !change.edits.is_empty()))
        .collect();
    for pair in changed.windows(2) {
        assert_ne!(pair[0].2, pair[1].2, "{:?}", pair[1].1);
    }
}

#[test]
fn a_clone_of_a_state_is_an_immutable_snapshot() {
    let all = proposals(5, 800);
    let (first, second) = all.split_at(400);
    let (mut state, _) = replay(first, first.len());
    let snapshot = state.clone();
    let (digest, count) = (snapshot.digest(), snapshot.config_count());
    for (revision, proposal) in second {
        match proposal {
            Some(proposal) => drop(state.apply(*revision, proposal)),
            None => state.advance(*revision),
        }
    }
    assert_eq!((snapshot.digest(), snapshot.config_count()), (digest, count));
    assert_eq!(rebuilt(&snapshot).digest(), digest);
    assert_ne!(state.digest(), digest);
}
