//! Reserves memory for responses that are held in memory as a whole, because a client may read one slowly or never.
//!
//! A page of a list has reserved its memory before it was rendered ([`Weighed`]).
//!
//! **Invariant:** the bytes of such a response are reserved in the memory budget until they are sent or its connection
//! ends.

use axum::{
    body::{Body, Bytes, HttpBody as _},
    response::{IntoResponse as _, Response},
};
use http::Version;
use http_body_util::BodyExt as _;

use super::reply::Problem;
use concord_service::{
    Refusal, Service,
    memory_budget::{Reservation, Share},
};

/// Bytes of a response above which it is weighed over HTTP/1: smaller ones are bounded by the number of connections.
/// Over HTTP/2 all are, because a connection has hundreds at once.
const WEIGHED_BYTES: u64 = 8 << 10;

/// In the extensions of a response whose body holds a part of the memory budget already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighed;

/// The bytes of a response with what they hold of the memory budget, until they are sent.
struct WeighedBody {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for WeighedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that hold a part of the memory budget until they are sent.
pub(super) fn holding(bytes: Bytes, reservation: Reservation) -> Bytes {
    Bytes::from_owner(WeighedBody { bytes, _reservation: reservation })
}

/// The bytes of a response that has to be weighed.
pub(super) fn bytes_to_weigh(response: &Response, version: Version) -> Option<u64> {
    if response.extensions().get::<Weighed>().is_some() {
        return None;
    }
    let free = if version == Version::HTTP_2 { 0 } else { WEIGHED_BYTES };
    response.body().size_hint().exact().filter(|bytes| *bytes > free)
}

/// Weighs a response that is held in memory as a whole: a client may read it slowly. A read whose response does not fit
/// is rejected; a write may have been applied, so its response counts all the same.
pub(super) async fn weighed(response: Response, bytes: u64, service: &Service, is_read: bool) -> Response {
    let mut reservation = service.cx.reservation(Share::Callers);
    if is_read {
        if let Err(refusal) = reservation.grow(bytes) {
            return Problem::from(refusal).into_response();
        }
    } else {
        reservation.grow_anyway(bytes);
    }
    let (parts, body) = response.into_parts();
    // It is in memory already, in one piece.
    match body.collect().await {
        Ok(collected) => Response::from_parts(parts, Body::from(holding(collected.to_bytes(), reservation))),
        Err(error) => {
            let text = format!("an answer could not be made: {error}");
            Problem::from(Refusal::Internal(text)).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use http::{StatusCode, Version, header};

    use super::*;
    use crate::reply::Reply;
    use concord_model::limits::Limits;
    use concord_service::testing::service;

    #[tokio::test]
    async fn a_large_answer_holds_its_bytes_until_it_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits { in_flight_bytes: 8 << 20, ..Limits::default() };
        let service = service(directory.path(), limits);
        let answer = || Reply::ok("found", &format!("\"{}\"", "x".repeat(1 << 20))).into_response();
        let weigh = async |answer: Response, service: &Service, is_read| match bytes_to_weigh(
            &answer,
            Version::HTTP_11,
        ) {
            Some(bytes) => weighed(answer, bytes, service, is_read).await,
            None => answer,
        };
        let (one, two) = (weigh(answer(), &service, true).await, weigh(answer(), &service, true).await);
        assert_eq!((one.status(), two.status()), (StatusCode::OK, StatusCode::OK));
        let refused = weigh(answer(), &service, true).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        let written = weigh(answer(), &service, false).await;
        assert_eq!(written.status(), StatusCode::OK, "a write was applied");
        let small = Reply::ok("found", "1").into_response();
        assert_eq!(bytes_to_weigh(&small, Version::HTTP_11), None);
        assert!(bytes_to_weigh(&small, Version::HTTP_2).is_some(), "a connection has hundreds of them");
        assert_eq!(one.body().size_hint().exact(), two.body().size_hint().exact());
        let bytes = to_bytes(one.into_body(), usize::MAX).await.unwrap();
        assert!(bytes.len() > 1 << 20);
        drop(bytes);
        drop((two, written));
        assert_eq!(weigh(answer(), &service, true).await.status(), StatusCode::OK);
    }
}
