//! Batches: `POST /api/v1/batch`, several writes that are applied atomically, and on conditions if the batch has some.
//!
//! Each operation has the fields of the request that does the same alone, and its conditions as `if_match` and
//! `if_none_match`. What each change did is in the outcome that the log remembers, so a request that is retried gets
//! the same response. What a `get_config` has read is looked up in the history.
//!
//! | where is | file |
//! |---|---|
//! | the operations, and how each is read | `operation` |
//!
//! **Invariant:** a condition that is malformed, or that its operation cannot satisfy, rejects the batch. It is never
//! ignored.

pub(super) mod operation;

use serde_json::Value;

use super::{
    body::fields::BodyFields,
    condition::Condition,
    configs,
    definitions::{self, NOT_KEPT},
    extract::BodyRequest,
    json::{Object, with_redacted},
    reply::{Problem, Reply},
    shape::{TAKES_PARAMETER, takes_parameter},
};
use concord_model::{
    command::{Expect, StepOutcome},
    error::{LocSegment, Violation},
    limits::Limits,
    patch::{Patch, PatchFormat},
};
use concord_service::{
    Check, NewProtection, NewSchema, NewUnique, ReadConfig, Refusal, Restored, Rollback, Rollbacks, Service,
    Transaction, Write, check_operation_count,
};
use operation::{
    CHECK_CONFIG, CREATE_CONFIG, CREATE_DEFINITION, DELETE_CONFIG, DELETE_DEFINITION, GET_CONFIG,
    PATCH_CONFIG, PUT_CONFIG, ROLLBACK_CONFIG, SET_INDEXES, SET_PROTECTION, SET_SCHEMA, SET_UNIQUE,
};

const IF: &str = "if";
const THEN: &str = "then";
const ELSE: &str = "else";
const OPERATIONS: &str = "operations";
/// How many of the operations of a transaction are in each of its lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransactionParts {
    conditions: usize,
    then: usize,
}

impl TransactionParts {
    /// Turns a location that counts all operations into one in the list of the operation.
    pub(super) fn relocate(self, loc: &mut [LocSegment]) {
        if let [list @ LocSegment::Name(_), LocSegment::Index(number), ..] = loc
            && *list == OPERATIONS.into()
        {
            let (name, place) = self.place(*number);
            (*list, *number) = (name.into(), place);
        }
    }

    /// The list of an operation and its index there, by its number among all operations.
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

/// The parts of an operation that its result in the response needs.
struct Outlined {
    op: &'static str,
    definition: String,
    /// `None` for an operation on a definition.
    key: Option<String>,
    kind: OperationEffect,
    /// Whether it declares a path that has the name of a query parameter.
    takes_parameter: bool,
}

/// What an operation adds to the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationEffect {
    /// Whether it created its record.
    Change,
    /// Whether the deleted definition is kept.
    DeleteDefinition,
    /// Nothing: a check that holds.
    Check,
    /// The config that it read.
    Read,
}

impl Outlined {
    /// The keys of the config that it reads.
    fn read(&self) -> Option<(&str, &str)> {
        let key = self.key.as_deref().filter(|_| self.kind == OperationEffect::Read)?;
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
pub(super) async fn run(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    if request.condition != Condition::Unconditional {
        let msg = "the conditions of a batch are members of its operations";
        return Err(Problem::violation(Violation::at(vec!["header".into()], msg)));
    }
    let limits = service.cx.limits().clone();
    let (mut operations, parts) = request.read_value(&service, move |body| parse(body, &limits)).await?;
    let placed = move |refusal| Problem::InBatch(refusal, parts);
    // It holds what the writes take in memory until they are decided.
    let mut rollbacks = service.writes.begin_rollbacks(&request.caller);
    let lists_from = parts.map(|parts| u32::try_from(parts.conditions).unwrap_or(u32::MAX));
    restore(&service, &mut rollbacks, &mut operations, lists_from).await.map_err(placed)?;
    let write = match parts {
        None => Write::Batch(operations),
        Some(TransactionParts { conditions, then }) => {
            Write::Transaction(Transaction { operations, conditions, then })
        }
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
    let mut all_kept = true;
    let result = |operation: &Outlined| match operation.kind {
        OperationEffect::Change => operation.result(steps.next() == Some(&StepOutcome::Created)).finish(),
        OperationEffect::DeleteDefinition => {
            let is_kept = steps.next() == Some(&StepOutcome::Retained);
            all_kept &= is_kept;
            operation.result(false).value("kept", &is_kept).finish()
        }
        OperationEffect::Check => operation.result(false).finish(),
        OperationEffect::Read => {
            read_result(operation.result(false), &reads.next().unwrap_or(ReadConfig::Unknown))
        }
    };
    let results: Vec<String> = done.iter().map(result).collect();
    // A dry run has no revision.
    let revision = Some(written.applied.revision).filter(|_| !written.dry_run);
    let data = Object::new().value("revision", &revision);
    let data = if parts.is_some() { data.value("succeeded", &conditions_held) } else { data };
    let data = data.raw("results", &format!("[{}]", results.join(",")));
    let reply = Reply::ok("batch applied", &data.finish()).for_write_without_record(&written);
    let reply = if all_kept { reply } else { reply.warning(NOT_KEPT) };
    Ok(if done.iter().any(|operation| operation.takes_parameter) {
        reply.warning(TAKES_PARAMETER)
    } else {
        reply
    })
}

/// Looks up what the rollbacks among the operations write. `lists_from`: the place from which on the operations are in
/// lists of which one is carried out. What a rollback there is rejected for counts only if its list is.
pub(super) async fn restore(
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

/// What the response says of an operation.
fn outline(write: &Write) -> Outlined {
    let of_definition = |op: &'static str, definition: &str| Outlined {
        op,
        definition: definition.into(),
        key: None,
        kind: OperationEffect::Change,
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
        Write::SetProtection(NewProtection { key, .. }) => of_definition(SET_PROTECTION, key),
        Write::DeleteDefinition { key, .. } => Outlined {
            kind: OperationEffect::DeleteDefinition,
            ..of_definition(DELETE_DEFINITION, key)
        },
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
            Outlined { kind: OperationEffect::Check, ..of_config(CHECK_CONFIG, definition, key) }
        }
        Write::Read { definition, key } => {
            Outlined { kind: OperationEffect::Read, ..of_config(GET_CONFIG, definition, key) }
        }
        // A batch has no such operations.
        Write::Batch(_)
        | Write::Transaction(_)
        | Write::UndeleteDefinition(_)
        | Write::Access(_)
        | Write::Audit(_)
        | Write::Environment(_)
        | Write::Change(_)
        | Write::Identity(_) => of_definition("", ""),
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

/// Reads the operations of a body.
fn parse(body: Value, limits: &Limits) -> Result<(Vec<Write>, Option<TransactionParts>), Problem> {
    let lists = [OPERATIONS, IF, THEN, ELSE].into_iter().filter_map(|name| body.get(name)?.as_array());
    let count: usize = lists.map(Vec::len).sum();
    if count > 0 {
        check_operation_count(count, limits).map_err(Refusal::Invalid)?;
    }
    if [IF, THEN, ELSE].into_iter().any(|name| body.get(name).is_some()) {
        let (operations, parts) = BodyFields::read(body, transaction)?;
        return Ok((operations, Some(parts)));
    }
    Ok((BodyFields::read(body, plain_batch)?, None))
}

/// The body of a batch without conditions.
pub(super) fn plain_batch(fields: &mut BodyFields) -> Vec<Write> {
    fields.required(OPERATIONS, &operation::OPERATIONS)
}

/// The body of a transaction: the operations of all three lists, in this order.
pub(super) fn transaction(fields: &mut BodyFields) -> (Vec<Write>, TransactionParts) {
    let conditions = fields.required(IF, &operation::CONDITIONS);
    let then = fields.optional(THEN, &operation::BRANCH).unwrap_or_default();
    let otherwise = fields.optional(ELSE, &operation::BRANCH).unwrap_or_default();
    if fields.has(OPERATIONS) {
        fields.violation_in(OPERATIONS, "`operations` can't be combined with `if`, `then` and `else`");
    }
    if conditions.is_empty() {
        fields.violation_in(IF, "expected at least one condition");
    }
    let parts = TransactionParts { conditions: conditions.len(), then: then.len() };
    ([conditions, then, otherwise].into_iter().flatten().collect(), parts)
}

#[cfg(test)]
mod tests;
