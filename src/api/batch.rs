//! Batches: `POST /api/v1/batch`, several writes that are applied atomically.
//!
//! Each operation has the fields of the request that does the same alone, and its conditions as `if_match` and
//! `if_none_match`. The result of each operation follows from the request alone, because a batch is applied exactly as
//! requested or not at all; so a request that is sent again gets the same answer.
//!
//! **Invariant:** a condition that is malformed, or that its operation cannot satisfy, refuses the batch. It is never
//! ignored.

use axum::extract::State;
use serde_json::Value;

use super::{
    body::{Fields, not_an_object},
    condition::Condition,
    configs, definitions,
    extract::WriteRequest,
    json::Object,
    patch,
    reply::{Problem, Reply},
    shape::{TAKES_PARAMETER, takes_parameter},
};
use crate::{
    model::{
        command::Expect,
        document::Document,
        error::{Invalid, LocSegment, Violation},
        patch::{Patch, PatchFormat},
        redaction::may_keep,
    },
    service::{Refusal, Service, Write},
};

const OPERATIONS: &str = "operations";
pub(super) const CREATE_DEFINITION: &str = "create_definition";
pub(super) const SET_INDEXES: &str = "set_indexes";
pub(super) const DELETE_DEFINITION: &str = "delete_definition";
pub(super) const CREATE_CONFIG: &str = "create_config";
pub(super) const PUT_CONFIG: &str = "put_config";
pub(super) const PATCH_CONFIG: &str = "patch_config";
pub(super) const DELETE_CONFIG: &str = "delete_config";
/// The names of all operations.
pub(super) const NAMES: [&str; 7] = [
    CREATE_DEFINITION,
    SET_INDEXES,
    DELETE_DEFINITION,
    CREATE_CONFIG,
    PUT_CONFIG,
    PATCH_CONFIG,
    DELETE_CONFIG,
];

/// Applies all operations, or none.
pub(super) async fn run(State(service): State<Service>, request: WriteRequest) -> Result<Reply, Problem> {
    if request.condition != Condition::Unconditional {
        let msg = "the conditions of a batch are members of its operations";
        return Err(Problem::violation(Violation::at(vec!["header".into()], msg)));
    }
    let keeps = service.knows_secrets();
    let read = move |body| {
        let operations = parse(body, keeps)?;
        let results: Vec<String> = operations.iter().map(result).collect();
        Ok((operations, results))
    };
    let (operations, results) = request.read(&service, read).await?;
    let takes_parameter = operations.iter().any(|operation| match operation {
        Write::CreateDefinition { indexes, .. } | Write::SetIndexes { indexes, .. } => {
            takes_parameter(indexes)
        }
        _ => false,
    });
    let written = service.write(request.caller, Write::Batch(operations)).await?;
    // A dry run has no revision.
    let revision = Some(written.applied.revision).filter(|_| !written.dry_run);
    let data = Object::new().value("revision", &revision).raw("results", &format!("[{}]", results.join(",")));
    let reply = Reply::ok("batch applied", &data.finish()).for_write_without_record(&written);
    Ok(if takes_parameter { reply.warning(TAKES_PARAMETER) } else { reply })
}

/// The result of an operation, as JSON.
fn result(write: &Write) -> String {
    let begin = |name: &'static str, definition: &str| {
        Object::new().unescaped("op", name).value(definitions::KEY, &definition)
    };
    let (result, created) = match write {
        Write::CreateDefinition { key, .. } => (begin(CREATE_DEFINITION, key), true),
        Write::SetIndexes { key, .. } => (begin(SET_INDEXES, key), false),
        Write::DeleteDefinition { key, .. } => (begin(DELETE_DEFINITION, key), false),
        Write::WriteConfig { definition, key, expect: Expect::Absent, .. } => {
            (begin(CREATE_CONFIG, definition).value(configs::KEY, key), true)
        }
        Write::WriteConfig { definition, key, expect, .. } => {
            (begin(PUT_CONFIG, definition).value(configs::KEY, key), *expect == Expect::None)
        }
        // A replacement that keeps secret values.
        Write::PatchConfig { definition, key, patch: Patch { format: PatchFormat::Replace, .. }, .. } => {
            (begin(PUT_CONFIG, definition).value(configs::KEY, key), false)
        }
        Write::PatchConfig { definition, key, .. } => {
            (begin(PATCH_CONFIG, definition).value(configs::KEY, key), false)
        }
        Write::DeleteConfig { definition, key, .. } => {
            (begin(DELETE_CONFIG, definition).value(configs::KEY, key), false)
        }
        // A batch has no such operations.
        Write::Batch(_)
        | Write::Rollback(_)
        | Write::SetSchema(_)
        | Write::SetUnique(_)
        | Write::Access(_) => (Object::new(), false),
    };
    result.value("created", &created).finish()
}

/// Parses the operations of a body. `keeps` says whether markers that keep secret values have a meaning.
fn parse(body: Value, keeps: bool) -> Result<Vec<Write>, Problem> {
    let mut fields = Fields::from_json(body)?;
    let mut violations = Vec::new();
    let mut writes = Vec::new();
    for (index, (loc, item)) in (0..).zip(fields.list(OPERATIONS)) {
        let Value::Object(object) = item else {
            fields.errors.push(not_an_object(loc));
            continue;
        };
        let violations_loc = vec![OPERATIONS.into(), LocSegment::Index(index)];
        let errors = std::mem::take(&mut fields.errors);
        let mut operation =
            Operation { fields: Fields { object, loc, errors }, violations, violations_loc, keeps };
        writes.extend(operation.parse());
        (fields.errors, violations) = (operation.fields.errors, operation.violations);
    }
    let writes = fields.finish(writes)?;
    if violations.is_empty() {
        Ok(writes)
    } else {
        Err(Refusal::Invalid(Invalid::Violations(violations)).into())
    }
}

/// One operation while it is parsed. The errors of all operations are collected.
struct Operation {
    fields: Fields,
    violations: Vec<Violation>,
    /// The location of its violations.
    violations_loc: Vec<LocSegment>,
    keeps: bool,
}

impl Operation {
    /// The write; `None` when the operation is unknown.
    fn parse(&mut self) -> Option<Write> {
        let name = self.fields.string("op");
        if !NAMES.contains(&name.as_str()) {
            // Where `op` is missing or not a string, the error of shape is answered: shapes come before violations.
            self.violation("op", &format!("`op` must be one of {}", NAMES.join(", ")));
            return None;
        }
        let definition = self.fields.string(definitions::KEY);
        match name.as_str() {
            CREATE_DEFINITION => {
                self.for_create();
                let indexes =
                    if self.fields.has("indexes") { self.fields.strings("indexes") } else { Vec::new() };
                let is_null = self.fields.is_null("json_schema");
                let schema = if is_null { None } else { self.fields.optional_object("json_schema") };
                let format_assertion = self.fields.optional_boolean("format_assertion");
                let schema = schema.map(Document::new);
                Some(Write::CreateDefinition { key: definition, indexes, schema, format_assertion })
            }
            SET_INDEXES => {
                let indexes = self.fields.strings("indexes");
                Some(Write::SetIndexes { key: definition, indexes, expect: self.for_change() })
            }
            DELETE_DEFINITION => {
                let restrict = self.restrict();
                Some(Write::DeleteDefinition { key: definition, expect: self.for_change(), restrict })
            }
            _ => self.parse_config(&name, definition),
        }
    }

    fn parse_config(&mut self, name: &str, definition: String) -> Option<Write> {
        let key = self.fields.string(configs::KEY);
        Some(match name {
            CREATE_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                self.for_create();
                Write::WriteConfig { definition, key, data, expect: Expect::Absent }
            }
            PUT_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                let expect = self.for_put();
                if self.keeps && expect != Expect::None && may_keep(&data.text) {
                    let patch = Patch { format: PatchFormat::Replace, document: data };
                    Write::PatchConfig { definition, key, patch, expect }
                } else {
                    Write::WriteConfig { definition, key, data, expect }
                }
            }
            PATCH_CONFIG => {
                let patch = self.patch();
                Write::PatchConfig { definition, key, patch, expect: self.for_change() }
            }
            DELETE_CONFIG => Write::DeleteConfig { definition, key, expect: self.for_change() },
            // A name that `NAMES` has and no arm reads: refused, never taken for another operation.
            _ => {
                self.violation("op", "`op` can't be part of a batch");
                return None;
            }
        })
    }

    fn violation(&mut self, name: &str, msg: &str) {
        let loc = self.violations_loc.iter().cloned().chain([name.into()]).collect();
        self.violations.push(Violation::at(loc, msg));
    }

    /// The patch: a list is a JSON Patch, anything else is read as a JSON Merge Patch.
    fn patch(&mut self) -> Patch {
        let value = self.fields.take("patch").unwrap_or_default();
        let format = if value.is_array() { PatchFormat::Json } else { PatchFormat::Merge };
        let shape_loc = self.fields.loc_of("patch");
        let loc: Vec<LocSegment> = self.violations_loc.iter().cloned().chain(["patch".into()]).collect();
        if !self.fields.errors.iter().any(|detail| detail.loc == shape_loc) {
            let (details, violations) = patch::errors(format, &value, &shape_loc, &loc);
            self.fields.errors.extend(details);
            self.violations.extend(violations);
        }
        Patch { format, document: Document::new(value) }
    }

    fn restrict(&mut self) -> bool {
        if !self.fields.has("mode") {
            return false;
        }
        let restrict = self.fields.string("mode") == "restrict";
        if !restrict {
            self.violation("mode", "`mode` must be `restrict` or absent");
        }
        restrict
    }

    /// What `if_match` expects.
    fn if_match(&mut self) -> Option<Expect> {
        if !self.fields.has("if_match") {
            return None;
        }
        let text = self.fields.string("if_match");
        if text == "*" {
            return Some(Expect::Present);
        }
        let tag = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(&text);
        let is_number = !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_digit());
        if !is_number {
            self.violation("if_match", "expected a revision, with or without quotes, or `*`");
        }
        // No record has revision 0, so a number that cannot be a revision matches none.
        Some(Expect::At(tag.parse().unwrap_or(0)))
    }

    /// Whether `if_none_match` is given; its only value is `*`.
    fn if_none_match(&mut self) -> bool {
        if !self.fields.has("if_none_match") {
            return false;
        }
        if self.fields.string("if_none_match") != "*" {
            self.violation("if_none_match", "a write takes no other value than `*`");
        }
        true
    }

    /// For an operation that only creates.
    fn for_create(&mut self) {
        if self.if_match().is_some() {
            self.violation("if_match", "a create has no revision to match");
        }
        self.if_none_match();
    }

    /// For an operation that changes or deletes an existing record.
    fn for_change(&mut self) -> Expect {
        if self.if_none_match() {
            self.violation("if_none_match", "this operation creates nothing");
        }
        self.if_match().unwrap_or(Expect::Present)
    }

    /// For an operation that replaces an existing record, or creates one with `if_none_match`.
    fn for_put(&mut self) -> Expect {
        match (self.if_match(), self.if_none_match()) {
            (Some(_), true) => {
                self.violation("if_match", "cannot be combined with `if_none_match`");
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

    fn errors(operations: Value) -> (Vec<Vec<LocSegment>>, Vec<Vec<LocSegment>>) {
        match parse(json!({"operations": operations}), true) {
            Err(Problem::Shape(details)) => (details.into_iter().map(|detail| detail.loc).collect(), vec![]),
            Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => {
                (vec![], violations.into_iter().map(|violation| violation.loc).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn at(index: u64, name: &str) -> Vec<LocSegment> {
        vec!["operations".into(), LocSegment::Index(index), name.into()]
    }

    fn in_body(index: u64, name: &str) -> Vec<LocSegment> {
        [vec!["body".into()], at(index, name)].concat()
    }

    #[test]
    fn every_operation_is_parsed() {
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
        let writes = parse(json!({"operations": operations}), true).unwrap();
        let results: Vec<Value> =
            writes.iter().map(|write| serde_json::from_str(&result(write)).unwrap()).collect();
        for (index, name) in NAMES.iter().enumerate() {
            assert_eq!(results[index]["op"], *name);
            assert_eq!(results[index]["created"], json!([0, 3, 4].contains(&index)), "{name}");
        }
        assert!(matches!(writes[1], Write::SetIndexes { expect: Expect::At(7), .. }));
        assert!(matches!(writes[2], Write::DeleteDefinition { restrict: true, .. }));
        assert!(matches!(writes[4], Write::WriteConfig { expect: Expect::None, .. }));
        let Write::PatchConfig { patch, expect, .. } = &writes[5] else { panic!("{writes:?}") };
        assert_eq!((patch.format, *expect), (PatchFormat::Json, Expect::At(8)));
    }

    #[test]
    fn the_errors_of_shape_of_all_operations_are_listed() {
        let (details, _) = errors(json!([
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
    fn a_condition_that_cannot_be_satisfied_is_refused() {
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
            let (_, violations) = errors(json!([operation]));
            assert_eq!(violations, [at(0, name)], "{operation}");
        }
    }
}
