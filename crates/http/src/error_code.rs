//! The `code` of each item of `errors`: what a program may depend on, finer than the `type`.
//!
//! The code follows from the rejection and the location of the item, so every node gives the same one, also for a
//! rejection that another node has sent.
//!
//! **Invariant:** a released code keeps its name and its meaning. docs/reference/errors.md lists them all.

use concord_model::error::{IdentityRejection, Invalid, LocSegment, NothingToRestore, Rejection};
use concord_service::Refusal;

/// A code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Code {
    AccessKeyExists,
    AccessKeyNotFound,
    AuditOff,
    BodyInvalid,
    ChangeClosed,
    ChangeDigest,
    ChangeInvalid,
    ChangeNotDue,
    ChangeNotFound,
    ChangeRequired,
    ChangeStale,
    ClusterNotUpgraded,
    CodingUnsupported,
    ConfigBreaksSchema,
    ConfigExists,
    ConfigNotFound,
    Conflict,
    CursorExpired,
    DataInvalid,
    DefinitionExists,
    DefinitionNotEmpty,
    DefinitionNotFound,
    DefinitionNotThere,
    DefinitionProtected,
    DeletionNotKept,
    EnvironmentFrozen,
    EnvironmentInvalid,
    EnvironmentNotFound,
    Forbidden,
    HeaderInvalid,
    IdempotencyKeyReused,
    IdentityProviderInUse,
    IdentityProviderNotFound,
    IdentityProviderUnavailable,
    IndexBuilding,
    IndexInvalid,
    InternalError,
    KeyInvalid,
    KeyNotAttestable,
    KeyNotAttested,
    LimitReached,
    MemberInvalid,
    MemberNotFound,
    MethodNotAllowed,
    NoKeyForKeys,
    NoRole,
    NotApproved,
    NotApprover,
    NotRevertible,
    NotThere,
    OutcomeUnknown,
    Overloaded,
    OwnChange,
    OwnKey,
    PatchInvalid,
    PatchTestFailed,
    PathNotFound,
    PreconditionFailed,
    QueryInvalid,
    QuotaExceeded,
    RequestInvalid,
    RevisionCompacted,
    RoleNotFound,
    RolloutActive,
    RolloutInvalid,
    RolloutStage,
    SchemaInvalid,
    SessionNotFound,
    StorageFull,
    TokenInvalid,
    TooLarge,
    TooManyAccessKeys,
    TooManyChanges,
    TooManyEnvironments,
    TooManyIdentityProviders,
    TooManyPersons,
    TooManyRoles,
    TooManyRollouts,
    TooManySessions,
    Unauthorized,
    Unavailable,
    UniqueTaken,
}

impl Code {
    /// All codes, with the type of the errors that have them.
    pub(super) const ALL: [(Self, &'static str); 82] = [
        (Self::AccessKeyExists, "conflict_error"),
        (Self::AccessKeyNotFound, "not_found_error"),
        (Self::AuditOff, "not_found_error"),
        (Self::BodyInvalid, "validation_error"),
        (Self::ChangeClosed, "conflict_error"),
        (Self::ChangeDigest, "conflict_error"),
        (Self::ChangeInvalid, "validation_error"),
        (Self::ChangeNotDue, "conflict_error"),
        (Self::ChangeNotFound, "not_found_error"),
        (Self::ChangeRequired, "conflict_error"),
        (Self::ChangeStale, "conflict_error"),
        (Self::ClusterNotUpgraded, "conflict_error"),
        (Self::CodingUnsupported, "unsupported_coding"),
        (Self::ConfigBreaksSchema, "validation_error"),
        (Self::ConfigExists, "conflict_error"),
        (Self::ConfigNotFound, "not_found_error"),
        (Self::Conflict, "conflict_error"),
        (Self::CursorExpired, "expired_error"),
        (Self::DataInvalid, "validation_error"),
        (Self::DefinitionExists, "conflict_error"),
        (Self::DefinitionNotEmpty, "conflict_error"),
        (Self::DefinitionNotFound, "not_found_error"),
        (Self::DefinitionNotThere, "not_found_error"),
        (Self::DefinitionProtected, "conflict_error"),
        (Self::DeletionNotKept, "not_found_error"),
        (Self::EnvironmentFrozen, "conflict_error"),
        (Self::EnvironmentInvalid, "validation_error"),
        (Self::EnvironmentNotFound, "not_found_error"),
        (Self::Forbidden, "forbidden_error"),
        (Self::HeaderInvalid, "validation_error"),
        (Self::IdempotencyKeyReused, "validation_error"),
        (Self::IdentityProviderInUse, "conflict_error"),
        (Self::IdentityProviderNotFound, "not_found_error"),
        (Self::IdentityProviderUnavailable, "unavailable_error"),
        (Self::IndexBuilding, "conflict_error"),
        (Self::IndexInvalid, "validation_error"),
        (Self::InternalError, "server_error"),
        (Self::KeyInvalid, "validation_error"),
        (Self::KeyNotAttestable, "conflict_error"),
        (Self::KeyNotAttested, "forbidden_error"),
        (Self::LimitReached, "rate_limited"),
        (Self::MemberInvalid, "validation_error"),
        (Self::MemberNotFound, "not_found_error"),
        (Self::MethodNotAllowed, "method_not_allowed"),
        (Self::NoKeyForKeys, "conflict_error"),
        (Self::NoRole, "forbidden_error"),
        (Self::NotApproved, "conflict_error"),
        (Self::NotApprover, "forbidden_error"),
        (Self::NotRevertible, "validation_error"),
        (Self::NotThere, "not_found_error"),
        (Self::OutcomeUnknown, "timeout_error"),
        (Self::Overloaded, "rate_limited"),
        (Self::OwnChange, "forbidden_error"),
        (Self::OwnKey, "forbidden_error"),
        (Self::PatchInvalid, "validation_error"),
        (Self::PatchTestFailed, "conflict_error"),
        (Self::PathNotFound, "not_found_error"),
        (Self::PreconditionFailed, "precondition_failed"),
        (Self::QueryInvalid, "validation_error"),
        (Self::QuotaExceeded, "storage_full"),
        (Self::RequestInvalid, "validation_error"),
        (Self::RevisionCompacted, "expired_error"),
        (Self::RoleNotFound, "not_found_error"),
        (Self::RolloutActive, "conflict_error"),
        (Self::RolloutInvalid, "validation_error"),
        (Self::RolloutStage, "conflict_error"),
        (Self::SchemaInvalid, "validation_error"),
        (Self::SessionNotFound, "not_found_error"),
        (Self::StorageFull, "storage_full"),
        (Self::TokenInvalid, "unauthorized_error"),
        (Self::TooLarge, "payload_too_large"),
        (Self::TooManyAccessKeys, "conflict_error"),
        (Self::TooManyChanges, "conflict_error"),
        (Self::TooManyEnvironments, "conflict_error"),
        (Self::TooManyIdentityProviders, "conflict_error"),
        (Self::TooManyPersons, "conflict_error"),
        (Self::TooManyRoles, "conflict_error"),
        (Self::TooManyRollouts, "conflict_error"),
        (Self::TooManySessions, "conflict_error"),
        (Self::Unauthorized, "unauthorized_error"),
        (Self::Unavailable, "unavailable_error"),
        (Self::UniqueTaken, "conflict_error"),
    ];

    /// As it is sent.
    #[expect(clippy::too_many_lines, reason = "one table, a code in a line")]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AccessKeyExists => "access_key_exists",
            Self::AccessKeyNotFound => "access_key_not_found",
            Self::AuditOff => "audit_off",
            Self::BodyInvalid => "body_invalid",
            Self::ChangeClosed => "change_closed",
            Self::ChangeDigest => "change_digest",
            Self::ChangeInvalid => "change_invalid",
            Self::ChangeNotDue => "change_not_due",
            Self::ChangeNotFound => "change_not_found",
            Self::ChangeRequired => "change_required",
            Self::ChangeStale => "change_stale",
            Self::ClusterNotUpgraded => "cluster_not_upgraded",
            Self::CodingUnsupported => "coding_unsupported",
            Self::ConfigBreaksSchema => "config_breaks_schema",
            Self::ConfigExists => "config_exists",
            Self::ConfigNotFound => "config_not_found",
            Self::Conflict => "conflict",
            Self::CursorExpired => "cursor_expired",
            Self::DataInvalid => "data_invalid",
            Self::DefinitionExists => "definition_exists",
            Self::DefinitionNotEmpty => "definition_not_empty",
            Self::DefinitionNotFound => "definition_not_found",
            Self::DefinitionNotThere => "definition_not_there",
            Self::DefinitionProtected => "definition_protected",
            Self::DeletionNotKept => "deletion_not_kept",
            Self::EnvironmentFrozen => "environment_frozen",
            Self::EnvironmentInvalid => "environment_invalid",
            Self::EnvironmentNotFound => "environment_not_found",
            Self::Forbidden => "forbidden",
            Self::HeaderInvalid => "header_invalid",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::IdentityProviderInUse => "identity_provider_in_use",
            Self::IdentityProviderNotFound => "identity_provider_not_found",
            Self::IdentityProviderUnavailable => "identity_provider_unavailable",
            Self::IndexBuilding => "index_building",
            Self::IndexInvalid => "index_invalid",
            Self::InternalError => "internal_error",
            Self::KeyInvalid => "key_invalid",
            Self::KeyNotAttestable => "key_not_attestable",
            Self::KeyNotAttested => "key_not_attested",
            Self::LimitReached => "limit_reached",
            Self::MemberInvalid => "member_invalid",
            Self::MemberNotFound => "member_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NoKeyForKeys => "no_key_for_keys",
            Self::NoRole => "no_role",
            Self::NotApproved => "not_approved",
            Self::NotApprover => "not_approver",
            Self::NotRevertible => "not_revertible",
            Self::NotThere => "not_there",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Overloaded => "overloaded",
            Self::OwnChange => "own_change",
            Self::OwnKey => "own_key",
            Self::PatchInvalid => "patch_invalid",
            Self::PatchTestFailed => "patch_test_failed",
            Self::PathNotFound => "path_not_found",
            Self::PreconditionFailed => "precondition_failed",
            Self::QueryInvalid => "query_invalid",
            Self::QuotaExceeded => "quota_exceeded",
            Self::RequestInvalid => "request_invalid",
            Self::RevisionCompacted => "revision_compacted",
            Self::RoleNotFound => "role_not_found",
            Self::RolloutActive => "rollout_active",
            Self::RolloutInvalid => "rollout_invalid",
            Self::RolloutStage => "rollout_stage",
            Self::SchemaInvalid => "schema_invalid",
            Self::SessionNotFound => "session_not_found",
            Self::StorageFull => "storage_full",
            Self::TokenInvalid => "token_invalid",
            Self::TooLarge => "too_large",
            Self::TooManyAccessKeys => "too_many_access_keys",
            Self::TooManyChanges => "too_many_changes",
            Self::TooManyEnvironments => "too_many_environments",
            Self::TooManyIdentityProviders => "too_many_identity_providers",
            Self::TooManyPersons => "too_many_persons",
            Self::TooManyRoles => "too_many_roles",
            Self::TooManyRollouts => "too_many_rollouts",
            Self::TooManySessions => "too_many_sessions",
            Self::Unauthorized => "unauthorized",
            Self::Unavailable => "unavailable",
            Self::UniqueTaken => "unique_taken",
        }
    }

    /// That of a rejection; of broken rules the one of an item without a place.
    pub(super) fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Rejected(rejection) => Self::of_rejection(rejection),
            Refusal::Invalid(Invalid::Violations(_)) => Self::RequestInvalid,
            Refusal::Invalid(Invalid::TooLarge(_) | Invalid::TooLargeAt(_)) => Self::TooLarge,
            Refusal::Unavailable(_) => Self::Unavailable,
            Refusal::Undecided(_) => Self::OutcomeUnknown,
            Refusal::Overloaded => Self::Overloaded,
            Refusal::StorageFull(_) => Self::StorageFull,
            Refusal::Internal(_) => Self::InternalError,
            Refusal::Conflict(_) | Refusal::NotUniqueYet { .. } => Self::Conflict,
            Refusal::Forbidden { .. } => Self::Forbidden,
            Refusal::KeyEnded => Self::Unauthorized,
            Refusal::NoMember(_) => Self::MemberNotFound,
            Refusal::Expired(_) => Self::RevisionCompacted,
            Refusal::NotThere(_) => Self::NotThere,
            Refusal::DefinitionNotThere(_) => Self::DefinitionNotThere,
            Refusal::DeletionNotKept(_) => Self::DeletionNotKept,
            Refusal::AuditOff => Self::AuditOff,
            Refusal::Breaks { .. } => Self::ConfigBreaksSchema,
            Refusal::LimitReached(_) => Self::LimitReached,
            Refusal::Building(_) => Self::IndexBuilding,
            Refusal::CursorExpired(_) => Self::CursorExpired,
            Refusal::ChangeStale(_) => Self::ChangeStale,
            Refusal::TokenRejected { .. } => Self::TokenInvalid,
            Refusal::NoRole(_) => Self::NoRole,
            Refusal::ProviderUnavailable(_) => Self::IdentityProviderUnavailable,
            Refusal::ProviderInUse { .. } => Self::IdentityProviderInUse,
            Refusal::LoginStale => Self::Unavailable,
            Refusal::NotUpgraded { .. } => Self::ClusterNotUpgraded,
            Refusal::OfOperation(_, refusal) => Self::of(refusal),
        }
    }

    fn of_rejection(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::DefinitionExists => Self::DefinitionExists,
            Rejection::DefinitionNotFound => Self::DefinitionNotFound,
            Rejection::DefinitionNotEmpty(_) => Self::DefinitionNotEmpty,
            Rejection::DefinitionProtected(_) => Self::DefinitionProtected,
            Rejection::ConfigExists => Self::ConfigExists,
            Rejection::ConfigNotFound => Self::ConfigNotFound,
            Rejection::Precondition { .. } | Rejection::CheckFailed { .. } => Self::PreconditionFailed,
            Rejection::RequestReused => Self::IdempotencyKeyReused,
            Rejection::NotUnique { .. } => Self::UniqueTaken,
            Rejection::TestFailed { .. } => Self::PatchTestFailed,
            Rejection::NothingToRestore(NothingToRestore::DefinitionNotThere(_)) => Self::DefinitionNotThere,
            Rejection::NothingToRestore(_) => Self::NotThere,
            // Nothing tells a credential that was good from one that never was.
            Rejection::KeyEnded | Rejection::SessionEnded | Rejection::RootDisabled => Self::Unauthorized,
            Rejection::Identity(rejection) => Self::of_identity(*rejection),
            Rejection::KeyNotFound => Self::AccessKeyNotFound,
            Rejection::KeyExists => Self::AccessKeyExists,
            Rejection::TooManyKeys => Self::TooManyAccessKeys,
            Rejection::NoKeyForKeys => Self::NoKeyForKeys,
            Rejection::QuotaExceeded { .. } => Self::QuotaExceeded,
            Rejection::Unauthored => Self::InternalError,
            Rejection::ChangeRequired { .. } => Self::ChangeRequired,
            Rejection::EnvironmentFrozen { .. } | Rejection::FreezeLeft { .. } => Self::EnvironmentFrozen,
            Rejection::EnvironmentNotFound => Self::EnvironmentNotFound,
            Rejection::TooManyEnvironments => Self::TooManyEnvironments,
            Rejection::NotAttestable(_) => Self::KeyNotAttestable,
            Rejection::KeyNotAttested => Self::KeyNotAttested,
            Rejection::OwnKey => Self::OwnKey,
            Rejection::TooManyPersons => Self::TooManyPersons,
            Rejection::ChangeNotFound => Self::ChangeNotFound,
            Rejection::ChangeExists | Rejection::ChangeClosed => Self::ChangeClosed,
            Rejection::RolloutActive { .. } => Self::RolloutActive,
            Rejection::TooManyRollouts => Self::TooManyRollouts,
            Rejection::RolloutStage | Rejection::RolloutWaits(_) => Self::RolloutStage,
            Rejection::RolloutInvalid(_) => Self::RolloutInvalid,
            Rejection::ChangeHeld => Self::ChangeStale,
            Rejection::ChangeDigest => Self::ChangeDigest,
            Rejection::NotApproved { .. } | Rejection::EditionRejected => Self::NotApproved,
            Rejection::OwnChange => Self::OwnChange,
            Rejection::TooManyChanges(_) => Self::TooManyChanges,
            Rejection::ChangesFull => Self::StorageFull,
            Rejection::ChangeTooLarge(_) => Self::ChangeInvalid,
            Rejection::ChangeNotDue(_) => Self::ChangeNotDue,
            Rejection::NotRevertible(_) => Self::NotRevertible,
            Rejection::NotApprover => Self::NotApprover,
            Rejection::SenderEnded => Self::NotApproved,
            Rejection::InBatch { rejection, .. } => Self::of_rejection(rejection),
        }
    }

    fn of_identity(rejection: IdentityRejection) -> Self {
        match rejection {
            IdentityRejection::SessionNotFound => Self::SessionNotFound,
            IdentityRejection::ProviderNotFound => Self::IdentityProviderNotFound,
            IdentityRejection::RoleNotFound => Self::RoleNotFound,
            IdentityRejection::TokenEnded => Self::TokenInvalid,
            IdentityRejection::TooManySessions => Self::TooManySessions,
            IdentityRejection::TooManyProviders => Self::TooManyIdentityProviders,
            IdentityRejection::TooManyRoles => Self::TooManyRoles,
            // Ids are random, so another attempt has another one.
            IdentityRejection::SessionExists => Self::InternalError,
        }
    }

    /// That of an item of its refusal at a place.
    pub(super) fn at(self, loc: &[LocSegment]) -> Self {
        if self != Self::RequestInvalid {
            return self;
        }
        let name = |segment: Option<&LocSegment>| match segment {
            Some(LocSegment::Name(name)) => Some(name.clone()),
            Some(LocSegment::Index(_)) | None => None,
        };
        let first = name(loc.first());
        // The place of an operation comes before the place in it.
        let first = if matches!(first.as_deref(), Some("operations" | "then" | "else")) && loc.len() > 2 {
            name(loc.get(2))
        } else {
            first
        };
        match first.as_deref() {
            Some("data") => Self::DataInvalid,
            Some("json_schema") => Self::SchemaInvalid,
            Some("indexes" | "paths") => Self::IndexInvalid,
            Some("config_definition_key" | "config_key") => Self::KeyInvalid,
            Some("query") => Self::QueryInvalid,
            Some("header") => Self::HeaderInvalid,
            Some("body" | "operations") => Self::BodyInvalid,
            Some("patch") => Self::PatchInvalid,
            Some("environment" | "direct" | "approvals" | "freeze") => Self::EnvironmentInvalid,
            Some(
                "title" | "description" | "comment" | "digest" | "apply" | "schedule" | "revert_after_s",
            ) => Self::ChangeInvalid,
            // Members of a role have claims, and none of these.
            Some("members") if matches!(name(loc.get(2)).as_deref(), Some("provider" | "match")) => self,
            Some("members" | "id" | "api_addr" | "peer_addr") => Self::MemberInvalid,
            Some(_) | None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/reference/errors.md");

    #[test]
    fn the_codes_and_their_types_are_those_of_the_page_of_errors() {
        let (_, section) = PAGE.split_once("## Codes").expect("the page has the section");
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(|cell| cell.trim().trim_matches('`'));
            Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
        });
        let on_page: BTreeSet<_> = rows.collect();
        let known: BTreeSet<_> =
            Code::ALL.iter().map(|(code, kind)| (code.name().to_owned(), (*kind).to_owned())).collect();
        assert_eq!(known.len(), Code::ALL.len());
        assert_eq!(on_page, known);
    }

    #[test]
    fn an_item_has_the_code_of_its_place() {
        let at = |loc: &[&str]| {
            let loc: Vec<LocSegment> = loc.iter().map(|name| LocSegment::from(*name)).collect();
            Code::RequestInvalid.at(&loc).name()
        };
        assert_eq!(at(&["data", "a"]), "data_invalid");
        assert_eq!(at(&["query", "tier"]), "query_invalid");
        assert_eq!(at(&[]), "request_invalid");
        let in_batch = ["operations".into(), LocSegment::Index(3), "json_schema".into()];
        assert_eq!(Code::RequestInvalid.at(&in_batch), Code::SchemaInvalid);
        assert_eq!(Code::RequestInvalid.at(&in_batch[..2]), Code::BodyInvalid);
        assert_eq!(Code::TooLarge.at(&in_batch), Code::TooLarge);
    }
}
