//! A point in time: up to which the history of a stopped node is added to a backup.
//!
//! **Invariant:** the node does not run while its history is read.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{
    connection::Failure,
    output::{counted, say},
};
use crate::node::StoppedNode;
use concord_consensus::restore::{Continuing, Restoration};
use concord_model::time::Timestamp;
use concord_storage::{Point, PointReached, snapshot::backup::Input};

#[derive(Debug, Args)]
pub(super) struct PointArgs {
    /// The data directory of a stopped node of the cluster that made the backup, or a copy of its `store/history`: the
    /// changes after the backup are added, up to --at
    #[arg(long, value_name = "DIR", requires = "at")]
    history: Option<PathBuf>,
    /// The point in time: a revision, or a time (RFC 3339). The change of this revision, and those of this time, are the
    /// last ones that are added
    #[arg(long, value_name = "REVISION|TIME", requires = "history", value_parser = parse_point)]
    at: Option<Point>,
}

fn parse_point(text: &str) -> Result<Point, String> {
    if let Ok(revision) = text.parse() {
        return Ok(Point::Revision(revision));
    }
    let time = Timestamp::parse(text).map(Point::Time);
    time.ok_or_else(|| "expected a revision, or a time such as 2026-03-01T14:31:00Z".into())
}

impl PointArgs {
    /// Whether there is one.
    pub(super) fn is_given(&self) -> bool {
        self.at.is_some()
    }

    /// Reads a backup, and adds the changes up to the point, if there is one.
    pub(super) fn read(&self, from: &Input, data_key_file: Option<&Path>) -> Result<Restoration, Failure> {
        let (Some(history), Some(point)) = (&self.history, self.at) else {
            return Ok(Restoration::read(from, None)?);
        };
        // A copy of a history alone has no identity, and no node uses it.
        let is_of_node = history.join("identity.json").is_file();
        let _stopped = is_of_node.then(|| StoppedNode::lock(history)).transpose()?;
        let restoration = Restoration::read(from, Some(&Continuing { history, data_key_file, point }))?;
        if let Some(reached) = restoration.reached() {
            describe(reached);
        }
        Ok(restoration)
    }
}

/// Says which changes were added, and which one was left out first.
fn describe(reached: &PointReached) {
    let PointReached { backup, revision, at, changes, next } = reached;
    let changes = counted(*changes, "change");
    say(format_args!(
        "as of revision {revision}, {at}: {changes} after the backup, which is of revision {backup}"
    ));
    match next {
        Some(next) => {
            let reason = next.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            say(format_args!(
                "left out first: revision {}, {}, by {}{reason}",
                next.revision, next.at, next.by
            ));
        }
        None => say("no change was left out"),
    }
    say("access keys are those of the backup: the history does not have them");
}

/// The point, as data.
pub(super) fn point_json(reached: &PointReached) -> Value {
    let next = reached.next.as_ref().map(|next| {
        json!({ "revision": next.revision, "at": next.at.to_string(), "by": next.by, "reason": next.reason })
    });
    json!({
        "backup_revision": reached.backup,
        "revision": reached.revision,
        "at": reached.at.to_string(),
        "changes": reached.changes,
        "next": next,
    })
}
