//! Changes of environments, and the writes that environments refuse.
//!
//! The log decides whether an environment refuses a write (`crates/state/src/environment/mod.rs`). The leader asks the same
//! state before it validates a write, so that a refused write costs nothing and tells nothing of its data. The leader's
//! time may differ a little from that of the entry; the log's decision is the one that holds.
//!
//! **Invariants:** nothing here changes anything. A rejection by an environment comes after the permissions, and the
//! response to a request that was decided before comes first.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    idempotency::decided_before,
    prepare::{PreparedWrite, check_expect},
};
use crate::{
    approvers::check_approvers,
    request::{
        Effect, EnvironmentRules, EnvironmentWrite, NewFreeze, Principal, Refusal, Target, Write,
        WriteRequest,
    },
};
use concord_model::{
    command::{Command, Expect, SystemCommand},
    error::{Invalid, LocSegment, Rejection, Violation},
    limits::{FREEZE_LENGTH_MAX, FREEZE_REASON_BYTES_MAX, FREEZES_MAX},
    record::Revision,
    system::{
        SystemRecord,
        environment::{Direct, Environment, EnvironmentName, Freeze},
    },
    time::Timestamp,
    unseen::is_unseen,
};
use concord_state::State;

/// What the text of an environment's record holds: what the log does not look at.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EnvironmentText {
    /// One for each freeze, in the same order.
    freeze: Vec<FreezeText>,
}

/// What is known of a freeze beside its times.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FreezeText {
    /// Why there is a freeze.
    pub(crate) reason: String,
    /// The id of the access key that set it.
    pub(crate) by: String,
}

/// The freezes of an environment, with what the text of its record says of them.
pub(crate) fn freezes_of(environment: &Environment, text: &str) -> Vec<(Freeze, FreezeText)> {
    // Services of this release wrote it. The times hold even if it can't be read.
    let text: EnvironmentText = serde_json::from_str(text).unwrap_or_default();
    let mut texts = text.freeze.into_iter();
    environment.freezes.iter().map(|freeze| (*freeze, texts.next().unwrap_or_default())).collect()
}

/// The rules of an environment as a client would send them.
pub(crate) fn sent_rules(environment: &Environment, text: &str) -> EnvironmentRules {
    let freezes = freezes_of(environment, text).into_iter().map(|(freeze, text)| NewFreeze {
        from: Some(freeze.from),
        until: freeze.until,
        reason: text.reason,
    });
    EnvironmentRules {
        refuses_direct: Some(environment.direct == Direct::Refuse),
        approvals: Some(environment.approvals.into()),
        freezes: freezes.collect(),
    }
}

/// Validates what needs no state.
pub(super) fn check_environment(write: &EnvironmentWrite) -> Result<(), Invalid> {
    let mut violations = Vec::new();
    if let Err(error) = EnvironmentName::parse(write.name()) {
        violations.push(Violation::at(vec!["environment".into()], error.to_string()));
    }
    if let EnvironmentWrite::Put { rules, .. } = write {
        check_rules(rules, &mut violations);
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

fn check_rules(rules: &EnvironmentRules, violations: &mut Vec<Violation>) {
    if rules.freezes.len() > FREEZES_MAX {
        let text = format!("an environment has at most {FREEZES_MAX} freezes");
        violations.push(Violation::at(vec!["freeze".into()], text));
        return;
    }
    for (place, freeze) in (0..).zip(&rules.freezes) {
        let at = |member: &'static str, text: String| {
            Violation::at(vec!["freeze".into(), LocSegment::Index(place), member.into()], text)
        };
        if let Some(from) = freeze.from {
            violations.extend(check_length(from, freeze.until).err().map(|text| at("until", text)));
        }
        let bytes = freeze.reason.len();
        if !(1..=FREEZE_REASON_BYTES_MAX).contains(&bytes) || freeze.reason.contains(is_unseen) {
            let text = format!("a reason has 1 to {FREEZE_REASON_BYTES_MAX} bytes and no control characters");
            violations.push(at("reason", text));
        }
    }
}

fn check_length(from: Timestamp, until: Timestamp) -> Result<(), String> {
    let length_max = u64::try_from(FREEZE_LENGTH_MAX.as_micros()).unwrap_or(u64::MAX);
    if until <= from {
        return Err("a freeze ends after it begins: `until` must be later than `from`".into());
    }
    if until.0 - from.0 > length_max {
        return Err(format!("a freeze lasts at most {} days", FREEZE_LENGTH_MAX.as_secs() / 86_400));
    }
    Ok(())
}

/// Makes the command of a change of an environment. `at`: the time of the log.
pub(super) fn prepare_environment(
    state: &State,
    principal: &Principal,
    write: &EnvironmentWrite,
    at: Timestamp,
) -> Result<PreparedWrite, Refusal> {
    let name = EnvironmentName::parse(write.name())
        .map_err(|error| Invalid::from(Violation::at(vec!["environment".into()], error.to_string())))?;
    let before = state.environment(name.as_str());
    let current = before.map(|record| record.revision);
    let command = match write {
        EnvironmentWrite::Put { rules, expect, .. } => {
            let expect = expect_of(current, *expect)?;
            let (after, text) = rules_after(before.map(|record| &**record), rules, &principal.id, at)?;
            check_approvers(state, &name, &after, at)?;
            SystemCommand::PutEnvironment { name, after, text, expect }
        }
        EnvironmentWrite::Delete { expect, .. } => {
            SystemCommand::DeleteEnvironment { name, expect: expect_of(current, *expect)? }
        }
    };
    Ok(PreparedWrite::of(Command::System(command)))
}

/// The client's precondition, once it holds; and that the record is still the one that was read.
fn expect_of(current: Option<Revision>, expect: Expect) -> Result<Expect, Refusal> {
    let missing = Rejection::EnvironmentNotFound;
    // A write of an environment has no precondition that an existing one breaks as a conflict.
    check_expect(expect, current, missing.clone(), missing)?;
    match expect {
        // The log evaluates it again, and the client gets its verdict.
        Expect::At(_) | Expect::None => Ok(expect),
        Expect::Any | Expect::Absent | Expect::Present | Expect::Read(_) => Ok(Expect::Read(current)),
    }
}

/// An environment with the rules of a client, and the text of its record. Freezes that are over are left out.
pub(crate) fn rules_after(
    before: Option<&SystemRecord>,
    rules: &EnvironmentRules,
    by: &str,
    at: Timestamp,
) -> Result<(Environment, Arc<str>), Invalid> {
    let old = before.and_then(|record| Some((record.environment()?, &record.text)));
    let known = old.map(|(old, text)| freezes_of(old, text)).unwrap_or_default();
    let mut freezes = Vec::with_capacity(rules.freezes.len());
    for (place, NewFreeze { from, until, reason }) in (0..).zip(&rules.freezes) {
        let freeze = Freeze { from: from.unwrap_or(at), until: *until };
        let is_known = |(one, text): &&(Freeze, FreezeText)| *one == freeze && text.reason == *reason;
        let found = known.iter().find(is_known).map(|(_, text)| text.clone());
        if freeze.until <= at {
            // A client that sends back what it has read sends those that are over, too.
            if found.is_some() {
                continue;
            }
            return Err(until_violation(place, format!("this time is over: it is {at}")));
        }
        check_length(freeze.from, freeze.until).map_err(|text| until_violation(place, text))?;
        freezes.push((freeze, found.unwrap_or_else(|| FreezeText { reason: reason.clone(), by: by.into() })));
    }
    freezes.sort_by_key(|(freeze, _)| (freeze.from, freeze.until));
    let (freezes, freeze): (Vec<Freeze>, Vec<FreezeText>) = freezes.into_iter().unzip();
    let text = serde_json::to_string(&EnvironmentText { freeze }).unwrap_or_default();
    let old = old.map(|(old, _)| old);
    let direct = match rules.refuses_direct {
        Some(true) => Direct::Refuse,
        Some(false) => Direct::Allow,
        None => old.map_or(Direct::Allow, |old| old.direct),
    };
    let approvals = rules.approvals.and_then(|approvals| u8::try_from(approvals).ok());
    let approvals = approvals.unwrap_or_else(|| old.map_or(0, |old| old.approvals));
    Ok((Environment { direct, approvals, freezes }, text.into()))
}

fn until_violation(place: u64, text: String) -> Invalid {
    Violation::at(vec!["freeze".into(), LocSegment::Index(place), "until".into()], text).into()
}

/// Refuses a write of a definition or config whose environment refuses it now. The operations of a transaction are
/// left to the log: its conditions choose which of them are carried out.
pub(super) fn check_environments(
    state: &State,
    request: &WriteRequest,
    now: impl FnOnce() -> Timestamp,
) -> Result<(), Refusal> {
    if state.environments().next().is_none()
        || matches!(request.write, Write::Transaction(_))
        // The log decides what they may pass.
        || request.edition.is_some()
        || request.caller.bypass.is_some()
        || decided_before(state, &request.caller).is_some()
    {
        return Ok(());
    }
    let now = now();
    for (place, operation) in (0..).zip(request.write.operations()) {
        let definition = match operation.target() {
            Target::Config { .. } if operation.effect() == Effect::Read => continue,
            Target::Definition(definition) | Target::Config { definition, .. } => definition,
            Target::Batch
            | Target::Keys
            | Target::Anchors
            | Target::Environment(_)
            | Target::Change(_)
            | Target::Identity => continue,
        };
        if let Some(rejection) = state.refused_direct(now, definition) {
            let refusal = Refusal::from(rejection);
            let is_batch = request.write.effect() == Effect::Batch;
            return Err(if is_batch { refusal.of_operation(place) } else { refusal });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::system::SystemBody;

    const HOUR: u64 = 60 * 60 * 1_000_000;
    const NOW: Timestamp = Timestamp(1000 * HOUR);

    fn freeze(from: Option<u64>, until: u64, reason: &str) -> NewFreeze {
        NewFreeze { from: from.map(Timestamp), until: Timestamp(until), reason: reason.into() }
    }

    fn rules(freezes: Vec<NewFreeze>) -> EnvironmentRules {
        EnvironmentRules { freezes, ..EnvironmentRules::default() }
    }

    fn record((environment, text): (Environment, Arc<str>)) -> SystemRecord {
        SystemRecord {
            name: EnvironmentName::parse("prod").unwrap().key().clone(),
            body: SystemBody::Environment(environment),
            text,
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
        }
    }

    #[test]
    fn a_freeze_that_stays_keeps_who_set_it_and_one_that_is_over_goes() {
        let (begin, end) = (NOW.0 - HOUR, NOW.0 + HOUR);
        let sent = vec![freeze(Some(NOW.0 + 1), end, "later"), freeze(None, end, "now")];
        let before = record(rules_after(None, &rules(sent), "ann", Timestamp(begin)).unwrap());
        let shown = freezes_of(before.environment().unwrap(), &before.text);
        let told: Vec<_> = shown.iter().map(|(one, text)| (one.from.0, &*text.reason, &*text.by)).collect();
        assert_eq!(told, [(begin, "now", "ann"), (NOW.0 + 1, "later", "ann")]);
        let again = vec![freeze(Some(begin), end, "now"), freeze(Some(NOW.0), end, "new")];
        let (after, text) = rules_after(Some(&before), &rules(again.clone()), "bob", NOW).unwrap();
        let by: Vec<_> = freezes_of(&after, &text).into_iter().map(|(_, text)| text.by).collect();
        assert_eq!(by, ["ann", "bob"]);
        // Another reason is another freeze.
        let other = rules(vec![freeze(Some(begin), end, "because")]);
        let (after, text) = rules_after(Some(&before), &other, "bob", NOW).unwrap();
        assert_eq!(freezes_of(&after, &text)[0].1.by, "bob");
        let over = rules_after(Some(&before), &rules(again[..1].to_vec()), "bob", Timestamp(end)).unwrap();
        assert!(over.0.freezes.is_empty(), "what was read can be sent back");
        let new = rules(vec![freeze(Some(begin), NOW.0, "late")]);
        assert!(rules_after(Some(&before), &new, "bob", NOW).is_err(), "a new one that is over does nothing");
    }

    #[test]
    fn what_is_absent_stays_as_it_is() {
        let given = EnvironmentRules { refuses_direct: Some(true), approvals: Some(2), freezes: Vec::new() };
        let before = record(rules_after(None, &given, "ann", NOW).unwrap());
        let (after, _) = rules_after(Some(&before), &rules(Vec::new()), "bob", NOW).unwrap();
        assert_eq!((after.direct, after.approvals), (Direct::Refuse, 2));
        let loose = EnvironmentRules { refuses_direct: Some(false), approvals: Some(0), freezes: Vec::new() };
        let (after, _) = rules_after(Some(&before), &loose, "bob", NOW).unwrap();
        assert_eq!((after.direct, after.approvals), (Direct::Allow, 0));
    }

    #[test]
    fn a_freeze_that_can_not_be_is_refused() {
        let put = |freeze: NewFreeze| {
            let (name, rules) = ("prod".into(), rules(vec![freeze]));
            check_environment(&EnvironmentWrite::Put { name, rules, expect: Expect::Any }).is_ok()
        };
        let year = 366 * 24 * HOUR;
        assert!(put(freeze(Some(0), year, "r")) && put(freeze(None, year * 9, &"r".repeat(255))));
        assert!(!put(freeze(Some(0), year + 1, "r")) && !put(freeze(Some(7), 7, "r")));
        for reason in [
            "",
            &"r".repeat(256),
            "a\nb",
            "a\u{202e}b",
            "a\u{200b}b",
            "a\u{61c}b",
            "a\u{ad}b",
            "a\u{3164}",
            "a\u{e0041}",
        ] {
            assert!(!put(freeze(None, HOUR, reason)), "{reason:?}");
        }
        let late = rules_after(None, &rules(vec![freeze(None, NOW.0 + year + 1, "r")]), "ann", NOW);
        assert!(late.is_err(), "its length is known when its begin is");
    }
}
