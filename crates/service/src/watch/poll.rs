//! Long polls: the next changes in one answer, for callers that can't read a stream.
//!
//! A poll is a watch that ends with its first changes, or when nothing came in time. It is opened as a watch is, counts
//! as one, sees what a watch sees, and is refused where a watch ends. The answer names the revision to go on from, so
//! polls one after another, on any nodes, are as complete as a stream.
//!
//! **Invariant:** everything that was requested up to (and including) the revision of an answer is in it, or was before
//! the poll's beginning.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Notice, OpenWatch, Selected, WatchRequest};
use crate::{Principal, RedactedEvent, Refusal, Reservation, watch::Watches};
use concord_model::{limits::POLL_BYTES_MAX, record::Revision};
use concord_state::feed::Event;

/// How long a poll may read the history beyond its end, to find something or to get on.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

/// A change that a poll returns: the event, the requested part of it, and what of its items is redacted.
pub type PolledEvent = (Arc<Event>, Selected, RedactedEvent);

/// What a poll returns.
#[derive(Debug)]
pub struct PolledChanges {
    /// The changes, in order; possibly none.
    pub events: Vec<PolledEvent>,
    /// Everything that was requested up to (and including) this revision has been returned.
    pub upto: Revision,
    /// The id of the cluster that they are changes of.
    pub cluster: Option<uuid::Uuid>,
    /// What the changes hold in memory.
    held: Vec<Reservation>,
}

impl Watches {
    /// The next changes, or none when none came in time.
    ///
    /// # Errors
    /// As [`Self::watch`]; and why the watch ended, if it had nothing to return.
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
                    // What else is there already comes with it.
                    watch.poll_until = Some(Instant::now());
                }
                Notice::Progress(revision) => {
                    changes.upto = revision.max(changes.upto);
                    return Ok(changes);
                }
                // The caller learns of it by the next poll.
                Notice::End(_) if !changes.events.is_empty() => return Ok(changes),
                Notice::End(refusal) => return Err(refusal),
                Notice::State(_) => {
                    return Err(Refusal::Internal("a poll does not begin with the state".into()));
                }
            }
        }
        Ok(changes)
    }
}

impl OpenWatch {
    /// Whether it is time for a notice although nothing came. A poll reads on for a while: the history, so that each of
    /// them gets on, and what was acknowledged before it.
    pub(super) fn is_due(&self, due: Instant) -> bool {
        let is_behind = self.replay.is_some() || self.position < self.begun_at;
        let is_reading = self.poll_until.is_some() && is_behind;
        let due = if is_reading { due + CATCH_UP_MAX } else { due };
        Instant::now() >= due
    }
}
