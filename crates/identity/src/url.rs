//! The URLs of a provider: what a node may call, and what a browser may open.
//!
//! A URL is rejected unless every program reads it alike. So there is one scheme, no user, no fragment, and a host name
//! in ASCII. A host that is an address never reaches a resolver, and so would pass a check of the resolved address: it is
//! rejected here, in every spelling that a URL parser takes for an address.
//!
//! **Invariant:** the host and port of an [`HttpsUrl`] are those that a conforming client connects to.

use concord_model::{host::dns_name, limits::PROVIDER_URL_BYTES_MAX};

/// The port of a URL that names none.
const HTTPS_PORT: u16 = 443;

/// Why a text is no URL that may be used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It has more bytes than a URL here may have.
    #[error("a URL has at most {PROVIDER_URL_BYTES_MAX} bytes")]
    TooLong,
    /// It has a space, a control character, a character that is not ASCII, or one that URLs don't have.
    #[error("a URL has only the printable ASCII characters that RFC 3986 allows")]
    Character,
    /// It has another scheme.
    #[error("expected a URL that begins with `https://`")]
    Scheme,
    /// It names a user.
    #[error("expected a URL without a user")]
    User,
    /// It has a fragment.
    #[error("expected a URL without a fragment")]
    Fragment,
    /// Its host is an address.
    #[error("expected a host name, not an IP address")]
    Address,
    /// Its host is no name.
    #[error(
        "expected a host name: labels of letters, digits and `-` with dots between them; the last one begins with a letter"
    )]
    Host,
    /// Its port is no number from 1 to 65535.
    #[error("expected a port from 1 to 65535")]
    Port,
}

/// The parts of an `https` URL that decide whether it may be called.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpsUrl {
    /// The host in lower case.
    pub host: String,
    /// The port; 443 if the URL names none.
    pub port: u16,
}

impl HttpsUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// When it is not `https`, or has a user, a fragment, an address as host, or a character that is not allowed.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        check_characters(text)?;
        let rest = text.strip_prefix("https://").ok_or(UrlError::Scheme)?;
        let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
        if authority.contains('[') {
            return Err(UrlError::Address);
        }
        let (name, port) = match authority.split_once(':') {
            Some((name, port)) => (name, parse_port(port)?),
            None => (authority, HTTPS_PORT),
        };
        Ok(Self { host: host(name)?, port })
    }
}

/// Checks the URL of an issuer that nothing connects to: it is only compared, so its host may be an address.
///
/// # Errors
/// When it is not `https`, has a user or a fragment, has no host, or has a character that is not allowed.
pub fn check_compared(text: &str) -> Result<(), UrlError> {
    check_characters(text)?;
    let rest = text.strip_prefix("https://").ok_or(UrlError::Scheme)?;
    if rest.is_empty() || rest.starts_with(['/', '?', ':']) { Err(UrlError::Host) } else { Ok(()) }
}

/// Rejects what no URL has, and a fragment and a user, which those here don't have.
fn check_characters(text: &str) -> Result<(), UrlError> {
    if text.len() > PROVIDER_URL_BYTES_MAX {
        return Err(UrlError::TooLong);
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)) {
        return Err(UrlError::Character);
    }
    if text.contains('#') {
        return Err(UrlError::Fragment);
    }
    let after = text.split_once("://").map_or("", |(_, after)| after);
    let authority = after.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') { Err(UrlError::User) } else { Ok(()) }
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain).ok_or(UrlError::Port)
}

/// A host name in lower case.
///
/// # Errors
/// When it is an address, or no name.
pub fn host(text: &str) -> Result<String, UrlError> {
    dns_name(text).ok_or_else(|| if is_address(text) { UrlError::Address } else { UrlError::Host })
}

/// Whether a text that is no name is an address: IPv6, or one whose last part is a number.
fn is_address(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_digits = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    is_digits || last.to_ascii_lowercase().starts_with("0x") || text.matches(':').count() > 1
}

/// Whether a URL leads to the machine on which it is opened: `http` on a loopback address or `localhost`.
#[must_use]
pub fn is_loopback(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("http://") else { return false };
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let is_host = |host: &str| ["127.0.0.1", "[::1]", "localhost"].contains(&host);
    let has_port = || {
        let (host, port) = authority.rsplit_once(':')?;
        Some(is_host(host) && parse_port(port).is_ok())
    };
    check_characters(text).is_ok() && (is_host(authority) || has_port().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_a_port() {
        for (text, host, port) in [
            ("https://login.example.com", "login.example.com", 443),
            ("https://Login.Example.com/a/b", "login.example.com", 443),
            ("https://a-1.example:8443?x=@", "a-1.example", 8443),
            ("https://kubernetes.default.svc/openid/v1/jwks", "kubernetes.default.svc", 443),
            ("https://localhost:1/@:?", "localhost", 1),
        ] {
            assert_eq!(HttpsUrl::parse(text), Ok(HttpsUrl { host: host.into(), port }), "{text}");
        }
    }

    #[test]
    fn a_url_that_programs_read_differently_or_that_hides_an_address_is_rejected() {
        for (text, error) in [
            ("", UrlError::Scheme),
            ("http://a.example", UrlError::Scheme),
            ("HTTPS://a.example", UrlError::Scheme),
            ("javascript:alert(1)//https://a.example", UrlError::Scheme),
            ("//a.example", UrlError::Scheme),
            ("https:/a.example", UrlError::Scheme),
            ("https://a.example\\@evil.example/", UrlError::Character),
            ("https://a.example /", UrlError::Character),
            ("https://a.example/\n", UrlError::Character),
            ("https://ä.example/", UrlError::Character),
            ("https://user@a.example/", UrlError::User),
            ("https://user:pass@a.example/", UrlError::User),
            ("https://a.example/#b", UrlError::Fragment),
            ("https://a.example#@evil.example/", UrlError::Fragment),
            ("https://127.0.0.1/", UrlError::Address),
            ("https://169.254.169.254/latest", UrlError::Address),
            ("https://2130706433/", UrlError::Address),
            ("https://0x7f000001/", UrlError::Address),
            ("https://0x7f.1/", UrlError::Address),
            ("https://127.0.0.0X1/", UrlError::Address),
            ("https://[::1]/", UrlError::Address),
            ("https://[::ffff:10.0.0.1]:443/", UrlError::Address),
            ("https:///a", UrlError::Host),
            ("https://?a", UrlError::Host),
            ("https://a..b/", UrlError::Host),
            ("https://a.example./", UrlError::Host),
            ("https://-a.example/", UrlError::Host),
            ("https://a_b.example/", UrlError::Host),
            ("https://a.1b/", UrlError::Host),
            ("https://1b/", UrlError::Host),
            ("https://127.0.0.1x/", UrlError::Host),
            ("https://%61.example/", UrlError::Host),
            ("https://a.example:/", UrlError::Port),
            ("https://a.example:0/", UrlError::Port),
            ("https://a.example:0443/", UrlError::Port),
            ("https://a.example:65536/", UrlError::Port),
            ("https://a.example:443:1/", UrlError::Port),
            ("https://a.example:+443/", UrlError::Port),
        ] {
            assert_eq!(HttpsUrl::parse(text), Err(error), "{text}");
        }
        assert_eq!(
            HttpsUrl::parse(&format!("https://a.example/{}", "a".repeat(2048))),
            Err(UrlError::TooLong)
        );
        assert_eq!(HttpsUrl::parse(&format!("https://{}.example/", "a".repeat(64))), Err(UrlError::Host));
        assert_eq!(host("::1"), Err(UrlError::Address));
    }

    #[test]
    fn an_issuer_that_is_only_compared_may_have_an_address() {
        for text in
            ["https://10.0.0.5:6443", "https://[fd00::1]:6443/", "https://localhost:6443", "https://a.1b/"]
        {
            assert_eq!(check_compared(text), Ok(()), "{text}");
        }
        for (text, error) in [
            ("http://10.0.0.5", UrlError::Scheme),
            ("10.0.0.5", UrlError::Scheme),
            ("https://", UrlError::Host),
            ("https:///a", UrlError::Host),
            ("https://:6443", UrlError::Host),
            ("https://a@10.0.0.5", UrlError::User),
            ("https://10.0.0.5/#a", UrlError::Fragment),
            ("https://10.0.0.5/{a}", UrlError::Character),
        ] {
            assert_eq!(check_compared(text), Err(error), "{text}");
        }
    }

    #[test]
    fn only_loopback_is_reached_without_tls() {
        for text in ["http://127.0.0.1:8400/callback", "http://[::1]/", "http://[::1]:1/", "http://localhost"]
        {
            assert!(is_loopback(text), "{text}");
        }
        for text in [
            "http://127.0.0.2/",
            "http://localhost.example/",
            "http://localhost@evil.example/",
            "http://evil.example/localhost",
            "http://localhost:x/",
            "http://localhost/#a",
            "https://localhost/",
            "http://127.0.0.1.evil.example/",
            "http://localhost\\@evil.example",
        ] {
            assert!(!is_loopback(text), "{text}");
        }
    }
}
