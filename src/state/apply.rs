//! STUB
use super::{Change, State};
use crate::model::{command::{Proposal, Verdict}, record::Revision};
impl State {
    /// Decides a proposal at its place in the log. `revision` is greater than `self.revision()`.
    pub fn apply(&mut self, _revision: Revision, _proposal: &Proposal) -> (Verdict, Option<Change>) { todo!() }
    /// An entry without a command (blank, membership).
    pub fn advance(&mut self, _revision: Revision) { todo!() }
}
