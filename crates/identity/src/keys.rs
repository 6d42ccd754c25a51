//! The public keys of a provider: a JWKS reduced to what can verify a token, and the check of a signature.
//!
//! A provider may send certificates, keys for encryption, and the same keys in another order each time. Only the keys
//! that verify one of the four algorithms are kept, and of each only what identifies it. So the log gets a set only when
//! a key has changed.
//!
//! **Invariants:** a key verifies signatures of its kind only, whatever a token says: an RSA key is never the secret of an
//! HMAC. The same keys have the same text, in whatever order they came. A private or symmetric key is never kept.

use std::{collections::BTreeSet, fmt};

use concord_model::{
    limits::{KEY_SET_BYTES_MAX, KEY_SET_KEYS_MAX, PROVIDER_ANSWER_BYTES_MAX, TOKEN_DEPTH_MAX},
    unseen::is_unseen,
};
use data_encoding::BASE64URL_NOPAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::{Map, Value, json};

use crate::json::{self, JsonError};

/// Bits of the modulus of an RSA key: less is weak, more takes long to verify.
const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 4096;
/// Bytes of a coordinate of P-256, and of a public key of Ed25519.
const COORDINATE_BYTES: usize = 32;
/// The largest `kid`, in bytes.
pub(crate) const KEY_ID_BYTES_MAX: usize = 256;
/// Members of a key that is private or symmetric.
const PRIVATE: [&str; 8] = ["d", "k", "p", "q", "dp", "dq", "qi", "oth"];

/// Whether a JWK has a member of a private or symmetric key.
fn is_private(jwk: &Map<String, Value>) -> bool {
    PRIVATE.iter().any(|name| jwk.contains_key(*name))
}

/// Whether one of the keys of a JWKS is private or symmetric.
pub(crate) fn has_private_key(jwks: &Value) -> bool {
    let keys = jwks.get("keys").and_then(Value::as_array);
    keys.is_some_and(|keys| keys.iter().filter_map(Value::as_object).any(is_private))
}

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// RSA with PKCS #1 padding and SHA-256.
    Rs256,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// ECDSA on P-256 with SHA-256, in the form of two numbers of 32 bytes.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Rs256, Self::Ps256, Self::Es256, Self::EdDsa];

    /// Its name in `alg`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm of this name. RFC 9864 names `EdDSA` by its curve, `Ed25519`. `None` for `none` and the HMACs.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = if name == "Ed25519" { Self::EdDsa.name() } else { name };
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The kind of key that verifies it.
    #[must_use]
    pub fn kind(self) -> KeyKind {
        match self {
            Self::Rs256 | Self::Ps256 => KeyKind::Rsa,
            Self::Es256 => KeyKind::P256,
            Self::EdDsa => KeyKind::Ed25519,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    /// `kty` is `RSA`.
    Rsa,
    /// `kty` is `EC`, `crv` is `P-256`.
    P256,
    /// `kty` is `OKP`, `crv` is `Ed25519`.
    Ed25519,
}

/// As a message names it.
impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa => "RSA",
            Self::P256 => "P-256",
            Self::Ed25519 => "Ed25519",
        })
    }
}

/// The numbers of a public key, big-endian.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Material {
    /// Without zeros at the beginning.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    P256 {
        x: Vec<u8>,
        y: Vec<u8>,
    },
    Ed25519 {
        x: Vec<u8>,
    },
}

/// A public key that verifies tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey {
    id: Option<String>,
    algorithm: Option<Algorithm>,
    material: Material,
}

impl PublicKey {
    /// The key of a JWK. `None` if it can't verify a token here, is not meant to, or is not public.
    fn of(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).map(Value::as_str);
        let is_for_signatures = text("use").is_none_or(|purpose| purpose == Some("sig"));
        let is_verify = |operation: &Value| operation.as_str() == Some("verify");
        let may_verify =
            |operations: &Value| operations.as_array().is_some_and(|all| all.iter().any(is_verify));
        if !is_for_signatures || is_private(jwk) || !jwk.get("key_ops").is_none_or(may_verify) {
            return None;
        }
        let id = match text("kid") {
            None => None,
            Some(id) => Some(id.filter(|id| is_key_id(id))?.to_owned()),
        };
        let algorithm = match text("alg") {
            None => None,
            Some(name) => Some(Algorithm::named(name?)?),
        };
        let material = Material::of(jwk)?;
        let fits = algorithm.is_none_or(|algorithm| algorithm.kind() == material.kind());
        fits.then_some(Self { id, algorithm, material })
    }

    /// Its `kid`.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        self.material.kind()
    }

    /// Whether the signature of a message is by this key. An algorithm of another kind of key is not, nor is another one
    /// than the key names.
    #[must_use]
    pub fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.is_some_and(|own| own != algorithm) {
            return false;
        }
        let is_of = |of: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(of, key).verify(message, signature).is_ok()
        };
        match (&self.material, algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rs256 | Algorithm::Ps256) => {
                let padding = if algorithm == Algorithm::Rs256 {
                    &signature::RSA_PKCS1_2048_8192_SHA256
                } else {
                    &signature::RSA_PSS_2048_8192_SHA256
                };
                RsaPublicKeyComponents { n, e }.verify(padding, message, signature).is_ok()
            }
            (Material::P256 { x, y }, Algorithm::Es256) => {
                is_of(&signature::ECDSA_P256_SHA256_FIXED, &[&[UNCOMPRESSED], &x[..], &y[..]].concat())
            }
            (Material::Ed25519 { x }, Algorithm::EdDsa) => is_of(&signature::ED25519, x),
            (Material::Rsa { .. }, Algorithm::Es256 | Algorithm::EdDsa)
            | (Material::P256 { .. }, Algorithm::Rs256 | Algorithm::Ps256 | Algorithm::EdDsa)
            | (Material::Ed25519 { .. }, Algorithm::Rs256 | Algorithm::Ps256 | Algorithm::Es256) => false,
        }
    }

    /// The JWK that is kept.
    fn to_value(&self) -> Value {
        let encoded = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let mut jwk = match &self.material {
            Material::Rsa { n, e } => json!({ "kty": "RSA", "n": encoded(n), "e": encoded(e) }),
            Material::P256 { x, y } => {
                json!({ "kty": "EC", "crv": "P-256", "x": encoded(x), "y": encoded(y) })
            }
            Material::Ed25519 { x } => json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded(x) }),
        };
        if let Value::Object(members) = &mut jwk {
            members.extend(self.algorithm.map(|algorithm| ("alg".to_owned(), algorithm.name().into())));
            members.extend(self.id.clone().map(|id| ("kid".to_owned(), id.into())));
        }
        jwk
    }
}

/// The first byte of a point with both coordinates (SEC 1).
const UNCOMPRESSED: u8 = 4;

/// Whether a text may be a `kid`.
pub(crate) fn is_key_id(text: &str) -> bool {
    (1..=KEY_ID_BYTES_MAX).contains(&text.len()) && !text.contains(is_unseen)
}

impl Material {
    fn of(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| BASE64URL_NOPAD.decode(text(name)?.as_bytes()).ok();
        let coordinate = |name: &str| bytes(name).filter(|bytes| bytes.len() == COORDINATE_BYTES);
        match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let (n, e) = (without_zeros(bytes("n")?), without_zeros(bytes("e")?));
                (is_modulus(&n) && is_exponent(&e)).then_some(Self::Rsa { n, e })
            }
            ("EC", Some("P-256")) => Some(Self::P256 { x: coordinate("x")?, y: coordinate("y")? }),
            ("OKP", Some("Ed25519")) => Some(Self::Ed25519 { x: coordinate("x")? }),
            _ => None,
        }
    }

    fn kind(&self) -> KeyKind {
        match self {
            Self::Rsa { .. } => KeyKind::Rsa,
            Self::P256 { .. } => KeyKind::P256,
            Self::Ed25519 { .. } => KeyKind::Ed25519,
        }
    }
}

fn without_zeros(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
}

fn is_modulus(n: &[u8]) -> bool {
    let zeros = n.first().map_or(0, |first| first.leading_zeros() as usize);
    let is_odd = n.last().is_some_and(|last| last % 2 == 1);
    is_odd && (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&(n.len() * 8 - zeros))
}

/// Odd, at least 3, and less than 2^33, as `ring` takes it. The first byte is not 0, so the first 8 bytes of a longer one are
/// more than that.
fn is_exponent(e: &[u8]) -> bool {
    let value = e.iter().take(8).fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    value % 2 == 1 && (3..1 << 33).contains(&value)
}

/// Why a text is no key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Not a JSON object, or too long.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It has no list `keys`.
    #[error("expected a JWKS: an object with a list `keys`")]
    NoKeys,
    /// It has more usable keys than are kept.
    #[error("more than {KEY_SET_KEYS_MAX} keys that verify tokens")]
    TooMany,
    /// Its usable keys are too long.
    #[error("keys that verify tokens have more than {KEY_SET_BYTES_MAX} bytes")]
    TooLarge,
    /// Two usable keys of one kind have the same `kid`, and not each an `alg` of its own: a token does not say which of
    /// them signed it.
    #[error("two {kind} keys have the `kid` `{id}`")]
    Ambiguous {
        /// The kind of both.
        kind: KeyKind,
        /// Their `kid`.
        id: String,
    },
}

/// The keys of a provider.
///
/// Providers list a key twice, or list one `kid` for several `alg`. Such a set is accepted, as its tokens are not ambiguous:
/// otherwise the last accepted set would stay until it is too old, and all logins would end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySet {
    /// Sorted.
    keys: Vec<PublicKey>,
}

impl KeySet {
    /// The usable keys of a JWKS, or of a text that [`Self::to_text`] has written. It may have none.
    ///
    /// # Errors
    /// When the text is no JWKS, or has too many usable keys or two that a token can't tell apart.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let document = json::object(text, PROVIDER_ANSWER_BYTES_MAX, TOKEN_DEPTH_MAX)?;
        let listed = document.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoKeys)?;
        let found = listed.iter().filter_map(Value::as_object).filter_map(PublicKey::of);
        let mut keys = BTreeSet::new();
        for key in found {
            keys.insert(key);
            // At once: a longer list takes no more memory.
            if keys.len() > KEY_SET_KEYS_MAX {
                return Err(KeySetError::TooMany);
            }
        }
        let mut named = BTreeSet::new();
        for key in &keys {
            let Some(id) = key.id() else { continue };
            // A key without `alg` clashes with each other key of its `kid`. It comes before them in the order of keys.
            let is_taken =
                named.contains(&(key.kind(), id, None)) || !named.insert((key.kind(), id, key.algorithm));
            if is_taken {
                return Err(KeySetError::Ambiguous { kind: key.kind(), id: json::shown(id) });
            }
        }
        let set = Self { keys: keys.into_iter().collect() };
        if set.to_text().len() > KEY_SET_BYTES_MAX { Err(KeySetError::TooLarge) } else { Ok(set) }
    }

    /// The text with which the set is stored: a JWKS of what is kept. Equal sets have equal texts.
    #[must_use]
    pub fn to_text(&self) -> String {
        let keys: Value = self.keys.iter().map(PublicKey::to_value).collect();
        json!({ "keys": keys }).to_string()
    }

    /// The key that verifies a token: the one with this `kid`; without a `kid`, the only one. Only keys count that are of
    /// the algorithm's kind, and name this algorithm or none.
    #[must_use]
    pub fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Option<&PublicKey> {
        let fits = |key: &&PublicKey| {
            key.kind() == algorithm.kind() && key.algorithm.is_none_or(|own| own == algorithm)
        };
        let mut fitting = self.keys.iter().filter(fits);
        match id {
            Some(_) => fitting.find(|key| key.id() == id),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    /// How many keys it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has none: then it verifies no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
