//! The bytes of a snapshot, wherever they are: a file, encrypted or not, or a backup that is decrypted as it is read.

use std::{fmt, io::Read};

use crate::at_rest::stream::Source;

/// Where the content of a snapshot is read from.
pub(crate) enum Content {
    File(Source),
    /// An encrypted backup.
    Backup(Box<dyn Read + Send>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content")
    }
}

impl Read for Content {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::File(source) => source.read(to),
            Self::Backup(content) => content.read(to),
        }
    }
}
