//! What is read from the body of a batch.

use serde_json::json;

use super::*;
use concord_model::{document::Document, error::Invalid};
use concord_service::CheckCondition;

fn errors(operations: Value) -> (Vec<Vec<LocSegment>>, Vec<Vec<LocSegment>>) {
    match parse(json!({"operations": operations}), &Limits::default()) {
        Err(Problem::Shape(details)) => (details.into_iter().map(|detail| detail.loc).collect(), vec![]),
        Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => {
            (vec![], violations.into_iter().map(|violation| violation.loc).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn at(index: u64, name: &str) -> Vec<LocSegment> {
    vec!["operations".into(), LocSegment::Index(index), name.into()]
}

fn in_body(index: u64, name: &str) -> Vec<LocSegment> {
    [vec!["body".into()], at(index, name)].concat()
}

#[test]
fn every_operation_is_parsed() {
    let (d, k) = ("d", "k");
    let operations = json!([
        {"op": "create_definition", "config_definition_key": d, "json_schema": null, "if_none_match": "*"},
        {"op": "set_indexes", "config_definition_key": d, "indexes": ["a"], "if_match": "\"7\""},
        {"op": "delete_definition", "config_definition_key": d, "mode": "restrict"},
        {"op": "create_config", "config_definition_key": d, "config_key": k, "data": {}},
        {"op": "put_config", "config_definition_key": d, "config_key": k, "data": {}, "if_none_match": "*"},
        {"op": "patch_config", "config_definition_key": d, "config_key": k, "patch": [], "if_match": "8"},
        {"op": "delete_config", "config_definition_key": d, "config_key": k, "if_match": "*"},
    ]);
    let (writes, parts) = parse(json!({"operations": operations}), &Limits::default()).unwrap();
    assert!(parts.is_none());
    let mut effects = [OperationEffect::Change; operation::OPERATION_TYPES.len()];
    effects[2] = OperationEffect::DeleteDefinition;
    for (index, (kind, write)) in operation::OPERATION_TYPES.iter().zip(&writes).enumerate() {
        let outlined = outline(write);
        let result: Value = serde_json::from_str(&outlined.result(true).finish()).unwrap();
        let config = if index < 3 { Value::Null } else { json!(k) };
        let effect = effects[index];
        assert_eq!((&result["op"], &result["config_key"]), (&json!(kind.name), &config));
        assert_eq!((&result["created"], outlined.kind), (&json!(true), effect), "{}", kind.name);
    }
    let operations = json!([
        {"op": "set_schema", "config_definition_key": d, "json_schema": {}, "policy": "force", "if_match": "7"},
        {"op": "set_schema", "config_definition_key": d, "json_schema": null, "format_assertion": false},
        {"op": "set_unique", "config_definition_key": d, "paths": ["a"]},
        {"op": "set_protection", "config_definition_key": d, "protected": true, "if_match": "7"},
        {"op": "put_config", "config_definition_key": d, "config_key": k, "data": {}, "upsert": true},
        {"op": "put_config", "config_definition_key": d, "config_key": k, "data": {}, "upsert": true, "if_match": "8"},
        {"op": "put_config", "config_definition_key": d, "config_key": k, "data": {}, "upsert": false},
    ]);
    let (parsed, _) = parse(json!({"operations": operations}), &Limits::default()).unwrap();
    let parsed: Vec<String> = parsed.into_iter().map(|parsed| format!("{parsed:?}")).collect();
    for (place, (parsed, parts)) in parsed
        .iter()
        .zip([
            &["SetSchema", "force: true", "expect: At(7)"][..],
            &[
                "SetSchema",
                "schema: None",
                "format_assertion: Some(false)",
                "force: false",
                "expect: Present",
            ],
            &["SetUnique", "paths: [\"a\"]", "expect: Present"],
            &["SetProtection", "protected: true", "expect: At(7)"],
            &["WriteConfig", "expect: Any"],
            &["WriteConfig", "expect: At(8)"],
            &["WriteConfig", "expect: Present"],
        ])
        .enumerate()
    {
        assert!(parts.iter().all(|part| parsed.contains(part)), "{place}: {parsed}");
    }
    assert!(matches!(writes[1], Write::SetIndexes { expect: Expect::At(7), .. }));
    assert!(matches!(writes[2], Write::DeleteDefinition { restrict: true, .. }));
    assert!(matches!(writes[4], Write::WriteConfig { expect: Expect::None, .. }));
    let Write::PatchConfig { patch, expect, .. } = &writes[5] else { panic!("{writes:?}") };
    assert_eq!((patch.format, *expect), (PatchFormat::Json, Expect::At(8)));
}

#[test]
fn the_errors_of_shape_of_all_operations_are_listed() {
    let (details, _) = errors(json!([
        {"op": "put_config", "config_definition_key": 1, "config_key": "k"},
        5,
        {"config_definition_key": "d"},
        {"op": "patch_config", "config_definition_key": "d", "config_key": "k", "patch": [{"op": "add", "path": ""}]},
        {"op": "patch_config", "config_definition_key": "d", "config_key": "k", "patch": 3},
    ]));
    assert_eq!(
        details,
        [
            in_body(0, "config_definition_key"),
            in_body(0, "data"),
            vec!["body".into(), "operations".into(), LocSegment::Index(1)],
            in_body(2, "op"),
            [in_body(3, "patch"), vec![LocSegment::Index(0), "value".into()]].concat(),
            in_body(4, "patch"),
        ]
    );
}

#[test]
fn a_condition_that_cannot_be_satisfied_is_refused() {
    let config = |op: &str, name: &str, value: &str| {
        let mut operation = json!({"op": op, "config_definition_key": "d", "config_key": "k", name: value});
        match op {
            "patch_config" => operation["patch"] = json!({}),
            "delete_config" => {}
            _ => operation["data"] = json!({}),
        }
        operation
    };
    for (operation, name) in [
        (json!({"op": "spell", "config_definition_key": "d"}), "op"),
        (config("create_config", "if_match", "1"), "if_match"),
        (config("put_config", "if_match", "x"), "if_match"),
        (config("put_config", "if_match", ""), "if_match"),
        (config("put_config", "if_none_match", "\"1\""), "if_none_match"),
        (config("patch_config", "if_none_match", "*"), "if_none_match"),
        (config("delete_config", "if_none_match", "*"), "if_none_match"),
        (json!({"op": "delete_definition", "config_definition_key": "d", "mode": "all"}), "mode"),
        (
            json!({"op": "set_indexes", "config_definition_key": "d", "indexes": [], "json_schema": {}}),
            "json_schema",
        ),
    ] {
        let (_, violations) = errors(json!([operation]));
        assert_eq!(violations, [at(0, name)], "{operation}");
    }
    let (details, _) = errors(json!([config("put_config", "if_mach", "1")]));
    assert_eq!(details.len(), 1, "a misspelt condition is no condition");
}

#[test]
fn conditions_choose_between_two_lists() {
    let check = |more: Value| {
        let mut check = json!({"config_definition_key": "d", "config_key": "k"});
        check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check
    };
    let body = json!({
        "if": [check(json!({"revision": 7})), check(json!({"absent": true})), check(json!({"pointer": "/a~1b/0", "equals": null})),
            check(json!({"op": "check_config", "pointer": "", "absent": true})), check(json!({"absent": false}))],
        "then": [{"op": "rollback_config", "config_definition_key": "d", "config_key": "k", "revision": 3}],
        "else": [{"op": "get_config", "config_definition_key": "d", "config_key": "k"}, check(json!({"op": "check_config", "equals": {}}))],
    });
    let (parsed, parts) = parse(body, &Limits::default()).unwrap();
    let parts = parts.unwrap();
    assert_eq!((parts.conditions, parts.then, parsed.len()), (5, 1, 8));
    assert!(matches!(&parsed[5], Write::Rollback(Rollback { restored: Restored::At(3), .. })));
    let conditions: Vec<CheckCondition> = parsed
        .iter()
        .filter_map(
            |write| if let Write::Check(check) = write { Some(check.condition.clone()) } else { None },
        )
        .collect();
    let value = |pointer: &str, equals: Option<Value>| CheckCondition::Value {
        pointer: pointer.into(),
        equals: equals.map(Document::new),
    };
    assert_eq!(
        conditions,
        [
            CheckCondition::Revision(7),
            CheckCondition::Exists(false),
            value("/a~1b/0", Some(Value::Null)),
            value("", None),
            CheckCondition::Exists(true),
            value("", Some(json!({}))),
        ]
    );
    let placed = |number| {
        let mut loc = vec!["operations".into(), LocSegment::Index(number), "data".into()];
        parts.relocate(&mut loc);
        loc
    };
    assert_eq!(placed(4)[..2], ["if".into(), LocSegment::Index(4)]);
    assert_eq!(placed(5)[..2], ["then".into(), LocSegment::Index(0)]);
    assert_eq!(placed(7)[..2], ["else".into(), LocSegment::Index(1)]);
    for (list, wrong, name) in [
        ("if", check(json!({})), "op"),
        ("if", check(json!({"absent": true, "revision": 1})), "op"),
        ("if", check(json!({"op": "get_config", "absent": true})), "op"),
        ("if", check(json!({"revision": 1, "pointer": "/a"})), "pointer"),
        ("if", check(json!({"equals": 1, "pointer": "a"})), "pointer"),
        ("if", check(json!({"equals": 1, "pointer": "/~2"})), "pointer"),
        ("if", check(json!({"absent": false, "pointer": "/a"})), "absent"),
    ] {
        let problem = parse(json!({ list: [wrong] }), &Limits::default()).unwrap_err();
        let Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None) = problem else {
            panic!("{problem:?}")
        };
        assert_eq!(violations[0].loc, [list.into(), LocSegment::Index(0), name.into()], "{wrong}");
    }
    for wrong in [json!({"if": []}), json!({"if": [check(json!({"absent": true}))], "operations": []})] {
        assert!(matches!(parse(wrong, &Limits::default()), Err(Problem::Refused(..))));
    }
    assert!(
        matches!(parse(json!({"then": []}), &Limits::default()), Err(Problem::Shape(_))),
        "`if` is missing"
    );
}
