//! A provider for the tests of the crates above: a key of its own, and tokens that it signs.

use data_encoding::BASE64URL_NOPAD;
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use serde_json::{Value, json};

/// A provider that signs with `EdDSA`.
pub struct TestIssuer {
    kid: String,
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for TestIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestIssuer({})", self.kid)
    }
}

impl TestIssuer {
    /// One with a new key of this `kid`.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    #[must_use]
    pub fn new(kid: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("random bytes");
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("it was made a moment ago");
        Self { kid: kid.to_owned(), pair }
    }

    /// Its key, as a JWKS.
    #[must_use]
    pub fn jwks(&self) -> Value {
        let x = BASE64URL_NOPAD.encode(self.pair.public_key().as_ref());
        json!({ "keys": [{ "kid": self.kid, "kty": "OKP", "crv": "Ed25519", "use": "sig", "x": x }] })
    }

    /// The document of a provider of machines with this issuer, whose keys are in it.
    #[must_use]
    pub fn document(&self, issuer: &str) -> Value {
        json!({
            "issuer": issuer, "audiences": ["concord"], "algorithms": ["EdDSA"], "single_tenant": true,
            "keys": { "jwks": self.jwks() }, "claims": { "environment": true, "repository_id": true },
        })
    }

    /// A token with these claims.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        let encoded = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let header = json!({ "alg": "EdDSA", "typ": "JWT", "kid": self.kid });
        let message = format!("{}.{}", encoded(&header), encoded(claims));
        let signature = self.pair.sign(message.as_bytes());
        format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    /// A good token of a job, issued at this second since 1970.
    #[must_use]
    pub fn token(&self, issuer: &str, subject: &str, environment: &str, now_s: u64) -> String {
        self.sign(&json!({
            "iss": issuer, "aud": "concord", "sub": subject, "iat": now_s, "exp": now_s + 600,
            "environment": environment, "repository_id": "7712",
        }))
    }
}
