//! Watches: every change once, in order, from any revision, on any node, as a filtered list shows it.

use http::Method;
use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};
use crate::{
    harness::{
        Answer, Client,
        answer::is_timestamp,
        watch::{Mirror, WATCH, Watch, changes_of},
    },
    hostile::grants::{create_key, known},
};

/// The types and keys of changes.
fn brief(changes: &[(u64, Value)]) -> Vec<String> {
    let text = |change: &Value, name: &str| change[name].as_str().unwrap_or("").to_owned();
    changes
        .iter()
        .map(|(_, change)| format!("{} {}", text(change, "type"), text(change, "config_key")))
        .collect()
}

async fn open(node: &Client, definition: &str, more: &[(&str, &str)]) -> Watch {
    let query: Vec<(&str, &str)> =
        [("definition", definition)].into_iter().chain(more.iter().copied()).collect();
    node.watch(&query, None).await
}

#[tokio::test]
async fn every_change_comes_once_in_order_with_what_was_written() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let mut watch = open(&run.node, &key, &[]).await;
        assert_eq!(watch.header("content-type"), "text/event-stream");
        assert_eq!(watch.header("cache-control"), "no-store");
        assert_eq!(watch.header("x-accel-buffering"), "no");
        let first = watch.event().await;
        assert_eq!((first.name.as_str(), first.id.is_some()), ("heartbeat", true), "{first:?}");
        let schema = json!({"properties": {"n": {}, "m": {}}});
        let d = run.define("d", &json!(["n"]), &schema).await;
        let other = run.define_open("other").await;
        other.create("k", &json!({})).await.expect(201);
        let created = d.create("k", &json!({"n": 7})).await.expect(201);
        let put = run.others[0].put(&d.config("k"), &json!({"data": {"n": 1e30}}));
        put.header("x-change-reason", "a \"reason\"\u{2028}").await.expect(200);
        d.node.put(&d.path(), &json!({"indexes": ["n", "m"]})).await.expect(200);
        d.remove("k").await.expect(200);
        d.create("k2", &json!({})).await.expect(201);
        run.others[1].delete(&d.path()).await.expect(200);
        let mut events = Vec::new();
        while events.len() < 7 {
            events.push(watch.data_event().await);
        }
        let changes: Vec<_> = events.iter().flat_map(changes_of).collect();
        let expected = [
            "definition_created ",
            "config_created k",
            "config_updated k",
            "definition_updated ",
            "config_deleted k",
            "config_created k2",
            "definition_deleted ",
        ];
        assert_eq!(brief(&changes), expected);
        assert!(changes.is_sorted_by(|one, two| one.0 < two.0), "{changes:?}");
        assert_eq!(created.tag(), format!("\"{}\"", changes[1].0));
        for event in &events {
            assert!(is_timestamp(&event.data["at"]) && event.data["by"] == "root", "{event:?}");
        }
        assert_eq!(events[2].data["reason"], "a \"reason\"\u{2028}");
        assert_eq!(events[1].data["reason"], Value::Null);
        assert_eq!(changes[0].1["json_schema"], schema);
        assert_eq!(changes[3].1["indexes"], json!(["n", "m"]));
        assert_eq!(changes[1].1["data"], json!({"n": 7}));
        assert!(changes.iter().all(|(_, change)| change["config_definition_key"] == key.as_str()));
        assert!(is_timestamp(&changes[2].1["created_at"]) && is_timestamp(&changes[2].1["modified_at"]));
    })
    .await;
}

/// More watches than are woken at each change: most changes wait for company.
#[tokio::test]
async fn many_watches_of_one_definition_see_each_change_once_and_in_order() {
    const WATCHES: usize = 60;
    const CHANGES: usize = 40;
    on_leader_and_follower(async |run: Run| {
        let (d, other) = (run.define_open("d").await, run.define_open("other").await);
        let key = run.key("d");
        let mut watches = Vec::new();
        for _ in 0..WATCHES {
            watches.push(open(&run.node, &key, &[]).await);
        }
        let mut beside = open(&run.node, &run.key("other"), &[]).await;
        for n in 0..CHANGES {
            d.create(&format!("k{n:02}"), &json!({"n": n})).await.expect(201);
        }
        other.create("k", &json!({})).await.expect(201);
        assert_eq!(brief(&changes_of(&beside.data_event().await)), ["config_created k"]);
        let expected: Vec<_> = (0..CHANGES).map(|n| format!("config_created k{n:02}")).collect();
        for watch in &mut watches {
            let mut changes = Vec::new();
            while changes.len() < CHANGES {
                changes.extend(changes_of(&watch.data_event().await));
            }
            assert_eq!(brief(&changes), expected);
            assert!(changes.is_sorted_by(|one, two| one.0 < two.0), "{changes:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_resumes_at_any_node_after_the_last_event_seen() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut all: Vec<u64> = Vec::new();
        for n in 0..6 {
            // Not the state's that the answer was made from: others write at the same time.
            let tag = d.create(&format!("k{n}"), &json!({"n": n})).await.expect(201).tag();
            all.push(tag.trim_matches('"').parse().unwrap());
        }
        for node in run.all() {
            let query = [("definition", d.key.as_str())];
            for (place, seen) in all.iter().enumerate() {
                let number = all.len() - place - 1;
                let mut watch = node.watch(&query, Some(*seen)).await;
                let revisions: Vec<u64> = watch.changes(number).await.iter().map(|change| change.0).collect();
                assert_eq!(revisions, all[place + 1..], "behind {seen}");
                let from = (seen + 1).to_string();
                let mut watch = open(&node, &d.key, &[("from", &from)]).await;
                assert_eq!(watch.changes(number).await.len(), number);
            }
            let from = all[2].to_string();
            let mut watch = open(&node, &d.key, &[("from", &from)]).await;
            assert_eq!(watch.changes(4).await[0].0, all[2], "`from` is the first revision that is told");
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_may_begin_with_the_state_and_goes_on_with_later_changes() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let (other, long) = (run.define_open("other").await, "x".repeat(150_000));
        other.create("k", &json!({})).await.expect(201);
        for key in ["a", "b", "c", "d"] {
            d.create(key, &json!({"long": long})).await.expect(201);
        }
        let mut watch = open(&run.node, &d.key, &[("initial", "true")]).await;
        let shown = run.node.get("/api/v1/cluster").await.expect(200);
        assert_eq!(watch.header("x-concord-cluster"), shown.data()["cluster_id"].as_str().unwrap());
        let (mut parts, mut keys) = (Vec::new(), Vec::new());
        loop {
            let part = watch.data_event().await;
            assert_eq!(part.name, "state", "{part:?}");
            let is_last = part.data["complete"] == true;
            assert_eq!(part.id.is_some(), is_last, "only the last part has an id");
            for config in part.data["configs"].as_array().unwrap() {
                assert_eq!(config["data"]["long"], long.as_str());
                keys.push(config["config_key"].as_str().unwrap().to_owned());
            }
            parts.push(part);
            if is_last {
                break;
            }
        }
        assert!(parts.len() > 1, "600 KB come in several parts");
        assert_eq!(keys, ["a", "b", "c", "d"]);
        assert_eq!(parts[0].data["definitions"][0]["config_definition_key"], d.key.as_str());
        let revision = parts[0].data["revision"].as_u64();
        assert!(parts.iter().all(|part| part.data["revision"].as_u64() == revision));
        assert_eq!(parts.last().unwrap().id, revision);
        d.remove("a").await.expect(200);
        assert_eq!(brief(&watch.changes(1).await), ["config_deleted a"]);
        // A caller that resumes with the last event that they have seen has the state already.
        let query = [("definition", d.key.as_str()), ("initial", "true")];
        let mut again = run.others[0].watch(&query, revision).await;
        assert_eq!(brief(&again.changes(1).await), ["config_deleted a"]);
    })
    .await;
}

#[tokio::test]
async fn a_filtered_watch_holds_what_the_filtered_list_shows() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"n": {"type": "integer"}, "tags": {"type": "array"}}});
        let d = run.define("d", &json!(["n", "tags"]), &schema).await;
        d.fill(&[("in", json!({"n": 5})), ("out", json!({"n": 1}))]).await;
        let filter = [("n[gte]", "5"), ("config_key[prefix]", "")];
        let from = d.get("in").await.expect(200).tag();
        let from = from.trim_matches('"');
        let mut live = open(&run.node, &d.key, &[filter[0], filter[1], ("initial", "true")]).await;
        let state = live.data_event().await;
        assert_eq!(state.data["configs"].as_array().unwrap().len(), 1, "{state:?}");
        d.put("out", &json!({"n": 9})).await.expect(200);
        d.put("in", &json!({"n": 2})).await.expect(200);
        d.put("in", &json!({"n": 3})).await.expect(200);
        d.create("never", &json!({"n": 0})).await.expect(201);
        d.remove("never").await.expect(200);
        d.create("new", &json!({"n": 6})).await.expect(201);
        d.node.put(&d.path(), &json!({"indexes": ["tags", "n"]})).await.expect(200);
        d.put("new", &json!({"n": 7})).await.expect(200);
        d.create("gone", &json!({"n": 6})).await.expect(201);
        d.remove("gone").await.expect(200);
        let changes = live.changes(7).await;
        let expected = [
            "config_updated out",
            "config_unmatched in",
            "config_created new",
            "definition_updated ",
            "config_updated new",
            "config_created gone",
            "config_deleted gone",
        ];
        assert_eq!(brief(&changes), expected);
        let mut replayed = open(&run.others[0], &d.key, &[filter[0], ("from", from)]).await;
        let mut mirror = Mirror::default();
        for (_, change) in replayed.changes(8).await {
            mirror.apply(&change);
        }
        let keys: Vec<String> = mirror.of(&d.key).into_keys().collect();
        assert_eq!(keys, d.found(&[("n[gte]", "5")]).await);
        d.node.put(&d.path(), &json!({"indexes": ["tags"]})).await.expect(200);
        assert_eq!(brief(&live.changes(1).await), ["definition_updated "]);
        let end = live.data_event().await;
        assert_eq!((end.name.as_str(), end.id), ("error", None));
        assert_eq!(end.data["errors"][0]["type"], "validation_error", "its path is indexed no longer");
        assert_eq!(live.next().await, Ok(None));
    })
    .await;
}

#[tokio::test]
async fn a_watch_of_configs_gets_their_changes_and_those_of_their_definition() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut watch = open(&run.node, &d.key, &[("config_key", "a"), ("config_key", "c")]).await;
        for key in ["a", "b", "c"] {
            d.create(key, &json!({})).await.expect(201);
        }
        d.node.put(&d.path(), &json!({"indexes": ["n"]})).await.expect(200);
        d.node.delete(&d.path()).await.expect(200);
        let expected = ["config_created a", "config_created c", "definition_updated ", "definition_deleted "];
        assert_eq!(brief(&watch.changes(4).await), expected);
    })
    .await;
}

#[tokio::test]
async fn a_watch_may_tell_what_was_there_before_live_and_from_the_history() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        let more = [("prev", "true"), ("n[gte]", "5")];
        let mut live = open(&run.node, &d.key, &more).await;
        let created = d.create("k", &json!({"n": 5})).await.expect(201).tag();
        d.put("k", &json!({"n": 6})).await.expect(200);
        d.put("k", &json!({"n": 1})).await.expect(200);
        d.put("k", &json!({"n": 7, "text": "x"})).await.expect(200);
        d.remove("k").await.expect(200);
        let from = created.trim_matches('"');
        let mut replayed = open(&run.others[0], &d.key, &[more[0], more[1], ("from", from)]).await;
        for watch in [&mut live, &mut replayed] {
            let changes = watch.changes(5).await;
            let expected = [
                "config_created k",
                "config_updated k",
                "config_unmatched k",
                "config_updated k",
                "config_deleted k",
            ];
            assert_eq!(brief(&changes), expected);
            let prev: Vec<&Value> = changes.iter().map(|(_, change)| &change["prev"]).collect();
            let [one, two, three] = [json!({"n": 5}), json!({"n": 6}), json!({"n": 1})];
            assert_eq!(prev, [&json!(null), &one, &two, &three, &json!({"n": 7, "text": "x"})]);
            assert!(changes[0].1.get("prev").is_some(), "null, and not missing");
        }
        let mut plain = open(&run.node, &d.key, &[("from", from)]).await;
        assert!(plain.changes(5).await.iter().all(|(_, change)| change.get("prev").is_none()));
    })
    .await;
}

#[tokio::test]
async fn a_watch_of_patterns_has_the_definitions_that_they_name() {
    on_leader_and_follower(async |run: Run| {
        let named = async |name: &str| run.define_open(name).await;
        let pattern = format!("{}*", run.key("team."));
        let lone = run.key("lone");
        let query = [("definition", pattern.as_str()), ("definition", lone.as_str())];
        let mut watch = run.node.watch(&query, None).await;
        let (one, other) = (named("team.a").await, named("teams").await);
        let lone = named("lone").await;
        for d in [&one, &other, &lone] {
            d.create("k", &json!({})).await.expect(201);
        }
        let later = named("team.b").await;
        later.create("k", &json!({})).await.expect(201);
        later.node.delete(&later.path()).await.expect(200);
        let changes = watch.changes(7).await;
        let of = |change: &Value| change["config_definition_key"].as_str().unwrap().to_owned();
        let keys: Vec<String> = changes.iter().map(|(_, change)| of(change)).collect();
        let [a, b, l] = [&one, &later, &lone].map(|d| d.key.clone());
        assert_eq!(keys, [&a, &l, &a, &l, &b, &b, &b].map(String::clone));
        assert_eq!(changes[6].1["count"], 1, "{changes:?}");
        let initial = [("definition", pattern.as_str()), ("initial", "true")];
        let mut watch = run.node.watch(&initial, None).await;
        let state = watch.data_event().await;
        let definitions: Vec<String> = state.data["definitions"].as_array().unwrap().iter().map(of).collect();
        assert_eq!(definitions, [a], "{state:?}");
    })
    .await;
}

#[tokio::test]
async fn a_deleted_definition_names_the_number_of_configs_that_went_with_it() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut live = open(&run.node, &d.key, &[]).await;
        d.fill(&[("a", json!({})), ("b", json!({})), ("c", json!({}))]).await;
        d.remove("a").await.expect(200);
        let from = d.get("b").await.expect(200).tag();
        let operation = |op: &str, more: Value| {
            let mut operation = json!({"op": op, "config_definition_key": d.key});
            more.as_object().unwrap().iter().for_each(|(name, value)| operation[name] = value.clone());
            operation
        };
        let batch = json!({"operations": [
            operation("create_config", json!({"config_key": "new", "data": {}})),
            operation("delete_config", json!({"config_key": "b"})),
            operation("delete_definition", json!({})),
        ]});
        run.node.post("/api/v1/batch", &batch).await.expect(200);
        let mut replayed = open(&run.others[0], &d.key, &[("from", from.trim_matches('"'))]).await;
        for watch in [&mut live, &mut replayed] {
            let deleted = loop {
                let (_, change) = watch.changes(1).await.remove(0);
                if change["type"] == "definition_deleted" {
                    break change;
                }
            };
            assert_eq!(deleted["count"], 2, "b and c: those that were there before the batch");
        }
    })
    .await;
}

#[tokio::test]
async fn a_quiet_watch_gets_the_revision_up_to_which_it_is_complete() {
    on_leader_and_follower(async |run: Run| {
        let mut watch = open(&run.node, &run.key("nothing"), &[]).await;
        let d = run.define_open("d").await;
        let revision = d.create("k", &json!({})).await.expect(201).revision();
        loop {
            let event = watch.event().await;
            assert_eq!(event.name, "heartbeat", "{event:?}");
            assert_eq!(event.data["revision"].as_u64(), event.id);
            if event.id >= Some(revision) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_can_not_be_watched_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!(null)).await;
        let ask = |query: &[(&str, &str)]| run.node.get(WATCH).query(query);
        ask(&[("from", "x")]).await.detail(&[(json!(["query", "from"]), "int_parsing")]);
        for bad in [
            &[("from", "-1")][..],
            &[("initial", "yes")],
            &[("initial", "true"), ("from", "1")],
            &[("definition", "")],
            &[("definition", "a b")],
            &[("config_key", "k")],
            &[("definition", "a"), ("definition", "b"), ("config_key", "k")],
            &[("n", "1")],
            &[("prev", "1")],
            &[("definition", "a*b")],
            &[("definition", "a*"), ("config_key", "k")],
            &[("definition", "a*"), ("n", "1")],
            &[("definition", d.key.as_str()), ("m", "1")],
            &[("definition", d.key.as_str()), ("n[x]", "1")],
            &[("consistency", "other")],
        ] {
            ask(bad).await.invalid();
        }
        ask(&[]).header("last-event-id", "x").await.invalid();
        ask(&[("definition", run.key("none").as_str()), ("n", "1")]).await.refused(404, "not_found_error");
        ask(&[("from", "9000000000000")]).await.refused(410, "expired_error");
        run.node.bare(Method::GET, WATCH).await.refused(401, "unauthorized_error");
        let post = run.node.post(WATCH, &json!({})).await.refused(405, "method_not_allowed");
        assert!(post.header("allow").contains("GET"), "{post:?}");
        let head = run.node.call(Method::HEAD, WATCH).await.expect(405);
        assert_eq!(head.header("allow"), "GET");
    })
    .await;
}

#[tokio::test]
async fn an_event_behind_one_of_another_definition_is_redacted_too() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"pin": {"x-concord-secret": true}}});
        let (secret, plain) = (run.define("b.secret", &json!([]), &schema).await, run.define_open("c").await);
        let grants = json!([{ "verbs": ["read"], "definitions": [secret.key] }]);
        let (_, key) = create_key(&run.node, &grants, &Value::Null).await;
        known(&run.all(), &key, true).await;
        let revision = |made: Answer| made.tag().trim_matches('"').parse::<u64>().expect("a revision");
        let first = revision(secret.create("k1", &json!({"pin": "hunter2"})).await.expect(201));
        let mut last = first;
        for n in 0..8 {
            plain.create(&format!("k{n}"), &json!({})).await.expect(201);
            let made = secret.create(&format!("k{}", n + 2), &json!({"pin": "hunter2"})).await.expect(201);
            last = revision(made);
        }
        // Several events are read at once; those of others are among them.
        for definition in [secret.key.clone(), format!("{}*", secret.key)] {
            let query = [("definition", definition.as_str()), ("from", &first.to_string())];
            let mut watch = run.node.with_credential(&key).watch(&query, None).await;
            let mut seen = 0;
            while seen < last {
                let event = watch.data_event().await;
                assert!(!event.data.to_string().contains("hunter2"), "{event:?}");
                seen = event.id.expect("a revision");
            }
        }
    })
    .await;
}
