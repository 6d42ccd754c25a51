//! The node as a member: starting with an identity, showing the cluster, bootstrapping it, changing it.
//!
//! | question | file |
//! |---|---|
//! | What starts when the directory has an identity? What does `GET /api/v1/cluster` show? | this one |
//! | Which alarms does this node raise? | `alarms` |
//! | How is a cluster bootstrapped, and how does a node get its identity? | `forming` |
//! | When is a node ready? When does the audit log record a change of the leader? | `readiness` |
//! | How does a change of the members reach the leader? | `change` |
//! | Can a majority of the voters be reached? | `quorum` |
//! | What does the leader do, step by step? | `steps` |
//!
//! **Invariant:** consensus runs with the identity in the data directory, and a node has at most one.

mod alarms;
pub(crate) mod change;
mod forming;
mod quorum;
mod readiness;
mod steps;

use std::{net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use tokio::{runtime::Handle, sync::Mutex};

use super::{
    ClusterView, MemberView, Principal, Refusal, access::Authentication, access::keys::AccessKeys,
    anchors::AuditAnchoring, change_requests::due::DueChanges, clock::Clock, context::Context,
    disk_space::DiskSpace, feature_level::FeatureLevels, feature_level::MemberReport, freshness::Freshness,
    history::HistoryReader, identity::key_sets::KeySetTask, leader_tasks::LeaderTasks, reload,
    rollouts::task::RolloutTask,
};
use concord_consensus::{Consensus, MemberStatus, Start, StartError, recover};
use concord_model::{access_key::Verb, feature::LEVEL_MIN};
use concord_net::{Member, NodeId, identity::Identity};
use concord_state::digest;
use readiness::record_leadership;

/// This node as a member of its cluster.
#[derive(Debug)]
pub struct ClusterMembers {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) disk_space: Arc<DiskSpace>,
    pub(crate) levels: Arc<FeatureLevels>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) authentication: Arc<Authentication>,
    pub(crate) history: Arc<HistoryReader>,
    pub(crate) keys: Arc<AccessKeys>,
    pub(crate) anchors: Arc<AuditAnchoring>,
    pub(crate) due_changes: Arc<DueChanges>,
    pub(crate) rollouts: Arc<RolloutTask>,
    pub(crate) key_sets: Arc<KeySetTask>,
    /// Held while an identity is written or consensus is started: one at a time.
    pub(crate) forming: Mutex<()>,
}

impl ClusterMembers {
    /// Starts consensus on this node if the directory has an identity.
    ///
    /// # Errors
    /// When the directory belongs to another node, or its content can't be trusted.
    pub fn start(self: &Arc<Self>) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(self.start_as_identified())
    }

    async fn start_as_identified(self: &Arc<Self>) -> Result<(), StartError> {
        let _forming = self.forming.lock().await;
        let directory = &self.cx.options.directory;
        let Some(identity) = Identity::read(directory).map_err(StartError::Refused)? else { return Ok(()) };
        if !recover::has_log(directory, &identity) {
            let shown = directory.display();
            let joining = Identity::is_joining(directory);
            if joining.map_err(|error| StartError::Failed(format!("{shown}: {error}")))? {
                tracing::warn!(
                    "this node exited while it joined the cluster {}: it waits until that is requested again",
                    identity.cluster_id
                );
                return Ok(());
            }
            // A member without its log has lost its vote.
            return Err(StartError::Refused(format!(
                "{shown} has an identity but no log: the log was lost. Remove the member and let it rejoin under a new id, \
                 in an empty directory"
            )));
        }
        self.start_consensus(identity).await
    }

    /// Starts consensus with the identity in the directory, and the tasks that need it. The caller holds `forming`.
    async fn start_consensus(self: &Arc<Self>, identity: Identity) -> Result<(), StartError> {
        if self.cx.consensus().is_some() {
            return Ok(());
        }
        let own = identity.require_node(&self.cx.options.directory, self.cx.node_id());
        own.map_err(StartError::Refused)?;
        let me = self.cx.peers.me.get_or_init(|| identity.clone());
        if *me != identity {
            return Err(StartError::Refused("the identity in the data directory has changed".into()));
        }
        let options = &self.cx.options;
        let consensus = Consensus::start(Start {
            me: identity,
            directory: options.directory.clone(),
            store: options.store.clone(),
            peers: self.cx.peers.clone(),
            timers: options.timers.clone(),
            snapshot_log_bytes: options.snapshot_log_bytes,
            log_stall_timeout: options.log_stall_timeout,
            rescue: options.rescue.clone(),
            data_key_file: options.data_key_file.clone(),
            runtime: options.consensus_runtime.clone().unwrap_or_else(Handle::current),
        })
        .await?;
        if self.cx.consensus.set(consensus.clone()).is_ok() {
            let Self { cx, clock, disk_space, levels, history, keys, anchors, .. } = &**self;
            let Self { due_changes, rollouts, key_sets, .. } = &**self;
            let tasks = LeaderTasks { cx: cx.clone(), clock: clock.clone(), disk_space: disk_space.clone() };
            consensus.supervise("monitor-readiness", self.clone().monitor_readiness());
            consensus.supervise("maintain-history", history.clone().maintain_history());
            consensus.supervise("build-indexes", tasks.clone().build_indexes());
            consensus.supervise("expire-idempotency-records", tasks.expire_records());
            consensus.supervise("do-due-changes", due_changes.clone().keep_doing());
            consensus.supervise("steer-rollouts", rollouts.clone().keep_looking());
            consensus.supervise("fetch-identity-keys", key_sets.clone().keep_fetching());
            consensus.supervise("watch-voters", disk_space.clone().watch_voters());
            consensus.supervise("keep-clock", clock.clone().keep_clock());
            consensus.supervise("keep-access", keys.clone().keep_access());
            consensus.supervise("anchor-audit-log", anchors.clone().keep_anchoring());
            consensus.supervise("keep-data-keys", reload::keep_data_keys(cx.clone()));
            consensus.supervise("record-leadership", record_leadership(cx.clone()));
            consensus.supervise("raise-feature-level", levels.clone().keep_raising_feature_level());
        }
        Ok(())
    }

    /// A sentence for the operator if this node is reached at other addresses, by its own settings, than its cluster knows.
    #[must_use]
    pub fn moved(&self, own: &Member) -> Option<String> {
        let known = self.cx.consensus()?.status().members.into_iter().map(|one| one.member);
        moved(own, &known.into_iter().find(|member| member.id == own.id)?)
    }

    /// What this node knows of its cluster.
    ///
    /// # Errors
    /// When the principal may not see it.
    pub fn cluster(&self, principal: &Principal) -> Result<ClusterView, Refusal> {
        principal.authorize(Verb::Observe, None)?;
        Ok(self.cluster_view())
    }

    fn cluster_view(&self) -> ClusterView {
        let mut view = ClusterView {
            cluster_id: self.cx.cluster_id(),
            node_id: self.cx.node_id(),
            leader_id: None,
            term: 0,
            revision: 0,
            digest: 0,
            feature_level: LEVEL_MIN,
            data_key: None,
            members: Vec::new(),
            alarms: self.alarms(),
        };
        if let Some(consensus) = self.cx.consensus() {
            let (status, state) = (consensus.status(), consensus.state());
            view.leader_id = status.leader_id;
            view.term = status.term;
            view.revision = state.revision();
            view.digest = digest::shown_digest(state.digest());
            view.data_key = consensus.store().at_rest().encryption().map(|at| at.data_key.to_string());
            view.feature_level = state.feature_level();
            let (members, told) = (status.members.into_iter(), self.levels.member_reports());
            let shown = |member: MemberStatus| {
                let answer = told.get(&member.member.id);
                member_view(member, status.leader_id, answer)
            };
            view.members = members.map(shown).collect();
        }
        view
    }
}

fn member_view(status: MemberStatus, leader: Option<NodeId>, answer: Option<&MemberReport>) -> MemberView {
    let MemberStatus { member, voter, lag, contact } = status;
    let role = match (voter, leader == Some(member.id)) {
        (_, true) => "leader",
        (true, false) => "follower",
        (false, false) => "learner",
    };
    let Member { id, api_addr, peer_addr } = member;
    let version = answer.map(|answer| answer.levels.version.clone());
    let feature_level_max = answer.map(|answer| answer.levels.max);
    let resources = answer.and_then(|answer| answer.resources.clone());
    let contact = contact.map(|contact| {
        (contact.is_reachable, u64::try_from(contact.silent_for.as_millis()).unwrap_or(u64::MAX))
    });
    MemberView { id, role, api_addr, peer_addr, lag, contact, version, feature_level_max, resources }
}

/// The same, of a member as its cluster knows it. A name or an unspecified address may be the same place as any other.
fn moved(own: &Member, known: &Member) -> Option<String> {
    let differ = |own: &str, known: &str| match (own.parse::<SocketAddr>(), known.parse::<SocketAddr>()) {
        (Ok(own), Ok(known)) => {
            own.port() != known.port() || (own.ip() != known.ip() && !own.ip().is_unspecified())
        }
        _ => false,
    };
    let is_moved = differ(&own.api_addr, &known.api_addr) || differ(&own.peer_addr, &known.peer_addr);
    is_moved.then(|| {
        let Member { id, api_addr, peer_addr } = own;
        format!(
            "the cluster knows this node at {} and {}, and its settings say {api_addr} and {peer_addr}; if it has moved: \
             concord cluster update {id} --api-addr {api_addr} --peer-addr {peer_addr}",
            known.api_addr, known.peer_addr
        )
    })
}

/// Checks that a text is `host:port`.
///
/// # Errors
/// What is wrong with it.
pub fn check_address(text: &str) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_node_that_has_moved_is_told_the_command() {
        let at = |api: &str, peer: &str| Member { id: 3, api_addr: api.into(), peer_addr: peer.into() };
        let known = at("10.0.0.3:8100", "10.0.0.3:8200");
        let text = moved(&at("10.0.0.9:8100", "10.0.0.3:8200"), &known).unwrap();
        assert!(
            text.ends_with("concord cluster update 3 --api-addr 10.0.0.9:8100 --peer-addr 10.0.0.3:8200")
        );
        for same in [known.clone(), at("0.0.0.0:8100", "[::]:8200"), at("node3:8100", "node3:8200")] {
            assert_eq!(moved(&same, &known), None, "{same:?}");
        }
        assert!(moved(&at("0.0.0.0:8101", "0.0.0.0:8200"), &known).is_some(), "another port");
        assert_eq!(moved(&known, &at("node3:8100", "node3:8200")), None);
    }

    #[test]
    fn a_leader_has_the_role_of_one() {
        let status = |id, voter, leader| {
            let member = Member { id, api_addr: "a:1".into(), peer_addr: "a:2".into() };
            member_view(MemberStatus { member, voter, lag: None, contact: None }, leader, None).role
        };
        assert_eq!(status(1, true, Some(1)), "leader");
        assert_eq!(status(2, true, Some(1)), "follower");
        assert_eq!(status(3, false, None), "learner");
    }
}
