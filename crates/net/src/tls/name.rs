//! The name of a node in its certificate: `node-<id>.<cluster>`.
//!
//! `<cluster>` is chosen with the certificate authority (`concord cert ca`), before there is a cluster. It is not the id
//! that a cluster draws when it is bootstrapped: each RPC has that id, and an RPC of another cluster is rejected even if
//! the authority and the name are the same.
//!
//! **Invariant:** a certificate that does not name exactly one node of one cluster is no certificate of a node.

use std::fmt;

use rustls::pki_types::{CertificateDer, ServerName};

use super::certificate::Certificate;
use crate::NodeId;

const PREFIX: &str = "node-";
/// Longest name of a cluster: with the node's id it is a name of DNS.
const CLUSTER_BYTES_MAX: usize = 200;

/// A node as a certificate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The node.
    pub node: NodeId,
    /// The cluster's name.
    pub cluster: String,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}", self.node, self.cluster)
    }
}

impl NodeName {
    /// Reads a name; `None` when it is no node's.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (node, cluster) = name.strip_prefix(PREFIX)?.split_once('.')?;
        check_cluster(cluster).ok()?;
        let id = node.parse().ok().filter(|id: &NodeId| *id > 0 && id.to_string() == node)?;
        Some(Self { node: id, cluster: cluster.to_owned() })
    }

    /// The one node that a certificate names.
    ///
    /// # Errors
    /// When it names none or several.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let certificate = Certificate::parse(certificate)?;
        let mut names = certificate.names.iter().filter_map(|name| Self::parse(name));
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name),
            (None, _) => Err(format!("the certificate of {} names no node", certificate.subject)),
            (Some(_), Some(_)) => {
                Err(format!("the certificate of {} names several nodes", certificate.subject))
            }
        }
    }

    /// The same for TLS.
    pub(super) fn to_server_name(&self) -> Result<ServerName<'static>, String> {
        ServerName::try_from(self.to_string()).map_err(|error| format!("`{self}`: {error}"))
    }
}

/// Checks the name of a cluster.
///
/// # Errors
/// When it can't be a part of a certificate's names.
pub fn check_cluster(name: &str) -> Result<(), String> {
    let is_label = |label: &str| {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() <= CLUSTER_BYTES_MAX && name.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is not a valid cluster name: use lower-case letters, digits, `-` and `.`, as in a host name"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_round_trips() {
        let name = NodeName { node: 12, cluster: "prod.example".into() };
        assert_eq!(name.to_string(), "node-12.prod.example");
        assert_eq!(NodeName::parse("node-12.prod.example"), Some(name));
        for wrong in [
            "node-12",
            "node-0.a",
            "node-01.a",
            "node-+1.a",
            "node-1.",
            "node-1.A",
            "node-1.-a",
            "1.a",
            "*.a",
        ] {
            assert_eq!(NodeName::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_certificate_names_exactly_one_node() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let key = rcgen::KeyPair::generate().unwrap();
            NodeName::of(rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap().der())
        };
        assert_eq!(of(&["localhost", "node-3.a"]).unwrap(), NodeName { node: 3, cluster: "a".into() });
        assert!(of(&["localhost"]).unwrap_err().contains("no node"));
        assert!(of(&["node-3.a", "node-4.a"]).unwrap_err().contains("several"));
    }
}
