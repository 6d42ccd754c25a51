//! A config as a type of the program's.
//!
//! **Invariant:** data that the type does not admit never replace data that it does: a program goes on with what it
//! understood last, and can ask why.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use serde::de::DeserializeOwned;

use super::{Cache, Config, Source, report::Check};
use crate::Error;

/// A config as a type of the program's. It is read again only when it has changed.
pub struct Typed<T> {
    cache: Cache,
    definition: String,
    key: String,
    last: Mutex<Last<T>>,
    /// By which the cache reports that the type does not admit a candidate.
    _check: Arc<Check>,
}

struct Last<T> {
    /// What was looked at last.
    seen: Option<Arc<Config>>,
    /// What the type admitted last, with its revision.
    good: Option<(Arc<T>, Arc<Config>)>,
    rejected: Option<String>,
}

/// A value, and where it comes from.
#[derive(Debug, Clone)]
pub struct TypedRead<T> {
    /// The value.
    pub value: Arc<T>,
    /// The revision of the config that it was read from. 0 for a candidate.
    pub revision: u64,
    /// The id of the change request whose candidate it was read from; `None` for what is proven.
    pub variant: Option<String>,
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

impl<T: DeserializeOwned> Typed<T> {
    pub(super) fn new(cache: Cache, definition: String, key: String) -> Self {
        let last = Mutex::new(Last { seen: None, good: None, rejected: None });
        let check = cache.check(definition.clone(), key.clone(), |config| admitted::<T>(config).map(drop));
        Self { cache, definition, key, last, _check: check }
    }

    /// The value; `None` if there is no such config.
    ///
    /// # Errors
    /// As [`Cache::get`]; [`Error::Protocol`] when the type does not admit the data, and admitted none before.
    pub fn get(&self) -> Result<Option<TypedRead<T>>, Error> {
        let Some(read) = self.cache.get(&self.definition, &self.key)? else { return Ok(None) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !last.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &read.config)) {
            match admitted(&read.config) {
                Ok(value) => {
                    last.good = Some((Arc::new(value), read.config.clone()));
                    last.rejected = None;
                }
                Err(error) => last.rejected = Some(error),
            }
            last.seen = Some(read.config.clone());
        }
        let rejected = last.rejected.clone();
        match (&last.good, &rejected) {
            (Some((value, config)), _) => Ok(Some(TypedRead {
                value: value.clone(),
                revision: config.revision,
                variant: config.variant.clone(),
                source: read.source,
                rejected,
            })),
            (None, text) => Err(Error::Protocol(text.clone().unwrap_or_default())),
        }
    }
}

/// The value that a type makes of a config, or why it makes none.
fn admitted<T: DeserializeOwned>(config: &Config) -> Result<T, String> {
    let Config { definition, key, revision, variant, data, .. } = config;
    T::deserialize(data).map_err(|error| match variant {
        Some(change) => format!("{definition}/{key} of change request {change}: {error}"),
        None => format!("{definition}/{key} at revision {revision}: {error}"),
    })
}
