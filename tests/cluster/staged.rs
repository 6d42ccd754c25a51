//! A fleet of readers while a change is released in stages: how many see a bad one, and how long until none does.
//!
//! Each reader follows one config by a watch of its own, names itself, and reports a value that it can't use, as the clients
//! do. `CONCORD_ROLLOUT_READERS` sets how many there are.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::change_requests::{CHANGES, act, becomes, restricted, text};
use crate::harness::{
    Answer, Client, Cluster, check, eventually,
    load::config,
    number,
    time::pace,
    watch::{WATCH, Watch},
};

const DEFINITION: &str = "prod.limits";
/// The value that no reader can use.
const BAD: u64 = 666;
/// How often a reader repeats that it has failed.
const REPEAT: Duration = Duration::from_secs(2);

/// What a reader has at hand.
#[derive(Debug, Clone, Default)]
struct Seen {
    n: u64,
    /// The change request whose candidate it is.
    change: Option<String>,
    /// When it had the bad value first, and when it had another one again.
    bad: Option<(Instant, Option<Instant>)>,
}

/// Readers that follow a config, each at another node when its own is lost.
struct Fleet {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    /// When one of them reported first that it has failed.
    reported: Arc<Mutex<Option<Instant>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Fleet {
    async fn start(clients: &[Client], count: u64) -> Self {
        let mut fleet =
            Self { seen: Arc::default(), reported: Arc::default(), stop: Arc::default(), tasks: Vec::new() };
        for place in 0..count {
            let id = format!("host-{place}");
            let clients: Vec<Client> = clients.iter().map(Client::anew).collect();
            let (seen, reported, stop) =
                (Arc::clone(&fleet.seen), Arc::clone(&fleet.reported), Arc::clone(&fleet.stop));
            let follow = {
                let (id, clients, seen) = (id.clone(), clients.clone(), Arc::clone(&seen));
                let stop = Arc::clone(&stop);
                async move {
                    for turn in place.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let at = usize::try_from(turn).expect("few turns") % clients.len();
                        follow(&clients[at], &id, &seen).await;
                        pace(Duration::from_millis(50)).await;
                    }
                }
            };
            fleet.tasks.push(tokio::spawn(follow));
            fleet.tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    report(&clients, &id, &seen, &reported).await;
                }
            }));
        }
        let all = usize::try_from(count).expect("few readers");
        eventually("all readers follow", async || {
            let now = fleet.seen.lock().unwrap().len();
            check(now == all, || format!("{now} of {count}"))
        })
        .await;
        fleet
    }

    fn count(&self, is_so: impl Fn(&Seen) -> bool) -> usize {
        self.seen.lock().unwrap().values().filter(|seen| is_so(seen)).count()
    }

    fn end(self) -> BTreeMap<String, Seen> {
        self.stop.store(true, Ordering::SeqCst);
        self.tasks.iter().for_each(JoinHandle::abort);
        self.seen.lock().unwrap().clone()
    }
}

/// Applies what one watch returns, from its initial state on, until it ends.
async fn follow(client: &Client, id: &str, seen: &Mutex<BTreeMap<String, Seen>>) {
    let query = [("definition", DEFINITION), ("config_key", "k"), ("initial", "true")];
    let call = client.get(WATCH).query(&query).header("x-concord-reader", id);
    let Ok(response) = call.open().await else { return };
    if response.status().as_u16() != 200 {
        return;
    }
    let mut watch = Watch::from(response);
    while let Ok(Some(event)) = watch.next().await {
        let list = if event.name == "state" { &event.data["configs"] } else { &event.data["changes"] };
        for one in list.as_array().into_iter().flatten() {
            let Some(n) = one["data"]["n"].as_u64() else { continue };
            let change = one["variant"]["change_id"].as_str().map(str::to_owned);
            let mut all = seen.lock().unwrap();
            let seen = all.entry(id.to_owned()).or_default();
            (seen.n, seen.change) = (n, change);
            match &mut seen.bad {
                None if n == BAD => seen.bad = Some((Instant::now(), None)),
                Some((_, back)) if n == BAD => *back = None,
                Some((_, back @ None)) => *back = Some(Instant::now()),
                None | Some(_) => {}
            }
        }
    }
}

/// Reports a value that can't be used, again and again.
async fn report(
    clients: &[Client],
    id: &str,
    seen: &Mutex<BTreeMap<String, Seen>>,
    reported: &Mutex<Option<Instant>>,
) {
    let failed =
        seen.lock().unwrap().get(id).filter(|seen| seen.n == BAD).and_then(|seen| seen.change.clone());
    let Some(change) = failed else {
        pace(Duration::from_millis(20)).await;
        return;
    };
    reported.lock().unwrap().get_or_insert_with(Instant::now);
    let body = json!({"reader": id, "state": "failed", "detail": "n is out of range"});
    for client in clients {
        let answer = client.post(&format!("{CHANGES}{change}/report"), &body).attempt().await;
        if answer.is_ok_and(|answer| matches!(answer.status, 200 | 404 | 409)) {
            break;
        }
    }
    pace(REPEAT).await;
}

/// A change request with a plan, which Ann sends, Bob approves, and Ann begins.
async fn begin(cluster: &Cluster, (ann, bob): (&str, &str), n: u64, plan: &Value) -> Answer {
    let node = cluster.client(cluster.leader().await);
    let put =
        json!({"op": "put_config", "config_definition_key": DEFINITION, "config_key": "k", "data": {"n": n}});
    let body = json!({"title": "in stages", "operations": [put], "rollout": plan});
    let made = node.with_credential(ann).post(CHANGES, &body).header("idempotency-key", &format!("make-{n}"));
    let made = made.insist().await.expect(201);
    act(&node.with_credential(bob), &made, "approve", &format!("approve-{n}")).await.expect(200);
    act(&node.with_credential(ann), &made, "apply", &format!("begin-{n}")).await.expect(200)
}

#[tokio::test]
async fn a_bad_change_reaches_the_first_stage_and_is_taken_back_although_the_leader_dies() {
    let readers = number("CONCORD_ROLLOUT_READERS").unwrap_or(60);
    let (mut cluster, ann, bob) = restricted("staged").await;
    let fleet = Fleet::start(&cluster.clients(), readers).await;
    let leader = cluster.leader().await;
    let share = if readers < 200 { 20 } else { 5 };
    let plan = json!({"stages": [{"share": share, "for_s": 600, "min_healthy": 1}], "max_failed": 0});
    let begun = begin(&cluster, (&ann, &bob), BAD, &plan).await;
    assert_eq!(begun.data()["phase"], "rolling");
    let watches = &begun.data()["rollout"]["status"]["watches"];
    assert_eq!(*watches, json!({"identified": readers, "unidentified": 0}), "on all nodes: {begun:?}");
    eventually("a reader has failed", async || {
        check(fleet.reported.lock().unwrap().is_some(), || "none has seen it".into())
    })
    .await;
    cluster.node(leader).kill();
    let other = cluster.client(leader % 3 + 1);
    let closed = becomes(&other, &begun, "it is taken back", |change| change["phase"] == "closed").await;
    assert_eq!((&closed["closed"]["reason"], &closed["closed"]["by"]), (&json!("failed"), &Value::Null));
    eventually("all readers are back", async || {
        let bad = fleet.count(|seen| seen.n == BAD);
        check(bad == 0, || format!("{bad} readers have it"))
    })
    .await;
    let first = fleet.reported.lock().unwrap().expect("one has failed");
    let seen = fleet.end();
    let saw: Vec<&Seen> = seen.values().filter(|seen| seen.bad.is_some()).collect();
    let last = saw.iter().filter_map(|seen| seen.bad?.1).max().expect("one has seen it");
    println!(
        "{} of {readers} readers saw the bad value; the last one was back {:.1} s after the first failed report, with the \
         leader killed in between",
        saw.len(),
        last.saturating_duration_since(first).as_secs_f64()
    );
    let most = usize::try_from(readers).expect("few readers") / 2;
    assert!((1..=most).contains(&saw.len()), "{} of {readers} saw it", saw.len());
    cluster.node(leader).start().await;
    cluster.ready().await;
    for node in cluster.clients() {
        let read = node.get(&config(DEFINITION, "k")).header("x-concord-reader", "host-0").insist().await;
        assert_eq!(read.expect(200).data()["data"]["n"], 0, "nobody sees it any more");
    }
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_change_goes_through_its_stages_while_leaders_die_and_no_reader_goes_back() {
    let (mut cluster, ann, bob) = restricted("stages").await;
    let fleet = Fleet::start(&cluster.clients(), 30).await;
    let plan = json!({"stages": [{"share": 30, "for_s": 4}, {"for_s": 4}]});
    let begun = begin(&cluster, (&ann, &bob), 1, &plan).await;
    let mut most = 0;
    for stage in 0..2 {
        let leader = cluster.leader().await;
        becomes(&cluster.client(leader), &begun, "it is at the next stage", |change| {
            change["phase"] == "applied" || change["rollout"]["status"]["stage"].as_u64() >= Some(stage)
        })
        .await;
        let now = fleet.count(|seen| seen.n == 1);
        assert!(now >= most, "{now} readers are in, after {most}");
        most = now;
        cluster.node(leader).kill();
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    let node = cluster.client(1);
    let applied = becomes(&node, &begun, "it is applied", |change| change["phase"] == "applied").await;
    assert_eq!(applied["applied"]["by"], Value::Null, "by the cluster");
    eventually("all readers have it as the proven value", async || {
        let have = fleet.count(|seen| seen.n == 1 && seen.change.is_none());
        check(have == 30, || format!("{have} of 30"))
    })
    .await;
    fleet.end();
    cluster.equal_digests().await;
}

#[tokio::test]
async fn nodes_and_reads_choose_the_same_side_for_each_reader() {
    let (cluster, ann, bob) = restricted("sides").await;
    let root = cluster.client(1);
    let put = |definition: &str| json!({"op": "put_config", "config_definition_key": definition, "config_key": "k", "data": {"n": 1}});
    let stage = json!({"labels": {"ring": ["canary"]}, "for_s": 600});
    let plan = json!({"stages": [stage, {"share": 40, "for_s": 600}]});
    let body = json!({"title": "two", "operations": [put(DEFINITION), put("prod.more")], "rollout": plan});
    let made = root.with_credential(&ann).post(CHANGES, &body).insist().await.expect(201);
    act(&root.with_credential(&bob), &made, "approve", "approve").await.expect(200);
    let begun = act(&root.with_credential(&ann), &made, "apply", "begin").await.expect(200);
    let id = text(&begun, "change_id");
    let sides = async |ring: &str| {
        let mut inside = Vec::new();
        for place in 0..24 {
            let name = format!("host-{place}");
            let mut all = Vec::new();
            for node in cluster.clients() {
                for definition in [DEFINITION, "prod.more"] {
                    let get = node.get(&config(definition, "k")).header("x-concord-reader", &name);
                    let read = get.header("x-concord-labels", ring).insist().await.expect(200);
                    let is_in = read.data()["data"]["n"] == 1;
                    let variant = if is_in { format!("candidate; change={id}") } else { String::new() };
                    assert_eq!(read.header("x-concord-variant"), variant);
                    all.push(is_in);
                }
                let keys = json!({"configs": [
                    {"config_definition_key": DEFINITION, "config_key": "k"},
                    {"config_definition_key": "prod.more", "config_key": "k"},
                ]});
                let call = node.post("/api/v1/read", &keys).header("x-concord-reader", &name);
                let read = call.header("x-concord-labels", ring).insist().await.expect(200);
                let results = read.data()["results"].as_array().expect("results").clone();
                all.extend(results.iter().map(|one| one["config"]["data"]["n"] == 1));
            }
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {all:?}");
            inside.push(all[0]);
        }
        inside
    };
    assert!(sides("ring=canary").await.iter().all(|is_in| *is_in), "those with the label");
    assert!(!sides("ring=stable").await.iter().any(|is_in| *is_in), "and no others");
    let path = format!("{CHANGES}{id}/advance");
    root.with_credential(&bob).post(&path, &json!({})).insist().await.expect(200);
    let second = sides("ring=stable").await;
    let count = second.iter().filter(|is_in| **is_in).count();
    assert!((3..20).contains(&count), "some of 24: {count}");
    let plain = root.get(&config(DEFINITION, "k")).insist().await.expect(200);
    assert_eq!((plain.data()["data"]["n"].as_u64(), plain.header("x-concord-variant")), (Some(0), ""));
    let abort = format!("{CHANGES}{id}/abort");
    root.with_credential(&ann).post(&abort, &json!({"comment": "enough"})).insist().await.expect(200);
    assert!(!sides("ring=canary").await.iter().any(|is_in| *is_in), "after the abort nobody sees it");
    cluster.equal_digests().await;
}
