//! Which certificates are accepted between nodes, and what a node sends to one that shows none.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    encrypted, equip,
    raw::{self, Own},
};
use crate::harness::{
    Cluster, Options, check, eventually,
    load::{config, define, set},
    tls::{Authority, cert},
};

fn peer(cluster: &mut Cluster, id: u64) -> SocketAddr {
    cluster.node(id).peer_addr().parse().expect("an address")
}

/// A call of node `from` to node `to` as the nodes make it.
fn call(name: &str, cluster_id: &str, from: u64, to: u64) -> String {
    format!(
        "POST /peer/{name} HTTP/1.1\r\nhost: a\r\nx-concord-cluster: {cluster_id}\r\nx-concord-from: {from}\r\n\
         x-concord-to: {to}\r\ncontent-length: 0\r\n\r\n"
    )
}

#[tokio::test]
async fn a_node_is_whom_its_certificate_names() {
    let (mut cluster, authority) = encrypted("tls-nodes", &Options::default()).await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(2), "d", "k", &json!({"n": 1})).await;
    let before = cluster.equal_digests().await;
    let id = cluster.client(1).status().await.unwrap()["cluster_id"].as_str().unwrap().to_owned();
    let foreign = Authority::new(cluster.root(), "foreign");
    let to = peer(&mut cluster, 1);
    let two = raw::read(&authority.certify(2, "another-two", &[]));
    // What is accepted, so that the refusals below are for their reason.
    let clock = raw::ask(to, Some(&two), &call("clock", &id, 2, 1)).await;
    assert_eq!(clock.as_deref(), Ok("HTTP/1.1 200 OK"));
    let strangers: [(&str, Option<Own>); 6] = [
        ("no certificate", None),
        ("another authority", Some(raw::read(&foreign.certify(2, "two", &[])))),
        ("an expired one", Some(raw::signed(&authority, &["node-2.test"], false))),
        ("another cluster", Some(raw::signed(&authority, &["node-2.other"], true))),
        ("no node", Some(raw::signed(&authority, &["127.0.0.1", "console.test"], true))),
        ("two nodes", Some(raw::signed(&authority, &["node-2.test", "node-3.test"], true))),
    ];
    for (why, own) in &strangers {
        for name in ["clock", "join", "levels", "vote", "write", "fetch-snapshot", "stream"] {
            let answer = raw::ask(to, own.as_ref(), &call(name, &id, 2, 1)).await;
            // Over TLS 1.3 the refusal may come after the request was sent: it is not answered all the same.
            assert!(
                !answer.as_ref().is_ok_and(|line| line.starts_with("HTTP/")),
                "{why}: {name}: {answer:?}"
            );
        }
    }
    for name in ["clock", "vote", "write", "stream", "heartbeats", "fetch-snapshot"] {
        let answer = raw::ask(to, Some(&two), &call(name, &id, 3, 1)).await;
        assert_eq!(answer.as_deref(), Ok("HTTP/1.1 401 Unauthorized"), "node 2 as node 3: {name}");
        let answer = raw::ask(to, Some(&two), &call(name, &id, 2, 3)).await;
        assert_eq!(answer.as_deref(), Ok("HTTP/1.1 421 Misdirected Request"), "for node 3: {name}");
        let answer = raw::ask_plainly(to, &call(name, &id, 2, 1)).await;
        assert!(!answer.as_ref().is_ok_and(|line| line.starts_with("HTTP/")), "plain: {name}: {answer:?}");
    }
    cluster.ready().await;
    assert_eq!(cluster.equal_digests().await, before);
    let text = cluster.node(1).tail(400);
    assert!(text.contains("handshake"), "the refusals are logged: {text}");
}

#[tokio::test]
async fn a_member_whose_certificate_is_revoked_is_cut_off_and_comes_back_with_another() {
    let options = Options::default().with("CONCORD_WRITE_TIMEOUT_MS", "5000");
    let (mut cluster, authority) = encrypted("tls-revoked", &options).await;
    define(&cluster.client(1), "d").await;
    cluster.equal_digests().await;
    let certificate = cluster.node(3).settings["CONCORD_PEER_CERT_FILE"].clone();
    let shown = cert(&["show", &certificate]).unwrap();
    let fingerprint = shown[0]["fingerprint"].as_str().unwrap().to_owned();
    // Its own connections are open, and it may lead: they end without a restart.
    authority.revoke(&[&format!("{fingerprint} # node 3, lost")]);
    let three = cluster.client(3);
    eventually("node 3 is not ready", async || {
        let ready = three.bare(http::Method::GET, "/readyz").attempt().await?;
        check(ready.status == 503, || format!("{ready:?}"))
    })
    .await;
    cluster.leader_on(&[1, 2]).await;
    for n in 0..20 {
        set(&cluster.client(1 + n % 2), "d", &format!("k{n}"), &json!({ "n": n })).await;
    }
    let missed = three.get(&config("d", "k0")).query(&[("consistency", "local")]).attempt().await.unwrap();
    assert_ne!(missed.status, 200, "{missed:?}");
    let own = raw::read(&(&certificate, &cluster.node(3).settings["CONCORD_PEER_KEY_FILE"].clone()));
    let id = cluster.client(1).status().await.unwrap()["cluster_id"].as_str().unwrap().to_owned();
    let answer = raw::ask(peer(&mut cluster, 1), Some(&own), &call("clock", &id, 3, 1)).await;
    assert!(!answer.as_ref().is_ok_and(|line| line.starts_with("HTTP/")), "{answer:?}");
    // A new certificate, without a restart.
    let new = authority.certify(3, "new-three", &[]);
    let key = cluster.node(3).settings["CONCORD_PEER_KEY_FILE"].clone();
    crate::harness::tls::replace(key.as_ref(), &std::fs::read(new.1).unwrap());
    crate::harness::tls::replace(certificate.as_ref(), &std::fs::read(new.0).unwrap());
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn an_authority_is_replaced_while_the_cluster_serves() {
    let (mut cluster, old) = encrypted("tls-authority", &Options::default()).await;
    define(&cluster.client(1), "d").await;
    let new = Authority::new(cluster.root(), "new-ca");
    let pem = |authority: &Authority| std::fs::read(authority.certificate()).unwrap();
    let files = |cluster: &mut Cluster, id: u64| {
        let settings = &cluster.node(id).settings;
        let names = ["CONCORD_PEER_CERT_FILE", "CONCORD_PEER_KEY_FILE", "CONCORD_PEER_CA_FILE"];
        names.map(|name| std::path::PathBuf::from(&settings[name]))
    };
    let replace = |path: &std::path::Path, bytes: &[u8]| crate::harness::tls::replace(path, bytes);
    // All nodes of this machine have one file of authorities: both, then certificates of the new one, then only it.
    let authorities = files(&mut cluster, 1)[2].clone();
    let of_old = pem(&old);
    replace(&authorities, &[of_old, pem(&new)].concat());
    for id in 1..=3 {
        let made = new.certify(id, "peers", &[]);
        let [certificate, key, _] = files(&mut cluster, id);
        replace(&key, &std::fs::read(&made.1).unwrap());
        replace(&certificate, &std::fs::read(&made.0).unwrap());
        set(&cluster.client(id), "d", &format!("k{id}"), &json!({ "n": id })).await;
        let to = peer(&mut cluster, id);
        let cluster_id =
            cluster.client(id).status().await.unwrap()["cluster_id"].as_str().unwrap().to_owned();
        let from = id % 3 + 1;
        let own = raw::read(&new.certify(from, &format!("probe-{id}"), &[]));
        eventually("the new authority is trusted", async || {
            let answer = raw::ask(to, Some(&own), &call("clock", &cluster_id, from, id)).await;
            check(answer.as_deref() == Ok("HTTP/1.1 200 OK"), || format!("{answer:?}"))
        })
        .await;
    }
    cluster.ready().await;
    let stays = raw::signed(&old, &["node-2.test"], true);
    replace(&authorities, &pem(&new));
    let (to, id) = (peer(&mut cluster, 1), cluster.client(1).status().await.unwrap()["cluster_id"].clone());
    eventually("the old authority is not trusted", async || {
        let answer = raw::ask(to, Some(&stays), &call("clock", id.as_str().unwrap_or_default(), 2, 1)).await;
        check(!answer.as_ref().is_ok_and(|line| line.starts_with("HTTP/")), || format!("{answer:?}"))
    })
    .await;
    for id in 1..=3 {
        set(&cluster.client(id), "d", "last", &json!({ "n": id })).await;
    }
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_node_joins_with_its_certificate_and_not_without() {
    let (mut cluster, authority) = encrypted("tls-join", &Options::default()).await;
    let foreign = Authority::new(cluster.root(), "foreign");
    let stranger = cluster.prepared_newcomer(4, |node| equip(&foreign, node)).await;
    let refused = cluster.client(1).post("/api/v1/cluster/members", &stranger).attempt().await.unwrap();
    assert!(refused.status >= 400, "{refused:?}");
    cluster.nodes.pop();
    let member = cluster
        .prepared_newcomer(5, |node| {
            equip(&authority, node);
        })
        .await;
    cluster.client(2).post("/api/v1/cluster/members", &member).insist().await.expect(201);
    cluster.client(2).post("/api/v1/cluster/members/5/promote", &json!({})).insist().await.expect(200);
    cluster.ready_on(&[1, 2, 3, 5]).await;
    cluster.equal_digests_on(&[1, 2, 3, 5]).await;
}

/// Listens as a node would, and keeps what comes before it closes the connection.
async fn listen() -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let keeps = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut chunk = vec![0; 64 << 10];
            if let Ok(count @ 1..) = stream.read(&mut chunk).await {
                keeps.lock().expect("no holder panics").push(chunk[..count].to_vec());
                // As a node that speaks plainly answers a handshake.
                drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await);
            }
        }
    });
    (address, received)
}

#[tokio::test]
async fn an_address_of_a_callers_is_sent_no_secret_and_no_call() {
    // With a secret in the settings that is not needed.
    let options = Options::default();
    let secret = options.settings["CONCORD_CLUSTER_SECRET"].clone();
    let mut cluster = Cluster::start_prepared("tls-address", &options, |root, nodes| {
        let authority = Authority::new(root, "ca");
        for node in nodes {
            authority.equip(node);
        }
    })
    .await;
    let (address, received) = listen().await;
    let member = json!({"id": 4, "api_addr": "127.0.0.1:1", "peer_addr": address});
    let client = cluster.client(1);
    let added = client.post("/api/v1/cluster/members", &member).attempt().await.unwrap();
    assert!(added.status >= 400, "{added:?}");
    let promoted = client.post("/api/v1/cluster/members/4/promote", &json!({})).attempt().await.unwrap();
    assert!(promoted.status >= 400, "{promoted:?}");
    let calls = received.lock().expect("no holder panics").clone();
    assert!(!calls.is_empty(), "it was called");
    for bytes in &calls {
        assert_eq!(bytes[0], 0x16, "a handshake and nothing else");
        let has = |part: &[u8]| bytes.windows(part.len()).any(|some| some == part);
        assert!(!has(secret.as_bytes()) && !has(b"POST") && !has(b"x-concord"));
    }
    cluster.ready().await;
    cluster.equal_digests().await;
    assert!(cluster.node(1).stop().await.success());
}

#[tokio::test]
async fn a_certificate_that_the_other_nodes_do_not_trust_is_an_alarm_before_a_connection_breaks() {
    let mut options = Options::default();
    options.settings.remove("CONCORD_CLUSTER_SECRET");
    let mut made = None;
    let mut cluster = Cluster::start_prepared("tls-distrusted", &options, |root, nodes| {
        let (old, new) = (Authority::new(root, "old-ca"), Authority::new(root, "new-ca"));
        for node in nodes {
            old.equip(node);
            let trusted = root.join(format!("trusted-by-{}.pem", node.id));
            std::fs::copy(old.certificate(), &trusted).unwrap();
            node.settings.insert("CONCORD_PEER_CA_FILE".into(), trusted.to_str().unwrap().into());
        }
        made = Some((old, new));
    })
    .await;
    let (old, new) = made.expect("it was prepared");
    define(&cluster.client(1), "d").await;
    // Through node 3, which opens its connections for writes.
    for n in 0..20 {
        set(&cluster.client(3), "d", &format!("k{n}"), &json!({ "before": n })).await;
    }
    let pem = |authority: &Authority| std::fs::read(authority.certificate()).unwrap();
    let both = [pem(&old), pem(&new)].concat();
    let file = |cluster: &mut Cluster, id: u64, name: &str| {
        std::path::PathBuf::from(&cluster.node(id).settings[name])
    };
    // Only node 3 trusts both, so its new certificate comes too early.
    let certificate = new.certify(3, "early", &[]);
    for (name, bytes) in [
        ("CONCORD_PEER_CA_FILE", both.clone()),
        ("CONCORD_PEER_KEY_FILE", std::fs::read(&certificate.1).unwrap()),
        ("CONCORD_PEER_CERT_FILE", std::fs::read(&certificate.0).unwrap()),
    ] {
        crate::harness::tls::replace(&file(&mut cluster, 3, name), &bytes);
    }
    let client = cluster.client(3);
    let distrusted = async || {
        let status = client.status().await?;
        let alarms = status["alarms"].as_array().expect("a list");
        let of = |alarm: &&Value| alarm["type"] == "certificate" && alarm["node_id"] == 3;
        let all =
            alarms.iter().filter(of).map(|alarm| alarm["message"].as_str().unwrap_or_default().to_owned());
        Ok::<Vec<String>, String>(all.filter(|text| text.contains("can't open new connections")).collect())
    };
    eventually("the node says who does not trust its certificate", async || {
        let alarms = distrusted().await?;
        let names = |id: u64| alarms.iter().any(|text| text.starts_with(&format!("node {id} and this node")));
        check(names(1) && names(2), || format!("{alarms:?}"))
    })
    .await;
    // The connections that are open serve as before.
    for n in 0..20 {
        set(&client, "d", &format!("k{n}"), &json!({ "n": n })).await;
    }
    cluster.equal_digests().await;
    for id in [1, 2] {
        crate::harness::tls::replace(&file(&mut cluster, id, "CONCORD_PEER_CA_FILE"), &both);
    }
    eventually("the alarm ends once the others trust both", async || {
        let alarms = distrusted().await?;
        check(alarms.is_empty(), || format!("{alarms:?}"))
    })
    .await;
}
