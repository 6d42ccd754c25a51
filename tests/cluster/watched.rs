//! What an operator sees of a cluster in trouble: the log, the status, the audit log, the listener of metrics.

use http::Method;
use serde_json::Value;

use crate::harness::{Client, Cluster, Options, check, eventually, ports};

/// The lines of a node's log as JSON; what is no JSON was not logged by it.
fn lines(cluster: &mut Cluster, id: u64) -> Vec<Value> {
    let text = cluster.node(id).tail(usize::MAX);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits for a line with this beginning of its message, after so many lines; returns the place after it, and it.
async fn line(cluster: &mut Cluster, id: u64, after: usize, message: &str) -> (usize, Value) {
    eventually(message, async || {
        let lines = lines(cluster, id);
        let is_it = |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with(message));
        let found = lines.iter().enumerate().skip(after).find(|(_, line)| is_it(line));
        found.map(|(place, line)| (place + 1, line.clone())).ok_or_else(|| format!("{} lines", lines.len()))
    })
    .await
}

/// What the leader's status says of a member.
async fn member(leader: &Client, id: u64) -> Result<Value, String> {
    let status = leader.status().await?;
    let members = status["members"].as_array().cloned().unwrap_or_default();
    members.into_iter().find(|member| member["id"] == id).ok_or_else(|| status.to_string())
}

#[tokio::test]
async fn a_leader_says_that_a_follower_is_gone_and_that_it_is_back() {
    let options = Options::default().with("CONCORD_LOG_FORMAT", "json").with("CONCORD_LOG", "info");
    let mut cluster = Cluster::start_with("watched-follower", &options).await;
    let leader = cluster.leader().await;
    let follower = leader % 3 + 1;
    let (_, won) = line(&mut cluster, leader, 0, "this node leads the cluster from now on").await;
    assert_eq!(won["level"], "INFO");
    assert!(won["term"].as_u64().is_some_and(|term| term > 0), "{won}");
    assert!(won["why"].as_str().is_some_and(|why| !why.is_empty()), "{won}");
    line(&mut cluster, follower, 0, &format!("node {leader} leads the cluster")).await;
    let client = cluster.client(leader);
    let known = member(&client, follower).await.unwrap();
    assert_eq!(known["reachable"], true, "{known}");
    let elsewhere = member(&cluster.client(follower), leader).await.unwrap();
    assert_eq!((&elsewhere["reachable"], &elsewhere["last_contact_ms"]), (&Value::Null, &Value::Null));

    cluster.node(follower).kill();
    let silent = format!("node {follower} does not answer this leader");
    let (place, gone) = line(&mut cluster, leader, 0, &silent).await;
    assert_eq!((&gone["level"], &gone["node"]), (&"WARN".into(), &follower.into()), "{gone}");
    assert!(gone["silent_ms"].as_u64().is_some_and(|ms| ms >= 3000), "{gone}");
    eventually("the status shows it", async || {
        let known = member(&client, follower).await?;
        let is_old = known["last_contact_ms"].as_u64().is_some_and(|ms| ms > 3000);
        check(known["reachable"] == false && is_old, || known.to_string())
    })
    .await;

    cluster.node(follower).start().await;
    let back = format!("node {follower} answers this leader again");
    let (_, back) = line(&mut cluster, leader, place, &back).await;
    assert!(back["silent_ms"].as_u64().is_some_and(|ms| ms >= 3000), "{back}");
    eventually("the status shows it", async || {
        let known = member(&client, follower).await?;
        check(known["reachable"] == true, || known.to_string())
    })
    .await;
    let silences = lines(&mut cluster, leader).into_iter().filter(|line| line.to_string().contains(&silent));
    assert_eq!(silences.count(), 1, "it is said once");
}

#[tokio::test]
async fn an_election_is_in_the_log_and_in_the_audit_log() {
    let options = Options::default().with("CONCORD_LOG_FORMAT", "json").with("CONCORD_LOG", "info");
    let mut cluster = Cluster::start_with("watched-election", &options).await;
    let leader = cluster.leader().await;
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let before = lines(&mut cluster, others[0]).len();
    cluster.node(leader).pause();
    let next = cluster.leader_on(&others).await;
    let (_, won) = line(&mut cluster, next, 0, "this node leads the cluster from now on").await;
    let why = won["why"].as_str().unwrap_or_default();
    assert!(why.contains(&format!("node {leader}")), "{won}");
    let term = won["term"].clone();
    if next != others[0] {
        line(&mut cluster, others[0], before, &format!("node {next} leads the cluster")).await;
    }
    cluster.node(leader).resume();
    line(&mut cluster, leader, 0, "this node leads no more").await;
    for (id, event) in [(next, "leadership_won"), (leader, "leadership_lost")] {
        let client = cluster.client(id);
        eventually("it is in the audit log", async || {
            let page = client.get("/api/v1/audit?limit=100").insist().await.expect(200);
            let lines = page.data()["results"].as_array().cloned().unwrap_or_default();
            let found = lines.iter().find(|line| line["event"] == event).ok_or_else(|| page.text.clone())?;
            check(id != next || found["term"] == term, || found.to_string())
        })
        .await;
    }
}

#[tokio::test]
async fn metrics_have_a_listener_of_their_own() {
    let mut addresses = Vec::new();
    let cluster = Cluster::start_prepared("watched-listener", &Options::default(), |_, nodes| {
        for node in nodes {
            let address = format!("{}:{}", node.host, ports::free(&node.host));
            node.settings.insert("CONCORD_METRICS_ADDR".into(), address.clone());
            addresses.push(address);
        }
    })
    .await;
    for (node, address) in cluster.clients().iter().zip(&addresses) {
        let stranger = Client::new(&format!("http://{address}"), "");
        let answer = stranger.bare(Method::GET, "/metrics").attempt().await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let names = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
        };
        assert_eq!(names(&answer.text), names(&node.get("/metrics").insist().await.expect(200).text));
        assert!(answer.text.ends_with("# EOF\n"), "{answer:?}");
        // Nothing else is there.
        for (method, path, status) in [
            (Method::GET, "/livez", 404),
            (Method::GET, "/api/v1/cluster", 404),
            (Method::POST, "/metrics", 405),
            (Method::HEAD, "/metrics", 200),
        ] {
            let answer = stranger.bare(method, path).attempt().await.unwrap();
            assert_eq!(answer.status, status, "{answer:?}");
        }
    }
}
