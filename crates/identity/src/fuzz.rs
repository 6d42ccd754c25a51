//! Fuzz targets: tokens, and the documents of providers and roles (`fuzz_targets`).

use std::sync::LazyLock;

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use crate::{
    Claims, Discovery, KeySet, Membership, Provider, Token, TokenSource, change_problems, changes_trust,
    conflicts, judge,
};

/// Public keys of RFC 7517 and RFC 8037.
const KEYS: &str = r#"{"keys":[
{"kty":"EC","crv":"P-256","kid":"ec","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"},
{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
/// When the tokens of the seeds are valid.
const NOW_S: u64 = 1_800_000_000;

static PROVIDER: LazyLock<(Provider, KeySet)> = LazyLock::new(|| {
    let provider = Provider::parse(&provider()).expect("a sample is a provider");
    (provider, KeySet::parse(KEYS.as_bytes()).expect("a sample is a key set"))
});

fn provider() -> Value {
    json!({
        "issuer": "https://login.example.com", "audiences": ["concord"], "algorithms": ["RS256", "ES256", "EdDSA"],
        "require": { "tid": ["9f"] }, "claims": { "groups": ["concord-*"], "/a/b": true },
        "persons": { "label": "email", "domains": ["example.com"] },
    })
}

/// A token, judged by a provider. No input is signed by its keys, so none is accepted.
pub fn token(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(token) = Token::parse(text) else { return false };
    let (provider, keys) = &*PROVIDER;
    let source = if text.len() % 2 == 0 { TokenSource::DeviceCode } else { TokenSource::Code { nonce: "n" } };
    let judgement = judge(&token, provider, keys, NOW_S, source);
    let failed = judgement.checks.iter().find(|check| !check.holds).map(|check| check.reason);
    assert_eq!(judgement.outcome.as_ref().err().copied(), failed, "the first failed check is the reason");
    assert!(failed.is_some() && !judgement.is_signed(), "{text}");
    true
}

/// Valid inputs of [`token`].
pub fn token_seeds() -> Vec<Vec<u8>> {
    let payload = json!({
        "iss": "https://login.example.com", "aud": "concord", "sub": "ann", "iat": NOW_S, "exp": NOW_S + 300,
        "tid": "9f", "email": "ann@example.com", "email_verified": true, "nonce": "n",
        "groups": ["concord-a", "b"], "a": { "b": 7 }, "_claim_names": {},
    });
    let signed = |algorithm: &str, kid: &str, signature_bytes: usize| {
        let header = json!({ "alg": algorithm, "kid": kid, "typ": "JWT" });
        let parts =
            [header.to_string().into_bytes(), payload.to_string().into_bytes(), vec![7; signature_bytes]];
        parts.map(|part| BASE64URL_NOPAD.encode(&part)).join(".").into_bytes()
    };
    vec![signed("ES256", "ec", 64), signed("EdDSA", "ed", 64), signed("RS256", "rsa", 256)]
}

/// A JSON document that is read as each kind of document.
pub fn document(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return false };
    let provider = Provider::parse(&value);
    if let Ok(provider) = &provider {
        assert!(conflicts("a", provider, [("a", provider)]).is_empty());
        assert!(!changes_trust(provider, provider) && change_problems(provider, provider, true).is_empty());
        drop(Discovery::parse(bytes, provider));
    }
    let discovery = Discovery::parse(bytes, &PROVIDER.0);
    let role = Membership::parse(&value);
    let keys = KeySet::parse(bytes);
    if let Ok(keys) = &keys {
        let text = keys.to_text();
        let again = KeySet::parse(text.as_bytes()).expect("its text is read again");
        assert_eq!(again.to_text(), text, "a key set has one text");
    }
    let claims = std::str::from_utf8(bytes).ok().and_then(|text| Claims::from_text(text).ok());
    if let Some(claims) = &claims {
        assert_eq!(
            Claims::from_text(&claims.to_text()).as_ref(),
            Ok(claims),
            "claims are read as they were written"
        );
        assert!(PROVIDER.0.claims.cut(claims).to_text().len() <= bytes.len().max(2));
    }
    provider.is_ok() || discovery.is_ok() || role.is_ok() || keys.is_ok() || claims.is_some()
}

/// Valid inputs of [`document`].
pub fn document_seeds() -> Vec<Vec<u8>> {
    let role = json!({
        "members": [{ "provider": "ci", "match": { "sub": ["repo:acme/shop:*"], "/a/b": [7, true] } }], "session_s": 600,
    });
    let discovery = json!({
        "issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/keys",
        "authorization_endpoint": "https://login.example.com/auth", "token_endpoint": "https://login.example.com/token",
    });
    let claims = json!({ "groups": ["concord-a"], "/a/b": 7, "flag": true });
    [provider(), role, discovery, claims]
        .map(|value| value.to_string().into_bytes())
        .into_iter()
        .chain([KEYS.as_bytes().to_vec()])
        .collect()
}
