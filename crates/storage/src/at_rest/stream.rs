//! A file that is encrypted from start to end: a snapshot.
//!
//! ```text
//! head    `CONCSEAL` · format `u16le` · purpose, a byte · 0 · random bytes of the file, 16 · crc32c of these `u32le`
//! chunks  64 KiB of content, encrypted, and a tag of 16 bytes; the last one has less, or the same
//! ```
//!
//! The nonce of a chunk is its number, and whether it is the last one. The key is derived from the file's random bytes
//! and encrypts nothing else, so each number is used once. A file that ends early has no last chunk, and one that was
//! put together from two has chunks of another key.
//!
//! **Invariant:** the content is returned as it was written, from the first byte on; anything else is an error of the
//! kind *invalid data*.

use std::{
    fs::File,
    io::{self, Read, Seek as _, Write},
};

use super::{
    AtRest, FileKey, KeyPurpose,
    cipher::{NONCE_BYTES, TAG_BYTES, random},
};

const MAGIC: &[u8; 8] = b"CONCSEAL";
const FORMAT: u16 = 1;
const ID_BYTES: usize = 16;
/// Bytes of the head.
pub(crate) const HEAD_BYTES: usize = 8 + 2 + 1 + 1 + ID_BYTES + 4;
/// Content of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + TAG_BYTES;

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is damaged: {what}"))
}

fn nonce(chunk: u64, is_last: bool) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    nonce[..8].copy_from_slice(&chunk.to_le_bytes());
    nonce[8] = u8::from(is_last);
    nonce
}

/// Encrypts content that arrives in parts of any length. It does no I/O.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: FileKey,
    buffer: Vec<u8>,
    chunk: u64,
}

impl Sealer {
    /// The sealer of a new file, and the file's head; `None` when what is written is not encrypted.
    pub(crate) fn new(at_rest: &AtRest, purpose: KeyPurpose) -> io::Result<Option<(Self, Vec<u8>)>> {
        if !at_rest.seals() {
            return Ok(None);
        }
        let id: [u8; ID_BYTES] = random().map_err(io::Error::other)?;
        let Some(key) = at_rest.file_key(purpose, &id) else { return Ok(None) };
        let mut head = [&MAGIC[..], &FORMAT.to_le_bytes(), &[purpose as u8, 0], &id].concat();
        let check = crc32c::crc32c(&head);
        head.extend_from_slice(&check.to_le_bytes());
        Ok(Some((Self { key, buffer: Vec::with_capacity(SEALED_CHUNK_BYTES), chunk: 0 }, head)))
    }

    /// Takes content; what can be written by now is appended to `to`.
    pub(crate) fn push(&mut self, mut content: &[u8], to: &mut Vec<u8>) {
        while !content.is_empty() {
            // A full chunk waits until there is more: it may be the last one.
            if self.buffer.len() == CHUNK_BYTES {
                self.end_chunk(false, to);
            }
            let taken = content.len().min(CHUNK_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&content[..taken]);
            content = &content[taken..];
        }
    }

    /// Ends the file.
    pub(crate) fn finish(mut self, to: &mut Vec<u8>) {
        self.end_chunk(true, to);
    }

    fn end_chunk(&mut self, is_last: bool, to: &mut Vec<u8>) {
        let tag = self.key.encrypt(&nonce(self.chunk, is_last), &[], &mut self.buffer);
        to.extend_from_slice(&self.buffer);
        to.extend_from_slice(&tag);
        self.buffer.clear();
        self.chunk += 1;
    }
}

/// Decrypts a file chunk by chunk. It does no I/O.
#[derive(Debug)]
pub(crate) struct Opener {
    key: FileKey,
    chunk: u64,
}

impl Opener {
    /// Content of the next chunk, from the bytes of one chunk, or fewer at the file's end. `is_last`: the file ends
    /// with them.
    pub(crate) fn open(&mut self, sealed: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        let ends_early = || damaged("it ends inside a chunk");
        let length = sealed.len().checked_sub(TAG_BYTES).ok_or_else(ends_early)?;
        let tag: [u8; TAG_BYTES] = sealed[length..].try_into().map_err(|_| ends_early())?;
        sealed.truncate(length);
        if !self.key.decrypt(&nonce(self.chunk, is_last), &[], sealed, &tag) {
            sealed.clear();
            return Err(damaged("a chunk is not what was written there"));
        }
        self.chunk += 1;
        Ok(())
    }

    /// Bytes of a whole chunk on the disk.
    pub(crate) const CHUNK_BYTES: usize = SEALED_CHUNK_BYTES;
}

/// What the first bytes of a file say.
#[derive(Debug)]
pub(crate) enum FileHead {
    /// It is not encrypted.
    Plain,
    Sealed(Opener),
}

impl FileHead {
    /// Looks at the first bytes of a file, of which there are [`HEAD_BYTES`], or fewer when it is shorter.
    pub(crate) fn parse(bytes: &[u8], at_rest: &AtRest, purpose: KeyPurpose) -> io::Result<Self> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return if at_rest.allows_plain() {
                Ok(Self::Plain)
            } else {
                Err(damaged("it is not encrypted"))
            };
        };
        let Some((head, check)) = bytes.split_last_chunk::<4>().filter(|_| bytes.len() == HEAD_BYTES) else {
            return Err(damaged("it ends inside its head"));
        };
        if crc32c::crc32c(head) != u32::from_le_bytes(*check) {
            return Err(damaged("its head is not what was written"));
        }
        let unknown = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what.to_owned());
        if rest[..2] != FORMAT.to_le_bytes() {
            return Err(unknown(
                "it is encrypted in a format that this version does not know; start a newer version",
            ));
        }
        if rest[2] != purpose as u8 {
            return Err(damaged("it is a file of another kind"));
        }
        let key = at_rest.file_key(purpose, &rest[4..4 + ID_BYTES]);
        let key = key.ok_or_else(|| unknown("it is encrypted, and there is no key for it"))?;
        Ok(Self::Sealed(Opener { key, chunk: 0 }))
    }
}

/// Whether a file of this begin is encrypted.
pub(crate) fn is_sealed(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

/// The length of the content of an encrypted file of a length.
pub(crate) fn content_bytes(file_bytes: u64) -> u64 {
    let sealed = file_bytes.saturating_sub(HEAD_BYTES as u64);
    let chunks = sealed.div_ceil(SEALED_CHUNK_BYTES as u64);
    sealed.saturating_sub(chunks * TAG_BYTES as u64)
}

/// A file that is read, encrypted or not.
#[derive(Debug)]
pub(crate) struct DecryptingReader {
    file: File,
    opener: Option<Opener>,
    chunk: Vec<u8>,
    offset: usize,
    ended: bool,
}

impl DecryptingReader {
    /// The content of a file from its begin.
    pub(crate) fn new(mut file: File, at_rest: &AtRest, purpose: KeyPurpose) -> io::Result<Self> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        Read::by_ref(&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let opener = match FileHead::parse(&head, at_rest, purpose)? {
            FileHead::Plain => {
                file.rewind()?;
                None
            }
            FileHead::Sealed(opener) => Some(opener),
        };
        Ok(Self { file, opener, chunk: Vec::new(), offset: 0, ended: false })
    }

    /// Reads and decrypts the next chunk.
    fn fill(file: &mut File, opener: &mut Opener, chunk: &mut Vec<u8>) -> io::Result<bool> {
        chunk.clear();
        Read::by_ref(file).take(SEALED_CHUNK_BYTES as u64).read_to_end(chunk)?;
        // A chunk is the last one if nothing follows it, which its nonce confirms.
        let mut next = [0];
        let is_last = chunk.len() < SEALED_CHUNK_BYTES || file.read(&mut next)? == 0;
        if !is_last {
            file.seek_relative(-1)?;
        }
        opener.open(chunk, is_last)?;
        Ok(is_last)
    }
}

impl Read for DecryptingReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(opener) = &mut self.opener else { return self.file.read(to) };
        while self.offset == self.chunk.len() {
            if self.ended || to.is_empty() {
                return Ok(0);
            }
            self.ended = Self::fill(&mut self.file, opener, &mut self.chunk)?;
            self.offset = 0;
        }
        let count = to.len().min(self.chunk.len() - self.offset);
        to[..count].copy_from_slice(&self.chunk[self.offset..self.offset + count]);
        self.offset += count;
        Ok(count)
    }
}

/// A file that is written, encrypted or not.
#[derive(Debug)]
pub(crate) struct Sink<W> {
    to: W,
    sealer: Option<Sealer>,
    sealed: Vec<u8>,
}

impl<W: Write> Sink<W> {
    /// Begins a file.
    pub(crate) fn new(mut to: W, at_rest: &AtRest, purpose: KeyPurpose) -> io::Result<Self> {
        let sealer = match Sealer::new(at_rest, purpose)? {
            None => None,
            Some((sealer, head)) => {
                to.write_all(&head)?;
                Some(sealer)
            }
        };
        Ok(Self { to, sealer, sealed: Vec::new() })
    }

    /// Ends the content. The caller makes the file durable.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        if let Some(sealer) = self.sealer.take() {
            sealer.finish(&mut self.sealed);
            self.to.write_all(&self.sealed)?;
        }
        Ok(self.to)
    }
}

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(sealer) = &mut self.sealer else { return self.to.write(bytes) };
        sealer.push(bytes, &mut self.sealed);
        self.to.write_all(&self.sealed)?;
        self.sealed.clear();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
