//! The operations of a batch: what each is called, and how it is read.
//!
//! An operation has the members of the body that does the same alone, and the same function reads them. In addition it
//! has the keys, which such a request has in its path, and its condition, which such a request has in its headers.
//!
//! **Invariant:** a condition that is malformed, or that its operation cannot satisfy, rejects the batch.

use serde_json::Value;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder};

use crate::{
    body::fields::{self, BodyFields, FieldType, KEY, array, constant, schema_of},
    configs::{self, ConfigCreation, ConfigData},
    definitions::{self, DefinitionBody, IndexesBody},
    history::RollbackBody,
    openapi::schemas::{NamedSchema, any_value, boolean, integer, one_of, reference, text},
    schema::{ProtectionBody, SchemaBody, UniqueBody},
};
use concord_model::{
    command::Expect,
    document::Document,
    limits::Limits,
    patch::{Patch, PatchFormat},
};
use concord_service::{Check, CheckCondition, NewProtection, NewUnique, Restored, Rollback, Write};

/// One kind of operation.
pub(crate) struct OperationType {
    pub(crate) name: &'static str,
    /// The name of its schema.
    component: &'static str,
    read: fn(&mut BodyFields) -> Write,
    /// What the document says of it, if its members do not say it.
    about: Option<&'static str>,
}

const fn named(
    name: &'static str,
    component: &'static str,
    read: fn(&mut BodyFields) -> Write,
) -> OperationType {
    OperationType { name, component, read, about: None }
}

pub(super) const CREATE_DEFINITION: &str = "create_definition";
pub(super) const SET_INDEXES: &str = "set_indexes";
pub(super) const SET_SCHEMA: &str = "set_schema";
pub(super) const SET_UNIQUE: &str = "set_unique";
pub(super) const SET_PROTECTION: &str = "set_protection";
pub(super) const DELETE_DEFINITION: &str = "delete_definition";
pub(super) const CREATE_CONFIG: &str = "create_config";
pub(super) const PUT_CONFIG: &str = "put_config";
pub(super) const PATCH_CONFIG: &str = "patch_config";
pub(super) const DELETE_CONFIG: &str = "delete_config";
pub(super) const ROLLBACK_CONFIG: &str = "rollback_config";
pub(super) const CHECK_CONFIG: &str = "check_config";
pub(super) const GET_CONFIG: &str = "get_config";

/// All operations.
pub(crate) static OPERATION_TYPES: [OperationType; 13] = [
    named(CREATE_DEFINITION, "CreateDefinitionOperation", create_definition),
    named(SET_INDEXES, "SetIndexesOperation", set_indexes),
    named(DELETE_DEFINITION, "DeleteDefinitionOperation", delete_definition),
    named(CREATE_CONFIG, "CreateConfigOperation", create_config),
    named(PUT_CONFIG, "PutConfigOperation", put_config),
    named(PATCH_CONFIG, "PatchConfigOperation", patch_config),
    named(DELETE_CONFIG, "DeleteConfigOperation", delete_config),
    named(ROLLBACK_CONFIG, "RollbackConfigOperation", rollback_config),
    OperationType {
        name: CHECK_CONFIG,
        component: "CheckConfigOperation",
        read: check_config,
        about: Some(CHECK),
    },
    named(GET_CONFIG, "GetConfigOperation", get_config),
    named(SET_SCHEMA, "SetSchemaOperation", set_schema),
    named(SET_UNIQUE, "SetUniqueOperation", set_unique),
    named(SET_PROTECTION, "SetProtectionOperation", set_protection),
];

const CHECK: &str = "one of `revision`, `absent` and `equals`; the last two are of the place that `pointer` names, or of \
                     the whole config";

/// The list `operations` of a batch.
pub(super) const OPERATIONS: FieldType<Vec<Write>> = FieldType {
    read: |value, fields| fields.list(value, |item, fields| fields.object(item, operation).flatten()),
    schema: |limits| operations(limits).min_items(Some(1)).into(),
};

/// The lists `then` and `else` of a transaction.
pub(super) const BRANCH: FieldType<Vec<Write>> =
    FieldType { read: OPERATIONS.read, schema: |limits| operations(limits).into() };

/// The list `if` of a transaction.
pub(super) const CONDITIONS: FieldType<Vec<Write>> = FieldType {
    read: |value, fields| fields.list(value, |item, fields| fields.object(item, condition)),
    schema: |limits| array(reference("BatchCondition"), limits.batch_operations).min_items(Some(1)).into(),
};

fn operations(limits: &Limits) -> ArrayBuilder {
    array(reference("BatchOperation"), limits.batch_operations)
}

/// The components that the bodies with operations refer to.
pub(crate) fn components(limits: &Limits) -> Vec<NamedSchema> {
    let each = OPERATION_TYPES.iter().map(|kind| -> NamedSchema {
        let schema = with_op(kind.name, schema_of(limits, kind.read));
        (kind.component, schema.description(kind.about).into())
    });
    let condition = schema_of(limits, condition).description(Some(CHECK));
    let all: Vec<_> = OPERATION_TYPES.iter().map(|kind| (kind.name, kind.component)).collect();
    let any: [NamedSchema; 2] =
        [("BatchOperation", one_of("op", &all).into()), ("BatchCondition", condition.into())];
    each.chain(any).collect()
}

/// The operations that change something, each with its component.
pub(crate) fn changing() -> impl Iterator<Item = (&'static str, &'static str)> {
    let changes = |kind: &&OperationType| ![CHECK_CONFIG, GET_CONFIG].contains(&kind.name);
    OPERATION_TYPES.iter().filter(changes).map(|kind| (kind.name, kind.component))
}

/// The schema of an operation with this name.
pub(crate) fn with_op(name: &str, members: ObjectBuilder) -> ObjectBuilder {
    members.property("op", constant(name)).required("op")
}

pub(crate) const OP: FieldType<String> = FieldType { read: fields::string, schema: |_| text().into() };

/// Reads an operation; `None` if there is no such operation.
fn operation(fields: &mut BodyFields) -> Option<Write> {
    let name = fields.required("op", &OP);
    named_operation(&name, fields)
}

/// Reads an operation of this name.
pub(crate) fn named_operation(name: &str, fields: &mut BodyFields) -> Option<Write> {
    let Some(kind) = OPERATION_TYPES.iter().find(|kind| kind.name == name) else {
        // If `op` is missing or not a string, the response has that error: shapes come before violations.
        let names: Vec<&str> = OPERATION_TYPES.iter().map(|kind| kind.name).collect();
        fields.violation_in("op", format!("`op` must be one of {}", names.join(", ")));
        fields.skip_rest();
        return None;
    };
    Some((kind.read)(fields))
}

/// Reads a condition of a transaction: the operation `check_config`, whose name may be left out.
fn condition(fields: &mut BodyFields) -> Write {
    const CHECK_NAME: FieldType<()> = FieldType {
        read: |value, fields| fields::word(value, fields, CHECK_CONFIG, "a condition is a `check_config`"),
        schema: |_| constant(CHECK_CONFIG).into(),
    };
    fields.optional("op", &CHECK_NAME);
    check_config(fields)
}

fn create_definition(fields: &mut BodyFields) -> Write {
    let new = DefinitionBody::read(fields);
    for_create(fields);
    new.into_write()
}

fn set_indexes(fields: &mut BodyFields) -> Write {
    let key = fields.required(definitions::KEY, &KEY);
    let IndexesBody { indexes, has_schema } = IndexesBody::read(fields);
    if has_schema {
        fields.violation_in("json_schema", "`set_indexes` leaves the schema as it is; use `set_schema`");
    }
    Write::SetIndexes { key, indexes, expect: for_change(fields) }
}

fn set_schema(fields: &mut BodyFields) -> Write {
    const POLICY: FieldType<()> = FieldType {
        read: |value, fields| fields::word(value, fields, "force", "`policy` must be `force` or absent"),
        schema: |_| constant("force").description(Some("store it although configs break it")).into(),
    };
    let key = fields.required(definitions::KEY, &KEY);
    let new = SchemaBody::read(fields);
    let force = fields.optional("policy", &POLICY).is_some();
    Write::SetSchema(new.into_schema(key, for_change(fields), force))
}

fn set_unique(fields: &mut BodyFields) -> Write {
    let key = fields.required(definitions::KEY, &KEY);
    let UniqueBody { paths } = UniqueBody::read(fields);
    Write::SetUnique(NewUnique { key, paths, expect: for_change(fields) })
}

fn set_protection(fields: &mut BodyFields) -> Write {
    let key = fields.required(definitions::KEY, &KEY);
    let ProtectionBody { protected } = ProtectionBody::read(fields);
    Write::SetProtection(NewProtection { key, protected, expect: for_change(fields) })
}

fn delete_definition(fields: &mut BodyFields) -> Write {
    const MODE: FieldType<()> = FieldType {
        read: |value, fields| fields::word(value, fields, "restrict", "`mode` must be `restrict` or absent"),
        schema: |_| constant("restrict").into(),
    };
    let key = fields.required(definitions::KEY, &KEY);
    let restrict = fields.optional("mode", &MODE).is_some();
    Write::DeleteDefinition { key, expect: for_change(fields), restrict, purge: false }
}

/// The keys of a config.
fn config_keys(fields: &mut BodyFields) -> (String, String) {
    (fields.required(definitions::KEY, &KEY), fields.required(configs::KEY, &KEY))
}

fn create_config(fields: &mut BodyFields) -> Write {
    let definition = fields.required(definitions::KEY, &KEY);
    let ConfigCreation { key, data } = ConfigCreation::read(fields);
    for_create(fields);
    Write::WriteConfig { definition, key, data, expect: Expect::Absent }
}

fn put_config(fields: &mut BodyFields) -> Write {
    const UPSERT: FieldType<bool> = FieldType {
        read: fields::boolean,
        schema: |_| {
            let flag = boolean();
            flag.description(Some("create the config where there is none")).into()
        },
    };
    let (definition, key) = config_keys(fields);
    let data = ConfigData::read(fields);
    let may_create = fields.nullable("upsert", &UPSERT) == Some(true);
    // A condition takes precedence.
    let expect = for_put(fields).unwrap_or(if may_create { Expect::Any } else { Expect::Present });
    data.into_write(definition, key, expect)
}

fn patch_config(fields: &mut BodyFields) -> Write {
    const PATCH: FieldType<Value> = FieldType {
        read: |patch, fields| {
            fields.patch(patch_format(&patch), &patch);
            Some(patch)
        },
        // Generated clients in Java can't make a choice of which one part is a list.
        schema: |_| {
            let about = "a list is a JSON Patch (RFC 6902), an object a JSON Merge Patch (RFC 7396)";
            any_value().description(Some(about)).into()
        },
    };
    let (definition, key) = config_keys(fields);
    let patch = fields.required("patch", &PATCH);
    let patch = Patch { format: patch_format(&patch), document: Document::new(patch) };
    Write::PatchConfig { definition, key, patch, expect: for_change(fields) }
}

/// A list is a JSON Patch, anything else is read as a JSON Merge Patch.
fn patch_format(patch: &Value) -> PatchFormat {
    if patch.is_array() { PatchFormat::Json } else { PatchFormat::Merge }
}

fn delete_config(fields: &mut BodyFields) -> Write {
    let (definition, key) = config_keys(fields);
    Write::DeleteConfig { definition, key, expect: for_change(fields) }
}

fn rollback_config(fields: &mut BodyFields) -> Write {
    let (definition, key) = config_keys(fields);
    let RollbackBody { revision } = RollbackBody::read(fields);
    let expect = fields.optional("if_match", &IF_MATCH).unwrap_or(Expect::Any);
    if fields.unlisted("if_none_match", &IF_NONE_MATCH).is_some() {
        fields.violation_in("if_none_match", "a rollback takes `if_match` alone");
    }
    Write::Rollback(Rollback { definition, key, restored: Restored::At(revision), expect })
}

fn get_config(fields: &mut BodyFields) -> Write {
    let (definition, key) = config_keys(fields);
    Write::Read { definition, key }
}

/// What a config must be: exactly one of `revision`, `absent` and `equals`, the last two with or without `pointer`.
fn check_config(fields: &mut BodyFields) -> Write {
    const REVISION: FieldType<u64> = FieldType {
        read: fields::integer,
        schema: |_| integer(0).description(Some("the revision that the config must have")).into(),
    };
    const ABSENT: FieldType<bool> = FieldType {
        read: fields::boolean,
        schema: |_| {
            let flag = boolean();
            flag.description(Some("whether there must be none; with `pointer` only `true`")).into()
        },
    };
    const EQUALS: FieldType<Value> = FieldType {
        read: |value, _| Some(value),
        schema: |_| any_value().description(Some("the value that must be there")).into(),
    };
    const POINTER: FieldType<String> = FieldType {
        read: |value, fields| {
            let pointer = fields::string(value, fields)?;
            if !is_pointer(&pointer) {
                fields.violation(&[], "expected a JSON pointer");
            }
            Some(pointer)
        },
        schema: |_| pointer().into(),
    };
    let (definition, key) = config_keys(fields);
    let revision = fields.optional("revision", &REVISION);
    let absent = fields.optional("absent", &ABSENT);
    let equals = fields.optional("equals", &EQUALS);
    let pointer = fields.optional("pointer", &POINTER);
    let condition = match (revision, absent, equals) {
        (Some(revision), None, None) => {
            if pointer.is_some() {
                fields.violation_in("pointer", "a revision is that of the whole config");
            }
            CheckCondition::Revision(revision)
        }
        (None, None, Some(equals)) => CheckCondition::Value {
            pointer: pointer.unwrap_or_default(),
            equals: Some(Document::new(equals)),
        },
        (None, Some(absent), None) => match pointer {
            None => CheckCondition::Exists(!absent),
            Some(pointer) => {
                if !absent {
                    fields.violation_in("absent", "a place can be checked to be absent, or with `equals`");
                }
                CheckCondition::Value { pointer, equals: None }
            }
        },
        (None | Some(_), None | Some(_), None | Some(_)) => {
            fields.violation_in("op", "a check has one of `revision`, `absent` and `equals`");
            CheckCondition::Exists(true)
        }
    };
    Write::Check(Check { definition, key, condition })
}

fn is_pointer(text: &str) -> bool {
    let is_escaped = |part: &str| part.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.is_empty() || text.starts_with('/') && is_escaped(text)
}

/// The schema of a JSON pointer.
pub(crate) fn pointer() -> ObjectBuilder {
    text().pattern(Some("^(/([^/~]|~[01])*)*$")).description(Some("a JSON pointer (RFC 6901)"))
}

const IF_MATCH: FieldType<Expect> = FieldType {
    read: |value, fields| {
        let text = fields::string(value, fields)?;
        if text == "*" {
            return Some(Expect::Present);
        }
        let tag = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(&text);
        if tag.is_empty() || !tag.bytes().all(|byte| byte.is_ascii_digit()) {
            fields.violation(&[], "expected a revision, with or without quotes, or `*`");
        }
        // No record has revision 0, so a number that cannot be a revision matches none.
        Some(Expect::At(tag.parse().unwrap_or(0)))
    },
    schema: |_| {
        let about = "the revision that the record must have, or `*` for any existing record";
        text().pattern(Some("^(\\*|[0-9]+|\"[0-9]+\")$")).description(Some(about)).into()
    },
};

const IF_NONE_MATCH: FieldType<()> = FieldType {
    read: |value, fields| fields::word(value, fields, "*", "a write takes no other value than `*`"),
    schema: |_| constant("*").description(Some("creates, and fails when the record exists")).into(),
};

/// The condition of an operation that only creates.
fn for_create(fields: &mut BodyFields) {
    if fields.unlisted("if_match", &IF_MATCH).is_some() {
        fields.violation_in("if_match", "a create has no revision to match");
    }
    fields.optional("if_none_match", &IF_NONE_MATCH);
}

/// The condition of an operation that changes or deletes an existing record.
pub(crate) fn for_change(fields: &mut BodyFields) -> Expect {
    if fields.unlisted("if_none_match", &IF_NONE_MATCH).is_some() {
        fields.violation_in("if_none_match", "this operation creates nothing");
    }
    fields.optional("if_match", &IF_MATCH).unwrap_or(Expect::Present)
}

/// The condition of an operation that replaces an existing record, or creates one with `if_none_match`.
pub(crate) fn for_put(fields: &mut BodyFields) -> Option<Expect> {
    let expect = fields.optional("if_match", &IF_MATCH);
    let is_new = fields.optional("if_none_match", &IF_NONE_MATCH).is_some();
    if is_new && expect.is_some() {
        fields.violation_in("if_match", "cannot be combined with `if_none_match`");
    }
    if is_new { Some(Expect::None) } else { expect }
}
