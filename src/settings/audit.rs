//! The audit log: whether there is one, where, of what, and how much is retained.
//!
//! **Invariant:** the directory of the files is known before anything is opened.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use concord_model::access_key::Pattern;
use concord_service::audit;

/// What becomes of a request whose line can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditMode {
    /// There is no audit log.
    Off,
    /// The request goes on, and an alarm is raised.
    On,
    /// Writes are refused, and a write is answered when its line is on the disk.
    Strict,
}

/// The audit log.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// The audit log: `off`; `on`, where requests wait for nothing and an alarm says what is lost; or `strict`, where no
    /// write is carried out without its line
    #[arg(long, env = "CONCORD_AUDIT", value_enum, default_value = "on", value_name = "MODE")]
    pub audit: AuditMode,
    /// The directory of the audit log; by default `audit` in the data directory
    #[arg(long, env = "CONCORD_AUDIT_DIR", value_name = "DIR")]
    pub audit_dir: Option<PathBuf>,
    /// Definitions whose reads are recorded: keys, or beginnings of keys with `*` at the end, with commas between; `*`
    /// records all reads
    #[arg(long, env = "CONCORD_AUDIT_READS", value_delimiter = ',', value_parser = parse_pattern, value_name = "LIST")]
    pub audit_reads: Vec<Pattern>,
    /// Bytes of a file of the audit log after which the next one begins
    #[arg(long, env = "CONCORD_AUDIT_FILE_BYTES", default_value_t = 64 << 20, value_name = "N")]
    pub audit_file_bytes: u64,
    /// Files of the audit log that are retained; the oldest is removed when there is one more
    #[arg(long, env = "CONCORD_AUDIT_FILES", default_value_t = 16, value_name = "N")]
    pub audit_files: usize,
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|error| error.to_string())
}

impl AuditArgs {
    /// The checked settings.
    ///
    /// # Errors
    /// When a file could hold nothing, or none would be retained.
    pub(super) fn check(self, data_dir: &Path) -> Result<audit::AuditOptions, String> {
        if self.audit_file_bytes < 1 << 12 {
            return Err("--audit-file-bytes must be at least 4096".into());
        }
        if self.audit_files < 2 {
            return Err("--audit-files must be at least 2".into());
        }
        let mode = match self.audit {
            AuditMode::Off => audit::AuditPolicy::Off,
            AuditMode::On => audit::AuditPolicy::Alarm,
            AuditMode::Strict => audit::AuditPolicy::Strict,
        };
        Ok(audit::AuditOptions {
            mode,
            directory: self.audit_dir.unwrap_or_else(|| data_dir.join(audit::DIRECTORY)),
            reads: self.audit_reads,
            file_bytes: self.audit_file_bytes,
            files_max: self.audit_files,
        })
    }
}
