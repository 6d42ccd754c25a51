//! Mutual TLS between nodes: each end presents a certificate of the cluster's authority that names its node.
//!
//! | mode | accepts | sends |
//! |---|---|---|
//! | required | TLS with a node's certificate only | TLS only |
//! | migrate | also unencrypted RPCs that prove the cluster secret | TLS, and unencrypted RPCs to a node without TLS |
//!
//! *Migrate* is for a cluster without TLS while some of its nodes have certificates and others do not.
//!
//! **Invariants**
//! 1. An RPC is unencrypted only if the mode allows it and the other end does not support TLS. A node with a wrong
//!    certificate gets no unencrypted RPC.
//! 2. No session is resumed: every connection presents its certificates again.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, ServerConfig,
    client::{Resumption, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, danger::ClientCertVerifier as _},
    sign::SingleCertAndKey,
};

use super::{
    VERSIONS,
    certificate::{Certificate, Revoked, RevokedCount, refuse_invalid},
    files::{Reloaded, read, read_authorities, read_certified_key},
    name::NodeName,
    provider,
    verify::{NodeVerifier, SeenCertificates},
};
use crate::NodeId;

/// The files of a node for calls between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFiles {
    /// The certificate that it shows, with those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of the cluster: two while one takes over from the other.
    pub authorities: PathBuf,
    /// The revoked certificates.
    pub revoked: Option<PathBuf>,
}

/// Whether plain calls are possible beside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// TLS and nothing else.
    Required,
    /// Plain calls to and from nodes that have no certificate yet.
    Migrate,
}

/// What was made of the files.
#[derive(Debug)]
struct NodeMaterial {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    verifier: Arc<NodeVerifier>,
    certificates: Vec<Certificate>,
    revoked: Revoked,
    /// This node's own certificates.
    own: Vec<CertificateDer<'static>>,
}

/// Both sides of TLS between nodes.
#[derive(Debug)]
pub struct NodeTls {
    own: NodeName,
    mode: Mode,
    material: Reloaded<NodeMaterial>,
    seen: SeenCertificates,
}

impl NodeTls {
    /// Reads the files of a node.
    ///
    /// # Errors
    /// When they can't be used, or when the certificate names another node.
    pub fn open(files: NodeFiles, node: NodeId, mode: Mode) -> Result<Self, String> {
        let NodeFiles { certificate, key, authorities, revoked } = &files;
        let all = [certificate, key, authorities].into_iter().chain(revoked).cloned().collect();
        let shown = read_certified_key(certificate, key)?;
        let own =
            NodeName::of(shown.end_entity_cert().map_err(|error| error.to_string())?).map_err(|error| {
                format!("{}: {error}; it needs the name `node-{node}.<cluster>`", certificate.display())
            })?;
        if own.node != node {
            return Err(format!(
                "{} is the certificate of {own}, but this is node {node}",
                certificate.display()
            ));
        }
        let (expected, seen) = (own.clone(), SeenCertificates::default());
        let shown = seen.clone();
        let material = Reloaded::new(all, move || load(&files, &expected, &shown))?;
        Ok(Self { own, mode, material, seen })
    }

    /// Whether plain calls are possible.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How calls are taken from now on.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.material.current().server)
    }

    /// How calls are made from now on.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.material.current().client)
    }

    /// The name that a called node must show.
    pub(crate) fn name_of(&self, node: NodeId) -> Result<ServerName<'static>, String> {
        NodeName { node, cluster: self.own.cluster.clone() }.to_server_name()
    }

    /// How often the files have changed.
    pub(super) fn generation(&self) -> u64 {
        self.material.generation()
    }

    /// Whether what a node has shown when it was called is still good.
    pub(super) fn verify_called(
        &self,
        name: &ServerName<'static>,
        shown: &[CertificateDer<'static>],
    ) -> Result<(), String> {
        let (first, others) = shown.split_first().ok_or("it presented no certificate")?;
        let verifier = &self.material.current().verifier;
        let verified = verifier.verify_server_cert(first, others, name, &[], UnixTime::now());
        verified.map(drop).map_err(|error| error.to_string())
    }

    /// Whether what a node has shown when it called is still good. Returns the node.
    pub(super) fn verify_calling(&self, shown: &[CertificateDer<'static>]) -> Result<NodeId, String> {
        let (first, others) = shown.split_first().ok_or("it presented no certificate")?;
        let verified = self.material.current().verifier.verify_client_cert(first, others, UnixTime::now());
        verified.map_err(|error| error.to_string())?;
        NodeName::of(first).map(|name| name.node)
    }

    /// The certificates in use: this node's own first.
    #[must_use]
    pub fn certificates(&self) -> Vec<Certificate> {
        self.material.current().certificates.clone()
    }

    /// How many entries of the list of revoked certificates match one that this node knows.
    #[must_use]
    pub fn revoked(&self) -> RevokedCount {
        let (material, seen) = (self.material.current(), self.seen.list());
        material.revoked.count(material.own.iter().chain(&seen))
    }

    /// Reads the files again if they have changed: see `Reloaded::look`. Connections whose other end is not trusted
    /// any more end.
    pub fn look(&self) -> Option<Result<(), String>> {
        self.material.look(|before, now| refuse_invalid(&before.certificates, &now.certificates))
    }
}

fn load(files: &NodeFiles, expected: &NodeName, seen: &SeenCertificates) -> Result<NodeMaterial, String> {
    let own = read_certified_key(&files.certificate, &files.key)?;
    let shown = own.end_entity_cert().map_err(|error| error.to_string())?;
    let name = NodeName::of(shown)?;
    if name != *expected {
        return Err(format!(
            "{} is the certificate of {name}, not of {expected}",
            files.certificate.display()
        ));
    }
    let mut certificates = vec![Certificate::parse(shown)?];
    let (roots, authorities) = read_authorities(&files.authorities)?;
    certificates.extend(authorities);
    let revoked = match &files.revoked {
        None => Revoked::default(),
        Some(path) if matches!(path.try_exists(), Ok(false)) => {
            let path = path.display();
            return Err(format!("{path} does not exist: create it, empty while no certificate is revoked"));
        }
        Some(path) => {
            let text = String::from_utf8_lossy(&read(path)?).into_owned();
            Revoked::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let verifier = Arc::new(NodeVerifier::new(&roots, name.cluster.clone(), revoked.clone(), seen.clone())?);
    // Every other node would reject a certificate of another authority.
    let (first, others) = own.cert.split_first().ok_or("there is no certificate")?;
    let as_called = verifier.verify_server_cert(first, others, &name.to_server_name()?, &[], UnixTime::now());
    let as_calling = verifier.verify_client_cert(first, others, UnixTime::now());
    if let Some(error) = as_called.err().or(as_calling.err()) {
        tracing::warn!(
            "the other nodes will reject {}, because of {}: {error}",
            files.certificate.display(),
            files.authorities.display()
        );
    }
    let chain = own.cert.clone();
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(Arc::clone(&verifier) as _)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&own))));
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    client.resumption = Resumption::disabled();
    Ok(NodeMaterial {
        server: Arc::new(server),
        client: Arc::new(client),
        verifier,
        certificates,
        revoked,
        own: chain,
    })
}
