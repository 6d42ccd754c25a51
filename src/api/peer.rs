//! What other nodes ask of this one: `POST /peer/{kind}` on a listener of its own, with binary bodies.
//!
//! | kind | who answers |
//! |---|---|
//! | `join` | the service; admitted by the secret alone, because the node may have no identity yet |
//! | `write`, `writes`, `read-index`, `change` | the service, when this node leads |
//! | `page` | the service, of a state that it holds |
//! | `snapshot`, `fetch-snapshot` | consensus; the file goes as a stream |
//! | `stream` | consensus; the connection is upgraded and bears entries from then on |
//! | `history` | the service, from this node's own disk |
//! | everything else | consensus |
//!
//! **Invariants:** the headers are judged before a byte of the body is read. A 4xx says that nothing was done, by
//! which the caller tells *not applied* from *unknown*; whatever fails later is a 5xx.

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, State},
    http::{
        HeaderMap, HeaderValue, Request, StatusCode,
        header::{CONNECTION, UPGRADE},
    },
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use hyper_util::rt::TokioIo;
use tokio_util::io::ReaderStream;
use tower_http::catch_panic::CatchPanicLayer;

use crate::peer::call::Call;
use crate::{
    peer::{
        ReceiveError,
        client::{PROTOCOL, REMOVED_STATUS, SNAPSHOT_HEADER},
    },
    raft::Consensus,
    service::Service,
};

/// Bytes of a call: the longest request body, and the entries that an append takes along.
const CALL_BYTES_MAX: usize = 32 << 20;
/// Bytes of a piece of a streamed file.
const PIECE_BYTES: usize = 256 << 10;

/// The routes of the peer listener.
pub fn peer_router(service: Service) -> Router {
    Router::new().route("/peer/{name}", post(answer)).layer(CatchPanicLayer::new()).with_state(service)
}

/// A refusal of a call; only nodes read it.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl From<ReceiveError> for Refused {
    fn from(error: ReceiveError) -> Self {
        let status = match &error {
            ReceiveError::Malformed(_) => StatusCode::BAD_REQUEST,
            ReceiveError::Unknown(_) => StatusCode::NOT_FOUND,
            ReceiveError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

async fn answer(
    State(service): State<Service>,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Result<Response, Refused> {
    let call = Call::from_name(&name);
    admit(&service, call, request.headers())?;
    let call = call.ok_or(ReceiveError::Unknown(name))?;
    let (head, body) = request.into_parts();
    match call {
        Call::Stream => open_stream(consensus(&service)?.clone(), &mut Request::from_parts(head, body)),
        Call::Snapshot => take_snapshot(consensus(&service)?, &head.headers, body).await,
        Call::FetchSnapshot => give_snapshot(consensus(&service)?).await,
        Call::Vote | Call::PreVote | Call::Append | Call::Transfer | Call::Digests => {
            Ok(consensus(&service)?.receive(call, read(body).await?).await?.into_response())
        }
        Call::ReadIndex
        | Call::Join
        | Call::Write
        | Call::Writes
        | Call::Change
        | Call::History
        | Call::Page => Ok(serve(&service, call, read(body).await?).await?.into_response()),
    }
}

/// The calls that the service answers.
async fn serve(service: &Service, call: Call, body: Bytes) -> Result<Bytes, ReceiveError> {
    match call {
        Call::ReadIndex => Ok(service.answer_read_index().await),
        Call::Join => service.answer_join(body).await,
        Call::Write => service.answer_write(body).await,
        Call::Writes => service.answer_writes(body).await,
        Call::Change => service.answer_change(body).await,
        Call::History => service.answer_history(body).await,
        Call::Page => service.answer_page(body).await,
        Call::Vote
        | Call::PreVote
        | Call::Append
        | Call::Stream
        | Call::Transfer
        | Call::Snapshot
        | Call::FetchSnapshot
        | Call::Digests => Err(ReceiveError::Unknown(call.to_string())),
    }
}

fn admit(service: &Service, call: Option<Call>, headers: &HeaderMap) -> Result<(), Refused> {
    let admitted = match call {
        Some(Call::Join) => service.peers().admit_secret(headers),
        _ => service.peers().admit(headers).and_then(|from| match service.consensus() {
            Some(consensus) if consensus.has_left(from) => {
                Err((REMOVED_STATUS, format!("node {from} was taken out of the cluster")))
            }
            Some(_) | None => Ok(()),
        }),
    };
    admitted.map_err(|(status, text)| {
        let call = call.map_or("unknown", Call::name);
        tracing::warn!(call, status, "refused a call of another node: {text}");
        Refused(StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN), text)
    })
}

async fn read(body: Body) -> Result<Bytes, Refused> {
    let refused = |error: axum::Error| {
        Refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a call takes at most {CALL_BYTES_MAX} bytes: {error}"),
        )
    };
    to_bytes(body, CALL_BYTES_MAX).await.map_err(refused)
}

fn consensus(service: &Service) -> Result<&Consensus, Refused> {
    // 421 as for a wrong address: nothing was done, and another time it may be.
    let starting = || Refused(StatusCode::MISDIRECTED_REQUEST, "this node is starting".into());
    service.consensus().ok_or_else(starting)
}

/// Answers that the connection bears entries from now on, and serves them once it does.
fn open_stream(consensus: Consensus, request: &mut Request<Body>) -> Result<Response, Refused> {
    if request.headers().get(UPGRADE).is_none_or(|asked| asked != PROTOCOL) {
        return Err(ReceiveError::Malformed(format!("a stream begins with `Upgrade: {PROTOCOL}`")).into());
    }
    let upgraded = hyper::upgrade::on(request);
    // It ends with the connection, or with consensus.
    tokio::spawn(async move {
        match upgraded.await {
            Ok(upgraded) => consensus.serve_stream(TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "a stream of entries was not begun"),
        }
    });
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn take_snapshot(consensus: &Consensus, headers: &HeaderMap, body: Body) -> Result<Response, Refused> {
    let missing = || ReceiveError::Malformed(format!("the header `{SNAPSHOT_HEADER}` is missing"));
    let head = headers.get(SNAPSHOT_HEADER).ok_or_else(missing)?;
    let head = Bytes::copy_from_slice(head.as_bytes());
    let pieces = body.into_data_stream().map_err(std::io::Error::other);
    Ok(consensus.receive_snapshot(head, Box::pin(pieces)).await?.into_response())
}

async fn give_snapshot(consensus: &Consensus) -> Result<Response, Refused> {
    let none = || Refused(StatusCode::NOT_FOUND, "this node has no snapshot".into());
    let (head, file) = consensus.current_snapshot().await.ok_or_else(none)?;
    let head = HeaderValue::from_maybe_shared(head)
        .map_err(|error| ReceiveError::Failed(format!("the snapshot's head is no header: {error}")))?;
    let pieces = ReaderStream::with_capacity(file, PIECE_BYTES);
    Ok(([(SNAPSHOT_HEADER, head)], Body::from_stream(pieces)).into_response())
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;
    use uuid::Uuid;

    use super::*;
    use crate::{
        model::limits::Limits,
        peer::{
            client::{CLUSTER, FROM, SECRET, TO},
            identity::{FORMAT, Identity},
        },
        service::tests::{SECRET as OURS, service},
    };

    const CLUSTER_ID: Uuid = Uuid::from_u128(7);

    /// Node 1, with an identity and without consensus.
    fn node() -> Service {
        let service = service(&std::env::temp_dir(), Limits::default());
        let me = Identity { cluster_id: CLUSTER_ID, node_id: 1, format: FORMAT };
        service.peers().me.set(me).unwrap();
        service
    }

    async fn call(kind: &str, headers: &[(&str, &str)], body: Body) -> StatusCode {
        let mut request = Request::post(format!("/peer/{kind}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        peer_router(node()).oneshot(request.body(body).unwrap()).await.unwrap().status()
    }

    #[tokio::test]
    async fn a_call_is_refused_by_its_headers_before_its_body_is_read() {
        let unread = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let cluster = CLUSTER_ID.to_string();
        assert_eq!(call("vote", &[], unread()).await, StatusCode::UNAUTHORIZED);
        assert_eq!(call("join", &[(SECRET, "another-secret")], unread()).await, StatusCode::UNAUTHORIZED);
        let misdirected = [(SECRET, OURS), (CLUSTER, &cluster), (FROM, "2"), (TO, "3")];
        assert_eq!(call("vote", &misdirected, unread()).await, StatusCode::MISDIRECTED_REQUEST);
    }

    #[tokio::test]
    async fn a_node_without_consensus_does_nothing_and_says_so() {
        let cluster = CLUSTER_ID.to_string();
        let headers = [(SECRET, OURS), (CLUSTER, &cluster), (FROM, "2"), (TO, "1")];
        for kind in ["vote", "append", "stream", "snapshot", "fetch-snapshot"] {
            assert_eq!(call(kind, &headers, Body::empty()).await, StatusCode::MISDIRECTED_REQUEST, "{kind}");
        }
        assert_eq!(call("read-index", &headers, Body::empty()).await, StatusCode::OK, "it names nothing");
        assert_eq!(call("write", &headers, Body::from("?")).await, StatusCode::BAD_REQUEST);
        assert_eq!(call("join", &headers[..1], Body::from("?")).await, StatusCode::BAD_REQUEST);
    }
}
