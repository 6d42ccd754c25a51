//! Members are added, promoted, replaced and removed during writes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{
    Answer, Call, Client, Cluster, Node, Options, check, eventually,
    load::{Load, config, define, everything, set},
    time::lasts,
};

pub(super) const MEMBERS: &str = "/api/v1/cluster/members";

fn member(id: u64, verb: &str) -> String {
    format!("{MEMBERS}/{id}{verb}")
}

/// Asks for a change until it is decided: changes can be asked again, and one that is under way may be its own.
pub(super) async fn decided(call: Call) -> Answer {
    eventually("the change is decided", async || {
        let answer = call.insist().await;
        check(!answer.text.contains("in progress"), || format!("{answer:?}")).map(|()| answer)
    })
    .await
}

/// The ids of the members by role, as a node shows them.
pub(super) fn roles(view: &Value) -> BTreeMap<u64, String> {
    let members = view["members"].as_array().expect("`members` is a list");
    let role = |member: &Value| {
        let role = member["role"].as_str().expect("a role");
        (member["id"].as_u64().expect("an id"), role.replace("leader", "follower"))
    };
    members.iter().map(role).collect()
}

/// Waits until these nodes show exactly these voters, and no other members.
async fn voters_are(cluster: &Cluster, voters: &[u64]) {
    let expected: BTreeMap<u64, String> = voters.iter().map(|id| (*id, "follower".to_owned())).collect();
    for id in voters {
        let client = cluster.client(*id);
        eventually(&format!("node {id} shows the voters {voters:?}"), async || {
            let shown = roles(&client.status().await?);
            check(shown == expected, || format!("{shown:?}"))
        })
        .await;
    }
}

/// Waits until a node shows a member in this role.
pub(super) async fn has_role(client: &Client, id: u64, role: &str) {
    eventually(&format!("node {id} is shown as a {role}"), async || {
        let shown = roles(&client.status().await?);
        check(shown.get(&id).is_some_and(|shown| shown == role), || format!("{shown:?}"))
    })
    .await;
}

/// Waits until a node knows that it was taken out, and says so to everybody.
async fn has_left(cluster: &Cluster, id: u64) {
    let client = cluster.client(id);
    eventually(&format!("node {id} knows that it has left"), async || {
        let answer = client.bare(Method::GET, "/readyz").attempt().await?;
        check(answer.status == 503 && answer.text.contains("was removed"), || format!("{answer:?}"))
    })
    .await;
    let write = client.put(&config("idempotent", "k"), &json!({"data": {}})).attempt().await.unwrap();
    write.refused(503, "unavailable_error");
    client.get(&config("idempotent", "k")).attempt().await.unwrap().refused(503, "unavailable_error");
    assert_eq!(client.bare(Method::GET, "/livez").attempt().await.unwrap().status, 200);
}

/// Adds a new node and gives it a vote, asking two different nodes and each of them twice.
async fn grow(cluster: &mut Cluster, id: u64, (one, two): (u64, u64)) {
    let body = cluster.newcomer(id).await;
    let (one, two) = (cluster.client(one), cluster.client(two));
    let added = decided(one.post(MEMBERS, &body)).await;
    assert!(matches!(added.status, 200 | 201), "{added:?}");
    has_role(&one, id, "learner").await;
    decided(two.post(MEMBERS, &body)).await.expect(200);
    let promote = two.call(Method::POST, &member(id, "/promote"));
    decided(promote.clone()).await.expect(200);
    has_role(&two, id, "follower").await;
    decided(one.call(Method::POST, &member(id, "/promote"))).await.expect(200);
    decided(promote).await.expect(200);
}

/// Writes with idempotency keys, each sent again until it is decided, until it is stopped.
struct IdempotentWrites {
    stop: Arc<AtomicBool>,
    writer: JoinHandle<BTreeMap<String, Value>>,
}

impl IdempotentWrites {
    async fn start(client: Client) -> Self {
        define(&client, "idempotent").await;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = tokio::spawn(async move {
            let mut written = BTreeMap::new();
            for turn in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (key, data) = (format!("k{turn}"), json!({"turn": turn}));
                let put = client.put(&config("idempotent", &key), &json!({"data": data}));
                let put = put.header("if-none-match", "*").header("idempotency-key", &key);
                // Sent again until its outcome is known: it counts once.
                let answer = loop {
                    match put.settled().await {
                        Ok(answer) if answer.status != 504 => break answer,
                        Ok(_) | Err(_) => tokio::task::yield_now().await,
                    }
                };
                answer.expect(201);
                written.insert(key, data);
            }
            written
        });
        Self { stop, writer }
    }

    async fn stop(self) -> BTreeMap<String, Value> {
        self.stop.store(true, Ordering::SeqCst);
        self.writer.await.expect("every write was decided")
    }
}

#[tokio::test]
async fn a_cluster_grows_to_five_and_shrinks_to_three_under_load() {
    let mut cluster = Cluster::start("grow").await;
    let idempotent = IdempotentWrites::start(cluster.client(3)).await;
    let clients = [cluster.client(2), cluster.client(3)];
    let mut load = Load::start(&clients, "d").await;
    load.grows_by(50).await;
    grow(&mut cluster, 4, (1, 2)).await;
    grow(&mut cluster, 5, (3, 4)).await;
    voters_are(&cluster, &[1, 2, 3, 4, 5]).await;
    cluster.ready_on(&[4, 5]).await;
    load.grows_by(50).await;
    // Leaders and followers are removed alike.
    for id in [1, 2] {
        let removed = decided(cluster.client(4).delete(&member(id, ""))).await;
        assert!(matches!(removed.status, 200 | 404), "{removed:?}");
        has_left(&cluster, id).await;
    }
    voters_are(&cluster, &[3, 4, 5]).await;
    load.grows_by(50).await;
    load.stop().await;
    let written = idempotent.stop().await;
    cluster.equal_digests_on(&[3, 4, 5]).await;
    for id in [3, 4, 5] {
        load.is_kept_by(&cluster.client(id)).await;
        assert_eq!(everything(&cluster.client(id), "idempotent").await, written);
    }
    // Without the two that have gone a majority of the five would be gone too.
    cluster.node(5).kill();
    set(&cluster.client(4), "idempotent", "last", &json!({})).await;
    // A removed member stays out, also after a restart.
    cluster.node(1).kill();
    cluster.node(1).start().await;
    has_left(&cluster, 1).await;
}

#[tokio::test]
async fn a_follower_that_is_removed_answers_no_read_with_what_was_before() {
    let cluster = Cluster::start("removed-reader").await;
    let [removed, stays] = cluster.followers().await;
    let (reader, writer) = (cluster.client(removed), cluster.client(stays));
    define(&writer, "d").await;
    let path = config("d", "k");
    // It has asked the leader, and the connection for that stays open.
    for n in 0..20 {
        set(&writer, "d", "k", &json!({"n": n})).await;
        assert_eq!(reader.get(&path).insist().await.expect(200).data()["data"], json!({"n": n}));
    }
    let mut read = 20;
    let gone = decided(writer.delete(&member(removed, ""))).await;
    assert!(matches!(gone.status, 200 | 404), "{gone:?}");
    eventually("it answers no read any more", async || {
        read += 1;
        set(&writer, "d", "k", &json!({"n": read})).await;
        let answer = reader.get(&path).attempt().await?;
        if answer.status == 200 {
            assert_eq!(answer.data()["data"], json!({"n": read}), "a read went back");
        }
        check(answer.status == 503, || format!("{answer:?}"))
    })
    .await;
    voters_are(&cluster, &[6 - removed - stays, stays]).await;
}

#[tokio::test]
async fn a_dead_member_is_replaced_under_a_new_id() {
    let mut cluster = Cluster::start("replace").await;
    define(&cluster.client(1), "idempotent").await;
    set(&cluster.client(1), "idempotent", "k", &json!({"n": 1})).await;
    let dead = cluster.leader().await;
    cluster.node(dead).kill();
    let (one, two) = (dead % 3 + 1, (dead + 1) % 3 + 1);
    let body = cluster.newcomer(4).await;
    let replace = cluster.client(one).post(&member(dead, "/replace"), &body);
    let replaced = decided(replace.clone()).await;
    assert!(matches!(replaced.status, 200 | 201), "{replaced:?}");
    voters_are(&cluster, &[one, two, 4]).await;
    decided(replace).await.expect(200);
    set(&cluster.client(4), "idempotent", "k", &json!({"n": 2})).await;
    // The new one counts: with it and one of the old ones there is a majority.
    cluster.node(two).kill();
    set(&cluster.client(one), "idempotent", "k", &json!({"n": 3})).await;
    cluster.equal_digests_on(&[one, 4]).await;
    cluster.node(two).start().await;
    cluster.ready_on(&[one, two, 4]).await;
    cluster.node(dead).start().await;
    has_left(&cluster, dead).await;
}

#[tokio::test]
async fn one_change_at_a_time_and_only_valid_ones() {
    let mut cluster = Cluster::start("changes").await;
    let [one, two, three] = [1, 2, 3].map(|id| cluster.client(id));
    // What is wrong with the request itself.
    decided(one.post(MEMBERS, &json!({"id": "4"}))).await.detail(&[
        (json!(["body", "id"]), "int_type"),
        (json!(["body", "api_addr"]), "missing"),
        (json!(["body", "peer_addr"]), "missing"),
    ]);
    decided(one.post(MEMBERS, &json!({"id": 0, "api_addr": "a", "peer_addr": "b:1"}))).await.invalid();
    decided(one.delete(&member(0, "x"))).await.invalid();
    one.bare(Method::POST, MEMBERS).await.refused(401, "unauthorized_error");
    // What does not fit the cluster.
    let far = json!({"id": 1_000_005, "api_addr": "127.0.0.1:1", "peer_addr": "127.0.0.1:2"});
    let answer = decided(one.post(MEMBERS, &far)).await.refused(409, "conflict_error");
    assert!(answer.text.contains("in steps of at most"), "{answer:?}");
    decided(two.call(Method::POST, &member(9, "/promote"))).await.refused(404, "not_found_error");
    decided(three.delete(&member(9, ""))).await.refused(404, "not_found_error");
    let elsewhere = json!({"id": 3, "api_addr": "127.0.0.1:1", "peer_addr": "127.0.0.1:2"});
    decided(two.post(MEMBERS, &elsewhere)).await.refused(409, "conflict_error");
    let taken = json!({"id": 4, "api_addr": cluster.node(1).api_addr(), "peer_addr": "127.0.0.1:2"});
    decided(two.post(MEMBERS, &taken)).await.refused(409, "conflict_error");
    decided(three.post("/api/v1/cluster/leader", &json!({"id": 9}))).await.refused(409, "conflict_error");
    let body = cluster.newcomer(4).await;
    let mut wrong_id = body.clone();
    wrong_id["id"] = json!(5);
    decided(one.post(MEMBERS, &wrong_id)).await.refused(409, "conflict_error");
    // The new node hangs, so the change that asks it does too, and another is not begun meanwhile: of two, one is
    // refused, whichever comes second.
    cluster.node(4).pause();
    let adds = [&one, &two].map(|client| client.post(MEMBERS, &body));
    eventually("of two changes one is refused", async || {
        let answers = join_all(adds.iter().map(Call::attempt)).await;
        let refused = |answer: &Answer| answer.status == 409 && answer.text.contains("in progress");
        let count = answers.iter().flatten().filter(|answer| refused(answer)).count();
        check(count == 1, || format!("{answers:?}"))
    })
    .await;
    cluster.node(4).resume();
    let [add, _] = adds;
    assert!(matches!(decided(add).await.status, 200 | 201));
    // A member without a vote does not lead. Its id is used for ever.
    decided(two.post("/api/v1/cluster/leader", &json!({"id": 4}))).await.refused(409, "conflict_error");
    decided(two.delete(&member(4, ""))).await.expect(200);
    has_left(&cluster, 4).await;
    decided(two.delete(&member(4, ""))).await.refused(404, "not_found_error");
    decided(two.post(MEMBERS, &body)).await.refused(409, "conflict_error");
    // The last voter stays.
    for id in [3, 2] {
        let removed = decided(one.delete(&member(id, ""))).await;
        assert!(matches!(removed.status, 200 | 404), "{removed:?}");
    }
    decided(one.delete(&member(1, ""))).await.refused(409, "conflict_error");
    voters_are(&cluster, &[1]).await;
    define(&one, "alone").await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused() {
    let (one, mut two) = Cluster::start_two("stranger", &Options::default()).await;
    let body = two.newcomer(4).await;
    let added = decided(two.client(1).post(MEMBERS, &body)).await;
    assert!(matches!(added.status, 200 | 201), "{added:?}");
    let before = one.client(1).status().await.unwrap();
    decided(one.client(2).post(MEMBERS, &body)).await.refused(409, "conflict_error");
    assert_eq!(roles(&one.client(1).status().await.unwrap()), roles(&before));
    has_role(&two.client(1), 4, "learner").await;
}

/// Moves leadership to a member.
async fn lead(cluster: &Cluster, to: u64) -> u64 {
    let lead = cluster.client(to % 3 + 1).post("/api/v1/cluster/leader", &json!({"id": to}));
    // Another member may have been elected in between on a halting machine; then it is asked again.
    eventually(&format!("node {to} leads"), async || {
        let answer = lead.attempt().await?;
        assert!(matches!(answer.status, 200 | 409 | 503 | 504), "{answer:?}");
        let known = cluster.client(to).status().await?;
        check(answer.status == 200 && known["leader_id"] == json!(to), || format!("{answer:?}"))
    })
    .await;
    to
}

#[tokio::test]
async fn leadership_moves_to_the_named_member() {
    let cluster = Cluster::start("transfer").await;
    define(&cluster.client(1), "d").await;
    for to in [1, 2, 3, 1] {
        lead(&cluster, to).await;
        set(&cluster.client(to), "d", "k", &json!({"leader": to})).await;
    }
}

#[tokio::test]
async fn a_change_is_completed_when_its_leader_is_lost() {
    let mut cluster = Cluster::start("lost-change").await;
    define(&cluster.client(1), "idempotent").await;
    let rounds = 2;
    for id in 4..4 + rounds {
        let body = cluster.newcomer(id).await;
        let added = decided(cluster.client(1).post(MEMBERS, &body)).await;
        assert!(matches!(added.status, 200 | 201), "{added:?}");
        for verb in ["/promote", ""] {
            let leader = lead(&cluster, id % 3 + 1).await;
            let client = cluster.client(leader % 3 + 1);
            let method = if verb.is_empty() { Method::DELETE } else { Method::POST };
            let change = client.call(method, &member(id, verb));
            let begun = tokio::spawn({
                let change = change.clone();
                async move { change.attempt().await }
            });
            // Anywhere in the change: before, between or after its two entries.
            lasts(std::time::Duration::from_millis(fastrand::u64(0..25))).await;
            cluster.node(leader).kill();
            // Whatever the first caller was answered, asking again completes it.
            drop(begun.await.unwrap());
            let ended = decided(change).await;
            assert!(ended.status == 200 || (verb.is_empty() && ended.status == 404), "{ended:?}");
            cluster.node(leader).start().await;
            cluster.ready_on(&[1, 2, 3]).await;
        }
        voters_are(&cluster, &[1, 2, 3]).await;
        set(&cluster.client(1), "idempotent", "k", &json!({"round": id})).await;
    }
    cluster.equal_digests_on(&[1, 2, 3]).await;
}

/// Writes to whatever nodes are in a list, which changes while it runs. A write is tried three times, each at another node,
/// and counts as failed if none of them has confirmed it.
struct Traffic {
    clients: Arc<Mutex<Vec<Client>>>,
    stopping: Arc<AtomicBool>,
    writers: Vec<JoinHandle<(usize, Vec<String>)>>,
}

impl Traffic {
    fn start(clients: Vec<Client>) -> Self {
        let (clients, stopping) = (Arc::new(Mutex::new(clients)), Arc::new(AtomicBool::new(false)));
        let writer = |number: usize| {
            let (clients, stopping) = (Arc::clone(&clients), Arc::clone(&stopping));
            tokio::spawn(async move {
                let (mut done, mut failed) = (0, Vec::new());
                while !stopping.load(Ordering::SeqCst) {
                    match write_once(&clients, number, done + failed.len()).await {
                        Ok(()) => done += 1,
                        Err(why) => failed.push(why),
                    }
                }
                (done, failed)
            })
        };
        let writers = (0..4).map(writer).collect();
        Self { clients, stopping, writers }
    }

    async fn stop(self) -> (usize, Vec<String>) {
        self.stopping.store(true, Ordering::SeqCst);
        let (mut done, mut failed) = (0, Vec::new());
        for writer in self.writers {
            let (more, why) = writer.await.unwrap();
            done += more;
            failed.extend(why);
        }
        (done, failed)
    }
}

async fn write_once(clients: &Mutex<Vec<Client>>, writer: usize, number: usize) -> Result<(), String> {
    let mut why = Vec::new();
    for attempt in 0..3 {
        let client = {
            let clients = clients.lock().unwrap();
            clients[(writer + number + attempt) % clients.len()].clone()
        };
        let put = client.put(&config("moved", &format!("w{writer}")), &json!({"data": {"n": number}}));
        let put =
            put.query(&[("upsert", "true")]).header("idempotency-key", &format!("moved-{writer}-{number}"));
        match put.attempt().await {
            Ok(answer) if matches!(answer.status, 200 | 201) => return Ok(()),
            Ok(answer) => why.push(answer.text),
            Err(error) => why.push(error),
        }
    }
    Err(why.join(" | "))
}

fn addresses(node: &Node) -> Value {
    json!({"api_addr": node.api_addr(), "peer_addr": node.peer_addr()})
}

#[tokio::test]
async fn five_members_move_to_other_addresses_one_by_one_under_load() {
    let mut cluster = Cluster::start("moved").await;
    define(&cluster.client(1), "moved").await;
    for id in [4, 5] {
        let body = cluster.newcomer(id).await;
        decided(cluster.client(1).post(MEMBERS, &body)).await.expect(201);
        decided(cluster.client(1).post(&member(id, "/promote"), &json!({}))).await.expect(200);
    }
    let traffic = Traffic::start(cluster.clients());
    for id in 1..=5 {
        let others = (1..=5).filter(|other| *other != id).map(|other| cluster.client(other));
        *traffic.clients.lock().unwrap() = others.collect();
        assert!(cluster.node(id).stop().await.success());
        let before = addresses(cluster.node(id));
        cluster.node(id).take_new_ports();
        cluster.node(id).start().await;
        let (moved, client) = (addresses(cluster.node(id)), cluster.client(id % 5 + 1));
        eventually("the node says that it has moved", async || {
            let log = cluster.node(id).tail(400);
            check(log.contains(&format!("concord cluster update {id} --api-addr")), || log)
        })
        .await;
        // A rehearsal, and addresses that are wrong, change nothing.
        let put = |body: &Value| client.put(&member(id, ""), body);
        decided(put(&moved).query(&[("dry_run", "true")])).await.expect(200);
        let other = addresses(cluster.node(id % 5 + 1));
        decided(put(&other)).await.refused(409, "conflict_error");
        let mixed = json!({"api_addr": moved["api_addr"], "peer_addr": before["peer_addr"]});
        let nobody = put(&mixed).attempt().await.unwrap();
        assert!(matches!(nobody.status, 409 | 503), "{nobody:?}");
        let shown = client.status().await.unwrap();
        let known = |view: &Value| {
            let mut members = view["members"].as_array().unwrap().iter();
            let found = members.find(|one| one["id"] == id).unwrap();
            json!({"api_addr": found["api_addr"], "peer_addr": found["peer_addr"]})
        };
        assert_eq!(known(&shown), before);
        let answer = decided(put(&moved)).await.expect(200);
        assert_eq!(known(answer.data()), moved);
        decided(put(&moved)).await.expect(200);
        cluster.ready_on(&[id]).await;
        *traffic.clients.lock().unwrap() = cluster.clients();
    }
    let (done, failed) = traffic.stop().await;
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), done + failed.len(), failed.first());
    println!("{done} writes, none failed");
    assert!(done > 100, "{done}");
    cluster.equal_digests_on(&[1, 2, 3, 4, 5]).await;
    // The addresses are in the log: they hold after all have been down.
    cluster.kill_all();
    cluster.start_all().await;
    cluster.equal_digests_on(&[1, 2, 3, 4, 5]).await;
    decided(cluster.client(1).put(&member(9, ""), &addresses(cluster.node(2))))
        .await
        .refused(404, "not_found_error");
}
