//! Whether there are enough persons to approve the changes of an environment.
//!
//! Who makes a change request can't approve it. So an environment that asks for two approvals needs three persons. Each
//! has an attested key with `approve` and `read` for all definitions that the environment can have, because a change of
//! its rules touches all of them.
//!
//! If fewer are left later, the rules stay as they are, and the alarm `approvers_missing` is raised. With the root key
//! somebody can attest further keys, or bypass the approvals.
//!
//! **Invariant:** a change that adds no approval is never rejected here: a freeze must be possible at any time.

use std::collections::BTreeMap;

use crate::request::Alarm;
use concord_model::{
    error::{Invalid, Violation},
    system::environment::{DEFAULT_ENVIRONMENT, Direct, Environment, EnvironmentName},
    time::Timestamp,
};
use concord_state::State;

/// Rejects rules that ask for more approvals than there are persons to give them.
///
/// # Errors
/// A violation at `approvals`.
pub(crate) fn check_approvers(
    state: &State,
    name: &EnvironmentName,
    after: &Environment,
    now: Timestamp,
) -> Result<(), Invalid> {
    // A new record is compared with the rules that hold until then.
    let before = state.environment(name.as_str()).or_else(|| state.environment(DEFAULT_ENVIRONMENT));
    let before = before.and_then(|record| record.environment());
    let is_stricter = before.is_none_or(|before| {
        after.approvals > before.approvals || (after.direct, before.direct) == (Direct::Refuse, Direct::Allow)
    });
    if !is_stricter || after.approvals == 0 {
        return Ok(());
    }
    let found = state.approvers(&[name.as_str()], now).into_values().sum::<u64>();
    let needed = persons_needed(after);
    if found >= needed {
        return Ok(());
    }
    let pattern = if name.as_str() == DEFAULT_ENVIRONMENT { "*".to_owned() } else { format!("{name}.*") };
    let text = format!(
        "{} approvals need {needed} persons, because nobody approves a change of their own, and {found} could approve: \
         attest keys that have `approve` and `read` on `{pattern}`",
        after.approvals
    );
    Err(Violation::at(vec!["approvals".into()], text).into())
}

/// How many persons an environment needs: nobody approves a change of their own.
fn persons_needed(rules: &Environment) -> u64 {
    u64::from(rules.approvals) + 1
}

/// How many environments ask for more approvals than there are persons to give them.
pub(crate) fn count_without_approvers(state: &State, now: Timestamp) -> u64 {
    let rules = state.environments().filter_map(|record| Some((record.name.as_str(), record.environment()?)));
    let rules: BTreeMap<&str, &Environment> = rules.filter(|(_, rules)| rules.approvals > 0).collect();
    let names: Vec<&str> = rules.keys().copied().collect();
    let found = state.approvers(&names, now);
    let lacks = |(name, rules): &(&&str, &&Environment)| found.get(**name) < Some(&persons_needed(rules));
    rules.iter().filter(lacks).count() as u64
}

/// The alarm about these environments. It names none of them: who may observe the cluster need not know their names.
pub(crate) fn approvers_alarm(state: &State, now: Timestamp) -> Option<Alarm> {
    let count = count_without_approvers(state, now);
    let message = format!(
        "the number of environments that ask for more approvals than there are persons to give them is {count}: attest \
         further keys that have `approve` and `read` on all of each environment"
    );
    (count > 0).then_some(Alarm { kind: "approvers_missing", node_id: None, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::{Attestation, AttestedBy, Grant, Grants, Pattern, Verb},
        system::{
            SystemBody, SystemRecord,
            person::{Person, PersonId, PersonLabel},
        },
        testing::key,
    };
    use concord_state::builder::StateBuilder;

    const NOW: Timestamp = Timestamp(100);

    fn record(name: &str, body: SystemBody) -> SystemRecord {
        let name = concord_model::key::Key::parse(name).unwrap();
        let (created_at, modified_at) = (NOW, NOW);
        SystemRecord { name, body, text: "{}".into(), created_at, modified_at, revision: 1 }
    }

    fn rules(direct: Direct, approvals: u8) -> Environment {
        Environment { direct, approvals, freezes: Vec::new() }
    }

    /// With so many persons who could approve changes of `prod`, and these rules of it.
    fn state(persons: u64, prod: Option<Environment>) -> State {
        let mut builder = StateBuilder::new();
        for number in 1..=persons {
            let (id, label) = (PersonId(number), PersonLabel::parse(&format!("p{number}")).unwrap());
            builder
                .system_record(record(&number.to_string(), SystemBody::Person(Person { id, label })))
                .unwrap();
            let verbs = [Verb::Read, Verb::Approve].into_iter().collect();
            let grant = Grant { verbs, definitions: vec![Pattern::parse("prod.*").unwrap()] };
            let mut key = key(number);
            (key.grants, key.person) = (Grants(vec![grant]), Some(id));
            key.attestation = Some(Attestation { at: 1, by: AttestedBy::Root });
            builder.access_key(key).unwrap();
        }
        if let Some(rules) = prod {
            builder.system_record(record("prod", SystemBody::Environment(rules))).unwrap();
        }
        builder.finish(100, NOW).unwrap()
    }

    #[test]
    fn approvals_need_one_more_person_than_they_are() {
        let name = |text| EnvironmentName::parse(text).unwrap();
        let is_accepted = |persons, before: Option<Environment>, after: Environment| {
            check_approvers(&state(persons, before), &name("prod"), &after, NOW).is_ok()
        };
        let (loose, one, two) =
            (rules(Direct::Refuse, 0), rules(Direct::Refuse, 1), rules(Direct::Refuse, 2));
        for (persons, after, expected) in [
            (0, &loose, true),
            (0, &one, false),
            (1, &one, false),
            (2, &one, true),
            (2, &two, false),
            (3, &two, true),
        ] {
            for before in [None, Some(loose.clone())] {
                assert_eq!(is_accepted(persons, before, after.clone()), expected, "{persons} {after:?}");
            }
        }
        assert!(is_accepted(0, Some(one.clone()), one.clone()), "nothing becomes stricter");
        assert!(is_accepted(0, Some(two.clone()), one.clone()));
        assert!(!is_accepted(1, Some(one.clone()), two));
        assert!(!is_accepted(1, Some(rules(Direct::Allow, 1)), one.clone()));
        // What `default` asks for as well is nothing stricter: its approvers may be gone in an incident.
        let mut builder = StateBuilder::new();
        builder.system_record(record("default", SystemBody::Environment(one.clone()))).unwrap();
        let of_default = builder.finish(100, NOW).unwrap();
        assert!(check_approvers(&of_default, &name("prod"), &one, NOW).is_ok());
        assert!(check_approvers(&of_default, &name("prod"), &rules(Direct::Refuse, 2), NOW).is_err());
        let elsewhere = check_approvers(&state(3, None), &name("dev"), &rules(Direct::Refuse, 1), NOW);
        let Err(Invalid::Violations(violations)) = elsewhere else { panic!("{elsewhere:?}") };
        assert!(violations[0].msg.contains("`dev.*`"), "{}", violations[0].msg);
    }

    #[test]
    fn an_environment_whose_approvers_are_gone_is_an_alarm_that_names_it_not() {
        let count = |persons, prod| count_without_approvers(&state(persons, prod), NOW);
        assert_eq!((count(0, None), count(0, Some(rules(Direct::Refuse, 0)))), (0, 0));
        assert_eq!(
            (count(1, Some(rules(Direct::Refuse, 1))), count(2, Some(rules(Direct::Refuse, 1)))),
            (1, 0)
        );
        assert_eq!(approvers_alarm(&state(2, Some(rules(Direct::Refuse, 1))), NOW), None);
        let alarm = approvers_alarm(&state(1, Some(rules(Direct::Refuse, 1))), NOW).unwrap();
        assert_eq!((alarm.kind, alarm.node_id), ("approvers_missing", None));
        assert!(!alarm.message.contains("prod"), "{}", alarm.message);
    }
}
