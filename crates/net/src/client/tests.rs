//! What a failed call says about its outcome.

use super::*;

fn peers() -> Peers {
    let peers = Peers::new(Secrets(vec!["secret".into()]));
    let me = Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 };
    peers.me.set(me).unwrap();
    peers
}

#[tokio::test]
async fn a_refused_connection_was_not_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    drop(listener);
    let timeout = Duration::from_secs(5);
    let response = peers().call(Lane::Heartbeat, 2, &addr, Call::Vote, Bytes::new(), timeout).await;
    let Err(CallError::NotSent(text)) = response else { panic!("{response:?}") };
    assert!(!text.contains(&addr), "callers see this text: {text}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_request_leaves_the_outcome_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::io::AsyncReadExt::read(&mut socket, &mut [0; 1]).await.unwrap();
    };
    let peers = peers();
    let call = peers.call(Lane::Forward, 2, &addr, Call::Write, Bytes::new(), Duration::from_secs(5));
    let (response, ()) = tokio::join!(call, server);
    assert!(matches!(response, Err(CallError::Unknown(_))), "{response:?}");
}
