use super::*;
use serde_json::json;

fn errors(operations: Value) -> (Vec<Vec<LocSegment>>, Vec<Vec<LocSegment>>) {
    match parse(json!({"operations": operations}), true) {
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
    let writes = parse(json!({"operations": operations}), true).unwrap();
    let results: Vec<Value> =
        writes.iter().map(|write| serde_json::from_str(&result(write)).unwrap()).collect();
    for (index, name) in NAMES.iter().enumerate() {
        assert_eq!(results[index]["op"], *name);
        assert_eq!(results[index]["created"], json!([0, 3, 4].contains(&index)), "{name}");
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
    let config = |op: &str, name: &str, value: &str| json!({"op": op, "config_definition_key": "d", "config_key": "k", "data": {}, "patch": {}, name: value});
    for (operation, name) in [
        (json!({"op": "spell", "config_definition_key": "d"}), "op"),
        (config("create_config", "if_match", "1"), "if_match"),
        (config("put_config", "if_match", "x"), "if_match"),
        (config("put_config", "if_match", ""), "if_match"),
        (config("put_config", "if_none_match", "\"1\""), "if_none_match"),
        (config("patch_config", "if_none_match", "*"), "if_none_match"),
        (config("delete_config", "if_none_match", "*"), "if_none_match"),
        (json!({"op": "delete_definition", "config_definition_key": "d", "mode": "all"}), "mode"),
    ] {
        let (_, violations) = errors(json!([operation]));
        assert_eq!(violations, [at(0, name)], "{operation}");
    }
}
