//! What the refusal of a write tells a client that may not read the definition.
//!
//! Some rejections name what other records contain: which config already has a value, how many configs there are,
//! which of them violate a schema. An access key may be allowed to write a definition and not to read it. Such a
//! client learns that the write is rejected, and with which status, because every attempt shows that. It does not
//! learn what the records contain.
//!
//! **Invariants:** the status of a rejected write does not depend on the client. What a client is shown depends on the
//! variant of the refusal and never on its text, because the text may come from a leader of another version.

use crate::request::{Principal, Refusal, Write};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
};
use concord_state::State;

/// A refusal as the principal may see it.
pub(super) fn concealed(refusal: Refusal, principal: &Principal, write: &Write) -> Refusal {
    // The client of a change request may read all of its definitions. Secret values are hidden before.
    if write.change().is_some() {
        return refusal;
    }
    let operation = |place: u32| {
        usize::try_from(place).ok().and_then(|place| write.operations().get(place)).unwrap_or(write)
    };
    if let Refusal::Rejected(Rejection::InBatch { index, rejection }) = refusal {
        return concealed(Refusal::Rejected(*rejection), principal, operation(index)).of_operation(index);
    }
    // A batch has no definition: only a key that may read all of them sees a refusal that names no operation.
    let may_read = || principal.authorize(Verb::Read, Some(write.definition())).is_ok();
    if !matches!(refusal, Refusal::OfOperation(..)) && may_read() {
        return refusal;
    }
    match refusal {
        Refusal::OfOperation(index, refusal) => {
            concealed(*refusal, principal, operation(index)).of_operation(index)
        }
        Refusal::Rejected(rejection) => match without_records(&rejection) {
            Some(text) => Refusal::Conflict(text),
            None => Refusal::Rejected(rejection),
        },
        Refusal::NotUniqueYet { .. } => {
            Refusal::Conflict("a path can't be unique: several configs have the same value there".into())
        }
        Refusal::Breaks { .. } => {
            let msg = "configs of the definition violate the schema; the access key has no permission to read which";
            Invalid::from(Violation::new(msg)).into()
        }
        // These tell of the request, its definition, a node or the cluster, and of no config except the requested one.
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
        | Refusal::DefinitionNotThere(_)
        | Refusal::DeletionNotKept(_)
        | Refusal::AuditOff
        | Refusal::NotUpgraded { .. }
        | Refusal::LimitReached(_)
        | Refusal::Forbidden { .. }
        | Refusal::KeyEnded
        | Refusal::Building(_)
        | Refusal::CursorExpired(_)
        | Refusal::TokenRejected { .. }
        | Refusal::NoRole(_)
        | Refusal::ProviderUnavailable(_)
        | Refusal::ProviderInUse { .. }
        | Refusal::LoginStale
        // It names records of definitions that the client may read.
        | Refusal::ChangeStale(_)) => other,
    }
}

/// Why a change request is not applied, as the applier may see it. A direct write that checks configs with
/// secret values needs `reveal`; here the sender or an approver has it, and the applier may not.
pub(super) fn without_values(refusal: Refusal, applier: &Principal, write: &Write, state: &State) -> Refusal {
    if let Refusal::OfOperation(index, refusal) = refusal {
        let operation = usize::try_from(index).ok().and_then(|place| write.operations().get(place));
        return without_values(*refusal, applier, operation.unwrap_or(write), state).of_operation(index);
    }
    let definition = write.definition();
    let has_secrets = state.definition(definition).is_none_or(|found| found.may_have_secrets());
    let quotes_values = has_secrets && matches!(refusal, Refusal::Breaks { .. });
    if !quotes_values || applier.authorize(Verb::Reveal, Some(definition)).is_ok() {
        return refusal;
    }
    let msg = "configs of the definition violate the schema; the access key has no permission to see their secret \
               values, so it is not told how";
    Invalid::from(Violation::new(msg)).into()
}

/// The text in place of a rejection that tells of other records; `None` for every other rejection. All of these have
/// the status 409. A rejection by an environment names the one of a definition that the client was authorized to write.
fn without_records(rejection: &Rejection) -> Option<String> {
    match rejection {
        Rejection::NotUnique { path, .. } => {
            Some(format!("`{path}` is unique, and another config has the same value there"))
        }
        Rejection::DefinitionNotEmpty(_) => Some("definition still has configs".into()),
        Rejection::InBatch { rejection, .. } => without_records(rejection),
        Rejection::DefinitionExists
        | Rejection::DefinitionNotFound
        | Rejection::DefinitionProtected(_)
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
        | Rejection::NothingToRestore(_)
        | Rejection::Unauthored
        | Rejection::ChangeRequired { .. }
        | Rejection::EnvironmentFrozen { .. }
        | Rejection::FreezeLeft { .. }
        | Rejection::RolloutActive { .. }
        | Rejection::RolloutInvalid(_)
        | Rejection::TooManyRollouts
        | Rejection::RolloutStage
        | Rejection::RolloutWaits(_)
        | Rejection::EnvironmentNotFound
        | Rejection::TooManyEnvironments
        | Rejection::NotAttestable(_)
        | Rejection::KeyNotAttested
        | Rejection::OwnKey
        | Rejection::TooManyPersons
        | Rejection::ChangeNotFound
        | Rejection::ChangeExists
        | Rejection::ChangeClosed
        | Rejection::ChangeHeld
        | Rejection::ChangeDigest
        | Rejection::NotApproved { .. }
        | Rejection::EditionRejected
        | Rejection::OwnChange
        | Rejection::TooManyChanges(_)
        | Rejection::ChangesFull
        | Rejection::ChangeTooLarge(_)
        | Rejection::ChangeNotDue(_)
        | Rejection::NotRevertible(_)
        | Rejection::NotApprover
        | Rejection::SenderEnded
        | Rejection::SessionEnded
        | Rejection::Identity(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{LazySchema, NewSchema, NewUnique};
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
            person: None,
            attestation: None,
            half_attested: None,
        };
        Principal::of_key(key.into(), 1)
    }

    #[test]
    fn a_refusal_names_no_records_that_the_client_may_not_read() {
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
            compiled: LazySchema::default(),
        };
        let unique = NewUnique { key: "d".into(), paths: Vec::new(), expect: Expect::Present };
        let taken = || Rejection::NotUnique { path: "p".into(), by: Key::parse("hidden").unwrap() };
        let shared = || Refusal::NotUniqueYet {
            path: "p".into(),
            one: Key::parse("hidden").unwrap(),
            other: Key::parse("buried").unwrap(),
        };
        let breaks = || Refusal::Breaks { count: 77, violations: vec![Violation::new("config `hidden`")] };
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
