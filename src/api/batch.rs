//! Change sets: `POST /api/v1/batch`, several writes that are done as one, or not at all.
//!
//! The names of operations are a closed set; each has the fields of its single request, and its conditions as
//! `if_match` and `if_none_match`. What an answer says of an operation follows from the request alone, because a
//! batch that is done is done as it was asked; so a request that is sent again is answered the same.
//!
//! **Invariant:** a condition that can't be understood or kept refuses the batch; it is never taken for absent.

use axum::extract::State;
use serde_json::Value;

use super::{
    body::{Fields, not_an_object},
    condition::Condition,
    definitions,
    extract::Ask,
    json::Object,
    patch,
    reply::{Problem, Reply},
};
use crate::{
    model::{
        command::Expect,
        document::Document,
        error::{Invalid, LocSegment, Violation},
        patch::{Patch, PatchFormat},
    },
    service::{Refusal, Service, Write},
};

const KEY: &str = "config_key";
const OPERATIONS: &str = "operations";
pub(super) const CREATE_DEFINITION: &str = "create_definition";
pub(super) const SET_INDEXES: &str = "set_indexes";
pub(super) const DELETE_DEFINITION: &str = "delete_definition";
pub(super) const CREATE_CONFIG: &str = "create_config";
pub(super) const PUT_CONFIG: &str = "put_config";
pub(super) const PATCH_CONFIG: &str = "patch_config";
pub(super) const DELETE_CONFIG: &str = "delete_config";
/// What an operation may be.
pub(super) const NAMES: [&str; 7] = [
    CREATE_DEFINITION,
    SET_INDEXES,
    DELETE_DEFINITION,
    CREATE_CONFIG,
    PUT_CONFIG,
    PATCH_CONFIG,
    DELETE_CONFIG,
];

/// Does all operations or none.
pub(super) async fn run(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    if ask.condition != Condition::Open {
        let msg = "a batch has its conditions in its operations";
        return Err(Problem::violation(Violation::at(vec!["header".into()], msg)));
    }
    let operations = read(ask.json(&service)?)?;
    let results: Vec<String> = operations.iter().map(shown).collect();
    let written = service.write(ask.caller, Write::Batch(operations)).await?;
    // A dry run has no revision.
    let revision = Some(written.applied.revision).filter(|_| !written.dry_run);
    let data = Object::new().value("revision", &revision).raw("results", &format!("[{}]", results.join(",")));
    Ok(Reply::done("batch applied", &data.end()).of_end(&written))
}

/// What the answer says of an operation.
fn shown(write: &Write) -> String {
    let of = |name: &'static str, definition: &str| {
        Object::new().plain("op", name).value(definitions::KEY, &definition)
    };
    let (result, created) = match write {
        Write::CreateDefinition { key, .. } => (of(CREATE_DEFINITION, key), true),
        Write::SetIndexes { key, .. } => (of(SET_INDEXES, key), false),
        Write::DeleteDefinition { key, .. } => (of(DELETE_DEFINITION, key), false),
        Write::WriteConfig { definition, key, expect: Expect::Absent, .. } => {
            (of(CREATE_CONFIG, definition).value(KEY, key), true)
        }
        Write::WriteConfig { definition, key, expect, .. } => {
            (of(PUT_CONFIG, definition).value(KEY, key), *expect == Expect::None)
        }
        Write::PatchConfig { definition, key, .. } => (of(PATCH_CONFIG, definition).value(KEY, key), false),
        Write::DeleteConfig { definition, key, .. } => (of(DELETE_CONFIG, definition).value(KEY, key), false),
        // No operation of a batch is one of these.
        Write::Batch(_) | Write::Rollback(_) | Write::SetSchema(_) | Write::SetUnique(_) => {
            (Object::new(), false)
        }
    };
    result.value("created", &created).end()
}

/// Reads the operations of a body.
fn read(body: Value) -> Result<Vec<Write>, Problem> {
    let mut fields = Fields::of(body)?;
    let mut violations = Vec::new();
    let mut writes = Vec::new();
    for (place, (loc, item)) in (0..).zip(fields.list(OPERATIONS)) {
        let Value::Object(object) = item else {
            fields.wrong.push(not_an_object(loc));
            continue;
        };
        let within = vec![OPERATIONS.into(), LocSegment::Index(place)];
        let wrong = std::mem::take(&mut fields.wrong);
        let mut operation = Operation { fields: Fields { object, loc, wrong }, violations, within };
        writes.extend(operation.read());
        (fields.wrong, violations) = (operation.fields.wrong, operation.violations);
    }
    let writes = fields.end(writes)?;
    if violations.is_empty() {
        Ok(writes)
    } else {
        Err(Refusal::Invalid(Invalid::Violations(violations)).into())
    }
}

/// One operation that is being read. What is wrong is collected, of all operations.
struct Operation {
    fields: Fields,
    violations: Vec<Violation>,
    /// How its violations are named.
    within: Vec<LocSegment>,
}

impl Operation {
    /// The write; `None` when its kind is not known.
    fn read(&mut self) -> Option<Write> {
        let name = self.fields.text("op");
        if !NAMES.contains(&name.as_str()) {
            // One that is missing or no text is told as that: wrong shapes are told before violations.
            self.violation("op", &format!("`op` must be one of {}", NAMES.join(", ")));
            return None;
        }
        let definition = self.fields.text(definitions::KEY);
        match name.as_str() {
            CREATE_DEFINITION => {
                self.create();
                let indexes =
                    if self.fields.has("indexes") { self.fields.texts("indexes") } else { Vec::new() };
                let is_null = self.fields.is_null("json_schema");
                let schema = if is_null { None } else { self.fields.object_if_there("json_schema") };
                Some(Write::CreateDefinition { key: definition, indexes, schema: schema.map(Document::new) })
            }
            SET_INDEXES => {
                let indexes = self.fields.texts("indexes");
                Some(Write::SetIndexes { key: definition, indexes, expect: self.change() })
            }
            DELETE_DEFINITION => {
                let restrict = self.restrict();
                Some(Write::DeleteDefinition { key: definition, expect: self.change(), restrict })
            }
            _ => Some(self.read_config(&name, definition)),
        }
    }

    fn read_config(&mut self, name: &str, definition: String) -> Write {
        let key = self.fields.text(KEY);
        match name {
            CREATE_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                self.create();
                Write::WriteConfig { definition, key, data, expect: Expect::Absent }
            }
            PUT_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                Write::WriteConfig { definition, key, data, expect: self.put() }
            }
            PATCH_CONFIG => {
                let patch = self.patch();
                Write::PatchConfig { definition, key, patch, expect: self.change() }
            }
            _ => Write::DeleteConfig { definition, key, expect: self.change() },
        }
    }

    fn violation(&mut self, name: &str, msg: &str) {
        let loc = self.within.iter().cloned().chain([name.into()]).collect();
        self.violations.push(Violation::at(loc, msg));
    }

    /// The patch: an object is a merge patch, a list a JSON patch.
    fn patch(&mut self) -> Patch {
        let value = self.fields.take("patch").unwrap_or_default();
        let form = if value.is_array() { PatchFormat::Json } else { PatchFormat::Merge };
        let body = self.fields.place("patch");
        let within: Vec<LocSegment> = self.within.iter().cloned().chain(["patch".into()]).collect();
        if !self.fields.wrong.iter().any(|detail| detail.loc == body) {
            let (details, violations) = patch::violations(form, &value, &body, &within);
            self.fields.wrong.extend(details);
            self.violations.extend(violations);
        }
        Patch { format: form, document: Document::new(value) }
    }

    fn restrict(&mut self) -> bool {
        if !self.fields.has("mode") {
            return false;
        }
        let restrict = self.fields.text("mode") == "restrict";
        if !restrict {
            self.violation("mode", "`mode` must be `restrict` or absent");
        }
        restrict
    }

    /// What `if_match` expects.
    fn matching(&mut self) -> Option<Expect> {
        if !self.fields.has("if_match") {
            return None;
        }
        let text = self.fields.text("if_match");
        if text == "*" {
            return Some(Expect::Present);
        }
        let tag = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(&text);
        let is_number = !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_digit());
        if !is_number {
            self.violation("if_match", "expected a revision, with or without quotes, or `*`");
        }
        // No record has revision 0: a number that is none matches nothing.
        Some(Expect::At(tag.parse().unwrap_or(0)))
    }

    /// Whether `if_none_match` is there; it can be `*` only.
    fn absent(&mut self) -> bool {
        if !self.fields.has("if_none_match") {
            return false;
        }
        if self.fields.text("if_none_match") != "*" {
            self.violation("if_none_match", "a write takes no other value than `*`");
        }
        true
    }

    /// For an operation that only creates.
    fn create(&mut self) {
        if self.matching().is_some() {
            self.violation("if_match", "a create has no revision to match");
        }
        self.absent();
    }

    /// For an operation that only changes or ends what is there.
    fn change(&mut self) -> Expect {
        if self.absent() {
            self.violation("if_none_match", "this operation creates nothing");
        }
        self.matching().unwrap_or(Expect::Present)
    }

    /// For an operation that changes, or creates when that is asked.
    fn put(&mut self) -> Expect {
        match (self.matching(), self.absent()) {
            (Some(_), true) => {
                self.violation("if_match", "cannot stand beside `if_none_match`");
                Expect::None
            }
            (None, true) => Expect::None,
            (expect, false) => expect.unwrap_or(Expect::Present),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(operations: Value) -> (Vec<Vec<LocSegment>>, Vec<Vec<LocSegment>>) {
        match read(json!({"operations": operations})) {
            Err(Problem::Shape(details)) => (details.into_iter().map(|detail| detail.loc).collect(), vec![]),
            Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => {
                (vec![], violations.into_iter().map(|violation| violation.loc).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn at(place: u64, name: &str) -> Vec<LocSegment> {
        vec!["operations".into(), LocSegment::Index(place), name.into()]
    }

    fn in_body(place: u64, name: &str) -> Vec<LocSegment> {
        [vec!["body".into()], at(place, name)].concat()
    }

    #[test]
    fn every_operation_is_read() {
        let (d, k) = ("d", "k");
        let operations = json!([
            {"op": "create_definition", "config_definition_key": d, "json_schema": null, "if_none_match": "*"},
            {"op": "set_indexes", "config_definition_key": d, "indexes": ["a"], "if_match": "\"7\""},
            {"op": "delete_definition", "config_definition_key": d, "mode": "restrict"},
            {"op": "create_config", "config_definition_key": d, "config_key": k, "data": {}},
            {"op": "put_config", "config_definition_key": d, "config_key": k, "data": {}, "if_none_match": "*"},
            {"op": "patch_config", "config_definition_key": d, "config_key": k, "patch": [], "if_match": "8"},
            {"op": "delete_config", "config_definition_key": d, "config_key": k, "if_match": "*"},
        ]);
        let writes = read(json!({"operations": operations})).unwrap();
        let shown: Vec<Value> =
            writes.iter().map(|write| serde_json::from_str(&shown(write)).unwrap()).collect();
        for (place, name) in NAMES.iter().enumerate() {
            assert_eq!(shown[place]["op"], *name);
            assert_eq!(shown[place]["created"], json!([0, 3, 4].contains(&place)), "{name}");
        }
        assert!(matches!(writes[1], Write::SetIndexes { expect: Expect::At(7), .. }));
        assert!(matches!(writes[2], Write::DeleteDefinition { restrict: true, .. }));
        assert!(matches!(writes[4], Write::WriteConfig { expect: Expect::None, .. }));
        let Write::PatchConfig { patch, expect, .. } = &writes[5] else { panic!("{writes:?}") };
        assert_eq!((patch.format, *expect), (PatchFormat::Json, Expect::At(8)));
    }

    #[test]
    fn all_that_is_wrong_with_the_shape_is_told_of_all_operations() {
        let (details, _) = wrong(json!([
            {"op": "put_config", "config_definition_key": 1, "config_key": "k"},
            5,
            {"config_definition_key": "d"},
            {"op": "patch_config", "config_definition_key": "d", "config_key": "k", "patch": [{"op": "add", "path": ""}]},
            {"op": "patch_config", "config_definition_key": "d", "config_key": "k", "patch": 3},
        ]));
        assert_eq!(
            details,
            [
                in_body(0, "config_definition_key"),
                in_body(0, "data"),
                vec!["body".into(), "operations".into(), LocSegment::Index(1)],
                in_body(2, "op"),
                [in_body(3, "patch"), vec![LocSegment::Index(0), "value".into()]].concat(),
                in_body(4, "patch"),
            ]
        );
    }

    #[test]
    fn a_condition_that_can_not_be_kept_is_refused() {
        let config = |op: &str, name: &str, value: &str| json!({"op": op, "config_definition_key": "d", "config_key": "k", "data": {}, "patch": {}, name: value});
        for (operation, name) in [
            (json!({"op": "spell", "config_definition_key": "d"}), "op"),
            (config("create_config", "if_match", "1"), "if_match"),
            (config("put_config", "if_match", "x"), "if_match"),
            (config("put_config", "if_match", ""), "if_match"),
            (config("put_config", "if_none_match", "\"1\""), "if_none_match"),
            (config("patch_config", "if_none_match", "*"), "if_none_match"),
            (config("delete_config", "if_none_match", "*"), "if_none_match"),
            (json!({"op": "delete_definition", "config_definition_key": "d", "mode": "all"}), "mode"),
        ] {
            let (_, violations) = wrong(json!([operation]));
            assert_eq!(violations, [at(0, name)], "{operation}");
        }
    }
}
