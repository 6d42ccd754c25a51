//! The server side of peer RPCs: `POST /peer/{name}` on the peer listener, with binary bodies. The calls are
//! listed in [`concord_net::call`].
//!
//! | calls | answered by |
//! |---|---|
//! | `join`, `levels` | the service; also of a node that has no identity yet |
//! | `write`, `writes`, `report`, `change` | the service, when this node leads |
//! | `clock` | the service |
//! | `page` | the service, from a state that it holds for cursors |
//! | `history` | the service, from this node's own disk |
//! | `snapshot`, `fetch-snapshot` | consensus; the file is streamed |
//! | `stream` | consensus; the connection is upgraded, and its frames are log entries |
//! | `heartbeats`; `read-index` | consensus; the service, which says so when this node does not lead. The connection is upgraded, and its frames are requests |
//! | all others | consensus |
//!
//! | where is | file |
//! |---|---|
//! | the log lines of rejected calls | `refusal_log` |
//!
//! The listener is served where consensus runs, so that the log's entries and heartbeats have no other thread to wake.
//! What the service answers is work of clients, and is read and done on their threads.
//!
//! **Invariants:** the headers are checked before a byte of the body is kept. A 4xx means that nothing was done, by
//! which the calling node distinguishes *not applied* from *unknown*; every later failure is a 5xx.

mod refusal_log;

use std::{convert::Infallible, panic::resume_unwind, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{
        HeaderMap, HeaderValue, Request, StatusCode,
        header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
    },
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::{runtime::Handle, time::timeout};
use tokio_util::{io::ReaderStream, task::AbortOnDropHandle};
use tower_http::catch_panic::CatchPanicLayer;

use super::{
    body::parsed_bytes,
    server::{Answerer, CallerConnection, ShownNode},
};
use concord_consensus::Consensus;
use concord_model::limits::BODY_COPIES;
use concord_net::{
    NodeId, ReceiveError,
    admission::NotAdmitted,
    call::Call,
    client::{FROM, REMOVED_STATUS, SNAPSHOT_HEADER, protocol},
    credential::{BodyDigest, body_digest},
    framed,
    trace::{received, with_traces},
};
use concord_service::{
    ForwardedResponse, Origin, Refusal, Service,
    memory_budget::{Reservation, Share},
    metrics::Connections,
};
use refusal_log::RefusalLog;

/// Bytes of a call's body: a write of the longest request body, or a batch of log entries.
const CALL_BYTES_MAX: usize = 32 << 20;
/// How long the body of a rejected call may take to come.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one chunk of a streamed file.
const FILE_CHUNK_BYTES: usize = 256 << 10;

/// Bytes that the response to a call for a part of a page or of the history has, as a rule at most.
const ANSWERED_PART_BYTES: u64 = 4 << 20;

/// The status under which a handshake that failed is logged; nobody is sent it.
const NO_HANDSHAKE_STATUS: u16 = 525;

/// The path of a call, except its name.
const PATH_PREFIX: &str = "/peer/";

/// What answers on the peer listener.
#[derive(Debug, Clone)]
pub struct PeerListener {
    routes: Router,
    refusals: Arc<RefusalLog>,
    connections: Connections,
}

impl PeerListener {
    /// The listener of a service. What the service answers is done on the threads of `callers`.
    #[must_use]
    pub fn new(service: Service, callers: Handle) -> Self {
        let (refusals, connections) = (Arc::<RefusalLog>::default(), service.node_connections());
        let listener = Listener { service, refusals: Arc::clone(&refusals), callers };
        Self { routes: routes(listener), refusals, connections }
    }
}

impl Answerer for PeerListener {
    type Found = ();

    fn find(_request: &Request<Incoming>) {}

    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        found: (),
    ) -> impl Future<Output = Response> + Send + 'static {
        Arc::new(self.routes.clone()).answer(request, found)
    }

    fn ends_with_its_client((): &()) -> bool {
        // A node that closes a connection has given up the call.
        true
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.connections.clone())
    }

    fn note_failed_handshake(&self, why: &str) {
        self.refusals.note("handshake", NO_HANDSHAKE_STATUS, why);
    }
}

fn routes(listener: Listener) -> Router {
    Router::new()
        .route(&format!("{PATH_PREFIX}{{name}}"), post(handle))
        .layer(CatchPanicLayer::new())
        .with_state(listener)
}

/// What the handlers of calls share.
#[derive(Clone)]
struct Listener {
    service: Service,
    refusals: Arc<RefusalLog>,
    /// The threads that serve clients.
    callers: Handle,
}

impl Listener {
    /// Serves a call on the threads of clients. It ends with the call.
    async fn on_callers_threads<T: Send + 'static>(
        &self,
        served: impl Future<Output = Result<T, CallRefusal>> + Send + 'static,
    ) -> Result<T, CallRefusal> {
        match AbortOnDropHandle::new(self.callers.spawn(served)).await {
            Ok(answered) => answered,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(ReceiveError::Failed(error.to_string()).into()),
            },
        }
    }
}

/// The rejection of a call, which only nodes read.
#[derive(Debug)]
struct CallRefusal(StatusCode, String);

impl IntoResponse for CallRefusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl From<ReceiveError> for CallRefusal {
    fn from(error: ReceiveError) -> Self {
        let status = match &error {
            ReceiveError::Malformed(_) => StatusCode::BAD_REQUEST,
            ReceiveError::Unknown(_) => StatusCode::NOT_FOUND,
            ReceiveError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

async fn handle(State(listener): State<Listener>, request: Request<Body>) -> Result<Response, CallRefusal> {
    let Listener { service, refusals, .. } = &listener;
    let name = request.uri().path().strip_prefix(PATH_PREFIX).unwrap_or_default();
    let call = Call::from_name(name);
    let shown = request.extensions().get().map(|ShownNode(node)| *node);
    if call == Some(Call::Prove) {
        let proof = service.cx.peers().admit_prove(request.headers());
        return proof.map(IntoResponse::into_response).map_err(|why| refused(refusals, call, why));
    }
    let AdmittedCall { from, digest } = admit(service, refusals, call, request.headers(), shown)?;
    CallerConnection::mark_known(request.extensions());
    let call = call.ok_or_else(|| ReceiveError::Unknown(name.to_owned()))?;
    let (head, body) = request.into_parts();
    match call {
        Call::Stream => {
            let consensus = consensus(service)?.clone();
            let from = known(from)?;
            let serve = async move |connection| consensus.serve_stream(from, connection).await;
            upgrade(call, Request::from_parts(head, body), serve)
        }
        Call::Heartbeats | Call::ReadIndex => {
            let (service, consensus) = (service.clone(), consensus(service)?.clone());
            let from = known(from)?;
            let serve = move |connection| serve_frames(service, consensus, from, call, connection);
            upgrade(call, Request::from_parts(head, body), serve)
        }
        Call::Snapshot => receive_snapshot(consensus(service)?, known(from)?, &head.headers, body).await,
        Call::FetchSnapshot => send_snapshot(consensus(service)?).await,
        Call::Vote | Call::PreVote | Call::Transfer | Call::Digests | Call::Witness => {
            Ok(consensus(service)?.receive(known(from)?, call, read_body(body).await?).await?.into_response())
        }
        Call::Clock
        | Call::Room
        | Call::Join
        | Call::Levels
        | Call::Write
        | Call::Writes
        | Call::Change
        | Call::History
        | Call::Audit
        | Call::Report
        | Call::Prove
        | Call::Page => {
            let (service, origin, traces) = (service.clone(), sender(&head.headers), received(&head.headers));
            let served = serve_call(service, call, digest, head.headers, body);
            listener.on_callers_threads(with_traces(traces, origin.serve(served))).await
        }
    }
}

/// Reads a call of the service and answers it.
async fn serve_call(
    service: Service,
    call: Call,
    digest: Option<BodyDigest>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, CallRefusal> {
    let (mut reservation, body) = reserve_and_read(&service, call, &headers, body).await?;
    if matches!(call, Call::Write | Call::Writes) {
        reservation.grow(parsed_bytes(&body)).map_err(too_many)?;
    }
    if digest.is_some_and(|digest| digest != body_digest(&body)) {
        return Err(CallRefusal(StatusCode::UNAUTHORIZED, "the body is not the one that was sent".into()));
    }
    if call != Call::Writes {
        return Ok(answer(&service, call, body).await?.into_response());
    }
    let ForwardedResponse { first, others } = service.writes.answer_writes(body).await?;
    Ok(match others {
        None => first.into_response(),
        Some(others) => {
            let first = futures::stream::iter([first]);
            // The writes that are not decided yet hold what the call has brought.
            let parts = first.chain(others).map(move |part| {
                let _held: &Reservation = &reservation;
                Ok::<_, Infallible>(part)
            });
            Body::from_stream(parts).into_response()
        }
    })
}

/// Passes a call to the service.
async fn answer(service: &Service, call: Call, body: Bytes) -> Result<Bytes, ReceiveError> {
    match call {
        Call::Clock => Ok(service.clock.answer_clock()),
        Call::Room => Ok(service.disk_space.answer_room()),
        Call::Join => service.members.answer_join(body).await,
        Call::Levels => Ok(service.levels.answer_levels()),
        Call::Write => service.writes.answer_write(body).await,
        Call::Change => service.members.answer_change(body).await,
        Call::History => service.history.answer_history(body).await,
        Call::Audit => service.audit_pages.answer_audit(body).await,
        Call::Report => service.reports.answer_report(body).await,
        Call::Page => service.reads.answer_page(body).await,
        Call::Vote
        | Call::PreVote
        | Call::Stream
        | Call::Transfer
        | Call::Snapshot
        | Call::FetchSnapshot
        | Call::Writes
        | Call::Heartbeats
        | Call::ReadIndex
        | Call::Prove
        | Call::Digests
        | Call::Witness => Err(ReceiveError::Unknown(call.to_string())),
    }
}

/// What is known of a call that was let in.
struct AdmittedCall {
    /// The node that calls; `None` for the calls that also a node without a cluster answers.
    from: Option<NodeId>,
    /// The digest that the body must have, if it must have one.
    digest: Option<BodyDigest>,
}

/// Lets a call in, or rejects it.
fn admit(
    service: &Service,
    refusals: &Arc<RefusalLog>,
    call: Option<Call>,
    headers: &HeaderMap,
    shown: Option<NodeId>,
) -> Result<AdmittedCall, CallRefusal> {
    let peers = service.cx.peers();
    let admitted = match call {
        Some(Call::Join) => {
            peers.admit_join(headers, shown).map(|digest| AdmittedCall { from: None, digest })
        }
        Some(Call::Levels) => {
            peers.admit_levels(headers, shown).map(|()| AdmittedCall { from: None, digest: None })
        }
        Some(Call::Witness) => peers.admit_own_id(headers, shown).and_then(|from| of_member(service, from)),
        _ => peers.admit(headers, shown).and_then(|from| of_member(service, from)),
    };
    admitted.map_err(|why| refused(refusals, call, why))
}

/// A call of a node that was not removed from the cluster.
fn of_member(service: &Service, from: NodeId) -> Result<AdmittedCall, NotAdmitted> {
    match service.cx.consensus() {
        Some(consensus) if consensus.has_left(from) => {
            Err((REMOVED_STATUS, format!("node {from} was removed from the cluster")))
        }
        Some(_) | None => Ok(AdmittedCall { from: Some(from), digest: None }),
    }
}

/// Logs the rejection of a call.
fn refused(refusals: &Arc<RefusalLog>, call: Option<Call>, (status, text): NotAdmitted) -> CallRefusal {
    refusals.note(call.map_or("unknown", Call::name), status, &text);
    CallRefusal(StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN), text)
}

/// Reserves what a call for the service holds in memory. Raft's own calls are never rejected for that: they are few,
/// and nothing works without them.
fn reserve(service: &Service, call: Call, headers: &HeaderMap) -> Result<Reservation, CallRefusal> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let copies = if matches!(call, Call::Write | Call::Writes) { BODY_COPIES } else { 1 };
    // A part of a page, of the history or of the audit log is made for the response.
    let answer =
        if matches!(call, Call::Page | Call::History | Call::Audit) { ANSWERED_PART_BYTES } else { 0 };
    let bytes = declared.unwrap_or(0).min(CALL_BYTES_MAX as u64).saturating_mul(copies) + answer;
    let mut reservation = service.cx.reservation(Share::Peers);
    reservation.grow(bytes).map_err(too_many)?;
    Ok(reservation)
}

/// Reserves what a call holds, and reads its body. Where there is no room the body is read and dropped: a response
/// before its end would close the connection, and the next call that is sent over it would have an unknown outcome.
async fn reserve_and_read(
    service: &Service,
    call: Call,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Reservation, Bytes), CallRefusal> {
    match reserve(service, call, headers) {
        Ok(reservation) => Ok((reservation, read_body(body).await?)),
        Err(refusal) => {
            let dropped = body.into_data_stream().for_each(|_| future::ready(()));
            // A member that does not send it to the end loses the connection.
            drop(timeout(DROP_TIMEOUT, dropped).await);
            Err(refusal)
        }
    }
}

fn too_many(_: Refusal) -> CallRefusal {
    CallRefusal(
        StatusCode::TOO_MANY_REQUESTS,
        "no memory is left for peer RPCs on this node; retry later".into(),
    )
}

/// The node that has sent a call that was let in: its work has the share of that node.
fn sender(headers: &HeaderMap) -> Origin {
    let id = headers.get(FROM).and_then(|value| value.to_str().ok()?.parse().ok());
    id.map_or(Origin::Own, Origin::Node)
}

async fn read_body(body: Body) -> Result<Bytes, CallRefusal> {
    let refused = |error: axum::Error| {
        CallRefusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a call takes at most {CALL_BYTES_MAX} bytes: {error}"),
        )
    };
    to_bytes(body, CALL_BYTES_MAX).await.map_err(refused)
}

fn consensus(service: &Service) -> Result<&Consensus, CallRefusal> {
    // 421 as for a wrong address: nothing was done, and the calling node may retry.
    let starting = || CallRefusal(StatusCode::MISDIRECTED_REQUEST, "this node is starting".into());
    service.cx.consensus().ok_or_else(starting)
}

/// The node that has sent a call of consensus.
fn known(from: Option<NodeId>) -> Result<NodeId, CallRefusal> {
    Ok(from.ok_or_else(|| ReceiveError::Malformed("the call has no sender".into()))?)
}

/// Upgrades the connection of a call, and serves it.
fn upgrade<F>(
    call: Call,
    mut request: Request<Body>,
    serve: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Result<Response, CallRefusal>
where
    F: Future<Output = ()> + Send,
{
    let protocol = protocol(call);
    if request.headers().get(UPGRADE).is_none_or(|asked| asked != protocol) {
        return Err(ReceiveError::Malformed(format!("`{call}` begins with `Upgrade: {protocol}`")).into());
    }
    let upgraded = hyper::upgrade::on(&mut request);
    // The task ends with the connection, or with consensus.
    tokio::spawn(async move {
        match upgraded.await {
            Ok(upgraded) => serve(TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, %call, "a connection was not upgraded"),
        }
    });
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, protocol)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// Answers the frames of a connection that a member has opened.
async fn serve_frames(
    service: Service,
    consensus: Consensus,
    from: NodeId,
    call: Call,
    connection: TokioIo<Upgraded>,
) {
    if call == Call::Heartbeats {
        let answers = framed::serve(connection, |body| consensus.receive(from, call, body));
        consensus.serve_member(from, answers).await;
    } else {
        let service = &service;
        let answers = framed::serve(connection, move |body| async move {
            Ok(service.freshness.answer_read_index(&body).await)
        });
        consensus.serve_member(from, answers).await;
    }
}

async fn receive_snapshot(
    consensus: &Consensus,
    from: NodeId,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, CallRefusal> {
    let missing = || ReceiveError::Malformed(format!("the header `{SNAPSHOT_HEADER}` is missing"));
    let head = headers.get(SNAPSHOT_HEADER).ok_or_else(missing)?;
    let head = Bytes::copy_from_slice(head.as_bytes());
    let chunks = body.into_data_stream().map_err(std::io::Error::other);
    Ok(consensus.receive_snapshot(from, head, Box::pin(chunks)).await?.into_response())
}

async fn send_snapshot(consensus: &Consensus) -> Result<Response, CallRefusal> {
    let none = || CallRefusal(StatusCode::NOT_FOUND, "this node has no snapshot".into());
    let (head, file) = consensus.current_snapshot().await.ok_or_else(none)?;
    let head = HeaderValue::from_maybe_shared(head).map_err(|error| {
        ReceiveError::Failed(format!("the snapshot's metadata are no header value: {error}"))
    })?;
    let chunks = ReaderStream::with_capacity(file, FILE_CHUNK_BYTES);
    Ok(([(SNAPSHOT_HEADER, head)], Body::from_stream(chunks)).into_response())
}

#[cfg(test)]
mod tests;
