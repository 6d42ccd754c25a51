//! The hosts that are no nodes: clients of the chaos tests (`tests/chaos/workload.rs`), who makes access keys, and the one
//! who prepares everything and looks at it in the end.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    chaos::{
        changes::{self, PersonAdmin, Proposer, Witness},
        check, expensive,
        freezes::{self, Freezer},
        history::History,
        rights,
        service_history::{self, ServiceHistory, indexes_are_complete},
        stored_keys::KeyAdmin,
        workload::{Action, CLAIMS, DEFINITIONS, Shared, Worker, prepare, read_all},
    },
    harness::{Client, RECOVERY_MAX, load::definition},
    members::members,
    rollouts::{self, Rollouts},
    setup::Setup,
    trace,
    watch::Followed,
};

/// The definition whose creation is the last change of a run.
const THE_END: &str = "the-end";

/// What the hosts of a run share.
pub(crate) struct Run {
    pub(crate) setup: Rc<Setup>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rollouts: Rollouts,
    /// Clients that are still at work.
    pub(crate) working: Cell<usize>,
    /// All faults are over, and all nodes run.
    pub(crate) is_healed: Cell<bool>,
    /// The revision from which followers receive everything; 0 until everything is prepared.
    pub(crate) from: Cell<u64>,
    /// The revision of the last change.
    pub(crate) end: Cell<Option<u64>>,
    /// Followers that have not seen it.
    pub(crate) following: Cell<usize>,
    pub(crate) followed: RefCell<Vec<Followed>>,
    histories: RefCell<Vec<ServiceHistory>>,
}

impl Run {
    pub(crate) fn new(setup: Rc<Setup>) -> Self {
        let note = |line: &[u8]| {
            let is_begin = [&b"{\"begin\""[..], b"{\"transaction_begin\"", b"{\"deed_begin\""]
                .iter()
                .any(|begin| line.starts_with(begin));
            let line = String::from_utf8_lossy(line.trim_ascii_end());
            trace::note(|counts| counts.operations += u64::from(!is_begin), format_args!("client {line}"));
        };
        let history = History::with_sink(Some(Box::new(note)));
        let shared = Arc::new(Shared::new(history, setup.work.mix.clone()));
        let proposers = setup.work.proposers;
        // Whoever changes the members is one more, and so is whoever looks on at change requests.
        let rolling = rollouts::hosts(setup.work.rollers);
        let working = Cell::new(setup.clients + 1 + proposers + usize::from(proposers > 0) + rolling);
        let following = Cell::new(setup.work.followers);
        Self {
            setup,
            shared,
            rollouts: Rollouts::default(),
            working,
            is_healed: Cell::new(false),
            from: Cell::new(0),
            end: Cell::new(None),
            following,
            followed: RefCell::default(),
            histories: RefCell::default(),
        }
    }

    /// What is wrong with what was seen.
    pub(crate) fn violations(&self) -> Vec<String> {
        let history = &self.shared.history;
        let mut found = check::violations(history);
        let followed = self.followed.take();
        let whole: Vec<_> = followed.into_iter().filter(|one| !one.has_gap).map(|one| one.events).collect();
        let histories = self.histories.take();
        // Else nobody knows what came before the history that is retained.
        if !whole.is_empty() || histories.iter().all(|history| history.compaction_revision == 0) {
            found.extend(
                service_history::differences(
                    histories,
                    history,
                    &self.shared.freezes,
                    self.from.get()..=self.end.get().unwrap_or(u64::MAX),
                    &whole,
                )
                .1,
            );
        }
        found
    }
}

pub(crate) fn rng(run: &Run, of: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(run.setup.seed.wrapping_mul(31).wrapping_add(of))
}

pub(crate) async fn is_prepared(run: &Run) {
    while run.from.get() == 0 {
        sleep(Duration::from_millis(10)).await;
    }
}

/// One client, until its time is over.
pub(crate) async fn client(id: usize, run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    let (shared, nodes) = (Arc::clone(&run.shared), Client::all(run.setup.nodes));
    Worker { id, shared, nodes, rng: rng(&run, id as u64), credential: None }.run().await;
    run.working.set(run.working.get() - 1);
    Ok(())
}

/// Who makes access keys and ends them.
pub(crate) async fn keys(run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    if run.setup.work.has_keys {
        KeyAdmin { shared: &run.shared, nodes: Client::all(run.setup.nodes), rng: rng(&run, 1000) }
            .run()
            .await;
    }
    Ok(())
}

/// Who freezes the definitions.
pub(crate) async fn freezes(run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    if run.setup.work.has_freezes {
        Freezer { shared: &run.shared, nodes: Client::all(run.setup.nodes), rng: rng(&run, 1001) }
            .run()
            .await;
    }
    Ok(())
}

/// Who makes change requests, approves and applies them.
pub(crate) async fn proposer(id: usize, run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    let (shared, nodes) = (&run.shared, Client::all(run.setup.nodes));
    Proposer { shared, nodes, rng: rng(&run, 3000 + id as u64) }.run().await;
    run.working.set(run.working.get() - 1);
    Ok(())
}

/// Who changes the keys of those, and who may see none of it.
pub(crate) async fn onlookers(run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    if run.setup.work.proposers > 0 {
        let (shared, nodes) = (&run.shared, Client::all(run.setup.nodes));
        let key_admin = PersonAdmin::new(shared, nodes.clone(), rng(&run, 3100));
        let witness = Witness { shared, nodes, rng: rng(&run, 3101) };
        tokio::join!(key_admin.run(), witness.run());
        run.working.set(run.working.get() - 1);
    }
    Ok(())
}

/// Prepares everything, ends it when its time is over, and reads all that there is on every node once all faults are
/// over: what was acknowledged is there, and the cluster has recovered.
pub(crate) async fn direct(run: Rc<Run>) -> turmoil::Result {
    let (setup, shared) = (&run.setup, &run.shared);
    let nodes = Client::all(setup.nodes);
    let first = &nodes[0];
    prepare(first).await;
    if setup.work.does(Action::Limited) {
        rights::prepare(first, shared).await;
    }
    if setup.work.does(Action::Expensive) {
        expensive::prepare(first).await;
    }
    if setup.work.proposers > 0 {
        changes::prepare(first, shared).await;
    }
    if setup.work.rollers > 0 {
        rollouts::prepare(first, &run).await;
    }
    let status = first.get("/api/v1/cluster").insist().await.expect(200);
    run.from.set(status.data()["revision"].as_u64().expect("a revision") + 1);
    sleep(setup.duration).await;
    shared.stop.store(true, Ordering::Relaxed);
    while !run.is_healed.get() {
        sleep(Duration::from_millis(20)).await;
    }
    // What it shows of the members is what it has applied.
    first.get(&definition(DEFINITIONS[0])).insist().await.expect(200);
    let members = members(first, setup).await;
    let nodes: Vec<_> = members.iter().map(|member| nodes[member - 1].clone()).collect();
    let mut reading = JoinSet::new();
    for (member, node) in members.iter().copied().zip(nodes.clone()) {
        let shared = Arc::clone(shared);
        reading.spawn_local(async move { read_all(&shared, &node, 1000 + member).await });
    }
    reading.join_all().await;
    freezes::look(first, shared).await;
    if setup.work.proposers > 0 {
        let (_, found) = changes::check(&nodes[..2.min(nodes.len())], false, shared).await;
        found.into_iter().for_each(|wrong| shared.history.contradict(wrong));
    }
    if setup.work.rollers > 0 {
        let found = rollouts::check(&nodes[..2.min(nodes.len())], &run).await;
        found.into_iter().for_each(|wrong| shared.history.contradict(wrong));
    }
    let body = json!({"config_definition_key": THE_END});
    let made = first.post("/api/v1/config_definition/", &body).insist().await;
    // It exists: an attempt of unknown outcome has made it.
    assert!(matches!(made.status, 201 | 409), "{made:?}");
    let end = first.get(&definition(THE_END)).insist().await.expect(200).tag();
    run.end.set(Some(end.trim_matches('"').parse().expect("a revision")));
    let patience = Instant::now() + RECOVERY_MAX * 2;
    while run.following.get() > 0 && Instant::now() < patience {
        sleep(Duration::from_millis(20)).await;
    }
    let mut reading = JoinSet::new();
    for node in nodes {
        reading.spawn_local(look_at(node, Rc::clone(&run)));
    }
    reading.join_all().await;
    Ok(())
}

/// Reads the history of a node, and compares its indexes with its lists.
async fn look_at(node: Client, run: Rc<Run>) {
    let history = &run.shared.history;
    match ServiceHistory::read_from(&node, &run.shared.keys()).await {
        Ok(read) => run.histories.borrow_mut().push(read),
        Err(why) => history.contradict(format!("{}: {why}", node.base)),
    }
    for name in DEFINITIONS.into_iter().take(run.setup.work.mix.definitions).chain([CLAIMS]) {
        for wrong in indexes_are_complete(&node, name).await {
            history.contradict(wrong);
        }
    }
}
