//! Batches: `POST /api/v1/batch`, several writes that are applied atomically, where wanted on conditions.
//!
//! Each operation has the fields of the request that does the same alone, and its conditions as `if_match` and
//! `if_none_match`. What each change did is in the outcome that the log remembers, so a request that is sent again gets
//! the same answer. What a `get_config` has read is looked up in the history.
//!
//! **Invariant:** a condition that is malformed, or that its operation cannot satisfy, refuses the batch. It is never
//! ignored.

mod operation;

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
    command::{Expect, StepOutcome},
    error::{Invalid, LocSegment, Violation},
    limits::Limits,
    patch::{Patch, PatchFormat},
};
use concord_service::{
    Check, NewSchema, NewUnique, ReadConfig, Refusal, Restored, Rollback, Rollbacks, Service, Transaction,
    Write, check_operation_count,
};
use operation::Operation;

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

/// What the answer says of an operation if it is carried out.
struct Outlined {
    op: &'static str,
    definition: String,
    /// `None` for an operation on a definition.
    key: Option<String>,
    kind: Kind,
    /// Whether it declares a path that has the name of a query parameter.
    takes_parameter: bool,
}

/// What an operation adds to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Whether it created its record.
    Change,
    /// Nothing: a check that holds.
    Check,
    /// The config that it read.
    Read,
}

impl Outlined {
    /// The keys of the config that it reads.
    fn read(&self) -> Option<(&str, &str)> {
        let key = self.key.as_deref().filter(|_| self.kind == Kind::Read)?;
        Some((&self.definition, key))
    }

    /// The members that all results have.
    fn result(&self, created: bool) -> Object {
        let result = Object::new().unescaped("op", self.op).value(definitions::KEY, &self.definition);
        let result = match &self.key {
            Some(key) => result.value(configs::KEY, key),
            None => result,
        };
        result.value("created", &created)
    }
}

/// Applies all operations, or none.
pub(super) async fn run(service: Service, request: WriteRequest) -> Result<Reply, Problem> {
    if request.condition != Condition::Unconditional {
        let msg = "the conditions of a batch are members of its operations";
        return Err(Problem::violation(Violation::at(vec!["header".into()], msg)));
    }
    let limits = service.cx.limits().clone();
    let (mut operations, parts) = request.read(&service, move |body| parse(body, &limits)).await?;
    let placed = move |refusal| Problem::InBatch(refusal, parts);
    // It holds what the writes take in memory until they are decided.
    let mut rollbacks = service.writes.begin_rollbacks(&request.caller);
    let lists_from = parts.map(|parts| u32::try_from(parts.conditions).unwrap_or(u32::MAX));
    restore(&service, &mut rollbacks, &mut operations, lists_from).await.map_err(placed)?;
    let write = match parts {
        None => Write::Batch(operations),
        Some(Parts { conditions, then }) => Write::Transaction(Transaction { operations, conditions, then }),
    };
    let [then, otherwise] = [true, false].map(|conditions_held| write.chosen(conditions_held));
    let outlined: Vec<Outlined> = write.operations().iter().map(outline).collect();
    let principal = request.caller.principal.clone();
    // Whichever list is carried out.
    let _held = service
        .writes
        .reserve_reads(&request.caller.principal, outlined.iter().filter_map(Outlined::read))?;
    let written = service.writes.write(request.caller, write).await;
    let written = written.map_err(placed)?;
    let conditions_held = written.applied.conditions_held();
    let done = &outlined[if conditions_held { then } else { otherwise }];
    let keys = done.iter().filter_map(Outlined::read);
    let mut reads = service.writes.reads_of(&principal, keys, &written).await.into_iter();
    let mut steps = written.applied.steps().iter();
    let result = |operation: &Outlined| match operation.kind {
        Kind::Change => operation.result(steps.next() == Some(&StepOutcome::Created)).finish(),
        Kind::Check => operation.result(false).finish(),
        Kind::Read => read_result(operation.result(false), &reads.next().unwrap_or(ReadConfig::Unknown)),
    };
    let results: Vec<String> = done.iter().map(result).collect();
    // A dry run has no revision.
    let revision = Some(written.applied.revision).filter(|_| !written.dry_run);
    let data = Object::new().value("revision", &revision);
    let data = if parts.is_some() { data.value("succeeded", &conditions_held) } else { data };
    let data = data.raw("results", &format!("[{}]", results.join(",")));
    let reply = Reply::ok("batch applied", &data.finish()).for_write_without_record(&written);
    Ok(if done.iter().any(|operation| operation.takes_parameter) {
        reply.warning(TAKES_PARAMETER)
    } else {
        reply
    })
}

/// Looks up what the rollbacks among the operations write. `lists_from`: the place from which on the operations are in
/// lists of which one is carried out. What a rollback there is refused for counts only if its list is.
async fn restore(
    service: &Service,
    found: &mut Rollbacks,
    operations: &mut [Write],
    lists_from: Option<u32>,
) -> Result<(), Refusal> {
    for (place, operation) in (0..).zip(operations) {
        let Write::Rollback(Rollback { definition, key, restored, .. }) = operation else { continue };
        let Restored::At(to) = *restored else { continue };
        *restored = match service.writes.restored(found, definition, key, to).await {
            Err(refusal) if lists_from.is_some_and(|from| place >= from) => {
                Restored::Refused(refusal.nothing_to_restore().map_err(|other| other.of_operation(place))?)
            }
            found => found.map_err(|refusal| refusal.of_operation(place))?,
        };
    }
    Ok(())
}

/// What the answer says of an operation.
fn outline(write: &Write) -> Outlined {
    let of_definition = |op: &'static str, definition: &str| Outlined {
        op,
        definition: definition.into(),
        key: None,
        kind: Kind::Change,
        takes_parameter: false,
    };
    let of_config = |op: &'static str, definition: &str, key: &str| Outlined {
        key: Some(key.into()),
        ..of_definition(op, definition)
    };
    match write {
        Write::CreateDefinition { key, indexes, .. } => {
            Outlined { takes_parameter: takes_parameter(indexes), ..of_definition(CREATE_DEFINITION, key) }
        }
        Write::SetIndexes { key, indexes, .. } => {
            Outlined { takes_parameter: takes_parameter(indexes), ..of_definition(SET_INDEXES, key) }
        }
        Write::SetSchema(NewSchema { key, .. }) => of_definition(SET_SCHEMA, key),
        Write::SetUnique(NewUnique { key, .. }) => of_definition(SET_UNIQUE, key),
        Write::DeleteDefinition { key, .. } => of_definition(DELETE_DEFINITION, key),
        Write::WriteConfig { definition, key, expect: Expect::Absent, .. } => {
            of_config(CREATE_CONFIG, definition, key)
        }
        Write::WriteConfig { definition, key, .. }
        // A replacement that keeps secret values.
        | Write::PatchConfig { definition, key, patch: Patch { format: PatchFormat::Replace, .. }, .. } => {
            of_config(PUT_CONFIG, definition, key)
        }
        Write::PatchConfig { definition, key, .. } => of_config(PATCH_CONFIG, definition, key),
        Write::DeleteConfig { definition, key, .. } => of_config(DELETE_CONFIG, definition, key),
        Write::Rollback(Rollback { definition, key, .. }) => of_config(ROLLBACK_CONFIG, definition, key),
        Write::Check(Check { definition, key, .. }) => {
            Outlined { kind: Kind::Check, ..of_config(CHECK_CONFIG, definition, key) }
        }
        Write::Read { definition, key } => {
            Outlined { kind: Kind::Read, ..of_config(GET_CONFIG, definition, key) }
        }
        // A batch has no such operations.
        Write::Batch(_) | Write::Transaction(_) | Write::Access(_) => of_definition("", ""),
    }
}

/// What was read: `config` is null when there was none, and left out when it is not known any more.
fn read_result(result: Object, read: &ReadConfig) -> String {
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
fn parse(body: Value, limits: &Limits) -> Result<(Vec<Write>, Option<Parts>), Problem> {
    let mut fields = Fields::from_json(body)?;
    let count: usize = [OPERATIONS, IF, THEN, ELSE].iter().map(|name| fields.count(name)).sum();
    if count > 0 {
        check_operation_count(count, limits).map_err(Refusal::Invalid)?;
    }
    let mut violations = Vec::new();
    let is_transaction = [IF, THEN, ELSE].iter().any(|name| fields.has(name));
    let mut list = |name, is_required: bool| {
        let is_there = is_required || fields.has(name);
        if is_there { parse_list(name, &mut fields, &mut violations) } else { Vec::new() }
    };
    let (operations, parts) = if is_transaction {
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
fn parse_list(name: &'static str, fields: &mut Fields, violations: &mut Vec<Violation>) -> Vec<Write> {
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
            operations.push(operation.parse_condition());
        } else {
            operations.extend(operation.parse());
        }
        (fields.errors, *violations) = (operation.fields.errors, operation.violations);
    }
    operations
}

#[cfg(test)]
mod tests;
