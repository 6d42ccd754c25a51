//! What a seed draws: the size of the cluster, its settings, the clients, the network and the faults.
//!
//! Each seed has another mix (swarm testing): some runs have one kind of fault only, some have tiny snapshots, some a slow
//! network. A run with everything at once would rarely get far enough for what needs a long quiet time.

use std::{collections::BTreeSet, time::Duration};

use concord_consensus::Timers;

use crate::work::Work;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A node loses power: what is not durable is lost, in part or as a whole.
    Crash,
    /// The leader does.
    CrashLeader,
    /// All nodes do.
    CrashAll,
    /// The process of a node ends at once, and its machine goes on.
    Kill,
    /// A node is shut down as an operator does it.
    Stop,
    /// A node stands still and goes on, with all of its timers late.
    Pause,
    /// The leader does.
    PauseLeader,
    /// A node is cut off from all others.
    Isolate,
    /// The leader is.
    IsolateLeader,
    /// The nodes are cut into two parts.
    Split,
    /// What one node sends to another is lost; what that one sends arrives.
    OneWay,
    /// Messages between two nodes are delayed until the fault is over.
    Hold,
    /// Messages of a node take long.
    SlowLink,
    /// Messages between two nodes are lost at times.
    Lossy,
    /// The disk of a node is slow.
    SlowDisk,
    /// An operation of a disk fails, or all do until the node is started again.
    BrokenDisk,
    /// A node has no space on its volume, and gets some later.
    FullDisk,
    /// A bit flips in a file of a node that does not run.
    BitRot,
    /// A copy of a node's disk is put in the place of the disk.
    EarlierDisk,
    /// The wall clock of a node jumps.
    ClockJump,
    /// The clock of a node is fast or slow, by half a per cent to two.
    ClockRate,
    /// The clients' connections to a node are cut.
    CutClients,
}

pub(crate) const FAULTS: [Fault; 22] = [
    Fault::Crash,
    Fault::CrashLeader,
    Fault::CrashAll,
    Fault::Kill,
    Fault::Stop,
    Fault::Pause,
    Fault::PauseLeader,
    Fault::Isolate,
    Fault::IsolateLeader,
    Fault::Split,
    Fault::OneWay,
    Fault::Hold,
    Fault::SlowLink,
    Fault::Lossy,
    Fault::SlowDisk,
    Fault::BrokenDisk,
    Fault::FullDisk,
    Fault::BitRot,
    Fault::EarlierDisk,
    Fault::ClockJump,
    Fault::ClockRate,
    Fault::CutClients,
];

/// Everything about a run that is drawn before it begins.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// What the clients do.
    pub(crate) work: Work,
    /// How long the clients and the faults last.
    pub(crate) duration: Duration,
    pub(crate) timers: TimerSetup,
    pub(crate) snapshot_log_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) retained_revisions: u64,
    pub(crate) latency_max: Duration,
    /// How long the disk takes for an fsync of the log, at most.
    pub(crate) flush_max_ms: u64,
    /// The kinds of faults of this run; none in some.
    pub(crate) faults: Vec<Fault>,
    /// Faults that are left out, by their number.
    pub(crate) without: BTreeSet<u64>,
    /// The pause between two faults.
    pub(crate) fault_pause: Duration,
    /// How long a fault lasts at most.
    pub(crate) fault_max: Duration,
    pub(crate) is_order_random: bool,
    /// Whether a lost message of a connection is retransmitted, as TCP does. Without it the connection stays silent, as behind
    /// a firewall that has forgotten it.
    pub(crate) retransmission: bool,
    /// Bytes of padding in each config.
    pub(crate) padding: usize,
}

/// The timers of Raft, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerSetup {
    pub(crate) heartbeat: u64,
    pub(crate) election_min: u64,
    pub(crate) election_max: u64,
    pub(crate) lease_reads: bool,
}

impl TimerSetup {
    pub(crate) fn timers(self) -> Timers {
        Timers {
            heartbeat_ms: self.heartbeat,
            election_min_ms: self.election_min,
            election_max_ms: self.election_max,
            lease_reads: self.lease_reads,
        }
    }
}

impl Setup {
    /// The first members; the nodes after them may join.
    pub(crate) fn founders(&self) -> usize {
        self.nodes - self.work.spares
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5e70_0b5e_70b5);
        let ms = |rng: &mut fastrand::Rng, from: u64, to: u64| Duration::from_millis(rng.u64(from..=to));
        let nodes = [3, 3, 3, 3, 5, 5, 4, 7][rng.usize(..8)];
        // Some runs have one kind of fault, most a few, one of sixteen none.
        let count = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 8, 10, FAULTS.len()][rng.usize(..16)];
        let mut faults = FAULTS.to_vec();
        rng.shuffle(&mut faults);
        faults.truncate(count);
        // Many short runs find more than a few long ones. A disk of an earlier time needs members that know of a later one.
        let (shortest, longest) = match rng.u8(..16) {
            _ if faults.contains(&Fault::EarlierDisk) => (12_000, 20_000),
            0 => (8_000, 20_000),
            _ => (2_000, 6_000),
        };
        let lease_reads = rng.u8(..3) == 0;
        let timers = match rng.u8(..3) {
            0 => TimerSetup { heartbeat: 50, election_min: 150, election_max: 300, lease_reads },
            1 => TimerSetup { heartbeat: 100, election_min: 300, election_max: 500, lease_reads },
            _ => TimerSetup { heartbeat: 200, election_min: 600, election_max: 900, lease_reads },
        };
        let work = Work::draw(seed);
        let (clients, duration) = (rng.usize(2..=6), ms(&mut rng, shortest, longest));
        let has_rollouts = work.rollers > 0;
        Self {
            seed,
            nodes: nodes + work.spares,
            // Who takes part in rollouts does as much.
            clients: if has_rollouts { clients.min(2) } else { clients },
            work,
            // The leader looks at rollouts once a second: one of three stages takes some seconds.
            duration: if has_rollouts { duration.max(Duration::from_secs(6 + seed % 6)) } else { duration },
            timers,
            snapshot_log_bytes: [2_000, 20_000, 200_000, 64 << 20][rng.usize(..4)],
            segment_bytes: [4_000, 100_000, 64 << 20][rng.usize(..3)],
            retained_revisions: [20, 200, 1_000_000][rng.usize(..3)],
            latency_max: ms(&mut rng, 2, [3, 10, 40][nodes % 3]),
            flush_max_ms: [0, 1, 3, 20][rng.usize(..4)],
            faults,
            without: BTreeSet::new(),
            fault_pause: ms(&mut rng, 100, 1_500),
            fault_max: ms(&mut rng, 300, 4_000),
            is_order_random: rng.bool(),
            retransmission: rng.u8(..4) != 0,
            padding: [0, 200, 3_000][rng.usize(..3)],
        }
    }
}
