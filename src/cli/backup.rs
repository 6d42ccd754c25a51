//! The commands `backup`, `verify` and `restore`.
//!
//! **Invariant:** a file with the requested name is complete and durable: a backup is downloaded under another name,
//! verified, and renamed last.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::client::Client;
use crate::{
    peer::Member,
    raft, service,
    store::snapshot::backup::{Summary, inspect},
};

/// Downloads a backup of the whole cluster from a node and verifies it.
///
/// # Errors
/// When the node refuses, the file is not complete, or it can't be written.
pub(super) async fn fetch(client: &Client, to: &Path) -> Result<Value, String> {
    let failed = |error: io::Error| format!("{}: {error}", to.display());
    let partial = partial_path(to);
    let mut file = File::create(&partial).map_err(failed)?;
    let fetched = client.download("/api/v1/cluster/backup", |chunk| file.write_all(chunk)).await;
    let verified = fetched.and_then(|()| {
        file.sync_all().map_err(failed)?;
        inspect(&partial).map_err(|error| error.to_string())
    });
    let summary = match verified {
        Ok(summary) => summary,
        Err(error) => {
            fs::remove_file(&partial).map_err(failed)?;
            return Err(error);
        }
    };
    fs::rename(&partial, to).map_err(failed)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    Ok(summary_json(&summary))
}

/// Verifies a backup.
///
/// # Errors
/// When it is not complete.
pub(super) fn verify(path: &Path) -> Result<Value, String> {
    inspect(path).map(|summary| summary_json(&summary)).map_err(|error| error.to_string())
}

/// Restores a backup into the data directory of the first member of a new cluster.
///
/// # Errors
/// When the backup is not complete, the directory is in use, or it can't be written.
pub(super) fn restore(
    from: &Path,
    directory: &Path,
    member: Member,
    data_key_file: Option<&Path>,
) -> Result<Value, String> {
    let (summary, cluster_id) =
        raft::restore::restore(from, directory, member, service::now(), data_key_file)?;
    let mut restored = summary_json(&summary);
    restored["cluster_id"] = json!(cluster_id);
    Ok(restored)
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

fn summary_json(summary: &Summary) -> Value {
    json!({
        "revision": summary.revision,
        "definitions": summary.definitions,
        "configs": summary.configs,
        "requests": summary.requests,
        "digest": format!("{:032x}", summary.digest),
        "bytes": summary.bytes,
    })
}
