//! What a refusal of a write may say to a caller who may not read the definition.
//!
//! Some rejections name what other records hold: which config has a value already, how many configs there are, which of
//! them break a schema. A caller may be allowed to write a definition and not to read it. Such a caller is told that
//! the write is refused, and with which status, because that follows from every attempt; not what the records are.
//!
//! **Invariant:** the status of a refusal does not depend on who asks.

use crate::{
    model::{
        access_key::Verb,
        error::{Invalid, LocSegment, Rejection, Violation},
    },
    service::request::{Principal, Refusal, Write},
};

/// A refusal as the principal may see it.
pub(super) fn concealed(refusal: Refusal, principal: &Principal, write: &Write) -> Refusal {
    let may_read = |write: &Write| principal.authorize(Verb::Read, Some(write.definition())).is_ok();
    match refusal {
        Refusal::Rejected(Rejection::InBatch { index, rejection }) => {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            let is_seen = write.operations().get(place).is_some_and(may_read);
            match without_records(&rejection).filter(|_| !is_seen) {
                Some(msg) => {
                    let loc = vec!["operations".into(), LocSegment::Index(index.into())];
                    Refusal::ConflictAt(Violation::at(loc, msg))
                }
                None => Rejection::InBatch { index, rejection }.into(),
            }
        }
        Refusal::Rejected(rejection) => match without_records(&rejection).filter(|_| !may_read(write)) {
            Some(msg) => Refusal::ConflictAt(Violation::new(msg)),
            None => rejection.into(),
        },
        Refusal::Breaks(..) if !may_read(write) => {
            Invalid::from(Violation::new("configs of the definition do not fit; this key may not read which")).into()
        }
        other => other,
    }
}

/// The text of a rejection in place of one that names records, which are all 409.
fn without_records(rejection: &Rejection) -> Option<String> {
    match rejection {
        Rejection::NotUnique { path, .. } => {
            Some(format!("`{path}` is unique, and another config has the same value there"))
        }
        Rejection::DefinitionNotEmpty(_) => Some("definition still has configs".into()),
        _ => None,
    }
}
