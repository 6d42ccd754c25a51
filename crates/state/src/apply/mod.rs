//! The transition function: (state, revision, proposal) to (verdict, next state, change).
//!
//! A proposal is decided in three phases: is it stale, does its precondition hold, then the edit. A change of a config
//! looks its definition up once for each phase: the steps of a dry run skip the first, and the last descends the tree
//! mutably and copies the shared nodes on its path, so it happens only once the command is accepted.
//!
//! | file | what it does |
//! |---|---|
//! | `batch` | applies several changes atomically |
//! | `redefine` | replaces the schema or the unique fields of a definition |
//! | `idempotency` | keeps and expires idempotency records |
//!
//! **Invariant:** the result depends on the state and the arguments alone. The settings' limits are not applied here: a
//! proposal that was agreed on is never rejected later.

mod batch;
mod idempotency;
mod redefine;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;

use super::{
    ByKey, ByTime, Change, Collection, Edit, FeatureLevel, IndexSource, RememberedOutcome, State,
    deleted::ToKeep, digest, replaced::config_bytes, stored::content_bytes,
};
use batch::DecidedBatch;
use concord_model::{
    command::{
        Applied, Command, Done, Expect, Outcome, Proposal, StepOutcome, SystemCommand, THIS_ENTRY,
        Undeletion, Verdict, source::Source,
    },
    error::Rejection,
    feature::ROLLOUTS,
    index::Indexing,
    key::Key,
    limits::BATCH_STEPS_MAX,
    record::{Config, Definition, Revision, STEP_BITS, VoidRevisions},
    schema::StoredSchema,
    time::Timestamp,
};

/// The revision, time and batch step of the change that is being applied.
#[derive(Clone, Copy)]
pub(super) struct EntryContext {
    pub(super) revision: Revision,
    pub(super) at: Timestamp,
    /// The step of the batch; 0 for a change that is a proposal of its own.
    step: u32,
    /// Whether it is a step of a batch.
    pub(super) is_step: bool,
}

impl EntryContext {
    /// What is changed in the first state of a restored cluster has its revision.
    pub(super) fn of_restored(state: &State) -> Self {
        Self { revision: state.revision, at: state.last_at, step: 0, is_step: false }
    }

    /// A definition that this change creates.
    fn definition(self, key: &Key, indexes: &[String], schema: Option<&StoredSchema>) -> Definition {
        Definition {
            id: self.id(),
            key: key.clone(),
            indexes: indexes.to_vec(),
            schema: schema.cloned(),
            indexing: Indexing::of(indexes),
            created_at: self.at,
            modified_at: self.at,
            revision: self.revision,
            unique: Vec::new(),
            protected: false,
            standing: <_>::default(),
        }
    }

    /// The id of a definition or person that this change creates.
    pub(super) fn id(self) -> u64 {
        const { assert!(BATCH_STEPS_MAX <= 1 << STEP_BITS) };
        (self.revision << STEP_BITS) + u64::from(self.step)
    }

    /// The result of a change.
    pub(super) fn applied(self, done: StepOutcome) -> Applied {
        Applied { revision: self.revision, at: self.at, done: Done::Single(done) }
    }
}

impl State {
    /// Applies an entry without a proposal (blank, membership): only the revision grows.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = revision;
    }

    /// Decides a proposal at its revision. The change is `None` when no stored record changes.
    ///
    /// A request that was decided before gets the same outcome again; one whose outcome is forgotten counts as new.
    pub fn apply(&mut self, revision: Revision, proposal: &Proposal) -> (Verdict, Option<Change>) {
        self.revision = revision;
        // The time is used only when a record is stored with it: an entry without effect does not change `last_at`.
        let context = EntryContext { revision, at: proposal.at.after(self.last_at), step: 0, is_step: false };
        if let Some(request) = &proposal.request
            && let Some(known) = self.remembered(&request.id)
            && !concord_model::sabotage::is("retry-twice")
        {
            let is_same = known.request.fingerprint == request.fingerprint;
            let outcome = if is_same { known.outcome.clone() } else { Err(Rejection::RequestReused) };
            return (Verdict::Decided(outcome), None);
        }
        // No outcome is stored for an author without permissions: it would be an entry in their name.
        if let Some(verdict) = self.refused_author(context.at, proposal) {
            return (verdict, None);
        }
        // Nor for what environments reject, or what a change request lacks: the same request is decided when the freeze is
        // over, or the approval is there.
        let by_proposal = concord_model::sabotage::is("freeze-by-proposal-time");
        let at = if by_proposal { proposal.at } else { context.at };
        let record = match self.expect_allowed(at, proposal) {
            Ok(record) => record,
            Err(rejection) => return (Verdict::Decided(Err(rejection)), None),
        };
        if self.is_guard_stale(proposal, &record) {
            return (Verdict::Stale, None);
        }
        if let Command::SkipRevisions { to } = &proposal.command {
            return self.skip_revisions(context, *to, proposal);
        }
        let mut edits = Vec::new();
        // A clone is a snapshot: it is taken in constant time.
        let bounded = self.bounded_author(proposal).map(|author| (author, self.clone()));
        let decided = self.decide_proposal(context, proposal, &mut edits);
        let Some(mut outcome) = decided else { return (Verdict::Stale, None) };
        if let Some((author, before)) = bounded
            && outcome.is_ok()
            && let Err(rejection) = self.expect_within_quota(&author, &before)
        {
            *self = before;
            edits.clear();
            outcome = Err(rejection);
        }
        // A batch uses one time for each of its steps.
        let context =
            EntryContext { at: outcome.as_ref().map_or(context.at, |applied| applied.at), ..context };
        // The record comes last: until here, the change may be rejected.
        if outcome.is_ok() {
            self.make_change_record(context, proposal, record, &mut edits);
            self.drop_before_of_gone(context, &mut edits);
        }
        if let Some(request) = proposal.request
            && (outcome.is_ok() || self.stores_rejection(proposal))
        {
            self.make_room(context.at, &request.id, &mut edits);
            let remembered =
                RememberedOutcome { request, at: context.at, revision, outcome: outcome.clone() };
            self.remember(remembered.clone());
            edits.push(Edit::Remember(remembered));
        }
        if edits.is_empty() {
            return (Verdict::Decided(outcome), None);
        }
        self.last_at = context.at;
        let (by, reason) = (proposal.by.clone(), proposal.reason.clone());
        let change = Change { revision, at: context.at, by, reason, edits };
        (Verdict::Decided(outcome), Some(change))
    }

    /// Whether a rejection is stored for retries. One that is about a change request is not: what it lacks now, the same
    /// request may find later, as an approval, or a time without a freeze.
    fn stores_rejection(&self, proposal: &Proposal) -> bool {
        let is_of_change_request = matches!(&proposal.command, Command::System(SystemCommand::Change { .. }))
            || matches!(proposal.source(), Source::Change(_) | Source::Revert(_));
        !is_of_change_request || self.feature_level() < ROLLOUTS
    }

    /// Decides the command of a proposal; `None` when it is stale.
    fn decide_proposal(
        &mut self,
        context: EntryContext,
        proposal: &Proposal,
        edits: &mut Vec<Edit>,
    ) -> Option<Outcome> {
        if let Command::Batch(steps) = &proposal.command {
            let decided = self.decide_batch(context, (0..).zip(steps), edits);
            decided.map(|decided| {
                decided.map(|DecidedBatch { at, steps }| Applied {
                    revision: context.revision,
                    at,
                    done: Done::Batch(steps),
                })
            })
        } else if let Command::Transaction(transaction) = &proposal.command {
            self.decide_transaction(context, transaction, edits)
        } else if self.is_stale(self, context.revision, proposal.definition_read, &proposal.command) {
            None
        } else if let Command::Access(command) = &proposal.command {
            Some(self.decide_access(context, proposal, command, edits))
        } else if let Command::Audit(command) = &proposal.command {
            Some(Ok(self.decide_audit(context, proposal, command, edits)))
        } else if let Command::System(command) = &proposal.command {
            Some(self.decide_system(context, (proposal, command), edits))
        } else {
            Some(self.decide(context, &proposal.command, edits))
        }
    }

    /// Whether what the command depends on has changed since: the definition that it was validated against, the record
    /// that it was computed from, or the configs that the leader has checked. `before` is the state before the entry.
    fn is_stale(
        &self,
        before: &Self,
        revision: Revision,
        definition_read: Option<Revision>,
        command: &Command,
    ) -> bool {
        !concord_model::sabotage::is("stale-check-skipped")
            && (self.is_read_stale(revision, definition_read, command)
                || self.is_config_check_stale(before, command))
    }

    /// Whether the definition or the record that the command was made from has changed since.
    fn is_read_stale(
        &self,
        revision: Revision,
        definition_read: Option<Revision>,
        command: &Command,
    ) -> bool {
        let (definition, record) = match command {
            Command::SetIndexes { key, expect, .. }
            | Command::SetSchema { key, expect, .. }
            | Command::SetProtection { key, expect, .. }
            | Command::SetUnique { key, expect, .. } => (key, (*expect, None)),
            Command::WriteConfig { definition, key, expect, .. } => (definition, (*expect, Some(key))),
            Command::DeleteConfig { definition, key, expect } => (definition, (*expect, Some(key))),
            Command::UndeleteDefinition(Undeletion { key, of, .. }) => {
                return self.definition(key.as_str()).is_none() && self.place_of_deleted(*of).is_none();
            }
            // A step of a build checks itself whether it is the next one.
            Command::CreateDefinition { .. }
            | Command::DeleteDefinition { .. }
            | Command::Compact { .. }
            | Command::BuildIndex { .. }
            | Command::Batch(_)
            | Command::Transaction(_)
            | Command::RaiseFeatureLevel { .. }
            | Command::Forget { .. }
            | Command::Audit(_)
            | Command::SkipRevisions { .. } => return false,
            Command::Access(command) => return self.is_access_stale(command),
            Command::System(command) => return self.is_system_stale(command),
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
    }

    fn decide(&mut self, context: EntryContext, command: &Command, edits: &mut Vec<Edit>) -> Outcome {
        match command {
            Command::CreateDefinition { key, indexes, schema } => {
                if self.definition(key.as_str()).is_some() {
                    return Err(Rejection::DefinitionExists);
                }
                let definition = Arc::new(context.definition(key, indexes, schema.as_ref()));
                self.insert_collection(Collection::new(Arc::clone(&definition)));
                edits.push(Edit::Definition { before: None, after: Some(definition) });
                Ok(context.applied(StepOutcome::Created))
            }
            Command::SetIndexes { key, indexes, expect } => {
                self.expect_definition(key, *expect)?;
                self.set_indexes(context, key, indexes, edits);
                Ok(context.applied(StepOutcome::Changed))
            }
            Command::DeleteDefinition { key, expect, restrict, keep } => {
                self.expect_deletable(key, *expect, *restrict)?;
                Ok(self.delete_definition(context, key, *keep, edits))
            }
            Command::WriteConfig { definition, key, data, entries, expect } => {
                let collection = self.expect_collection(definition)?;
                let before = collection.expect_config(key, *expect)?;
                collection.unique_conflict(key.as_str(), entries).map_or(Ok(()), Err)?;
                let after = Config {
                    key: key.clone(),
                    data: Arc::clone(data),
                    entries: entries.clone(),
                    created_at: before.as_ref().map_or(context.at, |before| before.created_at),
                    modified_at: context.at,
                    revision: context.revision,
                };
                let done = if before.is_none() { StepOutcome::Created } else { StepOutcome::Changed };
                self.edit_config(definition, before, Some(Arc::new(after)), edits);
                Ok(context.applied(done))
            }
            Command::DeleteConfig { definition, key, expect } => {
                let before = self.expect_collection(definition)?.expect_config(key, *expect)?;
                let before = before.ok_or(Rejection::ConfigNotFound)?;
                self.edit_config(definition, Some(before), None, edits);
                Ok(context.applied(StepOutcome::Deleted))
            }
            Command::SetSchema { key, schema, expect, .. } => {
                self.expect_definition(key, *expect)?;
                self.redefine(context, key, |old| Definition { schema: schema.clone(), ..old }, edits);
                Ok(context.applied(StepOutcome::Changed))
            }
            Command::SetUnique { key, paths, expect, .. } => {
                self.expect_definition(key, *expect)?;
                let unique = paths.clone();
                self.redefine(context, key, |old| Definition { unique, ..old }, edits);
                Ok(context.applied(StepOutcome::Changed))
            }
            Command::SetProtection { key, protected, expect } => {
                self.expect_definition(key, *expect)?;
                let protected = *protected;
                self.redefine(context, key, |old| Definition { protected, ..old }, edits);
                Ok(context.applied(StepOutcome::Changed))
            }
            // The proposals of a leader itself have no precondition.
            Command::Compact { compaction_revision } => {
                self.raise_compaction_revision(*compaction_revision);
                self.drop_compacted(edits);
                Ok(context.applied(StepOutcome::NoRecord))
            }
            Command::BuildIndex { key, begun, cursor } => {
                self.build_index(key, *begun, cursor.as_ref(), edits);
                Ok(context.applied(StepOutcome::NoRecord))
            }
            Command::UndeleteDefinition(undeletion) => {
                self.undelete(context, undeletion, edits)?;
                Ok(context.applied(StepOutcome::Created))
            }
            Command::RaiseFeatureLevel { to } => Ok(self.raise_feature_level(context, *to)),
            Command::Forget { upto } => Ok(self.forget_upto(context, *upto, edits)),
            // `apply` handles these; a batch contains none.
            Command::Batch(_)
            | Command::Transaction(_)
            | Command::Access(_)
            | Command::Audit(_)
            | Command::System(_)
            | Command::SkipRevisions { .. } => Ok(context.applied(StepOutcome::NoRecord)),
        }
    }

    /// Rejects the deletion of a definition that is not as expected, or may not be deleted.
    fn expect_deletable(&self, key: &Key, expect: Expect, restrict: bool) -> Result<(), Rejection> {
        let configs = self.expect_definition(key, expect)?;
        if self.expect_collection(key)?.definition.protected {
            return Err(Rejection::DefinitionProtected(key.clone()));
        }
        if restrict && configs > 0 {
            return Err(Rejection::DefinitionNotEmpty(configs));
        }
        Ok(())
    }

    /// The compaction revision is never lowered and never exceeds the state's revision.
    pub(super) fn raise_compaction_revision(&mut self, compaction_revision: Revision) {
        self.compaction_revision = self.compaction_revision.max(compaction_revision.min(self.revision));
        // Of a compacted revision nothing is available anyway.
        if self.void.iter().any(|void| void.last < self.compaction_revision) {
            self.void =
                self.void.iter().filter(|void| void.last >= self.compaction_revision).copied().collect();
        }
    }

    /// Continues at a later revision. Those before it, from the one of the entry on, are void. The change tells the history
    /// of that; no record changes, and so neither does the time of the last change.
    fn skip_revisions(
        &mut self,
        context: EntryContext,
        to: Revision,
        proposal: &Proposal,
    ) -> (Verdict, Option<Change>) {
        let mut change = None;
        if to > self.revision {
            let skipped = VoidRevisions { first: self.revision, last: to - 1 };
            self.void = self.void.iter().copied().chain([skipped]).collect();
            self.revision = to;
            let (by, reason, edits) = (proposal.by.clone(), None, vec![Edit::Skipped(skipped)]);
            change = Some(Change { revision: to, at: self.last_at, by, reason, edits });
        }
        let done = Done::Single(StepOutcome::NoRecord);
        (Verdict::Decided(Ok(Applied { revision: self.revision, at: context.at, done })), change)
    }

    /// Raises the feature level when `to` is the next one, and changes nothing otherwise: the proposal of an earlier
    /// leader comes late. The levels that this version knows do not count: every node that applies the entry must
    /// decide the same, and a node that does not know the level cannot decode the entry.
    fn raise_feature_level(&mut self, context: EntryContext, to: u32) -> Applied {
        if to == self.feature_level.0 + 1 {
            self.feature_level = FeatureLevel(to);
        }
        context.applied(StepOutcome::NoRecord)
    }

    fn expect_collection(&self, definition: &Key) -> Result<&Collection, Rejection> {
        self.definition(definition.as_str()).map(Arc::as_ref).ok_or(Rejection::DefinitionNotFound)
    }

    /// The number of configs of a definition that meets the precondition.
    fn expect_definition(&self, key: &Key, expect: Expect) -> Result<u64, Rejection> {
        let found = self.expect_collection(key)?;
        let current = found.definition.revision;
        match expect {
            Expect::At(revision) if revision != current => Err(Rejection::Precondition { current }),
            Expect::None => Err(Rejection::Precondition { current }),
            Expect::Absent => Err(Rejection::DefinitionExists),
            // A record that differs from the one read makes the verdict stale, which is decided before.
            Expect::Any | Expect::Present | Expect::At(_) | Expect::Read(_) => Ok(found.by_key.len()),
        }
    }

    pub(super) fn edit_config(
        &mut self,
        definition: &Key,
        before: Option<Arc<Config>>,
        after: Option<Arc<Config>>,
        edits: &mut Vec<Edit>,
    ) {
        let edited = self.by_key.edit(definition.as_str(), |found| {
            let changing = Arc::make_mut(&mut found.record);
            let (sum, bytes) = (changing.sum, changing.bytes);
            changing.edit(before.as_ref(), after.as_ref());
            (changing.definition.id, changing.sum.wrapping_sub(sum), (bytes, changing.bytes))
        });
        let Some((id, sum, (bytes_before, bytes_after))) = edited else { return };
        let content = |config: &Option<Arc<Config>>| config.as_deref().map_or(0, content_bytes);
        self.content = self.content - content(&before) + content(&after);
        self.sum = self.sum.wrapping_add(sum);
        self.bytes = self.bytes.saturating_sub(bytes_before).saturating_add(bytes_after);
        self.count_replaced(before.as_ref().map_or(0, |before| config_bytes(before)));
        self.configs = self.configs - u64::from(before.is_some()) + u64::from(after.is_some());
        edits.push(Edit::Config { definition: id, before, after });
    }

    /// Adds a collection to all indexes and to the digest.
    pub(super) fn insert_collection(&mut self, collection: Collection) {
        let definition = Arc::clone(&collection.definition);
        self.sum = self.sum.wrapping_add(digest::of_definition(&definition)).wrapping_add(collection.sum);
        self.configs += collection.by_key.len();
        self.bytes = self.bytes.saturating_add(collection.bytes);
        self.content += collection.content;
        self.by_key.insert(ByKey::new(Arc::new(collection)));
        if definition.indexing.build.is_some() {
            self.building.insert(ByKey::new(Arc::clone(&definition)));
        }
        self.by_created.insert(ByTime { at: definition.created_at, of: Arc::clone(&definition) });
        self.by_modified.insert(ByTime { at: definition.modified_at, of: definition });
    }

    fn delete_definition(
        &mut self,
        context: EntryContext,
        key: &Key,
        keep: Option<u64>,
        edits: &mut Vec<Edit>,
    ) -> Applied {
        let mut outcome = StepOutcome::Deleted;
        if let Some(old) = self.remove_collection(key) {
            let (definition, configs) = (old.definition.id, old.by_key.len());
            edits.push(Edit::Definition { before: Some(Arc::clone(&old.definition)), after: None });
            // A batch keeps what was there before its first step, once all of them are decided.
            let deleted = ToKeep { collection: old, keep: keep.filter(|_| !context.is_step) };
            let mut dropped = Vec::new();
            let kept = self.keep_deleted(context, &deleted, &mut dropped);
            if kept.is_some() {
                outcome = StepOutcome::Retained;
            } else {
                // The published state still shares the subtree: it is freed with the last such snapshot.
                self.count_replaced_collection(&deleted.collection);
            }
            edits.push(Edit::Deleted { definition, configs, kept });
            edits.append(&mut dropped);
        }
        context.applied(outcome)
    }

    /// Removes a collection from all indexes and from the digest.
    pub(super) fn remove_collection(&mut self, key: &Key) -> Option<Arc<Collection>> {
        let old = self.by_key.remove(key.as_str())?.record;
        let definition = &old.definition;
        self.building.remove(key.as_str());
        self.by_created.remove((definition.created_at, key.as_str()));
        self.by_modified.remove((definition.modified_at, key.as_str()));
        self.sum = self.sum.wrapping_sub(digest::of_definition(definition)).wrapping_sub(old.sum);
        self.configs -= old.by_key.len();
        self.bytes = self.bytes.saturating_sub(old.bytes);
        self.content -= old.content;
        Some(old)
    }
}

impl Collection {
    pub(super) fn new(definition: Arc<Definition>) -> Self {
        Self::from_configs(definition, Vec::new())
    }

    /// The current config, when it meets the precondition.
    fn expect_config(&self, key: &Key, expect: Expect) -> Result<Option<Arc<Config>>, Rejection> {
        match (expect, self.config(key.as_str())) {
            (Expect::Absent, Some(_)) => Err(Rejection::ConfigExists),
            (Expect::None, Some(found)) => Err(Rejection::Precondition { current: found.revision }),
            (Expect::At(revision), Some(found))
                if revision != found.revision && !concord_model::sabotage::is("precondition-ignored") =>
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

    /// Replaces a config; one of the two may be absent.
    pub(super) fn edit(&mut self, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        let id = self.definition.id;
        if let Some(before) = before {
            self.sum = self.sum.wrapping_sub(digest::of_config(id, before));
            self.bytes = self.bytes.saturating_sub(config_bytes(before));
            self.content -= content_bytes(before);
            self.count_repeated(before, |count| *count -= 1);
            if after.is_none() {
                self.by_key.remove(before.key.as_str());
            }
        }
        if let Some(after) = after {
            self.sum = self.sum.wrapping_add(digest::of_config(id, after));
            self.bytes = self.bytes.saturating_add(config_bytes(after));
            self.content += content_bytes(after);
            self.count_repeated(after, |count| *count += 1);
            self.by_key.insert(ByKey::new(Arc::clone(after)));
        }
        let source =
            IndexSource { definition: &self.definition, configs: &self.by_key, repeated: &self.repeated };
        self.deferred.edit(source, before, after);
    }

    /// Calls `count` for each entry that is not the first of its slot; entries of dropped paths are not counted.
    pub(super) fn count_repeated(&mut self, config: &Config, count: impl Fn(&mut u64)) {
        for pair in config.entries.windows(2).filter(|pair| pair[0].slot == pair[1].slot) {
            let position = self.slot_position(pair[1].slot);
            position.and_then(|position| self.repeated.get_mut(position)).into_iter().for_each(&count);
        }
    }
}
