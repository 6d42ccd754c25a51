//! Answers to what is no operation: unknown routes and methods.

use http::Method;

use super::{DEFINITIONS, Run, on_leader_and_follower};

#[tokio::test]
async fn an_unknown_route_is_not_found() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let deeper = format!("{}/x", d.config("k"));
        for path in ["/nothing", "/api", "/api/v1", "/api/v1/nothing", "/api/v2/config_definition/", &deeper]
        {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                run.node.call(method, path).await.refused(404, "not_found_error");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_method_that_a_path_does_not_take_is_answered_with_those_that_it_takes() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let wrong = [
            (Method::DELETE, DEFINITIONS.to_owned(), ["GET", "POST"]),
            (Method::PUT, DEFINITIONS.to_owned(), ["GET", "POST"]),
            (Method::POST, d.path(), ["GET", "DELETE"]),
            (Method::DELETE, d.configs(), ["GET", "POST"]),
            (Method::POST, d.config("k"), ["PUT", "DELETE"]),
        ];
        for (method, path, allowed) in wrong {
            let answer = run.node.call(method, &path).await.refused(405, "method_not_allowed");
            let allow: Vec<&str> = answer.header("allow").split(',').map(str::trim).collect();
            assert!(allowed.iter().all(|method| allow.contains(method)), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn every_refusal_is_json() {
    on_leader_and_follower(async |run: Run| {
        let calls = [
            run.node.get("/nothing"),
            run.node.call(Method::DELETE, DEFINITIONS),
            run.node.bare(Method::GET, DEFINITIONS),
            run.node.get(DEFINITIONS).query(&[("page", "x")]),
            run.node.get(DEFINITIONS).query(&[("page", "0")]),
        ];
        for call in calls {
            let answer = call.await;
            assert!(answer.status >= 400, "{answer:?}");
            assert!(answer.header("content-type").starts_with("application/json"), "{answer:?}");
            assert!(answer.body.is_object(), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn odd_requests_are_answered_and_the_node_lives_on() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for path in
            ["/api/v1/config_definition//config/", "/api/v1//", "/%00", "/api/v1/config_definition/%FF"]
        {
            let answer = run.node.get(path).await;
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
        for query in ["?page", "?=", "?&&", "?%FF=%FF", "?page=1&page=2", "?[]=1", "?a[b"] {
            let answer = run.node.get(&format!("{}{query}", d.configs())).await;
            assert!(answer.status < 500, "{answer:?}");
        }
        d.list(&[]).await.expect(200);
    })
    .await;
}
