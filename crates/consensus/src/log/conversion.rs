//! Rewrites the log when encryption was turned on or off since the last start, and discards one that is distrusted.
//!
//! Entries are only appended, so without a rewrite the log would keep its unencrypted entries until they are purged, and
//! its newest file for longer. So the whole log is written beside the old one, compared with it, and replaces it. Nothing
//! else runs at that time.
//!
//! A log of a member whose state was wrong is replaced by an empty one with the same vote: what it holds may be what was
//! wrong. The old one stays, because it may be the only copy of something.
//!
//! ```text
//! log               the log
//! log.new           the copy that is being written; removed at the next start
//! log.old           the replaced log; removed once the copy has its name
//! log.distrusted    a log that was discarded, for the operator; the next ones are log.distrusted-2 and so on
//! ```
//!
//! **Invariants**
//! 1. At any time there is a whole log with the name `log`, or a whole one with the name `log.new` and with one of the
//!    other names.
//! 2. A rewritten log has the votes, the entries, the committed and purged positions and the header of the old one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use raft_log::{RaftLog, api::raft_log_writer::RaftLogWriter as _};
use tokio::sync::oneshot;

use super::{
    AfterFlush, FlushCallback, Wal, WalTypes,
    progress::LogProgress,
    shared::{LogKeys, SharedLog},
};
use crate::{codec::LogHeader, witness::Bound};
use concord_net::Member;
use concord_storage::at_rest::AtRest;

/// Bytes of entries that are written at once.
pub(super) const PORTION_BYTES: usize = 4 << 20;

/// Ends a conversion that was interrupted, and converts the log of a directory if that is due. Blocking.
pub(crate) fn convert(log: &Path, at_rest: &AtRest) -> io::Result<()> {
    let [new, old] = ["new", "old"].map(|ending| log.with_extension(ending));
    recover(log, &new, &old)?;
    if at_rest.is_converted() || !log.exists() {
        return Ok(());
    }
    let keys = LogKeys::new(at_rest);
    {
        let from = Wal::open(log)?.log;
        let mut to = Wal::open(&new)?.log;
        copy(&from, &mut to, &keys)?;
        drop(to);
        compare(&from, &Wal::open(&new)?.log, &keys)?;
    }
    sync(&new)?;
    rename(log, &old)?;
    rename(&new, log)?;
    remove(&old)?;
    tracing::info!("rewrote the log, because encryption was turned on or off");
    Ok(())
}

/// Whether a data directory has a log, under its own name or in an exchange that a crash has interrupted.
pub(crate) fn exists(log: &Path) -> bool {
    log.is_dir() || log.with_extension("old").is_dir() || log.with_extension("new").is_dir()
}

/// Ends an exchange of two logs that a crash has interrupted. Blocking.
pub(crate) fn complete_exchange(log: &Path) -> io::Result<()> {
    let [new, old] = ["new", "old"].map(|ending| log.with_extension(ending));
    recover(log, &new, &old)
}

fn recover(log: &Path, new: &Path, old: &Path) -> io::Result<()> {
    if log.exists() {
        remove(new)?;
        return remove(old);
    }
    if old.exists() {
        // The new one was whole before the old one lost its name.
        rename(if new.exists() { new } else { old }, log)?;
        return remove(old);
    }
    if new.exists() && log.with_extension(DISTRUSTED).exists() {
        return rename(new, log);
    }
    Ok(())
}

/// The ending of the first log that was discarded. Later ones have a number, too.
const DISTRUSTED: &str = "distrusted";
/// Most discarded logs that are kept: each may be the only copy of something, but a node with bad memory must not fill
/// its disk with them.
const DISTRUSTED_MAX: usize = 8;

/// What is known of a log that is discarded.
#[derive(Debug)]
pub(crate) struct Discarded {
    /// Its vote and its last entry.
    pub(crate) position: Bound,
    /// The members that its newest membership entry names.
    pub(crate) members: Vec<Member>,
}

/// Replaces the log of a directory by an empty one with the same vote and header. `record` is called with what the old
/// one was, before it is replaced. Blocking.
pub(crate) fn discard(
    log: &Path,
    at_rest: &AtRest,
    record: impl FnOnce(&Discarded) -> io::Result<()>,
) -> io::Result<()> {
    let [new, old] = ["new", "old"].map(|ending| log.with_extension(ending));
    recover(log, &new, &old)?;
    if !log.exists() {
        return Ok(()); // it is missing, which is found where it is opened
    }
    let wal = Wal::open(log)?;
    let (position, header) = (wal.position(), wal.header());
    let shared = SharedLog::new(wal.log, LogKeys::new(at_rest));
    let members = shared.newest_membership()?;
    drop(shared);
    let members = members.map_or_else(Vec::new, |all| all.nodes().map(|(_, one)| one.clone()).collect());
    record(&Discarded { position, members })?;
    {
        let mut to = Wal::open(&new)?.log;
        if let Some(vote) = position.vote {
            to.save_vote(vote)?;
        }
        to.save_user_data(header.map(|header| LogHeader { installing: None, ..header }))?;
        flush(&mut to)?;
    }
    sync(&new)?;
    match kept_name(log) {
        Some(kept) => rename(log, &kept)?,
        None => {
            tracing::error!(
                "{DISTRUSTED_MAX} distrusted logs are kept, and this one is not; look at them and delete them"
            );
            rename(log, &old)?;
        }
    }
    rename(&new, log)?;
    remove(&old)
}

/// The names under which distrusted logs are kept.
fn kept_names(log: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=DISTRUSTED_MAX).map(|number| match number {
        1 => log.with_extension(DISTRUSTED),
        _ => log.with_extension(format!("{DISTRUSTED}-{number}")),
    })
}

/// The name under which another distrusted log is kept.
fn kept_name(log: &Path) -> Option<PathBuf> {
    kept_names(log).find(|path| !path.exists())
}

/// The file names of the distrusted logs that are kept. Blocking.
pub(crate) fn kept(log: &Path) -> Vec<String> {
    let kept = kept_names(log).filter(|path| path.exists());
    kept.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
}

fn copy(from: &RaftLog<WalTypes>, to: &mut RaftLog<WalTypes>, keys: &LogKeys) -> io::Result<()> {
    let state = from.log_state();
    if let Some(vote) = state.vote() {
        to.save_vote(*vote)?;
    }
    if let Some(header) = state.user_data.clone() {
        to.save_user_data(Some(header))?;
    }
    if let Some(purged) = state.purged() {
        to.purge(*purged)?;
    }
    let (mut portion, mut bytes) = (Vec::new(), 0);
    for entry in from.read(0, u64::MAX) {
        let (id, payload) = entry?;
        let payload = keys.seal(&id, keys.open(&id, payload)?);
        bytes += payload.bytes.len();
        portion.push((id, payload));
        if bytes >= PORTION_BYTES {
            to.append(std::mem::take(&mut portion))?;
            flush(to)?;
            bytes = 0;
        }
    }
    to.append(portion)?;
    if let Some(committed) = state.committed() {
        to.commit(*committed)?;
    }
    flush(to)
}

/// Writes everything durably. Blocking.
pub(super) fn flush(log: &mut RaftLog<WalTypes>) -> io::Result<()> {
    let (sender, flushed) = oneshot::channel();
    let operation = Arc::<LogProgress>::default().begin(0);
    log.flush(true, Some(FlushCallback { then: AfterFlush::Tell(sender), operation }))?;
    // No thread flushes it in a simulation: who waits does.
    #[cfg(feature = "simulation")]
    let flushed = {
        let mut flushed = flushed;
        log.wait_worker_idle()?;
        flushed.try_recv()
    };
    #[cfg(not(feature = "simulation"))]
    let flushed = flushed.blocking_recv();
    flushed.unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
}

/// Refuses a copy that is not the same log.
fn compare(from: &RaftLog<WalTypes>, to: &RaftLog<WalTypes>, keys: &LogKeys) -> io::Result<()> {
    let states = [from.log_state(), to.log_state()];
    let [one, other] = states.map(|state| {
        (state.vote(), state.last(), state.committed(), state.purged(), state.user_data.as_ref())
    });
    let mut same = one == other;
    let mut entries = to.read(0, u64::MAX);
    for entry in from.read(0, u64::MAX) {
        let ((id, payload), copied) = (entry?, entries.next().transpose()?);
        let payload = keys.open(&id, payload)?;
        let copied = copied.filter(|(copied, _)| *copied == id);
        same &=
            copied.is_some_and(|(id, copied)| keys.open(&id, copied).is_ok_and(|copied| copied == payload));
    }
    if same && entries.next().is_none() {
        Ok(())
    } else {
        Err(io::Error::other("failed to rewrite the log: the copy differs"))
    }
}

/// Makes the files of a directory and their names durable.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(directory)?.sync_all()
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

pub(super) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{LogHeader, LogPayload},
        types::{EncodedProposal, Payload},
        wire::{WireLogId, WireVote},
    };
    use concord_storage::at_rest::KEYS;

    fn id(index: u64) -> WireLogId {
        WireLogId { index, term: 2, node: 1 }
    }

    fn content(index: u64) -> Vec<u8> {
        // The first byte of a proposal is its feature level.
        [vec![1], format!("a telling value {index}").repeat(1000).into_bytes()].concat()
    }

    /// A log of 300 entries in several files, purged up to the tenth.
    fn written(directory: &Path) {
        let mut log = Wal::open(directory).unwrap().log;
        log.save_vote(WireVote { term: 2, node: 3, committed: true }).unwrap();
        log.save_user_data(Some(LogHeader { cluster: [7; 16], node: 1, installing: Some(id(9)) })).unwrap();
        for index in 1..=300 {
            let payload = Payload::Normal(EncodedProposal(content(index).into()));
            log.append([(id(index), LogPayload::from(&payload))]).unwrap();
        }
        log.purge(id(10)).unwrap();
        log.commit(id(290)).unwrap();
        flush(&mut log).unwrap();
    }

    /// What a log says of itself, and its entries as they were appended.
    fn read(directory: &Path, at_rest: &AtRest) -> (String, Vec<LogPayload>) {
        let (log, keys) = (Wal::open(directory).unwrap().log, LogKeys::new(at_rest));
        let entries = log.read(0, u64::MAX).map(|entry| {
            let (id, payload) = entry.unwrap();
            keys.open(&id, payload).unwrap()
        });
        let entries = entries.collect();
        (format!("{:?}", log.log_state()), entries)
    }

    fn holds(directory: &Path, text: &str) -> bool {
        fs::read_dir(directory).unwrap().any(|entry| {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            bytes.windows(text.len()).any(|part| part == text.as_bytes())
        })
    }

    #[test]
    fn a_log_stays_the_same_when_encryption_is_turned_on_and_off() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        written(&log);
        let before = read(&log, &AtRest::default());
        assert!(before.1.len() == 290 && holds(&log, "telling value 200"));
        let on = AtRest::for_tests(directory.path(), KEYS[0]);
        for _ in 0..2 {
            convert(&log, &on).unwrap();
            assert_eq!(read(&log, &on), before);
            assert!(!holds(&log, "telling"));
        }
        on.converted().unwrap();
        let off = AtRest::for_tests(directory.path(), &format!("none\n{}", KEYS[0]));
        convert(&log, &off).unwrap();
        assert_eq!(read(&log, &AtRest::default()), before);
        assert!(holds(&log, "telling value 200"));
    }

    #[test]
    fn an_interrupted_exchange_is_completed_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let plain = AtRest::default();
        written(&at("log"));
        let before = read(&at("log"), &plain);
        // Begun, and not whole.
        fs::create_dir(at("log.new")).unwrap();
        fs::write(at("log.new/part"), b"part").unwrap();
        convert(&at("log"), &plain).unwrap();
        assert_eq!(read(&at("log"), &plain), before);
        // Whole, and the old log has lost its name.
        fs::rename(at("log"), at("log.new")).unwrap();
        fs::create_dir(at("log.old")).unwrap();
        convert(&at("log"), &plain).unwrap();
        assert_eq!(read(&at("log"), &plain), before);
        // The new log has its name, and the old one is not removed.
        fs::create_dir(at("log.old")).unwrap();
        convert(&at("log"), &plain).unwrap();
        assert_eq!(read(&at("log"), &plain), before);
        assert!(!at("log.new").exists() && !at("log.old").exists());
        // A log that was lost is not made up.
        fs::remove_dir_all(at("log")).unwrap();
        convert(&at("log"), &plain).unwrap();
        assert!(!at("log").exists());
    }
}
