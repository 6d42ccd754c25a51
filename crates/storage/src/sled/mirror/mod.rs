//! Mirrors what was applied into sled, write-behind: no response waits for it.
//!
//! sled lags on purpose: the log makes a write durable, and sled only determines where applying starts again after a
//! restart. So changes are merged to the newest value of each key, and a merge is written when nothing has been applied
//! for a moment, when it is large, when a start would have many changes to apply again, or when it is old: a key that
//! changes ten times meanwhile is written once. A merge is written row by row, in small steps, between writing its
//! target and its checkpoint; a crash in between costs a start from the snapshot and the log.
//!
//! When even that falls behind, sled is left alone until the load is over and then rebuilt from the newest
//! state. It is also rebuilt after an error, after a snapshot was installed and when it has grown too large,
//! always into a fresh directory that becomes the current one at the end. A store that is closed meanwhile waits for a
//! small state only: a start without sled takes seconds, and to write a million configs takes twenty.
//!
//! **Invariant:** the trees never hold an entry that the local log does not hold durably, and what waits here
//! is bounded.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    checkpoint::Checkpoint,
    current::Current,
    merge::{MergeStep, PendingBatch, SledMerge},
    trees::{DatabaseDir, TreeError, Trees},
};
use crate::{LogIndex, Position};
use concord_model::record::Revision;
use concord_state::{Change, State};

/// A merge is written when nothing was applied for this long: sled of an idle service is complete.
const MERGE_IDLE_DELAY: Duration = Duration::from_millis(200);
/// A merge is written at this age: even with few writes, sled is soon complete.
const MERGE_DELAY_MAX: Duration = Duration::from_secs(60);
/// A merge is written when this many changes were merged into it. This bounds what a start after a crash applies again,
/// besides reading the log: one to three seconds.
const MERGE_CHANGES_MAX: usize = 256 << 10;
/// A merge is written when it has so many records: about 16 MB of small ones, and a third of a second of work.
const MERGE_RECORDS_MAX: usize = 16 << 10;
/// A merge is written when it has so much text: as much may be in memory for it alone while it is written. Large, so
/// that what changes again and again is written to sled a few times a minute and not each time: the log and the
/// history have each change already.
const MERGE_TEXT_BYTES_MAX: usize = 128 << 20;
/// Records of one step: some milliseconds of work. The history is written between two steps, and under load
/// the thread rests between them.
const STEP_RECORDS: usize = 64;
/// Rows removed in one step.
const STEP_DELETED_ROWS: usize = 256;
/// sled is not rebuilt for its size below this: a new database has some size of its own.
const REBUILD_BYTES_MIN: u64 = 256 << 20;
/// sled is rebuilt when it is this many times as large as its content.
const REBUILD_SIZE_FACTOR: u64 = 4;
/// Steps between two measurements of the size, which list files.
const SIZE_CHECK_STEPS: u32 = 512;
/// The load counts as over when nothing was applied for this long.
const REBUILD_IDLE_DELAY: Duration = Duration::from_secs(1);
/// Longest pause between two attempts after errors.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// More records than this are not written while the store is being closed: that would take longer than two seconds, and
/// a start that loads the snapshot takes less.
const CLOSING_RECORDS_MAX: u64 = 100_000;
/// While the store is closing, the state is rewritten for at most this long: fewer records may be large, or the disk
/// slow.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(3);
/// Databases that are left open after an error, each with its cache, before sled is left alone.
const LEFT_OPEN_MAX: u32 = 4;
/// How long it is left alone then: a start of the node needs the snapshot and the log meanwhile, which it has.
const LEFT_ALONE: Duration = Duration::from_secs(24 * 60 * 60);

/// When the trees are to be rebuilt.
#[derive(Debug, Clone, Copy)]
enum RebuildDue {
    Now,
    /// When nothing has been applied for a while.
    Idle,
    /// Not before this time.
    NotBefore(Instant),
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MirrorProgress {
    /// There may be more to do.
    Worked,
    /// There is nothing to do until something is enqueued or the log is flushed.
    Idle,
    /// There is nothing to do before this time has passed.
    Wait(Duration),
}

impl MirrorProgress {
    /// The same, where something else is to be done within this time.
    pub(crate) fn within(self, time: Duration) -> Self {
        match self {
            Self::Worked => Self::Worked,
            Self::Idle => Self::Wait(time),
            Self::Wait(other) => Self::Wait(other.min(time)),
        }
    }
}

/// What the thread knows when it makes a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepContext {
    /// The local log is durable up to this entry.
    pub(crate) log_durable: LogIndex,
    /// When something was applied last.
    pub(crate) applied_at: Instant,
    /// Since when the store is being closed: nothing is delayed then.
    pub(crate) closing: Option<Instant>,
}

/// What a mirror starts with.
#[derive(Debug)]
pub(crate) struct MirrorStart {
    pub(crate) databases: DatabaseDir,
    /// Trees that hold exactly `newest`, with their approximate bytes.
    pub(crate) trees: Option<(Trees, u64)>,
    /// Whether a database existed, usable or not.
    pub(crate) existed: bool,
    pub(crate) newest: (State, Position),
}

/// The owner of sled; lives on the store's thread.
#[derive(Debug)]
pub(crate) struct Mirror {
    databases: DatabaseDir,
    backlog_max: usize,
    /// [`CLOSING_RECORDS_MAX`], but in tests.
    closing_max: u64,
    trees: Current,
    newest: (State, Position),
    /// Updates that are not merged yet: the log does not hold them durably, or `next_merge` is closed.
    queue: VecDeque<PendingBatch>,
    queue_weight: usize,
    /// The merge that is written next, and when it was begun.
    next_merge: Option<(SledMerge, Instant)>,
    /// The merge that is being written.
    merge: Option<SledMerge>,
    /// The trees hold the target of a merge that is not complete.
    merge_begun: bool,
    rebuild: Option<(Trees, SledMerge)>,
    rebuild_due: Option<RebuildDue>,
    mirrored: Revision,
    /// Approximate bytes of the rows.
    logical_bytes: u64,
    disk_bytes: u64,
    /// Steps since the size was measured.
    steps: u32,
    rebuilds: u64,
    /// Errors since the trees were last rebuilt.
    errors: u32,
    /// Databases that were not closed because of an error.
    left_open: u32,
}

impl Mirror {
    pub(crate) fn new(start: MirrorStart, backlog_max: usize) -> Self {
        let MirrorStart { databases, trees, existed, newest } = start;
        let (trees, logical_bytes) = trees.map_or((None, 0), |(trees, bytes)| (Some(trees), bytes));
        Self {
            databases,
            backlog_max,
            closing_max: CLOSING_RECORDS_MAX,
            mirrored: trees.as_ref().map_or(0, |_| newest.0.revision()),
            rebuild_due: trees.is_none().then_some(RebuildDue::Now),
            rebuilds: u64::from(existed && trees.is_none()),
            trees: Current::of(trees),
            newest,
            queue: VecDeque::new(),
            queue_weight: 0,
            next_merge: None,
            merge: None,
            merge_begun: false,
            rebuild: None,
            logical_bytes,
            disk_bytes: 0,
            steps: 0,
            errors: 0,
            left_open: 0,
        }
    }

    /// The revision that the current trees are at; 0 when there are none.
    pub(crate) fn mirrored(&self) -> Revision {
        self.mirrored
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// How often the trees were rebuilt because they could not be used, were too far behind or too large.
    pub(crate) fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// Enqueues what was applied. `state` is the state at the checkpoint, if the changes need it.
    pub(crate) fn enqueue(
        &mut self,
        checkpoint: Checkpoint,
        changes: Vec<Arc<Change>>,
        state: Option<Box<State>>,
    ) {
        if self.rebuild_due.is_some() {
            return;
        }
        let pending = PendingBatch { checkpoint, changes, state };
        self.queue_weight += pending.weight();
        self.queue.push_back(pending);
        let merges = [self.merge.as_ref(), self.next_merge.as_ref().map(|(merge, _)| merge)];
        let merged: usize = merges.into_iter().flatten().map(SledMerge::records).sum();
        if self.queue_weight + merged > self.backlog_max {
            tracing::info!("sled is far behind and is rebuilt when the load is over");
            self.rebuilds += 1;
            self.rebuild_due = Some(RebuildDue::Idle);
            self.discard_pending();
        }
    }

    /// Sets the state that a rebuild starts from. It is at least as new as everything that was enqueued.
    pub(crate) fn set_newest(&mut self, state: State, position: Position) {
        self.newest = (state, position);
    }

    /// Replaces everything by an installed state.
    pub(crate) fn install(&mut self, state: State, position: Position) {
        self.newest = (state, position);
        self.rebuild_due = Some(RebuildDue::Now);
        self.discard_pending();
    }

    /// Does one bounded piece of work.
    pub(crate) fn step(&mut self, context: StepContext) -> MirrorProgress {
        match self.try_step(context) {
            Ok(progress) => progress,
            Err(error) => {
                self.discard_trees(&error);
                if context.closing.is_some() && self.errors > 1 {
                    MirrorProgress::Idle
                } else {
                    MirrorProgress::Worked
                }
            }
        }
    }

    /// Makes everything durable and closes sled.
    pub(crate) fn close(mut self) {
        let ended = self.trees.close_durably(&self.databases);
        let ended = ended.and_then(|()| self.rebuild.take().map_or(Ok(()), |(trees, _)| trees.close()));
        if let Err(error) = ended {
            tracing::warn!("sled is rebuilt at the next start: {error}");
            if let Err(error) = self.databases.remove_all() {
                tracing::warn!("can't remove the unusable sled directory: {error}");
            }
        }
    }

    /// Closes sled as it is.
    pub(crate) fn abandon(self) {
        let Self { mut trees, rebuild, .. } = self;
        for trees in [trees.take(), rebuild.map(|(trees, _)| trees)].into_iter().flatten() {
            if let Err(error) = trees.close() {
                tracing::warn!("sled did not close: {error}");
            }
        }
    }

    /// Closes sled if it was not used for long, seen at `now`; returns how long that will take otherwise.
    pub(crate) fn close_unused(&mut self, now: Instant) -> Option<Duration> {
        if self.merge.is_some() {
            return None;
        }
        self.trees.close_unused(now).unwrap_or_else(|error| {
            self.discard_trees(&error);
            Some(Duration::ZERO)
        })
    }

    fn try_step(&mut self, context: StepContext) -> Result<MirrorProgress, TreeError> {
        if context.closing.is_some_and(|since| self.takes_long(since)) {
            tracing::info!(
                "sled is not complete, and is left as it is: the next start loads a snapshot and the log"
            );
            return Ok(MirrorProgress::Idle);
        }
        if let Some(due) = self.rebuild_due {
            return match due.delay(context) {
                Duration::ZERO => self.begin_rebuild().map(|()| MirrorProgress::Worked),
                delay => Ok(MirrorProgress::Wait(delay)),
            };
        }
        self.merge_durable(context.log_durable);
        if self.rebuild.is_some() {
            return self.rebuild_step(context.log_durable);
        }
        if self.merge.is_none() {
            match self.merge_delay(context) {
                None => return Ok(MirrorProgress::Idle),
                Some(Duration::ZERO) => self.merge = self.next_merge.take().map(|(merge, _)| merge),
                Some(delay) => return Ok(MirrorProgress::Wait(delay)),
            }
        }
        self.merge_step(context.closing.is_some()).map(|()| MirrorProgress::Worked)
    }

    /// Whether more is to be written than in a store that is being closed since then.
    fn takes_long(&self, since: Instant) -> bool {
        let writes_anew = self.rebuild.is_some() || self.rebuild_due.is_some();
        if writes_anew && since.elapsed() > CLOSING_TIME_MAX {
            return true;
        }
        let next = self.next_merge.as_ref().map(|(merge, _)| merge);
        let rebuild = self.rebuild.as_ref().map(|(_, merge)| merge);
        let begun =
            [self.merge.as_ref(), next, rebuild].into_iter().flatten().map(SledMerge::left).sum::<u64>();
        let due =
            self.rebuild_due.map_or(0, |_| self.newest.0.stored_definitions().map(|c| c.by_key.len()).sum());
        begun + due > self.closing_max
    }

    /// Begins to write fresh trees from the newest state.
    fn begin_rebuild(&mut self) -> Result<(), TreeError> {
        self.discard_pending();
        if let Some((trees, _)) = self.rebuild.take() {
            trees.close()?;
        }
        // Trees at a checkpoint stay the current ones until the fresh ones are complete.
        if let Some(trees) = self.trees.take() {
            trees.close()?;
        }
        if std::mem::take(&mut self.merge_begun) {
            self.databases.remove_all()?;
        }
        let (state, position) = &self.newest;
        let merge = SledMerge::from_state(state, Checkpoint::of(state, position));
        self.rebuild = Some((self.databases.create()?, merge));
        self.logical_bytes = 0;
        self.rebuild_due = None;
        Ok(())
    }

    fn rebuild_step(&mut self, log_durable: LogIndex) -> Result<MirrorProgress, TreeError> {
        let Some((trees, merge)) = &mut self.rebuild else { return Ok(MirrorProgress::Idle) };
        match merge.step(STEP_RECORDS) {
            MergeStep::Put(rows) => {
                self.logical_bytes += rows.added;
                trees.write(rows)?;
            }
            MergeStep::DeleteDefinition(_) => merge.definition_deleted(),
            // The trees become current only now, so only now must the log hold durably what they hold.
            MergeStep::Done if merge.checkpoint.position.index > log_durable => {
                return Ok(MirrorProgress::Idle);
            }
            MergeStep::Done => {
                trees.commit(&merge.checkpoint)?;
                self.databases.make_current(trees)?;
                self.mirrored = merge.checkpoint.revision;
                self.trees = Current::of(self.rebuild.take().map(|(trees, _)| trees));
                self.errors = 0;
                self.steps = SIZE_CHECK_STEPS;
                self.check_size(true)?;
            }
        }
        Ok(MirrorProgress::Worked)
    }

    fn merge_step(&mut self, closing: bool) -> Result<(), TreeError> {
        let Some(merge) = &mut self.merge else { return Ok(()) };
        let Some(trees) = self.trees.writable(&self.databases)? else { return Ok(()) };
        if !self.merge_begun {
            trees.begin_merge(merge.checkpoint.position.index)?;
            self.merge_begun = true;
        }
        match merge.step(STEP_RECORDS) {
            MergeStep::DeleteDefinition(id) => {
                let (done, bytes) = trees.delete_definition(id, STEP_DELETED_ROWS)?;
                self.logical_bytes = self.logical_bytes.saturating_sub(bytes);
                if done {
                    merge.definition_deleted();
                }
            }
            MergeStep::Put(rows) => {
                self.logical_bytes = (self.logical_bytes + rows.added).saturating_sub(rows.removed);
                trees.write(rows)?;
            }
            MergeStep::Done => {
                trees.commit(&merge.checkpoint)?;
                self.mirrored = merge.checkpoint.revision;
                self.merge_begun = false;
                self.merge = None;
            }
        }
        self.check_size(closing)
    }

    /// Merges the pending updates that the log holds durably by now.
    fn merge_durable(&mut self, log_durable: LogIndex) {
        while self.next_merge.as_ref().is_none_or(|(merge, _)| merge.accepts_more()) {
            let next = self.queue.pop_front_if(|next| next.checkpoint.position.index <= log_durable);
            let Some(pending) = next else { return };
            self.queue_weight -= pending.weight();
            let begin = || (SledMerge::new(pending.checkpoint.clone()), Instant::now());
            self.next_merge.get_or_insert_with(begin).0.add(pending);
        }
    }

    /// How long until the next merge is to be written; `None` when there is none.
    fn merge_delay(&self, context: StepContext) -> Option<Duration> {
        let (merge, since) = self.next_merge.as_ref().filter(|_| self.trees.exists())?;
        // Half of the backlog: while one half is written, the other half arrives.
        let is_large = merge.records() >= MERGE_RECORDS_MAX.min(self.backlog_max / 2)
            || merge.text_bytes() >= MERGE_TEXT_BYTES_MAX
            || merge.changes() >= MERGE_CHANGES_MAX;
        if context.closing.is_some() || is_large || !merge.accepts_more() {
            return Some(Duration::ZERO);
        }
        let due = (context.applied_at + MERGE_IDLE_DELAY).min(*since + MERGE_DELAY_MAX);
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Discards what is not written. A part of `merge` may be in the trees: `merge_begun` is true then.
    fn discard_pending(&mut self) {
        self.queue.clear();
        self.queue_weight = 0;
        self.next_merge = None;
        self.merge = None;
    }

    /// Measures sled from time to time and schedules a rebuild when it is far larger than its content, unless
    /// only the size is wanted.
    fn check_size(&mut self, only_measure: bool) -> Result<(), TreeError> {
        self.steps += 1;
        let trees = self.trees.open().filter(|_| self.steps > SIZE_CHECK_STEPS);
        let Some(trees) = trees else { return Ok(()) };
        self.steps = 0;
        self.disk_bytes = trees.size()?;
        let is_large = self.disk_bytes > REBUILD_BYTES_MIN.max(REBUILD_SIZE_FACTOR * self.logical_bytes);
        if is_large && !only_measure {
            tracing::info!(
                disk_bytes = self.disk_bytes,
                logical_bytes = self.logical_bytes,
                "sled is rebuilt to free space on the disk"
            );
            self.rebuilds += 1;
            self.rebuild_due = Some(RebuildDue::Now);
        }
        Ok(())
    }

    fn discard_trees(&mut self, error: &TreeError) {
        tracing::warn!("sled can't be used and is rebuilt: {error}");
        for trees in [self.trees.take(), self.rebuild.take().map(|(trees, _)| trees)].into_iter().flatten() {
            // Closing it writes what it holds. After an error sled may wait for that for ever, with a lock that all
            // databases of the process share; a thread that panicked may still have one.
            std::mem::forget(trees);
            self.left_open += 1;
        }
        self.discard_pending();
        self.merge_begun = false;
        if let Err(error) = self.databases.remove_all() {
            tracing::warn!("can't remove the unusable sled directory: {error}");
        }
        self.rebuilds += 1;
        self.errors += 1;
        self.mirrored = 0;
        let pause = Duration::from_secs(1 << (self.errors - 1).min(6)).min(RETRY_PAUSE_MAX);
        let pause = if self.left_open > LEFT_OPEN_MAX { LEFT_ALONE } else { pause };
        let retry = RebuildDue::NotBefore(Instant::now() + pause);
        let is_first = self.errors == 1 && self.left_open <= LEFT_OPEN_MAX;
        self.rebuild_due = Some(if is_first { RebuildDue::Now } else { retry });
    }
}

impl RebuildDue {
    fn delay(self, context: StepContext) -> Duration {
        let now = Instant::now();
        match self {
            Self::Idle | Self::NotBefore(_) if context.closing.is_some() => Duration::ZERO,
            Self::Now => Duration::ZERO,
            Self::Idle => (context.applied_at + REBUILD_IDLE_DELAY).saturating_duration_since(now),
            Self::NotBefore(time) => time.saturating_duration_since(now),
        }
    }
}

#[cfg(test)]
mod tests;
