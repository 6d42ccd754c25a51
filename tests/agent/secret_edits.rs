//! Random edits of records with secret values, each beside a model of the files that two agents write from them: one may
//! see the secret values, the other lost the permission.
//!
//! **Invariant:** the files of the first agent are what the model says. The second writes no file that uses a secret
//! value, and every other.
//!
//! `EDITS=1000` sets how many edits there are, `SEED` which.

use http::Method;
use serde_json::{Value, json};

use super::{Agent, define, put, rights};
use crate::harness::{Cluster, check, eventually, number, ports};

const EDITS: u64 = 15;
const FILES: &str = r#"files:
  - {path: all.json, definition: limits, config: acme, debounce_ms: 10}
  - {path: tokens.conf, template_text: "{% for user in configs.limits.acme.users %}{{ user.name }}={{ user.token|default('none') }};{% endfor %}", debounce_ms: 10}
  - {path: names.conf, template_text: "{{ configs.limits.acme.n }} {{ configs.limits.acme.host }}:{% for user in configs.limits.acme.users %}{{ user.name }} {% endfor %}", debounce_ms: 10}
"#;
const SCHEMA: &str = r#"{"json_schema": {"properties": {
    "password": {"x-concord-secret": true},
    "users": {"items": {"properties": {"token": {"x-concord-secret": true}}}}}}}"#;

/// One change: of a name, of a secret, of the list.
fn edit(dice: &mut fastrand::Rng, data: &mut Value) {
    let fresh = format!("{:x}", dice.u64(..));
    let secret = format!("secret-{fresh}");
    let users = data["users"].as_array_mut().expect("a list");
    let any = if users.is_empty() { 0 } else { dice.usize(0..users.len()) };
    match dice.u8(0..7) {
        0 if !users.is_empty() => drop(users.remove(any)),
        1 if users.len() < 8 => users.insert(any, json!({"name": format!("u{fresh}"), "token": secret})),
        2 if users.len() < 8 => users.push(json!({"name": format!("u{fresh}")})),
        3 => dice.shuffle(users),
        4 if !users.is_empty() => users[any]["token"] = secret.into(),
        5 => data["password"] = secret.into(),
        _ => data["host"] = format!("h{fresh}").into(),
    }
}

/// What the files hold: all data, the tokens, the names.
fn expected(data: &Value) -> [String; 3] {
    let users = data["users"].as_array().expect("a list");
    let name = |user: &Value| user["name"].as_str().expect("a text").to_owned();
    let token = |user: &Value| user["token"].as_str().unwrap_or("none").to_owned();
    let tokens = users.iter().map(|user| format!("{}={};", name(user), token(user)));
    let names = users.iter().map(|user| format!("{} ", name(user)));
    let host = data["host"].as_str().expect("a text");
    [format!("{data:#}\n"), tokens.collect(), format!("{} {host}:{}", data["n"], names.collect::<String>())]
}

#[tokio::test]
async fn random_edits_are_in_the_files_and_no_secret_is_where_it_may_not_be() {
    let edits = number("EDITS").unwrap_or(EDITS);
    let seed = number("SEED").unwrap_or(7);
    let cluster = Cluster::start("agent-edits").await;
    define(&cluster).await;
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let answer = cluster.client(1).put("/api/v1/config_definition/limits/schema", &schema).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut data =
        json!({"n": 0, "host": "h", "password": "secret-p", "users": [{"name": "a", "token": "secret-a"}]});
    put(&cluster, 1, "acme", &data).await;

    let verbs = |verbs: &[&str]| json!([{"verbs": verbs, "definitions": ["limits"]}]);
    let (id, text) = rights::key(&cluster, &verbs(&["read", "reveal"])).await;
    let mut blind = Agent::new(&cluster, FILES);
    blind.key = text;
    let mut seeing = Agent {
        root: cluster.root().join("seeing"),
        port: ports::free("127.0.0.1"),
        urls: blind.urls.clone(),
        key: cluster.client(1).key,
        environment: None,
        labels: None,
        child: None,
    };
    std::fs::create_dir_all(&seeing.root).unwrap();
    seeing.configure(FILES);
    for agent in [&mut blind, &mut seeing] {
        agent.start();
    }
    const NAMES: [&str; 3] = ["all.json", "tokens.conf", "names.conf"];
    for (name, text) in NAMES.iter().zip(&expected(&data)) {
        blind.has(name, text).await;
    }
    let narrowed = json!({"grants": verbs(&["read"])});
    let answer =
        cluster.client(1).call(Method::PATCH, &format!("/api/v1/api_key/{id}")).json(&narrowed).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // The next change is redacted as soon as the node knows the narrowed grant.
    let mut n = 0;
    eventually("the files that use secret values fail", async || {
        n -= 1;
        data["n"] = n.into();
        put(&cluster, 1, "acme", &data).await;
        let (_, _, health) = blind.get("/healthz").await?;
        check(health["files_failing"].as_array().is_some_and(|files| files.len() == 2), || health.to_string())
    })
    .await;
    let begun = [blind.read("all.json"), blind.read("tokens.conf")];

    let mut dice = fastrand::Rng::with_seed(seed);
    for turn in 1..=edits {
        edit(&mut dice, &mut data);
        data["n"] = turn.into();
        put(&cluster, 1 + turn % 3, "acme", &data).await;
        let wanted = expected(&data);
        eventually(&format!("edit {turn} of seed {seed} is in the files"), async || {
            let files = NAMES.map(|name| seeing.read(name));
            check(files == wanted, || format!("{files:?}, not {wanted:?}"))?;
            let names = blind.read("names.conf");
            check(names == wanted[2], || format!("{names:?}, not {:?}", wanted[2]))
        })
        .await;
        // The files that use secret values stay as they were while the key could see them.
        assert_eq!([blind.read("all.json"), blind.read("tokens.conf")], begun, "edit {turn} of seed {seed}");
        if turn % 10 == 1 {
            let (status, headers, body) =
                blind.get("/api/v1/config_definition/limits/config/acme").await.unwrap();
            assert!(status == 200 && !body.to_string().contains("secret-"), "{body}");
            assert!(headers["x-concord-redacted"].to_str().unwrap().contains("#/password"), "{headers:?}");
        }
    }
    let log = blind.read("log.txt");
    assert!(!log.contains("secret-"), "{log}");
    for agent in [&mut blind, &mut seeing] {
        agent.stop().await;
    }
    println!("{edits} edits of seed {seed}");
}
