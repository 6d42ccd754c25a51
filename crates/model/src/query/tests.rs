//! Query strings and how they are parsed.

use serde_json::Value;

use super::*;
use crate::{
    index::{self, Build, Indexing},
    key::Key,
    time::Timestamp,
};

fn definition() -> Definition {
    let schema = r#"{"properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "page": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}}, "any": {}}}"#;
    Definition {
        id: 1,
        key: Key::parse("d").unwrap(),
        indexes: ["n", "s", "page", "tags", "any"].map(String::from).into(),
        schema: Some(schema.into()),
        indexing: Indexing::fresh(5),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    }
}

fn ask(pairs: &[(&str, &str)]) -> Result<ConfigQuery, QueryError> {
    let params: Vec<_> = pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    configs(&params, &definition(), &Limits::default())
}

#[test]
fn pages_are_integers_that_the_response_can_repeat() {
    let query = ask(&[("page", " +2 "), ("limit", "1"), ("limit", "7")]).unwrap();
    assert_eq!((query.page.page, query.page.limit, query.page.descending), (2, 7, true));
    assert_eq!(ask(&[("page", "18446744073709551615")]).unwrap().page.page, u64::MAX);
    let bad = ask(&[("page", ""), ("limit", "1.0")]);
    assert_eq!(bad, Err(QueryError::NotIntegers(vec!["page".into(), "limit".into()])));
    for pair in [
        ("page", "0"),
        ("limit", "-99999999999999999999999"),
        ("limit", "1001"),
        ("sort_order", "ASC"),
        ("page", "18446744073709551616"),
        ("page", &"9".repeat(60)),
    ] {
        assert!(matches!(ask(&[pair]), Err(QueryError::Violations(_))), "{pair:?}");
    }
}

#[test]
fn texts_are_parsed_by_their_declared_type() {
    let test = |name: &str, text: &str| ask(&[(name, text)]).map(|query| query.filters[0].test.clone());
    let is = |value: Value| Ok(FilterTest::AnyOf(vec![index::encode(&value)]));
    assert_eq!(test("n", "6.0"), is(6.into()));
    assert_eq!(test("s", "6"), is("6".into()));
    assert_eq!(test("tags", "x"), is("x".into()));
    assert_eq!(test("any", "6"), is(6.into()));
    assert_eq!(test("any", "six"), is("six".into()));
    assert_eq!(test("data.page", "true"), is(true.into()));
    assert_eq!(test("any", r#"{"a": 1}"#), is(serde_json::json!({"a": 1})));
    assert_eq!(
        test("any", r#"{"$serde_json::private::Number": "1"}"#),
        is(r#"{"$serde_json::private::Number": "1"}"#.into())
    );
    for (name, text) in [
        ("n", "six"),
        ("data.page", "1"),
        ("n[like]", "6"),
        ("n[prefix]", "6"),
        ("zzz", "1"),
        ("created_at", "x"),
    ] {
        assert!(matches!(test(name, text), Err(QueryError::Violations(_))), "{name}={text}");
    }
}

#[test]
fn a_text_is_each_value_that_the_declared_types_allow_and_quotes_say_that_it_is_a_string() {
    let schema =
        r#"{"properties": {"u": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}}}"#;
    let definition = Definition {
        schema: Some(schema.into()),
        indexes: vec!["u".into()],
        indexing: Indexing::fresh(1),
        ..definition()
    };
    let test = |name: &str, text: &str| {
        let params = [(name.to_owned(), text.to_owned())];
        configs(&params, &definition, &Limits::default()).map(|query| query.filters[0].test.clone()).unwrap()
    };
    let any = |values: &[Value]| {
        let mut values: Vec<_> = values.iter().map(index::encode).collect();
        values.sort();
        FilterTest::AnyOf(values)
    };
    assert_eq!(test("u", "7"), any(&[7.into(), "7".into()]));
    assert_eq!(test("u", r#""7""#), any(&["7".into()]));
    assert_eq!(test("u", "null"), any(&[Value::Null, "null".into()]));
    assert_eq!(test("u", r#""null""#), any(&["null".into()]));
    assert_eq!(test("u", "x"), any(&["x".into()]));
    assert_eq!(test("u[in]", r#"1,"a,b",x"#), any(&[1.into(), "1".into(), "a,b".into(), "x".into()]));
    assert!(matches!(test("u[gte]", "7"), FilterTest::Ranges(ranges) if ranges.len() == 2));
    assert!(matches!(test("u[gte]", r#""7""#), FilterTest::Ranges(ranges) if ranges.len() == 1));
}

#[test]
fn a_value_of_a_list_may_contain_commas_in_quotes() {
    let any = |values: &[&str]| {
        let mut values: Vec<_> = values.iter().map(|value| index::encode(&(*value).into())).collect();
        values.sort();
        FilterTest::AnyOf(values)
    };
    // The path has strings only.
    let test = |name: &str, text: &str| ask(&[(name, text)]).unwrap().filters[0].test.clone();
    for (text, expected) in [
        (r#""a,b",c"#, &["a,b", "c"][..]),
        (r#"c,"a, \"b\",","""#, &["c", r#"a, "b","#, ""]),
        ("a,b", &["a", "b"]),
        // No JSON strings.
        (r#""a,b"#, &["\"a", "b"]),
        (r#""a"b,c"#, &["\"a\"b", "c"]),
        (r#"a","b"#, &["a\"", "\"b"]),
    ] {
        assert_eq!(test("s[in]", text), any(expected), "{text}");
    }
    assert_eq!(test("s", r#""a,b""#), any(&[r#""a,b""#]), "equality takes a string as it is");
    assert_eq!(test("config_key[in]", r#""a",b"#), FilterTest::AnyOf(vec![b"a"[..].into(), b"b"[..].into()]));
}

#[test]
fn only_a_path_whose_index_is_being_built_is_rejected() {
    let mut definition = definition();
    definition.indexing.build = Some(Build { begun: 1, slots: vec![1], cursor: None });
    let ask = |name: &str, text: &str| {
        configs(&[(name.to_owned(), text.to_owned())], &definition, &Limits::default())
    };
    for (name, text) in [("s", "x"), ("data.s[prefix]", "x"), ("s[exists]", "false"), ("sort_by", "s")] {
        assert_eq!(ask(name, text), Err(QueryError::Building("s".into())), "{name}");
    }
    assert!(ask("n", "1").is_ok() && ask("sort_by", "n").is_ok() && ask("config_key[prefix]", "s").is_ok());
    assert!(matches!(ask("s[like]", "x"), Err(QueryError::Violations(_))), "violations come first");
}

#[test]
fn repeated_equality_is_any_of_and_sort_fields_are_checked() {
    let query = ask(&[("n", "1"), ("n", "2"), ("n[gte]", "0"), ("s[in]", "a,b")]).unwrap();
    assert_eq!(query.filters.len(), 3);
    assert_eq!(ask(&[("sort_by", "n")]).unwrap().sort, ConfigSort::Slot(0));
    for bad in ["tags", "nothing", ""] {
        assert!(ask(&[("sort_by", bad)]).is_err(), "{bad}");
    }
}

#[test]
fn a_bracket_behind_a_backslash_is_part_of_a_members_name() {
    let definition = Definition { schema: None, indexes: vec!["labels.*".into()], ..definition() };
    let indexing = Indexing::of(&definition.indexes);
    let definition = Definition { indexing, ..definition };
    let ask = |name: &str| {
        configs(&[(name.to_owned(), "7".to_owned())], &definition, &Limits::default())
            .map(|query| query.filters[0].clone())
    };
    let test = |name: &str| ask(name).map(|filter| (filter.within.unwrap().prefix, filter.test));
    let equal = test(r"labels.\[1]").unwrap();
    assert_eq!(&*equal.0, b"[1]\xFF");
    assert!(matches!(equal.1, FilterTest::AnyOf(_)));
    let range = test(r"labels.\[1][gte]").unwrap();
    assert_eq!(range.0, equal.0);
    assert!(matches!(range.1, FilterTest::Ranges(_)));
    // Two backslashes are one that is part of the name.
    let range = test(r"labels.a\\[gte]").unwrap();
    assert_eq!(&*range.0, b"a\\\xFF");
    assert!(matches!(range.1, FilterTest::Ranges(_)));
}
