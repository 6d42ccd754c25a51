//! What a request is about: the definitions, the config, the member or the access key that its line in the audit log names.
//!
//! The keys of a write may be in its body, which only its handler reads. So the target belongs to the task that serves the
//! request, like the request's origin: all layers between would only pass it on.
//!
//! **Invariant:** the target is what the client asked for, whether it was allowed and done or not.

use std::sync::{Arc, Mutex, PoisonError};

use crate::request::{AccessWrite, ChangeWrite, Target, Write};
use concord_model::key::Key;

/// Definitions of a batch that its line names.
const DEFINITIONS_MAX: usize = 32;

/// What a request is about, as far as its keys are valid. Nothing else that a client sends is in a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditTarget {
    /// The keys of its definitions.
    pub(super) definitions: Vec<Key>,
    /// Whether there are more definitions than a line names.
    pub(super) has_more: bool,
    /// Its config.
    pub(super) config: Option<Key>,
    /// The id in its path: a member, an access key or an environment.
    pub(super) id: Option<Key>,
    /// The operations of a batch.
    pub(super) operations: Option<usize>,
}

impl AuditTarget {
    /// Names a definition, unless the text is no valid key.
    pub fn add_definition(&mut self, text: &str) {
        if self.has_more {
            return;
        }
        if let Ok(key) = Key::parse(text)
            && !self.definitions.contains(&key)
        {
            if self.definitions.len() < DEFINITIONS_MAX {
                self.definitions.push(key);
            } else {
                self.has_more = true;
            }
        }
    }

    /// Names a config.
    pub fn set_config(&mut self, text: &str) {
        self.config = Key::parse(text).ok();
    }

    /// Names a member, an access key or an environment.
    pub fn set_id(&mut self, text: &str) {
        self.id = Key::parse(text).ok();
    }

    /// Notes how many operations a batch has.
    pub fn set_operations(&mut self, count: usize) {
        self.operations = Some(count);
    }

    /// The keys of its definitions.
    pub fn definitions(&self) -> impl Iterator<Item = &str> {
        self.definitions.iter().map(Key::as_str)
    }
}

/// What is known so far of the target of a request.
pub type Targets = Arc<Mutex<AuditTarget>>;

tokio::task_local! {
    static TARGETS: Targets;
}

/// Serves a request whose target is recorded.
pub fn observe<F: Future>(targets: Targets, request: F) -> impl Future<Output = F::Output> {
    TARGETS.scope(targets, request)
}

/// Names a definition that a read is about.
pub(crate) fn name_read(definition: &str) {
    // Without an audit log no target is recorded.
    let _unobserved = TARGETS.try_with(|targets| {
        targets.lock().unwrap_or_else(PoisonError::into_inner).add_definition(definition);
    });
}

/// Names what a write is about.
pub(crate) fn name(write: &Write) {
    // Without an audit log no target is recorded.
    let _unobserved = TARGETS.try_with(|targets| {
        let mut what = targets.lock().unwrap_or_else(PoisonError::into_inner);
        for definition in write.definitions() {
            what.add_definition(definition);
        }
        match write.target() {
            Target::Definition(_) => {}
            // The id of the node or session, and the name of the environment, provider or role, are in the path.
            Target::Anchors | Target::Environment(_) | Target::Identity => {}
            // That of an existing change request is in the path. What it changes is in the request, if it says so.
            Target::Change(id) => {
                let edition = write.change().and_then(ChangeWrite::edition);
                for definition in edition.iter().flat_map(|edition| edition.operations.definitions()) {
                    what.add_definition(definition);
                }
                if let Some(edition) = edition {
                    what.set_id(id);
                    what.set_operations(edition.operations.count());
                }
            }
            // The id of an existing key is in the path. The id of a new key was drawn for this request.
            Target::Keys => {
                if let Some(AccessWrite::Create { id, .. }) = write.access() {
                    what.set_id(id.as_str());
                }
            }
            Target::Config { key, .. } => what.set_config(key),
            Target::Batch => what.set_operations(write.operations().len()),
        }
    });
}
