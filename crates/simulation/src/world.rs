//! The nodes of a run as the simulation sees them, and what it checks after every step.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use turmoil::Sim;

use crate::{
    disk, machine,
    node::{Nodes, name},
    setup::Setup,
    trace,
    volume::Loss,
};

/// What was seen of a node last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) term: u64,
    pub(crate) leader: Option<u64>,
    pub(crate) applied: u64,
}

/// The nodes, and what is known of them.
pub(crate) struct World {
    pub(crate) nodes: Nodes,
    setup: Rc<Setup>,
    seen: Vec<Seen>,
    /// The digest of the state at each revision, and the node that had it first.
    digests: BTreeMap<u64, (u128, usize)>,
    pub(crate) violations: Vec<String>,
    /// Whether this node may fail: something was done to its disk.
    pub(crate) may_fail: Vec<bool>,
    /// The nodes that have failed as they may, and why.
    pub(crate) failed: Vec<(usize, String)>,
    is_told: bool,
    steps: u64,
}

impl World {
    pub(crate) fn new(setup: Rc<Setup>, nodes: Nodes, is_told: bool) -> Self {
        let seen = vec![Seen::default(); setup.nodes + 1];
        let may_fail = vec![false; setup.nodes + 1];
        let (digests, violations, failed) = Default::default();
        Self { nodes, setup, seen, digests, violations, may_fail, failed, is_told, steps: 0 }
    }

    pub(crate) fn clients(&self) -> Vec<String> {
        let followers = (1..=self.setup.work.followers).map(follower_name);
        (1..=self.setup.clients).map(client_name).chain(followers).collect()
    }

    /// Says what happens, to who looks on.
    pub(crate) fn tell(&self, now: Duration, what: &str) {
        if self.is_told {
            eprintln!("{:>8} {what}", now.as_millis());
        }
    }

    pub(crate) fn violation(&mut self, text: String) {
        trace::note(|_| (), format_args!("violation {text}"));
        self.violations.push(text);
    }

    /// Ends a node at once.
    pub(crate) fn end(&mut self, sim: &mut Sim<'_>, node: usize, loss: Loss) {
        let service = self.nodes[node].borrow_mut().service.take();
        self.seen[node] = Seen::default();
        machine::as_host(node, || {
            disk::without_power(node, loss, || {
                drop(service);
                sim.crash(name(node));
            });
        });
    }

    /// Starts a node that does not run. What is left of a process that has ended by itself goes with it.
    pub(crate) fn start(&mut self, sim: &mut Sim<'_>, node: usize) {
        machine::as_host(node, || disk::without_power(node, Loss::Process, || sim.bounce(name(node))));
    }

    /// Checks what must hold at every moment.
    pub(crate) fn check(&mut self, now: Duration) {
        self.steps += 1;
        for node in 1..=self.setup.nodes {
            let nodes = Rc::clone(&self.nodes);
            let mut watched = nodes[node].borrow_mut();
            if let Some(why) = watched.failure.take() {
                if self.may_fail[node] {
                    trace::note(|_| (), format_args!("node {node} failed: {why}"));
                    self.tell(now, &format!("node {node} failed: {why}"));
                    self.failed.push((node, why));
                } else {
                    self.violation(format!("node {node} failed: {why}"));
                }
            }
            let Some(consensus) = watched.service.as_ref().and_then(|service| service.cx.consensus()) else {
                continue;
            };
            let (last, state) = (self.seen[node], consensus.state());
            let (term, leader) = (consensus.term(), consensus.leader_id());
            let is = Seen { term, leader, applied: state.revision() };
            if is == last {
                continue;
            }
            self.seen[node] = is;
            trace::note(
                |counts| {
                    counts.applied += is.applied.saturating_sub(last.applied);
                    counts.leaders += u64::from(is.leader != last.leader && is.leader.is_some());
                },
                format_args!("node {node} {is:?} {:032x}", state.digest()),
            );
            if is.leader != last.leader {
                self.tell(now, &format!("node {node}: leader {:?} of term {}", is.leader, is.term));
            }
            if is.applied < last.applied {
                self.violation(format!(
                    "node {node} went back from revision {} to {}",
                    last.applied, is.applied
                ));
            }
            let (digest, first) = *self.digests.entry(is.applied).or_insert((state.digest(), node));
            if digest != state.digest() {
                let revision = is.applied;
                self.violation(format!(
                    "at revision {revision} the states of nodes {first} and {node} differ"
                ));
            }
        }
    }

    /// What was seen of a node last; none while it does not run.
    pub(crate) fn seen(&self, node: usize) -> Option<Seen> {
        self.nodes[node].borrow().service.is_some().then(|| self.seen[node])
    }

    /// Whether all nodes run.
    pub(crate) fn all_run(&self) -> bool {
        (1..=self.setup.nodes).all(|node| self.nodes[node].borrow().service.is_some())
    }
}

pub(crate) fn follower_name(follower: usize) -> String {
    format!("f{follower}")
}

pub(crate) fn client_name(client: usize) -> String {
    format!("c{client}")
}
