//! Files with a secret of the operator's: others must not read them, and nobody else may write to them.
//!
//! **Invariant:** a file is only ever made less accessible.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// What a group and others must not have: the group may read, because secrets are often handed out to a group.
const REFUSED: u32 = 0o027;
/// Others can replace the secret.
const FOREIGN_WRITE: u32 = 0o022;

/// Whether a file that others may read, and that can't be mended, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    Refuse,
    /// For files that others hand out: it is logged.
    Warn,
}

/// Takes from others what they may do with a file.
///
/// # Errors
/// In one line: it can't be read, or others may read or change it and that can't be taken from them.
pub(crate) fn protect(flag: &str, path: &Path, strictness: Strictness) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{flag} {}: {error}", path.display());
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o7777;
    if mode & REFUSED == 0 {
        return Ok(());
    }
    let text =
        format!("{flag} {} holds a secret that others may read or change (mode {mode:o})", path.display());
    match fs::set_permissions(path, Permissions::from_mode(mode & !REFUSED)) {
        Ok(()) => {
            tracing::warn!("{text}; this was taken from them");
            Ok(())
        }
        Err(_) if strictness == Strictness::Warn && mode & FOREIGN_WRITE == 0 => {
            tracing::warn!("{text}; give it mode 600");
            Ok(())
        }
        Err(error) => Err(format!("{text}, and its mode can't be changed: {error}; give it mode 600")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_lose_what_they_had() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, b"secret").unwrap();
        for (before, after) in
            [(0o644, 0o640), (0o666, 0o640), (0o440, 0o440), (0o600, 0o600), (0o400, 0o400)]
        {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            protect("--secret-file", &path, Strictness::Refuse).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, after, "{before:o}");
        }
        let missing = protect("--secret-file", &directory.path().join("missing"), Strictness::Warn);
        assert!(missing.unwrap_err().starts_with("--secret-file"));
    }
}
