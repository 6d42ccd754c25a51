//! Does every route ask who may use it?
//!
//! The routes are those of the document that a node serves, which a unit test compares with the router. Each of them is
//! called on the leader and on a follower without a key, with an unknown one, an expired one, a revoked one, one with all
//! rights but the one that the route needs, one with the right for other definitions, and one with the right and no
//! other.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Cluster, check, eventually};

/// The path of access keys.
pub(crate) const KEYS: &str = "/api/v1/api_key/";

/// All verbs.
pub(crate) const VERBS: [&str; 14] = [
    "read", "reveal", "write", "define", "backup", "cluster", "keys", "audit", "observe", "delete",
    "propose", "approve", "bypass", "report",
];

/// Those of them that are about definitions.
const ABOUT_DEFINITIONS: [&str; 9] =
    ["read", "reveal", "write", "define", "delete", "propose", "approve", "bypass", "report"];

/// A request of the matrix.
pub(super) struct Case {
    pub(super) method: Method,
    /// As the document has it, without a slash at the end.
    pub(super) path: &'static str,
    /// What a key must have the right to. None: a good credential is enough.
    pub(super) verbs: &'static [&'static str],
    /// Whether the right is one for definitions.
    is_about_definitions: bool,
    /// Makes the request; what it names does not exist.
    body: Value,
    /// What the right key is answered, when the request names what does not exist.
    answered: &'static [u16],
}

fn case(
    method: Method,
    path: &'static str,
    verbs: &'static [&'static str],
    body: Value,
    answered: &'static [u16],
) -> Case {
    let is_about_definitions = verbs.iter().any(|verb| ABOUT_DEFINITIONS.contains(verb));
    Case { method, path, verbs, is_about_definitions, body, answered }
}

const DEFINITIONS: &str = "/api/v1/config_definition";
const DEFINITION: &str = "/api/v1/config_definition/{}";
const CONFIGS: &str = "/api/v1/config_definition/{}/config";
const EVALUATE_ALL: &str = "/api/v1/flags/{}/ofrep/v1/evaluate/flags";
const EVALUATE: &str = "/api/v1/flags/{}/ofrep/v1/evaluate/flags/{}";
const DELETED: &str = "/api/v1/deleted_definition";
const ACROSS: &str = "/api/v1/config";
const CONFIG: &str = "/api/v1/config_definition/{}/config/{}";
const ENVIRONMENT: &str = "/api/v1/environment/{}";
const CHANGES: &str = "/api/v1/change_request";
const CHANGE: &str = "/api/v1/change_request/{}";
const GATE: &str = "/api/v1/gate/{}";

/// A definition that does not exist, in the patterns of the right key.
const OURS: &str = "ours.absent";

#[expect(clippy::too_many_lines, reason = "one table, a case in some lines")]
pub(super) fn cases() -> Vec<Case> {
    let null = || Value::Null;
    let data = || json!({"data": {}});
    let digest = || json!({"digest": "0".repeat(64)});
    // Not valid, which is seen once the right is there.
    let member = || json!({"id": 77, "api_addr": "127.0.0.1:1", "peer_addr": "127.0.0.1:1"});
    let key = |verbs: &[&str]| json!({"name": "k", "grants": [{"verbs": verbs, "definitions": []}]});
    vec![
        case(Method::GET, DEFINITIONS, &["read"], null(), &[200]),
        case(
            Method::POST,
            DEFINITIONS,
            &["define"],
            json!({"config_definition_key": OURS, "indexes": []}),
            &[201],
        ),
        // From here on it exists, until it is deleted.
        case(Method::GET, DEFINITION, &["read"], null(), &[200]),
        case(Method::PUT, DEFINITION, &["define"], json!({"indexes": []}), &[200]),
        case(Method::GET, "/api/v1/config_definition/{}/schema", &["read"], null(), &[200]),
        case(
            Method::PUT,
            "/api/v1/config_definition/{}/schema",
            &["define"],
            json!({"json_schema": {}}),
            &[200],
        ),
        case(Method::GET, "/api/v1/config_definition/{}/unique", &["read"], null(), &[200]),
        case(Method::PUT, "/api/v1/config_definition/{}/unique", &["define"], json!({"paths": []}), &[200]),
        case(Method::GET, "/api/v1/config_definition/{}/protection", &["read"], null(), &[200]),
        case(
            Method::PUT,
            "/api/v1/config_definition/{}/protection",
            &["define"],
            json!({"protected": false}),
            &[200],
        ),
        case(Method::GET, "/api/v1/config_definition/{}/indexes", &["read"], null(), &[200]),
        case(Method::GET, "/api/v1/config_definition/{}/history", &["read"], null(), &[200]),
        case(Method::GET, CONFIGS, &["read"], null(), &[200]),
        case(Method::POST, CONFIGS, &["write"], json!({"config_key": "absent", "data": {}}), &[201]),
        case(Method::GET, CONFIG, &["read"], null(), &[200]),
        case(Method::PUT, CONFIG, &["write"], data(), &[200]),
        case(Method::PATCH, CONFIG, &["write", "read"], json!({}), &[200]),
        case(Method::GET, "/api/v1/config_definition/{}/config/{}/history", &["read"], null(), &[200]),
        case(Method::GET, "/api/v1/config_definition/{}/config/{}/readers", &["read"], null(), &[200]),
        case(
            Method::POST,
            "/api/v1/config_definition/{}/config/{}/report",
            &["report"],
            json!({"reader": "a", "state": "healthy", "revision": 1}),
            &[200],
        ),
        // The revision does not exist.
        case(
            Method::POST,
            "/api/v1/config_definition/{}/config/{}/rollback",
            &["write", "read"],
            json!({"revision": 1_u64 << 40}),
            &[422],
        ),
        case(Method::DELETE, CONFIG, &["write"], null(), &[200]),
        case(Method::POST, EVALUATE_ALL, &["read"], json!({}), &[200]),
        case(Method::POST, EVALUATE, &["read"], json!({}), &[404]),
        case(Method::GET, "/api/v1/flags/{}/flagd.json", &["read"], null(), &[200]),
        case(Method::GET, "/api/v1/flags/{}/events", &["read"], null(), &[200]),
        // Of the definition `flags`, which is not there.
        case(Method::POST, "/ofrep/v1/evaluate/flags", &["read"], json!({}), &[404]),
        case(Method::POST, "/ofrep/v1/evaluate/flags/{}", &["read"], json!({}), &[404]),
        case(Method::DELETE, DEFINITION, &["delete"], null(), &[200]),
        case(Method::GET, DELETED, &["read"], null(), &[200]),
        case(Method::POST, "/api/v1/config_definition/{}/undelete", &["define", "write"], json!({}), &[201]),
        case(Method::DELETE, DEFINITION, &["delete"], null(), &[200]),
        case(
            Method::POST,
            "/api/v1/batch",
            &["write"],
            json!({"operations": [{"op": "delete_config", "config_definition_key": OURS, "config_key": "k"}]}),
            &[404],
        ),
        case(Method::GET, ACROSS, &["read"], null(), &[200]),
        case(
            Method::POST,
            "/api/v1/read",
            &["read"],
            json!({"configs": [{"config_definition_key": OURS, "config_key": "k"}]}),
            &[200],
        ),
        case(Method::GET, "/api/v1/watch", &["read"], null(), &[200]),
        case(Method::GET, "/api/v1/changes", &["read"], null(), &[304]),
        case(Method::GET, "/api/v1/environment", &[], null(), &[200]),
        // Whoever may name a definition in it sees it; to others it does not exist.
        case(Method::GET, ENVIRONMENT, &[], null(), &[404]),
        case(Method::PUT, ENVIRONMENT, &["define"], json!({"freeze": []}), &[201]),
        case(Method::DELETE, ENVIRONMENT, &["define"], null(), &[200]),
        // Their definitions are in the state: to who may not read them they do not exist.
        case(Method::GET, CHANGES, &["read"], null(), &[200]),
        case(
            Method::POST,
            CHANGES,
            &["propose", "read"],
            json!({"title": "t", "operations": [{"op": "delete_definition", "config_definition_key": OURS}]}),
            &[404],
        ),
        case(Method::GET, CHANGE, &[], null(), &[404]),
        case(
            Method::PUT,
            CHANGE,
            &[],
            json!({"title": "t", "operations": [{"op": "delete_definition", "config_definition_key": OURS}]}),
            &[403],
        ),
        case(Method::POST, "/api/v1/change_request/{}/rebase", &[], null(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/approve", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/reject", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/review", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/apply", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/revert", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/keep", &[], digest(), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/withdraw", &[], json!({}), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/pause", &[], json!({}), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/resume", &[], json!({}), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/advance", &[], json!({}), &[404]),
        case(Method::POST, "/api/v1/change_request/{}/abort", &[], json!({}), &[404]),
        case(
            Method::POST,
            "/api/v1/change_request/{}/report",
            &[],
            json!({"reader": "a", "state": "healthy"}),
            &[403],
        ),
        // A key that may report of any definition may say something.
        case(Method::POST, GATE, &[], json!({"ok": true}), &[403]),
        case(Method::GET, "/api/v1/audit", &["audit"], null(), &[200]),
        case(Method::GET, "/api/v1/audit/anchors", &["audit"], null(), &[200]),
        case(Method::POST, "/api/v1/audit/anchors/{}/accept", &["cluster"], json!({}), &[404]),
        case(Method::GET, "/api/v1/cluster", &["observe"], null(), &[200]),
        case(Method::GET, "/api/v1/cluster/usage", &["observe"], null(), &[200]),
        case(Method::GET, "/metrics", &["observe"], null(), &[200]),
        case(Method::POST, "/api/v1/cluster/init", &["cluster"], json!({"members": [member()]}), &[422]),
        case(Method::GET, "/api/v1/cluster/backup", &["backup"], null(), &[200]),
        case(Method::POST, "/api/v1/cluster/leader", &["cluster"], json!({"id": 99}), &[409]),
        case(Method::POST, "/api/v1/cluster/members", &["cluster"], member(), &[422]),
        case(
            Method::PUT,
            "/api/v1/cluster/members/{}",
            &["cluster"],
            json!({"api_addr": "127.0.0.1:1", "peer_addr": "127.0.0.1:1"}),
            &[422],
        ),
        case(Method::DELETE, "/api/v1/cluster/members/{}", &["cluster"], null(), &[404]),
        case(Method::POST, "/api/v1/cluster/members/{}/promote", &["cluster"], json!({}), &[404]),
        case(Method::POST, "/api/v1/cluster/members/{}/replace", &["cluster"], member(), &[422]),
        case(Method::GET, "/api/v1/api_key", &["keys"], null(), &[200]),
        case(Method::POST, "/api/v1/api_key", &["keys"], key(&["keys"]), &[201]),
        case(Method::GET, "/api/v1/api_key/{}", &["keys"], null(), &[404]),
        case(Method::PATCH, "/api/v1/api_key/{}", &["keys"], json!({"name": "n"}), &[404]),
        case(Method::DELETE, "/api/v1/api_key/{}", &["keys"], null(), &[404]),
        case(Method::POST, "/api/v1/api_key/{}/rotate", &["keys"], json!({"grace_s": 0}), &[404]),
        case(Method::POST, "/api/v1/api_key/{}/attest", &["keys"], json!({"revision": 1}), &[404]),
        // What they name does not exist, or the document is empty: that is seen once the right is there.
        case(Method::GET, "/api/v1/identity_provider", &["keys"], null(), &[200]),
        case(Method::GET, "/api/v1/identity_provider/{}", &["keys"], null(), &[404]),
        case(Method::PUT, "/api/v1/identity_provider/{}", &["keys"], json!({}), &[422]),
        case(Method::DELETE, "/api/v1/identity_provider/{}", &["keys"], null(), &[404]),
        case(Method::POST, "/api/v1/identity_provider/{}/try", &["keys"], json!({"token": "t"}), &[404]),
        case(Method::POST, "/api/v1/identity_provider/{}/end_sessions", &["keys"], json!({}), &[404]),
        case(Method::GET, "/api/v1/role", &["keys"], null(), &[200]),
        case(Method::GET, "/api/v1/role/{}", &["keys"], null(), &[404]),
        case(Method::PUT, "/api/v1/role/{}", &["keys"], json!({"grants": [], "session_s": 1}), &[422]),
        case(Method::DELETE, "/api/v1/role/{}", &["keys"], null(), &[404]),
        case(Method::GET, "/api/v1/session", &[], null(), &[200]),
        case(Method::DELETE, "/api/v1/session/{}", &["keys"], null(), &[404]),
        case(Method::GET, "/api/v1/whoami", &[], null(), &[200]),
        // Who may not do all that the root key may can't take that away.
        case(Method::POST, "/api/v1/api_key/root/disable", &VERBS, json!({}), &[200]),
    ]
}

/// A path without the names of its parameters and without a slash at its end.
fn shape(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.trim_end_matches('/').split('/').map(part).collect::<Vec<_>>().join("/")
}

impl Case {
    /// A key without the right for all definitions lists those that it has the right for, or their configs.
    fn is_list_of_definitions(&self) -> bool {
        [DEFINITIONS, DELETED, ACROSS, CHANGES].contains(&self.path) && self.method == Method::GET
    }

    /// The path with what it names: a definition and a config, or the id of a member or a key.
    fn target(&self) -> String {
        let (first, second) = match self.path {
            path if path.starts_with(DEFINITIONS) || path.starts_with("/api/v1/flags/") => (OURS, "absent"),
            // All of it is in the patterns of the right key.
            ENVIRONMENT => ("ours", ""),
            path if path.contains("/members/") || path.contains("/anchors/") => ("99", ""),
            _ => ("Abcdefghijkl", ""),
        };
        self.path.replacen("{}", first, 1).replacen("{}", second, 1)
    }

    /// Calls the route with a credential; an endless answer is not read.
    pub(super) async fn call(&self, node: &Client, key: Option<&str>, method: &Method) -> Answer {
        let mut call = node.bare(method.clone(), &self.target());
        if let Some(key) = key {
            call = call.header("authorization", key);
        }
        if self.path.ends_with("/watch") {
            call = call.query(&[("definition", OURS)]);
        }
        if self.path.ends_with("/changes") {
            call = call.query(&[("definition", OURS), ("wait", "0")]);
        }
        if self.method == Method::PATCH && self.path == CONFIG {
            call = call.text("application/merge-patch+json", &self.body.to_string());
        } else if !self.body.is_null() {
            call = call.json(&self.body);
        }
        eventually("an answer", async || {
            let response = call.open().await?;
            let status = response.status().as_u16();
            let is_endless = ["/watch", "/backup", "/events"].iter().any(|end| self.path.ends_with(end));
            let is_stream = status == 200 && is_endless;
            if is_stream {
                let headers = response.headers().clone();
                let asked = format!("{method} {}", self.path);
                return Ok(Answer { asked, status, headers, text: String::new(), body: Value::Null });
            }
            let answer = call.answer(response).await?;
            // A busy node; but what nobody listens to is answered so, too.
            check(status != 429, || format!("{answer:?}"))?;
            Ok(answer)
        })
        .await
    }
}

/// Creates a key; its id and its text.
pub(crate) async fn create_key(node: &Client, grants: &Value, more: &Value) -> (String, String) {
    let mut body = json!({"name": "of a test", "grants": grants});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let answer = node.post(KEYS, &body).settled().await.expect("an answer").expect(201);
    let text = |name: &str| answer.data()[name].as_str().expect("a text").to_owned();
    (text("key_id"), text("api_key"))
}

/// Waits until every node knows a key, or does not accept it any more.
pub(crate) async fn known(nodes: &[Client], key: &str, is_accepted: bool) {
    for node in nodes {
        eventually("every node knows the key", async || {
            let answer =
                node.bare(Method::GET, "/api/v1/whoami").header("authorization", key).attempt().await?;
            check((answer.status == 200) == is_accepted && matches!(answer.status, 200 | 401), || {
                format!("{answer:?}")
            })
        })
        .await;
    }
}

/// Keys that are not accepted, with what is wrong with them.
async fn bad_keys(root: &Client, nodes: &[Client]) -> Vec<(&'static str, Option<String>)> {
    let all = json!([{"verbs": VERBS, "definitions": ["*"]}]);
    let soon = in_seconds(5);
    let (_, expired) = create_key(root, &all, &json!({"expires_at": soon})).await;
    let (id, revoked) = create_key(root, &all, &json!({})).await;
    known(nodes, &revoked, true).await;
    root.delete(&format!("{KEYS}{id}")).settled().await.expect("an answer").expect(200);
    known(nodes, &revoked, false).await;
    known(nodes, &expired, false).await;
    let mut unknown = revoked.clone().into_bytes();
    let place = unknown.len() - 20;
    unknown[place] = if unknown[place] == b'a' { b'b' } else { b'a' };
    let unknown = String::from_utf8(unknown).expect("a key is ASCII");
    vec![
        ("no key", None),
        ("an unknown key", Some("unknown".into())),
        ("a mistyped key", Some(unknown)),
        ("an expired key", Some(expired)),
        ("a revoked key", Some(revoked)),
    ]
}

/// The time in so many seconds, as the service reads times.
pub(crate) fn in_seconds(seconds: i64) -> String {
    let at = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + seconds);
    at.expect("a time of this century").to_string()
}

/// The verbs that the page of the interface names for each route; none where it says something else.
fn on_the_page() -> BTreeMap<(String, String), BTreeSet<String>> {
    let page = include_str!("../../docs/reference/interface.md");
    let mut routes = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, request, _, _, right, _] = cells[..] else { continue };
        let Some((method, path)) = request.trim_matches('`').split_once(' ') else { continue };
        let verbs = right.split('`').filter(|word| VERBS.contains(word)).map(str::to_owned).collect();
        routes.insert((method.to_owned(), shape(path)), verbs);
    }
    routes
}

#[test]
fn the_page_of_the_interface_names_the_verbs_of_the_matrix() {
    let page = on_the_page();
    for case in
        // Who may do what with a change request follows from what it changes.
        cases().iter().filter(|case| {
            !["/api/v1/batch", "/api/v1/api_key/root/disable"].contains(&case.path)
                && !case.path.starts_with(CHANGE)
                && case.path != GATE
        })
    {
        let route = (case.method.to_string(), case.path.to_owned());
        let verbs: BTreeSet<String> = case.verbs.iter().map(|verb| (*verb).to_owned()).collect();
        assert_eq!(page.get(&route), Some(&verbs), "{route:?}");
    }
}

/// The routes of the document that need a credential.
async fn documented(node: &Client) -> BTreeSet<(String, String)> {
    let document =
        node.bare(Method::GET, "/openapi.json").attempt().await.expect("an answer").expect(200).body;
    let mut routes = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let is_public =
                operation["security"].as_array().is_some_and(|one| one.iter().all(|any| any == &json!({})));
            if operation.get("responses").is_some() && !is_public {
                routes.insert((method.to_uppercase(), shape(path)));
            }
        }
    }
    routes
}

/// The keys that one route after another is called with.
struct Callers {
    /// Keys that are not accepted, with what is wrong with them.
    bad: Vec<(&'static str, Option<String>)>,
    /// For each verb a key with all other rights.
    without: Vec<(&'static str, String)>,
    /// A key with all rights for other definitions.
    elsewhere: String,
}

impl Callers {
    async fn new(root: &Client, nodes: &[Client]) -> Self {
        let bad = bad_keys(root, nodes).await;
        let grants = json!([{"verbs": VERBS, "definitions": ["theirs.*", "our"]}]);
        let (_, elsewhere) = create_key(root, &grants, &json!({})).await;
        let mut without = Vec::new();
        for verb in VERBS {
            // `cluster` includes `observe`; `write` and `define` include `propose`; `approve` includes `report`.
            let includes = |other: &str| match verb {
                "observe" => other == "cluster",
                "propose" => ["write", "define"].contains(&other),
                "report" => other == "approve",
                _ => false,
            };
            let gives = |other: &str| other == verb || includes(other);
            let others: Vec<&str> = VERBS.into_iter().filter(|other| !gives(other)).collect();
            let mut grants = vec![json!({"verbs": others, "definitions": ["*"]})];
            if ABOUT_DEFINITIONS.contains(&verb) {
                grants.push(json!({"verbs": [verb], "definitions": ["theirs.*"]}));
            }
            without.push((verb, create_key(root, &json!(grants), &json!({})).await.1));
        }
        known(nodes, &without.last().expect("verbs").1, true).await;
        Self { bad, without, elsewhere }
    }

    /// Calls a route with every key that must be refused.
    async fn are_refused(&self, case: &Case, node: &Client, method: &Method) {
        for (what, key) in &self.bad {
            let answer = case.call(node, key.as_deref(), method).await;
            assert_eq!(answer.status, 401, "{what}: {answer:?}");
        }
        let takes_no_head =
            ["/watch", "/changes", "/backup", "/events"].iter().any(|end| case.path.ends_with(end));
        if method == Method::HEAD && takes_no_head {
            return;
        }
        for verb in case.verbs {
            let key = &self.without.iter().find(|(other, _)| other == verb).expect("every verb").1;
            let answer = case.call(node, Some(key), method).await;
            if !case.is_list_of_definitions() {
                assert_eq!(answer.status, 403, "without `{verb}`: {answer:?}");
            } else if method == Method::GET {
                // It lists those that the key has the right for: none of them is there.
                assert_eq!(answer.expect(200).total(), 0);
            }
        }
        if case.is_about_definitions
            && (![DEFINITIONS, DELETED, ACROSS, CHANGES].contains(&case.path)
                || case.path == CHANGES && case.method == Method::POST)
        {
            let answer = case.call(node, Some(&self.elsewhere), method).await;
            assert_eq!(answer.status, 403, "for other definitions: {answer:?}");
        }
    }
}

#[tokio::test]
async fn every_route_is_open_to_those_who_have_the_right_and_to_nobody_else() {
    let cluster = Cluster::start("grants-matrix").await;
    let leader = cluster.leader().await;
    let (root, nodes) = (cluster.client(leader), cluster.clients());
    let cases = cases();
    let covered: BTreeSet<(String, String)> =
        cases.iter().map(|case| (case.method.to_string(), case.path.to_owned())).collect();
    assert_eq!(covered, documented(&root).await, "the routes of the matrix, and those of the document");

    let callers = Callers::new(&root, &nodes).await;
    let asked = [leader, leader % 3 + 1].map(|id| cluster.client(id));
    for case in &cases {
        for node in &asked {
            callers.are_refused(case, node, &case.method).await;
            if case.method == Method::GET {
                callers.are_refused(case, node, &Method::HEAD).await;
            }
        }
        // The one with the right, and with no other: once, because it may change something.
        let verbs = if case.verbs.is_empty() { &["audit"][..] } else { case.verbs };
        let ours = match case.path {
            _ if case.verbs.len() == VERBS.len() => "*",
            path if path.starts_with("/ofrep/") => "flags",
            _ => "ours.*",
        };
        let (_, right) =
            create_key(&root, &json!([{"verbs": verbs, "definitions": [ours]}]), &json!({})).await;
        known(&nodes, &right, true).await;
        let answer = case.call(&asked[1], Some(&right), &case.method).await;
        assert!(case.answered.contains(&answer.status), "with the right: {answer:?}");
    }
    // The last route has disabled the root key.
    known(&nodes, &root.key, false).await;
}
