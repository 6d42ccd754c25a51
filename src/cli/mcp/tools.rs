//! The tools: their names, what they say of themselves, and the schemas of their arguments.
//!
//! **Invariants:** a tool that changes something is in [`WRITING`] and nowhere else. A schema accepts no unknown
//! argument. What a call brings is checked against the schema before anything is done with it.

use concord_model::schema::{Formats, Schema};
use serde_json::{Map, Value, json};

use super::result::ToolError;
use crate::cli::mask::pointer;

/// Records of a page at most.
const PAGE_MAX: u64 = 100;
/// Records of a page unless the call says another number.
pub(super) const PAGE: u64 = 20;
/// Operations of a change request at most.
const OPERATIONS_MAX: u64 = 100;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    ListDefinitions,
    GetDefinition,
    ExplainSchema,
    ListConfigs,
    SearchConfigs,
    GetConfig,
    ConfigHistory,
    RecentChanges,
    ValidateWrite,
    GetChangeRequest,
    CreateConfig,
    ReplaceConfig,
    PatchConfig,
    DeleteConfig,
    ProposeChange,
}

/// The tools that change nothing.
pub(super) const READING: [Tool; 10] = [
    Tool::ListDefinitions,
    Tool::GetDefinition,
    Tool::ExplainSchema,
    Tool::ListConfigs,
    Tool::SearchConfigs,
    Tool::GetConfig,
    Tool::ConfigHistory,
    Tool::RecentChanges,
    Tool::ValidateWrite,
    Tool::GetChangeRequest,
];
/// The tools of `--allow-write`.
pub(super) const WRITING: [Tool; 5] =
    [Tool::CreateConfig, Tool::ReplaceConfig, Tool::PatchConfig, Tool::DeleteConfig, Tool::ProposeChange];

/// What a client is told of a tool beside its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    pub(super) is_read_only: bool,
    /// Whether it replaces or removes what is stored.
    pub(super) is_destructive: bool,
    /// Whether a second call with the same arguments changes nothing more.
    pub(super) is_idempotent: bool,
}

impl Tool {
    /// The name, the title, and the description.
    pub(super) fn texts(self) -> [&'static str; 3] {
        match self {
            Self::ListDefinitions => [
                "list_definitions",
                "List definitions",
                "Lists the definitions (types of configs) that the access key may read, by key. Each has `definition` (its key), `indexes` (the paths that list_configs can filter and sort by), and the `title` and `description` of its schema. A page has `total` and, unless it is the last, `next_cursor`: call again with the same arguments and `cursor`.",
            ],
            Self::GetDefinition => [
                "get_definition",
                "Get a definition",
                "Reads one definition: `indexes`, `unique` (indexed paths whose values no two configs share), `protected`, `revision` and its JSON Schema as `schema`. If the schema does not fit into a result (64 KiB) it is null, `omitted` has its bytes, and explain_schema reads parts of it.",
            ],
            Self::ExplainSchema => [
                "explain_schema",
                "Explain a path of a schema",
                "Says what the schema of a definition allows at a path: `type`, title, description and limits, and the `fields` below it, each with name, type, whether it is required, and description. Elements of lists are not part of a path: [\"items\", \"name\"] is the `name` of each element. Without `path` it explains the whole config. `schema` is the JSON Schema of the path, with `$ref` not resolved.",
            ],
            Self::ListConfigs => [
                "list_configs",
                "List configs of a definition",
                "Lists the configs of one definition, filtered by its indexed paths (get_definition has them). Each has `key`, `revision`, `data`, `created_at` and `modified_at`. `total` is the exact number of matches. `next_cursor` names the next page, which shows the same state for five minutes: call again with the same arguments and `cursor`. A result has at most 64 KiB: data that does not fit is null, with its bytes in `omitted`; select less with `fields`, or use get_config. `redacted` lists the places of secret values, which are null.",
            ],
            Self::SearchConfigs => [
                "search_configs",
                "Search configs by key",
                "Finds configs of all definitions, or of some, whose key contains a text, in any case. It does not search in data: filter with list_configs for that. Records, `total`, `next_cursor` and the limit of 64 KiB are as in list_configs, and each record has its `definition`.",
            ],
            Self::GetConfig => [
                "get_config",
                "Get a config",
                "Reads one config with its `revision`, which the tools that change it need. With `at_revision`, as it was at that revision of the cluster. If the data does not fit into a result (64 KiB) it is null, `omitted` has its bytes and `members` the names of its members: select some with `fields`. `redacted` lists the places of secret values, which are null.",
            ],
            Self::ConfigHistory => [
                "config_history",
                "History of a config",
                "Lists the changes of one config, newest first: `revision`, `at`, `operation`, `by` (an access key, with the name and person if they may be known), `reason` and the `data` after the change. `next_before`, unless null, goes on with older changes as `before`. Changes up to the revision `compacted_to` are no longer kept.",
            ],
            Self::RecentChanges => [
                "recent_changes",
                "Recent changes",
                "Lists the latest changes of all definitions and configs that the access key may read, newest first. Each revision has `at`, `by`, `reason` and its `changes`: `type`, `config_definition_key` and, of a config, `config_key`, with `data` after and `prev` before the change. A page may be empty although there are older changes: `next_before`, unless null, goes on with them as `before`.",
            ],
            Self::ValidateWrite => [
                "validate_write",
                "Validate a write",
                "Dry run: says whether a write of a config would be accepted, and stores nothing. `checked` is `all` if a node has checked everything (schema, unique values, the expected revision, rules of the environment), with the resulting `data`. It is `schema` if the access key may not write this config itself, or the environment takes change requests only: then only the data was checked against the definition, which cannot be done for a patch. If `valid` is false, `errors` has the `code`, the `message` and the `place` (a JSON pointer) of each of the first 50, and `count` their number.",
            ],
            Self::GetChangeRequest => [
                "get_change_request",
                "Get a change request",
                "Says how far a change request is: `phase` (open, scheduled, rolling, held, applied or closed), `approvals_counted` of `approvals_needed`, `rejections`, `stale` (why it must be rebased), and what it changes, without the data.",
            ],
            Self::CreateConfig => [
                "create_config",
                "Create a config",
                "Creates a config. It is an error (config_exists) if there is one with this key. Takes effect at once for all programs that read it.",
            ],
            Self::ReplaceConfig => [
                "replace_config",
                "Replace a config",
                "Replaces the whole data of a config that still has the expected revision; otherwise nothing is changed (precondition_failed). Members that are left out are removed. To keep a secret value that you see as null, send {\"$concord-keep\": true} in its place.",
            ],
            Self::PatchConfig => [
                "patch_config",
                "Patch a config",
                "Changes a part of a config that still has the expected revision; otherwise nothing is changed (precondition_failed). An object is a JSON Merge Patch (RFC 7396): members to set, null removes one. A list is a JSON Patch (RFC 6902).",
            ],
            Self::DeleteConfig => [
                "delete_config",
                "Delete a config",
                "Deletes a config that still has the expected revision; otherwise nothing is changed (precondition_failed).",
            ],
            Self::ProposeChange => [
                "propose_change",
                "Propose a change request",
                "Creates a change request of writes of configs, which are applied together once other people have approved them. Nothing is changed before. This is the way to change an environment that takes change requests only. The operations are validated at once, and each change of what exists needs the expected revision. The result has the `change_id`, and how many approvals are needed. Each call creates another change request.",
            ],
        }
    }

    /// The name.
    pub(super) fn name(self) -> &'static str {
        self.texts()[0]
    }

    pub(super) fn hints(self) -> Hints {
        Hints {
            is_read_only: READING.contains(&self),
            is_destructive: matches!(self, Self::ReplaceConfig | Self::PatchConfig | Self::DeleteConfig),
            // The expected revision, or the key that exists, rejects a second one.
            is_idempotent: self != Self::ProposeChange,
        }
    }

    /// The tool as a client lists it.
    pub(super) fn shown(self) -> Value {
        let ([name, title, description], hints) = (self.texts(), self.hints());
        json!({
            "name": name, "title": title, "description": description, "inputSchema": self.schema(),
            "annotations": {
                "title": title, "readOnlyHint": hints.is_read_only, "destructiveHint": hints.is_destructive,
                "idempotentHint": hints.is_idempotent, "openWorldHint": false,
            },
        })
    }

    /// The schema of the arguments.
    #[expect(clippy::too_many_lines, reason = "the schemas of all tools below each other")]
    pub(super) fn schema(self) -> Value {
        let definition = ("definition", text("The key of the definition"));
        let key = ("key", text("The key of the config"));
        let limit = ("limit", number("Records of a page", PAGE_MAX));
        let cursor = ("cursor", text("`next_cursor` of the page before"));
        let before =
            ("before", revision("Only changes before this revision: `next_before` of the page before"));
        let fields = (
            "fields",
            texts("Only these members of the data, as paths with dots, such as `quota.requests`", 100),
        );
        let data = ("data", json!({ "type": "object", "description": "The whole data of the config" }));
        let patch = (
            "patch",
            json!({
                "anyOf": [{ "type": "object" }, { "type": "array", "items": { "type": "object" } }],
                "description": "A JSON Merge Patch (an object) or a JSON Patch (a list of operations)",
            }),
        );
        let expected = (
            "revision",
            revision("The revision that you have read: the write is rejected if the config has another one"),
        );
        let reason = (
            "reason",
            json!({ "type": "string", "minLength": 1, "maxLength": 1000, "description": "Why, for the people who read the history: one or two sentences" }),
        );
        match self {
            Self::ListDefinitions => object(
                &[
                    ("search", text("Only definitions whose key contains this text")),
                    ("prefix", text("Only definitions whose key begins with this text, such as `prod.`")),
                    limit,
                    cursor,
                ],
                &[],
            ),
            Self::GetDefinition => object(&[definition], &["definition"]),
            Self::ExplainSchema => object(
                &[
                    definition,
                    (
                        "path",
                        texts("The names of the members that lead to the place, from the outside in", 100),
                    ),
                ],
                &["definition"],
            ),
            Self::ListConfigs => object(
                &[
                    definition,
                    (
                        "filters",
                        texts(
                            "All must hold. PATH=VALUE, or PATH[OPERATOR]=VALUE with gte, gt, lte, lt, ne, in, prefix or exists. PATH is an indexed path, `config_key`, `created_at` or `modified_at`. Several equalities for one path: any of the values",
                            64,
                        ),
                    ),
                    ("search", text("Only configs whose key contains this text")),
                    (
                        "sort_by",
                        text("`config_key` (default), `created_at`, `modified_at` or an indexed path"),
                    ),
                    ("descending", json!({ "type": "boolean", "description": "Sort in descending order" })),
                    fields,
                    (
                        "at_revision",
                        revision("List the configs as they were at this revision of the cluster"),
                    ),
                    limit,
                    cursor,
                ],
                &["definition"],
            ),
            Self::SearchConfigs => object(
                &[
                    ("text", text("What the key contains")),
                    (
                        "definitions",
                        texts("Only configs of these definitions; `PREFIX*` is all with this key prefix", 64),
                    ),
                    fields,
                    limit,
                    cursor,
                ],
                &["text"],
            ),
            Self::GetConfig => object(
                &[
                    definition,
                    key,
                    fields,
                    ("at_revision", revision("Read it as it was at this revision of the cluster")),
                ],
                &["definition", "key"],
            ),
            Self::ConfigHistory => object(&[definition, key, limit, before], &["definition", "key"]),
            Self::RecentChanges => object(
                &[
                    (
                        "definition",
                        text(
                            "Only changes of this definition and its configs; `PREFIX*` is all with this key prefix",
                        ),
                    ),
                    ("key", text("With `definition`: only changes of the config with this key")),
                    ("since", text("Only changes from this time on: RFC 3339, such as 2026-12-24T18:00:00Z")),
                    (
                        "by",
                        text("Only changes by this author: the name or id of an access key, or its person"),
                    ),
                    limit,
                    before,
                ],
                &[],
            ),
            Self::ValidateWrite => object(
                &[
                    ("op", operation_name()),
                    definition,
                    key,
                    data,
                    patch,
                    ("revision", revision("With replace, patch and delete: the expected revision")),
                ],
                &["op", "definition", "key"],
            ),
            Self::GetChangeRequest => {
                object(&[("change_id", text("The id of the change request"))], &["change_id"])
            }
            Self::CreateConfig => {
                object(&[definition, key, data, reason], &["definition", "key", "data", "reason"])
            }
            Self::ReplaceConfig => object(
                &[definition, key, data, expected, reason],
                &["definition", "key", "data", "revision", "reason"],
            ),
            Self::PatchConfig => object(
                &[definition, key, patch, expected, reason],
                &["definition", "key", "patch", "revision", "reason"],
            ),
            Self::DeleteConfig => {
                object(&[definition, key, expected, reason], &["definition", "key", "revision", "reason"])
            }
            Self::ProposeChange => {
                let operation = object(
                    &[
                        ("op", operation_name()),
                        definition,
                        key,
                        data,
                        patch,
                        (
                            "revision",
                            revision("With replace, patch and delete: the revision that you have read"),
                        ),
                    ],
                    &["op", "definition", "key"],
                );
                object(
                    &[
                        (
                            "title",
                            json!({ "type": "string", "minLength": 1, "maxLength": 200, "description": "What it is, in a line" }),
                        ),
                        reason,
                        (
                            "operations",
                            json!({
                                "type": "array", "items": operation, "minItems": 1, "maxItems": OPERATIONS_MAX,
                                "description": "`create` and `replace` have `data`, `patch` has `patch`; all except `create` have `revision`",
                            }),
                        ),
                    ],
                    &["title", "reason", "operations"],
                )
            }
        }
    }

    /// The arguments of a call.
    ///
    /// # Errors
    /// When they do not fit the schema.
    pub(super) fn arguments(self, given: Map<String, Value>) -> Result<Arguments, ToolError> {
        let given = Value::Object(given);
        let schema = Schema::compile(&self.schema(), Formats::default());
        let schema = schema.map_err(|_| ToolError::new("internal", "the schema of the tool is invalid"))?;
        if let Err(violations) = schema.check(&given) {
            let texts: Vec<String> = violations
                .iter()
                .take(10)
                .map(|violation| match pointer(&violation.loc) {
                    place if place.is_empty() => violation.msg.clone(),
                    place => format!("{place}: {}", violation.msg),
                })
                .collect();
            return Err(ToolError::arguments(texts.join("; ")));
        }
        Ok(Arguments(given))
    }
}

fn object(members: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 2000, "description": description })
}

fn texts(description: &str, most: u64) -> Value {
    let items = json!({ "type": "string", "minLength": 1, "maxLength": 2000 });
    json!({ "type": "array", "items": items, "maxItems": most, "description": description })
}

fn number(description: &str, most: u64) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": most, "default": PAGE, "description": description })
}

fn revision(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 1, "description": description })
}

fn operation_name() -> Value {
    json!({ "type": "string", "enum": ["create", "replace", "patch", "delete"], "description": "`create` and `replace` need `data`, `patch` needs `patch`" })
}

/// The arguments of a call, which fit the schema of its tool.
#[derive(Debug)]
pub(super) struct Arguments(Value);

impl Arguments {
    /// The arguments in a list of objects.
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        self.0[name].as_array().into_iter().flatten().cloned().map(Self).collect()
    }

    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// A text that the schema requires.
    pub(super) fn required(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        crate::cli::current::texts(&self.0[name])
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.0[name] == true
    }

    /// # Errors
    /// When the number is too large, or has another form than that of an integer, such as `7.0`.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ToolError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let wrong = || ToolError::arguments(format!("/{name}: expected an integer, as in 7"));
        value.as_u64().map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Tool> {
        READING.into_iter().chain(WRITING)
    }

    #[test]
    fn every_tool_is_described_and_has_a_strict_schema() {
        let mut names = std::collections::BTreeSet::new();
        for tool in all() {
            let [name, title, description] = tool.texts();
            assert!(names.insert(name) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            assert!(!title.is_empty() && description.len() > 60, "{name}");
            let schema = tool.schema();
            assert_eq!(schema["additionalProperties"], false, "{name}");
            for required in schema["required"].as_array().unwrap() {
                assert!(schema["properties"].get(required.as_str().unwrap()).is_some(), "{name} {required}");
            }
            for (member, schema) in schema["properties"].as_object().unwrap() {
                assert!(
                    schema["description"].as_str().is_some_and(|text| text.len() > 10),
                    "{name} {member}"
                );
            }
            let wrong = tool.arguments(Map::from_iter([("nonsense".to_owned(), json!(1))])).unwrap_err();
            assert!(wrong.into_text().contains("arguments_invalid"), "{name}");
        }
    }

    #[test]
    fn what_changes_something_says_so_and_needs_a_reason() {
        for tool in WRITING {
            let schema = tool.schema();
            let required = schema["required"].as_array().unwrap();
            assert!(!tool.hints().is_read_only && required.contains(&json!("reason")), "{tool:?}");
            let changes = matches!(tool, Tool::ReplaceConfig | Tool::PatchConfig | Tool::DeleteConfig);
            assert_eq!(required.contains(&json!("revision")), changes, "{tool:?}");
            assert_eq!(tool.hints().is_destructive, changes, "{tool:?}");
        }
        assert!(READING.iter().all(|tool| tool.hints().is_read_only && !tool.hints().is_destructive));
    }

    #[test]
    fn arguments_are_checked() {
        let arguments = |tool: Tool, text: &str| tool.arguments(serde_json::from_str(text).unwrap());
        let good =
            arguments(Tool::GetConfig, r#"{"definition": "d", "key": "k", "at_revision": 7}"#).unwrap();
        assert_eq!((good.required("definition"), good.number("at_revision").unwrap()), ("d", Some(7)));
        assert_eq!(good.number("absent").unwrap(), None);
        for (tool, text, place) in [
            (Tool::GetConfig, r#"{"definition": "d"}"#, "key"),
            (Tool::GetConfig, r#"{"definition": "d", "key": 7}"#, "/key"),
            (Tool::ListConfigs, r#"{"definition": "d", "limit": 101}"#, "/limit"),
            (Tool::DeleteConfig, r#"{"definition": "d", "key": "k", "reason": "x"}"#, "revision"),
            (
                Tool::DeleteConfig,
                r#"{"definition": "d", "key": "k", "revision": 1, "reason": ""}"#,
                "/reason",
            ),
            (Tool::ProposeChange, r#"{"title": "t", "reason": "r", "operations": []}"#, "/operations"),
            (
                Tool::ProposeChange,
                r#"{"title": "t", "reason": "r", "operations": [{"op": "drop", "definition": "d", "key": "k"}]}"#,
                "/operations/0/op",
            ),
        ] {
            let wrong = arguments(tool, text).unwrap_err().into_text();
            assert!(wrong.contains("arguments_invalid") && wrong.contains(place), "{text}: {wrong}");
        }
        // No expected revision is lost because of its form.
        let odd = arguments(
            Tool::DeleteConfig,
            r#"{"definition": "d", "key": "k", "revision": 7.0, "reason": "x"}"#,
        )
        .unwrap();
        assert!(odd.number("revision").is_err());
    }
}
