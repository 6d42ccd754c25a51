//! Undoes the deletion of a definition.
//!
//! The state keeps what was deleted (`crates/state/src/deleted.rs`), so the definition returns in one entry, whatever its
//! size. As of an earlier revision than the deletion, the entry also has the configs that were changed in between, as
//! they were before; the history has them.
//!
//! **Invariant:** nothing of the configs is shown. Their number and size are told to a client that may read them.

use std::sync::Arc;

use tokio::time::timeout_at;

use super::prepare::{PreparedWrite, parse_key};
use crate::{
    cpu_pool::{Cancel, Weight, late},
    history::HistoryReader,
    memory_budget::{Reservation, Share},
    request::{Caller, Consistency, DecidedWrite, Refusal, Undelete, UndeleteThen, Write},
    run_blocking,
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::{Command, ConfigThen, ContentThen, Undeletion},
    error::{Invalid, Rejection},
    index,
    key::Key,
    limits::{BATCH_STEPS_MAX, ENTRY_BYTES_MAX},
    record::{Config, Definition, DeletedId, Revision},
    time::Timestamp,
};
use concord_state::{Collection, State};
use concord_storage::{HistoryError, UndoError, UndoScope};

/// As of when a definition returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndeleteAt {
    /// As it was when it was deleted last.
    Deletion,
    /// As of a revision.
    Revision(Revision),
    /// As of the last change before a time, or at it.
    Time(Timestamp),
}

/// What returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undeleted {
    /// The revision that deleted it.
    pub deleted: Revision,
    /// The revision as of which it returns.
    pub at: Revision,
    /// Its configs and the bytes of their keys and data, if the client may read them.
    pub size: Option<UndeletedSize>,
}

/// The size of what returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndeletedSize {
    /// The number of configs.
    pub configs: u64,
    /// The bytes of their keys and data.
    pub bytes: u64,
}

impl Writes {
    /// Undoes the deletion of a definition. A retry is told what the first request did, as far as the
    /// definition's record has it.
    ///
    /// # Errors
    /// Those of the write; when no such definition is kept, when the history does not reach back to the wanted
    /// revision, or when too much was changed since.
    pub async fn undelete(
        self: &Arc<Self>,
        caller: Caller,
        key: String,
        at: UndeleteAt,
    ) -> Result<(DecidedWrite, Undeleted), Refusal> {
        // Authorized before anything is looked up; the write itself authorizes again.
        for verb in [Verb::Define, Verb::Write] {
            caller.principal.authorize(verb, Some(&key))?;
        }
        parse_key(&key, "config_definition_key")?;
        let may_read = caller.principal.authorize(Verb::Read, Some(&key)).is_ok();
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        let is_decided = super::idempotency::decided_before(&state, &caller).is_some();
        let wanted = match at {
            UndeleteAt::Deletion => None,
            UndeleteAt::Revision(at) => Some(at),
            UndeleteAt::Time(time) => Some(self.revision_at(time).await?),
        };
        let mut reservation = self.cx.memory_budget.begin(Share::Callers);
        let (then, found) = match wanted.filter(|_| !is_decided) {
            None => (None, state.last_deleted(&key).cloned()),
            Some(at) => {
                let kept = Self::deleted_at(&state, &key, at)?;
                let back;
                (back, reservation) = self.back_to(&kept, at, reservation).await?;
                (Some(UndeleteThen { of: kept.deleted_id(), back }), Some(kept))
            }
        };
        let back = then.as_ref().map_or(0, |then| then.back.len());
        let write = Write::UndeleteDefinition(Undelete { key: key.clone(), then });
        let written = self.write(caller, write).await?;
        drop(reservation);
        let state = self.cx.consensus_or_refusal()?.state();
        let now = state.definition(&key);
        let collection = if written.dry_run { found.as_ref() } else { now.or(found.as_ref()) };
        let returned = collection.map(|collection| undeleted(collection, wanted, back, may_read));
        let gone = || Refusal::Undecided("the deletion was undone, and the definition deleted again".into());
        Ok((written, returned.ok_or_else(gone)?))
    }

    /// The last revision at a time or before it.
    async fn revision_at(&self, time: Timestamp) -> Result<Revision, Refusal> {
        let store = self.cx.consensus_or_refusal()?.store().clone();
        let found = run_blocking(move || store.history().last_revision_at(time)).await?;
        found.map_err(|error| Refusal::Unavailable(format!("the history can't be read: {error}")))
    }

    /// The kept definition that existed at a revision.
    fn deleted_at(state: &State, key: &str, at: Revision) -> Result<Arc<Collection>, Refusal> {
        HistoryReader::check_revision(state, at, "body")?;
        if state.definition(key).is_some() {
            return Err(Rejection::DefinitionExists.into());
        }
        state.deleted_since(key, at).cloned().ok_or_else(|| match state.last_deleted(key) {
            Some(kept) => Refusal::DefinitionNotThere(format!(
                "the definition did not exist at revision {at}; the one that was deleted last was created at revision \
                 {}",
                kept.definition.created_revision()
            )),
            None => not_kept(state),
        })
    }

    /// The configs of a kept definition that were changed between a revision and the deletion, as they were before, and
    /// the reservation of their memory.
    async fn back_to(
        &self,
        kept: &Arc<Collection>,
        at: Revision,
        mut reservation: Reservation,
    ) -> Result<(Vec<ConfigThen>, Reservation), Refusal> {
        let definition = Arc::clone(&kept.definition);
        let upto = kept.deleted_id().deleted.saturating_sub(1);
        if at >= upto {
            return Ok((Vec::new(), reservation));
        }
        let history = &self.history;
        let deadline = self.cx.read_deadline();
        let permit = timeout_at(deadline, history.permits.acquire()).await.map_err(|_| late())?;
        let _permit = permit.map_err(|error| Refusal::Internal(error.to_string()))?;
        let store = self.cx.consensus_or_refusal()?.store().clone();
        let work = move |cancel: &Cancel| {
            let scope = UndoScope::Configs { id: definition.id, key: definition.key.clone() };
            let (mut bytes, mut refused) = (0_u64, None);
            let go_on = &mut |more: u64| {
                bytes = bytes.saturating_add(more);
                if bytes > ENTRY_BYTES_MAX as u64 {
                    refused = Some(too_much());
                } else if let Err(refusal) = reservation.grow(more) {
                    refused = Some(refusal);
                }
                refused.is_none() && !cancel.is_over()
            };
            let undone = store.history().undo(&scope, at, upto, go_on);
            let undo = undone.map_err(|error| match error {
                UndoError::GivenUp => refused.unwrap_or_else(late),
                UndoError::History(HistoryError::Compacted { compaction_revision }) => {
                    HistoryReader::compacted(compaction_revision)
                }
                UndoError::History(error) => Refusal::Unavailable(format!("{error}; try another node")),
            })?;
            let mut replaced = undo.definitions.into_values().flatten();
            if let Some(then) = replaced.find(|then| !is_same_type(then, &definition)) {
                return Err(type_changed(&then, &definition));
            }
            if undo.configs.len() > BATCH_STEPS_MAX {
                return Err(too_much());
            }
            let paths = index::stored_paths(&definition);
            let configs = undo.configs.into_iter();
            let back = configs.map(|(key, then)| config_then(&paths, key, then.as_deref()));
            Ok((back.collect(), reservation))
        };
        self.cx.cpu_pool.run(Weight::List, deadline, work).await?
    }
}

/// Whether what was data of one version of a definition is data of the other, too.
fn is_same_type(then: &Definition, now: &Definition) -> bool {
    then.schema == now.schema && then.indexes == now.indexes && then.unique == now.unique
}

fn type_changed(then: &Definition, now: &Definition) -> Refusal {
    Refusal::Conflict(format!(
        "the definition had another schema, other indexes or other unique fields then, from revision {} on; it was \
         changed last at revision {}: undo the deletion as of that revision or a later one",
        then.revision, now.revision
    ))
}

fn too_much() -> Refusal {
    let text = format!(
        "more than {BATCH_STEPS_MAX} configs, or {ENTRY_BYTES_MAX} bytes, were changed between that revision and the \
         deletion: undo the deletion as of a later revision, and roll the configs back"
    );
    Invalid::TooLarge(text).into()
}

fn config_then(paths: &[index::StoredPath], key: Key, then: Option<&Config>) -> ConfigThen {
    let then = then.map(|config| {
        // Stored data was parsed when it was written.
        let value = serde_json::from_str(&config.data).unwrap_or_default();
        let entries = index::all_entries(paths, &value);
        ContentThen { data: Arc::clone(&config.data), entries, created_at: config.created_at }
    });
    ConfigThen { key, then }
}

/// What returns with a collection: a kept one, or the one that has returned.
fn undeleted(collection: &Collection, wanted: Option<Revision>, back: usize, may_read: bool) -> Undeleted {
    let standing = &collection.definition.standing;
    let last = standing.absences.last().map(|absence| absence.deleted);
    let deleted = standing.deleted.map(|deletion| deletion.revision).or(last).unwrap_or(0);
    let size = UndeletedSize { configs: collection.by_key.len(), bytes: collection.content_bytes() };
    let at = wanted.unwrap_or_else(|| deleted.saturating_sub(1));
    // Before the configs are put back, their number is not known.
    let is_exact = standing.deleted.is_none() || back == 0;
    Undeleted { deleted, at, size: Some(size).filter(|_| may_read && is_exact) }
}

fn not_kept(state: &State) -> Refusal {
    let text = format!(
        "no deleted definition with this key is kept: deletions are kept while the history has them (from revision {} \
         on), unless `purge=true` or CONCORD_DELETED_BYTES ended that; a backup may have it",
        state.compaction_revision()
    );
    Refusal::DeletionNotKept(text)
}

/// Validates the undoing of a deletion against a state and makes its command.
pub(super) fn prepare_undelete(state: &State, undelete: &Undelete) -> Result<PreparedWrite, Refusal> {
    let key = parse_key(&undelete.key, "config_definition_key")?;
    let prepared =
        |of, back| PreparedWrite::of(Command::UndeleteDefinition(Undeletion { key: key.clone(), of, back }));
    if state.definition(key.as_str()).is_some() {
        // The log rejects it, too, whatever the deletion is.
        let none = DeletedId { deleted: 0, id: 0 };
        let precondition = Err(Rejection::DefinitionExists);
        return Ok(PreparedWrite { precondition, ..prepared(none, Vec::new()) });
    }
    let last = state.last_deleted(key.as_str()).map(|kept| kept.deleted_id());
    let last = last.ok_or_else(|| not_kept(state))?;
    let Some(UndeleteThen { of, back }) = &undelete.then else { return Ok(prepared(last, Vec::new())) };
    let is_of = |kept: &Arc<Collection>| kept.deleted_id() == *of && kept.definition.key == key;
    if !state.deleted().any(is_of) {
        let text = "the definition returned meanwhile, and was deleted again: send the request again";
        return Err(Refusal::Conflict(text.into()));
    }
    Ok(prepared(*of, back.clone()))
}
