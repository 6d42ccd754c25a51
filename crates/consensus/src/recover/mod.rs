//! Recovers a cluster that has lost its majority: a stopped member continues as the only one of a new cluster.
//! `addresses` changes where the members of a stopped cluster are.
//!
//! The member keeps its state, its history, its keys and its audit log. Its log is cut after the last entry that this member
//! knows to be decided, and continues with:
//!
//! 1. an entry that skips revisions ([`Command::SkipRevisions`]);
//! 2. the entries that were cut off, in their order: the lost members may have confirmed them, so they are kept;
//! 3. an entry that holds all change requests ([`SystemCommand::HoldChanges`]). It comes after those that were cut off:
//!    before them, it would void an apply that the lost members have confirmed;
//! 4. an entry that names this member as the only voter.
//!
//! All of it is committed. Nobody but the lost members knows what they had decided in the places that were cut off, or after
//! them, and to whom they had confirmed it. So the cluster is a new one with an id of its own, no member of the old one can
//! join it, and no revision that they may have given out is used again, not even for an entry that was cut off: they may
//! have decided another one in its place.
//!
//! ```text
//! 1. log.recovered-<new cluster id>   the log with the two entries, written beside the log
//! 2. identity.json                    names the new cluster: from here on the recovery is decided
//! 3. witness                          removed: it is about members of the old cluster
//! 4. log.recovered-… → log            in the place of the old log
//! ```
//!
//! **Invariants**
//! 1. The directory is that of a member of the old cluster before step 2, and that of the new cluster after it. A start
//!    completes what was interrupted after step 2, and removes what was interrupted before it.
//! 2. Nothing is changed before the whole state was read and everything after it was applied.

mod addresses;

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use openraft::EntryPayload;

pub use addresses::MovedMembers;

use super::{
    LOG_DIRECTORY, STORE_DIRECTORY,
    codec::LogHeader,
    log::{self, Continuation, Wal},
    machine::apply_to,
    restore::first_revision,
    term::Term,
    types::{EncodedProposal, Entry, Membership, Payload},
    wire::{StateMetadata, WireLogId, WireMembership, WireVote},
    witness::Witness,
};
use concord_model::{
    access_key::Author,
    command::{Command, Proposal, SystemCommand},
    record::{Revision, VoidRevisions},
    time::Timestamp,
};
use concord_net::{Member, NodeId, identity::Identity};
use concord_state::State;
use concord_storage::{LogIndex, Store, at_rest::AtRest};

/// What the name of a log begins with that a recovery has written. The id of its cluster follows.
const RECOVERED: &str = "log.recovered-";
/// The author of the entry that skips revisions.
const AUTHOR: &str = "cluster";

/// What a recovery finds, and what it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingleReport {
    /// The cluster that has lost its majority.
    pub previous_cluster_id: uuid::Uuid,
    /// The cluster that the member continues as.
    pub cluster_id: uuid::Uuid,
    /// The member.
    pub member: Member,
    /// The voters that are given up.
    pub lost_voters: Vec<NodeId>,
    /// The members without a vote that are given up.
    pub lost_learners: Vec<NodeId>,
    /// The index and the term of the last entry of the log.
    pub last_entry: (LogIndex, u64),
    /// How many entries at the end of the log this member did not know to be decided. They are now, at later revisions.
    pub undecided_entries: u64,
    /// The last revision that this member knew to be given out. It and all before it stay.
    pub last_revision: Revision,
    /// The time of the last change that this member had.
    pub last_change_at: Timestamp,
    /// The revisions that the new cluster skips.
    pub void: VoidRevisions,
    /// How many definitions, configs and access keys there are.
    pub records: (u64, u64, u64),
}

/// A recovery that can be made. Nothing was changed yet.
pub struct SingleRecovery {
    me: Identity,
    wal: Wal,
    continuation: Continuation,
    report: SingleReport,
}

impl std::fmt::Debug for SingleRecovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleRecovery").field("report", &self.report).finish_non_exhaustive()
    }
}

/// The disk of a stopped member, as far as nothing is wrong with it.
struct StoppedMember {
    me: Identity,
    at_rest: AtRest,
    wal: Wal,
}

impl StoppedMember {
    /// Opens the log, and refuses what is no member's, or can't be changed now.
    fn open(directory: &Path, data_key_file: Option<&Path>) -> Result<Self, String> {
        let shown = directory.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        let me =
            Identity::read(directory)?.ok_or_else(|| format!("{shown} belongs to no node of a cluster"))?;
        if log_of(directory, me.cluster_id).exists() {
            return Err(format!(
                "a recovery of {shown} was interrupted and is decided: start the node, or run this without --dry-run, and \
                 it is completed"
            ));
        }
        let at_rest = AtRest::open(directory, data_key_file)?;
        if !at_rest.is_converted() {
            return Err(format!(
                "encryption of {shown} is being turned on or off: start the node once, stop it, and try again"
            ));
        }
        if Store::is_distrusted(&directory.join(STORE_DIRECTORY)) {
            return Err(format!(
                "the state in {shown} was found to differ from that of a majority and can't be rebuilt without it: recover \
                 another member, or restore a backup"
            ));
        }
        let log = directory.join(LOG_DIRECTORY);
        if !log.is_dir() {
            return Err(format!("{shown} has no log: recover another member, or restore a backup"));
        }
        let wal = Wal::open(&log).map_err(failed)?.with_keys(&at_rest);
        let is_own =
            |found: &LogHeader| (found.cluster, found.node) == (*me.cluster_id.as_bytes(), me.node_id);
        if !wal.header().is_some_and(|found| is_own(&found)) {
            return Err(format!(
                "the log in {shown} is not that of node {} of cluster {}",
                me.node_id, me.cluster_id
            ));
        }
        Ok(Self { me, at_rest, wal })
    }
}

/// What the disk of a stopped member holds.
struct Survivor {
    /// The state after all that is known to be decided.
    decided: State,
    /// The last entry of the snapshot that the state was read from.
    snapshot: Option<WireLogId>,
    /// The index of the last entry that is known to be decided.
    decided_upto: LogIndex,
    /// The entries after it.
    undecided: Vec<Payload>,
    last: WireLogId,
    members: Membership,
}

impl SingleRecovery {
    /// Reads the directory of a stopped member, which this process has locked. Changes nothing. Blocking.
    ///
    /// # Errors
    /// In one line, when the directory is not that of a member, can't be read, holds no whole state, or needs no recovery.
    pub fn plan(directory: &Path, data_key_file: Option<&Path>, now: Timestamp) -> Result<Self, String> {
        let StoppedMember { me, at_rest, wal } = StoppedMember::open(directory, data_key_file)?;
        let survivor = Survivor::read(directory, &me, &wal, &at_rest)?;
        Self::of(me, wal, survivor, now)
    }

    fn of(me: Identity, wal: Wal, survivor: Survivor, now: Timestamp) -> Result<Self, String> {
        let id = me.node_id;
        let Survivor { decided, snapshot, decided_upto, undecided, last, members } = survivor;
        let member = members.get_node(&id).cloned();
        let member = member.ok_or_else(|| format!("node {id} is no member of its cluster any more"))?;
        let lost_voters: Vec<NodeId> = members.voter_ids().filter(|voter| *voter != id).collect();
        if lost_voters.is_empty() {
            return Err(format!(
                "node {id} is the only voter of its cluster: start it, there is nothing to recover"
            ));
        }
        let lost = |one: &NodeId| *one != id && !lost_voters.contains(one);
        let lost_learners = members.nodes().map(|(one, _)| *one).filter(lost).collect();
        let undecided_entries = u64::try_from(undecided.len()).unwrap_or(u64::MAX);
        let first = first_revision(decided.revision(), now)?;
        let void = VoidRevisions { first: decided.revision() + 1, last: first - 1 };
        let cluster_id = uuid::Uuid::new_v4();
        // A term that no entry has and that this member has not voted in.
        let voted = wal.position().vote.map_or(0, |vote| vote.term);
        let Term(term) = Term(voted.max(last.term)).of_next_election();
        let skip =
            Proposal::new(decided.last_at(), AUTHOR, Author::Cluster, Command::SkipRevisions { to: first });
        let alone = WireMembership { voters: vec![vec![id]], nodes: vec![(id, member.clone())] };
        let mut payloads = vec![EntryPayload::Normal(EncodedProposal(Bytes::from(skip.to_bytes())))];
        payloads.extend(undecided);
        let hold = Command::System(SystemCommand::HoldChanges);
        let hold = Proposal::new(decided.last_at(), AUTHOR, Author::Cluster, hold);
        payloads.push(EntryPayload::Normal(EncodedProposal(Bytes::from(hold.to_bytes()))));
        payloads.push(EntryPayload::Membership(alone.try_into()?));
        let places = (decided_upto + 1..).map(|index| WireLogId { index, term, node: id });
        let appended: Vec<(WireLogId, Payload)> = places.zip(payloads).collect();
        let mut state = decided.clone();
        for (place, payload) in &appended {
            apply_to(&mut state, place.index, payload, |_, _| {})?;
        }
        let report = SingleReport {
            previous_cluster_id: me.cluster_id,
            cluster_id,
            member,
            lost_voters,
            lost_learners,
            last_entry: (last.index, last.term),
            undecided_entries,
            last_revision: decided.revision(),
            last_change_at: state.last_at(),
            void,
            records: (state.definition_count(), state.config_count(), state.access_key_count()),
        };
        let header = LogHeader { cluster: *cluster_id.as_bytes(), node: id, installing: None };
        let vote = WireVote { term, node: id, committed: false };
        let continuation = Continuation { header, vote, state: snapshot, kept_upto: decided_upto, appended };
        Ok(Self { me, wal, continuation, report })
    }

    /// What it finds, and what it leads to.
    #[must_use]
    pub fn report(&self) -> &SingleReport {
        &self.report
    }

    /// Makes the directory that of the only member of the new cluster. Blocking.
    ///
    /// # Errors
    /// In one line, when the disk fails. If the directory names the new cluster already, the next start completes it.
    pub fn make(self, directory: &Path) -> Result<SingleReport, String> {
        let failed = |error: io::Error| format!("{}: {error}", directory.display());
        let Self { me, wal, continuation, report } = self;
        finish(directory, &me).map_err(failed)?;
        let cluster_id = report.cluster_id;
        wal.write_continued(&log_of(directory, cluster_id), continuation).map_err(failed)?;
        drop(wal);
        let me = Identity { cluster_id, ..me };
        me.replace(directory).map_err(failed)?;
        finish(directory, &me).map_err(failed)?;
        Ok(report)
    }
}

impl Survivor {
    /// The state of the newest snapshot, and all that the log has after it.
    fn read(directory: &Path, me: &Identity, wal: &Wal, at_rest: &AtRest) -> Result<Self, String> {
        let shown = directory.display();
        let failed = |error: io::Error| format!("the log in {shown}: {error}");
        let store = directory.join(STORE_DIRECTORY);
        let found = Store::newest_snapshot(&store, at_rest).map_err(|error| error.to_string())?;
        let purged = wal.range().purged;
        let (mut decided, metadata) = match found {
            // The log continues an older one only after a gap.
            Some((state, position)) if position.index >= purged => {
                (state, StateMetadata::decode(&position.raft_meta)?)
            }
            None if purged == 0 => (State::new(), StateMetadata::default()),
            Some(_) | None => {
                return Err(format!(
                    "{shown} has no whole snapshot that its log continues: recover another member, or restore a backup"
                ));
            }
        };
        let applied = Store::history_upto(&store, at_rest).map_err(|error| error.to_string())?;
        let committed = wal.committed().map_or(0, |committed| committed.index);
        let snapshot = metadata.last_log_id;
        let (_, stored) = metadata.into_raft()?;
        let mut members = stored.membership().clone();
        let (mut last, mut undecided) = (snapshot, Vec::new());
        let mut decided_upto = snapshot.map_or(0, |snapshot| snapshot.index);
        // What a log holds that lacks the end of the snapshot was replaced by it.
        if snapshot.map_or(Ok(true), |snapshot| wal.has(snapshot)).map_err(failed)? {
            for entry in wal.entries(snapshot.map_or(0, |snapshot| snapshot.index.saturating_add(1))) {
                let Entry { log_id, payload } = entry.map_err(failed)?;
                last = Some(log_id.into());
                let mut next = decided.clone();
                if undecided.is_empty() {
                    apply_to(&mut next, log_id.index, &payload, |_, _| {})?;
                }
                // Only what is decided is applied, and gets into the history. The first entry is the same on all members.
                let is_decided = log_id.index <= committed || next.revision() <= applied;
                let is_decided = undecided.is_empty() && is_decided;
                if let EntryPayload::Membership(newer) = &payload
                    && (is_decided || newer.get_node(&me.node_id).is_some())
                {
                    members = newer.clone();
                }
                if is_decided {
                    (decided, decided_upto) = (next, log_id.index);
                } else {
                    undecided.push(payload);
                }
            }
        }
        let last = last.ok_or_else(|| {
            format!("{shown} holds nothing: its node has not taken part in its cluster yet")
        })?;
        Ok(Self { decided, snapshot, decided_upto, undecided, last, members })
    }
}

fn log_of(directory: &Path, cluster_id: uuid::Uuid) -> PathBuf {
    directory.join(format!("{RECOVERED}{cluster_id}"))
}

/// Completes a recovery that was decided and interrupted, or an exchange of logs, and removes what is left of a recovery
/// that was not decided. Comes before anything else looks at the log. Returns whether one was completed. Blocking.
///
/// # Errors
/// When the disk fails.
pub fn finish(directory: &Path, me: &Identity) -> io::Result<bool> {
    let (log, decided) = (directory.join(LOG_DIRECTORY), log_of(directory, me.cluster_id));
    let is_decided = decided.exists();
    if is_decided {
        Witness::forget(directory)?;
        log::replace(&log, &decided)?;
        tracing::warn!(cluster = %me.cluster_id, "this node continues as the only voter of cluster {}", me.cluster_id);
    }
    log::complete_exchange(&log)?;
    log::remove_unfinished(&log, RECOVERED)?;
    log::remove_unfinished(&log, addresses::MOVED)?;
    Ok(is_decided)
}

/// Whether the directory of a member has its log, also if an exchange of logs was interrupted: a start completes it.
#[must_use]
pub fn has_log(directory: &Path, me: &Identity) -> bool {
    log::exists(&directory.join(LOG_DIRECTORY)) || log_of(directory, me.cluster_id).is_dir()
}

#[cfg(test)]
mod tests;
