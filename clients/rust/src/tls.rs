//! TLS settings of a client.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// The CAs that a client trusts, and its certificate.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// A PEM file with the CAs of the nodes' certificates. By default the CAs that this machine trusts.
    pub authority: Option<PathBuf>,
    /// PEM files with the client certificate and its private key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// The configuration of connections. The roots of this machine are read only if a URL is encrypted.
    ///
    /// # Errors
    /// When a file can't be used, or this machine trusts no CA.
    pub fn config(&self, is_encrypted: bool) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| error.to_string())?;
        let builder = match &self.authority {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
                }
                builder.with_root_certificates(roots)
            }
            None if is_encrypted => builder.with_platform_verifier().map_err(|error| error.to_string())?,
            None => builder.with_root_certificates(RootCertStore::empty()),
        };
        let Some((certificate, key)) = &self.own else { return Ok(builder.with_no_client_auth()) };
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| format!("{}: no PEM private key: {error}", key.display()))?;
        builder
            .with_client_auth_cert(certificates(certificate)?, private)
            .map_err(|error| format!("{}: {error}", certificate.display()))
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| format!("{}: no PEM certificate: {error}", path.display());
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        Err(format!("{}: the file contains no certificate", path.display()))
    } else {
        Ok(found)
    }
}
