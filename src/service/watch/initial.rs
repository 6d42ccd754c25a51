//! The state that a watcher begins with, in bounded pieces of one picture.
//!
//! The picture is kept while it is read: its records stay in memory although they may have been replaced. So it
//! is kept for a bounded time; a watcher that has not read it by then begins anew.
//!
//! **Invariant:** all pieces are of one revision, and together they are all of it that the watcher asks for, once.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::task::AbortHandle;

use super::filter::{Scope, Selection};
use crate::{
    model::{
        key::Key,
        record::{Config, Definition, Revision},
    },
    state::{Collection, State},
};

/// How long a picture is kept for a reader.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Records of a piece.
const RECORDS: usize = 500;
/// Bytes of a piece after which no record is added.
const BYTES: usize = 256 << 10;
/// Records that are tested for one piece: about a millisecond.
const TESTED: usize = 5_000;

/// A part of the state.
#[derive(Debug, Default)]
pub struct Part {
    /// The state's revision.
    pub revision: Revision,
    /// Definitions.
    pub definitions: Vec<Arc<Definition>>,
    /// Configs with the keys of their definitions.
    pub configs: Vec<(Key, Arc<Config>)>,
    /// Whether it is the last.
    pub is_last: bool,
}

/// A picture that is being read.
#[derive(Debug)]
pub(super) struct Initial {
    state: Arc<Mutex<Option<Arc<State>>>>,
    guard: AbortHandle,
    /// Which definition comes next, and which of its configs; 0 is the definition itself.
    next: (u64, u64),
}

impl Initial {
    pub(super) fn new(state: Arc<State>) -> Self {
        let state = Arc::new(Mutex::new(Some(state)));
        let weak = Arc::downgrade(&state);
        let guard = tokio::spawn(async move {
            tokio::time::sleep(TIME_MAX).await;
            if let Some(state) = weak.upgrade() {
                state.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        });
        Self { state, guard: guard.abort_handle(), next: (0, 0) }
    }

    /// The next part; `None` when the time is over.
    pub(super) fn part(&mut self, selection: &Selection) -> Option<Part> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let mut part = Part { revision: state.revision(), ..Part::default() };
        let (mut bytes, mut tested) = (0, 0);
        while part.definitions.len() + part.configs.len() < RECORDS && bytes < BYTES && tested < TESTED {
            let Some(next) = definition(&state, selection.scope(), self.next.0) else {
                part.is_last = true;
                break;
            };
            let Some(found) = next else {
                self.next.0 += 1;
                continue;
            };
            if self.next.1 == 0 {
                bytes += found.definition.schema.as_ref().map_or(0, |schema| schema.len());
                part.definitions.push(Arc::clone(&found.definition));
                self.next.1 = 1;
                continue;
            }
            tested += 1;
            match config(found, selection.scope(), self.next.1 - 1) {
                Some(config) => {
                    self.next.1 += 1;
                    if let Some(config) = config.filter(|config| selection.shows(config)) {
                        bytes += config.data.len();
                        part.configs.push((found.definition.key.clone(), Arc::clone(config)));
                    }
                }
                None => self.next = (self.next.0 + 1, 0),
            }
        }
        Some(part)
    }
}

/// The definition at a place of those that are asked for; the inner `None` is one that does not exist.
fn definition<'a>(state: &'a State, scope: &Scope, place: u64) -> Option<Option<&'a Arc<Collection>>> {
    let named = |key: &Key| state.definition(key.as_str());
    match scope {
        Scope::All => state.definition_at(place).map(Some),
        Scope::Definitions(keys) => keys.iter().nth(usize::try_from(place).ok()?).map(named),
        Scope::Configs(key, _) => (place == 0).then(|| named(key)),
    }
}

/// The config at a place of those that are asked for; the inner `None` is one that does not exist.
fn config<'a>(found: &'a Collection, scope: &Scope, place: u64) -> Option<Option<&'a Arc<Config>>> {
    match scope {
        Scope::All | Scope::Definitions(_) => found.by_key.at(place).map(|item| Some(&item.record)),
        Scope::Configs(_, keys) => {
            keys.iter().nth(usize::try_from(place).ok()?).map(|key| found.config(key.as_str()))
        }
    }
}

impl Drop for Initial {
    fn drop(&mut self) {
        self.guard.abort();
    }
}
