//! Changes of identity providers and roles; sessions that are opened and ended.
//!
//! Who may put a provider or a role decides who has the permissions of roles. So a client needs the permission `keys`, all
//! permissions of a role before and after its change, and for a provider those of all roles that name it.
//!
//! What changes a provider or a role names the policy that it was validated beside. With another one at the entry, the log
//! answers *stale*, and it is validated again.
//!
//! **Invariants:** nothing here changes anything. A provider or role that gives permissions which the client lacks does not
//! exist for it. A put that changes nothing writes nothing: sessions go on, and writes that wait are not evaluated again.

use std::sync::Arc;

use concord_identity::{
    Membership, Provider, change_problems, changes_trust, conflicts, provider::KeySource,
};
use concord_model::{
    access_key::{KeyId, Quota, Verb},
    command::{
        Applied, Command, Done, Expect, IdentityCommand, KeptOfProvider, PolicyChange, StepOutcome,
        SystemCommand,
    },
    document::Document,
    error::{IdentityRejection, Invalid, LocSegment, Rejection, Violation},
    key::Key,
    limits::{MATCH_VALUES_IN_ALL_MAX, PROVIDER_BYTES_MAX, ROLE_BYTES_MAX, ROLE_MEMBERS_IN_ALL_MAX},
    record::Revision,
    system::{SystemBody, SystemRecord},
    time::Timestamp,
};
use concord_net::outgoing::OwnAuthorities;
use concord_state::State;

use super::prepare::{Prepared, PreparedWrite, check_bytes, check_expect};
use crate::{
    policy::{Policies, Policy, may_end, texts::StoredRole},
    request::{IdentityWrite, NewRole, Principal, Refusal},
};

/// Verbs that stand for an act of a human, which a machine never has.
const OF_PERSONS: [Verb; 3] = [Verb::Approve, Verb::Bypass, Verb::Keys];

/// Validates what needs no state.
pub(super) fn check_identity(write: &IdentityWrite) -> Result<(), Invalid> {
    match write {
        IdentityWrite::PutProvider { name, document, .. } => {
            check_bytes("provider", Some(document), PROVIDER_BYTES_MAX)?;
            name_of(name)?;
            parsed_provider(document).map(drop)
        }
        IdentityWrite::PutRole { name, role, .. } => {
            check_bytes("role", Some(&role.membership), ROLE_BYTES_MAX)?;
            name_of(name)?;
            check_role(role).map(drop)
        }
        IdentityWrite::DeleteProvider { name, .. }
        | IdentityWrite::DeleteRole { name, .. }
        | IdentityWrite::EndSessions { provider: name, .. } => name_of(name).map(drop),
        IdentityWrite::EndSession { .. } | IdentityWrite::OpenSession(_) | IdentityWrite::FetchKeys(_) => {
            Ok(())
        }
    }
}

fn name_of(text: &str) -> Result<Key, Invalid> {
    Key::parse(text).map_err(|error| Violation::at(vec!["name".into()], error.to_string()).into())
}

fn parsed_provider(document: &Document) -> Result<Provider, Invalid> {
    let provider = Provider::parse(&document.value).map_err(Invalid::Violations)?;
    if provider.persons.is_some() {
        let msg = "this version opens sessions for machines only: leave out `persons` and `login`";
        return Err(Violation::at(vec!["persons".into()], msg).into());
    }
    if let KeySource::Url { ca: Some(ca), .. } = &provider.keys
        && let Err(error) = OwnAuthorities::from_pem(ca)
    {
        let msg = format!("expected PEM certificates of certificate authorities: {error}");
        return Err(Violation::at(vec!["keys".into(), "ca".into()], msg).into());
    }
    Ok(provider)
}

fn check_role(role: &NewRole) -> Result<Membership, Invalid> {
    let mut violations = Vec::new();
    let of_persons = |verb: &Verb| role.grants.0.iter().any(|grant| grant.verbs.contains(*verb));
    for verb in OF_PERSONS.iter().filter(|verb| of_persons(verb)) {
        let msg = format!("no machine has `{verb}`: it stands for an act of a human");
        violations.push(Violation::at(vec!["grants".into()], msg));
    }
    let Quota { requests_per_second: _, writes_per_second: _, bytes, records, watches, cursors, lists } =
        role.quota;
    for (name, limit) in
        [("bytes", bytes), ("records", records), ("watches", watches), ("cursors", cursors), ("lists", lists)]
    {
        if limit.is_some() {
            let msg = "the quota of a role has `requests_per_second` and `writes_per_second` only";
            violations.push(Violation::at(vec!["quota".into(), name.into()], msg));
        }
    }
    match Membership::parse(&role.membership.value) {
        Ok(membership) if violations.is_empty() => Ok(membership),
        Ok(_) => Err(Invalid::Violations(violations)),
        Err(more) => {
            violations.extend(more);
            Err(Invalid::Violations(violations))
        }
    }
}

/// Makes the command of a change of providers, roles or sessions. `at`: the time of the log.
pub(super) fn prepare_identity(
    state: &State,
    policies: &Policies,
    principal: &Principal,
    write: &IdentityWrite,
    at: Timestamp,
) -> Result<Prepared, Refusal> {
    let policy = policies.of(state);
    let change = Change { state, policy: &policy, principal, at };
    let command = match write {
        IdentityWrite::PutProvider { name, document, expect } => {
            return change.put_provider(name_of(name)?, document, *expect);
        }
        IdentityWrite::PutRole { name, role, expect } => {
            return change.put_role(name_of(name)?, role, *expect);
        }
        IdentityWrite::DeleteProvider { name, expect } => {
            let record = change.provider_seen(name)?;
            if let Some((role, _)) = policy.roles_of(name).next() {
                return Err(Refusal::ProviderInUse { role: role.clone() });
            }
            IdentityCommand::DeleteProvider(change.of(record.name.clone(), Some(record), *expect)?)
        }
        IdentityWrite::DeleteRole { name, expect } => {
            let record = change.role_seen(name)?;
            IdentityCommand::DeleteRole(change.of(record.name.clone(), Some(record), *expect)?)
        }
        IdentityWrite::EndSessions { provider, expect } => {
            let record = change.provider_seen(provider)?;
            let expect = expect_of(Some(record.revision), *expect, IdentityRejection::ProviderNotFound)?;
            IdentityCommand::EndSessions { name: record.name.clone(), expect }
        }
        IdentityWrite::EndSession { id } => {
            change.session_seen(id)?;
            IdentityCommand::EndSession { id: id.clone() }
        }
        IdentityWrite::OpenSession(new) => {
            if state.is_opening_stale(new) {
                return Err(Refusal::LoginStale);
            }
            IdentityCommand::OpenSession(new.clone())
        }
        // The leader has noted it.
        IdentityWrite::FetchKeys(_) => {
            return Ok(unchanged(state.revision(), state.last_at(), StepOutcome::NoRecord));
        }
    };
    Ok(propose(command))
}

fn propose(command: IdentityCommand) -> Prepared {
    Prepared::Propose(PreparedWrite::of(Command::System(SystemCommand::Identity(command))))
}

/// The response to a request that changes nothing.
fn unchanged(revision: Revision, at: Timestamp, done: StepOutcome) -> Prepared {
    Prepared::Read(Applied { revision, at, done: Done::Single(done) })
}

/// A change in a state.
struct Change<'a> {
    state: &'a State,
    policy: &'a Policy,
    principal: &'a Principal,
    at: Timestamp,
}

impl<'a> Change<'a> {
    /// The provider, if the client may manage it.
    fn provider_seen(&self, name: &str) -> Result<&'a Arc<SystemRecord>, Refusal> {
        let found = self.state.provider_record(name);
        let seen = found.filter(|record| self.policy.may_manage(self.principal, &record.name));
        seen.ok_or_else(|| IdentityRejection::ProviderNotFound.into())
    }

    /// The role, if the client has its permissions.
    fn role_seen(&self, name: &str) -> Result<&'a Arc<SystemRecord>, Refusal> {
        let has_all = |record: &&Arc<SystemRecord>| {
            StoredRole::of(&record.text).is_some_and(|role| self.principal.has_all(&role.grants))
        };
        let seen = self.state.role_record(name).filter(has_all);
        seen.ok_or_else(|| IdentityRejection::RoleNotFound.into())
    }

    /// The session, if the client may end it.
    fn session_seen(&self, id: &KeyId) -> Result<(), Refusal> {
        let found = self.policy.session(self.state, id, self.at);
        let seen = found.filter(|session| may_end(self.principal, session));
        seen.map(drop).ok_or_else(|| IdentityRejection::SessionNotFound.into())
    }

    /// What a change of the policy rests on.
    fn of(
        &self,
        name: Key,
        before: Option<&Arc<SystemRecord>>,
        expect: Expect,
    ) -> Result<PolicyChange, Refusal> {
        let missing = match before.map(|record| &record.body) {
            Some(SystemBody::Role) => IdentityRejection::RoleNotFound,
            Some(_) | None => IdentityRejection::ProviderNotFound,
        };
        let expect = expect_of(before.map(|record| record.revision), expect, missing)?;
        Ok(PolicyChange { name, expect, policy: self.policy.revision() })
    }

    fn put_provider(&self, name: Key, document: &Document, expect: Expect) -> Result<Prepared, Refusal> {
        // One of a name that roles have in advance is theirs.
        if !self.policy.may_manage(self.principal, &name) {
            return Err(Refusal::Forbidden { verb: Verb::Keys });
        }
        let provider = parsed_provider(document)?;
        let before = self.state.provider_record(name.as_str());
        let known = self.policy.provider(name.as_str());
        let mut problems = conflicts(name.as_str(), &provider, self.policy.providers());
        if let Some(known) = known {
            problems.extend(change_problems(known, &provider, false));
        }
        if !problems.is_empty() {
            return Err(Invalid::Violations(problems).into());
        }
        if let Some(before) = before
            && before.text == document.text
        {
            check_expect(
                expect,
                Some(before.revision),
                Rejection::from(IdentityRejection::ProviderNotFound),
                Rejection::from(IdentityRejection::ProviderNotFound),
            )?;
            return Ok(unchanged(before.revision, before.modified_at, StepOutcome::Changed));
        }
        let keeps = KeptOfProvider {
            trust: known.is_some_and(|known| !changes_trust(known, &provider)),
            keys: known.is_some_and(|known| known.keys == provider.keys && known.hosts == provider.hosts),
        };
        let of = self.of(name, before, expect)?;
        Ok(propose(IdentityCommand::PutProvider { of, keeps, text: Arc::clone(&document.text) }))
    }

    fn put_role(&self, name: Key, role: &NewRole, expect: Expect) -> Result<Prepared, Refusal> {
        let before = self.state.role_record(name.as_str());
        let old = before.and_then(|record| StoredRole::of(&record.text));
        // What another version has written may give more than this one knows.
        let has_before = before.is_none() || old.is_some_and(|old| self.principal.has_all(&old.grants));
        if !has_before || !self.principal.has_all(&role.grants) {
            return Err(Refusal::Forbidden { verb: Verb::Keys });
        }
        let membership = check_role(role)?;
        self.check_members(&name, &membership)?;
        let members = role.membership.value.get("members").cloned();
        let text = StoredRole {
            grants: role.grants.clone(),
            quota: role.quota,
            members: members.unwrap_or_else(|| serde_json::Value::Array(Vec::new())),
            session_s: membership.session_s,
        }
        .to_text();
        if let Some(before) = before
            && before.text == text
        {
            let missing = || Rejection::from(IdentityRejection::RoleNotFound);
            check_expect(expect, Some(before.revision), missing(), missing())?;
            return Ok(unchanged(before.revision, before.modified_at, StepOutcome::Changed));
        }
        let of = self.of(name, before, expect)?;
        Ok(propose(IdentityCommand::PutRole { of, text }))
    }

    /// Whether the providers of a role's members exist, and all roles together have no more members than are compared with
    /// a login.
    fn check_members(&self, name: &Key, membership: &Membership) -> Result<(), Invalid> {
        let mut violations = Vec::new();
        for (place, member) in (0..).zip(&membership.members) {
            if self.state.provider_record(member.provider.as_str()).is_none() {
                let loc = vec!["members".into(), LocSegment::Index(place), "provider".into()];
                violations
                    .push(Violation::at(loc, format!("the provider `{}` does not exist", member.provider)));
            }
        }
        let others =
            self.policy.roles().filter(|(role, _)| role.name != name).map(|(_, membership)| membership);
        let all = others.chain([membership]).flat_map(|membership| &membership.members);
        let (members, values) =
            all.fold((0, 0), |(members, values), member| (members + 1, values + member.value_count()));
        if members > ROLE_MEMBERS_IN_ALL_MAX || values > MATCH_VALUES_IN_ALL_MAX {
            let msg = format!(
                "limit reached: all roles together have at most {ROLE_MEMBERS_IN_ALL_MAX} members with \
                 {MATCH_VALUES_IN_ALL_MAX} values"
            );
            violations.push(Violation::new(msg));
        }
        if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
    }
}

/// The client's precondition, once it holds; and that the record is still the one that was read.
fn expect_of(
    current: Option<Revision>,
    expect: Expect,
    missing: IdentityRejection,
) -> Result<Expect, Refusal> {
    check_expect(expect, current, missing.into(), missing.into())?;
    match expect {
        Expect::At(_) | Expect::None => Ok(expect),
        Expect::Any | Expect::Absent | Expect::Present | Expect::Read(_) => Ok(Expect::Read(current)),
    }
}
