//! The free space of the voters' volumes, as the leader knows it: room is the quorum's room.
//!
//! An entry needs room on a majority. The leader asks the other voters once a second whether their volumes are below
//! their reserves, and refuses writes that need space when the voters with room are no majority. So no write takes the
//! reserve from those that are needed, and deletes can still be decided. One full volume among three refuses nothing:
//! the others are a majority.
//!
//! **Invariant:** a voter that does not say that it is full never counts as full: one that does not answer refuses no
//! write by itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use super::{context::Context, disk_reserve::DiskReserve, request::Refusal};
use concord_consensus::Consensus;
use concord_model::limits::WAITING_CHANGES_BYTES_MAX;
use concord_net::{
    NodeId,
    call::Call,
    client::{CallError, Lane},
    codec::{decode, encode},
};

/// How often the leader asks: a volume does not fill by more than its reserve in that time.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a voter may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a voter's volume is below its reserve, or does not keep up with the changes. Sent between nodes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RoomResponse {
    full: bool,
}

/// What a voter said when it was asked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VoterRoom {
    Free,
    Full,
    /// It did not answer.
    Absent,
}

/// What the leader knows of the other voters' volumes; empty on the others.
#[derive(Debug, Default)]
pub(super) struct Voters(Mutex<BTreeMap<NodeId, VoterRoom>>);

impl Voters {
    fn set(&self, voters: BTreeMap<NodeId, VoterRoom>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = voters;
    }

    /// Refuses when the full voters are needed for a majority.
    fn check(&self) -> Result<(), Refusal> {
        let voters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |room| voters.values().filter(|one| **one == room).count();
        let (all, full, absent) = (voters.len() + 1, count(VoterRoom::Full), count(VoterRoom::Absent));
        if full == 0 || (all - full - absent) * 2 > all || concord_model::sabotage::is("full-voters-ignored")
        {
            return Ok(());
        }
        Err(Refusal::StorageFull(format!(
            "the volumes of {full} of {all} voters have less free space than their reserve or do not keep up, and the \
             others are no majority"
        )))
    }
}

/// The free space of the voters' volumes, as this node knows it.
#[derive(Debug)]
pub struct Room {
    pub(crate) cx: Arc<Context>,
    pub(crate) reserve: DiskReserve,
    pub(crate) voters: Voters,
}

impl Room {
    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        let reserve = DiskReserve::new(cx.options.directory.clone(), cx.options.disk_reserve_bytes);
        Self { cx: Arc::clone(cx), reserve, voters: Voters::default() }
    }

    /// Refuses writes that need space while this node's volume, or too many of the voters', are below their reserve or
    /// do not keep up.
    pub(super) fn check_room(&self) -> Result<(), Refusal> {
        self.reserve.check()?;
        self.check_waiting_changes()?;
        self.voters.check()
    }

    /// Refuses writes while more applied changes wait for this node's disk than may be in memory.
    pub(super) fn check_waiting_changes(&self) -> Result<(), Refusal> {
        let waiting = self.cx.consensus().map_or(0, |consensus| consensus.store().waiting_bytes());
        check_waiting(waiting)
    }

    /// Asks the other voters for their room while this node leads, until it stops.
    pub(super) async fn keep_room(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut was_short = false;
        while !self.cx.is_over() {
            let voters =
                if self.cx.leads(consensus) { self.ask_room(consensus).await } else { BTreeMap::new() };
            self.voters.set(voters);
            let short = self.voters.check().err();
            if short.is_some() != was_short {
                was_short = !was_short;
                match short {
                    Some(refusal) => tracing::warn!("writes other than deletes are refused: {refusal:?}"),
                    None => tracing::info!("a majority of the voters has room again, or another node leads"),
                }
            }
            self.cx.pause(INTERVAL).await;
        }
        Ok(())
    }

    async fn ask_room(&self, consensus: &Consensus) -> BTreeMap<NodeId, VoterRoom> {
        let members = consensus.status().members;
        let others = members.iter().filter(|one| one.voter && one.member.id != self.cx.node_id());
        let asked = others.map(async |one| {
            let (id, addr) = (one.member.id, &one.member.peer_addr);
            let called =
                self.cx.peers().call(Lane::Forward, id, addr, Call::Room, Bytes::new(), CALL_TIMEOUT).await;
            let room = match called {
                Ok(body) => match decode::<RoomResponse>(&body) {
                    Ok(RoomResponse { full: true }) => VoterRoom::Full,
                    Ok(RoomResponse { full: false }) | Err(_) => VoterRoom::Free,
                },
                // It is starting, for instance.
                Err(CallError::Refused { .. }) => VoterRoom::Free,
                Err(CallError::NotSent(_) | CallError::Unknown(_)) => VoterRoom::Absent,
            };
            (id, room)
        });
        join_all(asked).await.into_iter().collect()
    }

    /// Answers the leader's question for this node's room.
    pub fn answer_room(&self) -> Bytes {
        let full = self.reserve.check().is_err() || self.check_waiting_changes().is_err();
        encode(&RoomResponse { full })
    }
}

fn check_waiting(bytes: u64) -> Result<(), Refusal> {
    if bytes <= WAITING_CHANGES_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::LimitReached(format!(
        "changes of {bytes} bytes wait for the disk of this node, more than {WAITING_CHANGES_BYTES_MAX}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_while_too_much_waits_for_the_disk() {
        assert_eq!(check_waiting(WAITING_CHANGES_BYTES_MAX), Ok(()));
        assert!(matches!(check_waiting(WAITING_CHANGES_BYTES_MAX + 1), Err(Refusal::LimitReached(_))));
    }

    #[test]
    fn writes_are_refused_when_the_full_voters_are_needed() {
        use VoterRoom::{Absent, Free, Full};
        for (others, refused) in [
            (vec![], false),
            (vec![Free, Free], false),
            (vec![Full, Free], false),
            (vec![Full, Full], true),
            (vec![Full, Absent], true),
            // Nobody is full: that there is no majority is said by consensus.
            (vec![Absent, Absent], false),
            (vec![Full, Full, Free, Free], false),
            (vec![Full, Full, Full, Free], true),
            (vec![Full, Free, Absent, Absent], true),
        ] {
            let room = Voters::default();
            room.set((2..).zip(others.iter().copied()).collect());
            assert_eq!(room.check().is_err(), refused, "{others:?}");
        }
    }

    #[test]
    fn room_decodes_to_what_was_encoded() {
        let response = RoomResponse { full: true };
        assert_eq!(decode::<RoomResponse>(&encode(&response)).unwrap(), response);
    }
}
