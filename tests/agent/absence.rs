//! The cluster is gone, the agent is restarted, asked to read its settings, asked to end.

use std::process::Stdio;

use serde_json::json;

use super::{Agent, define, http, lives, put};
use crate::harness::{Cluster, check, eventually};

const FILES: &str = "files: [{path: out.json, definition: limits, config: acme, debounce_ms: 50}]\n";

#[tokio::test]
async fn an_agent_goes_on_without_the_cluster_and_begins_without_it() {
    let mut cluster = Cluster::start("agent-absence").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1.0})).await;
    put(&cluster, 1, "bravo", &json!({"n": 2})).await;
    let mut agent = Agent::new(&cluster, FILES);
    agent.start();
    agent.has("out.json", "{\n  \"n\": 1.0\n}\n").await;
    let path = "/api/v1/config_definition/limits/config/acme";
    let (status, headers, body) = agent.get(path).await.unwrap();
    let node = cluster.client(1).get(path).await;
    assert_eq!((status, body), (200, node.body.clone()), "as a node answers it");
    assert_eq!(headers["etag"], node.headers["etag"]);
    assert!(headers["x-concord-source"] == "cache" && headers["x-concord-state"] == "fresh", "{headers:?}");
    let list = "/api/v1/config_definition/limits/config/?limit=1&page=2";
    let (status, _, body) = agent.get(list).await.unwrap();
    let listed = cluster.client(1).get(&format!("{list}&sort_by=config_key&sort_order=asc")).await;
    assert_eq!((status, &body), (200, &listed.body));
    for (path, expected) in [
        ("/api/v1/config_definition/limits/config/absent", 404),
        ("/api/v1/config_definition/other/config/acme", 404),
        ("/api/v1/config_definition/limits/config/?search=a", 422),
        ("/elsewhere", 404),
    ] {
        assert_eq!(agent.get(path).await.unwrap().0, expected, "{path}");
    }
    // A page of a browser that made a name point here.
    let foreign = http().get(format!("http://127.0.0.1:{}{path}", agent.port)).header("host", "example.org");
    assert_eq!(foreign.send().await.unwrap().status(), 421);

    cluster.kill_all();
    let stale = async |agent: &Agent, source: &'static str| {
        eventually("a stale answer", async || {
            let (status, headers, body) = agent.get(path).await?;
            let is_so = status == 200
                && headers["x-concord-state"] == "stale"
                && headers["x-concord-source"] == source
                && headers.contains_key("x-concord-stale-since");
            check(is_so && body["data"]["data"] == json!({"n": 1.0}), || format!("{headers:?} {body}"))?;
            Ok(headers["age"].to_str().unwrap().parse::<u64>().unwrap())
        })
        .await
    };
    assert!(stale(&agent, "cache").await >= 3);
    agent.logs("the configs are not fresh").await;
    let (status, ..) = agent.get("/healthz").await.unwrap();
    assert_eq!((status, agent.get("/healthz?fresh=true").await.unwrap().0), (200, 503));

    // Started anew without any node, it has what it had, and writes a file that is not there.
    agent.kill();
    std::fs::remove_file(agent.path("out.json")).unwrap();
    agent.start();
    agent.has("out.json", "{\n  \"n\": 1.0\n}\n").await;
    assert!(stale(&agent, "file").await >= 3);

    // And it follows again when they are back.
    cluster.start_all().await;
    put(&cluster, 2, "acme", &json!({"n": 2})).await;
    agent.has("out.json", "{\n  \"n\": 2\n}\n").await;
    eventually("fresh", async || {
        let (_, headers, _) = agent.get(path).await?;
        check(headers["x-concord-state"] == "fresh", || format!("{headers:?}"))
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn settings_are_read_again_and_children_end_with_the_agent() {
    let cluster = Cluster::start("agent-signals").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let mut agent = Agent::new(&cluster, FILES);
    agent.start();
    agent.has("out.json", "{\n  \"n\": 1\n}\n").await;
    // Settings that are wrong change nothing.
    agent.configure("files: [{path: out.json, colour: red}]\n");
    agent.signal("HUP");
    agent.logs("the settings were not reloaded").await;
    put(&cluster, 1, "acme", &json!({"n": 2})).await;
    agent.has("out.json", "{\n  \"n\": 2\n}\n").await;

    let hangs = "files:\n  - {path: second.json, definition: limits, config: acme, command: [sh, -c, 'echo $$ > pid; sleep 1000']}\n";
    // Nor do those whose address is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    agent.write(
        "agent.yaml",
        &format!("configs: [{{definition: limits}}]\ndata_dir: data\nlisten: {listen}\n{hangs}"),
    );
    agent.signal("HUP");
    agent.logs(&format!("listen {listen}")).await;
    put(&cluster, 1, "acme", &json!({"n": 3})).await;
    agent.has("out.json", "{\n  \"n\": 3\n}\n").await;

    agent.configure(hangs);
    agent.signal("HUP");
    agent.has("second.json", "{\n  \"n\": 3\n}\n").await;
    let pid = eventually("the command runs", async || {
        let pid = agent.read("pid");
        check(pid.ends_with('\n') && lives(&pid), || pid.clone()).map(|()| pid.clone())
    })
    .await;
    agent.stop().await;
    assert!(!lives(&pid), "no child outlives the agent");
    // It was not done, so it is done by the next agent.
    std::fs::remove_file(agent.path("pid")).unwrap();
    agent.start();
    eventually("the command runs again", async || {
        let pid = agent.read("pid");
        check(pid.ends_with('\n'), || pid.clone())
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn wrong_settings_are_refused_at_the_start_and_once_is_enough_for_a_job() {
    let cluster = Cluster::start("agent-once").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let agent = Agent::new(&cluster, FILES);
    let run = |extra: &'static str| {
        let mut command = agent.command();
        tokio::task::spawn_blocking(move || command.arg(extra).output().unwrap())
    };
    let done = run("--once").await.unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(agent.read("out.json"), "{\n  \"n\": 1\n}\n");
    assert!(run("--check").await.unwrap().status.success());
    agent.configure("files: [{path: out.json, template_text: '{{ configs.'}]\n");
    let wrong = run("--check").await.unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("template"), "{wrong:?}");
}

#[tokio::test]
async fn a_job_that_is_asked_to_end_leaves_no_child_and_says_what_is_left() {
    let cluster = Cluster::start("agent-once-signals").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let settings = "files:\n  - {path: first.json, definition: limits, config: acme, command: [sh, -c, 'echo $$ > pid; sleep 1000']}\n  - {path: second.json, definition: limits, config: acme}\n";
    let mut agent = Agent::new(&cluster, settings);
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut command = agent.command();
        agent.child = Some(command.arg("--once").stderr(Stdio::piped()).spawn().unwrap());
        let pid = eventually("the command runs", async || {
            let pid = agent.read("pid");
            check(pid.ends_with('\n') && lives(&pid), || pid.clone()).map(|()| pid.clone())
        })
        .await;
        agent.signal(signal);
        let child = agent.child.take().unwrap();
        let done = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains("was stopped with the agent") && said.contains("it was not updated"), "{said}");
        assert!(!lives(&pid), "no child outlives the agent");
        // It was not done, so the next run does it again.
        assert!(agent.path("first.json").exists() && !agent.path("second.json").exists());
        std::fs::remove_file(agent.path("pid")).unwrap();
    }
    agent.configure(FILES);
    let mut command = agent.command();
    let done = tokio::task::spawn_blocking(move || command.arg("--once").output().unwrap()).await.unwrap();
    assert!(done.status.success(), "{done:?}");

    // Also while no node answers.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nowhere.local_addr().unwrap());
    let mut command = agent.command();
    command.arg("--once").env("CONCORD_URL", url).stderr(Stdio::piped());
    agent.child = Some(command.spawn().unwrap());
    // It has asked, so it waits.
    let asked = tokio::task::spawn_blocking(move || nowhere.accept().unwrap()).await.unwrap();
    agent.signal("TERM");
    let child = agent.child.take().unwrap();
    let done = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(done.status.code(), Some(143), "{done:?}");
    drop(asked);
}
