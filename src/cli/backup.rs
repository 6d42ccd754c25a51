//! The commands `backup`, `verify` and `restore`.
//!
//! **Invariant:** a file with the requested name is complete and durable: a backup is downloaded under another name,
//! verified, and renamed last.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use concord_client::{Client, Request, Retry};
use serde_json::{Value, json};

use super::{
    connection::{ConsistencyLevel, Failure, FreshnessArgs, NodeArgs, run_with_client},
    output::{Columns, OutputArgs, print_columns, say},
    point::{PointArgs, point_json},
    progress::Progress,
};
use crate::settings::parse_member;
use concord_consensus::restore::require_empty;
use concord_net::Member;
use concord_service::{self as service};
use concord_state::digest;
use concord_storage::snapshot::{
    backup::{Input, Summary, inspect},
    envelope::{Envelope, MAGIC, Opening, is_sealed},
};

const COLUMNS: Columns = Columns {
    name: "digest",
    narrow: &[
        ("REVISION", "/revision"),
        ("DEFINITIONS", "/definitions"),
        ("CONFIGS", "/configs"),
        ("BYTES", "/bytes"),
        ("DIGEST", "/digest"),
    ],
    wide: &[
        ("KEYS", "/access_keys"),
        ("ENVIRONMENTS", "/environments"),
        ("REQUESTS", "/requests"),
        ("SIGNER", "/signer"),
        ("CLUSTER", "/cluster_id"),
    ],
};

const RESTORE_COLUMNS: Columns = Columns {
    name: "cluster_id",
    narrow: &[
        ("REVISION", "/revision"),
        ("DEFINITIONS", "/definitions"),
        ("CONFIGS", "/configs"),
        ("AS OF", "/as_of/revision"),
        ("AT", "/as_of/at"),
        ("NEXT", "/as_of/next/at"),
    ],
    wide: &[
        ("CHANGES", "/as_of/changes"),
        ("DIGEST", "/digest"),
        ("KEYS", "/access_keys"),
        ("ENVIRONMENTS", "/environments"),
        ("HELD", "/held_changes"),
        ("HELD REVERTS", "/held_reverts"),
        ("REQUESTS", "/requests"),
        ("CLUSTER", "/cluster_id"),
    ],
};

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The file to write the backup to
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Read consistency. local: what the node has applied, which may be stale; the only way without a majority
    /// [default: linearizable]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "LEVEL")]
    consistency: Option<ConsistencyLevel>,
    /// Encrypt the backup to this recipient, as printed by `concord keygen identity` or age-keygen; repeatable. Without
    /// a recipient the backup is not encrypted
    #[arg(long, env = "CONCORD_BACKUP_RECIPIENTS", value_delimiter = ',', value_name = "RECIPIENT")]
    recipient: Vec<String>,
    /// The file of the signing key; required with --recipient
    #[arg(long, env = "CONCORD_BACKUP_SIGNING_KEY_FILE", value_name = "FILE")]
    signing_key: Option<PathBuf>,
    #[command(flatten)]
    opening: OpeningArgs,
}

impl BackupArgs {
    /// What the backup is encrypted and signed with; `None` when no recipient is set.
    fn envelope(&self) -> Result<Option<Envelope>, String> {
        let recipients: Vec<String> =
            self.recipient.iter().filter(|text| !text.is_empty()).cloned().collect();
        match (recipients.is_empty(), &self.signing_key) {
            (true, None) => Ok(None),
            (true, Some(_)) => {
                Err("--signing-key requires --recipient: only encrypted backups are signed".into())
            }
            (false, None) => Err("--recipient requires --signing-key: encrypted backups are signed".into()),
            (false, Some(path)) => Envelope::read(&recipients, path).map(Some),
        }
    }
}

/// What an encrypted backup is read with.
#[derive(Debug, Args)]
pub(super) struct OpeningArgs {
    /// The file of the identity that decrypts the backup
    #[arg(long, env = "CONCORD_BACKUP_IDENTITY_FILE", value_name = "FILE")]
    identity: Option<PathBuf>,
    /// The public key of a trusted signer; repeatable. If given, unsigned backups and those of other signers are
    /// rejected
    #[arg(long, env = "CONCORD_BACKUP_SIGNERS", value_delimiter = ',', value_name = "KEY")]
    signer: Vec<String>,
}

impl OpeningArgs {
    pub(super) fn read(&self) -> Result<Opening, Failure> {
        let signers: Vec<String> = self.signer.iter().filter(|text| !text.is_empty()).cloned().collect();
        Opening::read(self.identity.as_deref(), &signers).map_err(Failure::Usage)
    }
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The backup file
    file: PathBuf,
    #[command(flatten)]
    opening: OpeningArgs,
    #[command(flatten)]
    format: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The backup file
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The data directory to create; it must be empty or missing
    #[arg(long, env = "CONCORD_DATA_DIR", required_unless_present = "dry_run", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The node that will serve the data: its id, client address and peer address, as in `1=node1:8100@node1:8200`
    #[arg(long, value_parser = parse_member, required_unless_present = "dry_run", value_name = "ID=API@PEER")]
    member: Option<Member>,
    /// Encrypt the data directory with the first key of this file. It also reads an encrypted --history
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
    #[command(flatten)]
    point: PointArgs,
    /// Read everything and show what would be restored; write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    opening: OpeningArgs,
    #[command(flatten)]
    format: OutputArgs,
}

/// Runs `backup`.
pub(super) fn back_up(args: &BackupArgs) -> Result<(), Failure> {
    let envelope = args.envelope().map_err(Failure::Usage)?;
    let opening = args.opening.read()?;
    run_with_client(&args.node, async |client| {
        let request = FreshnessArgs::of(args.consistency).on(Request::get(ROUTE));
        let fetched = fetch(&client, request, &args.out, envelope.as_ref(), opening).await;
        let is_local = matches!(args.consistency, Some(ConsistencyLevel::Local));
        let shown = fetched.inspect_err(|failure| {
            if !is_local && failure.is_unavailable() {
                say("without a majority, --consistency local backs up what the receiving node has applied");
            }
        })?;
        print_columns(&args.node.format.or_json(), &shown, &COLUMNS)
    })
}

/// Runs `verify`.
pub(super) fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let opening = args.opening.read()?;
    let shown = shown(&Input::new(&args.file, opening))?;
    print_columns(&args.format.or_json(), &shown, &COLUMNS)
}

/// Runs `restore`.
pub(super) fn restore(args: RestoreArgs) -> Result<(), Failure> {
    let input = Input::new(&args.from, args.opening.read()?);
    let data_key_file = args.data_key_file.as_deref();
    // Before anything is read, which may take long.
    if let Some(directory) = args.data_dir.as_deref().filter(|_| !args.dry_run) {
        require_empty(directory)?;
    }
    let restoration = args.point.read(&input, data_key_file)?;
    let mut restored = summary_json(restoration.summary());
    let held = restoration.held();
    (restored["held_changes"], restored["held_reverts"]) = (held.open.into(), held.reverts.into());
    if let Some(reached) = restoration.reached() {
        restored["as_of"] = point_json(reached);
    }
    (restored["revision"], restored["cluster_id"]) = match (&args.data_dir, args.member) {
        (Some(directory), Some(member)) if !args.dry_run => {
            let made = restoration.make(directory, member, service::now(), data_key_file)?;
            (json!(made.0), json!(made.1))
        }
        // The new cluster's are not known before.
        _ => (Value::Null, Value::Null),
    };
    print_columns(&args.format.or_json(), &restored, &RESTORE_COLUMNS)
}

const ROUTE: &str = "/api/v1/cluster/backup";
/// How long a download may take: a terabyte at 100 MB/s.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// A second encryption would hide the backup from the recipients in the node's settings.
const ENCRYPTED_BY_THE_NODE: &str = "this node encrypts backups itself: omit --recipient and --signing-key, and unset CONCORD_BACKUP_RECIPIENTS";

/// Downloads a backup of the whole cluster from a node and verifies it. With an envelope it is encrypted before it
/// reaches the disk. One that the node has encrypted is stored as it comes, and verified with `opening`.
///
/// # Errors
/// When the node refuses, the file is not complete, or it can't be written; when both sides are to encrypt.
async fn fetch(
    client: &Client,
    request: Request,
    to: &Path,
    envelope: Option<&Envelope>,
    opening: Opening,
) -> Result<Value, Failure> {
    let failed = |error: io::Error| format!("{}: {error}", to.display());
    let partial = partial_path(to);
    // The rest of an interrupted backup is removed. A file that another process puts there is not overwritten: the new
    // file must not exist.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error).into()),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(0o600).open(&partial).map_err(failed)?;
    let summary = match download(client, request, (file, &partial), envelope, opening).await {
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
    request: Request,
    (mut file, path): (File, &Path),
    envelope: Option<&Envelope>,
    opening: Opening,
) -> Result<Value, Failure> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let progress = Progress::of_bytes("no backup was made");
    let request = request.retry(Retry::OtherNode).timeout(DOWNLOAD_TIMEOUT);
    let (file, opening) = match envelope {
        None => {
            client
                .download(request, |chunk| counted(&progress, chunk, |chunk| file.write_all(chunk)))
                .await?;
            (file, opening)
        }
        Some(envelope) => {
            let (mut backup, opening) = envelope.begin(file).map_err(failed)?;
            let mut begin = Vec::new();
            let mut seal = |chunk: &[u8]| {
                begin.extend(chunk.iter().take(MAGIC.len().saturating_sub(begin.len())));
                if is_sealed(&begin) {
                    return Err(io::Error::other(ENCRYPTED_BY_THE_NODE));
                }
                backup.write(chunk)
            };
            client.download(request, |chunk| counted(&progress, chunk, &mut seal)).await?;
            (backup.finish().map_err(failed)?, opening)
        }
    };
    drop(progress);
    file.sync_all().map_err(failed)?;
    Ok(shown(&Input::new(path, opening))?)
}

/// Writes a part of the download and counts it.
fn counted(
    progress: &Progress,
    chunk: &[u8],
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    write(chunk)?;
    progress.add(chunk.len());
    Ok(())
}

/// The contents of a verified backup; or only its signer, if it is encrypted and there is no identity.
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
        "access_keys": summary.access_keys,
        "environments": summary.environments,
        "requests": summary.requests,
        "digest": format!("{:032x}", digest::shown_digest(summary.digest)),
        "bytes": summary.bytes,
    })
}
