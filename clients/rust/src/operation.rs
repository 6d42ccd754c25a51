//! The operations of batches and transactions, and what the cluster did with them.
//!
//! An [`Operation`] serializes to the JSON that `POST /api/v1/batch` takes. [`Request::batch`] and
//! [`Request::transaction`] apply several atomically; [`Request::operation`] sends one to its own endpoint, whose
//! response is the record.
//!
//! **Invariant:** data, schemas and patches are sent as they are: numbers keep their digits, members their order.

use std::fmt;

use http::Method;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Value, json};

use crate::{
    Answer, Client, Error, Request,
    records::{config_path, definition_path},
};

/// The endpoint of batches and transactions.
pub(crate) const BATCH: &str = "/api/v1/batch";
const DEFINITIONS: &str = "/api/v1/config_definition/";

/// One operation of a batch or a transaction.
///
/// A batch is applied as a whole or not at all. Operations see the effects of those before them, except
/// [`CheckConfig`](Self::CheckConfig) and [`GetConfig`](Self::GetConfig), which see the state before the batch.
///
/// Every operation on something that does not exist fails with 404 (`definition_not_found`, `config_not_found`) unless it
/// creates it. An operation with `if_match` fails with 412 (`precondition_failed`) if the record has another revision.
/// Invalid keys, paths, schemas or data fail with 422. The `loc` of an error begins with the list and the place of its
/// operation, as in `["operations", 3, "data", …]`.
///
/// ```
/// use concord_client::{Operation, PutMode};
/// use serde_json::json;
///
/// let operation = Operation::PutConfig {
///     definition: "limits".into(),
///     key: "acme".into(),
///     data: json!({"requests": 200}),
///     mode: PutMode::ReplaceIf(17),
/// };
/// assert_eq!(
///     operation.to_string(),
///     r#"{"op":"put_config","config_definition_key":"limits","config_key":"acme","data":{"requests":200},"if_match":"17"}"#
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Operation {
    /// Creates a definition. 409 (`definition_exists`) if it exists.
    CreateDefinition {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The indexed paths.
        indexes: Vec<String>,
        /// The schema of its configs.
        #[serde(rename = "json_schema", skip_serializing_if = "Option::is_none")]
        schema: Option<Value>,
        /// Whether `format` is asserted; `None` asserts it.
        #[serde(skip_serializing_if = "Option::is_none")]
        format_assertion: Option<bool>,
    },
    /// Replaces the indexed paths of a definition. New indexes are built in the background.
    SetIndexes {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// All indexed paths from now on.
        indexes: Vec<String>,
        /// What the definition must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Replaces the schema of a definition. 422 (`config_breaks_schema`) if a config breaks the new one.
    SetSchema {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The schema from now on; `None` removes it.
        #[serde(rename = "json_schema")]
        schema: Option<Value>,
        /// Whether `format` is asserted; `None` leaves that as it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        format_assertion: Option<bool>,
        /// Stores the schema even if configs break it.
        #[serde(rename = "policy", skip_serializing_if = "is_false", serialize_with = "as_force")]
        force: bool,
        /// What the definition must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Replaces the unique paths of a definition. 409 (`unique_taken`) if two configs have the same value at one.
    SetUnique {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// All unique paths from now on. Each must be an indexed path.
        paths: Vec<String>,
        /// What the definition must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Protects a definition from deletion, or no longer.
    SetProtection {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// Whether its deletion is rejected.
        protected: bool,
        /// What the definition must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Deletes a definition with its configs; 409 (`definition_protected`) if it is protected.
    DeleteDefinition {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// Deletes it only if it has no configs; 409 (`definition_not_empty`) otherwise.
        #[serde(rename = "mode", skip_serializing_if = "is_false", serialize_with = "as_restrict")]
        restrict: bool,
        /// What the definition must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Creates a config. 409 (`config_exists`) if it exists.
    CreateConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
        /// The data, an object.
        data: Value,
    },
    /// Replaces or creates a config, as `mode` says.
    PutConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
        /// The data, an object.
        data: Value,
        /// Whether the config must exist.
        #[serde(flatten)]
        mode: PutMode,
    },
    /// Changes a part of a config. 409 (`patch_test_failed`) if a `test` of a JSON Patch does not hold.
    PatchConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
        /// A list is a JSON Patch (RFC 6902), anything else a JSON Merge Patch (RFC 7396).
        patch: Value,
        /// What the config must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Deletes a config.
    DeleteConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
        /// What the config must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Writes the data that a config had at a revision again; a deleted config is created. 404 (`not_there`) if it did
    /// not exist at that revision, 410 (`revision_compacted`) if the revision is no longer retained.
    RollbackConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
        /// The revision whose data are written.
        revision: u64,
        /// What the config must be.
        #[serde(skip_serializing_if = "Option::is_none")]
        if_match: Option<IfMatch>,
    },
    /// Checks a config, and fails the batch with 412 (`precondition_failed`) if the check does not hold.
    CheckConfig(Check),
    /// Reads a config. A config that does not exist is no error; without its definition it is 404.
    GetConfig {
        /// The key of the definition.
        #[serde(rename = "config_definition_key")]
        definition: String,
        /// The key of the config.
        #[serde(rename = "config_key")]
        key: String,
    },
}

/// What must be true of a record that an operation changes or deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMatch {
    /// The record exists, whatever its revision. Only [`Operation::RollbackConfig`] does not need that anyway.
    Exists,
    /// The last change of the record has this revision.
    Revision(u64),
}

impl From<u64> for IfMatch {
    fn from(revision: u64) -> Self {
        Self::Revision(revision)
    }
}

impl Serialize for IfMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exists => serializer.serialize_str("*"),
            Self::Revision(revision) => serializer.collect_str(revision),
        }
    }
}

/// Whether [`Operation::PutConfig`] replaces a config, creates it, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PutMode {
    /// Replaces the config. 404 if it does not exist.
    #[default]
    Replace,
    /// Replaces the config if its last change has this revision. 412 if it has another, 404 if it does not exist.
    ReplaceIf(u64),
    /// Creates the config. 412 if it exists.
    Create,
    /// Replaces the config, or creates it if it does not exist.
    Upsert,
}

impl Serialize for PutMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        match self {
            Self::Replace => {}
            Self::ReplaceIf(revision) => {
                members.serialize_entry("if_match", &IfMatch::Revision(*revision))?;
            }
            Self::Create => members.serialize_entry("if_none_match", "*")?,
            Self::Upsert => members.serialize_entry("upsert", &true)?,
        }
        members.end()
    }
}

/// A condition on one config: a member of `if`, or [`Operation::CheckConfig`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// The key of the definition.
    #[serde(rename = "config_definition_key")]
    pub definition: String,
    /// The key of the config.
    #[serde(rename = "config_key")]
    pub key: String,
    /// What must be true of the config.
    #[serde(flatten)]
    pub condition: CheckCondition,
}

/// What a [`Check`] demands.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckCondition {
    /// The config exists.
    Exists,
    /// The config does not exist. Without its definition it does not exist either.
    Absent,
    /// The config exists and its last change has this revision.
    Revision(u64),
    /// The config exists and has this value at a place.
    Equals {
        /// A JSON pointer; empty for the data as a whole.
        pointer: String,
        /// The value. Numbers are equal if they have the same numeric value.
        value: Value,
    },
    /// The config exists and has no such place.
    AbsentAt {
        /// A JSON pointer.
        pointer: String,
    },
}

impl Serialize for CheckCondition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        match self {
            Self::Exists => members.serialize_entry("absent", &false)?,
            Self::Absent => members.serialize_entry("absent", &true)?,
            Self::Revision(revision) => members.serialize_entry("revision", revision)?,
            Self::Equals { pointer, value } => {
                members.serialize_entry("pointer", pointer)?;
                members.serialize_entry("equals", value)?;
            }
            Self::AbsentAt { pointer } => {
                members.serialize_entry("pointer", pointer)?;
                members.serialize_entry("absent", &true)?;
            }
        }
        members.end()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn as_force<S: Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("force")
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn as_restrict<S: Serializer>(_: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("restrict")
}

/// The operation as JSON, as the API has it.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_text(self))
    }
}

impl Operation {
    /// The key of its definition.
    #[must_use]
    pub fn definition(&self) -> &str {
        match self {
            Self::CreateDefinition { definition, .. }
            | Self::SetIndexes { definition, .. }
            | Self::SetSchema { definition, .. }
            | Self::SetUnique { definition, .. }
            | Self::SetProtection { definition, .. }
            | Self::DeleteDefinition { definition, .. }
            | Self::CreateConfig { definition, .. }
            | Self::PutConfig { definition, .. }
            | Self::PatchConfig { definition, .. }
            | Self::DeleteConfig { definition, .. }
            | Self::RollbackConfig { definition, .. }
            | Self::CheckConfig(Check { definition, .. })
            | Self::GetConfig { definition, .. } => definition,
        }
    }

    /// The key of its config; `None` for an operation on a definition.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::SetProtection { .. }
            | Self::DeleteDefinition { .. } => None,
            Self::CreateConfig { key, .. }
            | Self::PutConfig { key, .. }
            | Self::PatchConfig { key, .. }
            | Self::DeleteConfig { key, .. }
            | Self::RollbackConfig { key, .. }
            | Self::CheckConfig(Check { key, .. })
            | Self::GetConfig { key, .. } => Some(key),
        }
    }
}

/// Operations of which the cluster applies one of two lists, as conditions decide.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Transaction {
    /// The conditions, at least one.
    #[serde(rename = "if")]
    pub conditions: Vec<Check>,
    /// Applied if all conditions hold.
    #[serde(rename = "then")]
    pub then: Vec<Operation>,
    /// Applied if a condition does not hold.
    #[serde(rename = "else")]
    pub otherwise: Vec<Operation>,
}

/// What a batch or a transaction did.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Applied {
    /// The revision of its changes; `None` for a dry run.
    pub revision: Option<u64>,
    /// Whether all conditions of a transaction held; true for a batch.
    #[serde(default = "held")]
    pub succeeded: bool,
    /// One result for each operation of the list that was applied, in its order.
    pub results: Vec<OperationResult>,
    /// What the node warns of; see [`Answer::warnings`](crate::Answer::warnings).
    #[serde(skip)]
    pub warnings: Vec<String>,
}

fn held() -> bool {
    true
}

/// What one operation did.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OperationResult {
    /// The name of the operation, as in `put_config`.
    pub op: String,
    /// The key of its definition.
    #[serde(rename = "config_definition_key")]
    pub definition: String,
    /// The key of its config; `None` for an operation on a definition.
    #[serde(rename = "config_key", default)]
    pub key: Option<String>,
    /// Whether it created its record; `None` where the cluster can no longer tell.
    #[serde(default)]
    pub created: Option<bool>,
    /// What [`Operation::GetConfig`] has read.
    #[serde(rename = "config", default)]
    pub read: ReadConfig,
    /// The secret fields that are null in [`read`](Self::read), because the access key does not have `reveal`: JSON
    /// pointers as fragments.
    #[serde(default)]
    pub redacted: Vec<String>,
}

/// What [`Operation::GetConfig`] has read.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ReadConfig {
    /// The record: `config_key`, `data`, `created_at`, `modified_at` and `revision`.
    Found(Value),
    /// There is no such config.
    Absent,
    /// It was not read, or is no longer known: the response is that of an earlier attempt, and the state that it read is
    /// no longer retained.
    #[default]
    Unknown,
}

impl<'de> Deserialize<'de> for ReadConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let record = Option::<Value>::deserialize(deserializer)?;
        Ok(record.map_or(Self::Absent, Self::Found))
    }
}

impl Request {
    /// Applies operations atomically. The response is read by [`Answer::applied`](crate::Answer::applied).
    pub fn batch<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Self {
        #[derive(Serialize)]
        struct Body<T: Serialize> {
            operations: T,
        }
        let operations: Vec<&Operation> = operations.into_iter().collect();
        Self::new(Method::POST, BATCH).body("application/json", to_text(&Body { operations }))
    }

    /// Applies one of two lists of operations. The response is read by [`Answer::applied`](crate::Answer::applied).
    pub fn transaction(transaction: &Transaction) -> Self {
        Self::new(Method::POST, BATCH).body("application/json", to_text(transaction))
    }

    /// One operation as a request of its own, whose response is the record. A check has no endpoint of its own and is
    /// sent as a batch.
    pub fn operation(operation: &Operation) -> Self {
        match operation {
            Operation::CreateDefinition { definition, indexes, schema, format_assertion } => {
                let mut body = json!({ "config_definition_key": definition, "indexes": indexes });
                if let Some(schema) = schema {
                    body["json_schema"] = schema.clone();
                }
                Self::new(Method::POST, DEFINITIONS).json(&asserted(body, *format_assertion))
            }
            Operation::SetIndexes { definition, indexes, if_match } => {
                let body = json!({ "indexes": indexes });
                Self::new(Method::PUT, definition_path(definition)).json(&body).matching(*if_match)
            }
            Operation::SetSchema { definition, schema, format_assertion, force, if_match } => {
                let body = asserted(json!({ "json_schema": schema }), *format_assertion);
                let path = format!("{}/schema", definition_path(definition));
                let request = Self::new(Method::PUT, path).json(&body).matching(*if_match);
                if *force { request.query("policy", "force") } else { request }
            }
            Operation::SetUnique { definition, paths, if_match } => {
                let path = format!("{}/unique", definition_path(definition));
                Self::new(Method::PUT, path).json(&json!({ "paths": paths })).matching(*if_match)
            }
            Operation::SetProtection { definition, protected, if_match } => {
                let path = format!("{}/protection", definition_path(definition));
                Self::new(Method::PUT, path).json(&json!({ "protected": protected })).matching(*if_match)
            }
            Operation::DeleteDefinition { definition, restrict, if_match } => {
                let request = Self::new(Method::DELETE, definition_path(definition)).matching(*if_match);
                if *restrict { request.query("mode", "restrict") } else { request }
            }
            Operation::CreateConfig { definition, key, data } => {
                let path = format!("{}/config/", definition_path(definition));
                Self::new(Method::POST, path).json(&json!({ "config_key": key, "data": data }))
            }
            Operation::PutConfig { definition, key, data, mode } => {
                let request = Self::new(Method::PUT, config_path(definition, key));
                let request = request.json(&json!({ "data": data }));
                match mode {
                    PutMode::Replace => request,
                    PutMode::ReplaceIf(revision) => request.if_match(*revision),
                    PutMode::Create => request.if_absent(),
                    PutMode::Upsert => request.query("upsert", "true"),
                }
            }
            Operation::PatchConfig { definition, key, patch, if_match } => {
                let content_type = if patch.is_array() {
                    "application/json-patch+json"
                } else {
                    "application/merge-patch+json"
                };
                let request = Self::new(Method::PATCH, config_path(definition, key));
                request.body(content_type, patch.to_string()).matching(*if_match)
            }
            Operation::DeleteConfig { definition, key, if_match } => {
                Self::new(Method::DELETE, config_path(definition, key)).matching(*if_match)
            }
            Operation::RollbackConfig { definition, key, revision, if_match } => {
                let path = format!("{}/rollback", config_path(definition, key));
                Self::new(Method::POST, path).json(&json!({ "revision": revision })).matching(*if_match)
            }
            Operation::CheckConfig(_) => Self::batch([operation]),
            Operation::GetConfig { definition, key } => Self::get(config_path(definition, key)),
        }
    }

    fn matching(self, condition: Option<IfMatch>) -> Self {
        match condition {
            None => self,
            Some(IfMatch::Exists) => self.header("if-match", "*"),
            Some(IfMatch::Revision(revision)) => self.if_match(revision),
        }
    }
}

impl Answer {
    /// What a batch or a transaction did.
    ///
    /// # Errors
    /// When the response is not that of a batch.
    pub fn applied(&self) -> Result<Applied, Error> {
        let applied: Applied = serde_json::from_value(self.data()?).map_err(|_| self.stranger())?;
        Ok(Applied { warnings: self.warnings(), ..applied })
    }
}

impl Client {
    /// Applies operations atomically. Use [`Request::batch`] for a dry run or an idempotency key of your own.
    ///
    /// # Errors
    /// As [`Client::send`]; then nothing was applied, unless the error is [`Error::Unknown`].
    pub async fn batch<'a>(
        &self,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Result<Applied, Error> {
        self.send(Request::batch(operations)).await?.applied()
    }

    /// Applies one of two lists of operations, as conditions decide. Use [`Request::transaction`] for a dry run or an
    /// idempotency key of your own.
    ///
    /// # Errors
    /// As [`Client::send`]; then nothing was applied, unless the error is [`Error::Unknown`]. A condition that does not
    /// hold is no error: see [`Applied::succeeded`].
    pub async fn transaction(&self, transaction: &Transaction) -> Result<Applied, Error> {
        self.send(Request::transaction(transaction)).await?.applied()
    }
}

fn asserted(mut body: Value, format_assertion: Option<bool>) -> Value {
    if let Some(asserted) = format_assertion {
        body["format_assertion"] = asserted.into();
    }
    body
}

fn to_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("operations are objects of JSON values, with texts as names")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    /// An operation, its members as JSON, and the request that does it alone.
    type Case = (Operation, &'static str, &'static str);

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn definition() -> String {
        "d".into()
    }

    fn key() -> String {
        "k".into()
    }

    fn of_definitions() -> Vec<Case> {
        vec![
            (
                Operation::CreateDefinition {
                    definition: definition(),
                    indexes: texts(&["a"]),
                    schema: Some(json!({"type": "object"})),
                    format_assertion: Some(true),
                },
                r#""config_definition_key":"d","indexes":["a"],"json_schema":{"type":"object"},"format_assertion":true"#,
                "POST /api/v1/config_definition/",
            ),
            (
                Operation::SetIndexes {
                    definition: definition(),
                    indexes: texts(&["a"]),
                    if_match: Some(7.into()),
                },
                r#""config_definition_key":"d","indexes":["a"],"if_match":"7""#,
                "PUT /api/v1/config_definition/d if-match \"7\"",
            ),
            (
                Operation::SetSchema {
                    definition: definition(),
                    schema: None,
                    format_assertion: None,
                    force: false,
                    if_match: None,
                },
                r#""config_definition_key":"d","json_schema":null"#,
                "PUT /api/v1/config_definition/d/schema",
            ),
            (
                Operation::SetSchema {
                    definition: definition(),
                    schema: Some(json!({})),
                    format_assertion: Some(false),
                    force: true,
                    if_match: Some(IfMatch::Exists),
                },
                r#""config_definition_key":"d","json_schema":{},"format_assertion":false,"policy":"force","if_match":"*""#,
                "PUT /api/v1/config_definition/d/schema?policy=force if-match *",
            ),
            (
                Operation::SetUnique { definition: definition(), paths: texts(&["a"]), if_match: None },
                r#""config_definition_key":"d","paths":["a"]"#,
                "PUT /api/v1/config_definition/d/unique",
            ),
            (
                Operation::SetProtection { definition: definition(), protected: true, if_match: None },
                r#""config_definition_key":"d","protected":true"#,
                "PUT /api/v1/config_definition/d/protection",
            ),
            (
                Operation::DeleteDefinition { definition: definition(), restrict: true, if_match: None },
                r#""config_definition_key":"d","mode":"restrict""#,
                "DELETE /api/v1/config_definition/d?mode=restrict",
            ),
        ]
    }

    fn of_configs() -> Vec<Case> {
        let put =
            |mode| Operation::PutConfig { definition: definition(), key: key(), data: json!({"a": 1}), mode };
        vec![
            (
                Operation::CreateConfig { definition: definition(), key: key(), data: json!({"a": 1}) },
                r#""config_definition_key":"d","config_key":"k","data":{"a":1}"#,
                "POST /api/v1/config_definition/d/config/",
            ),
            (
                put(PutMode::Replace),
                r#""config_definition_key":"d","config_key":"k","data":{"a":1}"#,
                "PUT /api/v1/config_definition/d/config/k",
            ),
            (
                put(PutMode::ReplaceIf(7)),
                r#""config_definition_key":"d","config_key":"k","data":{"a":1},"if_match":"7""#,
                "PUT /api/v1/config_definition/d/config/k if-match \"7\"",
            ),
            (
                put(PutMode::Create),
                r#""config_definition_key":"d","config_key":"k","data":{"a":1},"if_none_match":"*""#,
                "PUT /api/v1/config_definition/d/config/k if-none-match *",
            ),
            (
                put(PutMode::Upsert),
                r#""config_definition_key":"d","config_key":"k","data":{"a":1},"upsert":true"#,
                "PUT /api/v1/config_definition/d/config/k?upsert=true",
            ),
            (
                Operation::PatchConfig {
                    definition: definition(),
                    key: key(),
                    patch: json!([]),
                    if_match: Some(7.into()),
                },
                r#""config_definition_key":"d","config_key":"k","patch":[],"if_match":"7""#,
                "PATCH /api/v1/config_definition/d/config/k if-match \"7\"",
            ),
            (
                Operation::DeleteConfig { definition: definition(), key: key(), if_match: None },
                r#""config_definition_key":"d","config_key":"k""#,
                "DELETE /api/v1/config_definition/d/config/k",
            ),
            (
                Operation::RollbackConfig {
                    definition: definition(),
                    key: key(),
                    revision: 3,
                    if_match: None,
                },
                r#""config_definition_key":"d","config_key":"k","revision":3"#,
                "POST /api/v1/config_definition/d/config/k/rollback",
            ),
        ]
    }

    fn of_checks_and_reads() -> Vec<Case> {
        let check =
            |condition| Operation::CheckConfig(Check { definition: definition(), key: key(), condition });
        vec![
            (
                check(CheckCondition::Exists),
                r#""config_definition_key":"d","config_key":"k","absent":false"#,
                "POST /api/v1/batch",
            ),
            (
                check(CheckCondition::Absent),
                r#""config_definition_key":"d","config_key":"k","absent":true"#,
                "POST /api/v1/batch",
            ),
            (
                check(CheckCondition::Revision(7)),
                r#""config_definition_key":"d","config_key":"k","revision":7"#,
                "POST /api/v1/batch",
            ),
            (
                check(CheckCondition::Equals { pointer: "/a".into(), value: Value::Null }),
                r#""config_definition_key":"d","config_key":"k","pointer":"/a","equals":null"#,
                "POST /api/v1/batch",
            ),
            (
                check(CheckCondition::AbsentAt { pointer: "/a".into() }),
                r#""config_definition_key":"d","config_key":"k","pointer":"/a","absent":true"#,
                "POST /api/v1/batch",
            ),
            (
                Operation::GetConfig { definition: definition(), key: key() },
                r#""config_definition_key":"d","config_key":"k""#,
                "GET /api/v1/config_definition/d/config/k",
            ),
        ]
    }

    fn all() -> Vec<Case> {
        [of_definitions(), of_configs(), of_checks_and_reads()].concat()
    }

    #[test]
    fn operations_serialize_as_the_api_has_them() {
        for (operation, members, _) in all() {
            let text = operation.to_string();
            let (op, rest) = text.strip_prefix(r#"{"op":""#).unwrap().split_once(r#"","#).unwrap();
            assert_eq!(rest, format!("{members}}}"));
            let name = format!("{operation:?}");
            let name = name.split(['(', ' ']).next().unwrap();
            assert_eq!(op.replace('_', ""), name.to_lowercase());
            assert_eq!(operation.definition(), "d");
            assert_eq!(operation.key(), members.contains("config_key").then_some("k"));
        }
    }

    #[test]
    fn an_operation_is_a_request_of_its_own() {
        for (operation, _, expected) in all() {
            let request = Request::operation(&operation);
            let headers: Vec<String> =
                request.headers.iter().map(|(name, value)| format!(" {name} {value}")).collect();
            assert_eq!(format!("{} {}{}", request.method, request.target(), headers.concat()), expected);
        }
    }

    #[test]
    fn the_body_of_a_request_has_the_members_of_its_endpoint() {
        let body = |operation: &Operation| {
            let request = Request::operation(operation);
            let (content_type, body) = request.body.unwrap();
            (content_type, String::from_utf8(body.to_vec()).unwrap())
        };
        let bodies: Vec<_> = all()
            .iter()
            .take(8)
            .filter(|(_, _, path)| !path.starts_with("DELETE"))
            .map(|(operation, ..)| body(operation).1)
            .collect();
        assert_eq!(
            bodies,
            [
                r#"{"config_definition_key":"d","indexes":["a"],"json_schema":{"type":"object"},"format_assertion":true}"#,
                r#"{"indexes":["a"]}"#,
                r#"{"json_schema":null}"#,
                r#"{"json_schema":{},"format_assertion":false}"#,
                r#"{"paths":["a"]}"#,
                r#"{"protected":true}"#,
                r#"{"config_key":"k","data":{"a":1}}"#,
            ]
        );
        for (patch, expected) in
            [(json!([]), "application/json-patch+json"), (json!({"a": 1}), "application/merge-patch+json")]
        {
            let text = patch.to_string();
            let (definition, key) = ("d".to_owned(), "k".to_owned());
            let operation = Operation::PatchConfig { definition, key, patch, if_match: None };
            assert_eq!(body(&operation), (expected, text));
        }
    }

    #[test]
    fn numbers_keep_their_digits_and_members_their_order() {
        let text = r#"{"z":1.50,"a":123456789012345678901234567890,"m":[1e+400,-0.0]}"#;
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        let put = |data, mode| Operation::PutConfig { definition: "d".into(), key: "k".into(), data, mode };
        let pointer = String::new();
        for operation in [
            Operation::CreateConfig { definition: definition.clone(), key: key.clone(), data: value(text) },
            put(value(text), PutMode::ReplaceIf(7)),
            Operation::CheckConfig(Check {
                definition,
                key,
                condition: CheckCondition::Equals { pointer, value: value(text) },
            }),
        ] {
            assert!(operation.to_string().contains(text), "{operation}");
            let request = Request::batch([&operation]);
            let (_, body) = request.body.unwrap();
            assert_eq!(body, format!("{{\"operations\":[{operation}]}}"));
        }
        let alone = Request::operation(&put(value(text), PutMode::Upsert)).body.unwrap().1;
        assert_eq!(alone, format!("{{\"data\":{text}}}"));
    }

    #[test]
    fn a_transaction_names_its_lists() {
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        let check =
            Check { definition: definition.clone(), key: key.clone(), condition: CheckCondition::Absent };
        let then = vec![Operation::GetConfig { definition, key }];
        let transaction = Transaction { conditions: vec![check], then, otherwise: Vec::new() };
        let (_, body) = Request::transaction(&transaction).body.unwrap();
        assert_eq!(
            body,
            r#"{"if":[{"config_definition_key":"d","config_key":"k","absent":true}],"then":[{"op":"get_config","config_definition_key":"d","config_key":"k"}],"else":[]}"#
        );
    }

    #[test]
    fn the_results_say_what_was_done_and_read() {
        let text = r##"{"revision":7,"succeeded":false,"results":[
            {"op":"set_indexes","config_definition_key":"d","created":false},
            {"op":"put_config","config_definition_key":"d","config_key":"k","created":null},
            {"op":"get_config","config_definition_key":"d","config_key":"k","created":false,"config":null},
            {"op":"get_config","config_definition_key":"d","config_key":"k","created":false,
             "config":{"config_key":"k","data":{"a":1.50},"revision":3},"redacted":["#/b"]}]}"##;
        let applied: Applied = serde_json::from_value(value(text)).unwrap();
        assert_eq!((applied.revision, applied.succeeded), (Some(7), false));
        let [set, put, absent, found] = &applied.results[..] else { panic!("{applied:?}") };
        assert_eq!((&*set.op, set.key.as_deref(), set.created), ("set_indexes", None, Some(false)));
        assert_eq!((put.key.as_deref(), put.created, &put.read), (Some("k"), None, &ReadConfig::Unknown));
        assert_eq!(absent.read, ReadConfig::Absent);
        let ReadConfig::Found(record) = &found.read else { panic!("{found:?}") };
        assert_eq!(
            (record["data"].to_string(), &found.redacted[..]),
            (r#"{"a":1.50}"#.into(), &["#/b".to_owned()][..])
        );
        let batch: Applied = serde_json::from_value(json!({"revision": null, "results": []})).unwrap();
        assert_eq!((batch.revision, batch.succeeded), (None, true));
    }
}
