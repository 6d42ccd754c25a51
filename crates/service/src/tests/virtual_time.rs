//! A node over a scripted consensus, in virtual time: what hours, wrong clocks and lost leaders do to keys and watches.

use std::{collections::VecDeque, time::Duration};

use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    access::{Judgement, NotAuthenticated},
    testing::Scripted,
    watch::{Notice, OpenWatch, WatchRequest, WatchStart},
};
use concord_model::{
    access_key::{Author, Grants, Quota, clear_text::ClearText},
    command::{AccessCommand, Command, KeyTerms, Proposal},
    key::Key,
    limits::WATCH_UNCONFIRMED_MAX,
};

const HOUR: Duration = Duration::from_secs(3600);
const DAYS_30_US: i64 = 30 * 86_400_000_000;

/// A stored key that is accepted until this time.
fn create_key(node: &Scripted, expires_at: Timestamp) -> ClearText {
    let text = ClearText::from_random(&[7; 48]);
    let terms = KeyTerms {
        name: "k".into(),
        grants: Grants(Vec::new()),
        quota: Quota::default(),
        expires_at: Some(expires_at),
    };
    let sha256 = Sha256::digest(text.expose().as_bytes()).into();
    let create = AccessCommand::Create { id: text.id().clone(), terms, sha256, person: None };
    let verdict =
        node.fake.decide(&Proposal::new(node.true_time(), "root", Author::Root, Command::Access(create)));
    assert!(format!("{verdict:?}").contains("Ok"), "{verdict:?}");
    text
}

/// 900 hours, in which the node's clock jumps and leaders come and go.
#[tokio::test]
async fn a_key_expires_at_its_time_whatever_one_clock_shows_and_never_returns() {
    let node = Scripted::start().await;
    let end = Timestamp(node.true_time().0 + 900 * 3_600_000_000);
    let text = create_key(&node, end);
    let credential = text.expose().as_bytes();
    let consensus = node.service.cx.consensus().unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut ahead, mut has_ended, mut accepted, mut unconfirmed) = (0, false, 0, 0);
    for round in 0..2000 {
        sleep(Duration::from_secs(rng.u64(1..3600))).await;
        ahead = [0, ahead, DAYS_30_US, -DAYS_30_US][rng.usize(..4)];
        let now = node.true_time();
        node.set_wall(Timestamp(now.0.saturating_add_signed(ahead)));
        node.hear_clocks(&[(2, now), (3, now)]);
        node.fake.lead(if round % 10 == 9 { None } else { Some(1) });
        let known = node.service.freshness.confirm_until(consensus, Instant::now() + Duration::from_secs(1));
        let (is_confirmed, judged) = (known.await.is_ok(), node.service.authentication.judge(credential));
        let now = node.true_time();
        // The clocks of a majority may be wrong by so much.
        let (is_before, is_after) = (now.0 + 10_000_000 < end.0, now.0 > end.0 + 10_000_000);
        match judged {
            Judgement::Valid(principal) => {
                assert!(is_confirmed && !is_after && !has_ended, "{now:?}");
                assert_eq!(principal.key().map(|key| &key.id), Some(text.id()));
                accepted += 1;
            }
            Judgement::Unsettled | Judgement::NotValid => {
                assert!(!is_confirmed || !is_before, "{now:?}");
                let settled = node.service.authentication.settle(credential).await;
                match settled {
                    Ok(_) => panic!("it was not valid just before"),
                    Err(NotAuthenticated::NotValid) => has_ended = true,
                    Err(NotAuthenticated::Unconfirmed(_)) => unconfirmed += 1,
                }
            }
        }
    }
    assert!(has_ended && accepted > 500 && unconfirmed > 100, "{has_ended} {accepted} {unconfirmed}");
    node.stop().await;
}

async fn watch(node: &Scripted) -> OpenWatch {
    let request = WatchRequest {
        of_change_requests: false,
        definitions: Vec::new(),
        configs: Vec::new(),
        filters: Vec::new(),
        has_prev: false,
        start: WatchStart::Now,
        consistency: Consistency { level: Level::Linearizable, min_revision: None },
        reader: None,
        follows_rollouts: false,
    };
    node.service.watches.watch(Principal::root(), request).await.unwrap()
}

fn definition(node: &Scripted, number: usize) {
    let key = Key::parse(&format!("d{number}")).unwrap();
    let command = Command::CreateDefinition { key, indexes: Vec::new(), schema: None };
    node.fake.decide(&Proposal::new(node.true_time(), "root", Author::Root, command));
}

#[tokio::test]
async fn a_watch_has_a_heartbeat_for_each_interval_without_a_change_and_each_change_once() {
    const HEARTBEAT: Duration = Duration::from_secs(15);
    let node = Scripted::start_with(|options| options.watch_heartbeat = HEARTBEAT).await;
    node.fake.lead(Some(1));
    let mut watch = watch(&node).await;
    let mut rng = fastrand::Rng::with_seed(4);
    let (begin, mut last) = (Instant::now(), Instant::now());
    let (mut heartbeats, mut seen, mut made) = (0, 0, 0);
    // Revisions that were made and not seen, with their times.
    let mut unseen = VecDeque::new();
    let mut next_change = Instant::now() + Duration::from_millis(rng.u64(..100_000));
    assert!(matches!(watch.next().await, Some(Notice::Progress(_))), "where it begins");
    while begin.elapsed() < 30 * HOUR {
        let notice = tokio::select! {
            notice = watch.next() => notice.unwrap(),
            () = tokio::time::sleep_until(next_change) => {
                definition(&node, made);
                made += 1;
                unseen.push_back((node.service.cx.revision(), Instant::now()));
                next_change = Instant::now() + Duration::from_millis(rng.u64(..100_000));
                continue;
            }
        };
        match notice {
            Notice::Progress(revision) => {
                assert_eq!(last.elapsed().as_secs(), HEARTBEAT.as_secs(), "since the last notice");
                assert_eq!(revision, node.service.cx.revision());
                heartbeats += 1;
            }
            Notice::Changes(event, ..) => {
                seen += 1;
                let (revision, at) = unseen.pop_front().unwrap();
                assert_eq!(event.revision, revision, "each once, in order");
                assert!(at.elapsed() < Duration::from_secs(1), "{:?}", at.elapsed());
            }
            Notice::State(_) | Notice::End(_) => panic!("{notice:?}"),
        }
        last = Instant::now();
    }
    assert!(heartbeats > 1000 && seen > 1000, "{heartbeats} heartbeats, {seen} changes");
    node.stop().await;
}

#[tokio::test]
async fn a_watch_ends_on_a_node_that_has_lost_the_others_and_not_sooner() {
    let node = Scripted::start().await;
    let begin = Instant::now();
    for _ in 0..30 {
        node.fake.lead(Some(1));
        let mut watch = watch(&node).await;
        sleep(HOUR).await;
        while let Ok(notice) = tokio::time::timeout(Duration::from_secs(60), watch.next()).await {
            match notice.unwrap() {
                Notice::Progress(_) => {}
                other @ (Notice::Changes(..) | Notice::State(_) | Notice::End(_)) => panic!("{other:?}"),
            }
            if begin.elapsed().as_secs().is_multiple_of(30) {
                break;
            }
        }
        node.fake.lead(None);
        let lost = Instant::now();
        let end = loop {
            match watch.next().await.unwrap() {
                Notice::Progress(_) => {}
                Notice::End(refusal) => break refusal,
                other @ (Notice::Changes(..) | Notice::State(_)) => panic!("{other:?}"),
            }
        };
        assert!(matches!(end, Refusal::Unavailable(_)), "{end:?}");
        let held = lost.elapsed();
        // It is confirmed every ten seconds, and looks with each heartbeat.
        let most = WATCH_UNCONFIRMED_MAX + Duration::from_secs(2);
        assert!((most - Duration::from_secs(22)..=most).contains(&held), "{held:?}");
        assert!(watch.next().await.is_none());
    }
    node.stop().await;
}
