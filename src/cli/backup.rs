//! Backups on the command line: fetched from a node, verified, made the beginning of a new cluster.
//!
//! **Invariant:** what bears the name that was asked for is whole and durable: a file is fetched under another
//! name, read through, and renamed last.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::client::Client;
use crate::{
    peer::Member,
    raft,
    store::snapshot::backup::{Summary, inspect},
};

/// Fetches a backup of the whole cluster from a node and verifies it.
///
/// # Errors
/// When the node gives none, it is not whole, or the disk refuses.
pub(super) async fn fetch(client: &Client, to: &Path) -> Result<Value, String> {
    let failed = |error: io::Error| format!("{}: {error}", to.display());
    let part = part_of(to);
    let mut file = File::create(&part).map_err(failed)?;
    let fetched = client.download("/api/v1/cluster/backup", |piece| file.write_all(piece)).await;
    let whole = fetched.and_then(|()| {
        file.sync_all().map_err(failed)?;
        inspect(&part).map_err(|error| error.to_string())
    });
    let summary = match whole {
        Ok(summary) => summary,
        Err(error) => {
            fs::remove_file(&part).map_err(failed)?;
            return Err(error);
        }
    };
    fs::rename(&part, to).map_err(failed)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    Ok(show(&summary))
}

/// Reads a backup through.
///
/// # Errors
/// When it is not whole.
pub(super) fn verify(path: &Path) -> Result<Value, String> {
    inspect(path).map(|summary| show(&summary)).map_err(|error| error.to_string())
}

/// Makes a backup the beginning of a new cluster, whose first member's directory is prepared.
///
/// # Errors
/// When it is not whole, the directory is in use, or the disk refuses.
pub(super) fn restore(from: &Path, directory: &Path, member: Member) -> Result<Value, String> {
    let (summary, cluster_id) = raft::restore::restore(from, directory, member)?;
    let mut shown = show(&summary);
    shown["cluster_id"] = json!(cluster_id);
    Ok(shown)
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

fn show(summary: &Summary) -> Value {
    json!({
        "revision": summary.revision,
        "definitions": summary.definitions,
        "configs": summary.configs,
        "requests": summary.requests,
        "digest": format!("{:032x}", summary.digest),
        "bytes": summary.bytes,
    })
}
