//! An encrypted and signed backup.
//!
//! ```text
//! `CONCBKUP` · format `u16le` · public key of the signer, 32 bytes · the snapshot file, encrypted (age) ·
//! signature of all before, 64 bytes
//! ```
//!
//! It is encrypted to the recipients that the operator names, so that an operator who makes backups can't read them.
//! Encryption alone does not say who made a file: a recipient is public. So it is also signed (Ed25519, over the
//! SHA-512 of everything before the signature), and a restore accepts only backups by the signers that the operator
//! names. The signature is verified before anything is decrypted, and the decrypted bytes are compared with the signed
//! ones.
//!
//! **Invariant:** nothing of an encrypted backup is used unless one of the named signers has signed it.

#[cfg(not(feature = "encrypted-backups"))]
mod without_age;

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Read, Seek as _, SeekFrom, Write},
    path::Path,
    str::FromStr as _,
    sync::mpsc,
};

#[cfg(feature = "encrypted-backups")]
use age::secrecy::ExposeSecret as _;
use age::x25519::{Identity, Recipient};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha512};
#[cfg(not(feature = "encrypted-backups"))]
use without_age as age;
use zeroize::Zeroizing;

use crate::at_rest;

/// How such a file begins.
pub const MAGIC: &[u8; 8] = b"CONCBKUP";
const FORMAT: u16 = 1;
const KEY_BYTES: usize = 32;
const HEAD_BYTES: usize = 8 + 2 + KEY_BYTES;
const SIGNATURE_BYTES: usize = 64;
/// What the signature covers, so that a signature of something else is invalid.
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
    /// In one line: it is invalid.
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
    /// In one line: a recipient is invalid, or the file holds no key.
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
    pub fn begin<W: Write>(&self, to: W) -> io::Result<(SealedBackup<W>, Opening)> {
        let once = Identity::generate();
        let backup = self.begin_for(to, Some(&once.to_public()))?;
        let signer = SignerKey(self.signer.verifying_key());
        Ok((backup, Opening { identities: vec![once], signers: vec![signer] }))
    }

    /// Begins a backup whose bytes are sent on as they are made. Nobody but the recipients can read it.
    pub fn begin_stream(&self) -> io::Result<SealedStream> {
        let (sender, made) = mpsc::channel();
        Ok(SealedStream { backup: self.begin_for(Made(sender), None)?, made })
    }

    fn begin_for<W: Write>(&self, to: W, another: Option<&Recipient>) -> io::Result<SealedBackup<W>> {
        let mut signed = Signed { to, hash: Sha512::new() };
        let public = self.signer.verifying_key();
        signed.write_all(&[&MAGIC[..], &FORMAT.to_le_bytes(), &public.to_bytes()].concat())?;
        let recipients =
            self.recipients.iter().chain(another).map(|recipient| recipient as &dyn age::Recipient);
        let encryptor = age::Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        let to = encryptor.wrap_output(signed)?;
        Ok(SealedBackup { to, signer: self.signer.clone() })
    }
}

/// A backup whose bytes are taken piece by piece.
pub struct SealedStream {
    backup: SealedBackup<Made>,
    made: mpsc::Receiver<Vec<u8>>,
}

impl fmt::Debug for SealedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStream").finish_non_exhaustive()
    }
}

impl SealedStream {
    /// Adds content; the bytes that follow in the file. They may be none: the cipher gathers 64 KiB.
    pub fn push(&mut self, content: &[u8]) -> io::Result<Vec<u8>> {
        self.backup.write(content)?;
        Ok(self.made.try_iter().flatten().collect())
    }

    /// The last bytes, with the signature.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        let Self { backup, made } = self;
        drop(backup.finish()?);
        Ok(made.try_iter().flatten().collect())
    }
}

/// Passes on what is written to it. The caller holds the other end.
struct Made(mpsc::Sender<Vec<u8>>);

impl Write for Made {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A backup that is being written.
pub struct SealedBackup<W: Write> {
    to: age::stream::StreamWriter<Signed<W>>,
    signer: SigningKey,
}

impl<W: Write> fmt::Debug for SealedBackup<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealedBackup")
    }
}

impl<W: Write> SealedBackup<W> {
    /// Encrypts and writes the next bytes.
    ///
    /// # Errors
    ///
    /// Those of the writer beneath.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.to.write_all(content)
    }

    /// Ends the backup with its signature. The caller makes it durable.
    pub fn finish(self) -> io::Result<W> {
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
    /// In one line: the file holds no identity, or a signer is invalid.
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
        self.verified(file).map(|(signer, _)| signer)
    }

    /// The same, with what was signed.
    fn verified(&self, file: &mut File) -> io::Result<(SignerKey, Vec<u8>)> {
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
            .map_err(|_| refused("the backup is damaged: its signer is invalid"))?;
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
        let message = message(hash);
        let compared = signer.verify_strict(&message, &Signature::from_bytes(&signature));
        compared.map_err(|_| {
            refused("the backup is not what was signed: it is damaged, or somebody changed it")
        })?;
        let signer = SignerKey(signer);
        if self.signers.is_empty() || self.signers.contains(&signer) {
            return Ok((signer, message));
        }
        Err(refused(format!("the backup was signed by {signer}, which is not among the given signers")))
    }

    /// The content of a file whose signature is that of a signer who was named.
    pub(crate) fn open(&self, mut file: File) -> io::Result<Box<dyn Read + Send>> {
        if !self.needs_signature() {
            return Err(refused(
                "the backup is signed: name its signer with --signer or CONCORD_BACKUP_SIGNERS",
            ));
        }
        let (_, message) = self.verified(&mut file)?;
        let length = file.metadata()?.len().checked_sub(SIGNATURE_BYTES as u64);
        file.rewind()?;
        let mut verified =
            Verified { from: file.take(length.unwrap_or_default()), hash: Sha512::new(), message };
        verified.read_exact(&mut [0; HEAD_BYTES])?;
        let sealed = BufReader::with_capacity(256 << 10, verified);
        let failed = |error: age::DecryptError| refused(format!("the backup can't be decrypted: {error}"));
        let decryptor = age::Decryptor::new_buffered(sealed).map_err(failed)?;
        let identities = self.identities.iter().map(|identity| identity as &dyn age::Identity);
        Ok(Box::new(decryptor.decrypt(identities).map_err(failed)?))
    }
}

/// A file whose signature was verified, as it is read again. The storage of backups need not be trusted, and may show
/// something else the second time: so its last bytes, without which nothing can be decrypted to its end, are handed out
/// only when all were those that were signed.
struct Verified {
    from: io::Take<File>,
    hash: Sha512,
    message: Vec<u8>,
}

impl Read for Verified {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        self.hash.update(&to[..read]);
        if read > 0 && self.from.limit() == 0 && message(self.hash.clone()) != self.message {
            return Err(refused("the backup has changed while it was read"));
        }
        Ok(read)
    }
}

/// Whether a file of this begin is an encrypted backup.
pub fn is_sealed(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

/// A new identity for reading backups, and the recipient that backups are encrypted to.
///
/// # Errors
/// In one line: this program can't encrypt backups.
#[cfg(feature = "encrypted-backups")]
pub fn new_identity() -> Result<(Zeroizing<String>, String), String> {
    let identity = Identity::generate();
    Ok((Zeroizing::new(identity.to_string().expose_secret().to_owned()), identity.to_public().to_string()))
}

/// The same in a program that can't encrypt backups.
///
/// # Errors
/// Always.
#[cfg(not(feature = "encrypted-backups"))]
pub fn new_identity() -> Result<(Zeroizing<String>, String), String> {
    Err(age::MISSING.into())
}

/// A new key for signing backups, and its public half.
///
/// # Errors
/// In one line: the operating system returned no random bytes.
pub fn new_signing_key() -> Result<(Zeroizing<String>, SignerKey), String> {
    let bytes = at_rest::random_key()?;
    let public = SigningKey::from_bytes(&bytes).verifying_key();
    Ok((Zeroizing::new(STANDARD.encode(bytes.as_slice())), SignerKey(public)))
}

#[cfg(feature = "encrypted-backups")]
#[cfg(test)]
mod tests;
