//! The settings of TLS, and whether a listener may do without it.
//!
//! **Invariant:** a listener that other machines reach is encrypted, unless the settings allow an unencrypted one.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, ValueEnum};

use concord_net::tls::{
    callers::CallerFiles,
    nodes::{Mode, NodeFiles},
};

/// Whether unencrypted RPCs are possible although nodes have certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeerMode {
    /// TLS only
    Required,
    /// TLS, and unencrypted RPCs to and from nodes without certificates
    Migrate,
}

/// The files of TLS.
#[derive(Debug, Clone, Args)]
pub struct TlsArgs {
    /// The certificate of the client listener, in PEM, with the intermediate certificates
    #[arg(long, env = "CONCORD_TLS_CERT_FILE", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, env = "CONCORD_TLS_KEY_FILE", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,
    /// The CAs of the certificates that clients must present; by default clients present none
    #[arg(long, env = "CONCORD_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,
    /// The certificate of this node for peer RPCs: it names `node-<id>.<cluster>`
    #[arg(long, env = "CONCORD_PEER_CERT_FILE", value_name = "FILE")]
    pub peer_cert_file: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, env = "CONCORD_PEER_KEY_FILE", value_name = "FILE")]
    pub peer_key_file: Option<PathBuf>,
    /// The CA of the nodes' certificates; two while it is replaced
    #[arg(long, env = "CONCORD_PEER_CA_FILE", value_name = "FILE")]
    pub peer_ca_file: Option<PathBuf>,
    /// Revoked certificates of nodes, one serial or fingerprint a line
    #[arg(long, env = "CONCORD_PEER_REVOKED_FILE", value_name = "FILE")]
    pub peer_revoked_file: Option<PathBuf>,
    /// Whether unencrypted RPCs are accepted besides TLS, while a cluster migrates to certificates
    #[arg(long, env = "CONCORD_PEER_TLS", value_enum, default_value = "required", value_name = "MODE")]
    pub peer_tls: PeerMode,
    /// Allow unencrypted listeners that other machines reach
    #[arg(long, env = "CONCORD_INSECURE", value_name = "BOOL")]
    pub insecure: bool,
}

/// The checked settings of TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The files of the client listener; without them it is unencrypted.
    pub callers: Option<CallerFiles>,
    /// The files for peer RPCs; without them RPCs are unencrypted.
    pub nodes: Option<(NodeFiles, Mode)>,
}

impl TlsSettings {
    /// Whether an unencrypted RPC is possible, which proves the cluster secret.
    #[must_use]
    pub fn has_plain_calls(&self) -> bool {
        self.nodes.as_ref().is_none_or(|(_, mode)| *mode == Mode::Migrate)
    }
}

impl TlsArgs {
    /// Checks which files are given, for listeners at these addresses.
    ///
    /// # Errors
    /// When a file is missing beside another, or a listener must be encrypted and is not.
    pub(super) fn check(self, api_addr: &str, peer_addr: &str) -> Result<TlsSettings, String> {
        let callers = match (self.tls_cert_file, self.tls_key_file) {
            (Some(certificate), Some(key)) => {
                Some(CallerFiles { certificate, key, client_authorities: self.tls_client_ca_file })
            }
            (None, None) if self.tls_client_ca_file.is_none() => None,
            _ => return Err("--tls-cert-file and --tls-key-file are given together".into()),
        };
        let nodes = match (self.peer_cert_file, self.peer_key_file, self.peer_ca_file) {
            (Some(certificate), Some(key), Some(authorities)) => {
                let mode = match self.peer_tls {
                    PeerMode::Required => Mode::Required,
                    PeerMode::Migrate => Mode::Migrate,
                };
                Some((NodeFiles { certificate, key, authorities, revoked: self.peer_revoked_file }, mode))
            }
            (None, None, None) if self.peer_revoked_file.is_none() && self.peer_tls == PeerMode::Required => {
                None
            }
            _ => {
                return Err(
                    "--peer-cert-file, --peer-key-file and --peer-ca-file are given together, and before \
                            --peer-revoked-file and --peer-tls"
                        .into(),
                );
            }
        };
        for (flag, address, is_encrypted, files) in [
            ("--api-addr", api_addr, callers.is_some(), "--tls-cert-file and --tls-key-file"),
            (
                "--peer-addr",
                peer_addr,
                nodes.is_some(),
                "--peer-cert-file, --peer-key-file and --peer-ca-file",
            ),
        ] {
            if !is_encrypted && !self.insecure && !is_loopback(address) {
                return Err(format!(
                    "{flag} {address} is reached by other machines, and is not encrypted: give {files} (see \
                     `concord cert --help`), or set CONCORD_INSECURE=true"
                ));
            }
        }
        Ok(TlsSettings { callers, nodes })
    }
}

/// Whether only this machine reaches an address. A host name other than `localhost` may be any address.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_reaches_a_loopback_address() {
        for inside in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LOCALHOST:1"] {
            assert!(is_loopback(inside), "{inside}");
        }
        for outside in
            ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node1:1", "localhost.example:1", "127.0.0.1.example:1"]
        {
            assert!(!is_loopback(outside), "{outside}");
        }
    }
}
