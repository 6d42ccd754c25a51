//! The metrics of the agent, and log lines about the freshness of its configs.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use super::Agent;

/// Counts by file.
#[derive(Debug, Default)]
pub(super) struct AgentMetrics(Mutex<BTreeMap<PathBuf, FileCounts>>);

#[derive(Debug, Default, Clone, Copy)]
struct FileCounts {
    written: u64,
    failed_renders: u64,
    commands: u64,
    failed_commands: u64,
    altered: u64,
    is_wrong: bool,
}

/// A counter of each file: its name, its help and its value.
type FileMetric = (&'static str, &'static str, fn(&FileCounts) -> u64);

impl AgentMetrics {
    fn change(&self, file: &Path, change: impl FnOnce(&mut FileCounts)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(counts.entry(file.to_owned()).or_default());
    }

    pub(super) fn rendered(&self, file: &Path, is_good: bool) {
        self.change(file, |counts| {
            counts.failed_renders += u64::from(!is_good);
            counts.is_wrong = !is_good;
        });
    }

    /// Another program has changed or removed the file: until it is written again, it is not as the configs say.
    pub(super) fn altered(&self, file: &Path) {
        self.change(file, |counts| {
            counts.altered += 1;
            counts.is_wrong = true;
        });
    }

    /// The file has its bytes again without the agent.
    pub(super) fn put_back(&self, file: &Path, is_wrong: bool) {
        self.change(file, |counts| counts.is_wrong = is_wrong);
    }

    pub(super) fn written(&self, file: &Path) {
        self.change(file, |counts| counts.written += 1);
    }

    pub(super) fn ran(&self, file: &Path, is_good: bool) {
        self.change(file, |counts| {
            counts.commands += 1;
            counts.failed_commands += u64::from(!is_good);
        });
    }

    /// The files that could not be rendered the last time, or that another program has changed.
    pub(super) fn wrong(&self) -> Vec<String> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter(|(_, one)| one.is_wrong).map(|(path, _)| path.display().to_string()).collect()
    }

    /// The text of `/metrics`.
    pub(super) fn text(&self, agent: &Agent) -> String {
        let status = agent.cache.status();
        let mut text = String::new();
        let mut gauge = |name: &str, kind: &str, help: &str, value: String| {
            // Writing to a text can't fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        if let Some(source) = &status.source {
            let fresh = u8::from(source.is_fresh());
            gauge("concord_agent_fresh", "gauge", "1 while the configs are fresh", fresh.to_string());
            let age = source.age.as_secs_f64().to_string();
            gauge(
                "concord_agent_age_seconds",
                "gauge",
                "Time since the configs were last known to be current",
                age,
            );
            let revision = source.revision.to_string();
            gauge("concord_agent_revision", "gauge", "The revision of the configs", revision);
        }
        gauge("concord_agent_configs", "gauge", "Configs that the agent keeps", status.configs.to_string());
        gauge("concord_agent_changes_total", "counter", "Changes received", status.changes.to_string());
        gauge(
            "concord_agent_listings_total",
            "counter",
            "Full reads of all configs",
            status.listings.to_string(),
        );
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let families: [FileMetric; 5] = [
            ("concord_agent_file_writes_total", "Writes of the file", |one| one.written),
            ("concord_agent_file_errors_total", "Failed attempts to render or write the file", |one| {
                one.failed_renders
            }),
            (
                "concord_agent_file_alterations_total",
                "Times that another program has changed or removed the file",
                |one| one.altered,
            ),
            ("concord_agent_commands_total", "Runs of the command of the file", |one| one.commands),
            ("concord_agent_command_errors_total", "Times that the command of the file failed", |one| {
                one.failed_commands
            }),
        ];
        for (name, help, value) in families {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
            for (path, one) in &counts {
                let path = path
                    .display()
                    .to_string()
                    .replace('\\', r"\\")
                    .replace('"', r#"\""#)
                    .replace('\n', r"\n");
                let _ = writeln!(text, "{name}{{file=\"{path}\"}} {}", value(one));
            }
        }
        text
    }
}

/// Says when the configs become stale and when they are fresh again, once each.
pub(super) async fn log_freshness(agent: &Agent) {
    let mut changes = agent.cache.subscribe();
    let (mut was_fresh, mut file_problem) = (None, None);
    while !agent.stopping.is_cancelled() {
        let status = agent.cache.status();
        let is_fresh = status.source.as_ref().map(concord_client::Source::is_fresh);
        let problem = status.problem.unwrap_or_default();
        match (&status.source, is_fresh != was_fresh) {
            (Some(source), true) if source.is_fresh() => tracing::info!("the configs are fresh: {source}"),
            (Some(source), true) => tracing::warn!("the configs are not fresh: {source}: {problem}"),
            (None, _) | (Some(_), false) => {}
        }
        was_fresh = is_fresh;
        if status.file_problem != file_problem {
            file_problem = status.file_problem;
            if let Some(problem) = &file_problem {
                tracing::warn!("the last-known-good file: {problem}");
            }
        }
        tokio::select! {
            () = agent.stopping.cancelled() => {}
            // Configs become stale without an event.
            () = tokio::time::sleep(agent.settings.confirm_every) => {}
            _ = changes.next() => {}
        }
    }
}
