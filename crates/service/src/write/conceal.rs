//! What a refusal of a write may say to a caller who may not read the definition.
//!
//! Some rejections name what other records hold: which config has a value already, how many configs there are, which of
//! them break a schema. A caller may be allowed to write a definition and not to read it. Such a caller is told that
//! the write is refused, and with which status, because that follows from every attempt; not what the records are.
//!
//! **Invariant:** the status of a refusal does not depend on who asks.

use super::{batch::OPERATIONS, config_scan::SAME_VALUE};
use crate::request::{Principal, Refusal, Write};
use concord_model::{
    access_key::Verb,
    error::{Invalid, LocSegment, Rejection, Violation},
};

/// A refusal as the principal may see it.
pub(super) fn concealed(refusal: Refusal, principal: &Principal, write: &Write) -> Refusal {
    let loc = operation_of(&refusal);
    let place = loc.as_ref().and_then(|(_, index)| usize::try_from(*index).ok());
    // Of a batch that is refused as a whole it is judged whether all may be read.
    let of = place.and_then(|place| write.operations().get(place)).unwrap_or(write);
    if principal.authorize(Verb::Read, Some(of.definition())).is_ok() {
        return refusal;
    }
    let at = |msg: String| {
        Violation::at(loc.map_or_else(Vec::new, |(name, index)| vec![name, LocSegment::Index(index)]), msg)
    };
    if let Refusal::Rejected(rejection) = &refusal {
        let alone = if let Rejection::InBatch { rejection, .. } = rejection { rejection } else { rejection };
        return without_records(alone).map_or(refusal, |msg| Refusal::ConflictAt(at(msg)));
    }
    if let Refusal::Conflict(text) = &refusal
        && text.ends_with(SAME_VALUE)
    {
        return Refusal::Conflict(same_value());
    }
    if let Refusal::ConflictAt(violation) = &refusal
        && violation.msg.ends_with(SAME_VALUE)
    {
        return Refusal::ConflictAt(at(same_value()));
    }
    if let Refusal::Breaks(..) = refusal {
        let msg = "configs of the definition do not fit, and the access key has no right to read which";
        return Invalid::from(at(msg.into())).into();
    }
    refusal
}

fn same_value() -> String {
    format!("a path can't be unique: several configs {SAME_VALUE} there")
}

/// The operation of a batch that a refusal is about, as the beginning of its location.
fn operation_of(refusal: &Refusal) -> Option<(LocSegment, u64)> {
    let violation = if let Refusal::Rejected(Rejection::InBatch { index, .. }) = refusal {
        return Some((OPERATIONS.into(), (*index).into()));
    } else if let Refusal::ConflictAt(violation) = refusal {
        violation
    } else if let Refusal::Breaks(_, violations) = refusal {
        violations.first()?
    } else {
        return None;
    };
    let [name @ LocSegment::Name(_), LocSegment::Index(index), ..] = violation.loc.as_slice() else {
        return None;
    };
    (*name == OPERATIONS.into()).then(|| (name.clone(), *index))
}

/// The text of a rejection in place of one that tells of records. All of these are 409.
fn without_records(rejection: &Rejection) -> Option<String> {
    if let Rejection::NotUnique { path, .. } = rejection {
        return Some(format!("`{path}` is unique, and another config has the same value there"));
    }
    matches!(rejection, Rejection::DefinitionNotEmpty(_)).then(|| "definition still has configs".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Compiled, NewSchema, NewUnique};
    use concord_model::{
        access_key::{AccessKey, Grant, Grants, KeyId, Pattern, Quota},
        command::Expect,
        key::Key,
        time::Timestamp,
    };

    fn key(verbs: &[Verb]) -> Principal {
        let grant =
            Grant { verbs: verbs.iter().copied().collect(), definitions: vec![Pattern::parse("d").unwrap()] };
        let key = AccessKey {
            id: KeyId::parse("abcdefghijkl").unwrap(),
            name: "k".into(),
            grants: Grants(vec![grant]),
            quota: Quota::default(),
            expires_at: None,
            created_at: Timestamp(1),
            created_by: "root".into(),
            modified_at: Timestamp(1),
            revision: 1,
            secrets: Vec::new(),
            last_used_day: None,
        };
        Principal::of_key(key.into(), 1)
    }

    #[test]
    fn what_a_caller_may_not_read_is_not_in_a_refusal() {
        let delete = |definition: &str| Write::DeleteConfig {
            definition: definition.into(),
            key: "k".into(),
            expect: Expect::Present,
        };
        let schema = NewSchema {
            key: "d".into(),
            schema: None,
            format_assertion: None,
            expect: Expect::Present,
            force: false,
            compiled: Compiled::default(),
        };
        let unique = NewUnique { key: "d".into(), paths: Vec::new(), expect: Expect::Present };
        let taken = || Rejection::NotUnique { path: "p".into(), by: Key::parse("hidden").unwrap() };
        let in_batch = |rejection| Rejection::InBatch { index: 1, rejection: Box::new(rejection) };
        let batch = Write::Batch(vec![delete("e"), delete("d")]);
        let cases = [
            (taken().into(), delete("d")),
            (Rejection::DefinitionNotEmpty(77).into(), delete("d")),
            (in_batch(taken()).into(), batch.clone()),
            (in_batch(Rejection::DefinitionNotEmpty(77)).into(), batch.clone()),
            (
                Refusal::Conflict(format!("configs `hidden` and `k` {SAME_VALUE}")).of_operation(1),
                batch.clone(),
            ),
            (Refusal::Breaks(77, vec![Violation::new("config `hidden`")]).of_operation(1), batch),
            (Refusal::Conflict(format!("configs `hidden` and `k` {SAME_VALUE}")), Write::SetUnique(unique)),
            (Refusal::Breaks(77, vec![Violation::new("config `hidden`")]), Write::SetSchema(schema)),
        ];
        let (writer, reader) = (key(&[Verb::Write, Verb::Define]), key(&[Verb::Read]));
        for (refusal, write) in cases {
            for principal in [&Principal::root(), &reader] {
                assert_eq!(concealed(refusal.clone(), principal, &write), refusal);
            }
            let told = format!("{:?}", concealed(refusal.clone(), &writer, &write));
            assert!(!told.contains("hidden") && !told.contains("77"), "{told}");
        }
        let plain = Refusal::Rejected(Rejection::ConfigNotFound);
        assert_eq!(concealed(plain.clone(), &writer, &delete("d")), plain);
    }
}
