//! The use of a key's quota on this node.
//!
//! A cursor is not a connection: the client may never request the next page. So a cursor counts from the first page of its
//! list until its last page was read, or for as long as an unused state is retained.
//!
//! **Invariant:** dropping a [`GaugeGuard`] gives its place back.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Exceeded, QuotaLeft, RateLeft,
    bucket::{Bucket, Rate, seconds},
};
use concord_model::{access_key::Quota, limits::CURSOR_IDLE_MAX};

/// A resource that stays open for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Watches.
    Watches,
    /// Lists in progress.
    Lists,
}

/// What a key has in use.
#[derive(Debug, Default)]
pub(super) struct KeyAccount {
    requests: Bucket,
    writes: Bucket,
    watches: AtomicU64,
    lists: AtomicU64,
    /// When each cursor was begun, in nanoseconds.
    cursors: Mutex<VecDeque<u64>>,
}

/// An open watch or list of a key. Dropping it ends it.
#[derive(Debug)]
pub struct GaugeGuard {
    account: Arc<KeyAccount>,
    gauge: Gauge,
}

impl KeyAccount {
    fn gauge(&self, gauge: Gauge) -> &AtomicU64 {
        match gauge {
            Gauge::Watches => &self.watches,
            Gauge::Lists => &self.lists,
        }
    }

    /// Takes a request from its rates. A write also counts as a request.
    pub(super) fn take(
        &self,
        requests: Option<u64>,
        writes: Option<u64>,
        now: u64,
    ) -> Result<Option<RateLeft>, Exceeded> {
        let limited = |name, per_second: Option<u64>, bucket| {
            per_second.map(|per_second| LimitedRate { name, per_second, bucket })
        };
        let requests = limited("requests", requests, &self.requests);
        let writes = limited("writes", writes, &self.writes);
        if let Some(requests) = requests {
            requests.take(now)?;
        }
        if let Some(Err(exceeded)) = writes.map(|writes| writes.take(now)) {
            if let Some(requests) = requests {
                requests.bucket.give_back(requests.rate());
            }
            return Err(exceeded);
        }
        Ok(requests.into_iter().chain(writes).map(|one| one.left(now)).min_by_key(|one| one.left))
    }

    pub(super) fn open(self: Arc<Self>, gauge: Gauge, max: u64) -> Result<GaugeGuard, Exceeded> {
        let add = |open: u64| (open < max).then_some(open + 1);
        if self.gauge(gauge).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok() {
            return Ok(GaugeGuard { account: self, gauge });
        }
        let text = match gauge {
            Gauge::Watches => format!("this access key may have {max} watches open on a node"),
            Gauge::Lists => format!("this access key may have {max} lists computed at once on a node"),
        };
        Err(Exceeded { text, retry_after_s: 1, rate: None })
    }

    /// Removes the cursors that no longer count, and passes on the others, the oldest first.
    fn cursors<T>(&self, now: u64, see: impl FnOnce(&mut VecDeque<u64>) -> T) -> T {
        let idle = u64::try_from(CURSOR_IDLE_MAX.as_nanos()).unwrap_or(u64::MAX);
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        while cursors.front().is_some_and(|begun| now.saturating_sub(*begun) > idle) {
            cursors.pop_front();
        }
        see(&mut cursors)
    }

    pub(super) fn admit_cursor(&self, max: u64, now: u64) -> Result<(), Exceeded> {
        let idle = u64::try_from(CURSOR_IDLE_MAX.as_nanos()).unwrap_or(u64::MAX);
        let (count, oldest) = self.cursors(now, |cursors| (cursors.len() as u64, cursors.front().copied()));
        if count < max {
            return Ok(());
        }
        let end = oldest.map_or(now, |begun| begun.saturating_add(idle));
        Err(Exceeded {
            text: format!(
                "this access key may have {max} cursors on a node: read a list to its end, or wait"
            ),
            retry_after_s: seconds(end.saturating_sub(now)),
            rate: None,
        })
    }

    pub(super) fn note_cursor(&self, has_begun: bool, now: u64) {
        self.cursors(now, |cursors| {
            if has_begun {
                cursors.push_back(now);
            } else {
                cursors.pop_front();
            }
        });
    }

    pub(super) fn left(&self, quota: &Quota, now: u64) -> QuotaLeft {
        let rate = |count: Option<u64>, bucket: &Bucket| {
            count.map(|count| Rate::per_second(count).left(bucket.full_at(), now))
        };
        let open = |max: Option<u64>, open: u64| max.map(|max| max.saturating_sub(open));
        QuotaLeft {
            requests: rate(quota.requests_per_second, &self.requests),
            writes: rate(quota.writes_per_second, &self.writes),
            watches: open(quota.watches, self.watches.load(Ordering::Relaxed)),
            cursors: open(quota.cursors, self.cursors(now, |cursors| cursors.len() as u64)),
            lists: open(quota.lists, self.lists.load(Ordering::Relaxed)),
            ..QuotaLeft::default()
        }
    }

    /// Whether removing the account would change what its key may do.
    pub(super) fn is_in_use(&self, now: u64) -> bool {
        self.requests.full_at() > now
            || self.writes.full_at() > now
            || self.watches.load(Ordering::Relaxed) > 0
            || self.lists.load(Ordering::Relaxed) > 0
            || self.cursors(now, |cursors| !cursors.is_empty())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.account.gauge(self.gauge).fetch_sub(1, Ordering::Relaxed);
    }
}

/// A rate that a quota limits, with its bucket.
#[derive(Debug, Clone, Copy)]
struct LimitedRate<'a> {
    name: &'static str,
    per_second: u64,
    bucket: &'a Bucket,
}

impl LimitedRate<'_> {
    fn rate(self) -> Rate {
        Rate::per_second(self.per_second)
    }

    fn take(self, now: u64) -> Result<(), Exceeded> {
        self.bucket.take(self.rate(), now).map_err(|wait| Exceeded {
            text: format!("this access key may make {} {} a second on a node", self.per_second, self.name),
            retry_after_s: seconds(wait),
            rate: Some(RateLeft { left: 0, ..self.left(now) }),
        })
    }

    fn left(self, now: u64) -> RateLeft {
        let Self { name, per_second, bucket } = self;
        let full_at = bucket.full_at();
        let left = self.rate().left(full_at, now);
        RateLeft { name, per_second, left, reset_s: seconds(full_at.saturating_sub(now)) }
    }
}
