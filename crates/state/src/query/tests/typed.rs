//! Filters on typed paths compared with a reading of all data: schemas as Pydantic, zod and schemars write them, every
//! operator, texts that stand for several values.

use serde_json::{Value, json};

use super::*;
use concord_model::{
    index,
    limits::Limits,
    query::{self, QueryError},
};

/// A schema, an indexed path, the kinds that a value or element there may have by the schema (none: any), and values.
struct TypedCase {
    schema: Value,
    path: &'static str,
    kinds: &'static [&'static str],
    values: Vec<Value>,
}

fn case(schema: Value, path: &'static str, kinds: &'static [&'static str], values: Value) -> TypedCase {
    TypedCase { schema, path, kinds, values: values.as_array().unwrap().clone() }
}

/// An object with one property.
fn object(property: Value) -> Value {
    json!({"type": "object", "properties": {"v": property}})
}

#[expect(clippy::too_many_lines, reason = "one table, a case in some lines")]
fn cases() -> Vec<TypedCase> {
    let pets = json!({"discriminator": {"propertyName": "kind"},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]});
    let with_pets = |property: &Value| {
        json!({"$defs": {
            "Cat": {"type": "object", "required": ["kind"], "additionalProperties": false,
                    "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}},
            "Dog": {"type": "object", "required": ["kind"], "additionalProperties": false,
                    "properties": {"kind": {"const": "dog"}, "n": {"type": "string"}}}},
            "properties": {"v": property}})
    };
    let optional_pet = json!({"anyOf": [pets, {"type": "null"}], "default": null});
    let strings = json!(["", "7", "7.0", "null", "true", "a", "ab", "b", "\"7\"", "{\"a\":1}", "[1]", "é"]);
    let numbers = json!([-1, 0, 6, 7, 7.0, 7.5, 70, 1e30]);
    let nested = json!([{"a": 1}, {"a": 1.0, "b": null}, {}, {"a": "1"}]);
    let all = |lists: &[&Value]| -> Value {
        lists.iter().flat_map(|list| list.as_array().unwrap().clone()).collect()
    };
    let nulls = json!([null]);
    let booleans = json!([true, false]);
    vec![
        // Optional, union and literal fields.
        case(object(json!({"type": "string"})), "v", &["string"], strings.clone()),
        case(
            object(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})),
            "v",
            &["string", "null"],
            all(&[&strings, &nulls]),
        ),
        case(object(json!({"type": ["string", "null"]})), "v", &["string", "null"], all(&[&strings, &nulls])),
        case(
            object(json!({"anyOf": [{"type": "integer"}, {"type": "string"}]})),
            "v",
            &["number", "string"],
            all(&[&strings, &numbers]),
        ),
        case(
            object(json!({"oneOf": [{"type": "number"}, {"const": "auto"}]})),
            "v",
            &["number", "string"],
            all(&[&numbers, &json!(["auto"])]),
        ),
        case(
            object(json!({"anyOf": [{"type": "number"}, {"type": "null"}]})),
            "v",
            &["number", "null"],
            all(&[&numbers, &nulls]),
        ),
        case(
            object(json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]})),
            "v",
            &["boolean", "null"],
            all(&[&booleans, &nulls]),
        ),
        case(
            object(json!({"anyOf": [{"type": "boolean"}, {"type": "string"}]})),
            "v",
            &["boolean", "string"],
            all(&[&booleans, &strings]),
        ),
        case(
            object(json!({"enum": [1, "1", "7", 7, null]})),
            "v",
            &["number", "string", "null"],
            json!([1, "1", "7", 7, null]),
        ),
        case(object(json!({"enum": ["a", "b"], "type": "string"})), "v", &["string"], json!(["a", "b"])),
        case(
            object(
                json!({"allOf": [{"type": ["string", "null", "integer"]}, {"type": ["string", "integer"]}]}),
            ),
            "v",
            &["string", "number"],
            all(&[&strings, &json!([7, 0])]),
        ),
        case(object(json!({"type": "boolean"})), "v", &["boolean"], booleans.clone()),
        case(object(json!({"type": "integer"})), "v", &["number"], json!([-1, 0, 6, 7, 70])),
        case(object(json!({})), "v", &[], all(&[&strings, &numbers, &booleans, &nulls, &nested])),
        case(
            object(json!({"title": "Anything"})),
            "v",
            &[],
            all(&[&strings, &numbers, &json!([[], [1, "x"]])]),
        ),
        case(object(json!({"type": "object"})), "v", &["object"], nested.clone()),
        case(
            object(json!({"anyOf": [{"type": "object"}, {"type": "null"}]})),
            "v",
            &["object", "null"],
            all(&[&nested, &nulls]),
        ),
        case(
            object(json!({"anyOf": [{"type": "object"}, {"type": "string"}]})),
            "v",
            &["object", "string"],
            all(&[&nested, &strings]),
        ),
        // Arrays, of which an empty one is a value too.
        case(
            object(json!({"type": "array", "items": {"type": "string"}})),
            "v",
            &["string"],
            json!([[], ["a"], ["a", "7"], ["null", "b"]]),
        ),
        case(
            object(json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})),
            "v",
            &["string", "null"],
            json!([[], ["a"], ["null"], null]),
        ),
        case(
            object(json!({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}})),
            "v",
            &["number", "string"],
            json!([[], [7], ["7"], [7, "a"], [6, 70]]),
        ),
        case(
            object(json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})),
            "v",
            &["string"],
            json!(["a", "7", [], ["a", "b"], ["7"]]),
        ),
        case(
            object(
                json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}),
            ),
            "v",
            &["number", "string"],
            json!([[], [7], [7, "7"], [6, "a"]]),
        ),
        case(
            object(json!({"type": "array"})),
            "v",
            &[],
            json!([[], [7], ["7", null], [true, {"a": 1}], [[], [1]]]),
        ),
        case(
            object(json!({"type": "array", "items": {"type": "object"}})),
            "v",
            &["object"],
            json!([[], [{"a": 1}], [{}, {"a": 1}]]),
        ),
        // Members of objects that are optional, or one of several.
        case(with_pets(&pets), "v.kind", &["string"], json!([{"kind": "cat", "n": 1}, {"kind": "dog"}])),
        case(
            with_pets(&pets),
            "v.n",
            &["number", "string"],
            json!([{"kind": "cat", "n": 7}, {"kind": "dog", "n": "7"}, {"kind": "dog", "n": "a"}, {"kind": "cat"}]),
        ),
        case(
            with_pets(&optional_pet),
            "v.n",
            &["number", "string"],
            json!([null, {"kind": "cat", "n": 7}, {"kind": "dog", "n": "7"}]),
        ),
        case(
            with_pets(&json!({"anyOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]})),
            "v.n",
            &["number"],
            json!([null, {"kind": "cat", "n": 7}, {"kind": "cat", "n": 0}]),
        ),
        case(
            object(json!({"type": ["object", "null"], "properties": {"x": {"type": ["integer", "null"]}}})),
            "v.x",
            &["number", "null"],
            json!([null, {}, {"x": null}, {"x": 7}]),
        ),
        case(
            object(
                json!({"if": {"type": "object"}, "then": {"properties": {"x": {"type": "string"}}}, "else": {"type": "integer"}}),
            ),
            "v.x",
            &["string"],
            json!([7, {"x": "7"}, {"x": "a"}, {}]),
        ),
        case(
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"S": {"type": "string"}},
            "properties": {"v": {"$ref": "#/definitions/S", "type": "integer"}}}),
            "v",
            &["string"],
            strings,
        ),
    ]
}

/// The values of a text by the documented rule.
fn readings(text: &str, kinds: &[&str]) -> Vec<Value> {
    let json: Option<Value> = serde_json::from_str(text).ok();
    let string = Value::from(text);
    if kinds.is_empty() {
        return vec![json.unwrap_or(string)];
    }
    if kinds == ["string"] {
        return vec![string];
    }
    let quoted = json.as_ref().is_some_and(Value::is_string) && kinds.contains(&"string");
    let mut found: Vec<Value> = json.into_iter().filter(|value| kinds.contains(&kind(value))).collect();
    if kinds.contains(&"string") && !quoted {
        found.push(string);
    }
    found
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| equal(value, other)))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        _ => a == b,
    }
}

/// The order of two scalars of one kind.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Null, Value::Null) => Some(Ordering::Equal),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// What the filter says of data by the documented rule; `None` when the text has no meaning for the path.
fn holds_by_reading(data: &Value, case: &TypedCase, operator: &str, text: &str) -> Option<bool> {
    let found = case.path.split('.').try_fold(data, |value, name| value.as_object()?.get(name));
    holds_of_values(&Vec::from_iter(found), case.kinds, operator, text)
}

/// The same of the values that a path selects, each of which may be an array.
pub(super) fn holds_of_values(found: &[&Value], kinds: &[&str], operator: &str, text: &str) -> Option<bool> {
    let elements: Vec<&Value> = found
        .iter()
        .flat_map(|value| value.as_array().map_or_else(|| vec![*value], |elements| elements.iter().collect()))
        .collect();
    let any_equal =
        |values: &[Value]| elements.iter().any(|one| values.iter().any(|value| equal(one, value)));
    let of = |text: &str| Some(readings(text, kinds)).filter(|values| !values.is_empty());
    let ordered = |accepted: &[Ordering]| {
        let values = readings(text, kinds).into_iter();
        let is_ordered = |value: &Value| !value.is_array() && !value.is_object();
        let values: Vec<Value> = values.filter(is_ordered).collect();
        let accepts =
            |one: &Value, value: &Value| order(one, value).is_some_and(|order| accepted.contains(&order));
        let any = elements.iter().any(|one| values.iter().any(|value| accepts(one, value)));
        (!values.is_empty()).then_some(any)
    };
    match operator {
        "" => Some(any_equal(&of(text)?)),
        // In a list a text in JSON's quotes is one string, also where a path has strings only.
        "in" => match serde_json::from_str(text) {
            Ok(Value::String(string)) if kinds == ["string"] => Some(any_equal(&[string.into()])),
            _ => Some(any_equal(&of(text)?)),
        },
        "ne" => Some(!found.is_empty() && !any_equal(&of(text)?)),
        "gte" => ordered(&[Ordering::Greater, Ordering::Equal]),
        "gt" => ordered(&[Ordering::Greater]),
        "lte" => ordered(&[Ordering::Less, Ordering::Equal]),
        "lt" => ordered(&[Ordering::Less]),
        "prefix" if !kinds.is_empty() && !kinds.contains(&"string") => None,
        "prefix" => Some(elements.iter().any(|one| one.as_str().is_some_and(|one| one.starts_with(text)))),
        _ => Some(found.is_empty() != (text == "true")),
    }
}

/// A state with configs of a case: each value several times, and configs without one. Also the data by key.
fn filled(case: &TypedCase) -> (State, Vec<(String, Value)>) {
    let mut builder = StateBuilder::new();
    let definition = Definition {
        id: 1,
        key: Key::parse("d").unwrap(),
        indexes: vec![case.path.into()],
        schema: Some(case.schema.to_string().into()),
        indexing: Indexing::fresh(1),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    };
    builder.definition(definition.clone()).unwrap();
    let paths = index::stored_paths(&definition);
    let copies = 2 + 40 / case.values.len();
    let with_value = case.values.iter().cycle().take(copies * case.values.len());
    let all: Vec<Value> =
        with_value.map(|value| json!({"v": value})).chain([json!({}), json!({"w": 1})]).collect();
    let rows: Vec<(String, Value)> =
        all.into_iter().enumerate().map(|(n, data)| (format!("k{n:03}"), data)).collect();
    for (key, data) in &rows {
        let config = Config {
            key: Key::parse(key).unwrap(),
            data: data.to_string().into(),
            entries: index::entries(&paths, data).unwrap(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 2,
        };
        builder.config(1, config).unwrap();
    }
    (builder.finish(9, Timestamp(5000)).unwrap(), rows)
}

#[test]
fn every_filter_finds_the_same_as_a_scan() {
    const OPERATORS: [&str; 8] = ["", "in", "ne", "gte", "gt", "lte", "lt", "prefix"];
    let mut asked = 0;
    for case in cases() {
        index::check_paths(&[case.path.into()], Some(&case.schema), 64).unwrap();
        let (state, rows) = filled(&case);
        let found = &state.by_key.from(0).next().unwrap().record;
        let leaves = case.values.iter().flat_map(|value| {
            if let Value::Array(elements) = value { elements.clone() } else { vec![value.clone()] }
        });
        let plain = leaves.flat_map(|value| {
            let json = value.to_string();
            value.as_str().map(str::to_owned).into_iter().chain([json]).collect::<Vec<_>>()
        });
        let more = [
            "7", "\"7\"", "7.00", "null", "\"null\"", "true", "a", "\"a\"", "", "cat", "x", "[]", "{}", "-1",
        ];
        let mut texts: Vec<String> = plain.chain(more.map(String::from)).collect();
        texts.sort();
        texts.dedup();
        let asks = OPERATORS.iter().flat_map(|operator| texts.iter().map(|text| (*operator, text.clone())));
        let exists = ["true", "false"].map(|text| ("exists", text.to_owned()));
        for (operator, text) in asks.chain(exists) {
            // A list of one text, unless it is JSON, is split at its commas.
            if operator == "in" && text.contains(',') {
                continue;
            }
            let name =
                if operator.is_empty() { case.path.into() } else { format!("{}[{operator}]", case.path) };
            let params = [
                (name, text.clone()),
                ("limit".into(), "1000".into()),
                ("sort_by".into(), "config_key".into()),
                ("sort_order".into(), "asc".into()),
            ];
            let answer = query::configs(&params, &found.definition, &Limits::default());
            let expected: Option<Vec<&str>> = rows
                .iter()
                .map(|(key, data)| Some((key.as_str(), holds_by_reading(data, &case, operator, &text)?)))
                .collect::<Option<Vec<_>>>()
                .map(|rows| rows.into_iter().filter_map(|(key, holds)| holds.then_some(key)).collect());
            let got = match answer {
                Ok(query) => {
                    let list = found.list(&query);
                    assert_eq!(list.total, list.results.len() as u64);
                    Some(list.results.iter().map(|config| config.key.as_str().to_owned()).collect::<Vec<_>>())
                }
                Err(QueryError::Violations(_)) => None,
                Err(other) => panic!("{other:?}"),
            };
            let expected = expected.map(|keys| keys.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(got, expected, "{}: {}[{operator}]={text}", case.schema, case.path);
            asked += 1;
        }
    }
    assert!(asked >= 4_000, "{asked}");
}
