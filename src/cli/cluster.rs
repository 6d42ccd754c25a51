//! `concord cluster`: the status of all members, and changes of it.
//!
//! **Invariants:** a node that does not respond is shown as such; nothing about it is guessed from another node. The
//! key is sent only to addresses that the operator has named: an address that the cluster names may be anybody's.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use concord_client::{Client, Error, Options, Request, Retry};
use futures::future::join_all;
use http::{StatusCode, Uri};
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, run_async},
    interrupt,
    members::{self, InitArgs, MemberCommand, TransferArgs},
    output::{Columns, Format, cell, line, print_columns, print_value, printable, shown_bytes},
};
use concord_service::NO_CLUSTER;

const CLUSTER: &str = "/api/v1/cluster";
/// Time limit for each member.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);
const COLUMNS: Columns = Columns {
    name: "id",
    narrow: &[
        ("NODE", "/id"),
        ("ROLE", "/role"),
        ("ANSWERS", "/answers"),
        ("READY", "/ready"),
        ("REACHABLE", "/reachable"),
        ("REVISION", "/revision"),
        ("LAG", "/lag"),
        ("DISK FREE", "/disk_free"),
        ("VERSION", "/version"),
        ("ADDRESS", "/api_addr"),
    ],
    wide: &[
        ("PEER", "/peer_addr"),
        ("LAST CONTACT MS", "/last_contact_ms"),
        ("MEMORY BYTES", "/memory_bytes"),
        ("DISK FREE BYTES", "/disk_free_bytes"),
        ("DIGEST", "/digest"),
        ("DATA KEY", "/data_key"),
        ("WHY", "/error"),
        ("NOT READY", "/not_ready"),
    ],
};

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the members, the leader and alarms; exits 1 if a member does not respond or is not ready, or there is an
    /// alarm
    Status(StatusArgs),
    /// Print a line when the leader changes, or a member stops or resumes responding
    Watch(ClusterWatchArgs),
    /// Bootstrap a cluster from running nodes
    Init(InitArgs),
    #[command(flatten)]
    Member(MemberCommand),
    /// Transfer leadership to a member
    TransferLeader(TransferArgs),
    /// Let a member with a rolled-back disk continue without lost members; run it on the member's host
    ///
    /// Writes that only this member and the lost members had confirmed are then lost. Run it only if the members that
    /// the alarm names never return.
    Vouch(VouchArgs),
}

#[derive(Debug, Args)]
pub(super) struct VouchArgs {
    /// The data directory of the member
    #[arg(long, env = "CONCORD_DATA_DIR", value_name = "PATH")]
    data_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
}

#[derive(Debug, Args)]
pub(super) struct ClusterWatchArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// Polling interval, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000), value_name = "MS")]
    every_ms: u64,
    /// Exit after this many lines
    #[arg(long, value_name = "N")]
    count: Option<usize>,
}

/// Runs a command.
pub(super) fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Status(args) => {
            let options = args.node.options(&args.tries)?;
            let client = Client::new(options.clone())?;
            interrupt::listen()?;
            run_async(status(&client, &options, &args.node.format.or_table()))
        }
        ClusterCommand::Watch(args) => {
            let options = args.node.options(&args.tries)?;
            let client = Client::new(options.clone())?;
            interrupt::listen()?;
            run_async(watch(&client, &options, &args))
        }
        ClusterCommand::Init(args) => members::init(&args),
        ClusterCommand::Member(command) => members::run(command),
        ClusterCommand::TransferLeader(args) => members::transfer(&args),
        ClusterCommand::Vouch(args) => {
            let vouched_for = concord_consensus::vouch(&args.data_dir).map_err(Failure::Failed)?;
            line(format!("the member continues without {}", concord_consensus::node_list(&vouched_for)))
        }
    }
}

/// What a member says of itself.
#[derive(Debug)]
struct MemberAnswer {
    /// The member as another node knows it.
    member: Value,
    /// Its view of the cluster, or why there is no response. `None` if it responds and got no request for its view.
    own: Result<Option<Value>, String>,
    /// Whether it is ready; with the reason if it is not. `None` if it does not say.
    ready: Option<Result<(), String>>,
}

impl MemberAnswer {
    /// Its view of the cluster, if there is one.
    fn view(&self) -> Option<&Value> {
        self.own.as_ref().ok()?.as_ref()
    }
}

/// The client of one node.
fn client_of(options: &Options, url: &str, key: &str) -> Result<Client, Error> {
    // --verbose shows the request once, not for each member.
    Client::new(Options { urls: vec![url.to_owned()], key: key.to_owned(), trace: None, ..options.clone() })
}

fn request(path: &str) -> Request {
    Request::get(path).retry(Retry::OtherNode).timeout(MEMBER_TIMEOUT)
}

/// Whether the node at an address is ready; with the reason if it is not. It needs no key, and gets none.
async fn ask_ready(options: &Options, url: &str) -> Result<Result<(), String>, Error> {
    match client_of(options, url, "")?.send(request("/readyz")).await {
        Ok(_) => Ok(Ok(())),
        Err(Error::Refused(refusal)) if refusal.status == StatusCode::SERVICE_UNAVAILABLE => {
            let reasons: Vec<String> = refusal.items.iter().map(ToString::to_string).collect();
            Ok(Err(reasons.join("; ")))
        }
        Err(error) => Err(error),
    }
}

/// The view of the node at an address that the operator has named.
async fn ask_view(options: &Options, url: &str) -> Result<Value, Error> {
    client_of(options, url, &options.key)?.send(request(CLUSTER)).await?.data()
}

/// What the node at an address that the operator has named says, with the key.
struct NamedAnswer {
    url: String,
    own: Result<Value, String>,
    ready: Option<Result<(), String>>,
}

impl NamedAnswer {
    async fn of(options: &Options, url: &str) -> Self {
        let (own, ready) = tokio::join!(ask_view(options, url), ask_ready(options, url));
        Self { url: url.to_owned(), own: own.map_err(|error| error.to_string()), ready: ready.ok() }
    }

    fn is_from(&self, member: &Value) -> bool {
        self.own.as_ref().is_ok_and(|own| own["node_id"] == member["id"])
    }

    /// Whether it did not respond at the address of a member.
    fn is_silence_at(&self, address: &str) -> bool {
        self.own.is_err()
            && self.url.parse::<Uri>().is_ok_and(|uri| uri.authority().is_some_and(|found| found == address))
    }
}

/// The cluster as one node reports it, and each member's own report.
async fn ask_members(client: &Client, options: &Options) -> Result<(Value, Vec<MemberAnswer>), Failure> {
    let mut seen = client.send(Request::get(CLUSTER).retry(Retry::OtherNode)).await?.data()?;
    let scheme = if client.urls()[0].starts_with("https://") { "https" } else { "http" };
    // Concurrently: a member that hangs must not delay the others.
    let named = join_all(client.urls().iter().map(|url| NamedAnswer::of(options, url))).await;
    // A member that has lost its directory knows no other.
    if seen["cluster_id"].is_null() {
        let mut answers = named.iter().filter_map(|one| one.own.as_ref().ok());
        seen = answers.find(|own| !own["cluster_id"].is_null()).cloned().unwrap_or(seen);
    }
    let ask = async |member: &Value| {
        let (member, address) = (member.clone(), cell(&member["api_addr"]));
        let known = named.iter().find(|one| one.is_from(&member));
        if let Some(one) = known.or_else(|| named.iter().find(|one| one.is_silence_at(&address))) {
            return MemberAnswer { member, own: one.own.clone().map(Some), ready: one.ready.clone() };
        }
        match ask_ready(options, &format!("{scheme}://{address}")).await {
            Ok(ready) => MemberAnswer { member, own: Ok(None), ready: Some(ready) },
            Err(error) => MemberAnswer { member, own: Err(error.to_string()), ready: None },
        }
    };
    let members = seen["members"].as_array().cloned().unwrap_or_default();
    let members = join_all(members.iter().map(ask)).await;
    Ok((seen, members))
}

/// The status of the cluster as data.
fn screen(seen: &Value, members: &[MemberAnswer]) -> Value {
    let answers = || members.iter().filter_map(MemberAnswer::view);
    // The leader knows the lag of the others. If two members claim to lead, the one with the later term does.
    let leader = answers()
        .filter(|own| own["leader_id"] == own["node_id"] && !own["node_id"].is_null())
        .max_by_key(|own| own["term"].as_u64());
    let seen = leader.unwrap_or(seen);
    let row = |answer: &MemberAnswer| {
        let MemberAnswer { member, own, ready } = answer;
        let known = seen["members"].as_array().into_iter().flatten().find(|one| one["id"] == member["id"]);
        let mut row = known.unwrap_or(member).clone();
        let of = |name: &str| answer.view().map(|own| own[name].clone()).unwrap_or_default();
        row["answers"] = own.is_ok().into();
        row["ready"] = ready.as_ref().map(Result::is_ok).into();
        row["not_ready"] = ready.as_ref().and_then(|ready| ready.as_ref().err().cloned()).into();
        row["revision"] = of("revision");
        row["digest"] = of("digest");
        row["data_key"] = of("data_key");
        row["error"] = own.as_ref().err().cloned().into();
        row
    };
    let rows: Vec<Value> = members.iter().map(row).collect();
    let not_asked =
        members.iter().filter(|one| matches!(one.own, Ok(None))).map(|one| one.member["id"].clone());
    let alarms = alarms(seen, members);
    json!({
        "cluster_id": seen["cluster_id"], "leader_id": seen["leader_id"], "term": seen["term"],
        "feature_level": seen["feature_level"], "failures_tolerated": failures_tolerated(&rows),
        "problems": rows.iter().flat_map(|row| problems(row, &alarms)).collect::<Vec<_>>(), "members": rows,
        "alarms": alarms, "not_asked": not_asked.collect::<Vec<_>>(),
    })
}

/// Whether a member takes part, as far as it and the leader say. One without free space confirms no write that needs some.
fn is_well(row: &Value) -> bool {
    row["answers"] == true && row["ready"] == true && row["reachable"] != false && free_if_full(row).is_none()
}

/// The free bytes of its disk, if they are less than the reserve; and the reserve.
fn free_if_full(row: &Value) -> Option<(u64, u64)> {
    let (free, reserve) = (row["disk_free_bytes"].as_u64()?, row["disk_reserve_bytes"].as_u64()?);
    (free < reserve).then_some((free, reserve))
}

/// How many voters more may fail before the cluster has no majority; negative if it has none.
fn failures_tolerated(rows: &[Value]) -> Option<i64> {
    let voters: Vec<&Value> = rows.iter().filter(|row| row["role"] != "learner").collect();
    let well = i64::try_from(voters.iter().filter(|row| is_well(row)).count()).ok()?;
    let majority = i64::try_from(voters.len() / 2 + 1).ok()?;
    (!voters.is_empty()).then(|| well - majority)
}

/// What is wrong with a member and in no alarm, a sentence each.
fn problems(row: &Value, alarms: &[Value]) -> Vec<String> {
    let (id, mut found) = (&row["id"], Vec::new());
    let is_alarm = |kind: &str| alarms.iter().any(|alarm| alarm["type"] == kind && alarm["node_id"] == *id);
    if row["answers"] != true {
        found.push(format!("node {id} does not respond: {}", cell(&row["error"])));
    } else if row["not_ready"] == NO_CLUSTER {
        found.push(format!(
            "node {id} has lost its data directory, or runs with another one: it belongs to no cluster. Put the directory \
             back, or replace the member: concord member replace {id} NEW=API@PEER"
        ));
    } else if row["ready"] == false {
        found.push(format!("node {id} is not ready: {}", cell(&row["not_ready"])));
    } else if row["ready"].is_null() {
        found.push(format!("node {id} does not say whether it is ready"));
    }
    if row["reachable"] == false && !is_alarm("unreachable") {
        found.push(format!("node {id} can't be reached by the leader"));
    }
    if let Some((free, reserve)) = free_if_full(row).filter(|_| !is_alarm("disk")) {
        found.push(format!(
            "node {id} rejects writes: {free} bytes of its disk are free, and its reserve is {reserve}"
        ));
    }
    found
}

/// What a cluster bears, as a sentence.
fn bears(tolerated: Option<i64>) -> String {
    match tolerated {
        None => "no voter is known".into(),
        Some(..0) => "no majority of the voters is well: the cluster can't write".into(),
        Some(0) => "one more failure stops the cluster".into(),
        Some(1) => "bears 1 more failure".into(),
        Some(more) => format!("bears {more} more failures"),
    }
}

async fn status(client: &Client, options: &Options, format: &Format) -> Result<(), Failure> {
    let (seen, members) = ask_members(client, options).await?;
    let mut data = screen(&seen, &members);
    let texts = |list: &str| -> Vec<Value> { data[list].as_array().cloned().unwrap_or_default() };
    let (problems, alarms, not_asked) = (texts("problems"), texts("alarms"), texts("not_asked"));
    let has_leader = !data["leader_id"].is_null();
    if format.is_table() {
        let id = &data["leader_id"];
        let leader = if has_leader { format!("leader node {id}") } else { "no leader".to_owned() };
        let (cluster, term) = (cell(&data["cluster_id"]), &data["term"]);
        line(printable(&format!(
            "cluster {cluster}  {leader}  term {term}  feature level {}  {}",
            data["feature_level"],
            bears(data["failures_tolerated"].as_i64())
        )))?;
        line("")?;
        for row in data["members"].as_array_mut().into_iter().flatten() {
            row["disk_free"] = row["disk_free_bytes"].as_u64().map(shown_bytes).into();
        }
    }
    if format.is_for_records() {
        print_columns(format, &data["members"], &COLUMNS)?;
    } else {
        print_value(format, &data, &COLUMNS.empty())?;
    }
    if format.is_table() {
        line("")?;
        problems.iter().try_for_each(|text| line(printable(&cell(text))))?;
        for one in &alarms {
            let id = &one["node_id"];
            let of = if id.is_null() { String::new() } else { format!(" of node {id}") };
            line(printable(&format!("alarm  {}{of}: {}", cell(&one["type"]), cell(&one["message"]))))?;
        }
        let not_asked: Vec<String> = not_asked.iter().map(cell).collect();
        if !not_asked.is_empty() {
            line(printable(&format!(
                "revision and alarms not known of node {}: --url or the context does not name its address, so it gets no key",
                not_asked.join(", ")
            )))?;
        } else if alarms.is_empty() && problems.is_empty() {
            line("no alarms")?;
        }
    }
    if problems.is_empty() && alarms.is_empty() && has_leader { Ok(()) } else { Err(Failure::Difference) }
}

/// The alarms of all nodes without duplicates.
fn alarms(seen: &Value, members: &[MemberAnswer]) -> Vec<Value> {
    let mut alarms: Vec<Value> = Vec::new();
    // The view through which the members were found is a moment older than that of the same node.
    let answered = members.iter().filter_map(MemberAnswer::view);
    let is_among = answered.clone().any(|own| own["node_id"] == seen["node_id"]);
    for own in answered.chain(Some(seen).filter(|_| !is_among)) {
        for alarm in own["alarms"].as_array().into_iter().flatten() {
            if !alarms.contains(alarm) {
                alarms.push(alarm.clone());
            }
        }
    }
    alarms
}

async fn watch(client: &Client, options: &Options, args: &ClusterWatchArgs) -> Result<(), Failure> {
    let format = args.node.format.or_table();
    let (mut last, mut shown) = (Value::Null, 0);
    loop {
        let now = match ask_members(client, options).await {
            Ok((seen, members)) => screen(&seen, &members),
            Err(Failure::Client(Error::Unavailable(_))) if !last.is_null() => {
                let mut none = last.clone();
                none["leader_id"] = Value::Null;
                for member in none["members"].as_array_mut().into_iter().flatten() {
                    member["answers"] = false.into();
                }
                none
            }
            Err(failure) => return Err(failure),
        };
        for event in events(&last, &now) {
            if format.is_table() {
                line(cell(&event["text"]))?;
            } else {
                print_columns(&format, &event, &COLUMNS)?;
            }
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(args.every_ms)).await;
    }
}

/// The changes between two polls; the first poll reports the current state.
fn events(last: &Value, now: &Value) -> Vec<Value> {
    let mut events = Vec::new();
    let mut add = |id: &Value, event: &str, text: String| {
        events.push(json!({ "id": id, "event": event, "term": now["term"], "text": text }));
    };
    let (id, term) = (&now["leader_id"], &now["term"]);
    if last["leader_id"] != *id || (last["term"] != *term && !id.is_null()) {
        match id.is_null() {
            true => add(id, "no_leader", format!("no leader (term {term})")),
            false => add(id, "leader", format!("leader node {id} (term {term})")),
        }
    }
    for member in now["members"].as_array().into_iter().flatten() {
        let before = last["members"].as_array().into_iter().flatten().find(|one| one["id"] == member["id"]);
        let (before, answers) = (before.map(|one| &one["answers"]), &member["answers"]);
        let id = &member["id"];
        match (before, *answers == true) {
            (Some(before), _) if before == answers => {}
            (None, true) => {}
            (_, true) => add(id, "back", format!("node {id} responds again")),
            (_, false) => add(id, "lost", format!("node {id} does not respond")),
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Answers each request with a text, and keeps the requests.
    fn serve(listener: TcpListener, body: String) -> Arc<Mutex<Vec<String>>> {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (kept, body) = (Arc::clone(&kept), body.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    kept.lock().unwrap().push(String::from_utf8(head).unwrap());
                    let length = body.len();
                    let head = "content-type: application/json\r\nconnection: close\r\ncontent-length";
                    let answer = format!("HTTP/1.1 200 OK\r\n{head}: {length}\r\n\r\n{body}");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                });
            }
        });
        requests
    }

    #[tokio::test]
    async fn the_key_is_sent_only_to_addresses_that_the_operator_has_named() {
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [at, elsewhere] = [&own, &other].map(|listener| listener.local_addr().unwrap().to_string());
        let members = json!([{"id": 1, "api_addr": "node1:8100"}, {"id": 2, "api_addr": elsewhere}]);
        let data =
            json!({"node_id": 1, "leader_id": 1, "term": 4, "revision": 7, "members": members, "alarms": []});
        let asked = serve(own, json!({"status": "SUCCESS", "message": "m", "data": data}).to_string());
        let strange =
            serve(other, json!({"status": "SUCCESS", "message": "m", "data": {"node_id": 2}}).to_string());
        let key = "the-root-key-of-the-operator".to_owned();
        let options = Options { urls: vec![format!("http://{at}")], key: key.clone(), ..Options::default() };
        let (seen, members) = ask_members(&Client::new(options.clone()).unwrap(), &options).await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(
            asked.iter().all(|head| head.contains(&key) == head.starts_with("GET /api/v1/cluster ")),
            "{asked:?}"
        );
        let strange = strange.lock().unwrap();
        assert!(
            !strange.is_empty() && strange.iter().all(|head| head.starts_with("GET /readyz ")),
            "{strange:?}"
        );
        assert!(strange.iter().all(|head| !head.contains(&key)), "{strange:?}");
        let shown = screen(&seen, &members);
        assert_eq!((&shown["members"][0]["revision"], &shown["not_asked"]), (&json!(7), &json!([2])));
        assert_eq!(
            (&shown["members"][1]["answers"], &shown["members"][1]["ready"]),
            (&json!(true), &json!(true))
        );
        assert_eq!((&shown["problems"], &shown["members"][1]["revision"]), (&json!([]), &Value::Null));
    }

    #[test]
    fn the_later_of_two_leaders_says_how_far_the_others_are() {
        let own = |id: u64, leader: u64, term: u64| {
            let members = json!([{"id": 1, "lag": term}, {"id": 2, "lag": term}, {"id": 3, "lag": term}]);
            json!({"node_id": id, "leader_id": leader, "term": term, "revision": 9, "members": members})
        };
        let member = |id: u64| json!({"id": id, "lag": null});
        let answer = |id, own| MemberAnswer { member: member(id), own, ready: None };
        let members = [
            answer(1, Ok(Some(own(1, 1, 4)))),
            answer(2, Ok(Some(own(2, 2, 5)))),
            answer(3, Err("refused".to_owned())),
        ];
        let shown = screen(&own(1, 1, 4), &members);
        assert_eq!((&shown["leader_id"], &shown["term"]), (&json!(2), &json!(5)));
        assert_eq!(
            (&shown["members"][2]["answers"], &shown["members"][2]["lag"]),
            (&json!(false), &json!(5))
        );
        assert_eq!(
            (&shown["members"][2]["error"], &shown["members"][2]["revision"]),
            (&json!("refused"), &Value::Null)
        );
    }

    #[test]
    fn a_member_that_answers_may_be_unwell_all_the_same() {
        let members: Vec<Value> =
            (1..=3).map(|id| json!({"id": id, "role": "follower", "reachable": true})).collect();
        let mut seen = json!({"node_id": 1, "leader_id": 1, "term": 4, "members": members, "alarms": []});
        seen["members"][0]["role"] = "leader".into();
        let answer = |id: u64, ready| MemberAnswer {
            member: json!({"id": id}),
            own: Ok(Some(json!({"node_id": id}))),
            ready,
        };
        let all = |seen: &Value, third| {
            screen(
                seen,
                &[
                    MemberAnswer {
                        member: json!({"id": 1}),
                        own: Ok(Some(seen.clone())),
                        ready: Some(Ok(())),
                    },
                    answer(2, Some(Ok(()))),
                    answer(3, third),
                ],
            )
        };
        let shown = all(&seen, Some(Ok(())));
        assert_eq!((&shown["problems"], &shown["failures_tolerated"]), (&json!([]), &json!(1)));
        let shown = all(&seen, Some(Err("I/O stall".into())));
        assert_eq!(shown["problems"], json!(["node 3 is not ready: I/O stall"]));
        assert_eq!((&shown["members"][2]["ready"], &shown["failures_tolerated"]), (&json!(false), &json!(0)));
        assert_eq!(all(&seen, None)["problems"], json!(["node 3 does not say whether it is ready"]));
        seen["members"][2]["reachable"] = false.into();
        seen["members"][1]["disk_free_bytes"] = 5.into();
        seen["members"][1]["disk_reserve_bytes"] = 9.into();
        let shown = all(&seen, Some(Ok(())));
        assert_eq!(
            shown["problems"],
            json!([
                "node 2 rejects writes: 5 bytes of its disk are free, and its reserve is 9",
                "node 3 can't be reached by the leader"
            ])
        );
        assert_eq!(shown["failures_tolerated"], -1, "a full disk bears no failure");
        seen["members"][0]["disk_free_bytes"] = 5.into();
        seen["members"][0]["disk_reserve_bytes"] = 9.into();
        assert_eq!(
            all(&seen, Some(Ok(())))["failures_tolerated"],
            -2,
            "every write that needs space is rejected"
        );
        // What an alarm says is said once.
        seen["alarms"] = json!([
            {"type": "disk", "node_id": 1, "message": "m"}, {"type": "disk", "node_id": 2, "message": "m"},
            {"type": "unreachable", "node_id": 3, "message": "m"}
        ]);
        let shown = all(&seen, Some(Ok(())));
        assert_eq!((&shown["problems"], shown["alarms"].as_array().map(Vec::len)), (&json!([]), Some(3)));
        let lost = all(&seen, Some(Err(NO_CLUSTER.into())));
        assert!(
            lost["problems"][0].as_str().is_some_and(|text| text.contains("lost its data directory")),
            "{lost}"
        );
        for (tolerated, text) in [
            (Some(1), "bears 1 more failure"),
            (Some(0), "one more failure stops the cluster"),
            (Some(-1), "no majority of the voters is well: the cluster can't write"),
        ] {
            assert_eq!(bears(tolerated), text);
        }
    }

    #[test]
    fn what_changes_between_two_looks_is_told_once() {
        let look = |leader: Value, term: u64, answers: &[bool]| {
            let members: Vec<Value> =
                (1..).zip(answers).map(|(id, answers)| json!({"id": id, "answers": answers})).collect();
            json!({"leader_id": leader, "term": term, "members": members})
        };
        let told = |last: &Value, now: &Value| -> Vec<String> {
            events(last, now).iter().map(|event| cell(&event["text"])).collect()
        };
        let first = look(json!(1), 4, &[true, true, false]);
        assert_eq!(told(&Value::Null, &first), ["leader node 1 (term 4)", "node 3 does not respond"]);
        assert_eq!(told(&first, &first), [""; 0]);
        let second = look(Value::Null, 5, &[false, true, true]);
        assert_eq!(
            told(&first, &second),
            ["no leader (term 5)", "node 1 does not respond", "node 3 responds again"]
        );
        assert_eq!(told(&second, &look(json!(2), 5, &[false, true, true])), ["leader node 2 (term 5)"]);
    }
}
