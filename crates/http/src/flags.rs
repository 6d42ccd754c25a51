//! Feature flags: evaluations by OFREP, the `OpenFeature` Remote Evaluation Protocol, and the document that flagd fetches.
//!
//! ```text
//! POST …/ofrep/v1/evaluate/flags/{flag}   one flag
//! POST …/ofrep/v1/evaluate/flags          all flags, with an entity tag
//! GET  …/flagd.json                       all flags as one document, with an entity tag
//! GET  …/events                           server-sent events that say when to fetch all flags again
//! ```
//!
//! `…` is `/api/v1/flags/{definition}`. Without it the first two are of the definition [`DEFAULT_DEFINITION`], so that a
//! provider needs no more than the address of a node. Providers keep a path in their base address, and nothing else of
//! it, so a path names the definition.
//!
//! **Invariants:** a response has the body that OFREP or flagd expects, without the envelope of other responses; `reply`
//! gives rejections their form. An entity tag is that of the bytes of a response, because an evaluation depends on the
//! context and the time as well as on the flags.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Uri, header};
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use super::{
    access::TICKET,
    body, coding, definitions,
    endpoints::Matched,
    entity_tags::{self, client_has},
    extract::{AuthenticatedCall, ReadRequest, check_key},
    reply::{Problem, Reply, ofrep::OfrepForm},
};
use concord_flags::{Context, ErrorCode, ofrep};
use concord_model::{limits::FLAG_REQUEST_BYTES_MAX, record::Revision};
use concord_service::{
    Consistency, FlagRequest, FlagResponse, Principal, Service, Share,
    watch::{Notice, OpenWatch, WatchRequest, WatchStart},
};

/// The definition of requests whose path names none.
const DEFAULT_DEFINITION: &str = "flags";
/// The path's parameter with the key of the flag.
const FLAG: &str = "flag";

/// What a request for an evaluation has.
struct EvaluationRequest {
    principal: Principal,
    consistency: Consistency,
    definition: String,
    headers: HeaderMap,
    context: Result<Context, (ErrorCode, String)>,
}

/// The key of the flag that a path names.
fn flag_of(matched: &Matched, uri: &Uri) -> Option<String> {
    let found = matched.parameters(uri).find(|(name, _)| *name == FLAG);
    found.map(|(_, text)| percent_decode_str(text).decode_utf8_lossy().into_owned())
}

/// The form of the rejections of a request, if it has one of its own.
pub(super) fn form_of(matched: &Matched, uri: &Uri) -> Option<OfrepForm> {
    matched.endpoint.filter(|endpoint| endpoint.is_ofrep).map(|_| OfrepForm { flag: flag_of(matched, uri) })
}

impl EvaluationRequest {
    async fn receive(service: &Service, call: AuthenticatedCall) -> Result<Self, Problem> {
        let AuthenticatedCall { asked, principal } = call;
        // Other parameters have no effect: OFREP may grow some.
        let (consistency, ()) = asked.params().with_consistency(Ok(()))?;
        let definition = match asked.matched.definition(asked.uri()) {
            named if named.is_empty() => DEFAULT_DEFINITION.to_owned(),
            named => named.into_owned(),
        };
        check_key(&definition, definitions::KEY)?;
        let (parts, received) = asked.request.into_parts();
        let (begin, mut held) = (Instant::now(), service.cx.reservation(Share::Callers));
        let received = body::receive(&parts.headers, received, FLAG_REQUEST_BYTES_MAX, &mut held).await?;
        let principal = service.authentication.still(principal, begin)?;
        let (received, held) = match coding::of_body(&parts.headers)? {
            None => (received, held),
            Some(coding) => {
                Box::pin(coding::decoded(service, coding, received, FLAG_REQUEST_BYTES_MAX, held)).await?
            }
        };
        body::check_type(&parts.headers)?;
        let context = if received.is_empty() {
            Ok(Context::empty())
        } else {
            let received = body::Received::new(received, held)?;
            received.read(service, |body| Ok(ofrep::context(&body))).await?
        };
        let context = context.map_err(|error| (ErrorCode::InvalidContext, error.text().to_owned()));
        Ok(Self { principal, consistency, definition, headers: parts.headers, context })
    }
}

/// Evaluates one flag.
pub(super) async fn evaluate(service: Service, call: AuthenticatedCall) -> Result<Response, Problem> {
    let flag = flag_of(&call.asked.matched, call.asked.uri()).unwrap_or_default();
    let EvaluationRequest { principal, consistency, definition, headers, context } =
        EvaluationRequest::receive(&service, call).await?;
    let context = match context {
        Ok(context) => context,
        Err((code, details)) => return Ok(Reply::failed_evaluation(Some(&flag), code, &details)),
    };
    let request = FlagRequest { definition: &definition, flag: Some(&flag), context, consistency };
    let made = service.flags.evaluate(&principal, request).await?;
    Ok(Reply::evaluation(made, &headers))
}

/// Evaluates all flags.
pub(super) async fn evaluate_all(service: Service, call: AuthenticatedCall) -> Result<Response, Problem> {
    let EvaluationRequest { principal, consistency, definition, headers, context } =
        EvaluationRequest::receive(&service, call).await?;
    let context = match context {
        Ok(context) => context,
        Err((code, details)) => return Ok(Reply::failed_evaluation(None, code, &details)),
    };
    let request = FlagRequest { definition: &definition, flag: None, context, consistency };
    let mut made = service.flags.evaluate(&principal, request).await?;
    // In the tag, too: with 304 a provider would keep the address of a stream that lets it in no more.
    if let Some(ticket) = service.authentication.ticket(&principal, &definition) {
        made.body = ofrep::with_event_stream(
            made.body,
            &format!("/api/v1/flags/{definition}/events?{TICKET}={ticket}"),
        );
    }
    Ok(tagged(made, &headers))
}

/// All flags as the document that flagd fetches.
pub(super) async fn document(service: Service, request: ReadRequest) -> Result<Response, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let definition = request.definition();
    check_key(&definition, definitions::KEY)?;
    let made = service.flags.document(&request.principal, &definition, consistency).await?;
    Ok(tagged(made, request.headers()))
}

/// The changes of the flags, as events that say when to fetch them again. The first comes at once: a provider does not
/// fetch by itself after it has reconnected.
pub(super) async fn events(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let definition = request.definition().into_owned();
    check_key(&definition, definitions::KEY)?;
    let wanted = WatchRequest {
        of_change_requests: false,
        definitions: vec![definition],
        configs: Vec::new(),
        filters: Vec::new(),
        has_prev: false,
        start: WatchStart::Now,
        consistency,
        reader: None,
    };
    let watch = service.watches.watch(request.principal, wanted).await?;
    let position = watch.position();
    let first = stream::once(async move { Ok(Bytes::from(format!("retry: 1000\n{}", refetch(position)))) });
    let rest = stream::unfold(watch, |mut watch: OpenWatch| async move {
        let text = match watch.next().await? {
            Notice::Changes(event, ..) => refetch(event.revision),
            // A comment, which keeps the connection open.
            Notice::Progress(_) => ":\n\n".to_owned(),
            Notice::State(_) => String::new(),
            Notice::End(_) => return None,
        };
        Some((Ok::<_, Infallible>(Bytes::from(text)), watch))
    });
    Ok(Reply::event_stream(Body::from_stream(first.chain(rest))).state_revision(position))
}

/// The event that says to fetch again.
fn refetch(revision: Revision) -> String {
    format!("id: {revision}\ndata: {{\"type\":\"refetchEvaluation\",\"etag\":\"{revision}\"}}\n\n")
}

/// A response with its entity tag; 304 for a client that has it.
fn tagged(made: FlagResponse, headers: &HeaderMap) -> Response {
    let tag = entity_tags::of_body(&made.body);
    let quoted = format!("\"{tag}\"");
    if client_has(headers, &tag) {
        let reply = Reply::not_modified().header(header::ETAG, &quoted).redacted(Some(&made.redacted));
        return reply.state_revision(made.revision).into_response();
    }
    let mut response = Reply::evaluation(made, headers);
    response.headers_mut().insert(header::ETAG, quoted.parse().expect("hexadecimal digits in quotes"));
    response
}
