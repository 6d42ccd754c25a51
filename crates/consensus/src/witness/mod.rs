//! Detects that a member's disk was rolled back: the members keep records of each other's progress.
//!
//! Raft is safe only if members never forget: an acknowledged entry is in a majority of the logs, and no member votes
//! twice in a term. A virtual machine that is reset to a snapshot, or a copied data directory that is put back, breaks
//! that and leaves no trace on the disk, so the member cannot notice it alone. Therefore each member counts its starts.
//! The other members record its latest start and the last entry that it has applied. When a member starts, it asks them
//! before it votes or confirms an entry.
//!
//! | topic | file |
//! |---|---|
//! | the records, in the file `witness` of the data directory, and how they are compared | this one |
//! | what a member may do while it asks, after it has lost entries, and after it has caught up | `participation` |
//! | when a member asks the others | `task` |
//!
//! - *Settled*: a majority, including this member, has answered, and each other member has answered, has failed, or was
//!   given [`task::GRACE`] to answer. Raft needs the same majority, so this does not delay the start of a cluster.
//! - *Lost*: an answer shows that this member has lost a vote or an entry. It cannot know what else it has confirmed.
//!   So it waits until all other voters have named their vote and their last entry, or until the operator vouches for
//!   the voters that do not answer. A learner waits for a majority only, because it does not count toward the quorum.
//! - *Bounded*: the greatest vote and the greatest last entry of these voters are its bound. It votes for no candidate
//!   below the bound. It confirms the entries that the leader sends, because it then holds them. Once its log has
//!   passed the bound, it is a full member again.
//!
//! **Invariants**
//! 1. Before this member votes or confirms an entry, its start is durable here and at every member that has answered.
//! 2. A bounded member votes as it would have voted before the rollback, or more strictly. An entry that was committed
//!    with its help is in the log of another voter, and the last entry of that voter is not above the bound. A
//!    candidate that it voted for has this vote itself, which is not above the bound either. So it never votes for a
//!    candidate that lacks such an entry, and never twice in a term.
//! 3. A record is only replaced by a later one.
//! 4. A vouch counts for one start of one process, and for the voters that it names.
//! 5. A process sends no record while another one with its id answers at the address of the member.

mod participation;
mod task;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(super) use participation::Participation;
pub(super) use task::WitnessTask;

use super::{
    LOG_DIRECTORY,
    consensus::node_list,
    lease::Lease,
    log,
    wire::{self, WireLogId, WireMembership, WireVote},
};
use concord_net::{
    NodeId,
    identity::{Identity, write_durably},
};

/// The file of the records, in the data directory.
const FILE: &str = "witness";
/// The format of the file: its first byte.
const FORMAT: u8 = 1;
/// The file by which the operator vouches for the members that don't answer: a [`Vouch`].
const VOUCHED: &str = "vouched";
/// How long `concord cluster vouch` waits for the member: longer than between two of its looks at the file.
const VOUCH_WAIT: Duration = Duration::from_secs(15);
/// Pause between two looks at the file.
const VOUCH_POLL: Duration = Duration::from_millis(100);
/// How long a call by another process with this member's id is shown: it calls more often.
const TWIN_SHOWN: Duration = Duration::from_secs(15);

/// A start of a member. Two starts can have the same number: one from a directory, one from its copy. Their ids differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StartNumber {
    number: u64,
    id: u64,
}

/// The record of a member's progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LastKnown {
    start: StartNumber,
    /// How often it has lost entries and knows it. It may have applied less after a loss than before.
    losses: u64,
    /// The last entry that it had applied and made durable since then. Such an entry is never truncated.
    applied: Option<WireLogId>,
}

impl LastKnown {
    /// Adds a newer record. If two starts have the same number, the first one stays, so that the member learns of it.
    fn add(&mut self, heard: &Self) {
        if heard.start.number > self.start.number {
            self.start = heard.start;
        }
        if (heard.losses, order(heard.applied)) > (self.losses, order(self.applied)) {
            (self.losses, self.applied) = (heard.losses, heard.applied);
        }
    }
}

/// The order in which Raft compares the last entries of two logs: by term, then by index.
fn order(id: Option<WireLogId>) -> Option<(u64, NodeId, u64)> {
    id.map(|id| (id.term, id.node, id.index))
}

/// The greatest vote and the greatest last entry that a member may have had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    pub(super) vote: Option<WireVote>,
    pub(super) last: Option<WireLogId>,
}

impl Bound {
    /// The greater vote and the greater entry of the two bounds.
    fn or(self, other: Self) -> Self {
        let last = if order(other.last) > order(self.last) { other.last } else { self.last };
        Self { vote: self.vote.max(other.vote), last }
    }

    fn has(&self, last: Option<WireLogId>) -> bool {
        order(last) >= order(self.last)
    }
}

/// The limit of recorded starts.
const STARTS_MAX: usize = 4096;
/// How many of them stay once a start has settled.
const STARTS_KEPT: usize = 64;

/// What this member has lost and not yet recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Loss {
    /// Its disk was rolled back, and the bound is not known yet.
    Unknown,
    /// Its disk was rolled back. It has lost no vote and no entry above this bound.
    Forgotten(Bound),
    /// It has discarded its log and its state, because its state diverged.
    Discarded(Bound),
}

/// The voters that a member with a rolled-back disk needs, and that do not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Their ids; none while the member has not asked them since its start.
    pub nodes: Vec<NodeId>,
    /// Whether the member and the voters that respond are a majority.
    pub has_majority: bool,
}

/// What the operator vouches for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Vouch {
    /// The start that waits: neither a later one nor one from a copy of the directory has its id.
    start: u64,
    /// The voters that the member may continue without.
    nodes: Vec<NodeId>,
}

/// The content of the file `witness`, after its format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// The last start that settled. All starts after it begin with the next number. Otherwise a rolled-back member that
    /// starts repeatedly without reaching the others would reach the number of the start that it has lost.
    settled: StartNumber,
    /// The ids of the last starts, the latest at the end. The others may have heard of one that did not settle.
    starts: Vec<u64>,
    loss: Option<Loss>,
    /// How many there were.
    losses: u64,
    /// Whom this start waits for because of the loss.
    missing: Missing,
    /// The lease that this member has promised with its confirmations.
    lease: Lease,
    others: BTreeMap<NodeId, LastKnown>,
}

impl Remembered {
    /// Whether this disk has recorded a start.
    fn is_known(&self, start: StartNumber) -> bool {
        start.number < self.settled.number || start == self.settled || self.starts.contains(&start.id)
    }

    /// The id of the latest start.
    fn latest_start(&self) -> u64 {
        self.starts.last().copied().unwrap_or(self.settled.id)
    }

    /// What this member has, with this vote and last entry, and what it knows to have lost. `None` if it does not know
    /// how much it has lost.
    fn had(&self, has: Bound) -> Option<Bound> {
        match self.loss {
            None => Some(has),
            Some(Loss::Forgotten(bound) | Loss::Discarded(bound)) => Some(has.or(bound)),
            Some(Loss::Unknown) => None,
        }
    }

    /// What of a record of this member is not in what it had.
    fn lacks(&self, past: &LastKnown, had: Bound) -> Option<String> {
        if past.losses > self.losses {
            return Some(format!("it had lost entries {} times, and knows of {}", past.losses, self.losses));
        }
        let lacks = past.losses == self.losses && !had.is_at_least(past.applied);
        lacks.then(|| {
            format!("it had applied {}, but its log ends at {}", named(past.applied), named(had.last))
        })
    }

    /// Reads the file. If it is missing or damaged, there are no records: the other members have those of this one.
    fn read(directory: &Path) -> io::Result<Self> {
        let bytes = match fs::read(directory.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let decoded = match bytes.split_last_chunk::<4>() {
            Some((content @ [FORMAT, encoded @ ..], sum))
                if crc32c::crc32c(content).to_be_bytes() == *sum =>
            {
                wire::from_bytes(encoded).ok()
            }
            _ => None,
        };
        Ok(decoded.unwrap_or_else(|| {
            tracing::error!(
                "the file `{FILE}` in the data directory is damaged; this member asks the other members"
            );
            Self::default()
        }))
    }

    fn write(&self, directory: &Path) -> io::Result<()> {
        let mut bytes = vec![FORMAT];
        bytes.extend(wire::to_bytes(self));
        let sum = crc32c::crc32c(&bytes).to_be_bytes();
        bytes.extend(sum);
        write_durably(directory, FILE, &bytes)
    }
}

/// How far a member with a rolled-back disk has recovered. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolledBack {
    /// It neither votes nor confirms entries until these voters have answered.
    Waiting(Missing),
    /// It is catching up. It votes for no candidate that may lack an entry that it has lost. These voters do not answer.
    CatchingUp(Missing),
    /// It has caught up since its last start.
    CaughtUp,
}

/// What a member tells the others so that each of them can show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Set since the start at which it has noticed that its disk was rolled back.
    pub rolled_back: Option<RolledBack>,
    /// The names of the logs that it has discarded and that are still in its data directory.
    pub discarded_logs: Vec<String>,
    /// Its lease in milliseconds. `None` if no lease read may depend on it.
    pub lease: Option<u64>,
    /// Whether another process with its id has called it a moment ago.
    pub is_copied: bool,
}

/// What members send each other, both as a question and as its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Testimony {
    past: LastKnown,
    /// The current vote and last entry of the sender.
    now: Bound,
    condition: Condition,
    /// The sender's records of all members.
    known: BTreeMap<NodeId, LastKnown>,
    /// Only from a leader: its vote, and the last entry that the addressee has confirmed under this vote.
    confirmed: Option<(WireVote, WireLogId)>,
    membership: Option<(WireLogId, WireMembership)>,
    /// Only in an answer: whether the log of the sender has another entry where the addressee has applied one.
    contradicts: bool,
}

/// The records, and what is known only while this member runs.
#[derive(Debug)]
struct Memory {
    remembered: Remembered,
    /// Whether the records differ from the file.
    is_changed: bool,
    /// This start, and the vote and last entry of the log when it began.
    start: StartNumber,
    at_start: Bound,
    /// All of it but `is_copied`.
    condition: Condition,
    others_conditions: BTreeMap<NodeId, Condition>,
    /// The address of this member at which another process answers.
    twin_at: Option<String>,
    /// When another process with the id of this member has called.
    twin_called: Option<Instant>,
    /// The newest membership that another member has sent. It may be newer than the one in this member's log.
    membership: Option<(WireLogId, WireMembership)>,
}

impl Memory {
    /// What this member tells of itself.
    fn own_condition(&self) -> Condition {
        let is_copied = self.twin_called.is_some_and(|at| at.elapsed() < TWIN_SHOWN);
        Condition { is_copied, ..self.condition.clone() }
    }

    /// Records this start as settled.
    fn end_start(&mut self) {
        self.remembered.settled = self.start;
        let starts = &mut self.remembered.starts;
        starts.drain(..starts.len().saturating_sub(STARTS_KEPT));
        self.is_changed = true;
    }
}

/// This member's records of all members, and whether it may vote and confirm entries.
#[derive(Debug)]
pub(super) struct Witness {
    id: NodeId,
    /// Whether the member has never started before.
    is_new: bool,
    directory: PathBuf,
    memory: Mutex<Memory>,
    /// Held while the file is written.
    writing: Mutex<()>,
    participation: watch::Sender<Participation>,
}

impl Witness {
    /// Counts a start durably, and drops a vouch for an earlier one. `at_start` is the vote and the last entry of the log.
    /// Blocking.
    pub(super) fn open(me: &Identity, directory: &Path, at_start: Bound) -> io::Result<Self> {
        let is_new = !directory.join(FILE).exists();
        let mut remembered = Remembered::read(directory)?;
        let start =
            StartNumber { number: remembered.settled.number + 1, id: uuid::Uuid::new_v4().as_u64_pair().0 };
        remembered.starts.push(start.id);
        if remembered.starts.len() > STARTS_MAX {
            remembered.starts.remove(0);
        }
        remembered.missing = Missing::default();
        remembered.write(directory)?;
        // After the record of this start, by which the operator learns why it is gone.
        if remove_if_exists(&directory.join(VOUCHED))? {
            tracing::warn!(
                "the file `{VOUCHED}` is of an earlier start or of a copied directory: it was removed"
            );
        }
        let rolled_back = match remembered.loss {
            Some(Loss::Unknown) => Some(RolledBack::Waiting(Missing::default())),
            Some(Loss::Forgotten(_)) => Some(RolledBack::CatchingUp(Missing::default())),
            Some(Loss::Discarded(_)) | None => None,
        };
        let discarded_logs = log::kept(&directory.join(LOG_DIRECTORY));
        let condition = Condition { rolled_back, discarded_logs, lease: remembered.lease, is_copied: false };
        let memory = Memory {
            remembered,
            is_changed: false,
            start,
            at_start,
            condition,
            others_conditions: BTreeMap::new(),
            twin_at: None,
            twin_called: None,
            membership: None,
        };
        Ok(Self {
            id: me.node_id,
            is_new,
            directory: directory.into(),
            memory: Mutex::new(memory),
            writing: Mutex::default(),
            participation: watch::Sender::new(Participation::Asking),
        })
    }

    /// Records that the log, with this vote and last entry, is about to be discarded. Blocking.
    pub(super) fn discard(directory: &Path, had: Bound) -> io::Result<()> {
        let mut remembered = Remembered::read(directory)?;
        remembered.losses += 1;
        remembered.loss = Some(match remembered.loss {
            Some(Loss::Unknown) => Loss::Unknown,
            Some(Loss::Forgotten(bound)) => Loss::Forgotten(bound.or(had)),
            Some(Loss::Discarded(bound)) => Loss::Discarded(bound.or(had)),
            None => Loss::Discarded(had),
        });
        remembered.write(directory)
    }

    /// Removes the records: the member is in another cluster from now on. Blocking.
    pub(super) fn forget(directory: &Path) -> io::Result<()> {
        for name in [FILE, VOUCHED] {
            remove_if_exists(&directory.join(name))?;
        }
        fs::File::open(directory)?.sync_all()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks which discarded logs are still there. Blocking.
    fn look_for_discarded_logs(&self) {
        let found = log::kept(&self.directory.join(LOG_DIRECTORY));
        self.memory().condition.discarded_logs = found;
    }

    /// Writes the records if they have changed. Blocking.
    fn save(&self) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = {
            let mut memory = self.memory();
            if !std::mem::take(&mut memory.is_changed) {
                return Ok(());
            }
            memory.remembered.clone()
        };
        remembered.write(&self.directory)
    }

    /// What the members have told of themselves, this one included.
    pub(super) fn conditions(&self) -> BTreeMap<NodeId, Condition> {
        let memory = self.memory();
        let mut all = memory.others_conditions.clone();
        all.insert(self.id, memory.own_condition());
        all
    }

    /// The address of this member, if another process with its id answers there.
    pub(super) fn twin(&self) -> Option<String> {
        self.memory().twin_at.clone()
    }

    /// Notes that a process with the id of this member has called. It may be this one, which looks who is at its
    /// address.
    fn hear_own_id(&self, start: StartNumber) {
        let mut memory = self.memory();
        if memory.start.id == start.id {
            return;
        }
        if !memory.own_condition().is_copied {
            tracing::error!(
                "another process with the id of this node, {}, is running from a copy of its data directory. It takes no \
                 part in the cluster. Stop it, and delete the copy",
                self.id
            );
        }
        memory.twin_called = Some(Instant::now());
    }

    /// Adds the records of another member. Returns whether that member has a new start, which must be durable here
    /// before this member answers.
    fn hear(&self, from: NodeId, told: &Testimony) -> bool {
        let mut memory = self.memory();
        memory.others_conditions.insert(from, told.condition.clone());
        if let Some((id, _)) = &told.membership
            && order(Some(*id)) > order(memory.membership.as_ref().map(|(id, _)| *id))
        {
            memory.membership.clone_from(&told.membership);
        }
        let others = &mut memory.remembered.others;
        let started = others.get(&from).map(|past| past.start);
        let before = others.clone();
        others.entry(from).or_default().add(&told.past);
        for (id, past) in told.known.iter().filter(|(id, _)| **id != self.id) {
            others.entry(*id).or_default().add(past);
        }
        let (is_changed, is_start) = (before != *others, started != others.get(&from).map(|past| past.start));
        memory.is_changed |= is_changed;
        let own = told.known.get(&self.id).map_or(0, |past| past.start.number);
        if memory.remembered.loss == Some(Loss::Unknown) && own >= memory.start.number {
            // Another member has recorded a later start.
            memory.start.number = own + 1;
        }
        is_start
    }

    /// What this member had lost when it started, as an answer shows; `None` if it shows no loss.
    fn forgotten_at_start(&self, told: &Testimony) -> Option<String> {
        let memory = self.memory();
        let Memory { remembered, start, at_start, .. } = &*memory;
        let past = told.known.get(&self.id).copied().unwrap_or_default();
        if past.start != *start && !remembered.is_known(past.start) {
            return Some(format!(
                "the other members know a start with number {}, which is not on this disk; the last one here is {}",
                past.start.number, remembered.settled.number
            ));
        }
        let had = remembered.had(*at_start)?;
        if let Some(why) = remembered.lacks(&past, had) {
            return Some(why);
        }
        let (vote, confirmed) = told.confirmed?;
        let by = |vote: WireVote| (vote.term, vote.node);
        let is_same = had.vote.map(by) == Some(by(vote));
        let is_earlier = had.vote.map(by) < Some(by(vote));
        let lacks = is_same && had.last.map(|last| last.index) < Some(confirmed.index);
        (is_earlier || lacks).then(|| {
            format!(
                "it had confirmed {} to the leader, but its log ends at {}",
                named(Some(confirmed)),
                named(had.last)
            )
        })
    }

    /// What this member has lost, as an answer shows while it runs; `None` if it shows no loss. `last` is the last
    /// entry of its log.
    fn forgotten_meanwhile(&self, told: &Testimony, last: Option<WireLogId>) -> Option<String> {
        let memory = self.memory();
        let start = memory.start;
        let past = told.known.get(&self.id).copied().unwrap_or_default();
        if past.start.number >= start.number && !memory.remembered.is_known(past.start) {
            return Some(format!(
                "the other members know another start with number {}: it had another disk then, or another process \
                 with its id runs",
                past.start.number
            ));
        }
        let had = memory.remembered.had(Bound { vote: None, last })?;
        memory.remembered.lacks(&past, had)
    }

    /// Gives this start a greater number if a member that answers knows an earlier start of this disk with the number: one
    /// that ended before it settled. That member would not record this one. Returns whether it did.
    fn outnumber(&self, answers: &BTreeMap<NodeId, Testimony>) -> bool {
        let mut memory = self.memory();
        let own = memory.start;
        let known = answers.values().filter_map(|told| told.known.get(&self.id)).map(|past| past.start);
        let earlier = known.filter(|start| start.id != own.id).map(|start| start.number).max();
        let Some(number) = earlier.filter(|number| *number >= own.number) else { return false };
        memory.start.number = number + 1;
        if memory.remembered.settled == own {
            memory.end_start();
        }
        true
    }

    /// Marks the disk of this member as rolled back. Blocking.
    fn lose(&self, answers: &BTreeMap<NodeId, Testimony>) -> io::Result<()> {
        {
            let mut memory = self.memory();
            for past in answers.values().filter_map(|told| told.known.get(&self.id)) {
                memory.start.number = memory.start.number.max(past.start.number);
                memory.remembered.losses = memory.remembered.losses.max(past.losses);
            }
            memory.start.number += 1;
            memory.remembered.loss = Some(Loss::Unknown);
            memory.is_changed = true;
        }
        self.save()
    }

    /// The lease that this member promised before it started, in milliseconds.
    pub(super) fn promised_lease(&self) -> Lease {
        self.memory().remembered.lease
    }

    /// Records the lease that this member promises from now on. Blocking.
    pub(super) fn promise_lease(&self, lease: Lease) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.is_changed |= memory.remembered.lease != lease;
            memory.remembered.lease = lease;
            memory.condition.lease = lease;
        }
        self.save()
    }

    fn loss(&self) -> Option<Loss> {
        self.memory().remembered.loss
    }

    /// Records the bound, and applies it from now on. Blocking.
    fn bind(&self, bound: Bound) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.end_start();
            memory.remembered.losses += 1;
            memory.remembered.missing = Missing::default();
            memory.condition.rolled_back = Some(RolledBack::CatchingUp(Missing::default()));
        }
        self.rebind(bound)
    }

    /// Replaces the bound of the same loss. Blocking.
    fn rebind(&self, bound: Bound) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.remembered.loss = Some(match memory.remembered.loss {
                Some(Loss::Discarded(_)) => Loss::Discarded(bound),
                Some(Loss::Unknown | Loss::Forgotten(_)) | None => Loss::Forgotten(bound),
            });
            memory.is_changed = true;
        }
        self.save()?;
        self.participation.send_replace(Participation::Bounded(bound));
        Ok(())
    }

    /// Ends the loss, if there was one, and all restrictions with it. Blocking.
    fn settle(&self) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.end_start();
            memory.remembered.loss = None;
            memory.remembered.missing = Missing::default();
            memory.condition.rolled_back = memory.condition.rolled_back.take().map(|_| RolledBack::CaughtUp);
        }
        self.save()?;
        self.participation.send_replace(Participation::Open);
        Ok(())
    }

    /// Records whom this start waits for because of a loss, for the operator. Blocking.
    fn record_missing(&self, missing: Missing) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.is_changed |= memory.remembered.missing != missing;
            memory.remembered.missing.clone_from(&missing);
        }
        self.save()?;
        // Shown once the operator can vouch for them.
        let mut memory = self.memory();
        match (memory.remembered.loss, &mut memory.condition.rolled_back) {
            (Some(Loss::Unknown), shown) => *shown = Some(RolledBack::Waiting(missing)),
            (_, Some(RolledBack::CatchingUp(shown))) => *shown = missing,
            (_, Some(RolledBack::Waiting(_) | RolledBack::CaughtUp) | None) => {}
        }
        Ok(())
    }

    /// Whether the operator has vouched for these voters at this start. Consumes the file, so it counts once. Blocking.
    fn take_vouch(&self, missing: &[NodeId]) -> io::Result<bool> {
        let path = self.directory.join(VOUCHED);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::error!(%error, "this member can't read the file `{VOUCHED}` in its data directory");
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let start = self.memory().start.id;
        let covers = |vouch: Vouch| vouch.start == start && missing.iter().all(|id| vouch.nodes.contains(id));
        // The operator may have removed it meanwhile.
        Ok(wire::from_bytes::<Vouch>(&bytes).is_ok_and(covers) && remove_if_exists(&path)?)
    }
}

/// Removes a file. Returns whether it was there.
fn remove_if_exists(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Bound {
    /// Whether the last entry is this entry or a later one.
    fn is_at_least(&self, entry: Option<WireLogId>) -> bool {
        order(self.last) >= order(entry)
    }
}

fn named(id: Option<WireLogId>) -> String {
    id.map_or_else(|| "nothing".into(), |id| format!("entry {} of term {}", id.index, id.term))
}

/// Vouches, on behalf of the operator, for the voters that do not answer a running member with a rolled-back disk. The
/// member then computes its bound without them. Waits until it does. Returns these voters. Blocking.
///
/// # Errors
/// If the directory does not belong to a member, if that member waits for no other or has no majority, or if it does not
/// run. Nothing is vouched for then.
pub fn vouch(directory: &Path) -> Result<Vec<NodeId>, String> {
    let vouch = vouch_for_missing(directory)?;
    let named = |error: io::Error| format!("{}: {error}", directory.display());
    let path = directory.join(VOUCHED);
    write_durably(directory, VOUCHED, &wire::to_bytes(&vouch)).map_err(named)?;
    let until = Instant::now() + VOUCH_WAIT;
    while path.exists() && Instant::now() < until {
        std::thread::sleep(VOUCH_POLL);
    }
    if remove_if_exists(&path).map_err(named)? {
        return Err(format!(
            "the member in {} did not continue within {VOUCH_WAIT:?}: does it run, and can it read the file \
             `{VOUCHED}`? It may wait for other members now. Nothing is vouched for",
            directory.display()
        ));
    }
    if Remembered::read(directory).map_err(named)?.latest_start() != vouch.start {
        return Err(format!(
            "the member in {} has started again meanwhile: look at its alarms, and vouch again if it still waits",
            directory.display()
        ));
    }
    Ok(vouch.nodes)
}

/// The vouch for the voters that the member in a directory waits for.
fn vouch_for_missing(directory: &Path) -> Result<Vouch, String> {
    let place = directory.display();
    if Identity::read(directory)?.is_none() {
        return Err(format!("{place} is not the data directory of a member"));
    }
    let remembered = Remembered::read(directory).map_err(|error| format!("{place}: {error}"))?;
    let Missing { nodes, has_majority } = &remembered.missing;
    match remembered.loss {
        Some(Loss::Unknown | Loss::Forgotten(_)) => {}
        Some(Loss::Discarded(_)) | None => {
            return Err(format!("the member in {place} waits for no other member"));
        }
    }
    if nodes.is_empty() {
        return Err(format!(
            "the member in {place} has not said since its start that it waits for another member: it must run. Try again \
             in a few seconds"
        ));
    }
    if !has_majority {
        return Err(format!(
            "the member in {place} waits for {}, and with the voters that answer it is no majority: it could not \
             continue. Start enough of them first",
            node_list(nodes)
        ));
    }
    Ok(Vouch { start: remembered.latest_start(), nodes: nodes.clone() })
}

#[cfg(test)]
mod tests;
