//! A connection between nodes whose other end has presented its certificate.
//!
//! Connections stay open for days. When the files of this node change (a certificate is revoked, an authority is removed),
//! each connection verifies its other end again before the next byte that it reads or writes.
//!
//! **Invariant:** after this node has read that a node is not trusted, nothing is read from or written to that node.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::nodes::NodeTls;
use crate::NodeId;

/// Which end the other one is.
#[derive(Debug)]
enum Role {
    /// It was called by this name.
    Called(ServerName<'static>),
    /// It calls, as this node.
    Calling(NodeId),
}

/// What the other end of a connection has shown.
#[derive(Debug)]
pub struct Shown {
    tls: Arc<NodeTls>,
    role: Role,
    certificates: Vec<CertificateDer<'static>>,
    /// The generation of the files with which it was last verified.
    judged: u64,
}

impl Shown {
    /// What a node has shown in the handshake when it called.
    ///
    /// # Errors
    /// When it is not trusted.
    pub fn calling(tls: Arc<NodeTls>, shown: Option<&[CertificateDer<'static>]>) -> Result<Self, String> {
        let (judged, certificates) = (tls.generation(), shown.unwrap_or_default().to_vec());
        let node = tls.verify_calling(&certificates)?;
        Ok(Self { tls, role: Role::Calling(node), certificates, judged })
    }

    /// What a node has shown in the handshake when it was called. It is judged again: the files may have changed since
    /// the handshake began.
    ///
    /// # Errors
    /// When it is not trusted.
    pub(crate) fn called(
        tls: Arc<NodeTls>,
        name: ServerName<'static>,
        shown: Option<&[CertificateDer<'static>]>,
    ) -> Result<Self, String> {
        let (judged, certificates) = (tls.generation(), shown.unwrap_or_default().to_vec());
        tls.verify_called(&name, &certificates)?;
        Ok(Self { tls, role: Role::Called(name), certificates, judged })
    }

    /// The node that calls.
    #[must_use]
    pub fn caller(&self) -> Option<NodeId> {
        match self.role {
            Role::Calling(node) => Some(node),
            Role::Called(_) => None,
        }
    }

    /// Whether the other end is still trusted.
    fn judge(&mut self) -> io::Result<()> {
        let generation = self.tls.generation();
        if generation == self.judged {
            return Ok(());
        }
        let verified = match &self.role {
            Role::Called(name) => self.tls.verify_called(name, &self.certificates),
            Role::Calling(_) => self.tls.verify_calling(&self.certificates).map(drop),
        };
        verified.map_err(|error| {
            tracing::warn!(
                "closing a connection to another node, whose certificate is no longer valid: {error}"
            );
            io::Error::new(io::ErrorKind::PermissionDenied, error)
        })?;
        self.judged = generation;
        Ok(())
    }
}

/// A connection that stays open as long as its other end is trusted.
#[derive(Debug)]
pub struct Trusted<S> {
    stream: S,
    shown: Shown,
}

impl<S> Trusted<S> {
    /// A connection on which this was shown.
    pub fn new(stream: S, shown: Shown) -> Self {
        Self { stream, shown }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Trusted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shown.judge()?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Trusted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shown.judge()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.shown.judge()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shown.judge()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
