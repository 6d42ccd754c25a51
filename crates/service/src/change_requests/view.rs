//! What a client is shown of a change request.
//!
//! **Invariants:** nothing here shows data of a config. The name of a key and the label of its person are shown to those
//! who may make, approve or bypass changes of something in it, because a reviewer must know who asks; others see ids.

use super::{
    ChangePreview,
    rollout::{self, RolloutView},
    waits::{WaitView, unattested, waits},
};
use crate::{
    authors::sees_labels,
    editions::{
        FoundChange, TextOf, approvals_of, approvers,
        content::{Place, StoredOperation},
        environments_of, is_rejected, stale_operation, stale_revert_text, stale_text,
    },
    request::Principal,
};
use concord_model::{
    record::Revision,
    system::change::{
        AppliedWith, Change, ChangeDigest, CloseReason, Failure, Opinion, Party, Phase, Revert, RevertedBy,
        Scope, Timing, Vote,
    },
    time::Timestamp,
};
use concord_state::State;

/// A change request as a client sees it.
#[derive(Debug, Clone)]
pub struct ChangeView {
    /// Its id.
    pub id: String,
    /// What it is, in a line.
    pub title: String,
    /// Why; empty for nothing.
    pub description: String,
    /// `open`, `scheduled`, `rolling`, `held`, `applied` or `closed`.
    pub phase: &'static str,
    /// Whether it is a write that passed the rules.
    pub is_bypass: bool,
    /// The number of the current edition.
    pub edition: u32,
    /// What an approval names.
    pub digest: ChangeDigest,
    /// When it is applied, and taken back.
    pub timing: Timing,
    /// Who has left it to the cluster.
    pub scheduled: Option<ScheduledView>,
    /// How it is released in stages, while it is pending.
    pub rollout: Option<RolloutView>,
    /// The definitions that it changes.
    pub definitions: Vec<String>,
    /// The environment that it changes.
    pub environment: Option<String>,
    /// The environments whose rules it is under.
    pub environments: Vec<String>,
    /// What it does; `None` once its content is gone.
    pub operations: Option<Vec<OperationView>>,
    /// Who sent the edition.
    pub sender: PartyView,
    /// Whether the sender's key was attested then.
    pub is_attested: bool,
    /// The authors because of whom one more person must approve it.
    pub unattested: Vec<PartyView>,
    /// When the edition was sent.
    pub sent_at: Timestamp,
    /// When an open one is closed.
    pub expires_at: Option<Timestamp>,
    /// The senders of all editions.
    pub authors: Vec<PartyView>,
    /// How many persons must approve it, by the strictest rule.
    pub approvals_needed: u8,
    /// How many approvals count where the fewest do.
    pub approvals_counted: u8,
    /// Whether it can be applied now, as far as approvals go.
    pub is_approved: bool,
    /// Why it can't be applied as it is: a record that it rests on has changed.
    pub stale: Option<String>,
    /// What it waits for besides its approvals.
    pub waits: Option<WaitView>,
    /// What was said of the current edition.
    pub votes: Vec<VoteView>,
    /// How many persons must still review a bypass.
    pub reviews_missing: u8,
    /// How it was applied.
    pub applied: Option<AppliedView>,
    /// Whether it is or was taken back; `None` when it can't be.
    pub revert: Option<RevertView>,
    /// How it ended otherwise.
    pub closed: Option<ClosedView>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub modified_at: Timestamp,
    /// The revision of its record.
    pub revision: Revision,
    /// What it would change, if the client asked for it and it is not closed.
    pub preview: Option<ChangePreview>,
}

/// Someone in a change request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartyView {
    /// The id of the access key, or `root`.
    pub key: String,
    /// The id of its person.
    pub person: Option<String>,
    /// The person's label, for those who may know it.
    pub label: Option<String>,
    /// The name of the key while it exists, for the same.
    pub name: Option<String>,
}

/// What somebody has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteView {
    /// `approval`, `rejection` or `review`.
    pub opinion: &'static str,
    /// Who.
    pub by: PartyView,
    /// When.
    pub at: Timestamp,
    /// Whether an approval counts: the key exists and has the attestation that it had.
    pub counts: bool,
    /// Whether they saw the data without its secret values.
    pub is_redacted: bool,
    /// What they wrote.
    pub comment: String,
}

/// How a change request was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedView {
    /// The revision of all of its records.
    pub revision: Revision,
    /// When.
    pub at: Timestamp,
    /// Who applied it; `None` for the cluster.
    pub by: Option<PartyView>,
    /// Who had left it to the cluster.
    pub scheduled_by: Option<PartyView>,
    /// Whose approvals counted.
    pub approved_by: Vec<PartyView>,
}

/// Who has left a change request to the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledView {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: PartyView,
}

/// Whether a change request is or was taken back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevertView {
    /// `possible`, `armed`, `held`, `done`, `failed` or `kept`.
    pub state: &'static str,
    /// When the cluster takes it back, or would have.
    pub due_at: Option<Timestamp>,
    /// Until when a person may take it back.
    pub possible_until: Option<Timestamp>,
    /// The revision of all of its records, once it is done.
    pub revision: Option<Revision>,
    /// When it was done or failed, or somebody kept what was changed.
    pub at: Option<Timestamp>,
    /// Who did it; `None` for the cluster.
    pub by: Option<PartyView>,
    /// Whether somebody did it who had not approved the change.
    pub is_bypass: bool,
    /// Why the cluster could not.
    pub failure: Option<FailureView>,
    /// Why it can't be taken back as things are: a record has changed since.
    pub stale: Option<String>,
    /// What somebody wrote who kept what was changed.
    pub comment: Option<String>,
}

/// Why the cluster could not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureView {
    /// In a word.
    pub code: String,
    /// For a person.
    pub text: String,
}

impl From<&Failure> for FailureView {
    fn from(failure: &Failure) -> Self {
        Self { code: failure.code.clone(), text: failure.text.clone() }
    }
}

/// How a change request ended without having been applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedView {
    /// `withdrawn`, `expired`, `restored` or `failed`.
    pub reason: &'static str,
    /// Why the cluster could not apply it.
    pub failure: Option<FailureView>,
    /// When.
    pub at: Timestamp,
    /// Who; `None` for the cluster.
    pub by: Option<PartyView>,
    /// What they wrote.
    pub comment: String,
}

/// An operation of a change request, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationView {
    /// Its name, as in a batch.
    pub op: &'static str,
    /// Its definition.
    pub definition: Option<String>,
    /// Its config.
    pub config: Option<String>,
    /// Its environment.
    pub environment: Option<String>,
}

/// The name of a phase.
pub(super) fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Open => "open",
        Phase::Scheduled { .. } => "scheduled",
        Phase::Rolling { .. } => "rolling",
        Phase::Held => "held",
        Phase::Applied { .. } => "applied",
        Phase::Closed { .. } => "closed",
    }
}

/// The name of the state of a revert.
pub(super) fn revert_name(revert: &Revert) -> &'static str {
    match revert {
        Revert::ByHand { .. } => "possible",
        Revert::Armed { .. } => "armed",
        Revert::Held { .. } => "held",
        Revert::Done { .. } => "done",
        Revert::Failed { .. } => "failed",
        Revert::Ended { .. } => "kept",
    }
}

fn revert_view(revert: &Revert, party: &impl Fn(&Party) -> PartyView) -> RevertView {
    let mut view = RevertView { state: revert_name(revert), due_at: revert.due(), ..RevertView::default() };
    match revert {
        Revert::ByHand { until, .. } => view.possible_until = Some(*until),
        Revert::Armed { .. } | Revert::Held { .. } => {}
        Revert::Done { revision, at, by } => {
            (view.revision, view.at) = (Some(*revision), Some(*at));
            (view.by, view.is_bypass) = match by {
                RevertedBy::Cluster => (None, false),
                RevertedBy::Approver(by) => (Some(party(by)), false),
                RevertedBy::Bypass { by, .. } => (Some(party(by)), true),
            };
        }
        Revert::Failed { at, failure } => (view.at, view.failure) = (Some(*at), Some(failure.into())),
        Revert::Ended { at, by, comment } => {
            (view.at, view.by, view.comment) = (Some(*at), Some(party(by)), Some(comment.clone()));
        }
    }
    view
}

/// How much of a change request is looked up, and the time of the log.
#[derive(Debug, Clone, Copy)]
pub(super) enum ViewDepth {
    /// What a list shows: it does not read the operations of all its change requests, and builds no indexes for them.
    List(Timestamp),
    /// Everything.
    Whole(Timestamp),
}

/// A change request as the client sees it.
pub(super) fn of(
    state: &State,
    principal: &Principal,
    found: &FoundChange<'_>,
    depth: ViewDepth,
) -> ChangeView {
    let (with_operations, now) = match depth {
        ViewDepth::List(now) => (false, now),
        ViewDepth::Whole(now) => (true, now),
    };
    let change = found.change;
    let edition = &change.edition;
    let TextOf { title, description } = TextOf::of(found.record);
    let with_labels = sees_labels(principal, found.scope());
    let party = |party: &Party| party_view(state, party, with_labels);
    let parts = approvals_of(state, change);
    let missing = |(needed, counted): &(u8, u8)| needed.saturating_sub(*counted);
    let is_approved = !is_rejected(change) && parts.iter().all(|part| missing(part) == 0);
    let stored = if with_operations { found.content(state) } else { None };
    let operations = stored.map(|(_, stored)| stored.operations);
    let content = state.change_content(found.id()).filter(|_| change.is_pending());
    let failed = |bases| {
        if with_operations { state.failed_guard(bases) } else { state.failed_guard_at_hand(bases) }
    };
    let stale = content
        .and_then(|(content, _)| failed(&content.bases[..]))
        .map(|base| stale_text(state, base))
        .or_else(|| operations.iter().flatten().find_map(|operation| stale_operation(state, operation)));
    let operations = operations.map(|operations| operations.iter().map(operation).collect());
    let (applied, closed) = ended(&change.phase, &party);
    let scheduled = match &change.phase {
        Phase::Scheduled { by, at } => Some(ScheduledView { at: *at, by: party(by) }),
        Phase::Open | Phase::Rolling { .. } | Phase::Held | Phase::Applied { .. } | Phase::Closed { .. } => {
            None
        }
    };
    let mut revert = change.revert.as_ref().map(|revert| revert_view(revert, &party));
    if let (Some(revert), Some(content)) = (&mut revert, state.change_before(found.id())) {
        let is_possible = matches!(revert.state, "possible" | "armed" | "held");
        let changed = failed(&content.bases[..]).filter(|_| is_possible);
        revert.stale = changed.map(|changed| stale_revert_text(state, changed));
    }
    let (definitions, environment) = match found.scope() {
        Scope::Definitions(keys) => (keys.iter().map(ToString::to_string).collect(), None),
        Scope::Environment(name) => (Vec::new(), Some(name.to_string())),
    };
    ChangeView {
        id: found.id().to_string(),
        title,
        description,
        phase: phase_name(&change.phase),
        is_bypass: change.is_bypass(),
        edition: edition.number,
        digest: edition.digest,
        timing: edition.timing,
        scheduled,
        rollout: state.rollout(found.id()).map(|rollout| rollout::of(state, (change, rollout), now, &party)),
        definitions,
        environment,
        environments: environments_of(state, found.scope()).into_iter().collect(),
        operations,
        sender: party(&edition.sender),
        is_attested: edition.is_attested,
        unattested: unattested(state, change, &party),
        sent_at: edition.sent_at,
        expires_at: change.expires_at(),
        authors: change.authors.iter().map(party).collect(),
        approvals_needed: parts.iter().map(|(needed, _)| *needed).max().unwrap_or(0),
        approvals_counted: parts.iter().max_by_key(|part| missing(part)).map_or(0, |(_, counted)| *counted),
        is_approved,
        waits: waits(state, change, is_approved && stale.is_none(), now),
        stale,
        votes: votes(state, change, &party),
        reviews_missing: change.reviews_missing(),
        applied,
        revert,
        closed,
        created_at: found.record.created_at,
        modified_at: found.record.modified_at,
        revision: found.record.revision,
        preview: None,
    }
}

/// What was said of the current edition.
fn votes(state: &State, change: &Change, party: &impl Fn(&Party) -> PartyView) -> Vec<VoteView> {
    let counting: Vec<_> = approvers(state, change).into_iter().map(|(_, key)| key.id.clone()).collect();
    let view = |vote: &Vote| VoteView {
        opinion: match vote.opinion {
            Opinion::Approval => "approval",
            Opinion::Rejection => "rejection",
            Opinion::Review => "review",
        },
        by: party(&vote.by),
        at: vote.at,
        counts: match (vote.opinion, &vote.by) {
            (Opinion::Approval, Party::Key { id, .. }) => counting.contains(id),
            (Opinion::Approval, Party::Root | Party::Machine(_)) => false,
            (Opinion::Rejection | Opinion::Review, _) => true,
        },
        is_redacted: vote.is_redacted,
        comment: vote.comment.clone(),
    };
    change.current_votes().map(view).collect()
}

/// How it was applied, or how it ended otherwise.
fn ended(phase: &Phase, party: &impl Fn(&Party) -> PartyView) -> (Option<AppliedView>, Option<ClosedView>) {
    match phase {
        Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } | Phase::Held => (None, None),
        Phase::Applied { revision, at, by, with, scheduled_by } => {
            let approved_by = match with {
                AppliedWith::Approvals(all) => all.iter().map(party).collect(),
                AppliedWith::Bypass => Vec::new(),
            };
            let (by, scheduled_by) = (by.as_ref().map(party), scheduled_by.as_ref().map(party));
            (Some(AppliedView { revision: *revision, at: *at, by, scheduled_by, approved_by }), None)
        }
        Phase::Closed { reason, at, by, comment } => {
            let (reason, failure) = (close_reason_name(reason), failure_of(reason));
            let (by, comment) = (by.as_ref().map(party), comment.clone());
            (None, Some(ClosedView { reason, failure, at: *at, by, comment }))
        }
    }
}

fn close_reason_name(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::Withdrawn => "withdrawn",
        CloseReason::Expired => "expired",
        CloseReason::Restored => "restored",
        CloseReason::Failed(_) => "failed",
    }
}

fn failure_of(reason: &CloseReason) -> Option<FailureView> {
    if let CloseReason::Failed(failure) = reason { Some(failure.into()) } else { None }
}

/// Why it was closed, if it was.
pub(super) fn close_reason(phase: &Phase) -> Option<&'static str> {
    if let Phase::Closed { reason, .. } = phase { Some(close_reason_name(reason)) } else { None }
}

fn operation(operation: &StoredOperation) -> OperationView {
    let (definition, config, environment) = match operation.place() {
        Place::Definition(definition) => (Some(definition.to_string()), None, None),
        Place::Config(definition, config) => (Some(definition.to_string()), Some(config.to_string()), None),
        Place::Environment(name) => (None, None, Some(name.to_string())),
    };
    OperationView { op: operation.name(), definition, config, environment }
}

pub(super) fn party_view(state: &State, party: &Party, with_label: bool) -> PartyView {
    let named = |key: &str| PartyView { key: key.to_owned(), person: None, label: None, name: None };
    let (id, person) = match party {
        Party::Root => return named("root"),
        Party::Machine(machine) => return named(&machine.name),
        Party::Key { id, person } => (id, person),
    };
    let label = person.filter(|_| with_label).and_then(|person| state.person(person));
    let key = state.access_key(id).filter(|_| with_label);
    PartyView {
        key: id.to_string(),
        person: person.map(|person| person.to_string()),
        label: label.map(|person| person.label.to_string()),
        name: key.map(|key| key.name.clone()),
    }
}
