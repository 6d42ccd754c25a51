//! Lines of stdin and stdout, each on a thread of its own: nobody can end a read of stdin, so nothing waits for it.
//!
//! **Invariants:** stdout has the lines that are given to it, and nothing else. A line of stdin is never longer in memory than
//! [`LINE_BYTES_MAX`]; at most three are there before one is taken.

use std::{
    io::{self, BufRead, Read as _, Write},
    thread,
};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::cli::connection::Failure;

/// Bytes of a line of stdin.
pub(super) const LINE_BYTES_MAX: usize = 4 << 20;
/// Lines that wait to be written.
const WAITING_MAX: usize = 4;

/// A line of stdin.
#[derive(Debug)]
pub(super) enum Line {
    Text(Vec<u8>),
    /// It was longer than [`LINE_BYTES_MAX`], and is skipped.
    TooLong,
}

/// The two ends of the threads.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) input: mpsc::Receiver<Line>,
    pub(super) output: mpsc::Sender<Value>,
    /// Told when everything is written, after the last sender is gone.
    pub(super) is_written: oneshot::Receiver<()>,
}

impl Lines {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(super) fn start() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("a thread can't be started: {error}"));
        let (lines, input) = mpsc::channel(1);
        let (output, messages) = mpsc::channel(WAITING_MAX);
        let (written, is_written) = oneshot::channel();
        let read = move || read_lines(io::stdin().lock(), &lines);
        thread::Builder::new().name("stdin".into()).spawn(read).map_err(failed)?;
        let write = move || {
            write_lines(io::stdout().lock(), messages);
            let _ = written.send(());
        };
        thread::Builder::new().name("stdout".into()).spawn(write).map_err(failed)?;
        Ok(Self { input, output, is_written })
    }
}

fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<Line>) {
    loop {
        match read_line(&mut input) {
            Ok(Some(line)) => {
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => return tracing::error!("stdin can't be read: {error}"),
        }
    }
}

fn read_line(input: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut text = Vec::new();
    let most = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    input.by_ref().take(most).read_until(b'\n', &mut text)?;
    if text.len() > LINE_BYTES_MAX && !text.ends_with(b"\n") {
        input.skip_until(b'\n')?;
        return Ok(Some(Line::TooLong));
    }
    Ok((!text.is_empty()).then_some(Line::Text(text)))
}

fn write_lines(mut output: impl Write, mut messages: mpsc::Receiver<Value>) {
    while let Some(message) = messages.blocking_recv() {
        if let Err(error) = writeln!(output, "{message}").and_then(|()| output.flush()) {
            return tracing::warn!("stdout can't be written: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_bounded() {
        let long = "x".repeat(LINE_BYTES_MAX);
        let mut input = io::Cursor::new(format!("a\n{long}\n{long}y\n\nlast"));
        let mut lines = Vec::new();
        while let Some(line) = read_line(&mut input).unwrap() {
            lines.push(match line {
                Line::Text(text) => text.len(),
                Line::TooLong => 0,
            });
        }
        assert_eq!(lines, [2, LINE_BYTES_MAX + 1, 0, 1, 4]);
    }
}
