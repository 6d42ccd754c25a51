//! One program runs in every environment, and sees nothing of another one.

use std::time::Duration;

use concord_client::{
    CacheOptions, Check, CheckCondition, Client, EventKind, Operation, Options, Origin, PutMode, ReadConfig,
    Request, Selection, Transaction, UndeleteAt,
};
use serde_json::{Value, json};

use super::define;
use crate::harness::{Cluster, DEADLINE};

fn client_of(urls: &[String], key: &str, environment: Option<&str>) -> Client {
    let environment = environment.map(str::to_owned);
    let options = Options {
        urls: urls.to_vec(),
        key: key.into(),
        timeout: DEADLINE,
        environment,
        ..Options::default()
    };
    Client::new(options).expect("the options are good")
}

fn cache_options(cluster: &Cluster, file: &str) -> CacheOptions {
    let options = CacheOptions::new(vec![Selection::definition("*")]).file(cluster.root().join(file));
    CacheOptions { confirm_every: Duration::from_millis(200), ..options }
}

/// What a program does with a definition, and what it is told.
#[expect(clippy::cognitive_complexity, reason = "one story, a request in each line")]
async fn everything(client: &Client, cluster: &Cluster, file: &str) -> Vec<Value> {
    let named = |name: &str| name.to_owned();
    define(client, "limits").await;
    let first = client.config("limits", "a").create(&json!({"v": 1})).await.unwrap();
    let operations = [
        Operation::CreateConfig { definition: named("limits"), key: named("b"), data: json!({"v": 2}) },
        Operation::PutConfig {
            definition: named("limits"),
            key: named("a"),
            data: json!({"v": 3}),
            mode: PutMode::ReplaceIf(first),
        },
    ];
    let applied = client.batch(&operations).await.unwrap();
    let mut told = vec![json!(applied.results.iter().map(|one| &one.definition).collect::<Vec<_>>())];
    let check = Check { definition: named("limits"), key: named("b"), condition: CheckCondition::Exists };
    let then = vec![Operation::GetConfig { definition: named("limits"), key: named("b") }];
    let transaction = Transaction { conditions: vec![check], then, otherwise: Vec::new() };
    let done = client.transaction(&transaction).await.unwrap();
    let ReadConfig::Found(read) = &done.results[0].read else { panic!("{done:?}") };
    told.push(json!([done.succeeded, done.results[0].definition, read["data"]]));
    client.config("limits", "b").update(|data: &mut Value| data["n"] = json!(1)).await.unwrap();
    let key = |records: Vec<Value>, name: &str| {
        let mut keys: Vec<Value> = records.into_iter().map(|mut record| record[name].take()).collect();
        keys.sort_by_key(Value::to_string);
        json!(keys)
    };
    for (path, name) in [
        ("/api/v1/config_definition/", "config_definition_key"),
        ("/api/v1/config", "config_definition_key"),
        ("/api/v1/config_definition/limits/config/", "config_key"),
    ] {
        let pages = client.pages(Request::get(path).query("limit", 1));
        told.push(key(pages.all().await.unwrap(), name));
    }
    let mut watch = client.watch(Request::get("/api/v1/watch").query("initial", "true"));
    let state = watch.next().await.unwrap();
    assert_eq!(state.kind, EventKind::State);
    told.push(key(state.data["configs"].as_array().unwrap().clone(), "config_definition_key"));

    let cache = client.cache(cache_options(cluster, file)).unwrap();
    cache.fresh(DEADLINE).await.unwrap();
    let (configs, _) = cache.all().unwrap();
    told.push(json!(
        configs.iter().map(|config| (&config.definition, &config.key, &config.data)).collect::<Vec<_>>()
    ));
    let live = cache.read("limits", "a", DEADLINE).await.unwrap().unwrap();
    told.push(json!([live.config.definition, live.config.data]));
    cache.save().await.unwrap();
    client.send(Request::new(http::Method::DELETE, "/api/v1/config_definition/limits")).await.unwrap();
    let deleted = client.deleted_definitions().await.unwrap();
    told.push(json!(deleted.iter().map(|one| &one.definition).collect::<Vec<_>>()));
    told.push(json!(client.undelete("limits", &UndeleteAt::Deletion).await.unwrap().definition));
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_program_runs_in_every_environment() {
    let mut cluster = Cluster::start("rust-environment").await;
    let urls: Vec<String> = cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
    let key = cluster.client(1).key;
    let mut told = Vec::new();
    for name in ["prod", "staging"] {
        let client = client_of(&urls, &key, Some(name));
        assert_eq!(client.environment(), Some(name));
        told.push(everything(&client, &cluster, name).await);
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0][2..5], [json!(["limits"]), json!(["limits", "limits"]), json!(["a", "b"])]);

    let whole = client_of(&urls, &key, None);
    let found: Value = whole.config("prod.limits", "a").get().await.unwrap().unwrap().value;
    assert_eq!(found, json!({"v": 3}));
    assert!(whole.config("limits", "a").get::<Value>().await.unwrap().is_none());
    let prod = whole.in_environment(Some("prod")).unwrap();
    assert!(prod.config("limits", "a").get::<Value>().await.unwrap().is_some());
    assert_eq!(prod.in_environment(Some("default")).unwrap().environment(), None);

    // The rules of an environment are an error of their own, and a change request has the whole keys.
    let rules = json!({"direct": "refuse", "approvals": 0, "freeze": []});
    prod.send(Request::new(http::Method::PUT, "/api/v1/environment/prod").json(&rules)).await.unwrap();
    let put = Operation::PutConfig {
        definition: "limits".into(),
        key: "a".into(),
        data: json!({"v": 4}),
        mode: PutMode::Replace,
    };
    let error = prod.batch([&put]).await.unwrap_err();
    assert!(error.is_change_required() && !error.is_environment_frozen(), "{error}");
    let change = prod.propose("more", "", [&put]).await.unwrap();
    assert_eq!(change["config_definition_keys"], json!(["prod.limits"]), "{change}");

    // Without a node, a file is used in its environment, and in no other: neither by a program nor by mistake.
    cluster.kill_all();
    for written in ["prod", "staging"] {
        for asked in [Some("prod"), Some("staging"), None] {
            let cache = client_of(&urls, &key, asked).cache(cache_options(&cluster, written)).unwrap();
            let (found, problem) = (cache.get("limits", "a"), cache.status().file_problem);
            if asked == Some(written) {
                assert_eq!(found.unwrap().unwrap().source.origin, Origin::File);
                assert_eq!(problem, None);
            } else {
                assert!(found.is_err(), "{written}, {asked:?}");
                let problem = problem.unwrap();
                assert!(problem.contains(&format!("of the environment `{written}`")), "{problem}");
            }
        }
    }
}
