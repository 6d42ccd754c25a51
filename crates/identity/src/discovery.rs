//! The document in which a provider names its endpoints (`OpenID` Connect Discovery 1.0).
//!
//! A node calls these URLs, and a browser opens one of them, so a hostile document must not lead elsewhere: each is `https`
//! on the issuer's host, or on a host that the provider's document names.
//!
//! For machines, only the key set is of interest: CI systems and Kubernetes name no other endpoint. Of an endpoint that a
//! login can do without, an unusable URL counts as absent: a logout on another host stops no login.
//!
//! **Invariant:** no URL of a [`Discovery`] is on a host that the provider's document does not name.

use concord_model::limits::{PROVIDER_ANSWER_BYTES_MAX, TOKEN_DEPTH_MAX};
use serde_json::{Map, Value};

use crate::{
    json::{self, JsonError},
    provider::Provider,
    url::{HttpsUrl, UrlError},
};

/// The port of an endpoint, if it is not that of the issuer.
const HTTPS_PORT: u16 = 443;

/// The endpoints of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Where its keys are.
    pub jwks_uri: String,
    /// Where persons log in; none of a provider of machines.
    pub login: Option<LoginEndpoints>,
}

/// The endpoints of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginEndpoints {
    /// What a browser opens to log in.
    pub authorization: String,
    /// Where a node redeems a code.
    pub token: String,
    /// Where a login on another device begins.
    pub device_authorization: Option<String>,
    /// What a browser opens to log out.
    pub end_session: Option<String>,
}

/// Why a text is not the discovery document of a provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Not a JSON object, or too long.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is the document of another issuer.
    #[error("the document is of another issuer: {0}")]
    Issuer(String),
    /// It lacks an endpoint.
    #[error("the document has no `{0}`")]
    Missing(&'static str),
    /// An endpoint is not a string, or not a URL that may be used.
    #[error("`{name}` of the document: {error}")]
    Url {
        /// The endpoint's member.
        name: &'static str,
        /// What is wrong with it.
        error: UrlError,
    },
    /// An endpoint is on a host that the provider's document does not name.
    #[error(
        "`{name}` of the document is on the host `{host}`: add it to `hosts` if it is one of the provider's"
    )]
    Host {
        /// The endpoint's member.
        name: &'static str,
        /// The host's name.
        host: String,
    },
    /// An endpoint has another port than 443 and that of the issuer.
    #[error("`{name}` of the document has the port {port}; expected 443 or that of the issuer")]
    Port {
        /// The endpoint's member.
        name: &'static str,
        /// Its port.
        port: u16,
    },
}

impl Discovery {
    /// Reads the document that a provider has answered.
    ///
    /// # Errors
    /// When the text is no JSON object, is of another issuer, lacks an endpoint, or has one that must not be used.
    pub fn parse(text: &[u8], provider: &Provider) -> Result<Self, DiscoveryError> {
        let document = json::object(text, PROVIDER_ANSWER_BYTES_MAX, TOKEN_DEPTH_MAX)?;
        let issuer = document.get("issuer");
        if issuer.and_then(Value::as_str) != Some(provider.issuer.as_str()) {
            return Err(DiscoveryError::Issuer(json::shown_value(issuer)));
        }
        let endpoints = Endpoints { document: &document, provider };
        let jwks_uri = endpoints.required("jwks_uri")?;
        if provider.persons.is_none() {
            return Ok(Self { jwks_uri, login: None });
        }
        let login = LoginEndpoints {
            authorization: endpoints.required("authorization_endpoint")?,
            token: endpoints.required("token_endpoint")?,
            device_authorization: endpoints.optional("device_authorization_endpoint"),
            end_session: endpoints.optional("end_session_endpoint"),
        };
        Ok(Self { jwks_uri, login: Some(login) })
    }
}

struct Endpoints<'a> {
    document: &'a Map<String, Value>,
    provider: &'a Provider,
}

impl Endpoints<'_> {
    fn required(&self, name: &'static str) -> Result<String, DiscoveryError> {
        // Some providers write null for an endpoint that they don't have.
        let value = self.document.get(name).filter(|value| !value.is_null());
        self.usable(name, value.ok_or(DiscoveryError::Missing(name))?)
    }

    /// The URL of an endpoint that a login can do without. Whether it is absent or unusable makes no difference.
    fn optional(&self, name: &'static str) -> Option<String> {
        self.required(name).ok()
    }

    fn usable(&self, name: &'static str, value: &Value) -> Result<String, DiscoveryError> {
        let text = value.as_str().unwrap_or_default();
        let wrong = |error| DiscoveryError::Url { name, error };
        let url = HttpsUrl::parse(text).map_err(wrong)?;
        let issuer = HttpsUrl::parse(&self.provider.issuer).map_err(wrong)?;
        if url.host != issuer.host && !self.provider.hosts.contains(&url.host) {
            return Err(DiscoveryError::Host { name, host: url.host });
        }
        if url.port != HTTPS_PORT && url.port != issuer.port {
            return Err(DiscoveryError::Port { name, port: url.port });
        }
        Ok(text.to_owned())
    }
}
