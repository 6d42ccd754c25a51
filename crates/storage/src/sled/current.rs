//! The current database of a mirror: closed while nothing is written for a while, and opened again for the next merge.
//!
//! An open database keeps a table of its pages in memory in addition to its cache: 53 MB with 300,000 configs of two
//! indexes, in 100,000 pages of about nine rows. That is some 530 bytes for each page and 180 for each config; it grows
//! with the configs, and a merge needs it for a second. To open it took 55 ms with 300,000 configs and to close it 30,
//! so it is left open for a multiple of that.
//!
//! **Invariant:** it is closed only while no merge is being written. What it holds then was handed to the operating
//! system.

use std::time::{Duration, Instant};

use super::trees::{DatabaseDir, TreeError, Trees};

/// A database that was not used for so long is closed.
const UNUSED_MIN: Duration = Duration::from_secs(10);
/// And at least so many times as long as it took to open it: opening takes a hundredth of the time at most.
const UNUSED_FACTOR: u32 = 100;

/// The current database, if there is one.
#[derive(Debug, Default)]
pub(super) enum Current {
    /// There is none.
    #[default]
    None,
    /// It is closed.
    Closed,
    /// It is open.
    Open {
        trees: Box<Trees>,
        used_at: Instant,
        /// How long it took to open it.
        opening: Duration,
    },
}

impl Current {
    pub(super) fn of(trees: Option<Trees>) -> Self {
        trees.map_or(Self::None, |trees| Self::opened(trees, Duration::ZERO))
    }

    fn opened(trees: Trees, opening: Duration) -> Self {
        Self::Open { trees: Box::new(trees), used_at: Instant::now(), opening }
    }

    pub(super) fn exists(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The database to write to; it is opened if it is closed.
    ///
    /// # Errors
    /// When it can't be opened; it no longer exists then.
    pub(super) fn writable(&mut self, databases: &DatabaseDir) -> Result<Option<&Trees>, TreeError> {
        if matches!(self, Self::Closed) {
            *self = Self::None;
            let begun = Instant::now();
            let trees = databases.current()?.ok_or_else(|| TreeError::new("sled was removed"))?;
            *self = Self::opened(trees, begun.elapsed());
        }
        Ok(match self {
            Self::Open { trees, used_at, .. } => {
                *used_at = Instant::now();
                Some(trees)
            }
            Self::None | Self::Closed => None,
        })
    }

    /// The database if it is open.
    pub(super) fn open(&self) -> Option<&Trees> {
        match self {
            Self::Open { trees, .. } => Some(trees),
            Self::None | Self::Closed => None,
        }
    }

    /// Takes the database away; returns it if it is open.
    pub(super) fn take(&mut self) -> Option<Trees> {
        match std::mem::take(self) {
            Self::Open { trees, .. } => Some(*trees),
            Self::None | Self::Closed => None,
        }
    }

    /// Makes what the database holds durable and closes it.
    ///
    /// # Errors
    /// When sled or the disk fails.
    pub(super) fn close_durably(&mut self, databases: &DatabaseDir) -> Result<(), TreeError> {
        match std::mem::take(self) {
            Self::None => Ok(()),
            Self::Closed => databases.sync(),
            Self::Open { trees, .. } => trees.sync().and_then(|()| trees.close()),
        }
    }

    /// Closes the database if it was not used for long, seen at `now`; returns when it would be, if it is open after
    /// that.
    ///
    /// # Errors
    /// When sled fails; it no longer exists then.
    pub(super) fn close_unused(&mut self, now: Instant) -> Result<Option<Duration>, TreeError> {
        let Self::Open { used_at, opening, .. } = self else { return Ok(None) };
        let left = (*used_at + UNUSED_MIN.max(*opening * UNUSED_FACTOR)).saturating_duration_since(now);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        self.take().map_or(Ok(()), Trees::close)?;
        *self = Self::Closed;
        Ok(None)
    }
}
