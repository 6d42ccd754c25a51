//! Tokens for tests: the keys of a provider, a good token, and how to spoil it.
//!
//! The RSA keys are fixtures, because `ring` makes none. The 1024-bit key has a token that was signed with openssl, because
//! `ring` does not sign with it either.

use std::sync::LazyLock;

use concord_identity::{Judgement, KeySet, Provider, Reason, Token, TokenSource, judge};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
        KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
    },
};
use serde_json::{Map, Value, json};

/// The time of every test.
pub(crate) const NOW_S: u64 = 1_800_000_000;

/// The keys of the provider, and one of somebody else.
pub(crate) struct Keys {
    rsa: RsaKeyPair,
    other: RsaKeyPair,
    ec: Vec<u8>,
    ed: Ed25519KeyPair,
}

pub(crate) static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let random = SystemRandom::new();
    let fixture = include_str!("fixtures/rsa.pem");
    let mut rsa = fixture.split("-----BEGIN PRIVATE KEY-----").skip(1).map(|rest| {
        let text: String = rest.split("-----END").next().unwrap().split_whitespace().collect();
        RsaKeyPair::from_pkcs8(&BASE64.decode(text.as_bytes()).unwrap()).unwrap()
    });
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    Keys {
        rsa: rsa.next().unwrap(),
        other: rsa.next().unwrap(),
        ec: ec.as_ref().to_vec(),
        ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
    }
});

/// Who signs, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Signer {
    Rs256,
    Ps256,
    Es256,
    EdDsa,
    /// RSA, with the key of somebody else.
    Other,
    /// ECDSA as DER.
    Es256Der,
    /// HMAC with the text of the RSA public key as secret.
    Hmac,
    /// These bytes, whatever the message is.
    Bytes(&'static [u8]),
}

fn ec(form: &'static ring::signature::EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    EcdsaKeyPair::from_pkcs8(form, &KEYS.ec, &SystemRandom::new()).unwrap()
}

fn rsa(key: &RsaKeyPair, padding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(padding, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

impl Signer {
    pub(crate) fn sign(self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rs256 => rsa(&KEYS.rsa, &RSA_PKCS1_SHA256, message),
            Self::Ps256 => rsa(&KEYS.rsa, &RSA_PSS_SHA256, message),
            Self::Other => rsa(&KEYS.other, &RSA_PKCS1_SHA256, message),
            Self::Es256 => {
                ec(&ECDSA_P256_SHA256_FIXED_SIGNING).sign(&random, message).unwrap().as_ref().to_vec()
            }
            Self::Es256Der => {
                ec(&ECDSA_P256_SHA256_ASN1_SIGNING).sign(&random, message).unwrap().as_ref().to_vec()
            }
            Self::EdDsa => KEYS.ed.sign(message).as_ref().to_vec(),
            Self::Hmac => {
                let secret = jwk("rsa")["n"].as_str().unwrap().as_bytes().to_vec();
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), message).as_ref().to_vec()
            }
            Self::Bytes(bytes) => bytes.to_vec(),
        }
    }
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// A public key of the provider: `rsa`, `ec`, `ed`; or `other`, that of somebody else.
pub(crate) fn jwk(kid: &str) -> Value {
    let of_rsa = |key: &RsaKeyPair| {
        let public = PublicKeyComponents::<Vec<u8>>::from(key.public());
        json!({ "kid": kid, "kty": "RSA", "use": "sig", "n": encode(&public.n), "e": encode(&public.e) })
    };
    match kid {
        "rsa" => of_rsa(&KEYS.rsa),
        "other" => of_rsa(&KEYS.other),
        "ec" => {
            let pair = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
            let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
            json!({ "kid": kid, "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y) })
        }
        "ed" => {
            json!({ "kid": kid, "kty": "OKP", "crv": "Ed25519", "x": encode(KEYS.ed.public_key().as_ref()) })
        }
        other => panic!("no key `{other}`"),
    }
}

/// A key of the provider with other members.
pub(crate) fn jwk_with(kid: &str, members: Value) -> Value {
    let mut key = jwk(kid);
    for (name, value) in members.as_object().unwrap() {
        if value.is_null() {
            key.as_object_mut().unwrap().remove(name);
        } else {
            key[name] = value.clone();
        }
    }
    key
}

/// Any JSON, with the digits as they are written.
pub(crate) fn raw(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A token, the provider that judges it, and how it is spoilt.
#[derive(Debug, Clone)]
pub(crate) struct Forge {
    header: Map<String, Value>,
    payload: Map<String, Value>,
    header_bytes: Option<Vec<u8>>,
    payload_bytes: Option<Vec<u8>>,
    signer: Signer,
    edit: fn(String) -> String,
    provider: Value,
    keys: Vec<Value>,
    source: TokenSource<'static>,
}

fn members(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// A good token of a machine.
pub(crate) fn good() -> Forge {
    Forge {
        header: members(json!({ "alg": "RS256", "typ": "JWT", "kid": "rsa" })),
        payload: members(json!({
            "iss": "https://login.example.com", "aud": "concord", "sub": "ann", "exp": NOW_S + 300, "iat": NOW_S,
            "tid": "9f", "nested": { "a": [{ "b": 1 }] },
        })),
        header_bytes: None,
        payload_bytes: None,
        signer: Signer::Rs256,
        edit: |text| text,
        provider: json!({
            "issuer": "https://login.example.com", "audiences": ["concord", "concord-2"],
            "algorithms": ["RS256", "PS256", "ES256", "EdDSA"], "require": { "tid": ["9f", "a0"] },
            "claims": { "groups": ["concord-*"], "environment": true },
        }),
        keys: ["rsa", "ec", "ed"].map(jwk).to_vec(),
        source: TokenSource::Client,
    }
}

/// A good token of a person, who logs in on another device.
pub(crate) fn person() -> Forge {
    let persons = json!({ "label": "email", "domains": ["example.com"] });
    good()
        .provider("audiences", json!(["concord"]))
        .provider("persons", persons)
        .claim("email", json!("Ann@Example.com"))
        .claim("email_verified", json!(true))
        .source(TokenSource::DeviceCode)
}

impl Forge {
    /// A header's member; null leaves it out.
    pub(crate) fn header(mut self, name: &str, value: Value) -> Self {
        set(&mut self.header, name, value);
        self
    }

    /// A claim.
    pub(crate) fn claim(mut self, name: &str, value: Value) -> Self {
        self.payload.insert(name.to_owned(), value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.payload.remove(name);
        self
    }

    /// The whole payload.
    pub(crate) fn payload(mut self, payload: Value) -> Self {
        self.payload = members(payload);
        self
    }

    pub(crate) fn header_bytes(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.header_bytes = Some(bytes.as_ref().to_vec());
        self
    }

    pub(crate) fn payload_bytes(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.payload_bytes = Some(bytes.as_ref().to_vec());
        self
    }

    /// What stands before the last brace of the payload, so that a member can be there twice.
    pub(crate) fn payload_end(self, end: &str) -> Self {
        let text = Value::Object(self.payload.clone()).to_string();
        let text = format!("{}{end}}}", text.strip_suffix('}').unwrap());
        self.payload_bytes(text)
    }

    /// Signs as this algorithm with this key.
    pub(crate) fn signed(self, algorithm: &str, kid: &str, signer: Signer) -> Self {
        self.header("alg", json!(algorithm)).header("kid", json!(kid)).signer(signer)
    }

    pub(crate) fn signer(mut self, signer: Signer) -> Self {
        self.signer = signer;
        self
    }

    /// Changes the text of the signed token.
    pub(crate) fn edited(mut self, edit: fn(String) -> String) -> Self {
        self.edit = edit;
        self
    }

    /// A member of the provider; null leaves it out.
    pub(crate) fn provider(mut self, name: &str, value: Value) -> Self {
        set(self.provider.as_object_mut().unwrap(), name, value);
        self
    }

    /// Another provider.
    pub(crate) fn judged_by(mut self, provider: Value) -> Self {
        self.provider = provider;
        self
    }

    /// The keys of the provider.
    pub(crate) fn keys(mut self, keys: &[Value]) -> Self {
        self.keys = keys.to_vec();
        self
    }

    /// How the token comes.
    pub(crate) fn source(mut self, source: TokenSource<'static>) -> Self {
        self.source = source;
        self
    }

    /// By a code, for a login with this nonce.
    pub(crate) fn nonce(self, nonce: &'static str) -> Self {
        self.source(TokenSource::Code { nonce })
    }

    pub(crate) fn text(&self) -> String {
        let part = |bytes: &Option<Vec<u8>>, members: &Map<String, Value>| {
            let text = Value::Object(members.clone()).to_string();
            encode(bytes.as_deref().unwrap_or(text.as_bytes()))
        };
        let header = part(&self.header_bytes, &self.header);
        let message = format!("{header}.{}", part(&self.payload_bytes, &self.payload));
        let signature = encode(&self.signer.sign(message.as_bytes()));
        (self.edit)(format!("{message}.{signature}"))
    }

    pub(crate) fn key_set(&self) -> KeySet {
        KeySet::parse(json!({ "keys": self.keys }).to_string().as_bytes()).unwrap()
    }

    /// What becomes of a text in the place of the token.
    pub(crate) fn judge_text(&self, text: &str) -> Judgement {
        let provider = Provider::parse(&self.provider).unwrap();
        match Token::parse(text) {
            Ok(token) => judge(&token, &provider, &self.key_set(), NOW_S, self.source),
            Err(error) => error.into(),
        }
    }

    pub(crate) fn judge(&self) -> Judgement {
        self.judge_text(&self.text())
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.judge().outcome.err()
    }
}

fn set(members: &mut Map<String, Value>, name: &str, value: Value) {
    if value.is_null() {
        members.remove(name);
    } else {
        members.insert(name.to_owned(), value);
    }
}
