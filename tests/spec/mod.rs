//! The contract, asked of the leader and of a follower. All tests share one cluster; each has its own keys.

mod access;
mod across;
mod batch;
mod body;
mod change_names;
mod change_requests;
mod change_times;
mod checks;
mod cursor;
mod data;
mod definitions_in_batches;
mod deletes;
mod documents;
mod dry_run;
mod environments;
mod errors;
mod filters;
mod flags;
mod grants;
mod headers;
mod history;
mod idempotency;
pub(crate) mod identity;
mod indexes;
mod keys;
mod labels;
mod lists;
mod metrics;
mod numbers;
mod operations;
mod patch;
mod persons;
mod polls;
mod preconditions;
mod protocols;
mod quotas;
mod races;
mod reads;
mod replies;
mod schema_change;
mod schemas;
mod side_doors;
mod sorting;
mod transactions;
mod unique;
mod watch;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::harness::{
    Answer, Call, Client, Cluster, Options,
    client::Unsettled,
    load::{config, definition},
};

/// The path of the collection of definitions.
pub(crate) const DEFINITIONS: &str = "/api/v1/config_definition/";

static SHARED: OnceCell<Cluster> = OnceCell::const_new();
static STARTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU32 = AtomicU32::new(0);

async fn shared() -> &'static Cluster {
    SHARED
        .get_or_init(async || {
            // Without this every test would wait in vain for a cluster that can't start.
            let failed_before = STARTING.swap(true, Ordering::SeqCst);
            assert!(!failed_before, "the shared cluster did not start; see the first failure");
            // No test here ends a node, so a slow election costs nothing, and a needless one is avoided.
            let options = Options::default()
                .with("CONCORD_CORS_ORIGINS", "https://a.example,http://localhost:3000")
                .with("CONCORD_HEARTBEAT_MS", "200")
                .with("CONCORD_ELECTION_MIN_MS", "2000")
                .with("CONCORD_ELECTION_MAX_MS", "3000")
                .with("CONCORD_WATCH_HEARTBEAT_MS", "200");
            Cluster::start_shared(&options).await
        })
        .await
}

/// One run of a test: the node that is asked, all nodes, and keys that no other run has.
#[derive(Debug)]
pub(crate) struct Run {
    /// The node that the contract is asked of.
    pub(crate) node: Client,
    /// The other two.
    pub(crate) others: [Client; 2],
    /// Its id.
    pub(crate) id: u64,
    prefix: String,
}

/// Runs a test on the leader and on a follower. A run that meets an unknown outcome proves nothing: it is made
/// again with new keys.
pub(crate) async fn on_leader_and_follower(test: impl AsyncFn(Run)) {
    for leads in [true, false] {
        for attempt in 1.. {
            let run = Run::begin(leads).await;
            let Err(panic) = AssertUnwindSafe(test(run)).catch_unwind().await else { break };
            if attempt >= 5 || !panic.is::<Unsettled>() {
                eprintln!("asked the leader: {leads}\n{}", shared().await.tails(15));
                resume_unwind(panic);
            }
        }
    }
}

impl Run {
    async fn begin(leads: bool) -> Self {
        let cluster = shared().await;
        let leader = cluster.leader().await;
        let id = if leads { leader } else { leader % 3 + 1 };
        let others = [id % 3 + 1, (id + 1) % 3 + 1];
        let prefix = format!("t{:05}", COUNT.fetch_add(1, Ordering::SeqCst));
        Self { node: cluster.client(id), others: others.map(|id| cluster.client(id)), id, prefix }
    }

    /// A key that only this run has.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// All three nodes.
    pub(crate) fn all(&self) -> [Client; 3] {
        [self.node.clone(), self.others[0].clone(), self.others[1].clone()]
    }

    /// Asks for a definition.
    pub(crate) fn ask(&self, key: &str, indexes: &Value, schema: &Value) -> Call {
        let body = json!({"config_definition_key": key, "indexes": indexes, "json_schema": schema});
        self.node.post(DEFINITIONS, &body)
    }

    /// Makes a definition.
    pub(crate) async fn define(&self, name: &str, indexes: &Value, schema: &Value) -> Defined {
        let key = self.key(name);
        self.ask(&key, indexes, schema).await.expect(201);
        Defined { key, node: self.node.clone() }
    }

    /// Makes a definition that takes any object and has no index.
    pub(crate) async fn define_open(&self, name: &str) -> Defined {
        self.define(name, &json!([]), &Value::Null).await
    }
}

/// A definition that a run made, with calls for its configs.
#[derive(Debug, Clone)]
pub(crate) struct Defined {
    pub(crate) key: String,
    pub(crate) node: Client,
}

impl Defined {
    pub(crate) fn path(&self) -> String {
        definition(&self.key)
    }

    pub(crate) fn configs(&self) -> String {
        format!("{}/config/", self.path())
    }

    pub(crate) fn config(&self, key: &str) -> String {
        config(&self.key, key)
    }

    pub(crate) fn get(&self, key: &str) -> Call {
        self.node.get(&self.config(key))
    }

    pub(crate) fn create(&self, key: &str, data: &Value) -> Call {
        self.node.post(&self.configs(), &json!({"config_key": key, "data": data}))
    }

    pub(crate) fn put(&self, key: &str, data: &Value) -> Call {
        self.node.put(&self.config(key), &json!({"data": data}))
    }

    pub(crate) fn remove(&self, key: &str) -> Call {
        self.node.delete(&self.config(key))
    }

    pub(crate) fn list(&self, query: &[(&str, &str)]) -> Call {
        self.node.get(&self.configs()).query(query)
    }

    /// Creates configs.
    pub(crate) async fn fill(&self, configs: &[(&str, Value)]) {
        for (key, data) in configs {
            self.create(key, data).await.expect(201);
        }
    }

    /// The keys that a query finds, by key; the total must be their number.
    pub(crate) async fn found(&self, query: &[(&str, &str)]) -> Vec<String> {
        let answer = self.list(query).query(&[("sort_by", "config_key"), ("sort_order", "asc")]).await;
        let keys = answer.config_keys();
        assert_eq!(usize::try_from(answer.total()), Ok(keys.len()), "{answer:?}");
        keys
    }
}

/// A member of an answer's payload as it was sent, digit for digit.
pub(crate) fn raw_data(answer: &Answer, path: &[&str]) -> String {
    type Members = std::collections::BTreeMap<String, Box<serde_json::value::RawValue>>;
    let mut text = answer.text.clone();
    for name in ["data"].iter().chain(path) {
        let members: Members = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{answer:?}"));
        text = members.get(*name).unwrap_or_else(|| panic!("no `{name}`: {answer:?}")).get().to_owned();
    }
    text
}
