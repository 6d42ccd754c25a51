//! The transition function: (state, revision, proposal) to (verdict, next state, change).
//!
//! **Invariant:** the result depends on the arguments alone. Limits of intake are not looked at: what has been
//! agreed on is never refused later.

mod batch;

use std::sync::Arc;

use super::{ByAge, ById, ByKey, ByTime, Change, Collection, Edit, Remembered, State, digest};
use crate::model::{
    command::{Applied, BATCH_STEPS_MAX, Command, Expect, Outcome, Proposal, THIS_ENTRY, Verdict},
    error::Rejection,
    index::Indexing,
    key::Key,
    limits::{REQUEST_AGE_US, REQUESTS_MAX},
    record::{Config, Definition, Revision, STEP_BITS},
    time::Timestamp,
};

/// Answers that one entry forgets at most, so that no entry is expensive. A new entry adds one, so this drains.
const FORGOTTEN_PER_ENTRY: usize = 16;

/// The place and time of the entry that is being applied.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) revision: Revision,
    pub(super) at: Timestamp,
    /// The place in the entry's batch; 0 for a change that is an entry of its own.
    step: u32,
}

impl Stamp {
    /// The id of a definition that is made here.
    fn id(self) -> u64 {
        const { assert!(BATCH_STEPS_MAX <= 1 << STEP_BITS) };
        (self.revision << STEP_BITS) + u64::from(self.step)
    }
}

impl State {
    /// An entry without a command (blank, membership): only the revision grows.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = revision;
    }

    /// Decides a proposal at its place in the log. The change is `None` when nothing that is stored has changed.
    ///
    /// A request that was decided before gets its outcome again; one whose answer has grown too old counts as new.
    pub fn apply(&mut self, revision: Revision, proposal: &Proposal) -> (Verdict, Option<Change>) {
        self.revision = revision;
        // The time is used up only when something is stored with it: entries without effect leave no trace.
        let stamp = Stamp { revision, at: proposal.at.after(self.last_at), step: 0 };
        if let Some(request) = &proposal.request
            && let Some(known) = self.remembered(&request.id)
            && !crate::sabotage::is("retry-twice")
            && stamp.at.0.saturating_sub(known.at.0) <= REQUEST_AGE_US
        {
            return (Verdict::Decided(known.answer_to(request)), None);
        }
        let mut edits = Vec::new();
        let decided = if let Command::Batch(steps) = &proposal.command {
            self.decide_batch(stamp, steps, &mut edits)
        } else if self.is_stale(revision, proposal.definition_read, &proposal.command) {
            None
        } else {
            Some(self.decide(stamp, &proposal.command, &mut edits))
        };
        let Some(outcome) = decided else { return (Verdict::Stale, None) };
        // A batch uses up a time for each of its steps.
        let stamp = Stamp { at: outcome.as_ref().map_or(stamp.at, |applied| applied.at), ..stamp };
        if let Some(request) = proposal.request {
            self.forget(stamp, &request.id, &mut edits);
            let kept = Remembered { stamp: request, at: stamp.at, revision, outcome: outcome.clone() };
            self.remember(kept.clone());
            edits.push(Edit::Remember(kept));
        }
        if edits.is_empty() {
            return (Verdict::Decided(outcome), None);
        }
        self.last_at = stamp.at;
        let (by, reason) = (proposal.by.clone(), proposal.reason.clone());
        let change = Change { revision, at: stamp.at, by, reason, edits };
        (Verdict::Decided(outcome), Some(change))
    }

    /// Whether what the command was made from has changed since: the definition that it was checked against, or
    /// the record that it was computed from.
    fn is_stale(&self, revision: Revision, definition_read: Option<Revision>, command: &Command) -> bool {
        if crate::sabotage::is("stale-check-skipped") {
            return false;
        }
        let mut configs_read = None;
        let (definition, record) = match command {
            Command::SetIndexes { key, expect, .. } => (key, (*expect, None)),
            Command::WriteConfig { definition, key, expect, .. } => (definition, (*expect, Some(key))),
            Command::DeleteConfig { definition, key, expect } => (definition, (*expect, Some(key))),
            Command::SetSchema { key, expect, configs_read: read, .. }
            | Command::SetUnique { key, expect, configs_read: read, .. } => {
                configs_read = *read;
                (key, (*expect, None))
            }
            // A step of a build looks by itself whether it is the next one.
            Command::CreateDefinition { .. }
            | Command::DeleteDefinition { .. }
            | Command::Compact { .. }
            | Command::BuildIndex { .. }
            | Command::Batch(_) => return false,
        };
        let Some(found) = self.definition(definition.as_str()) else { return false };
        let current = found.definition.revision;
        let own = |read| if read == THIS_ENTRY { revision } else { read };
        let differs = |read: Option<Revision>| match record.1 {
            None => read.map(own) != Some(current),
            Some(key) => read.map(own) != found.config(key.as_str()).map(|config| config.revision),
        };
        definition_read.is_some_and(|read| own(read) != current)
            || matches!(record.0, Expect::Read(read) if differs(read))
            || configs_read.is_some_and(|read| found.newest_config() > read)
    }

    fn decide(&mut self, stamp: Stamp, command: &Command, edits: &mut Vec<Edit>) -> Outcome {
        match command {
            Command::CreateDefinition { key, indexes, schema } => {
                if self.definition(key.as_str()).is_some() {
                    return Err(Rejection::DefinitionExists);
                }
                let definition = Arc::new(Definition {
                    id: stamp.id(),
                    key: key.clone(),
                    indexes: indexes.clone(),
                    schema: schema.clone(),
                    indexing: Indexing::fresh(indexes.len()),
                    created_at: stamp.at,
                    modified_at: stamp.at,
                    revision: stamp.revision,
                    unique: Vec::new(),
                });
                self.put(Collection::new(Arc::clone(&definition)));
                edits.push(Edit::Definition { before: None, after: Some(definition) });
                Ok(applied(stamp, true))
            }
            Command::SetIndexes { key, indexes, expect } => {
                self.expect_definition(key, *expect)?;
                self.set_indexes(stamp, key, indexes, edits);
                Ok(applied(stamp, false))
            }
            Command::DeleteDefinition { key, expect, restrict } => {
                let configs = self.expect_definition(key, *expect)?;
                if *restrict && configs > 0 {
                    return Err(Rejection::DefinitionNotEmpty(configs));
                }
                if let Some(old) = self.take(key) {
                    // The state that is published still shares the subtree: whoever drops that one frees it.
                    edits.push(Edit::Definition { before: Some(Arc::clone(&old.definition)), after: None });
                }
                Ok(applied(stamp, false))
            }
            Command::WriteConfig { definition, key, data, entries, expect } => {
                let before = self.expect_config(definition, key, *expect)?;
                self.expect_unique(definition, key, entries)?;
                let after = Config {
                    key: key.clone(),
                    data: Arc::clone(data),
                    entries: entries.clone(),
                    created_at: before.as_ref().map_or(stamp.at, |before| before.created_at),
                    modified_at: stamp.at,
                    revision: stamp.revision,
                };
                let created = before.is_none();
                self.edit_config(definition, before, Some(Arc::new(after)), edits);
                Ok(applied(stamp, created))
            }
            Command::DeleteConfig { definition, key, expect } => {
                let before = self.expect_config(definition, key, *expect)?;
                let before = before.ok_or(Rejection::ConfigNotFound)?;
                self.edit_config(definition, Some(before), None, edits);
                Ok(applied(stamp, false))
            }
            Command::Compact { compaction_revision } => {
                self.raise_compaction_revision(*compaction_revision);
                Ok(applied(stamp, false))
            }
            Command::SetSchema { key, schema, expect, .. } => {
                self.expect_definition(key, *expect)?;
                let schema = schema.clone();
                self.redefine(stamp, key, |old| Definition { schema, ..old }, edits);
                Ok(applied(stamp, false))
            }
            Command::SetUnique { key, paths, expect, .. } => {
                self.expect_definition(key, *expect)?;
                let unique = paths.clone();
                self.redefine(stamp, key, |old| Definition { unique, ..old }, edits);
                Ok(applied(stamp, false))
            }
            Command::BuildIndex { key, begun, cursor } => {
                self.build_index(key, *begun, cursor.as_ref(), edits);
                Ok(applied(stamp, false))
            }
            // `decide_batch` has these; a batch holds none.
            Command::Batch(_) => Ok(applied(stamp, false)),
        }
    }

    /// The number of configs of a definition that is as expected.
    fn expect_definition(&self, key: &Key, expect: Expect) -> Result<u64, Rejection> {
        let found = self.definition(key.as_str()).ok_or(Rejection::DefinitionNotFound)?;
        let current = found.definition.revision;
        match expect {
            Expect::At(revision) if revision != current => Err(Rejection::Precondition { current }),
            Expect::None => Err(Rejection::Precondition { current }),
            Expect::Absent => Err(Rejection::DefinitionExists),
            // What was read is as it was, or the verdict were stale.
            Expect::Any | Expect::Present | Expect::At(_) | Expect::Read(_) => Ok(found.by_key.len()),
        }
    }

    /// The config as it is, when it is as expected.
    fn expect_config(
        &self,
        definition: &Key,
        key: &Key,
        expect: Expect,
    ) -> Result<Option<Arc<Config>>, Rejection> {
        let collection = self.definition(definition.as_str()).ok_or(Rejection::DefinitionNotFound)?;
        let found = collection.config(key.as_str());
        match (expect, found) {
            (Expect::Absent, Some(_)) => Err(Rejection::ConfigExists),
            (Expect::None, Some(found)) => Err(Rejection::Precondition { current: found.revision }),
            (Expect::At(revision), Some(found))
                if revision != found.revision && !crate::sabotage::is("precondition-ignored") =>
            {
                Err(Rejection::Precondition { current: found.revision })
            }
            (Expect::Present | Expect::At(_), None) => Err(Rejection::ConfigNotFound),
            (Expect::Any | Expect::Present | Expect::At(_) | Expect::Read(_), Some(found)) => {
                Ok(Some(Arc::clone(found)))
            }
            (Expect::Any | Expect::Absent | Expect::None | Expect::Read(_), None) => Ok(None),
        }
    }

    fn edit_config(
        &mut self,
        definition: &Key,
        before: Option<Arc<Config>>,
        after: Option<Arc<Config>>,
        edits: &mut Vec<Edit>,
    ) {
        let edited = self.by_key.edit(definition.as_str(), |found| {
            let changing = Arc::make_mut(&mut found.record);
            let sum = changing.sum;
            changing.edit(before.as_ref(), after.as_ref());
            (changing.definition.id, changing.sum.wrapping_sub(sum))
        });
        let Some((id, sum)) = edited else { return };
        self.sum = self.sum.wrapping_add(sum);
        self.configs = self.configs - u64::from(before.is_some()) + u64::from(after.is_some());
        edits.push(Edit::Config { definition: id, before, after });
    }

    /// Adds a collection to all orders and to the digest.
    pub(super) fn put(&mut self, collection: Collection) {
        let definition = Arc::clone(&collection.definition);
        self.sum = self.sum.wrapping_add(digest::of_definition(&definition)).wrapping_add(collection.sum);
        self.configs += collection.by_key.len();
        self.by_key.insert(ByKey::new(Arc::new(collection)));
        if definition.indexing.build.is_some() {
            self.building.insert(ByKey::new(Arc::clone(&definition)));
        }
        self.by_created.insert(ByTime { at: definition.created_at, of: Arc::clone(&definition) });
        self.by_modified.insert(ByTime { at: definition.modified_at, of: definition });
    }

    /// Takes a collection out of all orders and of the digest.
    pub(super) fn take(&mut self, key: &Key) -> Option<Arc<Collection>> {
        let old = self.by_key.remove(key.as_str())?.record;
        let definition = &old.definition;
        self.building.remove(key.as_str());
        self.by_created.remove((definition.created_at, key.as_str()));
        self.by_modified.remove((definition.modified_at, key.as_str()));
        self.sum = self.sum.wrapping_sub(digest::of_definition(definition)).wrapping_sub(old.sum);
        self.configs -= old.by_key.len();
        Some(old)
    }

    /// Forgets the answers that are too old or too many, and an old one of the same request.
    fn forget(&mut self, stamp: Stamp, id: &[u8; 16], edits: &mut Vec<Edit>) {
        if let Some(old) = self.remembered(id).cloned() {
            self.drop_request(old, edits);
        }
        for _ in 0..FORGOTTEN_PER_ENTRY {
            let Some(oldest) = self.requests_by_age.at(0).map(|oldest| &oldest.0) else { return };
            let too_old = stamp.at.0.saturating_sub(oldest.at.0) > REQUEST_AGE_US;
            if !too_old && self.requests.len() < REQUESTS_MAX as u64 {
                return;
            }
            let oldest = (**oldest).clone();
            self.drop_request(oldest, edits);
        }
    }

    fn drop_request(&mut self, old: Remembered, edits: &mut Vec<Edit>) {
        self.requests.remove(&old.stamp.id);
        self.requests_by_age.remove(old.revision);
        self.sum = self.sum.wrapping_sub(digest::of_request(&old));
        edits.push(Edit::Forget(old));
    }

    pub(super) fn remember(&mut self, request: Remembered) {
        self.sum = self.sum.wrapping_add(digest::of_request(&request));
        let request = Arc::new(request);
        self.requests.insert(ById(Arc::clone(&request)));
        self.requests_by_age.insert(ByAge(request));
    }
}

fn applied(stamp: Stamp, created: bool) -> Applied {
    Applied { revision: stamp.revision, at: stamp.at, created }
}

impl Collection {
    pub(super) fn new(definition: Arc<Definition>) -> Self {
        Self::from_configs(definition, Vec::new())
    }

    /// Replaces a config; one of the two may be absent.
    pub(super) fn edit(&mut self, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        let id = self.definition.id;
        if let Some(before) = before {
            self.sum = self.sum.wrapping_sub(digest::of_config(id, before));
            self.count_repeated(before, |count| *count -= 1);
            if after.is_none() {
                self.by_key.remove(before.key.as_str());
            }
        }
        if let Some(after) = after {
            self.sum = self.sum.wrapping_add(digest::of_config(id, after));
            self.count_repeated(after, |count| *count += 1);
            self.by_key.insert(ByKey::new(Arc::clone(after)));
        }
        // Each write of a definition with unique paths looks into its orders: trailing would cost more than it saves.
        let configs = if self.definition.unique.is_empty() { self.by_key.len() } else { 0 };
        self.trailing.edit(&self.definition.indexing, configs, before, after);
    }

    /// Calls `count` for each entry that is not the first of its slot; entries of dropped paths count nowhere.
    pub(super) fn count_repeated(&mut self, config: &Config, count: impl Fn(&mut u64)) {
        for pair in config.entries.windows(2).filter(|pair| pair[0].slot == pair[1].slot) {
            let place = self.place(pair[1].slot);
            place.and_then(|place| self.repeated.get_mut(place)).into_iter().for_each(&count);
        }
    }
}

mod redefine;
#[cfg(test)]
pub(super) mod tests;
