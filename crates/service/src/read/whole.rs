//! Whole definitions: all configs of one, or of those whose keys begin with a text, from one state.
//!
//! Other than a list, such a read has no pages. So it is limited by bytes, before anything is copied.
//!
//! A reader that is in a rollout gets the candidates of its configs.
//!
//! **Invariant:** all configs of a response are of one revision.

use std::{sync::Arc, time::Duration};

use crate::{
    Consistency, Principal, Refusal,
    audit::target::name_read,
    cpu_pool::Weight,
    memory_budget::{Reservation, Share},
    read::Reads,
};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    key::Key,
    key_set::KeySet,
    limits::WHOLE_BYTES_MAX,
    record::{Config, Revision},
    redaction::RedactedPlaces,
    system::rollout::Reader,
};
use concord_state::{Collection, State};

/// What a config takes beside its keys and its data, at least: so the limit of bytes is one of configs, too.
const CONFIG_BYTES: u64 = 64;

/// Which configs are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WholeScope {
    /// Those of a definition whose keys begin with a text.
    Definition {
        /// The key of the definition.
        definition: String,
        /// The beginning of the keys of its configs; empty for all.
        configs: String,
    },
    /// Those of all definitions whose keys begin with a text, and that the client may read.
    Definitions {
        /// The beginning of the keys of the definitions; empty for all.
        beginning: String,
    },
}

/// A read of whole definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeRequest {
    /// Which configs are read.
    pub scope: WholeScope,
    /// How fresh they have to be.
    pub consistency: Consistency,
    /// Who reads, if the client says it.
    pub reader: Option<Reader>,
}

/// The configs of one definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeDefinition {
    /// The key of the definition.
    pub key: Key,
    /// Its configs by key, redacted for the principal.
    pub configs: Vec<Arc<Config>>,
}

/// The response to a read of whole definitions.
#[derive(Debug)]
pub struct WholeRead {
    /// The definitions by key.
    pub definitions: Vec<WholeDefinition>,
    /// The paths of the redacted values.
    pub redacted: RedactedPlaces,
    /// The revision of the state.
    pub revision: Revision,
    /// Whether the response may be compressed.
    pub may_compress: bool,
    /// The memory that the configs take; a text that is made of them takes more.
    pub reservation: Reservation,
}

impl Reads {
    /// The revision of a state that is as fresh as requested.
    ///
    /// # Errors
    /// If the principal may not read any definition, or no such state is available in time.
    pub async fn state_revision(
        &self,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<Revision, Refusal> {
        principal.authorize(Verb::Read, None)?;
        Ok(self.freshness.view(consistency).await?.revision())
    }

    /// For how long this node has not been known to have every acknowledged write; `None` if it never was.
    #[must_use]
    pub fn staleness(&self) -> Option<Duration> {
        self.freshness.staleness()
    }

    /// Whether this node knows who leads.
    #[must_use]
    pub fn knows_leader(&self) -> bool {
        self.cx.consensus().is_some_and(|consensus| consensus.leader().is_some())
    }

    /// Reads whole definitions.
    ///
    /// # Errors
    /// If the principal may not read the one definition, there is none, the configs have more than
    /// [`WHOLE_BYTES_MAX`] bytes, or no state is available in time.
    pub async fn read_whole(
        &self,
        principal: &Principal,
        request: WholeRequest,
    ) -> Result<WholeRead, Refusal> {
        let WholeRequest { scope, consistency, reader } = request;
        let visible = match &scope {
            WholeScope::Definition { definition, .. } => {
                name_read(definition);
                principal.authorize(Verb::Read, Some(definition))?;
                KeySet::ALL
            }
            WholeScope::Definitions { .. } => {
                principal.authorize(Verb::Read, None)?;
                principal.visible(Verb::Read)
            }
        };
        let state = self.freshness.view(consistency).await?;
        let deadline = self.cx.read_deadline();
        let (from, bytes) = (Arc::clone(&state), scope.bytes_to_look_at(&state));
        let found = move || scope.find(&from, &visible, reader.as_ref());
        let found = self.cx.work(bytes, Weight::List, deadline, found).await??;
        let mut reservation = self.cx.memory_budget.begin(Share::Callers);
        reservation.grow(found.iter().map(|(_, one)| bytes_of(one)).sum())?;
        let may_compress = found.iter().all(|(collection, _)| !collection.may_have_secrets());
        // The scope of several definitions names none of them.
        self.name_in_audit_log(found.iter().map(|(_, one)| one.key.as_str()));
        let (mut definitions, mut redacted) = (Vec::with_capacity(found.len()), RedactedPlaces::default());
        for (collection, WholeDefinition { key, configs }) in found {
            let configs = if principal.is_unbounded() || !collection.may_have_secrets() {
                configs
            } else {
                let redaction =
                    self.redactor.redaction(principal, &state, key.as_str(), Revision::MAX).await?;
                let (configs, places) = self.redactor.redact(redaction, configs).await?;
                redacted.extend(places);
                configs
            };
            definitions.push(WholeDefinition { key, configs });
        }
        Ok(WholeRead { definitions, redacted, revision: state.revision(), may_compress, reservation })
    }
}

fn bytes_of(definition: &WholeDefinition) -> u64 {
    let bytes = |config: &Arc<Config>| definition.key.as_str().len() as u64 + bytes_of_config(config);
    definition.configs.iter().map(bytes).sum()
}

fn bytes_of_config(config: &Config) -> u64 {
    (config.key.as_str().len() + config.data.len()) as u64 + CONFIG_BYTES
}

/// A definition of the state, and the configs of it that are read.
type Found = (Arc<Collection>, WholeDefinition);

impl WholeScope {
    /// The bytes of which it depends how long the search takes.
    fn bytes_to_look_at(&self, state: &State) -> usize {
        match self {
            Self::Definition { definition, .. } => {
                let bytes = state.definition(definition).map_or(0, |found| found.content_bytes());
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
            Self::Definitions { .. } => usize::MAX,
        }
    }

    fn find(&self, state: &State, visible: &KeySet, reader: Option<&Reader>) -> Result<Vec<Found>, Refusal> {
        let mut left = WHOLE_BYTES_MAX;
        match self {
            Self::Definition { definition, configs } => {
                let Some(collection) = state.definition(definition) else {
                    return Err(Rejection::DefinitionNotFound.into());
                };
                Ok(vec![taken(state, collection, configs, reader, &mut left)?])
            }
            Self::Definitions { beginning } => {
                let visible = state
                    .definitions_beginning(beginning)
                    .filter(|one| visible.contains(one.definition.key.as_str()));
                visible.map(|collection| taken(state, collection, "", reader, &mut left)).collect()
            }
        }
    }
}

/// The configs of a definition whose keys begin with a text, as a reader sees them. `left` is how many bytes there may be.
fn taken(
    state: &State,
    collection: &Arc<Collection>,
    beginning: &str,
    reader: Option<&Reader>,
    left: &mut u64,
) -> Result<Found, Refusal> {
    let (id, key) = (collection.definition.id, &collection.definition.key);
    let mut configs = Vec::new();
    for proven in collection.configs_beginning(beginning) {
        let config = match state.seen_by(id, proven, reader) {
            None => Arc::clone(proven),
            Some(seen) => seen.config,
        };
        let bytes = key.as_str().len() as u64 + bytes_of_config(&config);
        // How much more there is would tell how long secret values are.
        *left = left.checked_sub(bytes).ok_or_else(too_large)?;
        configs.push(config);
    }
    *left = left.checked_sub(CONFIG_BYTES).ok_or_else(too_large)?;
    Ok((Arc::clone(collection), WholeDefinition { key: key.clone(), configs }))
}

fn too_large() -> Refusal {
    let msg = format!(
        "the configs have more than the {WHOLE_BYTES_MAX} bytes that are read without pages: read fewer, or a list"
    );
    Invalid::from(Violation::at(vec!["path".into()], msg)).into()
}
