//! What a watch returns to a reader that may be in rollouts.
//!
//! The initial state and the events are as the reader sees them ([`concord_state::seen`]). While it is in a rollout, the
//! proven config does not change. When it ends, its candidates become the proven data: that is a change for every watch,
//! although its reader has the data, because the config has a new revision and is no candidate any more.
//!
//! A list of changes has no reader: it is about what was written.
//!
//! **Invariant:** a client that applies each returned change to its records has what its reads as the same reader return at
//! that revision.

use std::sync::Arc;

use super::{OpenWatch, WatchRequest, Watches};
use crate::{NodeReaders, Refusal, request::WatchCount};
use concord_model::{error::Violation, key::Key, system::rollout::Reader};
use concord_state::{State, feed::EventPage};

/// The reader of a watch. A filtered watch has none: which candidates match a filter is not known.
pub(super) fn reader_of(request: &WatchRequest) -> Result<Option<Arc<Reader>>, Refusal> {
    let reader = request.reader.as_ref().filter(|_| !request.of_change_requests);
    if reader.is_some() && !request.filters.is_empty() {
        let loc = vec!["header".into(), "x-concord-reader".into()];
        let msg = "a filtered watch returns proven data: send it without this header, or without a filter";
        return Err(Refusal::Invalid(Violation::at(loc, msg).into()));
    }
    Ok(reader.cloned().map(Arc::new))
}

impl Watches {
    /// How many watches of this node follow a config of the definition with this id. None if the state does not have the
    /// definition.
    #[must_use]
    pub(crate) fn watches_of(&self, state: &State, definition: u64, key: &Key) -> WatchCount {
        let found = state.definition_by_id(definition);
        found.map_or_else(WatchCount::default, |found| self.hub.watches_of(&found.definition.key, key))
    }

    /// The readers that follow a config of the definition with this id by watches of this node. None if the state does not
    /// have the definition.
    #[must_use]
    pub(crate) fn readers_of(&self, state: &State, definition: u64, key: &Key) -> NodeReaders {
        let found = state.definition_by_id(definition);
        found.map_or_else(NodeReaders::default, |found| self.hub.readers_of(&found.definition.key, key))
    }
}

impl OpenWatch {
    /// The events that the watch has to look at, as its reader sees them.
    pub(super) fn as_seen(&mut self, mut piece: EventPage) -> EventPage {
        self.has_lost_view = false;
        if self.selection.scope().is_of_change_requests() {
            return piece;
        }
        let Some(reader) = &self.reader else {
            // What has no records would only take memory.
            let follows = self.follows_rollouts;
            piece.events.retain(|event| !event.items.is_empty() || follows && event.rollouts.is_some());
            return piece;
        };
        let mut seen = Vec::with_capacity(piece.events.len());
        for event in piece.events {
            let Some(view) = event.seen_by(reader) else {
                // The watch ends once it has returned the events before this one.
                (piece.upto, self.has_lost_view) = (event.revision.saturating_sub(1), true);
                break;
            };
            if !view.items.is_empty() {
                seen.push(view);
            }
        }
        EventPage { events: seen, upto: piece.upto }
    }

    /// Notes up to which revision the watch has told its client everything, for who lists its reader.
    pub(super) fn note_told(&self) {
        if self.initial.is_none() {
            self.registration.told(self.position);
        }
    }

    /// The rejection when what the reader sees after the position is not known. It begins again with the initial state.
    pub(super) fn lost_view(&self) -> Refusal {
        Refusal::Expired(format!(
            "what this reader sees after revision {} is not known any more, because the definition of a rollout is gone; \
             resync from the current state",
            self.position
        ))
    }
}
