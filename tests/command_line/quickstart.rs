//! The first five minutes with `concord demo`, line by line.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
};

use serde_json::Value;

use super::User;
use crate::harness::{Client, DEADLINE, eventually, fresh_directory, ports};

/// A process whose lines are read as they come. It is killed when it is dropped.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn start(user: &User, arguments: &[&str]) -> Self {
        let mut command = user.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the binary can be started");
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// The lines up to one that holds a text, which is the last.
    fn until(&self, text: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with `{text}`: {seen:#?}"),
            }
            if seen.last().is_some_and(|line| line.contains(text)) {
                return seen;
            }
        }
    }

    /// Starts a process until it prints a line with a text: another test may have a port for a moment.
    fn start_until(user: &User, arguments: &[&str], text: &str) -> (Self, Vec<String>) {
        for _ in 0..20 {
            let (started, mut seen) = (Self::start(user, arguments), Vec::new());
            while let Ok(line) = started.lines.recv_timeout(DEADLINE) {
                seen.push(line);
                if seen.last().is_some_and(|line| line.contains(text)) {
                    return (started, seen);
                }
            }
        }
        panic!("no line with `{text}`");
    }

    fn interrupt(&self) {
        let sent = std::process::Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(sent.expect("`kill` can be started").success());
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn last_number(text: &str) -> String {
    text.split(|character: char| !character.is_ascii_digit())
        .rfind(|part| !part.is_empty())
        .unwrap()
        .to_owned()
}

/// The leader is killed, and another node leads.
async fn lose_the_leader(user: &User, demo: &Lines) {
    let status: Value = user.json(&["cluster", "status"]).await;
    let (leader, term) = (status["leader_id"].as_u64().unwrap(), status["term"].as_u64().unwrap());
    let process = node_process(demo.child.id(), leader);
    assert!(std::process::Command::new("kill").args(["-9", &process]).status().unwrap().success());
    demo.until(&format!("node {leader} exited: signal: 9"));
    let lines = demo.until("leader node");
    let elected = lines.last().unwrap();
    assert!(elected.contains("(term ") && !elected.contains(&format!("leader node {leader} ")), "{elected}");
    let status = user.run(&["cluster", "status", "-o", "json"]).await;
    let after: Value = serde_json::from_str(&status.out).unwrap();
    assert!(status.code == 1 && after["term"].as_u64().unwrap() > term, "{status:?}");
    let screen = user.run(&["cluster", "status"]).await;
    assert!(screen.out.contains(&format!("node {leader} does not respond: ")), "{screen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_five_minutes() {
    let home = fresh_directory("quickstart");
    let user = User::new(home.path());
    let port = ports::free("127.0.0.1").to_string();
    // 0:00
    let arguments = ["demo", "--port", &port];
    let (demo, greeting) = Lines::start_until(&user, &arguments, "not for production");
    assert!(greeting[0].starts_with("3 nodes up in "), "{greeting:#?}");
    assert!(greeting[0].ends_with("3 definitions, 214 configs loaded"), "{greeting:#?}");
    let key = greeting.iter().find_map(|line| line.strip_prefix("key      ")).unwrap();
    let key = key.split_whitespace().next().unwrap();
    assert!(key.starts_with("demo_"), "{key}");
    let console = greeting.iter().find_map(|line| line.strip_prefix("console  ")).unwrap();
    let url = console.split("/ui").next().unwrap().to_owned();
    let browser = Client::new(&url, key);
    for path in ["/ui", "/docs"] {
        assert_eq!(browser.get(path).attempt().await.unwrap().status, 200, "{path}");
    }
    // The line that is printed runs as it is.
    let line = greeting.iter().find(|line| line.contains("curl ")).unwrap().trim();
    let listed = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["data"]["meta"]["total"], 3, "{line}: {listed}");
    // 0:40
    let definitions = user.ok(&["get", "def"]).await;
    let rows: Vec<Vec<&str>> = definitions.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KEY", "CONFIGS", "INDEXES", "REVISION", "MODIFIED"]);
    assert_eq!(rows[3][..3], ["service-limits", "71", "owner,limit"], "{definitions}");
    // 1:00
    let explained = user.ok(&["explain", "service-limits.owner"]).await;
    assert!(explained.starts_with("service-limits.owner  <string>\n  The team that answers"), "{explained}");
    // 1:20, with a watch in a second terminal
    let watch = Lines::start(&user, &["config", "watch", "service-limits"]);
    eventually("the watch has the state to begin with", async || {
        // A change that it shows proves that it is there.
        user.ok(&["config", "patch", "service-limits", "us", "--data", r#"{"burst": 41}"#]).await;
        watch.lines.try_recv().map_err(|error| error.to_string())
    })
    .await;
    let script = user.write(
        "editor.sh",
        "cp \"$1\" seen\nif grep -q '^# error:' \"$1\"; then sed -i 's/^limit: -5/limit: 50/' \"$1\"\nelse sed -i 's/^limit: 20/limit: -5/' \"$1\"; fi\n",
    );
    let editor = user.clone().with("EDITOR", &format!("sh {script}"));
    let before =
        user.json(&["config", "history", "service-limits", "eu"]).await["results"][0]["revision"].to_string();
    let edited = editor.run(&["config", "edit", "service-limits", "eu"]).await;
    assert_eq!(edited.code, 0, "{edited:?}");
    assert!(edited.err.contains("error: /limit: -5 is less than the minimum of 1"), "{edited:?}");
    let seen = std::fs::read_to_string(home.path().join("seen")).unwrap();
    assert!(seen.contains("# error: /limit: -5 is less than the minimum of 1\n"), "{seen}");
    assert!(
        edited.out.starts_with(&format!("config service-limits/eu changed  revision {before} → ")),
        "{edited:?}"
    );
    // 1:50
    let seen = watch.until("service-limits/eu limit 20 → 50 (by root)");
    assert!(!seen.is_empty());
    // 2:20
    let history = user.ok(&["config", "history", "service-limits", "eu"]).await;
    assert_eq!(history.lines().count(), 3, "{history}");
    user.ok(&["config", "rollback", "service-limits", "eu", "--to", &before]).await;
    watch.until("service-limits/eu limit 50 → 20");
    // 2:50
    let tighter = user
        .write("tighter.yaml", "properties: {limit: {type: integer, minimum: 5}, owner: {type: string}}\n");
    let check = user.run(&["def", "check", "service-limits", "-f", &tighter]).await;
    assert_eq!(check.code, 1, "{check:?}");
    assert!(
        check.err.contains("71 configs checked, 7 do not fit") && check.out.contains("eu-test"),
        "{check:?}"
    );
    assert!(check.err.contains("schema change: properties.limit.minimum 1 → 5\n"), "{check:?}");
    // 3:20
    lose_the_leader(&user, &demo).await;
    let total =
        user.ok(&["config", "get", "service-limits", "--limit", "1", "-o", "jsonpath={.meta.total}"]).await;
    assert_eq!(total, "71\n", "nothing is lost");
    user.ok(&["config", "patch", "service-limits", "eu", "--data", r#"{"limit": 33}"#]).await;
    watch.until("service-limits/eu limit 20 → 33");
    assert_eq!(
        last_number(&user.ok(&["config", "get", "service-limits", "-o", "jsonpath={.meta.total}"]).await),
        "71"
    );
    drop(watch);
    leaves_nothing(&user, demo).await;
}

/// The end: nothing stays.
async fn leaves_nothing(user: &User, mut demo: Lines) {
    let children = node_processes(demo.child.id());
    assert_eq!(children.len(), 2);
    demo.interrupt();
    assert!(demo.child.wait().unwrap().success());
    for child in children {
        assert!(!std::path::Path::new("/proc").join(&child).exists(), "process {child} is left");
    }
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "");
    let left = std::fs::read_dir(&user.home).unwrap();
    let left: Vec<String> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with("concord-demo-")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_that_is_kept_goes_on_and_one_that_is_killed_leaves_no_process() {
    let home = fresh_directory("quickstart-keep");
    let user = User::new(home.path());
    // Far from the ports of the other demo, because those of this one are kept.
    let port = (ports::free("127.0.0.1") / 2 + 2000).to_string();
    let arguments = ["demo", "--port", &port, "--keep", "data", "--no-sample"];
    let (mut demo, _) = Lines::start_until(&user, &arguments, "not for production");
    user.ok(&["definition", "create", "mine"]).await;
    demo.interrupt();
    assert!(demo.child.wait().unwrap().success());
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "demo\n");

    let (mut demo, _) = Lines::start_until(&user, &arguments, "not for production");
    let named = user.clone().with("CONCORD_CONTEXT", "demo");
    assert_eq!(named.ok(&["definition", "get", "-o", "name"]).await, "mine\n");
    let children = node_processes(demo.child.id());
    assert_eq!(children.len(), 3);
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    eventually("the nodes end with the demo", async || {
        let left: Vec<&String> = children.iter().filter(|child| is_alive(child)).collect();
        crate::harness::check(left.is_empty(), || format!("{left:?} are left"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_for_programs_prints_json_and_ends_with_its_input() {
    let home = fresh_directory("quickstart-json");
    let user = User::new(home.path());
    let port = (ports::free("127.0.0.1") / 2 + 17_000).to_string();
    let arguments = ["demo", "--port", &port, "--nodes", "1", "--no-sample", "-o", "json"];
    let (mut demo, lines) = Lines::start_until(&user, &arguments, "urls");
    let told: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((lines.len(), told["urls"].as_array().unwrap().len()), (1, 1), "{lines:#?}");
    assert_eq!(told["ca_file"], Value::Null);
    let client = Client::new(told["urls"][0].as_str().unwrap(), told["key"].as_str().unwrap());
    let status = client.get("/api/v1/cluster").attempt().await.unwrap();
    assert_eq!((status.status, status.data()["members"].as_array().unwrap().len()), (200, 1));
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "");
    let children = node_processes(demo.child.id());
    assert_eq!(children.len(), 1);
    drop(demo.child.stdin.take());
    assert!(demo.child.wait().unwrap().success());
    assert!(!children.iter().any(|child| is_alive(child)), "{children:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demo_speaks_tls_where_that_is_asked_for() {
    let home = fresh_directory("quickstart-tls");
    let user = User::new(home.path());
    let port = (ports::free("127.0.0.1") / 2 + 12_000).to_string();
    let arguments = ["demo", "--port", &port, "--tls", "--no-sample"];
    let (mut demo, greeting) = Lines::start_until(&user, &arguments, "not for production");
    let console = greeting.iter().find_map(|line| line.strip_prefix("console  ")).unwrap();
    let url = console.split("/ui").next().unwrap().to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{greeting:#?}");
    // The context has the authority, so that nothing else is needed; the line for curl names it.
    user.ok(&["definition", "create", "mine"]).await;
    assert!(user.ok(&["cluster", "status"]).await.contains("no alarms"));
    let line = greeting.iter().find(|line| line.contains("curl ")).unwrap().trim();
    let listed = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["data"]["results"][0]["config_definition_key"], "mine", "{line}: {listed}");
    // Whoever does not trust that authority sends no key.
    let key = greeting.iter().find_map(|line| line.strip_prefix("key      ")).unwrap();
    let key = key.split_whitespace().next().unwrap();
    let stranger = user.clone().with("CONCORD_URL", &url).with("CONCORD_API_KEY", key);
    let refused = stranger.run(&["whoami"]).await;
    assert!(refused.code == 7 && refused.err.contains("--cacert"), "{refused:?}");
    demo.interrupt();
    assert!(demo.child.wait().unwrap().success());
    assert_eq!(user.ok(&["context", "list", "-o", "name"]).await, "");
}

/// Whether a process runs; one that has ended and that nobody waits for does not.
fn is_alive(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// The processes that a process has started.
fn node_processes(parent: u32) -> Vec<String> {
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

/// The process of a node of a demo: the one whose environment has its id.
fn node_process(demo: u32, node: u64) -> String {
    let wanted = format!("CONCORD_NODE_ID={node}");
    let has = |process: &String| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    node_processes(demo).into_iter().find(has).expect("the node runs")
}
