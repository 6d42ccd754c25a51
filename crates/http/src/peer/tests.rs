//! Which calls are rejected, and when.

use std::sync::atomic::{AtomicUsize, Ordering};

use tower::ServiceExt as _;
use uuid::Uuid;

use super::*;
use concord_model::limits::Limits;
use concord_net::{
    client::{CLUSTER, CREDENTIAL, TO},
    identity::{FORMAT, Identity},
};
use concord_service::testing::service;

const CLUSTER_ID: Uuid = Uuid::from_u128(7);

/// Node 1, with an identity and without consensus.
fn node() -> Service {
    let service = service(&std::env::temp_dir(), Limits::default());
    let me = Identity { cluster_id: CLUSTER_ID, node_id: 1, format: FORMAT };
    service.cx.peers().me.set(me).unwrap();
    service
}

fn listener(service: Service) -> Listener {
    Listener { service, refusals: Arc::default(), callers: Handle::current() }
}

/// Makes a call, over TLS if it is one of node 2.
async fn call(name: &str, is_proven: bool, headers: &[(&str, &str)], body: Body) -> StatusCode {
    let mut request = Request::post(format!("{PATH_PREFIX}{name}"));
    if is_proven {
        request = request.extension(ShownNode(2));
    }
    for (header, value) in headers {
        request = request.header(*header, *value);
    }
    routes(listener(node())).oneshot(request.body(body).unwrap()).await.unwrap().status()
}

#[tokio::test]
async fn a_call_is_refused_for_its_headers_before_its_body_is_read() {
    let unread = || Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    let cluster = CLUSTER_ID.to_string();
    assert_eq!(call("vote", false, &[], unread()).await, StatusCode::UNAUTHORIZED);
    assert_eq!(call("join", false, &[(CREDENTIAL, "another")], unread()).await, StatusCode::UNAUTHORIZED);
    let misdirected = [(CLUSTER, &*cluster), (FROM, "2"), (TO, "3")];
    assert_eq!(call("vote", true, &misdirected, unread()).await, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn forwarded_writes_are_refused_beyond_the_memory_for_calls() {
    let service = node();
    let mut held = service.cx.reservation(Share::Peers);
    held.grow(40 << 20).unwrap();
    for name in ["write", "writes"] {
        let request = Request::post(format!("{PATH_PREFIX}{name}"))
            .extension(ShownNode(2))
            .header(CLUSTER, CLUSTER_ID.to_string())
            .header(FROM, "2")
            .header(TO, "1")
            .header(CONTENT_LENGTH, 8 << 20);
        // Its body is taken, or its sender could not go on with the connection; but not for ever.
        let left = Arc::new(AtomicUsize::new(8));
        let taken = Arc::clone(&left);
        let chunks = futures::stream::iter(0..8).map(move |_| {
            taken.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]))
        });
        let body = match name {
            "writes" => Body::from_stream(chunks.chain(futures::stream::pending())),
            _ => Body::from_stream(chunks),
        };
        let answer = routes(listener(service.clone())).oneshot(request.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
        assert_eq!(left.load(Ordering::SeqCst), 0, "{name}");
    }
}

#[tokio::test]
async fn a_node_without_consensus_refuses_its_calls() {
    let cluster = CLUSTER_ID.to_string();
    let headers = [(CLUSTER, &*cluster), (FROM, "2"), (TO, "1")];
    for name in ["vote", "stream", "heartbeats", "read-index", "snapshot", "fetch-snapshot"] {
        let refused = call(name, true, &headers, Body::empty()).await;
        assert_eq!(refused, StatusCode::MISDIRECTED_REQUEST, "{name}");
    }
    assert_eq!(call("append", true, &headers, Body::empty()).await, StatusCode::NOT_FOUND, "no call");
    assert_eq!(call("write", true, &headers, Body::from("?")).await, StatusCode::BAD_REQUEST);
    assert_eq!(call("join", true, &headers[2..], Body::from("?")).await, StatusCode::BAD_REQUEST);
}

#[test]
fn calls_of_the_service_are_served_on_the_threads_of_callers() {
    let callers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("callers").build();
    let (callers, own) =
        (callers.unwrap(), tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap());
    let listener = Listener { callers: callers.handle().clone(), ..own.block_on(async { listener(node()) }) };
    let served = async { Ok(std::thread::current().name().map(str::to_owned)) };
    assert_eq!(own.block_on(listener.on_callers_threads(served)).unwrap().as_deref(), Some("callers"));

    // As on the listener's own threads: a panic is this call's, and what nobody waits for any more ends.
    let panics = std::panic::AssertUnwindSafe(|| {
        own.block_on(listener.on_callers_threads(async { if true { panic!("a defect") } else { Ok(()) } }))
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    let (held, mut ended) = tokio::sync::oneshot::channel::<()>();
    own.block_on(async {
        let served = listener.on_callers_threads(async move {
            let _held = held;
            std::future::pending::<Result<(), CallRefusal>>().await
        });
        assert!(timeout(Duration::from_millis(10), served).await.is_err());
        assert!(timeout(Duration::from_secs(10), &mut ended).await.unwrap().is_err());
    });
}
