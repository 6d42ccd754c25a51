//! TLS of a client that is no node: the command line.

use std::{path::Path, sync::Arc};

use rustls::{ClientConfig, RootCertStore, sign::SingleCertAndKey};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::{
    VERSIONS,
    files::{read_authorities, read_certified_key},
    provider,
};

/// Whom a client trusts.
#[derive(Debug, Clone, Copy)]
pub enum Roots<'a> {
    /// Nobody: its connections are plain.
    None,
    /// The authorities that this machine trusts.
    Machine,
    /// The authorities in a file.
    File(&'a Path),
}

impl<'a> Roots<'a> {
    /// The authorities in a file if there is one, or else those that this machine trusts.
    #[must_use]
    pub fn of(file: Option<&'a Path>) -> Self {
        file.map_or(Self::Machine, Self::File)
    }
}

/// The side of a client that trusts these authorities, and shows the certificate of `own` with its key.
///
/// # Errors
/// When the files can't be used, or this machine names no authorities.
pub fn config(roots: Roots<'_>, own: Option<(&Path, &Path)>) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| error.to_string())?;
    let builder = match roots {
        Roots::None => builder.with_root_certificates(Arc::new(RootCertStore::empty())),
        Roots::File(path) => builder.with_root_certificates(read_authorities(path)?.0),
        Roots::Machine => builder.with_platform_verifier().map_err(|error| error.to_string())?,
    };
    Ok(match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let own = read_certified_key(certificate, key)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
        }
    })
}
