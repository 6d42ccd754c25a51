//! Filters and sorts by secret values, which are refused to who may not see them: the records that are found would tell
//! what the values are.
//!
//! A secret place can't be indexed; but a revision of the past may have had an index of what is secret now. That a place
//! is indexed now and secret now is refused when it is written, and looked for here all the same.
//!
//! **Invariant:** nothing here depends on the data of a config.

use std::sync::Arc;

use tokio::time::Instant;

use super::is_shown_whole;
use crate::{
    Service,
    cpu_pool::{Cancel, Weight, late},
    request::{Principal, Refusal},
    write::secrets::is_secret_path,
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

impl Service {
    /// Reads the types that a definition declares for the paths of a query, where that takes its time; the query is quick to
    /// parse then.
    ///
    /// # Errors
    /// When they were not read in time.
    pub(crate) async fn read_declared(
        &self,
        params: &[(String, String)],
        definition: &Arc<Definition>,
    ) -> Result<(), Refusal> {
        if query::is_quick_to_parse(params, definition) {
            return Ok(());
        }
        let definition = Arc::clone(definition);
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let read = move |_: &_| drop(index::declared_paths(&definition));
        self.inner.cpu_pool.run(Weight::Short, deadline, read).await
    }

    /// Refuses filters and sorts by secret values to who may not see them.
    ///
    /// # Errors
    /// The violation, or that the schema was not compiled in time.
    pub(crate) async fn check_filters(
        &self,
        principal: &Principal,
        found: &Collection,
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        if is_shown_whole(principal, found) {
            return Ok(());
        }
        let definition = &found.definition;
        let validator = self.validator(definition).await?;
        let Some(secrets) = validator.secrets() else { return Ok(()) };
        self.read_declared(params, definition).await?;
        if self.names(params, definition, |path| is_secret_path(secrets, path)) {
            return Err(names_a_secret());
        }
        Ok(())
    }

    /// The same of a list at an earlier revision, whose paths are those that were indexed then: by what is secret then,
    /// and by what is secret now, of the definition that has the key now.
    ///
    /// # Errors
    /// As for [`Self::check_filters`].
    pub(crate) async fn check_past_filters(
        &self,
        principal: &Principal,
        (then, now): (&Arc<Definition>, Option<&Arc<Definition>>),
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        if principal.key.is_none() || principal.authorize(Verb::Reveal, Some(then.key.as_str())).is_ok() {
            return Ok(());
        }
        for marked in now.into_iter().chain([then]).filter(|definition| definition.may_have_secrets()) {
            let validator = self.validator(marked).await?;
            let Some(secrets) = validator.secrets() else { continue };
            self.read_declared(params, then).await?;
            if self.names(params, then, |path| is_secret_path(secrets, path)) {
                return Err(names_a_secret());
            }
        }
        Ok(())
    }

    /// Whether a list is filtered or sorted by such a path, or by one that is not known.
    fn names(
        &self,
        params: &[(String, String)],
        definition: &Definition,
        is_meant: impl Fn(&IndexPath) -> bool,
    ) -> bool {
        // Whoever answers the request refuses one that does not parse.
        let Ok(query) = query::configs(params, definition, self.limits()) else { return false };
        let sorted =
            if let ConfigSort::Slot(slot) = query.sort { Some(FilterField::Slot(slot)) } else { None };
        let is_meant = |field: FilterField| match field {
            FilterField::Slot(slot) => path_of(definition, slot).is_none_or(|path| is_meant(&path)),
            FilterField::Created | FilterField::Modified | FilterField::Key => false,
        };
        query.filters.iter().map(|filter| filter.field).chain(sorted).any(is_meant)
    }

    /// Refuses filters of a list across definitions by values that are secret in one of them. There may be any number of
    /// definitions, each with a schema to compile, so this runs on the threads for long work, as the list does: until
    /// the read's deadline, and with as many turns at once as one caller has for lists.
    ///
    /// # Errors
    /// As for [`Self::check_filters`].
    pub(crate) async fn check_filters_across(
        &self,
        principal: &Principal,
        keys: &KeySet,
        params: &[(String, String)],
    ) -> Result<(), Refusal> {
        let Ok(query) = query::across(params, self.limits()) else { return Ok(()) };
        if query.filters().is_empty() {
            return Ok(());
        }
        let (service, principal, keys) = (self.clone(), principal.clone(), keys.clone());
        let state = self.applied();
        let work = move |cancel: &Cancel| {
            service.is_filtered_by_a_secret(&state, (&principal, &keys), query.filters(), cancel)
        };
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let is_by_a_secret = self.inner.cpu_pool.run(Weight::List, deadline, work).await??;
        if is_by_a_secret { Err(names_a_secret()) } else { Ok(()) }
    }

    /// Whether one of the definitions has filters by what is secret in it to a principal.
    fn is_filtered_by_a_secret(
        &self,
        state: &State,
        (principal, keys): (&Principal, &KeySet),
        filters: &[(String, String)],
        cancel: &Cancel,
    ) -> Result<bool, Refusal> {
        let named = state.definitions().filter(|found| keys.contains(found.definition.key.as_str()));
        for found in named.filter(|found| !is_shown_whole(principal, found)) {
            if cancel.is_over() {
                return Err(late());
            }
            let definition = &found.definition;
            // Of most of them the paths are not indexed, and what is secret there does not matter.
            if !self.names(filters, definition, |_| true) {
                continue;
            }
            let validator = self.validator_in_pool(definition, cancel)?;
            let Some(secrets) = validator.secrets() else { continue };
            if self.names(filters, definition, |path| is_secret_path(secrets, path)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn names_a_secret() -> Refusal {
    let msg = "the list is filtered or sorted by a secret value, which this key may not see";
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

    use super::*;
    use crate::testing::{owner, service};
    use concord_model::{
        command::{Command, Proposal, Verdict},
        key::Key,
        key_set::KeyRange,
        limits::Limits,
        time::Timestamp,
    };

    fn proposal(at: u64, command: Command) -> Proposal {
        let (by, at) = ("root".into(), Timestamp(at));
        Proposal { at, by, reason: None, request: None, definition_read: None, command, key: None }
    }

    /// Definitions that index what may be secret, as no leader proposes them.
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
    fn a_filter_is_by_a_secret_where_one_of_the_definitions_has_indexed_it() {
        let directory = tempfile::tempdir().unwrap();
        let service = service(directory.path(), Limits::default());
        let state = indexed(&[("a", "open"), ("b", "pw"), ("c", "open")]);
        let of = |keys: &[&str]| KeySet::of(keys.iter().map(|key| KeyRange::Key(Key::parse(key).unwrap())));
        let (blind, seeing) = (owner(&[Verb::Read]), owner(&[Verb::Read, Verb::Reveal]));
        let later = Instant::now() + Duration::from_secs(600);
        let found = |principal: &Principal, keys: &[&str], path: &str, cancel: &Cancel| {
            let filters = [(path.to_owned(), "x".to_owned())];
            service.is_filtered_by_a_secret(&state, (principal, &of(keys)), &filters, cancel)
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
