//! Whether a majority of the voters can be reached, before a change of the members begins.
//!
//! Without a majority nothing is decided, and a change would only time out after most of a minute. A node that lost the
//! majority can't tell it from its own records: it still knows the leader that it followed last. So it asks the voters.
//!
//! **Invariant:** a change is rejected here only before any step of it.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use crate::{membership::ClusterMembers, request::Refusal, retry::Leader};
use concord_consensus::Consensus;
use concord_net::{Member, NodeId};

/// How long the voters may take to respond. A node that a peer reaches responds within milliseconds, and the operator has
/// the answer within two seconds.
const REACH_TIMEOUT: Duration = Duration::from_millis(1500);

impl ClusterMembers {
    /// Rejects a change without a majority. `leader` may decide if this node reaches it: it checks again what it reaches.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`], with how many voters this node reaches.
    pub(super) async fn expect_quorum(
        &self,
        consensus: &Consensus,
        leader: Option<&Leader>,
    ) -> Result<(), Refusal> {
        let voters = consensus.status().members.into_iter().filter(|one| one.voter).map(|one| one.member);
        let voters: Vec<Member> = voters.collect();
        let reached = self.reached(&voters).await;
        let reaches_leader = matches!(leader, Some(Leader::Other(leader)) if reached.contains(&leader.id));
        if reached.len() > voters.len() / 2 || reaches_leader {
            return Ok(());
        }
        let ids: Vec<String> = reached.iter().map(ToString::to_string).collect();
        let ids = if ids.is_empty() { "none".to_owned() } else { format!("node {}", ids.join(", ")) };
        Err(Refusal::Unavailable(format!(
            "no quorum: {} of {} voters reachable from node {} ({ids}); nothing was changed. Start the others; if they are \
             lost permanently, see `concord recover --help`",
            reached.len(),
            voters.len(),
            self.cx.node_id()
        )))
    }

    /// The voters that respond, this node among them; it stops at a majority.
    async fn reached(&self, voters: &[Member]) -> BTreeSet<NodeId> {
        let deadline = Instant::now() + REACH_TIMEOUT;
        let ask = async |member: &Member| {
            let is_reached = member.id == self.cx.node_id() || self.levels.ask_levels(member).await.is_ok();
            is_reached.then_some(member.id)
        };
        let mut answers: FuturesUnordered<_> = voters.iter().map(ask).collect();
        let mut reached = BTreeSet::new();
        while reached.len() <= voters.len() / 2
            && let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await
        {
            reached.extend(answer);
        }
        reached
    }
}
