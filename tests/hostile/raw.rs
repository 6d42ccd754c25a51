//! Connections of a stranger, byte by byte.

use std::{net::SocketAddr, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::harness::{DEADLINE, Node};

/// What the node is expected to do at once, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Held by the test that has thousands of connections: two at once would need more than the machine may allow.
static MANY_CONNECTIONS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Lets this process have as many connections as the machine allows, and waits for the other tests that need them.
pub(crate) async fn many_connections() -> tokio::sync::MutexGuard<'static, ()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
    MANY_CONNECTIONS.lock().await
}

/// The descriptors that a process has open.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

pub(crate) fn api(node: &Node) -> SocketAddr {
    node.api_addr().parse().expect("an address")
}

pub(crate) fn peer(node: &Node) -> SocketAddr {
    node.peer_addr().parse().expect("an address")
}

/// A connection to this address.
pub(crate) async fn connect(to: SocketAddr) -> TcpStream {
    connect_from([127, 0, 0, 1], to).await
}

/// A connection from one of this machine's addresses.
pub(crate) async fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((source, 0).into()).expect("a local address");
    let connected = timeout(DEADLINE, socket.connect(to)).await.expect("in time");
    connected.expect("the kernel accepts")
}

/// The address of this machine's that narrow connections come from.
pub(crate) const NARROW: [u8; 4] = [127, 0, 0, 3];

/// The connections of this machine to a local port that come from an address and are not closed by the listening side.
pub(crate) fn connections_from(source: [u8; 4], port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let (local, remote) = (format!(":{port:04X}"), format!("{:08X}:", u32::from_le_bytes(source)));
    // Established, or closed by the other side only.
    let is_open = |state: &str| state == "01" || state == "08";
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|words| match words.as_slice() {
            [_, own, other, state, ..] => {
                own.ends_with(&local) && other.starts_with(&remote) && is_open(state)
            }
            _ => false,
        })
        .count()
}

/// A connection whose receiving side holds little, so that the other side must wait.
pub(crate) async fn connect_narrow(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((NARROW, 0).into()).expect("a local address");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    socket.connect(to).await.expect("the kernel accepts")
}

/// Writes all of it. A connection that the other side has closed takes what it takes.
pub(crate) async fn send(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    drop(timeout(PATIENCE, stream.write_all(bytes.as_ref())).await.expect("it is taken in time"));
}

/// Reads until `wanted` bytes are there.
pub(crate) async fn read_some(stream: &mut TcpStream, wanted: usize) -> Vec<u8> {
    let mut bytes = vec![0; wanted];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("in time").expect("it is answered");
    bytes
}

/// All that comes until the other side closes, in order or not; `None` when it does not close in this time.
pub(crate) async fn until_closed(stream: &mut TcpStream, limit: Duration) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            bytes.extend_from_slice(&chunk[..count]);
        }
    };
    let closed = timeout(limit, read).await.is_ok();
    closed.then_some(bytes)
}

/// The same as text, within [`PATIENCE`].
pub(crate) async fn answer(stream: &mut TcpStream) -> String {
    let bytes = until_closed(stream, PATIENCE).await.expect("the node closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One request of HTTP/1.1 with these headers, and no body.
pub(crate) fn request(line: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nhost: a\r\n{headers}\r\n")
}
