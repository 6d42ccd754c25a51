//! A schema changes between two while clients write on all nodes: no config ever breaks the schema of its time.
//!
//! Both schemas take `both`; each takes one more kind that the other refuses. Writers change their configs to a
//! kind that one schema alone takes, and back. A flip is refused while there is such a config, and a writer is
//! refused while the other schema holds. A witness follows the changes in the order of the log and sees what holds at
//! each of them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    StreamExt,
    future::{join, join_all},
    stream,
};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::harness::{
    Answer, Call, Client, Cluster, check, eventually,
    load::{config, define, definition, set},
    number,
    pace::Writers,
    time::lasts,
    watch::{Watch, changes_of},
};

const CONFIGS: usize = 2000;
/// Configs that one request creates.
const AT_ONCE: usize = 1000;
const WRITERS: usize = 6;
/// Configs that are made to break both schemas: more than a refusal lists.
const BROKEN: usize = 150;

fn schema(kind: &str) -> Value {
    json!({"properties": {"kind": {"enum": [kind, "both"]}}, "required": ["kind"]})
}

fn path() -> String {
    format!("{}/schema", definition("d"))
}

/// The configs that no writer of [`write`] touches.
fn key(number: usize) -> String {
    format!("c{number:06}")
}

#[derive(Debug)]
struct Counts {
    /// How many configs there are.
    configs: usize,
    stop: AtomicBool,
    written: AtomicU64,
    refused: AtomicU64,
    flips: AtomicU64,
    refused_flips: AtomicU64,
    batched_flips: AtomicU64,
    looks: AtomicU64,
}

impl Counts {
    fn new(configs: usize) -> Self {
        let [written, refused, flips, refused_flips, batched_flips, looks] =
            std::array::from_fn(|_| AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        Self { configs, stop, written, refused, flips, refused_flips, batched_flips, looks }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn all(&self) -> [u64; 6] {
        let flips = [&self.flips, &self.refused_flips, &self.batched_flips];
        let all = [&[&self.written, &self.refused][..], &flips, &[&self.looks]].concat();
        std::array::from_fn(|place| all[place].load(Ordering::SeqCst))
    }
}

async fn put(client: &Client, key: &str, kind: &str) -> Option<u16> {
    let answer = client.put(&config("d", key), &json!({"data": {"kind": kind}})).attempt().await.ok()?;
    assert!(matches!(answer.status, 200 | 422 | 429 | 503 | 504), "{answer:?}");
    Some(answer.status)
}

/// Turns one config to a kind that only one schema takes, and back until that is done.
async fn write(client: Client, place: usize, counts: Arc<Counts>) {
    let key = format!("w{place}");
    for turn in 0.. {
        if !counts.goes_on() {
            return;
        }
        let kind = if (turn + place).is_multiple_of(2) { "x" } else { "y" };
        match put(&client, &key, kind).await {
            Some(200) => counts.written.fetch_add(1, Ordering::SeqCst),
            Some(422) => counts.refused.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        // `both` fits at any time: it is refused never.
        eventually("a kind that fits always is taken", async || {
            let status = put(&client, &key, "both").await;
            assert_ne!(status, Some(422), "`both` fits both schemas");
            check(status == Some(200), || format!("{status:?}"))
        })
        .await;
    }
}

/// A batch that changes all configs of the writers to `both`, and then the schema: it is never refused for them.
fn mend_and_flip(client: &Client, kind: &str) -> Call {
    let mend = |place: usize| {
        let data = json!({"kind": "both"});
        json!({"op": "put_config", "config_definition_key": "d", "config_key": format!("w{place}"), "data": data})
    };
    let change = json!({"op": "set_schema", "config_definition_key": "d", "json_schema": schema(kind)});
    let operations: Vec<Value> = (0..WRITERS).map(mend).chain([change]).collect();
    client.post("/api/v1/batch", &json!({"operations": operations}))
}

/// Changes the schema to the other one, again and again, alone and in batches.
async fn flip(client: Client, counts: Arc<Counts>) {
    for turn in 0.. {
        for kind in ["x", "y"] {
            for attempt in 0.. {
                if !counts.goes_on() {
                    return;
                }
                let is_batch = turn % 2 == 1;
                let call = if is_batch {
                    mend_and_flip(&client, kind)
                } else {
                    client.put(&path(), &json!({"json_schema": schema(kind)}))
                };
                let id = format!("flip-{turn}-{kind}-{attempt}");
                let answer = call.header("idempotency-key", &id).insist().await;
                if answer.status == 200 {
                    let count = if is_batch { &counts.batched_flips } else { &counts.flips };
                    count.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                assert!(!is_batch, "{answer:?}");
                let keys = breaking(&answer);
                assert!(keys.len() <= WRITERS && keys.iter().all(|key| key.starts_with('w')), "{answer:?}");
                counts.refused_flips.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// The keys that a refusal lists; it must count as many while they are no more than a hundred.
fn breaking(refused: &Answer) -> Vec<String> {
    let errors = refused.clone().invalid().body["errors"].as_array().cloned().unwrap_or_default();
    let keys: Vec<String> =
        errors[1..].iter().map(|error| error["loc"][1].as_str().expect("a key").to_owned()).collect();
    let count: usize = refused.header("x-concord-breaking-configs").parse().expect("a number");
    assert_eq!(keys.len(), count.min(100), "{refused:?}");
    assert!(count > 0 && keys.is_sorted(), "{refused:?}");
    keys
}

/// Reads schema and configs: when the schema was the same before and after, all configs fit it.
async fn read_all(client: &Client, counts: &Counts) -> Option<()> {
    let before = client.get(&path()).attempt().await.ok().filter(|answer| answer.status == 200)?;
    let (schema, tag) = (&before.data()["json_schema"], before.tag());
    let path_of_configs = format!("{}/config/", definition("d"));
    let query = [("search", "w"), ("limit", "100")];
    let listed = client.get(&path_of_configs).query(&query).attempt().await.ok()?;
    let dry = client.put(&path(), &json!({"json_schema": schema})).query(&[("dry_run", "true")]);
    let dry = dry.header("if-match", &tag).attempt().await.ok()?;
    let after = client.get(&path()).attempt().await.ok().filter(|answer| answer.status == 200)?;
    if listed.status == 200 && after.tag() == tag {
        let taken = schema["properties"]["kind"]["enum"].as_array().expect("one of the two");
        for record in listed.data()["results"].as_array().expect("`results` is a list") {
            assert!(taken.contains(&record["data"]["kind"]), "{record} breaks {schema}");
        }
        counts.looks.fetch_add(1, Ordering::SeqCst);
    }
    // The report is made of one state, in which the schema is the one of the tag.
    if dry.status == 200 {
        let (broken, checked) = (&dry.data()["breaking_count"], &dry.data()["checked"]);
        assert_eq!((broken.as_u64(), checked.as_u64()), (Some(0), Some(counts.configs as u64)), "{dry:?}");
        counts.looks.fetch_add(1, Ordering::SeqCst);
    } else {
        assert!(matches!(dry.status, 412 | 429 | 503 | 504), "{dry:?}");
    }
    Some(())
}

/// All that there is to write, and a first schema.
async fn fill(clients: &[Client], configs: usize) {
    define(&clients[0], "d").await;
    let keys: Vec<String> =
        (0..configs - WRITERS).map(key).chain((0..WRITERS).map(|n| format!("w{n}"))).collect();
    let create = async |keys: &[String]| {
        let operation = |key: &String| json!({"op": "create_config", "config_definition_key": "d", "config_key": key, "data": {"kind": "both"}});
        let body = json!({"operations": keys.iter().map(operation).collect::<Vec<_>>()});
        let call = clients[0].post("/api/v1/batch", &body);
        call.header("idempotency-key", &format!("fill-{}", keys[0])).insist().await.expect(200);
    };
    stream::iter(keys.chunks(AT_ONCE)).map(create).buffer_unordered(3).collect::<Vec<()>>().await;
    let first = clients[0].put(&path(), &json!({"json_schema": schema("y")}));
    first.header("idempotency-key", "first").insist().await.expect(200);
}

/// Sees every change in the order of the log: what breaks the schema of its time is seen, at the end of each revision. Ends
/// with the config `end`.
async fn witness(mut watch: Watch) -> u64 {
    let (mut holds, mut odd, mut changes) = ("y".to_owned(), BTreeMap::new(), 0);
    loop {
        let event = changes_of(&watch.data_event().await);
        for (_, change) in &event {
            changes += 1;
            let kinds = &change["json_schema"]["properties"]["kind"]["enum"];
            if let Some(kind) = kinds[0].as_str() {
                holds = kind.to_owned();
            } else if let (Some(key), Some(kind)) =
                (change["config_key"].as_str(), change["data"]["kind"].as_str())
            {
                if key == "end" {
                    return changes;
                }
                odd.insert(key.to_owned(), kind.to_owned());
                odd.retain(|_, kind| kind != "both");
            } else {
                panic!("{change} was not asked for");
            }
        }
        let revision = event.first().map(|(revision, _)| revision);
        assert!(odd.values().all(|kind| *kind == holds), "at {revision:?} {odd:?} break {holds}");
    }
}

#[tokio::test]
async fn no_config_breaks_its_schema_while_both_change() {
    // Tasks of one thread: what they wait with can't be sent to another.
    LocalSet::new().run_until(both_change()).await;
}

async fn both_change() {
    let cluster = Cluster::start("flipping-schema").await;
    fill(&cluster.clients(), CONFIGS).await;
    flipping(&cluster, CONFIGS).await;
    report_is_exact(&cluster).await;
}

/// Schema and configs change until enough of all has come about.
async fn flipping(cluster: &Cluster, configs: usize) {
    let clients = cluster.clients();
    let witness = spawn_local(witness(clients[2].watch(&[("definition", "d")], None).await));
    let counts = Arc::new(Counts::new(configs));
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for place in 0..WRITERS {
        tasks.push(spawn_local(write(clients[place % 3].clone(), place, Arc::clone(&counts))));
    }
    tasks.push(spawn_local(flip(clients[1].clone(), Arc::clone(&counts))));
    for client in clients.clone() {
        let counts = Arc::clone(&counts);
        tasks.push(spawn_local(async move {
            while counts.goes_on() {
                let _unsettled = read_all(&client, &counts).await.is_none();
            }
        }));
    }
    eventually("schemas change and configs are written", async || {
        assert!(!tasks.iter().any(JoinHandle::is_finished), "somebody has seen what must not be");
        let all = counts.all();
        let enough = all.iter().zip([30, 4, 2, 1, 2, 8]).all(|(count, goal)| *count >= goal);
        check(enough, || format!("written, refused, flips, refused flips, flips in batches, looks: {all:?}"))
    })
    .await;
    counts.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("somebody has seen what must not be");
    }
    set(&clients[0], "d", "end", &json!({"kind": "both"})).await;
    let changes = witness.await.expect("a config broke its schema");
    println!(
        "{changes} changes witnessed; written, refused, flips, refused flips, flips in batches, looks: {:?}",
        counts.all()
    );
    cluster.equal_digests().await;
}

/// At rest, the number and the keys of the configs that would break are exactly those that were made so.
async fn report_is_exact(cluster: &Cluster) {
    let clients = cluster.clients();
    let expected = break_some(&clients).await;
    for client in &clients {
        names_exactly(client, &expected).await;
    }
}

/// Makes configs that neither schema takes.
async fn break_some(clients: &[Client]) -> Vec<String> {
    let any = clients[0].put(&path(), &json!({"json_schema": null}));
    any.header("idempotency-key", "any").insist().await.expect(200);
    let broken: Vec<String> = (0..BROKEN).map(|number| key(number * 7)).collect();
    for key in &broken {
        set(&clients[2], "d", key, &json!({"kind": "z"})).await;
    }
    broken
}

async fn names_exactly(client: &Client, expected: &[String]) {
    let refused = client.put(&path(), &json!({"json_schema": schema("x")})).insist().await;
    assert_eq!(refused.header("x-concord-breaking-configs"), expected.len().to_string(), "{refused:?}");
    assert_eq!(breaking(&refused), expected[..100]);
}

/// How long each of some calls took.
fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let [first, middle, last] = [0, times.len() / 2, times.len() - 1].map(|place| times[place]);
    println!("  {} {what}: shortest {first:?}, median {middle:?}, longest {last:?}", times.len());
}

/// Calls one node after another until the time is up.
async fn round_robin(
    clients: &[Client],
    span: Duration,
    call: impl AsyncFn(&Client, usize),
) -> Vec<Duration> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    for turn in 0.. {
        if begin.elapsed() >= span {
            break;
        }
        let asked = Instant::now();
        call(&clients[turn % clients.len()], turn).await;
        times.push(asked.elapsed());
    }
    times
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: CONFIGS (100000) configs whose schema changes for DURATION_S (30) seconds under WRITERS (32)"]
async fn large_definition_changes_its_schema_while_clients_write() {
    let size = |name, otherwise| number(name).map_or(otherwise, |number| usize::try_from(number).unwrap());
    let (configs, writers) = (size("CONFIGS", 100_000), size("WRITERS", 32));
    let span = Duration::from_secs(number("DURATION_S").unwrap_or(30));
    let cluster = Cluster::start("large-schema").await;
    let clients = cluster.clients();
    let begin = Instant::now();
    fill(&clients, configs).await;
    println!("{configs} configs made in {:?}", begin.elapsed());
    LocalSet::new().run_until(flipping(&cluster, configs)).await;
    // They leave alone what will be made to break both schemas.
    let first = BROKEN * 7;
    let writers = || {
        let clients = clients.clone();
        Writers::start(writers, move |place, turn| {
            let key = key(first + (turn * writers + place) * 7919 % (configs - WRITERS - first));
            let body = json!({"data": {"kind": "both", "turn": turn}});
            clients[place % clients.len()].put(&config("d", &key), &body)
        })
    };
    let change = async |client: &Client, turn: usize| {
        let schema = schema(if turn.is_multiple_of(2) { "x" } else { "y" });
        client.put(&path(), &json!({"json_schema": schema})).await.expect(200);
    };
    for _ in 0..2 {
        let (pace, ()) = writers().during(lasts(span / 3)).await;
        println!("writers alone: {pace}");
        let (pace, times) = writers().during(round_robin(&clients, span, change)).await;
        println!("during schema changes: {pace}");
        print_times("changes", times);
    }
    // Dry runs use the same limit of concurrent checks.
    let asker = [cluster.client(cluster.leader().await)];
    let ask = async |client: &Client, _| {
        let body = json!({"json_schema": schema("x")});
        client.put(&path(), &body).query(&[("dry_run", "true")]).await.expect(200);
    };
    let crowd = async {
        let asked = join_all((0..6).map(|_| round_robin(&asker, span, ask)));
        join(round_robin(&clients, span, change), asked).await
    };
    let (pace, (times, asked)) = writers().during(crowd).await;
    println!("during schema changes and dry runs: {pace}");
    print_times("changes", times);
    print_times("dry runs, six at a time", asked.concat());
    let expected = break_some(&clients).await;
    let refuse = async |client: &Client, _| names_exactly(client, &expected).await;
    let (pace, times) = writers().during(round_robin(&clients, span, refuse)).await;
    println!("during refused changes: {pace}");
    print_times("refusals that named exactly what breaks", times);
    cluster.equal_digests().await;
}
