//! Forms the cluster, shows it, and says whether this node is ready.
//!
//! Forming, from one node: every other member is asked whose it is; then this node's identity is written, each
//! other member takes its own, and consensus is started and initialised with all of them. Every step can be done
//! again: a call that broke off half-way is repeated, and goes on with the cluster id that it finds.
//!
//! **Invariant:** a node takes an identity once. One that bears another identity than the asked one says so and
//! changes nothing.

pub(crate) mod change;
mod steps;

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{ClusterView, MemberView, Refusal, Service};
use crate::peer::call::Call;
use crate::{
    model::error::{Invalid, LocSegment, Violation},
    peer::{
        Member, NodeId, ReceiveError,
        codec::{decode, encode},
        identity::{FORMAT, Identity},
    },
    raft::{Consensus, MemberStatus, Start, StartError},
};

/// Where [`Consensus`] keeps the log in the data directory.
const LOG: &str = "log";
/// Members of a cluster: more voters than this make every write slower and nothing safer.
pub(super) const MEMBERS_MAX: usize = 31;
/// How long one member may take to answer, or to write its identity and open an empty directory.
const JOIN_TIME: Duration = Duration::from_secs(10);
/// How long forming waits for the first read that is confirmed.
const FIRST_READ: Duration = Duration::from_secs(5);
/// How often this node makes sure that it has caught up.
const LOOK: Duration = Duration::from_millis(250);
/// How long one such look may take.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// How long a look that went well makes the node ready: a failed election fits in.
const READY: Duration = Duration::from_secs(2);

/// What a forming node asks of another. New variants go to the end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Join {
    /// Whose are you?
    Tell,
    /// Take this identity.
    Take { cluster_id: Uuid, node_id: NodeId },
}

/// What the other node says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Joined {
    pub(super) node_id: NodeId,
    pub(super) cluster_id: Option<Uuid>,
    initialized: bool,
    refused: Option<String>,
}

impl Service {
    /// Starts this node's part in consensus when the directory has an identity.
    ///
    /// # Errors
    /// When the directory is another node's, or its content can't be trusted.
    pub async fn start(&self) -> Result<(), StartError> {
        let _forming = self.inner.forming.lock().await;
        let directory = &self.inner.options.directory;
        let Some(identity) = Identity::read(directory).map_err(StartError::Refused)? else { return Ok(()) };
        // An identity is written and its log is made in one go. A member without its log has forgotten its vote.
        if !directory.join(LOG).is_dir() {
            return Err(StartError::Refused(format!(
                "{} has an identity but no log. Unless this node ended while it was joined for the first time, \
                 the log was lost: remove the member and let it rejoin under a new id, in an empty directory",
                directory.display()
            )));
        }
        self.begin(identity).await
    }

    /// Starts consensus under an identity that stands in the directory. `forming` is held.
    async fn begin(&self, identity: Identity) -> Result<(), StartError> {
        if self.consensus().is_some() {
            return Ok(());
        }
        if identity.node_id != self.node_id() {
            let (theirs, ours) = (identity.node_id, self.node_id());
            return Err(StartError::Refused(format!(
                "{} names node {theirs}, but this is node {ours}",
                self.inner.options.directory.join("identity.json").display()
            )));
        }
        let me = self.inner.peers.me.get_or_init(|| identity.clone());
        if *me != identity {
            return Err(StartError::Refused("the identity in the data directory has changed".into()));
        }
        let options = &self.inner.options;
        let consensus = Consensus::start(Start {
            me: identity,
            directory: options.directory.clone(),
            store: options.store.clone(),
            peers: self.inner.peers.clone(),
            timers: options.timers.clone(),
            snapshot_log_bytes: options.snapshot_log_bytes,
            rescue: options.rescue.clone(),
        })
        .await?;
        if self.inner.consensus.set(consensus).is_ok() {
            tokio::spawn(self.clone().keep_watch());
            tokio::spawn(self.clone().keep_history());
            tokio::spawn(self.clone().keep_building());
        }
        Ok(())
    }

    /// What this node knows of its cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterView {
        let mut view = ClusterView {
            cluster_id: self.inner.peers.me.get().map(|me| me.cluster_id),
            node_id: self.node_id(),
            leader_id: None,
            term: 0,
            revision: 0,
            digest: 0,
            members: Vec::new(),
        };
        if let Some(consensus) = self.consensus() {
            let (status, state) = (consensus.status(), consensus.state());
            view.leader_id = status.leader_id;
            view.term = status.term;
            view.revision = state.revision();
            view.digest = state.digest();
            view.members = status.members.into_iter().map(|member| show(member, status.leader_id)).collect();
        }
        view
    }

    /// Forms the cluster from this node: writes identities here and on every member, then initialises. Asked again
    /// with the same members, it says how the cluster is.
    ///
    /// # Errors
    /// When the members are no cluster that this node may form, or one of them can't be reached.
    pub async fn init(&self, members: Vec<Member>) -> Result<ClusterView, Refusal> {
        check_members(&members, self.node_id())?;
        let service = self.clone();
        // On its own: a caller that hangs up must not leave it half-way.
        let formed = tokio::spawn(async move { service.form(members).await }).await;
        formed.map_err(|error| Refusal::Internal(format!("forming the cluster ended: {error}")))??;
        Ok(self.cluster())
    }

    async fn form(&self, members: Vec<Member>) -> Result<(), Refusal> {
        let Ok(_forming) = self.inner.forming.try_lock() else {
            return Err(Refusal::Unavailable("this node is starting, or is being formed already".into()));
        };
        let directory = &self.inner.options.directory;
        let mine = Identity::read(directory).map_err(Refusal::Internal)?;
        if let Some(consensus) = self.consensus()
            && consensus.is_initialized().await
        {
            return same_members(consensus, &members);
        }
        let cluster_id = self.agree(mine.as_ref(), &members).await?;
        let identity =
            mine.clone().unwrap_or(Identity { cluster_id, node_id: self.node_id(), format: FORMAT });
        if mine.is_none() {
            identity.write(directory).map_err(Refusal::Internal)?;
        }
        for member in members.iter().filter(|member| member.id != self.node_id()) {
            self.ask(member, &Join::Take { cluster_id, node_id: member.id }).await?;
        }
        self.begin(identity).await.map_err(|error| Refusal::Internal(error.to_string()))?;
        let consensus = self.consensus_or_refusal()?;
        consensus.initialize(members).await.map_err(Refusal::Undecided)?;
        tracing::info!(cluster = %cluster_id, "formed the cluster {cluster_id}");
        // So that the answer shows a cluster at work; one that takes longer is formed all the same.
        if let Err(refusal) = self.confirm_until(consensus, Instant::now() + FIRST_READ).await {
            tracing::warn!("the cluster is formed, but not at work yet: {refusal:?}");
        }
        Ok(())
    }

    /// The cluster id to form under: the one that a broken-off call has left, or a new one.
    async fn agree(&self, mine: Option<&Identity>, members: &[Member]) -> Result<Uuid, Refusal> {
        let mut found = mine.map(|identity| (identity.cluster_id, self.node_id()));
        for member in members.iter().filter(|member| member.id != self.node_id()) {
            let answer = self.ask(member, &Join::Tell).await?;
            if answer.node_id != member.id {
                return Err(wrong(format!(
                    "node {} answers at {}, not node {}",
                    answer.node_id, member.peer_addr, member.id
                )));
            }
            if answer.initialized && answer.cluster_id == mine.map(|identity| identity.cluster_id) {
                return Err(Refusal::Unavailable("the cluster is being formed by another node".into()));
            }
            if answer.initialized {
                return Err(wrong(format!("node {} belongs to a cluster that is formed already", member.id)));
            }
            match (answer.cluster_id, found) {
                (Some(theirs), Some((ours, id))) if theirs != ours => {
                    return Err(wrong(format!(
                        "the nodes {} and {id} belong to different clusters",
                        member.id
                    )));
                }
                (Some(theirs), _) => found = Some((theirs, member.id)),
                (None, _) => {}
            }
        }
        Ok(found.map_or_else(Uuid::new_v4, |(id, _)| id))
    }

    pub(super) async fn ask(&self, member: &Member, ask: &Join) -> Result<Joined, Refusal> {
        let Member { id, peer_addr, .. } = member;
        let body = encode(ask);
        let answer = self.peers().call_secret_only(peer_addr, Call::Join, body, JOIN_TIME).await;
        let answer =
            answer.map_err(|error| Refusal::Unavailable(format!("node {id} at {peer_addr}: {error}")))?;
        let joined: Joined = decode(&answer)
            .map_err(|error| Refusal::Internal(format!("node {id} at {peer_addr}: {error}")))?;
        match joined.refused {
            Some(text) => Err(wrong(format!("node {id} at {peer_addr}: {text}"))),
            None => Ok(joined),
        }
    }

    /// Answers a node that forms a cluster. The caller has checked the secret.
    ///
    /// # Errors
    /// When the body is none of this version's.
    pub(crate) async fn answer_join(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let join: Join = decode(&body)?;
        let service = self.clone();
        let joined = tokio::spawn(async move { service.join(join).await }).await;
        joined.map(|joined| encode(&joined)).map_err(|error| ReceiveError::Failed(format!("ended: {error}")))
    }

    async fn join(&self, join: Join) -> Joined {
        let refused = match join {
            Join::Tell => None,
            Join::Take { cluster_id, node_id } => self.take(cluster_id, node_id).await.err(),
        };
        if let Some(text) = &refused {
            tracing::warn!("refused to join: {text}");
        }
        let initialized = match self.consensus() {
            Some(consensus) => consensus.is_initialized().await,
            None => false,
        };
        let cluster_id = self.inner.peers.me.get().map(|me| me.cluster_id);
        Joined { node_id: self.node_id(), cluster_id, initialized, refused }
    }

    async fn take(&self, cluster_id: Uuid, node_id: NodeId) -> Result<(), String> {
        if node_id != self.node_id() {
            return Err(format!("this is node {}, not node {node_id}", self.node_id()));
        }
        // Two nodes that form at once would wait for each other.
        let _forming =
            self.inner.forming.try_lock().map_err(|_| "it is starting, or forms a cluster itself")?;
        let directory = &self.inner.options.directory;
        let identity = match Identity::read(directory)? {
            Some(mine) if mine.cluster_id == cluster_id => mine,
            Some(mine) => return Err(format!("it belongs to the cluster {} already", mine.cluster_id)),
            None => {
                let identity = Identity { cluster_id, node_id, format: FORMAT };
                identity.write(directory)?;
                tracing::info!(cluster = %cluster_id, "joined the cluster {cluster_id}");
                identity
            }
        };
        self.begin(identity).await.map_err(|error| error.to_string())
    }

    /// Whether this node has caught up with a live leader.
    ///
    /// # Errors
    /// Why it has not.
    pub fn ready(&self) -> Result<(), String> {
        if self.inner.stopping.is_cancelled() {
            return Err("this node is stopping".into());
        }
        let consensus = self.consensus().filter(|_| !self.has_left()).ok_or_else(|| self.absence())?;
        if !consensus.status().running {
            return Err("consensus has ended on this node".into());
        }
        match self.staleness() {
            Some(age) if age < READY => Ok(()),
            Some(_) | None if consensus.leader().is_none() => Err("no leader is known".into()),
            Some(age) => Err(format!("this node has not caught up with a leader for {} ms", age.as_millis())),
            None => Err("this node has not caught up with a leader yet".into()),
        }
    }

    /// Makes sure again and again that this node has caught up, as a reader would, and logs when that changes.
    async fn keep_watch(self) {
        let Some(consensus) = self.consensus() else { return };
        let (mut ready, mut since) = (false, Instant::now());
        while !self.inner.stopping.is_cancelled() {
            if self.has_left() {
                consensus.retire();
                tracing::warn!("this node was taken out of the cluster and takes no part any more");
                return;
            }
            self.complete_change(consensus);
            let confirmed = timeout(LOOK_TIME, self.confirm(consensus)).await;
            let why = match &confirmed {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => format!("{error:?}"),
                Err(_) => "the leader did not answer in time".into(),
            };
            let now = self.ready();
            if now.is_ok() != ready {
                ready = !ready;
                let lasted_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                since = Instant::now();
                match now {
                    Ok(()) => tracing::info!(lasted_ms, "ready: caught up with a live leader"),
                    Err(text) => tracing::warn!(lasted_ms, why, "not ready: {text}"),
                }
            }
            tokio::select! {
                () = self.inner.stopping.cancelled() => {}
                () = sleep(LOOK) => {}
            }
        }
    }
}

fn show(status: MemberStatus, leader: Option<NodeId>) -> MemberView {
    let MemberStatus { member, voter, lag } = status;
    let role = match (voter, leader == Some(member.id)) {
        (_, true) => "leader",
        (true, false) => "follower",
        (false, false) => "learner",
    };
    MemberView { id: member.id, role, api_addr: member.api_addr, peer_addr: member.peer_addr, lag }
}

fn wrong(text: String) -> Refusal {
    Invalid::from(Violation::at(vec!["members".into()], text)).into()
}

fn same_members(consensus: &Consensus, asked: &[Member]) -> Result<(), Refusal> {
    let has: BTreeSet<NodeId> = consensus.status().members.iter().map(|status| status.member.id).collect();
    let asked: BTreeSet<NodeId> = asked.iter().map(|member| member.id).collect();
    if has == asked {
        return Ok(());
    }
    Err(wrong(format!("this node belongs to a cluster that is formed already, of the nodes {has:?}")))
}

/// Whether a text is `host:port`, by which other nodes can call.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_address(text: &str) -> Result<(), String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        !host.is_empty()
            && (plain || (bracketed && host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok()))
    });
    match parts.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(port)) if port > 0 => Ok(()),
        _ => Err(format!("`{text}` is no address: expected host:port")),
    }
}

/// Checks the members that a cluster is to be formed of.
fn check_members(members: &[Member], me: NodeId) -> Result<(), Invalid> {
    let mut faults = Vec::new();
    let mut ids = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for (member, place) in members.iter().zip(0..) {
        let loc =
            |name: &str| vec![LocSegment::from("members"), LocSegment::Index(place), LocSegment::from(name)];
        if member.id == 0 || !ids.insert(member.id) {
            faults.push(Violation::at(loc("id"), "a node id is at least 1 and named once"));
        }
        for (name, address) in [("api_addr", &member.api_addr), ("peer_addr", &member.peer_addr)] {
            if let Err(text) = check_address(address) {
                faults.push(Violation::at(loc(name), text));
            } else if !addresses.insert(address) {
                faults.push(Violation::at(loc(name), format!("the address `{address}` is named twice")));
            }
        }
    }
    if !ids.contains(&me) {
        faults.push(Violation::at(
            vec!["members".into()],
            format!("node {me}, which is asked, is not among them"),
        ));
    }
    if members.len() > MEMBERS_MAX {
        faults.push(Violation::at(
            vec!["members".into()],
            format!("a cluster has at most {MEMBERS_MAX} members"),
        ));
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
    fn a_cluster_is_formed_of_distinct_members_and_this_node() {
        let good = [member(1), member(2), member(3)];
        assert_eq!(check_members(&good, 2), Ok(()));
        let twice = [member(1), member(1)];
        let no_port = [Member { peer_addr: "a".into(), ..member(1) }];
        for (members, me) in [(&good[..], 4), (&[], 1), (&twice, 1), (&no_port, 1)] {
            assert!(check_members(members, me).is_err(), "{members:?}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["127.0.0.1:8101", "node-1.example:1", "[::1]:65535", "node_1:80"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "8101",
            ":8101",
            "a:",
            "a:0",
            "a:65536",
            "::1:80",
            "http://a:80",
            "a/b:80",
            "a@b:80",
            "[x]:1",
        ] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn calls_of_forming_come_back_as_they_were() {
        let take = Join::Take { cluster_id: Uuid::from_u128(7), node_id: 3 };
        assert_eq!(decode::<Join>(&encode(&take)).unwrap(), take);
        let joined = Joined { node_id: 3, cluster_id: None, initialized: false, refused: Some("no".into()) };
        assert_eq!(decode::<Joined>(&encode(&joined)).unwrap(), joined);
    }

    #[test]
    fn a_leader_is_shown_as_one() {
        let status = |id, voter| MemberStatus { member: member(id), voter, lag: None };
        assert_eq!(show(status(1, true), Some(1)).role, "leader");
        assert_eq!(show(status(2, true), Some(1)).role, "follower");
        assert_eq!(show(status(3, false), None).role, "learner");
    }
}
