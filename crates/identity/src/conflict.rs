//! Which providers can't stand side by side, how one can't change, and whether a change of one changes whom it trusts.
//!
//! Issuers are compared as text, as those of tokens are. A tenant of an identity service may have several issuers: Entra
//! signs for each tenant as `https://login.microsoftonline.com/{tid}/v2.0` and as `https://sts.windows.net/{tid}/`. So a
//! shared tenant counts like a shared issuer.
//!
//! An issuer may give a human another `sub` for each client: Entra always does. So one issuer has one provider of persons;
//! with two, a human would be two persons.
//!
//! **Invariant:** no token with one audience is accepted by two providers of one issuer, no issuer or tenant gives persons to two providers,
//! or persons to one and machines to another (a blocked person would come back as a machine), and no address is that of
//! persons of two providers.

use std::collections::BTreeSet;

use concord_model::error::{LocSegment, Violation};

use crate::{
    claims::{Scalar, ValuePattern},
    provider::{Persons, Provider, SubjectClaim},
};

/// The problems of a provider beside others. An earlier document of the same name does not count.
pub fn conflicts<'a>(
    name: &str,
    provider: &Provider,
    others: impl IntoIterator<Item = (&'a str, &'a Provider)>,
) -> Vec<Violation> {
    let others = others.into_iter().filter(|(other, _)| *other != name);
    others.flat_map(|(other_name, other)| between(provider, other_name, other)).collect()
}

fn between(provider: &Provider, name: &str, other: &Provider) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |path: &[&str], msg: String| {
        let loc = path.iter().map(|segment| LocSegment::Name((*segment).to_owned())).collect();
        found.push(Violation::at(loc, msg));
    };
    let is_same_issuer = provider.issuer == other.issuer;
    if is_same_issuer && let Some(audience) = provider.audiences.intersection(&other.audiences).next() {
        add(&["audiences"], format!("the provider `{name}` of this issuer has the audience `{audience}`"));
    }
    let is_shared = is_same_issuer || !provider.tenants().is_disjoint(&other.tenants());
    // No user has a token of an application, so no blocked person comes back with one. One issuer is never mixed.
    let is_mixed = |machines: &Provider| is_same_issuer || !is_of_applications_only(machines);
    match (&provider.persons, &other.persons) {
        (Some(_), Some(_)) if is_shared => {
            let msg = format!(
                "the provider `{name}` of this issuer or tenant has persons: an issuer has one provider of persons, as \
                 it may give a human another `sub` for each client"
            );
            add(&["persons"], msg);
        }
        (Some(_), None) if is_shared && is_mixed(other) => add(&["persons"], mixed(name, "machines")),
        (None, Some(_)) if is_shared && is_mixed(provider) => add(&["persons"], mixed(name, "persons")),
        (Some(_) | None, Some(_) | None) => {}
    }
    if let (Some(own), Some(others)) = (&provider.persons, &other.persons)
        && let Some(domain) = own.domains.intersection(&others.domains).next()
    {
        add(&["persons", "domains"], format!("the provider `{name}` has the domain `{domain}`"));
    }
    found
}

/// The problem of persons and machines of one issuer or tenant.
fn mixed(name: &str, kind: &str) -> String {
    format!(
        "the provider `{name}` of this issuer or tenant is for {kind}: all providers of an issuer are for persons, or all \
         for machines; a tenant may have both if the provider of machines requires `idtyp` to be `app`"
    )
}

/// Whether a provider accepts only tokens of applications, by Entra's optional claim `idtyp`.
fn is_of_applications_only(provider: &Provider) -> bool {
    let app = ValuePattern::Exact(Scalar::Text("app".to_owned()));
    let is_app = |values: &BTreeSet<ValuePattern>| values.iter().all(|value| *value == app);
    provider.require.iter().any(|(name, values)| name.as_str() == "idtyp" && is_app(values))
}

/// The problems of a change of a provider. Its sessions and accounts name the issuer, and an account is one human: as long
/// as there are accounts, nothing changes that would make a human another one.
#[must_use]
pub fn change_problems(before: &Provider, after: &Provider, has_accounts: bool) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut add = |path: &[&str], msg: &str| {
        let loc = path.iter().map(|segment| LocSegment::Name((*segment).to_owned())).collect();
        found.push(Violation::at(loc, msg.to_owned()));
    };
    if before.issuer != after.issuer {
        add(&["issuer"], "the issuer of a provider never changes: create another provider");
    }
    let Some(own) = before.persons.as_ref().filter(|_| has_accounts) else { return found };
    match &after.persons {
        None => add(&["persons"], "the provider has accounts: a blocked person would come back as a machine"),
        Some(persons) if persons.subject != own.subject => {
            add(
                &["persons", "subject"],
                "the provider has accounts: with another claim, each would be a new person",
            );
        }
        Some(_) if own.subject == SubjectClaim::Oid && before.tenants() != after.tenants() => {
            add(&["require"], "the provider has accounts: an `oid` of another tenant is another human");
        }
        Some(_) if own.subject == SubjectClaim::Sub && before.audiences != after.audiences => add(
            &["audiences"],
            "the provider has accounts: it may give a human another `sub` for another client",
        ),
        Some(_) => {}
    }
    found
}

/// Whether a change of a provider changes whom it trusts: then what was opened before may have been opened by somebody
/// whom it trusts no more. The age of claims, the kept claims and the login don't.
#[must_use]
pub fn changes_trust(before: &Provider, after: &Provider) -> bool {
    let tokens = |provider: &Provider| (provider.issuer.clone(), provider.single_tenant);
    let label = |persons: &Persons| (persons.subject, persons.label.clone(), persons.verified_by);
    let named = |provider: &Provider| provider.persons.as_ref().map(label);
    let domains = |provider: &Provider| provider.persons.as_ref().map(|persons| persons.domains.clone());
    tokens(before) != tokens(after)
        || before.audiences != after.audiences
        || before.algorithms != after.algorithms
        || before.keys != after.keys
        // A host from which keys may come.
        || before.hosts != after.hosts
        || before.require != after.require
        || named(before) != named(after)
        || domains(before) != domains(after)
}
