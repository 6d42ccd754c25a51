//! Raises the feature level of the cluster when every member supports the next one (`model/feature.rs`).
//!
//! The leader asks every voter and learner which levels it knows and offers. When all respond and offer the next level, it
//! proposes the entry that raises the level. An operator can hold the cluster back with a setting on any member, which
//! then offers no more than that.
//!
//! Every node asks from time to time, so that it can show the version, memory and volume of each member.
//!
//! **Invariant:** the level rises only after every member has offered it, while no change of the members is in progress. A
//! member that was restarted with an older version in between stops at the entry and changes nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use super::{clock::Clock, context::Context, disk_space::DiskSpace, metrics::process, request::Resources};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{Command, Proposal},
    feature::{LEVEL_MIN, level_max},
};
use concord_net::{
    Member, NodeId,
    call::Call,
    client::{CallError, Lane},
    codec::{decode, encode},
};

/// The author of the entry in the log: no access key has this id.
const AUTHOR: &str = "concord";
/// How often a leader asks the members while the level may rise.
const RAISE_INTERVAL: Duration = Duration::from_secs(1);
/// How often every node asks them otherwise, to show their versions.
const SHOW_INTERVAL: Duration = Duration::from_secs(10);
/// How long a member may take to respond.
const LEVELS_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a bootstrap checks whether the level has risen.
const FORMED_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Which feature levels a node can work at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLevels {
    /// The lowest level that it knows.
    pub min: u32,
    /// The highest level that it knows.
    pub max: u32,
    /// The highest level that it agrees to: lower than `max` if the operator holds the cluster back.
    pub offered: u32,
    /// Its version.
    pub version: String,
}

impl KnownLevels {
    /// Whether a node can be a member of a cluster at this level.
    pub(super) fn include(&self, level: u32) -> bool {
        (self.min..=self.max).contains(&level)
    }
}

/// What a node reports about itself to other nodes. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberReport {
    /// Which feature levels it can work at.
    pub(super) levels: KnownLevels,
    /// Its memory and its volume. `None` if it no longer responds.
    pub(super) resources: Option<Resources>,
}

/// The last report of each member.
pub(super) type MemberReports = BTreeMap<NodeId, MemberReport>;

/// The feature levels that the members know, and the level of the cluster.
#[derive(Debug)]
pub struct FeatureLevels {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    disk_space: Arc<DiskSpace>,
    member_reports: Mutex<MemberReports>,
}

impl FeatureLevels {
    pub(crate) fn new(cx: &Arc<Context>, clock: &Arc<Clock>, disk_space: &Arc<DiskSpace>) -> Self {
        let (cx, clock, disk_space) = (Arc::clone(cx), Arc::clone(clock), Arc::clone(disk_space));
        Self { cx, clock, disk_space, member_reports: Mutex::default() }
    }

    /// The levels of this node.
    #[must_use]
    pub fn levels(&self) -> KnownLevels {
        let held_at = if concord_model::sabotage::is("level-raised-alone") {
            level_max()
        } else {
            self.cx.options.feature_level_max
        };
        let max = level_max();
        KnownLevels {
            min: LEVEL_MIN,
            max,
            offered: held_at.clamp(LEVEL_MIN, max),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn report(&self) -> MemberReport {
        let reserve = &self.disk_space.reserve;
        let resources = Resources {
            memory_bytes: process::resident_bytes(),
            disk_free_bytes: reserve.free_bytes(),
            disk_reserve_bytes: reserve.reserve_bytes(),
        };
        MemberReport { levels: self.levels(), resources: Some(resources) }
    }

    /// Responds to another node that asks for the levels.
    #[must_use]
    pub fn answer_levels(&self) -> Bytes {
        encode(&self.report())
    }

    /// The last reports of the other members, and the report of this node.
    pub(super) fn member_reports(&self) -> MemberReports {
        let mut reports = self.member_reports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reports.insert(self.cx.node_id(), self.report());
        reports
    }

    /// Asks the members and raises the level, until the node stops.
    ///
    /// # Errors
    /// Never: failures are tried again.
    pub(super) async fn keep_raising_feature_level(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let held_at = self.levels().offered;
        if held_at < level_max() {
            tracing::info!(held_at, "this node holds the cluster's feature level at {held_at} or below");
        }
        while !self.cx.is_over() {
            let may_rise =
                self.cx.leads(consensus) && consensus.state().feature_level() < self.levels().offered;
            if may_rise {
                self.raise_feature_level(consensus).await;
            } else {
                self.ask_members(consensus).await;
            }
            tokio::select! {
                () = self.cx.stopping.cancelled() => {}
                () = consensus.leader_changed() => {}
                () = sleep(if may_rise { RAISE_INTERVAL } else { SHOW_INTERVAL }) => {}
            }
        }
        Ok(())
    }

    /// Raises the level step by step to the highest one that all members offer. The caller leads.
    async fn raise_feature_level(&self, consensus: &Consensus) {
        // A member that joins meanwhile might know less.
        let Ok(_no_change) = self.cx.changing.try_lock() else { return };
        let Some(offered) = self.ask_members(consensus).await else { return };
        for to in consensus.state().feature_level() + 1..=offered.min(self.levels().offered) {
            let at = self.clock.stamp(&consensus.state()).await;
            let command = Command::RaiseFeatureLevel { to };
            let proposal = Proposal::new(at, AUTHOR, Author::Cluster, command);
            match timeout(self.cx.options.write_timeout, consensus.write(proposal)).await {
                Ok(Ok(_)) => tracing::info!(level = to, "raised the feature level of the cluster to {to}"),
                // The state shows whether it was applied.
                Ok(Err(error)) => return tracing::debug!(?error, to, "the feature level was not raised"),
                Err(_) => return tracing::debug!(to, "the feature level was not raised in time"),
            }
        }
    }

    /// Asks all other members for their levels and notes their reports. Returns the highest level that all of them offer;
    /// `None` if one does not respond.
    async fn ask_members(&self, consensus: &Consensus) -> Option<u32> {
        if concord_model::sabotage::is("level-raised-alone") {
            return Some(level_max());
        }
        let members: Vec<Member> =
            consensus.status().members.into_iter().map(|status| status.member).collect();
        let others = members.iter().filter(|member| member.id != self.cx.node_id());
        let received = join_all(others.map(async |member| (member.id, self.ask_levels(member).await))).await;
        let mut reports = self.member_reports.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lowest = Some(u32::MAX);
        reports.retain(|id, _| members.iter().any(|member| member.id == *id));
        for (id, report) in received {
            match report {
                Ok(report) => {
                    lowest = lowest.map(|lowest| lowest.min(report.levels.offered));
                    reports.insert(id, report);
                }
                Err(error) => {
                    tracing::debug!(member = id, %error, "a member does not report its feature levels");
                    // Its last version is still shown. Its memory and its volume are unknown.
                    reports.entry(id).and_modify(|report| report.resources = None);
                    lowest = None;
                }
            }
        }
        lowest
    }

    /// Asks one node for its levels.
    pub(super) async fn ask_levels(&self, member: &Member) -> Result<MemberReport, CallError> {
        let (id, addr) = (member.id, &member.peer_addr);
        let call = self.cx.peers().call(Lane::Forward, id, addr, Call::Levels, Bytes::new(), LEVELS_TIMEOUT);
        decode(&call.await?).map_err(|error| CallError::Unknown(error.to_string()))
    }

    /// Waits until a new cluster has the level that all its members offer, so that the response to the bootstrap shows that
    /// level.
    pub(super) async fn await_first_feature_level(&self, consensus: &Consensus, deadline: Instant) {
        let Some(offered) = self.ask_members(consensus).await else { return };
        let level = offered.min(self.levels().offered);
        while consensus.state().feature_level() < level && Instant::now() < deadline {
            sleep(FORMED_POLL_INTERVAL).await;
        }
    }
}
