//! The root key: given, or in a file that is read again when it changes.
//!
//! While the root key is rotated, two are accepted: two in the file, or a second one beside the first.
//!
//! **Invariant:** a file that can't be read, or holds something else than one or two keys, changes nothing on a node that
//! runs.

use std::path::PathBuf;

use clap::Args;
use sha2::{Digest as _, Sha256};

use super::{Secret, read_secrets};

/// How the settings of the root key are named in errors.
const NAMES: [&str; 3] = ["--api-key", "--api-key-file", "CONCORD_API_KEY"];
/// Root keys that are accepted at once.
const ROOT_KEYS_MAX: usize = 2;

/// The credential of a request: a key, or the file that holds it.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// The root key, at least 16 characters; for a command, the access key to use
    #[arg(long, env = "CONCORD_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<Secret>,
    /// A file that holds the key; a node reads it again when it changes, and it may hold two root keys
    #[arg(long, env = "CONCORD_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// The key to use for a request: the first one.
    ///
    /// # Errors
    /// When there is none, or more than two.
    pub fn read(&self) -> Result<Secret, String> {
        self.read_all().map(|mut keys| keys.swap_remove(0))
    }

    /// All keys: one or two.
    pub(super) fn read_all(&self) -> Result<Vec<Secret>, String> {
        let given = self.api_key.iter().filter(|key| !key.0.is_empty()).cloned().collect();
        let keys = read_secrets(given, self.api_key_file.as_ref(), NAMES)?;
        if keys.len() > ROOT_KEYS_MAX {
            return Err(format!(
                "the file of --api-key-file must hold one key, or two: it holds {}",
                keys.len()
            ));
        }
        Ok(keys)
    }
}

/// The root keys that a node accepts.
#[derive(Debug, Clone)]
pub struct RootKeys {
    args: KeyArgs,
    /// Another root key, beside the first.
    second: Option<Secret>,
    /// What no caller may have: the secrets of the nodes.
    forbidden: Vec<Secret>,
}

impl RootKeys {
    pub(super) fn new(args: KeyArgs, second: Option<Secret>, forbidden: Vec<Secret>) -> Self {
        Self { args, second: second.filter(|key| !key.0.is_empty()), forbidden }
    }

    /// Overwrites what is not needed to read the file again.
    pub(super) fn forget(&mut self) {
        if !self.are_in_a_file() {
            self.args.api_key = None;
            self.second = None;
            self.forbidden.clear();
        }
    }

    /// Whether they may change while the node runs.
    #[must_use]
    pub fn are_in_a_file(&self) -> bool {
        self.args.api_key_file.is_some()
    }

    /// The keys, as they are now.
    ///
    /// # Errors
    /// Why they can't be used, in one line.
    pub fn read(&self) -> Result<Vec<Secret>, String> {
        let mut keys = self.args.read_all()?;
        if let Some(second) = &self.second {
            keys.extend(read_secrets(vec![second.clone()], None, ["--second-api-key", "", ""])?);
        }
        if keys.iter().any(|key| self.forbidden.contains(key)) {
            return Err("--cluster-secret and --api-key must differ: a caller must not act as a node".into());
        }
        Ok(keys)
    }
}

/// By what two lists of keys are compared, without the keys.
#[must_use]
pub fn digest_of(keys: &[Secret]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for key in keys {
        digest.update(Sha256::digest(key.expose().as_bytes()));
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEY: &str = "a-root-key-of-length";

    #[test]
    fn a_file_holds_one_key_or_two_and_may_change() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let args = KeyArgs { api_key: None, api_key_file: Some(file.clone()) };
        let keys = RootKeys::new(args, None, vec![Secret::from("the-cluster-secret-x")]);
        assert!(keys.are_in_a_file() && keys.read().is_err(), "no file yet");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            keys.read().map(|keys| keys.iter().map(|key| key.expose().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(read(KEY).unwrap(), [KEY]);
        assert_eq!(read(&format!("{KEY}-new\n{KEY}\n")).unwrap(), [&format!("{KEY}-new"), KEY]);
        assert!(read(&format!("{KEY}\n{KEY}2\n{KEY}3")).unwrap_err().contains("holds 3"));
        assert!(read("short").is_err() && read("").is_err());
        assert!(read("the-cluster-secret-x").unwrap_err().contains("must differ"));
    }

    #[test]
    fn a_second_key_is_given_beside_the_first() {
        let args = KeyArgs { api_key: Some(Secret::from(KEY)), api_key_file: None };
        let keys = |second: &str| RootKeys::new(args.clone(), Some(Secret::from(second)), vec![]).read();
        assert_eq!(keys("another-root-key-xx").unwrap().len(), 2);
        assert_eq!(keys("").unwrap().len(), 1, "an empty setting is none");
        assert!(keys("short").unwrap_err().contains("--second-api-key"));
        assert_eq!(args.read().unwrap().expose(), KEY);
    }
}
