//! What a member has confirmed, as the other members remember it: a member whose disk has gone back in time has forgotten
//! it, and can't notice that alone.
//!
//! Raft's safety rests on members that never forget: an acknowledged entry is in a majority of the logs, and no vote is
//! given twice. A snapshot of a virtual machine or a copied directory that is put back breaks that without a trace on the
//! disk. So each member counts its starts, the members remember of each other the start and the last applied entry, and a
//! member that starts asks the others before it votes or confirms anything.
//!
//! | where is | file |
//! |---|---|
//! | what is remembered, in the file `witness` of the data directory, and how it is compared | this one |
//! | what a member may do before it is known that it has forgotten nothing, and when it has | `participation` |
//! | when a member asks the others | `task` |
//!
//! A member that starts is *settled* once a majority, itself included, has answered, and the others have answered, failed,
//! or had [`task::GRACE`]. It waits for no other member than Raft does, so a start of a majority takes as long as without.
//!
//! If an answer shows that the member has forgotten something, it is *lost*: it can't know what else it has confirmed. It
//! waits until all other voters have said how far they are, or the operator vouches for those who don't answer. From then
//! on it is *bounded*: it keeps to the greatest vote and the greatest last entry that it was told. Its confirmations are
//! true, because it holds what it confirms, so the leader can send it what it lacks. It is whole again once it has passed
//! the bound.
//!
//! **Invariants**
//! 1. A start is durable here, and with everybody who has answered, before this member votes or confirms anything.
//! 2. A bounded member votes as it would have before it forgot, or more strictly. An entry that was committed with its
//!    help is in the log of another voter, whose last entry is not above the bound; a candidate that it voted for has
//!    that vote itself, which is not above the bound. So it votes for no candidate that lacks such an entry, and in no term a second time.
//! 3. Nothing here is taken back: a past is only replaced by a later one.

mod participation;
mod task;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(super) use participation::Participation;
pub(super) use task::WitnessTask;

use super::{
    lease::Lease,
    wire::{self, WireLogId, WireMembership, WireVote},
};
use concord_net::{
    NodeId,
    identity::{Identity, write_durably},
};

/// The file of what this member remembers, in the data directory.
const FILE: &str = "witness";
/// The format of the file: its first byte.
const FORMAT: u8 = 1;
/// The file by which the operator vouches for the members that don't answer.
const VOUCHED: &str = "vouched";

/// A start of a member. The id tells apart two starts of one number: one of a directory, one of its copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StartNumber {
    number: u64,
    id: u64,
}

/// What is remembered of a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LastKnown {
    start: StartNumber,
    /// The last entry that it had applied and made durable. Such an entry is never truncated.
    applied: Option<WireLogId>,
}

impl LastKnown {
    /// Adds what was heard. Of two starts with one number the first one stays: the member itself must learn of it.
    fn add(&mut self, heard: &Self) {
        if heard.start.number > self.start.number {
            self.start = heard.start;
        }
        if order(heard.applied) > order(self.applied) {
            self.applied = heard.applied;
        }
    }
}

/// The place of an entry among those of all logs, by which Raft compares logs: the term before the index.
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
    /// The bound of both.
    fn or(self, other: Self) -> Self {
        let last = if order(other.last) > order(self.last) { other.last } else { self.last };
        Self { vote: self.vote.max(other.vote), last }
    }

    fn has(&self, last: Option<WireLogId>) -> bool {
        order(last) >= order(self.last)
    }
}

/// Most unsettled starts that are told apart.
const UNSETTLED_MAX: usize = 4096;

/// What this member has lost and not yet got again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Loss {
    /// Its past: how much of it is not known yet.
    Unknown,
    /// Its past, up to a bound.
    Forgotten(Bound),
    /// Its log and its state, on purpose: they were distrusted.
    Discarded(Bound),
}

/// The content of the file `witness`, after its format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// The last start that was settled. Starts that are not have the next number, so that a member that starts again and
    /// again without the others does not overtake a past that it has forgotten.
    settled: StartNumber,
    /// The ids of the starts since then.
    unsettled: Vec<u64>,
    loss: Option<Loss>,
    /// The lease that it has promised with its confirmations.
    lease: Lease,
    others: BTreeMap<NodeId, LastKnown>,
}

impl Remembered {
    /// Whether a start is one that this disk knows of.
    fn is_known(&self, start: StartNumber) -> bool {
        if start.number == self.settled.number + 1 {
            return self.unsettled.contains(&start.id);
        }
        start.number < self.settled.number || start == self.settled
    }

    /// Reads the file. A missing or damaged one holds nothing: if the member has a past, the others know it.
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
                "the file `{FILE}` in the data directory is damaged; this member asks the others"
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

/// How far a member is that has started from an earlier state of its disk. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolledBack {
    /// It neither votes nor confirms until these voters have answered.
    Waiting(Vec<NodeId>),
    /// It catches up, and votes for nobody who lacks what it may have had.
    CatchingUp,
    /// It has caught up, and has run since.
    CaughtUp,
}

/// What members tell each other: a question and its answer alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Testimony {
    past: LastKnown,
    /// The vote and the last entry of its log now.
    now: Bound,
    rolled_back: Option<RolledBack>,
    /// What it remembers of all members.
    known: BTreeMap<NodeId, LastKnown>,
    /// Of a leader to a member: its vote, and the last entry that the member has confirmed under it.
    confirmed: Option<(WireVote, WireLogId)>,
    membership: Option<(WireLogId, WireMembership)>,
}

/// What a member remembers while it runs.
#[derive(Debug)]
struct Memory {
    remembered: Remembered,
    /// Whether the file lacks something.
    is_changed: bool,
    /// This start, and the log's position when it began.
    start: StartNumber,
    at_start: Bound,
    rolled_back: Option<RolledBack>,
    others_rolled_back: BTreeMap<NodeId, RolledBack>,
    /// The newest membership that another member has told: this one may have been away while the members changed.
    membership: Option<(WireLogId, WireMembership)>,
}

impl Memory {
    /// The others know of this start.
    fn end_start(&mut self) {
        self.remembered.settled = self.start;
        self.remembered.unsettled.clear();
        self.is_changed = true;
    }
}

/// This member's memory of all members, and whether it may take part: not while it may have forgotten something.
#[derive(Debug)]
pub(super) struct Witness {
    id: NodeId,
    directory: PathBuf,
    memory: Mutex<Memory>,
    /// Held while the file is written.
    writing: Mutex<()>,
    participation: watch::Sender<Participation>,
}

impl Witness {
    /// Counts a start, durably. `at_start` is the position of the log. Blocking.
    pub(super) fn open(me: &Identity, directory: &Path, at_start: Bound) -> io::Result<Self> {
        let mut remembered = Remembered::read(directory)?;
        let start =
            StartNumber { number: remembered.settled.number + 1, id: uuid::Uuid::new_v4().as_u64_pair().0 };
        remembered.unsettled.push(start.id);
        if remembered.unsettled.len() > UNSETTLED_MAX {
            remembered.unsettled.remove(0);
        }
        remembered.write(directory)?;
        let rolled_back = match remembered.loss {
            Some(Loss::Unknown) => Some(RolledBack::Waiting(Vec::new())),
            Some(Loss::Forgotten(_)) => Some(RolledBack::CatchingUp),
            Some(Loss::Discarded(_)) | None => None,
        };
        let memory = Memory {
            remembered,
            is_changed: false,
            start,
            at_start,
            rolled_back,
            others_rolled_back: BTreeMap::new(),
            membership: None,
        };
        Ok(Self {
            id: me.node_id,
            directory: directory.into(),
            memory: Mutex::new(memory),
            writing: Mutex::default(),
            participation: watch::Sender::new(Participation::Asking),
        })
    }

    /// Records that the log is about to be discarded, which has this position. Blocking.
    pub(super) fn discard(directory: &Path, had: Bound) -> io::Result<()> {
        let mut remembered = Remembered::read(directory)?;
        remembered.loss = Some(match remembered.loss {
            Some(Loss::Unknown) => Loss::Unknown,
            Some(Loss::Forgotten(bound)) => Loss::Forgotten(bound.or(had)),
            Some(Loss::Discarded(bound)) => Loss::Discarded(bound.or(had)),
            None => Loss::Discarded(had),
        });
        remembered.write(directory)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what has changed. Blocking.
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

    /// The members that have started from an earlier state of their disks, as far as this one knows.
    pub(super) fn rolled_back(&self) -> BTreeMap<NodeId, RolledBack> {
        let memory = self.memory();
        let mut all = memory.others_rolled_back.clone();
        all.extend(memory.rolled_back.clone().map(|own| (self.id, own)));
        all
    }

    /// Adds what a member tells. Returns whether that is news which must be durable before this member answers.
    fn hear(&self, from: NodeId, told: &Testimony) -> bool {
        let mut memory = self.memory();
        match &told.rolled_back {
            Some(rolled_back) => memory.others_rolled_back.insert(from, rolled_back.clone()),
            None => memory.others_rolled_back.remove(&from),
        };
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
            // Another one knows of a still later start.
            memory.start.number = own + 1;
        }
        is_start
    }

    /// What an answer shows that this member has forgotten when it started, if anything.
    fn forgotten_at_start(&self, told: &Testimony) -> Option<String> {
        let memory = self.memory();
        let Memory { remembered, start, at_start, .. } = &*memory;
        let past = told.known.get(&self.id).copied().unwrap_or_default();
        if past.start != *start && !remembered.is_known(past.start) {
            return Some(format!(
                "its start number {} is another one than this disk knows, which had {} before",
                past.start.number, remembered.settled.number
            ));
        }
        if remembered.loss.is_some() {
            return None;
        }
        if !at_start.is_at_least(past.applied) {
            return Some(format!(
                "it had applied {}, and its log ends at {}",
                named(past.applied),
                named(at_start.last)
            ));
        }
        let (vote, confirmed) = told.confirmed?;
        let by = |vote: WireVote| (vote.term, vote.node);
        let is_same = at_start.vote.map(by) == Some(by(vote));
        let is_earlier = at_start.vote.map(by) < Some(by(vote));
        let lacks = is_same && at_start.last.map(|last| last.index) < Some(confirmed.index);
        (is_earlier || lacks).then(|| {
            format!(
                "it had confirmed {} to the leader, and its log ends at {}",
                named(Some(confirmed)),
                named(at_start.last)
            )
        })
    }

    /// What an answer shows that this member has forgotten while it runs. `last` is the end of its log.
    fn forgotten_meanwhile(&self, told: &Testimony, last: Option<WireLogId>) -> Option<String> {
        let memory = self.memory();
        let start = memory.start;
        let past = told.known.get(&self.id).copied().unwrap_or_default();
        if past.start.id != start.id && past.start.number >= start.number {
            return Some(format!("another start of this member has the number {}", past.start.number));
        }
        let has_it = memory.remembered.loss.is_some() || Bound { vote: None, last }.is_at_least(past.applied);
        (!has_it)
            .then(|| format!("it had applied {}, and its log ends at {}", named(past.applied), named(last)))
    }

    /// Marks this member as one that has forgotten its past. Blocking.
    fn lose(&self, answers: &BTreeMap<NodeId, Testimony>) -> io::Result<()> {
        {
            let mut memory = self.memory();
            let known = answers.values().filter_map(|told| told.known.get(&self.id));
            let number = known.map(|past| past.start.number).fold(memory.start.number, u64::max);
            memory.start.number = number + 1;
            memory.remembered.loss = Some(Loss::Unknown);
            memory.is_changed = true;
        }
        self.save()
    }

    /// The lease that this member has promised before it started, in milliseconds.
    pub(super) fn promised_lease(&self) -> Lease {
        self.memory().remembered.lease
    }

    /// Records the lease that this member promises from now on. Blocking.
    pub(super) fn promise_lease(&self, lease: Lease) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.is_changed |= memory.remembered.lease != lease;
            memory.remembered.lease = lease;
        }
        self.save()
    }

    fn loss(&self) -> Option<Loss> {
        self.memory().remembered.loss
    }

    /// Records the bound of what this member has lost, and keeps to it. Blocking.
    fn bind(&self, bound: Bound) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.end_start();
            memory.remembered.loss = Some(Loss::Forgotten(bound));
            memory.rolled_back = Some(RolledBack::CatchingUp);
        }
        self.save()?;
        self.participation.send_replace(Participation::Bounded(bound));
        Ok(())
    }

    /// Ends a loss, if there was one: this member may do all that a member may. Blocking.
    fn settle(&self) -> io::Result<()> {
        {
            let mut memory = self.memory();
            memory.end_start();
            memory.remembered.loss = None;
            memory.rolled_back = memory.rolled_back.take().map(|_| RolledBack::CaughtUp);
        }
        self.save()?;
        self.participation.send_replace(Participation::Open);
        Ok(())
    }

    /// Whether the operator has vouched for those who don't answer; once. Blocking.
    fn take_vouched(&self) -> io::Result<bool> {
        match fs::remove_file(self.directory.join(VOUCHED)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Bound {
    /// Whether a log that ends here is one with this entry, or a later one.
    fn is_at_least(&self, entry: Option<WireLogId>) -> bool {
        order(self.last) >= order(entry)
    }
}

fn named(id: Option<WireLogId>) -> String {
    id.map_or_else(|| "nothing".into(), |id| format!("entry {} of term {}", id.index, id.term))
}

/// Vouches, on behalf of the operator, for the members that don't answer one that has started from an earlier state of its
/// disk: it takes those who have answered for all. The node in the directory notices it while it runs.
///
/// # Errors
/// When the directory is no member's, or that member waits for nobody.
pub fn vouch(directory: &Path) -> Result<(), String> {
    let named = |error: io::Error| format!("{}: {error}", directory.display());
    if Identity::read(directory)?.is_none() {
        return Err(format!("{} is not the data directory of a member", directory.display()));
    }
    let loss = Remembered::read(directory).map_err(named)?.loss;
    if !matches!(loss, Some(Loss::Unknown | Loss::Forgotten(_))) {
        return Err(format!(
            "the member in {} waits for no other member to know what it has forgotten",
            directory.display()
        ));
    }
    write_durably(directory, VOUCHED, b"").map_err(named)
}

#[cfg(test)]
mod tests;
