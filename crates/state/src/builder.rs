//! Builds a state from stored records, each index in one pass: at start and from a received snapshot.
//!
//! **Invariant:** a state that is built from another state's records equals it, digest included; records that no state
//! could hold are rejected.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    ByKey, Collection, FeatureLevel, Indexes, RememberedOutcome, State, digest,
    index::{deferred::DeferredIndexes, tree::Tree},
    replaced::{config_bytes, definition_bytes},
    stored::content_bytes,
};
use concord_model::{
    access_key::AccessKey,
    audit::AuditAnchors,
    record::{Config, Definition, Revision, VoidRevisions},
    system::{SystemRecord, person::PersonId},
    time::Timestamp,
};

/// Collects the records: each definition before its configs, the configs of one ascending by key, remembered outcomes
/// oldest first.
#[derive(Debug, Default)]
pub struct StateBuilder {
    state: State,
    /// The definitions with their configs, by id.
    collections: BTreeMap<Revision, (Arc<Definition>, Vec<Arc<Config>>)>,
    /// The newest revision of all records.
    newest: Revision,
}

/// Why records are no valid state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

impl StateBuilder {
    /// A builder without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a definition.
    ///
    /// # Errors
    /// When one with its id was added before.
    pub fn definition(&mut self, definition: Definition) -> Result<(), BuildError> {
        self.newest = self.newest.max(definition.revision);
        let (id, definition) = (definition.id, Arc::new(definition));
        match self.collections.insert(id, (definition, Vec::new())) {
            Some((old, _)) => Err(BuildError(format!("definition {id} is stored twice, as `{}`", old.key))),
            None => Ok(()),
        }
    }

    /// Adds a config of the definition with this id.
    ///
    /// # Errors
    /// When there is no such definition or its key does not ascend.
    pub fn config(&mut self, definition: Revision, config: Config) -> Result<(), BuildError> {
        let Some((owner, configs)) = self.collections.get_mut(&definition) else {
            return Err(BuildError(format!("config `{}` has no definition", config.key)));
        };
        if configs.last().is_some_and(|last| last.key >= config.key) {
            return Err(BuildError(format!("configs of `{}` do not ascend at `{}`", owner.key, config.key)));
        }
        self.newest = self.newest.max(config.revision);
        configs.push(Arc::new(config));
        Ok(())
    }

    /// Adds a remembered outcome.
    ///
    /// # Errors
    /// When its revision does not ascend or its request was added before.
    pub fn request(&mut self, remembered: RememberedOutcome) -> Result<(), BuildError> {
        let revision = remembered.revision;
        let is_duplicate = self.state.remembered(&remembered.request.id).is_some();
        let last = self.state.requests_by_age.back_from(u64::MAX).next();
        if is_duplicate || last.is_some_and(|last| last.0.revision >= revision) {
            return Err(BuildError(format!("the remembered outcomes do not ascend at {revision}")));
        }
        self.newest = self.newest.max(revision);
        self.state.remember(remembered);
        Ok(())
    }

    /// Adds an access key.
    ///
    /// # Errors
    /// When one with its id was added before.
    pub fn access_key(&mut self, key: AccessKey) -> Result<(), BuildError> {
        if self.state.access_key(&key.id).is_some() {
            return Err(BuildError(format!("access key {} is stored twice", key.id)));
        }
        self.newest = self.newest.max(key.revision);
        self.state.insert_access_key(Arc::new(key));
        Ok(())
    }

    /// Adds the anchors of an audit log.
    ///
    /// # Errors
    /// When those of the log were added before.
    pub fn audit_anchors(&mut self, anchors: AuditAnchors) -> Result<(), BuildError> {
        if self.state.audit_anchors_of(&anchors.log).is_some() {
            return Err(BuildError(format!("the anchors of node {} are stored twice", anchors.log.node)));
        }
        self.newest = self.newest.max(anchors.revision);
        self.state.insert_audit_anchors(Arc::new(anchors));
        Ok(())
    }

    /// Adds a system record.
    ///
    /// # Errors
    /// When one with its key was added before.
    pub fn system_record(&mut self, record: SystemRecord) -> Result<(), BuildError> {
        let key = record.key();
        if self.state.system_record(&key).is_some() {
            return Err(BuildError(format!("{key} is stored twice")));
        }
        if let Some(person) = record.person() {
            let is_other = person.id.name() != record.name;
            if is_other || self.state.person_labelled(&person.label).is_some() {
                return Err(BuildError(format!("{key} has the name or the label of another one")));
            }
        }
        self.newest = self.newest.max(record.revision);
        self.state.insert_system_record(Arc::new(record));
        Ok(())
    }

    /// Disables the root key; without it the key is accepted.
    pub fn root_disabled(&mut self, disabled: bool) {
        self.state.root_disabled = disabled;
    }

    /// Sets the compaction revision of the history; without it the whole history is available.
    pub fn compaction_revision(&mut self, compaction_revision: Revision) {
        self.newest = self.newest.max(compaction_revision);
        self.state.compaction_revision = compaction_revision;
    }

    /// Sets the revisions that are void; without it none is.
    pub fn void_revisions(&mut self, void: &[VoidRevisions]) {
        self.state.void = void.into();
    }

    /// Sets the feature level; without it the level is the first one.
    pub fn feature_level(&mut self, level: u32) {
        self.state.feature_level = FeatureLevel(level);
    }

    /// The state at this revision.
    ///
    /// # Errors
    /// When a record is newer than that, or two definitions have the same key.
    pub fn finish(mut self, revision: Revision, last_at: Timestamp) -> Result<State, BuildError> {
        for (definition, configs) in std::mem::take(&mut self.collections).into_values() {
            if definition.standing.deleted.is_some() {
                self.state.insert_deleted(Collection::from_configs(definition, configs).into());
                continue;
            }
            if self.state.definition(definition.key.as_str()).is_some() {
                return Err(BuildError(format!("definition `{}` is stored twice", definition.key)));
            }
            self.state.insert_collection(Collection::from_configs(definition, configs));
        }
        let unknown = |person: &PersonId| self.state.person(*person).is_none();
        if let Some(person) = self.state.access_keys().flat_map(|key| key.persons()).find(unknown) {
            return Err(BuildError(format!("an access key names person {person}, which is not stored")));
        }
        if let Some(person) = self.state.first_unknown_person_of_changes() {
            return Err(BuildError(format!("a change request names person {person}, which is not stored")));
        }
        if let Some(name) = self.state.first_damaged_change() {
            return Err(BuildError(format!("the change request `{name}` is damaged")));
        }
        if let Some(name) = self.state.first_stray_content() {
            return Err(BuildError(format!("the content `{name}` is of no change request that needs it")));
        }
        if let Some(name) = self.state.first_damaged_identity() {
            return Err(BuildError(format!("the record `{name}` of identity is damaged")));
        }
        if let Some(name) = self.state.first_damaged_rollout() {
            return Err(BuildError(format!("the rollout of the change request `{name}` is damaged")));
        }
        if self.newest > revision {
            return Err(BuildError(format!("a record of revision {} in a state of {revision}", self.newest)));
        }
        self.state.revision = revision;
        self.state.last_at = last_at;
        Ok(self.state)
    }
}

impl Collection {
    /// A collection of configs that ascend by key.
    pub(super) fn from_configs(definition: Arc<Definition>, configs: Vec<Arc<Config>>) -> Self {
        let sum = configs
            .iter()
            .fold(0u128, |sum, config| sum.wrapping_add(digest::of_config(definition.id, config)));
        let by_key = Tree::from_sorted(configs.iter().map(|config| ByKey::new(Arc::clone(config))));
        let repeated = vec![0; definition.indexing.slots.len()];
        let deferred = DeferredIndexes::new(Indexes::of(&definition.indexing, &by_key));
        let bytes = configs.iter().map(|config| config_bytes(config)).fold(0, u64::saturating_add);
        let bytes = bytes.saturating_add(definition_bytes(&definition));
        let content = configs.iter().map(|config| content_bytes(config)).sum();
        let is_marked = definition.may_have_secrets();
        let mut collection = Self { definition, is_marked, by_key, deferred, repeated, sum, bytes, content };
        for config in &configs {
            collection.count_repeated(config, |count| *count += 1);
        }
        collection
    }
}
