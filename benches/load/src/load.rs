//! What is asked: the loads, the data, and how each system is asked for the same thing.
//!
//! etcd has no index: its update of an "indexed" field is a plain put, and its list is a range over keys that
//! already lie in the wanted order. It is asked for less than Concord there, never for more.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use etcd_client::{Client, GetOptions, KvClient, Txn, TxnOp, TxnOpResponse};
use hyper::Method;

use crate::http::Http;

/// Values of the indexed fields; each finds 1/1000 of the configs, so 100 of 100,000.
pub(crate) const GROUPS: usize = 1000;
/// Configs that are listed from.
pub(crate) const LISTED: usize = 100_000;

/// The root key of the measured cluster, which lives on loopback for minutes.
pub(crate) const KEY: &str = "only-for-the-benchmark";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Create,
    UpdateIndexed,
    UpdateIndexedSpread,
    UpdatePlain,
    GetLeader,
    GetSpread,
    GetLocal,
    ListIndexed,
    Mixed,
    MixedDay,
    Transaction,
    ReadMany,
}

/// The writes of a transaction, or the configs that are read at once. etcd admits 128.
const TRANSACTION: usize = 100;

/// What the answer to a read of many says of each config that is there.
const FOUND: &[u8] = br#""status":"found""#;

impl Load {
    pub(crate) const ALL: [Self; 12] = [
        Self::Create,
        Self::UpdateIndexed,
        Self::UpdateIndexedSpread,
        Self::UpdatePlain,
        Self::GetLeader,
        Self::GetSpread,
        Self::GetLocal,
        Self::ListIndexed,
        Self::Mixed,
        Self::MixedDay,
        Self::Transaction,
        Self::ReadMany,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::UpdateIndexed => "update-indexed",
            Self::UpdateIndexedSpread => "update-indexed-spread",
            Self::UpdatePlain => "update-plain",
            Self::GetLeader => "get-leader",
            Self::GetSpread => "get-spread",
            Self::GetLocal => "get-local",
            Self::ListIndexed => "list-indexed",
            Self::Mixed => "mixed",
            Self::MixedDay => "mixed-day",
            Self::Transaction => "transaction-100",
            Self::ReadMany => "read-100",
        }
    }

    /// Whether all nodes are asked; else the leader alone.
    pub(crate) fn spread(self) -> bool {
        matches!(
            self,
            Self::UpdateIndexedSpread | Self::GetSpread | Self::GetLocal | Self::Mixed | Self::MixedDay
        )
    }

    /// Whether each request gets or replaces one config that is there.
    pub(crate) fn asks_for_one(self) -> bool {
        matches!(
            self,
            Self::UpdateIndexed
                | Self::UpdateIndexedSpread
                | Self::GetLeader
                | Self::GetSpread
                | Self::GetLocal
        )
    }

    /// What one request counts as: rates and costs of a transaction are those of its writes, and of a read of many those of its configs.
    pub(crate) fn operations(self) -> usize {
        if matches!(self, Self::Transaction | Self::ReadMany) { TRANSACTION } else { 1 }
    }
}

/// What one point of the table asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) load: Load,
    pub(crate) value_bytes: usize,
    /// Configs that exist before.
    pub(crate) keys: usize,
    /// The configs that are asked for, when they are not those of the load.
    pub(crate) of: Option<Subject>,
}

/// Configs of a definition, and how clients ask for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) definition: &'static str,
    /// The number of the first of these configs.
    pub(crate) first: usize,
    /// Each request names one of so many readers, at random. 0: requests name no reader.
    pub(crate) readers: usize,
}

/// The name of a reader.
pub(crate) fn reader(n: usize) -> String {
    format!("reader-{n}")
}

impl Ask {
    pub(crate) fn definition(&self) -> String {
        self.of.map_or_else(|| definition(self.load, self.value_bytes), |of| of.definition.to_owned())
    }
}

/// The definitions: one per way of writing, so that a plain update really leaves the index alone.
pub(crate) fn definition(load: Load, value_bytes: usize) -> String {
    let name = match load {
        Load::Create => "made",
        Load::UpdateIndexed
        | Load::UpdateIndexedSpread
        | Load::Mixed
        | Load::MixedDay
        | Load::Transaction => "moved",
        Load::UpdatePlain | Load::GetLeader | Load::GetSpread | Load::GetLocal | Load::ReadMany => "plain",
        Load::ListIndexed => "listed",
    };
    format!("{name}-{value_bytes}")
}

/// The definition's own form.
pub(crate) fn definition_body(key: &str) -> String {
    format!(
        r#"{{"config_definition_key":"{key}","indexes":["group","tier"],"json_schema":{{"type":"object","properties":{{"name":{{"type":"string"}},"group":{{"type":"integer"}},"tier":{{"type":"string"}},"count":{{"type":"integer"}},"pad":{{"type":"string"}}}},"required":["name","group","tier"]}}}}"#
    )
}

/// The data of config `n`: `value_bytes` long, its tier as given.
pub(crate) fn data(n: usize, tier: usize, value_bytes: usize) -> String {
    padded(n, tier, value_bytes, || 'x')
}

/// The same with a pad that does not compress: for what a snapshot of it weighs and takes.
pub(crate) fn noisy(n: usize, tier: usize, value_bytes: usize) -> String {
    padded(n, tier, value_bytes, fastrand::alphanumeric)
}

fn padded(n: usize, tier: usize, value_bytes: usize, pad_of: impl FnMut() -> char) -> String {
    let mut text = String::with_capacity(value_bytes + 16);
    let (group, count) = (n % GROUPS, fastrand::u32(100_000..1_000_000));
    let _ = write!(
        text,
        r#"{{"name":"config-{n:08}","group":{group},"tier":"tier-{tier:04}","count":{count},"pad":""#
    );
    let pad = value_bytes.saturating_sub(text.len() + 2);
    text.extend(std::iter::repeat_with(pad_of).take(pad));
    text.push_str("\"}");
    text
}

/// Where config `n` lies in etcd.
fn etcd_key(definition: &str, n: usize) -> String {
    if definition.starts_with("listed") {
        return format!("{definition}/{:04}/{n:08}", n % GROUPS);
    }
    format!("{definition}/{n:08}")
}

/// How a system is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    Concord,
    /// The same over connections of HTTP/2 that clients share, as etcd's client shares its own.
    ConcordHttp2,
    Etcd,
    /// etcd's HTTP gateway.
    Gateway,
}

/// One client.
pub(crate) enum Asker {
    Concord(Http),
    Etcd(Box<KvClient>),
    Gateway(Http),
}

/// A connection of etcd's client, which many clients share.
pub(crate) async fn etcd(addr: SocketAddr) -> Result<Client, String> {
    Client::connect([format!("http://{addr}")], None).await.map_err(|error| format!("{addr}: {error}"))
}

impl Asker {
    /// Asks once for what the load wants.
    pub(crate) async fn once(&mut self, ask: &Ask, made: &AtomicUsize) -> Result<(), String> {
        let Ask { load, value_bytes, keys, of } = *ask;
        let definition = ask.definition();
        let n = of.map_or(0, |of| of.first) + fastrand::usize(..keys);
        if let (Self::Concord(http), Some(of)) = (&mut *self, of) {
            http.reader = (of.readers > 0).then(|| reader(fastrand::usize(..of.readers)));
        }
        match load {
            Load::Create => self.create(&definition, made.fetch_add(1, Relaxed), value_bytes).await,
            Load::UpdateIndexed | Load::UpdateIndexedSpread => {
                self.put(&definition, n, data(n, fastrand::usize(..GROUPS), value_bytes)).await
            }
            Load::UpdatePlain => self.put(&definition, n, data(n, n % GROUPS, value_bytes)).await,
            Load::GetLeader | Load::GetSpread => self.get(&definition, n, false).await,
            Load::GetLocal => self.get(&definition, n, true).await,
            Load::ListIndexed => self.list(&definition, fastrand::usize(..GROUPS)).await,
            Load::Mixed if fastrand::u8(..10) == 0 => {
                self.put(&definition, n, data(n, fastrand::usize(..GROUPS), value_bytes)).await
            }
            Load::Mixed => self.get(&definition, n, false).await,
            Load::MixedDay => match fastrand::u8(..100) {
                0 => self.put(&definition, n, data(n, fastrand::usize(..GROUPS), value_bytes)).await,
                1..=4 => self.get(&definition, n, false).await,
                _ => self.get(&definition, n, true).await,
            },
            Load::Transaction => self.transaction(&definition, (n, keys), value_bytes).await,
            Load::ReadMany => self.read_many(&definition, (n, keys)).await,
        }
    }

    /// Reads so many neighbours at once, all of one revision, linearizable.
    async fn read_many(&mut self, definition: &str, (first, keys): (usize, usize)) -> Result<(), String> {
        let named = (first..first + TRANSACTION).map(|n| n % keys);
        let found = match self {
            Self::Concord(http) => {
                let of = |n| format!(r#"{{"config_definition_key":"{definition}","config_key":"c{n:08}"}}"#);
                let all: Vec<String> = named.map(of).collect();
                let body = format!(r#"{{"configs":[{}]}}"#, all.join(","));
                let answer = http.good(Method::POST, "/api/v1/read", body).await?;
                answer.windows(FOUND.len()).filter(|part| *part == FOUND).count()
            }
            Self::Etcd(client) => {
                let all: Vec<TxnOp> = named.map(|n| TxnOp::get(etcd_key(definition, n), None)).collect();
                let answer = client.txn(Txn::new().and_then(all)).await.map_err(|error| error.to_string())?;
                let is_found =
                    |one: &TxnOpResponse| matches!(one, TxnOpResponse::Get(got) if got.kvs().len() == 1);
                answer.op_responses().iter().filter(|one| is_found(one)).count()
            }
            Self::Gateway(_) => return Err("the gateway is not asked for many configs".to_owned()),
        };
        if found == TRANSACTION { Ok(()) } else { Err(format!("{found} configs of {TRANSACTION} are there")) }
    }

    /// Replaces so many configs in one transaction: neighbours, so that none is named twice.
    async fn transaction(
        &mut self,
        definition: &str,
        (first, keys): (usize, usize),
        value_bytes: usize,
    ) -> Result<(), String> {
        let writes = (first..first + TRANSACTION).map(|n| n % keys);
        let writes = writes.map(|n| (n, data(n, fastrand::usize(..GROUPS), value_bytes)));
        match self {
            Self::Concord(http) => {
                let of = |(n, data)| {
                    format!(
                        r#"{{"op":"put_config","config_definition_key":"{definition}","config_key":"c{n:08}","data":{data}}}"#
                    )
                };
                let all: Vec<String> = writes.map(of).collect();
                let body = format!(r#"{{"operations":[{}]}}"#, all.join(","));
                http.good(Method::POST, "/api/v1/batch", body).await.map(drop)
            }
            Self::Etcd(client) => {
                let all: Vec<TxnOp> =
                    writes.map(|(n, data)| TxnOp::put(etcd_key(definition, n), data, None)).collect();
                client.txn(Txn::new().and_then(all)).await.map(drop).map_err(|error| error.to_string())
            }
            Self::Gateway(_) => Err("the gateway is not asked for transactions".to_owned()),
        }
    }

    pub(crate) async fn create(
        &mut self,
        definition: &str,
        n: usize,
        value_bytes: usize,
    ) -> Result<(), String> {
        let data = data(n, n % GROUPS, value_bytes);
        match self {
            Self::Concord(http) => {
                let body = format!(r#"{{"config_key":"c{n:08}","data":{data}}}"#);
                let path = format!("/api/v1/config_definition/{definition}/config/");
                http.good(Method::POST, &path, body).await.map(drop)
            }
            Self::Etcd(_) | Self::Gateway(_) => self.put(definition, n, data).await,
        }
    }

    pub(crate) async fn put(&mut self, definition: &str, n: usize, data: String) -> Result<(), String> {
        match self {
            Self::Concord(http) => {
                let path = format!("/api/v1/config_definition/{definition}/config/c{n:08}");
                http.good(Method::PUT, &path, format!(r#"{{"data":{data}}}"#)).await.map(drop)
            }
            Self::Etcd(client) => {
                client.put(etcd_key(definition, n), data, None).await.map(drop).map_err(|e| e.to_string())
            }
            Self::Gateway(http) => {
                let (key, value) = (STANDARD.encode(etcd_key(definition, n)), STANDARD.encode(data));
                let body = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
                http.good(Method::POST, "/v3/kv/put", body).await.map(drop)
            }
        }
    }

    async fn get(&mut self, definition: &str, n: usize, local: bool) -> Result<(), String> {
        match self {
            Self::Concord(http) => {
                let how = if local { "?consistency=local" } else { "" };
                let path = format!("/api/v1/config_definition/{definition}/config/c{n:08}{how}");
                http.good(Method::GET, &path, String::new()).await.map(drop)
            }
            Self::Etcd(client) => {
                let options = local.then(|| GetOptions::new().with_serializable());
                let answer = client.get(etcd_key(definition, n), options).await.map_err(|e| e.to_string())?;
                if answer.kvs().len() == 1 { Ok(()) } else { Err(format!("etcd has no config {n}")) }
            }
            Self::Gateway(http) => {
                let key = STANDARD.encode(etcd_key(definition, n));
                let body = format!(r#"{{"key":"{key}","serializable":{local}}}"#);
                http.good(Method::POST, "/v3/kv/range", body).await.map(drop)
            }
        }
    }

    async fn list(&mut self, definition: &str, group: usize) -> Result<(), String> {
        match self {
            Self::Concord(http) => {
                let path = format!("/api/v1/config_definition/{definition}/config/?group={group}&limit=100");
                let body = http.good(Method::GET, &path, String::new()).await?;
                if body.len() > 100 * 300 { Ok(()) } else { Err(format!("{path}: a short page")) }
            }
            Self::Etcd(client) => {
                let options = GetOptions::new().with_prefix().with_limit(100);
                let answer = client.get(format!("{definition}/{group:04}/"), Some(options)).await;
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.kvs().len() == 100 { Ok(()) } else { Err("etcd: a short page".to_owned()) }
            }
            Self::Gateway(http) => {
                let (key, end) = (format!("{definition}/{group:04}/"), format!("{definition}/{group:04}0"));
                let (key, end) = (STANDARD.encode(key), STANDARD.encode(end));
                let body = format!(r#"{{"key":"{key}","range_end":"{end}","limit":100}}"#);
                http.good(Method::POST, "/v3/kv/range", body).await.map(drop)
            }
        }
    }
}
