//! Which providers can't stand side by side, and whether a change of one changes whom it trusts.
//!
//! Issuers are compared as text, as those of tokens are.
//!
//! **Invariant:** no token is accepted by two providers of one issuer, no issuer gives persons to one provider and machines
//! to another (a blocked person would come back as a machine), and no address is that of persons of two providers.

use concord_model::error::{LocSegment, Violation};

use crate::provider::{Persons, Provider};

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
    if provider.issuer == other.issuer {
        if let Some(audience) = provider.audiences.intersection(&other.audiences).next() {
            add(
                &["audiences"],
                format!("the provider `{name}` of this issuer has the audience `{audience}`"),
            );
        }
        if provider.persons.is_some() != other.persons.is_some() {
            let kind = if other.persons.is_some() { "persons" } else { "machines" };
            let msg = format!(
                "the provider `{name}` of this issuer is for {kind}: all providers of an issuer are for persons, or \
                 all for machines"
            );
            add(&["persons"], msg);
        }
    }
    if let (Some(own), Some(others)) = (&provider.persons, &other.persons)
        && let Some(domain) = own.domains.intersection(&others.domains).next()
    {
        add(&["persons", "domains"], format!("the provider `{name}` has the domain `{domain}`"));
    }
    found
}

/// Whether a change of a provider changes whom it trusts: then what was opened before may have been opened by somebody
/// whom it trusts no more. The age of claims, the kept claims and the login don't.
#[must_use]
pub fn changes_trust(before: &Provider, after: &Provider) -> bool {
    let tokens = |provider: &Provider| (provider.issuer.clone(), provider.single_tenant);
    let label = |persons: &Persons| (persons.label.clone(), persons.verified_by);
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
