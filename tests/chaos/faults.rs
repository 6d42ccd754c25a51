//! What happens to the cluster: a schedule drawn from the seed, a fault about every few seconds, overlapping.
//!
//! At most a minority is ever without its disk or its process for long; pauses and partitions may take the
//! majority away for a while, which stops writes but may break no promise. Everything is healed at the end.

use std::{collections::BTreeMap, io::Write, time::Duration};

use super::network::Network;
use crate::harness::Cluster;

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
}

/// The kinds that need nothing but processes and files.
pub(crate) const LOCAL: [Fault; 11] = [
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
];

/// The kinds that need a network of their own.
pub(crate) const NETWORK: [Fault; 4] = [Fault::Isolate, Fault::IsolateLeader, Fault::OneWay, Fault::Bridge];

/// Faults that were made, by kind, and when leaders died (nanoseconds of the history).
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) made: BTreeMap<String, u64>,
    pub(crate) leader_deaths: Vec<u64>,
}

/// Makes faults on a cluster.
pub(crate) struct Nemesis<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) network: Option<Network>,
    pub(crate) dice: fastrand::Rng,
    pub(crate) record: Record,
    pub(crate) now: &'a (dyn Fn() -> u64 + Sync),
}

impl Nemesis<'_> {
    /// The schedule of a run: every kind at least once, in a drawn order, then drawn ones.
    pub(crate) fn schedule(&mut self, count: usize) -> Vec<Fault> {
        let mut kinds: Vec<Fault> = LOCAL.to_vec();
        if self.network.is_some() {
            kinds.extend(NETWORK);
        }
        let mut all = kinds.clone();
        self.dice.shuffle(&mut all);
        while all.len() < count {
            all.push(kinds[self.dice.usize(..kinds.len())]);
        }
        all.truncate(count);
        all
    }

    /// Makes one fault, lets it last, and ends it.
    pub(crate) async fn make(&mut self, fault: Fault) {
        eprintln!("{:>8.1} s  {fault:?}", (self.now)() as f64 / 1e9);
        *self.record.made.entry(format!("{fault:?}")).or_default() += 1;
        let lasting = Duration::from_millis(self.dice.u64(300..2500));
        match fault {
            Fault::KillLeader => self.killed(true, lasting, |_, _| ()).await,
            Fault::KillAny => self.killed(false, lasting, |_, _| ()).await,
            Fault::RestartWithinLease => self.killed(true, Duration::ZERO, |_, _| ()).await,
            Fault::KillAll => self.kill_all().await,
            Fault::StopPolitely => self.stop_politely().await,
            Fault::PauseLeader => self.pause(true, lasting).await,
            Fault::PauseAny => self.pause(false, lasting).await,
            Fault::WipeSled => {
                self.killed(false, lasting, |directory, _| {
                    std::fs::remove_dir_all(directory.join("store/sled")).expect("sled's directory is there");
                })
                .await;
            }
            Fault::RotSled => {
                self.killed(false, lasting, |directory, dice| rot(&directory.join("store/sled"), dice)).await;
            }
            Fault::RotSnapshot => {
                self.killed(false, lasting, |directory, dice| rot(&directory.join("store/snapshot"), dice))
                    .await;
            }
            Fault::TornHistory => {
                self.killed(false, lasting, |directory, _| tear(&directory.join("store/history"))).await;
            }
            Fault::Isolate | Fault::IsolateLeader | Fault::OneWay | Fault::Bridge => {
                self.cut(fault, lasting).await;
            }
        }
    }

    /// The leader that the nodes name, or some node.
    async fn victim(&mut self, leader: bool) -> u64 {
        let any = self.dice.u64(1..=3);
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
        damage: impl FnOnce(&std::path::Path, &mut fastrand::Rng),
    ) {
        let id = self.victim(leader).await;
        if leader {
            self.record.leader_deaths.push((self.now)());
        }
        self.cluster.node(id).kill();
        let directory = self.cluster.node(id).directory.clone();
        damage(&directory, &mut self.dice);
        tokio::time::sleep(lasting).await;
        self.cluster.node(id).start().await;
    }

    async fn kill_all(&mut self) {
        self.cluster.kill_all();
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
        self.cluster.node(id).pause();
        tokio::time::sleep(lasting).await;
        self.cluster.node(id).resume();
    }

    async fn cut(&mut self, fault: Fault, lasting: Duration) {
        let id = self.victim(fault == Fault::IsolateLeader).await;
        let others: Vec<u64> = (1..=3).filter(|other| *other != id).collect();
        let network = self.network.as_ref().expect("network faults are drawn with a network only");
        if fault == Fault::OneWay {
            network.cut(id, others[0]);
        } else if fault == Fault::Bridge {
            network.cut_both(others[0], others[1]);
        } else {
            others.iter().for_each(|other| network.cut_both(id, *other));
        }
        tokio::time::sleep(lasting * 2).await;
        network.heal();
    }
}

/// Flips one bit of one file below a directory.
fn rot(directory: &std::path::Path, dice: &mut fastrand::Rng) {
    let mut files = files_below(directory);
    files.retain(|file| std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    if files.is_empty() {
        return;
    }
    let file = &files[dice.usize(..files.len())];
    let mut bytes = std::fs::read(file).expect("the file is there");
    let place = dice.usize(..bytes.len());
    bytes[place] ^= 1 << dice.u8(..8);
    std::fs::write(file, bytes).expect("the file can be written");
}

/// Leaves half a frame behind the newest history segment, as a crash in the middle of a write does.
fn tear(directory: &std::path::Path) {
    let Some(newest) = files_below(directory).into_iter().max() else { return };
    let mut file = std::fs::File::options().append(true).open(newest).expect("the segment is there");
    file.write_all(&[17, 0, 0, 0, 1, 2, 3]).expect("the segment can be written");
}

pub(super) fn files_below(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
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
