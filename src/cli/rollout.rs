//! Rollouts of change requests: the option that makes one, and how one is shown.
//!
//! **Invariant:** words of others are shown as JSON, in one line: none looks like a line of this program.

use std::{path::PathBuf, str::FromStr};

use serde_json::Value;

use super::{
    change_shown::json_of,
    connection::Failure,
    definition::one_value,
    output::{cell, counted, escaped},
    schedule::{doer, period},
};

/// Failures that are shown. Each is a reader.
const FAILURES_SHOWN_MAX: usize = 10;

/// How a change request is released: by a plan that has a name, or by one in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RolloutArg {
    Named(&'static str),
    File(PathBuf),
}

impl FromStr for RolloutArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("expected `linear`, `canary`, or a file with a plan".into()),
            "linear" => Ok(Self::Named("linear")),
            "canary" => Ok(Self::Named("canary")),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl RolloutArg {
    /// The plan as a change request takes it.
    pub(super) fn plan(&self) -> Result<Value, Failure> {
        match self {
            Self::Named(name) => Ok((*name).into()),
            Self::File(path) => {
                let plan = one_value(path)?;
                if plan.is_object() {
                    return Ok(plan);
                }
                let text = format!("{}: expected an object with `stages`", path.display());
                Err(Failure::Usage(text))
            }
        }
    }
}

/// How far a change request in phase `rolling` is, in a few words.
pub(super) fn phase_cell(change: &Value) -> String {
    let rollout = &change["rollout"];
    let status = &rollout["status"];
    let paused = if status["paused"].is_null() { "" } else { ", paused" };
    let stages = rollout["stages"].as_array().map_or(0, Vec::len);
    match status["stage"].as_u64() {
        Some(stage) => format!("rolling, stage {} of {stages}{paused}", stage + 1),
        None => format!("rolling, all stages passed{paused}"),
    }
}

/// The lines about the rollout of a change request; none without one.
pub(super) fn lines(change: &Value) -> Vec<String> {
    let rollout = &change["rollout"];
    let Some(stages) = rollout["stages"].as_array() else { return Vec::new() };
    let status = &rollout["status"];
    let passed = status["passed"].as_array().map_or(&[][..], Vec::as_slice);
    let present = status["stage"].as_u64();
    let mut lines = vec![format!(
        "rollout: {}, at most {} failed, on failure {}",
        counted(stages.len() as u64, "stage"),
        rollout["max_failed"],
        cell(&rollout["on_fail"])
    )];
    for (place, stage) in stages.iter().enumerate() {
        let state = match passed.get(place) {
            Some(end) => format!(", passed at {} by {}", cell(&end["at"]), doer(end)),
            None if present == Some(place as u64) => format!(", since {}", cell(&status["since"])),
            None => String::new(),
        };
        let mark = if present == Some(place as u64) { '>' } else { ' ' };
        lines.push(format!("{mark} stage {}: {}{state}", place + 1, stage_text(stage)));
    }
    lines.extend(evidence(status));
    lines.extend(gates(rollout));
    if let Some(why) = paused(status) {
        lines.push(why);
    }
    lines.extend(waits(status));
    lines
}

/// Which readers a stage has, and what it needs.
fn stage_text(stage: &Value) -> String {
    let labels = stage["labels"].as_object().into_iter().flatten();
    let labels: Vec<String> = labels
        .map(|(name, values)| {
            let values = values.as_array().into_iter().flatten().map(cell);
            escaped(&format!("{name}={}", values.collect::<Vec<_>>().join("|")))
        })
        .collect();
    let share = &stage["share"];
    let who = match (labels.is_empty(), share.as_f64().is_none_or(|share| share >= 100.0)) {
        (true, true) => "all readers".to_owned(),
        (true, false) => format!("{share} % of the readers"),
        (false, true) => format!("readers with {}", labels.join(", ")),
        (false, false) => format!("{share} % of the readers with {}", labels.join(", ")),
    };
    let healthy = match stage["min_healthy"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} healthy"),
    };
    format!("{who}, {}{healthy}", period(stage["for_s"].as_u64().unwrap_or(0)))
}

/// What readers say.
pub(super) fn evidence(status: &Value) -> Vec<String> {
    if status["healthy"].is_null() {
        return Vec::new();
    }
    let mut lines = vec![format!("readers: {} healthy, {} failed", status["healthy"], status["failed"])];
    if let Some(unidentified) = status["watches"]["unidentified"].as_u64().filter(|count| *count > 0) {
        let watches =
            if unidentified == 1 { "1 watch".to_owned() } else { format!("{unidentified} watches") };
        lines.push(format!("  {watches} without a reader: they see the end only"));
    }
    let failures = status["failures"].as_array().map_or(&[][..], Vec::as_slice);
    for failure in failures.iter().take(FAILURES_SHOWN_MAX) {
        let detail = match failure["detail"].as_str().unwrap_or_default() {
            "" => String::new(),
            _ => format!(": {}", json_of(&failure["detail"])),
        };
        lines.push(format!("  failed: {}{detail}", json_of(&failure["reader"])));
    }
    if failures.len() > FAILURES_SHOWN_MAX {
        lines.push(format!("  and {} more", failures.len() - FAILURES_SHOWN_MAX));
    }
    lines
}

/// The gates of the plan, and what they say.
fn gates(rollout: &Value) -> Vec<String> {
    let said = rollout["status"]["gates"].as_array().map_or(&[][..], Vec::as_slice);
    let planned = rollout["gates"].as_array().into_iter().flatten();
    planned
        .map(|gate| {
            let name = json_of(&gate["name"]);
            let fresh = period(gate["fresh_s"].as_u64().unwrap_or(0));
            let Some(word) = said.iter().find(|word| word["name"] == gate["name"]) else {
                return format!("gate {name}, fresh for {fresh}");
            };
            let state = match word["ok"].as_bool() {
                Some(true) => "good",
                Some(false) => "not good",
                None => "has said nothing lately",
            };
            let evidence = match word["evidence"].as_str().unwrap_or_default() {
                "" => String::new(),
                _ => format!(": {}", json_of(&word["evidence"])),
            };
            format!("gate {name}: {state}{evidence}")
        })
        .collect()
}

/// Why a rollout does not go on.
fn paused(status: &Value) -> Option<String> {
    let paused = &status["paused"];
    if paused.is_null() {
        return None;
    }
    let comment = match paused["comment"].as_str().unwrap_or_default() {
        "" => String::new(),
        _ => format!(": {}", json_of(&paused["comment"])),
    };
    Some(format!("paused at {} by {}{comment}", cell(&paused["at"]), doer(paused)))
}

/// What it waits for, in words.
pub(super) fn waits(status: &Value) -> Option<String> {
    let waits = status["waits_for"].as_array().filter(|waits| !waits.is_empty())?;
    let words: Vec<String> = waits
        .iter()
        .map(|wait| match wait.as_str() {
            Some("time") => "its time".to_owned(),
            Some("min_healthy") => "healthy readers".to_owned(),
            Some("max_failed") => "fewer failed readers".to_owned(),
            Some("gates") => "gates".to_owned(),
            Some("resume") => "somebody to resume it".to_owned(),
            Some("end") => "the cluster to apply it".to_owned(),
            Some(other) => escaped(other),
            None => json_of(wait),
        })
        .collect();
    Some(format!("waits for: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rolling(status: Value) -> Value {
        json!({"phase": "rolling", "rollout": {
            "stages": [{"labels": {"ring": ["canary", "dev"]}, "share": 100, "for_s": 600, "min_healthy": 2},
                       {"labels": {}, "share": 5, "for_s": 45, "min_healthy": 0},
                       {"labels": {}, "share": 100, "for_s": 0, "min_healthy": 0}],
            "max_failed": 2, "gates": [{"name": "errors", "fresh_s": 120}], "on_fail": "abort", "timeout_s": 7200,
            "status": status}})
    }

    #[test]
    fn a_plan_has_a_name_or_is_in_a_file() {
        assert_eq!("linear".parse(), Ok(RolloutArg::Named("linear")));
        assert_eq!("./linear".parse(), Ok(RolloutArg::File("./linear".into())));
        assert!("".parse::<RolloutArg>().is_err());
    }

    #[test]
    fn a_rollout_says_how_far_it_is_and_what_it_waits_for() {
        let change = rolling(json!({
            "stage": 1, "since": "T2", "paused": null,
            "passed": [{"at": "T1", "by": null, "healthy": 2, "failed": 0, "gates": 1}],
            "healthy": 4, "failed": 1,
            "failures": [{"reader": "host-7", "labels": {}, "detail": "exit\nstatus", "at": "T"}],
            "gates": [{"name": "errors", "ok": false, "evidence": "0.3 > 0.1", "at": "T"}],
            "watches": {"identified": 9, "unidentified": 1}, "waits_for": ["time", "gates"],
        }));
        assert_eq!(phase_cell(&change), "rolling, stage 2 of 3");
        assert_eq!(
            lines(&change),
            [
                "rollout: 3 stages, at most 2 failed, on failure abort",
                "  stage 1: readers with ring=canary|dev, 10m, 2 healthy, passed at T1 by the cluster",
                "> stage 2: 5 % of the readers, 45s, since T2",
                "  stage 3: all readers, 0s",
                "readers: 4 healthy, 1 failed",
                "  1 watch without a reader: they see the end only",
                r#"  failed: "host-7": "exit\nstatus""#,
                r#"gate "errors": not good: "0.3 > 0.1""#,
                "waits for: its time, gates",
            ]
        );
    }

    #[test]
    fn a_plan_that_has_not_begun_is_shown_too() {
        let shown = lines(&rolling(Value::Null));
        assert_eq!(shown.len(), 5);
        assert_eq!(shown[4], r#"gate "errors", fresh for 2m"#);
        assert_eq!(lines(&json!({"phase": "open"})), Vec::<String>::new());
        let paused = rolling(json!({"stage": null, "paused": {"at": "T", "by": null, "comment": "a"}}));
        assert_eq!(phase_cell(&paused), "rolling, all stages passed, paused");
        assert_eq!(lines(&paused).last().unwrap(), r#"paused at T by the cluster: "a""#);
    }
}
