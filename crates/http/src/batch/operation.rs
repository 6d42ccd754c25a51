//! One operation of a batch, from JSON.
//!
//! **Invariant:** the errors of all operations are collected; a condition that is malformed, or that its operation cannot
//! satisfy, is one of them.

use super::{
    CHECK_CONFIG, CREATE_CONFIG, CREATE_DEFINITION, DELETE_CONFIG, DELETE_DEFINITION, GET_CONFIG, NAMES,
    PATCH_CONFIG, PUT_CONFIG, ROLLBACK_CONFIG, SET_INDEXES, SET_SCHEMA, SET_UNIQUE,
};
use crate::{body::Fields, configs, definitions, patch};
use concord_model::{
    command::Expect,
    document::Document,
    error::{LocSegment, Violation},
    patch::{Patch, PatchFormat},
    redaction::may_keep,
};
use concord_service::{Check, CheckCondition, LazySchema, NewSchema, NewUnique, Restored, Rollback, Write};

/// One operation while it is parsed.
pub(super) struct Operation {
    pub(super) fields: Fields,
    pub(super) violations: Vec<Violation>,
    /// The location of its violations.
    pub(super) violations_loc: Vec<LocSegment>,
}

impl Operation {
    /// The operation; `None` when it is unknown.
    pub(super) fn parse(&mut self) -> Option<Write> {
        let name = self.fields.string("op");
        if !NAMES.contains(&name.as_str()) {
            // Where `op` is missing or not a string, the error of shape is answered: shapes come before violations.
            self.violation("op", &format!("`op` must be one of {}", NAMES.join(", ")));
            return None;
        }
        let definition = self.fields.string(definitions::KEY);
        Some(match name.as_str() {
            SET_SCHEMA => self.set_schema(definition),
            SET_UNIQUE => {
                let paths = self.fields.strings("paths");
                Write::SetUnique(NewUnique { key: definition, paths, expect: self.for_change() })
            }
            CREATE_DEFINITION => {
                self.for_create();
                let indexes =
                    if self.fields.has("indexes") { self.fields.strings("indexes") } else { Vec::new() };
                let is_null = self.fields.is_null("json_schema");
                let schema = if is_null { None } else { self.fields.optional_object("json_schema") };
                let format_assertion = self.fields.optional_boolean("format_assertion");
                let schema = schema.map(Document::new);
                Write::CreateDefinition { key: definition, indexes, schema, format_assertion }
            }
            SET_INDEXES => {
                let indexes = self.fields.strings("indexes");
                Write::SetIndexes { key: definition, indexes, expect: self.for_change() }
            }
            DELETE_DEFINITION => {
                let restrict = self.restrict();
                Write::DeleteDefinition { key: definition, expect: self.for_change(), restrict }
            }
            ROLLBACK_CONFIG => {
                let (key, to) = (self.fields.string(configs::KEY), self.fields.integer("revision"));
                let expect = self.if_match().unwrap_or(Expect::Any);
                if self.if_none_match() {
                    self.violation("if_none_match", "a rollback takes `if_match` alone");
                }
                Write::Rollback(Rollback { definition, key, restored: Restored::At(to), expect })
            }
            _ => self.parse_config(&name, definition)?,
        })
    }

    fn set_schema(&mut self, key: String) -> Write {
        let is_null = self.fields.is_null("json_schema");
        let schema = if is_null { None } else { Some(Document::new(self.fields.object("json_schema"))) };
        let format_assertion = self.fields.optional_boolean("format_assertion");
        let force = self.fields.has("policy") && {
            let force = self.fields.string("policy") == "force";
            if !force {
                self.violation("policy", "`policy` must be `force` or absent");
            }
            force
        };
        let (expect, compiled) = (self.for_change(), LazySchema::default());
        Write::SetSchema(NewSchema { key, schema, format_assertion, expect, force, compiled })
    }

    /// A condition: the operation `check_config`, whose name may be left out.
    pub(super) fn parse_condition(&mut self) -> Write {
        if self.fields.has("op") && self.fields.string("op") != CHECK_CONFIG {
            self.violation("op", "a condition is a `check_config`");
        }
        let definition = self.fields.string(definitions::KEY);
        let key = self.fields.string(configs::KEY);
        self.check(definition, key)
    }

    /// What a config must be: exactly one of `revision`, `absent` and `equals`, the last two with or without `pointer`.
    fn check(&mut self, definition: String, key: String) -> Write {
        let says = ["revision", "absent", "equals"];
        let named = says.into_iter().filter(|name| self.fields.has(name)).count();
        let pointer = if self.fields.has("pointer") { Some(self.fields.string("pointer")) } else { None };
        if named != 1 {
            self.violation("op", "a check has one of `revision`, `absent` and `equals`");
            let condition = CheckCondition::Exists(true);
            return Write::Check(Check { definition, key, condition });
        }
        if pointer.as_deref().is_some_and(|pointer| !is_pointer(pointer)) {
            self.violation("pointer", "expected a JSON pointer");
        }
        let condition = if self.fields.has("revision") {
            if pointer.is_some() {
                self.violation("pointer", "a revision is that of the whole config");
            }
            CheckCondition::Revision(self.fields.integer("revision"))
        } else if self.fields.has("equals") {
            let equals = self.fields.take("equals").map(Document::new);
            CheckCondition::Value { pointer: pointer.unwrap_or_default(), equals }
        } else {
            let absent = match self.fields.take("absent") {
                Some(serde_json::Value::Bool(absent)) => absent,
                Some(_) => {
                    self.fields.refuse("absent", "input should be a valid boolean", "bool_type");
                    true
                }
                None => true,
            };
            match pointer {
                None => CheckCondition::Exists(!absent),
                Some(pointer) => {
                    if !absent {
                        self.violation("absent", "a place can be checked to be absent, or with `equals`");
                    }
                    CheckCondition::Value { pointer, equals: None }
                }
            }
        };
        Write::Check(Check { definition, key, condition })
    }

    fn parse_config(&mut self, name: &str, definition: String) -> Option<Write> {
        let key = self.fields.string(configs::KEY);
        Some(match name {
            CHECK_CONFIG => self.check(definition, key),
            GET_CONFIG => Write::Read { definition, key },
            CREATE_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                self.for_create();
                Write::WriteConfig { definition, key, data, expect: Expect::Absent }
            }
            PUT_CONFIG => {
                let data = Document::new(self.fields.object("data"));
                let may_create = self.fields.optional_boolean("upsert") == Some(true);
                let is_conditional = self.fields.has("if_match") || self.fields.has("if_none_match");
                // A condition says more, and wins.
                let expect = if may_create && !is_conditional { Expect::Any } else { self.for_put() };
                if expect != Expect::None && may_keep(&data.text) {
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

fn is_pointer(text: &str) -> bool {
    let is_escaped = |part: &str| part.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.is_empty() || text.starts_with('/') && is_escaped(text)
}
