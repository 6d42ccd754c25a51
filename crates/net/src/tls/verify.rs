//! Verifies the certificate of another node: signed by the cluster's authority, within its validity, for this cluster, and
//! not revoked.
//!
//! webpki checks the signatures and times. The checks added here only reject more.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{certificate::Revoked, name::NodeName, provider};

/// Certificates that are remembered at most: two of each member, for the time of a change.
const SEEN_CERTIFICATES_MAX: usize = 64;

/// The certificates that other nodes have shown since this node started, which one of its CAs has signed.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenCertificates(Arc<Mutex<Vec<CertificateDer<'static>>>>);

impl SeenCertificates {
    fn note(&self, shown: &CertificateDer<'_>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < SEEN_CERTIFICATES_MAX && !seen.iter().any(|known| known == shown) {
            seen.push(shown.clone().into_owned());
        }
    }

    /// All of them.
    pub(super) fn list(&self) -> Vec<CertificateDer<'static>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a node of this cluster must show.
#[derive(Debug)]
struct Rules {
    cluster: String,
    revoked: Revoked,
    seen: SeenCertificates,
}

impl Rules {
    fn check(&self, shown: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<NodeName, Error> {
        self.seen.note(shown);
        if [shown].into_iter().chain(others).any(|certificate| self.revoked.has(certificate)) {
            return Err(CertificateError::Revoked.into());
        }
        match NodeName::of(shown) {
            Ok(name) if name.cluster == self.cluster => Ok(name),
            Ok(name) => Err(Error::General(format!("{name} is not a node of {}", self.cluster))),
            Err(why) => Err(Error::General(why)),
        }
    }
}

/// The error of a certificate that no CA of this node has issued.
///
/// webpki finds a CA by its name. If the CA that issued the certificate has the same name and another key, as the new CA
/// of a cluster usually has, webpki reports a wrong signature, which looks like a damaged file or an attack.
fn by_issuer(error: Error) -> Error {
    if error == Error::from(CertificateError::BadSignature) {
        CertificateError::UnknownIssuer.into()
    } else {
        error
    }
}

/// Verifies what nodes show that are called, and what nodes show that call.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    rules: Rules,
    called: Arc<WebPkiServerVerifier>,
    calling: ClientVerifier,
}

impl NodeVerifier {
    /// A verifier for the nodes of one cluster.
    ///
    /// # Errors
    /// When there is no authority.
    pub(super) fn new(
        roots: &Arc<RootCertStore>,
        cluster: String,
        revoked: Revoked,
        seen: SeenCertificates,
    ) -> Result<Self, String> {
        let called = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider()).build();
        Ok(Self {
            rules: Rules { cluster, revoked, seen },
            called: called.map_err(|error| error.to_string())?,
            calling: ClientVerifier::new(Arc::clone(roots))?,
        })
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.called.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let verified = verified.map_err(by_issuer)?;
        let name = self.rules.check(end_entity, intermediates)?;
        // Beside the node's name there may be others, and webpki takes `*.<cluster>` for every node.
        if name.to_string() == server_name.to_str() {
            Ok(verified)
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.called.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.called.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.called.supported_verify_schemes()
    }
}

impl ClientCertVerifier for NodeVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.calling.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.calling.verify_client_cert(end_entity, intermediates, now)?;
        self.rules.check(end_entity, intermediates).map(|_| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.calling.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.calling.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.calling.supported_verify_schemes()
    }
}

/// Verifies what clients present, as webpki does; a certificate of another CA is always named as such.
#[derive(Debug)]
pub(super) struct ClientVerifier(Arc<dyn ClientCertVerifier>);

impl ClientVerifier {
    /// A verifier with these CAs.
    ///
    /// # Errors
    /// When there is no CA.
    pub(super) fn new(roots: Arc<RootCertStore>) -> Result<Self, String> {
        let built = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        built.map(Self).map_err(|error| error.to_string())
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now).map_err(by_issuer)
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

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    };

    use super::*;

    #[test]
    fn only_the_node_name_of_a_certificate_identifies_a_called_node() {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.self_signed(&key).unwrap().der().clone()).unwrap();
        let issuer = Issuer::new(authority, key);
        let signed = |names: &[&str]| {
            let mut params =
                CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                    .unwrap();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone()
        };
        let verifier = NodeVerifier::new(
            &Arc::new(roots),
            "c.test".into(),
            Revoked::default(),
            SeenCertificates::default(),
        )
        .unwrap();
        let is_taken_for = |names: &[&str], called: &str| {
            let name = ServerName::try_from(called.to_owned()).unwrap();
            verifier.verify_server_cert(&signed(names), &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert!(is_taken_for(&["node-1.c.test"], "node-1.c.test"));
        assert!(is_taken_for(&["node-1.c.test", "db.example"], "node-1.c.test"));
        assert!(!is_taken_for(&["node-1.c.test"], "node-2.c.test"));
        for other in ["*.c.test", "NODE-2.c.test"] {
            assert!(is_taken_for(&["node-1.c.test", other], "node-1.c.test"), "{other}");
            assert!(!is_taken_for(&["node-1.c.test", other], "node-2.c.test"), "{other}");
        }
    }
}
