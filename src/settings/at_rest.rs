//! What protects data on a disk: the file of data keys, and what backups are encrypted and signed with before they leave
//! the node.
//!
//! **Invariant:** a file that holds a secret is this user's alone before it is used.

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::{
    ServeArgs,
    private_file::{self, Strictness},
};
use concord_storage::snapshot::envelope::Envelope;

/// The encryption of the data directory, and of backups.
#[derive(Debug, Clone, Default, Args)]
pub struct AtRestArgs {
    /// A file of data keys: the data directory is encrypted under the first one. It is read again while the node runs
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    pub data_key_file: Option<PathBuf>,
    /// Encrypts every backup that this node hands out to these recipients, as `concord keygen identity` or age-keygen
    /// prints them, with commas between
    #[arg(long, env = "CONCORD_BACKUP_RECIPIENTS", value_delimiter = ',', value_name = "LIST")]
    pub backup_recipients: Vec<String>,
    /// A file that holds the key that this node signs its encrypted backups with
    #[arg(long, env = "CONCORD_BACKUP_SIGNING_KEY_FILE", value_name = "FILE")]
    pub backup_signing_key_file: Option<PathBuf>,
}

/// What protects data on a disk, checked.
#[derive(Debug, Clone, Default)]
pub struct AtRestSettings {
    /// The file of data keys.
    pub data_key_file: Option<PathBuf>,
    /// What backups are encrypted and signed with; none where they are handed out in clear.
    pub backups: Option<Arc<Envelope>>,
}

impl AtRestArgs {
    /// The settings, without those that are empty; the signing key is read.
    ///
    /// # Errors
    /// In one line: a recipient is none, the file holds no signing key, or one of the two is given without the other.
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

/// Takes from others what they may do with the files that hold secrets.
pub(super) fn protect_files(args: &ServeArgs) -> Result<(), String> {
    let files = [
        ("--api-key-file", &args.key.api_key_file, Strictness::Warn),
        ("--cluster-secret-file", &args.cluster_secret_file, Strictness::Warn),
        ("--data-key-file", &args.at_rest.data_key_file, Strictness::Refuse),
        ("--backup-signing-key-file", &args.at_rest.backup_signing_key_file, Strictness::Refuse),
    ];
    let given = files.iter().filter_map(|(flag, path, strictness)| Some((flag, path.as_ref()?, strictness)));
    let mut named = given.filter(|(_, path, _)| !path.as_os_str().is_empty());
    named.try_for_each(|(flag, path, strictness)| private_file::protect(flag, path, *strictness))?;
    // An orchestrator may mount these so that everybody in the container reads them. One that is missing is named by
    // who reads it.
    let keys = [("--tls-key-file", &args.tls.tls_key_file), ("--peer-key-file", &args.tls.peer_key_file)];
    let given = keys.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
    let mut there = given.filter(|(_, path)| path.exists());
    there.try_for_each(|(flag, path)| private_file::protect(flag, path, Strictness::Warn))
}
