//! Change requests: what a restricted environment refuses, who approves what, and what is shown to whom.

use http::Method;
use serde_json::{Value, json};

use super::{
    DEFINITIONS, Defined, Run,
    environments::{changes, code, definition_in, end, path as environment},
    on_leader_and_follower,
};
use crate::{
    harness::{Answer, Call, Client},
    hostile::grants::{KEYS, VERBS, create_key, known},
};

/// The path of the collection.
pub(super) const CHANGES: &str = "/api/v1/change_request/";
/// What the people of these tests may do in their environment.
const ALL: [&str; 6] = ["read", "write", "define", "delete", "approve", "reveal"];

/// A person with an attested key.
pub(super) struct Person {
    pub(super) id: String,
    pub(super) node: Client,
}

/// Makes an access key of a person: the root key attests it.
pub(super) async fn person(run: &Run, name: &str, verbs: &[&str], definitions: &str) -> Person {
    let grants = json!([{ "verbs": verbs, "definitions": [definitions] }]);
    let (id, key) = create_key(&run.node, &grants, &json!({ "person": run.key(name) })).await;
    known(&run.all(), &key, true).await;
    Person { id, node: run.node.with_credential(&key) }
}

/// An environment that takes change requests only, with a definition and the config `k`.
pub(super) struct Restricted {
    pub(super) name: String,
    pub(super) d: Defined,
}

impl Restricted {
    pub(super) async fn new(run: &Run, approvals: u64) -> Self {
        let name = run.key("env");
        let d = definition_in(run, &name).await;
        approvers(run, &name, approvals).await;
        restrict(run, &name, approvals).await.expect(201);
        Self { name, d }
    }

    pub(super) fn all(&self) -> String {
        format!("{}.*", self.name)
    }

    pub(super) fn put(&self, n: u64) -> Value {
        put(&self.d.key, "k", json!({ "n": n }))
    }

    pub(super) async fn person(&self, run: &Run, name: &str) -> Person {
        person(run, name, &ALL, &self.all()).await
    }

    /// Ends the environment, so that its definitions take other writes again.
    pub(super) async fn end(&self, run: &Run) {
        end(run, &self.name, true).await;
    }
}

/// So many persons that an environment can ask for so many approvals.
pub(super) async fn approvers(run: &Run, name: &str, approvals: u64) {
    for n in 0..=approvals {
        person(run, &format!("approver-{n}"), &["read", "approve"], &format!("{name}.*")).await;
    }
}

fn restrict(run: &Run, name: &str, approvals: u64) -> Call {
    let rules = json!({"direct": "refuse", "approvals": approvals, "freeze": []});
    run.node.put(&environment(name), &rules)
}

pub(super) fn put(definition: &str, key: &str, data: Value) -> Value {
    json!({"op": "put_config", "config_definition_key": definition, "config_key": key, "data": data})
}

pub(super) fn create(node: &Client, operations: &[Value]) -> Call {
    node.post(CHANGES, &json!({ "title": "a change", "operations": operations }))
}

pub(super) fn text(answer: &Answer, name: &str) -> String {
    answer.data()[name].as_str().unwrap_or_else(|| panic!("`{name}` in {answer:?}")).to_owned()
}

pub(super) fn at(answer: &Answer) -> String {
    format!("{CHANGES}{}", text(answer, "change_id"))
}

/// Something that names the digest of a change request.
pub(super) fn act(node: &Client, change: &Answer, action: &str) -> Call {
    node.post(&format!("{}/{action}", at(change)), &json!({ "digest": text(change, "digest") }))
}

#[track_caller]
pub(super) fn refused(answer: Answer, status: u16, expected: &str) -> Answer {
    assert_eq!((answer.status, code(&answer)), (status, expected), "{answer:?}");
    answer
}

#[tokio::test]
async fn a_change_is_applied_after_another_person_has_approved_it() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob, carol] =
            [env.person(&run, "ann").await, env.person(&run, "bob").await, env.person(&run, "carol").await];
        for direct in [&run.node, &ann.node] {
            let answer = direct.put(&env.d.config("k"), &json!({"data": {"n": 2}})).await;
            refused(answer, 409, "change_required");
        }
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        assert_eq!(made.header("location"), at(&made));
        let data = made.data();
        assert_eq!(
            (&data["phase"], &data["approvals_needed"], &data["attested"]),
            (&json!("open"), &json!(1), &json!(true))
        );
        assert_eq!(data["config_definition_keys"], json!([env.d.key]));
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}), "nothing is changed yet");
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        refused(act(&ann.node, &made, "approve").await, 403, "own_change");
        let shown = bob.node.get(&at(&made)).query(&[("include", "preview")]).await.expect(200);
        let record = &shown.data()["preview"]["records"][0];
        assert_eq!((&record["before"], &record["after"]), (&json!({"n": 1}), &json!({"n": 2})));
        assert_eq!(record["fields"], json!(["/n"]));
        assert_eq!(shown.data()["sender"]["person"], run.key("ann").to_lowercase());
        let approved = act(&bob.node, &made, "approve").await.expect(200);
        assert_eq!(
            (&approved.data()["approved"], &approved.data()["approvals_counted"]),
            (&json!(true), &json!(1))
        );
        let applied = act(&carol.node, &made, "apply").await.expect(200);
        let revision = applied.data()["applied"]["revision"].as_u64().expect("a revision");
        assert_eq!(applied.data()["phase"], "applied");
        assert_eq!(applied.data()["applied"]["approved_by"][0]["key_id"], *bob.id);
        for node in run.all() {
            let read = node.get(&env.d.config("k")).await.expect(200);
            assert_eq!((&read.data()["data"], read.tag()), (&json!({"n": 2}), format!("\"{revision}\"")));
        }
        // Whoever applies it once more is told the same; nothing is changed twice.
        let again = act(&ann.node, &made, "apply").await.expect(200);
        assert_eq!(again.data()["applied"], applied.data()["applied"]);
        assert_eq!(env.d.get("k").await.tag(), format!("\"{revision}\""));
        refused(act(&bob.node, &made, "approve").await, 409, "change_closed");
        assert!(applied.data().get("operations").is_none(), "its content is gone");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn no_direct_write_changes_a_restricted_environment() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let earlier = d.get("k").await.revision();
        let deleted = Defined { key: format!("{name}.deleted"), node: run.node.clone() };
        run.ask(&deleted.key, &json!([]), &Value::Null).await.expect(201);
        run.node.delete(&deleted.path()).await.expect(200);
        approvers(&run, &name, 1).await;
        restrict(&run, &name, 1).await.expect(201);
        let before = d.get("k").await.body;
        let mut all = changes(&d, earlier);
        let undelete = format!("{}/undelete", deleted.path());
        all.push(("undelete", run.node.post(&undelete, &json!({}))));
        let part = json!({"operations": [put("elsewhere", "k", json!({})), put(&d.key, "k", json!({}))]});
        all.push(("a part of a batch", run.node.post("/api/v1/batch", &part)));
        all.push(("make it again", run.ask(&format!("{name}.new"), &json!([]), &Value::Null)));
        for (what, call) in all {
            for call in [call.clone().query(&[("dry_run", "true")]), call] {
                let answer = call.await;
                assert_eq!((answer.status, code(&answer)), (409, "change_required"), "{what}: {answer:?}");
            }
        }
        assert_eq!(d.get("k").await.body, before);
        // The rules are changed by the rules that there are.
        for rules in [json!({"direct": "allow", "freeze": []}), json!({"approvals": 0, "freeze": []})] {
            refused(run.node.put(&environment(&name), &rules).await, 409, "change_required");
        }
        refused(run.node.delete(&environment(&name)).await, 409, "change_required");
        end(&run, &name, true).await;
    })
    .await;
}

#[tokio::test]
async fn an_approval_counts_for_one_edition_and_while_its_key_is_good() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob, carol] =
            [env.person(&run, "ann").await, env.person(&run, "bob").await, env.person(&run, "carol").await];
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        // An edit voids approvals, whoever makes it, and its sender is an author from then on.
        let body = json!({"title": "another", "operations": [env.put(3)]});
        let edit = |tag: &str| carol.node.put(&at(&made), &body).header("if-match", tag);
        edit("\"1\"").await.refused(412, "precondition_failed");
        let tag = carol.node.get(&at(&made)).await.expect(200).tag();
        let edited = edit(&tag).await.expect(200);
        assert_eq!((&edited.data()["edition"], &edited.data()["approved"]), (&json!(2), &json!(false)));
        assert_ne!(text(&edited, "digest"), text(&made, "digest"));
        refused(act(&ann.node, &made, "apply").await, 409, "change_digest");
        refused(act(&bob.node, &made, "approve").await, 409, "change_digest");
        refused(act(&ann.node, &edited, "apply").await, 409, "not_approved");
        refused(act(&carol.node, &edited, "approve").await, 403, "own_change");
        refused(act(&ann.node, &edited, "approve").await, 403, "own_change");
        // A second key of one person gains nothing, and one that nobody has attested neither.
        let second = env.person(&run, "ann").await;
        refused(act(&second.node, &edited, "approve").await, 403, "own_change");
        let keys = person(&run, "keys", &VERBS, "*").await;
        let grants = json!([{ "verbs": ALL, "definitions": [env.all()] }]);
        let invented = json!({ "person": run.key("invented") });
        let (id, key) = create_key(&keys.node, &grants, &invented).await;
        known(&run.all(), &key, true).await;
        let invented = Person { id, node: run.node.with_credential(&key) };
        refused(act(&invented.node, &edited, "approve").await, 403, "key_not_attested");
        refused(act(&run.node, &edited, "approve").await, 403, "key_not_attested");
        // An approval ends with its key.
        act(&bob.node, &edited, "approve").await.expect(200);
        run.node.delete(&format!("{KEYS}{}", bob.id)).await.expect(200);
        let shown = ann.node.get(&at(&made)).await.expect(200);
        assert_eq!(
            (&shown.data()["approved"], &shown.data()["approvals"][0]["counts"]),
            (&json!(false), &json!(false))
        );
        refused(act(&ann.node, &edited, "apply").await, 409, "not_approved");
        // It ends when the key may not approve any more.
        let dan = env.person(&run, "dan").await;
        act(&dan.node, &edited, "approve").await.expect(200);
        let less = json!({ "grants": [{ "verbs": ["read", "write"], "definitions": [env.all()] }] });
        run.node.call(Method::PATCH, &format!("{KEYS}{}", dan.id)).json(&less).await.expect(200);
        refused(act(&ann.node, &edited, "apply").await, 409, "not_approved");
        // One rejection stops an edition, whatever else there is.
        let [eve, finn] = [env.person(&run, "eve").await, env.person(&run, "finn").await];
        act(&eve.node, &edited, "approve").await.expect(200);
        let rejected = act(&finn.node, &edited, "reject").await.expect(200);
        assert_eq!(rejected.data()["approved"], false);
        refused(act(&ann.node, &edited, "apply").await, 409, "not_approved");
        act(&ann.node, &edited, "withdraw").await.detail(&[(json!(["body", "digest"]), "extra_forbidden")]);
        let gone =
            ann.node.post(&format!("{}/withdraw", at(&made)), &json!({"comment": "no"})).await.expect(200);
        assert_eq!(
            (&gone.data()["phase"], &gone.data()["closed"]["reason"]),
            (&json!("closed"), &json!("withdrawn"))
        );
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}));
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_sender_without_an_attested_key_needs_one_approval_more() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [bob, carol] = [env.person(&run, "bob").await, env.person(&run, "carol").await];
        let grants = json!([{ "verbs": ["read", "propose"], "definitions": [env.all()] }]);
        let (_, machine) = create_key(&run.node, &grants, &json!({})).await;
        known(&run.all(), &machine, true).await;
        let machine = run.node.with_credential(&machine);
        let made = create(&machine, &[env.put(2)]).await.expect(201);
        assert_eq!((&made.data()["attested"], &made.data()["approvals_needed"]), (&json!(false), &json!(2)));
        act(&bob.node, &made, "approve").await.expect(200);
        refused(act(&machine, &made, "apply").await, 409, "not_approved");
        act(&carol.node, &made, "approve").await.expect(200);
        // The machine may not write; those who approved may.
        act(&machine, &made, "apply").await.expect(200);
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 2}));
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn nobody_gains_a_permission_by_a_change_request() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let few = ["read", "propose", "approve"];
        let ann = person(&run, "ann", &few, &env.all()).await;
        let bob = person(&run, "bob", &few, &env.all()).await;
        let carol = env.person(&run, "carol").await;
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        for applier in [&ann, &bob] {
            let answer = act(&applier.node, &made, "apply").await.refused(403, "forbidden_error");
            assert_eq!(answer.body["errors"][0]["loc"], json!(["operations", 0]), "{answer:?}");
        }
        // One of the three may write.
        act(&carol.node, &made, "apply").await.expect(200);
        let elsewhere = put("elsewhere", "k", json!({}));
        create(&ann.node, &[elsewhere]).await.refused(403, "forbidden_error");
        let reader = person(&run, "reader", &["read"], &env.all()).await;
        create(&reader.node, &[env.put(3)]).await.refused(403, "forbidden_error");
        act(&reader.node, &made, "approve").await.refused(403, "forbidden_error");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_record_that_changed_makes_a_change_request_stale_until_it_is_rebased() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob] = [env.person(&run, "ann").await, env.person(&run, "bob").await];
        let patch = |name: &str| {
            let key = &env.d.key;
            json!({"op": "patch_config", "config_definition_key": key, "config_key": "k", "patch": {name: true}})
        };
        let [one, two] = [
            create(&ann.node, &[patch("one")]).await.expect(201),
            create(&ann.node, &[patch("two")]).await.expect(201),
        ];
        for change in [&one, &two] {
            act(&bob.node, change, "approve").await.expect(200);
        }
        act(&ann.node, &one, "apply").await.expect(200);
        let stale = refused(act(&ann.node, &two, "apply").await, 409, "change_stale");
        let msg = stale.body["errors"][0]["msg"].as_str().expect("a text");
        assert!(msg.contains(&format!("{}/k", env.d.key)) && msg.contains("rebase"), "{stale:?}");
        let shown = ann.node.get(&at(&two)).query(&[("include", "preview")]).await.expect(200);
        assert!(shown.data()["stale"].is_string(), "{shown:?}");
        let record = &shown.data()["preview"]["records"][0];
        assert_ne!(record["base_revision"], record["revision"]);
        let rebased = ann.node.post(&format!("{}/rebase", at(&two)), &json!({})).await.expect(200);
        assert_eq!((&rebased.data()["stale"], &rebased.data()["approved"]), (&Value::Null, &json!(false)));
        refused(act(&ann.node, &rebased, "apply").await, 409, "not_approved");
        act(&bob.node, &rebased, "approve").await.expect(200);
        act(&ann.node, &rebased, "apply").await.expect(200);
        let data = &env.d.get("k").await.body["data"]["data"];
        assert_eq!(*data, json!({"n": 1, "one": true, "two": true}), "the patch is made of the new record");
        // A condition is judged when it is sent.
        let mut conditional = env.put(9);
        conditional["if_match"] = "1".into();
        create(&ann.node, &[conditional]).await.refused(412, "precondition_failed");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn definitions_change_and_return_and_go_by_change_request() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob] = [env.person(&run, "ann").await, env.person(&run, "bob").await];
        let done = async |operations: &[Value]| {
            let made = create(&ann.node, operations).await.expect(201);
            act(&bob.node, &made, "approve").await.expect(200);
            act(&ann.node, &made, "apply").await
        };
        let new = format!("{}.new", env.name);
        let definition = |op: &str| json!({"op": op, "config_definition_key": new});
        let mut create_definition = definition("create_definition");
        create_definition["indexes"] = json!(["n"]);
        done(&[create_definition, put(&new, "a", json!({"n": 1})).tap("upsert", json!(true))])
            .await
            .expect(200);
        let read = run.node.get(&format!("{DEFINITIONS}{new}/config/a")).await.expect(200);
        assert_eq!(read.data()["data"], json!({"n": 1}));
        let schema = json!({"properties": {"n": {"type": "integer"}}});
        done(&[definition("set_schema").tap("json_schema", schema)]).await.expect(200);
        // What breaks the schema is found when it is sent, and again when it is applied.
        create(&ann.node, &[put(&new, "a", json!({"n": "x"}))]).await.invalid();
        let strict = json!({"properties": {"n": {"type": "string"}}});
        done(&[definition("set_schema").tap("json_schema", strict)]).await.invalid();
        done(&[definition("set_protection").tap("protected", json!(true))]).await.expect(200);
        done(&[definition("set_protection").tap("protected", json!(false))]).await.expect(200);
        // The deletion rests on the configs, too.
        let deletion = create(&ann.node, &[definition("delete_definition")]).await.expect(201);
        act(&bob.node, &deletion, "approve").await.expect(200);
        done(&[put(&new, "a", json!({"n": 2}))]).await.expect(200);
        refused(act(&ann.node, &deletion, "apply").await, 409, "change_stale");
        done(&[definition("delete_definition")]).await.expect(200);
        run.node.get(&format!("{DEFINITIONS}{new}")).await.expect(404);
        done(&[definition("undelete_definition")]).await.expect(200);
        let read = run.node.get(&format!("{DEFINITIONS}{new}/config/a")).await.expect(200);
        assert_eq!(read.data()["data"], json!({"n": 2}));
        let both = create(&ann.node, &[definition("undelete_definition"), env.put(1)]).await.invalid();
        assert_eq!(both.body["errors"][0]["loc"], json!(["operations", 0, "op"]));
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn the_rules_of_an_environment_change_by_its_rules() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob] = [env.person(&run, "ann").await, env.person(&run, "bob").await];
        let rules = |more: Value| {
            let mut operation = json!({"op": "put_environment", "environment": env.name, "freeze": []});
            for (name, value) in more.as_object().into_iter().flatten() {
                operation[name] = value.clone();
            }
            operation
        };
        let made = create(&ann.node, &[rules(json!({"direct": "allow", "approvals": 0}))]).await.expect(201);
        assert_eq!(made.data()["environment"], *env.name);
        let shown = bob.node.get(&at(&made)).query(&[("include", "preview")]).await.expect(200);
        assert_eq!(shown.data()["preview"]["environment_effect"], json!({"definitions": 1, "configs": 1}));
        assert_eq!(shown.data()["preview"]["records"][0]["fields"], json!(["/direct", "/approvals"]));
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        act(&bob.node, &made, "approve").await.expect(200);
        // Rules that change between the approval and the apply: the environment was the base.
        let other =
            create(&ann.node, &[rules(json!({"direct": "refuse", "approvals": 1}))]).await.expect(201);
        act(&bob.node, &other, "approve").await.expect(200);
        act(&ann.node, &other, "apply").await.expect(200);
        refused(act(&ann.node, &made, "apply").await, 409, "change_stale");
        let rebased = ann.node.post(&format!("{}/rebase", at(&made)), &json!({})).await.expect(200);
        act(&bob.node, &rebased, "approve").await.expect(200);
        act(&ann.node, &rebased, "apply").await.expect(200);
        env.d.put("k", &json!({"n": 5})).await.expect(200);
        end(&run, &env.name, false).await;
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_becomes_stricter_holds_for_what_was_approved_before() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob, carol] = [env.person(&run, "ann").await, env.person(&run, "bob").await, env.person(&run, "carol").await];
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        let rules = json!({"op": "put_environment", "environment": env.name, "direct": "refuse", "approvals": 2, "freeze": []});
        let stricter = create(&ann.node, &[rules]).await.expect(201);
        act(&bob.node, &stricter, "approve").await.expect(200);
        act(&ann.node, &stricter, "apply").await.expect(200);
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        act(&carol.node, &made, "approve").await.expect(200);
        act(&ann.node, &made, "apply").await.expect(200);
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_change_request_is_seen_by_who_may_read_all_of_it() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let other = definition_in(&run, &run.key("other")).await;
        let ann = person(&run, "ann", &ALL, "*").await;
        let part = env.person(&run, "part").await;
        let search = run.key("marker");
        let body =
            json!({"title": search, "operations": [env.put(2), put(&other.key, "k", json!({"n": 2}))]});
        let made = ann.node.post(CHANGES, &body).await.expect(201);
        let list = async |node: &Client| {
            let found = node.get(CHANGES).query(&[("search", &search)]).await.expect(200);
            (found.data()["meta"]["total"].clone(), found.keys_of("change_id"))
        };
        assert_eq!(list(&ann.node).await, (json!(1), vec![text(&made, "change_id")]));
        assert_eq!(list(&part.node).await, (json!(0), Vec::new()), "it is not counted");
        let absent = format!("{CHANGES}AAAAAAAAAAAA");
        let answers = async |path: &str| {
            let digest = json!({ "digest": text(&made, "digest") });
            let mut all = vec![part.node.get(path).query(&[("include", "preview")]).await];
            for action in ["approve", "reject", "review", "apply"] {
                all.push(part.node.post(&format!("{path}/{action}"), &digest).await);
            }
            for action in ["rebase", "withdraw"] {
                all.push(part.node.post(&format!("{path}/{action}"), &json!({})).await);
            }
            all.push(part.node.put(path, &json!({"title": "t", "operations": [env.put(3)]})).await);
            all.into_iter().map(|answer| (answer.status, answer.body)).collect::<Vec<_>>()
        };
        let hidden = answers(&at(&made)).await;
        assert!(hidden.iter().all(|(status, _)| *status == 404), "{hidden:?}");
        assert_eq!(hidden, answers(&absent).await, "as if it did not exist");
        // Labels are for those who take part.
        let reader = person(&run, "reader", &["read"], "*").await;
        let shown = reader.node.get(&at(&made)).await.expect(200);
        assert_eq!(shown.data()["sender"]["person"], Value::Null);
        assert_eq!(shown.data()["sender"]["key_id"], *ann.id);
        let marker = run.key("ann").to_lowercase();
        for path in ["/api/v1/cluster", "/metrics", DEFINITIONS, "/api/v1/changes?from=1&wait=0"] {
            let answer = run.node.get(path).await;
            assert!(!answer.text.contains(&marker) && !answer.text.contains(&search), "{answer:?}");
        }
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_preview_shows_no_secret_value_and_tells_nobody_whether_they_guessed_one() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let secret = json!({"properties": {"pin": {"x-concord-secret": true}, "n": {}}});
        let key = format!("{name}.limits");
        run.ask(&key, &json!([]), &secret).await.expect(201);
        let d = Defined { key, node: run.node.clone() };
        d.create("k", &json!({"pin": "hunter2", "n": 1})).await.expect(201);
        approvers(&run, &name, 1).await;
        restrict(&run, &name, 1).await.expect(201);
        let all = format!("{name}.*");
        let sees = person(&run, "sees", &ALL, &all).await;
        let blind = person(&run, "blind", &["read", "write", "define", "approve"], &all).await;
        let preview = async |node: &Client, change: &Answer| {
            node.get(&at(change)).query(&[("include", "preview")]).await.expect(200)
        };
        for guess in ["hunter2", "wrong"] {
            let guessed = create(&blind.node, &[put(&d.key, "k", json!({"pin": guess, "n": 2}))]).await.expect(201);
            let shown = preview(&blind.node, &guessed).await;
            let record = &shown.data()["preview"]["records"][0];
            assert_eq!(record["fields"], json!(["/n"]), "the same whether it is right or not");
            assert_eq!((&record["before"]["pin"], &record["after"]["pin"]), (&Value::Null, &Value::Null));
            assert!(!shown.text.contains("hunter2"), "{shown:?}");
        }
        let made = create(&sees.node, &[put(&d.key, "k", json!({"pin": "swordfish", "n": 1}))]).await.expect(201);
        assert!(preview(&sees.node, &made).await.text.contains("swordfish"));
        let shown = preview(&blind.node, &made).await;
        assert!(!shown.text.contains("swordfish") && !shown.text.contains("hunter2"), "{shown:?}");
        // An edition that takes the mark away shows nothing either.
        let open = json!({"op": "set_schema", "config_definition_key": d.key, "json_schema": {"properties": {"pin": {}, "n": {}}}});
        let unmarked = create(&sees.node, &[open, put(&d.key, "k", json!({"pin": "swordfish", "n": 1}))]).await.expect(201);
        let shown = preview(&blind.node, &unmarked).await;
        assert!(!shown.text.contains("swordfish") && !shown.text.contains("hunter2"), "{shown:?}");
        // A reviewer who did not see all of it counts, and it is said.
        let approved = act(&blind.node, &made, "approve").await.expect(200);
        assert_eq!((&approved.data()["approvals"][0]["redacted"], &approved.data()["approved"]), (&json!(true), &json!(true)));
        act(&sees.node, &made, "apply").await.expect(200);
        assert_eq!(d.get("k").await.data()["data"]["pin"], "swordfish");
        // A kept value is kept as it was when the edition was sent.
        let keep = json!({"pin": {"$concord-keep": true}, "n": 7});
        let kept = create(&blind.node, &[put(&d.key, "k", keep)]).await.expect(201);
        act(&sees.node, &kept, "approve").await.expect(200);
        act(&blind.node, &kept, "apply").await.expect(200);
        assert_eq!(d.get("k").await.data()["data"], json!({"pin": "swordfish", "n": 7}));
        end(&run, &name, true).await;
    })
    .await;
}

#[tokio::test]
async fn a_bypass_is_done_at_once_and_waits_for_a_review() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let mut verbs = ALL.to_vec();
        verbs.push("bypass");
        let ann = person(&run, "ann", &verbs, &env.all()).await;
        let bob = env.person(&run, "bob").await;
        let write = |node: &Client, n: u64| {
            node.put(&env.d.config("k"), &json!({"data": {"n": n}})).query(&[("bypass", "true")])
        };
        let reason = "incident 4711";
        write(&ann.node, 2).await.invalid();
        write(&bob.node, 2).header("x-change-reason", reason).await.refused(403, "forbidden_error");
        let written = write(&ann.node, 2).header("x-change-reason", reason).await.expect(200);
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 2}));
        let unreviewed = [("unreviewed", "true"), ("environment", &env.name)];
        let list = bob.node.get(CHANGES).query(&unreviewed).await.expect(200);
        let change = &list.data()["results"][0];
        assert_eq!(
            (&change["bypass"], &change["phase"], &change["title"]),
            (&json!(true), &json!("applied"), &json!(reason))
        );
        assert_eq!(format!("\"{}\"", change["applied"]["revision"]), written.tag());
        let raised = async || {
            let cluster = run.node.get("/api/v1/cluster").await.expect(200);
            let alarms = cluster.data()["alarms"].as_array().cloned().unwrap_or_default();
            alarms.iter().any(|alarm| alarm["type"] == "bypass_unreviewed")
        };
        assert!(raised().await);
        let id = change["change_id"].as_str().expect("an id").to_owned();
        let digest = json!({ "digest": change["digest"], "comment": "right" });
        let review = |node: &Client| node.post(&format!("{CHANGES}{id}/review"), &digest);
        refused(review(&ann.node).await, 403, "own_change");
        refused(review(&run.node).await, 403, "key_not_attested");
        let reviewed = review(&bob.node).await.expect(200);
        assert_eq!(reviewed.data()["reviews_missing"], 0);
        let list = bob.node.get(CHANGES).query(&unreviewed).await.expect(200);
        assert_eq!(list.data()["meta"]["total"], 0);
        // A retry is the same bypass, and finds its answer.
        let keyed = || {
            write(&ann.node, 3).header("x-change-reason", reason).header("idempotency-key", &run.key("id"))
        };
        let first = keyed().await.expect(200);
        assert_eq!(keyed().await.expect(200).tag(), first.tag());
        let list = bob.node.get(CHANGES).query(&unreviewed).await.expect(200);
        assert_eq!(list.data()["meta"]["total"], 1);
        // The rules themselves are bypassed with the root key only.
        let rules = json!({"direct": "allow", "approvals": 0, "freeze": []});
        let loosen = |node: &Client| {
            let put = node.put(&environment(&env.name), &rules).query(&[("bypass", "true")]);
            put.header("x-change-reason", reason)
        };
        loosen(&ann.node).await.refused(403, "forbidden_error");
        loosen(&run.node).await.expect(200);
        env.d.put("k", &json!({"n": 9})).await.expect(200);
        end(&run, &env.name, false).await;
    })
    .await;
}

#[tokio::test]
async fn a_retried_create_finds_its_change_request() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let id = run.key("id");
        let first = create(&ann.node, &[env.put(2)]).header("idempotency-key", &id).await.expect(201);
        for node in run.all() {
            let node = node.with_credential(&ann.node.key);
            let again = create(&node, &[env.put(2)]).header("idempotency-key", &id).await.expect(201);
            assert_eq!(text(&again, "change_id"), text(&first, "change_id"));
        }
        let other = create(&ann.node, &[env.put(3)]).header("idempotency-key", &id).await;
        refused(other, 422, "idempotency_key_reused");
        let list = ann.node.get(CHANGES).query(&[("environment", &env.name)]).await.expect(200);
        assert_eq!(list.data()["meta"]["total"], 1);
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_no_change_request_is_refused_with_its_place() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let post = |body: Value| ann.node.post(CHANGES, &body);
        let operations = || vec![env.put(2)];
        for (body, loc, expected) in [
            (json!({"title": "", "operations": operations()}), json!(["title"]), "change_invalid"),
            (json!({"title": "a\nb", "operations": operations()}), json!(["title"]), "change_invalid"),
            (json!({"title": "\u{202e}", "operations": operations()}), json!(["title"]), "change_invalid"),
            (json!({"title": "t".repeat(256), "operations": operations()}), json!(["title"]), "change_invalid"),
            (json!({"title": "t", "description": "\u{7f}", "operations": operations()}), json!(["description"]), "change_invalid"),
            (json!({"title": "t", "operations": []}), json!(["operations"]), "body_invalid"),
        ] {
            let answer = post(body).await.invalid();
            assert_eq!((code(&answer), &answer.body["errors"][0]["loc"]), (expected, &loc), "{answer:?}");
        }
        let check = json!({"op": "check_config", "config_definition_key": env.d.key, "config_key": "k", "absent": true});
        post(json!({"title": "t", "operations": [check]})).await.invalid();
        let mut more = json!({"title": "t", "operations": operations()});
        more["sheduled"] = json!({});
        post(more).await.detail(&[(json!(["body", "sheduled"]), "extra_forbidden")]);
        let absent = json!({"op": "delete_config", "config_definition_key": env.d.key, "config_key": "absent"});
        post(json!({"title": "t", "operations": [absent]})).await.refused(404, "not_found_error");
        let made = create(&ann.node, &operations()).await.expect(201);
        let wrong = ann.node.post(&format!("{}/approve", at(&made)), &json!({"digest": "00"})).await.invalid();
        assert_eq!(code(&wrong), "change_invalid");
        refused(ann.node.get(&format!("{CHANGES}absent")).await, 404, "change_not_found");
        env.end(&run).await;
    })
    .await;
}

/// Adds a member to an operation.
trait Tap {
    fn tap(self, name: &str, value: Value) -> Self;
}

impl Tap for Value {
    fn tap(mut self, name: &str, value: Value) -> Self {
        self[name] = value;
        self
    }
}

#[tokio::test]
async fn who_may_change_the_rules_is_shown_how_many_persons_could_approve() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let shown = async |node: &Client| {
            let one = node.get(&environment(&env.name)).await.expect(200).data()["approvers"].clone();
            let all = node.get(&environment("")).await.expect(200).data()["results"].clone();
            let listed = all.as_array().expect("a list").iter().find(|one| one["environment"] == env.name);
            assert_eq!(listed.expect("it is listed")["approvers"].is_null(), one.is_null());
            one
        };
        // Other tests make persons who may approve everything.
        let is_least = |shown: Value, least: u64| assert!(shown.as_u64() >= Some(least), "{shown}, {least}");
        is_least(shown(&run.node).await, 2);
        let ann = env.person(&run, "ann").await;
        is_least(shown(&ann.node).await, 3);
        let reader = person(&run, "reader", &["read", "approve"], &env.all()).await;
        assert_eq!(shown(&reader.node).await, Value::Null);
        is_least(shown(&run.node).await, 4);
        env.end(&run).await;
        let plain = run.node.put(&environment(&env.name), &json!({"freeze": []})).await.expect(201);
        assert_eq!(plain.data()["approvers"], Value::Null, "none is needed");
        run.node.delete(&environment(&env.name)).await.expect(200);
    })
    .await;
}
