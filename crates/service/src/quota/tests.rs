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
