//! Files and commands.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{Agent, define, put};
use crate::harness::{Cluster, check, eventually};

const FILES: &str = r#"files:
  - {path: limits.json, definition: limits, config: acme}
  - {path: limits.env, definition: limits, config: acme, format: env, prefix: LIMIT_, mode: "0640"}
  - {path: all.yaml, definition: limits, format: yaml}
  - path: nginx.conf
    template: nginx.conf.j2
    debounce_ms: 100
    command: [sh, -c, 'cat "$CONCORD_AGENT_FILE" >> ran.txt']
"#;

const TEMPLATE: &str =
    "{% for key, data in configs.limits|items %}limit {{ key }} {{ data.requests }};\n{% endfor %}";

#[tokio::test]
async fn files_are_as_the_configs_say_and_commands_run_when_they_changed() {
    let mut cluster = Cluster::start("agent-files").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"requests": 10})).await;
    let mut agent = Agent::new(&cluster, FILES);
    agent.write("nginx.conf.j2", TEMPLATE);
    agent.start();
    agent.has("limits.json", "{\n  \"requests\": 10\n}\n").await;
    agent.has("limits.env", "LIMIT_REQUESTS='10'\n").await;
    agent.has("all.yaml", "acme:\n  requests: 10\n").await;
    agent.has("nginx.conf", "limit acme 10;\n").await;
    agent.has("ran.txt", "limit acme 10;\n").await;
    let mode = |name| std::fs::metadata(agent.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("limits.json"), mode("limits.env")), (0o600, 0o640));

    // A change is written, and its command sees it; a write of equal data runs nothing.
    put(&cluster, 2, "acme", &json!({"requests": 10})).await;
    put(&cluster, 2, "bravo", &json!({"requests": 7.0})).await;
    agent.has("ran.txt", "limit acme 10;\nlimit acme 10;\nlimit bravo 7.0;\n").await;
    agent.has("all.yaml", "acme:\n  requests: 10\nbravo:\n  requests: 7.0\n").await;

    // The leader dies, and the file follows all the same.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let other = if leader == 1 { 2 } else { 1 };
    put(&cluster, other, "bravo", &json!({"requests": 8})).await;
    agent.has("nginx.conf", "limit acme 10;\nlimit bravo 8;\n").await;

    // A restart finds everything as it should be, and runs nothing.
    let ran = agent.read("ran.txt");
    eventually("the command has run", async || {
        check(agent.read("ran.txt").ends_with("limit bravo 8;\n"), || agent.read("ran.txt"))
    })
    .await;
    assert!(agent.read("ran.txt").starts_with(&ran));
    let ran = agent.read("ran.txt");
    agent.nothing_due().await;
    agent.stop().await;
    agent.write("log.txt", "");
    agent.start();
    agent.logs("the configs are fresh").await;
    put(&cluster, other, "acme", &json!({"requests": 11})).await;
    agent.has("limits.env", "LIMIT_REQUESTS='11'\n").await;
    eventually("the command has run once more", async || {
        let text = agent.read("ran.txt");
        check(text == format!("{ran}limit acme 11;\nlimit bravo 8;\n"), || text.clone())
    })
    .await;
}

#[tokio::test]
async fn what_can_not_be_rendered_leaves_the_file_and_is_told() {
    let cluster = Cluster::start("agent-wrong").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"requests": 10})).await;
    let settings = r#"files:
  - {path: out.txt, template_text: "{{ configs.limits.acme.requests }}", debounce_ms: 50}
  - {path: gone.json, definition: limits, config: later, when_absent: remove}
"#;
    let mut agent = Agent::new(&cluster, settings);
    agent.write("gone.json", "old");
    agent.start();
    agent.has("out.txt", "10").await;
    eventually("a file whose config is absent is removed", async || {
        check(!agent.path("gone.json").exists(), || "it is there".into())
    })
    .await;
    put(&cluster, 1, "acme", &json!({"typo": 1})).await;
    agent.logs("the file was not updated").await;
    assert_eq!(agent.read("out.txt"), "10");
    let (status, _, health) = agent.get("/healthz").await.unwrap();
    assert_eq!((status, &health["ok"]), (503, &json!(false)), "{health}");
    assert!(health["files_failing"][0].as_str().unwrap().ends_with("out.txt"), "{health}");
    put(&cluster, 1, "acme", &json!({"requests": 12})).await;
    agent.has("out.txt", "12").await;
    eventually("it is well again", async || {
        let (status, _, health) = agent.get("/healthz").await?;
        check(status == 200, || health.to_string())
    })
    .await;
    let (_, _, metrics) = agent.get("/metrics").await.unwrap();
    let metrics = metrics.as_str().unwrap();
    for expected in ["concord_agent_fresh 1", "concord_agent_configs 1", "out.txt\"} 2"] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
}

#[tokio::test]
async fn a_file_that_can_not_be_written_is_tried_again_and_its_command_waits_for_it() {
    let cluster = Cluster::start("agent-no-folder").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let settings = "files:\n  - {path: below/out.json, definition: limits, config: acme, command: [sh, -c, 'echo x >> ran']}\n";
    let mut agent = Agent::new(&cluster, settings);
    agent.start();
    agent.logs("the file was not updated").await;
    agent.nothing_due().await;
    std::fs::create_dir(agent.path("below")).unwrap();
    agent.has("below/out.json", "{\n  \"n\": 1\n}\n").await;
    eventually("the command has run", async || check(agent.read("ran") == "x\n", || agent.read("ran"))).await;
}

#[tokio::test]
async fn a_command_that_fails_is_run_again_and_one_that_hangs_is_ended() {
    let cluster = Cluster::start("agent-commands").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    // Fails the first time, hangs the second time, succeeds the third time.
    let settings = r#"files:
  - path: out.json
    definition: limits
    config: acme
    timeout_s: 1
    debounce_ms: 50
    command: [sh, -c, 'echo x >> tries.txt; case $(wc -l < tries.txt) in 1) exit 9;; 2) sleep 1000;; esac; echo done > done.txt']
"#;
    let mut agent = Agent::new(&cluster, settings);
    agent.start();
    agent.has("done.txt", "done\n").await;
    assert_eq!(agent.read("tries.txt"), "x\nx\nx\n");
    let log = agent.read("log.txt");
    assert!(log.contains("exit status: 9") && log.contains("exceeded 1 s"), "{log}");
    agent.nothing_due().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_new_file_that_its_check_refuses_does_not_replace_the_current_one() {
    let cluster = Cluster::start("agent-check").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let settings = r#"files:
  - path: out.json
    definition: limits
    config: acme
    debounce_ms: 50
    check: [sh, -c, 'grep -q "\"n\": [0-9]" "$1"', sh, "{new}"]
    command: [sh, -c, 'cat "$CONCORD_AGENT_FILE" >> ran']
"#;
    let mut agent = Agent::new(&cluster, settings);
    // What a killed agent has left.
    agent.write(&format!("out.json.{}.new", "0".repeat(32)), "secret");
    agent.start();
    let good = "{\n  \"n\": 1\n}\n";
    agent.has("out.json", good).await;
    agent.has("ran", good).await;
    agent.nothing_due().await;
    put(&cluster, 1, "acme", &json!({"n": "bad"})).await;
    agent.logs("the check of the new file failed").await;
    assert_eq!((agent.read("out.json"), agent.read("ran")), (good.into(), good.into()));
    let (status, _, health) = agent.get("/healthz").await.unwrap();
    assert_eq!(status, 503, "{health}");
    // A job says it by its exit code. It needs the data directory for itself.
    let second = || {
        let mut command = agent.command();
        tokio::task::spawn_blocking(move || command.arg("--once").output().unwrap())
    };
    let done = second().await.unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("another agent uses this `data_dir`"), "{said}");
    agent.stop().await;
    let done = {
        let mut command = agent.command();
        tokio::task::spawn_blocking(move || command.arg("--once").output().unwrap()).await.unwrap()
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("the check of the new file failed"), "{said}");
    let names = std::fs::read_dir(agent.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".new")).collect();
    assert!(left.is_empty(), "{left:?}");
    agent.start();
    put(&cluster, 1, "acme", &json!({"n": 2})).await;
    agent.has("out.json", "{\n  \"n\": 2\n}\n").await;
    agent.stop().await;
}

#[tokio::test]
async fn a_file_that_another_program_removes_or_changes_is_written_again() {
    let cluster = Cluster::start("agent-altered").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let settings = r#"files:
  - path: out.json
    definition: limits
    config: acme
    check: [sh, -c, 'echo x >> checked', sh, "{new}"]
    command: [sh, -c, 'cat "$CONCORD_AGENT_FILE" >> ran']
  - {path: other.json, definition: limits, config: acme, mode: "0640"}
  - {path: gone.json, definition: limits, config: later, when_absent: remove}
"#;
    let mut agent = Agent::new(&cluster, settings);
    agent.start();
    let good = "{\n  \"n\": 1\n}\n";
    agent.has("ran", good).await;
    agent.nothing_due().await;
    let health = async |expected: u16, file: &str| {
        eventually(&format!("/healthz is {expected}"), async || {
            let (status, _, health) = agent.get("/healthz").await?;
            let is_told = health["files_failing"].to_string().contains(file);
            check(status == expected && (is_told || file.is_empty()), || health.to_string())
        })
        .await;
    };

    let begun = std::time::Instant::now();
    // Removed: it is written, checked and told to its program again.
    std::fs::remove_file(agent.path("out.json")).unwrap();
    agent.has("out.json", good).await;
    agent.has("ran", &good.repeat(2)).await;
    assert_eq!(agent.read("checked"), "x\nx\n");
    agent.logs("another program has changed or removed the file").await;
    health(200, "").await;

    // A program that changes it over and over does not get its command over and over: that it differs is told. On a
    // machine so busy that the pause has passed there is nothing to show.
    if begun.elapsed() < std::time::Duration::from_secs(40) {
        agent.write("out.json", "mine");
        health(503, "out.json").await;
        assert_eq!((agent.read("out.json"), agent.read("ran")), ("mine".into(), good.repeat(2)));
        agent.write("out.json", good);
        health(200, "").await;
    }

    // Changed, with the same size: written again, and its mode, too.
    agent.write("other.json", &good.replace('1', "9"));
    agent.has("other.json", good).await;
    let mode = || std::fs::metadata(agent.path("other.json")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o640);
    std::fs::set_permissions(agent.path("other.json"), std::fs::Permissions::from_mode(0o666)).unwrap();
    eventually("the mode is mended", async || check(mode() == 0o640, || format!("{:o}", mode()))).await;
    // What the agent has removed stays removed.
    agent.write("gone.json", "mine");
    eventually("it is removed", async || check(!agent.path("gone.json").exists(), || agent.read("log.txt")))
        .await;

    // A change of the configs does not wait.
    agent.write("out.json", "mine");
    put(&cluster, 1, "acme", &json!({"n": 2})).await;
    agent.has("out.json", &good.replace('1', "2")).await;
    health(200, "").await;
    let (_, _, metrics) = agent.get("/metrics").await.unwrap();
    let metrics = metrics.as_str().unwrap();
    let is_altered = |line: &str| {
        line.starts_with("concord_agent_file_alterations_total{") && line.ends_with("other.json\"} 1")
    };
    assert!(metrics.lines().any(is_altered), "{metrics}");
    agent.stop().await;
}
