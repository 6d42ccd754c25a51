//! What a client is shown of a change request.
//!
//! **Invariants:** nothing here shows data of a config. A label of a person is shown to those who may make, approve or
//! bypass changes of something in it, because a reviewer must know who asks; others see ids.

use super::ChangePreview;
use crate::{
    editions::{
        FoundChange, TextOf, approvals_of, approvers,
        content::{Place, StoredOperation},
        is_rejected, stale_base, stale_operation,
    },
    request::Principal,
};
use concord_model::{
    access_key::Verb,
    limits::EDITION_AGE_US_MAX,
    record::Revision,
    system::change::{AppliedWith, ChangeDigest, CloseReason, Opinion, Party, Phase, Scope, Vote},
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
    /// `open`, `held`, `applied` or `closed`.
    pub phase: &'static str,
    /// Whether it is a write that passed the rules.
    pub is_bypass: bool,
    /// The number of the current edition.
    pub edition: u32,
    /// What an approval names.
    pub digest: ChangeDigest,
    /// The definitions that it changes.
    pub definitions: Vec<String>,
    /// The environment that it changes.
    pub environment: Option<String>,
    /// What it does; `None` once its content is gone.
    pub operations: Option<Vec<OperationView>>,
    /// Who sent the edition.
    pub sender: PartyView,
    /// Whether the sender's key was attested then.
    pub is_attested: bool,
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
    /// What was said of the current edition.
    pub votes: Vec<VoteView>,
    /// How many persons must still review a bypass.
    pub reviews_missing: u8,
    /// How it was applied.
    pub applied: Option<AppliedView>,
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
    /// Who applied it.
    pub by: PartyView,
    /// Whose approvals counted.
    pub approved_by: Vec<PartyView>,
}

/// How a change request ended without having been applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedView {
    /// `withdrawn`, `expired` or `restored`.
    pub reason: &'static str,
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
        Phase::Held => "held",
        Phase::Applied { .. } => "applied",
        Phase::Closed { .. } => "closed",
    }
}

/// A change request as the client sees it.
///
/// `with_operations`: a list does not read the operations of all its change requests.
pub(super) fn of(
    state: &State,
    principal: &Principal,
    found: &FoundChange<'_>,
    with_operations: bool,
) -> ChangeView {
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
    let content = state.change_content(found.id());
    let stale = content
        .and_then(|(content, _)| stale_base(state, &content.bases))
        .or_else(|| operations.iter().flatten().find_map(|operation| stale_operation(state, operation)));
    let operations = operations.map(|operations| operations.iter().map(operation).collect());
    let (applied, closed) = ended(&change.phase, &party);
    let counting: Vec<_> = approvers(state, change).into_iter().map(|(_, key)| key.id.clone()).collect();
    let vote = |vote: &Vote| VoteView {
        opinion: match vote.opinion {
            Opinion::Approval => "approval",
            Opinion::Rejection => "rejection",
            Opinion::Review => "review",
        },
        by: party(&vote.by),
        at: vote.at,
        counts: match (vote.opinion, &vote.by) {
            (Opinion::Approval, Party::Key { id, .. }) => counting.contains(id),
            (Opinion::Approval, Party::Root) => false,
            (Opinion::Rejection | Opinion::Review, _) => true,
        },
        is_redacted: vote.is_redacted,
        comment: vote.comment.clone(),
    };
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
        definitions,
        environment,
        operations,
        sender: party(&edition.sender),
        is_attested: edition.is_attested,
        sent_at: edition.sent_at,
        expires_at: change
            .is_pending()
            .then(|| Timestamp(edition.sent_at.0.saturating_add(EDITION_AGE_US_MAX))),
        authors: change.authors.iter().map(party).collect(),
        approvals_needed: parts.iter().map(|(needed, _)| *needed).max().unwrap_or(0),
        approvals_counted: parts.iter().max_by_key(|part| missing(part)).map_or(0, |(_, counted)| *counted),
        is_approved,
        stale,
        votes: change.current_votes().map(vote).collect(),
        reviews_missing: change.reviews_missing(),
        applied,
        closed,
        created_at: found.record.created_at,
        modified_at: found.record.modified_at,
        revision: found.record.revision,
        preview: None,
    }
}

/// How it was applied, or how it ended otherwise.
fn ended(phase: &Phase, party: &impl Fn(&Party) -> PartyView) -> (Option<AppliedView>, Option<ClosedView>) {
    match phase {
        Phase::Open | Phase::Held => (None, None),
        Phase::Applied { revision, at, by, with } => {
            let approved_by = match with {
                AppliedWith::Approvals(all) => all.iter().map(party).collect(),
                AppliedWith::Bypass => Vec::new(),
            };
            (Some(AppliedView { revision: *revision, at: *at, by: party(by), approved_by }), None)
        }
        Phase::Closed { reason, at, by, comment } => {
            let reason = match reason {
                CloseReason::Withdrawn => "withdrawn",
                CloseReason::Expired => "expired",
                CloseReason::Restored => "restored",
            };
            let (by, comment) = (by.as_ref().map(party), comment.clone());
            (None, Some(ClosedView { reason, at: *at, by, comment }))
        }
    }
}

fn operation(operation: &StoredOperation) -> OperationView {
    let (definition, config, environment) = match operation.place() {
        Place::Definition(definition) => (Some(definition.to_string()), None, None),
        Place::Config(definition, config) => (Some(definition.to_string()), Some(config.to_string()), None),
        Place::Environment(name) => (None, None, Some(name.to_string())),
    };
    OperationView { op: operation.name(), definition, config, environment }
}

/// Whether a client may know who is behind an access key in a change request.
fn sees_labels(principal: &Principal, scope: &Scope) -> bool {
    [Verb::Propose, Verb::Approve, Verb::Bypass].into_iter().any(|verb| match scope {
        Scope::Definitions(keys) => {
            keys.iter().any(|key| principal.authorize(verb, Some(key.as_str())).is_ok())
        }
        Scope::Environment(name) => principal.authorize_environment(verb, name.as_str()).is_ok(),
    })
}

fn party_view(state: &State, party: &Party, with_label: bool) -> PartyView {
    let Party::Key { id, person } = party else {
        return PartyView { key: "root".into(), person: None, label: None };
    };
    let label = person.filter(|_| with_label).and_then(|person| state.person(person));
    PartyView {
        key: id.to_string(),
        person: person.map(|person| person.to_string()),
        label: label.map(|person| person.label.to_string()),
    }
}
