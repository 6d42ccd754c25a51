//! Formats and exit codes.

use serde_json::json;

use super::{LIMITS, User};
use crate::harness::{Cluster, check, eventually};

#[tokio::test]
async fn each_format_prints_what_it_says() {
    let cluster = Cluster::start("cli-output").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;

    let get = ["config", "get", "limits"];
    let table = user.ok(&get).await;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "PLAN", "QUOTA.REQUESTS", "MODIFIED"]);
    assert_eq!(
        (lines[1][..3].to_vec(), lines[2][..2].to_vec()),
        (vec!["acme", "pro", "1000"], vec!["initech", "free"])
    );
    let wide = user.ok(&[&get[..], &["-o", "wide"]].concat()).await;
    assert!(wide.contains(r#"{"plan":"pro","quota":{"requests":1000},"exact":7.0}"#), "{wide}");
    let list = user.json(&get).await;
    assert_eq!((list["results"].as_array().unwrap().len(), &list["meta"]["total"]), (2, &json!(2)));
    let lines = user.ok(&[&get[..], &["-o", "jsonl"]].concat()).await;
    assert_eq!(lines.lines().count(), 2);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
    assert_eq!(user.ok(&[&get[..], &["-o", "name"]].concat()).await, "acme\ninitech\n");
    let path = user.ok(&[&get[..], &["-o", "jsonpath={.results[*].data.plan}"]].concat()).await;
    assert_eq!(path, "pro\nfree\n");
    let yaml = user.ok(&["cfg", "get", "limits", "initech", "-o", "yaml"]).await;
    assert!(yaml.starts_with("config_key: initech\ndata:\n  plan: free\n  note: \"a: b # c\"\n"), "{yaml}");
    // Numbers have their digits.
    let one = user.ok(&["config", "get", "limits", "acme", "-o", "json"]).await;
    assert!(one.contains("\"exact\": 7.0"), "{one}");
    let filtered =
        user.ok(&[&get[..], &["--filter", "quota.requests[gte]=500", "-o", "name"]].concat()).await;
    assert_eq!(filtered, "acme\n");
    let last = user.ok(&[&get[..], &["--descending", "--limit", "1", "-o", "name"]].concat()).await;
    assert_eq!(last, "initech\n");

    let definitions = user.ok(&["get", "def"]).await;
    let lines: Vec<Vec<&str>> = definitions.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "CONFIGS", "INDEXES", "REVISION", "MODIFIED"]);
    assert_eq!(lines[1][..3], ["limits", "2", "plan,quota.requests"]);
    assert_eq!(
        user.json(&["definition", "get", "limits"]).await["indexes"],
        json!(["plan", "quota.requests"])
    );
    let explained = user.ok(&["explain", "limits.quota.requests"]).await;
    assert_eq!(explained, "limits.quota.requests  <integer>\n  at least: 0\n");
    assert!(user.ok(&["explain", "limits"]).await.contains("What the customer pays for"));

    let status = user.ok(&["cluster", "status"]).await;
    assert!(status.contains("leader node") && status.contains("no alarms"), "{status}");
    assert_eq!(user.json(&["cluster", "status"]).await["members"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_member_that_has_lost_its_directory_is_named_and_hides_nothing() {
    let mut cluster = Cluster::start("cli-lost").await;
    let user = User::of(&cluster);
    assert!(cluster.node(1).stop().await.success());
    std::fs::remove_dir_all(&cluster.node(1).directory).expect("it can be removed");
    // The first of the user's addresses.
    cluster.node(1).start().await;
    cluster.ready_on(&[2, 3]).await;
    let status = user.run(&["cluster", "status"]).await;
    assert_eq!(status.code, 1, "{status:?}");
    for text in ["leader node", "one more failure stops the cluster", "node 1 has lost its data directory"] {
        assert!(status.out.contains(text), "{text}: {status:?}");
    }
    assert!(!status.out.contains("no alarms"), "{status:?}");
    user.ok(&["member", "promote", "2"]).await;
    user.ok(&["key", "list"]).await;
    let leader = cluster.leader_on(&[2, 3]).await;
    eventually("the leader raises an alarm", async || {
        let alarms = cluster.client(leader).status().await?["alarms"].clone();
        let mut all = alarms.as_array().into_iter().flatten();
        check(all.any(|one| one["type"] == "unreachable" && one["node_id"] == 1), || alarms.to_string())
    })
    .await;
}

#[tokio::test]
async fn each_failure_has_its_exit_code() {
    let cluster = Cluster::start("cli-codes").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    let applied = user.run(&["apply", "-f", &file]).await;
    let told = "3 changed, 0 unchanged; revision ";
    assert!(applied.code == 0 && applied.err.starts_with(told), "{applied:?}");

    let code = async |arguments: &[&str]| user.run(arguments).await.code;
    // Nothing is asked where nobody can answer.
    assert_eq!(code(&["config", "delete", "limits", "acme"]).await, 2);
    assert_eq!(code(&["config", "get"]).await, 2);
    assert_eq!(code(&["config", "get", "limits", "-o", "xml"]).await, 2);
    assert_eq!(code(&["config", "get", "limits", "absent"]).await, 3);
    assert_eq!(code(&["definition", "get", "absent"]).await, 3);
    assert_eq!(code(&["config", "create", "limits", "acme", "--data", r#"{"plan": "pro"}"#]).await, 4);
    assert_eq!(code(&["config", "patch", "limits", "acme", "--if-match", "1", "--data", "{}"]).await, 4);
    let invalid = user.run(&["config", "create", "limits", "x", "--data", r#"{"plan": "gold"}"#]).await;
    assert_eq!(invalid.code, 5, "{invalid:?}");
    assert!(invalid.err.contains("/data/plan: "), "{invalid:?}");
    assert_eq!(code(&["config", "validate", "limits", "--data", r#"{"plan": 7}"#]).await, 5);
    assert_eq!(code(&["config", "validate", "limits", "--data", r#"{"plan": "pro"}"#]).await, 0);
    assert_eq!(code(&["config", "validate", "limits", "acme", "--data", r#"{"plan": "pro"}"#]).await, 0);
    assert_eq!(code(&["config", "create", "limits", "x", "--data", r#"{"a": 1, "a": 2}"#]).await, 5);
    let stranger = user.clone().with("CONCORD_API_KEY", "a-key-that-nobody-knows");
    let unauthorised = stranger.run(&["config", "get", "limits"]).await;
    assert_eq!(unauthorised.code, 6);
    assert!(unauthorised.err.contains("hint: set CONCORD_API_KEY"), "{unauthorised:?}");

    let tighter = user.write(
        "tighter.yaml",
        "properties: {plan: {const: pro}, quota: {properties: {requests: {type: integer}}}}",
    );
    let check = user.run(&["def", "check", "limits", "-f", &tighter]).await;
    assert_eq!(check.code, 1, "{check:?}");
    assert!(
        check.out.contains("initech") && check.err.contains("2 configs checked, 1 does not fit"),
        "{check:?}"
    );
    let wider = user
        .write("wider.json", "{\"properties\": {\"plan\": {\"type\": \"string\"}, \"quota\": {}} /* all */}");
    assert_eq!(code(&["def", "check", "limits", "-f", &wider]).await, 0);

    // What one config went through.
    let patched = user
        .ok(&["config", "patch", "limits", "acme", "--data", r#"{"plan": "free"}"#, "--reason", "why"])
        .await;
    assert!(patched.starts_with("config limits/acme changed  revision "), "{patched}");
    let history = user.json(&["config", "history", "limits", "acme"]).await;
    assert_eq!(
        (&history["results"][0]["reason"], &history["results"][1]["operation"]),
        (&json!("why"), &json!("create"))
    );
    let first = history["results"][1]["revision"].to_string();
    assert_eq!(
        user.json(&["config", "get", "limits", "acme", "--revision", &first]).await["data"]["plan"],
        "pro"
    );
    user.ok(&["config", "rollback", "limits", "acme", "--to", &first]).await;
    assert_eq!(user.json(&["config", "get", "limits", "acme"]).await["data"]["plan"], "pro");
    user.ok(&["config", "delete", "limits", "acme", "--yes"]).await;
    assert_eq!(code(&["config", "get", "limits", "acme"]).await, 3);
    assert_eq!(code(&["definition", "delete", "limits", "--restrict", "--yes"]).await, 4);
    user.ok(&["definition", "delete", "limits", "--yes"]).await;

    // The request is shown as the command of curl that sends it, without the key.
    let shown = user.run(&["definition", "create", "d", "--index", "a", "-v"]).await;
    assert!(shown.err.starts_with("curl -sS -X POST -H \"Authorization: $CONCORD_API_KEY\""), "{shown:?}");
    assert!(!shown.err.contains(&cluster.client(1).key));
    let put = ["config", "create", "d", "k", "--data", r#"{"password": "hunter2"}"#, "-v"];
    let shown = user.run(&put).await;
    assert!(shown.code == 0 && shown.err.contains("--data-binary @-"), "{shown:?}");
    assert!(!shown.err.contains("hunter2"), "{shown:?}");

    let file = user.write("limits.yaml", LIMITS);
    let quiet = user.run(&["apply", "-f", &file, "-q", "--request-id", "deploy-7"]).await;
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (0, "", ""));
    let again = user.run(&["--quiet", "apply", "-f", &file]).await;
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (0, "", ""));
    let refused = user.run(&["config", "get", "limits", "none", "-q", "--request-id", "a\nb"]).await;
    assert!(refused.code == 2 && refused.err.contains("request id"), "{refused:?}");
    let mut names = 0;
    for node in 1..=3 {
        let url = cluster.client(node).base.clone();
        let lines = user.ok(&["audit", "tail", "--url", &url, "-n", "50", "-o", "json"]).await;
        names += lines.matches("\"deploy-7\"").count();
    }
    assert_eq!(names, 1, "one line for one batch");
}

#[tokio::test]
async fn a_key_of_dots_is_refused_and_leads_to_nothing_else() {
    let cluster = Cluster::start("cli-dots").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    for key in [".", ".."] {
        for command in [
            &["config", "get", "limits", key][..],
            &["config", "delete", "limits", key, "--yes"],
            &["config", "history", "limits", key],
            &["config", "put", "limits", key, "--data", "{}"],
            &["definition", "delete", key, "--yes"],
        ] {
            let done = user.run(command).await;
            assert_eq!(done.code, 5, "{command:?}: {done:?}");
        }
    }
    assert_eq!(user.json(&["config", "get", "limits", "acme"]).await["data"]["plan"], "pro");
}
