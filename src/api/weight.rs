//! Weighs answers that are held in memory as a whole: a caller may read one slowly, or never.
//!
//! **Invariant:** the bytes of such an answer are reserved in the memory budget until they are sent or its connection
//! has ended.

use axum::{
    body::{Body, Bytes, HttpBody as _},
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;

use super::reply::Problem;
use crate::service::{
    Refusal, Service,
    memory_budget::{Reservation, Share},
};

/// Bytes of an answer above which it is weighed: smaller ones are bounded by the number of connections.
const WEIGHED_BYTES: u64 = 8 << 10;

/// The bytes of an answer with what they hold of the memory budget, until they are sent.
struct Weighed {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Weighed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that hold a part of the memory budget until they are sent.
pub(super) fn holding(bytes: Bytes, reservation: Reservation) -> Bytes {
    Bytes::from_owner(Weighed { bytes, _reservation: reservation })
}

/// The bytes of an answer that has to be weighed.
fn heavy_bytes(response: &Response) -> Option<u64> {
    response.body().size_hint().exact().filter(|bytes| *bytes > WEIGHED_BYTES)
}

/// Whether [`weighed`] would leave an answer as it is.
pub(super) fn is_light(response: &Response) -> bool {
    heavy_bytes(response).is_none()
}

/// Weighs an answer that is held in memory as a whole: a caller may read it slowly. A read whose answer does not fit
/// is refused; a write may have been applied, so its answer counts all the same.
pub(super) async fn weighed(response: Response, service: &Service, is_read: bool) -> Response {
    let Some(bytes) = heavy_bytes(&response) else { return response };
    let mut reservation = service.reservation(Share::Callers);
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
    use http::{StatusCode, header};

    use super::*;
    use crate::{api::reply::Reply, model::limits::Limits, service::tests::service};

    #[tokio::test]
    async fn a_large_answer_holds_its_bytes_until_it_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits { in_flight_bytes: 8 << 20, ..Limits::default() };
        let service = service(directory.path(), limits);
        let answer = || Reply::ok("found", &format!("\"{}\"", "x".repeat(1 << 20))).into_response();
        let (one, two) = (weighed(answer(), &service, true).await, weighed(answer(), &service, true).await);
        assert_eq!((one.status(), two.status()), (StatusCode::OK, StatusCode::OK));
        let refused = weighed(answer(), &service, true).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        let written = weighed(answer(), &service, false).await;
        assert_eq!(written.status(), StatusCode::OK, "a write was applied");
        let small = weighed(Reply::ok("found", "1").into_response(), &service, true).await;
        assert_eq!(small.status(), StatusCode::OK);
        assert_eq!(one.body().size_hint().exact(), two.body().size_hint().exact());
        let bytes = to_bytes(one.into_body(), usize::MAX).await.unwrap();
        assert!(bytes.len() > 1 << 20);
        drop(bytes);
        drop((two, written));
        assert_eq!(weighed(answer(), &service, true).await.status(), StatusCode::OK);
    }
}
