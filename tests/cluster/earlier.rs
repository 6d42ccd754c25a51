//! Lists at an earlier revision: those that were taken then, on every node, also after restarts and on a node that was
//! given a snapshot.

use serde_json::{Value, json};

use super::snapshot::purge_logs;
use crate::{
    harness::{
        Answer, Client, Cluster, Options, check, eventually,
        load::{config, define, definition, set},
        number,
    },
    hostile::reads::{define_indexed, fill},
};

/// A list that was taken while the state was at its revision.
struct Taken {
    path: String,
    query: Vec<(String, String)>,
    revision: u64,
    data: Value,
}

impl Taken {
    async fn again(&self, client: &Client) -> Answer {
        let revision = self.revision.to_string();
        let mut query: Vec<(&str, &str)> =
            self.query.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        query.push(("revision", &revision));
        client.get(&self.path).query(&query).insist().await
    }

    /// The same list, asked of a node now.
    async fn is_the_same(&self, client: &Client, place: &str) {
        let answer = self.again(client).await.expect(200);
        let asked = format!("{place}: {} {:?} at {}", self.path, self.query, self.revision);
        assert_eq!(answer.data(), &self.data, "{asked}");
        assert_eq!(answer.revision(), self.revision, "{asked}");
    }
}

fn pick<'a>(random: &mut fastrand::Rng, texts: &[&'a str]) -> &'a str {
    texts[random.usize(..texts.len())]
}

/// A list of configs or of definitions with any filter, sort and page.
fn any_list(random: &mut fastrand::Rng) -> (String, Vec<(String, String)>) {
    let mut query = vec![
        ("limit".to_owned(), random.u32(1..9).to_string()),
        ("page".to_owned(), random.u32(1..4).to_string()),
        ("sort_order".to_owned(), pick(random, &["asc", "desc"]).to_owned()),
    ];
    let mut add = |name: &str, text: String| query.push((name.to_owned(), text));
    if random.u32(..6) == 0 {
        add("sort_by", pick(random, &["config_definition_key", "created_at", "modified_at"]).to_owned());
        if random.bool() {
            add("search", pick(random, &["t", "d", "T1"]).to_owned());
        }
        return ("/api/v1/config_definition/".to_owned(), query);
    }
    add("sort_by", pick(random, &["config_key", "created_at", "modified_at", "n", "s"]).to_owned());
    for _ in 0..random.u32(..3) {
        match random.u32(..7) {
            0 => add("n[gte]", random.u32(..50).to_string()),
            1 => add("n", random.u32(..50).to_string()),
            2 => add("s[prefix]", pick(random, &["s", "s1", "x"]).to_owned()),
            3 => add("tags", random.u32(..4).to_string()),
            4 => add("s[ne]", format!("s{}", random.u32(..4))),
            5 => add("n[exists]", pick(random, &["true", "false"]).to_owned()),
            _ => add("search", pick(random, &["k1", "K", "7"]).to_owned()),
        }
    }
    (format!("{}/config/", definition(pick(random, &["d", "e"]))), query)
}

/// One random change.
async fn change(client: &Client, random: &mut fastrand::Rng, turn: u64) {
    let name = if random.u32(..4) == 0 { "e" } else { "d" };
    let key = format!("k{}", random.u32(..40));
    match random.u32(..30) {
        0 => {
            let lists = [json!(["n", "s", "tags"]), json!(["s", "n"]), json!(["tags", "n", "s"])];
            let body = json!({"indexes": lists[random.usize(..3)]});
            let put = client.put(&definition(name), &body);
            put.header("idempotency-key", &format!("indexes-{turn}")).insist().await.expect(200);
        }
        1 => define(client, &format!("t{turn}")).await,
        2 => {
            let numbers = json!({"type": "array", "items": {"type": "integer"}});
            let properties = json!({"n": {"type": "integer"}, "s": {"type": "string"}, "tags": numbers});
            let body = json!({"json_schema": {"properties": properties, "title": format!("{turn}")}});
            let put = client.put(&format!("{}/schema", definition(name)), &body);
            put.header("idempotency-key", &format!("schema-{turn}")).insist().await.expect(200);
        }
        3 => {
            let delete = client.delete(&definition(&format!("t{}", random.u64(..turn.max(1)))));
            let answer = delete.header("idempotency-key", &format!("drop-{turn}")).insist().await;
            assert!(matches!(answer.status, 200 | 404), "{answer:?}");
        }
        4..9 => {
            let delete = client.delete(&config(name, &key));
            let answer = delete.header("idempotency-key", &format!("delete-{turn}")).insist().await;
            assert!(matches!(answer.status, 200 | 404), "{answer:?}");
        }
        _ => {
            let mut data =
                json!({"s": format!("s{}", random.u32(..20)), "tags": [random.u32(..4), random.u32(..4)]});
            if random.u32(..5) > 0 {
                data["n"] = json!(random.u32(..50));
            }
            set(client, name, &key, &data).await;
        }
    }
}

/// Takes so many lists between random changes.
async fn told(clients: &[Client], random: &mut fastrand::Rng, count: usize) -> Vec<Taken> {
    let mut all: Vec<Taken> = Vec::new();
    for turn in 0.. {
        let client = &clients[random.usize(..clients.len())];
        change(client, random, turn).await;
        let (path, query) = any_list(random);
        let pairs: Vec<(&str, &str)> =
            query.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let answer = clients[random.usize(..clients.len())].get(&path).query(&pairs).insist().await;
        if answer.status == 200 {
            let (revision, data) = (answer.revision(), answer.data().clone());
            all.push(Taken { path, query, revision, data });
        } else {
            // A path of the list is not indexed at the moment.
            answer.invalid();
        }
        if all.len() == count {
            break;
        }
    }
    all
}

#[tokio::test]
async fn a_list_at_an_earlier_revision_is_the_one_that_was_taken_then() {
    let count = number("PAST_LISTS").map_or(150, |count| usize::try_from(count).expect("it is small"));
    let mut random = fastrand::Rng::with_seed(number("PAST_SEED").unwrap_or(7));
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("past", &options).await;
    let clients = cluster.clients();
    for key in ["d", "e"] {
        let body = json!({"config_definition_key": key, "indexes": ["n", "s", "tags"]});
        let create = clients[0].post("/api/v1/config_definition/", &body);
        create.header("idempotency-key", &format!("define-{key}")).insist().await.expect(201);
    }
    let taken = told(&clients, &mut random, count).await;
    for (place, list) in taken.iter().enumerate() {
        for (node, client) in clients.iter().enumerate() {
            list.is_the_same(client, &format!("list {place} on node {}", node + 1)).await;
        }
    }
    // A node that is given a snapshot while it is away lacks the changes before it.
    let away = cluster.followers().await[0];
    let others = [away % 3 + 1, (away + 1) % 3 + 1];
    let missed_from = cluster.place_in_log(away).await;
    cluster.node(away).kill();
    purge_logs(&cluster, &others, "d", missed_from).await;
    cluster.node(away).start().await;
    cluster.ready().await;
    // A short run asks some of them: each is a page that another node makes.
    let step = if count > 150 { 1 } else { 10 };
    for list in taken.iter().rev().step_by(step) {
        list.is_the_same(&cluster.client(away), "after it was given a snapshot").await;
    }
    cluster.kill_all();
    cluster.start_all().await;
    for (place, list) in taken.iter().enumerate() {
        let node = place % 3;
        list.is_the_same(&clients[node], &format!("after a restart, on node {}", node + 1)).await;
    }
    pages_go_on_anywhere(&cluster, &taken).await;
}

/// The pages of one list at an earlier revision, each on another node.
async fn pages_go_on_anywhere(cluster: &Cluster, taken: &[Taken]) {
    let clients = cluster.clients();
    let at = taken[taken.len() / 2].revision.to_string();
    let path = format!("{}/config/", definition("d"));
    let sorted = [("sort_by", "config_key"), ("sort_order", "asc"), ("revision", at.as_str())];
    let whole = clients[0].get(&path).query(&sorted).query(&[("limit", "1000")]).insist().await.expect(200);
    let mut keys = Vec::new();
    let mut answer = clients[0].get(&path).query(&sorted).query(&[("limit", "3")]).insist().await;
    for turn in 1.. {
        keys.extend(answer.config_keys());
        let Some(link) = answer.headers.get("link") else { break };
        let link = link.to_str().expect("a link is ASCII");
        let next = link.strip_prefix('<').and_then(|rest| rest.split_once('>')).expect("a link").0.to_owned();
        answer = clients[turn % 3].get(&next).insist().await;
    }
    assert_eq!(keys, whole.config_keys());
}

#[tokio::test]
async fn what_is_compacted_deleted_or_not_there_yet_is_refused_like_a_read_of_one() {
    let options = Options::default().with("CONCORD_HISTORY_REVISIONS", "40");
    let cluster = Cluster::start_with("past-refused", &options).await;
    let clients = cluster.clients();
    define(&clients[0], "d").await;
    define(&clients[0], "gone").await;
    for n in 0..100_u64 {
        set(&clients[0], "d", "k", &json!({"n": n})).await;
    }
    let list = |client: &Client, name: &str, at: u64| {
        client.get(&format!("{}/config/", definition(name))).query(&[("revision", &at.to_string())])
    };
    for client in &clients {
        eventually("the history is cut", async || {
            let answer = list(client, "d", 9).insist().await;
            check(answer.status == 410, || format!("{answer:?}"))
        })
        .await;
        let refused = list(client, "d", 9).insist().await.refused(410, "expired_error");
        assert_eq!(refused.body["errors"][0]["code"], "revision_compacted", "{refused:?}");
        let future = list(client, "d", 1 << 40).insist().await.invalid();
        assert_eq!(future.body["errors"][0]["loc"], json!(["query", "revision"]), "{future:?}");
        let now = list(client, "d", 0).query(&[("revision", "x")]).insist().await;
        now.detail(&[(json!(["query", "revision"]), "int_parsing")]);
    }
    let now = clients[0].get(&format!("{}/config/", definition("d"))).insist().await.expect(200).revision();
    let delete = clients[0].delete(&definition("gone")).header("idempotency-key", "gone");
    delete.insist().await.expect(200);
    for client in &clients {
        list(client, "gone", now).insist().await.refused(404, "not_found_error");
        let all = client.get("/api/v1/config_definition/").query(&[("revision", &now.to_string())]);
        let listed = all.insist().await.expect(200).keys_of("config_definition_key");
        assert!(listed.contains(&"gone".to_owned()), "it was there: {listed:?}");
    }
}

/// What an earlier state costs: `PAST_CONFIGS` configs that are all written `PAST_REWRITES` times after it, in batches.
#[tokio::test]
async fn an_earlier_state_is_made_once_and_then_found() {
    let size =
        |name, default| number(name).map_or(default, |count| usize::try_from(count).expect("it is small"));
    let (configs, rewrites) = (size("PAST_CONFIGS", 2000), size("PAST_REWRITES", 2));
    let cluster = Cluster::start("past-cost").await;
    let clients = cluster.clients();
    define_indexed(&clients[0], "d", &json!(["n", "s"])).await;
    fill(
        &clients[0],
        "d",
        configs,
        |n| json!({"n": n, "s": format!("s{}", n % 100), "text": "x".repeat(250)}),
    )
    .await;
    let path = format!("{}/config/", definition("d"));
    let now = clients[1].get(&path).insist().await.expect(200).revision();
    for round in 1..=rewrites {
        for first in (0..configs).step_by(1000) {
            let operation = |n: usize| {
                let data = json!({"n": n + round, "s": "again", "text": "y".repeat(250)});
                json!({"op": "put_config", "config_definition_key": "d", "config_key": format!("k{n:07}"), "data": data})
            };
            let operations: Vec<Value> = (first..configs.min(first + 1000)).map(operation).collect();
            let batch = clients[0].post("/api/v1/batch", &json!({"operations": operations}));
            let id = format!("rewrite-{round}-{first}");
            batch.header("idempotency-key", &id).insist().await.expect(200);
        }
    }
    let before = cluster.nodes[1].memory_kb();
    for (what, filter, total) in [
        ("made", ("s", "s7"), configs / 100),
        ("found", ("s", "s8"), configs / 100),
        ("found", ("n[gte]", "10"), configs - 10),
    ] {
        let begun = tokio::time::Instant::now();
        let query = [("revision", &*now.to_string()), filter, ("sort_by", "n"), ("limit", "10")];
        let answer = clients[1].get(&path).query(&query).insist().await.expect(200);
        assert_eq!(answer.total(), total as u64, "{filter:?}");
        println!("{configs} configs, {} changes later, {what}: {:?}", configs * rewrites, begun.elapsed());
    }
    println!("{} kB more", cluster.nodes[1].memory_kb().saturating_sub(before));
}
