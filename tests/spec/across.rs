//! Lists of the configs of several definitions.

use http::Method;
use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client, answer},
    hostile::grants::{create_key, known},
};

const ALL: &str = "/api/v1/config";

fn list(node: &Client, patterns: &[&str], query: &[(&str, &str)]) -> Call {
    let named: Vec<(&str, &str)> = patterns.iter().map(|pattern| ("definition", *pattern)).collect();
    node.get(ALL).query(&named).query(query)
}

/// The records of a list: the keys of definition and config, the former without the prefix of the run.
fn names(run: &Run, answer: &Answer) -> Vec<String> {
    let prefix = run.key("");
    let definitions = answer.keys_of("config_definition_key");
    let both = definitions.iter().zip(answer.config_keys());
    both.map(|(definition, config)| format!("{}/{config}", definition.replace(&prefix, ""))).collect()
}

/// The path of the next page.
fn next_page(answer: &Answer) -> String {
    let link = answer.header("link").strip_prefix('<').and_then(|rest| rest.split_once('>'));
    link.expect("a link").0.to_owned()
}

/// Three definitions: `a.x` and `a.y`, where `n` is indexed in the first only, and `b`.
async fn filled(run: &Run) {
    let typed = json!({"properties": {"n": {"type": "integer"}}});
    let x = run.define("a.x", &json!(["n"]), &typed).await;
    let y = run.define("a.y", &json!(["s"]), &Value::Null).await;
    let b = run.define("b", &json!(["n", "s"]), &Value::Null).await;
    for number in 0..4 {
        x.create(&format!("k{number}"), &json!({"n": number})).await.expect(201);
        y.create(&format!("k{number}"), &json!({"n": number, "s": "z"})).await.expect(201);
        b.create(&format!("m{number}"), &json!({"n": format!("{number}"), "s": "z"})).await.expect(201);
    }
}

#[tokio::test]
async fn a_list_has_the_records_of_the_definitions_that_it_names() {
    on_leader_and_follower(async |run: Run| {
        filled(&run).await;
        let (a, b) = (run.key("a.*"), run.key("b"));
        let by_key = [("sort_by", "config_key"), ("sort_order", "asc"), ("limit", "5")];
        let first = list(&run.node, &[&a, &b], &by_key).await.expect(200);
        assert_eq!(names(&run, &first), ["a.x/k0", "a.y/k0", "a.x/k1", "a.y/k1", "a.x/k2"]);
        let meta = json!({"page": 1, "limit": 5, "total": 12});
        assert_eq!(first.data()["meta"], meta);
        let members = answer::names(&first.data()["results"][0]);
        assert_eq!(members, ["config_definition_key", "config_key", "created_at", "data", "modified_at"]);
        let newest = list(&run.node, &[&a, &b], &[("limit", "4")]).await.expect(200);
        assert_eq!(names(&run, &newest), ["b/m3", "a.y/k3", "a.x/k3", "b/m2"]);
        let deep = list(&run.node, &[&a, &b], &[("limit", "5"), ("page", "3")]).await.expect(200);
        assert_eq!(names(&run, &deep), ["a.y/k0", "a.x/k0"]);
        let grouped =
            [("sort_by", "config_definition_key"), ("sort_order", "desc"), ("limit", "3"), ("page", "2")];
        let grouped = list(&run.node, &[&a, &b], &grouped).await.expect(200);
        assert_eq!(names(&run, &grouped), ["b/m3", "a.y/k0", "a.y/k1"]);
        let found = list(&run.node, &[&a], &[("search", "K2")]).await.expect(200);
        assert_eq!(names(&run, &found), ["a.y/k2", "a.x/k2"]);
        let none = list(&run.node, &[&run.key("none.*")], &[]).await.expect(200);
        assert_eq!(none.total(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_record_shows_its_revision_and_the_parts_that_are_asked_for() {
    on_leader_and_follower(async |run: Run| {
        let a = run.define("a", &json!(["fields"]), &Value::Null).await;
        let b = run.define("b", &json!([]), &Value::Null).await;
        a.create("k", &json!({"fields": "x", "n": {"m": 1, "o": 2}})).await.expect(201);
        let created = b.create("k", &json!({"n": {"m": 3}, "p": true})).await.expect(201);
        let both = run.key("*");
        let sorted = [("sort_by", "config_definition_key"), ("sort_order", "asc")];
        let parts = list(&run.node, &[&both], &sorted).query(&[("include", "revision"), ("fields", "n.m")]);
        let parts = parts.await.expect(200);
        let results = parts.data()["results"].as_array().unwrap();
        let data: Vec<&Value> = results.iter().map(|record| &record["data"]).collect();
        assert_eq!(data, [&json!({"n": {"m": 1}}), &json!({"n": {"m": 3}})], "an index takes no name here");
        assert_eq!(format!("\"{}\"", results[1]["revision"]), created.tag());
        let escaped = list(&run.node, &[&both], &sorted).query(&[("$fields", "p"), ("limit", "1")]);
        let escaped = escaped.await.expect(200);
        assert_eq!(escaped.data()["results"][0]["data"], json!({}));
        assert_eq!(escaped.data()["results"][0].get("revision"), None);
        let next = run.node.get(&next_page(&escaped)).await.expect(200);
        assert_eq!(next.data()["results"][0]["data"], json!({"p": true}), "the link repeats it");
        list(&run.node, &[&both], &[("include", "etag")]).await.invalid();
        list(&run.node, &[&both], &[("fields", "a..b")]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_filter_is_read_by_each_definition_that_has_its_index() {
    on_leader_and_follower(async |run: Run| {
        filled(&run).await;
        let (all, x) = (run.key("*"), run.key("a.x"));
        let sorted = [("sort_by", "config_definition_key"), ("sort_order", "asc")];
        let one = list(&run.node, &[&all], &sorted).query(&[("n", "2")]).await.expect(200);
        assert_eq!(names(&run, &one), ["a.x/k2"], "in `b` the text is no number");
        let quoted = list(&run.node, &[&all], &sorted).query(&[("n", "\"2\"")]).await.expect(200);
        assert_eq!(names(&run, &quoted), ["b/m2"], "in `a.x` it can't be a string");
        let both = list(&run.node, &[&all], &sorted).query(&[("s", "z"), ("config_key[prefix]", "k")]);
        assert_eq!(both.await.expect(200).total(), 4);
        list(&run.node, &[&all], &[("other", "1")]).await.invalid();
        list(&run.node, &[&x], &[("s", "z")]).await.invalid();
        list(&run.node, &[&x], &[("n", "text")]).await.invalid();
        list(&run.node, &[&x], &[("sort_by", "n")]).await.invalid();
        list(&run.node, &[&x], &[("$revision", "1")]).await.invalid();
        list(&run.node, &["a b"], &[]).await.invalid();
        list(&run.node, &[&x], &[("page", "x")]).await.detail(&[(json!(["query", "page"]), "int_parsing")]);
    })
    .await;
}

#[tokio::test]
async fn the_pages_of_a_list_across_definitions_are_of_one_state() {
    on_leader_and_follower(async |run: Run| {
        filled(&run).await;
        let all = run.key("*");
        for query in [
            &[("sort_by", "config_key")][..],
            &[],
            &[("search", "k")],
            &[("sort_by", "created_at"), ("sort_order", "asc")],
        ] {
            let whole = list(&run.node, &[&all], query).query(&[("limit", "100")]).await.expect(200);
            let mut answer = list(&run.node, &[&all], query).query(&[("limit", "5")]).await.expect(200);
            let (mut found, revision) = (names(&run, &answer), answer.revision());
            for turn in 0..2 {
                let next = next_page(&answer);
                let x = run.node.put(
                    &format!("/api/v1/config_definition/{}/config/k{turn}", run.key("a.x")),
                    &json!({"data": {"n": 9}}),
                );
                x.await.expect(200);
                answer = run.all()[turn + 1].get(&next).await.expect(200);
                assert_eq!(answer.revision(), revision, "{answer:?}");
                found.extend(names(&run, &answer));
                if answer.headers.get("link").is_none() {
                    break;
                }
            }
            assert_eq!(found, names(&run, &whole), "{query:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_key_sees_and_counts_what_it_may_read_and_no_secret() {
    on_leader_and_follower(async |run: Run| {
        filled(&run).await;
        let marked = json!({"properties": {"n": {"type": "integer"},
            "password": {"type": "string", "x-concord-secret": true}}});
        let secret = run.define("a.secret", &json!(["n"]), &marked).await;
        secret.create("k9", &json!({"n": 1, "password": "hidden"})).await.expect(201);
        let patterns = [run.key("a.x"), run.key("a.secret")];
        let grants = json!([{"verbs": ["read"], "definitions": patterns}]);
        let (_, key) = create_key(&run.node, &grants, &json!({})).await;
        known(&run.all(), &key, true).await;
        let asked = |patterns: &[&str], query: &[(&str, &str)]| {
            let named: Vec<(&str, &str)> = patterns.iter().map(|pattern| ("definition", *pattern)).collect();
            let call = run.node.bare(Method::GET, ALL).header("authorization", &key);
            call.query(&named).query(query)
        };
        let sorted = [("sort_by", "config_definition_key"), ("sort_order", "asc")];
        let all = asked(&[], &sorted).await.expect(200);
        assert_eq!(names(&run, &all), ["a.secret/k9", "a.x/k0", "a.x/k1", "a.x/k2", "a.x/k3"]);
        assert_eq!(all.total(), 5);
        assert_eq!(all.data()["results"][0]["data"], json!({"n": 1, "password": null}));
        assert!(!all.text.contains("hidden"), "{all:?}");
        assert!(all.header("x-concord-redacted").contains("/password"), "{all:?}");
        assert_eq!(asked(&[&run.key("b")], &[]).await.expect(200).total(), 0, "as if it were not there");
        assert_eq!(asked(&[], &[("n", "1")]).await.expect(200).total(), 2);
        asked(&[], &[("s", "z")]).await.invalid();
    })
    .await;
}
