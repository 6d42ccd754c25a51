//! Who uses this node, and for what: requests, bytes, busy time and records, by access key and by definition.
//!
//! Each thread has tables of its own, so requests do not wait for each other, and a reader keeps none waiting: while it
//! copies a table, the table's thread counts in another one.
//!
//! A table holds the heavy hitters of what it was given: Misra and Gries, "Finding repeated elements" (1982), with the
//! median as decrement, as in Anderson et al., "A high-performance algorithm for identifying frequent items in data
//! streams" (2017). Each row has a weight, about the nanoseconds that it has cost. When a table is full, each weight is
//! reduced by the median of all, and the rows without any weight left are added to one row for all others. At least half
//! of the rows lose the median each time, so no row loses more than the weight of all divided by half the rows: a key that
//! has cost more than one part in 500 has its row, and the sums stay exact.
//!
//! The busy time of a request is the time in which this node worked for it: on a request thread, and on a thread of the
//! CPU pool. It is not the time of applying its writes, which is the log's.
//!
//! **Invariants:** a request is counted once, also when its client disconnects. The memory does not grow with the names
//! that clients use. A definition that never existed has no row. A reader sees the names that it may know, and the sum of
//! all others.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use smol_str::SmolStr;

use super::request::{Effect, Principal, Write};
use concord_consensus::histogram::thread_number;
use concord_model::access_key::KeyId;
use concord_net::NodeId;
use concord_state::{Collection, State};

/// Rows of a table of one thread: some 150 KB, and 400 KB if all names are as long as they may be.
const ROWS_MAX: usize = 1000;
/// Most threads with tables of their own; more threads share them.
const THREADS_MAX: usize = 16;
/// What a request or a record weighs, in nanoseconds: a row of a write has no busy time.
const UNIT_WEIGHT: u64 = 1000;

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies, as they were received.
    pub bytes_in: u64,
    /// Bytes of the bodies of their responses.
    pub bytes_out: u64,
    /// Nanoseconds in which this node worked for them.
    pub busy_ns: u64,
    /// Configs and definitions that the responses had.
    pub records_read: u64,
    /// Configs and definitions that were written; for a batch, its operations.
    pub records_written: u64,
}

/// A figure by which rows are ordered.
pub(super) type Figure<T> = fn(&T) -> u64;

const FIGURES: [Figure<UsageCounts>; 6] = [
    |counts| counts.busy_ns,
    |counts| counts.requests,
    |counts| counts.bytes_in,
    |counts| counts.bytes_out,
    |counts| counts.records_read,
    |counts| counts.records_written,
];

impl UsageCounts {
    /// About what it has cost, in nanoseconds: a byte takes about one.
    fn weight(&self) -> u64 {
        let units = self.requests.saturating_add(self.records_read).saturating_add(self.records_written);
        let bytes = self.bytes_in.saturating_add(self.bytes_out);
        self.busy_ns.saturating_add(bytes).saturating_add(units.saturating_mul(UNIT_WEIGHT))
    }
}

impl AddAssign for UsageCounts {
    fn add_assign(&mut self, more: Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.bytes_in = self.bytes_in.saturating_add(more.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(more.bytes_out);
        self.busy_ns = self.busy_ns.saturating_add(more.busy_ns);
        self.records_read = self.records_read.saturating_add(more.records_read);
        self.records_written = self.records_written.saturating_add(more.records_written);
    }
}

/// The counts of a name since it has a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UsageRow {
    counts: UsageCounts,
    weight: u64,
}

/// Counts by name, and the sum of those that had no room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rows {
    of_names: BTreeMap<Box<str>, UsageRow>,
    others: UsageCounts,
}

impl Rows {
    fn add(&mut self, name: &str, counts: UsageCounts) {
        let weight = counts.weight();
        if let Some(row) = self.of_names.get_mut(name) {
            row.counts += counts;
            row.weight = row.weight.saturating_add(weight);
            return;
        }
        if self.of_names.len() >= ROWS_MAX {
            self.make_room();
        }
        self.of_names.insert(name.into(), UsageRow { counts, weight });
    }

    /// Takes the median from each weight, and removes the rows that then have none.
    fn make_room(&mut self) {
        let mut weights: Vec<u64> = self.of_names.values().map(|row| row.weight).collect();
        let middle = weights.len() / 2;
        let (_, median, _) = weights.select_nth_unstable(middle);
        let median = *median;
        self.retain(|_, row| {
            row.weight = row.weight.saturating_sub(median);
            row.weight > 0
        });
    }

    /// Adds the rows that do not stay to the sum of all others.
    fn retain(&mut self, mut stays: impl FnMut(&str, &mut UsageRow) -> bool) {
        let Self { of_names, others } = self;
        of_names.retain(|name, row| {
            let stays = stays(name, row);
            if !stays {
                *others += row.counts;
            }
            stays
        });
    }

    /// Keeps the rows that are among the first `count` by one figure at least.
    fn retain_top(&mut self, count: usize) {
        let least: Vec<u64> = FIGURES
            .iter()
            .map(|figure| {
                let mut all: Vec<u64> = self.of_names.values().map(|row| figure(&row.counts)).collect();
                if all.len() <= count {
                    return 1;
                }
                let (_, last, _) = all.select_nth_unstable_by(count - 1, |one, two| two.cmp(one));
                (*last).max(1)
            })
            .collect();
        // Of several with the same figure, as many stay as there is room for.
        let mut left = [count; FIGURES.len()];
        let above = |figure: &Figure<UsageCounts>, least: u64| {
            self.of_names.values().filter(|row| figure(&row.counts) > least).count()
        };
        for (left, (figure, least)) in left.iter_mut().zip(FIGURES.iter().zip(&least)) {
            *left = left.saturating_sub(above(figure, *least));
        }
        self.retain(|_, row| {
            let mut stays = false;
            for ((figure, least), left) in FIGURES.iter().zip(&least).zip(&mut left) {
                let value = figure(&row.counts);
                if value == *least && *left > 0 {
                    *left -= 1;
                    stays = true;
                }
                stays |= value > *least;
            }
            stays
        });
    }

    /// Adds the rows of another table. There may then be more than one table holds.
    fn merge(&mut self, other: Self) {
        self.others += other.others;
        for (name, row) in other.of_names {
            let sum = self.of_names.entry(name).or_default();
            sum.counts += row.counts;
            sum.weight = sum.weight.saturating_add(row.weight);
        }
    }
}

/// What one thread has counted.
#[derive(Debug, Clone, Default)]
struct Tables {
    keys: Rows,
    definitions: Rows,
}

/// The tables of one thread, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ThreadTables(Mutex<Tables>);

impl ThreadTables {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Tables>> {
        match self.0.try_lock() {
            Ok(tables) => Some(tables),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The use of this node since it started.
#[derive(Debug)]
pub struct Usage {
    since: Instant,
    threads: Box<[ThreadTables]>,
}

impl Default for Usage {
    fn default() -> Self {
        // Two at least: a reader has one of them.
        let threads = available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
        Self { since: Instant::now(), threads: (0..threads).map(|_| ThreadTables::default()).collect() }
    }
}

/// The owner of a credential, as the counts name it.
#[derive(Debug, Clone)]
pub struct UsageKey(SmolStr);

impl UsageKey {
    /// The id of a principal. A copy of it costs nothing.
    #[must_use]
    pub fn of(principal: &Principal) -> Self {
        Self(principal.id.clone())
    }
}

impl Usage {
    fn with_tables(&self, change: impl FnOnce(&mut Tables)) {
        let (own, all) = (thread_number(), self.threads.len());
        let mut free = (0..all).filter_map(|step| self.threads[own.wrapping_add(step) % all].try_lock());
        match free.next() {
            Some(mut tables) => change(&mut tables),
            None => change(&mut self.threads[own % all].lock()),
        }
    }

    /// Counts what a request with this credential has used; for the definition, if it names one that exists.
    pub fn add(&self, key: &UsageKey, definition: Option<&str>, counts: UsageCounts) {
        self.with_tables(|tables| {
            tables.keys.add(&key.0, counts);
            if let Some(definition) = definition {
                tables.definitions.add(definition, counts);
            }
        });
    }

    /// Counts the records of a write that was decided; of a batch, for each of their definitions.
    pub(crate) fn written(&self, key: &str, write: &Write) {
        let written = |operations: &[Write]| {
            let writes = operations.iter().filter(|operation| operation.effect() != Effect::Read);
            UsageCounts { records_written: writes.count() as u64, ..UsageCounts::default() }
        };
        let operations = write.operations();
        self.with_tables(|tables| {
            tables.keys.add(key, written(operations));
            for of_one in operations.chunk_by(|one, two| one.definition() == two.definition()) {
                let definition = of_one[0].definition();
                // A write of access keys is about none.
                if !definition.is_empty() {
                    tables.definitions.add(definition, written(of_one));
                }
            }
        });
    }

    /// The sum of all threads.
    fn read(&self) -> Tables {
        let mut sum = Tables::default();
        for thread in &self.threads {
            let Tables { keys, definitions } = thread.lock().clone();
            sum.keys.merge(keys);
            sum.definitions.merge(definitions);
        }
        sum
    }
}

/// The use by an access key.
#[derive(Debug, Clone)]
pub struct KeyUsage {
    /// The id of the key: `root` for the root key.
    pub id: String,
    /// What its owner calls it; `None` for the root key, and for one that is revoked.
    pub name: Option<String>,
    /// What it used.
    pub counts: UsageCounts,
}

/// The use of a definition.
#[derive(Debug, Clone)]
pub struct DefinitionUsage {
    /// Its key.
    pub key: String,
    /// What requests for it used.
    pub counts: UsageCounts,
    /// Its configs; `None` if it is deleted.
    pub configs: Option<u64>,
    /// The bytes of their keys and data.
    pub stored_bytes: Option<u64>,
}

/// What this node knows of its use.
#[derive(Debug, Clone, Default)]
pub struct UsageView {
    /// This node.
    pub node_id: NodeId,
    /// For how long it has counted.
    pub counted_for: Duration,
    /// The keys that used most, by each figure.
    pub keys: Vec<KeyUsage>,
    /// The sum of all others.
    pub other_keys: UsageCounts,
    /// The definitions that were used most, by each figure, and those that store most.
    pub definitions: Vec<DefinitionUsage>,
    /// The sum of all others.
    pub other_definitions: UsageCounts,
}

/// Of the definitions that the reader may know of, those that store most, in bytes or in configs.
fn largest(state: &State, reader: &Principal, count: usize) -> Vec<String> {
    let mut all: Vec<_> =
        state.definitions().filter(|one| reader.may_name(one.definition.key.as_str())).collect();
    let figures: [Figure<Collection>; 2] = [Collection::content_bytes, |one| one.by_key.len()];
    let mut found = Vec::new();
    for figure in figures {
        if all.len() > count {
            all.select_nth_unstable_by_key(count, |one| std::cmp::Reverse(figure(one)));
        }
        found.extend(all.iter().take(count).map(|one| one.definition.key.as_str().to_owned()));
    }
    found
}

impl Usage {
    /// The `top` rows by each figure that the reader may know of, with what the definitions of a state store.
    pub(super) fn view(&self, node_id: NodeId, state: &State, reader: &Principal, top: usize) -> UsageView {
        let Tables { mut keys, mut definitions } = self.read();
        let key_of = |id: &str| state.access_key(&KeyId::parse(id)?);
        keys.retain(|id, _| reader.may_name_key(id, key_of(id).map(AsRef::as_ref)));
        keys.retain_top(top);
        definitions.retain(|key, _| reader.may_name(key));
        definitions.retain_top(top);
        for key in largest(state, reader, top) {
            definitions.of_names.entry(key.into()).or_default();
        }
        let key = |(id, row): (Box<str>, UsageRow)| {
            let name = key_of(&id).map(|key| key.name.clone());
            KeyUsage { name, id: id.into(), counts: row.counts }
        };
        let definition = |(key, row): (Box<str>, UsageRow)| {
            let stored = state.definition(&key);
            let configs = stored.map(|one| one.by_key.len());
            let stored_bytes = stored.map(|one| one.content_bytes());
            DefinitionUsage { key: key.into(), counts: row.counts, configs, stored_bytes }
        };
        UsageView {
            node_id,
            counted_for: self.since.elapsed(),
            keys: keys.of_names.into_iter().map(key).collect(),
            other_keys: keys.others,
            definitions: definitions.of_names.into_iter().map(definition).collect(),
            other_definitions: definitions.others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(busy_ns: u64) -> UsageCounts {
        UsageCounts { requests: 1, busy_ns, ..UsageCounts::default() }
    }

    fn sum_of(rows: &Rows) -> UsageCounts {
        let mut sum = rows.others;
        rows.of_names.values().for_each(|row| sum += row.counts);
        sum
    }

    #[test]
    fn a_full_table_keeps_what_uses_much_and_loses_nothing() {
        let (mut rows, mut all) = (Rows::default(), UsageCounts::default());
        let mut add = |rows: &mut Rows, name: &str, counts: UsageCounts| {
            rows.add(name, counts);
            all += counts;
        };
        // A thousand that were busy once do not keep out one that is busy now.
        for n in 0..ROWS_MAX {
            add(&mut rows, &format!("old{n}"), busy(1_000_000));
        }
        for n in 0..20 * ROWS_MAX {
            add(&mut rows, &format!("k{n}"), busy(20_000));
            if n % 100 == 0 {
                add(&mut rows, "noisy", busy(500_000));
            }
            assert!(rows.of_names.len() <= ROWS_MAX, "{}", rows.of_names.len());
        }
        assert_eq!(sum_of(&rows), all);
        // It has used 100 ms of 1.5 s: more than one part in 500, so it has lost at most that part.
        let noisy = rows.of_names["noisy"].counts;
        let lost = all.weight() / (ROWS_MAX as u64 / 2);
        assert!(noisy.weight() >= 200 * busy(500_000).weight() - lost, "{noisy:?} {lost}");
    }

    #[test]
    fn names_of_any_number_and_length_take_bounded_memory() {
        let mut rows = Rows::default();
        for n in 0..10 * ROWS_MAX {
            rows.add(&format!("{n:0>255}"), busy(7));
        }
        let bytes: usize =
            rows.of_names.keys().map(|name| name.len() + size_of::<(Box<str>, UsageRow)>()).sum();
        assert!(bytes <= 400_000, "{bytes}");
        assert_eq!(sum_of(&rows).requests, 10 * ROWS_MAX as u64);
    }

    #[test]
    fn all_threads_are_added_up_also_while_somebody_reads() {
        let usage = Usage::default();
        let key = UsageKey::of(&Principal::root());
        std::thread::scope(|scope| {
            let held = usage.threads[0].lock();
            for _ in 0..5 {
                scope.spawn(|| (0..1000).for_each(|_| usage.add(&key, Some("d"), busy(2))));
            }
            // A thread that counts holds no table: it could wait for itself.
            drop(held);
            usage.add(&key, None, busy(1));
        });
        let Tables { keys, definitions } = usage.read();
        let (key, definition) = (keys.of_names["root"].counts, definitions.of_names["d"].counts);
        assert_eq!((key.requests, key.busy_ns), (5001, 10_001));
        assert_eq!((definition.requests, definition.busy_ns), (5000, 10_000));
    }

    #[test]
    fn a_row_stays_that_is_among_the_first_by_one_figure() {
        let mut rows = Rows::default();
        for n in 0..10 {
            rows.add(&format!("busy{n}"), busy(100 + n));
        }
        rows.add("large", UsageCounts { bytes_out: 7, ..UsageCounts::default() });
        rows.retain_top(2);
        let names: Vec<&str> = rows.of_names.keys().map(AsRef::as_ref).collect();
        assert!(
            names.contains(&"busy9") && names.contains(&"busy8") && names.contains(&"large"),
            "{names:?}"
        );
        assert!(names.len() <= 5, "{names:?}");
        assert_eq!(sum_of(&rows).requests, 10);
    }
}
