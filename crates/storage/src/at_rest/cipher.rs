//! Encrypts and decrypts one piece of bytes, with XChaCha20-Poly1305.
//!
//! A piece that is written separately has its nonce of 24 bytes beside it: 16 random bytes that this process drew for
//! the key, and a counter. A power loss may lose what was written, and a log or segment then continues at the same
//! place with other content, by another process: other random bytes. So no place, no revision and no index serves as a
//! nonce. The pieces of a file that is written once, from start to end, are counted instead (`stream`).
//!
//! **Invariant:** a piece is returned only if all of it, its place and its key are the same as when it was written.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use chacha20poly1305::{AeadInPlace as _, KeyInit as _, Tag, XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

pub(super) const NONCE_BYTES: usize = 24;
pub(super) const TAG_BYTES: usize = 16;
/// What encryption adds to a piece that stands on its own.
pub const OVERHEAD_BYTES: usize = NONCE_BYTES + TAG_BYTES;
/// Random bytes of a nonce; the rest is a counter.
const PREFIX_BYTES: usize = NONCE_BYTES - 8;

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| format!("the operating system returned no random bytes: {error}"))?;
    Ok(bytes)
}

/// The key of a file.
pub struct FileKey {
    cipher: XChaCha20Poly1305,
    /// For names that must stay equal: see [`Self::name`].
    key: Zeroizing<[u8; 32]>,
    prefix: [u8; PREFIX_BYTES],
    next: AtomicU64,
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey")
    }
}

impl FileKey {
    pub(super) fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self {
            cipher: XChaCha20Poly1305::new((&*key).into()),
            key,
            prefix: random().expect("the system gives random bytes, as it did for the identity of this node"),
            next: AtomicU64::new(0),
        }
    }

    fn nonce(&self) -> [u8; NONCE_BYTES] {
        let mut nonce = [0; NONCE_BYTES];
        if concord_model::sabotage::is("nonce-reused") {
            return nonce;
        }
        nonce[..PREFIX_BYTES].copy_from_slice(&self.prefix);
        // 2^64 pieces are never written by one process.
        nonce[PREFIX_BYTES..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        nonce
    }

    /// Encrypts a piece for a place: nonce, content, tag.
    pub fn seal(&self, place: &[u8], plain: &[u8]) -> Vec<u8> {
        let nonce = self.nonce();
        let mut bytes = Vec::with_capacity(plain.len() + OVERHEAD_BYTES);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(plain);
        let tag = self.encrypt(&nonce, place, &mut bytes[NONCE_BYTES..]);
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Decrypts a piece of a place; `None` when it is not what was written there.
    pub fn open(&self, place: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let (content, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
        let mut plain = content.to_vec();
        self.decrypt(nonce, place, &mut plain, tag).then_some(plain)
    }

    /// Encrypts bytes where they stand and returns their tag. The caller gives no nonce twice.
    pub(super) fn encrypt(
        &self,
        nonce: &[u8; NONCE_BYTES],
        place: &[u8],
        bytes: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let tag = self.cipher.encrypt_in_place_detached(XNonce::from_slice(nonce), place, bytes);
        tag.expect("a piece is far shorter than 256 GiB").into()
    }

    /// Decrypts bytes where they stand; `false` when they are not what was written.
    pub(super) fn decrypt(
        &self,
        nonce: &[u8; NONCE_BYTES],
        place: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let (nonce, tag) = (XNonce::from_slice(nonce), Tag::from_slice(tag));
        self.cipher.decrypt_in_place_detached(nonce, place, bytes, tag).is_ok()
    }

    /// 16 bytes that stand for a name: the same for the same name, and telling nothing about it.
    pub(crate) fn name(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut mac =
            <Hmac<Sha256> as Mac>::new_from_slice(&*self.key).expect("HMAC takes keys of every length");
        for part in parts {
            mac.update(part);
        }
        *mac.finalize().into_bytes().first_chunk().expect("a digest has 32 bytes")
    }
}
