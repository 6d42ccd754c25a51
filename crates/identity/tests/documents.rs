//! The document of a provider: each problem at its member, conflicts, and changes of trust.

use concord_identity::{
    Provider, change_problems, changes_trust, conflicts,
    keys::Algorithm,
    provider::{KeySource, SubjectClaim, VerifiedBy},
};
use concord_model::error::{LocSegment, Violation};
use serde_json::{Value, json};

use super::forge::{jwk, jwk_with};

fn machines() -> Value {
    json!({ "issuer": "https://ci.example.com", "audiences": ["concord"], "require": { "owner": ["7"] } })
}

fn persons() -> Value {
    json!({
        "issuer": "https://login.example.com", "audiences": ["client"],
        "persons": { "label": "email", "domains": ["example.com"] },
        "login": { "client_id": "client" },
    })
}

/// A document with one member replaced; null removes it.
fn with(mut document: Value, name: &str, value: Value) -> Value {
    if value.is_null() {
        document.as_object_mut().unwrap().remove(name);
    } else {
        document[name] = value;
    }
    document
}

fn provider(document: &Value) -> Provider {
    Provider::parse(document).unwrap_or_else(|problems| panic!("{document}: {problems:?}"))
}

fn place(problem: &Violation) -> String {
    let segments = problem.loc.iter().map(|segment| match segment {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(index) => index.to_string(),
    });
    segments.collect::<Vec<_>>().join(".")
}

fn places(document: &Value) -> Vec<String> {
    Provider::parse(document).map_or_else(|problems| problems.iter().map(place).collect(), |_| Vec::new())
}

#[test]
fn a_short_document_has_the_defaults() {
    let ci = provider(&machines());
    assert_eq!(ci.algorithms, [Algorithm::Rs256].into());
    assert_eq!((ci.keys.clone(), ci.max_token_age_s, ci.single_tenant), (KeySource::Discovery, 3600, false));
    assert!(ci.persons.is_none() && ci.login.is_none() && ci.hosts.is_empty());
    assert_eq!(ci.discovery_url(), "https://ci.example.com/.well-known/openid-configuration");
    let slash = provider(&with(machines(), "issuer", json!("https://ci.example.com/a/")));
    assert_eq!(slash.discovery_url(), "https://ci.example.com/a/.well-known/openid-configuration");
    let corp = provider(&persons());
    let (persons, login) = (corp.persons.unwrap(), corp.login.unwrap());
    assert_eq!((persons.verified_by, persons.max_claims_age_s), (VerifiedBy::EmailVerified, 604_800));
    assert_eq!(persons.subject, SubjectClaim::Sub);
    assert_eq!((login.scopes, login.loopback_port, login.device), (vec!["openid".to_owned()], None, false));
}

#[test]
fn a_whole_document_is_read() {
    let document = json!({
        "issuer": "https://login.example.com", "audiences": ["client"], "algorithms": ["ES256", "EdDSA"],
        "keys": { "jwks": { "keys": [jwk("rsa"), jwk("ec")] } }, "max_token_age_s": 60,
        "require": { "tid": ["9f"], "/a/b": [true, 7] }, "single_tenant": false, "hosts": ["keys.example.com"],
        "claims": { "groups": ["concord-*", "x"], "/a/b": true },
        "persons": { "label": "email", "domains": ["example.com"], "verified_by": "tenant", "max_claims_age_s": 3600 },
        "login": { "client_id": "client", "scopes": ["openid", "email"], "loopback_port": 8400, "device": true,
                   "redirect_uris": ["https://concord.example.com/ui/callback", "http://[::1]:8400/callback"] },
    });
    let read = provider(&document);
    assert_eq!(read.require.len(), 2);
    assert!(matches!(&read.keys, KeySource::Fixed(keys) if keys.len() == 2));
}

#[test]
fn each_wrong_member_has_its_problem() {
    let wrong = [
        (machines(), "issuer", json!(null), "issuer"),
        (machines(), "issuer", json!(1), "issuer"),
        (machines(), "issuer", json!("http://ci.example.com"), "issuer"),
        (machines(), "issuer", json!("https://ci.example.com?x"), "issuer"),
        (machines(), "issuer", json!("https://ci.example.com#x"), "issuer"),
        (machines(), "issuer", json!("https://a@ci.example.com"), "issuer"),
        (machines(), "issuer", json!("https://169.254.169.254/"), "issuer"),
        (machines(), "issuer", json!("https://login.example.com/{tenantid}/v2.0"), "issuer"),
        (machines(), "issuer", json!(format!("https://ci.example.com/{}", "x".repeat(512))), "issuer"),
        (machines(), "audiences", json!(null), "audiences"),
        (machines(), "audiences", json!("concord"), "audiences"),
        (machines(), "audiences", json!([]), "audiences"),
        (machines(), "audiences", json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]), "audiences"),
        (machines(), "audiences", json!(["a", ""]), "audiences.1"),
        (machines(), "audiences", json!(["a\u{200b}"]), "audiences.0"),
        (machines(), "algorithms", json!([]), "algorithms"),
        (machines(), "algorithms", json!(["HS256"]), "algorithms.0"),
        (machines(), "algorithms", json!(["RS256", "none"]), "algorithms.1"),
        (machines(), "keys", json!("jwks"), "keys"),
        (machines(), "keys", json!({}), "keys"),
        (machines(), "keys", json!({ "url": "http://ci.example.com/keys" }), "keys.url"),
        (machines(), "keys", json!({ "url": "https://10.0.0.1/keys" }), "keys.url"),
        (machines(), "keys", json!({ "url": "https://ci.example.com/keys", "ca": "x" }), "keys.ca"),
        (machines(), "keys", json!({ "url": "https://ci.example.com/keys", "x": 1 }), "keys.x"),
        (machines(), "keys", json!({ "jwks": { "keys": [] } }), "keys.jwks"),
        (machines(), "keys", json!({ "jwks": [] }), "keys.jwks"),
        (
            machines(),
            "keys",
            json!({ "jwks": { "keys": [jwk("ec"), jwk_with("rsa", json!({ "d": "AAAA" }))] } }),
            "keys.jwks",
        ),
        (
            machines(),
            "keys",
            json!({ "jwks": { "keys": [jwk("ec"), { "kty": "oct", "k": "AAAA" }] } }),
            "keys.jwks",
        ),
        (
            machines(),
            "keys",
            json!({ "jwks": { "keys": [jwk("rsa")] }, "url": "https://a.example" }),
            "keys.url",
        ),
        (machines(), "max_token_age_s", json!(59), "max_token_age_s"),
        (machines(), "max_token_age_s", json!(86_401), "max_token_age_s"),
        (machines(), "max_token_age_s", json!("60"), "max_token_age_s"),
        (machines(), "max_token_age_s", json!(60.0), "max_token_age_s"),
        (machines(), "require", json!(null), "require"),
        (machines(), "require", json!({}), "require"),
        (machines(), "require", json!({ "aud": ["concord"] }), "require.aud"),
        (machines(), "require", json!({ "email_verified": [true] }), "require"),
        (machines(), "require", json!({ "ref_protected": ["true"], "environment": ["prod"] }), "require"),
        (machines(), "require", json!({ "azp": ["ci"], "typ": ["Bearer"] }), "require"),
        (machines(), "require", json!({ "idtyp": ["app"], "ver": ["2.0"] }), "require"),
        (machines(), "require", json!({ "acr": ["1"], "amr": ["mfa"], "auth_time": [1] }), "require"),
        (machines(), "require", json!({ "owner": ["x".repeat(1025)] }), "require.owner.0"),
        (machines(), "require", json!({ "owner": [] }), "require.owner"),
        (machines(), "require", json!({ "owner": "7" }), "require.owner"),
        (machines(), "require", json!({ "owner": [null] }), "require.owner.0"),
        (machines(), "require", json!({ "owner": [7.5] }), "require.owner.0"),
        (machines(), "require", json!({ "owner": ["a/*"] }), "require.owner.0"),
        (machines(), "require", json!({ "/owner": ["7"] }), "require./owner"),
        (machines(), "require", json!({ "/a//b": ["7"] }), "require./a//b"),
        (machines(), "require", json!({ "/a/~2": ["7"] }), "require./a/~2"),
        (machines(), "single_tenant", json!("true"), "single_tenant"),
        (machines(), "hosts", json!(["https://a.example"]), "hosts.0"),
        (machines(), "hosts", json!(["*.example.com"]), "hosts.0"),
        (machines(), "hosts", json!(["a.example:443"]), "hosts.0"),
        (machines(), "hosts", json!(["10.0.0.1"]), "hosts.0"),
        (machines(), "claims", json!([]), "claims"),
        (machines(), "claims", json!({ "groups": false }), "claims.groups"),
        (machines(), "claims", json!({ "groups": "x" }), "claims.groups"),
        (machines(), "claims", json!({ "groups": ["*"] }), "claims.groups.0"),
        (machines(), "claims", json!({ "groups": ["a*b"] }), "claims.groups.0"),
        (machines(), "claims", json!({ "groups": ["a**"] }), "claims.groups.0"),
        (machines(), "claims", json!({ "groups": ["x".repeat(1025)] }), "claims.groups.0"),
        (machines(), "claims", json!({ "jti": true }), "claims.jti"),
        (machines(), "claims", json!({ "": true }), "claims."),
        (machines(), "acts_for", json!("user_email"), "acts_for"),
        (machines(), "login", json!({ "client_id": "concord" }), "login"),
        (persons(), "audiences", json!(["client", "other"]), "audiences"),
        (persons(), "persons", json!({ "domains": ["example.com"] }), "persons.label"),
        (persons(), "persons", json!({ "label": "email" }), "persons"),
        (persons(), "persons", json!({ "label": "email", "domains": [] }), "persons"),
        (persons(), "persons", json!({ "label": "upn" }), "persons"),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "subject": "email" }),
            "persons.subject",
        ),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "subject": "oid" }),
            "require",
        ),
        (
            with(persons(), "require", json!({ "tid": ["9f", "a0"] })),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "subject": "oid" }),
            "require",
        ),
        (machines(), "require", json!({ "tid": ["9188040d-6c67-4c5b-b112-36a304b66dad"] }), "require"),
        (
            with(persons(), "require", json!({ "email_verified": [true] })),
            "persons",
            json!({ "label": "upn" }),
            "persons",
        ),
        (
            with(persons(), "require", json!({ "tid": ["9f"] })),
            "persons",
            json!({ "label": "email" }),
            "persons",
        ),
        (with(persons(), "single_tenant", json!(true)), "persons", json!({ "label": "email" }), "persons"),
        (persons(), "persons", json!({ "label": "email", "domains": ["Example.com"] }), "persons.domains.0"),
        (persons(), "persons", json!({ "label": "email", "domains": ["@example.com"] }), "persons.domains.0"),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["*.example.com"] }),
            "persons.domains.0",
        ),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "verified_by": "me" }),
            "persons.verified_by",
        ),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "verified_by": "tenant" }),
            "require",
        ),
        (
            persons(),
            "persons",
            json!({ "label": "upn", "domains": ["example.com"], "verified_by": "email_verified" }),
            "persons.verified_by",
        ),
        (
            persons(),
            "persons",
            json!({ "label": "email", "domains": ["example.com"], "max_claims_age_s": 3599 }),
            "persons.max_claims_age_s",
        ),
        (persons(), "login", json!({}), "login.client_id"),
        (persons(), "login", json!({ "client_id": "other" }), "login"),
        (persons(), "login", json!({ "client_id": "client", "scopes": ["email"] }), "login.scopes"),
        (persons(), "login", json!({ "client_id": "client", "scopes": ["openid email"] }), "login.scopes.0"),
        (
            persons(),
            "login",
            json!({ "client_id": "client", "redirect_uris": ["http://a.example/"] }),
            "login.redirect_uris.0",
        ),
        (
            persons(),
            "login",
            json!({ "client_id": "client", "redirect_uris": ["javascript:alert(1)"] }),
            "login.redirect_uris.0",
        ),
        (persons(), "login", json!({ "client_id": "client", "loopback_port": 0 }), "login.loopback_port"),
        (
            persons(),
            "login",
            json!({ "client_id": "client", "loopback_port": 65_536 }),
            "login.loopback_port",
        ),
        (persons(), "login", json!({ "client_id": "client", "device": 1 }), "login.device"),
        (persons(), "login", json!({ "client_id": "client", "client_secret": "x" }), "login.client_secret"),
    ];
    for (document, name, value, wanted) in wanted_places(&wrong) {
        assert!(places(&with(document, name, value.clone())).contains(&wanted), "{name} {value}");
    }
}

/// The table with places as they are compared.
fn wanted_places<'a>(
    wrong: &'a [(Value, &'a str, Value, &'a str)],
) -> impl Iterator<Item = (Value, &'a str, Value, String)> {
    wrong
        .iter()
        .map(|(document, name, value, wanted)| (document.clone(), *name, value.clone(), (*wanted).to_owned()))
}

#[test]
fn all_problems_are_named_at_once() {
    let document = json!({ "issuer": 1, "audiences": [], "algorithms": ["x"], "max_token_age_s": 1, "hosts": [1, 2], "y": 1 });
    let wanted = ["algorithms.0", "audiences", "hosts.0", "hosts.1", "issuer", "max_token_age_s", "y"];
    let mut found = places(&document);
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(places(&json!([])), [""]);
    let many: Vec<Value> = vec![json!(1); 9];
    assert_eq!(places(&with(machines(), "hosts", json!(many))), ["hosts"], "a long list has one problem");
}

#[test]
fn whoever_trusts_everybody_of_an_issuer_says_so() {
    let open = with(machines(), "require", json!(null));
    provider(&with(open, "single_tenant", json!(true)));
    let named = with(persons(), "persons", json!({ "label": "upn" }));
    provider(&with(named.clone(), "require", json!({ "tid": ["9f"] })));
    provider(&with(named.clone(), "single_tenant", json!(true)));
    provider(&with(named, "persons", json!({ "label": "upn", "domains": ["example.com"] })));
    provider(&with(machines(), "require", json!({ "owner": ["7"], "environment": ["prod"] })));
}

#[test]
fn an_issuer_that_no_node_calls_may_be_an_address() {
    let address = json!("https://10.0.0.5:6443");
    let fixed = json!({ "jwks": { "keys": [jwk("rsa")] } });
    for keys in [json!({ "url": "https://kubernetes.default.svc/openid/v1/jwks" }), fixed] {
        let machines = with(machines(), "keys", keys.clone());
        provider(&with(machines.clone(), "issuer", address.clone()));
        for text in ["https://10.0.0.5/?x", "https://10.0.0.5/#x", "http://10.0.0.5", "10.0.0.5"] {
            assert_eq!(places(&with(machines.clone(), "issuer", json!(text))), ["issuer"], "{text}");
        }
        let persons = with(with(persons(), "keys", keys), "issuer", address.clone());
        assert_eq!(places(&persons), ["issuer"], "a node redeems codes there");
        provider(&with(persons, "login", json!(null)));
    }
    assert_eq!(places(&with(machines(), "issuer", address)), ["issuer"], "a node calls it for discovery");
}

#[test]
fn providers_that_can_t_stand_side_by_side_conflict() {
    let (ci, corp) = (provider(&machines()), provider(&persons()));
    let found = |own: &Provider, others: &[(&str, &Provider)]| -> Vec<String> {
        conflicts("own", own, others.iter().copied()).iter().map(place).collect()
    };
    assert!(found(&ci, &[("corp", &corp)]).is_empty());
    assert!(found(&ci, &[("own", &ci)]).is_empty(), "its own earlier document");
    assert_eq!(found(&ci, &[("other", &ci)]), ["audiences"]);
    let other_audience = provider(&with(machines(), "audiences", json!(["concord-2"])));
    assert!(found(&ci, &[("other", &other_audience)]).is_empty());
    let api = provider(&with(machines(), "issuer", json!("https://login.example.com")));
    assert_eq!(found(&api, &[("corp", &corp)]), ["persons"], "a blocked person would come back as a machine");
    assert_eq!(found(&corp, &[("api", &api)]), ["persons"]);
    let slash = provider(&with(machines(), "issuer", json!("https://login.example.com/")));
    assert!(found(&slash, &[("corp", &corp)]).is_empty(), "issuers are compared as text");
    let second = provider(&with(persons(), "issuer", json!("https://login.example.org")));
    assert_eq!(found(&second, &[("corp", &corp), ("ci", &ci)]), ["persons.domains"]);
    let client = json!({
        "issuer": "https://login.example.com", "audiences": ["client-2"], "single_tenant": true,
        "persons": { "label": "preferred_username" },
    });
    let client = provider(&client);
    assert_eq!(found(&client, &[("corp", &corp)]), ["persons"], "a human has another `sub` for each client");
    assert_eq!(found(&corp, &[("client", &client)]), ["persons"]);
}

#[test]
fn the_issuers_of_a_tenant_are_as_one() {
    let (tenant, other) = ("9122040d-6c67-4c5b-b112-36a304b66dad", "00000000-6c67-4c5b-b112-36a304b66dad");
    let first = |tenant: &str| format!("https://sts.windows.net/{tenant}/");
    let second = |tenant: &str| format!("https://login.microsoftonline.com/{tenant}/v2.0");
    let of = |issuer: String, require: Value| {
        provider(
            &json!({ "issuer": issuer, "audiences": ["api"], "single_tenant": true, "require": require }),
        )
    };
    let persons_of = |issuer: String, require: Value| {
        provider(&json!({
            "issuer": issuer, "audiences": ["client"], "require": require,
            "persons": { "label": "upn", "domains": [issuer.split('/').nth(2).unwrap()] },
        }))
    };
    let corp = persons_of(second(tenant), json!({}));
    for (issuer, require, wanted) in [
        (first(tenant), json!({}), vec!["persons"]),
        (first(tenant), json!({ "roles": ["x"] }), vec!["persons"]),
        (first(tenant), json!({ "tid": [tenant] }), vec!["persons"]),
        ("https://sts.example.com".to_owned(), json!({ "tid": [other, tenant] }), vec!["persons"]),
        (first(tenant), json!({ "idtyp": ["app", "user"] }), vec!["persons"]),
        (first(tenant), json!({ "idtyp": ["app"] }), vec![]),
        (first(other), json!({ "tid": [other] }), vec![]),
        (second(tenant), json!({ "idtyp": ["app"] }), vec!["persons"]),
    ] {
        let azure = of(issuer.clone(), require.clone());
        let found = |own: &Provider, other: &Provider| -> Vec<String> {
            conflicts("own", own, [("other", other)]).iter().map(place).collect()
        };
        assert_eq!(found(&azure, &corp), wanted, "{issuer} {require}");
        assert_eq!(found(&corp, &azure), wanted, "{issuer} {require}");
    }
    let twice = persons_of(first(tenant), json!({ "tid": [tenant] }));
    assert_eq!(
        conflicts("own", &corp, [("twice", &twice)]).iter().map(place).collect::<Vec<_>>(),
        ["persons"]
    );
    let (hd, shop) = (json!({ "hd": ["example.com"] }), json!({ "hd": ["example.org"] }));
    let google = persons_of("https://accounts.example.com".to_owned(), hd.clone());
    assert!(
        !conflicts("own", &of("https://api.example.com".to_owned(), hd), [("google", &google)]).is_empty()
    );
    assert!(
        conflicts("own", &of("https://api.example.com".to_owned(), shop), [("google", &google)]).is_empty()
    );
}

#[test]
fn a_change_of_trust_is_told_from_another_change() {
    let base = with(persons(), "require", json!({ "tid": ["9f"] }));
    let before = provider(&base);
    for (name, value) in [
        ("issuer", json!("https://login.example.org")),
        ("require", json!({ "tid": ["9f", "a0"] })),
        ("require", json!({ "tid": ["9f"], "x": ["1"] })),
        ("algorithms", json!(["RS256", "ES256"])),
        ("keys", json!({ "jwks": { "keys": [jwk("rsa")] } })),
        ("keys", json!({ "url": "https://login.example.com/keys" })),
        ("single_tenant", json!(true)),
        ("hosts", json!(["keys.example.com"])),
        ("persons", json!({ "label": "email", "domains": ["example.com", "example.org"] })),
        ("persons", json!({ "label": "email", "domains": ["example.com"], "verified_by": "tenant" })),
        ("persons", json!({ "label": "upn", "domains": ["example.com"] })),
        ("persons", json!({ "label": "email", "domains": ["example.com"], "subject": "oid" })),
    ] {
        let after = provider(&with(base.clone(), name, value));
        assert!(changes_trust(&before, &after) && changes_trust(&after, &before), "{name}");
    }
    let other_client =
        with(with(base.clone(), "audiences", json!(["c2"])), "login", json!({ "client_id": "c2" }));
    assert!(changes_trust(&before, &provider(&other_client)));
    let machines = with(with(base.clone(), "persons", json!(null)), "login", json!(null));
    assert!(changes_trust(&before, &provider(&machines)));
    for (name, value) in [
        ("max_token_age_s", json!(60)),
        ("claims", json!({ "groups": true })),
        ("login", json!({ "client_id": "client", "device": true })),
        ("persons", json!({ "label": "email", "domains": ["example.com"], "max_claims_age_s": 3600 })),
    ] {
        assert!(!changes_trust(&before, &provider(&with(base.clone(), name, value))), "{name}");
    }
}

#[test]
fn while_there_are_accounts_nothing_makes_a_human_another_one() {
    let base = with(persons(), "require", json!({ "tid": ["9f"] }));
    let client = |base: &Value| with(with(base.clone(), "audiences", json!(["c2"])), "login", json!(null));
    let by_oid = json!({ "label": "email", "domains": ["example.com"], "subject": "oid" });
    let with_oid = with(base.clone(), "persons", by_oid.clone());
    let found = |before: &Value, after: &Value, has_accounts| -> Vec<String> {
        change_problems(&provider(before), &provider(after), has_accounts).iter().map(place).collect()
    };
    let machines = with(with(base.clone(), "persons", json!(null)), "login", json!(null));
    let elsewhere = with(base.clone(), "issuer", json!("https://login.example.org"));
    for (before, after, wanted) in [
        (&base, &base, vec![]),
        (&base, &elsewhere, vec!["issuer"]),
        (&base, &machines, vec!["persons"]),
        (&base, &with_oid, vec!["persons.subject"]),
        (&with_oid, &base, vec!["persons.subject"]),
        (&with_oid, &with(with_oid.clone(), "require", json!({ "tid": ["a0"] })), vec!["require"]),
        (&base, &client(&base), vec!["audiences"]),
        (&with_oid, &client(&with_oid), vec![]),
        (&base, &with(base.clone(), "hosts", json!(["keys.example.com"])), vec![]),
    ] {
        assert_eq!(found(before, after, true), wanted, "{before} {after}");
        let without_accounts = if wanted == ["issuer"] { wanted } else { vec![] };
        assert_eq!(found(before, after, false), without_accounts, "{before} {after}");
    }
}
