//! Power cuts: each node's data is on a file system of its own, which is shut down without a flush.
//!
//! `EXT4_IOC_SHUTDOWN` with *no log flush* discards whatever was not synced, as a power loss does; then the
//! node is killed, the volume is mounted anew and the node is started. `scripts/powercut.sh` runs this with the
//! right to mount, in a mount namespace of its own, so that no mount outlives the run.
//!
//! **Invariant:** no process learns of an `fdatasync` that was made at the instant of a cut: it may succeed although its
//! data is lost, which a power loss can't show. So the node is stopped before its volume is shut down, and only a
//! write that was answered wholly outside a cut counts as acknowledged.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use futures::future::join_all;
use serde_json::json;

use crate::harness::{Cluster, Node, Options, check, eventually, load::Load, number};

/// Bytes of a volume.
const VOLUME_BYTES: u64 = 96 << 20;
/// Of so many cuts one takes all nodes at once.
const ALL_EVERY: u64 = 5;
/// Shuts down the file systems that a line of its input names, and says so.
const HELPER: &str = r#"
import fcntl, os, struct, sys
for line in sys.stdin:
    volumes = [os.open(path, os.O_RDONLY) for path in line.split()]
    for volume in volumes:
        fcntl.ioctl(volume, 0x8004587D, struct.pack("I", 2))
    for volume in volumes:
        os.close(volume)
    print("cut", flush=True)
"#;

/// Runs a program of the system; the error is what it printed.
fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    check(output.status.success(), || format!("{program} {arguments:?}: {text}"))
}

/// A file system in a file.
#[derive(Debug)]
struct Volume {
    image: PathBuf,
    point: PathBuf,
}

impl Volume {
    fn make(root: &Path, id: u64) -> Self {
        let (image, point) = (root.join(format!("volume{id}.img")), root.join(format!("volume{id}")));
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(VOLUME_BYTES))
            .expect("there is space for a volume");
        std::fs::create_dir(&point).expect("a fresh directory");
        run("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()]).expect("mkfs.ext4 works");
        let volume = Self { image, point };
        volume.mount();
        volume
    }

    fn mount(&self) {
        let (image, point) = (self.image.to_string_lossy(), self.point.to_string_lossy());
        run("mount", &["-o", "loop", &image, &point])
            .expect("scripts/powercut.sh has checked that this works");
    }

    /// The killed process may hold its files for a moment.
    async fn unmount(&self) {
        eventually("the volume is free", async || run("umount", &[&self.point.to_string_lossy()])).await;
    }
}

/// The process that cuts. It runs throughout, so that a cut takes no longer than its system calls.
struct Cutter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Cutter {
    fn new() -> Self {
        let mut command = Command::new("python3");
        command.args(["-u", "-c", HELPER]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python3 can be started");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, input, output }
    }

    fn cut(&mut self, volumes: &[&Volume]) {
        let names: Vec<_> = volumes.iter().map(|volume| volume.point.to_string_lossy()).collect();
        writeln!(self.input, "{}", names.join(" ")).expect("the helper lives");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the helper answers");
        assert_eq!(answer, "cut\n", "the volumes were shut down");
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Stops a process and waits until none of its threads runs. A thread in a system call of the disk stops when the call
/// returns.
async fn freeze(node: &Node) {
    node.pause();
    let tasks = format!("/proc/{}/task", node.pid());
    eventually("the node is stopped", async || {
        let mut states = Vec::new();
        for task in std::fs::read_dir(&tasks).map_err(|error| error.to_string())?.flatten() {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            states.extend(stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()));
        }
        check(states.iter().all(|state| "TtDZX".contains(*state)), || format!("{states:?}"))
    })
    .await;
}

/// A cluster whose nodes are on volumes. The nodes are killed first when it is dropped.
struct Rig {
    cluster: Cluster,
    volumes: Vec<Volume>,
    cutter: Cutter,
}

impl Rig {
    async fn start() -> Self {
        // Frequent snapshots and purges: a cut may fall between their renames and removals.
        let options = Options::default()
            .with("CONCORD_SNAPSHOT_LOG_BYTES", "65536")
            .with("CONCORD_DISK_RESERVE_BYTES", "1048576")
            .with("CONCORD_WRITE_TIMEOUT_MS", "5000");
        let mut volumes = Vec::new();
        let on_volumes = |root: &Path, nodes: &mut [Node]| {
            for node in nodes {
                let volume = Volume::make(root, node.id);
                node.directory = volume.point.join("data");
                std::fs::create_dir(&node.directory).expect("the volume is fresh");
                run("sync", &[]).expect("sync works");
                volumes.push(volume);
            }
        };
        let cluster = Cluster::start_prepared("power", &options, on_volumes).await;
        Self { cluster, volumes, cutter: Cutter::new() }
    }

    /// Cuts the power of these nodes, then starts them again.
    async fn cut(&mut self, ids: &[u64], load: &Load) {
        let volumes: Vec<&Volume> = self
            .cluster
            .nodes
            .iter()
            .zip(&self.volumes)
            .filter(|(node, _)| ids.contains(&node.id))
            .map(|(_, volume)| volume)
            .collect();
        load.cut_begins();
        for node in self.cluster.nodes.iter().filter(|node| ids.contains(&node.id)) {
            freeze(node).await;
        }
        self.cutter.cut(&volumes);
        for node in self.cluster.nodes.iter_mut().filter(|node| ids.contains(&node.id)) {
            node.kill();
        }
        load.cut_ends();
        for volume in volumes {
            volume.unmount().await;
            volume.mount();
        }
        let down = self.cluster.nodes.iter_mut().filter(|node| ids.contains(&node.id));
        join_all(down.map(Node::start)).await;
        self.cluster.ready().await;
    }

    /// What the nodes lack of what was acknowledged, in words.
    async fn losses(&self, load: &Load) -> Vec<String> {
        let mut found = Vec::new();
        for client in self.cluster.clients() {
            let (lost, strange) = load.differences_on(&client).await;
            if !lost.is_empty() || !strange.is_empty() {
                found.push(format!("{} lost {lost:?} and has {strange:?}, which nobody sent", client.base));
            }
        }
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cluster.kill_all();
        for volume in &self.volumes {
            // Lazily: the namespace of the run ends with it anyway.
            drop(run("umount", &["-l", &volume.point.to_string_lossy()]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the right to mount: scripts/powercut.sh runs it"]
async fn power_cuts_lose_nothing_that_was_acknowledged() {
    let (cuts, seed) = (number("CUTS").unwrap_or(ALL_EVERY), number("SEED").unwrap_or(1));
    let (mut rng, begin) = (fastrand::Rng::with_seed(seed), Instant::now());
    let mut rig = Rig::start().await;
    let (mut loads, mut all_at_once, mut leaders) = (Vec::new(), 0_u64, 0_u64);
    let mut violations = Vec::new();
    for number in 1..=cuts {
        let mut load = Load::start(&rig.cluster.clients(), &format!("cut{number}")).await;
        load.grows_by(rng.usize(40..160)).await;
        let ids = if number % ALL_EVERY == 0 {
            all_at_once += 1;
            vec![1, 2, 3]
        } else if rng.bool() {
            leaders += 1;
            vec![rig.cluster.leader().await]
        } else {
            vec![rng.u64(1..=3)]
        };
        eprintln!("{:>6.1} s  cut {number} of {ids:?}", begin.elapsed().as_secs_f64());
        rig.cut(&ids, &load).await;
        load.grows_by(5).await;
        load.stop().await;
        violations.extend(rig.losses(&load).await);
        rig.cluster.equal_digests().await;
        loads.push(load);
    }
    // Nothing that survived an earlier cut was lost by a later one.
    for load in &loads {
        violations.extend(rig.losses(load).await);
    }
    for violation in violations.iter().take(20) {
        eprintln!("VIOLATION {violation}");
    }
    let acknowledged: usize = loads.iter().map(Load::acknowledged).sum();
    println!(
        "{}",
        json!({
            "seed": seed,
            "violations": violations.len(),
            "cuts": cuts,
            "cuts_of_all_nodes": all_at_once,
            "cuts_of_the_leader": leaders,
            "acknowledged_writes": acknowledged,
            "seconds": begin.elapsed().as_secs(),
        })
    );
    assert!(violations.is_empty(), "{} violations with SEED={seed}", violations.len());
}
