//! What somebody may do by all of their roles.

use concord_identity::{Claims, Membership, Owner, OwnerKind, Permissions, Role, claims::KeptClaims};
use concord_model::{
    access_key::{Grant, Grants, Pattern, Quota, Verb},
    key::Key,
};
use serde_json::{Value, json};

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn claims(value: &Value) -> Claims {
    Claims::from_text(&value.to_string()).unwrap()
}

/// A role as it is stored.
struct Stored {
    name: Key,
    grants: Grants,
    quota: Quota,
    membership: Membership,
}

/// A role of everybody of `ci` with this group.
fn role(group: &str, verbs: &[Verb], quota: Quota, session_s: u64) -> Stored {
    let definitions = vec![Pattern::parse(&format!("{group}.*")).unwrap()];
    let document = json!({
        "members": [{ "provider": "ci", "match": { "groups": [group] } }], "session_s": session_s,
    });
    Stored {
        name: key(group),
        grants: Grants(vec![Grant { verbs: verbs.iter().copied().collect(), definitions }]),
        quota,
        membership: Membership::parse(&document).unwrap(),
    }
}

fn permissions(roles: &[Stored], provider: &str, kind: OwnerKind, claims: &Claims) -> Option<Permissions> {
    after(0, roles, provider, kind, claims)
}

fn after(
    age_s: u64,
    roles: &[Stored],
    provider: &str,
    kind: OwnerKind,
    claims: &Claims,
) -> Option<Permissions> {
    let roles = roles.iter().map(|role| Role {
        name: &role.name,
        grants: &role.grants,
        quota: &role.quota,
        membership: &role.membership,
    });
    Permissions::of(roles, Owner { provider: &key(provider), kind, claims, age_s })
}

fn writes(limit: u64) -> Quota {
    Quota { writes_per_second: Some(limit), watches: Some(7), ..Quota::default() }
}

#[test]
fn roles_add_up_and_a_session_is_as_short_as_the_shortest_says() {
    let roles = [
        role("shop", &[Verb::Read, Verb::Write], writes(5), 3600),
        role("pay", &[Verb::Read], writes(9), 600),
        role("free", &[Verb::Read], Quota::default(), 7200),
    ];
    let of =
        |groups: Value| permissions(&roles, "ci", OwnerKind::Machine, &claims(&json!({ "groups": groups })));
    let shop = of(json!(["shop"])).unwrap();
    assert_eq!((&shop.roles, shop.quota, shop.session_s), (&vec![key("shop")], writes(5), 3600));
    assert!(
        shop.grants.allows(Verb::Write, Some("shop.a")) && !shop.grants.allows(Verb::Read, Some("pay.a"))
    );
    let both = of(json!(["pay", "shop", "x"])).unwrap();
    assert_eq!((&both.roles, both.quota, both.session_s), (&vec![key("shop"), key("pay")], writes(9), 600));
    assert!(both.grants.covers(&shop.grants) && both.grants.allows(Verb::Read, Some("pay.a")));
    assert!(!both.grants.allows(Verb::Write, Some("pay.a")), "a verb belongs to the definitions of its role");
    let free = of(json!(["free", "shop"])).unwrap();
    assert_eq!((free.quota, free.session_s), (Quota::default(), 3600));
}

#[test]
fn who_has_no_role_has_no_permissions() {
    let roles = [role("shop", &[Verb::Read], Quota::default(), 600)];
    let shop = claims(&json!({ "groups": ["shop"] }));
    assert!(permissions(&roles, "ci", OwnerKind::Person, &shop).is_some());
    assert!(permissions(&roles, "ci-2", OwnerKind::Person, &shop).is_none());
    assert!(permissions(&roles, "ci", OwnerKind::Person, &Claims::default()).is_none());
    assert!(permissions(&[], "ci", OwnerKind::Person, &shop).is_none());
}

#[test]
fn a_machine_does_nothing_that_counts_as_an_act_of_a_human() {
    let roles = [role("shop", &Verb::ALL, Quota::default(), 600), role("pay", &[Verb::Keys], writes(1), 600)];
    let groups = claims(&json!({ "groups": ["shop", "pay"] }));
    let of = |kind| permissions(&roles, "ci", kind, &groups).unwrap();
    let (person, machine) = (of(OwnerKind::Person), of(OwnerKind::Machine));
    for verb in Verb::ALL {
        assert!(person.grants.allows(verb, None), "{verb}");
        let is_of_persons = [Verb::Approve, Verb::Bypass, Verb::Keys].contains(&verb);
        assert_eq!(machine.grants.allows(verb, None), !is_of_persons, "{verb}");
    }
    assert_eq!(machine.roles, [key("shop")], "a grant without verbs is none");
    let approves =
        [role("shop", &[Verb::Approve], Quota::default(), 600), role("pay", &[Verb::Read], writes(1), 900)];
    let machine = permissions(&approves, "ci", OwnerKind::Machine, &groups).unwrap();
    assert_eq!((&machine.roles, machine.quota, machine.session_s), (&vec![key("pay")], writes(1), 900));
    assert!(!machine.grants.allows(Verb::Report, None), "`approve` includes it");
    assert!(
        permissions(&approves[..1], "ci", OwnerKind::Machine, &groups).is_none(),
        "a role that gives nothing"
    );
}

#[test]
fn a_role_counts_as_long_after_the_login_as_it_says() {
    let roles = [
        role("shop", &[Verb::Read], Quota::default(), 3600),
        role("pay", &[Verb::Write], Quota::default(), 300),
    ];
    let groups = claims(&json!({ "groups": ["shop", "pay"] }));
    for (age_s, wanted) in
        [(0, vec!["shop", "pay"]), (299, vec!["shop", "pay"]), (300, vec!["shop"]), (3600, vec![])]
    {
        let found = after(age_s, &roles, "ci", OwnerKind::Person, &groups);
        let names: Vec<Key> = found.map(|found| found.roles).unwrap_or_default();
        assert_eq!(names.iter().map(Key::as_str).collect::<Vec<_>>(), wanted, "{age_s}");
    }
}

#[test]
fn what_a_provider_keeps_no_more_gives_nobody_a_role() {
    let roles = [role("shop", &[Verb::Read], Quota::default(), 600)];
    let stored = claims(&json!({ "groups": ["shop", "x"], "n": 7, "flag": true }));
    let cut = |kept: Value| KeptClaims::parse(&kept).unwrap().cut(&stored);
    for (kept, wanted) in [
        (
            json!({ "groups": true, "n": true, "flag": true }),
            json!({ "groups": ["shop", "x"], "n": 7, "flag": true }),
        ),
        (json!({ "groups": ["s*"], "n": [8] }), json!({ "groups": ["shop"] })),
        (json!({ "groups": ["x"], "n": [7], "new": true }), json!({ "groups": ["x"], "n": 7 })),
        (json!({ "groups": ["y"] }), json!({})),
        (json!({}), json!({})),
    ] {
        let left = cut(kept.clone());
        assert_eq!(left, claims(&wanted), "{kept}");
        let has_role = wanted["groups"].as_array().is_some_and(|groups| groups.contains(&json!("shop")));
        assert_eq!(permissions(&roles, "ci", OwnerKind::Machine, &left).is_some(), has_role, "{kept}");
    }
}
