//! Carries what was applied into sled, behind the answer.
//!
//! sled trails on purpose: the log makes a write durable, and sled only says where applying begins at a start. So
//! what is applied is merged to the newest value of each changed key, and the merge is carried when nothing has
//! come for a moment, when it waits long, or when it holds much: a key that changes ten times meanwhile is
//! written once. It goes in row by row, in small steps, between a mark and its removal; a crash in between costs
//! a start from the snapshot and the log. When even that falls behind, sled is left alone until the load is over
//! and then written whole from the newest state; so is it after a fault, after an installed snapshot and when it
//! has grown too large, always into a fresh directory that becomes the current one at the end.
//!
//! **Invariant:** the trees never hold an entry that the local log does not hold durably, and what waits here is
//! bounded.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    merge::{Merge, Pending, Step},
    trees::{Home, Seal, TreeError, Trees},
};
use crate::{
    model::record::Revision,
    state::{Change, State},
    store::Position,
};

/// A merge is carried when nothing was applied for so long: a service at rest has its sled complete.
const LULL: Duration = Duration::from_millis(200);
/// A merge is carried when it waits for so long: what a start after a crash has to apply again, beside what the
/// log takes to be read.
const TRAIL_MAX: Duration = Duration::from_secs(5);
/// A merge is carried when it weighs so much: some 16 MB of small records, and a third of a second of work.
const MERGE_WEIGHT: usize = 16 << 10;
/// Records of one step: some milliseconds of work. History is written between two steps, and under load the thread
/// rests.
const STEP_RECORDS: usize = 64;
/// Rows removed in one step.
const WIPE_ROWS: usize = 256;
/// sled is not rewritten below this size: it begins with some of its own.
const REWRITE_BYTES_MIN: u64 = 256 << 20;
/// sled is rewritten when it is so many times its content.
const REWRITE_FACTOR: u64 = 4;
/// Steps between two looks at the size, which lists files.
const STEPS_A_LOOK: u32 = 512;
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
pub(in crate::store) enum Progress {
    /// There may be more to do.
    Worked,
    /// Nothing can be done until something comes.
    Idle,
    /// Nothing can be done before this time has passed.
    Wait(Duration),
}

/// What the thread knows when it makes a step.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Moment {
    /// The local log is durable up to here.
    pub(in crate::store) flushed: Revision,
    /// When something was applied last.
    pub(in crate::store) busy_at: Instant,
    /// The store is being closed: nothing is put off.
    pub(in crate::store) closing: bool,
}

/// What a carrier begins with.
#[derive(Debug)]
pub(in crate::store) struct Begin {
    pub(in crate::store) home: Home,
    /// Trees that hold exactly `latest`, with their rough content in bytes.
    pub(in crate::store) trees: Option<(Trees, u64)>,
    /// Whether trees were there, of any kind.
    pub(in crate::store) found: bool,
    pub(in crate::store) latest: (State, Position),
}

/// Owner of sled; lives on the store's thread.
#[derive(Debug)]
pub(in crate::store) struct Carrier {
    home: Home,
    weight_max: usize,
    trees: Option<Trees>,
    latest: (State, Position),
    /// What the log does not hold durably yet.
    waiting: VecDeque<Pending>,
    waiting_weight: usize,
    /// What is to be carried next, and since when it waits.
    gathered: Option<(Merge, Instant)>,
    /// What is being carried.
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
    pub(in crate::store) fn new(begin: Begin, weight_max: usize) -> Self {
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
            gathered: None,
            merge: None,
            marked: false,
            rebuild: None,
            logical_bytes,
            disk_bytes: 0,
            steps: 0,
            faults: 0,
        }
    }

    pub(in crate::store) fn carried(&self) -> Revision {
        self.carried
    }

    pub(in crate::store) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// How often the trees were written whole because they could not be used.
    pub(in crate::store) fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// Takes what was applied. `state` is the state at the seal, if the changes need it.
    pub(in crate::store) fn push(
        &mut self,
        seal: Seal,
        changes: Vec<Arc<Change>>,
        state: Option<Box<State>>,
    ) {
        if self.due.is_some() {
            return;
        }
        let pending = Pending { seal, changes, state };
        self.waiting_weight += pending.weight();
        self.waiting.push_back(pending);
        let merges = [self.merge.as_ref(), self.gathered.as_ref().map(|(merge, _)| merge)];
        let merged: usize = merges.into_iter().flatten().map(Merge::weight).sum();
        if self.waiting_weight + merged > self.weight_max {
            tracing::info!("sled is far behind and is written anew when the load is over");
            self.rebuilds += 1;
            self.due = Some(Due::Quiet);
            self.forget_waiting();
        }
    }

    /// The newest state: what whole trees are written from. It is at least as new as all that was pushed.
    pub(in crate::store) fn latest(&mut self, state: State, position: Position) {
        self.latest = (state, position);
    }

    /// Another state took the place of all before it.
    pub(in crate::store) fn install(&mut self, state: State, position: Position) {
        self.latest = (state, position);
        self.due = Some(Due::Now);
        self.forget_waiting();
    }

    /// One bounded piece of work.
    pub(in crate::store) fn step(&mut self, moment: Moment) -> Progress {
        match self.try_step(moment) {
            Ok(progress) => progress,
            Err(fault) => {
                self.throw_away(&fault);
                if moment.closing && self.faults > 1 { Progress::Idle } else { Progress::Worked }
            }
        }
    }

    /// Makes everything durable and closes sled.
    pub(in crate::store) fn close(mut self) {
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
    pub(in crate::store) fn abandon(self) {
        for trees in [self.trees, self.rebuild.map(|(trees, _)| trees)].into_iter().flatten() {
            if let Err(fault) = trees.shut() {
                tracing::warn!("sled did not close: {fault}");
            }
        }
    }

    fn try_step(&mut self, moment: Moment) -> Result<Progress, TreeError> {
        if let Some(due) = self.due {
            return match due.wait(moment) {
                Duration::ZERO => self.begin().map(|()| Progress::Worked),
                wait => Ok(Progress::Wait(wait)),
            };
        }
        self.gather(moment.flushed);
        if self.rebuild.is_some() {
            return self.rebuild_step(moment.flushed);
        }
        if self.merge.is_none() {
            match self.ripe(moment) {
                None => return Ok(Progress::Idle),
                Some(Duration::ZERO) => self.merge = self.gathered.take().map(|(merge, _)| merge),
                Some(time) => return Ok(Progress::Wait(time)),
            }
        }
        self.merge_step(moment.closing).map(|()| Progress::Worked)
    }

    /// Begins to write fresh trees from the newest state.
    fn begin(&mut self) -> Result<(), TreeError> {
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

    fn rebuild_step(&mut self, flushed: Revision) -> Result<Progress, TreeError> {
        let Some((trees, merge)) = &mut self.rebuild else { return Ok(Progress::Idle) };
        match merge.step(STEP_RECORDS) {
            Step::Put(rows) => {
                self.logical_bytes += rows.added;
                trees.carry(rows)?;
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

    fn merge_step(&mut self, closing: bool) -> Result<(), TreeError> {
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
            Step::Put(rows) => {
                self.logical_bytes = (self.logical_bytes + rows.added).saturating_sub(rows.removed);
                trees.carry(rows)?;
            }
            Step::Done => {
                trees.arrive(&merge.seal)?;
                self.carried = merge.seal.position.index;
                self.marked = false;
                self.merge = None;
            }
        }
        self.look(closing)
    }

    /// Merges what the log holds durably by now.
    fn gather(&mut self, flushed: Revision) {
        while self.gathered.as_ref().is_none_or(|(merge, _)| merge.is_open()) {
            let next = self.waiting.pop_front_if(|next| next.seal.position.index <= flushed);
            let Some(pending) = next else { return };
            self.waiting_weight -= pending.weight();
            let begin = || (Merge::new(pending.seal.clone()), Instant::now());
            self.gathered.get_or_insert_with(begin).0.join(pending);
        }
    }

    /// How long until what was gathered is to be carried.
    fn ripe(&self, moment: Moment) -> Option<Duration> {
        let (merge, since) = self.gathered.as_ref().filter(|_| self.trees.is_some())?;
        // Half of what may wait: while one half is carried, the other one comes.
        let much = merge.weight() >= MERGE_WEIGHT.min(self.weight_max / 2);
        if moment.closing || much || !merge.is_open() {
            return Some(Duration::ZERO);
        }
        let then = (moment.busy_at + LULL).min(*since + TRAIL_MAX);
        Some(then.saturating_duration_since(Instant::now()))
    }

    fn forget_waiting(&mut self) {
        // Half a merge may be in the trees.
        self.waiting.clear();
        self.waiting_weight = 0;
        self.gathered = None;
        self.merge = None;
    }

    /// Now and then looks whether sled takes far more room than its content.
    fn look(&mut self, only: bool) -> Result<(), TreeError> {
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

    fn throw_away(&mut self, fault: &TreeError) {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        model::time::Timestamp,
        state::Edit,
        store::snapshot::file::tests::{config, definition},
    };

    fn seal(index: Revision) -> Seal {
        let position = Position { index, stamp: Vec::new() };
        Seal { position, revision: index, last_at: Timestamp(index), digest: 0, compaction_revision: 0 }
    }

    /// A carrier whose fresh trees are written.
    fn carrier(directory: &Path, weight_max: usize) -> Carrier {
        let home = Home::open(directory, 1 << 20).unwrap();
        let latest = (State::new(), Position { index: 0, stamp: Vec::new() });
        let mut carrier = Carrier::new(Begin { home, trees: None, found: false, latest }, weight_max);
        work(&mut carrier, moment(0));
        carrier
    }

    /// Nothing has been applied for a while.
    fn moment(flushed: Revision) -> Moment {
        let busy_at = Instant::now().checked_sub(2 * LULL).expect("the machine runs for longer");
        Moment { flushed, busy_at, closing: false }
    }

    fn busy(flushed: Revision) -> Moment {
        Moment { busy_at: Instant::now(), ..moment(flushed) }
    }

    /// Steps until nothing can be done now.
    fn work(carrier: &mut Carrier, moment: Moment) -> Progress {
        loop {
            match carrier.step(moment) {
                Progress::Worked => {}
                progress @ (Progress::Idle | Progress::Wait(_)) => return progress,
            }
        }
    }

    fn push(carrier: &mut Carrier, index: Revision) {
        let after = Some(Arc::new(config(&format!("k{index}"), index, "{}")));
        let edits = vec![Edit::Config { definition: definition(1).id, before: None, after }];
        let at = Timestamp(index);
        let change = Change { revision: index, at, by: "root".into(), reason: None, edits };
        carrier.push(seal(index), vec![Arc::new(change)], None);
    }

    fn position(carrier: &Carrier) -> Option<Seal> {
        carrier.trees.as_ref().unwrap().seal().unwrap()
    }

    #[test]
    fn what_comes_is_carried_in_a_lull_and_only_as_far_as_the_log_is_durable() {
        let directory = tempfile::tempdir().unwrap();
        let mut carrier = carrier(directory.path(), 1000);
        (1..=5).for_each(|index| push(&mut carrier, index));
        assert_eq!(work(&mut carrier, moment(0)), Progress::Idle);
        let waits = work(&mut carrier, busy(4));
        assert!(matches!(waits, Progress::Wait(time) if time <= LULL), "{waits:?}");
        assert_eq!(carrier.carried(), 0);
        assert_eq!(work(&mut carrier, moment(4)), Progress::Idle);
        assert_eq!((carrier.carried(), position(&carrier)), (4, Some(seal(4))));
        assert_eq!(work(&mut carrier, Moment { closing: true, ..busy(5) }), Progress::Idle);
        assert_eq!((carrier.carried(), position(&carrier)), (5, Some(seal(5))));
        carrier.close();
    }

    #[test]
    fn much_is_carried_under_load_before_it_becomes_too_much() {
        let directory = tempfile::tempdir().unwrap();
        let mut carrier = carrier(directory.path(), 20);
        for index in 1..=95 {
            push(&mut carrier, index);
            work(&mut carrier, busy(index));
        }
        assert_eq!((carrier.carried(), carrier.rebuilds()), (90, 0));
        carrier.abandon();
    }
}
