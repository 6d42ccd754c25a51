//! A config as a type of the program's.
//!
//! **Invariant:** data that the type does not admit never replace data that it does: a program goes on with what it
//! understood last, and can ask why.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use serde::de::DeserializeOwned;

use super::{Cache, Config, Source};
use crate::Error;

/// A config as a type of the program's. It is read again only when it has changed.
pub struct Typed<T> {
    cache: Cache,
    definition: String,
    key: String,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    /// What was looked at last.
    seen: Option<Arc<Config>>,
    /// What the type admitted last, with its revision.
    good: Option<(Arc<T>, u64)>,
    rejected: Option<String>,
}

/// A value, and where it comes from.
#[derive(Debug, Clone)]
pub struct TypedRead<T> {
    /// The value.
    pub value: Arc<T>,
    /// The revision of the config that it was read from.
    pub revision: u64,
    /// Where the config comes from.
    pub source: Source,
    /// Why the value is that of an earlier revision: the type does not admit the data that the config has now.
    pub rejected: Option<String>,
}

impl<T> fmt::Debug for Typed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed")
            .field("definition", &self.definition)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl<T> Typed<T> {
    pub(super) fn new(cache: Cache, definition: String, key: String) -> Self {
        let last = Mutex::new(Last { seen: None, good: None, rejected: None });
        Self { cache, definition, key, last }
    }
}

impl<T: DeserializeOwned> Typed<T> {
    /// The value; `None` if there is no such config.
    ///
    /// # Errors
    /// As [`Cache::get`]; [`Error::Protocol`] when the type does not admit the data, and admitted none before.
    pub fn get(&self) -> Result<Option<TypedRead<T>>, Error> {
        let Some(read) = self.cache.get(&self.definition, &self.key)? else { return Ok(None) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !last.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &read.config)) {
            match serde_json::from_value(read.config.data.clone()) {
                Ok(value) => {
                    last.good = Some((Arc::new(value), read.config.revision));
                    last.rejected = None;
                }
                Err(error) => {
                    let (name, revision) = (self.name(), read.config.revision);
                    last.rejected = Some(format!("{name} at revision {revision}: {error}"));
                }
            }
            last.seen = Some(read.config.clone());
        }
        let rejected = last.rejected.clone();
        match (&last.good, &rejected) {
            (Some((value, revision)), _) => Ok(Some(TypedRead {
                value: value.clone(),
                revision: *revision,
                source: read.source,
                rejected,
            })),
            (None, text) => Err(Error::Protocol(text.clone().unwrap_or_default())),
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.definition, self.key)
    }
}
