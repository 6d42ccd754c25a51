//! STUB
use super::{Collection, State};
use crate::model::{
    query::{ConfigQuery, DefinitionQuery},
    record::{Config, Definition},
};
use std::sync::Arc;
/// A page and the exact number of all that match.
#[derive(Debug)]
pub struct Found<T> {
    pub results: Vec<T>,
    pub total: u64,
}
impl State {
    pub fn list(&self, _q: &DefinitionQuery) -> Found<Arc<Definition>> {
        todo!()
    }
}
impl Collection {
    pub fn list(&self, _q: &ConfigQuery) -> Found<Arc<Config>> {
        todo!()
    }
}
