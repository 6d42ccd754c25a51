//! Feature flags: evaluations by OFREP, and the document that flagd fetches.

use http::Method;
use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client, watch::Watch},
    hostile::grants::{create_key, known},
};

/// A flag that is on for readers in one country, and for a fifth of the others.
fn flag() -> Value {
    let rule = json!({ "if": [{ "$ref": "at_home" }, "on", { "fractional": [["on", 20], ["off", 80]] }] });
    json!({ "state": "ENABLED", "variants": { "on": true, "off": false }, "defaultVariant": "off", "targeting": rule })
}

fn shared() -> Value {
    json!({ "$evaluators": { "at_home": { "==": [{ "var": "country" }, "de"] } }, "metadata": { "set": "shop" } })
}

async fn defined(run: &Run) -> Defined {
    let d = run.define_open("flags").await;
    let price = json!({ "state": "ENABLED", "variants": { "low": 1.5 }, "defaultVariant": "low", "metadata": { "team": "a" } });
    let none = json!({ "state": "ENABLED", "variants": { "on": true } });
    let off = json!({ "state": "DISABLED", "variants": { "on": true }, "defaultVariant": "on" });
    let broken = json!({ "state": "ENABLED", "variants": {}, "defaultVariant": "x" });
    d.fill(&[("checkout", flag()), ("price", price), ("none", none), ("off", off), ("broken", broken)]).await;
    d.fill(&[("shared~", shared())]).await;
    d
}

fn all(node: &Client, d: &Defined, context: &Value) -> Call {
    node.post(&format!("/api/v1/flags/{}/ofrep/v1/evaluate/flags", d.key), &json!({ "context": context }))
}

fn one(node: &Client, d: &Defined, flag: &str, context: &Value) -> Call {
    let path = format!("/api/v1/flags/{}/ofrep/v1/evaluate/flags/{flag}", d.key);
    node.post(&path, &json!({ "context": context }))
}

/// The body of a rejection, which names the flag.
fn failure(answer: &Answer, status: u16, flag: &str, code: &str) {
    let (key, details) = (&answer.body["key"], &answer.body["errorDetails"]);
    assert_eq!(
        (answer.status, key, &answer.body["errorCode"]),
        (status, &json!(flag), &json!(code)),
        "{answer:?}"
    );
    assert!(details.as_str().is_some_and(|details| !details.is_empty()), "{answer:?}");
}

#[tokio::test]
async fn a_flag_is_evaluated_for_a_reader() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let home = one(&run.node, &d, "checkout", &json!({ "country": "de" })).await.expect(200);
        let wanted = json!({ "key": "checkout", "value": true, "reason": "TARGETING_MATCH", "variant": "on",
            "metadata": { "set": "shop" } });
        assert_eq!(home.body, wanted);
        // MurmurHash3 of the flag's key and the reader decides.
        let mut on = 0;
        for reader in 0..50 {
            let context = json!({ "targetingKey": format!("user-{reader}"), "country": "fr" });
            let answer = one(&run.node, &d, "checkout", &context).await.expect(200);
            assert_eq!(answer.body, one(&run.others[0], &d, "checkout", &context).await.expect(200).body);
            on += usize::from(answer.body["value"] == json!(true));
        }
        assert!((3..25).contains(&on), "{on} of 50 where a fifth is meant");
        // Without a reader there is nobody to draw for.
        let nobody = one(&run.node, &d, "checkout", &json!({})).await.expect(200);
        assert_eq!((&nobody.body["value"], &nobody.body["reason"]), (&json!(false), &json!("DEFAULT")));
        let price = one(&run.node, &d, "price", &json!({})).await.expect(200);
        assert!(price.text.contains(r#""value":1.5"#), "{price:?}");
        assert_eq!(price.body["metadata"], json!({ "team": "a", "set": "shop" }));
    })
    .await;
}

#[tokio::test]
async fn what_has_no_value_says_why() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        for (flag, reason) in [("none", "DEFAULT"), ("off", "DISABLED")] {
            let answer = one(&run.node, &d, flag, &json!({})).await.expect(200);
            assert_eq!(
                (&answer.body["reason"], &answer.body["variant"]),
                (&json!(reason), &json!("")),
                "{answer:?}"
            );
            assert_eq!(answer.body.get("value"), None, "the program has its own default");
        }
        failure(&one(&run.node, &d, "absent", &json!({})).await, 404, "absent", "FLAG_NOT_FOUND");
        failure(&one(&run.node, &d, "shared~", &json!({})).await, 404, "shared~", "FLAG_NOT_FOUND");
        failure(&one(&run.node, &d, "broken", &json!({})).await, 400, "broken", "PARSE_ERROR");
        let context = json!({ "targetingKey": 7 });
        failure(&one(&run.node, &d, "price", &context).await, 400, "price", "INVALID_CONTEXT");
        failure(&one(&run.node, &d, "price", &json!([])).await, 400, "price", "INVALID_CONTEXT");
        let elsewhere = Defined { key: run.key("absent"), node: run.node.clone() };
        failure(&one(&run.node, &elsewhere, "price", &json!({})).await, 404, "price", "FLAG_NOT_FOUND");
        let no_key = Defined { key: "-".into(), node: run.node.clone() };
        failure(&one(&run.node, &no_key, "price", &json!({})).await, 400, "price", "PARSE_ERROR");
        let path = format!("/api/v1/flags/{}/ofrep/v1/evaluate/flags/price", d.key);
        let malformed = run.node.call(Method::POST, &path).text("application/json", "{").await;
        failure(&malformed, 400, "price", "PARSE_ERROR");
        let stale = run.node.call(Method::POST, &path).json(&json!({})).query(&[("consistency", "no")]).await;
        failure(&stale, 400, "price", "PARSE_ERROR");
        let long = json!({ "context": { "text": "x".repeat(300 << 10) } });
        failure(&run.node.post(&path, &long).await, 413, "price", "GENERAL");
        let unknown = run.node.bare(Method::POST, &path).json(&json!({})).await;
        failure(&unknown, 401, "price", "GENERAL");
        // What a provider sends besides has no effect.
        let more =
            run.node.post(&path, &json!({ "context": null, "more": 1 })).query(&[("flagConfigEtag", "x")]);
        more.await.expect(200);
        run.node.call(Method::POST, &path).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn all_flags_have_a_tag_of_what_they_are_for_this_reader() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let here = json!({ "country": "de" });
        let first = all(&run.node, &d, &here).await.expect(200);
        let flags = first.body["flags"].as_array().expect("flags");
        let keys: Vec<&str> = flags.iter().map(|flag| flag["key"].as_str().expect("a key")).collect();
        assert_eq!(keys, ["broken", "checkout", "none", "off", "price"]);
        assert_eq!((&flags[0]["errorCode"], &flags[1]["value"]), (&json!("PARSE_ERROR"), &json!(true)));
        assert_eq!(first.body["metadata"], json!({ "set": "shop" }));
        let tag = first.header("etag").to_owned();
        let again = all(&run.others[1], &d, &here).header("if-none-match", &tag).await.expect(304);
        assert_eq!((again.text.as_str(), again.header("etag")), ("", tag.as_str()));
        // Another reader, and another flag.
        let away =
            all(&run.node, &d, &json!({ "country": "fr" })).header("if-none-match", &tag).await.expect(200);
        assert_ne!(away.header("etag"), tag);
        let mut off = flag();
        off["state"] = json!("DISABLED");
        d.put("checkout", &off).await.expect(200);
        let changed = all(&run.node, &d, &here).header("if-none-match", &tag).await.expect(200);
        assert_eq!(changed.body["flags"][1]["reason"], json!("DISABLED"));
        assert!(changed.revision() > first.revision());
    })
    .await;
}

#[tokio::test]
async fn flagd_fetches_all_flags_as_one_document() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let path = format!("/api/v1/flags/{}/flagd.json", d.key);
        let document = run.node.get(&path).await.expect(200);
        assert_eq!(document.body["flags"]["checkout"], flag());
        assert_eq!(document.body["flags"].as_object().expect("flags").len(), 5);
        assert_eq!(document.body["$evaluators"], shared()["$evaluators"]);
        assert_eq!(document.body["metadata"], shared()["metadata"]);
        let tag = document.header("etag").to_owned();
        run.others[0].get(&path).header("if-none-match", &tag).await.expect(304);
        d.remove("price").await.expect(200);
        let changed = run.node.get(&path).header("if-none-match", &tag).await.expect(200);
        assert_eq!(changed.body["flags"].get("price"), None);
        run.node.get(&format!("/api/v1/flags/{}/flagd.json", run.key("absent"))).await.expect(404);
        run.node.get("/api/v1/flags/-/flagd.json").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_flag_with_a_secret_part_has_no_value_without_reveal() {
    on_leader_and_follower(async |run: Run| {
        let secret = json!({ "properties": { "variants": { "properties": { "token": { "x-concord-secret": true } } } } });
        let d = run.define("secret-flags", &json!([]), &secret).await;
        let token = json!({ "state": "ENABLED", "variants": { "token": "s3cret" }, "defaultVariant": "token" });
        d.fill(&[("token", token), ("checkout", flag()), ("shared~", shared())]).await;
        let grants = |verbs: Value| json!([{ "verbs": verbs, "definitions": [d.key] }]);
        let (_, plain) = create_key(&run.node, &grants(json!(["read"])), &json!({})).await;
        let (_, reveals) = create_key(&run.node, &grants(json!(["read", "reveal"])), &json!({})).await;
        known(&run.all(), &reveals, true).await;
        known(&run.all(), &plain, true).await;
        let path = format!("/api/v1/flags/{}/flagd.json", d.key);
        // First those who see all of it, so that what is compiled for them is there.
        for key in [&run.node.key, &reveals] {
            let node = run.node.with_credential(key);
            assert_eq!(one(&node, &d, "token", &json!({})).await.expect(200).body["value"], json!("s3cret"));
            assert!(node.get(&path).await.expect(200).text.contains("s3cret"));
        }
        let node = run.node.with_credential(&plain);
        failure(&one(&node, &d, "token", &json!({})).await, 400, "token", "GENERAL");
        let every = all(&node, &d, &json!({ "country": "de" })).await.expect(200);
        assert_eq!((&every.body["flags"][0]["value"], &every.body["flags"][1]["errorCode"]), (&json!(true), &json!("GENERAL")));
        let document = node.get(&path).await.expect(200);
        assert_eq!(document.body["flags"].as_object().expect("flags").keys().collect::<Vec<_>>(), ["checkout"]);
        for answer in [&every, &document] {
            assert!(!answer.text.contains("s3cret"), "{answer:?}");
            assert_eq!(answer.header("x-concord-redacted"), "#/variants/token");
        }
        let again = all(&node, &d, &json!({ "country": "de" })).header("if-none-match", every.header("etag"));
        let document_again = node.get(&path).header("if-none-match", document.header("etag"));
        for known in [again.await.expect(304), document_again.await.expect(304)] {
            assert_eq!(known.header("x-concord-redacted"), "#/variants/token");
        }
    })
    .await;
}

#[tokio::test]
async fn a_secret_that_flags_share_hides_those_that_refer_to_it() {
    on_leader_and_follower(async |run: Run| {
        let secret = json!({ "properties": { "$evaluators": { "x-concord-secret": true } } });
        let d = run.define("secret-rules", &json!([]), &secret).await;
        let own = json!({ "state": "ENABLED", "variants": { "on": 1 }, "defaultVariant": "on" });
        d.fill(&[("checkout", flag()), ("own", own), ("shared~", shared())]).await;
        let grants = json!([{ "verbs": ["read"], "definitions": [d.key] }]);
        let (_, plain) = create_key(&run.node, &grants, &json!({})).await;
        known(&run.all(), &plain, true).await;
        let node = run.node.with_credential(&plain);
        let hidden = one(&node, &d, "checkout", &json!({ "country": "de" })).await;
        failure(&hidden, 400, "checkout", "GENERAL");
        let details = hidden.body["errorDetails"].as_str().expect("a text");
        assert!(details.contains("`reveal`") && details.contains("`shared~`"), "{details}");
        let shown = one(&node, &d, "own", &json!({})).await.expect(200);
        assert_eq!((&shown.body["value"], shown.body.get("metadata")), (&json!(1), None));
        for answer in [&hidden, &shown] {
            assert_eq!(answer.header("x-concord-redacted"), "#/$evaluators");
        }
        let root = one(&run.node, &d, "checkout", &json!({ "country": "de" })).await.expect(200);
        assert_eq!(root.body["value"], json!(true));
    })
    .await;
}

#[tokio::test]
async fn a_path_without_a_definition_is_of_the_definition_flags() {
    on_leader_and_follower(async |run: Run| {
        let made = run.ask("flags", &json!([]), &Value::Null).await;
        assert!(matches!(made.status, 201 | 409), "{made:?}");
        let d = Defined { key: "flags".into(), node: run.node.clone() };
        let key = run.key("f");
        d.create(&key, &flag()).await.expect(201);
        // What they share is not there, so the rule names what there is not.
        let answer = run.node.post(&format!("/ofrep/v1/evaluate/flags/{key}"), &json!({})).await;
        failure(&answer, 400, &key, "PARSE_ERROR");
        let every = run.node.post("/ofrep/v1/evaluate/flags", &json!({})).await.expect(200);
        assert!(every.text.contains(&key), "{every:?}");
        d.remove(&key).await.expect(200);
        failure(
            &run.node.post(&format!("/ofrep/v1/evaluate/flags/{key}"), &json!({})).await,
            404,
            &key,
            "FLAG_NOT_FOUND",
        );
    })
    .await;
}

/// Reads a stream until an event names a revision from here on.
async fn refetched(stream: &mut Watch, from: u64) {
    loop {
        let event = stream.event().await;
        assert_eq!(
            (event.name.as_str(), &event.data["type"]),
            ("message", &json!("refetchEvaluation")),
            "{event:?}"
        );
        let revision = event.id.expect("an id");
        assert_eq!(event.data["etag"], json!(revision.to_string()));
        if revision >= from {
            break;
        }
    }
}

#[tokio::test]
async fn a_page_learns_of_changes_with_a_ticket_in_place_of_its_key() {
    on_leader_and_follower(async |run: Run| {
        let d = defined(&run).await;
        let grants = |definition: &str| json!([{ "verbs": ["read"], "definitions": [definition] }]);
        let (id, key) = create_key(&run.node, &grants(&format!("{}*", d.key)), &json!({})).await;
        known(&run.all(), &key, true).await;
        let page = run.node.with_credential(&key);
        let every = all(&page, &d, &json!({})).await.expect(200);
        let stream = &every.body["eventStreams"][0];
        assert_eq!(stream["type"], json!("sse"));
        let address = stream["endpoint"]["requestUri"].as_str().expect("a path").to_owned();
        let tag = every.header("etag").to_owned();
        // The same at every node, and with the key in place of the ticket.
        all(&run.others[0].with_credential(&key), &d, &json!({}))
            .header("if-none-match", &tag)
            .await
            .expect(304);
        let (path, ticket) = address.split_once("?ticket=").expect("a ticket");
        assert!(!ticket.contains(&key));
        let mut with_key = Watch::of(&page.get(path)).await;
        let bare =
            |path: &str, ticket: &str| run.others[1].bare(Method::GET, path).query(&[("ticket", ticket)]);
        let mut opened = Watch::of(&bare(path, ticket)).await;
        assert_eq!(opened.header("content-type"), "text/event-stream");
        refetched(&mut opened, 0).await;
        let changed = d.remove("price").await.expect(200).revision();
        refetched(&mut opened, changed).await;
        refetched(&mut with_key, changed).await;
        // A ticket is for one path, and no other request takes one.
        let mut other = ticket.to_owned();
        let last = if other.ends_with('0') { "1" } else { "0" };
        other.replace_range(ticket.len() - 1.., last);
        let sibling = format!("/api/v1/flags/{}x/events", d.key);
        let flagd = format!("/api/v1/flags/{}/flagd.json", d.key);
        for (path, ticket) in
            [(path, other.as_str()), (path, ""), (sibling.as_str(), ticket), (flagd.as_str(), ticket)]
        {
            assert_eq!(bare(path, ticket).await.status, 401, "{path} {ticket}");
        }
        let both = run.node.with_credential("wrong").get(path).query(&[("ticket", ticket)]).await;
        assert_eq!(both.status, 401, "the header counts");
        assert_eq!(
            all(&run.node, &d, &json!({})).await.expect(200).body.get("eventStreams"),
            None,
            "the root key"
        );
        // It ends with the key.
        run.node.delete(&format!("/api/v1/api_key/{id}")).await.expect(200);
        known(&run.all(), &key, false).await;
        assert_eq!(bare(path, ticket).await.status, 401);
        while opened.next().await.is_ok_and(|event| event.is_some()) {}
    })
    .await;
}
