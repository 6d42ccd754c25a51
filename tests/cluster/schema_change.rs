//! A schema flips between two while clients write on all nodes: no config ever breaks the schema of its time.
//!
//! Both schemas take `both`; each takes one more kind that the other refuses. Writers turn their configs to a
//! kind that one schema alone takes, and back. A flip is refused while there is such a config, and a writer is
//! refused while the other schema holds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::harness::{
    Answer, Client, Cluster, check, eventually,
    load::{config, define, definition, set},
};

const CONFIGS: usize = 2000;
const WRITERS: usize = 6;

fn schema(kind: &str) -> Value {
    json!({"properties": {"kind": {"enum": [kind, "both"]}}, "required": ["kind"]})
}

fn path() -> String {
    format!("{}/schema", definition("d"))
}

#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    written: AtomicU64,
    refused: AtomicU64,
    flips: AtomicU64,
    refused_flips: AtomicU64,
    looks: AtomicU64,
}

impl Counts {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn all(&self) -> [u64; 5] {
        [&self.written, &self.refused, &self.flips, &self.refused_flips, &self.looks]
            .map(|count| count.load(Ordering::SeqCst))
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

/// Changes the schema to the other one, again and again.
async fn flip(client: Client, counts: Arc<Counts>) {
    for turn in 0.. {
        for kind in ["x", "y"] {
            for attempt in 0.. {
                if !counts.goes_on() {
                    return;
                }
                let call = client.put(&path(), &json!({"json_schema": schema(kind)}));
                let id = format!("flip-{turn}-{kind}-{attempt}");
                let answer = call.header("idempotency-key", &id).insist().await;
                if answer.status == 200 {
                    counts.flips.fetch_add(1, Ordering::SeqCst);
                    break;
                }
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

/// Looks at schema and configs: when the schema was the same before and behind, all configs fit it.
async fn look(client: &Client, counts: &Counts) -> Option<()> {
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
        assert_eq!(
            (broken.as_u64(), checked.as_u64()),
            (Some(0), Some((CONFIGS + WRITERS) as u64)),
            "{dry:?}"
        );
        counts.looks.fetch_add(1, Ordering::SeqCst);
    } else {
        assert!(matches!(dry.status, 412 | 429 | 503 | 504), "{dry:?}");
    }
    Some(())
}

async fn fill(clients: &[Client]) {
    define(&clients[0], "d").await;
    let create = async |number: usize| {
        let key = if number < CONFIGS { format!("c{number:04}") } else { format!("w{}", number - CONFIGS) };
        let body = json!({"config_key": key, "data": {"kind": "both"}});
        let call = clients[number % 3].post(&format!("{}/config/", definition("d")), &body);
        call.header("idempotency-key", &format!("fill-{key}")).insist().await.expect(201);
    };
    stream::iter(0..CONFIGS + WRITERS).map(create).buffer_unordered(48).collect::<Vec<()>>().await;
    let first = clients[0].put(&path(), &json!({"json_schema": schema("y")}));
    first.header("idempotency-key", "first").insist().await.expect(200);
}

#[tokio::test]
async fn no_config_breaks_its_schema_while_both_change() {
    // Tasks of one thread: what they wait with can't be sent to another.
    LocalSet::new().run_until(both_change()).await;
}

async fn both_change() {
    let cluster = Cluster::start("flipping-schema").await;
    let clients = cluster.clients();
    fill(&clients).await;
    let counts = Arc::new(Counts::default());
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for place in 0..WRITERS {
        tasks.push(spawn_local(write(clients[place % 3].clone(), place, Arc::clone(&counts))));
    }
    tasks.push(spawn_local(flip(clients[1].clone(), Arc::clone(&counts))));
    for client in clients.clone() {
        let counts = Arc::clone(&counts);
        tasks.push(spawn_local(async move {
            while counts.goes_on() {
                let _unsettled = look(&client, &counts).await.is_none();
            }
        }));
    }
    eventually("schemas change and configs are written", async || {
        assert!(!tasks.iter().any(JoinHandle::is_finished), "somebody has seen what must not be");
        let all = counts.all();
        let enough = all.iter().zip([30, 4, 2, 1, 8]).all(|(count, goal)| *count >= goal);
        check(enough, || format!("written, refused, flips, refused flips, looks: {all:?}"))
    })
    .await;
    counts.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("somebody has seen what must not be");
    }
    cluster.equal_digests().await;
    report_is_exact(&cluster).await;
}

/// At rest, the number and the keys of the configs that would break are exactly those that were made so.
async fn report_is_exact(cluster: &Cluster) {
    let clients = cluster.clients();
    let any = clients[0].put(&path(), &json!({"json_schema": null}));
    any.header("idempotency-key", "any").insist().await.expect(200);
    let expected: Vec<String> = (0..150).map(|number| format!("c{:04}", number * 7)).collect();
    for key in &expected {
        set(&clients[2], "d", key, &json!({"kind": "z"})).await;
    }
    for client in &clients {
        let refused = client.put(&path(), &json!({"json_schema": schema("x")})).insist().await;
        assert_eq!(refused.header("x-concord-breaking-configs"), "150", "{refused:?}");
        assert_eq!(breaking(&refused), expected[..100]);
    }
}
