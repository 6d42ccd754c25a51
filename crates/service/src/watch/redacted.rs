//! What a watch returns to a client that may not see secret fields.
//!
//! The permissions are those that were authorized last (`permissions`). So a key that loses the permission `reveal` gets
//! no more secret values from the moment at which the watch learns of it, within a second.
//!
//! A filter belongs to the current definition. Once an earlier definition with the same key is deleted, Concord cannot
//! tell which of its fields were secret, and the matches of a filter would reveal their values. So for a client without
//! `reveal`, a filtered watch begins after its definition was created.
//!
//! **Invariant:** no notice contains a value that its client may not see, or was selected by such a value.

use super::{Notice, OpenWatch, Selected, WatchRequest, WatchStart, Watches, scope::WatchScope};
use crate::{Principal, Refusal, authors, change_requests};
use concord_model::{access_key::Verb, record::Definition};
use concord_state::{State, feed::Event};

impl Watches {
    /// Rejects filters on secret fields. Reads the declared types of the filtered paths, so that parsing them is quick.
    pub(super) async fn check_filters(
        &self,
        principal: &Principal,
        scope: &WatchScope,
        request: &WatchRequest,
        state: &State,
    ) -> Result<(), Refusal> {
        let filters = &request.filters;
        let definition = scope.only_definition().filter(|_| !filters.is_empty());
        match definition.and_then(|key| state.definition(key.as_str())) {
            Some(found) => {
                check_start(principal, &found.definition, request.start)?;
                self.redactor.read_declared(filters, &found.definition).await?;
                self.redactor.check_filters(principal, found, filters).await
            }
            None => Ok(()),
        }
    }
}

/// Rejects a filtered watch that begins before its definition was created, unless the client may `reveal`.
fn check_start(principal: &Principal, definition: &Definition, start: WatchStart) -> Result<(), Refusal> {
    let WatchStart::After(position) = start else { return Ok(()) };
    let created = definition.created_revision();
    if principal.is_unbounded()
        || position.saturating_add(1) >= created
        || principal.authorize(Verb::Reveal, Some(definition.key.as_str())).is_ok()
    {
        return Ok(());
    }
    Err(Refusal::Expired(format!(
        "the definition was created at revision {created}, and earlier changes can't be filtered without the permission \
         `reveal`; resync from the current state"
    )))
}

impl OpenWatch {
    /// Whether an event has data that the client may not see. Redacting them takes time.
    pub(super) fn is_to_be_redacted(&self, event: &Event) -> bool {
        let principal = self.permission.principal();
        principal.is_none_or(|principal| self.watches.redactor.is_to_be_redacted(&principal, event))
    }

    /// The next notice, as the client may see it.
    pub(super) async fn wait_redacted(&mut self) -> Result<Notice, Refusal> {
        loop {
            let notice = self.wait().await?;
            let Notice::Changes(event, Selected::ChangeRequests(_), redacted) = notice else {
                return self.shown(notice).await;
            };
            // Names and environments are those of a state that has the event.
            let state = self.watches.freshness.state_to_show(event.revision).await?;
            let principal = self.permission.principal().ok_or(Refusal::KeyEnded)?;
            let seen = change_requests::events(&state, &principal, &event);
            if !seen.is_empty() {
                return Ok(Notice::Changes(event, Selected::ChangeRequests(seen), redacted));
            }
            // One that the client may not see is no reason to be silent.
            if self.is_due(self.notice_due()) {
                return Ok(Notice::Progress(self.position));
            }
        }
    }

    /// Whether an event is of a change request, and not applied yet: who may see that is not known.
    pub(super) fn is_ahead(&self, event: &Event) -> bool {
        !event.change_requests.is_empty() && self.watches.cx.applied().revision() < event.revision
    }

    /// Names the change request of an event that is applied.
    pub(super) fn name_request(&self, notice: &mut Notice) {
        if let Notice::Changes(event, _, redacted) = notice
            && !event.change_requests.is_empty()
            && let Some(principal) = self.permission.principal()
        {
            let state = self.watches.cx.applied();
            redacted.author = authors::of_event(&state, &principal, event, false);
        }
    }

    /// A notice about records, as the client may see it, with the author of a change.
    async fn shown(&self, notice: Notice) -> Result<Notice, Refusal> {
        let with_names = self.listed.is_some();
        let author = match &notice {
            Notice::Changes(event, ..) if with_names || !event.change_requests.is_empty() => {
                let state = self.watches.freshness.state_to_show(event.revision).await?;
                let principal = self.permission.principal().ok_or(Refusal::KeyEnded)?;
                authors::of_event(&state, &principal, event, with_names)
            }
            Notice::Changes(..) | Notice::State(_) | Notice::Progress(_) | Notice::End(_) => {
                return self.redacted(notice).await;
            }
        };
        let mut notice = self.redacted(notice).await?;
        if let Notice::Changes(_, _, redacted) = &mut notice {
            redacted.author = author;
        }
        Ok(notice)
    }

    async fn redacted(&self, notice: Notice) -> Result<Notice, Refusal> {
        // The key may have expired since the watch checked.
        let principal = self.permission.principal().ok_or(Refusal::KeyEnded)?;
        if principal.is_unbounded() {
            return Ok(notice);
        }
        if let Notice::Changes(event, ..) = &notice {
            // The feed has an event a moment before it is applied.
            drop(self.watches.freshness.state_to_show(event.revision).await?);
        }
        match notice {
            Notice::Changes(event, selected, _)
                if self.watches.redactor.is_to_be_redacted(&principal, &event) =>
            {
                let redact = self.watches.redactor.redact_event(&principal, &event, self.has_prev);
                let (shown, redacted) = Box::pin(redact).await?;
                Ok(Notice::Changes(shown, selected, redacted))
            }
            Notice::State(chunk) => {
                let (redactor, state) = (&self.watches.redactor, self.watches.cx.applied());
                Ok(Notice::State(Box::pin(chunk.redacted(redactor, &principal, &state)).await?))
            }
            Notice::Changes(..) | Notice::Progress(_) | Notice::End(_) => Ok(notice),
        }
    }
}
