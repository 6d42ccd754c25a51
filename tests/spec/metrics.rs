//! `/metrics`: who may read it, what it counts, and that the documents list each metric.

use std::collections::BTreeMap;

use http::Method;
use serde_json::json;

use super::{Run, on_leader_and_follower};
use crate::harness::Client;

const MERGE_PATCH: &str = "application/merge-patch+json";

/// The text of a page.
async fn page(node: &Client) -> String {
    let answer = node.get("/metrics").await.expect(200);
    assert_eq!(
        answer.header("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "{answer:?}"
    );
    answer.text
}

/// The value of a sample: its name, with its labels if it has any.
fn value(page: &str, sample: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

/// The metrics of a page by name, as a query names them, with their types.
fn types(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let named = lines.map(|(name, kind)| {
        let suffix = if kind == "counter" { "_total" } else { "" };
        (format!("{name}{suffix}"), kind.to_owned())
    });
    named.collect()
}

#[tokio::test]
async fn the_reference_lists_each_metric_with_its_type() {
    on_leader_and_follower(async |run: Run| {
        let reference = include_str!("../../docs/reference/metrics.md");
        let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let listed: BTreeMap<String, String> = rows
            .filter_map(|(name, rest)| Some((name.to_owned(), rest.split_once(" |")?.0.to_owned())))
            .collect();
        assert_eq!(types(&page(&run.node).await), listed);
    })
    .await;
}

#[tokio::test]
async fn requests_are_counted_by_route_method_and_status() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let count = |page: &str, status: u16| {
            let route = "/api/v1/config_definition/{definition}/config/{config}";
            let sample = format!(
                "http_server_request_duration_seconds_count{{http_request_method=\"PATCH\",http_route=\"{route}\",http_response_status_code=\"{status}\"}}"
            );
            value(page, &sample).unwrap_or(0.0)
        };
        let before = page(&run.node).await;
        for n in 0..5 {
            d.create(&format!("k{n}"), &json!({"n": n})).await.expect(201);
            run.node.call(Method::PATCH, &d.config(&format!("k{n}"))).text(MERGE_PATCH, r#"{"n": -1}"#).await.expect(200);
        }
        run.node.call(Method::PATCH, &d.config("absent")).text(MERGE_PATCH, "{}").await.expect(404);
        let after = page(&run.node).await;
        // Other tests may patch on this node at the same time.
        assert!(count(&after, 200) >= count(&before, 200) + 5.0, "{after}");
        assert!(count(&after, 404) >= count(&before, 404) + 1.0, "{after}");
    })
    .await;
}

#[tokio::test]
async fn a_node_says_what_it_is_and_how_far() {
    on_leader_and_follower(async |run: Run| {
        let revision = run.define_open("d").await.create("k", &json!({})).await.expect(201).revision();
        let page = page(&run.node).await;
        let value =
            |sample: &str| value(&page, sample).unwrap_or_else(|| panic!("{sample} is not in\n{page}"));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (id, revision) = (run.id as f64, revision as f64);
        assert!((value("concord_node_id") - id).abs() < 0.5);
        assert!(value("concord_state_revision") >= revision);
        assert!(value("concord_raft_applied_index") > 0.0);
        for (sample, expected) in [
            ("concord_ready", 1.0),
            ("concord_raft_has_leader", 1.0),
            ("concord_raft_members{role=\"voter\"}", 3.0),
            ("concord_alarms{type=\"clock\"}", 0.0),
        ] {
            assert!((value(sample) - expected).abs() < 0.5, "{sample}");
        }
        for above in [
            "concord_store_volume_free_bytes",
            "process_resident_memory_bytes",
            "concord_raft_log_disk_bytes",
        ] {
            assert!(value(above) > 0.0, "{above}");
        }
        let leads = value("concord_raft_leader") > 0.5;
        let knows_members = page.contains("concord_raft_member_reachable{");
        assert_eq!(leads, knows_members, "{page}");
    })
    .await;
}

#[tokio::test]
async fn the_page_needs_a_key() {
    on_leader_and_follower(async |run: Run| {
        run.node.bare(Method::GET, "/metrics").await.refused(401, "unauthorized_error");
    })
    .await;
}
