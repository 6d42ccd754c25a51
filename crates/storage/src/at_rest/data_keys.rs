//! The operator's file of data keys.
//!
//! One key in a line, 32 random bytes in base64; empty lines and lines that begin with `#` are ignored. The first key
//! is the current one; the others are for directories that are still encrypted under them. The word `none` in the first
//! place turns encryption off.
//!
//! **Invariant:** no text of an error, a log line or `Debug` holds a key.

use std::{fmt, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Most bytes of the file: hundreds of keys.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The line that turns encryption off.
const NONE: &str = "none";

/// The name of a data key: it says which key it is, and nothing about it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DataKeyId(pub(super) [u8; 8]);

impl fmt::Display for DataKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DataKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A data key.
pub(super) struct DataKey {
    pub(super) bytes: Zeroizing<[u8; 32]>,
    id: DataKeyId,
}

impl DataKey {
    fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*bytes).expect("HMAC takes keys of every length");
        mac.update(b"concord data key id");
        let digest = mac.finalize().into_bytes();
        let id = *digest.first_chunk().expect("a digest has 32 bytes");
        Self { bytes, id: DataKeyId(id) }
    }

    /// A new key, as a line of the file, and its id.
    pub(super) fn random() -> Result<(Zeroizing<String>, DataKeyId), String> {
        let key = Self::new(super::random_key()?);
        Ok((Zeroizing::new(STANDARD.encode(key.bytes.as_slice())), key.id))
    }

    pub(super) fn id(&self) -> DataKeyId {
        self.id
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey({})", self.id)
    }
}

/// The keys of the file.
#[derive(Debug)]
pub(super) struct DataKeys {
    /// Whether the first one is for writing.
    is_on: bool,
    keys: Vec<DataKey>,
}

impl DataKeys {
    /// Reads the file. Blocking.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        use std::io::Read as _;
        let failed = |error: std::io::Error| format!("data key file {}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut text = Zeroizing::new(String::with_capacity(usize::try_from(FILE_BYTES_MAX).unwrap_or(0)));
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text).map_err(|error| format!("data key file {}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut found = Self { is_on: true, keys: Vec::new() };
        let mut first = true;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == NONE {
                if !first {
                    return Err(format!(
                        "line {number}: `{NONE}` turns encryption off and stands before all keys"
                    ));
                }
                found.is_on = false;
            } else {
                let key = decode(line).ok_or_else(|| {
                    format!("line {number} is not 32 random bytes in base64; `concord keygen data` makes one")
                })?;
                if key.iter().all(|byte| *byte == key[0]) {
                    return Err(format!("line {number} is one byte repeated, not a random key"));
                }
                found.keys.push(DataKey::new(key));
            }
            first = false;
        }
        if first { Err("it holds no key".into()) } else { Ok(found) }
    }

    /// The key for writing; `None` when encryption is turned off.
    pub(super) fn current(&self) -> Option<&DataKey> {
        self.keys.first().filter(|_| self.is_on)
    }

    pub(super) fn find(&self, id: DataKeyId) -> Option<&DataKey> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// The ids of the keys, for an error.
    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self.keys.iter().map(|key| key.id.to_string()).collect();
        if names.is_empty() { "no key".into() } else { format!("only {}", names.join(", ")) }
    }
}

fn decode(line: &str) -> Option<Zeroizing<[u8; 32]>> {
    // One more than fits: a longer text is rejected by its length.
    let mut bytes = Zeroizing::new([0; 36]);
    let length = STANDARD.decode_slice(line, &mut *bytes).ok()?;
    (length == 32).then(|| Zeroizing::new(*bytes.first_chunk().expect("there are 36")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        let mut bytes = [byte; 32];
        bytes[0] ^= 1;
        STANDARD.encode(bytes)
    }

    #[test]
    fn the_first_key_is_current_and_the_others_are_found() {
        let keys = DataKeys::parse(&format!("# made today\n\n {} \n{}\n", key(1), key(2))).unwrap();
        let current = keys.current().unwrap().id();
        assert_eq!(keys.keys.len(), 2);
        assert_ne!(current, keys.keys[1].id());
        assert!(keys.find(keys.keys[1].id()).is_some());
        let off = DataKeys::parse(&format!("none\n{}", key(1))).unwrap();
        assert!(off.current().is_none() && off.find(current).is_some());
    }

    #[test]
    fn an_invalid_key_is_rejected_without_its_text() {
        let refused = |text: &str| DataKeys::parse(text).unwrap_err();
        for text in ["", "# none\n", "\n \n"] {
            assert!(refused(text).contains("no key"), "{text:?}");
        }
        let short = STANDARD.encode([1; 31]);
        let long = STANDARD.encode([1; 33]);
        let secret = "correct-horse-battery-staple";
        for text in [secret, short.as_str(), long.as_str(), &"A".repeat(400), &STANDARD.encode([7; 32])] {
            let error = refused(text);
            assert!(error.contains("line 1") && !error.contains(text), "{error}");
        }
        assert!(refused(&format!("{}\nnone", key(1))).contains("line 2"));
    }

    #[test]
    fn debug_shows_no_key() {
        let text = key(9);
        let shown = format!("{:?}", DataKeys::parse(&text).unwrap());
        assert!(!shown.contains(&text) && !shown.contains("9, 9"), "{shown}");
    }
}
