//! A backup: the snapshot file of a state that is at least as new as every write acknowledged before it was asked
//! for. Writes go on meanwhile: the state is immutable.

use super::{Consistency, Refusal, Service};
use crate::model::record::Revision;

/// A snapshot file that is open for reading. It stays readable when newer ones take its place.
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
    /// The file of a state that is as fresh as asked.
    ///
    /// # Errors
    /// When that can't be had in time, or the disk refuses.
    pub async fn backup(&self, consistency: Consistency) -> Result<Backup, Refusal> {
        self.view(consistency).await?;
        let consensus = self.consensus_or_refusal()?;
        let (snapshot, file) = consensus.fresh_snapshot().await.map_err(Refusal::Internal)?;
        Ok(Backup { revision: snapshot.position.index, bytes: snapshot.bytes, file })
    }
}
