//! The key of a data directory, encrypted under a data key: `keys` and its copy `keys.copy`.
//!
//! ```text
//! `CONCKEYS` · format `u16le` · flags, a byte · id of the data key, 8 bytes · nonce, 24 bytes ·
//! the key and its tag, 48 bytes · crc32c of all before `u32le`
//! ```
//!
//! The bytes before the nonce are authenticated with the key. There are two copies, because without this file nothing
//! in the directory can be read: one damaged sector must not cost a member.
//!
//! **Invariant:** the first copy is durable before the second is touched, so one of them is always whole.

use std::path::{Path, PathBuf};

use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Payload},
};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{
    DataKeyId, KeyPurpose,
    cipher::{FileKey, NONCE_BYTES, TAG_BYTES, random},
    data_keys::DataKey,
    files,
};

const FILES: [&str; 2] = ["keys", "keys.copy"];
const MAGIC: &[u8; 8] = b"CONCKEYS";
const FORMAT: u16 = 1;
/// Everything in the directory is encrypted: what is not was put there by somebody else.
const CONVERTED: u8 = 1;
const KEY_BYTES: usize = 32;
/// Magic, format, flags, id.
const HEAD_BYTES: usize = 8 + 2 + 1 + 8;
const FILE_BYTES: usize = HEAD_BYTES + NONCE_BYTES + KEY_BYTES + TAG_BYTES + 4;

/// The key that all keys of files are derived from.
pub(super) struct DirectoryKey(Zeroizing<[u8; KEY_BYTES]>);

impl DirectoryKey {
    pub(super) fn random() -> Result<Self, String> {
        Ok(Self(Zeroizing::new(random()?)))
    }

    /// The key for a purpose and an id. HMAC is a pseudo-random function: without this key it reveals nothing about
    /// others.
    pub(super) fn file_key(&self, purpose: KeyPurpose, id: &[u8]) -> FileKey {
        let mut mac =
            <Hmac<Sha256> as Mac>::new_from_slice(&*self.0).expect("HMAC takes keys of every length");
        mac.update(b"concord file key");
        mac.update(&[purpose as u8]);
        mac.update(id);
        FileKey::new(Zeroizing::new(mac.finalize().into_bytes().into()))
    }
}

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrapped {
    pub(super) data_key: DataKeyId,
    pub(super) is_converted: bool,
    sealed: Vec<u8>,
}

impl Wrapped {
    pub(super) fn new(key: &DirectoryKey, under: &DataKey, is_converted: bool) -> Result<Self, String> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let mut wrapped = Self { data_key: under.id(), is_converted, sealed: Vec::new() };
        let head = wrapped.head();
        let cipher = XChaCha20Poly1305::new((&*under.bytes).into());
        let sealed = cipher.encrypt(XNonce::from_slice(&nonce), Payload { msg: &*key.0, aad: &head });
        wrapped.sealed = [&nonce[..], &sealed.map_err(|_| "the key can't be encrypted")?].concat();
        Ok(wrapped)
    }

    /// The key of the directory.
    pub(super) fn unwrap(&self, under: &DataKey) -> Result<DirectoryKey, String> {
        let refused = "its file `keys` is not what this data key encrypted; nothing was changed";
        let (nonce, sealed) = self.sealed.split_first_chunk::<NONCE_BYTES>().ok_or(refused)?;
        let cipher = XChaCha20Poly1305::new((&*under.bytes).into());
        let payload = Payload { msg: sealed, aad: &self.head() };
        let key = Zeroizing::new(cipher.decrypt(XNonce::from_slice(nonce), payload).map_err(|_| refused)?);
        let key: [u8; KEY_BYTES] = key.as_slice().try_into().map_err(|_| refused)?;
        Ok(DirectoryKey(Zeroizing::new(key)))
    }

    /// The file of a directory; `None` when there is neither copy.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, String> {
        let mut problem = None;
        for path in paths(directory) {
            match std::fs::read(&path) {
                Ok(bytes) => match Self::from_bytes(&bytes) {
                    Ok(wrapped) => return Ok(Some(wrapped)),
                    Err(error) => problem = Some(format!("{}: {error}", path.display())),
                },
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                // A sector that can't be read is what the copy is for.
                Err(error) => problem = Some(format!("{}: {error}", path.display())),
            }
        }
        match problem {
            None => Ok(None),
            Some(problem) => Err(format!(
                "{problem}, and there is no whole copy: what this directory holds can't be read. Remove this member and \
                 let it rejoin under a new id with an empty directory"
            )),
        }
    }

    /// Writes both copies durably.
    pub(super) fn write(&self, directory: &Path) -> Result<(), String> {
        let bytes = self.to_bytes();
        paths(directory)
            .iter()
            .try_for_each(|path| files::write_file(path, &bytes))
            .map_err(|error| error.to_string())
    }

    /// Writes the copies durably that are missing or damaged.
    pub(super) fn write_missing(&self, directory: &Path) -> Result<(), String> {
        let bytes = self.to_bytes();
        let missing = |path: &&PathBuf| std::fs::read(path).ok().as_ref() != Some(&bytes);
        paths(directory)
            .iter()
            .filter(missing)
            .try_for_each(|path| files::write_file(path, &bytes))
            .map_err(|error| error.to_string())
    }

    /// Removes both copies durably. The first one goes first: while there is one, the other is not needed.
    pub(super) fn remove(directory: &Path) -> Result<(), String> {
        paths(directory)
            .iter()
            .try_for_each(|path| files::remove(path).and_then(|()| files::sync_directory(directory)))
            .map_err(|error| error.to_string())
    }

    fn head(&self) -> Vec<u8> {
        let flags = if self.is_converted { CONVERTED } else { 0 };
        [&MAGIC[..], &FORMAT.to_le_bytes(), &[flags], &self.data_key.0].concat()
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend_from_slice(&self.sealed);
        let check = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        const DAMAGED: &str = "it is damaged";
        let (content, check) = bytes.split_last_chunk::<4>().ok_or(DAMAGED)?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*check) {
            return Err(DAMAGED);
        }
        let rest = content.strip_prefix(MAGIC).ok_or(DAMAGED)?;
        let (format, rest) = rest.split_first_chunk::<2>().ok_or(DAMAGED)?;
        if u16::from_le_bytes(*format) != FORMAT {
            return Err("it has a format that this version does not know; start a newer version");
        }
        let (flags, rest) = rest.split_first().ok_or(DAMAGED)?;
        let (id, sealed) = rest.split_first_chunk::<8>().ok_or(DAMAGED)?;
        if bytes.len() != FILE_BYTES || *flags > CONVERTED {
            return Err(DAMAGED);
        }
        Ok(Self { data_key: DataKeyId(*id), is_converted: *flags == CONVERTED, sealed: sealed.into() })
    }
}

fn paths(directory: &Path) -> [PathBuf; 2] {
    FILES.map(|name| directory.join(name))
}
