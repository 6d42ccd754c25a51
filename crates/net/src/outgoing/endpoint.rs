//! The URLs that outgoing calls may have.
//!
//! A discovery document names further endpoints. Its author must not choose where a node connects to:
//! each endpoint is on the host of the issuer, or on a host that the provider's document names.
//!
//! **Invariant:** the host of an [`Endpoint`] is a DNS name. Neither the resolver nor the C library takes it for an address.

use std::{collections::BTreeSet, fmt};

use concord_model::{host::dns_name, limits::PROVIDER_URL_BYTES_MAX};
use http::{
    Uri,
    uri::{PathAndQuery, Scheme},
};
use rustls::pki_types::ServerName;

/// The port of HTTPS.
const HTTPS_PORT: u16 = 443;

/// Why a URL is rejected. The text does not contain the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It has more than [`PROVIDER_URL_BYTES_MAX`] bytes.
    #[error("the URL is too long, expected at most {PROVIDER_URL_BYTES_MAX} bytes")]
    TooLong,
    /// It can't be parsed, or it contains characters that parsers treat differently.
    #[error("the URL is malformed, expected `https://<host>/<path>` in ASCII without a fragment")]
    Malformed,
    /// Its scheme is not `https`.
    #[error("the scheme of the URL is not `https`")]
    NotHttps,
    /// It has a user name or a password.
    #[error("the URL has a user name")]
    UserInfo,
    /// Its host is an address in any notation, or no name at all.
    #[error("the host of the URL is not a DNS name")]
    NoDnsName,
    /// Its host is neither that of the issuer nor one of the given ones.
    #[error("the host of the URL is neither that of the issuer nor one of `hosts`")]
    OtherHost,
    /// Its port is neither 443 nor that of the issuer.
    #[error("the port of the URL is neither 443 nor that of the issuer")]
    OtherPort,
}

/// The hosts and the port that the endpoints of a provider may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHosts {
    hosts: BTreeSet<String>,
    /// The issuer's port.
    port: u16,
}

impl AllowedHosts {
    /// The host of an issuer, and others.
    ///
    /// # Errors
    /// When the URL of the issuer is rejected, or another host is not a DNS name.
    pub fn new<'a>(issuer: &str, others: impl IntoIterator<Item = &'a str>) -> Result<Self, EndpointError> {
        let Endpoint { host, port, .. } = Endpoint::named(issuer)?;
        let mut hosts = BTreeSet::from([host]);
        for other in others {
            hosts.insert(dns_name(other).ok_or(EndpointError::NoDnsName)?);
        }
        Ok(Self { hosts, port })
    }
}

/// A URL that an outgoing call may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The host, in lower case.
    host: String,
    port: u16,
    /// Path and query as they were written.
    path: PathAndQuery,
}

impl Endpoint {
    /// Reads a URL.
    ///
    /// # Errors
    /// When it is rejected.
    pub fn parse(url: &str, allowed: &AllowedHosts) -> Result<Self, EndpointError> {
        let endpoint = Self::named(url)?;
        if !allowed.hosts.contains(&endpoint.host) {
            return Err(EndpointError::OtherHost);
        }
        if ![HTTPS_PORT, allowed.port].contains(&endpoint.port) {
            return Err(EndpointError::OtherPort);
        }
        Ok(endpoint)
    }

    /// Reads a URL that the document of a provider itself names: it may have any host and port. The issuer may have another
    /// host, or an address, as that of a Kubernetes cluster.
    ///
    /// # Errors
    /// When it is rejected.
    pub fn named(url: &str) -> Result<Self, EndpointError> {
        if url.len() > PROVIDER_URL_BYTES_MAX {
            return Err(EndpointError::TooLong);
        }
        // `Uri` drops a fragment, and browsers take a backslash for a slash.
        if !url.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'#' | b'\\')) {
            return Err(EndpointError::Malformed);
        }
        let uri: Uri = url.parse().map_err(|_| EndpointError::Malformed)?;
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Err(EndpointError::NotHttps);
        }
        let authority = uri.authority().ok_or(EndpointError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::UserInfo);
        }
        let host = dns_name(authority.host()).ok_or(EndpointError::NoDnsName)?;
        let port = match authority.as_str().get(host.len()..) {
            Some("") => HTTPS_PORT,
            Some(port) => port.strip_prefix(':').and_then(port_of).ok_or(EndpointError::Malformed)?,
            None => return Err(EndpointError::Malformed),
        };
        let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { host, port, path })
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn path(&self) -> &PathAndQuery {
        &self.path
    }

    /// The name that the certificate of the server must have.
    pub(super) fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.host.clone()).expect("`dns_name` accepts less than rustls")
    }

    /// The value of the header `Host`.
    pub(super) fn authority(&self) -> String {
        if self.port == HTTPS_PORT { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}{}", self.authority(), self.path)
    }
}

/// A port as it is usually written: digits without a sign or leading zeros.
fn port_of(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    (port != 0 && port.to_string() == text).then_some(port)
}

#[cfg(test)]
mod tests {
    use concord_model::host::{HOST_BYTES_MAX, HOST_LABEL_BYTES_MAX};

    use super::*;

    fn hosts() -> AllowedHosts {
        AllowedHosts::new("https://idp.example.com:8443/realms/a", ["keys.example.net"]).unwrap()
    }

    #[test]
    fn endpoints_are_on_the_hosts_and_ports_of_the_provider() {
        let parsed = |url: &str| Endpoint::parse(url, &hosts());
        for (url, shown) in [
            ("https://idp.example.com/jwks", "https://idp.example.com/jwks"),
            ("https://idp.example.com:443/jwks", "https://idp.example.com/jwks"),
            ("https://idp.example.com:8443/jwks", "https://idp.example.com:8443/jwks"),
            ("https://IDP.Example.COM/Jwks?A=b", "https://idp.example.com/Jwks?A=b"),
            ("https://keys.example.net", "https://keys.example.net/"),
            ("https://keys.example.net?v=1", "https://keys.example.net/?v=1"),
            (
                "https://keys.example.net/a/../b//%2e%2E/?q=%0a&&x",
                "https://keys.example.net/a/../b//%2e%2E/?q=%0a&&x",
            ),
        ] {
            assert_eq!(parsed(url).map(|endpoint| endpoint.to_string()), Ok(shown.to_owned()), "{url}");
        }
        for (url, why) in [
            ("https://evil.example/jwks", EndpointError::OtherHost),
            ("https://idp.example.com.evil.example/", EndpointError::OtherHost),
            ("https://evil-idp.example.com/", EndpointError::OtherHost),
            ("https://example.com/", EndpointError::OtherHost),
            ("https://idp.example.com:80/", EndpointError::OtherPort),
            ("https://keys.example.net:8444/", EndpointError::OtherPort),
            ("http://idp.example.com/", EndpointError::NotHttps),
            ("ftp://idp.example.com/", EndpointError::NotHttps),
            ("javascript:alert(1)", EndpointError::NotHttps),
            ("//idp.example.com/", EndpointError::NotHttps),
            ("idp.example.com", EndpointError::NotHttps),
            ("/jwks", EndpointError::NotHttps),
            ("", EndpointError::Malformed),
        ] {
            assert_eq!(parsed(url), Err(why), "{url}");
        }
    }

    #[test]
    fn texts_that_parsers_read_differently_are_refused() {
        for url in [
            "https://idp.example.com/a b",
            "https://idp.example.com/a\nb",
            "https://idp.example.com/a\tb",
            "https://idp.example.com/\0",
            "https://idp.example.com/\u{7f}",
            " https://idp.example.com/",
            "https://idp.example.com\r\nhost: evil.example/",
            "https://idp.example.com/ä",
            "https://idp.example.com\\@evil.example/",
            "https://idp.example.com/#fragment",
            "https://idp.example.com#@evil.example/",
            "https:/idp.example.com/",
            "https:idp.example.com/",
            "https:///idp.example.com/",
            "https://idp.example.com:/",
            "https://idp.example.com:0443/",
            "https://idp.example.com:+443/",
            "https://idp.example.com:0/",
            "https://idp.example.com:65979/",
            "https://idp.example.com:443:443/",
            "https://idp.example.com:8443x/",
        ] {
            assert!(Endpoint::parse(url, &hosts()).is_err(), "{url}");
        }
        for url in [
            "https://user@idp.example.com/",
            "https://user:secret@idp.example.com/",
            "https://@idp.example.com/",
            "https://idp.example.com@evil.example/",
            "https://evil.example:443@idp.example.com/",
        ] {
            assert!(
                matches!(
                    Endpoint::parse(url, &hosts()),
                    Err(EndpointError::UserInfo | EndpointError::Malformed)
                ),
                "{url}"
            );
        }
        let long = |bytes: usize| {
            let head = "https://idp.example.com/";
            Endpoint::parse(&format!("{head}{}", "a".repeat(bytes - head.len())), &hosts())
        };
        assert!(long(PROVIDER_URL_BYTES_MAX).is_ok());
        assert_eq!(long(PROVIDER_URL_BYTES_MAX + 1), Err(EndpointError::TooLong));
    }

    #[test]
    fn an_address_in_any_notation_is_no_host() {
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.0.1.",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0X7F.0.0.0x1",
            "0177.0.0.1",
            "017700000001",
            "1.2.3",
            "4294967296",
            "[::1]",
            "[::ffff:169.254.169.254]",
            "[fe80::1%25eth0]",
            "::1",
            "example.1",
            "example.0x1",
            "a.b.1c",
            "idp.example.com.",
            ".idp.example.com",
            "idp..example.com",
            "-idp.example.com",
            "idp-.example.com",
            "idp_.example.com",
            "idp.example.com%2f",
            "%31%32%37.0.0.1",
            "*.example.com",
            "",
        ] {
            let url = format!("https://{host}/");
            assert!(AllowedHosts::new(&url, []).is_err(), "{host}");
            assert_eq!(
                AllowedHosts::new("https://idp.example.com", [host]),
                Err(EndpointError::NoDnsName),
                "{host}"
            );
        }
        let label = "a".repeat(HOST_LABEL_BYTES_MAX);
        let long = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(long.len(), HOST_BYTES_MAX);
        for host in
            ["localhost", "keycloak", "xn--idp-8na.example", "1.2.3.4.example", "0x7f.a1", &label, &long]
        {
            assert!(AllowedHosts::new(&format!("https://{host}/"), [host]).is_ok(), "{host}");
        }
        for host in [format!("{label}a.example"), format!("{long}a")] {
            assert!(AllowedHosts::new(&format!("https://{host}/"), []).is_err(), "{host}");
        }
        for host in ["idp.example.com", "keycloak", "a-b.c1"] {
            let allowed = AllowedHosts::new(&format!("https://{host}:8443/"), []).unwrap();
            let endpoint = Endpoint::parse(&format!("https://{host}:8443/"), &allowed).unwrap();
            assert_eq!((endpoint.server_name().to_str().as_ref(), endpoint.host()), (host, host));
        }
    }
}
