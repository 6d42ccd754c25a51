//! Read levels: linearizable by default on any node, local, and at least a revision.

use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};

#[tokio::test]
async fn a_write_is_seen_by_the_next_read_on_every_node() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!(null)).await;
        d.create("k", &json!({"n": 0})).await.expect(201);
        for n in 1..=10 {
            let write = d.put("k", &json!({"n": n})).await.expect(200);
            for node in run.all() {
                let read = node.get(&d.config("k")).await.expect(200);
                assert_eq!(read.data()["data"]["n"], n, "{read:?}");
                assert!(read.revision() >= write.tag().trim_matches('"').parse().unwrap(), "{read:?}");
                let list = node.get(&d.configs()).query(&[("n", n.to_string().as_str())]).await;
                assert_eq!(list.total(), 1, "{list:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_local_read_at_a_revision_sees_what_that_revision_wrote() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for n in 0..10 {
            let key = format!("k{n}");
            let revision = d.create(&key, &json!({"n": n})).await.expect(201).tag();
            let revision = revision.trim_matches('"');
            for node in run.all() {
                let query = [("consistency", "local"), ("min_revision", revision)];
                for path in [d.config(&key), d.path(), d.configs(), DEFINITIONS.to_owned()] {
                    let read = node.get(&path).query(&query).await.expect(200);
                    assert!(read.revision() >= revision.parse().unwrap(), "{read:?}");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_levels_are_taken_on_every_read_and_others_are_not() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let revision = d.create("k", &json!({})).await.expect(201).revision().to_string();
        for path in [DEFINITIONS.to_owned(), d.path(), d.configs(), d.config("k")] {
            let read = |query: &[(&str, &str)]| run.node.get(&path).query(query);
            let at = ("min_revision", revision.as_str());
            read(&[("consistency", "local"), at]).await.expect(200);
            read(&[("consistency", "local"), ("max_staleness_ms", "600000"), at]).await.expect(200);
            read(&[("consistency", "linearizable")]).await.expect(200);
            read(&[at]).await.expect(200);
            read(&[("consistency", "other")]).await.invalid();
            read(&[("consistency", "")]).await.invalid();
            for name in ["min_revision", "max_staleness_ms"] {
                for text in ["x", "", "1.5"] {
                    let query = [("consistency", "local"), (name, text)];
                    read(&query).await.detail(&[(json!(["query", name]), "int_parsing")]);
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_revision_that_does_not_come_is_a_time_out() {
    on_leader_and_follower(async |run: Run| {
        let query = [("consistency", "local"), ("min_revision", "9000000000000")];
        let answer = run.node.get(DEFINITIONS).query(&query).attempt().await.expect("an answer");
        answer.refused(504, "timeout_error");
    })
    .await;
}
