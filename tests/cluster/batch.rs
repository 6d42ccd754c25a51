//! Batches under a leader that is killed: each is there whole or not at all, on every node.

use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster,
    load::{define, everything},
};

const DEFINITIONS: usize = 10;
const OPERATIONS: usize = 200;

fn definition(number: usize) -> String {
    format!("d{}", number % DEFINITIONS)
}

fn operations(turn: usize) -> Value {
    let operations = (0..OPERATIONS).map(|number| {
        json!({
            "op": "create_config",
            "config_definition_key": definition(number),
            "config_key": format!("t{turn:03}-{number:03}"),
            "data": {"turn": turn},
        })
    });
    json!({"operations": operations.collect::<Vec<_>>()})
}

/// How many configs of each turn a node has.
async fn counts(client: &Client, turns: usize) -> Vec<usize> {
    let mut counts = vec![0; turns];
    for number in 0..DEFINITIONS {
        for (_, data) in everything(client, &definition(number)).await {
            let turn = data["turn"].as_u64().and_then(|turn| usize::try_from(turn).ok());
            counts[turn.expect("only turns are written")] += 1;
        }
    }
    counts
}

#[tokio::test]
async fn a_batch_is_whole_or_absent_when_its_leader_is_killed() {
    let mut cluster = Cluster::start("batch-killed-leader").await;
    let clients = cluster.clients();
    for number in 0..DEFINITIONS {
        define(&clients[0], &definition(number)).await;
    }
    let mut turn = 0;
    let mut acknowledged = Vec::new();
    for _ in 0..3 {
        let leader = cluster.leader().await;
        // Batches by all three nodes at once, and the leader dies under them.
        let sent: Vec<_> = (0..6)
            .map(|n| {
                let (client, body) = (clients[n % 3].clone(), operations(turn + n));
                let number = turn + n;
                tokio::spawn(async move { (number, client.post("/api/v1/batch", &body).attempt().await) })
            })
            .collect();
        turn += 6;
        // The first answer, whatever it is, shows that they are under way.
        let mut waiting = sent;
        let (first, _, rest) = futures::future::select_all(waiting.drain(..)).await;
        cluster.node(leader).kill();
        let mut answers = vec![first.expect("a task ends")];
        for task in rest {
            answers.push(task.await.expect("a task ends"));
        }
        for (number, answer) in answers {
            match answer {
                Ok(answer) if answer.status == 200 => acknowledged.push(number),
                Ok(answer) => assert!(matches!(answer.status, 429 | 503 | 504), "{answer:?}"),
                Err(_) => {}
            }
        }
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    cluster.equal_digests().await;
    for client in cluster.clients() {
        let counts = counts(&client, turn).await;
        assert!(counts.iter().all(|count| [0, OPERATIONS].contains(count)), "torn: {counts:?}");
        for number in &acknowledged {
            assert_eq!(counts[*number], OPERATIONS, "batch {number} was acknowledged");
        }
    }
    assert!(!acknowledged.is_empty(), "some were acknowledged");
    cluster.kill_all();
    cluster.start_all().await;
    cluster.equal_digests().await;
    let counts = counts(&cluster.client(1), turn).await;
    assert!(acknowledged.iter().all(|number| counts[*number] == OPERATIONS), "{counts:?}");
}
