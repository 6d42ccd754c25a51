//! Carries what was applied into sled, behind the answer, in small steps.
//!
//! At ordinary load a step is one transaction: the rows of some changes, the position and the digest. When more
//! waits, the changes are merged to the newest value of each key and carried in several steps between a mark and
//! its removal. When even that is too much, sled is left alone until the load is over and then written whole from
//! the newest state; so is it after a fault, after an installed snapshot and when it has grown too large, always
//! into a fresh directory that becomes the current one at the end.
//!
//! **Invariant:** the trees never hold an entry that the local log does not hold durably, and what waits here is
//! bounded.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Position,
    merge::{Batches, Merge, Pending, Step, is_wide},
    trees::{Fault, Home, Seal, Trees},
};
use crate::{
    model::record::Revision,
    state::{Change, State},
};

/// Records of one transaction: larger ones are slower in sled, not faster.
const COMMIT_WEIGHT_MAX: usize = 32;
/// With more than this waiting, merging pays.
const PRESSURE_WEIGHT: usize = 256;
/// Records of one step of a merge; history is written between two steps.
const STEP_RECORDS: usize = 64;
/// Rows removed in one step.
const WIPE_ROWS: usize = 256;
/// sled is not rewritten below this size: it begins with some of its own.
const REWRITE_BYTES_MIN: u64 = 256 << 20;
/// sled is rewritten when it is so many times its content.
const REWRITE_FACTOR: u64 = 4;
/// Steps between two looks at the size, which lists files.
const STEPS_A_LOOK: u32 = 1024;
/// How long nothing may be applied until the load counts as over.
const QUIET: Duration = Duration::from_secs(1);
/// Longest pause between two attempts after faults.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Why and when the trees are to be written whole.
#[derive(Debug, Clone, Copy)]
enum Due {
    Now,
    /// When nothing has been applied for a while.
    Quiet,
    /// Not before.
    After(Instant),
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There may be more to do.
    Worked,
    /// Nothing can be done until something comes.
    Idle,
    /// Nothing can be done before this time has passed.
    Wait(Duration),
}

/// What the thread knows when it makes a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// The local log is durable up to here.
    pub(super) flushed: Revision,
    /// When something was applied last.
    pub(super) busy_at: Instant,
    /// The store is being closed: nothing is put off.
    pub(super) closing: bool,
}

/// What a carrier begins with.
#[derive(Debug)]
pub(super) struct Begin {
    pub(super) home: Home,
    /// Trees that hold exactly `latest`, with their rough content in bytes.
    pub(super) trees: Option<(Trees, u64)>,
    /// Whether trees were there, of any kind.
    pub(super) found: bool,
    pub(super) latest: (State, Position),
}

/// Owner of sled; lives on the store's thread.
#[derive(Debug)]
pub(super) struct Carrier {
    home: Home,
    weight_max: usize,
    trees: Option<Trees>,
    latest: (State, Position),
    waiting: VecDeque<Pending>,
    waiting_weight: usize,
    merge: Option<Merge>,
    /// The trees bear the mark of the merge.
    marked: bool,
    rebuild: Option<(Trees, Merge)>,
    due: Option<Due>,
    carried: Revision,
    logical_bytes: u64,
    disk_bytes: u64,
    steps: u32,
    rebuilds: u64,
    /// Faults since the last whole state.
    faults: u32,
}

impl Carrier {
    pub(super) fn new(begin: Begin, weight_max: usize) -> Self {
        let Begin { home, trees, found, latest } = begin;
        let (trees, logical_bytes) = trees.map_or((None, 0), |(trees, bytes)| (Some(trees), bytes));
        Self {
            home,
            weight_max,
            carried: trees.as_ref().map_or(0, |_| latest.1.index),
            due: trees.is_none().then_some(Due::Now),
            rebuilds: u64::from(found && trees.is_none()),
            trees,
            latest,
            waiting: VecDeque::new(),
            waiting_weight: 0,
            merge: None,
            marked: false,
            rebuild: None,
            logical_bytes,
            disk_bytes: 0,
            steps: 0,
            faults: 0,
        }
    }

    pub(super) fn carried(&self) -> Revision {
        self.carried
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// How often the trees were written whole because they could not be used.
    pub(super) fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// Takes what was applied. `state` is the state at the seal, if the changes need it.
    pub(super) fn push(&mut self, seal: Seal, changes: Vec<Arc<Change>>, state: Option<Box<State>>) {
        if self.due.is_some() {
            return;
        }
        let pending = Pending { seal, changes, state };
        self.waiting_weight += pending.weight();
        self.waiting.push_back(pending);
        let merged = self.merge.as_ref().map_or(0, Merge::weight);
        if self.waiting_weight + merged > self.weight_max {
            tracing::info!("sled is far behind and is written anew when the load is over");
            self.rebuilds += 1;
            self.due = Some(Due::Quiet);
            self.forget_waiting();
        }
    }

    /// The newest state: what whole trees are written from. It is at least as new as all that was pushed.
    pub(super) fn latest(&mut self, state: State, position: Position) {
        self.latest = (state, position);
    }

    /// Another state took the place of all before it.
    pub(super) fn install(&mut self, state: State, position: Position) {
        self.latest = (state, position);
        self.due = Some(Due::Now);
        self.forget_waiting();
    }

    /// One bounded piece of work.
    pub(super) fn step(&mut self, moment: Moment) -> Progress {
        match self.try_step(moment) {
            Ok(progress) => progress,
            Err(fault) => {
                self.throw_away(&fault);
                if moment.closing && self.faults > 1 { Progress::Idle } else { Progress::Worked }
            }
        }
    }

    /// Makes everything durable and closes sled.
    pub(super) fn close(mut self) {
        let ended = match self.trees.take() {
            Some(trees) => trees.sync().and_then(|()| trees.shut()),
            None => Ok(()),
        };
        let ended = ended.and_then(|()| self.rebuild.take().map_or(Ok(()), |(trees, _)| trees.shut()));
        if let Err(fault) = ended {
            tracing::warn!("sled is written anew at the next start: {fault}");
            if let Err(fault) = self.home.discard() {
                tracing::warn!("can't remove the unusable sled directory: {fault}");
            }
        }
    }

    /// Closes sled as it is.
    pub(super) fn abandon(self) {
        for trees in [self.trees, self.rebuild.map(|(trees, _)| trees)].into_iter().flatten() {
            if let Err(fault) = trees.shut() {
                tracing::warn!("sled did not close: {fault}");
            }
        }
    }

    fn try_step(&mut self, moment: Moment) -> Result<Progress, Fault> {
        if let Some(due) = self.due {
            return match due.wait(moment) {
                Duration::ZERO => self.begin().map(|()| Progress::Worked),
                wait => Ok(Progress::Wait(wait)),
            };
        }
        self.absorb(moment.flushed);
        if self.rebuild.is_some() {
            return self.rebuild_step(moment.flushed);
        }
        if self.merge.is_some() {
            return self.merge_step().map(|()| Progress::Worked);
        }
        let Some(trees) = &self.trees else { return Ok(Progress::Idle) };
        let flushed = moment.flushed;
        let Some(batch) = small_batch(&mut self.waiting, flushed) else {
            return Ok(if self.start_merge(flushed) { Progress::Worked } else { Progress::Idle });
        };
        let mut batches = Batches::default();
        batch.iter().flat_map(Pending::edits).for_each(|edit| batches.edit(edit));
        self.waiting_weight -= batch.iter().map(Pending::weight).sum::<usize>();
        if let Some(last) = batch.last() {
            self.logical_bytes = (self.logical_bytes + batches.added).saturating_sub(batches.removed);
            trees.commit(batches, &last.seal)?;
            self.carried = last.seal.position.index;
        }
        self.look(moment.closing)?;
        Ok(Progress::Worked)
    }

    /// Begins to write fresh trees from the newest state.
    fn begin(&mut self) -> Result<(), Fault> {
        self.forget_waiting();
        if let Some((trees, _)) = self.rebuild.take() {
            trees.shut()?;
        }
        // Whole trees stay the current ones until the fresh ones are complete.
        if let Some(trees) = self.trees.take() {
            trees.shut()?;
        }
        if std::mem::take(&mut self.marked) {
            self.home.discard()?;
        }
        let (state, position) = &self.latest;
        let merge = Merge::whole(state, Seal::of(state, position));
        self.rebuild = Some((self.home.fresh()?, merge));
        self.logical_bytes = 0;
        self.due = None;
        Ok(())
    }

    fn rebuild_step(&mut self, flushed: Revision) -> Result<Progress, Fault> {
        let Some((trees, merge)) = &mut self.rebuild else { return Ok(Progress::Idle) };
        match merge.step(STEP_RECORDS) {
            Step::Put(batches) => {
                self.logical_bytes += batches.added;
                trees.spread(batches)?;
            }
            Step::Wipe(_) => merge.wiped(),
            // Only now do they count, so only now must the log hold all that they hold.
            Step::Done if merge.seal.position.index > flushed => return Ok(Progress::Idle),
            Step::Done => {
                trees.arrive(&merge.seal)?;
                self.home.adopt(trees)?;
                self.carried = merge.seal.position.index;
                self.trees = self.rebuild.take().map(|(trees, _)| trees);
                self.faults = 0;
                self.steps = STEPS_A_LOOK;
                self.look(true)?;
            }
        }
        Ok(Progress::Worked)
    }

    fn merge_step(&mut self) -> Result<(), Fault> {
        let (Some(trees), Some(merge)) = (&self.trees, &mut self.merge) else { return Ok(()) };
        if !self.marked {
            trees.depart(merge.seal.position.index)?;
            self.marked = true;
        }
        match merge.step(STEP_RECORDS) {
            Step::Wipe(id) => {
                let (gone, bytes) = trees.wipe(id, WIPE_ROWS)?;
                self.logical_bytes = self.logical_bytes.saturating_sub(bytes);
                if gone {
                    merge.wiped();
                }
            }
            Step::Put(batches) => {
                self.logical_bytes = (self.logical_bytes + batches.added).saturating_sub(batches.removed);
                trees.spread(batches)?;
            }
            Step::Done => {
                trees.arrive(&merge.seal)?;
                self.carried = merge.seal.position.index;
                self.marked = false;
                self.merge = None;
            }
        }
        self.look(false)
    }

    /// Merges all that waits and is durable in the log; whether there was any.
    fn start_merge(&mut self, flushed: Revision) -> bool {
        while let Some(pending) = self.waiting.pop_front_if(|next| next.seal.position.index <= flushed) {
            self.waiting_weight -= pending.weight();
            let merge = self.merge.get_or_insert_with(|| Merge::new(pending.seal.clone()));
            merge.join(pending);
            if !merge.is_open() {
                break;
            }
        }
        // The mark names how far the merge leads; a merge that goes further is marked again.
        self.marked = false;
        self.merge.is_some()
    }

    /// Lets what waits join the merge before it becomes too much.
    fn absorb(&mut self, flushed: Revision) {
        let busy = self.rebuild.is_some() || self.merge.is_some();
        let open = self.merge.as_ref().is_none_or(Merge::is_open);
        let next_fits = self.waiting.front().is_some_and(|next| next.seal.position.index <= flushed);
        if busy && open && next_fits && self.waiting_weight > self.weight_max / 2 {
            self.start_merge(flushed);
        }
    }

    fn forget_waiting(&mut self) {
        // Half a merge may be in the trees.
        self.waiting.clear();
        self.waiting_weight = 0;
        self.merge = None;
    }

    /// Now and then looks whether sled takes far more room than its content.
    fn look(&mut self, only: bool) -> Result<(), Fault> {
        self.steps += 1;
        let Some(trees) = self.trees.as_ref().filter(|_| self.steps > STEPS_A_LOOK) else { return Ok(()) };
        self.steps = 0;
        self.disk_bytes = trees.size()?;
        if !only && self.disk_bytes > REWRITE_BYTES_MIN.max(REWRITE_FACTOR * self.logical_bytes) {
            tracing::info!(
                disk_bytes = self.disk_bytes,
                logical_bytes = self.logical_bytes,
                "sled is rewritten to give room back"
            );
            self.rebuilds += 1;
            self.due = Some(Due::Now);
        }
        Ok(())
    }

    fn throw_away(&mut self, fault: &Fault) {
        tracing::warn!("sled can't be used and is written anew: {fault}");
        for trees in [self.trees.take(), self.rebuild.take().map(|(trees, _)| trees)].into_iter().flatten() {
            if fault.panicked {
                // Dropping it may wait for a lock that the panic left held.
                std::mem::forget(trees);
            } else if let Err(fault) = trees.shut() {
                tracing::warn!("sled did not close: {fault}");
            }
        }
        self.forget_waiting();
        self.marked = false;
        if let Err(fault) = self.home.discard() {
            tracing::warn!("can't remove the unusable sled directory: {fault}");
        }
        self.rebuilds += 1;
        self.faults += 1;
        self.carried = 0;
        let pause = Duration::from_secs(1 << (self.faults - 1).min(6)).min(PAUSE_MAX);
        self.due = Some(if self.faults == 1 { Due::Now } else { Due::After(Instant::now() + pause) });
    }
}

impl Due {
    fn wait(self, moment: Moment) -> Duration {
        let now = Instant::now();
        match self {
            Self::Quiet | Self::After(_) if moment.closing => Duration::ZERO,
            Self::Now => Duration::ZERO,
            Self::Quiet => (moment.busy_at + QUIET).saturating_duration_since(now),
            Self::After(then) => then.saturating_duration_since(now),
        }
    }
}

/// Takes what one transaction carries, if what waits is little and touches single records only. `None` when
/// nothing may be carried yet, or when it has to be merged.
fn small_batch(waiting: &mut VecDeque<Pending>, flushed: Revision) -> Option<Vec<Pending>> {
    let durable = || waiting.iter().take_while(|next| next.seal.position.index <= flushed);
    if durable().map(Pending::weight).sum::<usize>() > PRESSURE_WEIGHT {
        return None;
    }
    let mut weight = 0;
    let count = durable()
        .take_while(|next| {
            weight += next.weight();
            weight <= COMMIT_WEIGHT_MAX && !next.edits().any(is_wide)
        })
        .count();
    (count > 0).then(|| waiting.drain(..count).collect())
}
