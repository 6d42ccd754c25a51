//! Secrets in the settings: given, or in a file. The root keys are read again when their file changes.
//!
//! While the root key is rotated, two are accepted: two in the file, or a second one beside the first.
//!
//! **Invariants:** a secret is shown by nothing but [`Secret::expose`], and its memory is overwritten when it is freed. A
//! file that can't be read, or does not hold one or two keys, changes nothing on a running node. The mode of a file with
//! a secret is never changed: it is its owner's.

use std::{
    fmt, fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use clap::Args;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Shortest key or secret: 16 random characters can't be guessed over a network.
const SECRET_BYTES_MIN: usize = 16;
/// How errors name the settings of the root key.
const ROOT_KEY_NAMES: SecretNames =
    SecretNames { flag: "--api-key", file_flag: "--api-key-file", env: "CONCORD_API_KEY" };
/// How errors name the settings of the second root key, which has no file.
const SECOND_KEY_NAMES: SecretNames =
    SecretNames { flag: "--second-api-key", file_flag: "", env: "CONCORD_SECOND_API_KEY" };
/// Root keys that are accepted at once.
const ROOT_KEYS_MAX: usize = 2;

/// A secret, which `Debug` does not show, and whose memory is overwritten when it is freed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) Zeroizing<String>);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

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
        let keys = read_secrets(given, self.api_key_file.as_ref(), &ROOT_KEY_NAMES)?;
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
    /// The secrets of the nodes, which no client may have.
    forbidden: Vec<Secret>,
}

impl RootKeys {
    pub(super) fn new(args: KeyArgs, second: Option<Secret>, forbidden: Vec<Secret>) -> Self {
        Self { args, second: second.filter(|key| !key.0.is_empty()), forbidden }
    }

    /// Overwrites the secrets that are not needed to read the file again.
    pub(super) fn forget(&mut self) {
        if !self.are_in_a_file() {
            self.args.api_key = None;
            self.second = None;
            self.forbidden.clear();
        }
    }

    /// Whether they can change while the node runs.
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
            keys.extend(read_secrets(vec![second.clone()], None, &SECOND_KEY_NAMES)?);
        }
        if keys.iter().any(|key| self.forbidden.contains(key)) {
            return Err("--cluster-secret and --api-key must differ: a client must not act as a node".into());
        }
        Ok(keys)
    }
}

/// A digest to compare two lists of keys by, without the keys.
#[must_use]
pub fn digest_of(keys: &[Secret]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for key in keys {
        digest.update(Sha256::digest(key.expose().as_bytes()));
    }
    digest.finalize().into()
}

/// How errors name the settings of a secret.
pub(super) struct SecretNames {
    pub(super) flag: &'static str,
    pub(super) file_flag: &'static str,
    pub(super) env: &'static str,
}

/// The secrets that were given, or those in a file, one per line or comma-separated.
pub(super) fn read_secrets(
    given: Vec<Secret>,
    file: Option<&PathBuf>,
    names: &SecretNames,
) -> Result<Vec<Secret>, String> {
    let SecretNames { flag, file_flag, env } = names;
    let secrets = match (given.is_empty(), file) {
        (false, Some(_)) => return Err(format!("{flag} and {file_flag} are both set; give one of them")),
        (false, None) => given,
        (true, None) => return Err(format!("set {flag}, {file_flag} or {env}: there is no default")),
        (true, Some(path)) => {
            let text = fs::read_to_string(path)
                .map_err(|error| format!("{file_flag} {}: {error}", path.display()))?;
            let text = Zeroizing::new(text);
            text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()).map(Secret::from).collect()
        }
    };
    if secrets.is_empty() {
        return Err(format!("the file of {file_flag} is empty"));
    }
    for secret in &secrets {
        if secret.0.len() < SECRET_BYTES_MIN {
            return Err(format!("{flag} has {} characters, but needs {SECRET_BYTES_MIN}", secret.0.len()));
        }
        if !secret.0.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{flag} may hold visible ASCII characters only"));
        }
    }
    Ok(secrets)
}

/// What a group and others must not have: the group may read, because secrets are often handed out to a group.
const REFUSED: u32 = 0o027;
/// Others can replace the secret.
const FOREIGN_WRITE: u32 = 0o022;

/// Whether to reject a file that others may read. One that others may change is always rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    Refuse,
    /// For files that others hand out: it is logged.
    Warn,
}

/// Checks that this user can read a file with a secret, and that others have no access to it. Its mode is its owner's to
/// change.
///
/// # Errors
/// In one line: it cannot be read, others may change it, or others may read it and `strictness` forbids that.
pub(crate) fn check_access(flag: &str, path: &Path, strictness: Strictness) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{flag} {}: {error}", path.display()))?;
    let mode = metadata.permissions().mode() & 0o7777;
    // The mode of a device or a pipe says nothing about a secret: it holds none, or one that is read once.
    if !metadata.is_file() {
        return Ok(());
    }
    let shown = path.display();
    if let Err(error) = fs::File::open(path) {
        let user = rustix::process::geteuid().as_raw();
        return Err(format!(
            "{flag} {shown}: {error}. This node runs as user {user}, and the file has owner {}, group {} and mode \
             {mode:o}: let its group read it, with `chgrp` and `chmod 640`",
            metadata.uid(),
            metadata.gid()
        ));
    }
    if mode & REFUSED == 0 {
        return Ok(());
    }
    let access = if mode & FOREIGN_WRITE == 0 { "read" } else { "change" };
    let text = format!(
        "{flag} {shown} holds a secret that others may {access} (mode {mode:o}): `chmod 600 {shown}`"
    );
    if strictness == Strictness::Refuse || mode & FOREIGN_WRITE != 0 {
        return Err(text);
    }
    tracing::warn!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

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

    #[test]
    fn a_file_that_others_may_use_is_refused_or_logged_and_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, b"secret").unwrap();
        for (mode, is_refused, is_always_refused) in [
            (0o600, false, false),
            (0o400, false, false),
            (0o440, false, false),
            (0o640, false, false),
            (0o644, true, false),
            (0o604, true, false),
            (0o660, true, true),
            (0o666, true, true),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for (strictness, is_refused) in
                [(Strictness::Refuse, is_refused), (Strictness::Warn, is_always_refused)]
            {
                let checked = check_access("--secret-file", &path, strictness);
                assert_eq!(checked.is_err(), is_refused, "{mode:o} {strictness:?}");
                let why = checked.err().unwrap_or_else(|| "--secret-file: chmod 600".into());
                assert!(why.starts_with("--secret-file") && why.contains("chmod 600"), "{why}");
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            }
        }
        let missing = check_access("--secret-file", &directory.path().join("missing"), Strictness::Warn);
        assert!(missing.unwrap_err().starts_with("--secret-file"));
    }

    #[test]
    fn what_is_no_regular_file_is_not_judged_by_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null")] {
            let mode = || fs::metadata(path).unwrap().permissions().mode();
            let before = mode();
            check_access("--secret-file", path, Strictness::Refuse).unwrap();
            assert_eq!(mode(), before);
        }
        let args = KeyArgs { api_key: None, api_key_file: Some("/dev/null".into()) };
        assert_eq!(args.read().unwrap_err(), "the file of --api-key-file is empty");
    }
}
