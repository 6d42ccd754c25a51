//! The commands `backup`, `verify` and `restore`.
//!
//! **Invariant:** a file with the requested name is complete and durable: a backup is downloaded under another name,
//! verified, and renamed last.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::client::Client;
use crate::{
    peer::Member,
    raft, service,
    state::digest,
    store::snapshot::{
        backup::{Input, Summary, inspect},
        envelope::{Envelope, Opening},
    },
};

/// Downloads a backup of the whole cluster from a node and verifies it. With an envelope it is encrypted before it
/// reaches the disk.
///
/// # Errors
/// When the node refuses, the file is not complete, or it can't be written.
pub(super) async fn fetch(client: &Client, to: &Path, envelope: Option<&Envelope>) -> Result<Value, String> {
    let failed = |error: io::Error| format!("{}: {error}", to.display());
    let partial = partial_path(to);
    // What an interrupted backup left is removed, and what somebody else puts there is not written to: a new file is
    // made, or none.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(0o600).open(&partial).map_err(failed)?;
    let summary = match download(client, file, &partial, envelope).await {
        Ok(summary) => summary,
        Err(error) => {
            fs::remove_file(&partial).map_err(failed)?;
            return Err(error);
        }
    };
    fs::rename(&partial, to).map_err(failed)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    Ok(summary)
}

/// Downloads a backup into a file, makes it durable and verifies all of it.
async fn download(
    client: &Client,
    mut file: File,
    path: &Path,
    envelope: Option<&Envelope>,
) -> Result<Value, String> {
    const ROUTE: &str = "/api/v1/cluster/backup";
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let (file, opening) = match envelope {
        None => {
            client.download(ROUTE, |chunk| file.write_all(chunk)).await?;
            (file, Opening::default())
        }
        Some(envelope) => {
            let (mut backup, opening) = envelope.begin(file).map_err(failed)?;
            client.download(ROUTE, |chunk| backup.write(chunk)).await?;
            (backup.finish().map_err(failed)?, opening)
        }
    };
    file.sync_all().map_err(failed)?;
    shown(&Input::new(path, opening))
}

/// Verifies a backup: all of it, or its signature if it is encrypted and there is no identity.
///
/// # Errors
/// When it is not complete, or was not signed by one of the signers that were named.
pub(super) fn verify(path: &Path, opening: Opening) -> Result<Value, String> {
    shown(&Input::new(path, opening))
}

fn shown(input: &Input) -> Result<Value, String> {
    let signer = input.signer().map_err(|error| error.to_string())?;
    let mut shown = if input.is_readable() {
        inspect(input).map(|summary| summary_json(&summary)).map_err(|error| error.to_string())?
    } else {
        json!({})
    };
    if let Some(signer) = signer {
        shown["signer"] = json!(signer.to_string());
    }
    Ok(shown)
}

/// Restores a backup into the data directory of the first member of a new cluster.
///
/// # Errors
/// When the backup is not complete, the directory is in use, or it can't be written.
pub(super) fn restore(
    from: &Input,
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
        "digest": format!("{:032x}", digest::shown_digest(summary.feature_level, summary.digest)),
        "bytes": summary.bytes,
    })
}
