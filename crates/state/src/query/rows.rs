//! Collects the rows of a page from records in any order, and ends work whose result is no longer needed.
//!
//! **Invariant:** collecting holds at most twice as many rows as there are up to the end of the page, plus
//! [`SURPLUS_ROWS`], however many records match.

use std::{cmp::Ordering, sync::Arc};

use super::{QueryResult, matching::entries_of};
use concord_model::{query::ConfigSort, record::Config};

/// Steps of work between two checks whether its result is still needed: some hundred microseconds.
const STEPS_BETWEEN_QUESTIONS: usize = 1024;
/// Rows beyond the end of the page after which the surplus is dropped.
const SURPLUS_ROWS: usize = 1024;

/// Checks periodically whether the result of long work is still needed.
pub(super) struct CancelCheck<'a> {
    is_over: &'a dyn Fn() -> bool,
    left: usize,
}

impl<'a> CancelCheck<'a> {
    pub(super) fn new(is_over: &'a dyn Fn() -> bool) -> Self {
        Self { is_over, left: STEPS_BETWEEN_QUESTIONS }
    }

    /// Counts steps; `None` when the result is no longer needed.
    pub(super) fn take(&mut self, steps: usize) -> Option<()> {
        if let Some(left) = self.left.checked_sub(steps) {
            self.left = left;
            return Some(());
        }
        self.left = STEPS_BETWEEN_QUESTIONS;
        (!(self.is_over)()).then_some(())
    }
}

/// The first rows in the order of a sort, among all that are added.
pub(super) struct FirstRows<'a> {
    rows: Vec<&'a Arc<Config>>,
    /// How many of them are needed; at least 1.
    needed: usize,
    sort: ConfigSort,
    descending: bool,
    /// Whether `rows[needed - 1]` is the last of the first rows, and all after it were added later.
    is_cut: bool,
    total: u64,
}

impl<'a> FirstRows<'a> {
    pub(super) fn new(needed: usize, sort: ConfigSort, descending: bool) -> Self {
        Self { rows: Vec::new(), needed: needed.max(1), sort, descending, is_cut: false, total: 0 }
    }

    /// Adds a row that was not added before.
    pub(super) fn add(&mut self, row: &'a Arc<Config>) {
        self.total += 1;
        if self.is_cut
            && compare(row, self.rows[self.needed - 1], self.sort, self.descending) == Ordering::Greater
        {
            return;
        }
        self.rows.push(row);
        if self.rows.len() >= self.needed.saturating_mul(2).saturating_add(SURPLUS_ROWS) {
            self.cut();
        }
    }

    /// Drops all but the first rows.
    fn cut(&mut self) {
        if self.rows.len() > self.needed {
            let (sort, descending) = (self.sort, self.descending);
            self.rows.select_nth_unstable_by(self.needed - 1, |a, b| compare(a, b, sort, descending));
            self.rows.truncate(self.needed);
            self.is_cut = true;
        }
    }

    /// The rows from a place on, and the number of all.
    pub(super) fn finish(mut self, from: usize) -> QueryResult<Arc<Config>> {
        self.cut();
        let (sort, descending) = (self.sort, self.descending);
        if from < self.rows.len() {
            self.rows.sort_unstable_by(|a, b| compare(a, b, sort, descending));
        }
        let results = self.rows.iter().skip(from).map(|row| Arc::clone(row)).collect();
        QueryResult { results, total: self.total }
    }
}

/// The least value of a config in a slot: its sort value.
pub(super) fn sort_value(config: &Config, slot: u16) -> Option<&[u8]> {
    entries_of(config, slot).first().map(|entry| &*entry.value)
}

pub(super) fn compare(a: &Config, b: &Config, sort: ConfigSort, descending: bool) -> Ordering {
    let directed = |order: Ordering| if descending { order.reverse() } else { order };
    let by_key = a.key.cmp(&b.key);
    match sort {
        ConfigSort::Key => directed(by_key),
        ConfigSort::Created => directed(a.created_at.cmp(&b.created_at)).then(by_key),
        ConfigSort::Modified => directed(a.modified_at.cmp(&b.modified_at)).then(by_key),
        ConfigSort::Slot(slot) => match (sort_value(a, slot), sort_value(b, slot)) {
            (Some(a), Some(b)) => directed(a.cmp(b)).then(by_key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => by_key,
        },
    }
}
