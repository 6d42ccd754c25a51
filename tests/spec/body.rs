//! Bodies: syntax, types, all violations at once, content types, sizes.

use http::Method;
use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Answer, Call, eventually};

#[tokio::test]
async fn a_body_that_is_no_json_is_refused_at_its_offset() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let (configs, config, item) = (d.configs(), d.config("k"), d.path());
        let paths = [
            (Method::POST, DEFINITIONS),
            (Method::PUT, &item),
            (Method::POST, &configs),
            (Method::PUT, &config),
        ];
        for (method, path) in paths {
            let send = |text: &str| run.node.call(method.clone(), path).text("application/json", text);
            send(r#"{"a": x}"#).await.detail(&[(json!(["body", 6]), "json_invalid")]);
            for text in ["{", "{\"a\":1,}", "{'a':1}", "[1,", "nul", "{\"a\":01}", "{} {}", "\"\u{1}\""] {
                let answer = send(text).await.expect(422);
                let item = &answer.body["detail"][0];
                assert_eq!(item["type"], "json_invalid", "{answer:?}");
                assert_eq!(item["loc"][0], "body", "{answer:?}");
                let offset = item["loc"][1].as_u64().unwrap_or_else(|| panic!("{answer:?}"));
                assert!(usize::try_from(offset).unwrap() <= text.len(), "{answer:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_body_and_missing_fields_are_named() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let (configs, config, item) = (d.configs(), d.config("k"), d.path());
        let field = |name: &str| (json!(["body", name]), "missing");
        let wanted = [
            (Method::POST, DEFINITIONS, vec![field("config_definition_key")]),
            (Method::PUT, &item, vec![field("indexes")]),
            (Method::POST, &configs, vec![field("config_key"), field("data")]),
            (Method::PUT, &config, vec![field("data")]),
        ];
        for (method, path, fields) in wanted {
            run.node.call(method.clone(), path).await.detail(&[(json!(["body"]), "missing")]);
            run.node
                .call(method.clone(), path)
                .text("application/json", "")
                .await
                .detail(&[(json!(["body"]), "missing")]);
            run.node.call(method, path).json(&json!({})).await.detail(&fields);
        }
    })
    .await;
}

#[tokio::test]
async fn every_wrong_field_is_listed_with_its_type() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let at = |name: &str| json!(["body", name]);
        let body = json!({"config_definition_key": 5, "indexes": "x", "json_schema": []});
        run.node.post(DEFINITIONS, &body).await.detail(&[
            (at("config_definition_key"), "string_type"),
            (at("indexes"), "list_type"),
            (at("json_schema"), "dict_type"),
        ]);
        let body = json!({"indexes": [1, "a", null, {}], "json_schema": true});
        run.node.post(DEFINITIONS, &body).await.detail(&[
            (at("config_definition_key"), "missing"),
            (json!(["body", "indexes", 0]), "string_type"),
            (json!(["body", "indexes", 2]), "string_type"),
            (json!(["body", "indexes", 3]), "string_type"),
            (at("json_schema"), "dict_type"),
        ]);
        let body = json!({"config_key": null, "data": []});
        run.node
            .post(&d.configs(), &body)
            .await
            .detail(&[(at("config_key"), "string_type"), (at("data"), "dict_type")]);
        run.node.put(&d.path(), &json!({"indexes": {}})).await.detail(&[(at("indexes"), "list_type")]);
        run.node.put(&d.path(), &json!({"indexes": null})).await.detail(&[(at("indexes"), "list_type")]);
        for data in [json!([]), json!("x"), json!(1), json!(null), json!(true)] {
            run.node.put(&d.config("k"), &json!({"data": data})).await.detail(&[(at("data"), "dict_type")]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    on_leader_and_follower(async |run: Run| {
        for body in [json!([]), json!("x"), json!(1), json!(true)] {
            let expected = [(json!(["body"]), "model_attributes_type")];
            run.node.post(DEFINITIONS, &body).await.detail(&expected);
        }
    })
    .await;
}

#[tokio::test]
async fn json_and_its_kin_are_taken_and_other_content_types_are_not() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let text = |key: &str| json!({"config_key": key, "data": {}}).to_string();
        let good = [
            "application/json",
            "application/json; charset=utf-8",
            "application/vnd.x+json",
            "Application/JSON",
        ];
        for (place, kind) in good.into_iter().enumerate() {
            let call = run.node.call(Method::POST, &d.configs()).text(kind, &text(&format!("k{place}")));
            call.await.expect(201);
        }
        run.node.call(Method::POST, &d.configs()).bytes(text("absent").into_bytes()).await.expect(201);
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/xml"] {
            let answer = run.node.call(Method::POST, &d.configs()).text(kind, &text("never")).await;
            let answer = answer.detail(&[(json!(["body"]), "model_attributes_type")]);
            let msg = answer.body["detail"][0]["msg"].as_str().unwrap_or_default();
            assert!(msg.contains("`content-type: application/json`"), "{kind}: {msg}");
        }
        d.get("never").await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn unknown_members_are_ignored_and_the_last_of_equal_ones_counts() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let body = json!({"config_key": "a", "data": {"n": 1}, "other": 1, "created_at": "x"});
        let warned = run.node.post(&d.configs(), &body).await.expect(201);
        assert!(
            warned.header("warning").contains("member `created_at`, unknown member `other`"),
            "{warned:?}"
        );
        let text = r#"{"config_key":"x","config_key":"b","data":{"n":1,"m":0,"n":2}}"#;
        let answer =
            run.node.call(Method::POST, &d.configs()).text("application/json", text).await.expect(201);
        assert_eq!(*answer.data(), json!({"n": 2, "m": 0}));
        assert_eq!(d.found(&[]).await, ["a", "b"]);
        run.node.put(&d.config("a"), &json!({"data": {}, "config_key": "c"})).await.expect(200);
        assert_eq!(d.found(&[]).await, ["a", "b"]);
    })
    .await;
}

#[tokio::test]
async fn a_misspelt_member_or_parameter_is_rejected_or_a_warning_names_it() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let batch = |operation: Value| json!({ "operations": [operation] });
        let put = json!({"op": "put_config", "config_definition_key": d.key, "config_key": "k", "data": {}, "if_mach": "1"});
        let refused = run.node.post("/api/v1/batch", &batch(put)).await;
        refused.detail(&[(json!(["body", "operations", 0, "if_mach"]), "extra_forbidden")]);
        let key = |more: Value| {
            let mut body = json!({"name": "k", "grants": [{"verbs": ["audit"]}]});
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            run.node.post("/api/v1/api_key/", &body)
        };
        let expires = key(json!({"expiresAt": "2099-01-01T00:00:00Z"})).await;
        expires.detail(&[(json!(["body", "expiresAt"]), "extra_forbidden")]);
        let quota = key(json!({"quota": {"writes_per_sec": 10}})).await;
        quota.detail(&[(json!(["body", "quota", "writes_per_sec"]), "extra_forbidden")]);
        let patch = run.node.call(Method::PATCH, &d.config("k")).query(&[("dryrun", "true")]);
        let patch = patch.text("application/merge-patch+json", "{}").await.refused(422, "validation_error");
        assert_eq!(patch.body["errors"][0]["loc"], json!(["query", "dryrun"]));
        assert_eq!(d.get("k").await.expect(200).data()["data"], json!({"n": 1}), "nothing was changed");
        // The write of the older service has its effect, and says what had none.
        let warned = run.node.put(&d.config("k"), &json!({"data": {"n": 2}})).query(&[("dryrun", "true")]);
        let warned = warned.await.expect(200);
        assert!(warned.header("warning").contains("query parameter `dryrun`"), "{warned:?}");
        // So does a read.
        let read = async |parameter: &str| run.node.get(&d.config("k")).query(&[(parameter, "n")]).await.expect(200);
        let warned = read("feilds").await;
        assert!(warned.header("warning").contains("query parameter `feilds`"), "{warned:?}");
        assert_eq!(read("fields").await.header("warning"), "");
    })
    .await;
}

#[tokio::test]
async fn a_body_that_a_write_does_not_take_is_rejected_or_a_warning_names_it() {
    on_leader_and_follower(async |run: Run| {
        let made = run.node.post("/api/v1/api_key/", &json!({"name": "k", "grants": [{"verbs": ["audit"]}]}));
        let made = made.await.expect(201);
        let key = format!("/api/v1/api_key/{}", made.data()["key_id"].as_str().expect("it has an id"));
        let forbidden = |name: &str| vec![(json!(["body", name]), "extra_forbidden")];
        for (method, path) in [
            (Method::DELETE, key.as_str()),
            (Method::DELETE, "/api/v1/cluster/members/1"),
            (Method::POST, "/api/v1/cluster/members/1/promote"),
            (Method::POST, "/api/v1/api_key/root/disable"),
        ] {
            let send = |body: &Value| run.node.call(method.clone(), path).json(body);
            send(&json!({"dry_run": true})).await.detail(&forbidden("dry_run"));
            send(&json!({"if_match": 1})).await.detail(&forbidden("if_match"));
            send(&json!([])).await.detail(&[(json!(["body"]), "model_attributes_type")]);
            let text = run.node.call(method.clone(), path).text("text/plain", "not json").await;
            text.detail(&[(json!(["body"]), "model_attributes_type")]);
        }
        run.node.get(&key).await.expect(200);
        assert_eq!(run.node.status().await.expect("it answers")["members"].as_array().map(Vec::len), Some(3));
        run.node.call(Method::DELETE, &key).json(&json!({})).await.expect(200);
        // The writes of the older service have their effect, and say what had none.
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let warned = run.node.delete(&d.config("k")).json(&json!({"if_match": 1})).await.expect(200);
        assert!(warned.header("warning").contains("the `body`"), "{warned:?}");
        let warned = run.node.delete(&d.path()).text("text/plain", "not json").await.expect(200);
        assert!(warned.header("warning").contains("the `body`"), "{warned:?}");
    })
    .await;
}

#[tokio::test]
async fn a_parameter_of_a_write_is_given_once() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let twice = |first, last| [("dry_run", first), ("dry_run", last)];
        for (call, name) in [
            (run.node.delete(&d.path()).query(&twice("true", "false")), "dry_run"),
            (run.node.delete(&d.path()).query(&[("mode", "restrict"), ("mode", "restrict")]), "mode"),
            (run.node.delete(&d.config("k")).query(&twice("true", "false")), "dry_run"),
            (run.node.put(&d.config("k"), &json!({"data": {}})).query(&twice("false", "true")), "dry_run"),
            (run.node.post("/api/v1/batch", &json!({"operations": []})).query(&twice("true", "")), "dry_run"),
        ] {
            let refused = call.await.invalid();
            assert_eq!(refused.body["errors"][0]["loc"], json!(["query", name]), "{refused:?}");
        }
        assert_eq!(d.get("k").await.expect(200).data()["data"], json!({"n": 1}), "nothing was changed");
        let read = |query: &[(&str, &str)]| run.node.get(&d.configs()).query(query);
        let warned = read(&[("limit", "5"), ("limit", "7")]).await.expect(200);
        assert!(warned.header("warning").contains("all but the last query parameter `limit`"), "{warned:?}");
        assert_eq!(warned.data()["meta"]["limit"], 7);
    })
    .await;
}

#[tokio::test]
async fn deep_nesting_is_refused_and_moderate_nesting_is_not() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let nested = |levels: usize| {
            format!(
                r#"{{"config_key":"k{levels}","data":{{"a":{}{}}}}}"#,
                "[".repeat(levels),
                "]".repeat(levels)
            )
        };
        let send = |levels: usize| {
            run.node.call(Method::POST, &d.configs()).text("application/json", &nested(levels))
        };
        send(50).await.expect(201);
        for levels in [100, 1000, 200_000] {
            send(levels).await.expect(422);
        }
    })
    .await;
}

#[tokio::test]
async fn a_patch_makes_nothing_deeper_than_a_body_may_bring() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({"a": inner}));
        for (levels, status) in [(62, 200), (63, 200), (64, 422), (65, 422)] {
            d.put("k", &nested(levels)).await.expect(status);
            let merge = run.node.call(Method::PATCH, &d.config("k"));
            merge.text("application/merge-patch+json", &nested(levels).to_string()).await.expect(status);
        }
    })
    .await;
}

/// A server may end the connection of a body that it does not want to read; then the answer is lost now and then.
async fn too_large(call: Call) -> Answer {
    let answer = eventually("an answer", async || call.settled().await).await;
    answer.refused(413, "payload_too_large")
}

#[tokio::test]
async fn data_schema_and_body_over_their_bytes_are_too_large() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let data = |bytes: usize| json!({"s": "x".repeat(bytes)});
        d.create("fits", &data((1 << 20) - 100)).await.expect(201);
        too_large(d.create("k", &data(1 << 20))).await;
        too_large(d.put("fits", &data(1 << 20))).await;
        too_large(d.create("k", &data(9 << 20))).await;
        let schema = json!({"description": "x".repeat(2 << 20)});
        too_large(run.ask(&run.key("big"), &json!([]), &schema)).await;
        let schema = json!({"description": "x".repeat((2 << 20) - 100)});
        run.ask(&run.key("fits"), &json!([]), &schema).await.expect(201);
        assert_eq!(d.found(&[("limit", "1")]).await, ["fits"]);
    })
    .await;
}

#[tokio::test]
async fn text_that_is_not_utf_8_is_no_json() {
    on_leader_and_follower(async |run: Run| {
        let body = b"{\"config_definition_key\":\"\xff\"}".to_vec();
        let call = run.node.call(Method::POST, DEFINITIONS).header("content-type", "application/json");
        let answer = call.bytes(body).await.expect(422);
        assert_eq!(answer.body["detail"][0]["type"], "json_invalid", "{answer:?}");
        assert_ne!(answer.body["detail"], Value::Null);
    })
    .await;
}
