//! Changes the addresses of the members on the disk of a stopped member, for a cluster whose members have all moved.
//!
//! The members that run tell each other of new addresses with an entry of the log. If all of them have moved, none reaches
//! another, and nothing is decided. Then every member gets the new addresses on its own disk: in the membership entries of
//! its log and in the memberships that its snapshots name. Nothing else of them changes, neither ids nor votes, so what the
//! members have agreed on stays as it is.
//!
//! **Invariant:** it can be interrupted anywhere and run again: each file has the old addresses or the new ones.

use std::{collections::BTreeMap, path::Path};

use super::{StoppedMember, Survivor};
use crate::{
    LOG_DIRECTORY, STORE_DIRECTORY, log,
    log::Wal,
    types::Membership,
    wire::{self, StateMetadata},
};
use concord_net::{Member, NodeId};
use concord_storage::{Store, at_rest::AtRest};

/// The name of a log with other addresses until it replaces the log.
pub(super) const MOVED: &str = "log.moved";

/// New addresses for members of a stopped cluster. Nothing was changed yet.
pub struct MovedMembers {
    at_rest: AtRest,
    wal: Wal,
    moved: BTreeMap<NodeId, Member>,
    members: Vec<Member>,
}

impl std::fmt::Debug for MovedMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovedMembers").field("members", &self.members).finish_non_exhaustive()
    }
}

impl MovedMembers {
    /// Reads the directory of a stopped member, which this process has locked. Changes nothing. Blocking.
    ///
    /// # Errors
    /// In one line, when the directory is not that of a member or can't be read, when there is no such member, or when two
    /// members would have one address.
    pub fn plan(directory: &Path, data_key_file: Option<&Path>, moved: &[Member]) -> Result<Self, String> {
        let StoppedMember { me, at_rest, wal } = StoppedMember::open(directory, data_key_file)?;
        let known = Survivor::read(directory, &me, &wal, &at_rest)?.members;
        let mut by_id = BTreeMap::new();
        for member in moved {
            if known.get_node(&member.id).is_none() {
                return Err(format!("node {} is no member of the cluster; nothing was changed", member.id));
            }
            if by_id.insert(member.id, member.clone()).is_some() {
                return Err(format!("node {} is named twice; nothing was changed", member.id));
            }
        }
        let members: Vec<Member> =
            with_addresses(&known, &by_id).nodes().map(|(_, one)| one.clone()).collect();
        let mut addresses = BTreeMap::new();
        for member in &members {
            for address in [&member.api_addr, &member.peer_addr] {
                if let Some(other) = addresses.insert(address, member.id) {
                    return Err(format!(
                        "nodes {other} and {} would both be at {address}; nothing was changed",
                        member.id
                    ));
                }
            }
        }
        Ok(Self { at_rest, wal, moved: by_id, members })
    }

    /// All members with the addresses that they have afterwards.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Writes the addresses. Blocking.
    ///
    /// # Errors
    /// In one line, when the disk fails. It can be run again.
    pub fn make(self, directory: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        let Self { at_rest, wal, moved, .. } = self;
        let (log, new) = (directory.join(LOG_DIRECTORY), directory.join(MOVED));
        log::remove_unfinished(&log, MOVED).map_err(failed)?;
        wal.write_with(&new, |members| with_addresses(&members, &moved)).map_err(failed)?;
        drop(wal);
        log::replace(&log, &new).map_err(failed)?;
        let store = directory.join(STORE_DIRECTORY);
        let rewritten = Store::rewrite_metadata(&store, &at_rest, |metadata| {
            let metadata = StateMetadata::decode(metadata)?;
            Ok(wire::to_bytes(&metadata.with_members(|members| with_addresses(&members, &moved))?))
        });
        rewritten.map_err(|error| error.to_string())
    }
}

/// The same members with other addresses.
fn with_addresses(members: &Membership, moved: &BTreeMap<NodeId, Member>) -> Membership {
    let nodes: BTreeMap<NodeId, Member> =
        members.nodes().map(|(id, member)| (*id, moved.get(id).unwrap_or(member).clone())).collect();
    Membership::new(members.get_joint_config().clone(), nodes).expect("the ids are those of a membership")
}
