//! Real agents, spread over the nodes: the file of each has both configs, and its command fails with a value that is too
//! large.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinHandle;

use super::{
    DEFINITIONS, KEY,
    check::{CONFIGS, Who, Written},
    readers::{BAD_FOR_AGENTS, now},
};
use crate::harness::{
    Cluster,
    node::{BINARY, spawn},
    time::pace,
};

/// How often the files are read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An agent, which dies with the test.
struct Agent {
    who: Who,
    root: PathBuf,
    child: Child,
}

impl Agent {
    fn start(cluster: &Cluster, place: usize) -> Self {
        let root = cluster.root().join(format!("agent-{place}"));
        std::fs::create_dir_all(&root).expect("it can be made");
        let [one, other] = DEFINITIONS;
        let settings = format!(
            r#"configs: [{{definition: {one}}}, {{definition: {other}}}]
data_dir: data
files:
  - path: both.txt
    template_text: "{{{{ configs['{one}'].{KEY}.n }}}} {{{{ configs['{other}'].{KEY}.n }}}}"
    debounce_ms: 50
    retries: 0
    command: [sh, -c, 'read one other < both.txt; [ "$one" -lt {BAD_FOR_AGENTS} ] || {{ echo "too much"; exit 3; }}']
"#
        );
        std::fs::write(root.join("agent.yaml"), settings).expect("it can be written");
        let who = Who {
            name: Some(format!("agent-{place}")),
            ring: Some(if place.is_multiple_of(3) { "canary" } else { "stable" }),
        };
        let mut urls: Vec<String> =
            cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
        urls.rotate_left(place % 3);
        let log = std::fs::File::create(root.join("log.txt")).expect("it can be written");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(BINARY.as_path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONCORD_") {
                command.env_remove(name);
            }
        }
        command
            .args(["agent", "--config", "agent.yaml"])
            .args(["--reader", who.name.as_deref().unwrap_or_default()])
            .current_dir(&root)
            .env("HOME", &root)
            .env("CONCORD_URL", urls.join(","))
            .env("CONCORD_API_KEY", &cluster.client(1).key)
            .env("CONCORD_LABELS", format!("ring={}", who.ring.unwrap_or_default()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = spawn(command);
        Self { who, root, child }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// All agents, and what their files have had.
pub(super) struct Agents {
    all: Vec<Agent>,
    written: Arc<Mutex<Vec<Written>>>,
    stop: Arc<AtomicBool>,
    looks: JoinHandle<u64>,
}

impl Agents {
    pub(super) fn start(cluster: &Cluster, count: usize) -> Self {
        let all: Vec<Agent> = (0..count).map(|place| Agent::start(cluster, place)).collect();
        let (written, stop) = (Arc::default(), Arc::default());
        let files: Vec<(Who, PathBuf)> =
            all.iter().map(|agent| (agent.who.clone(), agent.root.join("both.txt"))).collect();
        let looks = tokio::spawn(look(files, Arc::clone(&written), Arc::clone(&stop)));
        Self { all, written, stop, looks }
    }

    /// How many of them a stage has.
    pub(super) fn count(&self, is_in: impl Fn(&Who) -> bool) -> u64 {
        self.all.iter().filter(|agent| is_in(&agent.who)).count() as u64
    }

    /// Whose file has another value than it should have, with what it has and the end of the log.
    pub(super) fn without(&self, expected: impl Fn(&Who) -> u64) -> Vec<String> {
        let wrong = |agent: &&Agent| {
            let n = expected(&agent.who);
            read(&agent.root.join("both.txt")) != Some([n, n])
        };
        let tell = |agent: &Agent| {
            let log = std::fs::read_to_string(agent.root.join("log.txt")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(3).collect();
            format!("{:?} has {:?}: {tail:?}", agent.who, read(&agent.root.join("both.txt")))
        };
        self.all.iter().filter(wrong).map(tell).collect()
    }

    /// Ends them. How often a file was read, and what was in them.
    pub(super) async fn end(self) -> (u64, Vec<Written>) {
        self.stop.store(true, Ordering::SeqCst);
        let looks = self.looks.await.expect("no look panics");
        (looks, std::mem::take(&mut *self.written.lock().unwrap()))
    }
}

/// The numbers in a file; `None` before it is written.
fn read(file: &std::path::Path) -> Option<[u64; CONFIGS]> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(one)), Some(Ok(other)), None) => Some([one, other]),
        (..) => None,
    }
}

/// Reads the files again and again, and notes each new value of each.
async fn look(files: Vec<(Who, PathBuf)>, written: Arc<Mutex<Vec<Written>>>, stop: Arc<AtomicBool>) -> u64 {
    let mut known = vec![None; files.len()];
    let mut looks = 0;
    while !stop.load(Ordering::SeqCst) {
        for (place, (who, file)) in files.iter().enumerate() {
            looks += 1;
            let values = read(file);
            if values == known[place] {
                continue;
            }
            known[place] = values;
            if let Some(values) = values {
                written.lock().unwrap().push(Written { who: who.clone(), at: now(), values });
            }
        }
        pace(LOOK_EVERY).await;
    }
    looks
}
