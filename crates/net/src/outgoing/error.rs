//! Why an outgoing call failed: the cause for the log, and one word for clients.
//!
//! A client that may create a provider could otherwise read from the errors which hosts and ports exist behind the node.
//! So a port without TLS, a closed one and a silent one are the same word.
//!
//! **Invariant:** no error contains a part of a request or of a body, and [`OutgoingError::word`] depends on no address.

use std::{io, net::IpAddr};

/// A step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStage {
    /// The wait until fewer calls are in progress.
    Place,
    /// The lookup of the name.
    Resolve,
    /// The TLS handshake.
    Tls,
    /// The request, and the response with its body.
    Response,
}

impl CallStage {
    fn text(self) -> &'static str {
        match self {
            Self::Place => "waiting for other calls",
            Self::Resolve => "resolving the name",
            Self::Tls => "the TLS handshake",
            Self::Response => "waiting for the response",
        }
    }
}

/// Why an outgoing call failed.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// The policy is `off`.
    #[error("outgoing calls are off")]
    Off,
    /// Each address of the host is one that the policy does not allow. Nothing was connected.
    #[error("`{host}` has no address that may be called: {refused:?}")]
    Forbidden {
        /// The host.
        host: String,
        /// Its addresses.
        refused: Vec<IpAddr>,
    },
    /// The name of the host can't be resolved.
    #[error("`{host}` can't be resolved: {cause}")]
    Unresolved {
        /// The host.
        host: String,
        /// The error of the resolver.
        cause: io::Error,
    },
    /// No address of the host could be connected; the error is that of the last one.
    #[error("can't connect: {0}")]
    Unconnected(io::Error),
    /// The handshake failed: the certificate is not for the host, its CA is unknown (perhaps because this machine
    /// has none), or the other end does not speak TLS.
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    /// The deadline passed.
    #[error("timed out {}", .0.text())]
    Timeout(CallStage),
    /// The request can't be encoded.
    #[error("the request can't be encoded: {0}")]
    Request(http::Error),
    /// The response is no HTTP, it exceeds a limit of headers, or it ended early.
    #[error("no usable response: {0}")]
    Http(hyper::Error),
    /// The response is a redirection, which is not followed.
    #[error("redirected with status {0}; redirections are not followed")]
    Redirect(u16),
    /// The status is not one of success.
    #[error("status {0}")]
    Status(u16),
    /// The body is compressed, which was not asked for.
    #[error("the body is compressed, which the request does not accept")]
    Encoded,
    /// The body has more bytes than expected.
    #[error("the body is too long, expected at most {0} bytes")]
    TooLong(usize),
}

impl OutgoingError {
    /// What a client may learn.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Off => "refused",
            // Otherwise a client would learn which names of the network exist.
            Self::Forbidden { .. }
            | Self::Unresolved { .. }
            | Self::Unconnected(_)
            | Self::Tls(_)
            | Self::Timeout(_) => "unreachable",
            Self::Request(_)
            | Self::Http(_)
            | Self::Redirect(_)
            | Self::Status(_)
            | Self::Encoded
            | Self::TooLong(_) => "bad answer",
        }
    }
}
