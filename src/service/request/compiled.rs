//! The schema that a write brings, compiled once for all attempts at it.
//!
//! **Invariant:** what is given was compiled with the meaning of `format` that is asked for.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::model::{
    error::Violation,
    schema::{Formats, Schema},
};

/// A schema that is compiled on first use, and once: its write may be prepared many times while others change the
/// definition, and if each preparation compiled it again, a write that takes longer than theirs would never succeed.
#[derive(Debug, Clone, Default)]
pub struct Compiled(pub(in crate::service) Arc<OnceLock<CompiledBy>>);

/// A schema with the meaning of `format` with which it was compiled.
type CompiledBy = (Formats, Result<Arc<Schema>, Vec<Violation>>);

impl Compiled {
    pub(in crate::service) fn get(
        &self,
        value: &Value,
        formats: Formats,
    ) -> Result<Arc<Schema>, Vec<Violation>> {
        let compile = || Schema::compile(value, formats).map(Arc::new);
        let (by, compiled) = self.0.get_or_init(|| (formats, compile()));
        // It changes when another write has changed the definition: rarely.
        if *by == formats { compiled.clone() } else { compile() }
    }
}
