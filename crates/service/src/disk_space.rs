//! Rejects writes before the volumes fill up: that of this node, and those of the voters that a majority needs.
//!
//! The log's own appends must never meet a full volume, because an append that fails stops the node. So a reserve stays
//! free, and below it only writes that remove something are accepted, and in its first half freezes of environments.
//!
//! An entry needs space on a majority. The leader asks the other voters once a second whether their volumes are below
//! their reserves. It rejects writes that need space when the voters with space are no majority. So deletes can still be
//! decided, and one full volume among three rejects nothing.
//!
//! **Invariant:** a volume that does not report its free space, and a voter that does not say that it is full, never
//! count as full.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use super::{
    context::Context,
    request::{Alarm, Refusal},
};
use concord_consensus::Consensus;
use concord_model::limits::WAITING_CHANGES_BYTES_MAX;
use concord_net::{
    NodeId,
    call::Call,
    client::{CallError, Lane},
    codec::{decode, encode},
};

/// How long a measurement is valid: a volume does not fill by more than its reserve in that time.
const MEASUREMENT_AGE_MAX: Duration = Duration::from_secs(1);
/// How often the leader asks the other voters: a volume does not fill by more than its reserve in that time.
const VOTERS_INTERVAL: Duration = Duration::from_secs(1);
/// Writes of an incident in one environment while a volume is full, in [`INCIDENT_WINDOW`]: freezes and their ends. Of all
/// environments with their history that is some megabytes.
const INCIDENT_WRITES_MAX: u32 = 4;
/// The time in which there may be so many.
const INCIDENT_WINDOW: Duration = Duration::from_secs(60 * 60);
/// How long a voter may take to respond.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The free space of the data directory's volume, compared with the reserve.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    directory: PathBuf,
    reserve_bytes: u64,
    /// The last measurement. Its value is `None` if the volume did not report its free space.
    measured: Mutex<Option<(Instant, Option<u64>)>>,
    /// Whether less than the reserve was free at the last measurement.
    was_full: AtomicBool,
}

impl DiskReserve {
    pub(super) fn new(directory: PathBuf, reserve_bytes: u64) -> Self {
        Self { directory, reserve_bytes, measured: Mutex::new(None), was_full: AtomicBool::new(false) }
    }

    /// Rejects while less than the reserve is free.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self.free_bytes() {
            Some(free) if free < self.reserve_bytes => Err(Refusal::StorageFull(format!(
                "the volume of the data directory has {free} bytes left, less than the reserve of {} bytes",
                self.reserve_bytes
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Rejects while less than half of the reserve is free.
    fn check_half(&self) -> Result<(), Refusal> {
        let half = self.reserve_bytes / 2;
        match self.free_bytes() {
            Some(free) if free < half => Err(Refusal::StorageFull(format!(
                "the volume of the data directory has {free} bytes left, less than half of the reserve, {half} bytes"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// The bytes that stay free.
    pub(super) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// The free bytes of the volume, if it reports them.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, free)) = *measured
            && at.elapsed() < MEASUREMENT_AGE_MAX
        {
            return free;
        }
        let free = match free_bytes_of(&self.directory) {
            Ok(free) => Some(free),
            Err(error) => {
                tracing::warn!(%error, directory = %self.directory.display(), "the volume's free space is unknown");
                None
            }
        };
        *measured = Some((Instant::now(), free));
        if let Some(free_bytes) = free {
            self.note(free_bytes);
        }
        free
    }

    /// Logs when the volume becomes full, and when it no longer is.
    fn note(&self, free_bytes: u64) {
        let (is_full, reserve_bytes) = (free_bytes < self.reserve_bytes, self.reserve_bytes);
        match (self.was_full.swap(is_full, Ordering::Relaxed), is_full) {
            (false, true) => tracing::warn!(
                free_bytes,
                reserve_bytes,
                "writes other than deletes are rejected: the volume of the data directory has less free space than the reserve"
            ),
            (true, false) => tracing::info!(
                free_bytes,
                reserve_bytes,
                "there is space for writes again: the volume of the data directory has more free space than the reserve"
            ),
            (true, true) | (false, false) => {}
        }
    }
}

#[cfg(not(feature = "simulation"))]
fn free_bytes_of(directory: &Path) -> rustix::io::Result<u64> {
    let volume = rustix::fs::statvfs(directory)?;
    Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
}

/// What a simulation has set: what other programs do to the volume does not follow from a seed.
#[cfg(feature = "simulation")]
#[expect(clippy::unnecessary_wraps, reason = "as without a simulation")]
fn free_bytes_of(directory: &Path) -> std::io::Result<u64> {
    Ok(FREE_BYTES.with_borrow(|all| all.get(directory).copied()).unwrap_or(u64::MAX / 2))
}

#[cfg(feature = "simulation")]
thread_local! {
    static FREE_BYTES: std::cell::RefCell<BTreeMap<PathBuf, u64>> = const { std::cell::RefCell::new(BTreeMap::new()) };
}

/// Sets how much space the volume of a directory has left in a simulation; without a value it is plenty.
#[cfg(feature = "simulation")]
pub fn set_free_bytes(directory: &Path, bytes: Option<u64>) {
    FREE_BYTES.with_borrow_mut(|all| match bytes {
        Some(bytes) => drop(all.insert(directory.to_owned(), bytes)),
        None => drop(all.remove(directory)),
    });
}

/// Whether a voter's volume is below its reserve, or does not keep up with the changes. Sent between nodes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RoomResponse {
    full: bool,
}

/// What a voter last said about its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VoterSpace {
    Free,
    Full,
    /// It did not respond.
    Absent,
}

/// What the leader knows of the other voters' volumes; empty on the other nodes.
#[derive(Debug, Default)]
pub(crate) struct VoterSpaces(Mutex<BTreeMap<NodeId, VoterSpace>>);

impl VoterSpaces {
    fn set(&self, voters: BTreeMap<NodeId, VoterSpace>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = voters;
    }

    /// Rejects when the full voters are needed for a majority.
    fn check(&self) -> Result<(), Refusal> {
        let voters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |space| voters.values().filter(|one| **one == space).count();
        let (all, full, absent) = (voters.len() + 1, count(VoterSpace::Full), count(VoterSpace::Absent));
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

/// The free space of this node's volume, and of the other voters' volumes as this node knows it.
#[derive(Debug)]
pub struct DiskSpace {
    pub(crate) cx: Arc<Context>,
    pub(crate) reserve: DiskReserve,
    pub(crate) voters: VoterSpaces,
    /// The writes of incidents that were accepted while a volume was full.
    incidents: Mutex<Incidents>,
}

/// The writes of incidents in one hour, by environment, of which there are few: nobody uses up those of others.
#[derive(Debug, Default)]
struct Incidents {
    begun: Option<Instant>,
    counts: BTreeMap<String, u32>,
}

impl Incidents {
    /// Counts a write; false when there were as many as may be.
    fn count(&mut self, environment: &str, now: Instant) -> bool {
        if self.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= INCIDENT_WINDOW) {
            *self = Self { begun: Some(now), counts: BTreeMap::new() };
        }
        let count = self.counts.entry(environment.to_owned()).or_insert(0);
        *count += 1;
        *count <= INCIDENT_WRITES_MAX
    }
}

impl DiskSpace {
    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        let reserve = DiskReserve::new(cx.options.directory.clone(), cx.options.disk_reserve_bytes);
        let (voters, incidents) = (VoterSpaces::default(), Mutex::default());
        Self { cx: Arc::clone(cx), reserve, voters, incidents }
    }

    /// Rejects writes that need space while this node's volume, or too many of the voters' volumes, are below their
    /// reserve or do not keep up with the changes.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        self.reserve.check()?;
        self.check_waiting_changes()?;
        self.voters.check()
    }

    /// Rejects what is written in an incident, and is small, less than other writes: a freeze can be added while volumes are
    /// full. It uses no more than half of this node's reserve. What the volumes of the voters have left is not known here, so
    /// only a few such writes an hour are accepted while one of them is full: nobody fills them with freezes.
    pub(super) fn check_incident(&self, environment: &str) -> Result<(), Refusal> {
        let Err(full) = self.check() else { return Ok(()) };
        self.reserve.check_half()?;
        self.check_waiting_changes()?;
        // Those that have no record yet are one: their names are any that a client likes.
        let is_there = self.cx.applied().environment(environment).is_some();
        let environment = if is_there { environment } else { "" };
        let mut incidents = self.incidents.lock().unwrap_or_else(PoisonError::into_inner);
        if incidents.count(environment, Instant::now()) { Ok(()) } else { Err(full) }
    }

    /// The alarms about it: this node's disk, and those of the voters as the leader knows them.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let me = self.cx.node_id();
        let own = self.reserve.check().and_then(|()| self.check_waiting_changes());
        let own = own.err().map(|_| Alarm {
            kind: "disk",
            node_id: Some(me),
            message: format!(
                "node {me} rejects writes that need space: its volume has less free space than its reserve of {} bytes, \
                 or does not keep up with the changes",
                self.reserve.reserve_bytes()
            ),
        });
        let majority = self.voters.check().err().map(|_| Alarm {
            kind: "disk",
            node_id: None,
            message: "the cluster rejects writes that need space: too many of the voters have no free space, or do not keep \
                      up with the changes"
                .into(),
        });
        own.into_iter().chain(majority).collect()
    }

    /// Rejects writes while too many bytes of applied changes wait in memory for this node's disk.
    pub(super) fn check_waiting_changes(&self) -> Result<(), Refusal> {
        let waiting = self.cx.consensus().map_or(0, |consensus| consensus.store().waiting_bytes());
        check_waiting(waiting)
    }

    /// Asks the other voters about their volumes while this node leads, until it stops.
    pub(super) async fn watch_voters(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut was_short = false;
        while !self.cx.is_over() {
            let voters =
                if self.cx.leads(consensus) { self.ask_voters(consensus).await } else { BTreeMap::new() };
            self.voters.set(voters);
            let short = self.voters.check().err();
            if short.is_some() != was_short {
                was_short = !was_short;
                match short {
                    Some(refusal) => tracing::warn!("writes other than deletes are rejected: {refusal:?}"),
                    None => {
                        tracing::info!(
                            "a majority of the voters has free space again, or another node leads"
                        );
                    }
                }
            }
            self.cx.pause(VOTERS_INTERVAL).await;
        }
        Ok(())
    }

    async fn ask_voters(&self, consensus: &Consensus) -> BTreeMap<NodeId, VoterSpace> {
        let members = consensus.status().members;
        let others = members.iter().filter(|one| one.voter && one.member.id != self.cx.node_id());
        let asked = others.map(async |one| {
            let (id, addr) = (one.member.id, &one.member.peer_addr);
            let called =
                self.cx.peers().call(Lane::Forward, id, addr, Call::Room, Bytes::new(), CALL_TIMEOUT).await;
            let space = match called {
                Ok(body) => match decode::<RoomResponse>(&body) {
                    Ok(RoomResponse { full: true }) => VoterSpace::Full,
                    Ok(RoomResponse { full: false }) | Err(_) => VoterSpace::Free,
                },
                // The voter is starting, for instance.
                Err(CallError::Refused { .. }) => VoterSpace::Free,
                Err(CallError::NotSent(_) | CallError::Unknown(_)) => VoterSpace::Absent,
            };
            (id, space)
        });
        join_all(asked).await.into_iter().collect()
    }

    /// Responds to the leader that asks about this node's volume.
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
    fn a_volume_below_its_reserve_rejects() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(DiskReserve::new(directory.path().into(), 0).check(), Ok(()));
        let full = DiskReserve::new(directory.path().into(), u64::MAX);
        assert!(matches!(full.check(), Err(Refusal::StorageFull(_))));
        assert!(matches!(full.check_half(), Err(Refusal::StorageFull(_))));
        // Half of it is for incidents.
        let free = DiskReserve::new(directory.path().into(), 0).free_bytes().unwrap();
        let short = DiskReserve::new(directory.path().into(), free / 2 * 3);
        assert!(short.check().is_err() && short.check_half().is_ok());
    }

    #[test]
    fn an_hour_has_a_few_writes_of_incidents() {
        let (mut incidents, begin) = (Incidents::default(), Instant::now());
        let counted = |incidents: &mut Incidents, name: &str, now| {
            (0..3 * INCIDENT_WRITES_MAX).filter(|_| incidents.count(name, now)).count()
        };
        let most = usize::try_from(INCIDENT_WRITES_MAX).unwrap();
        assert_eq!(counted(&mut incidents, "dev", begin), most);
        assert_eq!(counted(&mut incidents, "prod", begin), most, "nobody uses up those of others");
        assert_eq!(counted(&mut incidents, "dev", begin + INCIDENT_WINDOW / 2), 0);
        assert_eq!(counted(&mut incidents, "dev", begin + INCIDENT_WINDOW), most);
    }

    #[test]
    fn writes_are_rejected_while_too_many_bytes_wait_for_the_disk() {
        assert_eq!(check_waiting(WAITING_CHANGES_BYTES_MAX), Ok(()));
        assert!(matches!(check_waiting(WAITING_CHANGES_BYTES_MAX + 1), Err(Refusal::LimitReached(_))));
    }

    #[test]
    fn writes_are_rejected_when_the_full_voters_are_needed_for_a_majority() {
        use VoterSpace::{Absent, Free, Full};
        for (others, rejected) in [
            (vec![], false),
            (vec![Free, Free], false),
            (vec![Full, Free], false),
            (vec![Full, Full], true),
            (vec![Full, Absent], true),
            // No voter is full; consensus reports the missing majority.
            (vec![Absent, Absent], false),
            (vec![Full, Full, Free, Free], false),
            (vec![Full, Full, Full, Free], true),
            (vec![Full, Free, Absent, Absent], true),
        ] {
            let spaces = VoterSpaces::default();
            spaces.set((2..).zip(others.iter().copied()).collect());
            assert_eq!(spaces.check().is_err(), rejected, "{others:?}");
        }
    }

    #[test]
    fn a_response_decodes_to_what_was_encoded() {
        let response = RoomResponse { full: true };
        assert_eq!(decode::<RoomResponse>(&encode(&response)).unwrap(), response);
    }
}
