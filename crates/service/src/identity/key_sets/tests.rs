//! Keys that a provider serves over HTTPS on loopback. Time is virtual, but for the calls.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use concord_identity::{Reason, testing::TestIssuer};
use concord_model::{command::Expect, document::Document};
use concord_net::outgoing::{address::OutgoingPolicy, resolve::Resolve};
use futures::future::BoxFuture;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    request::Refusal,
    tests::logins::{ISSUER, World, root, writers},
};

const HOST: &str = "idp.test";

/// Resolves each name to this machine.
#[derive(Debug)]
struct Loopback;

impl Resolve for Loopback {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        assert_eq!(host, HOST);
        Box::pin(std::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])))
    }
}

/// A provider whose responses the test chooses.
struct Idp {
    /// The response to each path; 503 for others.
    served: Arc<Mutex<BTreeMap<String, String>>>,
    calls: Arc<AtomicUsize>,
    ca: String,
    directory: tempfile::TempDir,
    url: String,
}

impl Idp {
    async fn start() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let ca = authority.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(authority, key);
        let mut params = CertificateParams::new([HOST.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{HOST}:{}", listener.local_addr().unwrap().port());
        let served = Arc::new(Mutex::new(BTreeMap::<String, String>::new()));
        let calls = Arc::new(AtomicUsize::new(0));
        let (of_server, counted) = (Arc::clone(&served), Arc::clone(&calls));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0
                {
                }
                let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_owned();
                let body = of_server.lock().unwrap().get(&path).cloned();
                let (status, body) = body.map_or(("503 Unavailable", String::new()), |body| ("200 OK", body));
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                let _gone = stream.write_all((head + &body).as_bytes()).await;
                let _gone = stream.shutdown().await;
            }
        });
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), &ca).unwrap();
        Self { served, calls, ca, directory, url }
    }

    fn serve(&self, path: &str, body: &Value) {
        self.served.lock().unwrap().insert(path.into(), body.to_string());
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// The task of a node that leads, and its provider.
struct Fetching {
    world: World,
    idp: Idp,
    task: KeySetTask,
    known: BTreeMap<ProviderId, Fetches>,
}

impl Fetching {
    /// The provider `ci` has these keys, and members of the role `writers`.
    async fn start(keys: impl FnOnce(&Idp) -> Value) -> Self {
        let idp = Idp::start().await;
        let world = World::start().await;
        idp.serve("/keys", &world.issuer.jwks());
        let mut document = world.issuer.document(ISSUER);
        document["keys"] = keys(&idp);
        world.put_provider(document).await.unwrap();
        world.put_role("writers", writers()).await.unwrap();
        let service = &world.node.service;
        let task = KeySetTask::new(&service.cx, &service.clock, &service.writes.logins);
        let client = OutgoingClient::new(OutgoingPolicy::Public, Some(&idp.directory.path().join("ca.pem")));
        task.client.set(client.unwrap().with_loopback(Arc::new(Loopback), Duration::from_secs(30))).unwrap();
        Self { world, idp, task, known: BTreeMap::new() }
    }

    /// Lets time pass, and looks once.
    async fn look_after(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.hear();
        // Calls take real time.
        tokio::time::resume();
        let consensus = self.task.cx.consensus().unwrap();
        self.task.fetch_due(consensus, &mut self.known).await;
        tokio::time::pause();
    }

    fn hear(&self) {
        let node = &self.world.node;
        node.hear_clocks(&[(2, node.true_time()), (3, node.true_time())]);
    }

    async fn log_in_with(&self, issuer: &TestIssuer) -> Result<(), Refusal> {
        // A login a second, and ten at once.
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.hear();
        let now_s = self.world.node.true_time().0 / 1_000_000;
        let token = issuer.token(ISSUER, "job", "prod", now_s);
        let opened = self.world.node.service.logins.log_in("ci", &token).await;
        opened.map(drop).map_err(|failed| failed.refusal)
    }

    async fn log_in(&self) -> Result<(), Refusal> {
        self.log_in_with(&self.world.issuer).await
    }

    fn alarms(&self) -> Vec<String> {
        let state = self.task.cx.applied();
        let policy = self.task.cx.policies.of(&state);
        alarms(&state, &policy, self.world.node.true_time()).into_iter().map(|alarm| alarm.message).collect()
    }

    fn revision(&self) -> u64 {
        self.task.cx.applied().revision()
    }
}

fn by_url(idp: &Idp) -> Value {
    json!({ "url": format!("{}/keys", idp.url), "ca": idp.ca })
}

#[tokio::test]
async fn keys_are_fetched_written_once_and_rotated_when_a_token_needs_it() {
    let mut node = Fetching::start(by_url).await;
    assert!(matches!(node.log_in().await, Err(Refusal::ProviderUnavailable(_))));
    node.look_after(Duration::ZERO).await;
    node.log_in().await.unwrap();
    // The same keys are written once an hour.
    let before = (node.revision(), node.idp.calls());
    node.look_after(INTERVAL).await;
    assert_eq!((node.revision(), node.idp.calls()), (before.0, before.1 + 1));
    // Others have come. The first token of them is rejected, and has them fetched; the old ones count no more.
    let other = TestIssuer::new("two");
    node.idp.serve("/keys", &other.jwks());
    node.look_after(PAUSE).await;
    assert_eq!(node.idp.calls(), before.1 + 1, "nobody needed them yet");
    let rejected = node.log_in_with(&other).await;
    assert_eq!(rejected, Err(Refusal::TokenRejected { reason: Reason::UnknownKey.text().into() }));
    node.look_after(Duration::ZERO).await;
    node.log_in_with(&other).await.unwrap();
    assert!(matches!(node.log_in().await, Err(Refusal::TokenRejected { .. })));
    // Tokens of nobody's keys have them fetched twice a minute at most.
    let calls = node.idp.calls();
    for _ in 0..60 {
        assert!(node.log_in().await.is_err());
        node.look_after(Duration::ZERO).await;
    }
    let calls = node.idp.calls() - calls;
    assert!((1..=3).contains(&calls), "{calls} calls in two minutes");
    node.world.node.stop().await;
}

#[tokio::test]
async fn a_day_without_the_provider_stops_logins_and_its_return_starts_them() {
    let mut node = Fetching::start(by_url).await;
    node.look_after(Duration::ZERO).await;
    node.idp.served.lock().unwrap().clear();
    let hour = Duration::from_secs(3600);
    node.look_after(hour).await;
    assert!(node.alarms().is_empty(), "{:?}", node.alarms());
    node.look_after(hour * 2).await;
    assert_eq!(node.alarms().len(), 1);
    node.log_in().await.unwrap();
    node.look_after(hour * 20).await;
    node.log_in().await.unwrap();
    node.look_after(hour).await;
    assert!(matches!(node.log_in().await, Err(Refusal::ProviderUnavailable(_))));
    // What is no key set changes nothing.
    node.idp.serve("/keys", &json!({ "keys": [] }));
    node.look_after(INTERVAL).await;
    assert!(matches!(node.log_in().await, Err(Refusal::ProviderUnavailable(_))));
    node.idp.serve("/keys", &node.world.issuer.jwks());
    node.look_after(RETRY).await;
    node.log_in().await.unwrap();
    assert!(node.alarms().is_empty(), "{:?}", node.alarms());
    node.world.node.stop().await;
}

#[tokio::test]
async fn keys_that_change_all_the_time_are_written_some_times_an_hour() {
    let mut node = Fetching::start(by_url).await;
    let before = node.revision();
    for turn in 0..11 {
        node.idp.serve("/keys", &TestIssuer::new(&format!("key-{turn}")).jwks());
        node.look_after(INTERVAL).await;
    }
    assert_eq!(node.revision() - before, WRITES_MAX as u64);
    node.look_after(INTERVAL * 2).await;
    assert_eq!(node.revision() - before, WRITES_MAX as u64 + 1);
    node.world.node.stop().await;
}

#[tokio::test]
async fn keys_are_found_by_discovery_on_the_hosts_of_the_provider_alone() {
    let mut node = Fetching::start(by_url).await;
    let issuer = node.idp.url.clone();
    let mut document = node.world.issuer.document(&issuer);
    document["keys"] = json!("discovery");
    let identities = &node.world.node.service.identities;
    let caller = root();
    identities.put_provider(caller, "found".into(), Document::new(document), Expect::Any).await.unwrap();
    let keys_of = |node: &Fetching| node.task.cx.applied().key_set_record("found").is_some();
    let document = |keys: String| json!({ "issuer": issuer, "jwks_uri": keys });
    // Another host: its name is not even looked up.
    node.idp.serve("/.well-known/openid-configuration", &document("https://elsewhere.test/keys".into()));
    node.look_after(Duration::ZERO).await;
    assert!(!keys_of(&node));
    node.idp.serve("/.well-known/openid-configuration", &document(format!("{issuer}/keys")));
    node.look_after(RETRY).await;
    assert!(keys_of(&node));
    node.world.node.stop().await;
}
