//! Attacks of different kinds at the same time.
//!
//! A bound that holds beside one kind of attack may be used up by another: the workers, the pool, the byte budget and
//! the connections are shared. Each round shuffles the kinds by its number and makes three at once until each had its
//! turn, all of them with a valid key where a key is asked for.
//!
//! `HOSTILE_ROUNDS` sets the number of rounds; `scripts/hostile.sh` makes more than the tests do.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use http::Method;
use serde_json::json;
use tokio::{net::TcpStream, time::Instant};

use super::{
    GoodClient, counts, frames,
    raw::{api, connect_from, many_connections, send},
    reads, writes,
};
use crate::harness::{
    Client, Cluster, Options,
    load::{config, define, definition, set},
    number,
    time::lasts,
};

/// How long the attacks of one step last.
const STEP_TIME: Duration = Duration::from_secs(3);
/// Callers of one kind at once.
const CALLERS: usize = 6;

/// The statuses that callers saw, 0 where the connection ended without one, and how often.
type Seen = BTreeMap<u16, usize>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Patterns,
    DryRuns,
    ExpensiveWrites,
    AlternatingIndexes,
    Lists,
    Cursors,
    UnreadAnswers,
    SlowBodies,
    Backups,
    IdleConnections,
    SlowHeads,
    Frames,
}

const ALL: [Kind; 12] = [
    Kind::Patterns,
    Kind::DryRuns,
    Kind::ExpensiveWrites,
    Kind::AlternatingIndexes,
    Kind::Lists,
    Kind::Cursors,
    Kind::UnreadAnswers,
    Kind::SlowBodies,
    Kind::Backups,
    Kind::IdleConnections,
    Kind::SlowHeads,
    Kind::Frames,
];

impl Kind {
    /// What an attacker of this kind may be answered. Nobody sees an internal error, and who proposes nothing is
    /// never told *unknown* (504); the others no more often than the good client's writes explain.
    fn allowed(self) -> &'static [u16] {
        match self {
            Self::Patterns => &[422, 429, 503],
            Self::DryRuns => &[200, 413, 422, 429, 503],
            Self::Cursors | Self::Lists => &[200, 429, 503],
            Self::ExpensiveWrites => &[200, 429, 503, 504],
            Self::AlternatingIndexes => &[200, 409, 429, 503, 504],
            Self::UnreadAnswers | Self::Backups => &[0, 200, 429, 503],
            Self::SlowBodies => &[0, 408, 429, 503],
            Self::IdleConnections | Self::SlowHeads | Self::Frames => &[0],
        }
    }

    /// Attacks until the end.
    async fn attack(self, cluster: &Cluster, end: Instant) -> Seen {
        let clients = cluster.clients();
        let turns = |turn: usize| &clients[turn % clients.len()];
        let ask = async |call: crate::harness::Call| call.attempt().await.map_or(0, |answer| answer.status);
        match self {
            Self::Patterns => {
                repeat(end, async |turn| {
                    let pattern =
                        json!({"type": "object", "properties": {"a": {"pattern": r"\s".repeat(12_000)}}});
                    let body = json!({"config_definition_key": format!("p{turn}"), "json_schema": pattern});
                    ask(turns(turn).post("/api/v1/config_definition/", &body)).await
                })
                .await
            }
            Self::DryRuns => {
                let operation = |n: usize| json!({"op": "create_config", "config_definition_key": "dear", "config_key": format!("new{n}"), "data": writes::words(2500)});
                let body = json!({"operations": (0..50).map(operation).collect::<Vec<_>>()}).to_string();
                repeat(end, async |turn| {
                    let call = turns(turn).call(Method::POST, "/api/v1/batch").query(&[("dry_run", "true")]);
                    ask(call.text("application/json", &body)).await
                })
                .await
            }
            Self::ExpensiveWrites => {
                let body = json!({"data": writes::words(writes::MANY_WORDS)});
                repeat(end, async |turn| ask(turns(turn).put(&config("dear", "k"), &body)).await).await
            }
            Self::AlternatingIndexes => {
                let change = |n: usize| json!({"op": "set_indexes", "config_definition_key": "wide", "indexes": [if n.is_multiple_of(2) { "a" } else { "b" }]});
                let body = json!({"operations": (0..10).map(change).collect::<Vec<_>>()});
                repeat(end, async |turn| ask(turns(turn).post("/api/v1/batch", &body)).await).await
            }
            Self::Lists => {
                let values = (0..900).map(|n| format!("a[ne]={}", 1_000_000 + n)).collect::<Vec<_>>();
                let path = format!("{}/config/?{}&limit=1&sort_by=a", definition("listed"), values.join("&"));
                repeat(end, async |turn| ask(turns(turn).get(&path)).await).await
            }
            Self::Cursors => {
                let path = format!("{}/config/?limit=1", definition("large"));
                repeat(end, async |turn| ask(turns(turn).get(&path)).await).await
            }
            Self::Backups => {
                repeat(end, async |turn| {
                    let answer = turns(turn).get("/api/v1/cluster/backup").open().await;
                    answer.map_or(0, |answer| answer.status().as_u16())
                })
                .await
            }
            Self::UnreadAnswers
            | Self::SlowBodies
            | Self::IdleConnections
            | Self::SlowHeads
            | Self::Frames => self.connect(cluster, end).await,
        }
    }

    /// The kinds that attack byte by byte.
    async fn connect(self, cluster: &Cluster, end: Instant) -> Seen {
        match self {
            Self::UnreadAnswers => {
                let line = format!("GET {}/config/?limit=8", definition("large"));
                let one = async |turn: usize| reads::send(&cluster.nodes[turn % 3], &line, b"\r\n").await;
                hold(end, 60, one, async |mut open| reads::status(&mut open).await).await
            }
            Self::SlowBodies => {
                let body = format!("{{\"data\":{{\"x\":\"{}", "x".repeat(1 << 20));
                let head = format!("PUT {}", config("large", "slow"));
                let rest =
                    format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", 2 << 20);
                let one =
                    async |turn: usize| reads::send(&cluster.nodes[turn % 3], &head, rest.as_bytes()).await;
                // What is not cut off waits for the rest of the body: nothing is owed to it.
                hold(end, 60, one, leave).await
            }
            Self::IdleConnections => {
                let one = async |turn: usize| {
                    let source = [127, 0, 0, 10 + u8::try_from(turn % 8).expect("it is small")];
                    connect_from(source, api(&cluster.nodes[turn % 3])).await
                };
                hold(end, 1500, one, leave).await
            }
            Self::SlowHeads => {
                let head = format!("GET /livez HTTP/1.1\r\nhost: a\r\nx-long: {}", "y".repeat(60_000));
                let one = async |turn: usize| {
                    let mut stream = connect_from([127, 0, 0, 20], api(&cluster.nodes[turn % 3])).await;
                    send(&mut stream, &head).await;
                    stream
                };
                hold(end, 600, one, leave).await
            }
            Self::Frames => {
                repeat(end, async |turn| {
                    frames::pings(api(&cluster.nodes[turn % 3])).await;
                    0
                })
                .await
            }
            Self::Patterns
            | Self::DryRuns
            | Self::ExpensiveWrites
            | Self::AlternatingIndexes
            | Self::Lists
            | Self::Cursors
            | Self::Backups => panic!("{self:?} is made of requests"),
        }
    }
}

/// Callers that ask again and again until the end.
async fn repeat(end: Instant, ask: impl AsyncFn(usize) -> u16) -> Seen {
    let caller = async |place: usize| {
        let mut statuses = Vec::new();
        for turn in (place..).step_by(CALLERS) {
            statuses.push(ask(turn).await);
            if Instant::now() >= end {
                break;
            }
        }
        statuses
    };
    counts(&join_all((0..CALLERS).map(caller)).await.concat())
}

/// Connections that are opened, held until the end, and then judged.
async fn hold(
    end: Instant,
    count: usize,
    open: impl AsyncFn(usize) -> TcpStream,
    judge: impl AsyncFn(TcpStream) -> u16,
) -> Seen {
    let mut held = Vec::with_capacity(count);
    for first in (0..count).step_by(50) {
        held.extend(join_all((first..count.min(first + 50)).map(|turn| open(turn))).await);
    }
    lasts(end.saturating_duration_since(Instant::now())).await;
    counts(&join_all(held.into_iter().map(|open| judge(open))).await)
}

/// Nothing is owed to a connection that has not finished its request.
async fn leave(open: TcpStream) -> u16 {
    drop(open);
    0
}

/// What the attacks need.
async fn prepare(client: &Client) {
    writes::define_doubling(client, "dear").await;
    set(client, "dear", "k", &writes::words(1)).await;
    define(client, "wide").await;
    reads::fill(client, "wide", 5000, |n| json!({"a": n, "b": n % 100, "text": "x".repeat(200)})).await;
    reads::define_indexed(client, "listed", &json!(["a"])).await;
    reads::fill(client, "listed", 5000, |n| json!({"a": n})).await;
    define(client, "large").await;
    reads::write_large(client, "large", 0..16, true).await;
}

#[tokio::test]
async fn three_attacks_of_different_kinds_at_once_hurt_nobody() {
    let _only = many_connections().await;
    let rounds = number("HOSTILE_ROUNDS").unwrap_or(1);
    let options = Options::default()
        .with("CONCORD_IN_FLIGHT_BYTES", &(64 << 20).to_string())
        .with("CONCORD_WRITE_TIMEOUT_MS", "3000");
    let cluster = Cluster::start_with("hostile-together", &options).await;
    prepare(&cluster.clients()[0]).await;
    for round in 0..rounds {
        let mut kinds = ALL;
        fastrand::Rng::with_seed(round).shuffle(&mut kinds);
        for three in kinds.chunks(3) {
            let name = format!("{three:?}");
            let good = GoodClient::start(&cluster).await;
            let end = Instant::now() + STEP_TIME;
            let seen = join_all(three.iter().map(|kind| kind.attack(&cluster, end))).await;
            println!("{name}: {seen:?}");
            let good = good.stop(&cluster, &name).await;
            good.is_unhurt().memory_within(512);
            for (kind, seen) in three.iter().zip(&seen) {
                assert!(!seen.is_empty(), "{kind:?} asked for something");
                assert!(seen.keys().all(|status| kind.allowed().contains(status)), "{kind:?}: {seen:?}");
            }
            // Each kind by itself: the many answers of one would excuse those of another.
            for seen in seen {
                good.explains_unknown(seen.into_iter().flat_map(|(status, count)| vec![status; count]));
            }
        }
    }
    // What was attacked is whole, on every node the same.
    cluster.equal_digests().await;
}
