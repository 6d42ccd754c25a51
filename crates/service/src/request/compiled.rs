//! The schema that a write brings, compiled once for all attempts at it.
//!
//! **Invariant:** what is given was compiled by the rules that are asked for.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use concord_model::{
    error::Violation,
    schema::{Schema, SchemaRules},
};

/// A schema that is compiled on first use, and once: its write may be prepared many times while others change the
/// definition, and if each preparation compiled it again, a write that takes longer than theirs would never succeed.
#[derive(Debug, Clone, Default)]
pub struct Compiled(pub(crate) Arc<OnceLock<CompiledBy>>);

/// A schema with the rules by which it was compiled.
type CompiledBy = (SchemaRules, Result<Arc<Schema>, Vec<Violation>>);

impl Compiled {
    pub(crate) fn get(&self, value: &Value, rules: SchemaRules) -> Result<Arc<Schema>, Vec<Violation>> {
        let compile = || Schema::compile(value, rules).map(Arc::new);
        let (by, compiled) = self.0.get_or_init(|| (rules, compile()));
        // The rules change when another write has changed the definition, or the feature level has risen: rarely.
        if *by == rules { compiled.clone() } else { compile() }
    }
}
