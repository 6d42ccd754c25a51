//! `concord change watch`, `pause`, `resume`, `advance`, `abort` and `report`: a rollout while it goes on.
//!
//! **Invariant:** `watch` exits 0 only when the change request was applied.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, ValueEnum};
use concord_client::{Client, Error, Options, Request, Retry, segment};
use http::Method;
use serde_json::{Value, json};

use super::{
    change::{NAME, get, send},
    change_shown::json_of,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    output::{Format, Table, cell, line, note, print_done, print_value},
    rollout,
    schedule::{self, phase_cell},
};

/// How often a rollout is looked at. Counts change without an event.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For how long no node may answer before `watch` gives up.
const SILENCE_MAX: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub(super) struct RolloutArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
}

#[derive(Debug, Args)]
pub(super) struct StopArgs {
    #[command(flatten)]
    steer: RolloutArgs,
    /// Why
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

/// How a reader runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReaderState {
    /// It runs well with the data
    Healthy,
    /// It does not
    Failed,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
    #[command(flatten)]
    said: SaidArgs,
}

/// What a reader says of its data.
#[derive(Debug, Args)]
pub(super) struct SaidArgs {
    #[command(flatten)]
    reader: ReaderArgs,
    /// Which of the programs with this name reports: any text without spaces that no other one has
    #[arg(long, value_name = "TEXT")]
    instance: Option<String>,
    /// How the reader runs
    #[arg(long, value_enum, value_name = "STATE")]
    state: ReaderState,
    /// Why, in a line; who may read what the report is about sees it
    #[arg(long, value_name = "TEXT")]
    detail: Option<String>,
}

/// A reader, as it says of itself.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ReaderArgs {
    /// The name of a reader
    #[arg(long, value_name = "NAME")]
    pub(super) reader: Option<String>,
    /// A label of the reader, as in `ring=canary`; repeatable
    #[arg(long = "label", value_parser = parse_label, value_name = "NAME=VALUE")]
    labels: Vec<(String, String)>,
}

/// A label.
pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.into(), value.into())),
        Some(_) | None => Err("expected NAME=VALUE".into()),
    }
}

/// Labels by their names.
pub(super) fn labels_of(given: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    let mut labels = BTreeMap::new();
    for (name, value) in given {
        if labels.insert(name.clone(), value.clone()).is_some() {
            return Err(Failure::Usage(format!("the label `{name}` is given twice")));
        }
    }
    Ok(labels)
}

impl ReaderArgs {
    /// Whether a reader is given.
    pub(super) fn is_given(&self) -> bool {
        self.reader.is_some() || !self.labels.is_empty()
    }

    /// The client, as this reader if one is given.
    pub(super) fn on(&self, client: Client) -> Result<Client, Failure> {
        if !self.is_given() {
            return Ok(client);
        }
        let host = Options::default().reader;
        let name = self.reader.as_deref().or(host.as_deref());
        Ok(client.with_reader(name, &labels_of(&self.labels)?)?)
    }
}

impl SaidArgs {
    /// The report as it is sent, and the sentence about it.
    pub(super) fn report(&self, client: &Client) -> Result<(Value, String), Failure> {
        let host = Options::default().reader;
        let Some(reader) = self.reader.reader.clone().or(host) else {
            return Err(Failure::Usage(
                "this machine has no host name that can be sent: pass --reader".into(),
            ));
        };
        // The same checks as for a client that reads.
        let labels = labels_of(&self.reader.labels)?;
        client.clone().with_reader(Some(&reader), &labels)?;
        let is_healthy = self.state == ReaderState::Healthy;
        let state = if is_healthy { "healthy" } else { "failed" };
        let mut body = json!({ "reader": reader, "labels": labels, "state": state });
        for (name, text) in [("instance", &self.instance), ("detail", &self.detail)] {
            if let Some(text) = text {
                body[name] = text.as_str().into();
            }
        }
        let is = if is_healthy { "is healthy" } else { "has failed" };
        Ok((body, format!("reader {} {is}", json_of(&reader.into()))))
    }
}

/// Prints what became of a report.
pub(super) fn print_reported(format: &Format, data: &Value, text: &str) -> Result<(), Failure> {
    let counted = if data["counted"] == false { "; it does not count now" } else { "" };
    print_done(format, data, "counted", format!("{text}{counted}"))
}

/// Reports how a reader runs with a rollout.
pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let (body, text) = args.said.report(&client)?;
        let data = send(&client, &args.id, "report", Some(&body)).await?;
        print_reported(&args.node.format.or_table(), &data, &text)
    })
}

/// Lets a rollout go on, at the stage that it has now: one that begins meanwhile is not ended.
pub(super) fn go_on(args: &RolloutArgs, action: &str, done: &str) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let stage = get(&client, &args.id).await?["rollout"]["status"]["stage"].clone();
        let data = send(&client, &args.id, action, Some(&json!({ "stage": stage }))).await?;
        print_steered(args, &data, done)
    })
}

/// Pauses or ends a rollout.
pub(super) fn stop(args: &StopArgs, action: &str, done: &str) -> Result<(), Failure> {
    let body = json!({ "comment": args.comment.as_deref().unwrap_or_default() });
    let args = &args.steer;
    with_cluster(&args.node, &args.tries, async |client| {
        let data = send(&client, &args.id, action, Some(&body)).await?;
        print_steered(args, &data, done)
    })
}

fn print_steered(args: &RolloutArgs, data: &Value, done: &str) -> Result<(), Failure> {
    let text = format!("rollout of change request {} {done}: {}", args.id, phase_cell(data));
    print_done(&args.node.format.or_table(), data, NAME, text)
}

/// Follows a change request until it ends.
pub(super) fn watch(args: &RolloutArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let format = args.node.format.or_table();
        let (mut shown, mut silent_since) = (None, None);
        loop {
            let change = match get(&client, &args.id).await {
                Ok(change) => change,
                Err(Failure::Client(Error::Unavailable(why))) => {
                    let since = *silent_since.get_or_insert_with(tokio::time::Instant::now);
                    if since.elapsed() > SILENCE_MAX {
                        return Err(Failure::Client(Error::Unavailable(why)));
                    }
                    note(format_args!("no node answers; trying again: {why}"));
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            silent_since = None;
            let now = state_of(&change);
            if shown.as_ref() != Some(&now) {
                print_state(&format, &change, &now)?;
                shown = Some(now);
            }
            if let Some(end) = end_of(&change, &args.id) {
                return end;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

/// What is shown of a change request, in lines. The first says how far it is.
fn state_of(change: &Value) -> Vec<String> {
    let status = &change["rollout"]["status"];
    let mut lines = vec![phase_cell(change)];
    if change["phase"] == "rolling" {
        lines.extend(rollout::evidence(status));
        lines.extend(rollout::waits(status));
    } else if let Some(error) = change["closed"].get("error").filter(|error| !error.is_null()) {
        lines.push(schedule::failure(error));
    }
    lines
}

fn print_state(format: &Format, change: &Value, lines: &[String]) -> Result<(), Failure> {
    if format.is_table() {
        let at = concord_service::now();
        let rest = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
        return line(format_args!("{at} {rest}"));
    }
    print_value(format, change, &Table::new(NAME, &[], &[]))
}

/// How a change request has ended, if it has.
fn end_of(change: &Value, id: &str) -> Option<Result<(), Failure>> {
    match change["phase"].as_str() {
        Some("applied") => Some(Ok(())),
        Some("closed") => {
            let why = cell(&change["closed"]["reason"]);
            Some(Err(Failure::Failed(format!("change request {id} was not applied: {why}"))))
        }
        Some("held") => {
            let text = format!("change request {id} is held since a restore or a recovery: a person decides");
            Some(Err(Failure::Failed(text)))
        }
        Some(_) | None => None,
    }
}

/// Says whether a gate is good.
pub(super) async fn say(client: &Client, gate: &str, is_ok: bool, evidence: &str) -> Result<Value, Error> {
    let path = format!("/api/v1/gate/{}", segment(gate));
    let body = json!({ "ok": is_ok, "evidence": evidence });
    // It is said again soon: an old word that arrives late would be taken for a new one.
    let request = Request::new(Method::POST, path).json(&body).retry(Retry::OtherNode);
    client.send(request).await?.data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_with_the_change_request() {
        let end = |phase: &str| end_of(&json!({"phase": phase, "closed": {"reason": "failed"}}), "c");
        assert!(matches!(end("applied"), Some(Ok(()))));
        assert!(matches!(end("closed"), Some(Err(Failure::Failed(text))) if text.contains("failed")));
        assert!(matches!(end("held"), Some(Err(_))));
        assert!(end("rolling").is_none() && end("open").is_none() && end("scheduled").is_none());
    }

    #[test]
    fn a_label_has_two_sides() {
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(["a", "=b", "a="].iter().all(|text| parse_label(text).is_err()));
    }
}
