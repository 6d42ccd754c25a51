//! Responses that are rewritten as a whole: compressed, or indented.
//!
//! The text of a response that is held in memory is collected, room for as many bytes again is reserved, and long work
//! runs in the pool. If any of this fails, the response is sent unchanged.
//!
//! **Invariant:** the room is given back when the work is done, also when nobody waits for it any more.

use axum::{
    body::{Bytes, HttpBody as _},
    response::{IntoResponse as _, Response},
};
use http::response::Parts;
use http_body_util::BodyExt as _;

use super::{reply::Problem, weight::Weighed};
use concord_service::{
    Refusal, Service,
    memory_budget::{Reservation, Share},
};

/// A response that is held in memory.
pub(super) struct BufferedResponse {
    pub(super) parts: Parts,
    pub(super) plain: Bytes,
    room: Reservation,
}

impl BufferedResponse {
    /// The response as a whole.
    ///
    /// # Errors
    /// With the response to send instead: the same when it is empty, sent as it is made, or there is no room.
    pub(super) async fn of(response: Response, service: &Service) -> Result<Self, Response> {
        let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0) else {
            return Err(response);
        };
        let mut room = service.cx.reservation(Share::Callers);
        if room.grow(bytes).is_err() {
            // The response itself is weighed after this.
            return Err(response);
        }
        let (mut parts, body) = response.into_parts();
        // What is made of it is not.
        parts.extensions.remove::<Weighed>();
        match body.collect().await {
            Ok(plain) => Ok(Self { parts, plain: plain.to_bytes(), room }),
            Err(error) => {
                let text = format!("an answer could not be made: {error}");
                Err(Problem::from(Refusal::Internal(text)).into_response())
            }
        }
    }

    /// The parts, the text, and what is made of it: at once up to so many bytes, else in the pool; `None` when that was
    /// not done in time.
    pub(super) async fn rewritten<T: Send + 'static>(
        self,
        service: &Service,
        inline_bytes_max: usize,
        rewrite: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> (Parts, Bytes, Option<T>) {
        let Self { parts, plain, room } = self;
        let made = if plain.len() <= inline_bytes_max {
            Some(rewrite(&plain))
        } else {
            let text = plain.clone();
            let work = move || {
                let _room = &room;
                rewrite(&text)
            };
            Box::pin(service.cx.run_long(work)).await.ok()
        };
        (parts, plain, made)
    }
}
