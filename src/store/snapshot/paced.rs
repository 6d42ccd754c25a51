//! Writing a large file beside a service that must stay quick.
//!
//! One fsync of a hundred megabytes would hold up those of the log, and a core that is busy for seconds those who
//! wait for an answer. So the file is made durable in pieces, and after each the writer rests as long as it worked.
//!
//! **Invariant:** it never takes more than half of a core, unless a piece takes long for other reasons.

use std::{
    fs::File,
    io::{self, Write},
    time::{Duration, Instant},
};

/// One fsync's worth: some milliseconds of an ordinary disk.
const PIECE_BYTES: usize = 4 << 20;
/// Longest rest: on a machine so busy that a piece takes longer, resting gives nobody anything.
const REST_MAX: Duration = Duration::from_millis(100);

/// A file that is written at a pace.
#[derive(Debug)]
pub(in crate::store) struct Paced {
    file: File,
    /// Bytes of the piece so far, and when it was begun.
    piece: (usize, Instant),
}

impl Paced {
    pub(in crate::store) fn new(file: File) -> Self {
        Self { file, piece: (0, Instant::now()) }
    }

    /// Makes the rest durable.
    pub(in crate::store) fn finish(self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.0 >= PIECE_BYTES {
            let worked = self.piece.1.elapsed();
            self.file.sync_data()?;
            std::thread::sleep(worked.min(REST_MAX));
            self.piece = (0, Instant::now());
        }
        let written = self.file.write(bytes)?;
        self.piece.0 += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
