//! STUB
use serde_json::Value;
use std::sync::Arc;

/// A JSON text that was checked, with its value. `text` is the compact rendering of `value`.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The text: what is stored and shown.
    pub text: Arc<str>,
    /// The parsed value; not stored.
    pub value: Value,
}

/// A text that is no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON; the byte offset where it goes wrong.
    #[error("{msg}")]
    Syntax {
        /// Byte offset.
        offset: usize,
        /// What is wrong.
        msg: String,
    },
    /// Nested deeper than the limit.
    #[error("the JSON text is nested deeper than {0} levels")]
    TooDeep(usize),
    /// A member name that only a JSON library's internals would write.
    #[error("the member name `{0}` is reserved")]
    Reserved(String),
}

/// Parses and checks a text: depth before anything is built, reserved names, last of duplicate members wins.
pub fn parse(_bytes: &[u8], _depth_max: usize) -> Result<Value, DocumentError> {
    todo!()
}

impl Document {
    /// The document of a value that [`parse`] made (or a part of it).
    pub fn new(_value: Value) -> Self {
        todo!()
    }
}
