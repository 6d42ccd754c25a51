//! The released version from which the tests upgrade: its program, and directories that it left.
//!
//! `scripts/fixture.sh make` stores both when a version is released, and `scripts/fixture.sh build` builds the program.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::grants::create_key;
use crate::harness::{
    Client, Node, Options, clock, eventually, fresh_directory,
    load::{config, definition},
};

/// The newest release, and the highest feature level that it knows.
const VERSION: &str = "1.0.0";
pub(super) const LEVEL: u32 = 1;

/// What the directories of a release are called, and whether they are encrypted.
pub(super) const DIRECTORIES: [(&str, bool); 2] = [("plain", false), ("encrypted", true)];

/// Members of responses that tell of this process and not of the data.
const OF_A_MOMENT: [&str; 3] = ["last_used_at", "message", "from"];

/// The program of the release. The first test that asks for it builds it.
pub(super) static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fixture.sh");
    let output = Command::new(script).args(["build", VERSION]).output().expect("bash is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
});

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(VERSION)
}

/// What a release left: what it answered, and when.
pub(super) struct Left {
    left_at: Timestamp,
    answers: Vec<(String, Value)>,
    keys: Vec<String>,
}

impl Left {
    /// Gives a node that does not run yet a directory of the release.
    pub(super) fn unpack(name: &str, root: &Path, node: &mut Node) -> Self {
        let archive = stored().join(format!("{name}.tar.gz"));
        let unpacked = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(root).status();
        assert!(unpacked.is_ok_and(|status| status.success()), "{} is unpacked", archive.display());
        std::fs::rename(root.join(name), &node.directory).expect("the node has no directory yet");
        let said = std::fs::read(root.join(format!("{name}.json"))).expect("it is in the archive");
        let said: Value = serde_json::from_slice(&said).expect("it is JSON");
        let answers = said["answers"].as_object().expect("answers by path").clone();
        Self {
            left_at: said["left_at"].as_str().and_then(|time| time.parse().ok()).expect("a time"),
            answers: answers.into_iter().collect(),
            keys: serde_json::from_value(said["keys"].clone()).expect("a list of secrets"),
        }
    }

    /// Gives nodes that do not run yet clocks that go on where the release stopped: otherwise what expires there would
    /// depend on the day of the test.
    pub(super) fn set_clocks(&self, root: &Path, nodes: &mut [Node]) {
        clock::prepare(root, nodes);
        let since = Timestamp::now().as_second() - self.left_at.as_second();
        for node in nodes {
            clock::set(&clock::file(root, node.id), -since);
        }
    }

    /// Asserts that a node answers as the release did. What a later version adds to a response is no difference.
    pub(super) async fn is_answered_by(&self, client: &Client) {
        self.compare(client, |_| true).await;
    }

    /// The same after other definitions were written: lists of everything have these, too.
    pub(super) async fn is_kept_by(&self, client: &Client) {
        self.compare(client, |path| !path.starts_with("/api/v1/changes") && !path.ends_with("_definition/"))
            .await;
    }

    async fn compare(&self, client: &Client, is_asked: fn(&str) -> bool) {
        let answers: Vec<_> = self.answers.iter().filter(|(path, _)| is_asked(path)).collect();
        assert!(answers.len() > 20, "the release was asked much");
        for (path, expected) in answers {
            let answer = client.get(path).insist().await.expect(200);
            if let Some(why) = difference(expected, answer.data(), path) {
                panic!("{why}\nthe release: {expected}\nnow: {}", answer.data());
            }
        }
        for key in &self.keys {
            client.with_credential(key).get("/api/v1/whoami").insist().await.expect(200);
        }
    }
}

/// Where an answer lacks something or differs.
fn difference(expected: &Value, found: &Value, place: &str) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let members = expected.iter().filter(|(name, _)| !OF_A_MOMENT.contains(&name.as_str()));
            members.into_iter().find_map(|(name, value)| {
                let place = format!("{place} {name}");
                let Some(found) = found.get(name) else { return Some(format!("{place} is missing")) };
                difference(value, found, &place)
            })
        }
        (Value::Array(expected), Value::Array(found)) => {
            if expected.len() != found.len() {
                return Some(format!("{place} has {} elements, not {}", found.len(), expected.len()));
            }
            let pairs = expected.iter().zip(found).enumerate();
            pairs.into_iter().find_map(|(n, (one, other))| difference(one, other, &format!("{place}[{n}]")))
        }
        _ => (expected != found).then(|| format!("{place} is {found}, not {expected}")),
    }
}

#[test]
fn a_difference_is_what_is_missing_or_other() {
    let left = json!({"a": [1, {"b": null}], "last_used_at": 1});
    assert_eq!(difference(&left, &json!({"a": [1, {"b": null, "new": 2}], "more": 3}), ""), None);
    for other in [json!({}), json!({"a": [1]}), json!({"a": [1, {}]}), json!({"a": [2, {"b": null}]})] {
        assert!(difference(&left, &other, "").is_some(), "{other}");
    }
}

/// Writes some of everything that a directory can hold. The answer: paths to read it by, and secrets that are valid.
async fn fill(client: &Client) -> (Vec<String>, Vec<String>) {
    let mut paths = fill_definitions(client).await;
    let (more, keys) = fill_changes(client).await;
    paths.extend(more);
    (paths, keys)
}

async fn make(client: &Client, method: Method, path: &str, body: &Value, status: u16) -> Value {
    client.call(method, path).json(body).insist().await.expect(status).data().clone()
}

#[expect(clippy::cognitive_complexity, reason = "one request in some lines")]
async fn fill_definitions(client: &Client) -> Vec<String> {
    const ALL: &str = "/api/v1/config_definition/";
    let limits = json!({"config_definition_key": "limits", "indexes": ["tier", "code", "labels.*", "items[].name"],
        "unique": ["code"], "json_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": {"tier": {"type": ["string", "null"]}, "code": {"type": "integer"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "password": {"type": "string", "x-concord-secret": true}}}});
    make(client, Method::POST, ALL, &limits, 201).await;
    let mut first = 0;
    for n in 0..200 {
        let data = json!({"tier": format!("t{}", n % 7), "code": n, "labels": {"team": format!("x{}", n % 3)},
            "items": [{"name": format!("i{n}")}], "password": "hidden", "text": "ä€𝄞 \u{1}"});
        let put = client.put(&config("limits", &format!("k{n}")), &json!({ "data": data }));
        let made = put.query(&[("upsert", "true")]).insist().await.expect(201).revision();
        first = if n == 1 { made } else { first };
    }
    for n in 0..20 {
        let path = config("limits", &format!("k{n}"));
        let patch =
            client.call(Method::PATCH, &path).text("application/merge-patch+json", r#"{"tier": null}"#);
        patch.insist().await.expect(200);
    }
    for n in 20..30 {
        client.delete(&config("limits", &format!("k{n}"))).insist().await.expect(200);
    }
    make(
        client,
        Method::POST,
        &format!("{}/rollback", config("limits", "k1")),
        &json!({ "revision": first }),
        200,
    )
    .await;
    // Numbers and orders that a parser could change.
    make(client, Method::POST, ALL, &json!({"config_definition_key": "numbers"}), 201).await;
    let exact = r#"{"data": {"z": 7.0, "a": 1e400, "long": 123456789012345678901234567890, "e": -0.0, "deep": [[[{}]]]}}"#;
    let put = client.call(Method::PUT, &config("numbers", "exact")).query(&[("upsert", "true")]);
    put.text("application/json", exact).insist().await.expect(201);
    // One that comes back, one that is kept, one that is protected.
    for key in ["returned", "kept", "guarded"] {
        make(client, Method::POST, ALL, &json!({"config_definition_key": key}), 201).await;
        make(
            client,
            Method::PUT,
            &format!("{}?upsert=true", config(key, "a")),
            &json!({"data": {"n": 1}}),
            201,
        )
        .await;
    }
    for key in ["returned", "kept"] {
        client.delete(&definition(key)).insist().await.expect(200);
    }
    client.post(&format!("{}/undelete", definition("returned")), &json!({})).insist().await.expect(201);
    make(
        client,
        Method::PUT,
        &format!("{}/protection", definition("guarded")),
        &json!({"protected": true}),
        200,
    )
    .await;
    let mut paths = vec![ALL.to_owned(), "/api/v1/deleted_definition/".to_owned()];
    for key in ["limits", "numbers", "returned", "guarded"] {
        for rest in
            ["", "/schema", "/unique", "/protection", "/history", "/config/?limit=100&include=revision"]
        {
            paths.push(format!("{}{rest}", definition(key)));
        }
    }
    for filter in ["tier=t3", "labels.team=x2", "items[].name=i150", "code[gte]=190&sort_by=code"] {
        paths.push(format!("{}/config/?{filter}", definition("limits")));
    }
    for (key, name) in [("limits", "k1"), ("limits", "k25"), ("numbers", "exact")] {
        paths.push(format!("{}/history", config(key, name)));
    }
    paths
}

#[expect(clippy::cognitive_complexity, reason = "one request in some lines")]
async fn fill_changes(client: &Client) -> (Vec<String>, Vec<String>) {
    const CHANGES: &str = "/api/v1/change_request/";
    make(
        client,
        Method::POST,
        "/api/v1/config_definition/",
        &json!({"config_definition_key": "prod.limits"}),
        201,
    )
    .await;
    make(
        client,
        Method::PUT,
        &format!("{}?upsert=true", config("prod.limits", "acme")),
        &json!({"data": {"max": 1}}),
        201,
    )
    .await;
    let grants = json!([{"verbs": ["read", "write", "define", "delete", "approve", "bypass"], "definitions": ["prod.*"]}]);
    let mut people = Vec::new();
    for person in ["ann@example.com", "bob@example.com", "eve@example.com"] {
        people.push(create_key(client, &grants, &json!({ "person": person })).await);
    }
    let machine = create_key(client, &json!([{"verbs": ["read"], "definitions": ["*"]}]), &json!({})).await;
    let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
    make(client, Method::PUT, "/api/v1/environment/prod", &rules, 201).await;
    let freeze = json!({"direct": "allow", "approvals": 0,
        "freeze": [{"from": "2100-01-01T00:00:00Z", "until": "2100-01-02T00:00:00Z", "reason": "holidays"}]});
    make(client, Method::PUT, "/api/v1/environment/staging", &freeze, 201).await;
    let (ann, bob) = (client.with_credential(&people[0].1), client.with_credential(&people[1].1));
    let later = (Timestamp::now() + SignedDuration::from_hours(48)).to_string();
    let propose = async |n: u64, key: &str| {
        let create = json!({"op": "create_config", "config_definition_key": "prod.limits", "config_key": key, "data": {"max": n}});
        let mut body = json!({"title": format!("raise {key}"), "operations": [create]});
        match n {
            5 => body["revert_after_s"] = json!(172_800),
            6 => body["schedule"] = json!({ "not_before": later }),
            7 => (body["apply"], body["schedule"]) = (json!("when_approved"), json!({ "not_before": later })),
            _ => {}
        }
        let made = make(&ann, Method::POST, CHANGES, &body, 201).await;
        (format!("{CHANGES}{}", made["change_id"].as_str().unwrap()), json!({"digest": made["digest"]}))
    };
    let mut paths = Vec::new();
    // Withdrawn, rejected, approved, applied twice, taken back in two days, applied in two days by a person and by itself.
    for n in 0..8 {
        let (path, digest) = propose(n, &format!("c{n}")).await;
        let act = |by: &Client, what: &str| by.post(&format!("{path}/{what}"), &digest);
        if n >= 1 {
            act(&bob, if n == 1 { "reject" } else { "approve" }).insist().await.expect(200);
        }
        if (3..=6).contains(&n) {
            act(&ann, "apply").insist().await.expect(200);
        }
        if n == 0 {
            ann.post(&format!("{path}/withdraw"), &json!({})).insist().await.expect(200);
        }
        paths.push(path);
    }
    // One that somebody has to review.
    let bypass = ann.put(&config("prod.limits", "acme"), &json!({"data": {"max": 9}}));
    let bypass = bypass.query(&[("bypass", "true")]).header("x-change-reason", "an incident");
    bypass.insist().await.expect(200);
    paths.extend(["/api/v1/environment/".to_owned(), CHANGES.to_owned(), "/api/v1/api_key/".to_owned()]);
    paths.push("/api/v1/changes?latest=100".to_owned());
    paths.push(format!("{}/config/?include=revision", definition("prod.limits")));
    (paths, people.into_iter().chain([machine]).map(|(_, secret)| secret).collect())
}

/// Not a test: stores the directories of this version, when it is released.
#[tokio::test]
#[ignore = "`scripts/fixture.sh make` runs it once for each release"]
async fn the_directories_of_this_version_are_stored() {
    let place = PathBuf::from(std::env::var_os("FIXTURE").expect("scripts/fixture.sh sets it"));
    for (name, is_encrypted) in DIRECTORIES {
        let root = fresh_directory("fixture");
        let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
        let options = if is_encrypted { options.encrypted() } else { options };
        let mut node = Node::new(1, root.path(), &options.settings);
        node.directory = root.path().join(name);
        node.start_anywhere().await;
        let client = node.client();
        let members = json!({"members": [node.as_member()]});
        eventually("the cluster is formed", async || {
            let answer = client.post("/api/v1/cluster/init", &members).attempt().await?;
            crate::harness::check(answer.status == 200, || format!("{answer:?}"))
        })
        .await;
        let (paths, keys) = fill(&client).await;
        let mut answers = serde_json::Map::new();
        for path in paths {
            let answer = client.get(&path).insist().await.expect(200);
            answers.insert(path, answer.data().clone());
        }
        // Killed, so that the log has what no snapshot has yet.
        node.kill();
        let said = json!({"left_at": Timestamp::now().to_string(), "answers": answers, "keys": keys});
        std::fs::write(root.path().join(format!("{name}.json")), said.to_string()).unwrap();
        let packed = Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"])
            .arg(place.join(format!("{name}.tar.gz")))
            .arg("-C")
            .arg(root.path())
            .args([name.to_owned(), format!("{name}.json")])
            .status();
        assert!(packed.is_ok_and(|status| status.success()), "tar");
    }
}
