//! TLS of the client listener.
//!
//! **Invariant:** if a client authority is configured, the handshake of a client without a valid certificate of it fails,
//! so that it sends no request.

use std::{path::PathBuf, sync::Arc};

use rustls::{ServerConfig, server::NoServerSessionStorage, sign::SingleCertAndKey};

use super::{
    VERSIONS,
    certificate::{Certificate, refuse_invalid},
    files::{Reloaded, read_authorities, read_certified_key},
    provider,
    verify::ClientVerifier,
};

/// The protocols that are offered, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of the client listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerFiles {
    /// The certificate that it presents, with its intermediate certificates.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of the certificates that clients must present.
    pub client_authorities: Option<PathBuf>,
}

/// The TLS configuration from these files.
#[derive(Debug)]
struct CallerMaterial {
    config: Arc<ServerConfig>,
    certificates: Vec<Certificate>,
}

/// The listener's side of TLS.
#[derive(Debug)]
pub struct CallerTls(Reloaded<CallerMaterial>);

impl CallerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// When they can't be used.
    pub fn open(files: CallerFiles) -> Result<Self, String> {
        let CallerFiles { certificate, key, client_authorities } = &files;
        let all = [certificate, key].into_iter().chain(client_authorities).cloned().collect();
        Reloaded::new(all, move || load(&files)).map(Self)
    }

    /// The configuration of new connections.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.current().config)
    }

    /// The certificates in use: this node's own first.
    #[must_use]
    pub fn certificates(&self) -> Vec<Certificate> {
        self.0.current().certificates.clone()
    }

    /// Reads the files again if they have changed: see `Reloaded::look`.
    pub fn look(&self) -> Option<Result<(), String>> {
        self.0.look(|before, now| refuse_invalid(&before.certificates, &now.certificates))
    }
}

fn load(files: &CallerFiles) -> Result<CallerMaterial, String> {
    let own = read_certified_key(&files.certificate, &files.key)?;
    let mut certificates =
        vec![Certificate::parse(own.end_entity_cert().map_err(|error| error.to_string())?)?];
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| error.to_string())?;
    let (builder, is_mutual) = match &files.client_authorities {
        None => (builder.with_no_client_auth(), false),
        Some(path) => {
            let (roots, authorities) = read_authorities(path)?;
            certificates.extend(authorities);
            let verifier = ClientVerifier::new(roots);
            let verifier = verifier.map_err(|error| format!("{}: {error}", path.display()))?;
            (builder.with_client_cert_verifier(Arc::new(verifier)), true)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    if is_mutual {
        // A resumed session presents no certificate, which may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(CallerMaterial { config: Arc::new(config), certificates })
}
