//! Makes the faults: a schedule drawn from the seed, a fault every few seconds. Sometimes two overlap: one of those that
//! last is in force while another is made.
//!
//! **Invariant:** at most a minority is without its disk or its process for long. Pauses, partitions and full disks may
//! take the majority away for a while, which stops writes and must break no promise. A recovery waits for the nodes that
//! no other fault holds, and for all of them only when all faults have ended. All faults end before the checks.

use std::{
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    faults::{self, Fault, InForce, Means, Record},
    files::{copy_content, damage},
    network::Network,
    tools::{self, Lasting, Tools},
    volumes::Volume,
    workload::Shared,
};
use crate::harness::{
    Cluster, DEADLINE, Node, clock,
    load::config,
    node::BINARY,
    time::{lasts, pace},
    within,
};

/// How long a node may run after its disk has failed.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How long writes are watched for a refusal after the followers' disks are full.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// The definition of those writes; no client uses it.
pub(crate) const ROOM: &str = "room";
/// A day, in seconds.
const DAY: i64 = 24 * 60 * 60;
/// What a node leaves free; below it a write is refused.
pub(crate) const RESERVE_BYTES: u64 = 24 << 20;

/// Makes faults on a cluster.
pub(crate) struct Nemesis<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) network: Option<Network>,
    pub(crate) volumes: &'a [Volume],
    pub(crate) rng: fastrand::Rng,
    pub(crate) record: &'a mut Record,
    pub(crate) shared: &'a Shared,
    pub(crate) tools: Tools,
    pub(crate) in_force: Vec<InForce>,
}

impl Nemesis<'_> {
    /// The schedule of a run: every kind at least once, in a drawn order, then drawn ones.
    pub(crate) fn schedule(&mut self, kinds: &[Fault], count: usize) -> Vec<Fault> {
        let mut all = kinds.to_vec();
        self.rng.shuffle(&mut all);
        while all.len() < count {
            all.push(kinds[self.rng.usize(..kinds.len())]);
        }
        all.truncate(count);
        all
    }

    /// Makes a fault, sometimes while another one lasts.
    pub(crate) async fn make(&mut self, fault: Fault, kinds: &[Fault]) {
        let background = fault.background(kinds);
        let overlaps = self.rng.u8(..3) == 0;
        if let Some(background) = self.rng.choice(&background).copied().filter(|_| overlaps) {
            self.record.overlapping += 1;
            self.begin(background).await;
        }
        let mut may_have_ended = self.make_one(fault).await;
        while let Some(lasting) = self.in_force.pop() {
            may_have_ended |= lasting.may_end();
            self.finish(lasting);
        }
        self.revive(may_have_ended).await;
    }

    fn count(&mut self, fault: Fault) {
        self.shared.history.record_fault(&format!("{fault:?}"));
        *self.record.made.entry(format!("{fault:?}")).or_default() += 1;
    }

    /// Makes one fault, lets it last, and ends it. Returns whether it may have ended a node.
    async fn make_one(&mut self, fault: Fault) -> bool {
        let lasting = Duration::from_millis(self.rng.u64(300..2500));
        if fault.lasts() {
            self.begin(fault).await;
            // A jump of the clock and a hung disk show what they do only after a while.
            let more = if matches!(fault, Fault::HungDisk | Fault::ClockJump) { 4 } else { 2 };
            lasts(lasting * more).await;
            if fault == Fault::FullFollowers {
                self.write_without_room().await;
            }
            let Some(begun) = self.in_force.pop() else { return false };
            let may_end = begun.may_end();
            self.finish(begun);
            return may_end;
        }
        self.make_now(fault, lasting).await;
        false
    }

    /// Makes a fault that is over when this returns.
    async fn make_now(&mut self, fault: Fault, lasting: Duration) {
        self.count(fault);
        match fault {
            Fault::KillLeader => self.killed(true, lasting, |_, _| ()).await,
            Fault::RestartWithinLease => self.killed(true, Duration::ZERO, |_, _| ()).await,
            Fault::WipeSled | Fault::RotSled | Fault::RotSnapshot | Fault::TornHistory => {
                self.killed(false, lasting, |directory, rng| damage(fault, directory, rng)).await;
            }
            Fault::KillAll => self.kill_all().await,
            Fault::StopPolitely => self.stop_politely(false).await,
            Fault::SwitchVersion => self.stop_politely(true).await,
            Fault::PauseLeader => self.pause(true, lasting).await,
            Fault::PauseAny => self.pause(false, lasting).await,
            Fault::FullDisk => self.full_disk().await,
            Fault::EarlierDisk => self.earlier_disk(lasting).await,
            Fault::RotateDataKey => self.rotate_data_key().await,
            Fault::SyncError => self.sync_error().await,
            Fault::KillAny
            | Fault::Isolate
            | Fault::IsolateLeader
            | Fault::OneWay
            | Fault::Bridge
            | Fault::PacketLoss
            | Fault::SlowDisk
            | Fault::HungDisk
            | Fault::FullFollowers
            | Fault::WrongClock
            | Fault::ClockJump => self.killed(false, lasting, |_, _| ()).await,
        }
    }

    /// Stops the pauses of the clients for a moment, so that writes are in flight when the fault comes.
    async fn stop_pauses(&self) {
        self.shared.hurry.store(true, Ordering::Relaxed);
        lasts(Duration::from_millis(150)).await;
    }

    fn resume_pauses(&self) {
        self.shared.hurry.store(false, Ordering::Relaxed);
    }

    /// Begins a fault that lasts.
    async fn begin(&mut self, fault: Fault) {
        self.count(fault);
        let at_leader = !matches!(fault, Fault::Isolate | Fault::OneWay | Fault::Bridge);
        let id = self.victim(at_leader).await;
        let others: Vec<u64> = (1..=3).filter(|other| *other != id).collect();
        let (lasting, holds) = match fault.means() {
            Means::Filters => {
                for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
                    tools::lose(self.rng.u8(5..25), &Network::host(from), &Network::host(to));
                }
                // Elections may fail again and again.
                (Lasting::Loss, vec![1, 2, 3])
            }
            Means::Strace if fault == Fault::SlowDisk => {
                let delay = self.rng.u32(20_000..150_000);
                (self.delay_disk(id, delay), Vec::new())
            }
            // Longer than it lasts: its end is the end of the delay, too.
            Means::Strace => {
                let follower = self.rng.bool() && self.cluster.node(others[0]).runs();
                let victim = if follower { others[0] } else { id };
                (self.delay_disk(victim, 120_000_000), vec![victim])
            }
            Means::Volumes => {
                let left = if self.rng.bool() { RESERVE_BYTES / 2 } else { 64 << 10 };
                for other in &others {
                    self.volume(*other).fill(left);
                }
                // The leader has room, but nothing is agreed on.
                (Lasting::Full(others), vec![1, 2, 3])
            }
            Means::Clock => {
                let offset = if fault == Fault::ClockJump {
                    self.rng.i64(DAY..40 * DAY)
                } else {
                    self.rng.i64(10..7200)
                };
                let sign = if self.rng.bool() { 1 } else { -1 };
                (self.wrong_clock(id, offset * sign).await, Vec::new())
            }
            Means::Routes | Means::Processes | Means::Versions | Means::DataKeys => {
                self.cut(fault, id, &others)
            }
        };
        let process = match fault.means() {
            Means::Strace => Some(holds.first().copied().unwrap_or(id)),
            Means::Processes
            | Means::Routes
            | Means::Filters
            | Means::Clock
            | Means::Volumes
            | Means::Versions
            | Means::DataKeys => None,
        };
        self.in_force.push(InForce { fault, process, holds: holds.into_iter().collect(), lasting });
    }

    fn delay_disk(&mut self, id: u64, microseconds: u32) -> Lasting {
        let what = format!("{}:delay_enter={microseconds}", tools::SYNCS);
        tools::tamper(self.cluster.node(id).pid(), &what, Path::new("/dev/null"))
    }

    fn volume(&self, id: u64) -> &Volume {
        self.volumes.iter().find(|volume| volume.id == id).expect("drawn with volumes only")
    }

    fn finish(&self, in_force: InForce) {
        self.shared.history.record_fault(&format!("{:?} ends", in_force.fault));
        match &in_force.lasting {
            Lasting::Cut => self.network.as_ref().expect("drawn with a network only").heal(),
            Lasting::Full(ids) => ids.iter().for_each(|id| self.volume(*id).empty()),
            Lasting::Tampered(_) | Lasting::Loss | Lasting::Clock(_) => {}
        }
        in_force.lasting.end();
    }

    /// When no fault is in force: starts the nodes that have ended by themselves. A node that a fault ends may do so some
    /// time after the fault, so after such a one this waits until each is ready or was started again.
    async fn revive(&mut self, may_have_ended: bool) {
        let begin = Instant::now();
        loop {
            let mut ready = true;
            for node in &mut self.cluster.nodes {
                if !node.runs() {
                    let text = format!("node {} has ended: {}", node.id, node.tail(1));
                    self.shared.history.record_fault(&text);
                    self.record.ended += 1;
                    if !may_have_ended {
                        self.record.violations.push(format!("node {} ended by itself", node.id));
                    }
                    node.start().await;
                }
                let probe = node.client().bare(http::Method::GET, "/readyz").attempt().await;
                ready &= probe.is_ok_and(|answer| answer.status == 200);
            }
            if ready || !may_have_ended {
                return;
            }
            assert!(begin.elapsed() < DEADLINE, "no node is held any more, and not all are ready");
            pace(Duration::from_millis(100)).await;
        }
    }

    fn may_end(&self, id: u64) -> bool {
        self.in_force.iter().any(|fault| fault.may_end_node(id))
    }

    /// SIGKILL. It ends what was done to the process, and before: a process can't end while a call of it is delayed.
    pub(super) fn kill(&mut self, id: u64) {
        while let Some(place) = self.in_force.iter().position(|fault| fault.process == Some(id)) {
            let ended = self.in_force.remove(place);
            self.finish(ended);
        }
        self.cluster.node(id).kill();
    }

    /// Starts a node that was ended. It need not get to listen while a fault holds it that may end it.
    pub(super) async fn start(&mut self, id: u64) {
        if self.may_end(id) {
            self.cluster.node(id).launch();
        } else {
            self.cluster.node(id).start().await;
        }
    }

    /// A clock that jumps forward or back, and to real time when the fault ends. The node runs with the library from
    /// then on.
    async fn wrong_clock(&mut self, id: u64, offset: i64) -> Lasting {
        let library = self.tools.faketime.clone().expect("drawn with it only");
        let file = self.cluster.root().join(format!("clock{id}"));
        if !file.exists() {
            clock::set(&file, 0);
            self.kill(id);
            self.cluster.node(id).overrides.extend(clock::variables(&library, &file));
            self.start(id).await;
        }
        clock::set(&file, offset);
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
        self.start(id).await;
    }

    /// A disk that goes back in time: a copy of a node's directory is put back after the node has gone on for a while.
    async fn earlier_disk(&mut self, lasting: Duration) {
        let leader = self.rng.bool();
        let id = self.victim(leader).await;
        // One that is not whole, or has no others that are, could not be told what it forgets.
        self.cluster.ready().await;
        self.kill(id);
        let (directory, image) =
            (self.cluster.node(id).directory.clone(), self.cluster.root().join(format!("image{id}")));
        copy_content(&directory, &image);
        self.start(id).await;
        self.cluster.ready().await;
        lasts(lasting).await;
        self.stop_pauses().await;
        if leader {
            self.record.leader_deaths.push(self.shared.history.now());
        }
        self.kill(id);
        self.resume_pauses();
        copy_content(&image, &directory);
        std::fs::remove_dir_all(&image).expect("the copy is there");
        self.start(id).await;
        self.cluster.ready().await;
        // A node that is ready has caught up with what it has forgotten, so it has noticed it.
        let status = self.cluster.client(id).status().await;
        let alarms = status.map(|status| status["alarms"].to_string()).unwrap_or_default();
        if !alarms.contains("rolled_back") {
            self.record
                .violations
                .push(format!("node {id} did not notice that its disk went back: {alarms}"));
        }
    }

    /// A full disk: writes are refused, deletes and reads are served. It ends with the fault.
    async fn full_disk(&mut self) {
        let id = self.victim(false).await;
        let reserve = "CONCORD_DISK_RESERVE_BYTES";
        self.kill(id);
        self.cluster.node(id).overrides.push((reserve.into(), (1_u64 << 60).to_string()));
        self.start(id).await;
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
        self.kill(id);
        self.cluster.node(id).overrides.retain(|(name, _)| name != reserve);
        self.start(id).await;
    }

    /// Whether writes come to be refused while the followers have no room. It is counted and no violation: a leader knows
    /// the room of its own disk only, and what it acknowledges is durable all the same.
    async fn write_without_room(&mut self) {
        let id = self.victim(true).await;
        let full = self.in_force.iter().any(|fault| match &fault.lasting {
            // The leader may be another one by now, and full itself.
            Lasting::Full(ids) => !ids.contains(&id),
            Lasting::Tampered(_) | Lasting::Loss | Lasting::Clock(_) | Lasting::Cut => false,
        });
        let (client, mut number) = (self.cluster.client(id), self.shared.history.now());
        let refused = within(ROOM_WITHIN, async || {
            number += 1;
            let put = client.put(&config(ROOM, &format!("k{number}")), &json!({"data": {}}));
            match put.header("if-none-match", "*").attempt().await {
                Ok(answer) if (200..300).contains(&answer.status) => Err(format!("{answer:?}")),
                Ok(_) | Err(_) => Ok(()),
            }
        });
        if refused.await.is_err() && full {
            self.record.done_without_room += 1;
        }
    }

    /// The leader that the nodes name, or a random node; one that runs, although a fault in force may have ended others.
    pub(super) async fn victim(&mut self, leader: bool) -> u64 {
        let id = self.leader_or_any(leader).await;
        if self.cluster.node(id).runs() {
            return id;
        }
        let running = self.cluster.nodes.iter_mut().find_map(|node| node.runs().then_some(node.id));
        running.expect("no fault ends all nodes and leaves them so")
    }

    async fn leader_or_any(&mut self, leader: bool) -> u64 {
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
            self.record.leader_deaths.push(self.shared.history.now());
        }
        self.kill(id);
        self.resume_pauses();
        let directory = self.cluster.node(id).directory.clone();
        damage(&directory, &mut self.rng);
        lasts(lasting).await;
        self.start(id).await;
    }

    async fn kill_all(&mut self) {
        self.stop_pauses().await;
        (1..=3).for_each(|id| self.kill(id));
        self.resume_pauses();
        let in_force = &self.in_force;
        let may_end = |id| in_force.iter().any(|fault| fault.may_end_node(id));
        let (held, free): (Vec<&mut Node>, Vec<&mut Node>) =
            self.cluster.nodes.iter_mut().partition(|node| may_end(node.id));
        held.into_iter().for_each(Node::launch);
        futures::future::join_all(free.into_iter().map(Node::start)).await;
        self.cluster.ready_on(&faults::free(&self.in_force)).await;
    }

    /// Stops the leader as an operator does, and starts it again; or any node, with the other version of the binary.
    async fn stop_politely(&mut self, switch: bool) {
        let id = self.victim(!switch).await;
        if self.may_end(id) {
            // It can't write what it wants to before its end.
            self.kill(id);
        } else {
            let status = self.cluster.node(id).stop().await;
            assert!(status.success(), "a node that is asked to stop exits with 0, not {status}");
        }
        if switch {
            let old = self.tools.old.clone().expect("drawn with it only");
            let node = self.cluster.node(id);
            node.binary = if node.binary == old { BINARY.clone() } else { old };
        }
        self.start(id).await;
    }

    async fn pause(&mut self, leader: bool, lasting: Duration) {
        let id = self.victim(leader).await;
        self.stop_pauses().await;
        self.cluster.node(id).pause();
        self.resume_pauses();
        lasts(lasting).await;
        self.cluster.node(id).resume();
    }

    /// Cuts the network, and names the nodes that may have no leader because of it.
    fn cut(&mut self, fault: Fault, id: u64, others: &[u64]) -> (Lasting, Vec<u64>) {
        let network = self.network.as_ref().expect("network faults are drawn with a network only");
        let holds = if fault == Fault::OneWay {
            // What goes the other way is not answered either, so the two may not follow each other.
            network.cut(id, others[0]);
            vec![id, others[0]]
        } else if fault == Fault::Bridge {
            network.cut_both(others[0], others[1]);
            others.to_vec()
        } else {
            others.iter().for_each(|other| network.cut_both(id, *other));
            vec![id]
        };
        (Lasting::Cut, holds)
    }
}
