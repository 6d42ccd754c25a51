//! Raw responses, the key-value store of Consul, and Spring Cloud Config.

use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::Method;
use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client},
    hostile::grants::{create_key, known},
};

fn shop() -> Value {
    json!({"db": {"host": "a", "port": 5432}, "tags": ["x", "y"], "price": 1.5, "none": null})
}

async fn defined(run: &Run) -> Defined {
    let d = run.define_open("shop").await;
    d.fill(&[("acme", shop()), ("acme2", json!({"db": {"host": "b"}})), ("zoo", json!({}))]).await;
    d
}

/// A definition with a secret, and a key that may read it but not see the secret.
async fn secretive(run: &Run) -> (Defined, String) {
    let schema =
        json!({"type": "object", "properties": {"password": {"type": "string", "x-concord-secret": true}}});
    let d = run.define("vault", &json!([]), &schema).await;
    d.fill(&[("acme", json!({"user": "u", "password": "hidden"}))]).await;
    let (_, key) =
        create_key(&run.node, &json!([{"verbs": ["read"], "definitions": [d.key]}]), &json!({})).await;
    known(&run.all(), &key, true).await;
    (d, key)
}

/// The keys and the values of a response of Consul.
fn pairs(answer: &Answer) -> Vec<(String, String)> {
    let text = |entry: &Value| BASE64.decode(entry["Value"].as_str().expect("a value")).expect("base64");
    let pair = |entry: &Value| {
        (entry["Key"].as_str().expect("a key").to_owned(), String::from_utf8(text(entry)).expect("UTF-8"))
    };
    answer.body.as_array().unwrap_or_else(|| panic!("{answer:?}")).iter().map(pair).collect()
}

fn kv(node: &Client, key: &str) -> Call {
    node.get(&format!("/v1/kv/{key}"))
}

fn index(answer: &Answer) -> u64 {
    answer.header("x-consul-index").parse().unwrap_or_else(|_| panic!("{answer:?}"))
}

/// What a response without a body has: no key.
#[track_caller]
fn no_key(answer: &Answer) {
    assert_eq!((answer.status, answer.text.as_str()), (404, ""), "{answer:?}");
    assert!(index(answer) > 0 && answer.header("x-consul-knownleader") == "true", "{answer:?}");
}

#[tokio::test]
async fn data_are_sent_without_an_envelope() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let plain = d.get("acme").await.expect(200);
        let raw = d.get("acme").query(&[("raw", "true")]).await.expect(200);
        assert_eq!(raw.body, shop());
        for name in ["etag", "last-modified", "x-concord-revision"] {
            assert_eq!(raw.header(name), plain.header(name), "{name}");
        }
        let known = d.get("acme").query(&[("raw", "true")]).header("if-none-match", raw.header("etag"));
        assert_eq!(known.await.expect(304).text, "");
        let yaml = d.get("acme").header("accept", "application/yaml").await.expect(200);
        let expected = "db:\n  host: a\n  port: 5432\ntags:\n  - x\n  - \"y\"\nprice: 1.5\nnone: null\n";
        assert_eq!((yaml.text.as_str(), yaml.header("content-type")), (expected, "application/yaml"));
        let properties = d.get("acme").header("accept", "text/x-java-properties").await.expect(200);
        assert_eq!(properties.text, "db.host=a\ndb.port=5432\ntags[0]=x\ntags[1]=y\nprice=1.5\nnone=\n");
        let part = d.get("acme").query(&[("raw", "true"), ("fields", "db.host")]).await.expect(200);
        assert_eq!(part.body, json!({"db": {"host": "a"}}));
        let pretty = d.get("acme2").query(&[("raw", "true"), ("pretty", "true")]).await.expect(200);
        assert_eq!(pretty.text, "{\n  \"db\": {\n    \"host\": \"b\"\n  }\n}\n");
        let head = run.node.call(Method::HEAD, &d.config("acme")).query(&[("raw", "true")]).await;
        assert_eq!((head.status, head.header("content-length")), (200, ""));
        let browser = d.get("acme").header("accept", "text/html,*/*;q=0.8").await.expect(200);
        assert_eq!(browser.body, plain.body);
        d.get("nothing").query(&[("raw", "true")]).await.refused(404, "not_found_error");
        d.get("acme").query(&[("raw", "yes")]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_whole_definition_is_one_object_by_key() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let all = d.list(&[("raw", "true")]).await.expect(200);
        assert_eq!(all.body, json!({"acme": shop(), "acme2": {"db": {"host": "b"}}, "zoo": {}}));
        let tag = all.header("etag").to_owned();
        d.list(&[("raw", "true")]).header("if-none-match", &tag).await.expect(304);
        d.put("zoo", &json!({"a": 1})).await.expect(200);
        let changed = d.list(&[("raw", "true")]).header("if-none-match", &tag).await.expect(200);
        assert_eq!(changed.body["zoo"], json!({"a": 1}));
        let yaml = d.list(&[]).header("accept", "application/yaml").await.expect(200);
        assert!(yaml.text.ends_with("zoo:\n  a: 1\n"), "{yaml:?}");
        for name in ["limit", "page", "db", "sort_by"] {
            d.list(&[("raw", "true"), (name, "1")]).await.invalid();
        }
        run.node
            .get("/api/v1/config_definition/nothing-here/config/?raw=true")
            .await
            .refused(404, "not_found_error");
        assert_eq!(d.list(&[("raw", "false"), ("limit", "1")]).await.total(), 3);
        // An index takes the name of the parameter.
        let indexed = run.define("indexed", &json!(["raw"]), &Value::Null).await;
        indexed.fill(&[("a", json!({"raw": true})), ("b", json!({"raw": false}))]).await;
        assert_eq!(indexed.found(&[("raw", "true")]).await, ["a"]);
        let all = indexed.list(&[("$raw", "true")]).await.expect(200);
        assert_eq!(all.body["b"], json!({"raw": false}));
    })
    .await;
}

#[tokio::test]
async fn a_definition_that_is_too_large_has_pages_only() {
    let run_one = async |run: Run| {
        let d = run.define_open("large").await;
        let text = "x".repeat(900 << 10);
        for key in ["a", "b", "c", "d"] {
            d.create(key, &json!({"text": text})).await.expect(201);
        }
        d.list(&[("raw", "true")]).await.expect(200);
        d.create("e", &json!({"text": text})).await.expect(201);
        d.list(&[("raw", "true")]).await.invalid();
        let answer = kv(&run.node, &format!("{}/?recurse", d.key)).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (400, "text/plain; charset=utf-8"),
            "{answer:?}"
        );
        for key in ["a", "b", "c", "d", "e"] {
            d.remove(key).await.expect(200);
        }
    };
    on_leader_and_follower(run_one).await;
}

#[tokio::test]
async fn a_schema_is_sent_without_an_envelope() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"type": "object", "required": ["a"]});
        let d = run.define("typed", &json!([]), &schema).await;
        let path = format!("{}/schema", d.path());
        let raw = run.node.get(&path).header("accept", "application/schema+json").await.expect(200);
        assert_eq!((&raw.body, raw.header("content-type")), (&schema, "application/schema+json"));
        let raw = run.node.get(&path).query(&[("raw", "true")]).await.expect(200);
        assert_eq!((&raw.body, raw.header("content-type")), (&schema, "application/json"));
        let open = run.define_open("open").await;
        let raw = run.node.get(&format!("{}/schema?raw=true", open.path())).await.expect(200);
        assert_eq!(raw.body, json!(true), "without a schema all data are valid");
    })
    .await;
}

#[tokio::test]
async fn a_key_can_be_a_password() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let with =
            |name: &str, value: &str| run.node.bare(Method::GET, &d.config("acme")).header(name, value);
        let basic = |pair: &str| format!("Basic {}", BASE64.encode(pair));
        with("authorization", &basic(&format!("anyone:{}", run.node.key))).await.expect(200);
        with("authorization", &basic("anyone:wrong-key-of-nobody")).await.expect(401);
        with("authorization", &basic(&run.node.key)).await.expect(401);
        with("x-consul-token", &run.node.key).await.expect(401);
        let kv = |name: &str, value: &str| {
            run.node.bare(Method::GET, &format!("/v1/kv/{}/acme", d.key)).header(name, value)
        };
        kv("x-consul-token", &run.node.key).await.expect(200);
        kv("authorization", &run.node.key).header("x-consul-token", &run.node.key).await.expect(200);
        kv("authorization", &run.node.key).header("x-consul-token", "another").await.expect(401);
        run.node
            .bare(Method::GET, &format!("/v1/kv/{}/acme?token={}", d.key, run.node.key))
            .await
            .expect(401);
    })
    .await;
}

#[tokio::test]
async fn configs_and_their_values_are_keys_of_consul() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let key = |rest: &str| format!("{}/{rest}", d.key);
        let one = kv(&run.node, &key("acme")).await.expect(200);
        let [(name, value)] = &pairs(&one)[..] else { panic!("{one:?}") };
        assert_eq!((name, serde_json::from_str(value).ok()), (&key("acme"), Some(shop())));
        let entry = &one.body[0];
        assert_eq!((&entry["Flags"], &entry["LockIndex"]), (&json!(0), &json!(0)));
        assert_eq!(entry["ModifyIndex"].to_string(), d.get("acme").await.header("etag").trim_matches('"'));
        let raw = kv(&run.node, &key("acme?raw")).await.expect(200);
        assert_eq!(serde_json::from_str::<Value>(&raw.text).ok(), Some(shop()));
        for (path, expected) in [
            ("db/host", "a"),
            ("db/port", "5432"),
            ("tags/1", "y"),
            ("price", "1.5"),
            ("tags", r#"["x","y"]"#),
        ] {
            let raw = kv(&run.node, &key(&format!("acme/{path}?raw"))).await.expect(200);
            assert_eq!(raw.text, expected, "{path}");
        }
        // Some clients encode the whole key.
        let encoded = key("acme/db/host").replace('/', "%2F");
        assert_eq!(kv(&run.node, &format!("{encoded}?raw")).await.expect(200).text, "a");
        let names =
            |answer: &Answer| -> Vec<String> { pairs(answer).into_iter().map(|(name, _)| name).collect() };
        let all = kv(&run.node, &key("?recurse")).await.expect(200);
        assert_eq!(names(&all), [key("acme"), key("acme2"), key("zoo")]);
        let leaves = ["db/host", "db/port", "none", "price", "tags/0", "tags/1"];
        let leaves = leaves.map(|leaf| key(&format!("acme/{leaf}")));
        let below = kv(&run.node, &key("acme/?recurse=1")).await.expect(200);
        assert_eq!(names(&below), leaves);
        let beside = kv(&run.node, &key("acme?recurse=")).await.expect(200);
        assert_eq!(names(&beside), [&[key("acme")], &leaves[..], &[key("acme2")]].concat());
        let keys = kv(&run.node, &key("acme/?keys&separator=/")).await.expect(200);
        let expected = ["db/", "none", "price", "tags/"].map(|leaf| key(&format!("acme/{leaf}")));
        assert_eq!(keys.body, json!(expected));
        let keys = kv(&run.node, &format!("{}?keys&separator=%2F", d.key)).await.expect(200);
        assert_eq!(keys.body, json!([key("")]));
        for absent in [
            "nothing",
            "acme/",
            "acme/db/",
            "acme/x?recurse",
            "a%20b",
            "x,y/?recurse",
            "acme//db",
            "zoo/?keys",
        ] {
            no_key(&kv(&run.node, &key(absent)).await);
        }
        for absent in ["a%20b/?recurse", "not-a-definition/?recurse", "not-a-definition"] {
            no_key(&kv(&run.node, absent).await);
        }
        let missing = kv(&run.node, "").await.expect(400);
        assert_eq!(missing.text, "Missing key name");
        for wrong in ["acme?index=x", "acme?wait=soon", "acme?stale&consistent"] {
            kv(&run.node, &key(wrong)).await.expect(400);
        }
        for method in [Method::PUT, Method::DELETE, Method::POST] {
            let path = format!("/v1/kv/{}", key("acme"));
            run.node.bare(method, &path).header("x-consul-token", &run.node.key).await.expect(405);
        }
        let stale = kv(&run.node, &key("acme?stale&dc=dc1&filter=x")).await.expect(200);
        assert!(stale.header("x-consul-lastcontact").parse::<u64>().is_ok(), "{stale:?}");
    })
    .await;
}

#[tokio::test]
async fn a_request_of_consul_waits_for_a_change_of_its_key() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let path = format!("{}/acme", d.key);
        let first = kv(&run.node, &format!("{path}?index=0&wait=10s")).await.expect(200);
        let from = index(&first);
        let wait = async |key: &str, from: u64, wait: &str| {
            let begun = Instant::now();
            let answer =
                kv(&run.others[0], &format!("{key}?recurse&index={from}&wait={wait}")).await.expect(200);
            (answer, begun.elapsed())
        };
        // What others write does not end the wait, and the index stays.
        let others = async {
            d.put("zoo", &json!({"n": 1})).await.expect(200);
            d.put("zoo", &json!({"n": 2})).await.expect(200);
        };
        let ((same, waited), ()) = tokio::join!(wait(&path, from, "1500ms"), others);
        assert_eq!(index(&same), from, "{same:?}");
        assert!(waited >= Duration::from_millis(1400), "{waited:?}");
        let change = async {
            d.put("acme", &json!({"n": 3})).await.expect(200);
        };
        let ((changed, waited), ()) = tokio::join!(wait(&path, from, "60s"), change);
        assert!(index(&changed) > from && waited < Duration::from_secs(30), "{waited:?} {changed:?}");
        let values = pairs(&changed);
        assert!(values.contains(&(format!("{path}/n"), "3".to_owned())), "{changed:?}");
        // From then on it waits again; before, it answers at once.
        let (again, waited) = wait(&path, from, "60s").await;
        assert!(waited < Duration::from_secs(30) && index(&again) >= index(&changed), "{again:?}");
        // A deletion is a change, too.
        let key = format!("{path}?index={}&wait=60s", index(&changed));
        let (gone, removed) = tokio::join!(kv(&run.node, &key), d.remove("acme"));
        removed.expect(200);
        no_key(&gone);
        // A revision that is none of this cluster yet.
        let ahead =
            kv(&run.node, &format!("{}/zoo?index={}&wait=60s", d.key, u64::MAX / 2)).await.expect(200);
        assert!(index(&ahead) < u64::MAX / 2);
        // No such key can come.
        let begun = Instant::now();
        let answer = kv(&run.node, &format!("{}/x,y/?recurse&index={from}&wait=1s", d.key)).await;
        no_key(&answer);
        assert!(begun.elapsed() >= Duration::from_millis(900), "a client would ask again at once");
    })
    .await;
}

#[tokio::test]
async fn a_key_reads_by_consul_what_it_may_read() {
    on_leader_and_follower(async |run: Run| {
        let (vault, key) = secretive(&run).await;
        let other = defined(&run).await;
        let node = run.node.with_credential(&key);
        kv(&node, &format!("{}/acme", other.key)).await.expect(403);
        kv(&node, &format!("{}/?recurse", other.key)).await.expect(403);
        let all = kv(&node, "?recurse").await.expect(200);
        assert_eq!(pairs(&all).len(), 1, "{all:?}");
        assert_eq!(all.header("x-concord-redacted"), "#/password");
        let whole = kv(&node, &format!("{}/acme?raw", vault.key)).await.expect(200);
        assert_eq!(whole.body, json!({"user": "u", "password": null}));
        let leaves = kv(&node, &format!("{}/acme/?recurse", vault.key)).await.expect(200);
        assert_eq!(pairs(&leaves), [(format!("{}/acme/user", vault.key), "u".to_owned())]);
        no_key(&kv(&node, &format!("{}/acme/password", vault.key)).await);
        let seen = kv(&run.node, &format!("{}/acme/password?raw", vault.key)).await.expect(200);
        assert_eq!(seen.text, "hidden");
        // No empty property passes for a secret.
        let config = vault.config("acme");
        node.get(&config).header("accept", "text/x-java-properties").await.refused(403, "forbidden_error");
        let raw = node.get(&config).query(&[("raw", "true")]).await.expect(200);
        assert_eq!((&raw.body["password"], raw.header("x-concord-redacted")), (&Value::Null, "#/password"));
        node.get(&format!("/spring/{}(_)acme/default", vault.key)).await.refused(403, "forbidden_error");
        run.node.get(&format!("/spring/{}(_)acme/default", vault.key)).await.expect(200);
    })
    .await;
}

/// The names of the sources of a response, and their properties.
fn sources(answer: &Answer) -> Vec<(String, Value)> {
    let list = answer.body["propertySources"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
    list.iter()
        .map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one["source"].clone()))
        .collect()
}

#[tokio::test]
async fn configs_are_sources_of_spring() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("orders").await;
        d.fill(&[
            ("default", json!({"db": {"host": "base", "port": 1}, "tags": ["a", "b"]})),
            ("prod", json!({"db": {"host": "prod"}, "tags": []})),
        ])
        .await;
        let name = &d.key;
        let answer = run.node.get(&format!("/spring/{name}/eu,prod")).await.expect(200);
        let expected = [
            (format!("concord:{name}-prod ({name}/prod)"), json!({"db.host": "prod", "tags": ""})),
            (
                format!("concord:{name} ({name}/default)"),
                json!({"db.host": "base", "db.port": 1, "tags[0]": "a", "tags[1]": "b"}),
            ),
        ];
        assert_eq!(sources(&answer), expected);
        assert_eq!((&answer.body["name"], &answer.body["profiles"]), (&json!(name), &json!(["eu", "prod"])));
        assert_eq!(answer.body["version"], json!(answer.header("x-concord-revision")));
        let base = run.node.get(&format!("/spring/{name}/default")).await.expect(200);
        assert_eq!(sources(&base).len(), 1);
        let yaml = run.node.get(&format!("/spring/{name}-prod.yml")).await.expect(200);
        assert_eq!(yaml.text, "db:\n  host: prod\n  port: 1\ntags: []\n");
        let properties = run.node.get(&format!("/spring/latest/{name}-prod.properties")).await.expect(200);
        assert_eq!(properties.text, "db.host=prod\ndb.port=1\ntags=\n");
        let json = run.node.get(&format!("/spring/{name}-prod.json")).await.expect(200);
        assert_eq!(json.body, json!({"db": {"host": "prod", "port": 1}, "tags": []}));
        // A config as application, and a label.
        let services = run.node.get(&format!("/spring/{name}(_)prod/default")).await.expect(200);
        assert_eq!(sources(&services)[0].1, json!({"db.host": "prod", "tags": ""}));
        let before = answer.header("x-concord-revision").to_owned();
        d.put("prod", &json!({"db": {"host": "changed"}})).await.expect(200);
        let labelled = run.node.get(&format!("/spring/{name}/prod/{before}")).await.expect(200);
        assert_eq!((&labelled.body["label"], &labelled.body["version"]), (&json!(before), &json!(before)));
        assert_eq!(sources(&labelled)[0].1["db.host"], "prod");
        let now = run.node.get(&format!("/spring/{name}/prod/main")).await.expect(200);
        assert_eq!(sources(&now)[0].1["db.host"], "changed");
        run.node.get(&format!("/spring/{name}/prod/feature-x")).await.refused(404, "not_found_error");
        run.node.get("/spring/nobody-has-this/prod").await.refused(404, "not_found_error");
        run.node.get(&format!("/spring/{name}")).await.refused(404, "not_found_error");
    })
    .await;
}
