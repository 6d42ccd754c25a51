//! Encryption at rest: the data keys, and the keys that backups are encrypted and signed with before they leave the node.
//!
//! **Invariant:** a node uses no file of a secret that others may change, and no file of a data key or signing key that
//! others may read.

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::{
    ServeArgs,
    secrets::{Strictness, check_access},
};
use concord_storage::snapshot::envelope::Envelope;

/// The encryption of the data directory, and of backups.
#[derive(Debug, Clone, Default, Args)]
pub struct AtRestArgs {
    /// A file of data keys; the data directory is encrypted with the first one. The node reads the file again when it changes
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    pub data_key_file: Option<PathBuf>,
    /// Recipients that every backup of this node is encrypted to, comma-separated, as `concord keygen identity` or
    /// age-keygen prints them
    #[arg(long, env = "CONCORD_BACKUP_RECIPIENTS", value_delimiter = ',', value_name = "LIST")]
    pub backup_recipients: Vec<String>,
    /// The file of the key that this node signs its encrypted backups with
    #[arg(long, env = "CONCORD_BACKUP_SIGNING_KEY_FILE", value_name = "FILE")]
    pub backup_signing_key_file: Option<PathBuf>,
}

/// The checked settings of encryption at rest.
#[derive(Debug, Clone, Default)]
pub struct AtRestSettings {
    /// The file of data keys.
    pub data_key_file: Option<PathBuf>,
    /// The keys that backups are encrypted and signed with; without them backups are unencrypted.
    pub backups: Option<Arc<Envelope>>,
}

impl AtRestArgs {
    /// The settings, without those that are empty; the signing key is read.
    ///
    /// # Errors
    /// In one line: a recipient is invalid, the file holds no signing key, or one of the two is given without the other.
    pub(super) fn check(self) -> Result<AtRestSettings, String> {
        let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let recipients: Vec<String> =
            self.backup_recipients.into_iter().filter(|text| !text.trim().is_empty()).collect();
        let backups = match (recipients.is_empty(), given(self.backup_signing_key_file)) {
            (true, None) => None,
            (false, Some(path)) => Some(Arc::new(Envelope::read(&recipients, &path)?)),
            (true, Some(_)) => {
                return Err(
                    "--backup-signing-key-file is for encrypted backups: set --backup-recipients too".into(),
                );
            }
            (false, None) => {
                return Err("encrypted backups are signed: set --backup-signing-key-file too".into());
            }
        };
        Ok(AtRestSettings { data_key_file: given(self.data_key_file), backups })
    }
}

/// Checks that others have no access to the files that hold secrets.
///
/// # Errors
/// In one line: others have, or a file can't be read.
pub(super) fn check_files(args: &ServeArgs) -> Result<(), String> {
    let files = [
        ("--api-key-file", &args.key.api_key_file, Strictness::Warn),
        ("--cluster-secret-file", &args.cluster_secret_file, Strictness::Warn),
        ("--data-key-file", &args.at_rest.data_key_file, Strictness::Refuse),
        ("--backup-signing-key-file", &args.at_rest.backup_signing_key_file, Strictness::Refuse),
    ];
    let given = files.iter().filter_map(|(flag, path, strictness)| Some((flag, path.as_ref()?, strictness)));
    let mut named = given.filter(|(_, path, _)| !path.as_os_str().is_empty());
    named.try_for_each(|(flag, path, strictness)| check_access(flag, path, *strictness))?;
    // An orchestrator may mount these so that everybody in the container reads them. One that is missing is named by
    // who reads it.
    let keys = [("--tls-key-file", &args.tls.tls_key_file), ("--peer-key-file", &args.tls.peer_key_file)];
    let given = keys.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
    let mut there = given.filter(|(_, path)| path.exists());
    there.try_for_each(|(flag, path)| check_access(flag, path, Strictness::Warn))
}
