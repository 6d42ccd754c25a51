//! A backup: the snapshot file of a state that contains every write acknowledged before the request, at the consistency
//! that the caller asks for.
//!
//! **Invariant:** a backup never delays writes: the snapshot is taken of an immutable state.

use super::{
    Service,
    request::{Consistency, Refusal},
};
use crate::model::record::Revision;

/// A snapshot file, open for reading. It stays readable when a newer one replaces it.
#[derive(Debug)]
pub struct Backup {
    /// The state's revision.
    pub revision: Revision,
    /// The file's length.
    pub bytes: u64,
    /// The file.
    pub file: tokio::fs::File,
}

impl Service {
    /// The snapshot file of a state that satisfies the consistency.
    ///
    /// # Errors
    /// When no such state can be confirmed in time, or the file can't be written.
    pub async fn backup(&self, consistency: Consistency) -> Result<Backup, Refusal> {
        self.view(consistency).await?;
        let consensus = self.consensus_or_refusal()?;
        let (snapshot, file) = consensus.fresh_snapshot().await.map_err(Refusal::Internal)?;
        Ok(Backup { revision: snapshot.position.index, bytes: snapshot.bytes, file })
    }
}
