//! Forged tokens, each with the reason of its rejection.

use concord_identity::{Reason, Token, TokenSource};
use data_encoding::BASE64URL_NOPAD;
use serde_json::json;

use super::forge::{Forge, NOW_S, Signer, encode, good, jwk, jwk_with, person, raw};

type Case = (&'static str, Reason, Forge);

/// The text with one part replaced.
fn with_part(text: &str, place: usize, change: impl FnOnce(&str) -> String) -> String {
    let mut parts: Vec<String> = text.split('.').map(str::to_owned).collect();
    parts[place] = change(&parts[place]);
    parts.join(".")
}

/// The text with one bit flipped in the bytes of a part.
fn flipped(text: &str, place: usize, byte: usize) -> String {
    with_part(text, place, |part| {
        let mut bytes = BASE64URL_NOPAD.decode(part.as_bytes()).unwrap();
        bytes[byte] ^= 1;
        encode(&bytes)
    })
}

/// The last character with a spare bit set.
fn with_spare_bit(text: &str) -> String {
    let (rest, last) = text.split_at(text.len() - 1);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let place = alphabet.find(last).unwrap();
    format!("{rest}{}", &alphabet[place + 1..place + 2])
}

/// Texts that are no token.
fn texts() -> Vec<Case> {
    use Reason::Malformed;
    let deep = format!(",\"deep\":{}1{}", "[".repeat(9), "]".repeat(9));
    vec![
        ("an empty text", Malformed, good().edited(|_| String::new())),
        ("only dots", Malformed, good().edited(|_| "..".into())),
        ("one part", Malformed, good().edited(|text| text.replace('.', ""))),
        ("two parts", Malformed, good().edited(|text| text.rsplit_once('.').unwrap().0.into())),
        ("an empty signature", Malformed, good().edited(|text| with_part(&text, 2, |_| String::new()))),
        ("an empty header", Malformed, good().edited(|text| with_part(&text, 0, |_| String::new()))),
        ("four parts", Malformed, good().edited(|text| text + ".AAAA")),
        ("a dot at the end", Malformed, good().edited(|text| text + ".")),
        ("a JWE of five parts", Malformed, good().edited(|text| text + ".AAAA.AAAA")),
        ("padding", Malformed, good().edited(|text| text + "==")),
        (
            "padding of the header",
            Malformed,
            good().edited(|text| with_part(&text, 0, |part| format!("{part}="))),
        ),
        ("the standard alphabet", Malformed, good().edited(|text| text.replace('-', "+").replace('_', "/"))),
        ("spare bits", Malformed, good().edited(|text| with_spare_bit(&text))),
        ("a line break at the end", Malformed, good().edited(|text| text + "\n")),
        ("a space before", Malformed, good().edited(|text| format!(" {text}"))),
        (
            "a line break inside",
            Malformed,
            good().edited(|text| with_part(&text, 1, |part| part.replacen('a', "a\n", 1))),
        ),
        ("`Bearer` before", Malformed, good().edited(|text| format!("Bearer {text}"))),
        ("a character that is not ASCII", Malformed, good().edited(|text| text + "é")),
        ("more than 16 KiB", Malformed, good().claim("x", json!("x".repeat(16 << 10)))),
        ("a header that is a list", Malformed, good().header_bytes("[]")),
        ("a header that is no JSON", Malformed, good().header_bytes("alg=RS256")),
        ("a payload that is a string", Malformed, good().payload_bytes("\"sub\"")),
        ("a payload that is null", Malformed, good().payload_bytes("null")),
        ("a payload that is not UTF-8", Malformed, good().payload_bytes(b"{\"sub\":\"\xff\"}")),
        ("a payload after a byte order mark", Malformed, good().payload_bytes("\u{feff}{}")),
        ("two payloads", Malformed, good().payload_bytes("{}{}")),
        (
            "duplicate members of the header",
            Malformed,
            good().header_bytes(r#"{"alg":"none","kid":"rsa","alg":"RS256"}"#),
        ),
        ("duplicate members of the payload", Malformed, good().payload_end(r#","sub":"root""#)),
        ("a duplicate member with an escape", Malformed, good().payload_end(r#","su\u0062":"root""#)),
        ("duplicate members inside", Malformed, good().payload_end(r#","x":{"y":[{"a":1,"a":2}]}"#)),
        ("a payload that is too deep", Malformed, good().payload_end(&deep)),
        ("a header that is too deep", Malformed, good().header("x", raw("[[[[[[[[1]]]]]]]]"))),
        ("a reserved name", Malformed, good().payload_end(r#","x":{"$serde_json::private::Number":"1"}"#)),
        (
            "a reserved name as a time",
            Malformed,
            good().without("exp").payload_end(r#","exp":{"$serde_json::private::Number":"1900000000"}"#),
        ),
        ("a `kid` that is a number", Malformed, good().header("kid", json!(1))),
        ("an empty `kid`", Malformed, good().header("kid", json!(""))),
        ("a `kid` of 257 bytes", Malformed, good().header("kid", json!("x".repeat(257)))),
        ("a `kid` with a control character", Malformed, good().header("kid", json!("rsa\n"))),
    ]
}

/// Headers that ask for something else.
fn headers() -> Vec<Case> {
    use Reason::{Algorithm, TokenType, UnsupportedHeader};
    let algorithm = |name: &str| good().header("alg", json!(name));
    vec![
        ("`none` with a signature", Algorithm, algorithm("none").signer(Signer::Bytes(b"x"))),
        ("`None`", Algorithm, algorithm("None")),
        ("HS256 with the public key as secret", Algorithm, algorithm("HS256").signer(Signer::Hmac)),
        ("RS256 in lower case", Algorithm, algorithm("rs256")),
        ("RS512", Algorithm, algorithm("RS512")),
        ("ES384", Algorithm, algorithm("ES384")),
        ("no algorithm", Algorithm, good().header_bytes(r#"{"kid":"rsa"}"#)),
        ("null as algorithm", Algorithm, good().header_bytes(r#"{"alg":null,"kid":"rsa"}"#)),
        ("a list of algorithms", Algorithm, good().header("alg", json!(["RS256"]))),
        (
            "an algorithm that the provider does not use",
            Algorithm,
            good().provider("algorithms", json!(["ES256", "EdDSA", "PS256"])),
        ),
        (
            "the default is RS256 alone",
            Algorithm,
            good().provider("algorithms", json!(null)).signed("PS256", "rsa", Signer::Ps256),
        ),
        ("`crit`", UnsupportedHeader, good().header("crit", json!(["exp"]))),
        ("an empty `crit`", UnsupportedHeader, good().header("crit", json!([]))),
        ("`crit` that is null", UnsupportedHeader, good().header_bytes(r#"{"alg":"RS256","crit":null}"#)),
        ("`b64`", UnsupportedHeader, good().header("b64", json!(false))),
        ("`b64` with its default", UnsupportedHeader, good().header("b64", json!(true))),
        ("`zip`", UnsupportedHeader, good().header("zip", json!("DEF"))),
        ("`enc`", UnsupportedHeader, good().header("enc", json!("A256GCM"))),
        ("an access token", TokenType, good().header("typ", json!("at+jwt"))),
        ("a logout token", TokenType, good().header("typ", json!("logout+jwt"))),
        ("a type that begins with JWT", TokenType, good().header("typ", json!("JWT+x"))),
        ("a type that is a number", TokenType, good().header("typ", json!(1))),
        ("a type that is null", TokenType, good().header_bytes(r#"{"alg":"RS256","typ":null}"#)),
    ]
}

/// Keys that are not those of the token.
fn keys() -> Vec<Case> {
    use Reason::UnknownKey;
    let with_key = |key| good().keys(&[key]);
    let rsa_with = |members| with_key(jwk_with("rsa", members));
    let without_kid = good().header("kid", json!(null));
    let secret = json!({ "kty": "oct", "kid": "rsa", "k": "AAAA", "alg": "RS256" });
    vec![
        ("another `kid`", UnknownKey, good().header("kid", json!("rsa-2"))),
        ("a `kid` in other case", UnknownKey, good().header("kid", json!("RSA"))),
        ("a `kid` of another kind of key", UnknownKey, good().header("kid", json!("ec"))),
        ("no `kid` and two keys", UnknownKey, without_kid.clone().keys(&["rsa", "other"].map(jwk))),
        ("no `kid` and only keys of other kinds", UnknownKey, without_kid.keys(&["ec", "ed"].map(jwk))),
        ("a `kid`, and a key without", UnknownKey, rsa_with(json!({ "kid": null }))),
        (
            "no `kid`, and two keys for the algorithm",
            UnknownKey,
            good().header("kid", json!(null)).keys(&[
                jwk_with("rsa", json!({ "alg": "RS256" })),
                jwk("other"),
                jwk_with("rsa", json!({ "alg": "PS256" })),
            ]),
        ),
        (
            "a `kid` that is for other algorithms only",
            UnknownKey,
            good().signed("RS256", "rsa", Signer::Rs256).keys(&[jwk_with("rsa", json!({ "alg": "PS256" }))]),
        ),
        ("no keys", UnknownKey, good().keys(&[])),
        ("ES256 with the RSA key", UnknownKey, good().signed("ES256", "rsa", Signer::Rs256)),
        ("RS256 with the key of ES256", UnknownKey, good().signed("RS256", "ec", Signer::Es256)),
        ("EdDSA with the key of ES256", UnknownKey, good().signed("EdDSA", "ec", Signer::Es256)),
        ("a key for another algorithm", UnknownKey, rsa_with(json!({ "alg": "PS256" }))),
        ("a key for an unknown algorithm", UnknownKey, rsa_with(json!({ "alg": "RS512" }))),
        ("a key for encryption", UnknownKey, rsa_with(json!({ "use": "enc" }))),
        ("a key whose use is a list", UnknownKey, rsa_with(json!({ "use": ["sig"] }))),
        ("a key that only signs", UnknownKey, rsa_with(json!({ "key_ops": ["sign"] }))),
        ("a private key", UnknownKey, rsa_with(json!({ "d": "AAAA" }))),
        ("a symmetric key", UnknownKey, with_key(secret).signer(Signer::Hmac)),
        ("an even exponent", UnknownKey, rsa_with(json!({ "e": "AQAC" }))),
        ("the exponent 1", UnknownKey, rsa_with(json!({ "e": "AQ" }))),
        ("an exponent of 34 bits", UnknownKey, rsa_with(json!({ "e": "AgAAAAE" }))),
        ("an even modulus", UnknownKey, rsa_with(json!({ "n": encode(&[0x80; 256]) }))),
        ("a modulus of 2047 bits", UnknownKey, rsa_with(json!({ "n": encode(&[0x7f; 256]) }))),
        (
            "a modulus of 4097 bits",
            UnknownKey,
            rsa_with(json!({ "n": encode(&[&[1][..], &[0xff; 512]].concat()) })),
        ),
        (
            "a modulus with padding",
            UnknownKey,
            rsa_with(json!({ "n": format!("{}=", jwk("rsa")["n"].as_str().unwrap()) })),
        ),
    ]
}

/// Signatures that are not those of the key.
fn signatures() -> Vec<Case> {
    use Reason::Signature;
    let es256 = good().signed("ES256", "ec", Signer::Es256);
    let ed = good().signed("EdDSA", "ed", Signer::EdDsa);
    let truncated = |text: String| {
        with_part(&text, 2, |part| {
            let bytes = BASE64URL_NOPAD.decode(part.as_bytes()).unwrap();
            encode(&bytes[..bytes.len() - 1])
        })
    };
    vec![
        ("a signature of somebody else", Signature, good().signer(Signer::Other)),
        ("one's own key in the header", Signature, good().header("jwk", jwk("other")).signer(Signer::Other)),
        (
            "the address of one's own key",
            Signature,
            good().header("jku", json!("https://evil.example/jwks")).signer(Signer::Other),
        ),
        ("an HMAC that is called RS256", Signature, good().signer(Signer::Hmac)),
        ("PSS that is called RS256", Signature, good().signer(Signer::Ps256)),
        ("PKCS #1 that is called PS256", Signature, good().signed("PS256", "rsa", Signer::Rs256)),
        ("ES256 as DER", Signature, good().signed("ES256", "ec", Signer::Es256Der)),
        ("ES256 of zeros", Signature, es256.clone().signer(Signer::Bytes(&[0; 64]))),
        ("EdDSA of zeros", Signature, ed.clone().signer(Signer::Bytes(&[0; 64]))),
        ("RS256 of zeros", Signature, good().signer(Signer::Bytes(&[0; 256]))),
        ("EdDSA by the key of ES256", Signature, ed.clone().signer(Signer::Es256)),
        ("RS256, truncated", Signature, good().edited(truncated)),
        ("ES256, truncated", Signature, es256.clone().edited(truncated)),
        ("EdDSA, truncated", Signature, ed.clone().edited(truncated)),
        ("RS256, longer", Signature, good().edited(|text| with_part(&text, 2, |part| format!("AAAA{part}")))),
        (
            "one bit of the header",
            Signature,
            good().header("x", json!(2)).edited(|text| flipped(&text, 0, 43)),
        ),
        ("one bit of the payload", Signature, good().edited(|text| flipped(&text, 1, 59))),
        ("the first bit of the signature", Signature, good().edited(|text| flipped(&text, 2, 0))),
        ("the last bit of the signature", Signature, good().edited(|text| flipped(&text, 2, 255))),
        ("one bit of ES256", Signature, es256.edited(|text| flipped(&text, 2, 40))),
        ("one bit of EdDSA", Signature, ed.edited(|text| flipped(&text, 2, 40))),
    ]
}

/// Tokens of somebody else, for somebody else, or of nobody.
fn parties() -> Vec<Case> {
    use Reason::{Audience, AuthorizedParty, Issuer, Subject};
    let issuer = |value| good().claim("iss", value);
    let audience = |value| good().claim("aud", value);
    let subject = |value| good().claim("sub", value);
    let many: Vec<String> = (0..32).map(|n| format!("a{n}")).chain(["concord".into()]).collect();
    vec![
        ("an issuer with a slash more", Issuer, issuer(json!("https://login.example.com/"))),
        ("an issuer in other case", Issuer, issuer(json!("https://Login.example.com"))),
        ("an issuer with its port", Issuer, issuer(json!("https://login.example.com:443"))),
        ("another issuer", Issuer, issuer(json!("https://evil.example"))),
        ("a list of issuers", Issuer, issuer(json!(["https://login.example.com"]))),
        ("null as issuer", Issuer, issuer(json!(null))),
        ("a number as issuer", Issuer, issuer(json!(1))),
        ("no issuer", Issuer, good().without("iss")),
        ("another audience", Audience, audience(json!("other"))),
        ("an audience in other case", Audience, audience(json!("Concord"))),
        ("the beginning of an audience", Audience, audience(json!("concor"))),
        ("two audiences in a text", Audience, audience(json!("concord other"))),
        ("no audience", Audience, good().without("aud")),
        ("an empty list of audiences", Audience, audience(json!([]))),
        ("an object as audience", Audience, audience(json!({ "concord": "concord" }))),
        (
            "a number among the audiences",
            Audience,
            audience(json!(["concord", 1])).claim("azp", json!("concord")),
        ),
        ("a list in the list of audiences", Audience, audience(json!([["concord"]]))),
        ("33 audiences", Audience, audience(json!(many)).claim("azp", json!("concord"))),
        ("several audiences and no party", AuthorizedParty, audience(json!(["concord", "other"]))),
        (
            "several audiences and another party",
            AuthorizedParty,
            audience(json!(["concord", "other"])).claim("azp", json!("other")),
        ),
        (
            "several audiences and a list of parties",
            AuthorizedParty,
            audience(json!(["concord", "other"])).claim("azp", json!(["concord"])),
        ),
        (
            "several audiences, and a party that is not the required one",
            AuthorizedParty,
            audience(json!(["concord", "account"])).claim("azp", json!("ci")),
        ),
        (
            "a person with several audiences, of another client that is required",
            AuthorizedParty,
            person()
                .provider("require", json!({ "tid": ["9f"], "azp": ["ci"] }))
                .claim("aud", json!(["concord", "account"]))
                .claim("azp", json!("ci")),
        ),
        ("a person of another client", AuthorizedParty, person().claim("azp", json!("other"))),
        ("a person of no client", AuthorizedParty, person().claim("azp", json!(null))),
        ("an empty subject", Subject, subject(json!(""))),
        ("a number as subject", Subject, subject(json!(1))),
        ("a list of subjects", Subject, subject(json!(["ann"]))),
        ("a subject with a control character", Subject, subject(json!("ann\n"))),
        ("a subject with an unseen character", Subject, subject(json!("ann\u{202e}"))),
        ("a subject of 1,025 bytes", Subject, subject(json!("x".repeat(1025)))),
        ("a person's subject of 256 bytes", Subject, person().claim("sub", json!("x".repeat(256)))),
        ("no subject", Subject, good().without("sub")),
    ]
}

/// Times that are over, not yet there, or none.
fn times() -> Vec<Case> {
    use Reason::{Expired, IssuedInTheFuture, Malformed, NotYetValid, TooOld};
    let time = |name, value| good().claim(name, value);
    vec![
        ("`exp` is now", Expired, time("exp", json!(NOW_S))),
        ("`exp` is past", Expired, time("exp", json!(NOW_S - 1))),
        ("`exp` is 0", Expired, time("exp", json!(0))),
        ("`exp` is a string", Malformed, time("exp", json!((NOW_S + 300).to_string()))),
        ("`exp` is a float", Malformed, time("exp", raw("1800000300.5"))),
        ("`exp` is a whole float", Malformed, time("exp", raw("1800000300.0"))),
        ("`exp` has an exponent", Malformed, time("exp", raw("1e10"))),
        ("`exp` has an exponent of zero", Malformed, time("exp", raw("1800000300E0"))),
        ("`exp` is negative", Malformed, time("exp", json!(-1))),
        ("`exp` is minus zero", Malformed, time("exp", raw("-0"))),
        ("`exp` is after the year 9999", Malformed, time("exp", raw("253402300800"))),
        ("`exp` has a hundred digits", Malformed, time("exp", raw(&"9".repeat(100)))),
        ("`exp` is null", Malformed, time("exp", json!(null))),
        ("`exp` is true", Malformed, time("exp", json!(true))),
        ("`exp` is a list", Malformed, time("exp", json!([NOW_S + 300]))),
        ("no `exp`", Malformed, good().without("exp")),
        ("`iat` is 61 seconds ahead", IssuedInTheFuture, time("iat", json!(NOW_S + 61))),
        ("`iat` is a string", Malformed, time("iat", json!(NOW_S.to_string()))),
        ("`iat` has an exponent", Malformed, time("iat", raw("18e8"))),
        ("no `iat`", Malformed, good().without("iat")),
        ("`iat` is an hour and a second ago", TooOld, time("iat", json!(NOW_S - 3601))),
        ("`iat` is 0", TooOld, time("iat", json!(0))),
        (
            "`iat` is older than the provider allows",
            TooOld,
            time("iat", json!(NOW_S - 61)).provider("max_token_age_s", json!(60)),
        ),
        ("`nbf` is 61 seconds ahead", NotYetValid, time("nbf", json!(NOW_S + 61))),
        ("`nbf` is a string", Malformed, time("nbf", json!("0"))),
        ("`nbf` is null", Malformed, time("nbf", json!(null))),
    ]
}

/// Claims that are not those which the provider or the login asks for.
fn claims() -> Vec<Case> {
    use Reason::{ClaimsTooLarge, CodeRequired, GroupsMissing, Nonce, Requirement};
    let nested = json!({ "/kubernetes.io/namespace": ["prod"] });
    let kubernetes = good().provider("require", nested);
    let large: Vec<String> = (0..100).map(|n| format!("concord-{n:060}")).collect();
    vec![
        ("no required claim", Requirement, good().without("tid")),
        ("another value of a required claim", Requirement, good().claim("tid", json!("9f0"))),
        ("a required claim that is a list", Requirement, good().claim("tid", json!(["9f"]))),
        ("a required claim that is null", Requirement, good().claim("tid", json!(null))),
        (
            "a number for a required string",
            Requirement,
            good().provider("require", json!({ "n": ["7"] })).claim("n", json!(7)),
        ),
        (
            "a string for a required number",
            Requirement,
            good().provider("require", json!({ "n": [7] })).claim("n", json!("7")),
        ),
        (
            "minus zero for a required zero",
            Requirement,
            good().provider("require", json!({ "n": [0] })).claim("n", raw("-0")),
        ),
        (
            "an exponent for a required integer",
            Requirement,
            good().provider("require", json!({ "n": [7] })).claim("n", raw("7e0")),
        ),
        (
            "a float for a required integer",
            Requirement,
            good().provider("require", json!({ "n": [7] })).claim("n", raw("7.0")),
        ),
        (
            "one of two required claims",
            Requirement,
            good().provider("require", json!({ "tid": ["9f"], "n": ["7"] })),
        ),
        ("no claim at a pointer", Requirement, kubernetes.clone()),
        (
            "a name that is a pointer's text",
            Requirement,
            kubernetes.clone().claim("/kubernetes.io/namespace", json!("prod")),
        ),
        (
            "a pointer through a list",
            Requirement,
            good().provider("require", json!({ "/a/0": ["x"] })).claim("a", json!(["x"])),
        ),
        (
            "several audiences, and another party than the required one",
            Requirement,
            good()
                .provider("require", json!({ "tid": ["9f"], "azp": ["ci"] }))
                .claim("aud", json!(["concord", "account"]))
                .claim("azp", json!("somebody-else")),
        ),
        ("a bare token of a person", CodeRequired, person().source(TokenSource::Client)),
        (
            "a bare token of a person, with a nonce",
            CodeRequired,
            person().claim("nonce", json!("n-1")).source(TokenSource::Client),
        ),
        ("an empty nonce", Nonce, person().nonce("").claim("nonce", json!(""))),
        ("a person's token of another login", Nonce, person().nonce("n-1").claim("nonce", json!("n-2"))),
        ("another nonce", Nonce, good().nonce("n-1").claim("nonce", json!("n-2"))),
        ("no nonce", Nonce, good().nonce("n-1")),
        ("a number as nonce", Nonce, good().nonce("1").claim("nonce", json!(1))),
        ("a nonce that begins so", Nonce, good().nonce("n-1").claim("nonce", json!("n-12"))),
        ("groups are elsewhere", GroupsMissing, good().claim("_claim_names", json!({ "groups": "src1" }))),
        ("claims are somewhere", GroupsMissing, good().claim("_claim_names", json!("groups"))),
        ("there are groups", GroupsMissing, good().claim("hasgroups", json!(true))),
        ("more groups than are kept", ClaimsTooLarge, good().claim("groups", json!(large))),
    ]
}

/// Persons without a label.
fn labels() -> Vec<Case> {
    use Reason::{Domain, EmailNotVerified, LabelInvalid};
    let email = |value| person().claim("email", value);
    let verified = |value| person().claim("email_verified", value);
    let upn = |value: &str| {
        person()
            .provider("persons", json!({ "label": "upn", "domains": ["example.com"] }))
            .claim("upn", json!(value))
    };
    let tenant = |value| {
        let persons = json!({ "label": "email", "domains": ["example.com"], "verified_by": "tenant" });
        person().provider("persons", persons).claim("xms_edov", value)
    };
    let without_domains =
        |text: &str| person().provider("persons", json!({ "label": "name" })).claim("name", json!(text));
    vec![
        ("an address of a guest's tenant", EmailNotVerified, tenant(json!(null)).without("xms_edov")),
        ("an address that Entra has not verified", EmailNotVerified, tenant(json!(false))),
        ("an address that Entra has verified with 0", EmailNotVerified, tenant(json!("0"))),
        ("an address that Entra has verified with 2", EmailNotVerified, tenant(json!(2))),
        (
            "an address of a guest who has a claim of Google",
            EmailNotVerified,
            tenant(json!(false)).claim("hd", json!("example.com")),
        ),
        ("an address as a name, without domains", Domain, without_domains("ceo@example.com")),
        ("a name that ends with `@`, without domains", Domain, without_domains("ceo@")),
        ("a name that begins with `@`, without domains", LabelInvalid, without_domains("@example.com")),
        ("an address that is not verified", EmailNotVerified, verified(json!(false))),
        ("verified as a string", EmailNotVerified, verified(json!("true"))),
        ("verified as a number", EmailNotVerified, verified(json!(1))),
        ("nothing says that it is verified", EmailNotVerified, person().without("email_verified")),
        ("another domain", Domain, email(json!("ann@evil.example"))),
        ("a subdomain", Domain, email(json!("ann@mail.example.com"))),
        ("a domain that ends so", Domain, email(json!("ann@evilexample.com"))),
        ("a domain before another one", Domain, email(json!("ann@example.com@evil.example"))),
        ("a domain with a dot more", Domain, email(json!("ann@example.com."))),
        ("another claim, of another domain", Domain, upn("ann@evil.example")),
        ("another claim, without a domain", LabelInvalid, upn("ann")),
        ("no domain", LabelInvalid, email(json!("ann"))),
        ("only a domain", LabelInvalid, email(json!("@example.com"))),
        ("no address", LabelInvalid, person().without("email")),
        ("a list of addresses", LabelInvalid, email(json!(["ann@example.com"]))),
        ("an address that is not ASCII", LabelInvalid, email(json!("änn@example.com"))),
        ("an address with a line break", LabelInvalid, email(json!("ann\n@example.com"))),
        ("a space after the address", LabelInvalid, email(json!("ann@example.com "))),
        ("an address of 129 bytes", LabelInvalid, email(json!(format!("{}@example.com", "x".repeat(117))))),
    ]
}

fn all() -> Vec<Case> {
    [texts(), headers(), keys(), signatures(), parties(), times(), claims(), labels()].concat()
}

#[test]
fn each_forged_token_is_rejected_for_its_reason() {
    let all = all();
    for (name, wanted, forge) in &all {
        assert_eq!(forge.reason(), Some(*wanted), "{name}: {:#?}", forge.judge().checks);
    }
    assert!(all.len() >= 60, "{} forged tokens", all.len());
}

#[test]
fn every_reason_has_a_forged_token_and_a_text_of_its_own() {
    let all = all();
    let mut texts = Vec::new();
    for reason in Reason::ALL {
        assert!(all.iter().any(|(_, wanted, _)| *wanted == reason), "{reason:?}");
        texts.push(reason.text());
    }
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), Reason::ALL.len());
    let is_text = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    assert!(texts.into_iter().all(is_text));
}

#[test]
fn the_reason_is_that_of_the_first_check_that_fails_and_the_checks_show_no_signature() {
    for (name, _, forge) in all() {
        let text = forge.text();
        let judgement = forge.judge_text(&text);
        let failed = judgement.checks.iter().find(|check| !check.holds);
        assert_eq!(failed.map(|check| check.reason), judgement.outcome.as_ref().err().copied(), "{name}");
        let signature = text.rsplit('.').next().unwrap_or_default();
        for check in &judgement.checks {
            let shown = format!("{} {} {}", check.name, check.wanted, check.seen);
            assert!(signature.len() < 8 || !shown.contains(signature), "{name}: {shown}");
            assert!(shown.len() < 700 && !shown.contains('\n'), "{name}: {shown}");
        }
    }
}

#[test]
fn a_key_of_1024_bits_verifies_nothing() {
    let keys: serde_json::Value = raw(include_str!("fixtures/small.jwks.json"));
    let forge = good().keys(keys["keys"].as_array().unwrap());
    let judgement = forge.judge_text(include_str!("fixtures/small.jwt"));
    assert_eq!(judgement.outcome, Err(Reason::UnknownKey));
    let others = judgement.checks.iter().filter(|check| !["kid", "signature"].contains(&check.name.as_str()));
    assert!(others.into_iter().all(|check| check.holds), "{:#?}", judgement.checks);
}

#[test]
fn newer_keys_are_fetched_only_for_a_token_of_this_provider() {
    let unknown = good().header("kid", json!("new"));
    assert!(unknown.judge().needs_newer_keys());
    assert!(!good().judge().needs_newer_keys());
    assert!(!good().signer(Signer::Other).judge().needs_newer_keys());
    assert!(!unknown.clone().claim("iss", json!("https://evil.example")).judge().needs_newer_keys());
    assert!(!unknown.clone().claim("aud", json!("other")).judge().needs_newer_keys());
    assert!(!unknown.clone().provider("algorithms", json!(["ES256"])).judge().needs_newer_keys());
    assert!(good().claim("exp", json!(0)).judge().is_signed() && !unknown.judge().is_signed());
}

#[test]
fn a_printed_token_shows_neither_claims_nor_signature() {
    let token = Token::parse(&good().text()).unwrap();
    assert_eq!(format!("{token:?}"), r#"Token { algorithm: Rs256, key_id: Some("rsa"), .. }"#);
    assert_eq!(token.signed(), good().text().rsplit_once('.').unwrap().0);
}
