//! Sessions end while their owner writes: once that is acknowledged, nothing is written in its name on any node, whatever
//! happens to the leader.

use std::sync::{Arc, atomic::AtomicU64};

use concord_identity::testing::TestIssuer;
use http::Method;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use super::revoked::{four_configs, none_after, none_began_after, start_writers};
use crate::{
    harness::{
        Client, Cluster, check,
        clock::unix_s,
        eventually,
        load::{config, define},
    },
    spec::identity::{LOGIN, PROVIDERS, ROLES, SESSIONS},
};

const ISSUER: &str = "https://ci.example.com";

fn role(verbs: &[&str]) -> Value {
    json!({
        "grants": [{ "verbs": verbs, "definitions": ["*"] }],
        "members": [{ "provider": "ci", "match": { "environment": ["prod"] } }],
    })
}

/// A session in whose name writers replace configs.
struct UnderLoad {
    asked: Client,
    session: Client,
    id: String,
    writers: Vec<JoinHandle<Vec<Instant>>>,
}

async fn under_load(cluster: &Cluster) -> UnderLoad {
    let [asked, other] = cluster.followers().await;
    let (asked, other) = (cluster.client(asked), cluster.client(other));
    define(&asked, "d").await;
    four_configs(&asked).await;
    let issuer = TestIssuer::new("one");
    asked.put(&format!("{PROVIDERS}ci"), &issuer.document(ISSUER)).await.expect(201);
    asked.put(&format!("{ROLES}writers"), &role(&["read", "write"])).await.expect(201);
    let body = json!({ "provider": "ci", "token": issuer.token(ISSUER, "job", "prod", unix_s()) });
    let opened = asked.bare(Method::POST, LOGIN).json(&body).await.expect(201);
    let text = |name: &str| opened.data()[name].as_str().expect("a text").to_owned();
    let session = other.with_credential(&text("session"));
    let writers = start_writers(&session, &Arc::new(AtomicU64::new(0))).await;
    UnderLoad { asked, session, id: text("session_id"), writers }
}

/// How sessions end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The session is ended.
    Session,
    /// All sessions of the provider are.
    Provider,
    /// The provider trusts others.
    Trust,
}

/// Ends the session, and returns a revision at which it has ended. An unknown outcome is asked for again.
async fn end(load: &UnderLoad, how: End) -> u64 {
    let asked = &load.asked;
    eventually("the session has ended", async || {
        let answer = match how {
            End::Session => asked.delete(&format!("{SESSIONS}{}", load.id)).attempt().await?,
            End::Provider => asked.post(&format!("{PROVIDERS}ci/end_sessions"), &json!({})).attempt().await?,
            End::Trust => {
                let document = TestIssuer::new("two").document(ISSUER);
                asked.put(&format!("{PROVIDERS}ci"), &document).attempt().await?
            }
        };
        check([200, 404].contains(&answer.status), || format!("{answer:?}"))?;
        Ok(answer.revision())
    })
    .await
}

async fn nothing_is_written_after(name: &str, how: End, kills: bool) {
    let mut cluster = Cluster::start(name).await;
    let mut load = under_load(&cluster).await;
    let leader = cluster.leader().await;
    if kills {
        cluster.node(leader).kill();
    }
    let revision = end(&load, how).await;
    let ended = Instant::now();
    none_began_after(std::mem::take(&mut load.writers), ended).await;
    load.session.put(&config("d", "k0"), &json!({ "data": {} })).await.refused(401, "unauthorized_error");
    if kills {
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    cluster.equal_digests().await;
    none_after(&cluster, "ci/job", revision).await;
}

#[tokio::test]
async fn nothing_is_written_in_the_name_of_a_session_that_has_ended() {
    nothing_is_written_after("sessions-ended", End::Session, false).await;
}

#[tokio::test]
async fn nothing_is_written_in_the_name_of_a_session_that_has_ended_when_the_leader_is_killed() {
    nothing_is_written_after("sessions-ended-kill", End::Session, true).await;
}

#[tokio::test]
async fn nothing_is_written_after_all_sessions_of_a_provider_have_ended_when_the_leader_is_killed() {
    nothing_is_written_after("sessions-of-provider-kill", End::Provider, true).await;
}

#[tokio::test]
async fn nothing_is_written_after_a_provider_trusts_others_when_the_leader_is_killed() {
    nothing_is_written_after("sessions-trust-kill", End::Trust, true).await;
}

#[tokio::test]
async fn a_restored_cluster_has_no_session_and_a_restarted_one_has_them_all() {
    let mut cluster = Cluster::start("sessions-restart").await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let issuer = TestIssuer::new("one");
    client.put(&format!("{PROVIDERS}ci"), &issuer.document(ISSUER)).await.expect(201);
    client.put(&format!("{ROLES}writers"), &role(&["read"])).await.expect(201);
    let log_in = async |client: &Client, subject: &str| {
        let body = json!({ "provider": "ci", "token": issuer.token(ISSUER, subject, "prod", unix_s()) });
        let opened = client.bare(Method::POST, LOGIN).json(&body).await.expect(201);
        opened.data()["session"].as_str().expect("a text").to_owned()
    };
    let session = log_in(&client, "job").await;
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    for id in 1..=3 {
        cluster.node(id).start().await;
    }
    cluster.ready().await;
    for client in cluster.clients() {
        client.with_credential(&session).get("/api/v1/whoami").await.expect(200);
    }
    let listed = cluster.client(1).get(SESSIONS).await.expect(200);
    assert_eq!(listed.data()["results"].as_array().map(Vec::len), Some(1), "{listed:?}");
    let again = log_in(&cluster.client(2), "job").await;
    cluster.client(3).with_credential(&again).get("/api/v1/whoami").await.expect(200);
}
