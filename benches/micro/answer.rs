//! What an answer costs a node: from the request, as it stands parsed, to the last byte of its body.
//!
//! What renders is not public, so this is the whole way through what a node's listener serves: the route,
//! the key, the read of the state, the text, the headers. No socket, and no word to another node: the reads are local.

use std::{sync::Arc, time::Duration};

use axum::body::{Body, Bytes};
use concord_consensus::Timers;
use concord_http::Api;
use concord_model::limits::Limits;
use concord_net::{
    Member,
    client::{Peers, Secrets},
};
use concord_service::{Access, Options, Principal, Retention, Service};
use concord_storage::{self as store};
use divan::{Bencher, counter::BytesCount};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};

use crate::data::data;

const KEY: &str = "only-for-the-benches";
const DEFINITIONS: &str = "/api/v1/config_definition/";
/// One page of them.
const CONFIGS: u64 = 100;

/// A cluster of one node, in this process, with a page of configs.
struct Node {
    _directory: tempfile::TempDir,
    runtime: Runtime,
    service: Service,
    api: Api,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let options = Options {
            node_id: 1,
            directory: directory.path().into(),
            limits: Limits::default(),
            write_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            watch_heartbeat: Duration::from_secs(10),
            consensus_runtime: None,
            timers: Timers::default(),
            store: store::StoreOptions::default(),
            snapshot_log_bytes: 64 << 20,
            log_stall_timeout: Duration::from_secs(60),
            disk_reserve_bytes: 0,
            rescue: Vec::new(),
            data_key_file: None,
            backup_envelope: None,
            retention: Retention::default(),
            feature_level_max: concord_model::feature::level_max(),
            caller_tls: None,
            audit: concord_service::audit::AuditOptions::off(),
            quotas: concord_model::access_key::Quota::default(),
            failed_credentials: 0,
            spans: None,
            identity_calls: concord_net::outgoing::address::OutgoingPolicy::Off,
        };
        // A thread of its own for the consensus: it must not wait for the benches' requests.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let service = runtime.block_on(async {
            let peers = Peers::new(Secrets(vec!["between-no-others".into()]));
            let service = Service::new(options, Access::new([KEY]), Arc::new(peers));
            // Nobody calls these.
            let (api_addr, peer_addr) = ("127.0.0.1:1".into(), "127.0.0.1:2".into());
            let formed =
                service.members.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await;
            formed.expect("a node alone agrees with itself");
            service
        });
        let api = Api::new(service.clone());
        let node = Self { _directory: directory, runtime, service, api };
        node.fill();
        node
    }

    fn fill(&self) {
        let definition = r#"{"config_definition_key":"d","indexes":["group","owner"]}"#;
        self.answer(request(Method::POST, DEFINITIONS, definition.into()), StatusCode::CREATED);
        for number in 0..CONFIGS {
            let body = format!(r#"{{"config_key":"c{number:08}","data":{}}}"#, data(number));
            self.answer(request(Method::POST, &format!("{DEFINITIONS}d/config/"), body), StatusCode::CREATED);
        }
    }

    fn answer(&self, request: Request<Body>, expected: StatusCode) -> Bytes {
        self.runtime.block_on(async {
            let answer = self.api.handle(request).await;
            let (status, body) = (answer.status(), answer.into_body().collect().await);
            let body = body.expect("it is in memory").to_bytes();
            assert_eq!(status, expected, "{body:?}");
            body
        })
    }

    /// Answers the same request again and again.
    fn bench(&self, bencher: Bencher<'_, '_>, path: &str) {
        let ask = || request(Method::GET, path, String::new());
        let bytes = self.answer(ask(), StatusCode::OK).len();
        bencher
            .counter(BytesCount::new(bytes))
            .with_inputs(ask)
            .bench_local_values(|request| self.answer(request, StatusCode::OK));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.runtime.block_on(self.service.shutdown());
    }
}

fn request(method: Method, path: &str, body: String) -> Request<Body> {
    let head = Request::builder().method(method).uri(path).header("authorization", KEY);
    let head = head.header("content-type", "application/json");
    head.body(Body::from(body)).expect("the benches make valid requests")
}

/// One config of some 300 bytes.
#[divan::bench]
fn answer_get(bencher: Bencher<'_, '_>) {
    Node::new().bench(bencher, &format!("{DEFINITIONS}d/config/c00000007?consistency=local"));
}

/// A page of 100 of them.
#[divan::bench]
fn answer_page(bencher: Bencher<'_, '_>) {
    Node::new().bench(bencher, &format!("{DEFINITIONS}d/config/?limit={CONFIGS}&consistency=local"));
}
