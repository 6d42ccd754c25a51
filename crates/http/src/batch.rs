//! Batches: `POST /api/v1/batch`, several writes that are applied atomically, where wanted on conditions.
//!
//! Each operation has the fields of the request that does the same alone, and its conditions as `if_match` and
//! `if_none_match`. The result of most operations follows from the request alone, because a batch is applied exactly as
//! requested or not at all; so a request that is sent again gets the same answer. What a `get_config` has read and whether
//! an upsert has created is looked up.
//!
//! **Invariant:** a condition that is malformed, or that its operation cannot satisfy, refuses the batch. It is never
//! ignored.

mod operation;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    body::{Fields, not_an_object},
    condition::Condition,
    configs, definitions,
    extract::WriteRequest,
    json::{Object, with_redacted},
    reply::{Problem, Reply},
    shape::{TAKES_PARAMETER, takes_parameter},
};
use concord_model::{
    command::Expect,
    error::{Invalid, LocSegment, Rejection, Violation},
    limits::Limits,
    patch::{Patch, PatchFormat},
};
use concord_service::{
    Check, CheckCondition, Choice, NewSchema, NewUnique, ReadConfig, Refusal, Rollback, Rollbacks, Service,
    Upsert, Write, check_operation_count, upserts,
};
use operation::{Operation, Parsed};

const IF: &str = "if";
const THEN: &str = "then";
const ELSE: &str = "else";
const OPERATIONS: &str = "operations";
pub(super) const CREATE_DEFINITION: &str = "create_definition";
pub(super) const SET_INDEXES: &str = "set_indexes";
pub(super) const SET_SCHEMA: &str = "set_schema";
pub(super) const SET_UNIQUE: &str = "set_unique";
pub(super) const DELETE_DEFINITION: &str = "delete_definition";
pub(super) const CREATE_CONFIG: &str = "create_config";
pub(super) const PUT_CONFIG: &str = "put_config";
pub(super) const PATCH_CONFIG: &str = "patch_config";
pub(super) const DELETE_CONFIG: &str = "delete_config";
pub(super) const ROLLBACK_CONFIG: &str = "rollback_config";
pub(super) const CHECK_CONFIG: &str = "check_config";
pub(super) const GET_CONFIG: &str = "get_config";
/// The names of all operations.
pub(super) const NAMES: [&str; 12] = [
    CREATE_DEFINITION,
    SET_INDEXES,
    DELETE_DEFINITION,
    CREATE_CONFIG,
    PUT_CONFIG,
    PATCH_CONFIG,
    DELETE_CONFIG,
    ROLLBACK_CONFIG,
    CHECK_CONFIG,
    GET_CONFIG,
    SET_SCHEMA,
    SET_UNIQUE,
];

/// How the operations of a body are divided, where it has conditions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    conditions: usize,
    then: usize,
}

impl Parts {
    /// The location of what is wrong with an operation, from that by its number among all.
    pub(super) fn relocate(self, loc: &mut [LocSegment]) {
        if let [list @ LocSegment::Name(_), LocSegment::Index(number), ..] = loc
            && *list == OPERATIONS.into()
        {
            let (name, place) = self.place(*number);
            (*list, *number) = (name.into(), place);
        }
    }

    /// The place of an operation in the body, by its number among all.
    fn place(self, number: u64) -> (&'static str, u64) {
        let (conditions, then) = (self.conditions as u64, self.then as u64);
        if number < conditions {
            (IF, number)
        } else if number < conditions + then {
            (THEN, number - conditions)
        } else {
            (ELSE, number - conditions - then)
        }
    }
}

/// What the answer says of an operation that was carried out.
enum Outlined {
    /// A change, or a check that holds.
    Known(String),
    Read {
        definition: String,
        key: String,
    },
    Upserted {
        op: &'static str,
        definition: String,
        key: String,
        upsert: Upsert,
    },
}

impl Outlined {
    /// The keys of the config that it reads.
    fn read(&self) -> Option<(&str, &str)> {
        match self {
            Self::Known(_) | Self::Upserted { .. } => None,
            Self::Read { definition, key } => Some((definition, key)),
        }
    }

    /// The keys of the config that it creates or replaces.
    fn upserted(&self) -> Option<(&str, &str, Upsert)> {
        match self {
            Self::Known(_) | Self::Read { .. } => None,
            Self::Upserted { definition, key, upsert, .. } => Some((definition, key, *upsert)),
        }
    }
}

/// Applies all operations, or none.
pub(super) async fn run(service: Service, request: WriteRequest) -> Result<Reply, Problem> {
    if request.condition != Condition::Unconditional {
        let msg = "the conditions of a batch are members of its operations";
        return Err(Problem::violation(Violation::at(vec!["header".into()], msg)));
    }
    let limits = service.limits().clone();
    let (operations, parts) = request.read(&service, move |body| parse(body, &limits)).await?;
    let placed = move |refusal| Problem::InBatch(refusal, parts);
    // It holds what the writes take in memory until they are decided.
    let mut rollbacks = service.begin_rollbacks(&request.caller);
    let from = parts.map(|parts| parts.conditions);
    let (operations, mut rolled_back) =
        with_data(&service, &mut rollbacks, operations, from).await.map_err(placed)?;
    let takes = |operation: &Write| {
        if let Write::CreateDefinition { indexes, .. } | Write::SetIndexes { indexes, .. } = operation {
            takes_parameter(indexes)
        } else {
            false
        }
    };
    let takers: Vec<bool> = operations.iter().map(takes).collect();
    let write = match parts {
        None => Write::Batch(operations),
        Some(Parts { conditions, then }) => Write::Choice(Choice { operations, conditions, then }),
    };
    let chosen = [true, false].map(|succeeded| write.chosen(succeeded));
    let changes = [true, false].map(|succeeded| write.changes_anything(succeeded));
    let outlined = [true, false].map(|succeeded| {
        let is_possible = succeeded || parts.is_some();
        let possible = if is_possible { write.chosen(succeeded) } else { 0..0 };
        outline_all(&write.operations()[possible])
    });
    let principal = request.caller.principal.clone();
    // Whichever list is carried out.
    let _held = service
        .reserve_reads(&request.caller.principal, outlined.iter().flatten().filter_map(Outlined::read))?;
    let written = service.write(request.caller, write).await;
    let written = written.map_err(|refusal| placed(rolled_back.refusal(refusal)))?;
    let succeeded = parts.is_none() || written.applied.created;
    let branch = usize::from(!succeeded);
    let done = &outlined[branch];
    let keys = done.iter().filter_map(Outlined::read);
    let mut reads = service.reads_of(&principal, keys, changes[branch], &written).await.into_iter();
    let upserted = done.iter().filter_map(Outlined::upserted);
    let mut created = service.created_by(&principal, upserted, &written).await.into_iter();
    let mut result = |operation: &Outlined| match operation {
        Outlined::Known(text) => text.clone(),
        Outlined::Read { definition, key } => {
            read_result((definition, key), &reads.next().unwrap_or(ReadConfig::Unknown))
        }
        Outlined::Upserted { op, definition, key, .. } => {
            let result = Object::new().unescaped("op", op).value(definitions::KEY, definition);
            result.value(configs::KEY, key).value("created", &created.next().flatten()).finish()
        }
    };
    let results: Vec<String> = done.iter().map(&mut result).collect();
    // A dry run has no revision.
    let revision = Some(written.applied.revision).filter(|_| !written.dry_run);
    let data = Object::new().value("revision", &revision);
    let data = if parts.is_some() { data.value("succeeded", &succeeded) } else { data };
    let data = data.raw("results", &format!("[{}]", results.join(",")));
    let reply = Reply::ok("batch applied", &data.finish()).for_write_without_record(&written);
    let takes_parameter = takers[chosen[branch].clone()].contains(&true);
    Ok(if takes_parameter { reply.warning(TAKES_PARAMETER) } else { reply })
}

/// The rollbacks of a transaction by their places, and why they can't be done. They are refused only if their list is
/// chosen.
#[derive(Default)]
struct TransactionRollbacks(BTreeMap<u32, Option<Refusal>>);

impl TransactionRollbacks {
    /// The refusal of a transaction: that of a rollback where the check was refused that stands for it.
    fn refusal(&mut self, refusal: Refusal) -> Refusal {
        let Refusal::Rejected(Rejection::InBatch { index, rejection }) = &refusal else { return refusal };
        let (index, is_check) = (*index, matches!(**rejection, Rejection::CheckFailed { .. }));
        match self.0.remove(&index).filter(|_| is_check) {
            None => refusal,
            Some(Some(refusal)) => refusal.of_operation(index),
            // It was decided before, and nothing is looked up for what is sent again.
            Some(None) => Refusal::NotThere("there was nothing to go back to".into()).of_operation(index),
        }
    }
}

/// The check that stands for a rollback that can't be done: it holds for no config.
fn stand_in(definition: String, key: String) -> Write {
    Write::Check(Check { definition, key, condition: CheckCondition::Revision(0) })
}

/// The operations as writes: what a rollback writes is taken from the history. Those from a place on are of lists of
/// which one is chosen.
async fn with_data(
    service: &Service,
    found: &mut Rollbacks,
    operations: Vec<Parsed>,
    from: Option<usize>,
) -> Result<(Vec<Write>, TransactionRollbacks), Refusal> {
    let (mut writes, mut rollbacks) = (Vec::with_capacity(operations.len()), BTreeMap::new());
    for (place, operation) in (0..).zip(operations) {
        let is_choice = from.is_some_and(|from| writes.len() >= from);
        writes.push(match operation {
            Parsed::Write(write) => write,
            Parsed::Rollback { definition, key, to, expect } => {
                let write = service.rollback_write(found, (&definition, &key), to, expect).await;
                let (write, refused) = match write {
                    Ok(write) => (write, None),
                    Err(refusal) if is_choice && refusal.is_of_the_past() => {
                        (stand_in(definition, key), Some(refusal))
                    }
                    Err(refusal) => return Err(refusal.of_operation(place)),
                };
                rollbacks.insert(place, refused);
                write
            }
        });
    }
    Ok((writes, TransactionRollbacks(rollbacks)))
}

/// What the answer says of the operations that are carried out.
fn outline_all(operations: &[Write]) -> Vec<Outlined> {
    let upserts = upserts(operations);
    let outlined = |(place, write): (usize, &Write)| match (upserts.get(&place), write) {
        (Some(upsert), Write::WriteConfig { definition, key, .. }) => Outlined::Upserted {
            op: PUT_CONFIG,
            definition: definition.clone(),
            key: key.clone(),
            upsert: *upsert,
        },
        (Some(upsert), Write::Rollback(Rollback { definition, key, .. })) => Outlined::Upserted {
            op: ROLLBACK_CONFIG,
            definition: definition.clone(),
            key: key.clone(),
            upsert: *upsert,
        },
        (Some(_) | None, _) => outline(write),
    };
    operations.iter().enumerate().map(outlined).collect()
}

/// What the answer says of an operation.
fn outline(write: &Write) -> Outlined {
    let begin = |name: &'static str, definition: &str| {
        Object::new().unescaped("op", name).value(definitions::KEY, &definition)
    };
    let (result, created) = match write {
        Write::CreateDefinition { key, .. } => (begin(CREATE_DEFINITION, key), true),
        Write::SetIndexes { key, .. } => (begin(SET_INDEXES, key), false),
        Write::SetSchema(NewSchema { key, .. }) => (begin(SET_SCHEMA, key), false),
        Write::SetUnique(NewUnique { key, .. }) => (begin(SET_UNIQUE, key), false),
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
        Write::Rollback(Rollback { definition, key, expect, .. }) => {
            (begin(ROLLBACK_CONFIG, definition).value(configs::KEY, key), *expect == Expect::None)
        }
        Write::Check(Check { definition, key, .. }) => {
            (begin(CHECK_CONFIG, definition).value(configs::KEY, key), false)
        }
        Write::Read { definition, key } => {
            return Outlined::Read { definition: definition.clone(), key: key.clone() };
        }
        // A batch has no such operations.
        Write::Batch(_) | Write::Choice(_) | Write::Access(_) => (Object::new(), false),
    };
    Outlined::Known(result.value("created", &created).finish())
}

/// What was read: `config` is null when there was none, and left out when it is not known any more.
fn read_result((definition, key): (&str, &str), read: &ReadConfig) -> String {
    let result = Object::new().unescaped("op", GET_CONFIG).value(definitions::KEY, &definition);
    let result = result.value(configs::KEY, &key).value("created", &false);
    match read {
        ReadConfig::Found(config, redacted) => {
            let record = configs::members(Object::with_capacity(config.data.len()), config);
            let record = record.value("revision", &config.revision).finish();
            let redacted = Some(redacted).filter(|places| !places.is_empty());
            with_redacted(result.raw("config", &record), redacted).finish()
        }
        ReadConfig::Absent => result.raw("config", "null").finish(),
        ReadConfig::Unknown => result.finish(),
    }
}

/// Parses the operations of a body.
fn parse(body: Value, limits: &Limits) -> Result<(Vec<Parsed>, Option<Parts>), Problem> {
    let mut fields = Fields::from_json(body)?;
    let count: usize = [OPERATIONS, IF, THEN, ELSE].iter().map(|name| fields.count(name)).sum();
    if count > 0 {
        check_operation_count(count, limits).map_err(Refusal::Invalid)?;
    }
    let mut violations = Vec::new();
    let is_choice = [IF, THEN, ELSE].iter().any(|name| fields.has(name));
    let mut list = |name, is_required: bool| {
        let is_there = is_required || fields.has(name);
        if is_there { parse_list(name, &mut fields, &mut violations) } else { Vec::new() }
    };
    let (operations, parts) = if is_choice {
        let (conditions, then, otherwise) = (list(IF, true), list(THEN, false), list(ELSE, false));
        let parts = Parts { conditions: conditions.len(), then: then.len() };
        ([conditions, then, otherwise].into_iter().flatten().collect(), Some(parts))
    } else {
        (list(OPERATIONS, true), None)
    };
    if parts.is_some() && fields.has(OPERATIONS) {
        let msg = "`operations` can't be combined with `if`, `then` and `else`";
        violations.push(Violation::at(vec![OPERATIONS.into()], msg));
    }
    if parts.is_some_and(|parts| parts.conditions == 0) && fields.errors.is_empty() {
        violations.push(Violation::at(vec![IF.into()], "there is no condition"));
    }
    let operations = fields.finish(operations)?;
    if violations.is_empty() {
        Ok((operations, parts))
    } else {
        Err(Refusal::Invalid(Invalid::Violations(violations)).into())
    }
}

/// Parses a list of operations; that of `if` is one of conditions.
fn parse_list(name: &'static str, fields: &mut Fields, violations: &mut Vec<Violation>) -> Vec<Parsed> {
    let mut operations = Vec::new();
    for (index, (loc, item)) in (0..).zip(fields.list(name)) {
        let Value::Object(object) = item else {
            fields.note(not_an_object(loc));
            continue;
        };
        let violations_loc = vec![name.into(), LocSegment::Index(index)];
        let errors = std::mem::take(&mut fields.errors);
        let mut operation = Operation {
            fields: Fields { object, loc, errors },
            violations: std::mem::take(violations),
            violations_loc,
        };
        if name == IF {
            operations.push(Parsed::Write(operation.parse_condition()));
        } else {
            operations.extend(operation.parse());
        }
        (fields.errors, *violations) = (operation.fields.errors, operation.violations);
    }
    operations
}

#[cfg(test)]
mod tests;
