//! `notify`: what happens to change requests reaches a webhook, though the webhook, a leader and the notifier itself fail.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use super::User;
use crate::harness::{
    Cluster, Options, check, eventually,
    load::{define, set},
    webhook::{Conduct, Webhook},
};

/// A notifier that runs until it is dropped.
pub(super) struct Notifier {
    pub(super) child: Child,
    pub(super) log: PathBuf,
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // Killed without a word, as by a crash.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Notifier {
    pub(super) fn start(user: &User, more: &[&str]) -> Self {
        let log = user.home.join("notify.log");
        let file = std::fs::File::options().create(true).append(true).open(&log).expect("it can be written");
        let arguments = ["notify", "--webhook-file", "hook.url", "--position", "at.json"];
        let mut command = user.command(&[&arguments[..], more].concat());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        Self { child: child.expect("the binary can be started"), log }
    }

    /// Waits until it has said something.
    pub(super) async fn says(&self, text: &str) {
        eventually("the notifier says it", async || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            check(log.contains(text), || format!("{text:?} in {log}"))
        })
        .await;
    }
}

/// What a webhook has taken: each message once, by its id, in the order of arrival.
fn messages(webhook: &Webhook) -> Vec<Value> {
    let mut ids = BTreeSet::new();
    let taken = webhook.taken().into_iter();
    taken
        .filter(|(headers, body)| {
            assert_eq!(headers["authorization"], "Bearer a-secret-token");
            let id = body["event"]["id"].as_str().expect("an id");
            assert_eq!(headers["x-concord-event"], id);
            ids.insert(id.to_owned())
        })
        .map(|(_, body)| body)
        .collect()
}

fn kinds(webhook: &Webhook) -> Vec<String> {
    let kind = |body: &Value| body["event"]["type"].as_str().expect("a type").replace("change_request_", "");
    messages(webhook).iter().map(kind).collect()
}

/// A cluster with a restricted environment, and a user with a webhook's address and headers.
async fn restricted(name: &str, options: &Options) -> (Cluster, User, User, Webhook) {
    let cluster = Cluster::start_with(name, options).await;
    let root = User::of(&cluster);
    let grant = "read,write,approve,bypass:prod.*";
    let made = root.json(&["key", "create", "--name", "bob", "--person", "bob", "--grant", grant]).await;
    let bob = root.clone().with("CONCORD_API_KEY", made["api_key"].as_str().expect("a key"));
    root.ok(&["definition", "create", "prod.limits"]).await;
    root.ok(&["config", "create", "prod.limits", "acme", "--data", r#"{"n": 1}"#]).await;
    let webhook = Webhook::start(Conduct::Takes).await;
    root.write("hook.url", &format!("{}\n", webhook.url));
    root.write("headers", "# of the chat\nAuthorization: Bearer a-secret-token\n");
    (cluster, root, bob, webhook)
}

async fn propose(user: &User, n: usize) -> String {
    let data = format!(r#"{{"n": {n}}}"#);
    let title = format!("change {n}");
    let patch = ["config", "patch", "prod.limits", "acme", "--data", &data, "--propose", &title];
    user.ok(&[&patch[..], &["-o", "jsonpath={.change_id}"]].concat()).await.trim().to_owned()
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, a failure in some lines")]
async fn no_event_is_lost_though_the_webhook_the_leader_and_the_notifier_fail() {
    let (mut cluster, root, bob, webhook) = restricted("notify", &Options::default()).await;
    root.ok(&["env", "set", "prod", "--direct", "refuse", "--approvals", "0"]).await;
    let arguments = ["--headers", "headers", "--environment", "prod"];
    let notifier = Notifier::start(&bob, &arguments);
    notifier.says("begins after revision").await;
    let mut expected = Vec::new();
    let reached = async |webhook: &Webhook, expected: &[String]| {
        eventually("the webhook has all of it, in order", async || {
            let found: Vec<String> = messages(webhook)
                .iter()
                .map(|body| body["event"]["title"].as_str().unwrap_or_default().into())
                .collect();
            check(found == expected, || format!("{found:?} and not {expected:?}"))
        })
        .await;
    };
    let mut next = 0;
    let mut create = async |expected: &mut Vec<String>| {
        next += 1;
        expected.push(format!("change {next}"));
        propose(&bob, next).await
    };
    create(&mut expected).await;
    reached(&webhook, &expected).await;
    // A webhook that fails in one way after another gets each event when it works again, and no other address does.
    let stranger = Webhook::start(Conduct::Takes).await;
    let conducts = [
        Conduct::Answers(503),
        Conduct::Answers(400),
        Conduct::Redirects(stranger.url.clone()),
        Conduct::Hangs,
    ];
    for conduct in conducts {
        let before = webhook.requests();
        webhook.set(conduct.clone());
        create(&mut expected).await;
        eventually("it was asked", async || {
            check(webhook.requests() > before, || format!("{conduct:?}: {}", webhook.requests()))
        })
        .await;
        create(&mut expected).await;
        webhook.set(Conduct::Takes);
        reached(&webhook, &expected).await;
    }
    assert_eq!(stranger.requests(), 0);
    // The leader dies.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    create(&mut expected).await;
    reached(&webhook, &expected).await;
    cluster.node(leader).start().await;
    // The notifier dies while the webhook does not answer, and is away for a while.
    webhook.set(Conduct::Answers(500));
    create(&mut expected).await;
    drop(notifier);
    create(&mut expected).await;
    webhook.set(Conduct::Takes);
    let notifier = Notifier::start(&bob, &arguments);
    reached(&webhook, &expected).await;
    let fails = bob.run(&["notify", "--webhook-file", "hook.url", "--position", "at.json", "--once"]).await;
    assert!(fails.code == 1 && fails.err.contains("another `concord notify`"), "{fails:?}");
    let log = std::fs::read_to_string(&notifier.log).expect("its log");
    assert!(!log.contains("a-secret"), "{log}");
    assert!(log.contains("redirects to another address") && log.contains("503"), "{log}");
    drop(notifier);
    // What is said of a change request, and what is selected.
    let id = create(&mut expected).await;
    bob.ok(&["change", "apply", &id, "--yes"]).await;
    let put = ["config", "put", "prod.limits", "acme", "--data", r#"{"n": 99}"#, "--bypass", "incident 4711"];
    bob.ok(&put).await;
    let once = ["notify", "--webhook-file", "hook.url", "--position", "at.json", "--once"];
    let before = webhook.taken().len();
    let other = [&once[..], &["--headers", "headers", "--environment", "staging"]].concat();
    std::fs::copy(bob.home.join("at.json"), bob.home.join("kept.json")).expect("it can be copied");
    bob.ok(&other).await;
    assert_eq!(webhook.taken().len(), before, "nothing of another environment");
    std::fs::copy(bob.home.join("kept.json"), bob.home.join("at.json")).expect("it can be copied");
    bob.ok(&[&once[..], &["--headers", "headers", "--state", "applied"]].concat()).await;
    assert_eq!(kinds(&webhook)[expected.len() - 1..], ["applied", "bypassed"]);
    let last = messages(&webhook).pop().expect("a message");
    assert_eq!(
        last["text"].as_str().expect("a text"),
        format!(
            "[prod] change request {} was applied as a bypass, and waits for a review: incident 4711 by bob",
            last["event"]["change_id"].as_str().expect("an id")
        )
    );
    let again = bob.run(&[&once[..], &["--headers", "headers"]].concat()).await;
    assert!(again.code == 0 && again.err.contains("0 events posted"), "{again:?}");
}

#[tokio::test]
async fn what_the_history_no_longer_has_is_told_by_what_became_of_it() {
    let options = Options::default().with("CONCORD_HISTORY_REVISIONS", "40");
    let (cluster, root, bob, webhook) = restricted("notify-missed", &options).await;
    root.ok(&["env", "set", "prod", "--direct", "refuse", "--approvals", "0"]).await;
    let once =
        ["notify", "--webhook-file", "hook.url", "--position", "at.json", "--headers", "headers", "--once"];
    bob.ok(&once).await;
    let early = propose(&bob, 1).await;
    bob.ok(&once).await;
    assert_eq!(kinds(&webhook), ["created"]);
    // While it is away, one is applied and one is created, and then the history is compacted.
    bob.ok(&["change", "apply", &early, "--yes"]).await;
    propose(&bob, 2).await;
    let node = cluster.client(1);
    define(&node, "d").await;
    let position: Value =
        serde_json::from_str(&std::fs::read_to_string(bob.home.join("at.json")).expect("it is there"))
            .expect("JSON");
    eventually("the history is compacted", async || {
        set(&node, "d", "k", &json!({"n": 1})).await;
        let query = [("change_requests", "true"), ("from", &position["from"].to_string()), ("wait", "0")];
        let answer = node.get("/api/v1/changes").query(&query).attempt().await?;
        check(answer.status == 410, || format!("{answer:?}"))
    })
    .await;
    let done = bob.run(&once).await;
    assert!(done.code == 0 && done.err.contains("the history no longer has the events"), "{done:?}");
    let missed = messages(&webhook).split_off(1);
    let titles: BTreeSet<String> =
        missed.iter().map(|body| format!("{} {}", body["event"]["title"], body["event"]["phase"])).collect();
    assert_eq!(titles, [r#""change 1" "applied""#, r#""change 2" "open""#].map(str::to_owned).into());
    assert!(kinds(&webhook)[1..].iter().all(|kind| kind == "missed"));
    propose(&bob, 3).await;
    bob.ok(&once).await;
    assert_eq!(kinds(&webhook).last().map(String::as_str), Some("created"));
}
