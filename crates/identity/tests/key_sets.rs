//! Which keys of a JWKS are kept, and in which text.

use concord_identity::{
    Algorithm, KeySet,
    keys::{KeyKind, KeySetError},
};
use serde_json::{Value, json};

use super::forge::{encode, jwk, jwk_with};

fn parse(keys: &[Value]) -> Result<KeySet, KeySetError> {
    KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
}

#[test]
fn of_a_key_only_what_identifies_it_is_kept() {
    let set =
        parse(&[jwk_with("ed", json!({ "x5c": ["AAAA"], "use": "sig", "alg": "EdDSA", "exp": 1 }))]).unwrap();
    let wanted = format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":{},"alg":"EdDSA","kid":"ed"}}]}}"#,
        jwk("ed")["x"]
    );
    assert_eq!(set.to_text(), wanted);
}

#[test]
fn the_same_keys_have_the_same_text() {
    let keys = ["rsa", "other", "ec", "ed"].map(jwk);
    let mut reversed = keys.to_vec();
    reversed.reverse();
    let set = parse(&keys).unwrap();
    assert_eq!(set.to_text(), parse(&reversed).unwrap().to_text());
    assert_eq!(KeySet::parse(set.to_text().as_bytes()), Ok(set.clone()));
    let zeros = [&[0, 0][..], &[1, 0, 1]].concat();
    assert_eq!(parse(&[jwk_with("rsa", json!({ "e": encode(&zeros) }))]), parse(&[jwk("rsa")]));
    assert_ne!(set.to_text(), parse(&keys[1..]).unwrap().to_text());
}

#[test]
fn keys_that_verify_nothing_here_are_skipped() {
    for members in [
        json!({ "kty": "oct", "k": "AAAA" }),
        json!({ "kty": "rsa" }),
        json!({ "kty": null }),
        json!({ "n": null }),
        json!({ "n": 1 }),
        json!({ "n": "" }),
        json!({ "e": "" }),
        json!({ "e": "AAAAAAAAAAAB" }),
        json!({ "d": "AAAA" }),
        json!({ "p": "AAAA" }),
        json!({ "kid": 1 }),
        json!({ "kid": "" }),
        json!({ "alg": "ES256" }),
        json!({ "alg": ["RS256"] }),
        json!({ "key_ops": "verify" }),
        json!({ "key_ops": [] }),
    ] {
        let set = parse(&[jwk_with("rsa", members.clone())]).unwrap();
        assert!(set.is_empty(), "{members}");
    }
    for (kid, members) in [
        ("ec", json!({ "crv": "P-384" })),
        ("ec", json!({ "crv": null })),
        ("ec", json!({ "x": encode(&[1; 31]) })),
        ("ec", json!({ "y": encode(&[1; 33]) })),
        ("ec", json!({ "y": null })),
        ("ed", json!({ "crv": "X25519" })),
        ("ed", json!({ "crv": "Ed448" })),
        ("ed", json!({ "x": encode(&[1; 57]) })),
    ] {
        assert!(parse(&[jwk_with(kid, members.clone())]).unwrap().is_empty(), "{members}");
    }
    let odd = [json!(null), json!([]), json!("key"), json!({}), jwk("rsa")];
    assert_eq!(parse(&odd), parse(&[jwk("rsa")]));
}

#[test]
fn a_key_is_found_by_its_id_or_alone() {
    let set = parse(&[jwk("rsa"), jwk("other"), jwk_with("ec", json!({ "kid": "rsa" })), jwk("ed")]).unwrap();
    let found = |algorithm, id| set.find(algorithm, id).map(|key| (key.kind(), key.id().unwrap().to_owned()));
    assert_eq!(found(Algorithm::Rs256, Some("rsa")), Some((KeyKind::Rsa, "rsa".into())));
    assert_eq!(found(Algorithm::Es256, Some("rsa")), Some((KeyKind::P256, "rsa".into())));
    assert_eq!(found(Algorithm::EdDsa, Some("rsa")), None);
    assert_eq!(found(Algorithm::Rs256, None), None);
    assert_eq!(found(Algorithm::EdDsa, None), Some((KeyKind::Ed25519, "ed".into())));
    // One `kid` may have a key for each algorithm.
    let of_each = [
        jwk_with("rsa", json!({ "alg": "PS256" })),
        jwk_with("other", json!({ "alg": "RS256", "kid": "rsa" })),
    ];
    let of_each = parse(&of_each).unwrap();
    for algorithm in [Algorithm::Ps256, Algorithm::Rs256] {
        let by_id = of_each.find(algorithm, Some("rsa"));
        assert!(by_id.is_some() && by_id == of_each.find(algorithm, None), "{algorithm}");
    }
    assert_ne!(of_each.find(Algorithm::Ps256, None), of_each.find(Algorithm::Rs256, None));
    let of_pss = parse(&[jwk_with("rsa", json!({ "alg": "PS256" }))]).unwrap();
    assert!(of_pss.find(Algorithm::Ps256, None).is_some() && of_pss.find(Algorithm::Rs256, None).is_none());
    let without_id = parse(&[jwk_with("rsa", json!({ "kid": null }))]).unwrap();
    assert!(without_id.find(Algorithm::Rs256, None).is_some());
    assert!(without_id.find(Algorithm::Rs256, Some("rsa")).is_none());
}

#[test]
fn a_set_that_is_too_large_or_ambiguous_is_rejected() {
    let ed = |count: usize| -> Vec<Value> {
        (0..count).map(|n| jwk_with("ed", json!({ "kid": format!("k{n}") }))).collect()
    };
    assert_eq!(parse(&ed(32)).unwrap().len(), 32);
    assert_eq!(parse(&ed(33)), Err(KeySetError::TooMany));
    assert_eq!(parse(&[ed(32), ed(32)].concat()), parse(&ed(32)), "copies don't count");
    let unusable: Vec<Value> = ed(500)
        .into_iter()
        .map(|mut key| {
            key["use"] = json!("enc");
            key
        })
        .collect();
    assert!(parse(&unusable).unwrap().is_empty());
    let rsa = |n: u8| jwk_with("rsa", json!({ "kid": n.to_string(), "n": encode(&[0x81 | n << 1; 512]) }));
    assert!(parse(&(0..20).map(rsa).collect::<Vec<_>>()).is_ok());
    assert_eq!(parse(&(0..25).map(rsa).collect::<Vec<_>>()), Err(KeySetError::TooLarge));
    let twice = [jwk("rsa"), jwk_with("other", json!({ "kid": "rsa" }))];
    let ambiguous = Err(KeySetError::Ambiguous { kind: KeyKind::Rsa, id: "rsa".into() });
    assert_eq!(parse(&twice), ambiguous);
    for (one, other) in
        [(json!("PS256"), json!("PS256")), (json!(null), json!("RS256")), (json!("RS256"), json!(null))]
    {
        let keys = [
            jwk_with("rsa", json!({ "alg": one })),
            jwk_with("other", json!({ "alg": other, "kid": "rsa" })),
            jwk("ec"),
        ];
        assert_eq!(parse(&keys), ambiguous, "{one} {other}");
    }
    let large = format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(256 << 10));
    for text in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[],"keys":[]}"#, &large] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text:.40}");
    }
}
