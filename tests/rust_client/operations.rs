//! Every operation of the client's crate on real nodes: in a batch, in a transaction, and as a request of its own.

use concord_client::{
    Check, CheckCondition, Client, Error, IfMatch, Operation, OperationResult, PutMode, ReadConfig, Request,
    Transaction, UndeleteAt,
};
use serde_json::{Value, json};

use super::client;
use crate::harness::Cluster;

const DATA: &str = r#"{"z":1.50,"a":123456789012345678901234567890,"n":{"b":true}}"#;

fn data(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

fn create_definition(definition: &str) -> Operation {
    Operation::CreateDefinition {
        definition: definition.into(),
        indexes: vec!["id".into()],
        schema: Some(json!({"properties": {"id": {"type": "integer"}, "n": {}}})),
        format_assertion: Some(false),
    }
}

fn create(key: &str, data: Value) -> Operation {
    Operation::CreateConfig { definition: "d".into(), key: key.into(), data }
}

fn put(key: &str, data: Value, mode: PutMode) -> Operation {
    Operation::PutConfig { definition: "d".into(), key: key.into(), data, mode }
}

fn get(key: &str) -> Operation {
    Operation::GetConfig { definition: "d".into(), key: key.into() }
}

fn check(key: &str, condition: CheckCondition) -> Check {
    Check { definition: "d".into(), key: key.into(), condition }
}

/// All operations on a definition and its configs, in an order in which each can be applied.
fn all(revision: u64) -> Vec<Operation> {
    let (definition, none) = (|| "d".to_owned(), None);
    let config = |key: &str| (definition(), key.to_owned());
    vec![
        Operation::CheckConfig(check("a", CheckCondition::Revision(revision))),
        Operation::SetIndexes {
            definition: definition(),
            indexes: vec!["id".into(), "n.b".into()],
            if_match: none,
        },
        Operation::SetSchema {
            definition: definition(),
            schema: None,
            format_assertion: None,
            force: true,
            if_match: Some(IfMatch::Exists),
        },
        Operation::SetUnique { definition: definition(), paths: vec!["id".into()], if_match: none },
        create("b", json!({"id": 2})),
        put("c", json!({"id": 3}), PutMode::Create),
        put("e", json!({"id": 5}), PutMode::Upsert),
        put("b", json!({"id": 4}), PutMode::Replace),
        Operation::PatchConfig {
            definition: config("a").0,
            key: config("a").1,
            patch: json!([{"op": "add", "path": "/id", "value": 1}]),
            if_match: Some(revision.into()),
        },
        Operation::DeleteConfig { definition: config("c").0, key: config("c").1, if_match: none },
        Operation::RollbackConfig { definition: definition(), key: "a".into(), revision, if_match: none },
        get("a"),
        get("absent"),
    ]
}

fn names(results: &[OperationResult]) -> Vec<String> {
    results.iter().map(|result| result.op.clone()).collect()
}

async fn first_revision(client: &Client) -> u64 {
    let applied =
        client.batch(&[create_definition("d"), create("a", data(DATA))]).await.expect("both are new");
    assert_eq!(applied.results.iter().map(|result| result.created).collect::<Vec<_>>(), [Some(true); 2]);
    applied.revision.expect("it is no dry run")
}

#[tokio::test]
async fn a_batch_applies_each_operation() {
    let cluster = Cluster::start("operations-batch").await;
    let client = client(&cluster);
    let revision = first_revision(&client).await;
    let operations = all(revision);
    let tried = client.send(Request::batch(&operations).dry_run(true)).await.expect("it would be applied");
    assert_eq!(tried.applied().expect("it is of a batch").revision, None);
    let applied = client.batch(&operations).await.expect("each can be applied");
    let expected: Vec<String> =
        operations.iter().map(|one| data(&one.to_string())["op"].as_str().unwrap().into()).collect();
    assert_eq!(names(&applied.results), expected);
    assert!(applied.succeeded && applied.revision.is_some_and(|now| now > revision), "{applied:?}");
    let of = |key: &str, op: &str| {
        applied
            .results
            .iter()
            .find(|one| one.key.as_deref() == Some(key) && one.op == op)
            .expect("it was applied")
    };
    assert_eq!((of("e", "put_config").created, of("b", "put_config").created), (Some(true), Some(false)));
    // Reads see the state before the batch, with the digits and the order that were written.
    let ReadConfig::Found(found) = &of("a", "get_config").read else { panic!("{applied:?}") };
    assert_eq!((found["data"].to_string(), &found["revision"]), (DATA.to_owned(), &json!(revision)));
    assert_eq!(of("absent", "get_config").read, ReadConfig::Absent);
    let stale = client.batch(&[put("b", json!({}), PutMode::ReplaceIf(revision))]).await;
    let Err(Error::Refused(refusal)) = stale else { panic!("{stale:?}") };
    assert_eq!(
        (refusal.status.as_u16(), &refusal.items[0].loc[..2]),
        (412, &[json!("operations"), json!(0)][..])
    );
}

#[tokio::test]
async fn a_transaction_applies_the_list_that_its_conditions_choose() {
    let cluster = Cluster::start("operations-transaction").await;
    let client = client(&cluster);
    let revision = first_revision(&client).await;
    for (condition, expected) in [
        (CheckCondition::Exists, true),
        (CheckCondition::Absent, false),
        (CheckCondition::Revision(revision), true),
        (CheckCondition::Revision(revision + 1), false),
        (CheckCondition::Equals { pointer: String::new(), value: data(DATA) }, true),
        (CheckCondition::Equals { pointer: "/z".into(), value: json!(1.5) }, true),
        (CheckCondition::Equals { pointer: "/z".into(), value: Value::Null }, false),
        (CheckCondition::AbsentAt { pointer: "/n/c".into() }, true),
        (CheckCondition::AbsentAt { pointer: "/n/b".into() }, false),
    ] {
        let transaction = Transaction {
            conditions: vec![check("a", condition.clone())],
            then: vec![get("a")],
            otherwise: vec![get("a"), get("absent")],
        };
        let applied = client.transaction(&transaction).await.expect("it is valid");
        let count = if expected { 1 } else { 2 };
        assert_eq!((applied.succeeded, applied.results.len()), (expected, count), "{condition:?}");
    }
}

#[tokio::test]
async fn each_operation_is_a_request_of_its_own() {
    let cluster = Cluster::start("operations-alone").await;
    let client = client(&cluster);
    let revision = first_revision(&client).await;
    for operation in all(revision) {
        let sent = client.send(Request::operation(&operation)).await;
        if operation == get("absent") {
            assert!(sent.is_err_and(|error| error.is_not_found()), "it does not exist");
        } else {
            sent.unwrap_or_else(|error| panic!("{operation}: {error}"));
        }
    }
    let found = client.send(Request::operation(&get("a"))).await.expect("it exists");
    assert_eq!(found.data().expect("it is of a node")["data"].to_string(), DATA);
    let restricted = Operation::DeleteDefinition { definition: "d".into(), restrict: true, if_match: None };
    let refused = client.send(Request::operation(&restricted)).await;
    assert!(refused.is_err_and(|error| error.status().is_some_and(|status| status == 409)), "it has configs");
    let whole = Operation::DeleteDefinition { definition: "d".into(), restrict: false, if_match: None };
    client.send(Request::operation(&whole)).await.expect("it exists");
}

#[tokio::test]
async fn a_deleted_definition_is_listed_and_returns() {
    let cluster = Cluster::start("operations-undelete").await;
    let client = client(&cluster);
    first_revision(&client).await;
    let before = client.batch(&[put("a", data(DATA), PutMode::Replace)]).await.expect("it exists");
    let whole = Operation::DeleteDefinition { definition: "d".into(), restrict: false, if_match: None };
    let broken = put("a", json!({"id": 9}), PutMode::Replace);
    client.batch(&[broken]).await.expect("it exists");
    client.send(Request::operation(&whole)).await.expect("it exists");
    let kept = client.deleted_definitions().await.expect("the list");
    let [one] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!((&*one.definition, one.configs, one.bytes > 0), ("d", 1, true));
    let tried = client.send(Request::undelete("d", &UndeleteAt::Deletion).dry_run(true)).await;
    let tried = tried.and_then(|answer| answer.undeleted()).expect("it could return");
    assert_eq!((tried.deleted_revision, tried.revision), (one.revision, one.revision - 1));
    let at = UndeleteAt::Revision(before.revision.expect("it is no dry run"));
    let returned = client.undelete("d", &at).await.expect("it is kept");
    assert_eq!((returned.deleted_revision, Some(returned.revision)), (one.revision, before.revision));
    let found = client.send(Request::operation(&get("a"))).await.expect("it exists");
    assert_eq!(found.data().expect("it is of a node")["data"].to_string(), DATA);
    assert!(client.deleted_definitions().await.expect("the list").is_empty());
    let twice = client.undelete("d", &UndeleteAt::Deletion).await;
    assert!(twice.is_err_and(|error| error.status().is_some_and(|status| status == 409)), "it exists");
    client.send(Request::operation(&whole).query("purge", true)).await.expect("it exists");
    let Err(Error::Refused(refusal)) = client.undelete("d", &at).await else { panic!("it is gone for good") };
    assert_eq!((refusal.status.as_u16(), &*refusal.items[0].code), (404, "deletion_not_kept"));
}
