//! Redacts pages of lists.
//!
//! **Invariant:** a value that is secret by the current schema, or by the schema at the listed revision, is returned
//! only to a client with the permission `reveal`.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    list::{ListPage, ListRequest, ListScope},
    records::ListRecords,
};
use crate::{Principal, Refusal, read::Reads};
use concord_model::{key::Key, record::Revision, redaction::RedactedPlaces};
use concord_state::{State, query::AcrossRecord};

impl Reads {
    /// Redacts a page for the principal that requested it. Fails if the list filters or sorts by a secret field, or
    /// if the page was not redacted in time.
    pub(super) async fn redact_page(
        &self,
        principal: &Principal,
        list: &ListRequest,
        mut page: ListPage,
    ) -> Result<ListPage, Refusal> {
        if matches!(list.scope, ListScope::Definitions | ListScope::DefinitionsOf(_)) {
            return Ok(page);
        }
        // The page may come from a node that has applied more than this one.
        let state = self.freshness.state_to_show(page.revision).await?;
        if list.definition().is_some() {
            // Even a page without records is checked: the total of a list filtered by a secret field reveals something.
            self.redact_configs(principal, &state, list, &mut page).await?;
        } else if let ListRecords::Across(records) = &mut page.records {
            let paths = self.redact_across(principal, &state, page.revision, records).await?;
            page.redacted.extend(paths);
        }
        reserve_growth(&mut page)?;
        Ok(page)
    }

    async fn redact_configs(
        &self,
        principal: &Principal,
        state: &State,
        list: &ListRequest,
        page: &mut ListPage,
    ) -> Result<(), Refusal> {
        let Some(definition) = list.definition() else { return Ok(()) };
        let redaction = self.redactor.redaction(principal, state, definition, page.revision).await?;
        let mut redactions = vec![redaction];
        if let Some(earlier) = page.definition.take() {
            let current = state.definition(definition).map(|found| &found.definition);
            self.redactor.check_earlier_filters(principal, &earlier, current, &list.params).await?;
            redactions.push(self.redactor.redaction_of(principal, &earlier).await?);
        }
        for redaction in redactions {
            let ListRecords::Configs(configs) = &mut page.records else { continue };
            let (redacted, paths) = self.redactor.redact(redaction, std::mem::take(configs)).await?;
            *configs = redacted;
            page.redacted.extend(paths);
        }
        Ok(())
    }

    async fn redact_across(
        &self,
        principal: &Principal,
        state: &State,
        at: Revision,
        records: &mut [AcrossRecord],
    ) -> Result<RedactedPlaces, Refusal> {
        let mut by_definition: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            by_definition.entry(record.definition.clone()).or_default().push(index);
        }
        let mut all = RedactedPlaces::default();
        for (definition, indexes) in by_definition {
            let redaction = self.redactor.redaction(principal, state, definition.as_str(), at).await?;
            let stored = indexes.iter().map(|index| Arc::clone(&records[*index].config)).collect();
            let (redacted, paths) = self.redactor.redact(redaction, stored).await?;
            for (index, config) in indexes.into_iter().zip(redacted) {
                records[index].config = config;
            }
            all.extend(paths);
        }
        Ok(all)
    }
}

/// Reserves what redaction has added to a page: `null` may be longer than the value that it replaces.
fn reserve_growth(page: &mut ListPage) -> Result<(), Refusal> {
    let bytes = page.records.bytes();
    if page.reservation.bytes() > 0 && bytes > page.reservation.bytes() {
        page.reservation.grow(bytes - page.reservation.bytes())?;
    }
    Ok(())
}
