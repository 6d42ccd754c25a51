//! What a client may write with and without the permission to reveal.

use serde_json::json;

use super::*;
use crate::{
    request::{ChangeWrite, LazySchema, NewEdition, NewSchema, Principal, ProposedOperations, Write},
    testing::owner,
    write::{
        prepare::{Prepared, PreparedWrite},
        testing::{self, prepared, request_by},
    },
};
use concord_model::{
    command::{ChangeAction, Command, Expect, SystemCommand, Verdict},
    error::Rejection,
    system::change::Timing,
};
use concord_state::State;

fn blind() -> Principal {
    owner(&[Verb::Read, Verb::Write, Verb::Define])
}

fn apply(state: &mut State, write: Write) {
    assert!(matches!(testing::apply(state, &testing::request(write)), Verdict::Decided(Ok(_))));
}

fn schema() -> Value {
    let secret = json!({"x-concord-secret": true});
    json!({"properties": {
        "pw": {"x-concord-secret": true, "type": ["string", "null"]}, "name": {},
        "list": {"items": {"properties": {"token": secret}}}, "box": secret
    }})
}

const DATA: &str = r#"{"pw":"hunter2","name":"n","list":[{"token":"t0"},{"token":"t1"}],"box":{"a":"b0"}}"#;

/// A definition `d` with the config `k`.
fn state() -> State {
    let mut state = State::new();
    let create = Write::CreateDefinition {
        key: "d".into(),
        indexes: vec!["name".into()],
        schema: Some(Document::new(schema())),
        format_assertion: None,
    };
    apply(&mut state, create);
    apply(&mut state, put(data(), Expect::Absent));
    state
}

fn put(data: Value, expect: Expect) -> Write {
    Write::WriteConfig { definition: "d".into(), key: "k".into(), data: Document::new(data), expect }
}

fn patch(format: PatchFormat, patch: Value) -> Write {
    let patch = Patch { format, document: Document::new(patch) };
    Write::PatchConfig { definition: "d".into(), key: "k".into(), patch, expect: Expect::Present }
}

/// The data that a write of `k` proposes, or the locations of its violations.
fn written(principal: Principal, write: Write) -> Result<Value, String> {
    match prepared(&state(), &request_by(principal, write)) {
        Ok(Prepared::Propose(PreparedWrite { command: Command::WriteConfig { data, .. }, .. })) => {
            assert!(!data.contains("$concord-keep"), "{data}");
            Ok(serde_json::from_str(&data).unwrap())
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::Invalid(Invalid::Violations(violations))) => {
            let text = format!("{violations:?}");
            assert!(!["hunter", "t0", "t1", "b0"].iter().any(|secret| text.contains(secret)), "{text}");
            let loc = |violation: &Violation| {
                let names = violation.loc.iter().map(|segment| match segment {
                    LocSegment::Name(name) => name.clone(),
                    LocSegment::Index(index) => index.to_string(),
                });
                names.collect::<Vec<_>>().join(".")
            };
            Err(violations.iter().map(loc).collect::<Vec<_>>().join(" "))
        }
        Err(Refusal::Rejected(Rejection::TestFailed { .. })) => Err("test".into()),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

fn data() -> Value {
    serde_json::from_str(DATA).unwrap()
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut data = data();
    change(&mut data);
    data
}

#[test]
fn a_record_that_is_written_back_with_null_is_rejected_without_reveal() {
    let all_null = json!({"pw": null, "name": "n2", "list": [{"token": null}], "box": null});
    for principal in [blind(), owner(&[Verb::Write])] {
        assert_eq!(written(principal.clone(), put(all_null.clone(), Expect::Present)), Err("data.pw".into()));
        let merge = patch(PatchFormat::Merge, json!({"box": null}));
        assert_eq!(written(principal.clone(), merge), Err("patch.box".into()), "it would remove the value");
        let replace =
            patch(PatchFormat::Json, json!([{"op": "replace", "path": "/list/0/token", "value": null}]));
        assert_eq!(written(principal, replace), Err("data.list.0.token".into()));
    }
    let seeing = owner(&[Verb::Write, Verb::Reveal]);
    for principal in [seeing, Principal::root()] {
        assert_eq!(written(principal.clone(), put(all_null.clone(), Expect::Present)), Ok(all_null.clone()));
        let merge = patch(PatchFormat::Merge, json!({"box": null}));
        let removed = with(|data| drop(data.as_object_mut().unwrap().shift_remove("box")));
        assert_eq!(written(principal, merge), Ok(removed));
    }
}

#[test]
fn a_marker_leaves_a_secret_value_as_it_is() {
    let keep = json!({"$concord-keep": true});
    let kept = json!({"pw": keep, "name": "n2", "list": [{"token": keep}, {"token": keep}], "box": keep});
    let expected = with(|data| data["name"] = "n2".into());
    for principal in [blind(), Principal::root()] {
        let replace = patch(PatchFormat::Replace, kept.clone());
        assert_eq!(written(principal.clone(), replace), Ok(expected.clone()));
        let merge = patch(PatchFormat::Merge, json!({"pw": keep, "name": "n2"}));
        assert_eq!(written(principal.clone(), merge), Ok(with(|data| data["name"] = "n2".into())));
        let add = patch(PatchFormat::Json, json!([{"op": "add", "path": "/pw", "value": keep}]));
        assert_eq!(written(principal.clone(), add), Ok(data()));
        for (write, place) in [
            (put(json!({"pw": keep}), Expect::Absent), "data.pw"),
            (put(json!({"name": keep}), Expect::None), "data.name"),
            (patch(PatchFormat::Replace, json!({"name": keep})), "data.name"),
            (patch(PatchFormat::Replace, json!({"list": [{}, {}, {"token": keep}]})), "data.list.2.token"),
            (patch(PatchFormat::Replace, json!({"pw": {"$concord-keep": ["pw"]}})), "data.pw"),
            (patch(PatchFormat::Merge, json!({"box": {"a": keep}})), "data.box"),
        ] {
            let shown = format!("{write:?}");
            if shown.contains("Absent") || shown.contains("expect: None") {
                continue_with_new(principal.clone(), write, place);
            } else {
                assert_eq!(written(principal.clone(), write), Err(place.into()), "{shown}");
            }
        }
    }
}

/// A create of another config.
fn continue_with_new(principal: Principal, write: Write, place: &str) {
    let Write::WriteConfig { definition, data, expect, .. } = write else { panic!() };
    let write = Write::WriteConfig { definition, key: "new".into(), data, expect };
    assert_eq!(written(principal, write), Err(place.into()));
}

#[test]
fn a_hidden_value_in_a_list_stays_with_its_element() {
    let element = |host: &str, token: Value| json!({"host": host, "token": token});
    let list = |tokens: [Value; 3]| {
        let [a, b, c] = tokens;
        json!([element("a", a), element("b", b), element("c", c)])
    };
    let mut state = state();
    let stored = with(|data| data["list"] = list(["of a".into(), "of b".into(), "of c".into()]));
    let replaced = Write::WriteConfig {
        definition: "d".into(),
        key: "k".into(),
        data: Document::new(stored),
        expect: Expect::Present,
    };
    apply(&mut state, replaced);
    let tokens =
        |principal: &Principal, write: Write| match prepared(&state, &request_by(principal.clone(), write)) {
            Ok(Prepared::Propose(PreparedWrite { command: Command::WriteConfig { data, .. }, .. })) => {
                let data: Value = serde_json::from_str(&data).unwrap();
                let elements = data["list"].as_array().unwrap();
                Some(elements.iter().map(|element| element["token"].clone()).collect::<Vec<_>>())
            }
            Err(Refusal::Invalid(Invalid::Violations(_))) => None,
            other => panic!("{other:?}"),
        };
    let keep = || json!({"$concord-keep": true});
    for principal in [blind(), Principal::root()] {
        for format in [PatchFormat::Replace, PatchFormat::Merge] {
            let write = |list: Value| patch(format, json!({"list": list}));
            let mut rest = list([keep(), keep(), keep()]);
            rest.as_array_mut().unwrap().remove(0);
            assert_eq!(tokens(&principal, write(rest.clone())), Some(vec![json!("of b"), json!("of c")]));
            rest.as_array_mut().unwrap().reverse();
            assert_eq!(tokens(&principal, write(rest.clone())), Some(vec![json!("of c"), json!("of b")]));
            rest[0]["host"] = "d".into();
            assert_eq!(tokens(&principal, write(rest)), None, "is it `a` or `c`?");
        }
        let operations = json!([{"op": "remove", "path": "/list/0"}, {"op": "replace", "path": "/list/0/host", "value": "d"}]);
        let tokens = tokens(&principal, patch(PatchFormat::Json, operations));
        assert_eq!(tokens, Some(vec![json!("of b"), json!("of c")]), "a JSON Patch names the elements");
    }
}

#[test]
fn the_limit_of_data_tells_nothing_of_the_length_of_a_kept_value() {
    let longest_padding = |principal: &Principal, password: &str| {
        let mut state = state();
        let data = with(|data| data["pw"] = password.into());
        let replaced = Write::WriteConfig {
            definition: "d".into(),
            key: "k".into(),
            data: Document::new(data),
            expect: Expect::Present,
        };
        apply(&mut state, replaced);
        let is_accepted = |bytes: &usize| {
            let data = json!({"pw": {"$concord-keep": true}, "filler": "x".repeat(*bytes)});
            prepared(&state, &request_by(principal.clone(), patch(PatchFormat::Replace, data))).is_ok()
        };
        let (mut least, mut most) = (1_000_000, 1_100_000);
        while most - least > 1 {
            let middle = usize::midpoint(least, most);
            if is_accepted(&middle) { least = middle } else { most = middle }
        }
        least
    };
    let blind = ["short", "hunter2", "a password of more characters"].map(|pw| longest_padding(&blind(), pw));
    assert!(blind.iter().all(|padding| *padding == blind[0]), "{blind:?}");
    let root = ["short", "hunter2"].map(|pw| longest_padding(&Principal::root(), pw));
    assert_eq!(root[0], root[1] + 2, "who may see the value has the exact limit");
}

#[test]
fn the_size_of_a_change_request_tells_nothing_of_the_length_of_a_kept_value() {
    let size = |principal: &Principal, password: &str| {
        let mut state = state();
        apply(&mut state, put(with(|data| data["pw"] = password.into()), Expect::Present));
        let data = json!({"pw": {"$concord-keep": true}, "name": "other"});
        let edition = NewEdition {
            title: "t".into(),
            description: String::new(),
            operations: ProposedOperations::Records(vec![patch(PatchFormat::Replace, data)]),
            timing: Timing::default(),
            seal: [1; 32],
        };
        let id = "changechange".to_owned();
        let create = Write::Change(Box::new(ChangeWrite::Create { id, edition }));
        let Ok(Prepared::Propose(PreparedWrite { command: Command::System(made), .. })) =
            prepared(&state, &request_by(principal.clone(), create))
        else {
            panic!("it can be proposed")
        };
        let SystemCommand::Change { action: ChangeAction::Create(edition), .. } = made else {
            panic!("{made:?}")
        };
        let stored: Value = serde_json::from_str(&edition.operations).unwrap();
        assert!(stored.to_string().contains(password), "the value is kept");
        edition.operations.len()
    };
    let passwords = ["short", "hunter2", "a password of more characters"];
    let blind = passwords.map(|password| size(&blind(), password));
    assert!(blind.iter().all(|bytes| *bytes == blind[0]), "{blind:?}");
    let root = passwords.map(|password| size(&Principal::root(), password));
    assert_eq!(root[0] + 2, root[1], "who may see the value may know its length");
}

#[test]
fn a_patch_reveals_nothing_of_a_secret_value() {
    let json = |operations: Value| patch(PatchFormat::Json, operations);
    let expect = |operations: Value, expected: Result<Value, &str>| {
        let shown = operations.to_string();
        assert_eq!(written(blind(), json(operations)), expected.map_err(str::to_owned), "{shown}");
    };
    // A correct guess and a wrong one get the same response.
    for guess in ["hunter2", "hunter3"] {
        expect(json!([{"op": "test", "path": "/pw", "value": guess}]), Err("test"));
    }
    expect(json!([{"op": "test", "path": "/box/a", "value": "b0"}]), Err("test"));
    expect(json!([{"op": "copy", "from": "/pw", "path": "/name"}]), Err("data.name"));
    expect(json!([{"op": "move", "from": "/box", "path": "/name"}]), Err("data.name"));
    expect(json!([{"op": "copy", "from": "/box/a", "path": "/name"}]), Err("patch.0"));
    expect(json!([{"op": "copy", "from": "", "path": "/name"}]), Err("data.name.pw"));
    expect(json!([{"op": "copy", "from": "/list", "path": "/name"}]), Err("data.name.0.token"));
    expect(json!([{"op": "copy", "from": "/pw", "path": "/box"}]), Err("data.box"));
    expect(json!([{"op": "add", "path": "/box/b", "value": 1}]), Err("data.box"));
    expect(json!([{"op": "replace", "path": "/pw/$concord-keep", "value": ["box"]}]), Err("data.pw"));
    // Other values can be changed, and a secret value replaced or removed.
    expect(
        json!([{"op": "replace", "path": "/pw", "value": "new"}]),
        Ok(with(|data| data["pw"] = "new".into())),
    );
    expect(
        json!([{"op": "remove", "path": "/list/0"}]),
        Ok(with(|data| data["list"] = json!([{"token": "t1"}]))),
    );
    expect(
        json!([{"op": "remove", "path": "/box"}, {"op": "add", "path": "/more", "value": 1}]),
        Ok(with(|data| {
            data.as_object_mut().unwrap().shift_remove("box");
            data["more"] = 1.into();
        })),
    );
    // A client that may see the values may also move them.
    let moved = json!([{"op": "copy", "from": "/pw", "path": "/name"}, {"op": "test", "path": "/pw", "value": "hunter2"}]);
    assert_eq!(written(Principal::root(), json(moved)), Ok(with(|data| data["name"] = "hunter2".into())));
}

#[test]
fn the_operations_of_a_batch_are_validated_for_its_client() {
    let writes = || vec![patch(PatchFormat::Json, json!([{"op": "copy", "from": "/pw", "path": "/name"}]))];
    let batch = |principal| prepared(&state(), &request_by(principal, Write::Batch(writes())));
    assert!(matches!(batch(blind()), Err(Refusal::Invalid(_))));
    assert!(batch(Principal::root()).is_ok());
}

fn set_schema(schema: Option<Value>) -> Write {
    Write::SetSchema(NewSchema {
        key: "d".into(),
        schema: schema.map(Document::new),
        format_assertion: None,
        expect: Expect::Present,
        force: false,
        compiled: LazySchema::default(),
    })
}

#[test]
fn changing_a_schema_with_secret_fields_needs_reveal() {
    let forbidden = Err(Refusal::Forbidden { verb: Verb::Reveal });
    // Each would show a value, or whether a guess of it is right.
    for new in [
        None,
        Some(json!({})),
        Some(json!({"properties": {"name": {}, "pw": {"x-concord-secret": true, "const": "hunter2"}}})),
    ] {
        let of = |principal| prepared(&state(), &request_by(principal, set_schema(new.clone())));
        assert_eq!(of(blind()), forbidden);
        for principal in [owner(&[Verb::Define, Verb::Reveal]), Principal::root()] {
            assert!(of(principal).is_ok());
        }
    }
}

#[test]
fn a_secret_field_is_not_indexed() {
    let refused = |write: Write| match prepared(&state(), &request_by(Principal::root(), write)) {
        Err(Refusal::Invalid(Invalid::Violations(violations))) => violations.len(),
        Ok(_) => 0,
        Err(refusal) => panic!("{refusal:?}"),
    };
    let indexes = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let set = |paths: &[&str]| Write::SetIndexes {
        key: "d".into(),
        indexes: indexes(paths),
        expect: Expect::Present,
    };
    assert_eq!(refused(set(&["name"])), 0);
    assert_eq!(refused(set(&["name", "pw", "list", "box"])), 3, "through and above a secret field as well");
    let create = Write::CreateDefinition {
        key: "e".into(),
        indexes: indexes(&["pw"]),
        schema: Some(Document::new(schema())),
        format_assertion: None,
    };
    assert_eq!(refused(create), 1);
    let marked = json!({"properties": {"name": {"x-concord-secret": true}}});
    assert_eq!(refused(set_schema(Some(marked))), 1, "`name` is indexed");
}
