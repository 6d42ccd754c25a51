//! The examples of both RFCs, and what is specific here: member order, numbers, bounded cost.

use super::*;
use crate::{document::parse, limits::PATCH_COST_MAX};

fn value(text: &str) -> Value {
    parse(text.as_bytes(), 64).unwrap()
}

fn patch(format: PatchFormat, text: &str) -> Patch {
    let document = Document::new(value(text));
    assert_eq!(Patch::check_shape(format, &document.value), [], "{text}");
    Patch { format, document }
}

fn json(target: &str, operations: &str) -> Result<String, PatchError> {
    let made = patch(PatchFormat::Json, operations).apply(value(target), &mut { PATCH_COST_MAX });
    made.map(|made| made.to_string())
}

#[test]
fn the_examples_of_merge_patch() {
    // RFC 7396, appendix A, those whose patch is an object.
    for (target, merged, expected) in [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
        (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
        (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
        (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
        (r"[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
    ] {
        let made = patch(PatchFormat::Merge, merged).apply(value(target), &mut 0).unwrap();
        assert_eq!(made.to_string(), expected, "{target} {merged}");
    }
}

#[test]
fn the_examples_of_json_patch() {
    // RFC 6902, appendix A.
    for (target, operations, expected) in [
        (r#"{"foo":"bar"}"#, r#"[{"op":"add","path":"/baz","value":"qux"}]"#, r#"{"foo":"bar","baz":"qux"}"#),
        (
            r#"{"foo":["bar","baz"]}"#,
            r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
            r#"{"foo":["bar","qux","baz"]}"#,
        ),
        (r#"{"baz":"qux","foo":"bar"}"#, r#"[{"op":"remove","path":"/baz"}]"#, r#"{"foo":"bar"}"#),
        (
            r#"{"foo":["bar","qux","baz"]}"#,
            r#"[{"op":"remove","path":"/foo/1"}]"#,
            r#"{"foo":["bar","baz"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
            r#"{"baz":"boo","foo":"bar"}"#,
        ),
        (
            r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
            r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
            r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
        ),
        (
            r#"{"foo":["all","grass","cows","eat"]}"#,
            r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
            r#"{"foo":["all","cows","eat","grass"]}"#,
        ),
        (
            r#"{"foo":["bar"]}"#,
            r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
            r#"{"foo":["bar",["abc","def"]]}"#,
        ),
        (
            r#"{"/":9,"~1":10}"#,
            r#"[{"op":"test","path":"/~01","value":10},{"op":"replace","path":"/~1","value":8}]"#,
            r#"{"/":8,"~1":10}"#,
        ),
        (r#"{"a":1}"#, r#"[{"op":"add","path":"","value":{"b":2},"xyz":1}]"#, r#"{"b":2}"#),
        (r#"{"a":{"b":1}}"#, r#"[{"op":"copy","from":"/a","path":"/c"}]"#, r#"{"a":{"b":1},"c":{"b":1}}"#),
        (r#"{"a":1}"#, r#"[{"op":"move","from":"/a","path":"/a"}]"#, r#"{"a":1}"#),
    ] {
        assert_eq!(json(target, operations).unwrap(), expected, "{operations}");
    }
}

#[test]
fn members_keep_their_order_and_numbers_their_digits() {
    let target = r#"{"a":123456789012345678901234567890,"b":7.0,"c":-0.0,"d":1e+400}"#;
    let removed = json(target, r#"[{"op":"remove","path":"/a"}]"#).unwrap();
    assert_eq!(removed, r#"{"b":7.0,"c":-0.0,"d":1e+400}"#);
    let merged = patch(PatchFormat::Merge, r#"{"b":null,"e":0.10}"#).apply(value(target), &mut 0).unwrap();
    assert_eq!(merged.to_string(), r#"{"a":123456789012345678901234567890,"c":-0.0,"d":1e+400,"e":0.10}"#);
}

#[test]
fn a_test_compares_by_value() {
    let target = r#"{"n":6,"o":{"a":[1.50],"b":2},"big":12345678901234567890123,"s":"6","z":0}"#;
    let test = |path: &str, text: &str| {
        json(target, &format!(r#"[{{"op":"test","path":"{path}","value":{text}}}]"#)).is_ok()
    };
    for (path, equal) in [
        ("/n", "6.0"),
        ("/n", "60e-1"),
        ("/o", r#"{"b":2.0,"a":[1.5]}"#),
        ("/big", "12345678901234567890123"),
        ("/z", "-0.0"),
    ] {
        assert!(test(path, equal), "{path} {equal}");
    }
    for (path, other) in [
        ("/n", "\"6\""),
        ("/s", "6"),
        ("/big", "12345678901234567890124"),
        ("/o", r#"{"a":[1.5]}"#),
        ("/o", r#"{"a":[1.5],"b":2,"c":1}"#),
        ("/o/a", "[1.5,1]"),
        ("/n", "null"),
    ] {
        assert!(!test(path, other), "{path} {other}");
    }
    let failed = json(target, r#"[{"op":"test","path":"/n","value":6},{"op":"test","path":"/n","value":5}]"#);
    assert_eq!(failed, Err(PatchError::TestFailed { operation: 1 }));
    for gone in ["/x", "/o/x", "/n/x"] {
        let failed = json(target, &format!(r#"[{{"op":"test","path":"{gone}","value":null}}]"#));
        assert_eq!(failed, Err(PatchError::TestFailed { operation: 0 }), "{gone}");
    }
}

#[test]
fn an_operation_on_a_missing_path_is_rejected_with_its_index() {
    let target = r#"{"a":{"b":1},"l":[1,2]}"#;
    for operation in [
        r#"{"op":"remove","path":"/x"}"#,
        r#"{"op":"remove","path":""}"#,
        r#"{"op":"remove","path":"/l/-"}"#,
        r#"{"op":"remove","path":"/l/2"}"#,
        r#"{"op":"remove","path":"/l/01"}"#,
        r#"{"op":"remove","path":"/l/+1"}"#,
        r#"{"op":"replace","path":"/x","value":1}"#,
        r#"{"op":"add","path":"/x/y","value":1}"#,
        r#"{"op":"add","path":"/a/b/c","value":1}"#,
        r#"{"op":"add","path":"/l/3","value":1}"#,
        r#"{"op":"move","from":"/x","path":"/y"}"#,
        r#"{"op":"move","from":"/a","path":"/a/b"}"#,
        r#"{"op":"copy","from":"/x","path":"/y"}"#,
    ] {
        let made = json(target, &format!(r#"[{{"op":"add","path":"/ok","value":1}},{operation}]"#));
        let Err(PatchError::Violation(violation)) = made else { panic!("{operation}: {made:?}") };
        assert_eq!(violation.loc, [LocSegment::Index(1)], "{operation}");
    }
}

#[test]
fn all_errors_of_the_shape_are_returned() {
    use ShapeErrorKind::{Missing, NotList, NotObject, NotText, Wrong};
    let wrong = Patch::check_shape(
        PatchFormat::Json,
        &value(
            r#"[1,{"op":"add","path":"/a"},{"op":"spell","path":"a"},{"path":1,"op":"move"},{"op":"remove","path":"/~2"}]"#,
        ),
    );
    let at = |index: u64, name: &str| vec![LocSegment::Index(index), name.into()];
    let loc = |error: &ShapeError| error.loc.clone();
    assert_eq!(wrong[0], ShapeError { loc: vec![LocSegment::Index(0)], kind: NotObject });
    assert_eq!(wrong[1], ShapeError { loc: at(1, "value"), kind: Missing });
    assert!(matches!(&wrong[2].kind, Wrong(_)) && loc(&wrong[2]) == at(2, "path"));
    assert!(matches!(&wrong[3].kind, Wrong(_)) && loc(&wrong[3]) == at(2, "op"));
    assert_eq!(wrong[4], ShapeError { loc: at(3, "path"), kind: NotText });
    assert_eq!(wrong[5], ShapeError { loc: at(3, "from"), kind: Missing });
    assert!(matches!(&wrong[6].kind, Wrong(_)) && loc(&wrong[6]) == at(4, "path"));
    assert_eq!(wrong.len(), 7, "{wrong:?}");
    assert_eq!(Patch::check_shape(PatchFormat::Json, &value("{}"))[0].kind, NotList);
    assert_eq!(Patch::check_shape(PatchFormat::Merge, &value("[]"))[0].kind, NotObject);
}

#[test]
fn a_patch_that_would_cost_too_much_is_rejected() {
    let text = "x".repeat(1 << 16);
    let target = format!(r#"{{"a":["{text}"]}}"#);
    let double = r#"{"op":"copy","from":"/a","path":"/a/-"}"#;
    let operations = format!("[{}]", vec![double; 40].join(","));
    let made = json(&target, &operations);
    assert!(matches!(made, Err(PatchError::TooCostly(_))), "doubled forty times");
    let long = format!("[{}]", vec!["0"; 200_000].join(","));
    let shift = r#"{"op":"add","path":"/0","value":1}"#;
    let operations = format!("[{}]", vec![shift; 1000].join(","));
    assert!(matches!(json(&long, &operations), Err(PatchError::TooCostly(_))), "moves 200 million elements");
    let deepen = r#"{"op":"copy","from":"","path":"/a"}"#;
    let operations = format!("[{}]", vec![deepen; 300].join(","));
    assert!(
        matches!(json(r#"{"a":{}}"#, &operations), Err(PatchError::Violation(_))),
        "nests one deeper each time"
    );
}
