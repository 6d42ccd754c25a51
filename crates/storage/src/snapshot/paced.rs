//! Writing a large file without delaying the requests that the node serves.
//!
//! A core that is busy for seconds would delay requests. So after each piece of the file that was made durable the writer
//! rests as long as it worked.
//!
//! **Invariant:** it takes at most half of a core, unless a piece takes longer than the longest rest.

use std::{
    fs::File,
    io::{self, Write},
    time::{Duration, Instant},
};

use crate::files::InPieces;

/// Longest rest: on a machine so loaded that a piece takes longer, a rest helps nobody.
const REST_MAX: Duration = Duration::from_millis(100);

/// A file that is written with rests.
#[derive(Debug)]
pub(super) struct Paced {
    file: InPieces,
    /// When the current piece was started.
    begun: Instant,
}

impl Paced {
    pub(super) fn new(file: File) -> Self {
        Self { file: InPieces::new(file), begun: Instant::now() }
    }

    /// Makes the rest durable.
    pub(super) fn finish(self) -> io::Result<()> {
        self.file.finish().map(drop)
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let worked = self.begun.elapsed();
        if self.file.end_piece()? {
            std::thread::sleep(worked.min(REST_MAX));
            self.begun = Instant::now();
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
