//! STUB
use serde::{Deserialize, Serialize};
use std::path::Path;
/// Whose directory this is: `identity.json`, written once, fsynced with its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster_id: uuid::Uuid,
    pub node_id: u64,
    pub format: u32,
}
impl Identity {
    pub fn read(_directory: &Path) -> Result<Option<Self>, String> {
        todo!()
    }
    pub fn write(&self, _directory: &Path) -> Result<(), String> {
        todo!()
    }
}
