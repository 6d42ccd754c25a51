//! Writing a large file without delaying the requests that the node serves.
//!
//! One fsync of a hundred megabytes would delay those of the log, and a core that is busy for seconds would
//! delay requests. So the file is made durable in pieces, and after each piece the writer rests as long as it
//! worked.
//!
//! **Invariant:** it takes at most half of a core, unless a piece takes longer than the longest rest.

use std::{
    fs::File,
    io::{self, Write},
    time::{Duration, Instant},
};

/// Bytes between two fsyncs: some milliseconds of an ordinary disk.
const FSYNC_BYTES: usize = 4 << 20;
/// Longest rest: on a machine so loaded that a piece takes longer, a rest helps nobody.
const REST_MAX: Duration = Duration::from_millis(100);

/// A file that is written with rests.
#[derive(Debug)]
pub(super) struct Paced {
    file: File,
    /// Bytes of the current piece, and when it was started.
    piece: (usize, Instant),
}

impl Paced {
    pub(super) fn new(file: File) -> Self {
        Self { file, piece: (0, Instant::now()) }
    }

    /// Makes the rest durable.
    pub(super) fn finish(self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.0 >= FSYNC_BYTES {
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
