//! Bootstrapping a cluster, changing its members, and transferring leadership.

use std::time::Duration;

use clap::{Args, Subcommand};
use concord_client::{Client, Error, Options, Request, Retry};
use http::Method;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, ask, run_with_client, tries_of_operator},
    output::{Columns, confirm, note, print_columns, print_value},
};
use crate::settings::parse_member;
use concord_net::{Member, NodeId};

const CLUSTER: &str = "/api/v1/cluster";
/// How long the new address of a member may take to say whose it is.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);
const COLUMNS: Columns = Columns {
    name: "id",
    narrow: &[
        ("NODE", "/id"),
        ("ROLE", "/role"),
        ("REACHABLE", "/reachable"),
        ("LAG", "/lag"),
        ("VERSION", "/version"),
        ("ADDRESS", "/api_addr"),
    ],
    wide: &[
        ("PEER", "/peer_addr"),
        ("LAST CONTACT MS", "/last_contact_ms"),
        ("MEMORY BYTES", "/memory_bytes"),
        ("DISK FREE BYTES", "/disk_free_bytes"),
    ],
};

#[derive(Debug, Subcommand)]
pub(super) enum MemberCommand {
    /// Add a running node as a learner (non-voting)
    Add {
        #[command(flatten)]
        node: NodeArgs,
        /// The new member: its id, client address and peer address, as in `4=node4:8100@node4:8200`. The id must be
        /// greater than all ids used before
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Promote a learner to voter
    Promote {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member
        id: NodeId,
    },
    /// Replace a member with a new node; the old one may be down
    Replace {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member to replace
        id: NodeId,
        /// The new member, as for `add`
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Give a member that has moved its new addresses; the node must run there already
    Update {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member
        id: NodeId,
        /// Its new address for clients [default: unchanged]
        #[arg(long, value_name = "ADDR", required_unless_present = "peer_addr")]
        api_addr: Option<String>,
        /// Its new address for the other nodes [default: unchanged]
        #[arg(long, value_name = "ADDR")]
        peer_addr: Option<String>,
        /// Check it and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a member permanently
    Remove {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member
        id: NodeId,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct TransferArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The id of the new leader
    #[arg(long, value_name = "ID")]
    to: NodeId,
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// A member of the new cluster: its id, client address and peer address, as in `1=node1:8100@node1:8200`. Repeat
    /// for each member, including the node at --url
    #[arg(long = "member", required = true, value_parser = parse_member, value_name = "ID=API@PEER")]
    members: Vec<Member>,
}

/// Sends a request about the cluster and prints the new state.
fn call(node: &NodeArgs, method: Method, path: &str, body: Option<&Value>) -> Result<(), Failure> {
    run_with_client(node, async |client| show(node, &ask(&client, method, path, body).await?))
}

fn show(node: &NodeArgs, data: &Value) -> Result<(), Failure> {
    let format = node.format.or_json();
    if format.is_for_records() {
        return print_columns(&format, &data["members"], &COLUMNS);
    }
    print_value(&format, data, &COLUMNS.empty())
}

/// Shows the cluster as one node reports it.
pub(super) fn status(node: &NodeArgs) -> Result<(), Failure> {
    call(node, Method::GET, CLUSTER, None)
}

/// Bootstraps a cluster.
pub(super) fn init(args: &InitArgs) -> Result<(), Failure> {
    let members: Vec<Value> = args.members.iter().map(member_json).collect();
    let body = json!({ "members": members });
    run_with_client(&args.node, async |client| {
        let data = ask(&client, Method::POST, &format!("{CLUSTER}/init"), Some(&body)).await?;
        show(&args.node, &data)?;
        match contradiction(&args.members, &data) {
            None => Ok(()),
            Some(text) => Err(Failure::Failed(text)),
        }
    })
}

/// How a cluster contradicts the members that it was to be bootstrapped from. It may have been bootstrapped before, and may
/// have other members by now; none of those that were named may be at another address.
fn contradiction(wanted: &[Member], data: &Value) -> Option<String> {
    let found = data["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let at = |member: &Value| {
        let text = |name: &str| member[name].as_str().unwrap_or_default().to_owned();
        format!("{}={}@{}", member["id"], text("api_addr"), text("peer_addr"))
    };
    let moved: Vec<String> = wanted
        .iter()
        .map(member_json)
        .filter_map(|member| {
            let known = found.iter().find(|one| one["id"] == member["id"])?;
            (at(known) != at(&member)).then(|| format!("{} is a member as {}", at(&member), at(known)))
        })
        .collect();
    let is_other = !wanted.iter().any(|member| found.iter().any(|one| one["id"] == member.id));
    match (moved.is_empty(), is_other) {
        (true, false) => None,
        (true, true) => {
            Some("the cluster exists already, and has none of these members; nothing was changed".into())
        }
        (false, _) => Some(format!("the cluster exists already: {}; nothing was changed", moved.join(", "))),
    }
}

/// Transfers leadership.
pub(super) fn transfer(args: &TransferArgs) -> Result<(), Failure> {
    let body = json!({ "id": args.to });
    call(&args.node, Method::POST, &format!("{CLUSTER}/leader"), Some(&body))
}

/// Runs a command.
pub(super) fn run(command: MemberCommand) -> Result<(), Failure> {
    let members = format!("{CLUSTER}/members");
    match command {
        MemberCommand::Add { node, member } => {
            call(&node, Method::POST, &members, Some(&member_json(&member)))
        }
        MemberCommand::Promote { node, id } => {
            call(&node, Method::POST, &format!("{members}/{id}/promote"), None)
        }
        MemberCommand::Replace { node, id, member } => {
            call(&node, Method::POST, &format!("{members}/{id}/replace"), Some(&member_json(&member)))
        }
        MemberCommand::Update { node, id, api_addr, peer_addr, dry_run } => {
            run_with_client(&node, async |client| {
                let seen = ask(&client, Method::GET, CLUSTER, None).await?;
                let known = seen["members"].as_array().into_iter().flatten().find(|one| one["id"] == id);
                let known = known.ok_or_else(|| Failure::Failed(format!("there is no member {id}")))?;
                if let Some(address) = &api_addr {
                    check_api_addr(&node, id, address).await?;
                }
                let address = |new: &Option<String>, name: &str| {
                    new.as_ref().map_or_else(|| known[name].clone(), |new| json!(new))
                };
                let body = json!({
                    "api_addr": address(&api_addr, "api_addr"),
                    "peer_addr": address(&peer_addr, "peer_addr"),
                });
                let query = if dry_run { "?dry_run=true" } else { "" };
                show(&node, &ask(&client, Method::PUT, &format!("{members}/{id}{query}"), Some(&body)).await?)
            })
        }
        MemberCommand::Remove { node, id, yes } => {
            let text = format!("node {id} will be removed, and its id can't be reused");
            confirm(&text, yes)?;
            call(&node, Method::DELETE, &format!("{members}/{id}"), None)
        }
    }
}

/// Checks that an address is the client listener of a member: the cluster checks peer addresses only. It may be one that
/// this machine does not reach, which is said. The access key is not sent, because nobody knows yet whose address it is.
async fn check_api_addr(node: &NodeArgs, id: NodeId, address: &str) -> Result<(), Failure> {
    let options = node.options_without_key(&tries_of_operator())?;
    let is_encrypted = options.urls.iter().any(|url| url.starts_with("https://"));
    let url = format!("{}://{address}", if is_encrypted { "https" } else { "http" });
    let client = Client::new(Options { urls: vec![url], ..options })?;
    let probe = Request::get("/livez").retry(Retry::OtherNode).timeout(ADDRESS_TIMEOUT);
    let refused = |text: String| Err(Failure::Failed(format!("{text}; nothing was changed")));
    match client.send(probe).await {
        Ok(answer) => match answer.header("x-concord-node") {
            Some(found) if found == id.to_string() => Ok(()),
            Some(found) => {
                refused(format!("{address} is the client address of node {found}, not of node {id}"))
            }
            None => refused(format!("{address} is not the client address of a node")),
        },
        Err(error @ Error::Usage(_)) => Err(error.into()),
        Err(error) => {
            note(format_args!("the client address of node {id} was not checked: {error}"));
            Ok(())
        }
    }
}

pub(super) fn member_json(member: &Member) -> Value {
    json!({ "id": member.id, "api_addr": member.api_addr, "peer_addr": member.peer_addr })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: InitArgs,
    }

    #[test]
    fn init_reads_its_members() {
        let line = ["init", "--member", "1=a:1@b:2", "--member", "2=c:3@d:4"];
        let init = Line::try_parse_from(line).unwrap().args;
        assert_eq!(member_json(&init.members[1]), json!({ "id": 2, "api_addr": "c:3", "peer_addr": "d:4" }));
        let now: Vec<Value> = init.members.iter().map(member_json).collect();
        assert_eq!(contradiction(&init.members, &json!({ "members": now })), None);
        assert_eq!(contradiction(&init.members, &json!({ "members": now[..1] })), None);
        let moved = json!({ "members": [{ "id": 2, "api_addr": "old:3", "peer_addr": "d:4" }] });
        let text = contradiction(&init.members, &moved).unwrap();
        assert!(text.contains("2=c:3@d:4 is a member as 2=old:3@d:4"), "{text}");
        let others = json!({ "members": [{ "id": 9, "api_addr": "a:1", "peer_addr": "b:2" }] });
        assert!(contradiction(&init.members, &others).unwrap().contains("none of these members"));
    }
}
