//! Where the spans of requests are sent, and of which requests.
//!
//! **Invariant:** without an address nothing is sent and nothing is recorded.

use std::path::PathBuf;

use clap::Args;
use http::{Uri, uri::Scheme};

use concord_service::spans;

/// The collector of spans.
#[derive(Debug, Clone, Default, Args)]
pub struct TraceArgs {
    /// A collector that takes spans by OTLP over HTTP, as `http[s]://host:port`; they are sent to `/v1/traces` there. By
    /// default none
    #[arg(long, env = "CONCORD_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// The share of requests without a `traceparent` that begin a trace, 0 to 1; one with it says itself whether it is
    /// sampled
    #[arg(long, env = "CONCORD_OTLP_SAMPLE", default_value_t = 0.0, value_name = "SHARE")]
    pub otlp_sample: f64,
    /// The authorities of an encrypted collector's certificate, in PEM; by default those that this machine trusts
    #[arg(long, env = "CONCORD_OTLP_CA_FILE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
}

impl TraceArgs {
    /// Where spans are sent, if they are. They name the address of the listener for callers, and whether it is encrypted.
    ///
    /// # Errors
    /// When the address is none, the share is none, or this program sends no spans.
    pub(super) fn check(
        &self,
        api_addr: &str,
        is_encrypted: bool,
    ) -> Result<Option<spans::SpanOptions>, String> {
        if !(0.0..=1.0).contains(&self.otlp_sample) {
            return Err("--otlp-sample must be 0 to 1".into());
        }
        let given = self.otlp_endpoint.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let Some(endpoint) = given else { return Ok(None) };
        if cfg!(not(feature = "otlp")) {
            return Err("--otlp-endpoint: this program was built without the feature `otlp`".into());
        }
        let url = traces_url(endpoint)?;
        let authority = self.otlp_ca_file.clone().filter(|file| !file.as_os_str().is_empty());
        if authority.is_some() {
            // It is read again when the first span is sent.
            let tls = concord_client::Tls { authority: authority.clone(), own: None };
            drop(tls.config(true).map_err(|error| format!("--otlp-ca-file: {error}"))?);
        }
        Ok(Some(spans::SpanOptions {
            url,
            authority,
            sample: self.otlp_sample,
            address: api_addr.to_owned(),
            is_encrypted,
        }))
    }
}

/// The URL that spans are sent to.
fn traces_url(endpoint: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "--otlp-endpoint: `{}` is no address of a collector: expected http[s]://host:port",
            shown(endpoint)
        )
    };
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    let is_http = uri.scheme().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
    if !is_http || uri.query().is_some() || authority.host().is_empty() {
        return Err(wrong());
    }
    // The address is logged.
    if authority.as_str().contains('@') {
        return Err("--otlp-endpoint must hold no user and no password".into());
    }
    Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
}

/// A text as an error repeats it: not what may be a password.
fn shown(endpoint: &str) -> &str {
    endpoint.rsplit('@').next().unwrap_or(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(endpoint: &str, sample: f64) -> Result<Option<String>, String> {
        let args =
            TraceArgs { otlp_endpoint: Some(endpoint.into()), otlp_sample: sample, otlp_ca_file: None };
        args.check("127.0.0.1:8101", false).map(|options| options.map(|options| options.url))
    }

    #[test]
    fn nothing_is_sent_without_an_address() {
        assert!(TraceArgs::default().check("a:1", false).unwrap().is_none());
        assert_eq!(checked(" ", 1.0).unwrap(), None);
    }

    #[test]
    fn a_share_is_0_to_1() {
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(checked("", wrong).unwrap_err().contains("--otlp-sample"), "{wrong}");
        }
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn an_address_is_that_of_a_collector() {
        for (given, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://c.example/", "https://c.example/v1/traces"),
            ("http://[::1]:4318/a/b", "http://[::1]:4318/a/b/v1/traces"),
        ] {
            assert_eq!(checked(given, 0.5).unwrap().as_deref(), Some(url));
        }
        for wrong in ["127.0.0.1:4318", "grpc://a:4317", "/v1/traces", "http://", "http://a/?key=b", "a b"] {
            assert!(checked(wrong, 0.0).unwrap_err().contains("no address of a collector"), "{wrong}");
        }
        for secret in ["http://user:hidden@a:4318", "x://user:hidden@a"] {
            assert!(!checked(secret, 0.0).unwrap_err().contains("hidden"), "{secret}");
        }
    }
}
