//! The command `keygen`: generates keys for data at rest and for backups, each in its own file.
//!
//! **Invariant:** an existing file is never overwritten, and only the user can read a new one.

use std::{fs::File, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::output::Columns;
use concord_storage::{at_rest, snapshot::envelope};

/// The public parts of keys; one of them has a value.
pub(super) const COLUMNS: Columns = Columns {
    name: "recipient",
    narrow: &[("DATA KEY", "/data_key"), ("SIGNER", "/signer"), ("RECIPIENT", "/recipient")],
    wide: &[],
};

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KeyUse {
    /// Encrypts data directories; a line of the file for --data-key-file
    Data,
    /// Signs backups; the file for --signing-key
    Signing,
    /// Decrypts backups; the file for --identity
    Identity,
}

/// Generates a key, writes it to a new file, and returns its public part.
///
/// # Errors
/// When the file exists or can't be written.
pub(super) fn make(kind: KeyUse, path: &Path) -> Result<Value, String> {
    let (secret, shown) = match kind {
        KeyUse::Data => {
            let (secret, id) = at_rest::new_data_key()?;
            (secret, json!({ "data_key": id.to_string() }))
        }
        KeyUse::Signing => {
            let (secret, signer) = envelope::new_signing_key()?;
            (secret, json!({ "signer": signer.to_string() }))
        }
        KeyUse::Identity => {
            let (secret, recipient) = envelope::new_identity()?;
            (secret, json!({ "recipient": recipient }))
        }
    };
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(secret.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_written_once_and_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        for (kind, name) in
            [(KeyUse::Data, "data_key"), (KeyUse::Signing, "signer"), (KeyUse::Identity, "recipient")]
        {
            let path = directory.path().join(name);
            let shown = make(kind, &path).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains(shown[name].as_str().unwrap()), "{shown}");
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(make(kind, &path).is_err(), "it exists");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
