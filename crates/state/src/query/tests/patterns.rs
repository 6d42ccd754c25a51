//! Filters on patterns (`labels.*`, `items[].name`) compared with a reading of all data: maps and arrays as schemas
//! declare them, every operator, configs with more values than are indexed.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::{typed::holds_of_values, *};
use concord_model::{
    index,
    limits::{INDEX_PATTERN_ENTRIES_MAX, Limits},
    query::{self, QueryError},
};

/// A schema, the pattern, and what queries name: a path, its steps (`[]` for elements) and the kinds of its values
/// (none: any).
struct PatternCase {
    schema: Value,
    pattern: &'static str,
    named: &'static [(&'static str, &'static [&'static str], &'static [&'static str])],
    /// Data of a config.
    data: fn(&mut Rng) -> Value,
}

fn scalar(random: &mut Rng) -> Value {
    match random.u8(0..9) {
        0 => json!(null),
        1 => json!(random.bool()),
        2 => json!(random.i64(-2..3)),
        3 => json!(f64::from(random.u8(0..5)) / 2.0),
        _ => text(random),
    }
}

fn text(random: &mut Rng) -> Value {
    const TEXTS: [&str; 8] = ["", "a", "ab", "b", "7", "null", "é", "true"];
    json!(TEXTS[random.usize(0..TEXTS.len())])
}

fn members(random: &mut Rng, value: impl Fn(&mut Rng) -> Value) -> Value {
    const NAMES: [&str; 7] = ["team", "env", "app.io/name", "", "te", "teams", "a\u{0}b"];
    let mut map = Map::new();
    for name in NAMES {
        if random.u8(0..3) > 0 {
            map.insert(name.to_owned(), value(random));
        }
    }
    Value::Object(map)
}

fn list(random: &mut Rng, value: impl Fn(&mut Rng) -> Value) -> Value {
    let number = random.usize(0..4);
    (0..number).map(|_| value(random)).collect()
}

const TEAM: &[&str] = &["labels", "team"];

#[expect(clippy::too_many_lines, reason = "one table, a case in some lines")]
fn cases() -> Vec<PatternCase> {
    vec![
        PatternCase {
            schema: json!({"properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}}}),
            pattern: "labels.*",
            named: &[
                ("labels.team", TEAM, &["string"]),
                ("labels.te", &["labels", "te"], &["string"]),
                (r"labels.app\.io/name", &["labels", "app.io/name"], &["string"]),
                ("labels.none", &["labels", "none"], &["string"]),
            ],
            data: |random| match random.u8(0..60) {
                0..5 => json!({}),
                5 => {
                    let many = |n| (format!("l{n}"), json!("a"));
                    let mut labels: Map<_, _> = (0..=INDEX_PATTERN_ENTRIES_MAX).map(many).collect();
                    labels.insert("team".into(), text(random));
                    json!({"labels": labels})
                }
                _ => json!({"labels": members(random, text)}),
            },
        },
        PatternCase {
            schema: json!({"properties": {"labels": {
                "anyOf": [
                    {"type": "object", "patternProperties": {"^t": {"type": ["integer", "null"]}},
                     "properties": {"env": {"type": "boolean"}},
                     "additionalProperties": {"type": "string"}},
                    {"type": "null"}]}}}),
            pattern: "labels.*",
            named: &[
                ("labels.team", TEAM, &["number", "null", "string", "boolean"]),
                ("labels.env", &["labels", "env"], &["number", "null", "string", "boolean"]),
            ],
            data: |random| {
                let mut labels = Map::new();
                if random.bool() {
                    labels.insert(
                        "team".into(),
                        [json!(null), json!(random.i64(-1..3))][random.usize(0..2)].clone(),
                    );
                }
                if random.bool() {
                    labels.insert("env".into(), json!(random.bool()));
                }
                if random.bool() {
                    labels.insert("zone".into(), text(random));
                }
                [json!({"labels": labels}), json!({"labels": null})][usize::from(random.u8(0..5) == 0)]
                    .clone()
            },
        },
        PatternCase {
            schema: json!({"properties": {"labels": {}}}),
            pattern: "labels.*",
            named: &[
                ("labels.team", TEAM, &[]),
                ("labels.teams", &["labels", "teams"], &[]),
                ("labels.a\u{0}b", &["labels", "a\u{0}b"], &[]),
            ],
            data: |random| match random.u8(0..6) {
                0 => json!({"labels": list(random, scalar)}),
                1 => json!({"labels": members(random, |random| list(random, scalar))}),
                2 => json!({"labels": members(random, |_| json!({"x": 1}))}),
                _ => json!({"labels": members(random, scalar)}),
            },
        },
        PatternCase {
            schema: json!({"properties": {"items": {"type": "array", "items": {
                "type": "object", "properties": {"name": {"type": "string"}, "n": {"type": ["number", "null"]}}}}}}),
            pattern: "items[].name",
            named: &[("items[].name", &["items", "[]", "name"], &["string"])],
            data: |random| {
                let item = |random: &mut Rng| {
                    [json!({"name": text(random)}), json!({})][usize::from(random.u8(0..4) == 0)].clone()
                };
                json!({"items": list(random, item)})
            },
        },
        PatternCase {
            schema: json!({"properties": {"items": {"type": "array", "prefixItems": [
                {"properties": {"n": {"type": "integer"}}}],
                "items": {"properties": {"n": {"type": ["string", "array"], "items": {"type": "null"}}}}}}}),
            pattern: "items[].n",
            named: &[("items[].n", &["items", "[]", "n"], &["number", "string", "null"])],
            data: |random| {
                let mut items = vec![json!({"n": random.i64(-1..8)})];
                for _ in 0..random.u8(0..3) {
                    let some = [text(random), json!([]), json!([null])];
                    items.push(json!({"n": some[random.usize(0..3)]}));
                }
                items.truncate(random.usize(0..4));
                json!({"items": items})
            },
        },
        PatternCase {
            schema: json!({"properties": {"groups": {"additionalProperties": {"type": "array", "items": {
                "properties": {"v": {"type": ["integer", "string"]}}}}}}}),
            pattern: "groups.*[].v",
            named: &[
                ("groups.team[].v", &["groups", "team", "[]", "v"], &["number", "string"]),
                ("groups.te[].v", &["groups", "te", "[]", "v"], &["number", "string"]),
            ],
            data: |random| {
                let item = |random: &mut Rng| match random.u8(0..3) {
                    0 => json!({}),
                    1 => json!({"v": random.i64(0..8)}),
                    _ => json!({"v": text(random)}),
                };
                json!({"groups": members(random, |random| list(random, item))})
            },
        },
    ]
}

/// The values where the steps lead.
fn select<'v>(value: &'v Value, steps: &[&str]) -> Vec<&'v Value> {
    let Some((step, rest)) = steps.split_first() else { return vec![value] };
    if *step == "[]" {
        let elements = value.as_array().into_iter().flatten();
        return elements.flat_map(|element| select(element, rest)).collect();
    }
    let member = value.as_object().and_then(|members| members.get(*step));
    member.into_iter().flat_map(|member| select(member, rest)).collect()
}

fn filled(case: &PatternCase, random: &mut Rng) -> (State, Vec<(String, Value)>) {
    let mut builder = StateBuilder::new();
    let indexes = vec!["other".to_owned(), case.pattern.to_owned()];
    let definition = Definition {
        id: 1,
        key: Key::parse("d").unwrap(),
        indexing: Indexing::of(&indexes),
        indexes,
        schema: Some(case.schema.to_string().into()),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    };
    builder.definition(definition.clone()).unwrap();
    let paths = index::stored_paths(&definition);
    let rows: Vec<(String, Value)> = (0..60).map(|n| (format!("k{n:03}"), (case.data)(random))).collect();
    for (key, data) in &rows {
        let config = Config {
            key: Key::parse(key).unwrap(),
            data: data.to_string().into(),
            entries: index::all_entries(&paths, data),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 2,
        };
        builder.config(1, config).unwrap();
    }
    (builder.finish(9, Timestamp(5000)).unwrap(), rows)
}

/// Asks for the keys that a filter finds; `None` when its text has no meaning.
fn ask(found: &Collection, name: &str, text: &str) -> Option<Vec<String>> {
    let params = [(name, text), ("limit", "1000"), ("sort_by", "config_key"), ("sort_order", "asc")];
    let params = params.map(|(name, text)| (name.to_owned(), text.to_owned()));
    match query::configs(&params, &found.definition, &Limits::default()) {
        Ok(query) => {
            let list = found.list(&query);
            assert_eq!(list.total, list.results.len() as u64);
            Some(list.results.iter().map(|config| config.key.as_str().to_owned()).collect())
        }
        Err(QueryError::Violations(_)) => None,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn every_filter_on_a_pattern_finds_the_same_as_a_scan() {
    const OPERATORS: [&str; 8] = ["", "in", "ne", "gte", "gt", "lte", "lt", "prefix"];
    const TEXTS: [&str; 22] = [
        "",
        "a",
        "\"a\"",
        "ab",
        "b",
        "é",
        "7",
        "7.0",
        "\"7\"",
        "0",
        "0.5",
        "-1",
        "1",
        "2",
        "null",
        "\"null\"",
        "true",
        "false",
        "[]",
        "{}",
        "{\"x\":1}",
        "z",
    ];
    let (mut asked, mut found_any) = (0, 0);
    for seed in 0..8 {
        let mut random = Rng::with_seed(seed);
        for case in cases() {
            let (state, rows) = filled(&case, &mut random);
            let found = &state.by_key.from(0).next().unwrap().record;
            let asks = OPERATORS.iter().flat_map(|operator| TEXTS.iter().map(|text| (*operator, *text)));
            let asks: Vec<_> = asks.chain([("exists", "true"), ("exists", "false")]).collect();
            for (path, steps, kinds) in case.named {
                for (operator, text) in &asks {
                    let name =
                        if operator.is_empty() { (*path).to_owned() } else { format!("{path}[{operator}]") };
                    let holds = |data: &Value| holds_of_values(&select(data, steps), kinds, operator, text);
                    let expected = rows.iter().map(|(key, data)| Some((key.clone(), holds(data)?)));
                    let expected = expected.collect::<Option<Vec<_>>>().map(|rows| {
                        rows.into_iter().filter_map(|(key, holds)| holds.then_some(key)).collect::<Vec<_>>()
                    });
                    let got = ask(found, &name, text);
                    assert_eq!(got, expected, "seed {seed}, {}: {name}={text}", case.schema);
                    asked += 1;
                    found_any += usize::from(got.is_some_and(|keys| !keys.is_empty()));
                }
            }
        }
    }
    assert!(asked >= 10_000 && found_any >= 2_000, "{asked} asked, {found_any} found something");
}

#[test]
fn a_pattern_has_no_order_and_is_named_by_its_members() {
    let case = &cases()[0];
    let (state, _) = filled(case, &mut Rng::with_seed(1));
    let found = &state.by_key.from(0).next().unwrap().record;
    let refused = |name: &str, text: &str| {
        let params = [(name.to_owned(), text.to_owned())];
        match query::configs(&params, &found.definition, &Limits::default()) {
            Err(QueryError::Violations(violations)) => violations[0].msg.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(refused("sort_by", "labels.team").contains("several values"));
    assert!(refused("sort_by", "labels.*").contains("indexed path"));
    assert!(refused("labels.*", "a").contains("replace each"));
    assert!(refused("labels.a.b", "a").contains("not an indexed path"));
    // A path that is indexed as it is named wins, and several filters on members of one map must all hold.
    let params = [("labels.team", "a"), ("labels.env", "b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    let query = query::configs(&params, &found.definition, &Limits::default()).unwrap();
    assert_eq!(query.filters.len(), 2);
}
