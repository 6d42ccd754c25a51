//! Responses of OFREP: their statuses, and the form that it gives a rejection.
//!
//! Providers know 400, 404 and 500 with a body of `key`, `errorCode` and `errorDetails`; of any other status they show
//! the text. So what is 422 elsewhere is 400 here, and each rejection has such a body, whatever layer it comes from.

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use super::{Reply, weight};
use concord_flags::{ErrorCode, ofrep};
use concord_service::FlagResponse;

/// Bytes of a rejection that are read for its text.
const REJECTION_BYTES_MAX: usize = 64 << 10;

/// In the extensions of a response that has the form of OFREP.
#[derive(Debug, Clone, Copy)]
struct OfrepBody;

const fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::FlagNotFound => StatusCode::NOT_FOUND,
        ErrorCode::ParseError | ErrorCode::InvalidContext | ErrorCode::General => StatusCode::BAD_REQUEST,
    }
}

impl Reply {
    /// The response about flags, without an envelope.
    pub(crate) fn evaluation(made: FlagResponse, headers: &HeaderMap) -> Response {
        let FlagResponse { body, failure, revision, redacted, may_compress, mut reservation } = made;
        reservation.set(body.len() as u64);
        let mut reply = Self::json(Body::from(weight::holding(body.into(), reservation)));
        reply.is_weighed = true;
        reply.status = failure.map_or(StatusCode::OK, status);
        let reply = reply.redacted(Some(&redacted)).state_revision(revision);
        let mut response = reply.compressed_for(headers, || may_compress).into_response();
        response.extensions_mut().insert(OfrepBody);
        response
    }

    /// The response to a request whose context can't be used.
    pub(crate) fn failed_evaluation(flag: Option<&str>, code: ErrorCode, details: &str) -> Response {
        let reply = Self::json(Body::from(ofrep::failure(flag, code, details)));
        let mut response = Self { status: status(code), ..reply }.into_response();
        response.extensions_mut().insert(OfrepBody);
        response
    }
}

/// The form of the rejections of a request.
#[derive(Debug)]
pub(crate) struct OfrepForm {
    /// The flag that the request names.
    pub(crate) flag: Option<String>,
}

impl OfrepForm {
    /// A rejection in this form, with its headers; any other response as it is.
    pub(crate) async fn of(self, response: Response) -> Response {
        in_form(response, self.flag.as_deref()).await
    }
}

async fn in_form(response: Response, flag: Option<&str>) -> Response {
    let is_rejection = response.status().is_client_error() || response.status().is_server_error();
    if !is_rejection || response.extensions().get::<OfrepBody>().is_some() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Each rejection is made in memory, so it is there in one piece.
    let text =
        Limited::new(body, REJECTION_BYTES_MAX).collect().await.map(http_body_util::Collected::to_bytes);
    let rejection: Value = text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let items = [&rejection["errors"], &rejection["detail"]];
    let details = items.into_iter().find_map(|items| items[0]["msg"].as_str());
    let details = details.or_else(|| parts.status.canonical_reason()).unwrap_or_default();
    let code = match parts.status {
        StatusCode::NOT_FOUND => ErrorCode::FlagNotFound,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => ErrorCode::ParseError,
        _ => ErrorCode::General,
    };
    if parts.status == StatusCode::UNPROCESSABLE_ENTITY {
        parts.status = StatusCode::BAD_REQUEST;
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(ofrep::failure(flag, code, details)))
}
