//! Change requests: create, list, get, edit, rebase, approve, reject, review, apply, revert, keep, withdraw.
//!
//! **Invariant:** a change request that the client may not see is answered as one that does not exist.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::{Value, json};
use utoipa::openapi::ObjectBuilder;

use super::{
    batch::{
        self,
        operation::{OP, changing, for_change, for_put, named_operation, with_op},
    },
    body::fields::{self, BodyFields, FieldType, KEY, array, schema_of},
    condition::Condition,
    definitions,
    endpoints::CHANGE_REQUESTS,
    environments::{self, TIME},
    extract::{BodyRequest, ReadRequest, query_violation},
    json::Object,
    openapi::schemas::{NamedSchema, integer, one_of, reference, text},
    reply::{Problem, Rendering, Reply},
    rollouts::{self, PLAN},
};
use concord_model::{
    command::Expect,
    error::{Invalid, Violation},
    limits::{
        CHANGE_COMMENT_BYTES_MAX, CHANGE_DESCRIPTION_BYTES_MAX, CHANGE_OPERATIONS_MAX,
        CHANGE_TITLE_BYTES_MAX, Limits, REVERT_AFTER_S_MAX,
    },
    query::{self, QueryError},
    record::Revision,
    system::{
        change::{ApplyMode, Timing, Window},
        rollout::Plan,
    },
    time::Timestamp,
};
use concord_service::{
    ChangeJudgement, ChangePreview, ChangeQuery, ChangeView, ChangeWrite, DefinitionOperation,
    EnvironmentWrite, FailureView, NewEdition, OperationView, PartyView, ProposedOperations, RecordPreview,
    Refusal, Rollbacks, Service, Share, StoredChange, VoteView, WaitView, Write,
};

/// The phases of change requests, as a list selects them.
pub(super) const PHASES: [&str; 6] = ["open", "scheduled", "rolling", "held", "applied", "closed"];
/// The states of reverts, as a list selects them.
pub(super) const REVERTS: [&str; 6] = ["possible", "armed", "held", "done", "failed", "kept"];
/// Who applies a change request: the names in a body.
pub(super) const APPLY_MODES: [&str; 2] = ["manual", "when_approved"];
/// How long a window is if its end is not given: an hour.
const WINDOW_US: u64 = 60 * 60 * 1_000_000;

const UNDELETE_DEFINITION: &str = "undelete_definition";
const PUT_ENVIRONMENT: &str = "put_environment";
const DELETE_ENVIRONMENT: &str = "delete_environment";

/// An edition in a body. Its key is drawn when it has been read.
#[derive(Debug, Default)]
pub(super) struct EditionBody {
    title: String,
    description: String,
    operations: Vec<Proposed>,
    timing: Timing,
    plan: Option<Plan>,
}

/// An operation in a body.
#[derive(Debug)]
enum Proposed {
    Record(Write),
    Undelete(String),
    Environment(EnvironmentWrite),
}

/// The body that creates or replaces an edition.
pub(super) fn edition(fields: &mut BodyFields) -> EditionBody {
    const TITLE: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| text().min_length(Some(1)).max_length(Some(CHANGE_TITLE_BYTES_MAX)).into(),
    };
    const DESCRIPTION: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| text().max_length(Some(CHANGE_DESCRIPTION_BYTES_MAX)).into(),
    };
    const OPERATIONS: FieldType<Vec<Proposed>> = FieldType {
        read: |value, fields| {
            let too_many = format!("a change request has at most {CHANGE_OPERATIONS_MAX} operations");
            fields.bounded_list(value, CHANGE_OPERATIONS_MAX, &too_many, |item, fields| {
                fields.object(item, operation).flatten()
            })
        },
        schema: |_| array(reference("ProposedOperation"), CHANGE_OPERATIONS_MAX).min_items(Some(1)).into(),
    };
    EditionBody {
        title: fields.required("title", &TITLE),
        description: fields.optional("description", &DESCRIPTION).unwrap_or_default(),
        operations: fields.required("operations", &OPERATIONS),
        timing: timing(fields),
        plan: fields.nullable("rollout", &PLAN),
    }
}

/// The components that the body of an edition refers to, beside those of a batch.
pub(super) fn components(limits: &Limits) -> Vec<NamedSchema> {
    let own = [
        (UNDELETE_DEFINITION, "UndeleteDefinitionOperation", schema_of(limits, undelete_definition)),
        (PUT_ENVIRONMENT, "PutEnvironmentOperation", schema_of(limits, put_environment)),
        (DELETE_ENVIRONMENT, "DeleteEnvironmentOperation", schema_of(limits, delete_environment)),
    ];
    let names = own.iter().map(|(name, component, _)| (*name, *component));
    let any = one_of("op", &changing().chain(names).collect::<Vec<_>>());
    let alone = Some("the only operation of its change request");
    let own = own.into_iter().map(|(name, component, members)| {
        let operation: NamedSchema = (component, with_op(name, members).description(alone).into());
        operation
    });
    own.chain([("ProposedOperation", any.into())]).collect()
}

/// When an edition is applied, and taken back.
fn timing(fields: &mut BodyFields) -> Timing {
    const APPLY: FieldType<ApplyMode> = FieldType {
        read: |value, fields| {
            let text = fields::string(value, fields)?;
            let mode = match text.as_str() {
                "manual" => Some(ApplyMode::Manual),
                "when_approved" => Some(ApplyMode::WhenApproved),
                _ => None,
            };
            if mode.is_none() {
                fields.violation(&[], format!("expected one of `{}`", APPLY_MODES.join("`, `")));
            }
            mode
        },
        schema: |_| text().enum_values(Some(APPLY_MODES)).into(),
    };
    const SCHEDULE: FieldType<Window> = FieldType {
        read: |value, fields| fields.object(value, window),
        schema: |limits| schema_of(limits, window).into(),
    };
    const REVERT_AFTER: FieldType<u32> = FieldType {
        read: |value, fields| {
            let seconds = u32::try_from(fields::integer(value, fields)?).ok();
            let seconds = seconds.filter(|seconds| (1..=REVERT_AFTER_S_MAX).contains(seconds));
            if seconds.is_none() {
                fields.violation(&[], format!("expected a number of seconds from 1 to {REVERT_AFTER_S_MAX}"));
            }
            seconds
        },
        schema: |_| integer(1).maximum(Some(REVERT_AFTER_S_MAX)).into(),
    };
    Timing {
        apply: fields.optional("apply", &APPLY).unwrap_or_default(),
        window: fields.nullable("schedule", &SCHEDULE),
        revert_after_s: fields.nullable("revert_after_s", &REVERT_AFTER),
    }
}

fn window(fields: &mut BodyFields) -> Window {
    let not_before: Timestamp = fields.required("not_before", &TIME);
    let not_after = fields.nullable("not_after", &TIME);
    Window { not_before, not_after: not_after.unwrap_or(Timestamp(not_before.0.saturating_add(WINDOW_US))) }
}

fn operation(fields: &mut BodyFields) -> Option<Proposed> {
    let name = fields.required("op", &OP);
    match name.as_str() {
        UNDELETE_DEFINITION => Some(undelete_definition(fields)),
        PUT_ENVIRONMENT => Some(put_environment(fields)),
        DELETE_ENVIRONMENT => Some(delete_environment(fields)),
        name => named_operation(name, fields).map(Proposed::Record),
    }
}

fn undelete_definition(fields: &mut BodyFields) -> Proposed {
    Proposed::Undelete(fields.required(definitions::KEY, &KEY))
}

const ENVIRONMENT_NAME: FieldType<String> = FieldType { read: fields::string, schema: |_| text().into() };

fn put_environment(fields: &mut BodyFields) -> Proposed {
    let name = fields.required(environments::NAME, &ENVIRONMENT_NAME);
    let expect = for_put(fields).unwrap_or(Expect::Any);
    let rules = environments::rules(fields);
    Proposed::Environment(EnvironmentWrite::Put { name, rules, expect })
}

fn delete_environment(fields: &mut BodyFields) -> Proposed {
    let name = fields.required(environments::NAME, &ENVIRONMENT_NAME);
    Proposed::Environment(EnvironmentWrite::Delete { name, expect: for_change(fields) })
}

impl EditionBody {
    /// The edition as the service takes it, with the data that its rollbacks write, and with the memory that these hold
    /// until it is decided.
    async fn into_edition(
        self,
        service: &Service,
        request: &BodyRequest,
    ) -> Result<(NewEdition, Option<Plan>, Rollbacks), Problem> {
        let Self { title, description, operations, timing, plan } = self;
        let is_alone = operations.len() == 1;
        let mut records = Vec::with_capacity(operations.len());
        let mut alone = None;
        for (place, operation) in (0..).zip(operations) {
            match operation {
                Proposed::Record(write) => records.push(write),
                Proposed::Undelete(key) if is_alone => alone = Some(ProposedOperations::Undelete { key }),
                Proposed::Environment(write) if is_alone => {
                    alone = Some(ProposedOperations::Environment(write));
                }
                Proposed::Undelete(_) | Proposed::Environment(_) => {
                    let loc = vec![
                        "operations".into(),
                        concord_model::error::LocSegment::Index(place),
                        "op".into(),
                    ];
                    let msg = "this operation is alone in its change request";
                    return Err(Problem::violation(Violation::at(loc, msg)));
                }
            }
        }
        let mut rollbacks = service.writes.begin_rollbacks(&request.caller);
        if alone.is_none() {
            batch::restore(service, &mut rollbacks, &mut records, None).await?;
        }
        let operations = alone.unwrap_or(ProposedOperations::Records(records));
        let seal = concord_service::random_seal()?;
        Ok((NewEdition { title, description, operations, timing, seal }, plan, rollbacks))
    }
}

/// Bytes of somebody with their names, and of what is said of a vote beside its comment.
const PARTY_BYTES: usize = 200;

/// The body that names the digest of what a person was shown.
pub(super) fn judged(fields: &mut BodyFields) -> (Option<[u8; 32]>, String) {
    let (digest, comment) = kept(fields);
    (Some(digest), comment)
}

/// The body that applies an edition.
pub(super) fn applied(fields: &mut BodyFields) -> [u8; 32] {
    fields.required("digest", &DIGEST)
}

/// The body that keeps what an edition has changed.
pub(super) fn kept(fields: &mut BodyFields) -> ([u8; 32], String) {
    (fields.required("digest", &DIGEST), fields.optional("comment", &COMMENT).unwrap_or_default())
}

/// The body that withdraws a change request.
pub(super) fn withdrawn(fields: &mut BodyFields) -> String {
    fields.optional("comment", &COMMENT).unwrap_or_default()
}

pub(super) const COMMENT: FieldType<String> =
    FieldType { read: fields::string, schema: |_| text().max_length(Some(CHANGE_COMMENT_BYTES_MAX)).into() };

const DIGEST: FieldType<[u8; 32]> = FieldType {
    read: |value, fields| {
        let text = fields::string(value, fields)?;
        let digest = parse_digest(&text);
        if digest.is_none() {
            fields.violation(&[], "expected the `digest` of the change request, 64 hexadecimal digits");
        }
        digest
    },
    schema: |_| digest_schema().into(),
};

/// The schema of a digest.
pub(super) fn digest_schema() -> ObjectBuilder {
    text().pattern(Some("^[0-9a-f]{64}$"))
}

fn parse_digest(text: &str) -> Option<[u8; 32]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

pub(super) fn digest_text(digest: &[u8; 32]) -> String {
    HEXLOWER.encode(digest)
}

/// Creates a change request.
pub(super) async fn create(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    request.condition.for_create()?;
    let body = request.read(&service, edition).await?;
    let (edition, plan, _held) = body.into_edition(&service, &request).await?;
    let id = concord_service::new_change_id(request.caller.idempotency_key)?;
    let write = match plan {
        None => ChangeWrite::Create { id, edition },
        Some(plan) => ChangeWrite::CreateStaged { id, edition, plan },
    };
    let stored = service.changes.write(request.caller, write).await?;
    let location = format!("{CHANGE_REQUESTS}{}", stored.change.id);
    let data = record(&stored.change).to_string();
    Ok(Reply::created("change request created", &data, &location).for_change(&stored))
}

/// Lists the change requests that the client may see.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let parsed = parse_query(&request, &service);
    let (consistency, query) = request.params.with_consistency(parsed)?;
    let page = query.page.clone();
    let (found, revision) = service.changes.list(&request.principal, query, consistency).await?;
    let size = |change: &ChangeView| {
        let comments: usize = change.votes.iter().map(|vote| PARTY_BYTES + vote.comment.len()).sum();
        let keys: usize = change.definitions.iter().map(|key| key.len() + 3).sum();
        change.title.len() + change.description.len() + comments + keys + change.authors.len() * PARTY_BYTES
    };
    let render = |object: Object, change: &ChangeView| {
        let Value::Object(members) = record(change) else { return object };
        // Names of members are those of `record`, which needs no escaping.
        members.into_iter().fold(object, |object, (name, value)| object.member(&name, &value))
    };
    let reservation = service.cx.reservation(Share::Callers);
    let reply = Reply::page("change requests found", found, reservation, &page, Rendering { size, render });
    Ok(reply.state_revision(revision).no_store())
}

fn parse_query(request: &ReadRequest, service: &Service) -> Result<ChangeQuery, QueryError> {
    let mut violations = Vec::new();
    let page = query::page(&request.params.0, service.cx.limits(), &mut violations)?;
    let phase = request.params.get("phase").map(str::to_owned);
    if phase.as_deref().is_some_and(|phase| !PHASES.contains(&phase)) {
        let msg = format!("`phase` must be one of `{}`", PHASES.join("`, `"));
        violations.push(query_violation("phase", msg));
    }
    let [unreviewed, mine, needs_me] =
        ["unreviewed", "mine", "needs_me"].map(|name| match request.params.get(name) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                violations.push(query_violation(name, format!("`{name}` must be `true` or `false`")));
                false
            }
        });
    let revert = request.params.get("revert").map(str::to_owned);
    if revert.as_deref().is_some_and(|state| !REVERTS.contains(&state)) {
        let msg = format!("`revert` must be one of `{}`", REVERTS.join("`, `"));
        violations.push(query_violation("revert", msg));
    }
    let environment = request.params.get("environment").map(str::to_owned);
    if violations.is_empty() {
        Ok(ChangeQuery { page, phase, environment, unreviewed, revert, mine, needs_me })
    } else {
        Err(QueryError::Violations(violations))
    }
}

/// Gets a change request.
pub(super) async fn get(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let with_preview = match request.params.get("include") {
        None => Ok(false),
        Some("preview") => Ok(true),
        Some(_) => {
            let msg = "`include` must be `preview` or absent";
            Err(QueryError::Violations(vec![query_violation("include", msg)]))
        }
    };
    let (consistency, with_preview) = request.params.with_consistency(with_preview)?;
    let name = request.name();
    // The memory of the preview is held until its text is made: from then on the response is weighed as any other.
    let mut held = service.cx.reservation(Share::Callers);
    let found =
        service.changes.get(&request.principal, &name, with_preview, (consistency, &mut held)).await?;
    let (change, revision) = found;
    let (version, modified_at) = (change.revision, change.modified_at);
    let write = move || Reply::ok("change request found", &record(&change).to_string());
    let reply = if with_preview { service.cx.run_long(write).await? } else { write() };
    drop(held);
    Ok(reply.record_version(version, modified_at).state_revision(revision).no_store())
}

/// Replaces the edition of a change request.
pub(super) async fn edit(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let if_match = if_match(request.condition)?;
    let body = request.read(&service, edition).await?;
    let (edition, plan, _held) = body.into_edition(&service, &request).await?;
    let id = request.name;
    let write = match plan {
        None => ChangeWrite::Edit { id, edition, if_match },
        Some(plan) => ChangeWrite::EditStaged { id, edition, plan, if_match },
    };
    answered("change request edited", service.changes.write(request.caller, write).await)
}

/// Makes an edition of the same operations on the current records.
pub(super) async fn rebase(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let if_match = if_match(request.condition)?;
    let write = ChangeWrite::Rebase { id: request.name, seal: concord_service::random_seal()?, if_match };
    answered("change request rebased", service.changes.write(request.caller, write).await)
}

/// Approves an edition.
pub(super) async fn approve(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    judge(service, request, ChangeJudgement::Approve, "change request approved").await
}

/// Rejects an edition.
pub(super) async fn reject(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    judge(service, request, ChangeJudgement::Reject, "change request rejected").await
}

/// Reviews a bypass.
pub(super) async fn review(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    judge(service, request, ChangeJudgement::Review, "bypass reviewed").await
}

async fn judge(
    service: Service,
    request: BodyRequest,
    judgement: ChangeJudgement,
    message: &'static str,
) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let (digest, comment) = request.read(&service, judged).await?;
    let digest = digest.unwrap_or_default();
    let write = ChangeWrite::Judge { id: request.name, judgement, digest, comment };
    answered(message, service.changes.write(request.caller, write).await)
}

/// Applies an edition.
pub(super) async fn apply(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let digest = request.read(&service, applied).await?;
    let write = ChangeWrite::Apply { id: request.name, digest };
    let stored = service.changes.write(request.caller, write).await;
    let shown = stored.as_ref().map(|stored| &stored.change).ok();
    let message = match shown.filter(|change| change.digest == digest).map(|change| change.phase) {
        Some("scheduled") => "change request scheduled",
        Some("rolling") => "rollout begun",
        Some("applied") => "change request applied",
        // It was done; perhaps the request is a retry.
        Some(_) | None => "done before; the change request has changed since",
    };
    answered(message, stored)
}

/// Takes back what was applied.
pub(super) async fn revert(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let digest = request.read(&service, applied).await?;
    let write = ChangeWrite::Revert { id: request.name, digest };
    answered("change request taken back", service.changes.write(request.caller, write).await)
}

/// Keeps what a change request has changed, although it was to be taken back.
pub(super) async fn keep(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let (digest, comment) = request.read(&service, kept).await?;
    let write = ChangeWrite::Keep { id: request.name, digest, comment };
    answered("change kept", service.changes.write(request.caller, write).await)
}

/// Withdraws a change request.
pub(super) async fn withdraw(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let comment = request.read(&service, withdrawn).await?;
    let write = ChangeWrite::Withdraw { id: request.name, comment };
    answered("change request withdrawn", service.changes.write(request.caller, write).await)
}

pub(super) fn answered(
    message: &'static str,
    stored: Result<StoredChange, Refusal>,
) -> Result<Reply, Problem> {
    let stored = stored?;
    Ok(Reply::ok(message, &record(&stored.change).to_string()).for_change(&stored))
}

/// The revision that the record of an edited change request must have.
fn if_match(condition: Condition) -> Result<Option<Revision>, Problem> {
    match condition.for_change()? {
        Expect::At(revision) => Ok(Some(revision)),
        Expect::Any | Expect::Present | Expect::Absent | Expect::None | Expect::Read(_) => Ok(None),
    }
}

/// A digest says more than a revision does.
pub(super) fn unconditional(condition: Condition) -> Result<(), Problem> {
    if condition == Condition::Unconditional {
        return Ok(());
    }
    let msg = "this request names the digest, and takes no condition";
    Err(Refusal::Invalid(Invalid::from(Violation::at(vec!["header".into()], msg))).into())
}

/// A change request as JSON.
fn record(change: &ChangeView) -> Value {
    let time = |time: Timestamp| time.to_string();
    let votes = |opinion: &str| -> Vec<Value> {
        change.votes.iter().filter(|vote| vote.opinion == opinion).map(vote).collect()
    };
    let mut times = times(change);
    let mut when = |name: &str| times[name].take();
    let mut object = json!({
        "change_id": change.id,
        "title": change.title,
        "description": change.description,
        "phase": change.phase,
        "bypass": change.is_bypass,
        "edition": change.edition,
        "digest": digest_text(&change.digest),
        "apply": when("apply"),
        "schedule": when("schedule"),
        "revert_after_s": change.timing.revert_after_s,
        "scheduled": when("scheduled"),
        "rollout": change.rollout.as_ref().map(rollouts::rollout),
        "config_definition_keys": change.definitions,
        "environment": change.environment,
        "environments": change.environments,
        "sender": party(&change.sender),
        "attested": change.is_attested,
        "unattested": change.unattested.iter().map(party).collect::<Vec<_>>(),
        "sent_at": time(change.sent_at),
        "expires_at": change.expires_at.map(time),
        "authors": change.authors.iter().map(party).collect::<Vec<_>>(),
        "approvals_needed": change.approvals_needed,
        "approvals_counted": change.approvals_counted,
        "approved": change.is_approved,
        "stale": change.stale,
        "waits": change.waits.as_ref().map(wait),
        "approvals": votes("approval"),
        "rejections": votes("rejection"),
        "reviews": votes("review"),
        "reviews_missing": change.reviews_missing,
        "applied": when("applied"),
        "revert": when("revert"),
        "closed": when("closed"),
        "created_at": time(change.created_at),
        "modified_at": time(change.modified_at),
        "revision": change.revision,
    });
    if let Some(operations) = &change.operations {
        object["operations"] = operations.iter().map(operation_view).collect();
    }
    if let Some(preview) = &change.preview {
        object["preview"] = preview_json(preview);
    }
    object
}

/// When it is to be applied and taken back, and what became of it.
fn times(change: &ChangeView) -> Value {
    let time = |time: Timestamp| time.to_string();
    let apply = match change.timing.apply {
        ApplyMode::Manual => "manual",
        ApplyMode::WhenApproved => "when_approved",
    };
    let window = change.timing.window;
    let schedule = window
        .map(|window| json!({ "not_before": time(window.not_before), "not_after": time(window.not_after) }));
    let scheduled = change.scheduled.as_ref();
    let scheduled =
        scheduled.map(|scheduled| json!({ "at": time(scheduled.at), "by": party(&scheduled.by) }));
    let applied = change.applied.as_ref().map(|applied| {
        json!({
            "revision": applied.revision, "at": time(applied.at), "by": applied.by.as_ref().map(party),
            "scheduled_by": applied.scheduled_by.as_ref().map(party),
            "approved_by": applied.approved_by.iter().map(party).collect::<Vec<_>>(),
        })
    });
    let revert = change.revert.as_ref().map(|revert| {
        json!({
            "state": revert.state, "due_at": revert.due_at.map(time),
            "possible_until": revert.possible_until.map(time), "revision": revert.revision,
            "at": revert.at.map(time), "by": revert.by.as_ref().map(party), "bypass": revert.is_bypass,
            "error": revert.failure.as_ref().map(failure), "stale": revert.stale, "comment": revert.comment,
        })
    });
    let closed = change.closed.as_ref().map(|closed| {
        json!({
            "reason": closed.reason, "at": time(closed.at), "by": closed.by.as_ref().map(party),
            "comment": closed.comment, "error": closed.failure.as_ref().map(failure),
        })
    });
    json!({
        "apply": apply, "schedule": schedule, "scheduled": scheduled, "applied": applied, "revert": revert,
        "closed": closed,
    })
}

/// An operation as JSON, without what it writes.
fn operation_view(operation: &OperationView) -> Value {
    let mut object = json!({ "op": operation.op });
    for (name, value) in [
        (definitions::KEY, &operation.definition),
        ("config_key", &operation.config),
        (environments::NAME, &operation.environment),
    ] {
        if let Some(value) = value {
            object[name] = value.clone().into();
        }
    }
    object
}

/// An approval, a rejection or a review as JSON.
fn vote(vote: &VoteView) -> Value {
    let mut object = party(&vote.by);
    object["at"] = vote.at.to_string().into();
    object["comment"] = vote.comment.clone().into();
    object["redacted"] = vote.is_redacted.into();
    if vote.opinion == "approval" {
        object["counts"] = vote.counts.into();
    }
    object
}

/// What a change request waits for, as JSON.
fn wait(wait: &WaitView) -> Value {
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
    json!({
        "for": wait.reason, "environment": wait.environment, "since": time(wait.since), "until": time(wait.until),
    })
}

/// Why the cluster could not do something, as JSON.
fn failure(failure: &FailureView) -> Value {
    json!({ "code": failure.code, "msg": failure.text })
}

/// Somebody, as JSON.
pub(super) fn party(party: &PartyView) -> Value {
    json!({
        "key_id": party.key, "name": party.name, "person_id": party.person, "person": party.label,
    })
}

fn preview_json(preview: &ChangePreview) -> Value {
    let records: Vec<Value> = preview.records.iter().map(record_preview).collect();
    let effect =
        preview.effect.map(|effect| json!({ "definitions": effect.definitions, "configs": effect.configs }));
    json!({ "records": records, "environment_effect": effect })
}

fn record_preview(record: &RecordPreview) -> Value {
    let mut object = json!({});
    for (name, value) in [
        (definitions::KEY, &record.definition),
        ("config_key", &record.config),
        (environments::NAME, &record.environment),
    ] {
        if let Some(value) = value {
            object[name] = value.clone().into();
        }
    }
    object["base_revision"] = record.base.into();
    object["revision"] = record.current.into();
    object["before"] = record.before.clone().unwrap_or_default();
    object["after"] = record.after.clone().unwrap_or_default();
    object["fields"] = record.fields.clone().into();
    object["redacted"] = record.redacted.clone().into();
    object["before_omitted"] = record.is_cut.into();
    object["fields_omitted"] = record.has_more_fields.into();
    object["deleted"] = record.after.is_none().into();
    if !record.operations.is_empty() {
        object["operations"] = record.operations.iter().map(definition_operation).collect::<Vec<_>>().into();
    }
    for (name, count) in [("configs", record.configs), ("returned_configs", record.returned)] {
        if let Some(count) = count {
            object[name] = count.into();
        }
    }
    object
}

fn definition_operation(operation: &DefinitionOperation) -> Value {
    let mut object = json!({ "op": operation.op });
    for (name, value) in [("force", operation.force), ("restrict", operation.restrict)] {
        if let Some(value) = value {
            object[name] = value.into();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest: [u8; 32] = std::array::from_fn(|place| u8::try_from(place * 8).unwrap());
        assert_eq!(parse_digest(&digest_text(&digest)), Some(digest));
        for wrong in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(parse_digest(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_body_has_the_operations_of_a_batch_and_three_that_are_alone() {
        let read =
            |operations: Value| BodyFields::read(json!({ "title": "t", "operations": operations }), edition);
        let put = json!({"op": "put_config", "config_definition_key": "d", "config_key": "k", "data": {}});
        let undelete = json!({"op": "undelete_definition", "config_definition_key": "d"});
        let environment = json!({"op": "put_environment", "environment": "prod", "freeze": []});
        let all = read(json!([put, undelete, environment])).unwrap();
        assert!(matches!(
            all.operations[..],
            [Proposed::Record(_), Proposed::Undelete(_), Proposed::Environment(_)]
        ));
        assert!(read(json!([{"op": "drop_tables"}])).is_err());
        assert!(
            read(json!([{"op": "put_environment", "environment": "prod"}])).is_err(),
            "no list of freezes"
        );
        assert!(BodyFields::read(json!({"title": "t", "operations": [], "shedule": {}}), edition).is_err());
        let expected = |condition: Value| {
            let mut put = json!({"op": "put_environment", "environment": "prod", "freeze": []});
            for (name, value) in condition.as_object().unwrap() {
                put[name] = value.clone();
            }
            let mut read = read(json!([put])).ok()?;
            match read.operations.pop() {
                Some(Proposed::Environment(EnvironmentWrite::Put { expect, .. })) => Some(expect),
                _ => None,
            }
        };
        assert_eq!(expected(json!({})), Some(Expect::Any));
        assert_eq!(expected(json!({"if_match": "7"})), Some(Expect::At(7)));
        assert_eq!(expected(json!({"if_none_match": "*"})), Some(Expect::None));
        assert_eq!(expected(json!({"if_match": "7", "if_none_match": "*"})), None);
    }

    #[test]
    fn a_body_says_when_it_is_applied_and_taken_back() {
        let read = |more: Value| {
            let mut body = json!({"title": "t", "operations": [{"op": "delete_config", "config_definition_key": "d", "config_key": "k"}]});
            for (name, value) in more.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            BodyFields::read(body, edition).map(|read| read.timing)
        };
        assert_eq!(read(json!({})).unwrap(), Timing::default());
        let begin = "1970-01-01T00:00:01Z";
        let timing = read(
            json!({"apply": "when_approved", "schedule": {"not_before": begin}, "revert_after_s": 7200}),
        );
        let window = Window { not_before: Timestamp(1_000_000), not_after: Timestamp(3_601_000_000) };
        let expected =
            Timing { apply: ApplyMode::WhenApproved, window: Some(window), revert_after_s: Some(7200) };
        assert_eq!(timing.unwrap(), expected);
        for wrong in [
            json!({"apply": "now"}),
            json!({"schedule": {}}),
            json!({"schedule": {"not_after": begin}}),
            json!({"schedule": {"not_before": begin, "until": begin}}),
            json!({"schedule": {"not_before": 7}}),
            json!({"revert_after_s": 0}),
            json!({"revert_after_s": 604_801}),
            json!({"revert_after_s": 1.5}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
