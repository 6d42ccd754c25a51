//! `concord cluster`: the status of all members, and changes of it.
//!
//! **Invariant:** a node that does not respond is shown as such; nothing about it is guessed from another node.

use std::time::Duration;

use clap::{Args, Subcommand};
use concord_client::{Client, Options, Request, Retry};
use futures::future::join_all;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, run_async},
    interrupt,
    members::{self, InitArgs, MemberCommand, TransferArgs},
    output::{Columns, Format, cell, line, print_columns, print_value, printable},
};

const CLUSTER: &str = "/api/v1/cluster";
/// Time limit for each member.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);
const COLUMNS: Columns = Columns {
    name: "id",
    narrow: &[
        ("NODE", "/id"),
        ("ROLE", "/role"),
        ("ANSWERS", "/answers"),
        ("REVISION", "/revision"),
        ("LAG", "/lag"),
        ("VERSION", "/version"),
        ("ADDRESS", "/api_addr"),
    ],
    wide: &[
        ("PEER", "/peer_addr"),
        ("LAST CONTACT MS", "/last_contact_ms"),
        ("MEMORY BYTES", "/memory_bytes"),
        ("DISK FREE BYTES", "/disk_free_bytes"),
        ("DIGEST", "/digest"),
        ("WHY", "/error"),
    ],
};

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the members, the leader and alarms; exits 1 if a member does not respond
    Status(StatusArgs),
    /// Print a line when the leader changes, or a member stops or resumes responding
    Watch(ClusterWatchArgs),
    /// Bootstrap a cluster from running nodes
    Init(InitArgs),
    #[command(flatten)]
    Member(MemberCommand),
    /// Transfer leadership to a member
    TransferLeader(TransferArgs),
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
    }
}

/// The cluster as one node reports it, and each member's own report or error.
async fn ask_members(
    client: &Client,
    options: &Options,
) -> Result<(Value, Vec<(Value, Result<Value, String>)>), Failure> {
    let seen = client.send(Request::get(CLUSTER).retry(Retry::OtherNode)).await?.data()?;
    let scheme = if client.urls()[0].starts_with("https://") { "https" } else { "http" };
    let ask = async |member: &Value| {
        let url = format!("{scheme}://{}", cell(&member["api_addr"]));
        // --verbose shows the request once, not for each member.
        let one = Client::new(Options { urls: vec![url], trace: None, ..options.clone() });
        let request = Request::get(CLUSTER).retry(Retry::OtherNode).timeout(MEMBER_TIMEOUT);
        let answer = match one {
            Ok(one) => one.send(request).await.and_then(|answer| answer.data()),
            Err(error) => Err(error),
        };
        (member.clone(), answer.map_err(|error| error.to_string()))
    };
    let members = seen["members"].as_array().cloned().unwrap_or_default();
    // Concurrently: a member that hangs must not delay the others.
    let members = join_all(members.iter().map(ask)).await;
    Ok((seen, members))
}

/// The status of the cluster as data.
fn screen(seen: &Value, members: &[(Value, Result<Value, String>)]) -> Value {
    let answers = || members.iter().filter_map(|(_, own)| own.as_ref().ok());
    // The leader knows the lag of the others. If two members claim to lead, the one with the later term does.
    let leader = answers()
        .filter(|own| own["leader_id"] == own["node_id"] && !own["node_id"].is_null())
        .max_by_key(|own| own["term"].as_u64());
    let seen = leader.unwrap_or(seen);
    let row = |(member, own): &(Value, Result<Value, String>)| {
        let known = seen["members"].as_array().into_iter().flatten().find(|one| one["id"] == member["id"]);
        let mut row = known.unwrap_or(member).clone();
        let of = |name: &str| own.as_ref().map(|own| own[name].clone()).unwrap_or_default();
        row["answers"] = own.is_ok().into();
        row["revision"] = of("revision");
        row["digest"] = of("digest");
        row["error"] = own.as_ref().err().cloned().into();
        row
    };
    json!({
        "cluster_id": seen["cluster_id"], "leader_id": seen["leader_id"], "term": seen["term"],
        "feature_level": seen["feature_level"], "members": members.iter().map(row).collect::<Vec<_>>(),
        "alarms": alarms(seen, members),
    })
}

async fn status(client: &Client, options: &Options, format: &Format) -> Result<(), Failure> {
    let (seen, members) = ask_members(client, options).await?;
    let data = screen(&seen, &members);
    if format.is_table() {
        let id = &data["leader_id"];
        let leader = if id.is_null() { "no leader".to_owned() } else { format!("leader node {id}") };
        let (cluster, term) = (cell(&data["cluster_id"]), &data["term"]);
        line(format_args!(
            "cluster {cluster}  {leader}  term {term}  feature level {}\n",
            data["feature_level"]
        ))?;
    }
    if format.is_for_records() {
        print_columns(format, &data["members"], &COLUMNS)?;
    } else {
        print_value(format, &data, &COLUMNS.empty())?;
    }
    if format.is_table() {
        line("")?;
        for (member, own) in &members {
            if let Err(error) = own {
                line(printable(&format!("node {} does not respond: {error}", member["id"])))?;
            }
        }
        let alarms = data["alarms"].as_array().into_iter().flatten();
        let alarms: Vec<String> =
            alarms.map(|one| format!("alarm  {}: {}", cell(&one["type"]), cell(&one["message"]))).collect();
        alarms.iter().try_for_each(|text| line(printable(text)))?;
        if alarms.is_empty() {
            line("no alarms")?;
        }
    }
    if members.iter().all(|(_, own)| own.is_ok()) && !data["leader_id"].is_null() {
        Ok(())
    } else {
        Err(Failure::Difference)
    }
}

/// The alarms of all nodes without duplicates.
fn alarms(seen: &Value, members: &[(Value, Result<Value, String>)]) -> Vec<Value> {
    let mut alarms: Vec<Value> = Vec::new();
    for own in members.iter().filter_map(|(_, own)| own.as_ref().ok()).chain([seen]) {
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
            Err(Failure::Client(concord_client::Error::Unavailable(_))) if !last.is_null() => {
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
    use super::*;

    #[test]
    fn the_later_of_two_leaders_says_how_far_the_others_are() {
        let own = |id: u64, leader: u64, term: u64| {
            let members = json!([{"id": 1, "lag": term}, {"id": 2, "lag": term}, {"id": 3, "lag": term}]);
            json!({"node_id": id, "leader_id": leader, "term": term, "revision": 9, "members": members})
        };
        let member = |id: u64| json!({"id": id, "lag": null});
        let members = [
            (member(1), Ok(own(1, 1, 4))),
            (member(2), Ok(own(2, 2, 5))),
            (member(3), Err("refused".to_owned())),
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
