//! The command `recover`: changes the data directory of a stopped node, when its cluster can't.
//!
//! **Invariant:** nothing is changed before the user has confirmed it, and nothing at all in a dry run.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    connection::Failure,
    members::member_json,
    output::{Columns, OutputArgs, confirm, print_columns, say},
};
use crate::{node::StoppedNode, settings::parse_member};
use concord_consensus::recover::SingleReport;
use concord_net::Member;

const COLUMNS: Columns = Columns {
    name: "cluster_id",
    narrow: &[
        ("CLUSTER", "/cluster_id"),
        ("NODE", "/node_id"),
        ("LAST REVISION", "/last_revision"),
        ("CONTINUES AT", "/continues_at"),
        ("UNDECIDED", "/undecided_entries"),
        ("LOST VOTERS", "/lost_voters"),
    ],
    wide: &[("PREVIOUS CLUSTER", "/previous_cluster_id"), ("LAST CHANGE", "/last_change_at")],
};

#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// Make the node the only member of a new cluster, with the data that it has. For a cluster whose majority is lost
    /// permanently: changes that only the lost members had are gone
    #[arg(long, required_unless_present = "members", conflicts_with = "members")]
    single: bool,
    /// Change where the cluster looks for a member: its id, client address and peer address, as in
    /// `1=node1:8100@node1:8200`; repeatable. For a cluster whose members have all moved: run it with the same addresses on
    /// every member. One member that has moved needs `concord cluster update`
    #[arg(long = "member", value_parser = parse_member, value_name = "ID=API@PEER")]
    members: Vec<Member>,
    /// The data directory of the stopped node
    #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// The file of data keys, if the directory is encrypted
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
    /// Show what would be done and what may be missing; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    format: OutputArgs,
}

const MEMBERS: Columns = Columns {
    name: "id",
    narrow: &[("NODE", "/id"), ("ADDRESS", "/api_addr"), ("PEER", "/peer_addr")],
    wide: &[],
};

/// Runs `recover`.
pub(super) fn run(args: &RecoverArgs) -> Result<(), Failure> {
    let node = StoppedNode::lock(&args.data_dir)?;
    let completed = if args.dry_run { None } else { node.finish_recovery()? };
    if args.single { single(args, &node, completed) } else { addresses(args, &node) }
}

/// Gives the members other addresses on this node's disk.
fn addresses(args: &RecoverArgs, node: &StoppedNode) -> Result<(), Failure> {
    let moved = node.plan_addresses(args.data_key_file.as_deref(), &args.members)?;
    let shown: Vec<Value> = moved.members().iter().map(member_json).collect();
    if !args.dry_run {
        let text = format!("the addresses of {} members will be changed on this disk", args.members.len());
        confirm(&text, args.yes)?;
        moved.make(&args.data_dir)?;
    }
    print_columns(&args.format.or_json(), &json!(shown), &MEMBERS)
}

/// Makes the node the only member of a new cluster.
fn single(args: &RecoverArgs, node: &StoppedNode, completed: Option<Uuid>) -> Result<(), Failure> {
    if let Some(cluster_id) = completed {
        say("completed a recovery that was interrupted; start the node");
        return print_columns(
            &args.format.or_json(),
            &json!({ "cluster_id": cluster_id, "node_id": node.identity()?.node_id }),
            &COLUMNS,
        );
    }
    let recovery = node.plan_single(args.data_key_file.as_deref())?;
    let mut shown = shown(recovery.report());
    if args.dry_run {
        shown["cluster_id"] = Value::Null;
        return print_columns(&args.format.or_json(), &shown, &COLUMNS);
    }
    missing(recovery.report()).iter().for_each(say);
    let text = format!(
        "node {} will leave cluster {} for a new one, and its members can't join that",
        recovery.report().member.id,
        recovery.report().previous_cluster_id
    );
    confirm(&text, args.yes)?;
    recovery.make(&args.data_dir)?;
    print_columns(&args.format.or_json(), &shown, &COLUMNS)
}

/// What may be missing afterwards, a sentence each.
fn missing(report: &SingleReport) -> Vec<String> {
    let mut texts = vec![format!(
        "the last revision that this node has is {}, of {}: changes after it that only other members had are lost",
        report.last_revision, report.last_change_at
    )];
    if report.undecided_entries > 0 {
        texts.push(format!(
            "{} entries at the end of its log were not known to be decided, and are decided now, at later revisions: among \
             them may be changes whose clients got an error",
            report.undecided_entries
        ));
    }
    texts
}

fn shown(report: &SingleReport) -> Value {
    let (definitions, configs, access_keys) = report.records;
    json!({
        "cluster_id": report.cluster_id,
        "previous_cluster_id": report.previous_cluster_id,
        "node_id": report.member.id,
        "api_addr": report.member.api_addr,
        "peer_addr": report.member.peer_addr,
        "lost_voters": report.lost_voters,
        "lost_learners": report.lost_learners,
        "last_entry": { "index": report.last_entry.0, "term": report.last_entry.1 },
        "undecided_entries": report.undecided_entries,
        "last_revision": report.last_revision,
        "last_change_at": report.last_change_at.to_string(),
        "skipped_revisions": { "first": report.void.first, "last": report.void.last },
        "continues_at": report.void.last + 1,
        "definitions": definitions,
        "configs": configs,
        "access_keys": access_keys,
    })
}
