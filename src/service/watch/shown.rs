//! What a watch returns to a caller who may not see secret values.
//!
//! The principal is the one that was judged last (`rights`), so a key that loses the right to reveal is shown no more
//! values within the second in which a watch learns of it.
//!
//! **Invariant:** no notice leaves a watch that has a value which its caller may not see.

use super::{Notice, Watch, scope::Scope};
use crate::{
    feed::Event,
    service::{Principal, Refusal, Service},
    state::State,
};

/// Refuses filters by secret values.
pub(super) async fn check(
    service: &Service,
    principal: &Principal,
    (scope, filters): (&Scope, &[(String, String)]),
    state: &State,
) -> Result<(), Refusal> {
    let definition = scope.only_definition().filter(|_| !filters.is_empty());
    match definition.and_then(|key| state.definition(key.as_str())) {
        Some(found) => service.check_filters(principal, found, filters).await,
        None => Ok(()),
    }
}

impl Watch {
    /// Whether an event has data that the caller may not be shown. It takes its time to redact them.
    pub(super) fn is_to_be_redacted(&self, event: &Event) -> bool {
        let principal = self.right.principal();
        principal.is_none_or(|principal| self.service.is_to_be_redacted(&principal, event))
    }

    /// The next notice, as the caller is shown it.
    pub(super) async fn wait_for_shown(&mut self) -> Result<Notice, Refusal> {
        let notice = self.wait().await?;
        // It may have ended since the watch asked.
        let principal = self.right.principal().ok_or(Refusal::KeyEnded)?;
        if principal.key.is_none() {
            return Ok(notice);
        }
        match notice {
            Notice::Changes(event, selected, _) if self.service.is_to_be_redacted(&principal, &event) => {
                let redact = self.service.redact_event(&principal, &event, self.has_prev);
                let (shown, redacted) = Box::pin(redact).await?;
                Ok(Notice::Changes(shown, selected, redacted))
            }
            Notice::State(chunk) => {
                let (service, state) = (&self.service, self.service.applied());
                Ok(Notice::State(Box::pin(chunk.redacted(service, &principal, &state)).await?))
            }
            Notice::Changes(..) | Notice::Progress(_) | Notice::End(_) => Ok(notice),
        }
    }
}
