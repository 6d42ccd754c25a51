//! Certificates and keys in PEM files, and values that are reloaded when their files change.
//!
//! A file has changed if its time, its length or its inode differs: some tools write into a file, others replace it. A
//! certificate and its key may be replaced one after the other; until both match, the previous ones stay in use.
//!
//! **Invariant:** the current value was loaded from files that were complete and matched each other.

use std::{
    fmt,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::{certificate::Certificate, provider};

/// Longest file: a bundle of all public authorities has 250 KB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a file of bounded length.
///
/// # Errors
/// With the file's name.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    if fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(format!("{}: longer than {FILE_BYTES_MAX} bytes", path.display()));
    }
    fs::read(path).map_err(failed)
}

/// The certificates in a file, at least one.
///
/// # Errors
/// When the file can't be read or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    certificates_in(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// The certificates in a PEM text, at least one.
fn certificates_in(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = read.map_err(|error| error.to_string())?;
    for certificate in &certificates {
        Certificate::parse(certificate)?;
    }
    if certificates.is_empty() {
        return Err("no certificate found, expected PEM".to_owned());
    }
    Ok(certificates)
}

/// A certificate with its intermediate certificates, and its key.
///
/// # Errors
/// When a file can't be read, or the key is not that of the certificate.
pub fn read_certified_key(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
    let chain = read_certificates(certificate)?;
    let pem = read(key)?;
    // The text of the error must not be shown: it may contain a part of the key.
    let parsed = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| format!("{}: no private key found, expected unencrypted PEM", key.display()))?;
    CertifiedKey::from_der(chain, parsed, &provider()).map(Arc::new).map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            format!("{} is not the key of the certificate in {}", key.display(), certificate.display())
        } else {
            format!("{}: {error}", key.display())
        }
    })
}

/// The authorities in a file.
///
/// # Errors
/// When the file can't be read, or a certificate in it can't sign others.
pub fn read_authorities(path: &Path) -> Result<(Arc<RootCertStore>, Vec<Certificate>), String> {
    authorities_in(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// The CAs in a PEM text.
///
/// # Errors
/// When there is none, or a certificate can't sign others.
pub fn authorities_in(pem: &[u8]) -> Result<(Arc<RootCertStore>, Vec<Certificate>), String> {
    let (mut roots, mut read) = (RootCertStore::empty(), Vec::new());
    for certificate in certificates_in(pem)? {
        let parsed = Certificate::parse(&certificate)?;
        if !parsed.is_authority {
            return Err(format!("the certificate of {} is not a CA certificate", parsed.subject));
        }
        roots.add(certificate).map_err(|error| error.to_string())?;
        read.push(parsed);
    }
    Ok((Arc::new(roots), read))
}

/// The properties by which a changed file is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    changed: (i64, i64),
    length: u64,
    inode: u64,
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let of = |data: Metadata| Self {
            changed: (data.mtime(), data.mtime_nsec()),
            length: data.len(),
            inode: data.ino(),
        };
        fs::metadata(path).ok().map(of)
    }
}

type Load<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value that is loaded from files, and reloaded when they change.
pub struct Reloaded<T> {
    files: Vec<PathBuf>,
    load: Load<T>,
    current: ArcSwap<T>,
    /// Counts the changes.
    generation: AtomicU64,
    seen: Mutex<Vec<Option<FileStamp>>>,
}

impl<T: fmt::Debug> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded")
            .field("files", &self.files)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl<T> Reloaded<T> {
    /// What `load` makes of the files.
    ///
    /// # Errors
    /// Those of `load`.
    pub(super) fn new(
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // Looked at before: what changes meanwhile is read again.
        let seen = Mutex::new(stamps(&files));
        let current = ArcSwap::from_pointee(load()?);
        Ok(Self { files, load: Box::new(load), current, generation: AtomicU64::new(0), seen })
    }

    pub(super) fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// How often it has changed.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads the files again if they have changed. `None` when they have not; an error leaves what was read before, also
    /// one of `may_replace`, which gets that and what was read now.
    pub(super) fn look(
        &self,
        may_replace: impl FnOnce(&T, &T) -> Result<(), String>,
    ) -> Option<Result<(), String>> {
        let now = stamps(&self.files);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return None;
        }
        *seen = now;
        let made = (self.load)().and_then(|made| may_replace(&self.current(), &made).map(|()| made));
        Some(made.map(|made| {
            self.current.store(Arc::new(made));
            self.generation.fetch_add(1, Ordering::Release);
        }))
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<FileStamp>> {
    files.iter().map(|path| FileStamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_files_do_not_replace_the_current_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        fs::write(&path, "1").unwrap();
        let file = path.clone();
        let load =
            move || fs::read_to_string(&file).unwrap().parse::<u32>().map_err(|error| error.to_string());
        let number = Reloaded::new(vec![path.clone()], load).unwrap();
        let any = |_: &u32, _: &u32| Ok(());
        assert!((*number.current(), number.generation()) == (1, 0) && number.look(any).is_none());
        fs::write(&path, "many").unwrap();
        assert!(number.look(any).unwrap().is_err() && number.look(any).is_none());
        assert_eq!((*number.current(), number.generation()), (1, 0));
        // In its place, of the same length.
        fs::write(path.with_extension("new"), "1234").unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        let greater = |before: &u32, now: &u32| (now > before).then_some(()).ok_or("less".to_owned());
        assert_eq!(number.look(greater), Some(Ok(())));
        assert_eq!((*number.current(), number.generation()), (1234, 1));
        fs::write(&path, "77").unwrap();
        assert_eq!(number.look(greater), Some(Err("less".into())));
        assert_eq!((*number.current(), number.generation()), (1234, 1));
    }

    #[test]
    fn a_key_must_match_its_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let made = || rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let certificate = write("one.pem", &one.cert.pem());
        let key = write("one.key", &one.signing_key.serialize_pem());
        let wrong = write("other.key", &other.signing_key.serialize_pem());
        read_certified_key(&certificate, &key).unwrap();
        assert!(read_certified_key(&certificate, &wrong).unwrap_err().contains("is not the key of"));
        assert!(read_certified_key(&certificate, &certificate).unwrap_err().contains("no private key"));
        assert!(read_certified_key(&key, &key).unwrap_err().contains("no certificate"));
        assert!(read_certificates(&directory.path().join("none")).unwrap_err().contains("No such file"));
        assert!(read_authorities(&certificate).unwrap_err().contains("not a CA certificate"));
    }
}
