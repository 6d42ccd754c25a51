//! TLS settings of a client.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
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
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| error.to_string())?;
        let builder = match &self.authority {
            Some(path) => {
                let verifier = CaFileVerifier::new(path, provider)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
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

impl Tls {
    /// The CAs, as messages name them.
    pub(crate) fn shown_authorities(&self) -> String {
        match &self.authority {
            Some(path) => format!("a CA that is configured (CA file {})", path.display()),
            None => "a CA that this machine trusts".into(),
        }
    }
}

/// Verifies nodes by the CAs of a file, as rustls does; a certificate of another CA is always named as such.
///
/// webpki finds a CA by its name. If the CA that issued the certificate has the same name and another key, as after the
/// replacement of a CA, webpki reports a wrong signature, which looks like a damaged file or an attack.
#[derive(Debug)]
struct CaFileVerifier(Arc<WebPkiServerVerifier>);

impl CaFileVerifier {
    fn new(path: &PathBuf, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| failed(&error))?;
        }
        let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        built.map(Self).map_err(|error| failed(&error))
    }
}

impl ServerCertVerifier for CaFileVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|error| {
            if error == Error::from(CertificateError::BadSignature) {
                CertificateError::UnknownIssuer.into()
            } else {
                error
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
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
