//! Identity providers, roles and sessions; logins.
//!
//! | where is | file |
//! |---|---|
//! | the bodies of requests | `body` |
//! | the login, which needs no key | `login` |
//!
//! **Invariants:** the text of a session is only in the response to the login that opened it. What a client may not manage
//! does not exist for it. A token is in no response.

pub(crate) mod body;
pub(super) mod login;

use serde_json::{Value, json};

use super::{
    access_keys::grants_json,
    endpoints::{PROVIDERS, ROLES},
    extract::{BodyRequest, QueryParams, ReadRequest, query_violation},
    json::Object,
    reply::{Problem, Reply},
};
use body::{new_role, token};
use concord_model::{
    access_key::{KeyId, Quota},
    document::Document,
    error::{IdentityRejection, Rejection},
    key::Key,
    query::QueryError,
};
use concord_service::{
    IdentityWrite, LoggedIn, ProviderView, Refusal, RoleView, Service, SessionView, StoredIdentity,
    TokenReason, TriedRole, TriedToken,
};

/// Sessions of a page, unless the query says how many.
const PAGE: u64 = 100;
/// Sessions of a page at most.
const PAGE_MAX: u64 = 1000;
/// The session of the request itself, in a path.
const CURRENT: &str = "current";

/// Lists the providers that the client may manage.
pub(super) async fn list_providers(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let (found, revision) = service.identities.providers(&request.principal, consistency).await?;
    let results = found.iter().map(provider_json);
    Ok(Reply::ok("identity providers found", &list_json(results)).state_revision(revision))
}

/// Gets a provider.
pub(super) async fn get_provider(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let name = request.name();
    let (found, revision) = service.identities.provider(&request.principal, &name, consistency).await?;
    // How many sessions it has changes without it, so the client's version is never the whole answer.
    let reply = Reply::ok("identity provider found", &provider_json(&found));
    Ok(reply.record_version(found.record.revision, found.record.modified_at).state_revision(revision))
}

/// Creates or replaces a provider.
pub(super) async fn put_provider(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_create_or_replace();
    // The service validates it.
    let document = request.read_value(&service, |body| Ok(Document::new(body))).await?;
    let stored = service.identities.put_provider(request.caller, request.name, document, expect).await?;
    let data = provider_json(&stored.view);
    let location = format!("{PROVIDERS}{}", stored.view.record.name);
    Ok(stored_reply(["identity provider created", "identity provider stored"], &stored, &data, &location))
}

/// Deletes a provider.
pub(super) async fn delete_provider(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let data = Object::new().value("provider", &request.name).finish();
    let write = IdentityWrite::DeleteProvider { name: request.name, expect };
    let written = service.identities.run(request.caller, write).await?;
    Ok(Reply::ok("identity provider deleted", &data).for_write_without_record(&written))
}

/// Ends all sessions of a provider.
pub(super) async fn end_sessions(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let data = Object::new().value("provider", &request.name).finish();
    let write = IdentityWrite::EndSessions { provider: request.name, expect };
    let written = service.identities.run(request.caller, write).await?;
    Ok(Reply::ok("sessions ended", &data).for_write_without_record(&written))
}

/// Says check by check what a login with a token would come to.
pub(super) async fn try_token(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let token = request.read(&service, token).await?;
    let tried = service.identities.try_token(&request.caller.principal, &request.name, &token).await?;
    Ok(Reply::ok("token tried", &tried_json(&tried)).no_store())
}

/// Lists the roles whose grants the client has.
pub(super) async fn list_roles(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let (found, revision) = service.identities.roles(&request.principal, consistency).await?;
    Ok(Reply::ok("roles found", &list_json(found.iter().map(role_json))).state_revision(revision))
}

/// Gets a role.
pub(super) async fn get_role(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let name = request.name();
    let (found, revision) = service.identities.role(&request.principal, &name, consistency).await?;
    let (version, at) = (found.record.revision, found.record.modified_at);
    let reply = if request.has(version) {
        Reply::not_modified()
    } else {
        Reply::ok("role found", &role_json(&found))
    };
    Ok(reply.record_version(version, at).state_revision(revision))
}

/// Creates or replaces a role.
pub(super) async fn put_role(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_create_or_replace();
    let role = request.read(&service, new_role).await?;
    let stored = service.identities.put_role(request.caller, request.name, role, expect).await?;
    let data = role_json(&stored.view);
    let location = format!("{ROLES}{}", stored.view.record.name);
    Ok(stored_reply(["role created", "role stored"], &stored, &data, &location))
}

/// Deletes a role.
pub(super) async fn delete_role(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let data = Object::new().value("role", &request.name).finish();
    let write = IdentityWrite::DeleteRole { name: request.name, expect };
    let written = service.identities.run(request.caller, write).await?;
    Ok(Reply::ok("role deleted", &data).for_write_without_record(&written))
}

/// Lists the sessions that the client may end: its own, and those with no more permissions than it has.
pub(super) async fn list_sessions(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, (after, limit)) = request.params.with_consistency(page(&request.params))?;
    let own = request.principal.session().map(|session| session.machine.session.clone());
    // One more than the page has says whether there is another page.
    let (mut found, revision) =
        service.identities.sessions(&request.principal, (after, limit + 1), consistency).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|last| last.id.as_str());
    let results = found.iter().map(|session| session_json(session, own.as_ref()));
    let results = results.collect::<Vec<_>>().join(",");
    let meta = Object::new().value("limit", &limit).value("next", &next).finish();
    let data = Object::new().raw("results", &format!("[{results}]")).raw("meta", &meta).finish();
    Ok(Reply::ok("sessions found", &data).state_revision(revision).no_store())
}

/// Ends a session.
pub(super) async fn end_session(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let own = request.caller.principal.session().map(|session| session.machine.session.clone());
    let id = if request.name == CURRENT { own } else { KeyId::parse(&request.name) };
    let id = id.ok_or_else(|| Refusal::from(Rejection::from(IdentityRejection::SessionNotFound)))?;
    let data = Object::new().unescaped("session_id", id.as_str()).finish();
    let written = service.identities.run(request.caller, IdentityWrite::EndSession { id }).await?;
    Ok(Reply::ok("session ended", &data).for_write_without_record(&written).no_store())
}

/// The page of sessions that a query asks for.
fn page(params: &QueryParams) -> Result<(Option<KeyId>, usize), QueryError> {
    let [limit] = params.numbers(["limit"])?;
    let limit = limit.unwrap_or(PAGE);
    let mut violations = Vec::new();
    if !(1..=PAGE_MAX).contains(&limit) {
        violations.push(query_violation("limit", format!("`limit` is 1 to {PAGE_MAX}")));
    }
    let after = params.get("after").map(KeyId::parse);
    if after == Some(None) {
        violations.push(query_violation("after", "`after` is the id of a session"));
    }
    if !violations.is_empty() {
        return Err(QueryError::Violations(violations));
    }
    Ok((after.flatten(), usize::try_from(limit).unwrap_or(usize::MAX)))
}

/// `messages`: if the request has created it, or replaced it.
fn stored_reply<T>(
    messages: [&'static str; 2],
    stored: &StoredIdentity<T>,
    data: &str,
    location: &str,
) -> Reply {
    let [created, replaced] = messages;
    let reply =
        if stored.is_created { Reply::created(created, data, location) } else { Reply::ok(replaced, data) };
    reply.for_write(&stored.written)
}

fn list_json(results: impl Iterator<Item = String>) -> String {
    let results: Vec<String> = results.collect();
    let meta = Object::new().value("total", &results.len()).finish();
    Object::new().raw("results", &format!("[{}]", results.join(","))).raw("meta", &meta).finish()
}

fn provider_json(provider: &ProviderView) -> String {
    let ProviderView { record, keys, sessions } = provider;
    let object = Object::new().value("provider", &record.name.as_str()).raw("document", &record.text);
    let object = match keys {
        None => object.raw("keys", "null"),
        Some(keys) => {
            let keys = Object::new().value("count", &keys.count).time("confirmed_at", keys.confirmed_at);
            object.raw("keys", &keys.finish())
        }
    };
    let object = object.value("sessions", sessions);
    object.time("created_at", record.created_at).time("modified_at", record.modified_at).finish()
}

fn role_json(role: &RoleView) -> String {
    let RoleView { record, grants, quota, members, session_s } = role;
    Object::new()
        .value("role", &record.name.as_str())
        .value("grants", &grants_json(grants))
        .value("quota", &quota_json(quota))
        .raw("members", members)
        .value("session_s", session_s)
        .time("created_at", record.created_at)
        .time("modified_at", record.modified_at)
        .finish()
}

/// The quota of a role: rates only.
fn quota_json(quota: &Quota) -> Value {
    json!({
        "requests_per_second": quota.requests_per_second,
        "writes_per_second": quota.writes_per_second,
    })
}

fn session_json(session: &SessionView, own: Option<&KeyId>) -> String {
    let roles: Vec<&str> = session.roles.iter().map(Key::as_str).collect();
    Object::new()
        .unescaped("session_id", session.id.as_str())
        .value("owner", &session.owner)
        .value("provider", &session.provider.as_str())
        .value("roles", &roles)
        .raw("claims", &session.claims)
        .time("opened_at", session.opened_at)
        .time("expires_at", session.expires_at)
        .value("current", &(own == Some(&session.id)))
        .finish()
}

/// What `whoami` shows of the session of a request.
pub(super) fn own_session_json(session: &LoggedIn) -> String {
    let roles: Vec<&str> = session.roles.iter().map(Key::as_str).collect();
    Object::new()
        .unescaped("session_id", session.machine.session.as_str())
        .value("provider", &session.provider.as_str())
        .value("roles", &roles)
        .finish()
}

fn tried_json(tried: &TriedToken) -> String {
    let TriedToken { checks, reason, claims, roles, session_s } = tried;
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name, "holds": check.holds, "wanted": check.wanted, "seen": check.seen,
                "reason": check.reason.text(),
            })
        })
        .collect();
    let roles: Vec<Value> = roles.iter().map(tried_role_json).collect();
    Object::new()
        .value("accepted", &reason.is_none())
        .value("reason", &reason.map(TokenReason::text))
        .value("checks", &checks)
        .raw("claims", claims.as_deref().unwrap_or("null"))
        .value("roles", &roles)
        .value("session_s", session_s)
        .finish()
}

fn tried_role_json(role: &TriedRole) -> Value {
    let members: Vec<Value> = role
        .members
        .iter()
        .map(|member| {
            let claims: Vec<Value> = member
                .claims
                .iter()
                .map(|claim| {
                    json!({
                        "claim": claim.claim.as_str(), "holds": claim.holds, "wanted": claim.wanted,
                        "seen": claim.seen,
                    })
                })
                .collect();
            json!({ "holds": member.holds, "claims": claims })
        })
        .collect();
    json!({ "role": role.role.as_str(), "holds": role.holds, "members": members, "hints": role.hints })
}
