//! One node: a process of the built binary with a directory and two ports.
//!
//! **Invariant:** no child outlives the test process. Each is started with a parent-death signal, which the kernel
//! sends when the *thread* that started it ends; so one thread that lives as long as the process starts them all.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex, mpsc},
};

use serde_json::{Value, json};

use super::{Client, ENCRYPTED, clock, data_keys, eventually, is_encrypted, ports};

type Start = (Command, mpsc::SyncSender<std::io::Result<Child>>);

/// The binary under test: the one that was built with the tests, or that of `CONCORD_BIN`.
pub(crate) static BINARY: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::var_os("CONCORD_BIN").unwrap_or(env!("CARGO_BIN_EXE_concord").into()).into());

static STARTER: LazyLock<Mutex<mpsc::SyncSender<Start>>> = LazyLock::new(|| {
    let (starts, inbox) = mpsc::sync_channel::<Start>(16);
    std::thread::spawn(move || {
        for (mut command, reply) in inbox {
            // The receiver waits for exactly this answer.
            drop(reply.send(command.spawn()));
        }
    });
    Mutex::new(starts)
});

/// Starts a process on the thread that lives as long as the tests.
pub(crate) fn spawn(command: Command) -> Child {
    let (reply, answer) = mpsc::sync_channel(1);
    STARTER.lock().expect("no holder panics").send((command, reply)).expect("the starter lives");
    answer.recv().expect("the starter answers").expect("`setpriv` (util-linux) and the binary can be started")
}

/// The API key of all test clusters. It holds the process id, so that another test process's node on the same port is
/// recognised as a stranger.
pub(crate) fn api_key() -> String {
    format!("test-root-key-{}-0123456789abcdef", std::process::id())
}

/// A node of a test.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) directory: PathBuf,
    pub(crate) log: PathBuf,
    /// The address that it listens on and is known by.
    pub(crate) host: String,
    pub(crate) api_port: u16,
    pub(crate) peer_port: u16,
    /// The program: another version where a test says so.
    pub(crate) binary: PathBuf,
    /// Every setting, by the name of its environment variable.
    pub(crate) settings: BTreeMap<String, String>,
    /// Settings that win over everything else, the addresses included.
    pub(crate) overrides: Vec<(String, String)>,
    /// The size of a volume of the node's own that its directory is on, as tmpfs has it. It lasts as long as the process.
    pub(crate) volume: Option<String>,
    /// The soft and the hard limit of open files that it is started with, if not those of the tests.
    pub(crate) open_files: Option<(u64, u64)>,
    child: Option<Child>,
}

impl Node {
    /// A node that is not started yet, with its files under `root`.
    pub(crate) fn new(id: u64, root: &Path, settings: &BTreeMap<String, String>) -> Self {
        Self::on_host(id, root, settings, "127.0.0.1".to_owned())
    }

    /// The same on another address of this machine.
    pub(crate) fn on_host(id: u64, root: &Path, settings: &BTreeMap<String, String>, host: String) -> Self {
        let mut settings = settings.clone();
        if settings.remove(ENCRYPTED).is_some() || is_encrypted() {
            settings.insert("CONCORD_DATA_KEY_FILE".into(), data_keys(root).to_string_lossy().into());
        }
        let mut node = Self {
            id,
            directory: root.join(format!("node{id}")),
            log: root.join(format!("node{id}.txt")),
            host,
            api_port: 0,
            peer_port: 0,
            binary: BINARY.clone(),
            settings,
            overrides: Vec::new(),
            volume: None,
            open_files: None,
            child: None,
        };
        node.take_new_ports();
        node
    }

    /// Gives it other addresses, for its next start.
    pub(crate) fn take_new_ports(&mut self) {
        (self.api_port, self.peer_port) = (ports::free(&self.host), ports::free(&self.host));
    }

    pub(crate) fn api_addr(&self) -> String {
        format!("{}:{}", self.host, self.api_port)
    }

    pub(crate) fn peer_addr(&self) -> String {
        format!("{}:{}", self.host, self.peer_port)
    }

    /// This node as a body of a request names it.
    pub(crate) fn as_member(&self) -> Value {
        json!({"id": self.id, "api_addr": self.api_addr(), "peer_addr": self.peer_addr()})
    }

    pub(crate) fn client(&self) -> Client {
        let key = &self.settings["CONCORD_API_KEY"];
        match self.settings.get("CONCORD_CA_FILE") {
            None => Client::new(&format!("http://{}", self.api_addr()), key),
            Some(authority) => {
                Client::trusting(Path::new(authority), &format!("https://{}", self.api_addr()), key)
            }
        }
    }

    /// Starts the process and returns at once.
    pub(crate) fn launch(&mut self) {
        assert!(self.child.is_none(), "node {} runs already", self.id);
        let log =
            || File::options().create(true).append(true).open(&self.log).expect("the log can be written");
        let mut command = match &self.volume {
            None => Command::new("setpriv"),
            Some(size) => {
                std::fs::create_dir_all(&self.directory).expect("a directory can be made");
                let mut command = Command::new("unshare");
                // The parent-death signal is lost where the namespace is made, so it is asked for after that.
                let script = r#"mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec setpriv "$@""#;
                command.args(["-rm", "sh", "-c", script, "sh", size]).arg(&self.directory);
                command
            }
        };
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some((soft, hard)) = self.open_files {
            command.args(["prlimit", &format!("--nofile={soft}:{hard}"), "--"]);
        }
        command.arg(&self.binary).arg("serve");
        // No setting of the environment of the tests may reach the node.
        for (name, _) in std::env::vars_os() {
            // Only a build with seeded bugs reads the name of one.
            if name.to_string_lossy().starts_with("CONCORD_") && name != "CONCORD_SABOTAGE" {
                command.env_remove(name);
            }
        }
        command
            .envs(&self.settings)
            .env("CONCORD_NODE_ID", self.id.to_string())
            .env("CONCORD_DATA_DIR", &self.directory)
            .env("CONCORD_API_ADDR", self.api_addr())
            .env("CONCORD_PEER_ADDR", self.peer_addr())
            .envs(self.overrides.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log());
        self.child = Some(spawn(command));
    }

    /// Starts the process on new ports, again and again while another process takes them; for a node that no
    /// other knows yet.
    pub(crate) async fn start_anywhere(&mut self) {
        for _ in 0..20 {
            self.launch();
            if self.listens().await {
                return;
            }
            self.take_new_ports();
        }
        panic!("node {} found no port\n{}", self.id, self.tail(40));
    }

    /// Starts the process on its ports and waits until it listens.
    pub(crate) async fn start(&mut self) {
        for _ in 0..20 {
            self.launch();
            if self.listens().await {
                return;
            }
        }
        panic!("node {} can't have its ports\n{}", self.id, self.tail(40));
    }

    /// Starts the process and waits until it is ready; the error is what it said when it ended instead.
    pub(crate) async fn try_start(&mut self) -> Result<(), String> {
        let probe = self.client();
        loop {
            let begin = self.log_length();
            self.launch();
            let name = format!("node {} is ready or ends", self.id);
            let ended = eventually(&name, async || {
                if self.exited().is_some() {
                    return Ok(Some(self.log_since(begin)));
                }
                let ready = probe.get("/readyz").attempt().await?;
                super::check(ready.status == 200, || format!("{ready:?}")).map(|()| None)
            });
            match ended.await {
                None => return Ok(()),
                Some(text) if is_port_taken(&text) => {}
                Some(text) => return Err(text),
            }
        }
    }

    /// Waits until the process listens; false when it ended because a port was taken.
    async fn listens(&mut self) -> bool {
        let probe = self.client();
        let name = format!("node {} listens", self.id);
        let begin = self.log_length();
        eventually(&name, async || {
            if let Some(status) = self.exited() {
                let text = self.log_since(begin);
                if is_port_taken(&text) || is_port_taken(&self.tail(5)) {
                    return Ok(false);
                }
                panic!("node {} ended with {status}\n{}", self.id, self.tail(40));
            }
            let live = probe.get("/livez").attempt().await?;
            // A stranger on this port does not know the key.
            let known = probe.get("/api/v1/cluster").attempt().await?;
            super::check(live.status == 200 && known.status != 401, || format!("{live:?} {known:?}"))
                .map(|()| true)
        })
        .await
    }

    /// The status with which the process ended, if it did.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().expect("the child is ours");
        if status.is_some() {
            clock::forget(child.id());
            self.child = None;
        }
        status
    }

    /// Whether the process runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.exited().is_none() && self.child.is_some()
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let name = format!("node {} ends", self.id);
        eventually(&name, async || self.exited().ok_or_else(|| "it runs".to_owned())).await
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            child.wait().expect("the child is ours");
            clock::forget(child.id());
        }
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node runs").id()
    }

    /// The memory that the process has in use.
    pub(crate) fn memory_kb(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
    }

    /// SIGTERM, without waiting.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// SIGTERM; waits for the end.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        self.terminate();
        self.ended().await
    }

    /// SIGSTOP: the node hangs.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid();
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{name} reaches node {}", self.id);
    }

    fn log_length(&self) -> usize {
        std::fs::read(&self.log).map_or(0, |bytes| bytes.len())
    }

    fn log_since(&self, begin: usize) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(begin..).unwrap_or_default()).into_owned()
    }

    /// The last lines that it logged.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = self.log_since(0);
        let all: Vec<&str> = text.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = self.log_since(0);
            let lines: Vec<&str> = text.lines().collect();
            for place in (0..lines.len()).filter(|place| lines[*place].contains("panicked at")) {
                let end = lines.len().min(place + 4);
                eprintln!("--- node {} panicked:\n{}", self.id, lines[place..end].join("\n"));
            }
            eprintln!("--- node {} ({}), its last lines:\n{}", self.id, self.api_addr(), self.tail(60));
        }
        self.kill();
    }
}

fn is_port_taken(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains("in use") || text.contains("os error 98")
}
