//! `concord cert`: creates a certificate authority (CA) and node certificates, and shows certificates.
//!
//! Keys are ECDSA on P-256, which every client supports. The CA may sign node certificates and no other CA. A node
//! certificate is valid for both ends of a connection, because nodes are servers and clients.
//!
//! **Invariants:** nothing is overwritten. Only the owner can read a key file, from the moment it exists.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::output::{Columns, OutputArgs};
use concord_net::{
    NodeId,
    tls::{
        certificate::Certificate,
        files,
        name::{NodeName, check_cluster},
    },
};
use concord_service::{self as service};

/// The name of a CA's files.
const AUTHORITY: &str = "ca";
/// How long before now a certificate becomes valid: the clocks of the nodes differ.
const EARLIER: Duration = Duration::hours(1);
/// Maximum validity, in days: a hundred years, far within the range of dates.
const DAYS_MAX: u32 = 36_500;

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum CertCommand {
    /// Create a certificate authority (CA): ca.pem for every node, and ca.key to sign certificates with
    Ca(AuthorityArgs),
    /// Create a node's certificate: node-ID.pem and node-ID.key
    Node(NodeCertificateArgs),
    /// Show certificates: subject, expiry, serial number and fingerprint
    Show {
        /// A file of certificates in PEM
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        format: OutputArgs,
    },
}

/// The columns of certificates.
pub(super) const COLUMNS: Columns = Columns {
    name: "file",
    narrow: &[
        ("FILE", "/file"),
        ("SUBJECT", "/subject"),
        ("ENDS", "/ends"),
        ("DAYS LEFT", "/days_left"),
        ("EXPIRED", "/is_expired"),
    ],
    wide: &[("NAMES", "/names"), ("SERIAL", "/serial"), ("FINGERPRINT", "/fingerprint"), ("KEY", "/key")],
};

impl CertCommand {
    /// How to print.
    pub(super) fn format(&self) -> &OutputArgs {
        match self {
            Self::Ca(args) => &args.format,
            Self::Node(args) => &args.format,
            Self::Show { format, .. } => format,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct AuthorityArgs {
    /// The name of the cluster in its certificates, in the form of a host name
    #[arg(long, default_value = "concord", value_name = "NAME")]
    pub(super) cluster: String,
    /// The directory for ca.pem and ca.key
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Validity, in days
    #[arg(long, default_value_t = 3650, value_parser = days(), value_name = "N")]
    pub(super) days: u32,
    #[command(flatten)]
    pub(super) format: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct NodeCertificateArgs {
    /// The id of the node
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) id: NodeId,
    /// The directory of the CA
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) ca: PathBuf,
    /// The directory for the certificate and its key
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(super) out: PathBuf,
    /// A host name or IP address by which clients reach the node; repeatable. The certificate is then also valid for the
    /// client listener
    #[arg(long = "host", value_name = "HOST")]
    pub(super) hosts: Vec<String>,
    /// Validity, in days
    #[arg(long, default_value_t = 365, value_parser = days(), value_name = "N")]
    pub(super) days: u32,
    #[command(flatten)]
    pub(super) format: OutputArgs,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX))
}

/// Carries the command out.
///
/// # Errors
/// When a file is there already, can't be written or read, or holds no certificate.
pub(super) fn run(command: CertCommand) -> Result<Value, String> {
    match command {
        CertCommand::Ca(args) => authority(&args),
        CertCommand::Node(args) => node(&args),
        CertCommand::Show { files, .. } => show(&files),
    }
}

/// Creates a CA and the certificates of the nodes from 1 on, all valid for these hosts.
///
/// # Errors
/// When a file is there already or can't be written.
pub(super) fn make_for(folder: &Path, cluster: &str, nodes: usize, hosts: &[&str]) -> Result<(), String> {
    let format = OutputArgs::default();
    let (cluster, out, days) = (cluster.to_owned(), folder.to_owned(), 365);
    authority(&AuthorityArgs { cluster, out, days, format: format.clone() })?;
    for id in (1..).take(nodes) {
        let (ca, out) = (folder.to_owned(), folder.to_owned());
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        node(&NodeCertificateArgs { id, ca, out, hosts, days, format: format.clone() })?;
    }
    Ok(())
}

fn authority(args: &AuthorityArgs) -> Result<Value, String> {
    check_cluster(&args.cluster)?;
    let mut params = params(&args.cluster, args.days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let certificate = params.self_signed(&key).map_err(|error| error.to_string())?;
    write(&args.out, AUTHORITY, &certificate.pem(), &key)
}

fn node(args: &NodeCertificateArgs) -> Result<Value, String> {
    let (certificate_file, key_file) = names(&args.ca, AUTHORITY);
    let authorities = files::read_certificates(&certificate_file)?;
    let [authority] = authorities.as_slice() else {
        return Err(format!("{} contains more than one certificate", certificate_file.display()));
    };
    // The key must be that of the certificate.
    files::read_certified_key(&certificate_file, &key_file)?;
    let failed = |error: rcgen::Error| format!("{}: {error}", key_file.display());
    let pem = String::from_utf8_lossy(&files::read(&key_file)?).into_owned();
    let issuer =
        Issuer::from_ca_cert_der(authority, KeyPair::from_pem(&pem).map_err(failed)?).map_err(failed)?;
    let read = Certificate::parse(authority)?;
    let cluster = read.subject.strip_prefix("CN=").unwrap_or_default();
    check_cluster(cluster).map_err(|error| format!("{}: {error}", certificate_file.display()))?;
    let name = NodeName { node: args.id, cluster: cluster.to_owned() };
    let mut params = params(&name.to_string(), args.days)?;
    for host in &args.hosts {
        if NodeName::parse(host).is_some() {
            return Err(format!(
                "`{host}` is the name of a node in the cluster's certificates, not a host name"
            ));
        }
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => rcgen::SanType::IpAddress(address),
            Err(_) => rcgen::SanType::DnsName(
                host.as_str().try_into().map_err(|error| format!("`{host}`: {error}"))?,
            ),
        });
    }
    let own = name.to_string().as_str().try_into().map_err(|error| format!("`{name}`: {error}"))?;
    params.subject_alt_names.insert(0, rcgen::SanType::DnsName(own));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let certificate = params.signed_by(&key, &issuer).map_err(|error| error.to_string())?;
    write(&args.out, &format!("node-{}", args.id), &certificate.pem(), &key)
}

fn params(name: &str, days: u32) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    let now = i64::try_from(service::now().0 / 1_000_000).map_err(|error| error.to_string())?;
    let now = OffsetDateTime::from_unix_timestamp(now).map_err(|error| error.to_string())?;
    params.not_before = now - EARLIER;
    params.not_after = now + Duration::days(i64::from(days));
    Ok(params)
}

/// The files of a certificate and its key.
fn names(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")))
}

/// Writes a certificate and its key, and returns their description.
fn write(directory: &Path, name: &str, pem: &str, key: &KeyPair) -> Result<Value, String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let (certificate_file, key_file) = names(directory, name);
    // If one exists, neither is written: they would not match.
    for path in [&certificate_file, &key_file] {
        if path.try_exists().map_err(|error| format!("{}: {error}", path.display()))? {
            return Err(format!("{} already exists", path.display()));
        }
    }
    create(&key_file, 0o600, &key.serialize_pem())?;
    create(&certificate_file, 0o644, pem)?;
    let mut shown = describe(&certificate_file)?;
    shown.iter_mut().for_each(|one| one["key"] = json!(key_file));
    Ok(shown.pop().unwrap_or_default())
}

fn create(path: &Path, mode: u32, text: &str) -> Result<(), String> {
    let written = || -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    written().map_err(|error| format!("{}: {error}", path.display()))
}

fn show(files: &[PathBuf]) -> Result<Value, String> {
    let mut shown = Vec::new();
    for file in files {
        shown.extend(describe(file)?);
    }
    Ok(Value::Array(shown))
}

/// What the certificates of a file say.
fn describe(file: &Path) -> Result<Vec<Value>, String> {
    let describe = |der: &_| -> Result<Value, String> {
        let certificate = Certificate::parse(der)?;
        // The last day is day 0; after it the number is negative.
        let left = i128::from(certificate.ends.0) - i128::from(service::now().0);
        let days = left.div_euclid(24 * 60 * 60 * 1_000_000);
        Ok(json!({
            "file": file,
            "subject": certificate.subject,
            "issuer": certificate.issuer,
            "is_authority": certificate.is_authority,
            "names": certificate.names,
            "begins": certificate.begins.to_string(),
            "ends": certificate.ends.to_string(),
            "is_expired": left <= 0,
            "days_left": i64::try_from(days).unwrap_or(i64::MAX),
            "serial": certificate.serial,
            "fingerprint": certificate.fingerprint,
        }))
    };
    files::read_certificates(file)?.iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use concord_net::tls::nodes::{Mode, NodeFiles, NodeTls};

    fn made(directory: &Path, cluster: &str) -> Result<Value, String> {
        authority(&AuthorityArgs {
            cluster: cluster.into(),
            out: directory.into(),
            days: 10,
            format: OutputArgs::default(),
        })
    }

    fn node_args(id: NodeId, directory: &Path, hosts: &[&str]) -> NodeCertificateArgs {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let (ca, out) = (directory.into(), directory.into());
        NodeCertificateArgs { id, ca, out, hosts, days: 2, format: OutputArgs::default() }
    }

    #[test]
    fn a_node_takes_the_certificate_that_is_made_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let shown = made(directory.path(), "a.example").unwrap();
        assert_eq!(shown["is_authority"], true);
        let shown = node(&node_args(3, directory.path(), &["localhost", "127.0.0.1", "::1"])).unwrap();
        assert_eq!(shown["names"], json!(["node-3.a.example", "localhost", "127.0.0.1", "::1"]));
        assert_eq!((&shown["subject"], &shown["days_left"]), (&json!("CN=node-3.a.example"), &json!(1)));
        let path = |name: &str| directory.path().join(name);
        for (name, mode) in [("ca.key", 0o600), ("node-3.key", 0o600)] {
            assert_eq!(fs::metadata(path(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
        let files = NodeFiles {
            certificate: path("node-3.pem"),
            key: path("node-3.key"),
            authorities: path("ca.pem"),
            revoked: None,
        };
        let open = |node| NodeTls::open(files.clone(), node, Mode::Required);
        assert_eq!(open(3).unwrap().certificates().len(), 2);
        assert!(open(4).unwrap_err().contains("but this is node 4"));
        let text = node(&node_args(3, directory.path(), &[])).unwrap_err();
        assert!(text.contains("already exists"), "{text}");
        assert!(made(directory.path(), "b").unwrap_err().contains("already exists"));
        let listed = show(&[path("ca.pem"), path("node-3.pem")]).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 2);
    }

    #[test]
    fn what_can_not_be_named_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(made(directory.path(), "Not A Name").is_err());
        made(directory.path(), "a").unwrap();
        assert!(node(&node_args(1, directory.path(), &["node-2.a"])).unwrap_err().contains("name of a node"));
        assert!(node(&node_args(1, &directory.path().join("none"), &[])).is_err());
        assert!(show(&[directory.path().join("ca.key")]).unwrap_err().contains("no certificate"));
    }
}
