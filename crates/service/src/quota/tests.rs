//! Quotas of keys: what is taken, given back and left over.

use super::*;
use crate::testing::service;
use concord_model::{
    access_key::{AccessKey, Grants},
    limits::Limits,
    time::Timestamp,
};

fn principal(id: &str, quota: Quota) -> Principal {
    let key = AccessKey {
        id: KeyId::parse(id).unwrap(),
        name: "n".into(),
        grants: Grants(Vec::new()),
        quota,
        expires_at: None,
        created_at: Timestamp(1),
        created_by: "root".into(),
        modified_at: Timestamp(1),
        revision: 1,
        secrets: Vec::new(),
        last_used_day: None,
        person: None,
        attestation: None,
        half_attested: None,
    };
    Principal::of_key(Arc::new(key), 1)
}

#[tokio::test]
async fn the_root_key_and_keys_without_a_quota_are_never_limited_and_have_no_account() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    for principal in [Principal::root(), principal("aaaaaaaaaaaa", Quota::default())] {
        for _ in 0..10_000 {
            assert_eq!(service.quotas.admit_request(&principal, true), Ok(None));
        }
        assert!(service.quotas.admit_open(&principal, Gauge::Watches).unwrap().is_none());
        assert_eq!(service.quotas.quota_left(&principal), QuotaLeft::default());
    }
    assert!(service.quotas.accounts.accounts.read().unwrap().is_empty());
}

/// A bucket as one would write it down.
struct Tokens {
    left: f64,
    at: Instant,
    per_second: f64,
    most: f64,
}

impl Tokens {
    fn fill(&mut self) {
        let now = Instant::now();
        self.left = (self.left + (now - self.at).as_secs_f64() * self.per_second).min(self.most);
        self.at = now;
    }

    /// Takes one if it is there, as the quota said, up to a rounding.
    fn take(&mut self, was_taken: bool) {
        self.fill();
        assert!(if was_taken { self.left > 0.999 } else { self.left < 1.001 }, "{was_taken}: {}", self.left);
        self.left -= f64::from(u8::from(was_taken));
    }
}

/// 2,000 hours of a client that comes in bursts, is idle for days, and sometimes does as it is told.
#[tokio::test(start_paused = true)]
async fn over_months_a_key_gets_its_rate_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let one = principal("aaaaaaaaaaaa", Quota { requests_per_second: Some(5), ..Quota::default() });
    let begin = Instant::now();
    let mut tokens = Tokens { left: 5.0, at: begin, per_second: 5.0, most: 5.0 };
    let mut rng = fastrand::Rng::with_seed(9);
    let (mut taken, mut refused) = (0_u64, 0_u64);
    while begin.elapsed() < std::time::Duration::from_secs(2000 * 3600) {
        // Milliseconds mostly, minutes at times, and a weekend now and then.
        let pause_ms = match rng.u32(..1000) {
            0 => rng.u64(..200_000_000),
            1..20 => rng.u64(..300_000),
            _ => rng.u64(..400),
        };
        tokio::time::advance(std::time::Duration::from_millis(pause_ms)).await;
        match service.quotas.admit_request(&one, false) {
            Ok(left) => {
                taken += 1;
                tokens.take(true);
                assert!((left.unwrap().left as f64 - tokens.left).abs() < 1.001, "{left:?}, {}", tokens.left);
            }
            Err(exceeded) => {
                refused += 1;
                tokens.take(false);
                if rng.bool() {
                    tokio::time::advance(std::time::Duration::from_secs(exceeded.retry_after_s)).await;
                    assert!(service.quotas.admit_request(&one, false).is_ok(), "as it was told");
                    tokens.take(true);
                    taken += 1;
                }
            }
        }
    }
    assert!(taken > 10_000 && refused > 1000, "{taken} taken, {refused} refused");
}

/// A year of keys that come once and of guesses from many addresses.
#[tokio::test(start_paused = true)]
async fn what_is_counted_about_clients_that_are_gone_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let service = crate::testing::throttling_service(directory.path(), 10);
    let quota = Quota { requests_per_second: Some(5), cursors: Some(2), ..Quota::default() };
    let mut rng = fastrand::Rng::with_seed(2);
    for turn in 0..3 * ACCOUNTS_MAX {
        tokio::time::advance(std::time::Duration::from_secs(rng.u64(1..5000))).await;
        let id: String = (0..12).map(|_| rng.alphanumeric()).collect();
        let one = principal(&id, quota);
        service.quotas.admit_request(&one, true).unwrap();
        for _ in 0..2 {
            service.quotas.admit_cursor(&one).unwrap();
            service.quotas.note_cursor(&one, true);
        }
        let most = service.quotas.admit_cursor(&one).unwrap_err();
        assert_eq!(most.retry_after_s, 300);
        if turn % 100 == 0 {
            tokio::time::advance(std::time::Duration::from_secs(301)).await;
            assert_eq!(service.quotas.admit_cursor(&one), Ok(()), "its lists were left");
        }
        assert!(service.quotas.counts()[0] <= ACCOUNTS_MAX, "{:?}", service.quotas.counts());
    }
}

#[test]
fn a_write_counts_as_a_request_and_as_a_write() {
    let quota = Quota { requests_per_second: Some(3), writes_per_second: Some(1), ..Quota::default() };
    let (account, now) = (KeyAccount::default(), 5);
    let left = account.take(Some(3), Some(1), now).unwrap().unwrap();
    assert_eq!(left, RateLeft { name: "writes", per_second: 1, left: 0, reset_s: 1 });
    let refused = account.take(Some(3), Some(1), now).unwrap_err();
    assert_eq!(refused.rate.map(|rate| (rate.name, rate.left)), Some(("writes", 0)));
    assert_eq!(refused.retry_after_s, 1);
    assert_eq!(account.left(&quota, now).requests, Some(2), "a rejected write takes no request");
    for left in [1, 0] {
        assert_eq!(account.take(Some(3), None, now).unwrap().unwrap().left, left);
    }
    assert_eq!(account.take(Some(3), None, now).unwrap_err().rate.unwrap().name, "requests");
}

#[tokio::test]
async fn dropped_guards_give_their_place_back() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let quota = Quota { watches: Some(2), lists: Some(1), ..Quota::default() };
    let one = principal("aaaaaaaaaaaa", quota);
    let first = service.quotas.admit_open(&one, Gauge::Watches).unwrap();
    let _second = service.quotas.admit_open(&one, Gauge::Watches).unwrap();
    assert!(service.quotas.admit_open(&one, Gauge::Watches).is_err());
    assert_eq!(service.quotas.quota_left(&one).watches, Some(0));
    assert!(service.quotas.admit_open(&one, Gauge::Lists).is_ok(), "another kind");
    let other = principal("bbbbbbbbbbbb", quota);
    assert!(service.quotas.admit_open(&other, Gauge::Watches).is_ok(), "another key");
    drop(first);
    assert!(service.quotas.admit_open(&one, Gauge::Watches).is_ok());
    assert_eq!(service.quotas.quota_left(&one).lists, Some(1));
}

#[tokio::test]
async fn a_cursor_counts_until_its_last_page() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let one = principal("aaaaaaaaaaaa", Quota { cursors: Some(1), ..Quota::default() });
    assert_eq!(service.quotas.admit_cursor(&one), Ok(()));
    service.quotas.note_cursor(&one, true);
    let refused = service.quotas.admit_cursor(&one).unwrap_err();
    assert!((290..=300).contains(&refused.retry_after_s), "{refused:?}");
    service.quotas.note_cursor(&one, false);
    assert_eq!(service.quotas.admit_cursor(&one), Ok(()));
    let account = KeyAccount::default();
    account.note_cursor(true, 0);
    assert!(account.admit_cursor(1, 1).is_err());
    assert_eq!(account.admit_cursor(1, 301 * bucket::SECOND), Ok(()), "unused for five minutes");
}
