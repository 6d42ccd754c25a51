//! Persons of access keys: who attests which key, what voids it, who sees whose label.

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client},
    hostile::grants::{KEYS, known},
};

/// A key that somebody has made, and what its holder calls the service with.
struct Held {
    id: String,
    client: Client,
}

impl Held {
    async fn of(run: &Run, answer: &Answer) -> Self {
        let text = |name: &str| answer.data()[name].as_str().expect("a text").to_owned();
        let secret = text("api_key");
        known(&run.all(), &secret, true).await;
        Self { id: text("key_id"), client: run.node.with_credential(&secret) }
    }

    fn path(&self) -> String {
        format!("{KEYS}{}", self.id)
    }

    async fn shown(&self, to: &Client) -> Value {
        to.get(&self.path()).await.expect(200).data().clone()
    }

    async fn rotated_by(&self, run: &Run, by: &Client) -> Self {
        Self::of(run, &by.post(&format!("{}/rotate", self.path()), &json!({"grace_s": 0})).await.expect(200))
            .await
    }

    async fn attested_by(&self, by: &Client, revision: &Value) -> Answer {
        by.post(&format!("{}/attest", self.path()), &json!({ "revision": revision })).await
    }
}

/// The grants of those who attest: they have each permission of the keys of this file.
fn grants(run: &Run) -> Value {
    let definitions = [format!("{}.*", run.key("prod"))];
    json!([{"verbs": ["read", "approve", "keys"], "definitions": definitions}])
}

async fn create(run: &Run, by: &Client, person: &str, grants: &Value) -> Held {
    let body = json!({"name": "of a test", "person": person, "grants": grants});
    Held::of(run, &by.post(KEYS, &body).await.expect(201)).await
}

/// Changes the terms of a key.
fn patch(by: &Client, path: &str, body: &Value) -> Call {
    by.call(Method::PATCH, path).json(body)
}

fn has_code(answer: Answer, status: u16, kind: &str, code: &str) {
    let answer = answer.refused(status, kind);
    assert_eq!(answer.body["errors"][0]["code"], code, "{answer:?}");
}

/// Who has attested the key, by label; the root key by its id.
fn attesters(key: &Value) -> Vec<&str> {
    let by = key["attested_by"].as_array().expect("a list").iter();
    by.map(|by| by["person"]["label"].as_str().or(by["key_id"].as_str()).expect("a text")).collect()
}

#[tokio::test]
async fn three_persons_attest_a_fourth_one() {
    on_leader_and_follower(async |run: Run| {
        let root = &run.node;
        let label = |name: &str| format!("{name}@{}.example", run.key("x").to_lowercase());
        let [ann, bob, eve] = ["ann", "bob", "eve"].map(label);
        // The root key attests what it creates.
        let (first, second) =
            (create(&run, root, &ann, &grants(&run)).await, create(&run, root, &bob, &grants(&run)).await);
        let key = first.shown(root).await;
        assert_eq!((&key["attested"], &key["own_secret"]), (&json!(true), &json!(true)));
        assert_eq!((attesters(&key), &key["person"]["label"]), (vec!["root"], &json!(ann)));
        // Another key does not: it has the secret.
        let made = create(&run, &first.client, &eve.to_uppercase(), &grants(&run)).await;
        let key = made.shown(root).await;
        assert_eq!(key["person"]["label"], eve.as_str(), "in lower case");
        assert_eq!((&key["attested"], &key["own_secret"]), (&json!(false), &json!(false)));
        for by in [root, &first.client] {
            let refused = made.attested_by(by, &key["revision"]).await;
            has_code(refused, 409, "conflict_error", "key_not_attestable");
        }
        // Eve makes a secret that nobody else has.
        let third = made.rotated_by(&run, &made.client).await;
        made.client.get("/api/v1/whoami").await.refused(401, "unauthorized_error");
        let key = third.shown(root).await;
        let revision = &key["revision"];
        assert_eq!((&key["attested"], &key["own_secret"]), (&json!(false), &json!(true)));
        // Both name the same revision, and are other persons.
        let wrong = third.attested_by(&first.client, &json!(revision.as_u64().unwrap() - 1)).await;
        has_code(wrong, 412, "precondition_failed", "precondition_failed");
        has_code(
            third.attested_by(&third.client, revision).await,
            403,
            "forbidden_error",
            "key_not_attested",
        );
        let half = third.attested_by(&first.client, revision).await.expect(200);
        assert_eq!((&half.data()["attested"], attesters(half.data())), (&json!(false), vec![ann.as_str()]));
        let again = third.attested_by(&first.client, revision).await.expect(200);
        assert_eq!(again.data()["attested"], json!(false), "not twice by one");
        let other_key = create(&run, root, &ann, &grants(&run)).await;
        let again = third.attested_by(&other_key.client, revision).await.expect(200);
        assert_eq!(again.data()["attested"], json!(false), "nor by another key of theirs");
        let whole = third.attested_by(&second.client, revision).await.expect(200);
        assert_eq!(whole.data()["attested"], json!(true));
        assert_eq!(attesters(whole.data()), [ann.as_str(), bob.as_str()]);
        assert_eq!(&whole.data()["revision"], revision, "an attestation does not change it");
        // Eve attests another key of ann now, and none of her own.
        let fourth = create(&run, &second.client, &ann, &grants(&run)).await;
        let fourth = fourth.rotated_by(&run, &fourth.client).await;
        let revision = &fourth.shown(root).await["revision"];
        has_code(fourth.attested_by(&first.client, revision).await, 403, "forbidden_error", "own_key");
        let half = fourth.attested_by(&third.client, revision).await.expect(200);
        assert_eq!(attesters(half.data()), [eve.as_str()]);
        // What they have attested outlives their keys.
        for held in [&first, &second] {
            root.delete(&held.path()).await.expect(200);
        }
        let key = third.shown(root).await;
        assert_eq!((&key["attested"], attesters(&key)), (&json!(true), vec![ann.as_str(), bob.as_str()]));
        for held in [third, other_key, fourth] {
            root.delete(&held.path()).await.expect(200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_rotation_and_a_change_by_others_void_an_attestation() {
    on_leader_and_follower(async |run: Run| {
        let root = &run.node;
        let manager = create(&run, root, &run.key("manager"), &grants(&run)).await;
        let held = create(&run, root, &run.key("holder"), &json!([])).await;
        let is_attested = async |held: &Held| held.shown(root).await["attested"].clone();
        let held = held.rotated_by(&run, &held.client).await;
        assert_eq!(is_attested(&held).await, json!(true), "rotated by itself, without `keys`");
        patch(&manager.client, &held.path(), &json!({"name": "other"})).await.expect(200);
        assert_eq!(is_attested(&held).await, json!(true));
        patch(root, &held.path(), &json!({"expires_at": "2199-01-01T00:00:00Z"})).await.expect(200);
        assert_eq!(is_attested(&held).await, json!(true), "changed by the root key");
        patch(&manager.client, &held.path(), &json!({"expires_at": null})).await.expect(200);
        assert_eq!(is_attested(&held).await, json!(false));
        let revision = &held.shown(root).await["revision"];
        let answer = held.attested_by(root, revision).await.expect(200);
        assert_eq!((&answer.data()["attested"], attesters(answer.data())), (&json!(true), vec!["root"]));
        let held = held.rotated_by(&run, &manager.client).await;
        let key = held.shown(root).await;
        assert_eq!((&key["attested"], &key["own_secret"]), (&json!(false), &json!(false)));
        let held = held.rotated_by(&run, root).await;
        assert_eq!(is_attested(&held).await, json!(true), "rotated by the root key");
        // By a secret that is valid for a grace only, it does not rotate itself.
        let path = format!("{}/rotate", held.path());
        let next = Held::of(&run, &held.client.post(&path, &json!({"grace_s": 600})).await.expect(200)).await;
        let by_the_first = held.client.post(&path, &json!({"grace_s": 0})).await;
        has_code(by_the_first, 403, "forbidden_error", "forbidden");
        let held = next.rotated_by(&run, &next.client).await;
        assert_eq!(is_attested(&held).await, json!(true));
        // Of itself a key without `keys` may do nothing else, and a key without a person nothing at all.
        for refused in [
            patch(&held.client, &held.path(), &json!({"name": "n"})).await,
            held.client.get(&held.path()).await,
            held.client.delete(&held.path()).await,
            held.attested_by(&held.client, &json!(1)).await,
            held.client.post(&format!("{}/rotate", manager.path()), &json!({"grace_s": 0})).await,
        ] {
            has_code(refused, 403, "forbidden_error", "forbidden");
        }
        let machine = root.post(KEYS, &json!({"name": "machine", "grants": []})).await.expect(201);
        let machine = Held::of(&run, &machine).await;
        let rotate = machine.client.post(&format!("{}/rotate", machine.path()), &json!({"grace_s": 0})).await;
        has_code(rotate, 403, "forbidden_error", "forbidden");
        let revision = &machine.shown(root).await["revision"];
        has_code(machine.attested_by(root, revision).await, 409, "conflict_error", "key_not_attestable");
        for held in [manager, held, machine] {
            root.delete(&held.path()).await.expect(200);
        }
    })
    .await;
}

#[tokio::test]
async fn all_nodes_find_one_person_by_one_label() {
    on_leader_and_follower(async |run: Run| {
        let label = run.key("Same@example.com");
        let nodes = run.all();
        let made = join_all(nodes.iter().cycle().take(9).enumerate().map(async |(place, node)| {
            let person = if place % 2 == 0 { label.to_uppercase() } else { label.to_lowercase() };
            let body = json!({"name": "n", "person": person, "grants": []});
            node.post(KEYS, &body).await.expect(201).data().clone()
        }));
        let made = made.await;
        for key in &made {
            assert_eq!(key["person"], made[0]["person"]);
        }
        let last_first = made.iter().rev();
        for key in last_first {
            run.node.delete(&format!("{KEYS}{}", key["key_id"].as_str().unwrap())).await.expect(200);
        }
        // Nothing has named the person: the next one is another.
        let body = json!({"name": "n", "person": label, "grants": []});
        let again = run.node.post(KEYS, &body).await.expect(201).data().clone();
        assert_ne!(again["person"]["person_id"], made[0]["person"]["person_id"]);
        run.node.delete(&format!("{KEYS}{}", again["key_id"].as_str().unwrap())).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn who_may_not_read_keys_sees_the_label_of_their_own_person_only() {
    on_leader_and_follower(async |run: Run| {
        let root = &run.node;
        let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| run.key(name).to_lowercase());
        let (first, second) =
            (create(&run, root, &ann, &grants(&run)).await, create(&run, root, &bob, &grants(&run)).await);
        let held = create(&run, &first.client, &eve, &json!([])).await;
        let held = held.rotated_by(&run, &held.client).await;
        let revision = &held.shown(root).await["revision"];
        for by in [&first, &second] {
            held.attested_by(&by.client, revision).await.expect(200);
        }
        let answer = held.client.get("/api/v1/whoami").query(&[]).await.expect(200);
        let own = answer.data();
        assert_eq!((&own["attested"], &own["person"]["label"]), (&json!(true), &json!(eve)));
        for by in own["attested_by"].as_array().unwrap() {
            assert!(by["person"]["label"].is_null() && by["person"]["person_id"].is_string(), "{own}");
        }
        assert!(!answer.text.contains(&ann) && !answer.text.contains(&bob), "{}", answer.text);
        let seen = first.client.get("/api/v1/whoami").await.expect(200);
        assert_eq!(attesters(seen.data()), ["root"]);
        let list = first.client.get(KEYS).query(&[("search", &held.id)]).await;
        let shown = list.data()["results"].as_array().into_iter().flatten();
        let shown: Vec<&Value> = shown.filter(|key| key["key_id"] == held.id.as_str()).collect();
        assert_eq!(
            shown.first().map(|key| attesters(key)),
            Some(vec![ann.as_str(), bob.as_str()]),
            "{list:?}"
        );
        for held in [first, second, held] {
            root.delete(&held.path()).await.expect(200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_label_and_an_attestation_have_their_form() {
    on_leader_and_follower(async |run: Run| {
        let root = &run.node;
        for label in [json!(""), json!(" a"), json!("ä"), json!("a\nb"), json!("x".repeat(255)), json!(7)] {
            let body = json!({"name": "n", "person": label, "grants": []});
            root.post(KEYS, &body).await.expect(422);
        }
        let held = create(&run, root, &run.key("ann"), &json!([])).await;
        patch(root, &held.path(), &json!({"person": "other"})).await.expect(422);
        let path = format!("{}/attest", held.path());
        for body in
            [json!({}), json!({"revision": "1"}), json!({"revision": -1}), json!({"revision": 1, "by": "me"})]
        {
            root.post(&path, &body).await.expect(422);
        }
        let matching = root.post(&path, &json!({"revision": 1})).header("if-match", "\"1\"");
        matching.await.refused(422, "validation_error");
        let dry = root.post(&path, &json!({"revision": 1})).query(&[("dry_run", "true")]);
        dry.await.refused(422, "validation_error");
        // A retry is done once.
        let revision = &held.shown(root).await["revision"];
        let attest =
            || root.post(&path, &json!({ "revision": revision })).header("idempotency-key", &held.id);
        let first = attest().await.expect(200);
        assert_eq!(attest().await.expect(200).data(), first.data());
        root.delete(&held.path()).await.expect(200);
        root.post(&path, &json!({"revision": 1})).await.refused(404, "not_found_error");
    })
    .await;
}
