//! Lines of the audit log about who leads: a change of the leader by an election has no request that would be recorded.
//!
//! **Invariant:** a node records its own leadership only. The log of a cluster is that of all its nodes.

use super::{Message, line::Event};
use crate::Service;
use concord_consensus::Leadership;

/// What a node records when who leads has changed.
fn event(was_mine: bool, is_mine: bool, term: u64) -> Option<Event> {
    match (was_mine, is_mine) {
        (false, true) => Some(Event::LeadershipWon(term)),
        (true, false) => Some(Event::LeadershipLost(term)),
        (true, true) | (false, false) => None,
    }
}

impl Service {
    /// Records when this node begins to lead and when it ceases to, until it stops.
    pub(crate) async fn record_leadership(self) -> Result<(), String> {
        let Some(consensus) = self.consensus() else { return Ok(()) };
        let (mut leadership, mut was_mine) = (consensus.leadership(), false);
        loop {
            let Leadership { leader_id, term, .. } = leadership.borrow_and_update().clone();
            let is_mine = leader_id == Some(self.node_id());
            if let Some(event) = event(was_mine, is_mine, term) {
                self.audit().send(Message::Event(event, self.audit().now()));
            }
            was_mine = is_mine;
            let is_over = tokio::select! {
                () = self.inner.stopping.cancelled() => true,
                changed = leadership.changed() => changed.is_err(),
            };
            if is_over {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_leadership_is_recorded() {
        assert_eq!(event(false, true, 3), Some(Event::LeadershipWon(3)));
        assert_eq!(event(true, false, 4), Some(Event::LeadershipLost(4)));
        assert_eq!(event(true, true, 5), None);
        assert_eq!(event(false, false, 5), None);
    }
}
