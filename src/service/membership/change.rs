//! Changes of the cluster: members come, get a vote, are replaced and leave, and leadership moves.
//!
//! Any node takes a change and carries it to the leader; the leader makes one at a time. Each can be asked again:
//! what is done already is found done, what was left half-way is gone on with.
//!
//! `turn` is what the leader does.
//!
//! **Invariant:** *unavailable* and *conflict* are said only when the members have certainly not been changed.

use std::time::Duration;

use super::{
    check_address,
    steps::{LEADERSHIP_TIMEOUT, Roll, Turn, conflict},
};
use crate::peer::call::Call;
use crate::{
    model::{
        error::{Invalid, Step, Violation},
        record::Revision,
    },
    peer::{
        Member, NodeId, ReceiveError,
        client::Lane,
        codec::{decode, encode},
    },
    raft::Consensus,
    service::{
        Service,
        request::{ClusterView, Refusal},
        retry::{Attempt, AttemptError, Leader, OnUnknown, Retry, confirm_leadership},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

/// How long a change may take in all; below the patience of the command line. A new member that needs longer to
/// catch up stays a learner, and the change is asked again.
const CHANGE_TIME: Duration = Duration::from_secs(50);
/// What the leader leaves of it for its answer to come back.
const WAY_BACK: Duration = Duration::from_millis(500);
/// How long the leader's answer may take after another node leads: a hand-over is answered by the old one.
const GRACE: Duration = Duration::from_secs(3);
/// How long a change waits for the one before it, which may be the rest of itself that a lost leader has left.
const TURN: Duration = Duration::from_secs(1);
/// How long the asked node waits until it has applied the change that it shows.
const SHOWN: Duration = Duration::from_secs(1);

/// A change of the cluster. Rides between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A new member, without a vote.
    Add(Member),
    /// A vote for a member.
    Promote(NodeId),
    /// The end of a membership.
    Remove(NodeId),
    /// A new member in the place of another.
    Replace {
        /// The one that goes; it may be dead.
        old: NodeId,
        /// The one that comes.
        new: Member,
    },
    /// Another leader.
    Lead(NodeId),
}

/// A change that was made.
#[derive(Debug, Clone)]
pub struct Changed {
    /// Whether a member is new.
    pub created: bool,
    /// The cluster afterwards, as this node knows it.
    pub view: ClusterView,
}

/// A change under way to the leader.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Carried {
    change: Change,
    remaining_ms: u64,
}

/// What the leader did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) created: bool,
    /// The entry that says so.
    pub(super) revision: Revision,
}

impl Service {
    /// Makes a change, on whatever node leads.
    ///
    /// # Errors
    /// What it was refused with; see [`Refusal`].
    pub async fn change(&self, change: Change) -> Result<Changed, Refusal> {
        check(&change)?;
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + CHANGE_TIME;
        let retry = Retry::until(deadline, OnUnknown::Stop, "no leader took the change in time");
        let attempt = async || match self.known_leader(consensus)? {
            Leader::ThisNode => self.change_here(change.clone(), deadline).await,
            Leader::Other(leader) => self.carry_change(consensus, &change, &leader, deadline).await,
        };
        let Done { created, revision } = retry.run(consensus, attempt).await?;
        // A node that was removed never applies it, and shows what it knows.
        let _late = timeout(SHOWN, consensus.applied(revision)).await.is_err();
        Ok(Changed { created, view: self.cluster() })
    }

    async fn carry_change(
        &self,
        consensus: &Consensus,
        change: &Change,
        leader: &Member,
        deadline: Instant,
    ) -> Attempt<Done> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let remaining_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        let body = encode(&Carried { change: change.clone(), remaining_ms });
        let call =
            self.peers().call(Lane::Forward, leader.id, &leader.peer_addr, Call::Change, body, remaining);
        let lost = async {
            consensus.leader_changed().await;
            sleep(GRACE).await;
        };
        let answer = tokio::select! {
            answer = call => answer,
            () = lost => return Err(AttemptError::Unknown("the leader changed while the change was under way".into())),
        };
        match answer {
            Ok(answer) => decode::<Attempt<Done>>(&answer).unwrap_or_else(|error| {
                Err(AttemptError::Unknown(format!("the leader's answer is {error}")))
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a change that another node carried here.
    ///
    /// # Errors
    /// When the body is none of this version's. Everything else is an answer.
    pub(crate) async fn answer_change(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let Carried { change, remaining_ms } = decode(&body)?;
        let time = Duration::from_millis(remaining_ms).saturating_sub(WAY_BACK).min(CHANGE_TIME);
        Ok(encode(&self.change_here(change, Instant::now() + time).await))
    }

    /// Makes a change on this node, if it leads. On a task of its own: a caller that hangs up must not leave it
    /// half-way.
    async fn change_here(&self, change: Change, deadline: Instant) -> Attempt<Done> {
        let service = self.clone();
        let changed = tokio::spawn(async move {
            let Some(consensus) = service.consensus() else {
                return Err(AttemptError::Retry(service.absence()));
            };
            if !service.leads(consensus) {
                return Err(AttemptError::Retry(format!("node {} does not lead", service.node_id())));
            }
            let Ok(_one_at_a_time) = timeout(TURN, service.inner.changing.lock()).await else {
                if consensus.is_joint() {
                    // Perhaps this very change: a lost leader left it half done, and this one completes it.
                    return Err(AttemptError::Retry("a change of the members is being completed".into()));
                }
                return Err(conflict("another change of the cluster is under way"));
            };
            confirm_leadership(consensus, Instant::now() + LEADERSHIP_TIMEOUT).await?;
            if consensus.is_joint() {
                // A lost leader's change comes first: what is asked may be the rest of it.
                consensus.complete_change().await?;
            }
            let turn = Turn { service: &service, consensus, deadline, roll: Roll::of(consensus) };
            let changed = turn.make(&change).await;
            match &changed {
                Ok(done) => tracing::info!(?change, revision = done.revision, "changed the cluster"),
                Err(stop) => tracing::warn!(?change, ?stop, "the cluster was not changed"),
            }
            changed
        });
        changed.await.unwrap_or_else(|error| Err(AttemptError::Unknown(format!("the change ended: {error}"))))
    }

    /// On the leader: completes, beside what else it does, a change that a lost leader has left half done.
    pub(in crate::service) fn complete_change(&self, consensus: &Consensus) {
        if !consensus.is_joint() || !self.leads(consensus) {
            return;
        }
        let service = self.clone();
        tokio::spawn(async move {
            let Some(consensus) = service.consensus() else { return };
            // Held: the change is this node's own and goes on.
            let Ok(_one_at_a_time) = service.inner.changing.try_lock() else { return };
            if !consensus.is_joint() {
                return;
            }
            match consensus.complete_change().await {
                Ok(revision) => tracing::info!(revision, "completed the change of members of a lost leader"),
                Err(error) => tracing::warn!(?error, "a half-done change of members could not be completed"),
            }
        });
    }
}

/// Checks what needs no state.
fn check(change: &Change) -> Result<(), Invalid> {
    let (Change::Add(member) | Change::Replace { new: member, .. }) = change else { return Ok(()) };
    let mut faults = Vec::new();
    let mut fault = |name: &str, text: String| faults.push(Violation::at(vec![Step::from(name)], text));
    if member.id == 0 {
        fault("id", "a node id is at least 1".into());
    }
    for (name, address) in [("api_addr", &member.api_addr), ("peer_addr", &member.peer_addr)] {
        if let Err(text) = check_address(address) {
            fault(name, text);
        }
    }
    if member.api_addr == member.peer_addr {
        fault("peer_addr", "callers and nodes are served at two addresses".into());
    }
    if faults.is_empty() { Ok(()) } else { Err(Invalid::Violations(faults)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: NodeId) -> Member {
        Member { id, api_addr: format!("a:{}", 8100 + id), peer_addr: format!("a:{}", 8200 + id) }
    }

    #[test]
    fn a_new_member_has_an_id_and_two_addresses() {
        assert_eq!(check(&Change::Add(member(4))), Ok(()));
        assert_eq!(check(&Change::Remove(0)), Ok(()));
        let same = Member { peer_addr: "a:8104".into(), ..member(4) };
        let no_port = Member { api_addr: "a".into(), ..member(4) };
        for wrong in [member(0), same, no_port] {
            assert!(check(&Change::Add(wrong.clone())).is_err(), "{wrong:?}");
            assert!(check(&Change::Replace { old: 1, new: wrong }).is_err());
        }
    }

    #[test]
    fn calls_of_changes_come_back_as_they_were() {
        let replace = Change::Replace { old: 1, new: member(4) };
        for change in
            [Change::Add(member(4)), Change::Promote(4), Change::Remove(4), replace, Change::Lead(2)]
        {
            let carried = Carried { change, remaining_ms: 9 };
            assert_eq!(decode::<Carried>(&encode(&carried)).unwrap(), carried);
        }
        let answers: [Attempt<Done>; 3] = [
            Ok(Done { created: true, revision: 7 }),
            Err(conflict("no")),
            Err(AttemptError::Refused(Refusal::NoMember(4))),
        ];
        for answer in answers {
            assert_eq!(decode::<Attempt<Done>>(&encode(&answer)).unwrap(), answer);
        }
    }
}
