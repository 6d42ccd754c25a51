//! Machines log in with tokens of their providers, and have the permissions of their roles.

use concord_identity::testing::TestIssuer;
use serde_json::{Value, json};

use super::{Run, environments::code, on_leader_and_follower};
use crate::harness::{Answer, Client, clock::unix_s};

pub(crate) const PROVIDERS: &str = "/api/v1/identity_provider/";
pub(crate) const ROLES: &str = "/api/v1/role/";
pub(crate) const SESSIONS: &str = "/api/v1/session/";
pub(crate) const LOGIN: &str = "/api/v1/login";

/// A provider of a run, with one role for the jobs of `prod`.
struct Ci {
    issuer: TestIssuer,
    url: String,
    name: String,
    role: String,
}

fn role(run: &Run, provider: &str, verbs: &[&str]) -> Value {
    json!({
        "grants": [{ "verbs": verbs, "definitions": [format!("{}*", run.key(""))] }],
        "members": [{ "provider": provider, "match": { "environment": ["prod"] } }],
        "session_s": 600,
    })
}

impl Ci {
    async fn of(run: &Run, verbs: &[&str]) -> Self {
        let (name, role_name) = (run.key("ci"), run.key("writers"));
        let url = format!("https://{name}.example.com");
        let issuer = TestIssuer::new("one");
        run.node.put(&format!("{PROVIDERS}{name}"), &issuer.document(&url)).await.expect(201);
        run.node.put(&format!("{ROLES}{role_name}"), &role(run, &name, verbs)).await.expect(201);
        Self { issuer, url, name, role: role_name }
    }

    fn token(&self, subject: &str, environment: &str) -> String {
        self.issuer.token(&self.url, subject, environment, unix_s())
    }

    async fn log_in(&self, node: &Client, token: &str) -> Answer {
        let body = json!({ "provider": self.name, "token": token });
        node.bare(http::Method::POST, LOGIN).json(&body).await
    }

    async fn session(&self, node: &Client, subject: &str) -> String {
        let opened = self.log_in(node, &self.token(subject, "prod")).await.expect(201);
        opened.data()["session"].as_str().expect("a text").to_owned()
    }

    async fn end(&self, run: &Run) {
        run.node.delete(&format!("{ROLES}{}", self.role)).await.expect(200);
        run.node.delete(&format!("{PROVIDERS}{}", self.name)).await.expect(200);
    }
}

#[tokio::test]
async fn a_job_logs_in_on_one_node_and_works_on_all_until_it_logs_out() {
    on_leader_and_follower(async |run: Run| {
        let made = run.define_open("limits").await;
        let ci = Ci::of(&run, &["read", "write"]).await;
        let session = ci.session(&run.node, "repo:acme/shop").await;
        let owner = format!("{}/repo:acme/shop", ci.name);
        for (number, node) in run.all().iter().enumerate() {
            let node = node.with_credential(&session);
            let who = node.get("/api/v1/whoami").await.expect(200);
            assert_eq!(
                (&who.data()["key_id"], &who.data()["root"]),
                (&json!(owner), &json!(false)),
                "{who:?}"
            );
            assert_eq!(who.data()["session"]["roles"], json!([ci.role]));
            node.put(&made.config("k"), &json!({ "data": { "n": number } }))
                .query(&[("upsert", "true")])
                .await;
            node.post(
                "/api/v1/config_definition/",
                &json!({ "config_definition_key": run.key("x"), "indexes": [] }),
            )
            .await
            .refused(403, "forbidden_error");
            node.get("/api/v1/config_definition/another").await.refused(403, "forbidden_error");
            node.get(ROLES).await.refused(403, "forbidden_error");
            let own = node.get(SESSIONS).await.expect(200);
            let listed = own.data()["results"].as_array().expect("a list").clone();
            assert_eq!((listed.len(), &listed[0]["current"]), (1, &json!(true)), "{own:?}");
            assert_eq!(listed[0]["claims"], json!({ "environment": "prod", "repository_id": "7712" }));
        }
        let history = run.node.get(&format!("{}/history", made.config("k"))).await.expect(200);
        let by: Vec<&Value> =
            history.data()["results"].as_array().expect("a list").iter().map(|one| &one["by"]).collect();
        assert!(by.len() == 3 && by.iter().all(|by| **by == owner), "{history:?}");
        run.others[0].with_credential(&session).delete(&format!("{SESSIONS}current")).await.expect(200);
        for node in run.all() {
            node.with_credential(&session).get("/api/v1/whoami").await.refused(401, "unauthorized_error");
        }
        ci.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_answered_with_its_reason() {
    on_leader_and_follower(async |run: Run| {
        let ci = Ci::of(&run, &["read"]).await;
        let now = unix_s();
        let rejected = async |token: &str, reason: &str| {
            let answer = ci.log_in(&run.node, token).await.refused(401, "unauthorized_error");
            assert_eq!(code(&answer), "token_invalid", "{answer:?}");
            let msg = answer.body["errors"][0]["msg"].as_str().expect("a text");
            assert!(msg.contains(&format!("`{reason}`")), "{answer:?}");
        };
        rejected("x", "malformed").await;
        rejected(&TestIssuer::new("one").token(&ci.url, "job", "prod", now), "signature").await;
        rejected(&ci.issuer.token("https://other.example.com", "job", "prod", now), "issuer").await;
        rejected(&ci.issuer.token(&ci.url, "job", "prod", now - 700), "expired").await;
        rejected(&ci.issuer.token(&ci.url, "job", "prod", now + 3600), "issued_in_the_future").await;
        let none = ci.log_in(&run.node, &ci.token("job", "dev")).await.refused(403, "forbidden_error");
        assert_eq!(code(&none), "no_role", "{none:?}");
        let body = json!({ "provider": "no-such", "token": ci.token("job", "prod") });
        let unknown = run.node.bare(http::Method::POST, LOGIN).json(&body).await;
        assert_eq!(code(&unknown.refused(401, "unauthorized_error")), "token_invalid");
        // The text of a session is no key of anybody else, and a login needs no key.
        run.node.bare(http::Method::POST, LOGIN).json(&json!({ "token": "x" })).await.expect(422);
        // Why, check by check, for who manages the provider.
        let path = format!("{PROVIDERS}{}/try", ci.name);
        let wrong = ci.issuer.token("https://other.example.com", "job", "prod", now);
        let tried = run.node.post(&path, &json!({ "token": wrong })).await.expect(200);
        assert_eq!((&tried.data()["accepted"], &tried.data()["reason"]), (&json!(false), &json!("issuer")));
        let tried = run.node.post(&path, &json!({ "token": ci.token("job", "prod") })).await.expect(200);
        assert_eq!(
            (&tried.data()["roles"][0]["holds"], &tried.data()["session_s"]),
            (&json!(true), &json!(600))
        );
        ci.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn providers_and_roles_are_created_replaced_and_deleted() {
    on_leader_and_follower(async |run: Run| {
        let ci = Ci::of(&run, &["read"]).await;
        let (provider, role_path) = (format!("{PROVIDERS}{}", ci.name), format!("{ROLES}{}", ci.role));
        let got = run.node.get(&provider).await.expect(200);
        assert_eq!((&got.data()["keys"], &got.data()["sessions"]), (&Value::Null, &json!(0)));
        let document = got.data()["document"].clone();
        assert_eq!(document, ci.issuer.document(&ci.url));
        // A put that changes nothing writes nothing.
        let same = run.node.put(&provider, &document).await.expect(200);
        assert_eq!(same.header("etag"), got.header("etag"));
        let mut other = document.clone();
        other["issuer"] = json!("https://elsewhere.example.com");
        let fixed = run.node.put(&provider, &other).await.refused(422, "validation_error");
        assert_eq!(fixed.body["errors"][0]["loc"], json!(["issuer"]), "{fixed:?}");
        other = document.clone();
        other["audience"] = json!("concord");
        run.node.put(&provider, &other).await.refused(422, "validation_error");
        let in_use = run.node.delete(&provider).await.refused(409, "conflict_error");
        assert_eq!(code(&in_use), "identity_provider_in_use", "{in_use:?}");
        for (body, place) in [
            (json!({ "grants": [{ "verbs": ["approve"], "definitions": ["*"] }] }), json!(["grants"])),
            (
                json!({ "grants": [], "members": [{ "provider": "no-such", "match": { "a": ["b"] } }] }),
                json!(["members", 0, "provider"]),
            ),
            (
                json!({ "grants": [], "members": [{ "provider": ci.name, "match": {} }] }),
                json!(["members", 0, "match"]),
            ),
            (json!({ "grants": [], "session_s": 1 }), json!(["session_s"])),
        ] {
            let refused = run.node.put(&role_path, &body).await.refused(422, "validation_error");
            assert_eq!(refused.body["errors"][0]["loc"], place, "{refused:?}");
        }
        run.node.put(&role_path, &json!({ "grants": [], "quota": { "bytes": 1 } })).await.expect(422);
        let got = run.node.get(&role_path).await.expect(200);
        let changed = run.node.put(&role_path, &role(&run, &ci.name, &["read", "write"]));
        changed.clone().header("if-match", "\"1\"").await.refused(412, "precondition_failed");
        changed.header("if-match", got.header("etag")).await.expect(200);
        ci.end(&run).await;
        assert_eq!(
            code(&run.node.get(&provider).await.refused(404, "not_found_error")),
            "identity_provider_not_found"
        );
        assert_eq!(code(&run.node.get(&role_path).await.refused(404, "not_found_error")), "role_not_found");
        let end = format!("{SESSIONS}Abcdefghijkl");
        assert_eq!(code(&run.node.delete(&end).await.refused(404, "not_found_error")), "session_not_found");
    })
    .await;
}

#[tokio::test]
async fn a_role_that_changes_changes_its_sessions_at_once_and_watches_end() {
    on_leader_and_follower(async |run: Run| {
        let made = run.define_open("limits").await;
        made.create("k", &json!({})).await.expect(201);
        let ci = Ci::of(&run, &["read", "write"]).await;
        let session = ci.session(&run.node, "job").await;
        let other = run.others[0].with_credential(&session);
        let mut watch = other.watch(&[("definition", made.key.as_str())], None).await;
        other.put(&made.config("k"), &json!({ "data": { "n": 1 } })).await.expect(200);
        run.node.put(&format!("{ROLES}{}", ci.role), &role(&run, &ci.name, &["write"])).await.expect(200);
        for node in run.all() {
            // A write is decided by the roles of now; a node that has not applied them yet reads by those of before.
            node.with_credential(&session)
                .put(&made.config("k"), &json!({ "data": { "n": 2 } }))
                .await
                .expect(200);
        }
        loop {
            let event = watch.next().await.expect("a stream").expect("it says why it ends");
            if event.name == "error" {
                assert_eq!(event.data["errors"][0]["type"], "forbidden_error", "{event:?}");
                break;
            }
        }
        other.get(&made.config("k")).await.refused(403, "forbidden_error");
        // Of all sessions of the provider, by who manages it.
        let end = format!("{PROVIDERS}{}/end_sessions", ci.name);
        run.node.post(&end, &json!({})).await.expect(200);
        for node in run.all() {
            let ended = node.with_credential(&session).put(&made.config("k"), &json!({ "data": {} })).await;
            ended.refused(401, "unauthorized_error");
        }
        ci.end(&run).await;
    })
    .await;
}
