//! What protects data on a disk: the file of data keys.
//!
//! **Invariant:** a file that holds a secret is this user's alone before it is used.

use std::path::PathBuf;

use clap::Args;

use super::{
    ServeArgs,
    private_file::{self, Strictness},
};

/// The encryption of the data directory.
#[derive(Debug, Clone, Default, Args)]
pub struct AtRestArgs {
    /// A file of data keys: the data directory is encrypted under the first one. It is read again while the node runs
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    pub data_key_file: Option<PathBuf>,
}

impl AtRestArgs {
    /// The settings, without those that are empty.
    pub(super) fn check(self) -> Self {
        Self { data_key_file: self.data_key_file.filter(|path| !path.as_os_str().is_empty()) }
    }
}

/// Takes from others what they may do with the files that hold secrets.
pub(super) fn protect_files(args: &ServeArgs) -> Result<(), String> {
    let files = [
        ("--api-key-file", &args.key.api_key_file, Strictness::Warn),
        ("--cluster-secret-file", &args.cluster_secret_file, Strictness::Warn),
        ("--data-key-file", &args.at_rest.data_key_file, Strictness::Refuse),
    ];
    let given = files.iter().filter_map(|(flag, path, strictness)| Some((flag, path.as_ref()?, strictness)));
    let mut named = given.filter(|(_, path, _)| !path.as_os_str().is_empty());
    named.try_for_each(|(flag, path, strictness)| private_file::protect(flag, path, *strictness))
}
