//! Secret values in the data that a client writes.
//!
//! A client sees the secret values of a definition if it has the permission to `reveal`. Without it a client may write
//! all the same, and must not learn or destroy a value by that:
//!
//! | attempt | defence |
//! |---|---|
//! | write back a record that was read, with `null` for each secret value | rejected; a marker keeps a value (`redaction.rs`) |
//! | test a value in a patch, or move or copy it to a place that is not secret | the patch is applied to data in which the values are hidden |
//! | guess a value by a schema: the rejection tells which configs violate it | changing the schema of a definition with secret fields needs `reveal` |
//! | filter, sort or compare by an index | a secret field can't be indexed, and so can't be unique |
//! | fill the data up to a limit, to learn how long a value is | a kept value counts as the next power of two |
//! | keep a value in a list of unique items and add a guess | a schema can't compare secret values |
//!
//! **Invariant:** these attempts are rejected before anything is proposed. The log contains whole data, never a marker.

use serde_json::Value;

use super::prepare::Preparation;
use crate::{redaction::is_secret_path, request::Refusal, schemas::within};
use concord_model::{
    access_key::Verb,
    document::Document,
    error::{Invalid, LocSegment, Violation},
    index::IndexPath,
    patch::{self, Patch, PatchFormat},
    record::Definition,
    redaction::{MarkerSource, ResolveError, check_nulls, hide, may_keep, resolve},
    schema::secret::SecretPlaces,
};
use concord_state::Collection;

/// Rejects indexed paths that lead to, through or above a secret place.
pub(super) fn check_index_paths(places: Option<&SecretPlaces>, paths: &[IndexPath]) -> Result<(), Invalid> {
    let Some(places) = places else { return Ok(()) };
    let violations: Vec<Violation> = (0..)
        .zip(paths)
        .filter(|(_, path)| is_secret_path(places, path))
        .map(|(position, path)| {
            let msg = format!("index path `{}` leads to a secret value, which can't be indexed", path.text);
            Violation::at(vec!["indexes".into(), LocSegment::Index(position)], msg)
        })
        .collect();
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Rejects a schema that compares secret values: its violations would tell which of them are equal.
pub(super) fn check_comparisons(places: Option<&SecretPlaces>) -> Result<(), Invalid> {
    if !places.is_some_and(SecretPlaces::are_compared) {
        return Ok(());
    }
    let msg = "`uniqueItems` compares secret values, or items that contain some, so a client could guess one; remove \
               `uniqueItems` or the mark";
    Err(Invalid::Violations(vec![Violation::at(vec!["json_schema".into()], msg)]))
}

/// Stored data with secret places, which a patch changes.
#[derive(Clone, Copy)]
pub(super) struct StoredSecrets<'a> {
    pub(super) places: &'a SecretPlaces,
    pub(super) definition: &'a Definition,
    pub(super) data: &'a Value,
    /// The length of the data's text.
    pub(super) bytes: usize,
}

/// The result of a patch, with the secret values that it has kept.
pub(super) struct RestoredData {
    pub(super) made: Value,
    /// What the kept values count beyond their own length for a client that may not see them.
    pub(super) bytes_beyond: usize,
}

impl Preparation<'_> {
    /// Refuses a client that may not see the secret values of a definition.
    pub(super) fn check_reveal(self, definition: &Definition) -> Result<(), Refusal> {
        self.principal.authorize(Verb::Reveal, Some(definition.key.as_str()))
    }

    /// Refuses a new schema to a client that may not see the secret values: a schema tells about the values by which
    /// configs satisfy it.
    pub(super) fn check_redefinition(self, found: &Collection) -> Result<(), Refusal> {
        if found.may_have_secrets() { self.check_reveal(&found.definition) } else { Ok(()) }
    }

    /// Rejects markers in data that replaces nothing, and `null` at a secret place from a client that sees `null` there
    /// whatever the value is.
    ///
    /// # Errors
    /// The refusal by the budget; within it the data may be invalid.
    pub(super) fn check_given(
        self,
        places: &SecretPlaces,
        definition: &Definition,
        data: &Document,
    ) -> Result<Result<(), Invalid>, Refusal> {
        let bytes = data.text.len();
        if may_keep(&data.text) {
            self.budget.charge_check(places.steps_max(bytes))?;
            let (mut copy, mut cost_left) = (data.value.clone(), 0);
            let stored =
                MarkerSource { before: None, before_bytes: 0, is_hidden: false, cost_left: &mut cost_left };
            if let Err(error) = resolve(places, &mut copy, bytes, stored) {
                return Ok(Err(in_data(error)));
            }
        }
        if self.check_reveal(definition).is_ok() {
            return Ok(Ok(()));
        }
        self.budget.charge_check(places.steps_max(bytes))?;
        let checked = check_nulls(places, &data.value, bytes);
        Ok(checked.map_err(|violation| in_data(ResolveError::Violation(violation))))
    }

    /// The data that a patch is applied to in place of the stored data; `None` for a client that may see the secret
    /// values.
    pub(super) fn hidden(self, stored: StoredSecrets<'_>, patch: &Patch) -> Result<Option<Value>, Refusal> {
        let StoredSecrets { places, definition, data, bytes } = stored;
        if self.check_reveal(definition).is_ok() {
            return Ok(None);
        }
        let given = patch.document.text.len();
        self.budget.charge_check(places.steps_max(bytes).saturating_add(places.steps_max(given)))?;
        let name = match patch.format {
            PatchFormat::Merge => "patch",
            PatchFormat::Replace => "data",
            // Its values are checked where they end up.
            PatchFormat::Json => "",
        };
        if !name.is_empty() {
            check_nulls(places, &patch.document.value, given)
                .map_err(|violation| Invalid::Violations(within(name, vec![violation])))?;
        }
        let mut hidden = data.clone();
        hide(places, &mut hidden, bytes).map_err(in_data)?;
        Ok(Some(hidden))
    }

    /// Puts the stored values back where a patch has kept them. `is_hidden`: whether the patch was applied to
    /// [`Self::hidden`] data. A limit on the result counts what the client may know: see [`RestoredData`].
    pub(super) fn restore(
        self,
        stored: StoredSecrets<'_>,
        patch: &Patch,
        mut made: Value,
        is_hidden: bool,
    ) -> Result<RestoredData, Refusal> {
        if !is_hidden && !may_keep(&patch.document.text) {
            return Ok(RestoredData { made, bytes_beyond: 0 });
        }
        let is_blind = is_hidden;
        let (budget, places) = (self.budget, stored.places);
        let bytes = patch::size(&made);
        budget.charge_check(places.steps_max(bytes).saturating_mul(3) + places.steps_max(stored.bytes))?;
        if is_hidden {
            check_nulls(places, &made, bytes)
                .map_err(|violation| in_data(ResolveError::Violation(violation)))?;
        }
        // A replacement consists of the patch alone: the only tokens in it are those that the client invented.
        let is_hidden = is_hidden && patch.format != PatchFormat::Replace;
        let cost_max = budget.patch_cost();
        let mut cost_left = cost_max;
        let before = MarkerSource {
            before: Some(stored.data),
            before_bytes: stored.bytes,
            is_hidden,
            cost_left: &mut cost_left,
        };
        let resolved = resolve(places, &mut made, bytes, before);
        budget.charge_patch(cost_max - cost_left);
        match resolved {
            Ok(beyond) => Ok(RestoredData { made, bytes_beyond: if is_blind { beyond } else { 0 } }),
            Err(error @ ResolveError::Violation(_)) => Err(in_data(error).into()),
            Err(error @ ResolveError::TooCostly(_)) => {
                Err(budget.patch_exceeds().unwrap_or_else(|| in_data(error).into()))
            }
        }
    }
}

fn in_data(error: ResolveError) -> Invalid {
    let (ResolveError::Violation(violation) | ResolveError::TooCostly(violation)) = error;
    Invalid::Violations(within("data", vec![violation]))
}

#[cfg(test)]
mod tests;
