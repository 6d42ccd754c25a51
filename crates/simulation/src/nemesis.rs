//! The faults of a run, by the kinds that its seed has drawn.

use std::time::Duration;

use turmoil::{Drift, Sim};

use crate::{
    disk::{self, Flip},
    machine,
    node::{self, Nodes, name},
    setup::{Fault, Setup},
    trace,
    volume::{self, Loss, Trouble},
    world::World,
};

/// Longest time that a node stays without power, or shut down.
const OFF_MAX_MS: u64 = 4_000;
/// How long a shutdown may take before it counts as hung.
const STOP_MAX: Duration = Duration::from_secs(60);
/// The members exchange their records every five seconds.
const EXCHANGE: Duration = Duration::from_secs(6);
/// How long a member whose disk went back may take until it has caught up, when no other member is missing.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

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
    Rate(usize),
    Resume(usize),
    Trouble(usize),
    Room(usize),
}

/// A disk of an earlier time, as `docs/operations/rolled-back-disks.md` says what is promised: nothing is lost if the other
/// members know of a later start of this one, or if all of them are there when it starts and for a while after that.
/// It happens to one node of a run, once.
#[derive(Debug, Clone, Copy)]
enum Earlier {
    /// There is a copy of the disk, and since then the node was started this often.
    Copied {
        node: usize,
        starts: u64,
    },
    /// The same, and all members know of a later start.
    Known {
        node: usize,
    },
    /// No other fault is made until all is quiet, for long enough that each member has heard of all others.
    Quiet {
        node: usize,
        since: Option<Duration>,
        is_known: bool,
    },
    /// The copy was put back. No other fault is made until then at least, and until the node has caught up.
    Back {
        node: usize,
        until: Duration,
        latest: Duration,
    },
    Over,
}

/// Makes faults and ends them.
pub(crate) struct Nemesis {
    setup: Setup,
    rng: fastrand::Rng,
    next: Duration,
    /// The number of the last fault.
    number: u64,
    /// What ends each of the present faults, and when.
    mends: Vec<(Duration, Mend)>,
    /// A bit that has flipped, and the node.
    flip: Option<(usize, Flip)>,
    earlier: Option<Earlier>,
    /// The node whose disk went back without others having to be there.
    gone_back: Option<usize>,
    is_over: bool,
}

impl Nemesis {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut rng = fastrand::Rng::with_seed(setup.seed ^ 0xbad_1dea);
        // The cluster forms first, in most runs.
        let next = Duration::from_millis(rng.u64(200..4_000));
        Self {
            setup: setup.clone(),
            rng,
            next,
            number: 0,
            mends: Vec::new(),
            flip: None,
            earlier: None,
            gone_back: None,
            is_over: false,
        }
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
        self.start_failed(sim, world, now);
        let is_held = self.watch_earlier(sim, world, now);
        if self.is_over || is_held || self.setup.faults.is_empty() || now < self.next {
            return;
        }
        // What a fault draws depends on its number, so that the others stay as they are when one is left out.
        self.number += 1;
        self.rng.seed(self.setup.seed ^ 0xbad_1dea ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pause = u64::try_from(self.setup.fault_pause.as_millis()).unwrap_or(u64::MAX);
        self.next = now + Duration::from_millis(self.rng.u64(pause / 4..=pause * 2));
        let fault = self.setup.faults[self.rng.usize(..self.setup.faults.len())];
        if !self.setup.without.contains(&self.number) {
            self.make(sim, world, fault, now);
        }
    }

    /// What there is to end, for who draws it.
    pub(crate) fn present(&self) -> Vec<String> {
        self.mends.iter().map(|(_, mend)| format!("{:?}", mend)).collect()
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
        let of_leader = matches!(fault, Fault::CrashLeader | Fault::IsolateLeader | Fault::PauseLeader);
        let node = if of_leader { leader } else { any };
        trace::note(|counts| counts.faults += 1, format_args!("fault {fault:?} {node} {other}"));
        world.tell(now, &format!("{fault:?} of node {node} (and {other})"));
        match fault {
            Fault::Crash | Fault::CrashLeader => self.crash(sim, world, node, Loss::Power),
            Fault::CrashAll => (1..=all).for_each(|node| self.crash(sim, world, node, Loss::Power)),
            Fault::Kill => self.crash(sim, world, node, Loss::Process),
            Fault::Pause | Fault::PauseLeader => {
                if self.is_off(node)
                    || self.mends.iter().any(|(_, mend)| matches!(mend, Mend::Resume(is) if *is == node))
                {
                    return;
                }
                sim.pause(name(node));
                let end = self.lasts(now);
                self.mends.push((end, Mend::Resume(node)));
            }
            Fault::BrokenDisk => {
                let most = [3, 30, 300][self.rng.usize(..3)];
                let after = self.rng.u32(..most);
                let is_once = self.rng.bool();
                let trouble = if is_once { Trouble::Once { after } } else { Trouble::Broken { after } };
                self.trouble(world, node, trouble, now);
            }
            Fault::FullDisk => {
                // Writes are rejected in time, or another program has taken all at once.
                if self.rng.bool() {
                    node::set_free_bytes(node, Some(0));
                    let end = self.lasts(now);
                    self.mends.push((end, Mend::Room(node)));
                } else {
                    self.trouble(world, node, Trouble::Full, now);
                }
            }
            Fault::BitRot => self.rot(sim, world, node, now),
            Fault::EarlierDisk => self.earlier(sim, world, node, now),
            Fault::ClockRate => {
                let every = self.rng.usize(50..=200);
                let drift = if self.rng.bool() { Drift::Fast } else { Drift::Slow };
                sim.drift(name(node), Some((drift, every)));
                let end = self.lasts(now) + self.setup.fault_max;
                self.mends.push((end, Mend::Rate(node)));
            }
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
                disk::set_flush_max(node, self.rng.u64(20..300));
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

    fn crash(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize, loss: Loss) {
        if self.is_off(node) {
            return;
        }
        self.mends.retain(|(_, mend)| !matches!(mend, Mend::Resume(is) if *is == node));
        world.end(sim, node, loss);
        let end = self.off(sim.elapsed());
        self.mends.push((end, Mend::Start(node)));
    }

    fn trouble(&mut self, world: &mut World, node: usize, trouble: Trouble, now: Duration) {
        if self.mends.iter().any(|(_, mend)| matches!(mend, Mend::Trouble(_))) {
            return;
        }
        world.may_fail[node] = true;
        volume::set_trouble(node, Some(trouble));
        let end = self.lasts(now);
        self.mends.push((end, Mend::Trouble(node)));
    }

    /// Flips a bit in a file of a node that does not run, of one node at a time.
    fn rot(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize, now: Duration) {
        if self.is_off(node) || self.flip.as_ref().is_some_and(|(other, _)| *other != node) {
            return;
        }
        self.crash(sim, world, node, Loss::Process);
        if let Some((_, flip)) = self.flip.take() {
            flip.mend();
        }
        self.flip = disk::flip(node, &mut self.rng).map(|flip| (node, flip));
        world.may_fail[node] = true;
        world.tell(now, &format!("{:?}", self.flip.as_ref().map(|(_, flip)| &flip.file)));
    }

    /// Does what a supervisor does, and who repairs a file that a node has named.
    fn start_failed(&mut self, sim: &mut Sim<'_>, world: &mut World, now: Duration) {
        for (node, why) in std::mem::take(&mut world.failed) {
            let flip = self.flip.take_if(|(of, _)| *of == node);
            if let Some((_, flip)) = flip {
                flip.mend();
                // The log is one file to who runs a node: an error names the place in it.
                let has_failed = volume::take_failed(node);
                let named =
                    has_failed || flip.file.iter().skip(1).any(|part| why.contains(&*part.to_string_lossy()));
                if !named {
                    world.violation(format!(
                        "{} of node {node} is damaged, and it says: {why}",
                        flip.file.display()
                    ));
                }
            }
            self.mends.retain(|(_, mend)| !matches!(mend, Mend::Resume(is) | Mend::Start(is) | Mend::Restart(is, _) if *is == node));
            world.end(sim, node, Loss::Process);
            let end = if self.is_over { now } else { self.off(now) };
            self.mends.push((end, Mend::Start(node)));
        }
    }

    /// Takes a copy of a disk, or puts it back.
    fn earlier(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize, now: Duration) {
        match self.earlier {
            // A disk of the time before its node had joined is that of a node that somebody has to replace.
            None if world.seen(node).is_none_or(|seen| seen.applied == 0) => {}
            None => {
                disk::take_image(node).expect("the files can be copied");
                self.earlier = Some(if self.rng.bool() {
                    Earlier::Copied { node, starts: 0 }
                } else {
                    Earlier::Quiet { node, since: None, is_known: false }
                });
            }
            Some(Earlier::Copied { node, starts: 0 }) => self.crash(sim, world, node, Loss::Power),
            Some(Earlier::Copied { node, .. }) => {
                self.earlier = Some(Earlier::Quiet { node, since: None, is_known: true });
            }
            Some(Earlier::Known { node }) if !self.is_off(node) && !self.has_trouble() => {
                self.put_back(sim, world, node, now);
                self.earlier = Some(Earlier::Over);
                self.gone_back = Some(node);
            }
            Some(_) => {}
        }
    }

    fn has_trouble(&self) -> bool {
        self.flip.is_some() || self.mends.iter().any(|(_, mend)| matches!(mend, Mend::Trouble(_)))
    }

    fn put_back(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize, now: Duration) {
        self.crash(sim, world, node, Loss::Process);
        disk::put_back(node).expect("the files can be copied");
        world.may_fail[node] = true;
        trace::note(|_| (), format_args!("the disk of node {node} goes back"));
        world.tell(now, &format!("the disk of node {node} goes back"));
    }

    /// Goes on with a disk of an earlier time. Returns whether no other fault may be made.
    fn watch_earlier(&mut self, sim: &mut Sim<'_>, world: &mut World, now: Duration) -> bool {
        match self.earlier {
            Some(Earlier::Quiet { node, since, is_known }) => {
                if self.is_over {
                    return true;
                }
                if !self.mends.is_empty() || !world.all_run() || self.flip.is_some() {
                    self.earlier = Some(Earlier::Quiet { node, since: None, is_known });
                } else if since.is_none() {
                    self.earlier = Some(Earlier::Quiet { node, since: Some(now), is_known });
                } else if since.is_some_and(|since| now - since >= EXCHANGE) {
                    if is_known {
                        self.earlier = Some(Earlier::Known { node });
                    } else {
                        self.put_back(sim, world, node, now);
                        let (until, latest) = (Duration::MAX, now + CATCH_UP_MAX);
                        self.earlier = Some(Earlier::Back { node, until, latest });
                    }
                }
                true
            }
            Some(Earlier::Back { node, until, latest }) => {
                if now >= until && is_whole(&world.nodes, node) {
                    self.earlier = Some(Earlier::Over);
                } else if now >= latest {
                    world.violation(format!(
                        "node {node} has not caught up {CATCH_UP_MAX:?} after its disk went back"
                    ));
                }
                true
            }
            _ => false,
        }
    }

    /// Starts a node.
    fn start(&mut self, sim: &mut Sim<'_>, world: &mut World, node: usize) {
        let mut is_back = self.gone_back == Some(node);
        match &mut self.earlier {
            Some(Earlier::Copied { node: of, starts }) if *of == node => *starts += 1,
            Some(Earlier::Back { node: of, until, .. }) if *of == node => {
                // Three election timeouts.
                *until = sim.elapsed() + Duration::from_millis(self.setup.timers.election_max) * 3;
                is_back = true;
            }
            _ => {}
        }
        let has_trouble = self.mends.iter().any(|(_, mend)| matches!(mend, Mend::Trouble(of) if *of == node));
        let is_damaged = self.flip.as_ref().is_some_and(|(of, _)| *of == node);
        world.may_fail[node] = has_trouble || is_damaged || is_back;
        world.start(sim, node);
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
            Mend::Start(node) => self.start(sim, world, node),
            Mend::Resume(node) => sim.resume(name(node)),
            Mend::Rate(node) => sim.drift(name(node), None),
            Mend::Room(node) => node::set_free_bytes(node, None),
            Mend::Trouble(node) => {
                volume::set_trouble(node, None);
                // A node that has met an error and goes on is started again by its operator, at the latest at the end.
                if volume::take_failed(node) && !self.is_off(node) && (self.is_over || self.rng.bool()) {
                    self.crash(sim, world, node, Loss::Process);
                }
            }
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
            Mend::Disk(node) => disk::set_flush_max(node, self.setup.flush_max_ms),
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

/// Whether a node runs and has all that it had.
fn is_whole(nodes: &Nodes, node: usize) -> bool {
    let watched = nodes[node].borrow();
    let consensus = watched.service.as_ref().and_then(|service| service.cx.consensus());
    consensus.is_some_and(|consensus| consensus.not_whole().is_none())
}
