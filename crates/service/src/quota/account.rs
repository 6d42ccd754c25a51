//! What a key has in use on this node.
//!
//! A cursor is no connection: a caller may never come back for the next page. So a cursor counts from its list's first
//! page until its last page was read, or for as long as an unused state is retained.
//!
//! **Invariant:** what is taken is given back when its holder is dropped.

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

/// Something that stays open for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Watches.
    Watches,
    /// Lists that are being computed.
    Lists,
}

/// The account of a key.
#[derive(Debug, Default)]
pub(super) struct KeyAccount {
    requests: Bucket,
    writes: Bucket,
    watches: AtomicU64,
    lists: AtomicU64,
    /// When each cursor was begun, in nanoseconds.
    cursors: Mutex<VecDeque<u64>>,
}

/// A place of a key that is taken. Dropping it frees it.
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

    /// Takes a request from its rates; a write counts as a request too.
    pub(super) fn take(
        &self,
        requests: Option<u64>,
        writes: Option<u64>,
        now: u64,
    ) -> Result<Option<RateLeft>, Exceeded> {
        if let Some(count) = requests {
            let rate = Rate::per_second(count);
            self.requests
                .take(rate, now)
                .map_err(|wait| exceeded(("requests", count), (&self.requests, now), wait))?;
        }
        if let Some(count) = writes
            && let Err(wait) = self.writes.take(Rate::per_second(count), now)
        {
            if let Some(count) = requests {
                self.requests.give_back(Rate::per_second(count));
            }
            return Err(exceeded(("writes", count), (&self.writes, now), wait));
        }
        let requests = requests.map(|count| left(("requests", count), (&self.requests, now)));
        let writes = writes.map(|count| left(("writes", count), (&self.writes, now)));
        Ok(requests.into_iter().chain(writes).min_by_key(|one| one.left))
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

    /// The cursors that count at this time, the oldest first.
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

    /// Whether forgetting it would change what its key may do.
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

fn left((name, per_second): (&'static str, u64), (bucket, now): (&Bucket, u64)) -> RateLeft {
    let full_at = bucket.full_at();
    let left = Rate::per_second(per_second).left(full_at, now);
    RateLeft { name, per_second, left, reset_s: seconds(full_at.saturating_sub(now)) }
}

fn exceeded(rate: (&'static str, u64), bucket: (&Bucket, u64), wait: u64) -> Exceeded {
    let (name, count) = rate;
    Exceeded {
        text: format!("this access key may make {count} {name} a second on a node"),
        retry_after_s: seconds(wait),
        rate: Some(RateLeft { left: 0, ..left(rate, bucket) }),
    }
}
