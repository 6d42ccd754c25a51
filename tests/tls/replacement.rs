//! The CA of a cluster is replaced while it serves, in the order of docs/operations/tls.md: first the clients trust both
//! CAs, then the nodes, then the certificates change, then nodes and clients trust the new CA only.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use serde_json::json;

use crate::harness::{
    Answer, Call, Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    node::BINARY,
    tls::{Authority, replace},
};

/// The files of a node: its certificate and key, which both listeners have, and the CAs that it trusts.
struct NodeFiles {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
}

/// A cluster whose nodes have one certificate each, for both listeners, and their own file of CAs, as on three hosts.
async fn cluster_of(root_name: &str) -> (Cluster, Authority, Vec<NodeFiles>) {
    let mut options = Options::default();
    options.settings.remove("CONCORD_CLUSTER_SECRET");
    let (mut authority, mut files) = (None, Vec::new());
    let cluster = Cluster::start_prepared(root_name, &options, |root, nodes| {
        let old = Authority::new(root, "old-ca");
        for node in nodes {
            old.equip(node);
            old.equip_for_callers(node);
            let (certificate, key) = old.certify(node.id, &format!("host-{}", node.id), &[]);
            let authorities = root.join(format!("trusted-by-{}.pem", node.id));
            std::fs::copy(old.certificate(), &authorities).expect("it can be copied");
            for (name, path) in [
                ("CONCORD_PEER_CERT_FILE", &certificate),
                ("CONCORD_PEER_KEY_FILE", &key),
                ("CONCORD_TLS_CERT_FILE", &certificate),
                ("CONCORD_TLS_KEY_FILE", &key),
                ("CONCORD_PEER_CA_FILE", &authorities),
            ] {
                node.settings.insert(name.into(), path.to_str().expect("a path of ASCII").into());
            }
            files.push(NodeFiles { certificate, key, authorities });
        }
        authority = Some(old);
    })
    .await;
    (cluster, authority.expect("the nodes were prepared"), files)
}

/// Sends a request as the clients do: one that had no outcome is repeated. A connection that is not made is a failure.
async fn answered(call: &Call, repeated: &AtomicU64) -> Answer {
    loop {
        let answer = call.attempt().await.expect("no connection fails");
        if !matches!(answer.status, 503 | 504) {
            return answer;
        }
        repeated.fetch_add(1, Ordering::Relaxed);
    }
}

/// Clients that connect anew for each request, with the CAs that their file has at this time.
struct Callers {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    repeated: Arc<AtomicU64>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Callers {
    fn start(cluster: &Cluster, trusted: &Path) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let repeated = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        for id in 1..=3 {
            let (stop, asked, trusted) = (Arc::clone(&stop), Arc::clone(&asked), trusted.to_owned());
            let (of_node, repeated) = (cluster.client(id), Arc::clone(&repeated));
            workers.push(tokio::spawn(async move {
                let path = config("d", &format!("k{id}"));
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let client = Client::trusting(&trusted, &of_node.base, &of_node.key);
                    let put = client.put(&path, &json!({"data": {"n": n}}));
                    let put = put.header("idempotency-key", &format!("put-{id}-{n}"));
                    assert_eq!(answered(&put, &repeated).await.status, 200);
                    let read = answered(&client.anew().get(&path), &repeated).await;
                    assert_eq!((read.status, &read.data()["data"]["n"]), (200, &json!(n)));
                    asked.fetch_add(2, Ordering::Relaxed);
                }
            }));
        }
        Self { stop, asked, repeated, workers }
    }

    /// Waits until each of them has asked some more.
    async fn go_on(&self) {
        let before = self.asked.load(Ordering::Relaxed);
        eventually("requests go on", async || {
            assert!(self.workers.iter().all(|worker| !worker.is_finished()), "a request has failed");
            check(self.asked.load(Ordering::Relaxed) > before + 30, || "too few".into())
        })
        .await;
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.expect("no request has failed");
        }
        self.asked.load(Ordering::Relaxed)
    }
}

/// `concord config get`, at one node.
fn command(cluster: &Cluster, id: u64, authorities: &Path) -> Output {
    let node = cluster.client(id);
    Command::new(BINARY.as_path())
        .args(["config", "get", "d", "k1", "--timeout-s", "2", "--url", &node.base, "--cacert"])
        .arg(authorities)
        .env("CONCORD_API_KEY", &node.key)
        .output()
        .expect("it can be started")
}

/// Waits until a node has read its files again so often.
async fn has_reloaded(cluster: &mut Cluster, id: u64, times: usize) {
    let node = cluster.node(id);
    eventually("the files are in use", async || {
        let found = node.tail(usize::MAX).matches("calls between nodes have changed and are in use").count();
        check(found >= times, || format!("node {id} has read its files {found} times, not {times}"))
    })
    .await;
}

/// Gives a node a certificate of another CA.
fn certify(new: &Authority, id: u64, own: &NodeFiles) {
    let made = new.certify(id, "new", &[]);
    replace(&own.key, &std::fs::read(made.1).expect("it can be read"));
    replace(&own.certificate, &std::fs::read(made.0).expect("it can be read"));
}

/// A client that trusts the old CA only says which file of CAs it has, and node 1 says which client it is.
async fn a_forgotten_client_is_named(cluster: &mut Cluster, old: &Authority) {
    eventually("the node has shown its new certificate to the client that was forgotten", async || {
        let said = command(cluster, 1, &old.certificate());
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        let is_named = text.contains("is not issued by a CA that is configured (CA file")
            && text.contains("old-ca/ca.pem)")
            && text.contains("holds both");
        check(said.status.code() == Some(7) && is_named, || format!("{said:?}"))
    })
    .await;
    let node = cluster.node(1);
    eventually("the node names the client", async || {
        let text = node.tail(usize::MAX);
        check(text.contains("this node's certificate was rejected by the client 127.0.0.1: "), || text)
    })
    .await;
}

/// All was done without a restart; what was replaced is good after one, too.
async fn nothing_depends_on_the_old_ca(cluster: &mut Cluster, trusted: &Path) {
    let of_node = cluster.client(2);
    let client = Client::trusting(trusted, &of_node.base, &of_node.key);
    let leader = client.status().await.expect("it answers")["leader_id"].as_u64().expect("there is a leader");
    let node = cluster.node(leader);
    node.settings.insert("CONCORD_CA_FILE".into(), trusted.to_str().expect("a path of ASCII").into());
    assert!(node.stop().await.success());
    node.start().await;
    for id in 1..=3 {
        let read = command(cluster, id, trusted);
        assert!(read.status.success(), "{read:?}");
        // A node that stops ends its connections: this is no warning of the others. The libraries of Raft log only in tests.
        let text = cluster.node(id).tail(usize::MAX);
        let is_alarming = |line: &&str| line.contains(" WARN concord") && line.contains("close_notify");
        assert_eq!(text.lines().find(is_alarming), None, "node {id}");
    }
}

#[tokio::test]
async fn a_ca_is_replaced_without_a_failed_request_of_a_client() {
    let (mut cluster, old, files) = cluster_of("tls-replacement").await;
    // Both have the same name, as the second `concord cert ca` of a cluster.
    let new = Authority::new(cluster.root(), "new-ca");
    let pem = |authority: &Authority| std::fs::read(authority.certificate()).expect("it can be read");
    let both = [pem(&old), pem(&new)].concat();
    define(&cluster.client(1), "d").await;
    for id in 1..=3 {
        set(&cluster.client(id), "d", &format!("k{id}"), &json!({"n": 0})).await;
    }
    let trusted = cluster.root().join("trusted-by-clients.pem");
    std::fs::write(&trusted, pem(&old)).expect("it can be written");
    let callers = Callers::start(&cluster, &trusted);
    callers.go_on().await;

    // 0. The clients trust both. One is forgotten.
    replace(&trusted, &both);
    callers.go_on().await;
    // 1. The nodes trust both.
    for (id, own) in (1..).zip(&files) {
        replace(&own.authorities, &both);
        has_reloaded(&mut cluster, id, 1).await;
    }
    callers.go_on().await;
    // 2. The certificate of one node: its log names the client that was forgotten, and so does the client.
    assert!(command(&cluster, 1, &old.certificate()).status.success());
    certify(&new, 1, &files[0]);
    has_reloaded(&mut cluster, 1, 2).await;
    a_forgotten_client_is_named(&mut cluster, &old).await;
    assert!(command(&cluster, 1, &trusted).status.success(), "it was given both");
    callers.go_on().await;
    // And those of the others.
    for id in [2, 3] {
        certify(&new, id, &files[usize::try_from(id).expect("a small id") - 1]);
        has_reloaded(&mut cluster, id, 2).await;
        callers.go_on().await;
    }
    assert_eq!(callers.repeated.load(Ordering::Relaxed), 0, "so far each first attempt has succeeded");
    // 3. The nodes trust the new one only. 4. So do the clients.
    for (id, own) in (1..).zip(&files) {
        replace(&own.authorities, &pem(&new));
        has_reloaded(&mut cluster, id, 3).await;
    }
    callers.go_on().await;
    replace(&trusted, &pem(&new));
    callers.go_on().await;
    let asked = callers.end().await;
    assert!(asked > 240, "{asked}");
    nothing_depends_on_the_old_ca(&mut cluster, &trusted).await;
    // A CA of the same name that did not sign a certificate is no sign of a damaged one.
    replace(&files[2].authorities, &pem(&old));
    let node = cluster.node(3);
    eventually("the node says what the others will do", async || {
        let text = node.tail(usize::MAX);
        let last = text.lines().rfind(|line| line.contains("the other nodes will reject"));
        check(last.is_some_and(|line| line.ends_with("UnknownIssuer")), || text)
    })
    .await;
}
