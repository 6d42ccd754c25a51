//! Data is validated against its definition's schema; all violations are listed, each with its location.

use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::harness::Answer;

async fn strict(run: &Run) -> Defined {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0},
            "o": {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "integer"}}}}
        },
        "required": ["name"],
        "additionalProperties": false
    });
    run.define("strict", &json!(["name"]), &schema).await
}

/// Whether an item's `loc` ends at this place.
fn names_place(answer: &Answer, place: &Value) -> bool {
    let place = place.as_array().unwrap();
    answer.body["errors"]
        .as_array()
        .unwrap()
        .iter()
        .any(|error| error["loc"].as_array().is_some_and(|loc| loc.ends_with(place)))
}

#[tokio::test]
async fn all_violations_are_listed_with_their_locations() {
    on_leader_and_follower(async |run: Run| {
        let d = strict(&run).await;
        let wrong = json!({"name": "far too long", "age": -1, "o": {"list": [1, "x", 2, null]}});
        d.create("k", &json!({"name": "a"})).await.expect(201);
        for answer in [d.create("new", &wrong).await.invalid(), d.put("k", &wrong).await.invalid()] {
            for place in [json!(["name"]), json!(["age"]), json!(["o", "list", 1]), json!(["o", "list", 3])] {
                assert!(names_place(&answer, &place), "{place} in {answer:?}");
            }
            assert_eq!(answer.body["errors"].as_array().unwrap().len(), 4, "{answer:?}");
        }
        assert_eq!(d.get("k").await.data()["data"], json!({"name": "a"}));
        d.get("new").await.refused(404, "not_found_error");
    })
    .await;
}

#[tokio::test]
async fn every_item_of_a_violation_has_a_place() {
    on_leader_and_follower(async |run: Run| {
        let d = strict(&run).await;
        for wrong in [json!({}), json!({"name": "a", "other": 1}), json!({"name": 1})] {
            let answer = d.create("k", &wrong).await.invalid();
            for error in answer.body["errors"].as_array().unwrap() {
                assert!(error["loc"].is_array(), "{answer:?}");
            }
        }
        assert_eq!(d.list(&[]).await.total(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_hostile_document_is_answered_with_a_bounded_list() {
    on_leader_and_follower(async |run: Run| {
        let d = strict(&run).await;
        let many: Vec<&str> = vec!["x"; 50_000];
        let answer = d.create("k", &json!({"name": "a", "o": {"list": many}})).await.invalid();
        let count = answer.body["errors"].as_array().unwrap().len();
        assert!((100..=2000).contains(&count), "{count} items");
    })
    .await;
}

#[tokio::test]
async fn a_whole_decimal_is_an_integer_to_a_schema() {
    on_leader_and_follower(async |run: Run| {
        let d = strict(&run).await;
        d.create("k", &json!({"name": "a", "age": 7.0})).await.expect(201);
        d.create("l", &json!({"name": "a", "age": 7.5})).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn without_a_schema_every_object_is_taken() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let all = json!({"": null, "a": [[], {}, [1, "x"]], "ü": {"\u{0}": "\u{0}"}, "e": "\u{1F600}"});
        for (key, data) in [("empty", json!({})), ("all", all)] {
            d.create(key, &data).await.expect(201);
            assert_eq!(d.get(key).await.data()["data"], data);
        }
    })
    .await;
}
