//! Clients under faults beside a model: no update is lost, no change is missed, no stale value is called fresh.
//!
//! Writers add ids to lists, one watch follows every change, and two caches are read all the time. Each value that a
//! cache gives is compared with the model: it has all that was acknowledged before its age began. Meanwhile nodes are
//! killed and paused, and cut off from each other where the run has a network of its own. At the end all nodes are
//! killed, and a cache begins without them.
//!
//! `DURATION_S` and `SEED` are settings of the run; scripts/client-soak.sh makes a long one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use concord_client::{Cache, CacheOptions, Client, Error, EventKind, Origin, Record, Request, Selection};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    client_with, define,
    model::{Chain, Model, Outcome},
};
use crate::{
    chaos::network::Network,
    harness::{
        Cluster, DEADLINE, Options, check, eventually, number,
        time::{lasts, pace, pace_blocking},
    },
};

const DEFINITION: &str = "soak";
const KEYS: u64 = 12;
const WRITERS: u64 = 3;
const FRESH_FOR: Duration = Duration::from_secs(4);
/// How long a run of the suite makes faults.
const DURATION_S: u64 = 12;
/// What a request may take: less than an outage, so that some outcomes stay unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What a config holds: the ids of the writes that it has seen.
#[derive(Debug, Default, Serialize, Deserialize)]
struct List {
    ids: Vec<u64>,
}

/// What all tasks of a run share.
#[derive(Debug, Default)]
struct Run {
    model: Model,
    chain: Mutex<Chain>,
    is_over: AtomicBool,
    next_id: AtomicU64,
    reads: AtomicU64,
    fresh_reads: AtomicU64,
    wrong: Mutex<Vec<String>>,
    faults: Mutex<BTreeMap<&'static str, u64>>,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().expect("no holder panics").push(what);
    }
}

fn key(number: u64) -> String {
    format!("k{number}")
}

async fn write(run: Arc<Run>, client: Client, mut rng: fastrand::Rng) {
    while run.goes_on() {
        let (name, id) = (key(rng.u64(..KEYS)), run.next_id.fetch_add(1, Ordering::Relaxed));
        let record: Record = client.config(DEFINITION, &name);
        // An update that is made anew after a refusal writes the same id.
        let written = record.update(|list: &mut List| list.ids.push(id)).await;
        let outcome = match written {
            Ok(found) => Outcome::Done(found.revision),
            Err(Error::Unknown { .. }) => Outcome::Unknown,
            Err(Error::Unavailable(_) | Error::Refused(_)) => Outcome::Failed,
            Err(error @ (Error::Usage(_) | Error::Protocol(_))) => {
                run.wrong(format!("a write ended as {error}"));
                Outcome::Unknown
            }
        };
        run.model.note(&name, id, outcome);
        pace(Duration::from_millis(rng.u64(5..40))).await;
    }
}

/// Follows every change by a watch of its own.
async fn follow(run: Arc<Run>, client: Client, from: u64) {
    let request = Request::get("/api/v1/watch").query("definition", DEFINITION).query("from", from);
    let mut watch = client.watch(request);
    loop {
        let event = match watch.next().await {
            Ok(event) => event,
            // No node for as long as a request may take: the same watch goes on.
            Err(Error::Unavailable(_)) => continue,
            Err(error) => return run.wrong(format!("the watch ended: {error}")),
        };
        if event.kind != EventKind::Change {
            continue;
        }
        let revision = event.data["revision"].as_u64().unwrap_or_default();
        for change in event.data["changes"].as_array().into_iter().flatten() {
            let name = change["config_key"].as_str().unwrap_or_default();
            if let Ok(list) = serde_json::from_value::<List>(change["data"].clone()) {
                run.chain.lock().expect("no holder panics").take(revision, name, list.ids);
            }
        }
    }
}

/// Reads a cache all the time, on a thread of its own.
fn read(run: &Run, cache: &Cache, keys: u64) {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut number = 0;
    while run.goes_on() {
        number = (number + 1) % keys;
        let name = key(number);
        let before = Instant::now();
        let Ok(Some(read)) = cache.get(DEFINITION, &name) else {
            run.wrong(format!("{name} is gone: {:?}", cache.status()));
            return;
        };
        let revision = read.config.revision;
        run.reads.fetch_add(1, Ordering::Relaxed);
        let least = run.model.least_revision(&name, before, read.source.age);
        if revision < least {
            run.wrong(format!(
                "{name} has revision {revision}, and {least} was acknowledged before its age began: {}",
                read.source
            ));
        }
        if read.source.is_fresh() {
            run.fresh_reads.fetch_add(1, Ordering::Relaxed);
            if read.source.age > FRESH_FOR {
                run.wrong(format!("{name} is called fresh: {}", read.source));
            }
        }
        let last = seen.entry(name.clone()).or_default();
        if revision < *last {
            run.wrong(format!("{name} went back from revision {last} to {revision}"));
        }
        *last = revision;
        pace_blocking(Duration::from_micros(300));
    }
}

/// Makes faults, one after the other.
struct Nemesis<'a> {
    run: &'a Run,
    cluster: &'a mut Cluster,
    network: Option<Network>,
    rng: fastrand::Rng,
}

impl Nemesis<'_> {
    /// Makes faults until the time is up: each kind once, however long that takes on a busy machine, then drawn ones.
    /// All of them have ended when this returns.
    async fn disturb(&mut self, end: Instant) {
        let kinds = if self.network.is_some() { 6 } else { 4 };
        let mut made = 0;
        while made < kinds || Instant::now() < end {
            let kind = if made < kinds { made } else { self.rng.u8(..kinds) };
            made = made.saturating_add(1);
            let lasting = Duration::from_millis(self.rng.u64(300..3000));
            match kind {
                0 | 1 => self.kill(kind == 0, lasting).await,
                2 => self.pause(lasting * 2).await,
                3 => self.kill_all(lasting).await,
                _ => self.cut(kind == 4, lasting * 3).await,
            }
            pace(Duration::from_millis(self.rng.u64(200..2500))).await;
        }
    }

    fn count(&self, fault: &'static str) {
        *self.run.faults.lock().expect("no holder panics").entry(fault).or_default() += 1;
    }

    async fn victim(&mut self, is_leader: bool) -> u64 {
        let any = self.rng.u64(1..=3);
        if is_leader { leader(self.cluster).await.unwrap_or(any) } else { any }
    }

    async fn kill(&mut self, is_leader: bool, lasting: Duration) {
        self.count(if is_leader { "kill the leader" } else { "kill any" });
        let id = self.victim(is_leader).await;
        self.cluster.node(id).kill();
        lasts(lasting).await;
        self.cluster.node(id).start().await;
    }

    async fn pause(&mut self, lasting: Duration) {
        self.count("pause any");
        let id = self.victim(false).await;
        self.cluster.node(id).pause();
        lasts(lasting).await;
        self.cluster.node(id).resume();
    }

    /// Longer than a value is fresh, and than a request may take.
    async fn kill_all(&mut self, lasting: Duration) {
        self.count("kill all");
        self.cluster.kill_all();
        lasts(FRESH_FOR + lasting).await;
        self.cluster.start_all().await;
    }

    async fn cut(&mut self, is_leader: bool, lasting: Duration) {
        self.count(if is_leader { "cut the leader off" } else { "cut one way" });
        let id = self.victim(is_leader).await;
        let Some(network) = &self.network else { return };
        for other in (1..=3).filter(|other| *other != id) {
            if is_leader { network.cut_both(id, other) } else { network.cut(id, other) }
        }
        lasts(lasting).await;
        network.heal();
    }
}

async fn leader(cluster: &Cluster) -> Option<u64> {
    for client in cluster.clients() {
        if let Ok(Ok(status)) = tokio::time::timeout(Duration::from_secs(1), client.status()).await
            && let Some(id) = status["leader_id"].as_u64()
        {
            return Some(id);
        }
    }
    None
}

/// What the cluster has at the end, by key.
async fn lists(client: &Client) -> BTreeMap<String, Vec<u64>> {
    let list = Request::get(format!("/api/v1/config_definition/{DEFINITION}/config/")).query("limit", 1000);
    let records = client.pages(list).all().await.expect("the cluster answers");
    let ids = |record: &Value| serde_json::from_value::<List>(record["data"].clone()).expect("a list").ids;
    records
        .iter()
        .map(|record| (record["config_key"].as_str().unwrap_or_default().to_owned(), ids(record)))
        .collect()
}

fn held(cache: &Cache) -> BTreeMap<String, Vec<u64>> {
    let (configs, _) = cache.list(DEFINITION).expect("it was filled");
    let ids = |data: &Value| serde_json::from_value::<List>(data.clone()).expect("a list").ids;
    configs.iter().map(|config| (config.key.clone(), ids(&config.data))).collect()
}

fn cache_options(selections: Vec<Selection>, file: std::path::PathBuf) -> CacheOptions {
    let options = CacheOptions::new(selections).file(file);
    CacheOptions { confirm_every: Duration::from_millis(500), fresh_for: FRESH_FOR, ..options }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_no_change_missed_and_nothing_stale_called_fresh() {
    let seed = number("SEED").unwrap_or(16);
    let duration = Duration::from_secs(number("DURATION_S").unwrap_or(DURATION_S));
    let mut rng = fastrand::Rng::with_seed(seed);
    let network = Network::own();
    let host = if network.is_some() { Network::host } else { |_| "127.0.0.1".to_owned() };
    let mut cluster = Cluster::start_on_hosts("rust-soak", &Options::default(), host, |_, _| {}).await;
    let client = client_with(&cluster, REQUEST_TIMEOUT);
    define(&client, DEFINITION).await;
    let mut begin = 0;
    for number in 0..KEYS {
        begin = client.config(DEFINITION, key(number)).create(&List::default()).await.unwrap();
    }

    let run = Arc::new(Run::default());
    let all = cache_options(vec![Selection::definition("so*")], cluster.root().join("all.json"));
    let some = (0..3).map(|number| Selection::config(DEFINITION, key(number))).collect();
    let some = cache_options(some, cluster.root().join("some.json"));
    let caches = [client.cache(all.clone()).unwrap(), client.cache(some).unwrap()];
    let mut readers = Vec::new();
    for (cache, keys) in caches.iter().zip([KEYS, 3]) {
        cache.fresh(DEADLINE).await.unwrap();
        let (run, cache) = (run.clone(), cache.clone());
        readers.push(std::thread::spawn(move || read(&run, &cache, keys)));
    }
    let follower = tokio::spawn(follow(run.clone(), client.clone(), begin + 1));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| tokio::spawn(write(run.clone(), client_with(&cluster, REQUEST_TIMEOUT), rng.fork())))
        .collect();
    let mut nemesis = Nemesis { run: &run, cluster: &mut cluster, network, rng };
    nemesis.disturb(Instant::now() + duration).await;
    cluster.ready().await;
    // With all nodes there, everything is fresh again, and the readers see it.
    for cache in &caches {
        cache.fresh(DEADLINE).await.unwrap();
    }
    run.is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());

    check_end(&run, &client, &caches).await;
    follower.abort();
    go_on_without_nodes(&run, &mut cluster, &client, caches, all).await;

    let (done, unknown, failed) = run.model.counts();
    let chain = run.chain.lock().unwrap();
    let summary = json!({
        "seed": seed, "duration_s": duration.as_secs(), "updates": done, "unknown": unknown, "failed": failed,
        "changes_watched": chain.changes, "reads": run.reads.load(Ordering::Relaxed),
        "reads_fresh": run.fresh_reads.load(Ordering::Relaxed), "faults": &*run.faults.lock().unwrap(),
        "violations": run.wrong.lock().unwrap().len() + chain.wrong.len(),
    });
    println!("{summary}");
    assert!(run.wrong.lock().unwrap().is_empty(), "{:#?}", run.wrong.lock().unwrap());
    assert!(chain.wrong.is_empty(), "{:#?}", chain.wrong);
    assert!(done > 0 && chain.changes >= done, "{summary}");
    assert!(run.fresh_reads.load(Ordering::Relaxed) > 0, "{summary}");
}

/// What the cluster has is what the model says, what the watch followed, and what the caches hold.
async fn check_end(run: &Run, client: &Client, caches: &[Cache]) {
    let lists = lists(client).await;
    for (name, list) in &lists {
        run.model.judge(name, list).into_iter().for_each(|wrong| run.wrong(wrong));
    }
    eventually("the watch has brought every change", async || {
        let chain = run.chain.lock().expect("no holder panics");
        let behind = lists.iter().find(|(name, list)| !chain.ends_at(name, list));
        check(behind.is_none() || !chain.wrong.is_empty(), || format!("{behind:?}"))
    })
    .await;
    for cache in caches {
        eventually("the cache has every change", async || {
            let held = held(cache);
            let differing = held.iter().find(|(name, list)| lists.get(*name) != Some(list));
            check(differing.is_none(), || format!("{differing:?}"))
        })
        .await;
    }
    assert_eq!(held(&caches[0]), lists);
    assert_eq!(held(&caches[1]).len(), 3);
}

/// Without nodes the values are there, stale and ever older; and so they are for a program that starts now.
async fn go_on_without_nodes(
    run: &Run,
    cluster: &mut Cluster,
    client: &Client,
    caches: [Cache; 2],
    options: CacheOptions,
) {
    let lists = held(&caches[0]);
    caches[0].save().await.expect("the file can be written");
    cluster.kill_all();
    for cache in &caches {
        eventually("stale", async || {
            let source = cache.source().ok_or("no source")?;
            check(!source.is_fresh() && source.age > FRESH_FOR, || source.to_string())
        })
        .await;
    }
    assert_eq!(held(&caches[0]), lists);
    drop(caches);
    let cache = client.cache(options).expect("the options are good");
    assert_eq!(held(&cache), lists);
    let source = cache.source().expect("the file was read");
    if source.origin != Origin::File || source.is_fresh() || source.age < FRESH_FOR {
        run.wrong(format!("a start without nodes has {source}"));
    }
}
