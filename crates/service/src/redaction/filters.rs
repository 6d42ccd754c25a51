//! Rejects filters and sorts by secret fields from clients without `reveal`: the records that they find would reveal
//! the values.
//!
//! A secret field can't be indexed. But at an earlier revision there may have been an index on a field that is secret
//! now. A write that would make a field both indexed and secret is rejected; this file checks that case all the same.
//!
//! **Invariant:** nothing here depends on the data of a config.

use std::sync::Arc;

use super::may_see_all;
use crate::{
    cpu_pool::{Cancel, Weight, late},
    redaction::Redactor,
    redaction::is_secret_path,
    request::{Principal, Refusal},
};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Violation},
    index::{self, IndexPath},
    key_set::KeySet,
    query::{self, ConfigSort, FilterField},
    record::Definition,
};
use concord_state::{Collection, State};

impl Redactor {
    /// Reads the types that a definition declares for the paths of a query, in the CPU pool if that takes long. After
    /// that, the query is quick to parse.
    ///
    /// # Errors
    /// If they were not read before the read deadline.
    pub(crate) async fn read_declared(
        &self,
        params: &[(String, String)],
        definition: &Arc<Definition>,
    ) -> Result<(), Refusal> {
        if query::is_quick_to_parse(params, definition) {
            return Ok(());
        }
        let definition = Arc::clone(definition);
        let deadline = self.cx.read_deadline();
        let read = move |_: &_| drop(index::declared_paths(&definition));
        self.cx.cpu_pool.run(Weight::Short, deadline, read).await
    }

    /// Rejects filters and sorts by secret fields, unless the principal may `reveal` them.
    ///
    /// # Errors
    /// If a filter or the sort uses a secret field, or if the schema was not compiled in time.
    pub(crate) async fn check_filters(
        &self,
        principal: &Principal,
        found: &Collection,
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        if may_see_all(principal, found) {
            return Ok(());
        }
        let definition = &found.definition;
        let validator = self.schemas.validator(definition).await?;
        let Some(secrets) = validator.secrets() else { return Ok(()) };
        self.read_declared(params, definition).await?;
        if self.names(params, definition, |path| is_secret_path(secrets, path)) {
            return Err(names_a_secret());
        }
        Ok(())
    }

    /// Like [`Self::check_filters`], for a list at an earlier revision. Its paths are those that `earlier` indexes. A
    /// field is secret if `earlier` or `current`, the current definition with this key, marks it.
    ///
    /// # Errors
    /// As for [`Self::check_filters`].
    pub(crate) async fn check_earlier_filters(
        &self,
        principal: &Principal,
        earlier: &Arc<Definition>,
        current: Option<&Arc<Definition>>,
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        if principal.is_unbounded() || principal.authorize(Verb::Reveal, Some(earlier.key.as_str())).is_ok() {
            return Ok(());
        }
        for marked in current.into_iter().chain([earlier]).filter(|definition| definition.may_have_secrets())
        {
            let validator = self.schemas.validator(marked).await?;
            let Some(secrets) = validator.secrets() else { continue };
            self.read_declared(params, earlier).await?;
            if self.names(params, earlier, |path| is_secret_path(secrets, path)) {
                return Err(names_a_secret());
            }
        }
        Ok(())
    }

    /// Whether a list filters or sorts by a path that `is_meant` accepts, or by an unknown path.
    fn names(
        &self,
        params: &[(String, String)],
        definition: &Definition,
        is_meant: impl Fn(&IndexPath) -> bool,
    ) -> bool {
        // A query that does not parse is rejected when the list runs.
        let Ok(query) = query::configs(params, definition, self.cx.limits()) else { return false };
        let sorted =
            if let ConfigSort::Slot(slot) = query.sort { Some(FilterField::Slot(slot)) } else { None };
        let is_meant = |field: FilterField| match field {
            FilterField::Slot(slot) => path_of(definition, slot).is_none_or(|path| is_meant(&path)),
            FilterField::Created | FilterField::Modified | FilterField::Key => false,
        };
        query.filters.iter().map(|filter| filter.field).chain(sorted).any(is_meant)
    }

    /// Rejects filters of a list across definitions by a field that is secret in one of them. Any number of definitions
    /// may have a schema to compile. So this runs in the CPU pool like the list itself: until the read deadline, and
    /// within the limit for the lists of one client.
    ///
    /// # Errors
    /// As for [`Self::check_filters`].
    pub(crate) async fn check_filters_across(
        self: &Arc<Self>,
        principal: &Principal,
        keys: &KeySet,
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        let Ok(query) = query::across(params, self.cx.limits()) else { return Ok(()) };
        if query.filters().is_empty() {
            return Ok(());
        }
        let (this, principal, keys) = (Arc::clone(self), principal.clone(), keys.clone());
        let state = self.cx.applied();
        let work = move |cancel: &Cancel| {
            let redacted = redacted_definitions(&state, &principal, &keys);
            this.has_secret_filter(redacted, query.filters(), cancel)
        };
        let deadline = self.cx.read_deadline();
        let has_secret_filter = self.cx.cpu_pool.run(Weight::List, deadline, work).await??;
        if has_secret_filter { Err(names_a_secret()) } else { Ok(()) }
    }

    /// Whether a filter uses a field that one of the definitions indexes and marks as secret.
    fn has_secret_filter<'a>(
        &self,
        definitions: impl Iterator<Item = &'a Collection>,
        filters: &[(String, String)],
        cancel: &Cancel,
    ) -> Result<bool, Refusal> {
        for found in definitions {
            if cancel.is_over() {
                return Err(late());
            }
            let definition = &found.definition;
            // Most definitions don't index the paths of the filters, so their secret fields don't matter.
            if !self.names(filters, definition, |_| true) {
                continue;
            }
            let validator = self.schemas.validator_in_pool(definition, cancel)?;
            let Some(secrets) = validator.secrets() else { continue };
            if self.names(filters, definition, |path| is_secret_path(secrets, path)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The definitions with these keys whose data may be redacted for the principal.
fn redacted_definitions<'a>(
    state: &'a State,
    principal: &'a Principal,
    keys: &'a KeySet,
) -> impl Iterator<Item = &'a Collection> {
    let named = state.definitions().filter(|found| keys.contains(found.definition.key.as_str()));
    named.filter(|found| !may_see_all(principal, found)).map(|found| &**found)
}

fn names_a_secret() -> Refusal {
    let msg = "the list filters or sorts by a secret field, which needs the permission `reveal`";
    Invalid::from(Violation::at(vec!["query".into()], msg)).into()
}

fn path_of(definition: &Definition, slot: u16) -> Option<IndexPath> {
    let position = definition.indexing.position(slot)?;
    Some(IndexPath::stored(definition.indexes.get(position)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use tokio::time::Instant;

    use super::*;
    use crate::testing::{owner, service};
    use concord_model::{
        access_key::Author,
        command::{Command, Proposal, Verdict},
        key::Key,
        key_set::KeyRange,
        limits::Limits,
        time::Timestamp,
    };

    fn proposal(at: u64, command: Command) -> Proposal {
        let (by, at) = ("root".into(), Timestamp(at));
        Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read: None,
            command,
            author: Author::Root,
            tail: None,
        }
    }

    /// A state with definitions that may index secret fields. No leader would propose them.
    fn indexed(definitions: &[(&str, &str)]) -> State {
        let mut state = State::new();
        let schema = serde_json::json!({
            "type": "object",
            "properties": { "pw": { "type": "string", "x-concord-secret": true }, "open": { "type": "string" } },
        });
        let define = |key: &str, index: &str| Command::CreateDefinition {
            key: Key::parse(key).unwrap(),
            indexes: vec![index.into()],
            schema: Some(schema.to_string().into()),
        };
        let commands = definitions.iter().map(|(key, index)| define(key, index));
        for (revision, command) in (1..).zip(commands) {
            let (verdict, _) = state.apply(revision, &proposal(revision, command));
            assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
        }
        state
    }

    #[test]
    fn a_filter_by_a_field_that_one_definition_indexes_and_marks_secret_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let service = service(directory.path(), Limits::default());
        let state = indexed(&[("a", "open"), ("b", "pw"), ("c", "open")]);
        let of = |keys: &[&str]| KeySet::of(keys.iter().map(|key| KeyRange::Key(Key::parse(key).unwrap())));
        let (blind, seeing) = (owner(&[Verb::Read]), owner(&[Verb::Read, Verb::Reveal]));
        let later = Instant::now() + Duration::from_secs(600);
        let found = |principal: &Principal, keys: &[&str], path: &str, cancel: &Cancel| {
            let filters = [(path.to_owned(), "x".to_owned())];
            let keys = of(keys);
            let redacted = redacted_definitions(&state, principal, &keys);
            service.redactor.has_secret_filter(redacted, &filters, cancel)
        };
        let cancel = Cancel::new(CancellationToken::new(), later);
        for (principal, keys, path, expected) in [
            (&blind, &["a", "b", "c"][..], "pw", true),
            (&blind, &["b"], "pw", true),
            (&blind, &["a", "c"], "pw", false),
            (&blind, &["a", "b", "c"], "open", false),
            (&seeing, &["a", "b", "c"], "pw", false),
        ] {
            assert_eq!(found(principal, keys, path, &cancel), Ok(expected), "{keys:?} by {path}");
        }
        let gone = CancellationToken::new();
        gone.cancel();
        assert_eq!(found(&blind, &["b"], "pw", &Cancel::new(gone, later)), Err(late()), "nobody waits");
    }
}
