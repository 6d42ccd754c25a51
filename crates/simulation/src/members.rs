//! Members join, get a vote and leave while the clients work.
//!
//! The nodes after the founders are spares. Each joins once: an id is never used twice. Node 1 stays, so that
//! there is one who knows all others in the end.

use std::{rc::Rc, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    harness::{Answer, Client},
    node::member,
    setup::Setup,
    workload::{Run, is_prepared, rng},
};

const MEMBERS: &str = "/api/v1/cluster/members";
/// Fewer voters than this are left alone.
const VOTERS_MIN: usize = 3;

/// Without faults, a new leader has completed a change of members by then.
const SETTLED: Duration = Duration::from_secs(1);

/// A member as the cluster shows it.
#[derive(Debug, Clone, Copy)]
struct Shown {
    node: usize,
    has_vote: bool,
}

fn shown(answer: &Answer) -> Vec<Shown> {
    let members = answer.body["data"]["members"].as_array().cloned().unwrap_or_default();
    let one = |member: &Value| {
        let node = usize::try_from(member["id"].as_u64()?).ok()?;
        Some(Shown { node, has_vote: member["role"] != "learner" })
    };
    members.iter().filter_map(one).collect()
}

/// The nodes that are members once no change of them is under way: that of a lost leader is completed by the next one.
pub(crate) async fn members(node: &Client, setup: &Setup) -> Vec<usize> {
    let read = async || -> Vec<usize> {
        shown(&node.get("/api/v1/cluster").insist().await).into_iter().map(|member| member.node).collect()
    };
    let mut members = read().await;
    if setup.work.spares == 0 {
        return members;
    }
    loop {
        sleep(SETTLED).await;
        let before = std::mem::replace(&mut members, read().await);
        if members == before {
            return members;
        }
    }
}

/// Changes members until the clients' time is over.
pub(crate) async fn change(run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    let (setup, nodes, mut rng) = (&run.setup, Client::all(run.setup.nodes), rng(&run, 2000));
    let mut spares: Vec<usize> = (setup.founders() + 1..=setup.nodes).collect();
    while setup.work.spares > 0 && !run.shared.stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(rng.u64(50..1_500))).await;
        let node = &nodes[rng.usize(..setup.founders())];
        let Ok(answer) = node.get("/api/v1/cluster").attempt().await else { continue };
        let members = shown(&answer);
        let voters = members.iter().filter(|member| member.has_vote).count();
        let Some(any) = rng.choice(&members).copied() else { continue };
        let learner = members.iter().find(|member| !member.has_vote);
        let path = format!("{MEMBERS}/{}", any.node);
        let call = match (rng.u8(..6), spares.first(), learner) {
            (0..3, _, Some(learner)) => node.post(&format!("{MEMBERS}/{}/promote", learner.node), &json!({})),
            (0..3, Some(spare), _) => {
                let joins = member(*spare);
                let body = json!({"id": joins.id, "api_addr": joins.api_addr, "peer_addr": joins.peer_addr});
                node.post(MEMBERS, &body)
            }
            (3..5, _, _) if any.node != 1 && (!any.has_vote || voters > VOTERS_MIN) => node.delete(&path),
            _ => node.post("/api/v1/cluster/leader", &json!({"id": any.node})),
        };
        let Ok(answer) = call.attempt().await else { continue };
        spares.retain(|spare| !shown(&answer).iter().any(|member| member.node == *spare));
        if !matches!(answer.status, 200 | 201 | 404 | 409 | 429 | 503 | 504) {
            run.shared.history.contradict(format!("a change of the members: {answer:?}"));
        }
    }
    run.working.set(run.working.get() - 1);
    Ok(())
}
