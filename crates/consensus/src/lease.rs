//! The leases of the voters: how long a voter that has confirmed a leader votes for no other candidate.
//!
//! A lease read depends on the leases of a majority, and so on the settings of other nodes. Each voter sends its lease
//! with every confirmation, so a leader never counts a confirmation whose lease it does not know.
//!
//! **Invariant:** a lease is recorded before openraft gets the confirmation that it came with.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use concord_net::NodeId;

/// A voter's lease in milliseconds. `None` if the voter does not keep its lease across a restart, so no lease read may
/// depend on it.
pub(super) type Lease = Option<u64>;

/// The leases of the other members, from their last confirmations.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<BTreeMap<NodeId, Lease>>);

impl Leases {
    pub(super) fn note(&self, node: NodeId, lease: Lease) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node, lease);
    }

    /// The shortest lease of this leader and these voters; `None` if one of them has none. A voter that has confirmed
    /// nothing is left out, because no majority includes it.
    pub(super) fn least(&self, own: Lease, voters: impl Iterator<Item = NodeId>) -> Lease {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        voters
            .filter_map(|id| known.get(&id))
            .try_fold(own?, |least, lease| lease.map(|lease| lease.min(least)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_lease_counts_and_none_where_one_voter_keeps_none() {
        let leases = Leases::default();
        assert_eq!(
            leases.least(Some(900), [1, 2, 3].into_iter()),
            Some(900),
            "nobody else has confirmed anything"
        );
        leases.note(2, Some(600));
        leases.note(4, None);
        assert_eq!(leases.least(Some(900), [1, 2, 3].into_iter()), Some(600), "node 4 is no voter");
        assert_eq!(leases.least(Some(300), [1, 2, 3].into_iter()), Some(300));
        assert_eq!(leases.least(Some(900), [1, 2, 4].into_iter()), None);
        assert_eq!(leases.least(None, [1, 2, 3].into_iter()), None);
        leases.note(4, Some(700));
        assert_eq!(leases.least(Some(900), [1, 2, 4].into_iter()), Some(600), "it has the setting now");
    }
}
