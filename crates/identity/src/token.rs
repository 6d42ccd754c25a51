//! A token: three parts of base64url, read strictly.
//!
//! The signer of a token and its reader must see the same claims. So there is one text for each token: no padding,
//! no other alphabet, no spare bits, no duplicate members. A header that asks for another way of reading (`crit`, `b64`,
//! `zip`, `enc`) rejects the token. A header's own keys (`jku`, `jwk`, `x5u`, `x5c`) are never looked at: the key comes
//! from the provider's key set.
//!
//! **Invariant:** reading a token says nothing about whether it is valid: only [`judge`](crate::judgement::judge) does.

use std::fmt;

use concord_model::limits::{TOKEN_BYTES_MAX, TOKEN_DEPTH_MAX};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Map, Value};

use crate::{
    claims::ClaimName,
    json::{self, JsonError},
    judgement::Reason,
    keys::{Algorithm, KEY_ID_BYTES_MAX, is_key_id},
};

/// Members of a header that change how a token is read.
const CRITICAL: [&str; 4] = ["crit", "b64", "zip", "enc"];

/// A part of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The first one.
    Header,
    /// The second one.
    Payload,
    /// The third one.
    Signature,
}

/// As a message names it.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "header",
            Self::Payload => "payload",
            Self::Signature => "signature",
        })
    }
}

/// Why a text is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It has more bytes than a token may have.
    #[error("the token is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// It is not three texts with dots between them.
    #[error("expected three parts with dots between them, none of them empty")]
    Parts,
    /// A part is not strict base64url.
    #[error("expected base64url without padding as the {0}")]
    Encoding(Part),
    /// The header or the payload is not the JSON object that it should be.
    #[error("the {0} is invalid: {1}")]
    Json(Part, JsonError),
    /// The header asks for another way of reading.
    #[error("the header has the member `{0}`, which is not supported")]
    Critical(&'static str),
    /// The header says that it is another kind of token: an access token, a logout token.
    #[error("expected `typ` to be absent or `JWT`, not {0}")]
    Type(String),
    /// There is no signature, or it is an HMAC or by an algorithm that is not supported.
    #[error("expected `alg` to be one of RS256, PS256, ES256 or EdDSA, not {0}")]
    Algorithm(String),
    /// The header's `kid` is no text that names a key.
    #[error(
        "expected `kid` to be absent or a string of 1 to {KEY_ID_BYTES_MAX} bytes without unseen characters"
    )]
    KeyId,
}

impl TokenError {
    /// What a client is told.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLong | Self::Parts | Self::Encoding(_) | Self::Json(..) | Self::KeyId => {
                Reason::Malformed
            }
            Self::Critical(_) => Reason::UnsupportedHeader,
            Self::Type(_) => Reason::TokenType,
            Self::Algorithm(_) => Reason::Algorithm,
        }
    }
}

/// A token whose signature nobody has checked.
pub struct Token {
    /// How it says that it is signed.
    pub(crate) algorithm: Algorithm,
    /// Its `kid`.
    pub(crate) key_id: Option<String>,
    pub(crate) payload: Map<String, Value>,
    signed: String,
    pub(crate) signature: Vec<u8>,
}

/// Without claims and signature: what is printed may be logged.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("algorithm", &self.algorithm)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Reads the three parts of a text.
    ///
    /// # Errors
    /// When the text is no token, or one that is read in another way.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong);
        }
        let mut parts = text.split('.');
        let [Some(header), Some(payload), Some(signature), None] = [(); 4].map(|()| parts.next()) else {
            return Err(TokenError::Parts);
        };
        if [header, payload, signature].contains(&"") {
            return Err(TokenError::Parts);
        }
        let header = object(header, Part::Header)?;
        let (algorithm, key_id) = read_header(&header)?;
        let signed = &text[..text.len() - signature.len() - 1];
        Ok(Self {
            algorithm,
            key_id,
            payload: object(payload, Part::Payload)?,
            signed: signed.to_owned(),
            signature: decode(signature, Part::Signature)?,
        })
    }

    /// What is signed: header and payload as they were sent. Its digest identifies a token. The text of the whole token
    /// does not: the holder of a token of ES256 can give it another signature that is valid as well.
    #[must_use]
    pub fn signed(&self) -> &str {
        &self.signed
    }

    /// A claim, which anybody may have written unless the judgement says otherwise.
    #[must_use]
    pub fn claim(&self, name: &ClaimName) -> Option<&Value> {
        name.find(&self.payload)
    }
}

fn decode(part: &str, which: Part) -> Result<Vec<u8>, TokenError> {
    BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| TokenError::Encoding(which))
}

fn object(part: &str, which: Part) -> Result<Map<String, Value>, TokenError> {
    let text = decode(part, which)?;
    json::object(&text, TOKEN_BYTES_MAX, TOKEN_DEPTH_MAX).map_err(|error| TokenError::Json(which, error))
}

fn read_header(header: &Map<String, Value>) -> Result<(Algorithm, Option<String>), TokenError> {
    if let Some(name) = CRITICAL.into_iter().find(|name| header.contains_key(*name)) {
        return Err(TokenError::Critical(name));
    }
    let kind = header.get("typ");
    if !kind.is_none_or(|kind| kind.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("JWT"))) {
        return Err(TokenError::Type(json::shown_value(kind)));
    }
    let algorithm = header.get("alg");
    let Some(algorithm) = algorithm.and_then(Value::as_str).and_then(Algorithm::named) else {
        return Err(TokenError::Algorithm(json::shown_value(algorithm)));
    };
    let key_id = match header.get("kid").map(Value::as_str) {
        None => None,
        Some(id) => Some(id.filter(|id| is_key_id(id)).ok_or(TokenError::KeyId)?.to_owned()),
    };
    Ok((algorithm, key_id))
}
