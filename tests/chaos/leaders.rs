//! Change requests while the leader is killed, again and again, as fast as the cluster recovers.
//!
//! The short run is a test like any other. `scripts/chaos.sh leaders` repeats longer ones until it has killed so many
//! leaders. Each run has a cluster of its own, because only so many change requests that have ended are retained.
//!
//! **Invariant:** a leader is killed only after something was acknowledged since the one before was killed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    changes,
    history::{History, any_seed},
    people_at_work, print_violations, text, violations_in_logs,
    workload::{Mix, Shared},
};
use crate::harness::{Cluster, Options, eventually, number, time::pace};

/// Workers at change requests.
const PROPOSERS: usize = 6;
/// Leaders that the short run kills, if it has the time.
const KILLS: u64 = 6;
/// How long the short run lasts at most, besides its checks.
const SHORT: Duration = Duration::from_secs(25);

/// What a run is to do.
struct Plan {
    seed: u64,
    kills: u64,
    end: Option<Instant>,
}

impl Plan {
    fn read() -> Self {
        let is_long = std::env::var_os("CONCORD_CHAOS").is_some();
        Self {
            seed: number("SEED").unwrap_or_else(|| if is_long { any_seed() } else { 1 }),
            kills: number("KILLS").filter(|_| is_long).unwrap_or(KILLS),
            end: (!is_long).then(|| Instant::now() + SHORT),
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn change_requests_hold_while_leaders_are_killed() {
    let plan = Plan::read();
    eprintln!("leaders: SEED={} for {} kills", plan.seed, plan.kills);
    let options = Options::default()
        .with("CONCORD_SNAPSHOT_LOG_BYTES", "131072")
        .with("CONCORD_WRITE_TIMEOUT_MS", "5000")
        .with("CONCORD_READ_TIMEOUT_MS", "3000")
        .with("CONCORD_ELECTION_MIN_MS", "300")
        .with("CONCORD_ELECTION_MAX_MS", "500")
        .with("CONCORD_AUDIT", "strict");
    let mut cluster = Cluster::start_with("leaders", &options).await;
    let shared = Arc::new(Shared::new(History::new(text("HISTORY").as_deref()), Mix::default()));
    changes::prepare(&cluster.client(1), &shared).await;
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let people = people_at_work(&cluster.clients(), &shared, PROPOSERS, || rng.fork());
    let begin = Instant::now();
    let mut recoveries = Vec::new();
    while (recoveries.len() as u64) < plan.kills && !plan.is_over() {
        pace(Duration::from_millis(rng.u64(..300))).await;
        recoveries.push(kill_the_leader(&mut cluster, &shared).await);
    }
    let seconds = begin.elapsed().as_secs();
    shared.stop.store(true, Ordering::Relaxed);
    people.join_all().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    let mut violations = shared.history.contradictions();
    let (mut summary, found) = changes::check(&cluster.clients(), true, &shared).await;
    violations.extend(found);
    violations.extend(violations_in_logs(&cluster));
    print_violations(&violations);
    recoveries.sort_unstable();
    let recovery = |place: usize| recoveries.get(place).map(Duration::as_secs_f64);
    summary["seed"] = plan.seed.into();
    summary["kills"] = recoveries.len().into();
    summary["seconds"] = seconds.into();
    summary["violations"] = violations.len().into();
    summary["leader_death_to_write_median_s"] = json!(recovery(recoveries.len() / 2));
    summary["leader_death_to_write_worst_s"] = json!(recovery(recoveries.len().saturating_sub(1)));
    println!("{summary}");
    assert!(violations.is_empty(), "{} violations with SEED={}", violations.len(), plan.seed);
    assert!(!recoveries.is_empty() && summary["applied"].as_u64() > Some(0), "nothing happened: {summary}");
}

/// Kills the leader, starts it again, and waits until all nodes are ready and something was acknowledged. Returns how long
/// that took from the death to the first acknowledgement.
async fn kill_the_leader(cluster: &mut Cluster, shared: &Shared) -> Duration {
    let leader = cluster.leader().await;
    let died = shared.history.now();
    cluster.node(leader).kill();
    shared.history.record_fault(&format!("KillLeader {leader}"));
    cluster.node(leader).start().await;
    let acknowledged = eventually("something is acknowledged", async || {
        let all = shared.acknowledged.lock().expect("no client panics");
        all.iter().find(|at| **at > died).copied().ok_or_else(|| "nothing".to_owned())
    });
    let acknowledged = acknowledged.await;
    cluster.ready().await;
    Duration::from_nanos(acknowledged - died)
}
