//! What holds for generated input: nothing panics, a changed token is not accepted, texts are canonical, and fewer claims
//! never give more.

use std::sync::LazyLock;

use concord_identity::{
    ClaimName, Claims, Discovery, KeySet, Membership, Provider, Token, TokenSource, claims::KeptClaims, judge,
};
use concord_model::key::Key;
use proptest::{prelude::*, sample::Index};
use serde_json::{Map, Value, json};

use super::forge::{Forge, Signer, encode, good, jwk, person};

/// A good token of each algorithm, with its text.
static TOKENS: LazyLock<Vec<(Forge, String)>> = LazyLock::new(|| {
    let signed = [
        ("RS256", "rsa", Signer::Rs256),
        ("PS256", "rsa", Signer::Ps256),
        ("ES256", "ec", Signer::Es256),
        ("EdDSA", "ed", Signer::EdDsa),
    ];
    let forge = |(algorithm, kid, signer)| good().signed(algorithm, kid, signer);
    signed.map(forge).into_iter().map(|forge| (forge.clone(), forge.text())).collect()
});

/// Values of JSON, with names and texts that mean something here.
fn json_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[a-z*/:~.@ -]{0,6}",
        ".{0,4}",
        Just("https://login.example.com".to_owned()),
        Just("email".to_owned()),
        Just("discovery".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((name(), inner), 0..6)
                .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    let known = proptest::sample::select(vec![
        "issuer",
        "audiences",
        "keys",
        "url",
        "jwks",
        "kty",
        "kid",
        "n",
        "e",
        "x",
        "alg",
        "iss",
        "aud",
        "sub",
        "exp",
        "iat",
        "groups",
        "claims",
        "persons",
        "label",
        "domains",
        "login",
        "members",
        "match",
        "provider",
        "require",
        "/a/b",
        "a",
        "hosts",
        "email",
        "tid",
        "scopes",
        "redirect_uris",
        "_claim_names",
        "crit",
    ]);
    prop_oneof![4 => known.prop_map(str::to_owned), 1 => "[a-z/~]{0,4}"]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-3..3_i64).prop_map(Value::from),
        "[ab]{0,2}(/[ab]{0,2})?".prop_map(Value::from),
    ]
}

/// Kept claims: a few names, a few values.
fn claims() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![scalar(), proptest::collection::vec(scalar(), 1..4).prop_map(Value::from)];
    proptest::collection::btree_map("[a-d]|/a/[ab]", value, 0..6)
        .prop_map(|claims| claims.into_iter().collect())
}

fn parsed(claims: &Map<String, Value>) -> Claims {
    Claims::from_text(&Value::Object(claims.clone()).to_string()).unwrap()
}

fn role() -> impl Strategy<Value = Value> {
    let pattern = prop_oneof![3 => scalar(), 1 => "[ab]{0,2}/\\*".prop_map(Value::from)];
    let not_empty = pattern.prop_filter("no empty value", |value| value != &json!(""));
    let values = proptest::collection::vec(not_empty, 1..4);
    let matches = proptest::collection::btree_map("[a-d]|/a/[ab]", values, 1..4);
    proptest::collection::vec(matches, 0..3).prop_map(|members| {
        let members: Vec<Value> =
            members.iter().map(|matches| json!({ "provider": "ci", "match": matches })).collect();
        json!({ "members": members })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn no_text_makes_the_parser_of_tokens_panic(text in ".{0,80}", parts in "[A-Za-z0-9_=.-]{0,80}") {
        for text in [text, parts] {
            let judgement = good().judge_text(&text);
            prop_assert!(judgement.outcome.is_err());
        }
    }

    #[test]
    fn no_header_and_payload_make_a_judgement_panic(header in json_value(), payload in json_value()) {
        let message = format!("{}.{}", encode(header.to_string().as_bytes()), encode(payload.to_string().as_bytes()));
        let _ = Token::parse(&format!("{message}.AAAA"));
        let header = encode(br#"{"alg":"RS256","kid":"rsa"}"#);
        let payload = encode(payload.to_string().as_bytes());
        if let Ok(token) = Token::parse(&format!("{header}.{payload}.AAAA")) {
            let people = json!({
                "issuer": "https://login.example.com", "audiences": ["a"], "require": { "/a/b": ["x"] },
                "claims": { "groups": true, "a": true }, "persons": { "label": "email", "domains": ["example.com"] },
            });
            let provider = Provider::parse(&people).unwrap();
            let (code, device) = (TokenSource::Code { nonce: "n" }, TokenSource::DeviceCode);
            prop_assert!(judge(&token, &provider, &good().key_set(), u64::MAX, code).outcome.is_err());
            prop_assert!(judge(&token, &provider, &KeySet::default(), 0, device).outcome.is_err());
        }
    }

    #[test]
    fn a_token_with_one_changed_byte_is_not_accepted(which in 0..4_usize, place in any::<Index>(), byte in 0..128_u8) {
        let (forge, text) = &TOKENS[which];
        let mut changed = text.clone().into_bytes();
        let place = place.index(changed.len());
        prop_assume!(changed[place] != byte);
        changed[place] = byte;
        let changed = String::from_utf8(changed).unwrap();
        prop_assert!(forge.judge_text(text).outcome.is_ok());
        prop_assert!(forge.judge_text(&changed).outcome.is_err(), "{place}: {changed}");
    }

    #[test]
    fn no_bytes_make_a_document_of_a_provider_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        value in json_value(),
    ) {
        let document = json!({ "issuer": "https://a.example", "audiences": ["a"], "single_tenant": true });
        let provider = Provider::parse(&document).unwrap();
        for bytes in [bytes, value.to_string().into_bytes(), json!({ "keys": [value] }).to_string().into_bytes()] {
            let _ = KeySet::parse(&bytes);
            let _ = Discovery::parse(&bytes, &provider);
        }
    }

    #[test]
    fn no_document_makes_its_reader_panic(value in json_value(), name in name()) {
        let mut document = json!({ "issuer": "https://a.example", "audiences": ["a"], "single_tenant": true });
        document[name] = value.clone();
        let _ = Provider::parse(&document);
        let _ = Provider::parse(&value);
        let _ = Membership::parse(&value);
        let _ = Membership::parse(&json!({ "members": [{ "provider": "a", "match": value }] }));
    }

    #[test]
    fn a_key_set_has_one_text(
        keys in Just(["rsa", "other", "ec", "ed"].map(jwk).to_vec()).prop_shuffle(),
        chosen in proptest::sample::subsequence(vec![0, 1, 2, 3], 0..=4),
        extra in json_value(),
    ) {
        let listed: Vec<Value> = keys.iter().filter(|key| {
            let place = ["rsa", "other", "ec", "ed"].iter().position(|kid| key["kid"] == *kid).unwrap();
            chosen.contains(&place)
        }).cloned().collect();
        let mut decorated: Vec<Value> = listed.iter().rev().cloned().collect();
        for key in &mut decorated {
            key["x-extra"] = extra.clone();
        }
        let text = |keys: &[Value]| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap().to_text();
        prop_assert_eq!(text(&listed), text(&decorated));
        let set = KeySet::parse(text(&listed).as_bytes()).unwrap();
        prop_assert_eq!(set.len(), listed.len());
        prop_assert_eq!(set.to_text(), text(&listed));
    }

    #[test]
    fn kept_claims_round_trip_and_do_not_depend_on_the_order(
        payload in proptest::collection::vec(("[a-c]|groups|tid", json_value()), 0..8),
        names in proptest::collection::btree_set("[a-c]|/[a-c]/a|groups|tid", 0..6),
    ) {
        let payload: Map<String, Value> = payload.into_iter().collect();
        let payload = &payload;
        let wanted: Map<String, Value> = names.iter().map(|name| (name.clone(), json!(true))).collect();
        let kept = KeptClaims::parse(&Value::Object(wanted)).unwrap();
        let found = kept.of(payload).unwrap();
        prop_assert_eq!(&Claims::from_text(&found.to_text()).unwrap(), &found);
        let reversed: Map<String, Value> = payload.iter().rev().map(|(name, value)| {
            let value = value.as_array().map_or(value.clone(), |items| items.iter().rev().cloned().collect());
            (name.clone(), value)
        }).collect();
        prop_assert_eq!(kept.of(&reversed).unwrap().to_text(), found.to_text());
        for (name, claim) in found.iter() {
            let given = name.find(payload).unwrap();
            let is_given = |value: &Value| given == value || given.as_array().is_some_and(|items| items.contains(value));
            prop_assert!(claim.values().all(|value| is_given(&value.to_value())), "nothing is made up");
        }
    }

    #[test]
    fn stored_claims_are_cut_to_what_a_new_login_would_keep(
        payload in proptest::collection::vec(("[a-c]", json_value()), 0..8),
        names in proptest::collection::btree_map("[a-c]", proptest::option::of("email|[a-ehd]\\*"), 0..4),
    ) {
        let payload: Map<String, Value> = payload.into_iter().collect();
        let kept = |of: &dyn Fn(&Option<String>) -> Value| {
            let members: Map<String, Value> = names.iter().map(|(name, text)| (name.clone(), of(text))).collect();
            KeptClaims::parse(&Value::Object(members)).unwrap()
        };
        let before = kept(&|_| json!(true));
        let after = kept(&|text| text.as_ref().map_or(json!(true), |text| json!([text, 7])));
        let stored = before.of(&payload).unwrap();
        prop_assert_eq!(before.cut(&stored), stored.clone());
        prop_assert_eq!(after.cut(&stored), after.of(&payload).unwrap());
        prop_assert_eq!(KeptClaims::default().cut(&stored), Claims::default());
    }

    #[test]
    fn stored_claims_round_trip(claims in claims()) {
        let read = parsed(&claims);
        prop_assert_eq!(&Claims::from_text(&read.to_text()).unwrap(), &read);
        prop_assert_eq!(Claims::from_text(&read.to_text()).unwrap().to_text(), read.to_text());
    }

    #[test]
    fn fewer_claims_never_make_a_member(
        role in role(),
        claims in claims(),
        gone in proptest::collection::vec(any::<Index>(), 1..3),
    ) {
        let role = Membership::parse(&role).unwrap();
        let provider = Key::parse("ci").unwrap();
        let mut fewer = claims.clone();
        for place in gone {
            if fewer.is_empty() {
                break;
            }
            let name = fewer.keys().nth(place.index(fewer.len())).unwrap().clone();
            // A value of a list goes, or the whole claim.
            match fewer.get_mut(&name) {
                Some(Value::Array(items)) if items.len() > 1 => drop(items.pop()),
                _ => drop(fewer.remove(&name)),
            }
        }
        let (more, fewer) = (parsed(&claims), parsed(&fewer));
        prop_assert!(!role.has(&provider, &fewer) || role.has(&provider, &more));
        for member in &role.members {
            prop_assert_eq!(member.matches(&provider, &more), member.explain(&provider, &more).holds);
        }
    }

    #[test]
    fn a_name_of_a_claim_is_read_back(text in "[a/~01]{0,6}") {
        if let Ok(name) = ClaimName::parse(&text) {
            prop_assert_eq!(name.as_str(), text.as_str());
            prop_assert!(!name.outermost().is_empty());
        }
    }
}

#[test]
fn a_person_s_label_is_never_one_of_another_domain() {
    for address in ["a@example.com", "A@EXAMPLE.COM", "a@evil@example.com"] {
        let label = person().claim("email", json!(address)).judge().outcome.unwrap().label.unwrap();
        assert!(label.ends_with("@example.com"), "{label}");
    }
}
