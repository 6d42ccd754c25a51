//! Certificates for the nodes of a test, as `concord cert` makes them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{Node, node::BINARY};

/// The authority of a cluster, in a directory of its own.
#[derive(Debug, Clone)]
pub(crate) struct Authority {
    pub(crate) directory: PathBuf,
}

/// Runs the binary and returns what it prints.
pub(crate) fn cert(arguments: &[&str]) -> Result<Value, String> {
    let output =
        Command::new(BINARY.as_path()).arg("cert").args(arguments).output().expect("it can be started");
    if output.status.success() {
        return serde_json::from_slice(&output.stdout).map_err(|error| error.to_string());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ASCII")
}

impl Authority {
    /// A new authority for the cluster `test`, below `root`.
    pub(crate) fn new(root: &Path, name: &str) -> Self {
        let directory = root.join(name);
        cert(&["ca", "--cluster", "test", "--out", text(&directory)]).expect("an authority is made");
        Self { directory }
    }

    /// The file of its certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// The files of a new certificate of a node, in a directory of their own. It is good for callers on this machine.
    pub(crate) fn certify(&self, id: u64, to: &str, more: &[&str]) -> (PathBuf, PathBuf) {
        let (from, out, node) = (text(&self.directory), self.directory.join(to), id.to_string());
        let arguments = ["node", &node, "--ca", from, "--out", text(&out), "--host", "127.0.0.1"];
        cert(&[&arguments[..], more].concat()).expect("a certificate is made");
        (out.join(format!("node-{id}.pem")), out.join(format!("node-{id}.key")))
    }

    /// Lets a node speak mutual TLS with the others.
    pub(crate) fn equip(&self, node: &mut Node) {
        let (certificate, key) = self.certify(node.id, &format!("peer-{}", node.id), &[]);
        for (name, path) in [
            ("CONCORD_PEER_CERT_FILE", certificate),
            ("CONCORD_PEER_KEY_FILE", key),
            ("CONCORD_PEER_CA_FILE", self.certificate()),
            ("CONCORD_PEER_REVOKED_FILE", self.revoked()),
        ] {
            node.settings.insert(name.to_owned(), text(&path).to_owned());
        }
        if !self.revoked().exists() {
            self.revoke(&[]);
        }
    }

    /// Lets a node speak TLS with its callers. The certificate and its key are copied to where they can be replaced.
    pub(crate) fn equip_for_callers(&self, node: &mut Node) {
        let files = self.certify(node.id, &format!("api-{}", node.id), &[]);
        for (name, path) in [("CONCORD_TLS_CERT_FILE", files.0), ("CONCORD_TLS_KEY_FILE", files.1)] {
            node.settings.insert(name.to_owned(), text(&path).to_owned());
        }
        // A file of its own: a test may replace what the nodes trust.
        let trusted = self.directory.join("for-callers.pem");
        std::fs::copy(self.certificate(), &trusted).expect("it can be copied");
        node.settings.insert("CONCORD_CA_FILE".to_owned(), text(&trusted).to_owned());
    }

    fn revoked(&self) -> PathBuf {
        self.directory.join("revoked")
    }

    /// Revokes these certificates, by serial or fingerprint, and no others.
    pub(crate) fn revoke(&self, entries: &[&str]) {
        replace(&self.revoked(), entries.join("\n").as_bytes());
    }
}

/// Puts a new file in the place of another.
pub(crate) fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).expect("it can be written");
    if let Ok(replaced) = std::fs::metadata(path) {
        std::fs::set_permissions(&new, replaced.permissions()).expect("it is ours");
    }
    std::fs::rename(&new, path).expect("it can be replaced");
}
