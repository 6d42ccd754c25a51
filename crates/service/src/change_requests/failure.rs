//! What follows when the cluster can't apply or take back a change request that is due.
//!
//! **Invariant:** the text of a failure is shown to everybody who may read the change request. It has no secret value:
//! violations never quote one.

use crate::request::Refusal;
use concord_model::{
    error::{Invalid, LocSegment, NotDue, Rejection, Violation},
    limits::FAILURE_BYTES_MAX,
    system::change::Failure,
    unseen::is_unseen,
};

/// What follows a rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt: what is in the way goes by itself.
    Later,
    /// Nothing: somebody else was first, or its time is over.
    Gone,
    /// It has failed.
    Never(Failure),
}

/// The codes of failures: those of the same rejections for clients, except [`AUTHOR_ENDED`].
const AUTHOR_ENDED: &str = "author_ended";
const CHANGE_STALE: &str = "change_stale";
const INVALID: &str = "change_invalid";

/// What follows a rejection.
pub(super) fn next_of(refusal: &Refusal) -> Next {
    match refusal {
        Refusal::Rejected(rejection) => next_of_rejection(rejection),
        Refusal::ChangeStale(text) => never(CHANGE_STALE, text),
        Refusal::Forbidden { verb } => {
            let text =
                format!("neither the sender nor an approver has the permission `{}` any more", verb.name());
            never(AUTHOR_ENDED, &text)
        }
        Refusal::KeyEnded => never(AUTHOR_ENDED, "an access key is no longer valid"),
        Refusal::OfOperation(place, refusal) => match next_of(refusal) {
            Next::Never(failure) => never(&failure.code, &format!("operation {place}: {}", failure.text)),
            next @ (Next::Later | Next::Gone) => next,
        },
        Refusal::Invalid(Invalid::Violations(violations)) => never(INVALID, &violations_text(violations)),
        Refusal::Invalid(Invalid::TooLarge(text)) => never(INVALID, text),
        Refusal::Invalid(Invalid::TooLargeAt(violation)) => {
            never(INVALID, &violations_text(std::slice::from_ref(violation)))
        }
        Refusal::Breaks { count, violations } => {
            let text = format!("{count} configs violate the schema: {}", violations_text(violations));
            never(INVALID, &text)
        }
        Refusal::NotUniqueYet { path, one, other } => never(
            INVALID,
            &format!("`{path}` can't be unique: configs `{one}` and `{other}` have the same value"),
        ),
        Refusal::Expired(text)
        | Refusal::NotThere(text)
        | Refusal::DefinitionNotThere(text)
        | Refusal::DeletionNotKept(text) => never(INVALID, text),
        // Of a node, of the moment, or a limit.
        Refusal::Unavailable(_)
        | Refusal::Undecided(_)
        | Refusal::Overloaded
        | Refusal::StorageFull(_)
        | Refusal::Internal(_)
        | Refusal::Conflict(_)
        | Refusal::NoMember(_)
        | Refusal::LimitReached(_)
        | Refusal::Building(_)
        | Refusal::CursorExpired(_)
        | Refusal::NotUpgraded { .. }
        // No write of records is refused so.
        | Refusal::TokenRejected { .. }
        | Refusal::NoRole(_)
        | Refusal::ProviderUnavailable(_)
        | Refusal::ProviderInUse { .. }
        | Refusal::LoginStale
        | Refusal::AuditOff => Next::Later,
    }
}

fn next_of_rejection(rejection: &Rejection) -> Next {
    let text = rejection.to_string();
    match rejection {
        // A freeze, or a limit.
        Rejection::EnvironmentFrozen { .. }
        | Rejection::FreezeLeft { .. }
        | Rejection::RolloutActive { .. }
        | Rejection::TooManyRollouts
        | Rejection::RolloutWaits(_)
        | Rejection::QuotaExceeded { .. }
        | Rejection::TooManyKeys
        | Rejection::TooManyEnvironments
        | Rejection::TooManyPersons
        | Rejection::TooManyChanges(_)
        | Rejection::ChangesFull
        | Rejection::ChangeNotDue(NotDue::Before(_))
        // A defect of this leader, which another one need not have.
        | Rejection::Unauthored => Next::Later,
        Rejection::ChangeNotFound
        | Rejection::ChangeExists
        | Rejection::ChangeClosed
        | Rejection::ChangeHeld
        | Rejection::RolloutStage
        | Rejection::ChangeNotDue(NotDue::After(_) | NotDue::NoSchedule)
        | Rejection::NotRevertible(_) => Next::Gone,
        Rejection::SenderEnded
        | Rejection::KeyEnded
        | Rejection::SessionEnded
        | Rejection::RootDisabled => never(AUTHOR_ENDED, &text),
        Rejection::NotApproved { .. } | Rejection::EditionRejected => never("not_approved", &text),
        Rejection::ChangeDigest => never("change_digest", &text),
        Rejection::RolloutInvalid(_) => never("change_invalid", &text),
        Rejection::InBatch { index, rejection } => match next_of_rejection(rejection) {
            Next::Never(failure) => never(&failure.code, &format!("operation {index}: {}", failure.text)),
            next @ (Next::Later | Next::Gone) => next,
        },
        Rejection::DefinitionExists
        | Rejection::DefinitionNotFound
        | Rejection::DefinitionNotEmpty(_)
        | Rejection::ConfigExists
        | Rejection::ConfigNotFound
        | Rejection::Precondition { .. }
        | Rejection::RequestReused
        | Rejection::NotUnique { .. }
        | Rejection::KeyNotFound
        | Rejection::KeyExists
        | Rejection::NoKeyForKeys
        | Rejection::CheckFailed { .. }
        | Rejection::TestFailed { .. }
        | Rejection::NothingToRestore(_)
        | Rejection::DefinitionProtected(_)
        | Rejection::ChangeRequired { .. }
        | Rejection::EnvironmentNotFound
        | Rejection::NotAttestable(_)
        | Rejection::KeyNotAttested
        | Rejection::OwnKey
        | Rejection::OwnChange
        | Rejection::NotApprover
        | Rejection::Identity(_)
        | Rejection::ChangeTooLarge(_) => never(INVALID, &text),
    }
}

fn violations_text(violations: &[Violation]) -> String {
    let place = |violation: &Violation| {
        let segment = |segment: &LocSegment| match segment {
            LocSegment::Name(name) => name.clone(),
            LocSegment::Index(place) => place.to_string(),
        };
        violation.loc.iter().map(segment).collect::<Vec<_>>().join("/")
    };
    let one = |violation: &Violation| match place(violation).as_str() {
        "" => violation.msg.clone(),
        place => format!("{place}: {}", violation.msg),
    };
    violations.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A failure whose text fits, without characters that nobody sees.
fn never(code: &str, text: &str) -> Next {
    let mut kept = String::new();
    for char in text.chars().map(|char| if is_unseen(char) { '\u{fffd}' } else { char }) {
        if code.len() + kept.len() + char.len_utf8() > FAILURE_BYTES_MAX {
            break;
        }
        kept.push(char);
    }
    Next::Never(Failure { code: code.to_owned(), text: kept })
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{access_key::Verb, key::Key, time::Timestamp};

    fn code(refusal: &Refusal) -> Option<String> {
        if let Next::Never(failure) = next_of(refusal) { Some(failure.code) } else { None }
    }

    #[test]
    fn a_freeze_and_a_limit_are_waited_for_and_another_refusal_is_a_failure() {
        let environment = Key::parse("prod").unwrap();
        let frozen = Rejection::EnvironmentFrozen { environment, until: Timestamp(7) };
        let in_batch = |rejection| Rejection::InBatch { index: 3, rejection: Box::new(rejection) };
        for later in [
            frozen.clone().into(),
            in_batch(frozen).into(),
            Refusal::Overloaded,
            Refusal::StorageFull("full".into()),
            Rejection::ChangesFull.into(),
        ] {
            assert_eq!(next_of(&later), Next::Later, "{later:?}");
        }
        for gone in [
            Rejection::ChangeClosed,
            Rejection::ChangeHeld,
            Rejection::ChangeNotDue(NotDue::After(Timestamp(7))),
        ] {
            assert_eq!(next_of(&gone.into()), Next::Gone);
        }
        assert_eq!(code(&Refusal::ChangeStale("x".into())).as_deref(), Some(CHANGE_STALE));
        assert_eq!(
            code(&Refusal::Forbidden { verb: Verb::Write }.of_operation(1)).as_deref(),
            Some(AUTHOR_ENDED)
        );
        assert_eq!(code(&Rejection::SenderEnded.into()).as_deref(), Some(AUTHOR_ENDED));
        let Next::Never(failure) = next_of(&in_batch(Rejection::ConfigExists).into()) else {
            panic!("it fails")
        };
        assert_eq!(failure.text, "operation 3: config exists already");
    }

    #[test]
    fn a_text_is_bounded_and_shows_all_of_its_characters() {
        let Next::Never(failure) = never(INVALID, &"é\u{200b}".repeat(FAILURE_BYTES_MAX)) else {
            panic!("it fails")
        };
        assert!(failure.code.len() + failure.text.len() <= FAILURE_BYTES_MAX && failure.text.len() > 900);
        assert!(!failure.text.contains(is_unseen));
    }
}
