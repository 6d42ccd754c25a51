//! The faults of a run, by the kinds that its seed has drawn.

use std::time::Duration;

use turmoil::Sim;

use crate::{
    machine,
    node::{Nodes, name},
    setup::{Fault, Setup},
    trace,
    world::World,
};

/// Longest time that a node stays without power, or shut down.
const OFF_MAX_MS: u64 = 4_000;
/// How long a shutdown may take before it counts as hung.
const STOP_MAX: Duration = Duration::from_secs(60);

/// What ends a fault.
#[derive(Debug)]
enum Mend {
    Start(usize),
    /// Starts a node again once it has ended.
    Restart(usize, Duration),
    Repair(Vec<(String, String)>),
    Release(usize, usize),
    Latency(usize),
    Losses(usize, usize),
    Disk(usize),
    Clock(usize),
}

/// Makes faults and ends them.
pub(crate) struct Nemesis {
    setup: Setup,
    rng: fastrand::Rng,
    next: Duration,
    /// What ends each of the present faults, and when.
    mends: Vec<(Duration, Mend)>,
    is_over: bool,
}

impl Nemesis {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut rng = fastrand::Rng::with_seed(setup.seed ^ 0xbad_1dea);
        // The cluster forms first, in most runs.
        let next = Duration::from_millis(rng.u64(200..4_000));
        Self { setup: setup.clone(), rng, next, mends: Vec::new(), is_over: false }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.is_over = true;
        for (when, _) in &mut self.mends {
            *when = Duration::ZERO;
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.mends.is_empty()
    }

    /// Called after each step.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>, world: &mut World) {
        let now = sim.elapsed();
        let mut place = 0;
        while place < self.mends.len() {
            if self.mends[place].0 > now {
                place += 1;
                continue;
            }
            let (_, mend) = self.mends.remove(place);
            if let Some(later) = self.mend(sim, world, mend) {
                self.mends.insert(place, (now + Duration::from_millis(1), later));
                place += 1;
            }
        }
        if self.is_over || self.setup.faults.is_empty() || now < self.next {
            return;
        }
        let pause = u64::try_from(self.setup.fault_pause.as_millis()).unwrap_or(u64::MAX);
        self.next = now + Duration::from_millis(self.rng.u64(pause / 4..=pause * 2));
        let fault = self.setup.faults[self.rng.usize(..self.setup.faults.len())];
        self.make(sim, world, fault, now);
    }

    fn off(&mut self, now: Duration) -> Duration {
        // Short ones are in the majority: a node that is back within its lease is the more interesting one.
        let longest = [20, 200, 1_000, OFF_MAX_MS][self.rng.usize(..4)];
        now + Duration::from_millis(self.rng.u64(1..=longest))
    }

    fn lasts(&mut self, now: Duration) -> Duration {
        let longest = u64::try_from(self.setup.fault_max.as_millis()).unwrap_or(u64::MAX);
        now + Duration::from_millis(self.rng.u64(50..=longest))
    }

    fn make(&mut self, sim: &mut Sim<'_>, world: &mut World, fault: Fault, now: Duration) {
        let all = self.setup.nodes;
        let any = self.rng.usize(1..=all);
        let other = (any + self.rng.usize(0..all - 1)) % all + 1;
        let leader = leader(&world.nodes, all).unwrap_or(any);
        let node = if matches!(fault, Fault::CrashLeader | Fault::IsolateLeader) { leader } else { any };
        trace::note(|counts| counts.faults += 1, format_args!("fault {fault:?} {node} {other}"));
        world.tell(now, &format!("{fault:?} of node {node} (and {other})"));
        match fault {
            Fault::Crash | Fault::CrashLeader => self.crash(sim, world, node, now),
            Fault::CrashAll => (1..=all).for_each(|node| self.crash(sim, world, node, now)),
            Fault::Stop => {
                if self.is_off(node) {
                    return;
                }
                world.nodes[node].borrow().stop.cancel();
                self.mends.push((now, Mend::Restart(node, now + STOP_MAX)));
            }
            Fault::Isolate | Fault::IsolateLeader => self.cut(sim, now, |a, b| a == node || b == node),
            Fault::Split => {
                let side: Vec<bool> = (0..=all).map(|_| self.rng.bool()).collect();
                self.cut(sim, now, |a, b| side[a] != side[b]);
            }
            Fault::OneWay => {
                sim.partition_oneway(name(node), name(other));
                let end = self.lasts(now);
                self.mends.push((end, Mend::Repair(vec![(name(node), name(other))])));
            }
            Fault::Hold => {
                sim.hold(name(node), name(other));
                let end = self.lasts(now);
                self.mends.push((end, Mend::Release(node, other)));
            }
            Fault::SlowLink => {
                let most = Duration::from_millis(self.rng.u64(50..400));
                for other in (1..=all).filter(|other| *other != node) {
                    sim.set_link_max_message_latency(name(node), name(other), most);
                }
                let end = self.lasts(now);
                self.mends.push((end, Mend::Latency(node)));
            }
            Fault::Lossy => {
                let rate = [0.001, 0.01, 0.1][self.rng.usize(..3)];
                sim.set_link_fail_rate(name(node), name(other), rate);
                let end = self.lasts(now);
                self.mends.push((end, Mend::Losses(node, other)));
            }
            Fault::SlowDisk => {
                crate::disk::set_flush_max(node, self.rng.u64(20..300));
                let end = self.lasts(now);
                self.mends.push((end, Mend::Disk(node)));
            }
            Fault::ClockJump => {
                let seconds = [-100_000, -3_600, -20, 20, 3_600, 3_000_000][self.rng.usize(..6)];
                machine::set_wall_error(node, seconds);
                let end = self.lasts(now);
                self.mends.push((end, Mend::Clock(node)));
            }
            Fault::CutClients => {
                let cut: Vec<_> = world.clients().into_iter().map(|client| (client, name(node))).collect();
                self.cut_pairs(sim, now, cut);
            }
        }
    }

    /// Whether a node is off, or shuts down.
    fn is_off(&self, node: usize) -> bool {
        self.mends
            .iter()
            .any(|(_, mend)| matches!(mend, Mend::Start(off) | Mend::Restart(off, _) if *off == node))
    }

    fn crash(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize, now: Duration) {
        if self.is_off(node) {
            return;
        }
        world.power_off(sim, node);
        let end = self.off(now);
        self.mends.push((end, Mend::Start(node)));
    }

    /// Cuts all connections between nodes for which this holds.
    fn cut(&mut self, sim: &Sim<'_>, now: Duration, is_cut: impl Fn(usize, usize) -> bool) {
        let all = self.setup.nodes;
        let pairs = (1..=all).flat_map(|a| (a + 1..=all).map(move |b| (a, b)));
        let cut: Vec<_> = pairs.filter(|(a, b)| is_cut(*a, *b)).map(|(a, b)| (name(a), name(b))).collect();
        self.cut_pairs(sim, now, cut);
    }

    fn cut_pairs(&mut self, sim: &Sim<'_>, now: Duration, cut: Vec<(String, String)>) {
        for (a, b) in &cut {
            sim.partition(a.as_str(), b.as_str());
        }
        let end = self.lasts(now);
        self.mends.push((end, Mend::Repair(cut)));
    }

    /// Ends a fault; returns what is to be ended later.
    fn mend(&mut self, sim: &mut Sim<'_>, world: &mut World, mend: Mend) -> Option<Mend> {
        trace::note(|_| (), format_args!("ends {:?}", mend));
        match mend {
            Mend::Start(node) => world.power_on(sim, node),
            Mend::Restart(node, end) => {
                if world.nodes[node].borrow().has_stopped {
                    let end = self.off(sim.elapsed());
                    let when = if self.is_over { Duration::ZERO } else { end };
                    self.mends.push((when, Mend::Start(node)));
                    return None;
                }
                if sim.elapsed() > end {
                    world.violation(format!("node {node} did not end within {STOP_MAX:?}"));
                    return None;
                }
                return Some(Mend::Restart(node, end));
            }
            Mend::Repair(pairs) => {
                for (a, b) in pairs {
                    sim.repair(a, b);
                }
            }
            Mend::Release(a, b) => sim.release(name(a), name(b)),
            Mend::Latency(node) => {
                for other in (1..=self.setup.nodes).filter(|other| *other != node) {
                    sim.set_link_max_message_latency(name(node), name(other), self.setup.latency_max);
                }
            }
            Mend::Losses(a, b) => sim.set_link_fail_rate(name(a), name(b), 0.0),
            Mend::Disk(node) => crate::disk::set_flush_max(node, self.setup.flush_max_ms),
            Mend::Clock(node) => machine::set_wall_error(node, 0),
        }
        None
    }
}

/// The node that leads in the newest term, as far as it knows.
fn leader(nodes: &Nodes, all: usize) -> Option<usize> {
    let leads = |node: &usize| {
        let watched = nodes[*node].borrow();
        let status = watched.service.as_ref()?.cx.consensus()?.status();
        (status.leader_id == Some(*node as u64)).then_some(status.term)
    };
    (1..=all).filter_map(|node| Some((leads(&node)?, node))).max().map(|(_, node)| node)
}
