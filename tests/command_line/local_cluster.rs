//! What `scripts/cluster.sh` says of nodes that run with other settings than it is asked for.
//!
//! The nodes are processes of their name that do nothing: it must end before it calls one.

use std::{
    path::Path,
    process::{Child, Command, Output},
};

const KEY: &str = "the-root-key-of-the-nodes";

/// A process that passes for a running node, until it is dropped.
struct Stand(Child);

impl Drop for Stand {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The three nodes of a data directory, with these settings.
fn nodes(data: &Path, settings: &[(&str, &str)]) -> Vec<Stand> {
    let run = |id: usize| {
        let mut command = Command::new("bash");
        command.args(["-c", "exec -a 'concord serve' sleep 300"]).env("CONCORD_API_KEY", KEY);
        let child = command.envs(settings.iter().copied()).spawn().expect("`bash` is installed");
        let home = data.join(format!("node{id}"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("pid"), child.id().to_string()).unwrap();
        Stand(child)
    };
    let all: Vec<Stand> = (1..=3).map(run).collect();
    for Stand(child) in &all {
        let line = format!("/proc/{}/cmdline", child.id());
        while !std::fs::read_to_string(&line).unwrap().starts_with("concord serve") {
            std::thread::yield_now();
        }
    }
    all
}

fn up(data: &Path, settings: &[(&str, &str)]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("scripts/cluster.sh"));
    let command = command.arg("up").envs([("CONCORD_BIN", "/nowhere/concord"), ("CONCORD_WAIT_S", "1")]);
    command.env("CONCORD_DATA", data).env("CONTEXT", "").env_remove("TLS").env("CONCORD_API_KEY", KEY);
    command.envs(settings.iter().copied()).output().expect("the script can be started")
}

#[test]
fn nodes_that_run_with_other_settings_are_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (plain, encrypted) = (directory.path().join("plain"), directory.path().join("encrypted"));
    let tls = [("CONCORD_TLS_CERT_FILE", "node.pem")];
    let _nodes = (nodes(&plain, &[]), nodes(&encrypted, &tls));
    let callers = |data: &Path| data.join("tls/callers");
    std::fs::create_dir_all(encrypted.join("tls")).unwrap();
    std::fs::write(callers(&encrypted), "").unwrap();
    let other_key = [("CONCORD_API_KEY", "another-root-key-of-length")];
    for (data, settings, told) in [
        (&plain, &[("TLS", "1")], "node 1 runs with TLS=0, but TLS=1 is asked for"),
        (&encrypted, &[("TLS", "0")], "node 1 runs with TLS=1, but TLS=0 is asked for"),
        (&plain, &other_key, "node 1 runs with another root key"),
        (&plain, &[("TLS", "yes")], "TLS is 0 or 1, not `yes`"),
    ] {
        let before = callers(data).exists();
        let ended = up(data, settings);
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && text.contains(told), "{text}");
        assert!(text.contains("TLS is") || text.contains("scripts/cluster.sh down"), "{text}");
        assert_eq!(callers(data).exists(), before, "what the other commands use stays as the nodes run");
    }
    // With their own settings they are the nodes that it wants.
    for data in [&plain, &encrypted] {
        let ended = up(data, &[]);
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(text.contains("node 1 is already running"), "{ended:?}");
    }
}
