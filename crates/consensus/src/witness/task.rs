//! When a member exchanges records with the others: at its start, until it is settled, and every few seconds after
//! that. Before each exchange a process looks whether another one answers at the address of its member.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Bound, LastKnown, Loss, Missing, Participation, Testimony, VOUCHED, Witness, order, remove_if_exists,
};
use crate::{
    divergence::{self, Proof},
    log::Log,
    machine::AppliedPublisher,
    types::{Membership, Raft},
    wire::{self, WireLogId, WireMembership},
};
use concord_net::{
    Member, NodeId, ReceiveError,
    call::Call,
    client::{CallError, Lane, Peers},
};
use concord_storage::Store;

/// How long a member that starts waits for further answers once a majority has answered. It is shorter than an election
/// timeout, which runs at the same time.
pub(super) const GRACE: Duration = Duration::from_millis(500);
/// How long a member may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before a member that starts asks again the members that did not answer.
const ASK_PAUSE: Duration = Duration::from_millis(50);
/// The same for a member that knows that its disk was rolled back.
const LOST_PAUSE: Duration = Duration::from_millis(250);
/// Pause before a process looks again whether another one answers at its address.
const TWIN_PAUSE: Duration = Duration::from_secs(1);
/// How often a member checks whether it has passed its bound.
const BOUND_PAUSE: Duration = Duration::from_millis(50);
/// Time between two exchanges of records.
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a process that starts asks at its address until somebody answers. An address that this host can't reach
/// itself delays a start by no more.
const TWIN_WAIT: Duration = Duration::from_secs(2);

/// Who answers at the address of this member.
#[derive(Debug, PartialEq, Eq)]
enum OwnAddress {
    /// This process.
    Itself,
    /// Another process with the id of this member, at this address.
    Twin(String),
    /// Another node, or certainly nobody.
    Nobody,
    /// Somebody who did not answer in time, or nobody.
    Unknown,
}

type Answers = BTreeMap<NodeId, Testimony>;

/// Exchanges records with the other members. Clones share everything.
#[derive(Clone)]
pub(crate) struct WitnessTask {
    pub(crate) id: NodeId,
    pub(crate) raft: Raft,
    pub(crate) publisher: Arc<AppliedPublisher>,
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) peers: Arc<Peers>,
    pub(crate) witness: Arc<Witness>,
    pub(crate) proof: Arc<Proof>,
    /// How long a start keeps to what the others have, although nothing shows that it has lost an entry: time for the
    /// member that has most to be elected.
    pub(crate) caution: Duration,
}

/// Runs work that waits for the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = crate::blocking::blocking(work).await;
    done.map_err(|error| error.to_string())?.map_err(|error| format!("the file `witness`: {error}"))
}

/// The voters of a membership without this node.
fn other_voters(membership: &Membership, me: NodeId) -> BTreeSet<NodeId> {
    membership.voter_ids().filter(|id| *id != me).collect()
}

/// Whether the members for which this holds are a majority of each set of voters. A member that has no entry yet knows no
/// voters, and all of none are no majority.
fn is_majority(membership: &Membership, holds: impl Fn(NodeId) -> bool) -> bool {
    let is_most =
        |voters: &BTreeSet<NodeId>| voters.iter().filter(|id| holds(**id)).count() * 2 > voters.len();
    let configs = membership.get_joint_config();
    !configs.is_empty() && configs.iter().all(is_most)
}

impl WitnessTask {
    /// Asks the others until this member has no restriction any more, and exchanges records every few seconds.
    pub(crate) async fn run(self) -> Result<(), String> {
        let grace_ends = Instant::now() + GRACE;
        self.wait_until_alone().await?;
        tokio::try_join!(self.settle(grace_ends), self.keep_exchanging()).map(drop)
    }

    /// Waits if another process answers at the address of this member: one of the two was started from a copy of the
    /// directory of the other. The others then only know the one that they reach. If that one does not answer for a while,
    /// it may be about to start again, so this one waits until it is the one that is reached.
    async fn wait_until_alone(&self) -> Result<(), String> {
        let gives_up = Instant::now() + TWIN_WAIT;
        loop {
            let pause = match (self.look_at_own_address().await?, self.witness.twin()) {
                (OwnAddress::Itself, _) | (OwnAddress::Nobody, None) => break,
                (OwnAddress::Twin(address), known) => {
                    if known.is_none() {
                        tracing::error!("{}. This one takes no part", self.twin_text(&address));
                    }
                    self.witness.memory().twin_at = Some(address);
                    TWIN_PAUSE
                }
                (OwnAddress::Nobody | OwnAddress::Unknown, Some(_)) => TWIN_PAUSE,
                // A process that is busy or starts may answer the next time. This one starts, too.
                (OwnAddress::Unknown, None) if Instant::now() < gives_up => ASK_PAUSE,
                (OwnAddress::Unknown, None) => break,
            };
            sleep(pause).await;
        }
        self.witness.memory().twin_at = None;
        Ok(())
    }

    fn twin_text(&self, address: &str) -> String {
        format!(
            "another process with the id of this node, {}, is running at {address}: one of the two runs from a copy of the \
             other's data directory",
            self.id
        )
    }

    /// Looks who answers at the address of this member.
    async fn look_at_own_address(&self) -> Result<OwnAddress, String> {
        let Some(me) = self.newest_membership().get_node(&self.id).cloned() else {
            return Ok(OwnAddress::Nobody);
        };
        let question = Bytes::from(wire::to_bytes(&self.testimony(None).await?));
        let called =
            self.peers.call(Lane::Heartbeat, me.id, &me.peer_addr, Call::Witness, question, ASK_TIMEOUT);
        Ok(match called.await {
            Ok(answer) => match wire::from_bytes::<Testimony>(&answer) {
                Ok(told) if told.past.start.id == self.witness.memory().start.id => OwnAddress::Itself,
                Ok(_) => OwnAddress::Twin(me.peer_addr),
                Err(_) => OwnAddress::Unknown,
            },
            Err(CallError::NotSent(_) | CallError::Refused { .. }) => OwnAddress::Nobody,
            Err(CallError::Unknown(_)) => OwnAddress::Unknown,
        })
    }

    /// Asks the others until this member is settled and has no restriction any more. A member with an empty log knows
    /// nobody to ask: unless it has never started before, it waits until another member has told it who the members are.
    async fn settle(&self, grace_ends: Instant) -> Result<(), String> {
        let mut answers = Answers::new();
        loop {
            let membership = self.newest_membership();
            let others = other_voters(&membership, self.id);
            if !concord_model::sabotage::is("witness-ignored") {
                self.ask(&membership, &others, &mut answers, Some(GRACE)).await?;
            }
            let membership = self.newest_membership();
            let forgotten = answers.values().find_map(|told| self.witness.forgotten_at_start(told));
            if let Some(why) = forgotten {
                tracing::error!(
                    "this member has started from an earlier state of its disk: {why}. Until it has caught up, it \
                     votes and confirms entries with restrictions. Never put back a copy of a data directory: it is \
                     no backup"
                );
                let (witness, known) = (Arc::clone(&self.witness), answers.clone());
                blocking(move || witness.lose(&known)).await?;
            }
            if self.witness.loss() == Some(Loss::Unknown) {
                return self.recover(answers).await;
            }
            if self.witness.outnumber(&answers) {
                answers.clear();
                continue;
            }
            // The members of a cluster start at once, and one may not listen yet.
            let is_asked = answers.len() >= others.len() || Instant::now() >= grace_ends;
            let is_new = self.witness.is_new && membership.nodes().next().is_none();
            let may_begin = is_new
                || self.is_majority_with(&membership, &answers)
                || concord_model::sabotage::is("witness-ignored");
            if is_asked && may_begin {
                return self.begin(&membership, &answers).await;
            }
            if !may_begin && matches!(self.witness.loss(), Some(Loss::Forgotten(_))) {
                // Its bound is known from an earlier start. The operator has to know whom it waits for all the same.
                let nodes = others.into_iter().filter(|id| !answers.contains_key(id)).collect();
                let (witness, missing) = (Arc::clone(&self.witness), Missing { nodes, has_majority: false });
                blocking(move || witness.record_missing(missing)).await?;
            }
            sleep(ASK_PAUSE).await;
        }
    }

    /// Recovers from a loss of which nothing is known yet.
    async fn recover(&self, answers: Answers) -> Result<(), String> {
        let bound = self.learn_bound(answers).await?;
        let witness = Arc::clone(&self.witness);
        blocking(move || witness.bind(bound)).await?;
        self.tell_all().await?;
        self.pass(bound).await
    }

    /// Begins to vote and to confirm entries, once a majority has answered.
    async fn begin(&self, membership: &Membership, answers: &Answers) -> Result<(), String> {
        // Before a leader can replace the state by a snapshot.
        self.check_history(membership, answers).await?;
        let told = self.bound_of(membership, answers).await?;
        if let Some(Loss::Forgotten(bound) | Loss::Discarded(bound)) = self.witness.loss() {
            // It may have been put back once more, to a time at which it caught up.
            let bound = bound.or(told);
            self.witness.participation.send_replace(Participation::Bounded(bound));
            return self.pass(bound).await;
        }
        self.take_care(told).await?;
        self.open().await
    }

    /// Keeps to the bound of the others for a while, although nothing shows a loss: the records may be too old to
    /// show the last entries that this member has confirmed. Where it has forgotten them, it must not elect a member
    /// that lacks them while one runs that has them. It does so for a short time only, because in most starts the
    /// entries that this member lacks were never confirmed by it, and the member that has them may be gone.
    async fn take_care(&self, bound: Bound) -> Result<(), String> {
        if bound.is_passed_by(&self.position().await?) {
            return Ok(());
        }
        self.witness.participation.send_replace(Participation::Bounded(bound));
        let end = Instant::now() + self.caution;
        while !bound.is_passed_by(&self.position().await?) && Instant::now() < end {
            sleep(BOUND_PAUSE).await;
        }
        Ok(())
    }

    /// Whether the members that have answered are a majority together with this one.
    fn is_majority_with(&self, membership: &Membership, answers: &Answers) -> bool {
        is_majority(membership, |id| id == self.id || answers.contains_key(&id))
    }

    async fn position(&self) -> Result<Bound, String> {
        self.log.position().await.map_err(|error| error.to_string())
    }

    /// The greatest vote and the greatest last entry of those that have answered. Members with another history than
    /// that of a majority do not count: what only they have was never this member's, or is lost.
    async fn bound_of(&self, membership: &Membership, answers: &Answers) -> Result<Bound, String> {
        let against = self.contradicting(answers).await?;
        let agrees = |id: NodeId| id == self.id || (answers.contains_key(&id) && !against.contains(&id));
        let has_majority = is_majority(membership, agrees);
        let counted = answers.iter().filter(|(id, _)| !has_majority || agrees(**id));
        Ok(counted.fold(Bound::default(), |bound, (_, told)| bound.or(told.now)))
    }

    /// The members whose log has another history than this one's.
    async fn contradicting(&self, answers: &Answers) -> Result<BTreeSet<NodeId>, String> {
        let mut against = BTreeSet::new();
        for (id, told) in answers {
            if told.contradicts || self.contradicts(told).await? {
                against.insert(*id);
            }
        }
        Ok(against)
    }

    /// Whether this member's log has another entry where the other member has applied one.
    async fn contradicts(&self, told: &Testimony) -> Result<bool, String> {
        let applied = self.publisher.applied.load_full();
        let compared = self.log.compared_with(told.past.applied.into_iter(), Some(&applied)).await;
        Ok(compared.map_err(|error| error.to_string())?.is_some_and(|(own, theirs)| own != theirs))
    }

    async fn open(&self) -> Result<(), String> {
        let witness = Arc::clone(&self.witness);
        blocking(move || {
            // Nothing needs a vouch now, and this one must not count later.
            remove_if_exists(&witness.directory.join(VOUCHED))?;
            witness.settle()
        })
        .await
    }

    /// Waits until all other voters have answered, or until the operator vouches for those that have not.
    async fn learn_bound(&self, mut answers: Answers) -> Result<Bound, String> {
        self.witness.participation.send_replace(Participation::Lost);
        let mut waits_for = Missing::default();
        loop {
            let missing = match self.ask_for_bound(&mut answers).await? {
                Ok(bound) => return Ok(bound),
                Err(missing) => missing,
            };
            if missing != waits_for {
                tracing::error!(
                    missing = ?missing.nodes,
                    has_majority = missing.has_majority,
                    "this member waits for the members that do not answer, because only they may know what it had \
                     confirmed. If they are lost permanently, run `concord cluster vouch` to continue without them; that \
                     needs a majority"
                );
                waits_for.clone_from(&missing);
                let witness = Arc::clone(&self.witness);
                blocking(move || witness.record_missing(missing)).await?;
                self.tell_all().await?;
            }
            sleep(LOST_PAUSE).await;
        }
    }

    /// Asks the other voters that have not answered. Returns the bound of all, or of those that have answered if the
    /// operator vouches for the others or if this member is no voter; else the voters that have not answered.
    async fn ask_for_bound(&self, answers: &mut Answers) -> Result<Result<Bound, Missing>, String> {
        let mut membership = self.newest_membership();
        loop {
            let others = other_voters(&membership, self.id);
            self.ask(&membership, &others, answers, None).await?;
            let newest = self.newest_membership();
            if newest != membership {
                membership = newest;
                continue;
            }
            let nodes: Vec<NodeId> = others.into_iter().filter(|id| !answers.contains_key(id)).collect();
            let has_majority = self.is_majority_with(&membership, answers);
            // No majority needs what a learner has confirmed. One that was made a voter meanwhile learns of it, because
            // a majority of the voters before knows.
            let is_learner = membership.voter_ids().all(|id| id != self.id);
            // Without a majority it has not asked anybody yet: an empty log names no members.
            if !has_majority || !(nodes.is_empty() || is_learner) {
                let (witness, missing) = (Arc::clone(&self.witness), nodes.clone());
                if !has_majority || !blocking(move || witness.take_vouch(&missing)).await? {
                    return Ok(Err(Missing { nodes, has_majority }));
                }
                tracing::warn!(missing = ?nodes, "the operator has vouched for the members that do not answer");
            }
            return self.bound_of(&membership, answers).await.map(Ok);
        }
    }

    /// Waits until this member has passed its bound and its state is proven. It updates the bound every few seconds: a
    /// voter that has answered may have lost the end of its log since, if that was not durable.
    async fn pass(&self, mut bound: Bound) -> Result<(), String> {
        let mut learnt_at = Instant::now();
        loop {
            let (now, durable) = (self.position().await?, self.store.log_durable());
            let is_durable = now.last.is_none_or(|last| last.index <= durable);
            if is_durable && bound.is_passed_by(&now) && self.proof.is_given() {
                break;
            }
            sleep(BOUND_PAUSE).await;
            if learnt_at.elapsed() > EXCHANGE_INTERVAL {
                let asked = self.ask_for_bound(&mut Answers::new()).await?;
                if let Ok(newer) = asked
                    && newer != bound
                {
                    bound = newer;
                    let witness = Arc::clone(&self.witness);
                    // Durable, because the operator vouches once.
                    blocking(move || witness.rebind(newer)).await?;
                }
                let (witness, missing) = (Arc::clone(&self.witness), asked.err().unwrap_or_default());
                blocking(move || witness.record_missing(missing)).await?;
                learnt_at = Instant::now();
            }
        }
        self.open().await?;
        tracing::info!("this member has caught up after the rollback of its disk");
        self.tell_all().await
    }

    /// Exchanges records every few seconds.
    async fn keep_exchanging(&self) -> Result<(), String> {
        loop {
            sleep(EXCHANGE_INTERVAL).await;
            self.tell_all().await?;
        }
    }

    /// Ends this process if a majority has another history: the state is then made again from the others, and the log is
    /// kept. The commit index of a leader would prove no majority after a rollback. The members themselves do.
    async fn check_history(&self, membership: &Membership, answers: &Answers) -> Result<(), String> {
        let against = self.contradicting(answers).await?;
        if !is_majority(membership, |id| against.contains(&id)) {
            return Ok(());
        }
        let place = format!("the log up to entry {}", self.publisher.applied.load().index());
        Err(divergence::distrust(&self.publisher, &self.store, &place).await)
    }

    /// Exchanges records with all members.
    ///
    /// # Errors
    /// If another process with the id of this member answers at its address, if an answer shows that the disk of this
    /// member was rolled back, or if a majority has another history.
    async fn tell_all(&self) -> Result<(), String> {
        if let OwnAddress::Twin(address) = self.look_at_own_address().await? {
            return Err(format!("{}. This one exits", self.twin_text(&address)));
        }
        let membership = self.newest_membership();
        let others = membership.nodes().map(|(id, _)| *id).filter(|id| *id != self.id).collect();
        let mut answers = Answers::new();
        self.ask(&membership, &others, &mut answers, None).await?;
        self.witness.memory().others_conditions.retain(|id, _| membership.get_node(id).is_some());
        let last = self.position().await?.last;
        let forgotten = answers.values().find_map(|told| self.witness.forgotten_meanwhile(told, last));
        if forgotten.is_none() {
            // The next exchange tells them.
            self.witness.outnumber(&answers);
        }
        let witness = Arc::clone(&self.witness);
        blocking(move || {
            witness.look_for_discarded_logs();
            witness.save()
        })
        .await?;
        self.check_history(&membership, &answers).await?;
        match forgotten {
            Some(why) if !concord_model::sabotage::is("witness-ignored") => Err(format!(
                "this member runs from an earlier state of its disk: {why}. It exits; at its next start it asks the \
                 other members what it had confirmed"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Asks the members that have not answered yet, until all have answered or failed. Once a majority has answered, it
    /// waits no longer than `grace`.
    async fn ask(
        &self,
        membership: &Membership,
        whom: &BTreeSet<NodeId>,
        answers: &mut Answers,
        grace: Option<Duration>,
    ) -> Result<(), String> {
        let whom: Vec<Member> = whom
            .iter()
            .filter(|id| !answers.contains_key(*id))
            .filter_map(|id| membership.get_node(id).cloned())
            .collect();
        if whom.is_empty() {
            return Ok(());
        }
        let question = Bytes::from(wire::to_bytes(&self.testimony(None).await?));
        let ask = |member: Member| {
            let question = question.clone();
            async move {
                let called = self.peers.call(
                    Lane::Heartbeat,
                    member.id,
                    &member.peer_addr,
                    Call::Witness,
                    question,
                    ASK_TIMEOUT,
                );
                let told = wire::from_bytes::<Testimony>(&called.await.ok()?).ok()?;
                Some((member.id, told))
            }
        };
        let mut asked: FuturesUnordered<_> = whom.into_iter().map(ask).collect();
        let mut until = None;
        loop {
            let next = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
            };
            let Some(answer) = next else { return Ok(()) };
            if let Some((id, told)) = answer {
                self.witness.hear(id, &told);
                answers.insert(id, told);
            }
            if until.is_none() && self.is_majority_with(membership, answers) {
                until = grace.map(|grace| Instant::now() + grace);
            }
        }
    }

    /// Answers a member that asks, and adds its records.
    pub(crate) async fn answer(&self, from: NodeId, body: &[u8]) -> Result<Vec<u8>, ReceiveError> {
        let told: Testimony = wire::from_bytes(body)?;
        let failed = ReceiveError::Failed;
        // Before its new start is added, so that it learns of a later one.
        let mut answer = self.testimony(Some(from)).await.map_err(failed)?;
        if from == self.id {
            // Nothing to add: it looks who is at the address of this member.
            self.witness.hear_own_id(told.past.start);
            return Ok(wire::to_bytes(&answer));
        }
        answer.contradicts = self.contradicts(&told).await.map_err(failed)?;
        if self.witness.hear(from, &told) {
            let witness = Arc::clone(&self.witness);
            blocking(move || witness.save()).await.map_err(failed)?;
        }
        Ok(wire::to_bytes(&answer))
    }

    /// What this member sends to the member `to`, or to all.
    async fn testimony(&self, to: Option<NodeId>) -> Result<Testimony, String> {
        let now = self.position().await?;
        let applied = self.publisher.applied.load().last_log_id.map(WireLogId::from);
        let applied = applied.filter(|id| id.index <= self.store.log_durable());
        let (confirmed, membership) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.current_leader == Some(self.id);
            let matched =
                to.filter(|_| leads).and_then(|to| metrics.replication.as_ref()?.get(&to).copied().flatten());
            let stored = &metrics.membership_config;
            let membership =
                stored.log_id().map(|id| (WireLogId::from(id), WireMembership::from(stored.membership())));
            (matched.map(|id| (wire::WireVote::from(&metrics.vote), WireLogId::from(id))), membership)
        };
        let memory = self.witness.memory();
        Ok(Testimony {
            past: LastKnown { start: memory.start, losses: memory.remembered.losses, applied },
            now,
            condition: memory.own_condition(),
            known: memory.remembered.others.clone(),
            confirmed,
            membership,
            contradicts: false,
        })
    }

    /// The newest membership: the one that another member has sent, or the one in this member's log.
    fn newest_membership(&self) -> Membership {
        let (own_id, own) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let stored = &metrics.membership_config;
            (stored.log_id().map(WireLogId::from), stored.membership().clone())
        };
        match &self.witness.memory().membership {
            Some((id, members)) if order(Some(*id)) > order(own_id) => {
                Membership::try_from(members.clone()).unwrap_or(own)
            }
            Some(_) | None => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_majority_is_one_and_all_of_no_voters_are_none() {
        let members = |ids: &[NodeId]| {
            let voters: BTreeSet<NodeId> = ids.iter().copied().collect();
            let member =
                |id: NodeId| Member { id, api_addr: format!("a:{id}"), peer_addr: format!("p:{id}") };
            let nodes: BTreeMap<NodeId, Member> = ids.iter().map(|id| (*id, member(*id))).collect();
            Membership::new(vec![voters], nodes).expect("every voter is a node")
        };
        assert!(!is_majority(&Membership::default(), |_| true), "it has no entry yet");
        assert!(!is_majority(&members(&[1, 2, 3]), |id| id == 2));
        assert!(is_majority(&members(&[1, 2, 3]), |id| id > 1));
    }
}
