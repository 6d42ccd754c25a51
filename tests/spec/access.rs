//! Credentials: both notations, every refusal, and that nothing is said before the credential is known.

use http::Method;
use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Answer, Client};

fn unauthorized(answer: Answer) {
    let answer = answer.refused(401, "unauthorized_error");
    assert!(!answer.header("www-authenticate").is_empty(), "{answer:?}");
}

#[tokio::test]
async fn both_notations_of_the_credential_are_accepted() {
    on_leader_and_follower(async |run: Run| {
        let key = run.node.key.clone();
        for value in [key.clone(), format!("Bearer {key}")] {
            run.node.bare(Method::GET, DEFINITIONS).header("authorization", &value).await.expect(200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_empty_or_unknown_credential_is_refused() {
    on_leader_and_follower(async |run: Run| {
        unauthorized(run.node.bare(Method::GET, DEFINITIONS).await);
        let key = run.node.key.clone();
        let wrong = [
            String::new(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            "unknown".to_owned(),
            "Bearer unknown".to_owned(),
            format!("Basic {key}"),
            format!("{key}x"),
            format!("Bearer {key}x"),
            key[1..].to_owned(),
            key.to_uppercase(),
        ];
        for value in wrong {
            unauthorized(run.node.bare(Method::GET, DEFINITIONS).header("authorization", &value).await);
        }
    })
    .await;
}

#[tokio::test]
async fn every_operation_wants_a_credential() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let (item, configs, config) = (d.path(), d.configs(), d.config("k"));
        let operations = [
            (Method::POST, DEFINITIONS),
            (Method::GET, DEFINITIONS),
            (Method::GET, &item),
            (Method::PUT, &item),
            (Method::DELETE, &item),
            (Method::POST, &configs),
            (Method::GET, &configs),
            (Method::GET, &config),
            (Method::PUT, &config),
            (Method::DELETE, &config),
            (Method::GET, "/api/v1/cluster"),
            (Method::POST, "/api/v1/cluster/init"),
        ];
        for (method, path) in operations {
            unauthorized(run.node.bare(method, path).await);
        }
        d.get("k").await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_said_about_a_request_before_its_credential_is_known() {
    on_leader_and_follower(async |run: Run| {
        let bare =
            |method: Method, path: &str| run.node.bare(method, path).header("authorization", "unknown");
        unauthorized(bare(Method::POST, DEFINITIONS).text("application/json", "{").await);
        unauthorized(bare(Method::POST, DEFINITIONS).text("text/plain", "x").await);
        unauthorized(bare(Method::GET, DEFINITIONS).query(&[("page", "x")]).await);
        unauthorized(bare(Method::GET, &format!("{DEFINITIONS}absent")).await);
        unauthorized(bare(Method::GET, "/no/such/route").await);
        unauthorized(bare(Method::GET, "/api/v1/nothing").await);
        unauthorized(bare(Method::DELETE, DEFINITIONS).await);
        unauthorized(bare(Method::POST, "/livez").await);
    })
    .await;
}

#[tokio::test]
async fn probes_need_no_credential_and_take_a_wrong_one() {
    on_leader_and_follower(async |run: Run| {
        for path in ["/", "/livez", "/readyz", "/health", "/readiness-probe"] {
            for method in [Method::GET, Method::HEAD] {
                run.node.bare(method.clone(), path).await.expect(200);
                run.node.bare(method, path).header("authorization", "unknown").await.expect(200);
            }
        }
        let root = run.node.bare(Method::GET, "/").await;
        assert!(root.body.is_object(), "the older client reads JSON at `/`: {root:?}");
    })
    .await;
}

#[tokio::test]
async fn the_same_credential_is_known_on_every_node() {
    on_leader_and_follower(async |run: Run| {
        for node in &run.others {
            let same = Client::new(&node.base, &run.node.key);
            same.get(DEFINITIONS).await.expect(200);
        }
    })
    .await;
}
