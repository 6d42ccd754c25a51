//! An encrypted and signed backup.
//!
//! ```text
//! `CONCBKUP` · format `u16le` · public key of the signer, 32 bytes · the snapshot file, encrypted (age) ·
//! signature of all before, 64 bytes
//! ```
//!
//! It is encrypted to the recipients that the operator names, so that whoever makes backups can't read them. Encryption
//! alone does not say who made a file: a recipient is public. So it is signed too (Ed25519, over the SHA-512 of what
//! stands before the signature), and a restore takes only what one of the signers that the operator names has signed.
//! The signature is compared before anything is decrypted.
//!
//! **Invariant:** nothing of an encrypted backup is used unless its signature is that of a signer who was named.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Read, Seek as _, SeekFrom, Write},
    path::Path,
    str::FromStr as _,
};

use age::{
    secrecy::ExposeSecret as _,
    x25519::{Identity, Recipient},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha512};
use zeroize::Zeroizing;

use crate::store::at_rest;

const MAGIC: &[u8; 8] = b"CONCBKUP";
const FORMAT: u16 = 1;
const KEY_BYTES: usize = 32;
const HEAD_BYTES: usize = 8 + 2 + KEY_BYTES;
const SIGNATURE_BYTES: usize = 64;
/// What the signature is about, so that a signature of something else is none.
const CONTEXT: &[u8] = b"concord backup";
/// Bytes of a file of the operator's at most.
const FILE_BYTES_MAX: u64 = 64 << 10;

fn refused(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// The lines of an operator's file that say something.
fn lines_of(path: &Path) -> Result<Vec<Zeroizing<String>>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut text = Zeroizing::new(String::new());
    File::open(path).map_err(failed)?.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(|line| Zeroizing::new(line.to_owned())).collect())
}

/// Who signed a backup: the public half of a signing key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SignerKey(VerifyingKey);

impl SignerKey {
    /// Reads it as [`Self`] is shown.
    ///
    /// # Errors
    /// In one line: it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let none =
            || format!("`{text}` is not the public key of a signer; `concord keygen signing` prints one");
        let bytes: [u8; KEY_BYTES] =
            STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(none)?;
        VerifyingKey::from_bytes(&bytes).map(Self).map_err(|_| none())
    }
}

impl fmt::Display for SignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0.to_bytes()))
    }
}

impl fmt::Debug for SignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a backup is encrypted and signed with.
pub struct Envelope {
    recipients: Vec<Recipient>,
    signer: SigningKey,
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope").field("recipients", &self.recipients.len()).finish_non_exhaustive()
    }
}

impl Envelope {
    /// Reads the recipients, as age has them, and the file of the signing key. Blocking.
    ///
    /// # Errors
    /// In one line: a recipient is none, or the file holds no key.
    pub fn read(recipients: &[String], signing_key_file: &Path) -> Result<Self, String> {
        let parse =
            |text: &String| Recipient::from_str(text).map_err(|error| format!("recipient `{text}`: {error}"));
        let recipients = recipients.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let none = || {
            format!("{} holds no signing key; `concord keygen signing` makes one", signing_key_file.display())
        };
        let lines = lines_of(signing_key_file)?;
        let [line] = lines.as_slice() else { return Err(none()) };
        let bytes = Zeroizing::new(STANDARD.decode(line.as_bytes()).map_err(|_| none())?);
        let bytes: &[u8; KEY_BYTES] = bytes.as_slice().try_into().map_err(|_| none())?;
        Ok(Self { recipients, signer: SigningKey::from_bytes(bytes) })
    }

    /// Begins a backup. The second part is a key that this process alone has, for reading what it wrote.
    pub(crate) fn begin<W: Write>(&self, to: W) -> io::Result<(SealedBackup<W>, Opening)> {
        let once = Identity::generate();
        let mut signed = Signed { to, hash: Sha512::new() };
        let public = self.signer.verifying_key();
        signed.write_all(&[&MAGIC[..], &FORMAT.to_le_bytes(), &public.to_bytes()].concat())?;
        let own = once.to_public();
        let recipients =
            self.recipients.iter().chain([&own]).map(|recipient| recipient as &dyn age::Recipient);
        let encryptor = age::Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        let to = encryptor.wrap_output(signed)?;
        let opening = Opening { identities: vec![once], signers: vec![SignerKey(public)] };
        Ok((SealedBackup { to, signer: self.signer.clone() }, opening))
    }
}

/// A backup that is being written.
pub(crate) struct SealedBackup<W: Write> {
    to: age::stream::StreamWriter<Signed<W>>,
    signer: SigningKey,
}

impl<W: Write> SealedBackup<W> {
    pub(crate) fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.to.write_all(content)
    }

    /// Ends the backup with its signature. The caller makes it durable.
    pub(crate) fn finish(self) -> io::Result<W> {
        let Signed { mut to, hash } = self.to.finish()?;
        to.write_all(&self.signer.sign(&message(hash)).to_bytes())?;
        Ok(to)
    }
}

/// What is signed.
fn message(hash: Sha512) -> Vec<u8> {
    [CONTEXT, &hash.finalize()].concat()
}

/// Hashes what it passes on.
struct Signed<W> {
    to: W,
    hash: Sha512,
}

impl<W: Write> Write for Signed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// What an encrypted backup is opened with.
#[derive(Default)]
pub struct Opening {
    identities: Vec<Identity>,
    signers: Vec<SignerKey>,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("signers", &self.signers).finish_non_exhaustive()
    }
}

impl Opening {
    /// Reads the file of identities, as age has them, and the public keys of the signers. Blocking.
    ///
    /// # Errors
    /// In one line: the file holds no identity, or a signer is none.
    pub fn read(identity_file: Option<&Path>, signers: &[String]) -> Result<Self, String> {
        let mut identities = Vec::new();
        if let Some(path) = identity_file {
            for line in lines_of(path)? {
                let identity =
                    Identity::from_str(&line).map_err(|error| format!("{}: {error}", path.display()))?;
                identities.push(identity);
            }
            if identities.is_empty() {
                return Err(format!("{} holds no identity", path.display()));
            }
        }
        let signers = signers.iter().map(|text| SignerKey::parse(text)).collect::<Result<_, _>>()?;
        Ok(Self { identities, signers })
    }

    /// Whether only signed backups are taken.
    pub(crate) fn needs_signature(&self) -> bool {
        !self.signers.is_empty()
    }

    pub(crate) fn can_decrypt(&self) -> bool {
        !self.identities.is_empty()
    }

    /// Compares the signature of a file with its bytes and with the signers that were named; returns the signer.
    pub(crate) fn verify(&self, file: &mut File) -> io::Result<SignerKey> {
        let length = file.seek(SeekFrom::End(0))?;
        let signed = length
            .checked_sub(SIGNATURE_BYTES as u64)
            .filter(|signed| *signed >= HEAD_BYTES as u64)
            .ok_or_else(|| refused("the backup ends early"))?;
        file.rewind()?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        if head[8..10] != FORMAT.to_le_bytes() {
            return Err(refused(
                "the backup has a format that this version does not know; start a newer version",
            ));
        }
        let public = head.last_chunk().expect("the head is longer than a key");
        let signer = VerifyingKey::from_bytes(public)
            .map_err(|_| refused("the backup is damaged: its signer is none"))?;
        let (mut hash, mut left) = (Sha512::new(), signed - HEAD_BYTES as u64);
        hash.update(head);
        let mut buffer = vec![0; 256 << 10];
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
            file.read_exact(&mut buffer[..part])?;
            hash.update(&buffer[..part]);
            left -= part as u64;
        }
        let mut signature = [0; SIGNATURE_BYTES];
        file.read_exact(&mut signature)?;
        let compared = signer.verify_strict(&message(hash), &Signature::from_bytes(&signature));
        compared.map_err(|_| {
            refused("the backup is not what was signed: it is damaged, or somebody changed it")
        })?;
        let signer = SignerKey(signer);
        if self.signers.is_empty() || self.signers.contains(&signer) {
            return Ok(signer);
        }
        Err(refused(format!(
            "the backup was signed by {signer}, and not by one of the signers that were named"
        )))
    }

    /// The content of a file whose signature is that of a signer who was named.
    pub(crate) fn open(&self, mut file: File) -> io::Result<Box<dyn Read + Send>> {
        if !self.needs_signature() {
            return Err(refused(
                "the backup is signed: name its signer with --signer or CONCORD_BACKUP_SIGNERS",
            ));
        }
        self.verify(&mut file)?;
        let length = file.metadata()?.len() - (HEAD_BYTES + SIGNATURE_BYTES) as u64;
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        let sealed = BufReader::with_capacity(256 << 10, file.take(length));
        let failed = |error: age::DecryptError| refused(format!("the backup can't be decrypted: {error}"));
        let decryptor = age::Decryptor::new_buffered(sealed).map_err(failed)?;
        let identities = self.identities.iter().map(|identity| identity as &dyn age::Identity);
        Ok(Box::new(decryptor.decrypt(identities).map_err(failed)?))
    }
}

/// Whether a file of this begin is an encrypted backup.
pub(crate) fn is_sealed(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

/// A new identity for reading backups, and the recipient that backups are encrypted to.
#[must_use]
pub fn new_identity() -> (Zeroizing<String>, String) {
    let identity = Identity::generate();
    (Zeroizing::new(identity.to_string().expose_secret().to_owned()), identity.to_public().to_string())
}

/// A new key for signing backups, and its public half.
///
/// # Errors
/// In one line: the system gives no random bytes.
pub fn new_signing_key() -> Result<(Zeroizing<String>, SignerKey), String> {
    let bytes = at_rest::random_key()?;
    let public = SigningKey::from_bytes(&bytes).verifying_key();
    Ok((Zeroizing::new(STANDARD.encode(bytes.as_slice())), SignerKey(public)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Keys {
        directory: tempfile::TempDir,
        recipient: String,
        signer: SignerKey,
    }

    impl Keys {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (identity, recipient) = new_identity();
            let (signing, signer) = new_signing_key().unwrap();
            let keys = Self { directory, recipient, signer };
            std::fs::write(keys.at("identity"), format!("# for reading\n{}\n", *identity)).unwrap();
            std::fs::write(keys.at("signing"), &*signing).unwrap();
            keys
        }

        fn at(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, content: &[u8]) -> Opening {
            let envelope =
                Envelope::read(std::slice::from_ref(&self.recipient), &self.at("signing")).unwrap();
            let (mut backup, own) = envelope.begin(File::create(self.at("backup")).unwrap()).unwrap();
            for part in content.chunks(1000) {
                backup.write(part).unwrap();
            }
            backup.finish().unwrap();
            own
        }

        fn opening(&self) -> Opening {
            Opening::read(Some(&self.at("identity")), &[self.signer.to_string()]).unwrap()
        }

        fn read(&self, opening: &Opening) -> io::Result<Vec<u8>> {
            let mut content = Vec::new();
            opening.open(File::open(self.at("backup"))?)?.read_to_end(&mut content)?;
            Ok(content)
        }
    }

    #[test]
    fn a_backup_is_read_by_its_recipient_and_by_its_writer() {
        let keys = Keys::new();
        for length in [0, 1, 70_000, 200_000] {
            let content = vec![7; length];
            let own = keys.write(&content);
            assert_eq!(keys.read(&keys.opening()).unwrap(), content);
            assert_eq!(keys.read(&own).unwrap(), content);
            let mut file = File::open(keys.at("backup")).unwrap();
            assert_eq!(Opening::default().verify(&mut file).unwrap(), keys.signer);
        }
        let other = Keys::new();
        let foreign = Opening::read(Some(&other.at("identity")), &[keys.signer.to_string()]).unwrap();
        assert!(keys.read(&foreign).unwrap_err().to_string().contains("decrypted"));
        let foreign = Opening::read(Some(&keys.at("identity")), &[other.signer.to_string()]).unwrap();
        assert!(keys.read(&foreign).unwrap_err().to_string().contains("signed by"));
        let unnamed = Opening::read(Some(&keys.at("identity")), &[]).unwrap();
        assert!(keys.read(&unnamed).unwrap_err().to_string().contains("--signer"));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_refused() {
        let keys = Keys::new();
        keys.write(b"the content");
        let (whole, opening) = (std::fs::read(keys.at("backup")).unwrap(), keys.opening());
        for place in 8..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1 << (place % 8);
            std::fs::write(keys.at("backup"), &changed).unwrap();
            assert!(keys.read(&opening).is_err(), "byte {place}");
        }
        for cut in 8..whole.len() {
            std::fs::write(keys.at("backup"), &whole[..cut]).unwrap();
            assert!(keys.read(&opening).is_err(), "cut at {cut}");
        }
        std::fs::write(keys.at("backup"), [&whole[..], &[0]].concat()).unwrap();
        assert!(keys.read(&opening).is_err());
    }

    #[test]
    fn what_is_no_key_is_refused_without_its_text() {
        let keys = Keys::new();
        assert!(Envelope::read(&["age1nothing".into()], &keys.at("signing")).is_err());
        std::fs::write(keys.at("signing"), "a-secret-that-is-no-key").unwrap();
        let error = Envelope::read(std::slice::from_ref(&keys.recipient), &keys.at("signing")).unwrap_err();
        assert!(!error.contains("a-secret"), "{error}");
        std::fs::write(keys.at("identity"), "a-secret-that-is-no-key").unwrap();
        let error = Opening::read(Some(&keys.at("identity")), &[]).unwrap_err();
        assert!(!error.contains("a-secret"), "{error}");
        assert!(SignerKey::parse("nothing").is_err());
    }
}
