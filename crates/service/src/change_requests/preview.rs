//! What a change request would change: each record before and after, and the fields that differ.
//!
//! *Before* is the record as it is now. If it is not the one that the edition rests on, the revisions say so. Values are
//! redacted by the marks of the current schema and of the schemas that the edition sets. If a definition was changed
//! since the edition was sent, the marks of then are not known, and its data is redacted as a whole.
//!
//! **Invariants:** differences are found in what is shown. So nobody learns whether they have guessed a secret value. The
//! size of a preview is bounded: beyond it, *before* is left out. What is left out is named, because an approval is of
//! all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    editions::{
        FoundChange, StoredEdition,
        content::{Place, StoredOperation, StoredText},
        shown::Shown,
    },
    request::{Principal, ProposedOperations},
};
use concord_model::{
    access_key::Verb,
    command::source::{DefinitionThen as DefinitionBase, Guard},
    key::Key,
    record::{Definition, DeletedId, Revision},
    redaction::{RedactedPlaces, redacted},
    schema::StoredSchema,
    system::{
        change::{ChangeId, DataBefore},
        environment::{DEFAULT_ENVIRONMENT, Direct, Environment, EnvironmentName, environment_name},
    },
};
use concord_state::{Collection, State};

/// Bytes of data before the change that a preview shows.
const BEFORE_BYTES_MAX: usize = 8 << 20;
/// Bytes of memory for each byte of a text that a preview shows, about.
const BYTES_PER_SHOWN: u64 = 8;
/// Differences of one record that a preview names.
const FIELDS_MAX: usize = 200;
/// Configs that a preview shows of a definition that comes back.
const RETURNED_MAX: usize = 200;

/// What a change request would change.
#[derive(Debug, Clone, Default)]
pub struct ChangePreview {
    /// Each record that it changes.
    pub records: Vec<RecordPreview>,
    /// How many definitions and configs get other rules.
    pub effect: Option<EnvironmentEffect>,
}

/// How much has other rules after the change of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentEffect {
    /// Definitions.
    pub definitions: u64,
    /// Their configs.
    pub configs: u64,
}

/// A record before and after.
#[derive(Debug, Clone, Default)]
pub struct RecordPreview {
    /// Its definition.
    pub definition: Option<String>,
    /// Its config, if it is one.
    pub config: Option<String>,
    /// The environment that it is.
    pub environment: Option<String>,
    /// The revision that the edition rests on; `None` for its absence.
    pub base: Option<Revision>,
    /// The revision that it has.
    pub current: Option<Revision>,
    /// As it is; `None` when there is none, or when it is left out.
    pub before: Option<Value>,
    /// Whether `before` is left out because the preview would be too large.
    pub is_cut: bool,
    /// As it will be; `None` when it is deleted.
    pub after: Option<Value>,
    /// JSON pointers to what differs.
    pub fields: Vec<String>,
    /// Whether more differs than `fields` names.
    pub has_more_fields: bool,
    /// What is done to a definition, in this order.
    pub operations: Vec<DefinitionOperation>,
    /// The places of values that the client is not shown.
    pub redacted: Vec<String>,
    /// Configs that go with a definition that is deleted, whether or not it is created again.
    pub configs: Option<u64>,
    /// Configs that come back with a definition whose deletion is undone; the first of them are records of the preview.
    pub returned: Option<u64>,
}

/// What is done to a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionOperation {
    /// Its name, as in a batch.
    pub op: &'static str,
    /// Whether a schema is set even if configs violate it.
    pub force: Option<bool>,
    /// Whether the definition is deleted only if it has no configs.
    pub restrict: Option<bool>,
}

impl DefinitionOperation {
    fn of(operation: &StoredOperation) -> Self {
        let (mut force, mut restrict) = (None, None);
        if let StoredOperation::SetSchema { force: is_forced, .. } = operation {
            force = Some(*is_forced);
        }
        if let StoredOperation::DeleteDefinition { restrict: is_restricted, .. } = operation {
            restrict = Some(*is_restricted);
        }
        Self { op: operation.name(), force, restrict }
    }
}

impl Shown {
    fn value(&self, text: &Arc<str>, places: &mut RedactedPlaces) -> Value {
        let parsed = |text: &str| serde_json::from_str(text).unwrap_or_default();
        match self {
            Self::Open => parsed(text),
            Self::Hidden => {
                places.extend(RedactedPlaces::whole());
                Value::Null
            }
            Self::Marked(schemas) => {
                let mut text = Arc::clone(text);
                for secrets in schemas.iter().filter_map(|schema| schema.secrets()) {
                    if let Some((hidden, more)) = redacted(secrets, &text) {
                        places.extend(more);
                        text = hidden.into();
                    }
                }
                parsed(&text)
            }
        }
    }
}

/// What a preview of an edition may hold in memory while it is made and sent: the texts of what it shows, parsed and
/// written again. A number takes many times its digits.
pub(super) fn bytes_of(state: &State, id: &ChangeId) -> u64 {
    let Some((content, text)) = state.change_content(id) else {
        let before = state.change_before(id).into_iter().flat_map(|content| content.before.iter().flatten());
        return BYTES_PER_SHOWN * 2 * before.map(|before| before.data.len() as u64).sum::<u64>();
    };
    let before = content.bases.iter().map(|base| {
        let Guard::Config { definition, key, .. } = base else { return 0 };
        let found = state.definition_by_id(*definition).and_then(|found| found.config(key.as_str()));
        found.map_or(0, |config| config.data.len())
    });
    let before = before.fold(0, usize::saturating_add).min(BEFORE_BYTES_MAX);
    BYTES_PER_SHOWN * text.len().saturating_add(before) as u64
}

/// The preview of an edition while it is pending, or of what taking it back would change; `None` once neither is possible.
pub(super) fn of(state: &State, principal: &Principal, found: &FoundChange<'_>) -> Option<ChangePreview> {
    let Some((content, stored)) = found.content(state) else { return of_revert(state, principal, found) };
    Some(Preview { state, principal, bases: &content.bases, stored: &stored }.make())
}

/// The data of before is redacted as the history is: by the marks of the current schema.
fn of_revert(state: &State, principal: &Principal, found: &FoundChange<'_>) -> Option<ChangePreview> {
    let content = state.change_before(found.id())?;
    let back = |(base, before): (&Guard, &Option<DataBefore>)| {
        let Guard::Config { definition, key, .. } = base else { return None };
        let (definition, config) = (state.definition_by_id(*definition)?.definition.key.clone(), key.clone());
        Some(match before {
            Some(DataBefore { data }) => {
                StoredOperation::PutConfig { definition, config, data: Arc::clone(data) }
            }
            None => StoredOperation::DeleteConfig { definition, config },
        })
    };
    let operations = content.bases.iter().zip(&content.before).filter_map(back).collect();
    let stored = StoredEdition::of(state, operations, &ProposedOperations::Records(Vec::new()));
    Some(Preview { state, principal, bases: &content.bases, stored: &stored }.make())
}

/// The parts that a preview is made of.
struct Preview<'a> {
    state: &'a State,
    principal: &'a Principal,
    bases: &'a [Guard],
    stored: &'a StoredEdition,
}

impl Preview<'_> {
    fn make(&self) -> ChangePreview {
        let mut preview = ChangePreview::default();
        let mut configs: BTreeMap<(&Key, &Key), Option<&Arc<str>>> = BTreeMap::new();
        let mut definitions: BTreeSet<&Key> = BTreeSet::new();
        for operation in &self.stored.operations {
            match operation.place() {
                Place::Definition(key) => {
                    definitions.insert(key);
                    if let StoredOperation::DeleteDefinition { .. } = operation {
                        let written = configs.iter_mut().filter(|((definition, _), _)| *definition == key);
                        written.for_each(|(_, after)| *after = None);
                    }
                }
                Place::Config(definition, key) => {
                    let data = if let StoredOperation::PutConfig { data, .. } = operation {
                        Some(data)
                    } else {
                        None
                    };
                    configs.insert((definition, key), data);
                }
                Place::Environment(name) => {
                    preview.records.push(self.environment(name, operation));
                    preview.effect = Some(self.effect(name));
                }
            }
        }
        preview.records.extend(definitions.into_iter().map(|key| self.definition(key)));
        let mut shown: BTreeMap<&Key, Shown> = BTreeMap::new();
        let mut left = BEFORE_BYTES_MAX;
        for ((definition, key), after) in configs {
            let shown = shown
                .entry(definition)
                .or_insert_with(|| Shown::of(self.state, self.principal, self.stored, definition));
            preview.records.push(self.config((definition, key), after, shown, &mut left));
        }
        for operation in &self.stored.operations {
            if let StoredOperation::UndeleteDefinition { of, .. } = operation {
                preview.records.extend(self.returned(*of, &mut left));
            }
        }
        preview
    }

    /// The first configs of a definition that comes back.
    fn returned(&self, of: DeletedId, left: &mut usize) -> Vec<RecordPreview> {
        let Some(kept) = self.kept(of) else { return Vec::new() };
        let key = &kept.definition.key;
        let shown = if self.principal.authorize(Verb::Reveal, Some(key.as_str())).is_ok() {
            Shown::Open
        } else {
            Shown::by(kept.definition.schema.clone())
        };
        let mut records = Vec::new();
        for config in kept.configs().take(RETURNED_MAX) {
            let Some(rest) = left.checked_sub(config.data.len()) else { break };
            *left = rest;
            let mut places = RedactedPlaces::default();
            let after = Some(shown.value(&config.data, &mut places));
            records.push(RecordPreview {
                definition: Some(key.to_string()),
                config: Some(config.key.to_string()),
                fields: vec![String::new()],
                after,
                redacted: places.texts().map(str::to_owned).collect(),
                ..RecordPreview::default()
            });
        }
        records
    }

    /// The deleted definition that comes back, as long as it is kept.
    fn kept(&self, of: DeletedId) -> Option<&Collection> {
        self.state.deleted().find(|kept| kept.deleted_id() == of).map(Arc::as_ref)
    }

    fn config(
        &self,
        (definition, key): (&Key, &Key),
        after: Option<&Arc<str>>,
        shown: &Shown,
        left: &mut usize,
    ) -> RecordPreview {
        let found = self.state.definition(definition.as_str());
        let config = found.and_then(|found| found.config(key.as_str()));
        let base = self.bases.iter().find_map(|base| {
            let Guard::Config { definition: id, key: name, revision } = base else { return None };
            (name == key && self.is_of(definition, *id)).then_some(*revision)
        });
        let mut places = RedactedPlaces::default();
        let fits = config.is_none_or(|config| config.data.len() <= *left);
        *left = left.saturating_sub(config.filter(|_| fits).map_or(0, |config| config.data.len()));
        let before = config.filter(|_| fits).map(|config| shown.value(&config.data, &mut places));
        let after = after.map(|text| shown.value(text, &mut places));
        let (fields, has_more_fields) =
            if fits { differences(before.as_ref(), after.as_ref()) } else { Default::default() };
        RecordPreview {
            definition: Some(definition.to_string()),
            config: Some(key.to_string()),
            base: base.flatten(),
            current: config.map(|config| config.revision),
            fields,
            has_more_fields,
            before,
            is_cut: !fits,
            after,
            redacted: places.texts().map(str::to_owned).collect(),
            ..RecordPreview::default()
        }
    }

    /// Whether a base with this id of a definition is about the definition with this key.
    fn is_of(&self, key: &Key, id: u64) -> bool {
        let was = self.base_of(key).map(|was| was.id);
        let now = self.state.definition(key.as_str()).map(|found| found.definition.id);
        was.or(now) == Some(id)
    }

    /// The definition with this key on which the edition rests.
    fn base_of(&self, key: &Key) -> Option<DefinitionBase> {
        self.bases.iter().find_map(|base| {
            let Guard::Definition { key: other, was } = base else { return None };
            was.filter(|_| other == key)
        })
    }

    fn definition(&self, key: &Key) -> RecordPreview {
        let found = self.state.definition(key.as_str());
        let before = found.map(|found| DefinitionThen::of(&found.definition));
        let mut after = before.clone();
        let (mut is_deleted, mut returned) = (false, None);
        let mut operations = Vec::new();
        for operation in &self.stored.operations {
            if operation.place() != Place::Definition(key) {
                continue;
            }
            operations.push(DefinitionOperation::of(operation));
            let then = after.get_or_insert_with(DefinitionThen::default);
            match operation {
                StoredOperation::CreateDefinition { indexes, schema, .. } => {
                    let schema = schema.as_ref().map(StoredText::schema);
                    *then = DefinitionThen { indexes: indexes.clone(), schema, ..DefinitionThen::default() };
                }
                StoredOperation::SetIndexes { indexes, .. } => then.indexes.clone_from(indexes),
                StoredOperation::SetSchema { schema, .. } => {
                    then.schema = schema.as_ref().map(StoredText::schema);
                }
                StoredOperation::SetUnique { paths, .. } => then.unique.clone_from(paths),
                StoredOperation::SetProtection { protected, .. } => then.protected = *protected,
                StoredOperation::DeleteDefinition { .. } => {
                    (after, is_deleted) = (None, true);
                }
                StoredOperation::UndeleteDefinition { of, .. } => {
                    let kept = self.kept(*of);
                    after = kept.map(|kept| DefinitionThen::of(&kept.definition));
                    returned = kept.map(|kept| kept.by_key.len());
                }
                StoredOperation::PutConfig { .. }
                | StoredOperation::DeleteConfig { .. }
                | StoredOperation::PutEnvironment { .. }
                | StoredOperation::DeleteEnvironment { .. } => {}
            }
        }
        let (before, after) = (before.map(|one| one.json()), after.map(|one| one.json()));
        let (mut fields, has_more_fields) = differences(before.as_ref(), after.as_ref());
        if is_deleted && before.is_some() {
            // One that is created again is another one: its configs are gone, though its own members may be the same.
            fields = vec![String::new()];
        }
        RecordPreview {
            definition: Some(key.to_string()),
            operations,
            base: self.base_of(key).map(|was| was.revision),
            current: found.map(|found| found.definition.revision),
            fields,
            has_more_fields,
            before,
            after,
            returned,
            configs: found.filter(|_| is_deleted).map(|found| found.by_key.len()),
            ..RecordPreview::default()
        }
    }

    fn environment(&self, name: &EnvironmentName, operation: &StoredOperation) -> RecordPreview {
        let found = self.state.environment(name.as_str());
        let base = self.bases.iter().find_map(|base| {
            let Guard::Environment { revision, .. } = base else { return None };
            *revision
        });
        let before = found.and_then(|record| record.environment().map(|before| rules(before, &record.text)));
        let after = if let StoredOperation::PutEnvironment { after, text, .. } = operation {
            Some(rules(after, text))
        } else {
            None
        };
        let (fields, has_more_fields) = differences(before.as_ref(), after.as_ref());
        RecordPreview {
            environment: Some(name.to_string()),
            base,
            current: found.map(|record| record.revision),
            fields,
            has_more_fields,
            before,
            after,
            ..RecordPreview::default()
        }
    }

    /// How much has the rules of an environment, or would have them if it had a record.
    fn effect(&self, name: &EnvironmentName) -> EnvironmentEffect {
        let is_default = name.as_str() == DEFAULT_ENVIRONMENT;
        let is_of = |found: &&Arc<Collection>| {
            let key = found.definition.key.as_str();
            if is_default {
                let own = environment_name(key).and_then(|own| self.state.environment(own));
                return own.is_none_or(|own| own.name.as_str() == DEFAULT_ENVIRONMENT);
            }
            environment_name(key) == Some(name.as_str())
        };
        let mut effect = EnvironmentEffect { definitions: 0, configs: 0 };
        for found in self.state.definitions().filter(is_of) {
            effect.definitions += 1;
            effect.configs += found.by_key.len();
        }
        effect
    }
}

/// What of a definition operations change.
#[derive(Debug, Clone, Default)]
struct DefinitionThen {
    indexes: Vec<String>,
    schema: Option<StoredSchema>,
    unique: Vec<String>,
    protected: bool,
}

impl DefinitionThen {
    fn of(definition: &Definition) -> Self {
        Self {
            indexes: definition.indexes.clone(),
            schema: definition.schema.clone(),
            unique: definition.unique.clone(),
            protected: definition.protected,
        }
    }

    fn json(&self) -> Value {
        let text = |schema: &StoredSchema| serde_json::from_str::<Value>(&schema.text).ok();
        let schema = self.schema.as_ref().and_then(text);
        let asserts_formats = self.schema.as_ref().map(|schema| schema.formats.is_asserted());
        json!({
            "indexes": self.indexes, "json_schema": schema, "format_assertion": asserts_formats,
            "unique": self.unique, "protected": self.protected,
        })
    }
}

/// The rules of an environment, as a request has them.
fn rules(environment: &Environment, text: &str) -> Value {
    let freezes = crate::write::environment::freezes_of(environment, text).into_iter().map(|(freeze, text)| {
        json!({ "from": freeze.from.to_string(), "until": freeze.until.to_string(), "reason": text.reason })
    });
    let direct = if environment.direct == Direct::Refuse { "refuse" } else { "allow" };
    json!({ "direct": direct, "approvals": environment.approvals, "freeze": freezes.collect::<Vec<_>>() })
}

/// JSON pointers to what differs between two values; `""` when one of them is absent. And whether there are more.
fn differences(before: Option<&Value>, after: Option<&Value>) -> (Vec<String>, bool) {
    let mut fields = Vec::new();
    match (before, after) {
        (Some(before), Some(after)) => compare(before, after, &mut String::new(), &mut fields),
        (None, None) => {}
        (Some(_), None) | (None, Some(_)) => fields.push(String::new()),
    }
    let has_more = fields.len() > FIELDS_MAX;
    fields.truncate(FIELDS_MAX);
    (fields, has_more)
}

/// Adds the places of what differs, up to one more than are named.
fn compare(before: &Value, after: &Value, path: &mut String, fields: &mut Vec<String>) {
    if fields.len() > FIELDS_MAX || before == after {
        return;
    }
    let length = path.len();
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => {
            let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
            for name in names {
                path.push('/');
                path.push_str(&name.replace('~', "~0").replace('/', "~1"));
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => compare(one, other, path, fields),
                    _ if fields.len() <= FIELDS_MAX => fields.push(path.clone()),
                    _ => {}
                }
                path.truncate(length);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (place, (one, other)) in one.iter().zip(other).enumerate() {
                path.push_str(&format!("/{place}"));
                compare(one, other, path, fields);
                path.truncate(length);
            }
        }
        _ => fields.push(path.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        request::Write,
        testing::owner,
        write::testing::{apply, request},
    };
    use concord_model::{
        command::Expect,
        document::{self, Document},
    };

    #[test]
    fn what_differs_is_named_by_its_place() {
        let before = json!({"a": 1, "b": {"c/d": 2, "same": true}, "list": [1, 2], "gone": 0});
        let after = json!({"a": 2, "b": {"c/d": 3, "same": true}, "list": [1, 5], "new": 0});
        let (fields, has_more) = differences(Some(&before), Some(&after));
        assert!(!has_more);
        assert_eq!(fields, ["/a", "/b/c~1d", "/list/1", "/gone", "/new"]);
        let whole = (vec![String::new()], false);
        assert_eq!(differences(Some(&json!([1])), Some(&json!([1, 2]))), whole);
        assert_eq!(differences(None, Some(&before)), whole);
        assert_eq!(differences(Some(&before), Some(&before)), (Vec::new(), false));
    }

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    /// A definition `app` with two configs, as it is and deleted.
    fn states() -> [State; 2] {
        let mut state = State::new();
        let (definition, indexes) = ("app".to_owned(), Vec::new());
        let create =
            Write::CreateDefinition { key: definition, indexes, schema: None, format_assertion: None };
        apply(&mut state, &request(create));
        for key in ["a", "b"] {
            let data = Document::new(document::parse(br#"{"n":1}"#, 64).unwrap());
            let (definition, key) = ("app".to_owned(), key.to_owned());
            let write = Write::WriteConfig { definition, key, data, expect: Expect::Absent };
            apply(&mut state, &request(write));
        }
        let before = state.clone();
        let delete = Write::DeleteDefinition {
            key: "app".into(),
            expect: Expect::Present,
            restrict: false,
            purge: false,
        };
        apply(&mut state, &request(delete));
        [before, state]
    }

    fn records(state: &State, operations: Vec<StoredOperation>) -> Vec<RecordPreview> {
        let stored = StoredEdition { operations, patches: Vec::new(), ..StoredEdition::default() };
        let principal = owner(&[Verb::Read, Verb::Reveal]);
        Preview { state, principal: &principal, bases: &[], stored: &stored }.make().records
    }

    #[test]
    fn a_definition_that_is_deleted_and_created_again_says_what_goes_with_it() {
        let [state, _] = states();
        let definition = || key("app");
        let put =
            |name| StoredOperation::PutConfig { definition: key("app"), config: key(name), data: "2".into() };
        let operations = vec![
            put("a"),
            StoredOperation::DeleteDefinition { definition: definition(), restrict: false },
            StoredOperation::CreateDefinition { definition: definition(), indexes: Vec::new(), schema: None },
            StoredOperation::SetSchema { definition: definition(), schema: None, force: true },
            put("b"),
        ];
        let all = records(&state, operations);
        assert_eq!((all[0].configs, &all[0].fields[..]), (Some(2), &[String::new()][..]));
        let done = |place: usize| {
            let DefinitionOperation { op, force, restrict } = all[0].operations[place];
            (op, force, restrict)
        };
        assert_eq!(done(0), ("delete_definition", None, Some(false)));
        assert_eq!(done(2), ("set_schema", Some(true), None));
        assert_eq!(all[1].after, None, "it was written before the deletion");
        assert_eq!(all[2].after, Some(json!(2)));
    }

    #[test]
    fn a_definition_that_comes_back_is_shown_with_its_configs() {
        let [_, state] = states();
        let of = state.deleted().next().unwrap().deleted_id();
        let all = records(&state, vec![StoredOperation::UndeleteDefinition { definition: key("app"), of }]);
        assert_eq!(all[0].returned, Some(2));
        let configs: Vec<_> = all[1..].iter().map(|record| record.config.as_deref()).collect();
        assert_eq!(configs, [Some("a"), Some("b")]);
        assert_eq!(all[1].after, Some(json!({"n": 1})));
    }

    #[test]
    fn a_schema_that_asserts_formats_differs_from_one_that_does_not() {
        let [state, _] = states();
        let schema = |asserts_formats| {
            let schema = Some(StoredText { text: "{}".into(), asserts_formats });
            StoredOperation::SetSchema { definition: key("app"), schema, force: false }
        };
        let after = |asserts| records(&state, vec![schema(asserts)]).remove(0).after;
        assert_ne!(after(true), after(false));
    }

    #[test]
    fn what_is_not_named_is_said_to_be_missing() {
        let list = |one: usize, ones: usize| Value::from([vec![one; ones], vec![0; 7]].concat());
        let most = differences(Some(&list(0, FIELDS_MAX)), Some(&list(1, FIELDS_MAX)));
        assert_eq!((most.0.len(), most.1), (FIELDS_MAX, false));
        let more = differences(Some(&list(0, FIELDS_MAX + 1)), Some(&list(1, FIELDS_MAX + 1)));
        assert_eq!((more.0.len(), more.1), (FIELDS_MAX, true));
        let object = |data: usize| -> Value {
            (0..300)
                .map(|number| (number.to_string(), Value::from(data)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        assert!(differences(Some(&object(0)), Some(&object(1))).1);
        assert!(differences(Some(&json!({})), Some(&object(1))).1, "members that one of them lacks");
    }
}
