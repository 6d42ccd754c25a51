//! What a rejected write may say to a client whose key may not read the definition.
//!
//! Some rejections name what other records hold: which config has a value already, how many configs there are, which of
//! them break a schema. A key may be allowed to write a definition and not to read it. Such a client learns that the
//! write is rejected, and with which status, because that follows from every attempt; it does not learn what the
//! records are.
//!
//! **Invariants:** the status of a rejected write does not depend on who asks. What a client is shown depends on the
//! variant of the refusal, never on its text: a text may come from a leader of another version.

use super::batch::OPERATIONS;
use crate::request::{Principal, Refusal, Write};
use concord_model::{
    access_key::Verb,
    error::{Invalid, LocSegment, Rejection, Violation},
};

/// A refusal as the principal may see it.
pub(super) fn concealed(refusal: Refusal, principal: &Principal, write: &Write) -> Refusal {
    let operation = operation_of(&refusal);
    let place = operation.and_then(|index| usize::try_from(index).ok());
    // Where no operation is named, a batch has no definition: only a key that may read all of them sees its text.
    let of = place.and_then(|place| write.operations().get(place)).unwrap_or(write);
    if principal.authorize(Verb::Read, Some(of.definition())).is_ok() {
        return refusal;
    }
    let at = |msg: &str| {
        let loc = operation.map(|index| vec![OPERATIONS.into(), LocSegment::Index(index)]);
        Violation::at(loc.unwrap_or_default(), msg)
    };
    match refusal {
        Refusal::Rejected(rejection) => match without_records(&rejection) {
            Some(msg) => Refusal::ConflictAt(at(&msg)),
            None => Refusal::Rejected(rejection),
        },
        Refusal::NotUniqueYet { .. } => {
            Refusal::ConflictAt(at("a path can't be unique: several configs have the same value there"))
        }
        Refusal::Breaks { .. } => {
            let msg = "configs of the definition do not fit, and the access key has no right to read which";
            Invalid::from(at(msg)).into()
        }
        Refusal::OfOperation(index, inner) => {
            Refusal::OfOperation(index, Box::new(concealed(*inner, principal, of)))
        }
        // These tell of the request, of its definition, of a node or of the cluster, and of no config but the one that
        // the request names.
        other @ (Refusal::Invalid(_)
        | Refusal::Unavailable(_)
        | Refusal::Undecided(_)
        | Refusal::Overloaded
        | Refusal::StorageFull(_)
        | Refusal::Internal(_)
        | Refusal::Conflict(_)
        | Refusal::NoMember(_)
        | Refusal::Expired(_)
        | Refusal::NotThere(_)
        | Refusal::LimitReached(_)
        | Refusal::Forbidden { .. }
        | Refusal::KeyEnded
        | Refusal::ConflictAt(_)
        | Refusal::Building(_)
        | Refusal::CursorExpired(_)) => other,
    }
}

/// The operation of a batch that a refusal is about.
fn operation_of(refusal: &Refusal) -> Option<u64> {
    match refusal {
        Refusal::Rejected(Rejection::InBatch { index, .. }) | Refusal::OfOperation(index, _) => {
            Some((*index).into())
        }
        Refusal::NotUniqueYet { operation, .. } | Refusal::Breaks { operation, .. } => {
            operation.map(u64::from)
        }
        Refusal::Rejected(_)
        | Refusal::Invalid(_)
        | Refusal::Unavailable(_)
        | Refusal::Undecided(_)
        | Refusal::Overloaded
        | Refusal::StorageFull(_)
        | Refusal::Internal(_)
        | Refusal::Conflict(_)
        | Refusal::NoMember(_)
        | Refusal::Expired(_)
        | Refusal::NotThere(_)
        | Refusal::LimitReached(_)
        | Refusal::Forbidden { .. }
        | Refusal::KeyEnded
        | Refusal::ConflictAt(_)
        | Refusal::Building(_)
        | Refusal::CursorExpired(_) => None,
    }
}

/// The text of a rejection in place of one that tells of records. All of these are 409.
fn without_records(rejection: &Rejection) -> Option<String> {
    match rejection {
        Rejection::NotUnique { path, .. } => {
            Some(format!("`{path}` is unique, and another config has the same value there"))
        }
        Rejection::DefinitionNotEmpty(_) => Some("definition still has configs".into()),
        Rejection::InBatch { rejection, .. } => without_records(rejection),
        Rejection::DefinitionExists
        | Rejection::DefinitionNotFound
        | Rejection::ConfigExists
        | Rejection::ConfigNotFound
        | Rejection::Precondition { .. }
        | Rejection::RequestReused
        | Rejection::KeyEnded
        | Rejection::RootDisabled
        | Rejection::KeyNotFound
        | Rejection::KeyExists
        | Rejection::TooManyKeys
        | Rejection::NoKeyForKeys
        | Rejection::QuotaExceeded { .. }
        | Rejection::TestFailed { .. }
        | Rejection::CheckFailed { .. }
        | Rejection::NothingToRestore(_) => None,
    }
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
        let shared = || Refusal::NotUniqueYet {
            path: "p".into(),
            one: Key::parse("hidden").unwrap(),
            other: Key::parse("buried").unwrap(),
            operation: None,
        };
        let breaks = || Refusal::Breaks {
            count: 77,
            violations: vec![Violation::new("config `hidden`")],
            operation: None,
        };
        let in_batch = |rejection| Rejection::InBatch { index: 1, rejection: Box::new(rejection) };
        let batch = Write::Batch(vec![delete("e"), delete("d")]);
        let cases = [
            (taken().into(), delete("d")),
            (Rejection::DefinitionNotEmpty(77).into(), delete("d")),
            (in_batch(taken()).into(), batch.clone()),
            (in_batch(Rejection::DefinitionNotEmpty(77)).into(), batch.clone()),
            (shared().of_operation(1), batch.clone()),
            (breaks().of_operation(1), batch),
            (shared(), Write::SetUnique(unique)),
            (breaks(), Write::SetSchema(schema)),
        ];
        let (writer, reader) = (key(&[Verb::Write, Verb::Define]), key(&[Verb::Read]));
        for (refusal, write) in cases {
            for principal in [&Principal::root(), &reader] {
                assert_eq!(concealed(refusal.clone(), principal, &write), refusal);
            }
            let told = format!("{:?}", concealed(refusal.clone(), &writer, &write));
            assert!(["hidden", "buried", "77"].iter().all(|record| !told.contains(record)), "{told}");
        }
        let plain = Refusal::Rejected(Rejection::ConfigNotFound);
        assert_eq!(concealed(plain.clone(), &writer, &delete("d")), plain);
    }
}
