//! Returns the initial state of a watch in bounded chunks of one snapshot of the state.
//!
//! While the snapshot is read, its records stay in memory although they may have been replaced. So it is one of the
//! pinned states of the node, whose bytes are bounded, and it is retained for a bounded time. A client that is too slow
//! must resync.
//!
//! **Invariant:** all chunks have one revision. Together they contain each requested record of that revision once.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{filter::WatchSelection, scope::WatchScope};
use crate::{
    Principal, RedactedRecords, Refusal,
    read::pinned::WatchPin,
    redaction::{Redaction, Redactor},
};
use concord_model::{
    key::Key,
    limits::WATCH_INITIAL_TIMEOUT,
    record::{Config, Definition, Revision},
    system::rollout::Reader,
};
use concord_state::{Collection, State, seen::SeenConfig};

/// Records of a chunk at most.
const CHUNK_RECORDS_MAX: usize = 500;
/// Bytes of a chunk after which no record is added.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Configs that are examined for one chunk at most: about a millisecond.
const CHUNK_EXAMINED_MAX: usize = 5_000;

/// A chunk of the initial state.
#[derive(Debug, Default)]
pub struct InitialChunk {
    /// The state's revision.
    pub revision: Revision,
    /// Definitions.
    pub definitions: Vec<Arc<Definition>>,
    /// Configs with the keys of their definitions.
    pub configs: Vec<(Key, Arc<Config>)>,
    /// The change requests of whose rollouts the configs at these places are candidates.
    pub variants: BTreeMap<usize, Key>,
    /// The redacted fields of the configs.
    pub redacted: RedactedRecords,
    /// Bytes of their texts.
    pub bytes: usize,
    /// Whether it is the last chunk.
    pub is_last: bool,
}

/// A snapshot that is being read.
#[derive(Debug)]
pub(super) struct Initial {
    held: WatchPin,
    until: Instant,
    next: RecordPosition,
}

/// The position of the next record.
#[derive(Debug, Default)]
struct RecordPosition {
    /// The number of the definition.
    definition: u64,
    /// The number of its config. `None` for the definition itself.
    config: Option<u64>,
}

impl InitialChunk {
    /// Adds a config, or what its reader sees in place of it.
    fn add(&mut self, definition: &Key, proven: &Arc<Config>, seen: Option<SeenConfig>) {
        let config = match seen {
            None => Arc::clone(proven),
            Some(SeenConfig { variant, config }) => {
                self.variants.insert(self.configs.len(), variant.change);
                config
            }
        };
        self.bytes += config.data.len();
        self.configs.push((definition.clone(), config));
    }

    /// The chunk as a client may see it.
    pub(super) async fn redacted(
        mut self,
        redactor: &Redactor,
        principal: &Principal,
        now: &State,
    ) -> Result<Self, Refusal> {
        // Configs of one definition follow each other.
        let mut last: Option<(Key, Redaction)> = None;
        for (number, (definition, config)) in self.configs.iter_mut().enumerate() {
            let known = last.as_ref().filter(|(key, _)| key == definition);
            let redaction = match known {
                Some((_, redaction)) => redaction.clone(),
                None => redactor.redaction(principal, now, definition.as_str(), self.revision).await?,
            };
            last = Some((definition.clone(), redaction.clone()));
            let (mut shown, places) = redactor.redact(redaction, vec![Arc::clone(config)]).await?;
            if let Some(shown) = shown.pop().filter(|_| !places.is_empty()) {
                *config = shown;
                self.redacted.insert(number, places);
            }
        }
        Ok(self)
    }
}

impl Initial {
    pub(super) fn new(held: WatchPin) -> Self {
        Self { held, until: Instant::now() + WATCH_INITIAL_TIMEOUT, next: RecordPosition::default() }
    }

    /// The next chunk as a reader sees it. `None` if the snapshot was released.
    pub(super) fn next_chunk(
        &mut self,
        selection: &WatchSelection,
        reader: Option<&Reader>,
    ) -> Option<InitialChunk> {
        let state = self.held.state().filter(|_| Instant::now() < self.until)?;
        let mut chunk = InitialChunk { revision: state.revision(), ..InitialChunk::default() };
        let mut examined = 0;
        while chunk.definitions.len() + chunk.configs.len() < CHUNK_RECORDS_MAX
            && chunk.bytes < CHUNK_BYTES
            && examined < CHUNK_EXAMINED_MAX
        {
            let Some(next) = definition(&state, selection.scope(), self.next.definition) else {
                chunk.is_last = true;
                break;
            };
            let Some(found) = next else {
                self.next.definition += 1;
                examined += 1;
                continue;
            };
            let Some(place) = self.next.config else {
                chunk.bytes += found.definition.schema.as_ref().map_or(0, |schema| schema.len());
                chunk.definitions.push(Arc::clone(&found.definition));
                self.next.config = Some(0);
                continue;
            };
            examined += 1;
            match config(found, selection.scope(), place) {
                Some(config) => {
                    self.next.config = Some(place + 1);
                    if let Some(config) = config.filter(|config| selection.matches(config)) {
                        let seen = state.seen_by(found.definition.id, config, reader);
                        chunk.add(&found.definition.key, config, seen);
                    }
                }
                None => self.next = RecordPosition { definition: self.next.definition + 1, config: None },
            }
        }
        Some(chunk)
    }
}

/// The requested definition at a position. The inner `None` is a definition that does not exist or is not visible.
fn definition<'a>(state: &'a State, scope: &WatchScope, place: u64) -> Option<Option<&'a Arc<Collection>>> {
    let by_key = |key: &Key| state.definition(key.as_str());
    match scope {
        WatchScope::Visible(_) | WatchScope::Matching(_) => {
            let keys = scope.key_set()?;
            let is_visible = |found: &&Arc<Collection>| keys.contains(found.definition.key.as_str());
            state.definition_at(place).map(|found| Some(found).filter(is_visible))
        }
        WatchScope::Definitions(keys) => keys.iter().nth(usize::try_from(place).ok()?).map(by_key),
        WatchScope::Configs(key, _) => (place == 0).then(|| by_key(key)),
        WatchScope::ChangeRequests(_) => None,
    }
}

/// The requested config at a position. The inner `None` is a config that does not exist.
fn config<'a>(found: &'a Collection, scope: &WatchScope, place: u64) -> Option<Option<&'a Arc<Config>>> {
    match scope {
        WatchScope::Visible(_) | WatchScope::Matching(_) | WatchScope::Definitions(_) => {
            found.by_key.at(place).map(|item| Some(&item.record))
        }
        WatchScope::Configs(_, keys) => {
            keys.iter().nth(usize::try_from(place).ok()?).map(|key| found.config(key.as_str()))
        }
        WatchScope::ChangeRequests(_) => None,
    }
}
