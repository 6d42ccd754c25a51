//! Redacted values, and the values that markers keep.

use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::*;
use crate::schema::{Formats, Schema};

fn schema() -> Schema {
    let secret = json!({"x-concord-secret": true});
    let schema = json!({"properties": {
        "pw": secret, "list": {"items": {"properties": {"token": secret}}}, "box": secret
    }});
    Schema::compile(&schema, Formats::Asserted).unwrap()
}

fn stored() -> Value {
    json!({"pw": "p", "name": "n", "list": [{"token": "t0"}, {"token": "t1"}], "box": {"a": 1}})
}

/// The data with their markers resolved, or the pointer of the violation.
fn kept(data: Value, before: Option<&Value>, is_hidden: bool) -> Result<Value, String> {
    let (schema, mut data, mut cost_left) = (schema(), data, 1 << 20);
    let bytes = data.to_string().len();
    let stored = MarkerSource { before, before_bytes: 1 << 10, is_hidden, cost_left: &mut cost_left };
    match resolve(schema.secrets().unwrap(), &mut data, bytes, stored) {
        Ok(_) => Ok(data),
        Err(ResolveError::Violation(violation) | ResolveError::TooCostly(violation)) => {
            Err(pointer(&violation.loc))
        }
    }
}

#[test]
fn values_are_null_and_their_places_are_named() {
    let (schema, data) = (schema(), stored());
    let secrets = schema.secrets().unwrap();
    let (text, places) = redacted(secrets, &data.to_string()).unwrap();
    let expected = json!({"pw": null, "name": "n", "list": [{"token": null}, {"token": null}], "box": null});
    assert_eq!(text, expected.to_string());
    assert_eq!(places.texts().collect::<Vec<_>>(), ["#/box", "#/list/0/token", "#/list/1/token", "#/pw"]);
    assert_eq!(redacted(secrets, r#"{"name":1.0,"list":[]}"#), None, "there is nothing to redact");
}

#[test]
fn places_are_pointers_of_visible_ascii_and_bounded() {
    let name = |text: &str| pointer(&[text.into(), LocSegment::Index(3)]);
    assert_eq!(name("a/b~c"), "#/a~1b~0c/3");
    assert_eq!(name("a, \"ü"), "#/a%2C%20%22%C3%BC/3");
    let mut places = RedactedPlaces::whole();
    assert_eq!(places.texts().collect::<Vec<_>>(), ["#"]);
    for number in 0..1000 {
        places.add(&[LocSegment::Index(number)]);
    }
    let text = places.texts().collect::<Vec<_>>().join(", ");
    assert!(text.len() <= REDACTED_PLACES_BYTES_MAX + 5 && text.ends_with(", ..."), "{text}");
}

#[test]
fn a_marker_keeps_the_value_of_its_own_place() {
    let keep = json!({"$concord-keep": true});
    let data = json!({"pw": keep, "name": "new", "list": [{"token": keep}, {"token": keep}], "box": keep});
    let expected =
        json!({"pw": "p", "name": "new", "list": [{"token": "t0"}, {"token": "t1"}], "box": {"a": 1}});
    assert_eq!(kept(data.clone(), Some(&stored()), false), Ok(expected));
    assert_eq!(kept(data, None, false), Err("#/pw".into()), "a new config has nothing to keep");
    for (data, place) in [
        (json!({"name": keep}), "#/name"),
        (json!({"list": [{}, {}, {"token": keep}]}), "#/list/2/token"),
        (json!({"box": {"a": keep}}), "#/box"),
        (json!({"pw": {"$concord-keep": false}}), "#/pw"),
        (json!({"pw": {"$concord-keep": true, "more": 1}}), "#/pw"),
        (json!({"pw": {"$concord-keep": ["pw"]}}), "#/pw"),
        (keep.clone(), "#"),
        (json!({"name": {"$concord-keep": "x"}, "pw": keep}), "#/name"),
    ] {
        assert_eq!(kept(data.clone(), Some(&stored()), false), Err(place.into()), "{data}");
    }
}

/// Stored elements with a host and a token each, and what a client writes: the host, and the new token or a marker.
fn list_kept(stored: &[(&str, &str)], written: &[(&str, Option<&str>)]) -> Result<Value, String> {
    let element = |host: &str, token: Value| json!({"host": host, "token": token});
    let before = stored.iter().map(|(host, token)| element(host, json!(token)));
    let before = json!({"list": before.collect::<Vec<_>>()});
    let data = written.iter().map(|(host, token)| match token {
        Some(token) => json!({"token": token, "host": host}),
        None => element(host, json!({"$concord-keep": true})),
    });
    kept(json!({"list": data.collect::<Vec<_>>()}), Some(&before), false)
        .map(|made| made["list"].as_array().unwrap().iter().map(|element| element["token"].clone()).collect())
}

#[test]
fn a_marker_in_a_list_keeps_the_value_of_its_own_element_or_is_rejected() {
    const STORED: &[(&str, &str)] = &[("a", "token of a"), ("b", "token of b"), ("c", "token of c")];
    let tokens = |names: &[&str]| Ok(json!(names));
    for (written, expected) in [
        (&[("b", None), ("c", None)][..], tokens(&["token of b", "token of c"])),
        (&[("c", None), ("a", None), ("b", None)], tokens(&["token of c", "token of a", "token of b"])),
        (&[("a", None), ("b", Some("new")), ("c", None)], tokens(&["token of a", "new", "token of c"])),
        (&[("new", Some("new")), ("a", None)], tokens(&["new", "token of a"])),
        (&[("a", None), ("renamed", None), ("c", None)], tokens(&["token of a", "token of b", "token of c"])),
        (&[("c", None), ("renamed", None), ("a", None)], tokens(&["token of c", "token of b", "token of a"])),
        // Is it `a`, `b` or `c` that was renamed?
        (&[("renamed", None), ("c", None)], Err("#/list/0/token".into())),
        (&[("one", None), ("two", None), ("c", None)], Err("#/list/0/token".into())),
        // A value is not given to a second element.
        (&[("a", None), ("a", None), ("b", None), ("c", None)], Err("#/list/0/token".into())),
        (&[("a", None), ("b", None), ("c", None), ("new", None)], Err("#/list/3/token".into())),
    ] {
        assert_eq!(list_kept(STORED, written), expected, "{written:?}");
    }
    let alike = &[("a", "first"), ("a", "second")];
    assert_eq!(list_kept(alike, &[("a", None), ("a", None)]), tokens(&["first", "second"]));
    for written in [&[("a", None)][..], &[("a", Some("new")), ("a", None)], &[("a", None), ("z", None)]] {
        assert!(list_kept(alike, written).is_err(), "{written:?}");
    }
}

/// What a client without `reveal` does to a list of elements with secrets in them.
#[derive(Debug, Clone)]
enum ListEdit {
    Remove(usize),
    Move(usize, usize),
    Rename(usize),
    Replace(usize),
    Insert(usize),
}

fn list_edit() -> impl Strategy<Value = (Option<usize>, ListEdit)> {
    let place = || 0..4_usize;
    let edit = prop_oneof![
        place().prop_map(ListEdit::Remove),
        (place(), place()).prop_map(|(from, to)| ListEdit::Move(from, to)),
        place().prop_map(ListEdit::Rename),
        place().prop_map(ListEdit::Replace),
        place().prop_map(ListEdit::Insert),
    ];
    (proptest::option::of(place()), edit)
}

impl ListEdit {
    /// Makes the edit in a list. `made` numbers the texts, so that each is new.
    fn make(&self, list: &mut Vec<Value>, made: &mut usize) {
        *made += 1;
        let (name, secret) = (format!("name {made}"), format!("secret {made}"));
        match *self {
            Self::Remove(at) if at < list.len() => drop(list.remove(at)),
            Self::Move(from, to) if from < list.len() => {
                let element = list.remove(from);
                list.insert(to.min(list.len()), element);
            }
            Self::Rename(at) if at < list.len() => list[at]["name"] = json!(name),
            Self::Replace(at) if at < list.len() => list[at]["token"] = json!(secret),
            Self::Insert(at) => {
                list.insert(at.min(list.len()), json!({"name": name, "token": secret, "list": []}));
            }
            Self::Remove(_) | Self::Move(..) | Self::Rename(_) | Self::Replace(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_secret_value_moves_or_is_lost_when_lists_are_edited(
        sizes in vec(0..4_usize, 0..4),
        edits in vec(list_edit(), 0..4),
    ) {
        let element = json!({"properties": {"token": {"x-concord-secret": true}, "list": {"items": {"$ref": "#/$defs/e"}}}});
        let schema = json!({"$defs": {"e": element}, "$ref": "#/$defs/e"});
        let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
        let secrets = schema.secrets().unwrap();
        let leaf = |outer: usize, inner: usize| {
            json!({"name": format!("{outer}.{inner}"), "token": format!("of {outer}.{inner}"), "list": []})
        };
        let outer = |(number, size): (usize, &usize)| {
            let inner: Vec<Value> = (0..*size).map(|inner| leaf(number, inner)).collect();
            json!({"name": number.to_string(), "token": format!("of {number}"), "list": inner})
        };
        let before = json!({"name": "", "list": sizes.iter().enumerate().map(outer).collect::<Vec<_>>()});
        // What the client means: each element with its own value.
        let (mut meant, mut made) = (before.clone(), 0);
        for (within, edit) in &edits {
            let mut list = meant["list"].as_array_mut().unwrap();
            if let Some(within) = within && *within < list.len() {
                list = list[*within]["list"].as_array_mut().unwrap();
            }
            edit.make(list, &mut made);
        }
        // What the client sends: a marker for each value that it has not written.
        let mut sent = meant.clone();
        let bytes = before.to_string().len() + 4096;
        secrets.visit_mut(&mut sent, bytes, &mut |_, value| {
            if value.as_str().is_some_and(|text| text.starts_with("of ")) {
                *value = json!({"$concord-keep": true});
            }
        });
        let mut cost_left = usize::MAX;
        let stored =
            MarkerSource { before: Some(&before), before_bytes: bytes, is_hidden: false, cost_left: &mut cost_left };
        let resolved = resolve(secrets, &mut sent, bytes, stored);
        if resolved.is_ok() {
            prop_assert_eq!(sent, meant);
        } else {
            prop_assert!(edits.len() > 1, "one edit is always clear: {:?}", resolved);
        }
    }
}

#[test]
fn a_hidden_value_is_restored_where_it_is_secret_and_nowhere_else() {
    let schema = schema();
    let mut hidden = stored();
    hide(schema.secrets().unwrap(), &mut hidden, stored().to_string().len()).unwrap();
    assert!(!hidden.to_string().contains("\"t1\"") && hidden["name"] == "n");
    assert_eq!(kept(hidden.clone(), Some(&stored()), true), Ok(stored()));
    let mut shifted = hidden.clone();
    shifted["list"].as_array_mut().unwrap().remove(0);
    let result = kept(shifted, Some(&stored()), true).unwrap();
    assert_eq!(result["list"], json!([{"token": "t1"}]), "elements of an array may move");
    for (place, from) in [("name", "pw"), ("box", "pw"), ("pw", "box")] {
        let mut moved = hidden.clone();
        moved[place] = hidden[from].clone();
        assert_eq!(kept(moved, Some(&stored()), true), Err(format!("#/{place}")));
    }
}

#[test]
fn kept_values_count_the_same_whatever_their_length_is() {
    let schema = schema();
    let counted = |password: &str| {
        let before = json!({"pw": password});
        let (mut data, mut cost_left) = (json!({"pw": {"$concord-keep": true}}), 1 << 20);
        let stored = MarkerSource {
            before: Some(&before),
            before_bytes: 1 << 10,
            is_hidden: false,
            cost_left: &mut cost_left,
        };
        let beyond = resolve(schema.secrets().unwrap(), &mut data, 1 << 10, stored).unwrap();
        (data.to_string().len() + beyond, (1 << 20) - cost_left)
    };
    let short = counted("");
    for length in [1, 5, 6, 32, 200] {
        assert_eq!(counted(&"x".repeat(length)), short, "{length}");
    }
    assert_eq!(counted(&"x".repeat(1100)), counted(&"x".repeat(2000)));
    assert!(counted(&"x".repeat(1100)).0 > 2000);
}

#[test]
fn what_is_copied_is_bounded() {
    let schema = schema();
    let before = json!({"list": [{"token": "x".repeat(1000)}]});
    let token = token(&["list".into(), LocSegment::Index(0), "token".into()]);
    let mut data = json!({"list": vec![json!({"token": token}); 100]});
    let bytes = data.to_string().len();
    let mut cost_left = 50_000;
    let stored = MarkerSource {
        before: Some(&before),
        before_bytes: 2000,
        is_hidden: true,
        cost_left: &mut cost_left,
    };
    let result = resolve(schema.secrets().unwrap(), &mut data, bytes, stored);
    assert!(matches!(result, Err(ResolveError::TooCostly(_))), "{result:?}");
}

#[test]
fn only_null_at_a_secret_field_is_rejected() {
    let schema = schema();
    let refused = |data: Value| {
        let checked = check_nulls(schema.secrets().unwrap(), &data, data.to_string().len());
        checked.err().map(|violation| pointer(&violation.loc))
    };
    assert_eq!(refused(stored()), None);
    assert_eq!(refused(json!({"name": null, "list": null, "box": {"a": null}})), None);
    assert_eq!(refused(json!({"pw": null})), Some("#/pw".into()));
    assert_eq!(refused(json!({"list": [{}, {"token": null}]})), Some("#/list/1/token".into()));
}

/// A subschema, and whether it is secret as a whole.
#[derive(Debug, Clone)]
enum Shape {
    Leaf,
    Marked(Box<Shape>),
    Object(Vec<(usize, Shape)>, Option<Box<Shape>>),
    Pattern(Box<Shape>),
    List(Box<Shape>),
    Union(Box<Shape>, Box<Shape>),
    Shared(usize),
}

const NAMES: [&str; 5] = ["a", "b", "key_c", "~/", "é"];

/// Shared shapes have no references: a subschema that refers to itself at one place is rejected.
fn shape(leaf: impl Strategy<Value = Shape> + 'static) -> impl Strategy<Value = Shape> {
    leaf.prop_recursive(4, 24, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            boxed.clone().prop_map(Shape::Marked),
            (vec((0..5_usize, inner), 0..4), proptest::option::of(boxed.clone()))
                .prop_map(|(members, other)| Shape::Object(members, other)),
            boxed.clone().prop_map(Shape::Pattern),
            boxed.clone().prop_map(Shape::List),
            (boxed.clone(), boxed).prop_map(|(one, other)| Shape::Union(one, other)),
        ]
    })
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Self::Leaf => json!({}),
            Self::Marked(inner) => json!({"x-concord-secret": true, "allOf": [inner.schema()]}),
            Self::Object(members, other) => {
                let named: Map<String, Value> =
                    members.iter().map(|(name, member)| (NAMES[*name].into(), member.schema())).collect();
                let mut schema = json!({"properties": named});
                if let Some(other) = other {
                    schema["additionalProperties"] = other.schema();
                }
                schema
            }
            Self::Pattern(inner) => json!({"patternProperties": {"^key_": inner.schema()}}),
            Self::List(inner) => json!({"items": inner.schema()}),
            Self::Union(one, other) => json!({"anyOf": [one.schema(), other.schema()]}),
            Self::Shared(number) => json!({"$ref": format!("#/$defs/{number}")}),
        }
    }

    /// The same question as the code's, answered shape by shape.
    fn is_secret(&self, path: &[LocSegment], shared: &[Shape]) -> bool {
        match self {
            Self::Marked(_) => true,
            Self::Leaf => false,
            Self::Union(one, other) => one.is_secret(path, shared) || other.is_secret(path, shared),
            Self::Shared(number) => shared[*number].is_secret(path, shared),
            Self::Object(members, other) => {
                let Some((LocSegment::Name(name), rest)) = path.split_first() else { return false };
                // The last of two members with one name is the one in the schema.
                match members.iter().rev().find(|(member, _)| NAMES[*member] == name) {
                    Some((_, member)) => member.is_secret(rest, shared),
                    None => other.as_ref().is_some_and(|other| other.is_secret(rest, shared)),
                }
            }
            Self::Pattern(inner) => match path.split_first() {
                Some((LocSegment::Name(name), rest)) => {
                    name.starts_with("key_") && inner.is_secret(rest, shared)
                }
                Some((LocSegment::Index(_), _)) | None => false,
            },
            Self::List(inner) => match path.split_first() {
                Some((LocSegment::Index(_), rest)) => inner.is_secret(rest, shared),
                Some((LocSegment::Name(_), _)) | None => false,
            },
        }
    }
}

fn data() -> impl Strategy<Value = Value> {
    let leaf = Just(Value::Null).prop_map(|_| json!("LEAF"));
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            vec((0..5_usize, inner.clone()), 0..4).prop_map(|members| {
                members.into_iter().map(|(name, member)| (NAMES[name].to_owned(), member)).collect::<Value>()
            }),
            vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

/// Gives each leaf a text of its own; the leaves with their paths.
fn number_leaves(value: &mut Value, path: &mut Vec<LocSegment>, found: &mut Vec<(Vec<LocSegment>, String)>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                path.push(name.as_str().into());
                number_leaves(member, path, found);
                path.pop();
            }
        }
        Value::Array(elements) => {
            for (index, element) in (0..).zip(elements) {
                path.push(LocSegment::Index(index));
                number_leaves(element, path, found);
                path.pop();
            }
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
            let text = format!("<{}>", found.len());
            *other = text.as_str().into();
            found.push((path.clone(), text));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_secret_value_is_in_redacted_data_and_a_record_that_is_written_back_is_the_same(
        root in shape(prop_oneof![Just(Shape::Leaf), (0..2_usize).prop_map(Shape::Shared)]),
        shared in vec(shape(Just(Shape::Leaf)), 2),
        data in data()
    ) {
        let mut schema = root.schema();
        schema["$defs"] = json!({"0": shared[0].schema(), "1": shared[1].schema()});
        let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
        let (mut data, mut leaves) = (data, Vec::new());
        number_leaves(&mut data, &mut Vec::new(), &mut leaves);
        let text = data.to_string();
        let (shown, places) = match schema.secrets().and_then(|secrets| redacted(secrets, &text)) {
            Some((shown, places)) => (shown, places),
            None => (text.clone(), RedactedPlaces::default()),
        };
        for (path, leaf) in &leaves {
            let is_secret = (0..=path.len()).any(|depth| root.is_secret(&path[..depth], &shared));
            prop_assert_eq!(!shown.contains(leaf.as_str()), is_secret, "{} at {:?} of {}", leaf, path, text);
        }
        let Some(secrets) = schema.secrets() else {
            prop_assert!(places.is_empty());
            return Ok(());
        };
        // Read, keep, write: nothing has changed.
        let mut back: Value = serde_json::from_str(&text).unwrap();
        secrets.visit_mut(&mut back, text.len(), &mut |_, value| *value = json!({"$concord-keep": true}));
        let (bytes, mut cost_left) = (back.to_string().len(), usize::MAX);
        let stored = MarkerSource { before: Some(&data), before_bytes: text.len(), is_hidden: false, cost_left: &mut cost_left };
        prop_assert!(resolve(secrets, &mut back, bytes, stored).is_ok());
        prop_assert_eq!(back.to_string(), text.clone());
        let mut hidden = data.clone();
        hide(secrets, &mut hidden, text.len()).unwrap();
        let (bytes, mut cost_left) = (hidden.to_string().len(), usize::MAX);
        let stored = MarkerSource { before: Some(&data), before_bytes: text.len(), is_hidden: true, cost_left: &mut cost_left };
        prop_assert!(resolve(secrets, &mut hidden, bytes, stored).is_ok());
        prop_assert_eq!(hidden.to_string(), text);
    }
}

#[test]
fn markers_below_long_names_take_bounded_memory() {
    let schema = json!({"additionalProperties": {"items": {"x-concord-secret": true}}});
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let secrets = schema.secrets().unwrap();
    let mut data = json!({ "x".repeat(500_000): vec![json!({"$concord-keep": true}); 1000] });
    let (bytes, mut cost_left) = (600_000, usize::MAX);
    let stored = MarkerSource { before: None, before_bytes: 0, is_hidden: false, cost_left: &mut cost_left };
    assert!(matches!(resolve(secrets, &mut data, bytes, stored), Err(ResolveError::TooCostly(_))));
    assert!(matches!(hide(secrets, &mut data, bytes), Err(ResolveError::TooCostly(_))));
    assert!(data.as_object().unwrap().values().all(|list| list[999].is_null()), "nothing is left to see");
}
