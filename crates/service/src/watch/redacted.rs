//! What a watch returns to a caller who may not see secret values.
//!
//! The principal is the one that was judged last (`rights`), so a key that loses the right to reveal is shown no more
//! values within the second in which a watch learns of it.
//!
//! A filter is by the definition of now. Of an earlier one with the same key nobody knows any more what was secret, and
//! which of its configs a filter finds would tell their values although no data are shown. So for a caller who may not
//! reveal, a filtered watch begins after its definition was created.
//!
//! **Invariant:** no notice leaves a watch that has a value which its caller may not see, or was chosen by one.

use super::{Notice, OpenWatch, WatchStart, scope::WatchScope};
use crate::{Principal, Refusal, redaction::Redactor};
use concord_model::{access_key::Verb, record::Definition};
use concord_state::{State, feed::Event};

/// Refuses filters by secret values; makes the filters quick to parse.
pub(super) async fn check(
    redactor: &Redactor,
    principal: &Principal,
    (scope, filters, start): (&WatchScope, &[(String, String)], WatchStart),
    state: &State,
) -> Result<(), Refusal> {
    let definition = scope.only_definition().filter(|_| !filters.is_empty());
    match definition.and_then(|key| state.definition(key.as_str())) {
        Some(found) => {
            check_start(principal, &found.definition, start)?;
            redactor.read_declared(filters, &found.definition).await?;
            redactor.check_filters(principal, found, filters).await
        }
        None => Ok(()),
    }
}

/// Refuses a filtered watch of what was before its definition, to who may not reveal.
fn check_start(principal: &Principal, definition: &Definition, start: WatchStart) -> Result<(), Refusal> {
    let WatchStart::After(position) = start else { return Ok(()) };
    let created = definition.created_revision();
    if principal.key.is_none()
        || position.saturating_add(1) >= created
        || principal.authorize(Verb::Reveal, Some(definition.key.as_str())).is_ok()
    {
        return Ok(());
    }
    Err(Refusal::Expired(format!(
        "the definition was created at revision {created}, and what was before it can't be filtered by a key that may \
         not `reveal`; begin anew"
    )))
}

impl OpenWatch {
    /// Whether an event has data that the caller may not be shown. It takes its time to redact them.
    pub(super) fn is_to_be_redacted(&self, event: &Event) -> bool {
        let principal = self.right.principal();
        principal.is_none_or(|principal| self.watches.redactor.is_to_be_redacted(&principal, event))
    }

    /// The next notice, as the caller is shown it.
    pub(super) async fn wait_for_shown(&mut self) -> Result<Notice, Refusal> {
        let notice = self.wait().await?;
        // It may have ended since the watch asked.
        let principal = self.right.principal().ok_or(Refusal::KeyEnded)?;
        if principal.key.is_none() {
            return Ok(notice);
        }
        if let Notice::Changes(event, ..) = &notice {
            // The feed has it a moment before it is applied.
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
