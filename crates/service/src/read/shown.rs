//! A page of a list as a caller is shown it who may not see secret values.
//!
//! **Invariant:** what is secret by the schema of now, or of the revision that is listed, leaves the service for nobody
//! without the right to reveal it.

use std::{collections::BTreeMap, sync::Arc};

use super::{list::ListPage, records::ListRecords};
use crate::{Principal, Refusal, read::Reads};
use concord_model::key::Key;

impl Reads {
    /// A page as a caller is shown it.
    pub(super) async fn redact_page(
        &self,
        principal: &Principal,
        (definition, params): (&str, &[(String, String)]),
        mut page: ListPage,
    ) -> Result<ListPage, Refusal> {
        // Another node may have sent it, which has applied more.
        let now = self.freshness.state_to_show(page.revision).await?;
        let redaction = self.redactor.redaction(principal, &now, (definition, page.revision)).await?;
        let then = match page.then.take() {
            None => None,
            Some(then) => {
                let found = now.definition(definition).map(|found| &found.definition);
                self.redactor.check_past_filters(principal, (&then, found), params).await?;
                Some(self.redactor.redaction_of(principal, &then).await?)
            }
        };
        if let ListRecords::Configs(configs) = page.records {
            let (mut shown, mut redacted) = self.redactor.redact(redaction, configs).await?;
            if let Some(then) = then {
                let (shown_then, places) = self.redactor.redact(then, shown).await?;
                shown = shown_then;
                redacted.extend(places);
            }
            (page.records, page.redacted) = (ListRecords::Configs(shown), redacted);
            weigh(&mut page)?;
        }
        Ok(page)
    }

    /// A page of a list across definitions as a caller is shown it.
    pub(super) async fn redact_across(
        &self,
        principal: &Principal,
        mut page: ListPage,
    ) -> Result<ListPage, Refusal> {
        let state = self.freshness.state_to_show(page.revision).await?;
        let ListRecords::Across(records) = &mut page.records else { return Ok(page) };
        let mut of_definitions: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (place, record) in records.iter().enumerate() {
            of_definitions.entry(record.definition.clone()).or_default().push(place);
        }
        for (definition, places) in of_definitions {
            let redaction =
                self.redactor.redaction(principal, &state, (definition.as_str(), page.revision)).await?;
            let stored = places.iter().map(|place| Arc::clone(&records[*place].config)).collect();
            let (shown, redacted) = self.redactor.redact(redaction, stored).await?;
            for (place, shown) in places.into_iter().zip(shown) {
                records[place].config = shown;
            }
            page.redacted.extend(redacted);
        }
        weigh(&mut page)?;
        Ok(page)
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
