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
        ("/api/v1/config_definition/limits/config/acme?revision=1", 422),
        ("/api/v1/config_definition/limits/config/acme?min_revision=99999999", 422),
        ("/api/v1/config_definition/limits/config/acme?consistency=linearizable", 422),
        ("/api/v1/config_definition/limits/config/acme?fields=n", 422),
        ("/healthz?fresh=1", 422),
        ("/healthz?frsh=true", 422),
        ("/elsewhere", 404),
    ] {
        let (status, _, body) = agent.get(path).await.unwrap();
        let code = body["errors"][0]["code"].as_str().unwrap_or_default().to_owned();
        let is_code = if status == 422 { code == "query_invalid" } else { code.ends_with("_not_found") };
        assert!(status == expected && is_code, "{path}: {status} {body}");
    }
    // The version that the client has: compared weakly, as RFC 9110 says.
    let revision = headers["etag"].to_str().unwrap();
    for (tag, expected) in [(format!("W/{revision}"), 304), ("*".into(), 304), ("\"1\"".into(), 200)] {
        let url = format!("http://127.0.0.1:{}{path}", agent.port);
        let answer = http().get(url).header("if-none-match", &tag).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{tag}");
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

#[tokio::test]
async fn a_deleted_definition_has_no_list() {
    let cluster = Cluster::start("agent-deleted").await;
    define(&cluster).await;
    let mut agent = Agent::new(&cluster, "");
    agent.start();
    let list = "/api/v1/config_definition/limits/config/";
    let answers = async |expected: u16| {
        eventually("the list", async || {
            let (status, headers, body) = agent.get(list).await?;
            check(status == expected && headers["x-concord-state"] == "fresh", || format!("{status} {body}"))
        })
        .await;
    };
    // It has no configs.
    answers(200).await;
    let answer = cluster.client(1).delete("/api/v1/config_definition/limits").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answers(404).await;
    define(&cluster).await;
    answers(200).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_first_start_without_the_cluster_says_what_it_waits_for() {
    let cluster = Cluster::start("agent-silent").await;
    let mut agent = Agent::new(&cluster, FILES);
    let free = crate::harness::ports::free("127.0.0.1");
    agent.urls = format!("http://127.0.0.1:{free}");
    agent.start();
    agent.logs("no configs from the cluster yet; the agent keeps trying http://127.0.0.1").await;
    let log = agent.read("log.txt");
    assert!(log.contains("can't be reached") && !log.contains("secret"), "{log}");
    agent.stop().await;
    let mut command = agent.command();
    agent.child = Some(
        command
            .arg("--once")
            .stderr(Stdio::from(std::fs::File::create(agent.path("log.txt")).unwrap()))
            .spawn()
            .unwrap(),
    );
    agent.logs("no configs from the cluster yet").await;
    agent.kill();
}

#[tokio::test]
async fn as_process_1_the_agent_leaves_no_zombie() {
    let is_allowed = std::process::Command::new("unshare").args(["-rpf", "--kill-child", "true"]).output();
    if !is_allowed.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: no right to make a process namespace (unshare -rpf)");
        return;
    }
    let cluster = Cluster::start("agent-init").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    // A process that outlives the command, and ends as a child of process 1.
    let settings = "files:\n  - {path: out.json, definition: limits, config: acme, debounce_ms: 50, command: [sh, -c, '(sleep 0.2; echo $$ >> left) & echo x >> ran']}\n";
    let mut agent = Agent::new(&cluster, settings);
    let inner = agent.command();
    let mut outer = std::process::Command::new("unshare");
    outer.args(["-rpf", "--kill-child", "--mount-proc"]).arg(inner.get_program()).args(inner.get_args());
    outer.current_dir(inner.get_current_dir().unwrap()).env_clear();
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let log = std::fs::File::create(agent.path("log.txt")).unwrap();
    agent.child = Some(outer.stdin(Stdio::null()).stderr(log).spawn().unwrap());
    for n in 2..5 {
        put(&cluster, 1, "acme", &json!({ "n": n })).await;
        agent.has("out.json", &format!("{{\n  \"n\": {n}\n}}\n")).await;
        agent.nothing_due().await;
    }
    eventually("what was left has ended", async || {
        check(agent.read("left").lines().count() >= 3, || agent.read("log.txt"))
    })
    .await;
    let unshare = agent.child.as_ref().unwrap().id();
    let below = |parent: u32| -> Vec<(u32, String)> {
        let processes = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let status = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
        };
        let all = processes.map(|pid: u32| (pid, status(pid)));
        all.filter(|(_, text)| field(text, "PPid:") == parent.to_string())
            .map(|(pid, text)| (pid, field(&text, "State:")))
            .collect()
    };
    let first = below(unshare)[0].0;
    eventually("no zombie is left", async || {
        let zombies: Vec<_> = below(first).into_iter().filter(|(_, state)| state.starts_with('Z')).collect();
        check(zombies.is_empty(), || format!("{zombies:?}"))
    })
    .await;
    // The signal reaches the agent, which ends by itself.
    let sent = std::process::Command::new("sh").arg("-c").arg(format!("kill -TERM {first}")).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let mut child = agent.child.take().unwrap();
    let status = eventually("process 1 ends", async || {
        child.try_wait().expect("it is ours").ok_or_else(|| agent.read("log.txt"))
    })
    .await;
    assert!(status.success(), "{status}");
}
