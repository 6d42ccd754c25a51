//! A page of a list as a caller is shown it who may not see secret values.
//!
//! **Invariant:** what is secret by the schema of now, or of the revision that is listed, leaves the service for nobody
//! without the right to reveal it.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    list::{ListPage, ListRequest, ListScope},
    records::ListRecords,
};
use crate::{Principal, Refusal, read::Reads};
use concord_model::{key::Key, record::Revision, redaction::RedactedPlaces};
use concord_state::{State, query::AcrossRecord};

impl Reads {
    /// A page of a list as its caller is shown it.
    pub(super) async fn redact_page(
        &self,
        principal: &Principal,
        list: &ListRequest,
        mut page: ListPage,
    ) -> Result<ListPage, Refusal> {
        if list.scope == ListScope::Definitions {
            return Ok(page);
        }
        // Another node may have sent it, which has applied more.
        let now = self.freshness.state_to_show(page.revision).await?;
        if list.definition().is_some() {
            // Whatever its records are: how many there are in all would tell something as well.
            self.redact_configs(principal, &now, list, &mut page).await?;
        } else if let ListRecords::Across(records) = &mut page.records {
            let redacted = self.redact_across(principal, &now, page.revision, records).await?;
            page.redacted.extend(redacted);
        }
        weigh(&mut page)?;
        Ok(page)
    }

    async fn redact_configs(
        &self,
        principal: &Principal,
        now: &State,
        list: &ListRequest,
        page: &mut ListPage,
    ) -> Result<(), Refusal> {
        let Some(definition) = list.definition() else { return Ok(()) };
        let redaction = self.redactor.redaction(principal, now, definition, page.revision).await?;
        let mut redactions = vec![redaction];
        if let Some(earlier) = page.definition.take() {
            let found = now.definition(definition).map(|found| &found.definition);
            self.redactor.check_past_filters(principal, &earlier, found, &list.params).await?;
            redactions.push(self.redactor.redaction_of(principal, &earlier).await?);
        }
        for redaction in redactions {
            let ListRecords::Configs(configs) = &mut page.records else { continue };
            let (shown, redacted) = self.redactor.redact(redaction, std::mem::take(configs)).await?;
            *configs = shown;
            page.redacted.extend(redacted);
        }
        Ok(())
    }

    async fn redact_across(
        &self,
        principal: &Principal,
        now: &State,
        at: Revision,
        records: &mut [AcrossRecord],
    ) -> Result<RedactedPlaces, Refusal> {
        let mut of_definitions: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (place, record) in records.iter().enumerate() {
            of_definitions.entry(record.definition.clone()).or_default().push(place);
        }
        let mut all = RedactedPlaces::default();
        for (definition, places) in of_definitions {
            let redaction = self.redactor.redaction(principal, now, definition.as_str(), at).await?;
            let stored = places.iter().map(|place| Arc::clone(&records[*place].config)).collect();
            let (shown, redacted) = self.redactor.redact(redaction, stored).await?;
            for (place, shown) in places.into_iter().zip(shown) {
                records[place].config = shown;
            }
            all.extend(redacted);
        }
        Ok(all)
    }
}

/// Weighs a page again: `null` may be longer than what it stands for.
fn weigh(page: &mut ListPage) -> Result<(), Refusal> {
    let bytes = page.records.bytes();
    if page.reservation.bytes() > 0 && bytes > page.reservation.bytes() {
        page.reservation.grow(bytes - page.reservation.bytes())?;
    }
    Ok(())
}
