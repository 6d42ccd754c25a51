//! Who is a member of a role, and why.

use concord_identity::{ClaimName, Claims, Member, Membership, claims::Scalar, roles::Hint};
use concord_model::{error::LocSegment, key::Key};
use serde_json::{Value, json};

use super::forge::raw;

fn claims(value: &Value) -> Claims {
    Claims::from_text(&value.to_string()).unwrap()
}

fn member(matches: &Value) -> Member {
    let role = json!({ "members": [{ "provider": "ci", "match": matches }] });
    Membership::parse(&role).unwrap().members.remove(0)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

#[test]
fn a_member_matches_by_all_claims_and_one_value_of_each() {
    let own = claims(&json!({
        "repo": "repo:acme/shop:ref:main", "groups": ["a", "b", "true"], "flag": true, "n": 7, "/k/uid": "u1",
    }));
    for (matches, wanted) in [
        (json!({ "groups": ["b"] }), true),
        (json!({ "groups": ["x", "a"] }), true),
        (json!({ "groups": ["a"], "n": [7] }), true),
        (json!({ "groups": ["a"], "n": [8] }), false),
        (json!({ "groups": ["a"], "absent": ["x"] }), false),
        (json!({ "groups": [true] }), false),
        (json!({ "groups": ["A"] }), false),
        (json!({ "flag": [true] }), true),
        (json!({ "flag": ["true"] }), false),
        (json!({ "flag": [false] }), false),
        (json!({ "n": ["7"] }), false),
        (json!({ "n": [70] }), false),
        (json!({ "repo": ["repo:acme/*"] }), true),
        (json!({ "repo": ["repo:acme/shop:*"] }), true),
        (json!({ "repo": ["repo:*"] }), true),
        (json!({ "repo": ["repo:acm/*"] }), false),
        (json!({ "repo": ["repo:acme/shop"] }), false),
        (json!({ "/k/uid": ["u1"] }), true),
        (json!({ "/k/other": ["u1"] }), false),
        (json!({ "k": ["u1"] }), false),
    ] {
        let member = member(&matches);
        assert_eq!(member.matches(&key("ci"), &own), wanted, "{matches}");
        assert_eq!(member.explain(&key("ci"), &own).holds, wanted, "{matches}");
        assert!(!member.matches(&key("ci-2"), &own), "another provider: {matches}");
        assert!(!member.explain(&key("ci-2"), &own).holds, "{matches}");
        assert!(!member.matches(&key("ci"), &Claims::default()), "without claims: {matches}");
    }
}

#[test]
fn an_explanation_shows_each_claim() {
    let member = member(&json!({ "repo": ["repo:acme/*"], "env": ["prod", "stage"], "n": [7] }));
    let explained =
        member.explain(&key("ci"), &claims(&json!({ "repo": "repo:acme/shop", "env": ["dev", "test"] })));
    assert!(explained.is_provider && !explained.holds);
    let shown: Vec<String> = explained
        .claims
        .iter()
        .map(|check| format!("{}: {} / {} / {}", check.claim, check.wanted, check.seen, check.holds))
        .collect();
    assert_eq!(
        shown,
        [
            r#"env: one of "prod", "stage" / ["dev","test"] / false"#,
            "n: 7 / absent / false",
            r#"repo: "repo:acme/*" / "repo:acme/shop" / true"#,
        ]
    );
}

#[test]
fn a_role_has_its_defaults_and_any_of_its_members() {
    let empty = Membership::parse(&json!({})).unwrap();
    assert_eq!((empty.members.len(), empty.session_s), (0, 28_800));
    let role = json!({
        "members": [{ "provider": "ci", "match": { "a": ["1"] } }, { "provider": "corp", "match": { "a": ["2"] } }],
        "session_s": 300,
    });
    let role = Membership::parse(&role).unwrap();
    assert!(role.has(&key("corp"), &claims(&json!({ "a": "2" }))));
    assert!(!role.has(&key("ci"), &claims(&json!({ "a": "2" }))));
    assert!(!empty.has(&key("ci"), &claims(&json!({ "a": "1" }))));
    let longest = "x".repeat(1024);
    assert!(member(&json!({ "sub": [longest] })).matches(&key("ci"), &claims(&json!({ "sub": longest }))));
}

#[test]
fn each_wrong_member_of_a_role_has_its_problem() {
    let one = |matches: Value| json!({ "members": [{ "provider": "ci", "match": matches }] });
    let claims: Value =
        (0..9).map(|n| (format!("c{n}"), json!(["x"]))).collect::<serde_json::Map<_, _>>().into();
    let values: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let members: Vec<Value> = (0..17).map(|_| json!({ "provider": "ci", "match": { "a": ["x"] } })).collect();
    for (role, wanted) in [
        (json!([]), ""),
        (json!({ "member": [] }), "member"),
        (json!({ "members": {} }), "members"),
        (json!({ "members": members }), "members"),
        (json!({ "members": [1] }), "members.0"),
        (json!({ "members": [{ "match": { "a": ["x"] } }] }), "members.0.provider"),
        (json!({ "members": [{ "provider": "a/b", "match": { "a": ["x"] } }] }), "members.0.provider"),
        (json!({ "members": [{ "provider": "ci" }] }), "members.0.match"),
        (json!({ "members": [{ "provider": "ci", "match": { "a": ["x"] }, "not": {} }] }), "members.0.not"),
        (one(json!({})), "members.0.match"),
        (one(json!([])), "members.0.match"),
        (one(claims), "members.0.match"),
        (one(json!({ "a": [] })), "members.0.match.a"),
        (one(json!({ "a": "x" })), "members.0.match.a"),
        (one(json!({ "a": values })), "members.0.match.a"),
        (one(json!({ "a": ["x", null] })), "members.0.match.a.1"),
        (one(json!({ "a": [1.5] })), "members.0.match.a.0"),
        (one(json!({ "a": [["x"]] })), "members.0.match.a.0"),
        (one(json!({ "a": [""] })), "members.0.match.a.0"),
        (one(json!({ "a": ["x".repeat(1025)] })), "members.0.match.a.0"),
        (one(json!({ "x".repeat(256): ["x"] })), &format!("members.0.match.{}…", "x".repeat(160))),
        (one(json!({ "a": ["*"] })), "members.0.match.a.0"),
        (one(json!({ "a": ["concord-*"] })), "members.0.match.a.0"),
        (one(json!({ "a": ["repo:acme/shop*"] })), "members.0.match.a.0"),
        (one(json!({ "a": ["*/x"] })), "members.0.match.a.0"),
        (one(json!({ "a": ["a/*/b"] })), "members.0.match.a.0"),
        (one(json!({ "a": ["a/**"] })), "members.0.match.a.0"),
        (one(json!({ "/a": ["x"] })), "members.0.match./a"),
        (json!({ "session_s": 299 }), "session_s"),
        (json!({ "session_s": 43_201 }), "session_s"),
        (json!({ "session_s": "300" }), "session_s"),
    ] {
        let problems = Membership::parse(&role).unwrap_err();
        let place = |loc: &Vec<LocSegment>| {
            let segments = loc.iter().map(|segment| match segment {
                LocSegment::Name(name) => name.clone(),
                LocSegment::Index(index) => index.to_string(),
            });
            segments.collect::<Vec<_>>().join(".")
        };
        let places: Vec<String> = problems.iter().map(|problem| place(&problem.loc)).collect();
        assert_eq!(places, [wanted], "{role}: {problems:?}");
    }
}

#[test]
fn a_match_of_the_owner_alone_is_worth_a_hint() {
    for (matches, is_hinted) in [
        (json!({ "repository_owner": ["acme"] }), true),
        (json!({ "repository_owner_id": ["65"], "ref": ["refs/heads/main"] }), true),
        (json!({ "namespace_path": ["acme"], "ref_protected": ["true"] }), true),
        (json!({ "tid": ["9f"], "idtyp": ["app"] }), true),
        (json!({ "sub": ["repo:acme/*"] }), true),
        (json!({ "repository": ["acme/*"] }), true),
        (json!({ "sub": ["repo:*"] }), true),
        (json!({ "sub": ["project_path:*"], "ref": ["main"] }), true),
        (json!({ "sub": ["system:serviceaccount:*"] }), true),
        (json!({ "repository": ["acme/shop", "acme/*"] }), true),
        (json!({ "repository_owner": ["acme"], "environment": ["prod"] }), false),
        (json!({ "repository_owner": ["acme"], "repository_id": ["74"] }), false),
        (json!({ "sub": ["repo:acme/shop:*"] }), false),
        (json!({ "project_path": ["acme/*"], "environment": ["prod"] }), false),
        (json!({ "tid": ["9f"], "groups": ["platform"] }), false),
        (json!({ "groups": ["platform"] }), false),
        (json!({ "ref": ["refs/heads/main"] }), false),
        (json!({ "repository": ["acme/shop"] }), false),
    ] {
        let hints = member(&matches).hints();
        assert_eq!(hints, if is_hinted { vec![Hint::OnlyOwner] } else { vec![] }, "{matches}");
        assert!(hints.iter().all(|hint| hint.text().contains("only the owner")));
    }
}

#[test]
fn a_value_that_can_be_compared_has_one_text() {
    for text in ["true", "0", "-7", "123456789012345678901234567890", r#""a""#, r#""""#] {
        assert_eq!(Scalar::of(&raw(text)).unwrap().to_value(), raw(text));
    }
    for text in ["-0", "0.0", "7.0", "1e2", "1E0", "null", "[]", "{}"] {
        assert_eq!(Scalar::of(&raw(text)), None, "{text}");
    }
}

#[test]
fn a_pointer_leads_through_objects_by_its_segments() {
    let payload = json!({ "a/b": { "~": 1 }, "/c": 2, "d": { "0": 3 }, "e": [4], "a": 5 });
    let found = |name: &str| ClaimName::parse(name).unwrap().find(payload.as_object().unwrap()).cloned();
    for (name, wanted) in [
        ("/a~1b/~0", Some(1)),
        ("/~1c", Some(2)),
        ("/d/0", Some(3)),
        ("a", Some(5)),
        ("/e/0", None),
        ("/a/b", None),
    ] {
        assert_eq!(found(name), wanted.map(Value::from), "{name}");
    }
    assert_eq!(ClaimName::parse("/a~1b/~0").unwrap().outermost(), "a/b");
    for name in ["", "/", "/a", "//a", "/a/", "/a/~", "/a/~2", "a\n"] {
        assert!(ClaimName::parse(name).is_err(), "{name}");
    }
}
