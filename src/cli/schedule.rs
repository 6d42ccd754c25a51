//! When and how a change request is applied, and when it is taken back: options, and how they are shown.
//!
//! **Invariant:** such an option never makes a direct write: it always makes a change request.

use std::time::Duration;

use clap::{Args, ValueEnum};
use concord_model::time::Timestamp;
use serde_json::{Value, json};

use super::{
    change_shown::{json_of, name_of},
    connection::Failure,
    env::parse_duration,
    output::cell,
    rollout::{self, RolloutArg},
};

/// A minute: the clock of this machine may be ahead of that of the user's other one.
const CLOCK_TOLERANCE_US: u64 = 60_000_000;

/// Who applies a change request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ApplyArg {
    /// Somebody does, with `concord change apply`
    Manual,
    /// The cluster does, once it is approved
    WhenApproved,
}

/// When and how a change request is applied and taken back. Each option makes the command a change request.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TimeArgs {
    /// Who applies the change request [default: `when-approved` with --at or --for, otherwise `manual`]
    #[arg(long, value_enum, value_name = "WHO")]
    apply: Option<ApplyArg>,
    /// Apply it no earlier than at this time (RFC 3339), or in `90m`, `2h` or `7d`
    #[arg(long, value_parser = parse_begin, value_name = "TIME|DURATION")]
    at: Option<Timestamp>,
    /// With --at: apply it no later than at this time, or in `2h` from now [default: an hour after --at]
    #[arg(long, value_parser = parse_end, value_name = "TIME|DURATION", requires = "at")]
    until: Option<Timestamp>,
    /// Take it back after this time, as in `90m`, `2h` or `7d`; configs only
    #[arg(long = "for", visible_alias = "revert-after", value_parser = parse_duration, value_name = "DURATION")]
    duration: Option<Duration>,
    /// Release it in stages: `linear` (a fifth more of the readers each 6 minutes), `canary` (a tenth for 20 minutes), or a
    /// file with a plan, JSON or YAML; updates of configs only
    #[arg(long, value_name = "PLAN|FILE")]
    rollout: Option<RolloutArg>,
}

/// A time, or one that is so far from now.
fn parse_end(text: &str) -> Result<Timestamp, String> {
    let from_now = |duration: Duration| {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Timestamp(concord_service::now().0.saturating_add(us))
    };
    Timestamp::parse(text).or_else(|| parse_duration(text).ok().map(from_now)).ok_or_else(|| {
        "expected a time such as 2026-12-24T18:00:00Z, or a duration from now such as 90m, 2h or 7d".into()
    })
}

/// The same, and not in the past: such a window would be no window.
fn parse_begin(text: &str) -> Result<Timestamp, String> {
    let begin = parse_end(text)?;
    if begin.0.saturating_add(CLOCK_TOLERANCE_US) < concord_service::now().0 {
        return Err("it is in the past: without --at, it is applied as soon as it can be".into());
    }
    Ok(begin)
}

impl TimeArgs {
    /// Whether one of them is given.
    pub(super) fn is_given(&self) -> bool {
        self.apply.is_some() || self.at.is_some() || self.duration.is_some() || self.rollout.is_some()
    }

    /// Rejects what a command can't do directly.
    pub(super) fn expect_none(&self, with: &str) -> Result<(), Failure> {
        if self.is_given() {
            let text = format!(
                "--apply, --at, --for and --rollout make a change request: they can't be combined with {with}"
            );
            return Err(Failure::Usage(text));
        }
        Ok(())
    }

    /// Adds the members of the body that creates a change request.
    ///
    /// # Errors
    /// When the file of a plan can't be read.
    pub(super) fn add_to(&self, body: &mut Value) -> Result<(), Failure> {
        if self.applies_itself() {
            body["apply"] = "when_approved".into();
        }
        if let Some(at) = self.at {
            body["schedule"] = json!({ "not_before": at.to_string() });
            if let Some(until) = self.until {
                body["schedule"]["not_after"] = until.to_string().into();
            }
        }
        if let Some(duration) = self.duration {
            body["revert_after_s"] = duration.as_secs().into();
        }
        if let Some(rollout) = &self.rollout {
            body["rollout"] = rollout.plan()?;
        }
        Ok(())
    }

    fn applies_itself(&self) -> bool {
        let is_timed = self.at.is_some() || self.duration.is_some();
        self.apply.map_or(is_timed, |apply| apply == ApplyArg::WhenApproved)
    }

    /// A title for operations that have none.
    pub(super) fn title_of(&self, operations: &[Value]) -> String {
        let first = &operations[0];
        let record = match (&first["config_definition_key"], &first["config_key"]) {
            (Value::Null, _) => cell(&first["environment"]),
            (definition, Value::Null) => cell(definition),
            (definition, config) => format!("{}/{}", cell(definition), cell(config)),
        };
        let more = match operations.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let period =
            self.duration.map_or_else(String::new, |duration| format!(" for {}", period(duration.as_secs())));
        format!("{} {record}{more}{period}", cell(&first["op"]).replace('_', " "))
    }
}

/// A number of seconds in the largest unit that fits.
pub(super) fn period(seconds: u64) -> String {
    let unit = [(86_400, 'd'), (3600, 'h'), (60, 'm')]
        .into_iter()
        .find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

/// What happens to a new change request, and what to do next.
pub(super) fn next_step(change: &Value, id: &str, needed: &str) -> String {
    let is_approved = change["approvals_needed"] == 0;
    let applies_itself = change["apply"] == "when_approved";
    let from =
        change["schedule"]["not_before"].as_str().map_or_else(String::new, |at| format!(" from {at} on"));
    match (is_approved, applies_itself) {
        (true, true) => format!("the cluster applies it{from}"),
        (true, false) => format!("apply it{from}: concord change apply {id}"),
        (false, true) => {
            format!(
                "the cluster applies it{from}, with the approval of {needed}: concord change approve {id}"
            )
        }
        (false, false) => format!("it needs the approval of {needed}: concord change approve {id}"),
    }
}

/// The phase with its time, for lists.
pub(super) fn phase_cell(change: &Value) -> String {
    let phase = cell(&change["phase"]);
    let revert = &change["revert"];
    match (phase.as_str(), revert["state"].as_str()) {
        ("applied", Some("armed" | "held")) if !revert["stale"].is_null() => {
            "applied, can't be taken back".into()
        }
        ("applied", Some("armed")) => format!("applied, taken back at {}", cell(&revert["due_at"])),
        ("applied", Some("held")) => "applied, revert held".into(),
        ("applied", Some("failed")) => "applied, revert failed".into(),
        ("applied", Some("done")) => "applied, taken back".into(),
        ("applied", Some("kept")) => "applied, kept".into(),
        ("rolling", _) => rollout::phase_cell(change),
        ("closed", _) => format!("closed, {}", cell(&change["closed"]["reason"])),
        ("open" | "scheduled", _) => {
            let stale = if change["stale"].is_null() { "" } else { ", stale" };
            let window = match (change["waits"]["for"].as_str(), change["schedule"]["not_before"].as_str()) {
                (Some("freeze"), _) => format!(", frozen until {}", cell(&change["waits"]["until"])),
                (Some("cluster"), _) => format!(", due since {}", cell(&change["waits"]["since"])),
                (_, Some(from)) => format!(", from {from}"),
                (_, None) => String::new(),
            };
            format!("{phase}{stale}{window}")
        }
        _ => phase,
    }
}

/// What a change request waits for besides its approvals.
fn waits(change: &Value) -> Option<String> {
    let waits = &change["waits"];
    let (since, until) = (cell(&waits["since"]), cell(&waits["until"]));
    match waits["for"].as_str()? {
        "freeze" => Some(format!("environment {} is frozen until {until}", cell(&waits["environment"]))),
        "schedule" => Some(format!("for its time, {until}")),
        _ => Some(format!(
            "the cluster should have applied it since {since}: a limit is reached, or the clocks do not agree; `concord \
             cluster status` shows the alarms"
        )),
    }
}

/// Why the cluster could not do something.
pub(super) fn failure(error: &Value) -> String {
    format!("{}: {}", cell(&error["code"]), json_of(&error["msg"]))
}

/// Who has done something: the cluster, if it is nobody else.
pub(super) fn doer(done: &Value) -> String {
    if done["by"].is_null() { "the cluster".into() } else { name_of(&done["by"]) }
}

/// The lines about times of a change request.
pub(super) fn lines(change: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let is_pending = change["applied"].is_null() && change["closed"].is_null();
    if change["apply"] == "when_approved" && is_pending {
        lines.push("applied by the cluster, once it is approved".to_owned());
    }
    let schedule = &change["schedule"];
    if !schedule.is_null() {
        let by = &change["scheduled"]["by"];
        let armed = if by.is_null() { String::new() } else { format!(", armed by {}", name_of(by)) };
        let (from, until) = (cell(&schedule["not_before"]), cell(&schedule["not_after"]));
        lines.push(format!("scheduled: from {from} to {until}{armed}"));
    }
    lines.extend(waits(change).map(|text| format!("waits: {text}")));
    if let Some(seconds) = change["revert_after_s"].as_u64().filter(|_| is_pending) {
        lines.push(format!("taken back {} after it is applied", period(seconds)));
    }
    let revert = &change["revert"];
    match revert["state"].as_str() {
        Some("armed") if !revert["stale"].is_null() => {
            lines.push(format!("revert: due at {}, no longer possible", cell(&revert["due_at"])));
        }
        Some("possible" | "held") if !revert["stale"].is_null() => {
            lines.push("revert: no longer possible".into());
        }
        Some("armed") => {
            lines.push(format!("revert: the cluster takes it back at {}", cell(&revert["due_at"])));
        }
        Some("possible") => {
            lines.push(format!("revert: possible until {}", cell(&revert["possible_until"])));
        }
        Some("held") => lines.push("revert: held since a restore or a recovery; a person decides".into()),
        Some("failed") => lines.push(format!("revert: failed, {}", failure(&revert["error"]))),
        Some("done") => {
            let bypass = if revert["bypass"] == true { ", by a bypass" } else { "" };
            lines.push(format!("taken back by {}{bypass}  revision {}", doer(revert), revert["revision"]));
        }
        Some("kept") => {
            let comment = match revert["comment"].as_str().unwrap_or_default() {
                "" => String::new(),
                _ => format!(": {}", json_of(&revert["comment"])),
            };
            lines.push(format!("revert: none, kept by {}{comment}", doer(revert)));
        }
        Some(_) | None => {}
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(at: Option<u64>, duration: Option<u64>, apply: Option<ApplyArg>) -> TimeArgs {
        let (at, duration) = (at.map(Timestamp), duration.map(Duration::from_secs));
        TimeArgs { apply, at, until: None, duration, rollout: None }
    }

    #[test]
    fn a_time_makes_the_cluster_apply_it_unless_somebody_is_to() {
        let body = |args: TimeArgs| {
            let mut body = json!({});
            args.add_to(&mut body).unwrap();
            body
        };
        assert_eq!(body(TimeArgs::default()), json!({}));
        assert_eq!(
            body(args(None, Some(7200), None)),
            json!({"apply": "when_approved", "revert_after_s": 7200})
        );
        let at = json!({"schedule": {"not_before": "1970-01-01T00:00:00.000007Z"}});
        assert_eq!(body(args(Some(7), None, Some(ApplyArg::Manual))), at);
        assert!(!TimeArgs::default().is_given() && args(None, None, Some(ApplyArg::Manual)).is_given());
    }

    #[test]
    fn a_change_request_without_a_title_is_named_after_what_it_does() {
        let put = json!({"op": "put_config", "config_definition_key": "prod.a", "config_key": "k"});
        let delete = json!({"op": "delete_definition", "config_definition_key": "prod.b"});
        assert_eq!(
            args(None, Some(5400), None).title_of(&[put.clone(), delete.clone()]),
            "put config prod.a/k and 1 more for 90m"
        );
        assert_eq!(args(Some(7), None, None).title_of(&[delete]), "delete definition prod.b");
        assert_eq!([1, 60, 7200, 86_400 * 7].map(period), ["1s", "1m", "2h", "7d"]);
    }

    #[test]
    fn a_list_says_what_is_scheduled_armed_or_held() {
        let cell = |phase: &str, more: Value| {
            let mut change = json!({"phase": phase, "schedule": null, "revert": null});
            for (name, value) in more.as_object().into_iter().flatten() {
                change[name] = value.clone();
            }
            phase_cell(&change)
        };
        assert_eq!(cell("open", json!({})), "open");
        assert_eq!(cell("scheduled", json!({"schedule": {"not_before": "T"}})), "scheduled, from T");
        assert_eq!(cell("applied", json!({"schedule": {"not_before": "T"}})), "applied");
        assert_eq!(
            cell("applied", json!({"revert": {"state": "armed", "due_at": "T"}})),
            "applied, taken back at T"
        );
        assert_eq!(cell("applied", json!({"revert": {"state": "held"}})), "applied, revert held");
    }
}
