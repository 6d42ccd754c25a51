//! The faults of a run: a schedule drawn from the seed, a fault every few seconds. Sometimes two overlap: a slow disk, a
//! wrong clock, a lossy or cut network lasts while another fault is made.
//!
//! **Invariant:** at most a minority is without its disk or its process for long. Pauses and partitions may take the
//! majority away for a while, which stops writes and must break no promise. All faults end before the checks.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::json;

use super::{
    network::Network,
    tools::{self, Lasting, Tools},
};
use crate::harness::{Cluster, within};

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillLeader,
    KillAny,
    KillAll,
    StopPolitely,
    PauseLeader,
    PauseAny,
    RestartWithinLease,
    WipeSled,
    RotSled,
    RotSnapshot,
    TornHistory,
    Isolate,
    IsolateLeader,
    OneWay,
    Bridge,
    PacketLoss,
    SlowDisk,
    SyncError,
    FullDisk,
    WrongClock,
}

/// The kinds that need nothing but processes and files.
const LOCAL: [Fault; 12] = [
    Fault::KillLeader,
    Fault::KillAny,
    Fault::KillAll,
    Fault::StopPolitely,
    Fault::PauseLeader,
    Fault::PauseAny,
    Fault::RestartWithinLease,
    Fault::WipeSled,
    Fault::RotSled,
    Fault::RotSnapshot,
    Fault::TornHistory,
    Fault::FullDisk,
];

/// The kinds that need a network of their own.
const NETWORK: [Fault; 4] = [Fault::Isolate, Fault::IsolateLeader, Fault::OneWay, Fault::Bridge];

/// The kinds that may last while another fault is made.
const BACKGROUND: [Fault; 5] =
    [Fault::SlowDisk, Fault::WrongClock, Fault::PacketLoss, Fault::OneWay, Fault::Bridge];

/// How long a node may run after its disk has failed.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// Faults that were made, by kind, and when leaders died (nanoseconds of the history).
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) made: BTreeMap<String, u64>,
    pub(crate) leader_deaths: Vec<u64>,
    /// Faults that lasted while another was made.
    pub(crate) overlapping: u64,
    /// Kinds that could not be made here.
    pub(crate) skipped: Vec<String>,
    /// What a fault itself showed to be wrong.
    pub(crate) violations: Vec<String>,
}

/// Makes faults on a cluster.
pub(crate) struct Nemesis<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) network: Option<Network>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) record: Record,
    pub(crate) now: &'a (dyn Fn() -> u64 + Sync),
    pub(crate) tools: Tools,
    /// `Shared::hurry`.
    pub(crate) hurry: &'a AtomicBool,
}

impl Nemesis<'_> {
    /// The kinds that this machine can make; the others are recorded as skipped.
    pub(crate) fn kinds(&mut self) -> Vec<Fault> {
        let (network, tools) = (self.network.is_some(), &self.tools);
        let mut kinds = LOCAL.to_vec();
        let mut skipped = Vec::new();
        let mut add = |with: &[Fault], possible: bool, why: &str| {
            if possible {
                kinds.extend(with);
            } else {
                skipped.extend(with.iter().map(|kind| format!("{kind:?}: {why}")));
            }
        };
        add(&NETWORK, network, "no network of its own (scripts/chaos.sh, unshare)");
        add(&[Fault::PacketLoss], tools.iptables, "no network of its own with iptables");
        add(&[Fault::SlowDisk, Fault::SyncError], tools.strace, "no strace, or no right to use it");
        add(&[Fault::WrongClock], tools.faketime.is_some(), "no libfaketime");
        self.record.skipped = skipped;
        kinds
    }

    /// The schedule of a run: every kind at least once, in a drawn order, then drawn ones.
    pub(crate) fn schedule(&mut self, count: usize) -> Vec<Fault> {
        let kinds = self.kinds();
        let mut all = kinds.clone();
        self.rng.shuffle(&mut all);
        while all.len() < count {
            all.push(kinds[self.rng.usize(..kinds.len())]);
        }
        all.truncate(count);
        all
    }

    /// Makes a fault, sometimes while another one lasts.
    pub(crate) async fn make(&mut self, fault: Fault) {
        let kinds = self.kinds();
        let background: Vec<Fault> =
            BACKGROUND.into_iter().filter(|kind| kinds.contains(kind) && *kind != fault).collect();
        match self.rng.choice(&background).copied().filter(|_| self.rng.u8(..3) == 0) {
            // The first cut that ends would heal both.
            Some(background) if !(NETWORK.contains(&background) && NETWORK.contains(&fault)) => {
                self.count(background);
                self.record.overlapping += 1;
                let lasting = self.begin(background).await;
                self.make_one(fault).await;
                self.finish(lasting);
            }
            _ => self.make_one(fault).await,
        }
    }

    fn count(&mut self, fault: Fault) {
        eprintln!("{:>8.1} s  {fault:?}", (self.now)() as f64 / 1e9);
        *self.record.made.entry(format!("{fault:?}")).or_default() += 1;
    }

    /// Makes one fault, lets it last, and ends it.
    async fn make_one(&mut self, fault: Fault) {
        self.count(fault);
        let lasting = Duration::from_millis(self.rng.u64(300..2500));
        match fault {
            Fault::KillLeader => self.killed(true, lasting, |_, _| ()).await,
            Fault::KillAny => self.killed(false, lasting, |_, _| ()).await,
            Fault::RestartWithinLease => self.killed(true, Duration::ZERO, |_, _| ()).await,
            Fault::WipeSled | Fault::RotSled | Fault::RotSnapshot | Fault::TornHistory => {
                self.killed(false, lasting, |directory, rng| damage(fault, directory, rng)).await;
            }
            Fault::KillAll => self.kill_all().await,
            Fault::StopPolitely => self.stop_politely().await,
            Fault::PauseLeader => self.pause(true, lasting).await,
            Fault::PauseAny => self.pause(false, lasting).await,
            Fault::FullDisk => self.full_disk().await,
            Fault::SyncError => self.sync_error().await,
            Fault::Isolate
            | Fault::IsolateLeader
            | Fault::OneWay
            | Fault::Bridge
            | Fault::PacketLoss
            | Fault::SlowDisk
            | Fault::WrongClock => {
                let begun = self.begin(fault).await;
                tokio::time::sleep(lasting * 2).await;
                self.finish(begun);
            }
        }
    }

    /// Stops the pauses of the clients for a moment, so that writes are in flight when the fault comes.
    async fn stop_pauses(&self) {
        self.hurry.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }

    fn resume_pauses(&self) {
        self.hurry.store(false, Ordering::Relaxed);
    }

    /// Begins a fault that lasts.
    async fn begin(&mut self, fault: Fault) -> Lasting {
        let id =
            self.victim(matches!(fault, Fault::IsolateLeader | Fault::SlowDisk | Fault::WrongClock)).await;
        if fault == Fault::PacketLoss {
            for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
                tools::lose(self.rng.u8(5..25), &Network::host(from), &Network::host(to));
            }
            Lasting::Loss
        } else if fault == Fault::SlowDisk {
            let delay = self.rng.u32(20_000..150_000);
            tools::tamper(
                self.cluster.node(id).pid(),
                &format!("fdatasync,fsync:delay_enter={delay}"),
                Path::new("/dev/null"),
            )
        } else if fault == Fault::WrongClock {
            self.wrong_clock(id).await
        } else {
            self.cut(fault, id)
        }
    }

    fn finish(&mut self, lasting: Lasting) {
        if let (Lasting::Cut, Some(network)) = (&lasting, &self.network) {
            network.heal();
        }
        lasting.end();
    }

    /// A clock that jumps forward or back, and to real time when the fault ends. The node runs with the library from
    /// then on.
    async fn wrong_clock(&mut self, id: u64) -> Lasting {
        let library = self.tools.faketime.clone().expect("drawn with it only");
        let file = self.cluster.root().join(format!("clock{id}"));
        if !file.exists() {
            tools::set_clock(&file, 0);
            self.cluster.node(id).kill();
            self.cluster.node(id).overrides.extend(tools::clock(&library, &file));
            self.cluster.node(id).start().await;
        }
        let offset = self.rng.i64(10..7200) * if self.rng.bool() { 1 } else { -1 };
        tools::set_clock(&file, offset);
        Lasting::Clock(file)
    }

    /// A disk whose fdatasync fails: the node must stop, because it no longer knows what is durable.
    async fn sync_error(&mut self) {
        let id = self.victim(true).await;
        self.stop_pauses().await;
        let pid = self.cluster.node(id).pid();
        let report = self.cluster.root().join("strace.txt");
        let tampered = tools::tamper(pid, "fdatasync:error=EIO", &report);
        let node = self.cluster.node(id);
        // A node that hears of no leader writes nothing, so nothing fails.
        let failed = || std::fs::read_to_string(&report).unwrap_or_default().contains(tools::TAMPERED);
        let met = within(STOP_WITHIN, async || {
            let met = node.exited().map(Some).or_else(|| failed().then_some(None));
            met.ok_or_else(|| "it has not written".to_owned())
        });
        let ended = match met.await {
            Ok(Some(status)) => Ok(status),
            Ok(None) => within(STOP_WITHIN, async || node.exited().ok_or_else(|| "it runs".to_owned())).await,
            Err(why) => Err(why),
        };
        self.resume_pauses();
        tampered.end();
        match ended {
            Err(_) if !failed() => {
                // It does not count as made.
                let made = self.record.made.entry(format!("{:?}", Fault::SyncError)).or_default();
                *made = made.saturating_sub(1);
                eprintln!("chaos: node {id} wrote nothing while its disk would have failed");
                self.cluster.node(id).kill();
            }
            Ok(status) if status.success() => {
                self.record
                    .violations
                    .push(format!("node {id} ended with {status} after its disk had failed"));
            }
            Ok(_) => {}
            Err(_) => {
                self.record.violations.push(format!("node {id} went on although its disk failed"));
                self.cluster.node(id).kill();
            }
        }
        self.cluster.node(id).start().await;
    }

    /// A full disk: writes are refused, deletes and reads are served. It ends with the fault.
    async fn full_disk(&mut self) {
        let id = self.victim(false).await;
        let reserve = "CONCORD_DISK_RESERVE_BYTES";
        self.cluster.node(id).kill();
        self.cluster.node(id).overrides.push((reserve.into(), (1_u64 << 60).to_string()));
        self.cluster.node(id).start().await;
        let client = self.cluster.client(id);
        let path = "/api/v1/config_definition/chaos.a/config/no-space";
        // Only wrong answers count: another fault may prevent the right ones.
        let put = client.put(path, &json!({"data": {"n": 1}})).header("if-none-match", "*").attempt().await;
        let delete = client.delete(path).attempt().await;
        for (what, answer, wrong) in [("put", put, 200..300), ("delete", delete, 507..508)] {
            if let Ok(answer) = answer
                && wrong.contains(&answer.status)
            {
                self.record.violations.push(format!("a {what} on a full disk: {answer:?}"));
            }
        }
        self.cluster.node(id).kill();
        self.cluster.node(id).overrides.retain(|(name, _)| name != reserve);
        self.cluster.node(id).start().await;
    }

    /// The leader that the nodes name, or a random node.
    async fn victim(&mut self, leader: bool) -> u64 {
        let any = self.rng.u64(1..=3);
        if !leader {
            return any;
        }
        for client in self.cluster.clients() {
            let asked = tokio::time::timeout(Duration::from_secs(2), client.status()).await;
            if let Ok(Ok(status)) = asked
                && let Some(id) = status["leader_id"].as_u64()
            {
                return id;
            }
        }
        any
    }

    async fn killed(
        &mut self,
        leader: bool,
        lasting: Duration,
        damage: impl FnOnce(&Path, &mut fastrand::Rng),
    ) {
        let id = self.victim(leader).await;
        self.stop_pauses().await;
        if leader {
            self.record.leader_deaths.push((self.now)());
        }
        self.cluster.node(id).kill();
        self.resume_pauses();
        let directory = self.cluster.node(id).directory.clone();
        damage(&directory, &mut self.rng);
        tokio::time::sleep(lasting).await;
        self.cluster.node(id).start().await;
    }

    async fn kill_all(&mut self) {
        self.stop_pauses().await;
        self.cluster.kill_all();
        self.resume_pauses();
        self.cluster.start_all().await;
    }

    async fn stop_politely(&mut self) {
        let id = self.victim(true).await;
        let status = self.cluster.node(id).stop().await;
        assert!(status.success(), "a node that is asked to stop exits with 0, not {status}");
        self.cluster.node(id).start().await;
    }

    async fn pause(&mut self, leader: bool, lasting: Duration) {
        let id = self.victim(leader).await;
        self.stop_pauses().await;
        self.cluster.node(id).pause();
        self.resume_pauses();
        tokio::time::sleep(lasting).await;
        self.cluster.node(id).resume();
    }

    fn cut(&mut self, fault: Fault, id: u64) -> Lasting {
        let others: Vec<u64> = (1..=3).filter(|other| *other != id).collect();
        let network = self.network.as_ref().expect("network faults are drawn with a network only");
        if fault == Fault::OneWay {
            network.cut(id, others[0]);
        } else if fault == Fault::Bridge {
            network.cut_both(others[0], others[1]);
        } else {
            others.iter().for_each(|other| network.cut_both(id, *other));
        }
        Lasting::Cut
    }
}

/// Damages the files of a node that is down.
fn damage(fault: Fault, directory: &Path, rng: &mut fastrand::Rng) {
    let (sled, snapshot) = (directory.join("store/sled"), directory.join("store/snapshot"));
    if fault == Fault::WipeSled {
        std::fs::remove_dir_all(sled).expect("sled's directory is there");
    } else if fault == Fault::TornHistory {
        tear(&directory.join("store/history"));
    } else {
        rot(if fault == Fault::RotSled { &sled } else { &snapshot }, rng);
    }
}

/// Flips one bit of one file below a directory.
fn rot(directory: &Path, rng: &mut fastrand::Rng) {
    let mut files = files_below(directory);
    files.retain(|file| std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    if files.is_empty() {
        return;
    }
    let file = &files[rng.usize(..files.len())];
    let mut bytes = std::fs::read(file).expect("the file is there");
    let place = rng.usize(..bytes.len());
    bytes[place] ^= 1 << rng.u8(..8);
    std::fs::write(file, bytes).expect("the file can be written");
}

/// Leaves half a frame at the end of the newest history segment, as a crash in the middle of a write does.
fn tear(directory: &Path) {
    let Some(newest) = files_below(directory).into_iter().max() else { return };
    let mut file = std::fs::File::options().append(true).open(newest).expect("the segment is there");
    file.write_all(&[17, 0, 0, 0, 1, 2, 3]).expect("the segment can be written");
}

pub(super) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.path().is_dir() { left.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}
