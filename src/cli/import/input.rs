//! Reads the files of another store.
//!
//! **Invariant:** no more than [`SOURCE_BYTES_MAX`] are read.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::super::connection::Failure;

/// Bytes of all files of an import, and of what a zip file has in them. An etcd has 2 GiB at most and a Consul some
/// hundred MB by default, most of which are no configuration.
pub(super) const SOURCE_BYTES_MAX: u64 = 256 << 20;

/// The files that were named.
#[derive(Debug)]
pub(super) struct Input {
    left: u64,
}

/// A file, and the names of its folders and itself below what was named, without its extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) parts: Vec<String>,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { left: SOURCE_BYTES_MAX }
    }

    /// The bytes of a file; `-` is stdin.
    pub(super) fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, Failure> {
        let failed = |error: io::Error| Failure::Usage(format!("{}: {error}", path.display()));
        if path == Path::new("-") {
            return self.take(io::stdin().lock(), path).map_err(failed)?;
        }
        self.take(fs::File::open(path).map_err(failed)?, path).map_err(failed)?
    }

    /// Reads to the end, or to the limit.
    pub(super) fn take(&mut self, from: impl Read, path: &Path) -> io::Result<Result<Vec<u8>, Failure>> {
        let mut bytes = Vec::new();
        from.take(self.left + 1).read_to_end(&mut bytes)?;
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            let text = format!(
                "{}: the files have more than {} MiB, the limit of one import: import them in parts",
                path.display(),
                SOURCE_BYTES_MAX >> 20
            );
            return Ok(Err(Failure::Usage(text)));
        };
        self.left = left;
        Ok(Ok(bytes))
    }

    /// The text of a file.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub(super) fn text(&mut self, path: &Path) -> Result<String, Failure> {
        text_of(self.bytes(path)?, path)
    }
}

/// Bytes as a text without the mark that some editors begin it with.
pub(super) fn text_of(bytes: Vec<u8>, path: &Path) -> Result<String, Failure> {
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::Invalid(format!("{}: the file is not UTF-8 text", path.display())))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The files at paths: a file as it is, and those below a folder whose names are wanted. The second value is how many of a
/// folder are not.
pub(super) fn files(
    paths: &[PathBuf],
    is_wanted: fn(&str) -> bool,
) -> Result<(Vec<SourceFile>, usize), Failure> {
    let (mut found, mut skipped) = (Vec::new(), 0);
    for path in paths {
        if path.is_dir() {
            let failed = |(folder, error): (PathBuf, io::Error)| {
                Failure::Usage(format!("{}: {error}", folder.display()))
            };
            collect(path, &[], &mut |file: SourceFile, name: &str| {
                if is_wanted(name) {
                    found.push(file);
                } else {
                    skipped += 1;
                }
            })
            .map_err(failed)?;
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = if name == "-" { "stdin" } else { &name };
            found.push(SourceFile { path: path.clone(), parts: vec![stem(name).to_owned()] });
        }
    }
    Ok((found, skipped))
}

/// The files below a folder, in the order of their names. A link to a folder is not followed: it may lead back.
fn collect(
    folder: &Path,
    above: &[String],
    keep: &mut impl FnMut(SourceFile, &str),
) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (folder.to_owned(), error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut parts = above.to_vec();
        if path.is_dir() {
            // Such as `.git`.
            if !path.is_symlink() && !name.starts_with('.') {
                parts.push(name);
                collect(&path, &parts, keep)?;
            }
            continue;
        }
        parts.push(stem(&name).to_owned());
        keep(SourceFile { path, parts }, &name);
    }
    Ok(())
}

/// The name of a file without its extension. The name of a file like `.env` is no extension.
pub(super) fn stem(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => name,
    }
}

/// The extension of a name in lower case.
pub(super) fn extension(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => extension.to_ascii_lowercase(),
        _ => String::new(),
    }
}
