//! STUB
use super::{Remembered, State};
use crate::model::{record::{Config, Definition, Revision}, time::Timestamp};
/// Builds a State from its stored records, given in any order of definitions; a definition comes before its configs,
/// and configs of one definition ascend by key.
#[derive(Debug)]
pub struct Builder;
/// Records that are no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);
impl Builder {
    pub fn new() -> Self { todo!() }
    pub fn definition(&mut self, _d: Definition) -> Result<(), BuildError> { todo!() }
    pub fn config(&mut self, _definition: Revision, _c: Config) -> Result<(), BuildError> { todo!() }
    /// Oldest first.
    pub fn request(&mut self, _r: Remembered) -> Result<(), BuildError> { todo!() }
    /// Computes orders and digest.
    pub fn finish(self, _revision: Revision, _last_at: Timestamp) -> Result<State, BuildError> { todo!() }
}
