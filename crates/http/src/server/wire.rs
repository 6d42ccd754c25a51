//! How a listener accepts a connection: unencrypted, over TLS, or over mutual TLS between nodes.
//!
//! TLS is above the socket (`socket.rs`), which counts and times the bytes on the network. So the handshake counts
//! toward the time and bytes of the connection, like the head of a request.
//!
//! **Invariant:** the extensions of a request over mutual TLS have the node that the certificate of its connection
//! names ([`ShownNode`]). Only this file puts it there.

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::Handle,
    time::Instant,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{AlertDescription, CertificateError, Error as TlsError},
    server::TlsStream,
};
use tokio_util::task::AbortOnDropHandle;

use super::socket::Socket;
use concord_net::{
    NodeId,
    socket::TcpStream,
    tls::{
        callers::CallerTls,
        nodes::{Mode, NodeTls},
        shown::{Shown, Trusted},
    },
};
use concord_service::line_limit::LineLimit;

/// The first byte of a handshake. No request begins with it.
const HANDSHAKE: u8 = 0x16;

/// How a listener accepts connections.
#[derive(Debug, Clone)]
pub enum Transport {
    /// Unencrypted.
    Plain,
    /// Over TLS.
    Callers(Arc<CallerTls>),
    /// Over mutual TLS between nodes. The handle is that of the client threads, which perform the handshakes, because
    /// unauthenticated clients can begin any number of them. The connections themselves run where consensus runs.
    Nodes(Arc<NodeTls>, Handle),
}

/// In a request's extensions: the node that the certificate of its connection names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownNode(pub(crate) NodeId);

impl Transport {
    /// Whether connections begin with a handshake.
    pub(super) fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// Accepts a connection, with the handshake, if there is one. Returns the node that has presented its certificate.
    pub(super) async fn take(
        &self,
        mut stream: TcpStream,
        socket: impl FnOnce(TcpStream) -> Socket,
    ) -> io::Result<(AcceptedStream, Option<NodeId>)> {
        match self {
            Self::Plain => Ok((AcceptedStream::Plain(socket(stream)), None)),
            Self::Callers(tls) => {
                let stream = TlsAcceptor::from(tls.config()).accept(socket(stream)).await?;
                Ok((AcceptedStream::Tls(Box::new(stream)), None))
            }
            Self::Nodes(tls, callers) => {
                if tls.mode() == Mode::Migrate && !begins_with_handshake(&mut stream).await? {
                    return Ok((AcceptedStream::Plain(socket(stream)), None));
                }
                let handshake = TlsAcceptor::from(tls.server()).accept(socket(stream));
                let stream =
                    AbortOnDropHandle::new(callers.spawn(handshake)).await.map_err(io::Error::other)??;
                let shown = Shown::calling(Arc::clone(tls), stream.get_ref().1.peer_certificates());
                let shown = shown.map_err(io::Error::other)?;
                let node = shown.caller();
                Ok((AcceptedStream::Node(Box::new(Trusted::new(stream, shown))), node))
            }
        }
    }
}

/// The certificates that clients, or this node, have rejected. While a CA is replaced, the log shows which clients do not
/// trust the new one.
#[derive(Debug, Default)]
pub(super) struct RejectedCertificates(LineLimit);

impl RejectedCertificates {
    /// Logs a failed handshake with a client if the reason is a certificate, or counts it: anybody who reaches the listener
    /// can cause it. False for another reason.
    pub(super) fn note(&self, client: IpAddr, error: &io::Error) -> bool {
        let Some(what) = rejected_certificate(error) else { return false };
        if let Some(left_out) = self.0.due(Instant::now()) {
            tracing::warn!(%client, left_out, "{what} {client}: {error}{}", hint(error));
        }
        true
    }
}

/// Whose certificate a failed handshake is about, as the log says it. `None` if it failed for another reason.
fn rejected_certificate(error: &io::Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    /// The alerts by which programs say that they do not trust a certificate.
    const DISTRUST: [AlertDescription; 6] = [
        Alert::UnknownCA,
        Alert::BadCertificate,
        Alert::UnsupportedCertificate,
        Alert::CertificateRevoked,
        Alert::CertificateExpired,
        Alert::CertificateUnknown,
    ];
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    if let TlsError::AlertReceived(alert) = error {
        return DISTRUST.contains(alert).then_some("this node's certificate was rejected by the client");
    }
    matches!(error, TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented)
        .then_some("rejected the certificate of the client")
}

/// What else is to be said of a certificate that no trusted CA has issued.
fn hint(error: &io::Error) -> &'static str {
    let found = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    if matches!(found, Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer))) {
        " (no CA that this node trusts has issued it, although one may have the same name)"
    } else {
        ""
    }
}

/// Waits for the first byte, which stays unread.
async fn begins_with_handshake(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let count = stream.peek(&mut first).await?;
    Ok(count == 1 && first[0] == HANDSHAKE)
}

/// An accepted connection.
#[derive(Debug)]
pub(super) enum AcceptedStream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
    Node(Box<Trusted<TlsStream<Socket>>>),
}

impl AsyncRead for AcceptedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Node(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for AcceptedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Node(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Node(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Node(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Node(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Node(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rejected_certificates_are_logged() {
        let of = |error: TlsError| rejected_certificate(&io::Error::new(io::ErrorKind::InvalidData, error));
        assert!(of(TlsError::AlertReceived(AlertDescription::UnknownCA)).is_some());
        assert!(of(TlsError::NoCertificatesPresented).is_some());
        assert_eq!(of(TlsError::AlertReceived(AlertDescription::CloseNotify)), None);
        assert_eq!(rejected_certificate(&io::ErrorKind::InvalidData.into()), None);
    }
}
