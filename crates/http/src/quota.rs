//! Quotas of access keys at a request: what is rejected with 429, and the headers that say what is left.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-10. They are on the answers to
//! keys that have a rate, and name the rate of which the least is left.
//!
//! **Invariant:** a request of the root key is not looked at.

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, header};

use super::{
    consul,
    endpoints::Endpoint,
    extract::MatchedRequest,
    reply::{Problem, number},
};
use concord_service::{
    Principal, Refusal, Service,
    quota::{Exceeded, Gauge, GaugeGuard, RateLeft},
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");

/// What a request uses of its key's quota.
#[derive(Debug)]
pub(super) struct AdmittedRequest {
    rate: Option<RateLeft>,
    /// A place for as long as the list is computed.
    list: Option<GaugeGuard>,
    /// A place for as long as the watch is open.
    watch: Option<GaugeGuard>,
    cursor: Option<FirstPage>,
}

/// A page of a list, by a principal whose cursors may count.
#[derive(Debug)]
struct FirstPage {
    service: Service,
    principal: Principal,
    is_first: bool,
}

/// Admits a request whose credential is good. `None` when it has nothing to count.
///
/// # Errors
/// When the quota is used up.
pub(super) fn admit(
    service: &Service,
    principal: &Principal,
    asked: &MatchedRequest,
) -> Result<Option<AdmittedRequest>, Exceeded> {
    if principal.is_unbounded() { Ok(None) } else { admit_key(service, principal, asked).map(Some) }
}

fn admit_key(
    service: &Service,
    principal: &Principal,
    asked: &MatchedRequest,
) -> Result<AdmittedRequest, Exceeded> {
    let rate = service.quotas.admit_request(principal, asked.is_write())?;
    let mut admitted = AdmittedRequest { rate, list: None, watch: None, cursor: None };
    let gauge_of =
        |endpoint: &Endpoint| if endpoint.is_consul { consul::gauge(asked.params()) } else { endpoint.gauge };
    match asked.matched.endpoint.and_then(gauge_of) {
        Some(Gauge::Watches) => admitted.watch = service.quotas.admit_open(principal, Gauge::Watches)?,
        Some(Gauge::Lists) => {
            admitted.list = service.quotas.admit_open(principal, Gauge::Lists)?;
            let is_first = asked.params().get("cursor").is_none_or(str::is_empty);
            if is_first {
                service.quotas.admit_cursor(principal)?;
            }
            admitted.cursor =
                Some(FirstPage { service: service.clone(), principal: principal.clone(), is_first });
        }
        None => {}
    }
    Ok(admitted)
}

impl AdmittedRequest {
    /// Says in the response what is left. A watch holds its place until it ends.
    pub(super) fn end(self, mut response: Response) -> Response {
        drop(self.list);
        if let Some(rate) = self.rate {
            say(&mut response, rate);
        }
        if !response.status().is_success() {
            return response;
        }
        if let Some(FirstPage { service, principal, is_first }) = self.cursor {
            // The first page begins a cursor when there is a second one, the last page ends it.
            if response.headers().contains_key(header::LINK) == is_first {
                service.quotas.note_cursor(&principal, is_first);
            }
        }
        match self.watch {
            None => response,
            Some(held) => response.map(|body| {
                let body = body.into_data_stream().map(move |part| {
                    let _until_the_stream_ends = &held;
                    part
                });
                Body::from_stream(body)
            }),
        }
    }
}

/// The response to a request that has met a limit.
pub(super) fn refused(exceeded: &Exceeded) -> Response {
    let mut response = Problem::from(Refusal::LimitReached(exceeded.text.clone())).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, number(exceeded.retry_after_s));
    if let Some(rate) = exceeded.rate {
        say(&mut response, rate);
    }
    response
}

fn say(response: &mut Response, rate: RateLeft) {
    let RateLeft { name, per_second, left, reset_s } = rate;
    let value = |text: String| HeaderValue::from_str(&text).expect("a literal and numbers");
    response.headers_mut().insert(POLICY, value(format!("\"{name}\";q={per_second};w=1")));
    response.headers_mut().insert(LEFT, value(format!("\"{name}\";r={left};t={reset_s}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn a_refusal_says_which_rate_and_when_to_come_back() {
        let rate = RateLeft { name: "writes", per_second: 5, left: 0, reset_s: 1 };
        let exceeded = Exceeded { text: "too many".into(), retry_after_s: 7, rate: Some(rate) };
        let response = refused(&exceeded);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        assert_eq!(header("retry-after"), "7");
        assert_eq!(header("ratelimit-policy"), "\"writes\";q=5;w=1");
        assert_eq!(header("ratelimit"), "\"writes\";r=0;t=1");
    }
}
