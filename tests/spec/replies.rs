//! What requests may say of their answers, and of the records that they mean: parts of records, many at once, create or
//! replace, conditions with several tags, codings, indentation, pages of other origins.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use http::Method;
use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Client},
    hostile::grants::{create_key, known},
};

const READ: &str = "/api/v1/read";

/// A client whose key may do this with these definitions.
async fn may(run: &Run, verbs: &[&str], definitions: &[&str]) -> Client {
    let grants = json!([{"verbs": verbs, "definitions": definitions}]);
    let (_, key) = create_key(&run.node, &grants, &json!({})).await;
    known(&run.all(), &key, true).await;
    Client::new(&run.node.base, &key)
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn records_have_their_revision_where_it_is_asked_for_and_only_there() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let tag = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        let revision: u64 = tag.trim_matches('"').parse().expect("a number");
        let include = [("include", "revision")];
        for call in [d.get("k"), run.node.get(&d.path())] {
            assert!(call.clone().await.data().get("revision").is_none());
        }
        assert_eq!(d.get("k").query(&include).await.data()["revision"], revision);
        let of_definition = run.node.get(&d.path()).query(&include).await;
        assert_eq!(format!("\"{}\"", of_definition.data()["revision"]), of_definition.tag());
        assert!(d.list(&[]).await.data()["results"][0].get("revision").is_none());
        assert_eq!(d.list(&include).await.data()["results"][0]["revision"], revision);
        let definitions = run.node.get(super::DEFINITIONS).query(&include).query(&[("search", &d.key)]).await;
        assert_eq!(definitions.data()["results"][0]["revision"], of_definition.data()["revision"]);
        let past = d.get("k").query(&[("include", "revision"), ("revision", &revision.to_string())]).await;
        assert_eq!(past.data()["revision"], revision);
        for call in [d.get("k"), run.node.get(&d.path()), d.list(&[])] {
            call.query(&[("include", "etag")]).await.invalid();
        }
    })
    .await;
}

#[tokio::test]
async fn fields_are_the_parts_of_data_that_are_asked_for() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let body = r#"{"data": {"db": {"port": 1E22, "host": "h"}, "a.b": [1, 2], "n": -0.0}}"#;
        d.create("k", &json!({})).await.expect(201);
        run.node.call(Method::PUT, &d.config("k")).text("application/json", body).await.expect(200);
        let whole = d.get("k").await;
        let fields = |text: &'static str| [("fields", text)];
        let part = d.get("k").query(&fields(r"db.port,a\.b,absent")).await;
        assert_eq!(
            part.data()["data"],
            json!({"db": {"port": whole.data()["data"]["db"]["port"]}, "a.b": [1, 2]})
        );
        assert!(part.text.contains(r#""data":{"db":{"port":1"#), "{part:?}");
        assert_eq!(part.tag(), whole.tag(), "the version is that of the record");
        d.get("k").query(&fields("n")).header("if-none-match", &whole.tag()).await.expect(304);
        assert_eq!(d.get("k").query(&fields("absent")).await.data()["data"], json!({}));
        d.create("l", &json!({"n": 2, "m": 3})).await.expect(201);
        let list = d.list(&[("fields", "n"), ("sort_by", "config_key"), ("sort_order", "asc")]).await;
        let data: Vec<Value> = list.data()["results"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["data"].clone())
            .collect();
        assert_eq!(data, [json!({"n": -0.0}), json!({"n": 2})]);
        // The next page has them, too.
        let first = d.list(&[("fields", "n"), ("limit", "1")]).await;
        let next = first.header("link").trim_start_matches('<').split('>').next().expect("a link").to_owned();
        let second = run.node.get(&next).await.expect(200);
        assert_eq!(
            second.data()["results"][0]["data"].as_object().expect("an object").len(),
            1,
            "{second:?}"
        );
        for wrong in ["", "a..b", "a,", r"a\"] {
            d.get("k").query(&fields(wrong)).await.invalid();
            d.list(&fields(wrong)).await.invalid();
        }
        run.node.get(&d.path()).query(&fields("indexes")).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_parameter_of_lists_yields_to_an_index_of_its_name() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let names = json!(["fields", "include", "pretty"]);
        let made = run.ask(&key, &names, &Value::Null).await.expect(201);
        assert!(made.header("warning").contains("$fields"), "{made:?}");
        let d = Defined { key, node: run.node.clone() };
        d.fill(&[
            ("a", json!({"fields": "x", "include": "revision", "pretty": true})),
            ("b", json!({"fields": "y", "include": "other", "pretty": false})),
        ])
        .await;
        assert_eq!(d.found(&[("fields", "x")]).await, ["a"]);
        assert_eq!(d.found(&[("include", "other")]).await, ["b"]);
        assert_eq!(d.found(&[("pretty", "true")]).await, ["a"]);
        let shown = d.list(&[("fields", "x"), ("$fields", "pretty"), ("$include", "revision")]).await;
        let record = &shown.data()["results"][0];
        assert_eq!(record["data"], json!({"pretty": true}));
        assert!(record["revision"].is_u64(), "{shown:?}");
        assert!(!shown.text.contains('\n'));
        assert!(d.list(&[("$pretty", "true")]).await.text.contains("\n  \"data\": {"));
        let other = run.node.put(&d.path(), &json!({"indexes": ["fields", "a.include"]})).await.expect(200);
        assert!(other.header("warning").contains("$fields"));
        let plain = run.node.put(&d.path(), &json!({"indexes": ["a.fields"]})).await.expect(200);
        assert_eq!(plain.header("warning"), "");
    })
    .await;
}

#[tokio::test]
async fn an_upsert_creates_or_replaces() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        let upsert = |key: &str, n: Value| d.put(key, &json!({"n": n})).query(&[("upsert", "true")]);
        let created = upsert("k", json!(1)).await.expect(201);
        assert!(created.header("location").ends_with(&d.config("k")));
        let replaced = upsert("k", json!(2)).await.expect(200);
        assert_ne!(created.tag(), replaced.tag());
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
        upsert("k", json!("two")).await.invalid();
        upsert("new", json!("two")).await.invalid();
        d.get("new").await.expect(404);
        d.put("new", &json!({"n": 1})).await.refused(404, "not_found_error");
        d.put("new", &json!({"n": 1})).query(&[("upsert", "1")]).await.invalid();
        // A condition says more than the parameter.
        upsert("new", json!(1)).header("if-match", "\"1\"").await.refused(404, "not_found_error");
        upsert("k", json!(3)).header("if-none-match", "*").await.refused(412, "precondition_failed");
        upsert("k", json!(3)).header("if-match", &created.tag()).await.refused(412, "precondition_failed");
        // Sent again it has the answer that it had, whatever has happened meanwhile.
        let key = run.key("id");
        let first = upsert("once", json!(1)).header("idempotency-key", &key).await.expect(201);
        upsert("once", json!(2)).await.expect(200);
        let again = upsert("once", json!(1)).header("idempotency-key", &key).await.expect(201);
        assert_eq!(first.tag(), again.tag());
        assert_eq!(d.get("once").await.data()["data"], json!({"n": 2}));
        upsert("dry", json!(1)).query(&[("dry_run", "true")]).await.expect(201);
        d.get("dry").await.expect(404);
        let history = run.node.get(&format!("{}/history", d.config("k"))).await;
        let operations: Vec<&str> = history.data()["results"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|change| change["operation"].as_str().expect("a name"))
            .collect();
        assert_eq!(operations, ["update", "create"]);
        let stranger = may(&run, &["read"], &[&d.key]).await;
        let forbidden = stranger.put(&d.config("k"), &json!({"data": {}})).query(&[("upsert", "true")]).await;
        forbidden.refused(403, "forbidden_error");
    })
    .await;
}

#[tokio::test]
async fn conditions_take_lists_of_tags() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let one = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        let two = d.put("k", &json!({"n": 2})).await.expect(200).tag();
        let failed = |answer: Answer, current: &str| {
            assert_eq!(answer.header("etag"), current, "{answer:?}");
            answer.refused(412, "precondition_failed");
        };
        let put = |name: &str, value: &str| d.put("k", &json!({"n": 3})).header(name, value);
        failed(put("if-match", &one).await, &two);
        failed(put("if-match", &format!("{one}, \"77\"")).await, &two);
        failed(put("if-match", &format!("W/{two}")).await, &two);
        failed(put("if-match", &format!("{one}, W/{two}")).await, &two);
        failed(put("if-none-match", &two).await, &two);
        failed(put("if-none-match", &format!("{one}, W/{two}")).await, &two);
        failed(put("if-match", "*").header("if-none-match", "*").await, &two);
        put("if-none-match", "2").await.invalid();
        put("if-match", "\"1\" \"2\"").await.invalid();
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
        let three = put("if-match", &format!("{one}, {two}")).await.expect(200).tag();
        let four = put("if-none-match", &format!("{one}, {two}")).await.expect(200).tag();
        let five = put("if-match", &three).header("if-match", &four).await.expect(200).tag();
        failed(d.remove("k").header("if-none-match", &five).await, &five);
        d.put("absent", &json!({}))
            .header("if-match", &format!("{one}, {two}"))
            .await
            .refused(404, "not_found_error");
        d.put("absent", &json!({})).header("if-none-match", &two).await.refused(404, "not_found_error");
        d.create("m", &json!({})).header("if-none-match", &two).await.invalid();
        // Of definitions, too; and who may not write is not told.
        let tag = run.node.get(&d.path()).await.tag();
        let indexes = json!({"indexes": ["n"]});
        failed(run.node.put(&d.path(), &indexes).header("if-none-match", &tag).await, &tag);
        let reader = may(&run, &["read"], &[&d.key]).await;
        for value in [&five, &one] {
            let forbidden =
                reader.put(&d.config("k"), &json!({"data": {}})).header("if-none-match", value).await;
            forbidden.refused(403, "forbidden_error");
        }
        run.node.put(&d.path(), &indexes).header("if-match", &format!("\"1\", {tag}")).await.expect(200);
        d.remove("k").header("if-match", &format!("{four}, {five}")).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn many_configs_are_read_at_once() {
    on_leader_and_follower(async |run: Run| {
        let (d, e) = (run.define_open("d").await, run.define_open("e").await);
        let tag = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        let then = e.create("l", &json!({"n": 2})).await.expect(201).revision();
        e.put("l", &json!({"n": 3})).await.expect(200);
        let one = |definition: &Defined, key: &str| json!({"config_definition_key": definition.key, "config_key": key});
        let mut known = one(&d, "k");
        known["if_none_match"] = json!(format!("\"1\", {tag}"));
        let absent = Defined { key: run.key("absent"), node: run.node.clone() };
        let asked = json!([one(&d, "k"), known, one(&e, "l"), one(&e, "none"), one(&absent, "k")]);
        let answer = run.node.post(READ, &json!({"configs": asked})).await.expect(200);
        let results = answer.data()["results"].as_array().expect("a list");
        let statuses: Vec<&str> = results.iter().map(|one| one["status"].as_str().expect("a text")).collect();
        assert_eq!(statuses, ["found", "not_modified", "found", "absent", "absent"]);
        assert_eq!(answer.data()["revision"], answer.revision());
        assert_eq!(results[0]["config"], *d.get("k").await.data());
        assert_eq!(format!("\"{}\"", results[0]["revision"]), tag);
        assert_eq!(results[1].get("config"), None);
        assert_eq!(results[2]["config"]["data"], json!({"n": 3}));
        assert_eq!(results[3]["errors"], e.get("none").await.body["errors"]);
        assert_eq!(results[4]["errors"], absent.get("k").await.body["errors"]);
        let past = run.node.post(READ, &json!({"configs": asked, "revision": then})).await.expect(200);
        assert_eq!((&past.data()["revision"], &past.data()["results"][2]["config"]["data"]), (&json!(then), &json!({"n": 2})));
        run.node.post(READ, &json!({"configs": asked, "revision": 1_u64 << 40})).await.invalid();
        run.node.post(READ, &json!({"configs": []})).await.expect(200);
        let many = vec![one(&d, "k"); 1001];
        run.node.post(READ, &json!({"configs": many})).await.invalid();
        assert_eq!(run.node.post(READ, &json!({"configs": many[..1000]})).await.data()["results"].as_array().map(Vec::len), Some(1000));
        run.node.post(READ, &json!({"configs": [one(&d, "a/b")]})).await.invalid();
        run.node.post(READ, &json!({"configs": [1]})).await.detail(&[(json!(["body", "configs", 0]), "model_attributes_type")]);

        // Each is judged by itself, whether it exists or not.
        let stranger = may(&run, &["read"], &[&d.key]).await;
        let mixed = stranger.post(READ, &json!({"configs": asked})).await.expect(200);
        let results = mixed.data()["results"].as_array().expect("a list");
        let statuses: Vec<&str> = results.iter().map(|one| one["status"].as_str().expect("a text")).collect();
        assert_eq!(statuses, ["found", "not_modified", "forbidden", "forbidden", "forbidden"]);
        assert!(results[2..].iter().all(|one| one["errors"] == results[2]["errors"]));
        assert_eq!(results[2]["errors"], stranger.get(&e.config("l")).await.body["errors"]);
        let refused = stranger.post(READ, &json!({"configs": [one(&e, "l"), one(&absent, "k")]})).await;
        refused.refused(403, "forbidden_error");
    })
    .await;
}

#[tokio::test]
async fn secret_values_are_in_no_part_and_in_no_compressed_answer() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"token": {"x-concord-secret": true}, "db": {"properties": {"password": {"x-concord-secret": true}}}}});
        let d = run.define("d", &json!([]), &schema).await;
        let data = json!({"token": "t", "db": {"password": "p", "port": 1}, "text": "x".repeat(5000)});
        d.create("k", &data).await.expect(201);
        let reader = may(&run, &["read"], &[&d.key]).await;
        let part = reader.get(&d.config("k")).query(&[("fields", "db,text")]).await.expect(200);
        assert_eq!(part.data()["data"]["db"], json!({"password": null, "port": 1}));
        assert_eq!(part.header("x-concord-redacted"), "#/db/password");
        let list = reader.get(&d.configs()).query(&[("fields", "token")]).await.expect(200);
        assert_eq!(list.data()["results"][0]["data"], json!({"token": null}));
        assert_eq!(list.header("x-concord-redacted"), "#/token");
        let asked = json!({"configs": [{"config_definition_key": d.key, "config_key": "k"}]});
        let many = reader.post(READ, &asked).await.expect(200);
        assert_eq!(many.data()["results"][0]["config"]["data"]["token"], Value::Null);
        assert_eq!(many.header("x-concord-redacted"), "#/db/password, #/token");
        // Neither for who may see them, nor for who may not.
        for node in [&run.node, &reader] {
            let history = format!("{}/history", d.config("k"));
            let calls = [node.get(&d.config("k")), node.get(&d.configs()), node.get(&history), node.post(READ, &asked)];
            for call in calls {
                let answer = call.header("accept-encoding", "gzip, br, zstd").await.expect(200);
                assert_eq!(answer.header("content-encoding"), "", "{}", answer.asked);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn long_answers_to_reads_are_compressed_as_the_caller_accepts() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("long", &json!({"text": "abc ".repeat(1 << 16)})).await.expect(201);
        d.create("short", &json!({"n": 1})).await.expect(201);
        let plain = d.get("long").await;
        assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", ""));
        let asked = json!({"configs": [{"config_definition_key": d.key, "config_key": "long"}]});
        for coding in ["gzip", "br", "zstd"] {
            let calls = [
                d.get("long"),
                d.list(&[]),
                run.node.get(&format!("{}/history", d.config("long"))),
                run.node.post(READ, &asked),
            ];
            for call in calls {
                let whole = call.clone().await.expect(200);
                let packed = call.header("accept-encoding", coding).await.expect(200);
                assert_eq!(
                    (packed.header("content-encoding"), packed.header("vary")),
                    (coding, "accept-encoding")
                );
                // The revision of the state may have grown between the two.
                assert_eq!(packed.data()["results"], whole.data()["results"], "{}", packed.asked);
                assert_eq!(packed.data()["data"], whole.data()["data"], "{}", packed.asked);
                let bytes: usize = packed.header("content-length").parse().expect("a length");
                assert!(bytes * 10 < whole.text.len(), "{bytes} of {}", whole.text.len());
                assert_eq!(packed.header("etag"), whole.header("etag"));
            }
        }
        let accepting = |call: crate::harness::Call| call.header("accept-encoding", "gzip");
        assert_eq!(accepting(d.get("short")).await.header("content-encoding"), "");
        // What repeats the request is not compressed.
        let put = accepting(d.put("long", &json!({"text": "abc ".repeat(1 << 12)}))).await.expect(200);
        assert_eq!(put.header("content-encoding"), "");
        let error = accepting(d.list(&[("x".repeat(4000).as_str(), "1")])).await.expect(422);
        assert_eq!(error.header("content-encoding"), "");
        let head = accepting(run.node.call(Method::HEAD, &d.config("long"))).await.expect(200);
        assert_eq!(head.text, "");
    })
    .await;
}

#[tokio::test]
async fn encoded_bodies_are_decoded_within_the_bound_of_bodies() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let put = |coding: &str, body: Vec<u8>| {
            let call = run.node.call(Method::PUT, &d.config("k")).header("content-type", "application/json");
            call.header("content-encoding", coding).bytes(body)
        };
        let text = json!({"data": {"text": "abc ".repeat(50_000)}}).to_string();
        put("gzip", gzip(&text)).await.expect(200);
        assert_eq!(d.get("k").await.data()["data"]["text"], "abc ".repeat(50_000));
        put("zstd", zstd::bulk::compress(br#"{"data": {"n": 2}}"#, 3).expect("memory")).await.expect(200);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
        put("identity", br#"{"data": {"n": 3}}"#.to_vec()).await.expect(200);
        for coding in ["br", "deflate", "compress", "gzip, gzip", "x"] {
            let refused = put(coding, gzip("{}")).await;
            assert_eq!(refused.header("accept-encoding"), "gzip, zstd");
            refused.refused(415, "unsupported_coding");
        }
        put("gzip", br#"{"data": {}}"#.to_vec()).await.detail(&[(json!(["body"]), "json_invalid")]);
        // 64 MiB of spaces in some kilobytes.
        let bomb = " ".repeat(64 << 20);
        put("gzip", gzip(&bomb)).await.refused(413, "payload_too_large");
        put("zstd", zstd::bulk::compress(bomb.as_bytes(), 1).expect("memory"))
            .await
            .refused(413, "payload_too_large");
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 3}));
        // The same request, encoded or not.
        let key = run.key("id");
        let body = r#"{"data": {"n": 4}}"#;
        let first = put("gzip", gzip(body)).header("idempotency-key", &key).await.expect(200).tag();
        let again =
            put("identity", body.as_bytes().to_vec()).header("idempotency-key", &key).await.expect(200);
        assert_eq!(again.tag(), first);
    })
    .await;
}

#[tokio::test]
async fn answers_are_indented_on_request() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": [1, {"m": "a\"{,"}]})).await.expect(201);
        let pretty = [("pretty", "true")];
        for call in [
            d.get("k"),
            d.list(&[]),
            d.get("absent"),
            run.node.get("/api/v1/whoami"),
            d.put("k", &json!({"n": 2})),
        ] {
            let plain = call.clone().await;
            let lines = call.query(&pretty).await;
            assert_eq!(lines.status, plain.status);
            assert!(lines.text.starts_with("{\n  \"status\": \"") && !plain.text.contains('\n'), "{lines:?}");
            if plain.header("etag").is_empty() {
                assert_eq!(lines.body, plain.body);
            }
        }
        let both = d.get("k").query(&[("pretty", "false")]).await;
        assert!(!both.text.contains('\n'));
        d.get("k").query(&[("pretty", "yes")]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn pages_of_named_origins_may_use_the_interface() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let origin = "https://a.example";
        let ask = |path: &str, origin: &str| {
            let call = run.node.bare(Method::OPTIONS, path).header("origin", origin);
            call.header("access-control-request-method", "PUT")
        };
        // Alike for what is there and what is not.
        for path in [d.config("k"), "/api/v1/nothing".to_owned()] {
            let allowed = ask(&path, origin).await.expect(204);
            assert_eq!(allowed.header("access-control-allow-origin"), origin);
            assert!(allowed.header("access-control-allow-methods").contains("PATCH"));
            assert!(allowed.header("access-control-allow-headers").contains("authorization"));
            assert_eq!(allowed.header("access-control-allow-credentials"), "");
            assert_eq!(allowed.header("x-concord-revision"), "");
        }
        let foreign = ask(&d.config("k"), "https://b.example").await.expect(401);
        assert_eq!(foreign.header("access-control-allow-origin"), "");
        assert_eq!(ask("/ui/", origin).await.header("access-control-allow-origin"), "");

        let answer = d.get("k").header("origin", origin).await.expect(200);
        assert_eq!(answer.header("access-control-allow-origin"), origin);
        assert!(answer.header("access-control-expose-headers").contains("etag"));
        assert_eq!(answer.header("vary"), "origin");
        assert_eq!(
            run.node
                .bare(Method::GET, &d.config("k"))
                .header("origin", origin)
                .await
                .expect(401)
                .header("access-control-allow-origin"),
            origin
        );
        for other in ["https://b.example", "null"] {
            let answer = d.get("k").header("origin", other).await.expect(200);
            assert_eq!(answer.header("access-control-allow-origin"), "");
        }
        assert_eq!(d.get("k").await.header("access-control-allow-origin"), "");
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_an_unknown_name() {
    on_leader_and_follower(async |run: Run| {
        for path in ["/docs/%ff", "/ui/%ff", "/ui/%ff/%ff", "/ui/lib/%ff"] {
            run.node.bare(Method::GET, path).await.refused(404, "not_found_error");
        }
        run.node.delete("/api/v1/cluster/members/%ff").await.invalid();
        let node = &run.node;
        node.post("/api/v1/cluster/members/%ff/promote", &json!({})).await.invalid();
        node.get("/api/v1/api_key/%ff").await.refused(404, "not_found_error");
        node.get("/api/v1/config_definition/%ff").await.invalid();
        node.get("/api/v1/config_definition/%ff/config/%ff").await.invalid();
    })
    .await;
}
