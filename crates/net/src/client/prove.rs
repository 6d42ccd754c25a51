//! Makes the node at the other end of an unencrypted connection prove that it knows the cluster secret.
//!
//! The first RPC on each unencrypted connection is `prove`. It has a nonce; the response is an HMAC under the cluster
//! secret of the nonce, the called node and its address (`credential.rs`). Without it, a client that may add a member could add
//! an address of their own, and would be sent every entry of the log. It costs one round trip for each connection, and
//! connections are kept.
//!
//! A node proves the secret only for its own id and address, so an impostor can't pass the nonce on to a member.
//!
//! **Invariant:** a connection is handed out only after the proof, and the RPC of a failed one was certainly not sent.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, header::HOST};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    CallError, accepted, body_of,
    transport::{error_chain, whole},
    with_body,
};
use crate::{
    PeerAddress,
    call::Call,
    credential::{CredentialPurpose, CredentialScope},
    proof::{first_secret, prove_headers},
    socket::TcpStream,
};

/// How long a node may take to prove the secret: one round trip, on a node that is busy.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest proof: 32 bytes in Base64.
const PROOF_BYTES_MAX: usize = 64;

/// The connection, once the node at its other end has proven one of these secrets.
pub(super) async fn prove(
    secrets: &[String],
    to: PeerAddress<'_>,
    stream: TcpStream,
) -> Result<TcpStream, CallError> {
    let late = |_| Err(unproven("it did not answer in time"));
    let proven = timeout(PROOF_TIMEOUT, proven(secrets, to, stream)).await.unwrap_or_else(late);
    proven.map_err(|error| match error {
        // The RPC itself was not sent yet.
        CallError::Unknown(why) => unproven(&why),
        error @ (CallError::NotSent(_) | CallError::Refused { .. }) => error,
    })
}

fn unproven(why: &str) -> CallError {
    CallError::NotSent(format!("the node did not prove that it knows the cluster secret: {why}"))
}

async fn proven(secrets: &[String], to: PeerAddress<'_>, stream: TcpStream) -> Result<TcpStream, CallError> {
    let nonce = Uuid::new_v4();
    let scope = CredentialScope { at: to.addr, to: to.id, purpose: CredentialPurpose::Prove(nonce) };
    let mut request = Request::post(format!("/peer/{}", Call::Prove)).header(HOST, to.addr);
    if let Some(headers) = request.headers_mut() {
        headers.extend(prove_headers(&scope, nonce, first_secret(secrets)?)?);
    }
    let request = with_body(request, whole(Bytes::new()))?;
    let lost = |error: hyper::Error| CallError::Unknown(error_chain(&error));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    // The connection ends, and is given back open, when its only sender is gone.
    let answered = async move {
        let response = sender.send_request(request).await.map_err(lost)?;
        body_of(accepted(response).await?, PROOF_BYTES_MAX).await
    };
    let (connection, proof) = tokio::join!(connection.without_shutdown(), answered);
    let proof = proof?;
    let scope = CredentialScope { purpose: CredentialPurpose::Proof(nonce), ..scope };
    scope.secret_of(&proof, secrets).ok_or_else(|| unproven("its proof is wrong"))?;
    let connection = connection.map_err(lost)?;
    if connection.read_buf.is_empty() {
        Ok(connection.io.into_inner())
    } else {
        Err(unproven("it sent more than its proof"))
    }
}

/// A node in a test that proves a secret.
#[cfg(test)]
pub(crate) mod testing {
    use http::{HeaderMap, HeaderName};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use crate::client::{Peers, Secrets};

    /// Reads the head of a request: its first line, and its headers. `None` at the end of the connection.
    pub(crate) async fn read_head(socket: &mut TcpStream) -> Option<(String, HeaderMap)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        let headers = fields.map(|(name, text)| (name.parse::<HeaderName>().unwrap(), text.parse().unwrap()));
        Some((head.lines().next().unwrap_or_default().to_owned(), headers.collect()))
    }

    /// Writes a response.
    pub(crate) async fn respond(socket: &mut TcpStream, body: &str) {
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(response.as_bytes()).await.unwrap();
    }

    /// Answers the first RPC of a connection, and returns the first line of the next one.
    pub(crate) async fn prove_and_read(socket: &mut TcpStream, secrets: &[&str]) -> String {
        let called = Peers::new(Secrets(secrets.iter().map(|secret| (*secret).to_owned()).collect()));
        let (line, headers) = read_head(socket).await.unwrap();
        assert!(line.starts_with("POST /peer/prove "), "{line}");
        respond(socket, &called.admit_prove(&headers).unwrap()).await;
        read_head(socket).await.unwrap().0
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::{
        testing::{prove_and_read, read_head, respond},
        *,
    };
    use crate::{
        client::{Lane, Peers, Secrets},
        identity::Identity,
    };

    /// Calls a node that answers the RPCs on a connection with these texts. Returns the result of a `join`, and the
    /// first lines of the requests that the node received.
    async fn call(answers: &[&str]) -> (Result<Bytes, CallError>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let peers = Peers::new(Secrets(vec!["secret".into()]));
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut requests = Vec::new();
            for answer in answers {
                let Some((line, _)) = read_head(&mut socket).await else { break };
                requests.push(line);
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        };
        let called = peers.call_join(4, &addr, Bytes::new(), Duration::from_secs(5));
        tokio::join!(called, server)
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_node_that_does_not_prove_the_secret() {
        let ok = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        for answer in [ok(""), ok("yes"), ok(&"A".repeat(43)), ok(&"A".repeat(99)), "nonsense\r\n".into()] {
            let (called, requests) = call(&[&answer, &ok("joined")]).await;
            assert!(matches!(called, Err(CallError::NotSent(_))), "{called:?}");
            assert_eq!(requests, ["POST /peer/prove HTTP/1.1"], "{answer}");
        }
        let refused = "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 14\r\n\r\nthis is node 5";
        let (called, _) = call(&[refused]).await;
        let Err(CallError::Refused { status, text }) = called else { panic!("{called:?}") };
        assert_eq!((status, text.as_str()), (421, "this is node 5"));
    }

    #[tokio::test]
    async fn a_proven_connection_serves_the_calls_that_follow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let caller = Peers::new(Secrets(vec!["new".into(), "old".into()]));
        caller.me.set(Identity { cluster_id: Uuid::from_u128(1), node_id: 1, format: 1 }).unwrap();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            // It sends another secret first, as during a rotation.
            let line = prove_and_read(&mut socket, &["old", "new"]).await;
            assert_eq!(line, "POST /peer/clock HTTP/1.1");
            respond(&mut socket, "clock").await;
            let (line, _) = read_head(&mut socket).await.unwrap();
            assert_eq!(line, "POST /peer/room HTTP/1.1");
            respond(&mut socket, "room").await;
        };
        let calls = async {
            for call in [Call::Clock, Call::Room] {
                let timeout = Duration::from_secs(5);
                let answer = caller.call(Lane::Forward, 4, &addr, call, Bytes::new(), timeout).await.unwrap();
                assert_eq!(answer, call.name());
            }
        };
        tokio::join!(server, calls);
    }
}
