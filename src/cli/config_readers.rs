//! `concord config readers` and `report`: which programs follow a config, and how they run with it.
//!
//! **Invariant:** a list that is not complete says so.

use clap::Args;
use concord_client::{Client, Request, Retry};
use http::Method;
use serde_json::Value;

use super::{
    config::ConfigTarget,
    connection::{Failure, FreshnessArgs, with_cluster},
    current::config_path,
    output::{Columns, Format, cell, counted, note, print_columns},
    rollout_steer::{SaidArgs, print_reported},
};

#[derive(Debug, Args)]
pub(super) struct ConfigReadersArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    freshness: FreshnessArgs,
}

#[derive(Debug, Args)]
pub(super) struct ConfigReportArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    said: SaidArgs,
    /// The revision of the config that the reader has [default: the current one]
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
}

/// Lists the readers of a config.
pub(super) fn readers(args: &ConfigReadersArgs) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns {
        name: "reader",
        narrow: &[
            ("READER", "/reader"),
            ("STATE", "/state"),
            ("REVISION", "/revision"),
            ("VARIANT", "/variant/change_id"),
            ("NODE", "/node_id"),
            ("REPORTED", "/reported_at"),
            ("DETAIL", "/detail"),
        ],
        wide: &[("LABELS", "/labels"), ("SINCE", "/since"), ("REPORTED-REVISION", "/reported_revision")],
    };
    let ConfigTarget { node, tries, definition, key } = &args.target;
    let format = node.format.or_table();
    with_cluster(node, tries, async |client| {
        let path = format!("{}/readers", config_path(definition, key));
        let data = client.send(args.freshness.on(Request::get(path))).await?.data()?;
        print_columns(&format, &data, &COLUMNS)?;
        about(&data["meta"], &format);
        Ok(())
    })
}

/// Says what the table has not.
fn about(meta: &Value, format: &Format) {
    if format.is_table() {
        let others = meta["watches"]["unidentified"].as_u64().unwrap_or(0);
        let others = match others {
            0 => String::new(),
            1 => "; 1 watch without a reader".to_owned(),
            _ => format!("; {others} watches without a reader"),
        };
        match (meta["healthy"].as_u64(), meta["failed"].as_u64()) {
            (Some(healthy), Some(failed)) => {
                note(format_args!("{healthy} healthy, {failed} failed with the current data{others}"));
            }
            (_, _) => note(format_args!("no leader answers: the states are not known{others}")),
        }
    }
    let missing: Vec<String> = meta["missing_nodes"].as_array().into_iter().flatten().map(cell).collect();
    if !missing.is_empty() {
        let nodes = missing.join(", ");
        note(format_args!("warning: no answer from node {nodes}: its readers are missing"));
    }
    if meta["truncated"] == true {
        let all = meta["watches"]["identified"].as_u64().unwrap_or(0);
        note(format_args!("warning: not all readers are listed; there are {}", counted(all, "watch")));
    }
}

/// Reports how a reader runs with a config.
pub(super) fn report(args: &ConfigReportArgs) -> Result<(), Failure> {
    let ConfigTarget { node, tries, definition, key } = &args.target;
    with_cluster(node, tries, async |client| {
        let (mut body, text) = args.said.report(&client)?;
        let path = config_path(definition, key);
        body["revision"] = revision(&client, &path, args.revision).await?.into();
        // A copy of a report is the same report.
        let request =
            Request::new(Method::POST, format!("{path}/report")).json(&body).retry(Retry::OtherNode);
        let data = client.send(request).await?.data()?;
        print_reported(&node.format.or_table(), &data, &text)
    })
}

/// The revision that a report is about.
async fn revision(client: &Client, path: &str, given: Option<u64>) -> Result<u64, Failure> {
    if let Some(revision) = given {
        return Ok(revision);
    }
    let found = client.send(Request::get(path.to_owned())).await?;
    found.revision().ok_or_else(|| {
        Failure::Usage("this reader gets a candidate: report with `concord change report`".into())
    })
}
