//! Calls to servers on loopback, with real TLS and a played DNS.
//!
//! 127.0.0.1 is the only loopback address that the client of these tests allows. So 127.0.0.2 plays the addresses that no
//! policy allows, and a listener there counts its connections.

use std::{
    collections::VecDeque,
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::FutureExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    sync::Semaphore,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::outgoing::{
    endpoint::AllowedHosts,
    resolve::{LOOKUPS_OF_HOST_MAX, Resolve},
};

const HOST: &str = "idp.test";
const ALLOWED: Ipv4Addr = Ipv4Addr::LOCALHOST;
const FORBIDDEN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Where redirections lead.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Where nothing listens.
const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// A timeout that no test waits for.
const LONG: Duration = Duration::from_secs(30);
/// A timeout that a test waits for. A handshake takes some milliseconds, and more on a busy machine.
const SHORT: Duration = Duration::from_secs(2);
/// What a call with the short timeout takes at most: less than [`LONG`].
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client that trusts this authority.
    fn client(&self, policy: OutgoingPolicy, dns: &Arc<PlayedDns>, timeout: Duration) -> OutgoingClient {
        OutgoingClient::new(policy, Some(&self.file())).unwrap().with_loopback(dns.clone(), timeout)
    }
}

/// A DNS whose answers are given. The last one is repeated.
#[derive(Debug)]
struct PlayedDns {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: AtomicUsize,
    /// Whether a lookup never ends.
    hangs: bool,
}

impl PlayedDns {
    fn new(answers: impl IntoIterator<Item = Vec<IpAddr>>) -> Arc<Self> {
        let answers = Mutex::new(answers.into_iter().collect());
        Arc::new(Self { answers, asked: AtomicUsize::new(0), hangs: false })
    }

    /// Each lookup has the same answer.
    fn of(addresses: &[Ipv4Addr]) -> Arc<Self> {
        Self::new([addresses.iter().copied().map(IpAddr::V4).collect()])
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for PlayedDns {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        assert_eq!(host, HOST);
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(std::future::ready(answer.ok_or_else(|| io::Error::other("no such name"))))
    }
}

/// What a server does after the request.
#[derive(Debug, Clone)]
enum Play {
    /// It sends this and closes the connection.
    Send(Vec<u8>),
    /// It sends this, and then the second again and again.
    Repeat(Vec<u8>, Vec<u8>),
    /// It sends this, and then a byte in each interval.
    Drip(Vec<u8>, Duration),
    /// It sends nothing until it is told to go on; then it sends this.
    Hang(Vec<u8>),
    /// It speaks no TLS, and sends this at once.
    Plain(Vec<u8>),
}

/// A listener and what it has seen.
struct Server {
    port: u16,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    go_on: Arc<Semaphore>,
}

impl Server {
    async fn start(address: Ipv4Addr, port: u16, acceptor: TlsAcceptor, play: Play) -> Self {
        let listener = TcpListener::bind((address, port)).await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            connections: Arc::default(),
            requests: Arc::default(),
            go_on: Arc::new(Semaphore::new(0)),
        };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        let go_on = server.go_on.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, play) = (acceptor.clone(), play.clone());
                let (requests, go_on) = (requests.clone(), go_on.clone());
                tokio::spawn(async move {
                    // The client may end the connection at any time.
                    let _ended = serve(stream, acceptor, play, requests, go_on).await;
                });
            }
        });
        server
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn endpoint(&self, path: &str) -> Endpoint {
        let url = format!("https://{HOST}:{}{path}", self.port);
        Endpoint::parse(&url, &AllowedHosts::new(&url, []).unwrap()).unwrap()
    }
}

async fn serve(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
    play: Play,
    requests: Arc<Mutex<Vec<String>>>,
    go_on: Arc<Semaphore>,
) -> io::Result<()> {
    if let Play::Plain(bytes) = &play {
        stream.write_all(bytes).await?;
        return stream.shutdown().await;
    }
    let mut stream = acceptor.accept(stream).await?;
    let request = request_of(&mut stream).await?;
    requests.lock().unwrap().push(request);
    respond(&mut stream, play, go_on).await?;
    stream.shutdown().await
}

async fn respond(
    stream: &mut (impl AsyncWrite + Unpin),
    play: Play,
    go_on: Arc<Semaphore>,
) -> io::Result<()> {
    match play {
        Play::Send(bytes) => stream.write_all(&bytes).await?,
        Play::Repeat(head, again) => {
            stream.write_all(&head).await?;
            loop {
                stream.write_all(&again).await?;
            }
        }
        Play::Drip(head, interval) => {
            stream.write_all(&head).await?;
            loop {
                stream.write_all(b"x").await?;
                stream.flush().await?;
                sleep(interval).await;
            }
        }
        Play::Hang(bytes) => {
            go_on.acquire().await.unwrap().forget();
            stream.write_all(&bytes).await?;
        }
        Play::Plain(_) => {}
    }
    Ok(())
}

/// Reads a request with its body.
async fn request_of(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<String> {
    let mut read = String::new();
    loop {
        if let Some((head, body)) = read.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() == length.map_or(0, |length| length.parse().unwrap()) {
                return Ok(read);
            }
        }
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read.push_str(std::str::from_utf8(&bytes[..count]).unwrap()),
        }
    }
}

/// A response with a body, and with further lines of the head.
fn response(status: &str, lines: &[&str], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len()).into_bytes();
    for line in lines {
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

fn ok(body: &[u8]) -> Vec<u8> {
    response("200 OK", &["content-type: application/json"], body)
}

/// Gets from a server that plays this. Its certificate is right, and the DNS names it.
async fn get_with(play: Play, timeout: Duration) -> (Result<Bytes, OutgoingError>, Server) {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), play).await;
    let client = authority.client(OutgoingPolicy::Public, &dns, timeout);
    let got = client.get(&server.endpoint("/jwks"), 1000).await;
    assert_eq!(dns.asked(), 1);
    (got, server)
}

#[tokio::test]
async fn a_document_is_fetched() {
    let (got, server) = get_with(Play::Send(ok(b"{\"keys\":[]}")), LONG).await;
    assert_eq!(got.unwrap(), "{\"keys\":[]}");
    let [request] = server.requests().try_into().unwrap();
    let expected = format!(
        "GET /jwks HTTP/1.1\r\nhost: {HOST}:{}\r\naccept: {ACCEPTED}\r\naccept-encoding: identity\r\n\
         connection: close\r\nuser-agent: concord\r\n\r\n",
        server.port
    );
    assert_eq!(request, expected);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn path_and_query_are_sent_as_they_are_written() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    for (path, sent) in
        [("/a/../b//%2e%2E/?q=%0a&&x", "/a/../b//%2e%2E/?q=%0a&&x"), ("", "/"), ("?a=b", "/?a=b")]
    {
        client.get(&server.endpoint(path), 1000).await.unwrap();
        let requests = server.requests();
        assert!(requests.last().unwrap().starts_with(&format!("GET {sent} HTTP/1.1\r\n")), "{requests:?}");
    }
    assert_eq!((server.connections(), dns.asked()), (3, 3));
}

#[tokio::test]
async fn a_form_is_posted_with_the_credential() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    let credential = ClientCredential::basic("con cord", "s:e/cr+et");
    for (status, is_answer) in [
        ("200 OK", true),
        ("400 Bad Request", true),
        ("428 Precondition Required", true),
        ("503 Busy", false),
    ] {
        let play = Play::Send(response(status, &[], b"{\"error\":\"e\"}"));
        let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), play).await;
        let pairs = [("grant_type", "authorization_code"), ("code", "a b&c=d")];
        let posted = client.post_form(&server.endpoint("/token"), &pairs, Some(&credential)).await;
        match posted {
            Ok(posted) => {
                assert!(is_answer && status.starts_with(&posted.status.to_string()), "{status}");
                assert_eq!(posted.body, "{\"error\":\"e\"}");
            }
            Err(error) => assert!(!is_answer && matches!(error, OutgoingError::Status(503)), "{error}"),
        }
        let [request] = server.requests().try_into().unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "grant_type=authorization_code&code=a+b%26c%3Dd");
        let basic = BASE64_STANDARD.encode("con+cord:s%3Ae%2Fcr%2Bet");
        assert!(head.contains(&format!("\r\nauthorization: Basic {basic}\r\n")), "{head}");
        assert!(head.contains("\r\ncontent-type: application/x-www-form-urlencoded"), "{head}");
    }
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    client.post_form(&server.endpoint("/token"), &[], None).await.unwrap();
    assert!(!server.requests()[0].contains("authorization"));
}

#[tokio::test]
async fn a_secret_is_in_no_debug_output_and_in_no_error() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    let credential = ClientCredential::basic("concord", "Pa55word");
    let encoded = BASE64_STANDARD.encode("concord:Pa55word");
    let plays = [
        Play::Send(ok(b"Pa55word")),
        Play::Send(response("500 Pa55word", &["x: Pa55word"], b"Pa55word")),
        Play::Send(response("302 Found", &["location: https://idp.test/Pa55word"], b"")),
        Play::Send(b"Pa55word\r\n\r\n".to_vec()),
        Play::Send(response("200 OK", &["Pa55 word: 1"], b"Pa55word")),
        Play::Plain(b"Pa55word".to_vec()),
    ];
    for play in plays {
        let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), play).await;
        let pairs = [("client_secret", "Pa55word")];
        let posted = client.post_form(&server.endpoint("/token"), &pairs, Some(&credential)).await;
        let mut text = format!("{credential:?} {client:?} {posted:?}");
        if let Err(error) = posted {
            text = format!("{text} {error} {error:#?} {}", error.word());
        }
        assert!(!text.contains("Pa55word") && !text.contains(&encoded), "{text}");
    }
}

#[tokio::test]
async fn only_the_address_that_was_checked_is_connected() {
    let authority = Authority::new();
    let allowed = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let forbidden =
        Server::start(FORBIDDEN, allowed.port, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let endpoint = allowed.endpoint("/");
    let one = |address: Ipv4Addr| vec![IpAddr::V4(address)];
    // Forbidden in the first answer: refused, and not asked again.
    let dns = PlayedDns::new([one(FORBIDDEN), one(ALLOWED)]);
    let client = authority.client(OutgoingPolicy::Any, &dns, LONG);
    let error = client.get(&endpoint, 1000).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Forbidden { .. }), "{error}");
    assert_eq!((error.word(), dns.asked(), allowed.connections()), ("unreachable", 1, 0));
    // Allowed in the first answer: a second one that differs is never asked for.
    let dns = PlayedDns::new([one(ALLOWED), one(FORBIDDEN)]);
    let client = authority.client(OutgoingPolicy::Any, &dns, LONG);
    client.get(&endpoint, 1000).await.unwrap();
    assert_eq!((dns.asked(), allowed.connections()), (1, 1));
    client.get(&endpoint, 1000).await.unwrap_err();
    assert_eq!((dns.asked(), allowed.connections()), (2, 1));
    // Both in one answer: the forbidden one is dropped, wherever it stands.
    let mapped = FORBIDDEN.to_ipv6_mapped();
    for answer in [
        vec![FORBIDDEN.into(), mapped.into(), ALLOWED.into()],
        vec![ALLOWED.into(), FORBIDDEN.into(), mapped.into()],
    ] {
        let dns = PlayedDns::new([answer]);
        authority.client(OutgoingPolicy::Any, &dns, LONG).get(&endpoint, 1000).await.unwrap();
    }
    assert_eq!((allowed.connections(), forbidden.connections()), (3, 0));
}

#[tokio::test]
async fn without_the_exception_of_tests_loopback_is_refused_and_nothing_is_connected() {
    let authority = Authority::new();
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    for policy in [OutgoingPolicy::Public, OutgoingPolicy::Any] {
        let dns = PlayedDns::new([vec![
            ALLOWED.into(),
            ALLOWED.to_ipv6_mapped().into(),
            std::net::Ipv6Addr::LOCALHOST.into(),
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(169, 254, 169, 254).into(),
        ]]);
        let mut client = authority.client(policy, &dns, LONG);
        client.has_loopback = false;
        let error = client.get(&server.endpoint("/"), 1000).await.unwrap_err();
        assert!(matches!(&error, OutgoingError::Forbidden { refused, .. } if refused.len() == 5), "{error}");
        assert_eq!(dns.asked(), 1);
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_client_that_is_off_asks_no_dns() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let client = authority.client(OutgoingPolicy::Off, &dns, LONG);
    let endpoint = server.endpoint("/");
    let error = client.get(&endpoint, 1000).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Off) && error.word() == "refused");
    let posted = client.post_form(&endpoint, &[], None).await;
    assert!(matches!(posted, Err(OutgoingError::Off)));
    assert_eq!((dns.asked(), server.connections()), (0, 0));
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_can_t_be_connected() {
    let authority = Authority::new();
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    // A port that is bound and not listened on: nobody else can listen there meanwhile.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind((ALLOWED, 0).into()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let deadline = Instant::now() + LONG;
    let error = connect(&[ALLOWED.into(), ALLOWED.into()], port, deadline).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Unconnected(_)) && error.word() == "unreachable");
    connect(&[NOBODY.into(), ALLOWED.into()], server.port, deadline).await.unwrap();
    connect(&[], port, deadline).await.unwrap_err();
}

#[tokio::test]
async fn a_name_without_addresses_is_unreachable() {
    let authority = Authority::new();
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let endpoint = server.endpoint("/");
    let error =
        authority.client(OutgoingPolicy::Any, &PlayedDns::new([]), LONG).get(&endpoint, 9).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Unresolved { .. }) && error.word() == "unreachable");
    let error =
        authority.client(OutgoingPolicy::Any, &PlayedDns::of(&[]), LONG).get(&endpoint, 9).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Forbidden { .. }), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn redirections_are_not_followed() {
    let authority = Authority::new();
    for status in
        ["301 Moved", "302 Found", "303 See Other", "304 Not Modified", "307 Temporary", "308 Permanent"]
    {
        let other = Server::start(ELSEWHERE, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
        for location in ["http://169.254.169.254/".to_owned(), format!("https://{HOST}:{}/", other.port)] {
            let location = format!("location: {location}");
            let play = Play::Send(response(status, &[&location], b""));
            let (got, server) = get_with(play, LONG).await;
            let error = got.unwrap_err();
            assert!(matches!(error, OutgoingError::Redirect(_)), "{status}: {error}");
            assert_eq!((error.word(), server.connections(), other.connections()), ("bad answer", 1, 0));
        }
    }
}

#[tokio::test]
async fn a_certificate_must_be_for_the_host_and_of_a_trusted_authority() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    let servers = [
        (authority.acceptor("other.test"), Play::Send(ok(b"{}"))),
        (authority.acceptor("127.0.0.1"), Play::Send(ok(b"{}"))),
        (Authority::new().acceptor(HOST), Play::Send(ok(b"{}"))),
        (authority.acceptor(HOST), Play::Plain(ok(b"{}"))),
        (authority.acceptor(HOST), Play::Plain(Vec::new())),
    ];
    for (acceptor, play) in servers {
        let server = Server::start(ALLOWED, 0, acceptor, play.clone()).await;
        let error = client.get(&server.endpoint("/"), 1000).await.unwrap_err();
        assert!(matches!(error, OutgoingError::Tls(_)), "{play:?}: {error}");
        assert_eq!((error.word(), server.connections()), ("unreachable", 1));
        assert!(server.requests().is_empty(), "nothing is sent before the certificate is checked");
    }
}

#[tokio::test]
async fn the_authorities_of_a_provider_are_trusted_for_its_calls_alone() {
    let (common, own) = (Authority::new(), Authority::new());
    let dns = PlayedDns::of(&[ALLOWED]);
    let client = common.client(OutgoingPolicy::Public, &dns, LONG);
    let own_pem = fs::read_to_string(own.file()).unwrap();
    let authorities = OwnAuthorities::from_pem(&own_pem).unwrap();
    let start = async |authority: &Authority| {
        Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await
    };
    let (of_common, of_own) = (start(&common).await, start(&own).await);
    assert_eq!(client.get_with(&of_own.endpoint("/"), 1000, &authorities).await.unwrap(), "{}");
    assert_eq!(client.get(&of_common.endpoint("/"), 1000).await.unwrap(), "{}");
    for (endpoint, own) in [(of_common.endpoint("/"), Some(&authorities)), (of_own.endpoint("/"), None)] {
        let result = match own {
            Some(authorities) => client.get_with(&endpoint, 1000, authorities).await,
            None => client.get(&endpoint, 1000).await,
        };
        assert!(matches!(result, Err(OutgoingError::Tls(_))), "{endpoint}: {result:?}");
    }
    for wrong in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(OwnAuthorities::from_pem(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn the_length_of_a_body_is_bounded() {
    let chunked = |chunks: usize| {
        let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..chunks {
            bytes.extend_from_slice(b"a\r\n0123456789\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    };
    let until_closed = |length: usize| {
        let mut bytes = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        bytes.resize(bytes.len() + length, b'x');
        bytes
    };
    // The limit of `get_with` is 1,000 bytes.
    for bytes in [ok(&[b'x'; 1000]), chunked(100), until_closed(1000)] {
        let (got, _) = get_with(Play::Send(bytes), LONG).await;
        assert_eq!(got.unwrap().len(), 1000);
    }
    for bytes in [ok(&[b'x'; 1001]), chunked(101), until_closed(1001)] {
        let (got, _) = get_with(Play::Send(bytes), LONG).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::TooLong(1000)) && error.word() == "bad answer", "{error}");
    }
    // Endless ones, with an announced length and without.
    let announced = b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n".to_vec();
    let endless = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for (head, again) in [(announced, &b"x"[..]), (endless, b"x"), (chunks, b"1\r\nx\r\n")] {
        let (got, _) = get_with(Play::Repeat(head, again.to_vec()), LONG).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::TooLong(_) | OutgoingError::Http(_)), "{error}");
    }
    // Whatever is asked for, it is never more than the limit of all calls.
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let play = Play::Send(ok(&vec![b'x'; BODY_BYTES_MAX + 1]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), play).await;
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    let error = client.get(&server.endpoint("/"), usize::MAX).await.unwrap_err();
    assert!(matches!(error, OutgoingError::TooLong(BODY_BYTES_MAX)), "{error}");
    let error = client.post_form(&server.endpoint("/"), &[], None).await.unwrap_err();
    assert!(matches!(error, OutgoingError::TooLong(BODY_BYTES_MAX)), "{error}");
}

#[tokio::test]
async fn a_response_that_is_cut_off_or_malformed_is_an_error() {
    for bytes in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n12",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n123",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n123",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"no http",
    ] {
        let (got, _) = get_with(Play::Send(bytes.to_vec()), LONG).await;
        let error = got.unwrap_err();
        assert!(
            matches!(error, OutgoingError::Http(_)) && error.word() == "bad answer",
            "{bytes:?}: {error}"
        );
    }
    for status in
        ["101 Switching Protocols", "201 Created", "204 No Content", "206 Part", "404 None", "500 Error"]
    {
        let head = format!("HTTP/1.1 {status}\r\n\r\n");
        let (got, _) = get_with(Play::Send(head.into_bytes()), LONG).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::Status(_) | OutgoingError::Http(_)), "{status}: {error}");
    }
}

#[tokio::test]
async fn compressed_bodies_are_refused() {
    let plain_gzip = [0x1f, 0x8b, 8, 0];
    for line in [
        "content-encoding: gzip",
        "Content-Encoding: br",
        "content-encoding: identity",
        "transfer-encoding: gzip, chunked",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        let bytes = [head.as_bytes(), &plain_gzip].concat();
        let (got, _) = get_with(Play::Send(bytes), LONG).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::Encoded) && error.word() == "bad answer", "{line}: {error}");
    }
}

#[tokio::test]
async fn headers_are_bounded() {
    let head = b"HTTP/1.1 200 OK\r\n".to_vec();
    let started = Instant::now();
    for again in [&b"x: y\r\n"[..], b"x", b"set-cookie: 0123456789abcdef0123456789abcdef0123456789abcdef\r\n"]
    {
        let (got, _) = get_with(Play::Repeat(head.clone(), again.to_vec()), LONG).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::Http(_)), "{error}");
    }
    let too_many: Vec<String> = (0..HEADERS_MAX).map(|number| format!("x-{number}: y")).collect();
    let too_many: Vec<&str> = too_many.iter().map(String::as_str).collect();
    // `response` adds one of its own.
    let (got, _) = get_with(Play::Send(response("200 OK", &too_many[1..], b"{}")), LONG).await;
    got.unwrap();
    let (got, _) = get_with(Play::Send(response("200 OK", &too_many, b"{}")), LONG).await;
    got.unwrap_err();
    assert!(started.elapsed() < LONG);
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_whatever_the_server_does() {
    let announced = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n".to_vec();
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n384\r\n".to_vec();
    let plays = [
        Play::Hang(Vec::new()),
        Play::Drip(announced, SHORT / 10),
        Play::Drip(chunked, SHORT / 10),
        Play::Drip(b"HTTP/1.1 200 OK\r\nx: ".to_vec(), SHORT / 10),
        Play::Repeat(Vec::new(), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
    ];
    let calls = plays.map(|play| async move {
        let started = Instant::now();
        let (got, _) = get_with(play.clone(), SHORT).await;
        let error = got.unwrap_err();
        assert!(matches!(error, OutgoingError::Timeout(CallStage::Response)), "{play:?}: {error}");
        assert_eq!(error.word(), "unreachable");
        assert!(started.elapsed() >= SHORT && started.elapsed() < TIMEOUT_MAX, "{play:?}");
    });
    futures::future::join_all(calls).await;
    // The handshake has the same deadline: here nothing ever answers.
    let silent = TcpListener::bind((ALLOWED, 0)).await.unwrap();
    let url = format!("https://{HOST}:{}/", silent.local_addr().unwrap().port());
    let endpoint = Endpoint::parse(&url, &AllowedHosts::new(&url, []).unwrap()).unwrap();
    let client = Authority::new().client(OutgoingPolicy::Public, &PlayedDns::of(&[ALLOWED]), SHORT);
    let error = client.get(&endpoint, 1000).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Timeout(CallStage::Tls)), "{error}");
}

#[tokio::test]
async fn a_lookup_that_hangs_keeps_its_place_and_delays_no_call_past_its_deadline() {
    let authority = Authority::new();
    let dns = Arc::new(PlayedDns { answers: Mutex::default(), asked: AtomicUsize::new(0), hangs: true });
    let client = authority.client(OutgoingPolicy::Public, &dns, SHORT / 10);
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    for _ in 0..LOOKUPS_OF_HOST_MAX + 2 {
        let error = client.get(&server.endpoint("/"), 1000).await.unwrap_err();
        assert!(matches!(error, OutgoingError::Timeout(CallStage::Resolve)), "{error}");
    }
    // The calls are over, their lookups are not.
    assert_eq!((dns.asked(), server.connections()), (LOOKUPS_OF_HOST_MAX, 0));
}

#[tokio::test]
async fn two_fetches_of_a_host_are_made_at_once_and_the_others_wait() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Hang(ok(b"{}"))).await;
    let quick = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let client = authority.client(OutgoingPolicy::Public, &dns, LONG);
    let (endpoint, token) = (server.endpoint("/"), quick.endpoint("/token"));
    let calls = FETCHES_OF_HOST_MAX + 3;
    let mut fetched = futures::future::join_all((0..calls).map(|_| client.get(&endpoint, 1000)));
    // Posted forms have places of their own, so these are answered meanwhile.
    let meanwhile = async {
        while server.requests().len() < FETCHES_OF_HOST_MAX {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            client.post_form(&token, &[], None).await.unwrap();
        }
    };
    tokio::select! {
        _ = &mut fetched => panic!("the server hangs"),
        () = meanwhile => {}
    }
    let fetched_now = FETCHES_OF_HOST_MAX;
    assert_eq!((server.connections(), quick.connections(), dns.asked()), (fetched_now, 3, fetched_now + 3));
    server.go_on.add_permits(calls);
    assert!(fetched.await.iter().all(Result::is_ok));
    assert_eq!(server.connections(), calls);
}

#[test]
fn addresses_of_one_family_leave_no_other_out() {
    let v6 = |last: u16| IpAddr::from([0x2603, 0, 0, 0, 0, 0, 0, last]);
    let v4 = |last: u8| IpAddr::from([20, 190, 0, last]);
    let mut addresses: Vec<IpAddr> = (1..=8).map(v6).chain((1..=8).map(v4)).collect();
    keep_some_of_each_family(&mut addresses);
    assert_eq!(addresses, (1..=4).map(v6).chain((1..=4).map(v4)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_wait_for_a_place_is_within_the_deadline() {
    let (authority, dns) = (Authority::new(), PlayedDns::of(&[ALLOWED]));
    let server = Server::start(ALLOWED, 0, authority.acceptor(HOST), Play::Send(ok(b"{}"))).await;
    let client = authority.client(OutgoingPolicy::Public, &dns, SHORT / 10);
    let mut taken = Vec::new();
    for _ in 0..FETCHES_OF_HOST_MAX {
        taken.push(client.fetches.take(HOST).await);
    }
    let error = client.get(&server.endpoint("/"), 1000).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Timeout(CallStage::Place)), "{error}");
    assert_eq!((error.word(), dns.asked(), server.connections()), ("unreachable", 0, 0));
    drop(taken);
    client.fetches.take(HOST).now_or_never().expect("the places are free again");
    // A step that could begin after the deadline does not.
    let ended = within(Instant::now(), CallStage::Resolve, std::future::ready(())).await;
    assert!(matches!(ended, Err(OutgoingError::Timeout(CallStage::Resolve))));
}

#[test]
fn a_file_of_authorities_must_be_usable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    OutgoingClient::new(OutgoingPolicy::Public, Some(&path)).unwrap_err();
    fs::write(&path, "no certificate").unwrap();
    OutgoingClient::new(OutgoingPolicy::Public, Some(&path)).unwrap_err();
    OutgoingClient::new(OutgoingPolicy::Public, None).unwrap();
}

#[tokio::test]
async fn the_resolver_of_this_machine_finds_loopback_which_is_refused() {
    let url = "https://localhost/";
    let endpoint = Endpoint::parse(url, &AllowedHosts::new(url, []).unwrap()).unwrap();
    let client = OutgoingClient::new(OutgoingPolicy::Any, None).unwrap();
    let error = client.get(&endpoint, 1000).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Forbidden { .. }), "{error}");
}
