//! Transactions, the past, several definitions at once, indexes, members, probes, a benchmark.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::{Value, json};

use super::{LIMITS, User, revision};
use crate::harness::{Cluster, check, eventually};

async fn limits(name: &str) -> (Cluster, User) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    (cluster, user)
}

#[tokio::test]
async fn a_transaction_is_done_or_says_which_condition_failed() {
    let (_cluster, user) = limits("cli-transaction").await;
    let swap = r"# Only while it is pro.
if:
  - {config_definition_key: limits, config_key: acme, pointer: /plan, equals: pro}
then:
  - {op: patch_config, config_definition_key: limits, config_key: acme, patch: {plan: free}}
  - {op: create_config, config_definition_key: limits, config_key: archive, data: {plan: pro}}
else:
  - {op: get_config, config_definition_key: limits, config_key: acme}
";
    let file = user.write("swap.yaml", swap);
    let tried = user.run(&["transaction", "-f", &file, "--dry-run"]).await;
    assert!(
        tried.code == 0 && tried.err.contains("all conditions hold: the operations would be applied"),
        "{tried:?}"
    );
    assert_eq!(user.run(&["config", "get", "limits", "archive"]).await.code, 3);
    let done = user.run(&["transaction", "-f", &file, "--idempotency-key", "swap-1"]).await;
    assert!(
        done.code == 0 && done.err.contains("all conditions hold: the operations were applied"),
        "{done:?}"
    );
    let lines: Vec<Vec<&str>> = done.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["patch_config", "limits", "acme", "no"], "{}", done.out);
    assert_eq!(lines[2], ["create_config", "limits", "archive", "yes"], "{}", done.out);
    // The same name is the same transaction, which was done.
    let again = user.run(&["transaction", "-f", &file, "--idempotency-key", "swap-1"]).await;
    assert_eq!((again.code, &again.out), (0, &done.out), "{again:?}");
    // The condition holds no longer.
    let other = user.run(&["txn", "-f", &file, "-o", "json"]).await;
    let data: Value = serde_json::from_str(&other.out).unwrap();
    assert_eq!((other.code, &data["succeeded"]), (1, &json!(false)), "{other:?}");
    assert_eq!(data["results"][0]["config"]["data"]["plan"], "free");

    let refused = user
        .run_with(
            &["transaction", "-f", "-"],
            "- {op: create_config, config_definition_key: limits, config_key: x, data: {plan: gold}}",
        )
        .await;
    assert!(refused.code == 5 && refused.err.contains("config limits/x "), "{refused:?}");
    let wrong = user.run_with(&["transaction", "-f", "-"], "than: []").await;
    assert!(wrong.code == 5 && wrong.err.contains("unknown member `than`"), "{wrong:?}");
}

#[tokio::test]
async fn the_past_is_shown_and_compared() {
    let (_cluster, user) = limits("cli-past").await;
    let first =
        user.json(&["config", "history", "limits", "acme"]).await["results"][0]["revision"].to_string();
    let patch = ["config", "patch", "limits", "acme", "--data", r#"{"quota": {"requests": 2000}}"#];
    let second = revision(&user.ok(&patch).await);
    user.ok(&["definition", "create", "later"]).await;
    user.ok(&["config", "delete", "limits", "initech", "--yes"]).await;

    let list = user.ok(&["config", "get", "limits", "--revision", &first, "-o", "name"]).await;
    assert_eq!(list, "acme\ninitech\n");
    let then = user.ok(&["config", "get", "limits", "--revision", &first]).await;
    assert!(then.contains("1000") && !then.contains("2000"), "{then}");
    let filtered = ["config", "get", "limits", "--revision", &first, "--filter", "plan=free", "-o", "name"];
    assert_eq!(user.ok(&filtered).await, "initech\n");
    assert_eq!(user.ok(&["definition", "get", "--revision", &first, "-o", "name"]).await, "limits\n");

    // Without revisions: what the last change did.
    let diff = user.run(&["config", "diff", "limits", "acme"]).await;
    assert_eq!(diff.code, 1, "{diff:?}");
    assert!(diff.out.contains("-  requests: 1000\n+  requests: 2000\n"), "{diff:?}");
    let diff = user
        .run(&["config", "diff", "limits", "acme", "--from", &first, "--to", &second, "-o", "json"])
        .await;
    let data: Value = serde_json::from_str(&diff.out).unwrap();
    assert_eq!((diff.code, &data["from"]["data"]["quota"]["requests"]), (1, &json!(1000)));
    assert_eq!(data["to"]["data"]["quota"]["requests"], 2000);
    let same = user.run(&["config", "diff", "limits", "acme", "--from", &second]).await;
    assert_eq!((same.code, same.out.as_str()), (0, ""), "{same:?}");
    let gone = user.run(&["config", "diff", "limits", "initech"]).await;
    assert!(gone.code == 1 && gone.out.contains("+++ /dev/null\n"), "{gone:?}");
    assert_eq!(user.run(&["config", "diff", "limits", "absent"]).await.code, 3);
    assert_eq!(user.run(&["config", "diff", "limits"]).await.code, 2);
}

#[tokio::test]
async fn several_definitions_and_labels_are_listed_and_watched() {
    let (_cluster, user) = limits("cli-across").await;
    let workloads = r"config_definition_key: workload.eu
indexes: [labels.*]
---
config_definition_key: workload.eu
config_key: a
data: {labels: {team: search, tier: web}}
---
config_definition_key: workload.eu
config_key: b
data: {labels: {team: pay}}
---
config_definition_key: workload.us
---
config_definition_key: workload.us
config_key: c
data: {}
";
    assert_eq!(user.run_with(&["apply", "-f", "-"], workloads).await.code, 0);
    let filter = ["config", "get", "workload.eu", "--filter", "labels.team=search"];
    let table = user.ok(&filter).await;
    assert!(table.contains("LABELS.*") && table.contains("search,web") && !table.contains("pay"), "{table}");
    let across = user.ok(&["config", "get", "workload.*", "-o", "name"]).await;
    assert_eq!(across, "workload.eu/a\nworkload.eu/b\nworkload.us/c\n");
    let table = user.ok(&["config", "get", "workload.*", "--search", "c"]).await;
    assert!(table.starts_with("DEFINITION") && table.contains("workload.us"), "{table}");
    assert_eq!(user.run(&["config", "get", "workload.*", "c"]).await.code, 2);

    let watch = |arguments: &[&str]| {
        let mut child = user.command(arguments).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    };
    let from = revision(&user.ok(&["config", "put", "limits", "acme", "--data", r#"{"plan": "pro"}"#]).await);
    let from = (from.parse::<u64>().unwrap() + 1).to_string();
    user.ok(&["config", "patch", "workload.us", "c", "--data", r#"{"n": 1}"#]).await;
    user.ok(&["config", "patch", "limits", "acme", "--data", r#"{"n": 2}"#]).await;
    user.ok(&["config", "patch", "workload.eu", "a", "--data", r#"{"n": 3}"#]).await;
    user.ok(&["config", "patch", "workload.eu", "b", "--data", r#"{"n": 4}"#]).await;
    let seen = async |arguments: &[&str]| {
        let (mut child, lines) = watch(&[&["config", "watch"], arguments, &["--from", &from]].concat());
        let lines = tokio::task::spawn_blocking(move || {
            let all: Vec<String> = lines.map(Result::unwrap).collect();
            assert!(child.wait().unwrap().success());
            all
        });
        let lines = lines.await.unwrap();
        lines.iter().map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        seen(&["workload.*", "--count", "3"]).await,
        ["workload.us/c", "workload.eu/a", "workload.eu/b"]
    );
    let both = ["limits", "--definition", "workload.us", "--count", "2"];
    assert_eq!(seen(&both).await, ["workload.us/c", "limits/acme"]);
    let labelled = ["workload.eu", "--filter", "labels.team=search", "--count", "1"];
    assert_eq!(seen(&labelled).await, ["workload.eu/a"]);
}

#[tokio::test]
async fn indexes_are_changed_and_waited_for() {
    let (_cluster, user) = limits("cli-reindex").await;
    let table = user.ok(&["definition", "reindex", "limits"]).await;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["plan", "ready", "2", "2"], "{table}");
    let tried = user.run(&["definition", "reindex", "limits", "--add", "quota", "--dry-run"]).await;
    assert!(tried.err.contains("would be indexed by plan, quota.requests, quota"), "{tried:?}");
    let change =
        ["definition", "reindex", "limits", "--add", "plan", "--remove", "quota.requests", "-o", "name"];
    assert_eq!(user.ok(&change).await, "plan\n");
    assert_eq!(user.json(&["definition", "get", "limits"]).await["indexes"], json!(["plan"]));
    assert_eq!(user.run(&["definition", "reindex", "limits", "--remove", "x"]).await.code, 5);
    assert_eq!(
        user.run(&["definition", "reindex", "limits", "--index", "n", "--if-match", "1"]).await.code,
        4
    );

    // More configs than one entry indexes: the command waits for the build.
    let mut text = String::from("[{\"config_definition_key\": \"big\"}");
    for n in 0..2500 {
        text.push_str(&format!(
            ",{{\"config_definition_key\": \"big\", \"config_key\": \"k{n}\", \"data\": {{\"n\": {n}}}}}"
        ));
    }
    user.write("big/all.json", &format!("{text}]"));
    user.ok(&["import", "--dir", "big"]).await;
    let built = user.json(&["definition", "reindex", "big", "--index", "n"]).await;
    assert_eq!(built, json!([{"path": "n", "state": "ready", "done": 2500, "of": 2500}]));
}

#[tokio::test]
async fn operators_commands_say_why_they_failed_by_their_exit_code() {
    let mut cluster = Cluster::start("cli-operators").await;
    let user = User::of(&cluster);
    let code = async |arguments: &[&str]| user.run(arguments).await.code;
    assert_eq!(code(&["member", "promote", "9"]).await, 3);
    assert_eq!(code(&["cluster", "promote", "9"]).await, 3);
    assert_eq!(code(&["key", "get", "000000000000"]).await, 3);
    assert_eq!(code(&["key", "create", "--name", "x", "--grant", "fly:*"]).await, 5);
    let stranger = user.clone().with("CONCORD_API_KEY", "a-key-that-nobody-knows");
    assert_eq!(stranger.run(&["status"]).await.code, 6);
    let url = format!("http://{}", cluster.node(1).api_addr());
    assert_eq!(stranger.run(&["audit", "tail", "--url", &url]).await.code, 6);
    assert_eq!(user.run(&["audit", "tail"]).await.code, 2, "each node has a log of its own");
    let ahead = user.run(&["config", "watch", "--from", "999999"]).await;
    assert!(ahead.code == 3 && ahead.err.contains("hint: omit the revision"), "{ahead:?}");
    let nowhere = user.clone().with("CONCORD_URL", "http://127.0.0.1:9");
    let gone = nowhere.run(&["whoami"]).await;
    assert!(gone.code == 7 && gone.err.contains("http://127.0.0.1:9 can't be reached: "), "{gone:?}");

    // What can't be undone is asked for; here nobody answers.
    let made = user.json(&["key", "create", "--name", "reader", "--grant", "read:*"]).await;
    let id = made["key_id"].as_str().unwrap();
    let unasked = user.run(&["key", "revoke", id]).await;
    assert!(unasked.code == 2 && unasked.err.contains("(reader, never used)"), "{unasked:?}");
    assert_eq!(code(&["key", "rotate", id, "--grace-s", "0"]).await, 2);
    assert_eq!(code(&["member", "remove", "3"]).await, 2);
    assert_eq!(code(&["cluster", "remove", "3"]).await, 2);
    let text = made["api_key"].as_str().unwrap();
    let reader = user.clone().with("CONCORD_API_KEY", text);
    assert_eq!(reader.run(&["whoami"]).await.code, 0, "nothing was done");
    assert_eq!(user.json(&["status"]).await["members"].as_array().unwrap().len(), 3);
    assert_eq!(code(&["key", "rotate", id, "--grace-s", "60"]).await, 0);
    assert_eq!(code(&["key", "rotate", id, "--grace-s", "0", "--yes"]).await, 0);
    assert_eq!(code(&["key", "revoke", "000000000000"]).await, 3, "there is nothing to ask for");
    assert_eq!(code(&["key", "revoke", id, "-y"]).await, 0);
    assert_eq!(reader.run(&["whoami"]).await.code, 6);

    // A key that may delete need not be allowed to read.
    let definition = json!({"config_definition_key": "gone", "indexes": []});
    cluster.client(1).post("/api/v1/config_definition/", &definition).await.expect(201);
    let made = user.json(&["key", "create", "--name", "deleter", "--grant", "delete:gone"]).await;
    let deleter = user.clone().with("CONCORD_API_KEY", made["api_key"].as_str().unwrap());
    let deleted = deleter.run(&["definition", "delete", "gone", "--yes"]).await;
    assert_eq!(deleted.code, 0, "{deleted:?}");

    // A probe needs no key, and asks each node.
    let urls = user.settings.iter().find(|(name, _)| name == "CONCORD_URL").unwrap().1.clone();
    let passer = User::new(&user.home).with("CONCORD_URL", &urls);
    assert_eq!(passer.ok(&["probe", "ready", "-o", "jsonpath={[*].is}"]).await, "yes\nyes\nyes\n");
    assert_eq!(passer.run(&["probe", "live"]).await.code, 0);
    let version = passer.json(&["version"]).await;
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(user.json(&["openapi"]).await["openapi"], "3.1.0");

    let bench =
        user.json(&["bench", "--seconds", "1", "--clients", "4", "--configs", "20", "--size", "10"]).await;
    let results = bench["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{bench}");
    assert!(results.iter().all(|one| one["count"].as_u64() > Some(0) && one["failed"] == 0), "{bench}");
    assert_eq!(user.ok(&["definition", "get", "-o", "name"]).await, "", "nothing is left");

    // What happens to the cluster is told as it happens.
    let mut child = user
        .command(&["cluster", "watch", "--every-ms", "100"])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (send, lines) = std::sync::mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let until = async |text: &str| {
        eventually(text, async || match lines.try_recv() {
            Ok(line) => check(line.starts_with(text), || format!("another line: {line}")),
            Err(error) => Err(error.to_string()),
        })
        .await;
    };
    until("leader node ").await;
    cluster.node(3).kill();
    until("node 3 does not respond").await;
    let ready = passer.run(&["probe", "ready"]).await;
    assert!(ready.code == 7 && ready.out.contains("none"), "{ready:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_definition_is_shown_as_of_a_revision() {
    let (_cluster, user) = limits("cli-definition-past").await;
    let created = revision(&user.ok(&["definition", "create", "lim"]).await);
    user.ok(&["definition", "reindex", "lim", "--add", "plan"]).await;
    let past = user.json(&["definition", "get", "lim", "--revision", &created]).await;
    // Not `limits`, whose key contains it.
    assert_eq!((&past["config_definition_key"], &past["indexes"]), (&json!("lim"), &json!([])));
    let current = user.json(&["definition", "get", "lim"]).await;
    assert_eq!(current["indexes"], json!(["plan"]));
    let before = created.parse::<u64>().unwrap() - 1;
    let absent = user.run(&["definition", "get", "lim", "--revision", &before.to_string()]).await;
    let text = format!("definition lim did not exist at revision {before}");
    assert!(absent.code == 3 && absent.err.contains(&text), "{absent:?}");
}

#[tokio::test]
async fn the_audit_logs_of_all_nodes_are_one_list() {
    let (mut cluster, user) = limits("cli-audit-list").await;
    let urls: Vec<String> = cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
    for (url, n) in urls.iter().zip(1..) {
        let data = format!(r#"{{"plan": "free", "n": {n}}}"#);
        user.ok(&["config", "patch", "limits", "acme", "--data", &data, "--url", url]).await;
    }
    user.ok(&["config", "patch", "limits", "initech", "--data", "{}"]).await;
    let list = async |more: &[&str]| {
        let done = user.run(&[&["audit", "list", "-o", "jsonl"], more].concat()).await;
        let lines = done.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        (lines.collect::<Vec<_>>(), done)
    };
    let of_config =
        ["--definition", "limits", "--config", "acme", "--key-id", "root", "--address", "127.0.0.1"];
    eventually("each write to the config has its line, in their order", async || {
        let (lines, done) = list(&of_config).await;
        let nodes: Vec<u64> = lines.iter().filter_map(|line| line["node"].as_u64()).collect();
        check(nodes == [1, 2, 3] && done.code == 0, || format!("{done:?}"))
    })
    .await;
    assert!(list(&["--address", "127.0.0.9"]).await.0.is_empty());
    // One node reads the logs of all; so does each other one.
    for url in &urls {
        let (lines, done) = list(&[&of_config[..], &["--url", url]].concat()).await;
        let nodes: Vec<u64> = lines.iter().filter_map(|line| line["node"].as_u64()).collect();
        assert_eq!((nodes, done.code), (vec![1, 2, 3], 0), "{done:?}");
    }
    // A log that can't be read is named, and the others are printed.
    cluster.node(3).kill();
    let (lines, done) = list(&of_config).await;
    let nodes: Vec<u64> = lines.iter().filter_map(|line| line["node"].as_u64()).collect();
    assert_eq!((nodes, done.code), (vec![1, 2], 8), "{done:?}");
    assert!(done.err.contains("lines of node 3 are missing: "), "{done:?}");
}

#[tokio::test]
async fn the_new_client_address_of_a_member_is_that_of_its_node() {
    let cluster = Cluster::start("cli-member-address").await;
    let user = User::of(&cluster);
    let address = |place: usize| cluster.nodes[place].api_addr();
    // A name that the cluster does not know as one of its addresses.
    let renamed = |place: usize| {
        let (_, port) =
            address(place).rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
        format!("localhost:{port}")
    };
    let update = async |api_addr: &str| {
        user.run(&["member", "update", "3", "--api-addr", api_addr, "--dry-run"]).await
    };
    let other = update(&renamed(1)).await;
    let text = format!("{} is the client address of node 2, not of node 3", renamed(1));
    assert!(other.code == 1 && other.err.contains(&text), "{other:?}");
    let own = update(&renamed(2)).await;
    assert_eq!((own.code, own.err.as_str()), (0, ""), "{own:?}");
    // Where nobody answers, it may be this machine that does not reach it.
    let unreached = update("localhost:1").await;
    assert!(unreached.code == 0 && unreached.err.contains("was not checked"), "{unreached:?}");
    assert_ne!(update("nonsense").await.code, 0);
}
