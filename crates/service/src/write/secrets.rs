//! Secret values in what a caller writes, and the compiled schema that says which they are.
//!
//! Who may see the secret values of a definition has the right to `reveal`. Who has it not may write all the same, and
//! must not learn or destroy a value by that:
//!
//! | what they could do | what is done about it |
//! |---|---|
//! | write back a record that they read, with `null` for each value | refused; the marker of `redaction.rs` keeps a value |
//! | compare a value in a patch (`test`), or move or copy it to an open place | a patch is applied to data in which the values are hidden |
//! | ask by a schema which configs do not fit it, and so guess a value | changing the schema of a definition with secret places takes `reveal` |
//! | filter, sort or compare by an index | a secret place can't be indexed, so it can't be unique either |
//! | keep a value and add one that they guess to a list of unique ones | a schema can't compare secret values |
//!
//! **Invariant:** what is refused here is refused before anything is proposed. The log holds whole data, never a marker.

use serde_json::Value;

use crate::{
    budget::Budget,
    redaction::is_secret_path,
    request::{Principal, Refusal},
    schemas::within,
};
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

/// What a caller may do with secret values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Secrets<'a> {
    principal: &'a Principal,
}

impl<'a> Secrets<'a> {
    pub(super) fn of(principal: &'a Principal) -> Self {
        Self { principal }
    }

    /// Whether the secret values of a definition are hidden from the caller.
    pub(super) fn hides(self, definition: &Definition) -> bool {
        self.may_reveal(definition).is_err()
    }

    /// The refusal of a caller who may not see the secret values of a definition.
    fn may_reveal(self, definition: &Definition) -> Result<(), Refusal> {
        self.principal.authorize(Verb::Reveal, Some(definition.key.as_str()))
    }

    /// Refuses indexed paths that lead to, through or above a secret place.
    pub(super) fn check_paths(
        self,
        places: Option<&SecretPlaces>,
        paths: &[IndexPath],
    ) -> Result<(), Invalid> {
        let Some(places) = places else { return Ok(()) };
        let is_secret = |path: &IndexPath| is_secret_path(places, path);
        let violations: Vec<Violation> = (0..)
            .zip(paths)
            .filter(|(_, path)| is_secret(path))
            .map(|(position, path)| {
                let msg =
                    format!("index path `{}` leads to a secret value, which can't be indexed", path.text);
                Violation::at(vec!["indexes".into(), LocSegment::Index(position)], msg)
            })
            .collect();
        if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
    }

    /// Refuses a schema that compares secret values: its refusals would tell which of them are equal.
    pub(super) fn check_comparisons(self, places: Option<&SecretPlaces>) -> Result<(), Invalid> {
        if !places.is_some_and(SecretPlaces::are_compared) {
            return Ok(());
        }
        let msg = "`uniqueItems` compares secret values, or lists and objects that hold some, so whoever writes them \
                   could find one by guessing; take away the one or the mark";
        Err(Invalid::Violations(vec![Violation::at(vec!["json_schema".into()], msg)]))
    }

    /// Refuses another schema to a caller who may not see the secret values: which configs fit it tells about them.
    pub(super) fn check_redefinition(self, found: &Collection) -> Result<(), Refusal> {
        if found.may_have_secrets() { self.may_reveal(&found.definition) } else { Ok(()) }
    }

    /// Refuses markers in data that replace nothing, and `null` at a secret place from a caller to whom each value is
    /// shown as that.
    pub(super) fn check_given(
        self,
        places: &SecretPlaces,
        definition: &Definition,
        data: &Document,
        budget: &Budget,
    ) -> Result<Result<(), Invalid>, Refusal> {
        let bytes = data.text.len();
        if may_keep(&data.text) {
            budget.charge_check(places.steps_max(bytes))?;
            let (mut copy, mut cost_left) = (data.value.clone(), 0);
            let stored = MarkerSource { before: None, is_hidden: false, cost_left: &mut cost_left };
            if let Err(error) = resolve(places, &mut copy, bytes, stored) {
                return Ok(Err(in_data(error)));
            }
        }
        if self.may_reveal(definition).is_ok() {
            return Ok(Ok(()));
        }
        budget.charge_check(places.steps_max(bytes))?;
        let checked = check_nulls(places, &data.value, bytes);
        Ok(checked.map_err(|violation| in_data(ResolveError::Violation(violation))))
    }

    /// What a patch is applied to in place of the stored data, for a caller who may not see their secret values.
    pub(super) fn hide(
        self,
        (places, definition): (&SecretPlaces, &Definition),
        patch: &Patch,
        (before, bytes): (&Value, usize),
        budget: &Budget,
    ) -> Result<Option<Value>, Refusal> {
        if self.may_reveal(definition).is_ok() {
            return Ok(None);
        }
        let given = patch.document.text.len();
        budget.charge_check(places.steps_max(bytes).saturating_add(places.steps_max(given)))?;
        let name = match patch.format {
            PatchFormat::Merge => "patch",
            PatchFormat::Replace => "data",
            // Its values are looked at where they end up.
            PatchFormat::Json => "",
        };
        if !name.is_empty() {
            check_nulls(places, &patch.document.value, given)
                .map_err(|violation| Invalid::Violations(within(name, vec![violation])))?;
        }
        let mut hidden = before.clone();
        hide(places, &mut hidden, bytes).map_err(in_data)?;
        Ok(Some(hidden))
    }

    /// Puts the stored values where a patch has kept them.
    pub(super) fn restore(
        self,
        places: &SecretPlaces,
        patch: &Patch,
        (before, mut made, is_hidden): (&Value, Value, bool),
        budget: &Budget,
    ) -> Result<Value, Refusal> {
        if !is_hidden && !may_keep(&patch.document.text) {
            return Ok(made);
        }
        let bytes = patch::size(&made);
        budget.charge_check(places.steps_max(bytes).saturating_mul(2))?;
        if is_hidden {
            check_nulls(places, &made, bytes)
                .map_err(|violation| in_data(ResolveError::Violation(violation)))?;
        }
        // New data are made of the patch alone: they have no tokens but those that somebody invented.
        let is_hidden = is_hidden && patch.format != PatchFormat::Replace;
        let cost_max = budget.patch_cost();
        let mut cost_left = cost_max;
        let stored = MarkerSource { before: Some(before), is_hidden, cost_left: &mut cost_left };
        let resolved = resolve(places, &mut made, bytes, stored);
        budget.charge_patch(cost_max - cost_left);
        match resolved {
            Ok(()) => Ok(made),
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
