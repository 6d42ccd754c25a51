//! Who is admitted, and what a failed call says about its outcome.

use super::*;

fn peers() -> Peers {
    let peers = Peers::new(Secrets(vec!["new".into(), "old".into()]));
    let me = Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 };
    peers.me.set(me).unwrap();
    peers
}

fn headers_from_two() -> HeaderMap {
    let sender = Peers::new(Secrets(vec!["old".into()]));
    sender.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 2, format: 1 }).unwrap();
    sender.headers(1).unwrap()
}

#[test]
fn a_call_of_this_cluster_to_this_node_is_admitted() {
    assert_eq!(peers().admit(&headers_from_two()), Ok(2));
}

#[test]
fn each_secret_is_admitted_and_no_other() {
    for (secret, status) in [("new", None), ("old", None), ("", Some(401)), ("ne", Some(401))] {
        let mut headers = headers_from_two();
        headers.insert(SECRET, HeaderValue::from_static(secret));
        assert_eq!(peers().admit(&headers).err().map(|refusal| refusal.0), status, "{secret}");
    }
    let mut headers = headers_from_two();
    headers.remove(SECRET);
    assert_eq!(peers().admit(&headers).unwrap_err().0, 401);
    assert_eq!(Peers::new(Secrets(Vec::new())).admit_secret(&headers_from_two()).unwrap_err().0, 401);
}

#[test]
fn a_call_for_another_cluster_or_node_is_misdirected() {
    for (name, value) in [(CLUSTER, "x"), (TO, "3"), (TO, ""), (FROM, "two"), (FROM, "1")] {
        let mut headers = headers_from_two();
        headers.insert(name, HeaderValue::from_static(value));
        assert_eq!(peers().admit(&headers).unwrap_err().0, 421, "{name}: {value}");
    }
    let without_identity = Peers::new(Secrets(vec!["old".into()]));
    assert_eq!(without_identity.admit(&headers_from_two()).unwrap_err().0, 421);
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
