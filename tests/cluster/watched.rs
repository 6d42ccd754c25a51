//! What an operator sees of a cluster in trouble: the log, the status, the audit log, the listener of metrics.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    ports,
    time::lasts,
};

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
    let (_, won) = line(&mut cluster, leader, 0, "this node became leader").await;
    assert_eq!(won["level"], "INFO");
    assert!(won["term"].as_u64().is_some_and(|term| term > 0), "{won}");
    assert!(won["why"].as_str().is_some_and(|why| !why.is_empty()), "{won}");
    line(&mut cluster, follower, 0, &format!("node {leader} became leader")).await;
    let client = cluster.client(leader);
    let known = member(&client, follower).await.unwrap();
    assert_eq!(known["reachable"], true, "{known}");
    let elsewhere = member(&cluster.client(follower), leader).await.unwrap();
    assert_eq!((&elsewhere["reachable"], &elsewhere["last_contact_ms"]), (&Value::Null, &Value::Null));

    cluster.node(follower).kill();
    let silent = format!("node {follower} does not respond to this leader");
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
    let back = format!("node {follower} responds to this leader again");
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

/// Whether a member's memory and volume are shown, or all of it is unknown.
fn resources(member: &Value) -> Result<bool, String> {
    let known = ["memory_bytes", "disk_free_bytes", "disk_reserve_bytes"].map(|name| member[name].as_u64());
    match known {
        [Some(1..), Some(1..), Some(_)] => Ok(true),
        [None, None, None] => Ok(false),
        _ => Err(member.to_string()),
    }
}

#[tokio::test]
async fn every_node_shows_the_memory_and_the_volume_of_those_that_answer() {
    let mut cluster = Cluster::start("watched-resources").await;
    let gone = cluster.leader().await % 3 + 1;
    let shown = async |cluster: &Cluster, on: &[u64], is_there: bool| {
        eventually("it is shown", async || {
            for at in on {
                for id in 1..=3 {
                    let known = member(&cluster.client(*at), id).await?;
                    let expected = is_there || id != gone;
                    check(resources(&known)? == expected && known["version"].is_string(), || {
                        known.to_string()
                    })?;
                }
            }
            Ok(())
        })
        .await;
    };
    shown(&cluster, &[1, 2, 3], true).await;
    cluster.node(gone).kill();
    let rest: Vec<u64> = (1..=3).filter(|id| *id != gone).collect();
    shown(&cluster, &rest, false).await;
    cluster.node(gone).start().await;
    shown(&cluster, &[1, 2, 3], true).await;
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
    let (_, won) = line(&mut cluster, next, 0, "this node became leader").await;
    let why = won["why"].as_str().unwrap_or_default();
    assert!(why.contains(&format!("node {leader}")), "{won}");
    let term = won["term"].clone();
    if next != others[0] {
        line(&mut cluster, others[0], before, &format!("node {next} became leader")).await;
    }
    cluster.node(leader).resume();
    line(&mut cluster, leader, 0, "this node stepped down as leader").await;
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
async fn a_trace_is_in_the_logs_of_all_nodes_that_serve_its_request() {
    let options = Options::default()
        .with("CONCORD_LOG_FORMAT", "json")
        .with("CONCORD_LOG", "info,concord_http=debug,concord_service=debug");
    let mut cluster = Cluster::start_with("watched-trace", &options).await;
    let leader = cluster.leader().await;
    let follower = cluster.client(leader % 3 + 1);
    define(&follower, "d").await;
    // Many at once share the calls to the leader; the traces of some of them are known, and one is none.
    let trace_id = |n: u64| format!("{:032x}", n + 1);
    let parent = |n: u64| match n % 3 {
        0 => format!("00-{}-00f067aa0ba902b7-01", trace_id(n)),
        1 => format!("00-{}-00f067aa0ba902b7", trace_id(n)),
        _ => String::new(),
    };
    let writes = (0..60).map(|n| {
        let call = follower.put(&config("d", &format!("k{}", n % 7)), &json!({"data": {"n": n}}));
        async move { call.header("traceparent", &parent(n)).insist().await }
    });
    set(&follower, "d", "k0", &json!({})).await;
    for n in 1..7 {
        set(&follower, "d", &format!("k{n}"), &json!({})).await;
    }
    for written in futures::future::join_all(writes).await {
        written.expect(200);
    }
    for (id, message) in [(leader % 3 + 1, "answered a request"), (leader, "decided a write")] {
        eventually("each trace is in the log", async || {
            let lines = lines(&mut cluster, id);
            let ours = lines
                .iter()
                .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message)));
            let found: BTreeSet<&str> = ours.filter_map(|line| line["span"]["trace_id"].as_str()).collect();
            let expected: BTreeSet<String> = (0..60).filter(|n| n % 3 == 0).map(trace_id).collect();
            let is_all = found == expected.iter().map(String::as_str).collect();
            check(is_all, || format!("node {id}: {found:?}"))
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
        // It asks for no key, so it names no key and no definition.
        let names_records =
            |name: &String| name.contains("concord_usage_") || name.contains("concord_definition_");
        let (named, all): (Vec<_>, Vec<_>) =
            names(&node.get("/metrics").insist().await.expect(200).text).into_iter().partition(names_records);
        assert!(!named.is_empty());
        assert_eq!(names(&answer.text), all);
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

#[tokio::test]
async fn a_planned_transfer_is_no_lost_leader() {
    let options = Options::default().with("CONCORD_LOG_FORMAT", "json").with("CONCORD_LOG", "info");
    let mut cluster = Cluster::start_with("watched-transfer", &options).await;
    let leader = cluster.leader().await;
    let [to, other] = cluster.followers().await;
    let mut begun = Vec::new();
    for id in 1..=3 {
        begun.push(lines(&mut cluster, id).len());
    }
    let client = cluster.client(leader);
    client.post("/api/v1/cluster/leader", &json!({"id": to})).await.expect(200);
    for id in [leader, to, other] {
        let message = match id {
            id if id == leader => "this node stepped down as leader".to_owned(),
            id if id == to => "this node became leader".to_owned(),
            _ => format!("node {to} became leader"),
        };
        let begun = begun[usize::try_from(id).unwrap() - 1];
        let (_, changed) = line(&mut cluster, id, begun, &message).await;
        let from = if id == leader { "this node".to_owned() } else { format!("node {leader}") };
        let why = changed["why"].as_str().unwrap_or_default();
        assert!(why.starts_with(&from) && why.contains("transfer"), "node {id}: {changed}");
        let all = lines(&mut cluster, id).split_off(begun);
        let blamed = all.iter().find(|line| {
            let text = line.to_string();
            text.contains("no leader is known") || text.contains("no message from")
        });
        assert_eq!(blamed, None, "node {id}");
    }
    // Nobody asked for an alarm about a change that they have asked for.
    let status = cluster.client(to).status().await.unwrap();
    assert_eq!(status["alarms"], json!([]), "{status}");
}

#[tokio::test]
async fn a_process_that_stood_still_says_so_and_accuses_nobody() {
    let options = Options::default().with("CONCORD_LOG_FORMAT", "json").with("CONCORD_LOG", "info");
    let mut cluster = Cluster::start_with("watched-standstill", &options).await;
    let [still, _] = cluster.followers().await;
    let leader = cluster.leader().await;
    for id in [still, leader] {
        let begun = lines(&mut cluster, id).len();
        cluster.node(id).pause();
        lasts(std::time::Duration::from_secs(5)).await;
        cluster.node(id).resume();
        let (_, stood) = line(&mut cluster, id, begun, "this process stood still for ").await;
        assert!(stood["lasted_ms"].as_u64().is_some_and(|ms| ms >= 4000), "{stood}");
        assert_eq!(stood["level"], "WARN");
        cluster.ready().await;
        let all = lines(&mut cluster, id).split_off(begun);
        let blames = ["does not respond to this leader", "no message from"];
        let blamed = all.iter().find(|line| blames.iter().any(|blame| line.to_string().contains(blame)));
        assert_eq!(blamed, None, "node {id}");
    }
}

#[tokio::test]
async fn a_leader_that_changes_again_and_again_is_an_alarm() {
    let mut cluster = Cluster::start("watched-flapping").await;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        cluster.node(leader).pause();
        cluster.leader_on(&others).await;
        cluster.node(leader).resume();
        cluster.ready().await;
    }
    let mut known = 0;
    for client in cluster.clients() {
        let status = client.status().await.unwrap();
        let alarms = status["alarms"].as_array().cloned().unwrap_or_default();
        known += usize::from(alarms.iter().any(|alarm| alarm["type"] == "leader_changes"));
    }
    assert!(known > 0, "no node has seen all changes");
}
