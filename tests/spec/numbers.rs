//! What is stored comes back: every digit, every kind, the order of members.

use http::Method;
use serde_json::json;

use super::{Run, on_leader_and_follower, raw_data};

const NUMBERS: [&str; 11] = [
    "123456789012345678901234567890",
    "-123456789012345678901234567890",
    "7",
    "7.0",
    "-0.0",
    "0.1",
    "9007199254740993",
    "18446744073709551616",
    "0.1234567890123456789012345678901234567890",
    "1e400",
    "1e-400",
];

/// `1e400` may come back as `1e+400` or `1E400`: the same value in the same kind.
fn normal(number: &str) -> String {
    number.to_lowercase().replace('+', "")
}

#[tokio::test]
async fn numbers_keep_value_and_kind() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for (place, number) in NUMBERS.iter().enumerate() {
            let key = format!("k{place}");
            let text = format!(r#"{{"config_key":"{key}","data":{{"n":{number}}}}}"#);
            let post =
                run.node.call(Method::POST, &d.configs()).text("application/json", &text).await.expect(201);
            assert_eq!(normal(&raw_data(&post, &["n"])), *number);
            let text = format!(r#"{{"data":{{"n":{number}}}}}"#);
            let put =
                run.node.call(Method::PUT, &d.config(&key)).text("application/json", &text).await.expect(200);
            assert_eq!(normal(&raw_data(&put, &["n"])), *number);
            for node in run.all() {
                let shown = node.get(&d.config(&key)).await.expect(200);
                assert_eq!(normal(&raw_data(&shown, &["data", "n"])), *number);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn schemas_check_large_numbers_without_rounding() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let schema = r#"{"properties":{"n":{"type":"integer","maximum":9007199254740993}}}"#;
        let body = format!(r#"{{"config_definition_key":"{key}","json_schema":{schema}}}"#);
        let call = run.node.call(Method::POST, super::DEFINITIONS).text("application/json", &body);
        call.await.expect(201);
        let configs = format!("{}{key}/config/", super::DEFINITIONS);
        let post = |n: &str| {
            let text = format!(r#"{{"config_key":"k{n}","data":{{"n":{n}}}}}"#);
            run.node.call(Method::POST, &configs).text("application/json", &text)
        };
        post("9007199254740993").await.expect(201);
        post("9007199254740994").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn members_keep_their_order() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let data = r#"{"z":1,"a":{"y":[],"b":{}},"m":null}"#;
        let text = format!(r#"{{"data":{data},"config_key":"k"}}"#);
        let post =
            run.node.call(Method::POST, &d.configs()).text("application/json", &text).await.expect(201);
        assert_eq!(raw_data(&post, &[]), data);
        assert_eq!(raw_data(&d.get("k").await, &["data"]), data);
    })
    .await;
}

#[tokio::test]
async fn names_of_a_librarys_internals_are_data_or_refused() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for (place, name) in ["Number", "RawValue"].into_iter().enumerate() {
            let name = format!("$serde_json::private::{name}");
            for (kind, data) in [
                ("plain", format!(r#"{{"{name}":"1"}}"#)),
                ("nested", format!(r#"{{"n":{{"{name}":"[1]"}}}}"#)),
                ("escaped", format!(r#"{{"n":{{"\u0024{}":"7"}}}}"#, &name[1..])),
            ] {
                let text = format!(r#"{{"config_key":"{kind}{place}","data":{data}}}"#);
                let post = run.node.call(Method::POST, &d.configs()).text("application/json", &text).await;
                if post.status == 422 {
                    continue;
                }
                assert_eq!(post.status, 201, "{post:?}");
                assert!(post.text.contains(&name), "it is data, so it comes back: {post:?}");
            }
        }
        run.node.get(&d.configs()).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn every_character_of_a_string_comes_back() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["s"]), &json!(null)).await;
        for (place, text) in
            ["\u{0}", "a\u{0}b", "\u{1f}\"\\/", "\u{2028}\u{feff}", "😀", "<script>"].iter().enumerate()
        {
            let key = format!("k{place}");
            d.create(&key, &json!({"s": text})).await.expect(201);
            assert_eq!(d.get(&key).await.data()["data"]["s"], **text);
            assert_eq!(d.found(&[("s", text)]).await, [key]);
        }
    })
    .await;
}
