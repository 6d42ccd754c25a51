//! Long polling: returns the next changes in one response, for clients that can't read a stream.
//!
//! A poll is a watch that ends with its first changes, or when no change came in time. It counts as a watch, has the same
//! permissions, and is rejected when a watch would end. The response names the revision at which to resume. So
//! consecutive polls on any nodes are as complete as a stream.
//!
//! **Invariant:** each requested change up to (and including) the revision of a response is in the response, or precedes
//! the start of the poll.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Notice, OpenWatch, Selected, WatchRequest};
use crate::{Principal, RedactedEvent, Refusal, Reservation, watch::Watches};
use concord_model::{limits::POLL_BYTES_MAX, record::Revision};
use concord_state::feed::Event;

/// How long a poll may read the history beyond its deadline, to find a change or to make progress.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

/// A change that a poll returns: the event, the requested part of it, and the redacted fields of its items.
pub type PolledEvent = (Arc<Event>, Selected, RedactedEvent);

/// What a poll returns.
#[derive(Debug)]
pub struct PolledChanges {
    /// The changes, in order; possibly none.
    pub events: Vec<PolledEvent>,
    /// Each requested change up to (and including) this revision has been returned.
    pub upto: Revision,
    /// The id of the cluster.
    pub cluster: Option<uuid::Uuid>,
    /// The memory that the changes hold.
    held: Vec<Reservation>,
}

impl Watches {
    /// Returns the next changes, or none if none came in time.
    ///
    /// # Errors
    /// Those of [`Self::watch`]; and the reason why the watch ended, if it had no change to return.
    pub async fn poll(
        self: &Arc<Self>,
        principal: Principal,
        request: WatchRequest,
        wait: Duration,
    ) -> Result<PolledChanges, Refusal> {
        let until = Instant::now() + wait;
        let mut watch = self.watch(principal, request).await?;
        watch.is_new = false;
        watch.poll_until = Some(until);
        let (upto, cluster) = (watch.position(), watch.cluster());
        let mut changes = PolledChanges { events: Vec::new(), upto, cluster, held: Vec::new() };
        let mut bytes = 0;
        while let Some(notice) = watch.next().await {
            match notice {
                Notice::Changes(event, selected, redacted) => {
                    bytes += event.bytes() + event.bytes_before();
                    changes.upto = event.revision;
                    changes.events.push((event, selected, redacted));
                    changes.held.extend(watch.held.take());
                    if bytes >= POLL_BYTES_MAX {
                        return Ok(changes);
                    }
                    // Changes that are already there are returned, too.
                    watch.poll_until = Some(Instant::now());
                }
                Notice::Progress(revision) => {
                    changes.upto = revision.max(changes.upto);
                    return Ok(changes);
                }
                // The next poll returns the error.
                Notice::End(_) if !changes.events.is_empty() => return Ok(changes),
                Notice::End(refusal) => return Err(refusal),
                Notice::State(_) => {
                    return Err(Refusal::Internal("a poll does not begin with the initial state".into()));
                }
            }
        }
        Ok(changes)
    }
}

impl OpenWatch {
    /// Whether it is time for a notice without changes. A poll that is still reading the history, or the changes that were
    /// acknowledged before it, gets more time, so that each poll makes progress.
    pub(super) fn is_due(&self, due: Instant) -> bool {
        // A list ends with its window, whatever follows in the history.
        let is_replaying = self.replay.is_some() && self.listed.is_none();
        let is_behind = is_replaying || self.position < self.begun_at;
        let is_reading = self.poll_until.is_some() && is_behind;
        let due = if is_reading { due + CATCH_UP_MAX } else { due };
        Instant::now() >= due
    }
}
