//! The anchors of the audit logs.
//!
//! A node proposes an anchor for its own log. The state accepts every anchor: whether a log still has the lines is for
//! the readers of the log to check. So a node whose log was replaced adds its new lines behind the anchors that betray it.
//!
//! **Invariant:** an anchor leaves the state only by its age, or with a log that has had no new anchor for long when there
//! are too many logs.

use std::{collections::BTreeMap, sync::Arc};

use super::{Edit, State, apply::EntryContext, digest};
use concord_model::{
    audit::{AnchorAcceptance, AnchoredLog, AuditAnchor, AuditAnchors},
    command::{Applied, AuditCommand, Proposal, StepOutcome},
    limits::{ANCHORED_LOG_AGE_US, ANCHORED_LOGS_MAX},
    time::Timestamp,
};

/// The anchors by their log. They are few, and a state that is cloned shares them.
pub(super) type AnchorsByLog = Arc<BTreeMap<AnchoredLog, Arc<AuditAnchors>>>;

impl State {
    /// The anchors of all audit logs.
    pub fn audit_anchors(&self) -> impl Iterator<Item = &Arc<AuditAnchors>> {
        self.audit_anchors.values()
    }

    /// The anchors of an audit log.
    #[must_use]
    pub fn audit_anchors_of(&self, log: &AnchoredLog) -> Option<&Arc<AuditAnchors>> {
        self.audit_anchors.get(log)
    }

    pub(super) fn decide_audit(
        &mut self,
        context: EntryContext,
        proposal: &Proposal,
        command: &AuditCommand,
        edits: &mut Vec<Edit>,
    ) -> Applied {
        let EntryContext { revision, at, .. } = context;
        let done = match command {
            AuditCommand::Anchor { log, seq, sha256 } => {
                let before = self.audit_anchors_of(log).cloned();
                if before.is_none() && !self.make_room_for_anchors(at, edits) {
                    return context.applied(StepOutcome::NoRecord);
                }
                let mut after = before.as_deref().cloned().unwrap_or_else(|| AuditAnchors::new(*log));
                after.add(AuditAnchor { at, seq: *seq, sha256: *sha256 });
                after.revision = revision;
                self.put_audit_anchors(before, Some(after), edits);
                StepOutcome::NoRecord
            }
            AuditCommand::Accept { log } => {
                if let Some(before) = self.audit_anchors_of(log).cloned() {
                    let (by, reason) = (proposal.by.clone(), proposal.reason.clone());
                    let accepted = Some(AnchorAcceptance { at, by, reason });
                    let after = AuditAnchors { accepted, revision, ..(*before).clone() };
                    self.put_audit_anchors(Some(before), Some(after), edits);
                }
                StepOutcome::NoRecord
            }
        };
        context.applied(done)
    }

    /// Makes room for the anchors of one more log. False if all logs had a new anchor lately.
    fn make_room_for_anchors(&mut self, at: Timestamp, edits: &mut Vec<Edit>) -> bool {
        if self.audit_anchors.len() < ANCHORED_LOGS_MAX {
            return true;
        }
        let oldest = self.audit_anchors().min_by_key(|anchors| (anchors.newest_at(), anchors.log));
        let is_old = |one: &&Arc<AuditAnchors>| at.0.saturating_sub(one.newest_at().0) >= ANCHORED_LOG_AGE_US;
        let Some(oldest) = oldest.filter(is_old).cloned() else { return false };
        self.put_audit_anchors(Some(oldest), None, edits);
        true
    }

    /// Replaces the anchors of a log; one of the two may be absent.
    fn put_audit_anchors(
        &mut self,
        before: Option<Arc<AuditAnchors>>,
        after: Option<AuditAnchors>,
        edits: &mut Vec<Edit>,
    ) {
        if let Some(before) = &before {
            Arc::make_mut(&mut self.audit_anchors).remove(&before.log);
            self.sum = self.sum.wrapping_sub(digest::of_audit_anchors(before));
            self.bytes = self.bytes.saturating_sub(before.bytes());
            self.count_replaced(before.bytes());
        }
        let after = after.map(Arc::new);
        if let Some(after) = &after {
            self.insert_audit_anchors(Arc::clone(after));
        }
        edits.push(Edit::AuditAnchors { before, after });
    }

    /// Adds anchors to the state and to the digest.
    pub(super) fn insert_audit_anchors(&mut self, anchors: Arc<AuditAnchors>) {
        self.sum = self.sum.wrapping_add(digest::of_audit_anchors(&anchors));
        self.bytes = self.bytes.saturating_add(anchors.bytes());
        Arc::make_mut(&mut self.audit_anchors).insert(anchors.log, anchors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{access_key::Author, command::Command};

    fn log(node: u64) -> AnchoredLog {
        AnchoredLog { cluster: [7; 16], node }
    }

    fn apply(state: &mut State, command: AuditCommand) -> Vec<Edit> {
        let revision = state.revision() + 1;
        let proposal =
            Proposal::new(Timestamp(revision * 60_000_000), "root", Author::Root, Command::Audit(command));
        state.apply(revision, &proposal).1.map(|change| change.edits).unwrap_or_default()
    }

    fn anchor(state: &mut State, node: u64, seq: u64) -> Vec<Edit> {
        apply(state, AuditCommand::Anchor { log: log(node), seq, sha256: [u8::MAX; 32] })
    }

    #[test]
    fn anchors_are_added_accepted_and_in_the_digest() {
        let mut state = State::new();
        let empty = state.digest();
        assert!(apply(&mut state, AuditCommand::Accept { log: log(1) }).is_empty(), "nothing to accept");
        assert_eq!(state.digest(), empty);
        anchor(&mut state, 1, 10);
        anchor(&mut state, 1, 20);
        anchor(&mut state, 1, 5);
        let found = state.audit_anchors_of(&log(1)).unwrap();
        assert_eq!(found.anchors.iter().map(|anchor| anchor.seq).collect::<Vec<_>>(), [10, 20, 5]);
        assert_eq!(found.revision, state.revision());
        let before = state.digest();
        let edits = apply(&mut state, AuditCommand::Accept { log: log(1) });
        assert_ne!(state.digest(), before);
        assert!(matches!(&edits[..], [Edit::AuditAnchors { before: Some(_), after: Some(_) }]));
        let found = state.audit_anchors_of(&log(1)).unwrap();
        assert!(found.anchors.iter().all(|anchor| found.is_accepted(anchor)));
        assert_eq!(found.accepted.as_ref().unwrap().by, "root");
        anchor(&mut state, 1, 6);
        let found = state.audit_anchors_of(&log(1)).unwrap();
        assert!(!found.is_accepted(found.anchors.last().unwrap()), "later anchors hold again");
    }

    #[test]
    fn a_log_without_new_anchors_makes_room_and_no_other_one_does() {
        let mut state = State::new();
        for node in 1..=ANCHORED_LOGS_MAX as u64 {
            anchor(&mut state, node, 1);
        }
        anchor(&mut state, 1, 2);
        assert!(anchor(&mut state, 1000, 1).is_empty(), "all are written");
        assert!(state.audit_anchors_of(&log(1000)).is_none());
        // A month later only the first log was written.
        state.advance(state.revision() + 31 * 24 * 60);
        anchor(&mut state, 1, 3);
        let edits = anchor(&mut state, 1000, 1);
        assert!(
            matches!(&edits[0], Edit::AuditAnchors { before: Some(gone), after: None } if gone.log == log(2))
        );
        assert_eq!(state.audit_anchors().count(), ANCHORED_LOGS_MAX);
        assert!(state.audit_anchors_of(&log(1)).is_some() && state.audit_anchors_of(&log(1000)).is_some());
        let bytes = state.bytes;
        let mut built = crate::builder::StateBuilder::new();
        for anchors in state.audit_anchors() {
            built.audit_anchors((**anchors).clone()).unwrap();
        }
        built.feature_level(state.feature_level());
        let built = built.finish(state.revision(), state.last_at()).unwrap();
        assert_eq!((built.digest(), built.bytes), (state.digest(), bytes));
    }
}
