//! Ways round the rules of a restricted environment that an adversary has tried: each of these tests shuts one.
//!
//! The table in `docs/internals/safe-change.md` names the test of each door, also of those that other files have.

use http::Method;
use serde_json::{Value, json};

use super::{
    Defined, Run,
    change_requests::{
        CHANGES, Restricted, act, approvers, at, create, person, put as put_operation, refused, text,
    },
    environments::{changes, definition_in, end, path as environment},
    on_leader_and_follower,
};
use crate::{
    harness::{Answer, Call, Client},
    hostile::grants::{KEYS, create_key, in_seconds, known},
};

/// How an approval is shown, and whether the edition has all that it needs.
async fn approved(node: &Client, change: &Answer) -> (Value, Value) {
    let shown = node.get(&at(change)).await.expect(200);
    (shown.data()["approvals"][0]["counts"].clone(), shown.data()["approved"].clone())
}

fn rotate(node: &Client, id: &str) -> Call {
    node.post(&format!("{KEYS}{id}/rotate"), &json!({"grace_s": 0}))
}

fn text_of(answer: &Answer, name: &str) -> String {
    answer.data()[name].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn an_approval_outlives_the_time_of_its_key_and_its_key_does_nothing_more() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        let other = create(&ann.node, &[env.put(3)]).await.expect(201);
        let grants = json!([{ "verbs": ["read", "approve"], "definitions": [env.all()] }]);
        let more = json!({ "person": run.key("bob"), "expires_at": in_seconds(4) });
        let (id, key) = create_key(&run.node, &grants, &more).await;
        known(&run.all(), &key, true).await;
        let bob = run.node.with_credential(&key);
        act(&bob, &made, "approve").await.expect(200);
        known(&run.all(), &key, false).await;
        // Schedules outlive keys of some hours: who was right to approve was right.
        assert_eq!(approved(&ann.node, &made).await, (json!(true), json!(true)));
        // The key itself is at an end: it neither votes nor applies.
        for action in ["approve", "reject", "apply", "revert", "keep"] {
            let answer = act(&bob, &other, action).await;
            assert_eq!(answer.status, 401, "{action}: {answer:?}");
        }
        // Whoever gives it more time does not get its approvals.
        let longer = json!({ "expires_at": in_seconds(3600) });
        let keys = person(&run, "keys", &["keys", "read", "approve"], "*").await;
        keys.node.call(Method::PATCH, &format!("{KEYS}{id}")).json(&longer).await.expect(200);
        assert_eq!(approved(&ann.node, &made).await, (json!(false), json!(false)));
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn an_approval_ends_when_others_rotate_or_revoke_its_key() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        let verbs = ["read", "write", "define", "delete", "approve", "reveal", "keys"];
        let keys = person(&run, "keys", &verbs, &env.all()).await;
        // The key itself may, and goes on; others give it another holder.
        let bob = env.person(&run, "bob").await;
        act(&bob.node, &made, "approve").await.expect(200);
        let rotated = rotate(&bob.node, &bob.id).await.expect(200);
        let bob_now = run.node.with_credential(&text_of(&rotated, "api_key"));
        assert_eq!(approved(&ann.node, &made).await, (json!(true), json!(true)));
        for by in [&keys.node, &run.node] {
            let dan = env.person(&run, "dan").await;
            act(&dan.node, &made, "approve").await.expect(200);
            act(&bob_now, &made, "reject").await.expect(200);
            act(&bob_now, &made, "approve").await.expect(200);
            let rotated = rotate(by, &dan.id).await.expect(200);
            let thief = run.node.with_credential(&text_of(&rotated, "api_key"));
            known(&run.all(), &thief.key, true).await;
            let shown = ann.node.get(&at(&made)).await.expect(200);
            let votes = shown.data()["approvals"].as_array().cloned().unwrap_or_default();
            let of_dan = votes.iter().find(|vote| vote["key_id"] == *dan.id).expect("it is shown");
            assert_eq!(of_dan["counts"], false, "{shown:?}");
        }
        run.node.delete(&format!("{KEYS}{}", bob.id)).await.expect(200);
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn two_keys_of_one_person_are_one_approval_and_a_key_stays_with_its_person() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 2).await;
        let ann = env.person(&run, "ann").await;
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        let (one, two) = (env.person(&run, "bob").await, env.person(&run, "bob").await);
        act(&one.node, &made, "approve").await.expect(200);
        let both = act(&two.node, &made, "approve").await.expect(200);
        assert_eq!(
            (&both.data()["approvals_counted"], &both.data()["approved"]),
            (&json!(1), &json!(false)),
            "{both:?}"
        );
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        // Another name for the key is none for the person, who never changes.
        let patch = |body: Value| run.node.call(Method::PATCH, &format!("{KEYS}{}", two.id)).json(&body);
        patch(json!({ "person": run.key("carol") }))
            .await
            .detail(&[(json!(["body", "person"]), "extra_forbidden")]);
        patch(json!({ "name": "carol" })).await.expect(200);
        let third = act(&two.node, &made, "approve").await.expect(200);
        assert_eq!(third.data()["approvals_counted"], 1);
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn no_precondition_opens_a_restricted_environment_or_tells_what_is_in_it() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let (config, definition) = (d.get("k").await.tag(), run.node.get(&d.path()).await.tag());
        approvers(&run, &name, 1).await;
        let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
        let stored = run.node.put(&environment(&name), &rules).await.expect(201);
        let loose = json!({"direct": "allow", "freeze": []});
        let calls = |tag: &str, definition: &str, environment_tag: &str| {
            [
                d.put("k", &json!({"n": 2})).header("if-match", tag),
                d.remove("k").header("if-match", tag),
                run.node.put(&d.path(), &json!({"indexes": []})).header("if-match", definition),
                run.node.delete(&d.path()).header("if-match", definition),
                run.node.put(&environment(&name), &loose).header("if-match", environment_tag),
                run.node.delete(&environment(&name)).header("if-match", environment_tag),
            ]
        };
        for (tag, of_definition, of_rules) in
            [(&*config, &*definition, &*stored.tag()), ("\"1\"", "\"1\"", "\"1\""), ("*", "*", "*")]
        {
            for call in calls(tag, of_definition, of_rules) {
                let answer = call.await;
                let is_precondition = answer.status == 412 && of_rules == "\"1\"";
                // Who may define the environment may know its revision; of its definitions nothing is told.
                let is_of_rules = answer.asked.contains("/environment/");
                if !(is_of_rules && is_precondition) {
                    refused(answer, 409, "change_required");
                }
            }
        }
        for key in ["k", "absent"] {
            let new = d.put(key, &json!({"n": 2})).header("if-none-match", "*");
            refused(new.await, 409, "change_required");
        }
        assert_eq!(d.get("k").await.tag(), config);
        end(&run, &name, true).await;
    })
    .await;
}

/// An environment that takes direct changes as well, and whose change requests need an approval.
async fn open_environment(run: &Run) -> (String, Defined) {
    let name = run.key("env");
    let d = definition_in(run, &name).await;
    approvers(run, &name, 1).await;
    let rules = json!({"direct": "allow", "approvals": 1, "freeze": []});
    run.node.put(&environment(&name), &rules).await.expect(201);
    (name, d)
}

const ALL: [&str; 6] = ["read", "write", "define", "delete", "approve", "reveal"];

#[tokio::test]
async fn what_was_deleted_and_created_again_is_not_what_was_approved() {
    on_leader_and_follower(async |run: Run| {
        let (name, d) = open_environment(&run).await;
        let all = format!("{name}.*");
        let (ann, bob) = (person(&run, "ann", &ALL, &all).await, person(&run, "bob", &ALL, &all).await);
        let mut new = put_operation(&d.key, "new", json!({"n": 7}));
        new["upsert"] = true.into();
        let operations = [
            vec![put_operation(&d.key, "k", json!({"n": 2}))],
            vec![new],
            vec![json!({
                "op": "set_protection", "config_definition_key": d.key, "protected": true,
            })],
        ];
        let mut made = Vec::new();
        for operations in &operations {
            let change = create(&ann.node, operations).await.expect(201);
            act(&bob.node, &change, "approve").await.expect(200);
            made.push(change);
        }
        run.node.delete(&d.path()).await.expect(200);
        run.ask(&d.key, &json!(["n"]), &Value::Null).await.expect(201);
        d.create("k", &json!({"n": 1})).await.expect(201);
        for change in &made {
            refused(act(&ann.node, change, "apply").await, 409, "change_stale");
        }
        // Also one config alone, of a definition that is the same.
        let change = create(&ann.node, &operations[0]).await.expect(201);
        act(&bob.node, &change, "approve").await.expect(200);
        d.remove("k").await.expect(200);
        d.create("k", &json!({"n": 1})).await.expect(201);
        refused(act(&ann.node, &change, "apply").await, 409, "change_stale");
        // It returns as what it was, which is not what was deleted last.
        run.node.delete(&d.path()).await.expect(200);
        for change in &made {
            let answer = act(&ann.node, change, "apply").await;
            assert!(matches!(answer.status, 404 | 409), "{answer:?}");
        }
        run.node.post(&format!("{}/undelete", d.path()), &json!({})).await.expect(201);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
        d.get("new").await.refused(404, "not_found_error");
        end(&run, &name, true).await;
    })
    .await;
}

#[tokio::test]
async fn what_was_taken_back_is_neither_applied_nor_taken_back_again() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let mut verbs = ALL.to_vec();
        verbs.push("bypass");
        let ann = person(&run, "ann", &verbs, &env.all()).await;
        let bob = person(&run, "bob", &verbs, &env.all()).await;
        let bypass = |call: Call| call.query(&[("bypass", "true")]).header("x-change-reason", "incident");
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        act(&ann.node, &made, "apply").await.expect(200);
        let back = act(&bob.node, &made, "revert").await.expect(200);
        let tag = env.d.get("k").await.tag();
        // The revert of a revert, and the apply of what was taken back, are answered as what was done.
        for call in [
            act(&bob.node, &made, "revert"),
            bypass(act(&bob.node, &made, "revert")),
            act(&ann.node, &made, "apply"),
        ] {
            let again = call.await.expect(200);
            assert_eq!(again.data()["revert"], back.data()["revert"]);
        }
        refused(act(&bob.node, &made, "keep").await, 409, "change_closed");
        assert_eq!(
            (env.d.get("k").await.tag(), env.d.get("k").await.data()["data"].clone()),
            (tag, json!({"n": 1}))
        );
        // To have it once more is a new change, which needs another person.
        let once_more = create(&ann.node, &[env.put(2)]).await.expect(201);
        refused(act(&ann.node, &once_more, "apply").await, 409, "not_approved");
        // Nobody takes a bypass back but by a change of their own; nor what was never applied.
        let write = env.d.put("k", &json!({"n": 9}));
        let written = bypass(Call::clone(&write)).await.expect(200);
        let list = ann.node.get(CHANGES).query(&[("unreviewed", "true"), ("environment", &env.name)]);
        let list = list.await.expect(200);
        let of_bypass = &list.data()["results"][0];
        assert_eq!(format!("\"{}\"", of_bypass["applied"]["revision"]), written.tag());
        let path = format!("{CHANGES}{}", of_bypass["change_id"].as_str().expect("an id"));
        let digest = json!({ "digest": of_bypass["digest"] });
        for action in ["revert", "keep"] {
            let answer = bob.node.post(&format!("{path}/{action}"), &digest).await;
            refused(answer, 422, "not_revertible");
        }
        let unapplied = refused(act(&bob.node, &once_more, "revert").await, 422, "not_revertible");
        let msg = unapplied.body["errors"][0]["msg"].as_str().expect("a text");
        assert!(msg.contains("was not applied"), "{msg}");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn an_approver_keeps_what_was_to_be_taken_back_and_nobody_else_does() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob, carol] =
            [env.person(&run, "ann").await, env.person(&run, "bob").await, env.person(&run, "carol").await];
        let body = json!({"title": "for a while", "operations": [env.put(2)], "revert_after_s": 3600});
        let made = ann.node.post(CHANGES, &body).await.expect(201);
        refused(act(&bob.node, &made, "keep").await, 422, "not_revertible");
        act(&bob.node, &made, "approve").await.expect(200);
        let applied = act(&ann.node, &made, "apply").await.expect(200);
        assert_eq!(applied.data()["revert"]["state"], "armed");
        for node in [&ann.node, &carol.node] {
            refused(act(node, &made, "keep").await, 403, "not_approver");
        }
        refused(act(&run.node, &made, "keep").await, 403, "key_not_attested");
        let reader = person(&run, "reader", &["read"], &env.all()).await;
        act(&reader.node, &made, "keep").await.refused(403, "forbidden_error");
        let stranger = person(&run, "stranger", &ALL, "elsewhere.*").await;
        refused(act(&stranger.node, &made, "keep").await, 404, "change_not_found");
        let other = bob.node.post(&format!("{}/keep", at(&made)), &json!({"digest": "0".repeat(64)}));
        refused(other.await, 409, "change_digest");
        let body = json!({ "digest": text(&made, "digest"), "comment": "they have bought it" });
        let keep = || bob.node.post(&format!("{}/keep", at(&made)), &body);
        let kept = keep().header("idempotency-key", &run.key("keep")).await.expect(200);
        let revert = &kept.data()["revert"];
        assert_eq!(
            (&revert["state"], &revert["by"]["key_id"], &revert["comment"]),
            (&json!("kept"), &json!(bob.id), &json!("they have bought it"))
        );
        let again = keep().header("idempotency-key", &run.key("keep")).await.expect(200);
        assert_eq!(again.data(), kept.data(), "a retry");
        refused(keep().await, 409, "change_closed");
        refused(act(&bob.node, &made, "revert").await, 422, "not_revertible");
        let list = bob.node.get(CHANGES).query(&[("revert", "kept"), ("environment", &env.name)]);
        assert_eq!(list.await.expect(200).data()["results"][0]["change_id"], text(&made, "change_id"));
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 2}));
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_purge_deletes_comes_back_by_no_revert() {
    on_leader_and_follower(async |run: Run| {
        let (name, d) = open_environment(&run).await;
        let all = format!("{name}.*");
        let (ann, bob) = (person(&run, "ann", &ALL, &all).await, person(&run, "bob", &ALL, &all).await);
        let mut made = Vec::new();
        for (n, more) in [(2, json!({})), (3, json!({"revert_after_s": 3600}))] {
            let operation = put_operation(&d.key, "k", json!({ "n": n }));
            let mut body = json!({"title": "a change", "operations": [operation]});
            for (name, value) in more.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            let change = ann.node.post(CHANGES, &body).await.expect(201);
            act(&bob.node, &change, "approve").await.expect(200);
            act(&ann.node, &change, "apply").await.expect(200);
            made.push(change);
        }
        let states = async || {
            let mut all = Vec::new();
            for change in &made {
                let shown = ann.node.get(&at(change)).query(&[("include", "preview")]).await.expect(200);
                let revert = &shown.data()["revert"];
                let has_preview = shown.data().get("preview").is_some_and(|preview| !preview.is_null());
                all.push((revert["state"].clone(), revert["error"]["code"].clone(), has_preview));
            }
            all
        };
        let [possible, armed] = ["possible", "armed"].map(|state| (json!(state), Value::Null, true));
        assert_eq!(states().await, [possible, armed]);
        run.node.delete(&d.path()).query(&[("purge", "true")]).await.expect(200);
        let failed = (json!("failed"), json!("definition_deleted"), false);
        assert_eq!(states().await, [(Value::Null, Value::Null, false), failed]);
        // Nobody but the cluster finds out, so nobody is named.
        run.ask(&d.key, &json!(["n"]), &Value::Null).await.expect(201);
        for change in &made {
            refused(act(&bob.node, change, "revert").await, 422, "not_revertible");
        }
        d.get("k").await.refused(404, "not_found_error");
        end(&run, &name, true).await;
    })
    .await;
}

#[tokio::test]
async fn rules_that_become_stricter_while_a_change_is_applied_hold_for_it_or_come_after_it() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 2).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let rules = |approvals: u64| {
            let body = json!({"direct": "refuse", "approvals": approvals, "freeze": []});
            let put = run.others[0].put(&environment(&env.name), &body).query(&[("bypass", "true")]);
            put.header("x-change-reason", "stricter")
        };
        let (mut before, mut after) = (0, 0);
        for round in 0..12 {
            rules(1).await.expect(200);
            let made = create(&ann.node, &[env.put(round + 10)]).await.expect(201);
            act(&bob.node, &made, "approve").await.expect(200);
            let (apply, stricter) = (act(&ann.node, &made, "apply"), rules(2));
            let (applied, stricter) = tokio::join!(async { apply.await }, async { stricter.await });
            let stricter = stricter.expect(200).revision();
            if applied.status == 200 {
                let revision = applied.data()["applied"]["revision"].as_u64().expect("a revision");
                assert!(revision < stricter, "it has one approval: {revision} {stricter}");
                before += 1;
            } else {
                refused(applied, 409, "not_approved");
                after += 1;
            }
        }
        assert_eq!(before + after, 12);
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_rules_refused_is_decided_anew_and_one_that_was_decided_changes_nothing_again() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let keyed = |n: u64, id: &str| d.put("k", &json!({ "n": n })).header("idempotency-key", &run.key(id));
        let first = keyed(2, "before").await.expect(200);
        approvers(&run, &name, 1).await;
        let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
        run.node.put(&environment(&name), &rules).await.expect(201);
        refused(keyed(3, "in").await, 409, "change_required");
        let again = keyed(2, "before").await.expect(200);
        assert_eq!((again.tag(), d.get("k").await.tag()), (first.tag(), first.tag()));
        end(&run, &name, true).await;
        keyed(3, "in").await.expect(200);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 3}));
    })
    .await;
}

#[tokio::test]
async fn a_bypass_of_a_branch_without_operations_leaves_no_change_request() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let mut verbs = ALL.to_vec();
        verbs.push("bypass");
        let ann = person(&run, "ann", &verbs, &env.all()).await;
        let absent = json!({"config_definition_key": env.d.key, "config_key": "k", "absent": true});
        let body = json!({"if": [absent], "then": [env.put(2)], "else": []});
        let call = ann.node.post("/api/v1/batch", &body).query(&[("bypass", "true")]);
        let done = call.header("x-change-reason", "incident").await.expect(200);
        assert_eq!(done.data()["succeeded"], false);
        let list = ann.node.get(CHANGES).query(&[("environment", &env.name)]).await.expect(200);
        assert_eq!(list.data()["meta"]["total"], 0);
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}));
        // The other branch is refused without a bypass, whatever its conditions say.
        for is_absent in [true, false] {
            let condition =
                json!({"config_definition_key": env.d.key, "config_key": "k", "absent": is_absent});
            let both = json!({"if": [condition], "then": [env.put(2)], "else": [env.put(3)]});
            refused(ann.node.post("/api/v1/batch", &both).await, 409, "change_required");
        }
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn an_attestation_changes_the_tag_of_a_key() {
    on_leader_and_follower(async |run: Run| {
        let verbs = ["read", "approve", "keys"];
        let all = format!("{}.*", run.key("env"));
        let [one, two, keys] = [
            person(&run, "one", &verbs, &all).await,
            person(&run, "two", &verbs, &all).await,
            person(&run, "keys", &verbs, &all).await,
        ];
        let grants = json!([{ "verbs": ["read"], "definitions": [all] }]);
        let (id, first) = create_key(&keys.node, &grants, &json!({ "person": run.key("new") })).await;
        known(&run.all(), &first, true).await;
        // Its first secret is known to who made it.
        let rotated = rotate(&run.node.with_credential(&first), &id).await.expect(200);
        let path = format!("{KEYS}{id}");
        let revision = json!({ "revision": rotated.data()["revision"] });
        let attest = |node: &Client| node.post(&format!("{path}/attest"), &revision);
        let mut tags = vec![run.node.get(&path).await.expect(200).tag()];
        for (node, is_attested) in [(&one.node, false), (&two.node, true)] {
            let attested = attest(node).await.expect(200);
            assert_eq!(attested.data()["attested"], is_attested);
            let read = run.node.get(&path).await.expect(200);
            assert_eq!(read.tag(), attested.tag());
            assert_eq!(read.data()["revision"], revision["revision"], "both name the same one");
            let last = tags.last().expect("there is one").clone();
            let seen = run.node.get(&path).header("if-none-match", &last).await.expect(200);
            assert_ne!(seen.tag(), last);
            let patch = |tag: &str| {
                run.node.call(Method::PATCH, &path).json(&json!({"name": "n"})).header("if-match", tag)
            };
            patch(&last).await.refused(412, "precondition_failed");
            run.node.get(&path).header("if-none-match", &read.tag()).await.expect(304);
            tags.push(read.tag());
        }
        // One that is attested stays as it is, and so does its tag.
        assert_eq!(attest(&run.node).await.expect(200).tag(), tags[2]);
        let changed = run.node.call(Method::PATCH, &path).json(&json!({"name": "n"}));
        changed.header("if-match", &tags[2]).await.expect(200);
    })
    .await;
}

/// The state that a repeated request shows is not older than one that its client has seen.
async fn repeated(what: &str, first: &Call, change: &Call, read: &Call) {
    first.clone().await;
    let changed = change.clone().await;
    assert!(matches!(changed.status, 200 | 201), "{what}: {changed:?}");
    let again = first.clone().await;
    let read = read.clone().await.expect(200);
    assert_eq!(again.data()["modified_at"], read.data()["modified_at"], "{what}");
}

#[tokio::test]
async fn a_repeated_request_shows_no_older_state_than_was_acknowledged() {
    on_leader_and_follower(async |run: Run| {
        // Requests about one record to different nodes, one after the other: the last one shows what the others have done.
        let name = run.key("env");
        let other = &run.others[0];
        for round in 0..20 {
            let freeze = |reason: &str| json!({"freeze": [{"until": in_seconds(3600), "reason": reason}]});
            let body = freeze("first");
            let first = run
                .node
                .put(&environment(&name), &body)
                .header("idempotency-key", &run.key(&format!("{round}")));
            let change = other.put(&environment(&name), &freeze("second"));
            repeated("an environment", &first, &change, &run.node.get(&environment(&name))).await;
        }
        let (id, _) =
            create_key(&run.node, &json!([{"verbs": ["read"], "definitions": ["a.*"]}]), &json!({})).await;
        let path = format!("{KEYS}{id}");
        for round in 0..20 {
            let patch =
                |node: &Client, name: &str| node.call(Method::PATCH, &path).json(&json!({ "name": name }));
            let first =
                patch(&run.node, "first").header("idempotency-key", &run.key(&format!("key-{round}")));
            repeated("an access key", &first, &patch(other, "second"), &run.node.get(&path)).await;
        }
        end(&run, &name, false).await;
    })
    .await;
}

#[tokio::test]
async fn every_change_by_a_change_request_needs_what_the_rules_ask_for() {
    on_leader_and_follower(async |run: Run| {
        // Each operation that a change request can have, sent by one person alone: none is applied without another one.
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let key = &env.d.key;
        let of = |op: &str, more: Value| {
            let mut operation = json!({"op": op, "config_definition_key": key});
            for (name, value) in more.as_object().into_iter().flatten() {
                operation[name] = value.clone();
            }
            operation
        };
        let new = format!("{}.new", env.name);
        let environment =
            json!({"op": "put_environment", "environment": env.name, "direct": "allow", "freeze": []});
        for operation in [
            env.put(2),
            of("create_config", json!({"config_key": "new", "data": {}})),
            of("put_config", json!({"config_key": "new", "data": {}, "upsert": true})),
            of("patch_config", json!({"config_key": "k", "patch": {"n": 2}})),
            of("delete_config", json!({"config_key": "k"})),
            of("set_indexes", json!({"indexes": []})),
            of("set_schema", json!({"json_schema": {}})),
            of("set_unique", json!({"paths": ["n"]})),
            of("set_protection", json!({"protected": true})),
            of("delete_definition", json!({})),
            json!({"op": "create_definition", "config_definition_key": new, "indexes": []}),
            environment,
            json!({"op": "delete_environment", "environment": env.name}),
        ] {
            let made = create(&ann.node, std::slice::from_ref(&operation)).await;
            assert_eq!(made.status, 201, "{operation}: {made:?}");
            refused(act(&ann.node, &made, "approve").await, 403, "own_change");
            refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        }
        for (what, call) in changes(&env.d, env.d.get("k").await.revision()) {
            let answer = call.await;
            assert_eq!(answer.status, 409, "{what}: {answer:?}");
        }
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}));
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_applied_tells_no_secret_value_to_who_may_not_see_it() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let key = format!("{name}.limits");
        let secret = json!({"properties": {"pin": {"x-concord-secret": true}}});
        run.ask(&key, &json!([]), &secret).await.expect(201);
        let d = Defined { key, node: run.node.clone() };
        d.create("k", &json!({"pin": "hunter2"})).await.expect(201);
        approvers(&run, &name, 1).await;
        let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
        run.node.put(&environment(&name), &rules).await.expect(201);
        let all = format!("{name}.*");
        let sees = person(&run, "sees", &ALL, &all).await;
        let other = person(&run, "other", &ALL, &all).await;
        let blind = person(&run, "blind", &["read", "write", "define", "approve"], &all).await;
        // The new schema marks nothing as secret, and the value breaks it.
        let strict = json!({"properties": {"pin": {"enum": ["a", "b"]}}});
        let operation = json!({"op": "set_schema", "config_definition_key": d.key, "json_schema": strict});
        let made = create(&sees.node, &[operation]).await.expect(201);
        act(&other.node, &made, "approve").await.expect(200);
        let told = act(&blind.node, &made, "apply").await;
        assert_eq!(told.status, 422, "{told:?}");
        assert!(!told.text.contains("hunter2"), "{told:?}");
        let told = act(&sees.node, &made, "apply").await.invalid();
        assert!(told.text.contains("hunter2"), "who may see it is told: {told:?}");
        end(&run, &name, true).await;
    })
    .await;
}
