//! Reads the log of a stopped member, and writes the one with which it continues: in another cluster, or with members at
//! other addresses.
//!
//! **Invariant:** entries that are kept keep their places, and all but memberships keep their bytes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use openraft::EntryPayload;
use raft_log::api::raft_log_writer::RaftLogWriter as _;

use super::{
    Wal,
    conversion::{PORTION_BYTES, flush, remove, rename, sync},
};
use crate::{
    codec::{LogHeader, LogPayload},
    types::{Entry, Membership, Payload},
    wire::{WireLogId, WireVote},
};

/// How the log of a member continues in another cluster.
#[derive(Debug)]
pub(crate) struct Continuation {
    pub(crate) header: LogHeader,
    pub(crate) vote: WireVote,
    /// The last entry of the state that the log follows. A log without it is of no use after it.
    pub(crate) state: Option<WireLogId>,
    /// The index of the last entry that is kept.
    pub(crate) kept_upto: u64,
    /// What is appended, and committed with everything before it.
    pub(crate) appended: Vec<(WireLogId, Payload)>,
}

impl Wal {
    /// The entries from an index on.
    pub(crate) fn entries(&self, from: u64) -> impl Iterator<Item = io::Result<Entry>> + '_ {
        self.log.read(from, u64::MAX).map(|entry| {
            let (id, payload) = entry?;
            Ok(Entry { log_id: id.into(), payload: self.keys.open(&id, payload)?.try_into()? })
        })
    }

    /// The last entry that is known to be committed.
    pub(crate) fn committed(&self) -> Option<WireLogId> {
        self.log.log_state().committed().copied()
    }

    /// Whether the log has this entry, or had it before a purge.
    pub(crate) fn has(&self, id: WireLogId) -> io::Result<bool> {
        let at = self.log.read(id.index, id.index.saturating_add(1)).next().transpose()?;
        Ok(at.is_some_and(|(found, _)| found == id) || self.log.log_state().purged() >= Some(&id))
    }

    /// Writes the log as it continues into a new directory, durably. Blocking.
    pub(crate) fn write_continued(&self, directory: &Path, continuation: Continuation) -> io::Result<()> {
        let last = continuation.appended.last().map(|(id, _)| *id);
        self.write(directory, continuation, last)
    }

    /// The same with entries that are not known to be committed.
    #[cfg(test)]
    pub(crate) fn write_uncommitted(&self, directory: &Path, continuation: Continuation) -> io::Result<()> {
        self.write(directory, continuation, self.committed())
    }

    fn write(
        &self,
        directory: &Path,
        continuation: Continuation,
        committed: Option<WireLogId>,
    ) -> io::Result<()> {
        let Continuation { header, vote, state, kept_upto, appended } = continuation;
        let keeps = state.map_or(Ok(true), |state| self.has(state))?;
        let kept = self.log.read(0, if keeps { kept_upto.saturating_add(1) } else { 0 });
        let seal =
            |(id, payload): (WireLogId, Payload)| (id, self.keys.seal(&id, LogPayload::from(&payload)));
        let appended = appended.into_iter().map(|entry| Ok(seal(entry)));
        let purged = if keeps { self.log.log_state().purged().copied() } else { state };
        let content = LogContent {
            header: Some(header),
            vote: Some(vote),
            purged,
            entries: kept.chain(appended),
            committed,
        };
        content.write(directory)
    }

    /// Writes the log with other memberships into a new directory, durably. Blocking.
    pub(crate) fn write_with(
        &self,
        directory: &Path,
        change: impl Fn(Membership) -> Membership,
    ) -> io::Result<()> {
        let entries = self.log.read(0, u64::MAX).map(|entry| -> io::Result<(WireLogId, LogPayload)> {
            let (id, payload) = entry?;
            let opened: Payload = self.keys.open(&id, payload.clone())?.try_into()?;
            let EntryPayload::Membership(members) = opened else { return Ok((id, payload)) };
            let changed = LogPayload::from(&EntryPayload::Membership(change(members)));
            Ok((id, self.keys.seal(&id, changed)))
        });
        let state = self.log.log_state();
        let content = LogContent {
            header: self.header(),
            vote: state.vote().copied(),
            purged: state.purged().copied(),
            entries,
            committed: state.committed().copied(),
        };
        content.write(directory)
    }
}

/// What a log is written with.
struct LogContent<Entries> {
    header: Option<LogHeader>,
    vote: Option<WireVote>,
    purged: Option<WireLogId>,
    entries: Entries,
    committed: Option<WireLogId>,
}

impl<Entries: Iterator<Item = io::Result<(WireLogId, LogPayload)>>> LogContent<Entries> {
    fn write(self, directory: &Path) -> io::Result<()> {
        {
            let mut to = Wal::open(directory)?.log;
            if let Some(vote) = self.vote {
                to.save_vote(vote)?;
            }
            to.save_user_data(self.header)?;
            if let Some(purged) = self.purged {
                to.purge(purged)?;
            }
            let (mut portion, mut bytes) = (Vec::new(), 0);
            for entry in self.entries {
                let (id, payload) = entry?;
                bytes += payload.bytes.len();
                portion.push((id, payload));
                if bytes >= PORTION_BYTES {
                    to.append(std::mem::take(&mut portion))?;
                    flush(&mut to)?;
                    bytes = 0;
                }
            }
            to.append(portion)?;
            if let Some(committed) = self.committed {
                to.commit(committed)?;
            }
            flush(&mut to)?;
        }
        sync(directory)
    }
}

/// Puts a log that was written here in the place of the log. Blocking.
pub(crate) fn replace(log: &Path, continued: &Path) -> io::Result<()> {
    let old = log.with_extension("old");
    if log.exists() {
        remove(&old)?;
        rename(log, &old)?;
    }
    rename(continued, log)?;
    remove(&old)
}

/// Removes the logs beside the log with this prefix: they were never whole, or are no longer needed. Blocking.
pub(crate) fn remove_unfinished(log: &Path, beginning: &str) -> io::Result<()> {
    for path in beside(log, beginning)? {
        remove(&path)?;
    }
    Ok(())
}

fn beside(log: &Path, beginning: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(log.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(beginning) {
            found.push(entry.path());
        }
    }
    Ok(found)
}
