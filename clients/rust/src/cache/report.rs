//! What a cache says of what it follows: that the program runs well with it, or not.
//!
//! A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
//! every 20 seconds: `failed` with the reason if a type or the judge of the program rejects it, at once and then every 5
//! seconds; otherwise `healthy`. One report is of all configs of a change request: it has failed if one of them has.
//!
//! Outside rollouts, the cache reports configs that the program rejects: `failed` every 20 seconds, and `healthy` once when it
//! no longer does. So a fleet that runs well sends nothing.
//!
//! **Invariants:** one report at a time is under way. Nothing is reported of what a node has not sent since the start. A key
//! that may not report is told so once for each change request or definition. No report holds up a read. No panic of the program's
//! types, judge or list ends the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{Cache, Config, Shared, content::Content};
use crate::{Error, Request, Retry, reader::Reader, segment};

/// The pause between two reports of one change request. A report counts for a minute.
const EVERY: Duration = Duration::from_secs(20);
/// The same of failures: a new leader knows none, and must not wait long for them.
const EVERY_FAILED: Duration = Duration::from_secs(5);
/// The first report of a change request comes within this time, so that not all readers report in one moment.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a reason.
const DETAIL_BYTES_MAX: usize = 1024;
/// The most configs outside rollouts that a cache reports as failed at one time.
const CONFIGS_MAX: usize = 50;
/// For how long nothing is reported of the configs of a definition after a node has said that this key may not, that there is
/// no such config, or that the cluster does not know such reports yet.
const SILENCE: Duration = Duration::from_secs(600);

/// Whether a program runs well with a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Healthy,
    /// It does not, for this reason. It is stored nowhere, and shown to who may read the change request: it must contain no
    /// secret values.
    Failed(String),
    /// It does not know yet: nothing is reported.
    Unknown,
}

/// Says of a config that is a candidate whether the program runs well with it. It is called every few seconds, and must not
/// block. A panic is `Failed`.
#[derive(Clone)]
pub struct Judge(Arc<dyn Fn(&Config) -> Verdict + Send + Sync>);

impl Judge {
    /// A judge.
    pub fn new(judge: impl Fn(&Config) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(judge))
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

/// Lists the configs outside rollouts that a program does not run well with, and those of which it does not know it yet, each
/// with its verdict. It is called every few seconds, and must not block. After a panic, it is not known of any config.
#[derive(Clone)]
pub struct Rejected(Arc<dyn Fn() -> Vec<(Arc<Config>, Verdict)> + Send + Sync>);

impl Rejected {
    /// A list.
    pub fn new(list: impl Fn() -> Vec<(Arc<Config>, Verdict)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(list))
    }
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rejected")
    }
}

/// Whether a config is admitted, or why not.
type Admitted = Result<(), String>;
/// What admits a config.
type Admits = fn(&Config) -> Admitted;

/// What must admit a config, for as long as it is there.
#[derive(Debug)]
pub(super) struct Check {
    definition: String,
    key: String,
    admits: Admits,
    /// The last config that it was asked about, and what it said.
    last: Mutex<Option<(Arc<Config>, Admitted)>>,
}

impl Check {
    fn of(&self, config: &Arc<Config>) -> Admitted {
        if self.definition != config.definition || self.key != config.key {
            return Ok(());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((seen, said)) if Arc::ptr_eq(seen, config) => said.clone(),
            Some(_) | None => {
                let said = asked(|| (self.admits)(config)).unwrap_or_else(|| {
                    Err(format!("{}/{}: the type of the program panicked", self.definition, self.key))
                });
                let said = said.map_err(|error| without_values(&error));
                *last = Some((config.clone(), said.clone()));
                said
            }
        }
    }
}

impl Cache {
    /// Adds a check of a config; it holds until the result is dropped.
    pub(super) fn check(&self, definition: String, key: String, admits: Admits) -> Arc<Check> {
        let check = Arc::new(Check { definition, key, admits, last: Mutex::default() });
        let mut checks = self.0.shared.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|known| known.strong_count() > 0);
        checks.push(Arc::downgrade(&check));
        check
    }
}

/// Asks the program something. `None` if it panicked: that ends neither the cache nor its reports. What it panicked with may
/// be a value of the data, and is shown to nobody but the program's own hook of panics.
fn asked<T>(ask: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(ask)).ok()
}

/// What serde writes before a value of the data that it shows between backticks.
const VALUES: [&str; 6] =
    ["boolean `", "integer `", "floating point `", "number `", "character `", "unknown variant `"];

/// Why something is rejected, without texts and numbers of the data: they may be secret, and the reason is shown to others.
/// A value may contain quotes and what follows a value, so it is taken to end as late as it can; in doubt, with the text.
fn without_values(error: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(error.len()), error);
    let after = |text: &str, begin: &str| text.find(begin).map(|at| at + begin.len());
    loop {
        let quoted = after(rest, "\"").map(|begin| (begin, "\""));
        let named = VALUES.iter().filter_map(|name| Some((after(rest, name)?, "`, expected ")));
        let Some((begin, end)) = quoted.into_iter().chain(named).min() else { break };
        let (before, value) = rest.split_at(begin);
        shown.push_str(before);
        shown.push('…');
        let Some(at) = value.rfind(end) else { return shown };
        shown.push_str(end);
        rest = &value[at + end.len()..];
    }
    shown + rest
}

/// A reason as it is sent: one line of so many bytes. A node rejects characters that nobody sees.
fn detail(reason: &str) -> String {
    let is_seen =
        |character: char| character == '…' || character.is_ascii_graphic() || character.is_alphanumeric();
    let mut text: String =
        reason.chars().map(|character| if is_seen(character) { character } else { ' ' }).collect();
    text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
    text
}

/// What a report is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// The rollout of a change request.
    Rollout(String),
    /// A config, by its definition and its key.
    Config(String, String),
}

impl Target {
    /// Whom a rejection is about: it is the same for all configs of a definition.
    fn group(&self) -> Self {
        match self {
            Self::Rollout(_) => self.clone(),
            Self::Config(definition, _) => Self::Config(definition.clone(), String::new()),
        }
    }

    fn path(&self) -> String {
        match self {
            Self::Rollout(change) => format!("/api/v1/change_request/{}/report", segment(change)),
            Self::Config(definition, key) => {
                format!("/api/v1/config_definition/{}/config/{}/report", segment(definition), segment(key))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rollout(change) => write!(f, "change request {change}"),
            Self::Config(definition, _) => write!(f, "the configs of {definition}"),
        }
    }
}

/// What there is to say of a target, with the revision of a config.
type Said = (Verdict, u64);

/// What was reported, and when it is reported again.
#[derive(Debug)]
struct Turn {
    said: Option<Said>,
    /// What was to say at the last look.
    seen: Option<Said>,
    at: Instant,
}

fn soon() -> Instant {
    Instant::now() + FIRST_WITHIN.mul_f64(fastrand::f64())
}

impl Turn {
    fn first() -> Self {
        Self { said: None, seen: None, at: soon() }
    }

    /// When something is reported. That something is wrong in a rollout is said at once: the rollout ends by it.
    fn due(&mut self, target: &Target, said: &Said) -> Option<Instant> {
        match (target, &said.0) {
            (_, Verdict::Unknown) => None,
            (Target::Rollout(_), Verdict::Failed(_)) if self.said.as_ref() != Some(said) => {
                Some(Instant::now())
            }
            (Target::Rollout(_), Verdict::Failed(_) | Verdict::Healthy) => Some(self.at),
            (Target::Config(..), Verdict::Failed(_) | Verdict::Healthy) => {
                // Many readers reject one config in one moment: nobody waits for a report of it.
                if self.seen.as_ref() != Some(said) {
                    self.seen = Some(said.clone());
                    self.at = self.at.min(soon());
                }
                Some(self.at)
            }
        }
    }

    /// What follows a report; `None` if nothing does.
    fn after(target: &Target, said: Said) -> Option<Self> {
        let every = match (target, &said.0) {
            (Target::Rollout(_), Verdict::Failed(_)) => EVERY_FAILED,
            (Target::Config(..), Verdict::Healthy | Verdict::Unknown) => return None,
            (Target::Rollout(_), Verdict::Healthy | Verdict::Unknown)
            | (Target::Config(..), Verdict::Failed(_)) => EVERY,
        };
        let at = Instant::now() + every.mul_f64(0.9 + fastrand::f64() / 10.0);
        Some(Self { said: Some(said.clone()), seen: Some(said), at })
    }
}

/// Of what a node has said that nothing is to be reported, and until when.
#[derive(Debug, Default)]
struct Silences {
    /// `None`: as long as there is something to report of it.
    until: BTreeMap<Target, Option<Instant>>,
    warned: BTreeSet<Target>,
}

impl Silences {
    /// Forgets those that are over, and change requests that are.
    fn tidy(&mut self, verdicts: &BTreeMap<Target, Said>) {
        let now = Instant::now();
        self.until.retain(|group, until| match until {
            Some(until) => *until > now,
            None => verdicts.contains_key(group),
        });
        self.warned.retain(|group| matches!(group, Target::Config(..)) || verdicts.contains_key(group));
    }

    fn has(&self, target: &Target) -> bool {
        self.until.contains_key(&target.group())
    }

    /// Begins one. Whether somebody is to be told.
    fn begin(&mut self, target: &Target) -> bool {
        let group = target.group();
        let until = matches!(group, Target::Config(..)).then(|| Instant::now() + SILENCE);
        self.until.insert(group.clone(), until);
        self.warned.insert(group)
    }
}

/// Reports until the cache is dropped.
pub(super) async fn run(shared: &Shared) {
    let Some(reader) = shared.client.as_reader() else { return };
    // Two programs with one name, as on one host, hide nothing of each other by it.
    let instance = format!("{:016x}", fastrand::u64(..));
    let mut changed = shared.changed.subscribe();
    let (mut turns, mut silences) = (BTreeMap::<Target, Turn>::new(), Silences::default());
    loop {
        let reported = turns.iter().filter(|(_, turn)| turn.said.is_some());
        let mut verdicts = shared.verdicts(reported.map(|(target, _)| target));
        silences.tidy(&verdicts);
        turns.retain(|target, _| verdicts.contains_key(target));
        verdicts.retain(|target, _| !silences.has(target));
        let due = |(target, said): (&Target, &Said), turns: &mut BTreeMap<Target, Turn>| {
            let turn = turns.entry(target.clone()).or_insert_with(Turn::first);
            Some((turn.due(target, said)?, target.clone()))
        };
        let next = verdicts.iter().filter_map(|one| due(one, &mut turns)).min();
        let Some((at, target)) = next else {
            // The sender lives as long as this task.
            let _ = changed.changed().await;
            continue;
        };
        if at > Instant::now() {
            tokio::select! {
                () = sleep_until(at) => {}
                _ = changed.changed() => {}
            }
            continue;
        }
        let Some(said) = verdicts.remove(&target) else { continue };
        if let Err(refusal) = send(shared, (reader, &instance), &target, &said).await {
            if silences.begin(&target) {
                shared.client.warn_of(&format!("nothing is reported of {target}: {refusal}"));
            }
            continue;
        }
        match Turn::after(&target, said) {
            Some(turn) => drop(turns.insert(target, turn)),
            None => drop(turns.remove(&target)),
        }
    }
}

/// Sends a report.
///
/// # Errors
/// When there is no point in another one for now.
async fn send(
    shared: &Shared,
    (reader, instance): (&Reader, &str),
    target: &Target,
    (verdict, revision): &Said,
) -> Result<(), String> {
    let mut body =
        json!({ "reader": reader.name, "labels": reader.labels, "instance": instance, "state": "healthy" });
    if let Verdict::Failed(reason) = verdict {
        body["state"] = "failed".into();
        body["detail"] = detail(reason).into();
    }
    let is_of_config = matches!(target, Target::Config(..));
    if is_of_config {
        body["revision"] = (*revision).into();
    }
    let request = Request::new(Method::POST, target.path()).json(&body);
    match shared.client.send(request.retry(Retry::OtherNode).timeout(TIMEOUT)).await {
        Err(Error::Refused(refusal)) => match refusal.status {
            // Who may not even know of a change request is told that there is none.
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Err(refusal.to_string()),
            // The cluster is not upgraded yet.
            StatusCode::CONFLICT if is_of_config => Err(refusal.to_string()),
            _ => Ok(()),
        },
        // What is wrong may be right at the next turn.
        Ok(_) | Err(_) => Ok(()),
    }
}

impl Shared {
    /// What there is to say: of each change request with a candidate, of configs that the program rejects, and of those that it
    /// no longer rejects among the targets of which something was said.
    fn verdicts<'t>(&self, reported: impl Iterator<Item = &'t Target>) -> BTreeMap<Target, Said> {
        let candidates: Vec<(String, Arc<Config>)> = {
            let known = self.known();
            let content = known.content.as_ref().filter(|_| known.is_live && !known.is_superseded);
            let all = content.into_iter().flat_map(Content::candidates);
            all.map(|(change, config)| (change.to_owned(), config.clone())).collect()
        };
        let mut verdicts = BTreeMap::new();
        for (change, config) in candidates {
            let verdict = self.verdict(&config);
            let (known, _) = verdicts.entry(Target::Rollout(change)).or_insert((Verdict::Healthy, 0));
            match (&*known, &verdict) {
                (Verdict::Failed(_), _) | (Verdict::Unknown, Verdict::Healthy | Verdict::Unknown) => {}
                (Verdict::Healthy, _) | (Verdict::Unknown, Verdict::Failed(_)) => *known = verdict,
            }
        }
        let target = |config: &Config| Target::Config(config.definition.clone(), config.key.clone());
        let (rejected, is_all) = self.rejected();
        for (config, verdict) in rejected {
            let known = verdicts.entry(target(&config)).or_insert((Verdict::Unknown, config.revision));
            if matches!(known.0, Verdict::Unknown) {
                known.0 = verdict;
            }
        }
        for reported in reported {
            if let Target::Config(definition, key) = reported
                && let Some(config) = self.proven(definition, key)
            {
                let verdict = if is_all { Verdict::Healthy } else { Verdict::Unknown };
                verdicts.entry(reported.clone()).or_insert((verdict, config.revision));
            }
        }
        verdicts
    }

    /// A config that a node has sent and that is no candidate.
    fn proven(&self, definition: &str, key: &str) -> Option<Arc<Config>> {
        let known = self.known();
        let content = known.content.as_ref().filter(|_| known.is_live && !known.is_superseded)?;
        content.get(definition, key).filter(|config| config.variant.is_none()).cloned()
    }

    /// The configs outside rollouts that the program rejects, or may reject: at most [`CONFIGS_MAX`]. And whether the program
    /// could say which: if its list panics, what it said before holds.
    fn rejected(&self) -> (Vec<(Arc<Config>, Verdict)>, bool) {
        let by_type = self.live_checks().into_iter().filter_map(|check| {
            let config = self.proven(&check.definition, &check.key)?;
            let reason = check.of(&config).err()?;
            Some((config, Verdict::Failed(reason)))
        });
        let listed = self.options.rejected.as_ref().map_or(Some(Vec::new()), |list| asked(|| (list.0)()));
        let is_all = listed.is_some();
        if !is_all && !self.has_no_list.swap(true, Ordering::Relaxed) {
            self.client
                .warn_of("the list of rejected configs panicked: those that it would name are not reported");
        }
        let by_program = listed.unwrap_or_default().into_iter();
        let by_program = by_program.filter(|(_, verdict)| *verdict != Verdict::Healthy);
        let by_program = by_program.filter_map(|(config, verdict)| {
            let current = self.proven(&config.definition, &config.key)?;
            // Of a config that has changed since, the program will say something soon.
            let verdict = if current == config { verdict } else { Verdict::Unknown };
            Some((current, verdict))
        });
        (by_type.chain(by_program).take(CONFIGS_MAX).collect(), is_all)
    }

    fn live_checks(&self) -> Vec<Arc<Check>> {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.iter().filter_map(std::sync::Weak::upgrade).collect()
    }

    fn verdict(&self, config: &Arc<Config>) -> Verdict {
        if let Some(reason) = self.live_checks().iter().find_map(|check| check.of(config).err()) {
            return Verdict::Failed(reason);
        }
        let Some(judge) = &self.options.judge else { return Verdict::Healthy };
        // Who can't even be asked does not run well with it.
        asked(|| (judge.0)(config)).unwrap_or_else(|| {
            Verdict::Failed(format!(
                "{}/{}: the judge of the program panicked",
                config.definition, config.key
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_no_values() {
        for (error, shown) in [
            (
                r#"a/k: invalid type: string "s3cret", expected u32"#,
                r#"a/k: invalid type: string "…", expected u32"#,
            ),
            ("invalid value: integer `4711`, expected u8", "invalid value: integer `…`, expected u8"),
            ("unknown variant `s3cret`, expected `a` or `b`", "unknown variant `…`, expected `a` or `b`"),
            ("missing field `plan`", "missing field `plan`"),
            (
                r#"a/k: invalid type: string "half \" s3cret", expected u32"#,
                r#"a/k: invalid type: string "…", expected u32"#,
            ),
            (r#"a/k"l: invalid type: string "s3cret", expected u32"#, r#"a/k"…", expected u32"#),
            (r#"a/k"l: invalid type: integer `4711`, expected u32"#, r#"a/k"…"#),
            (
                "unknown variant `half` s3cret`, expected `a` or `b`",
                "unknown variant `…`, expected `a` or `b`",
            ),
            (
                "unknown variant `half`, expected `s3cret`, expected one of `a`, `b`",
                "unknown variant `…`, expected one of `a`, `b`",
            ),
            ("unknown variant `s3cret`, there are no variants", "unknown variant `…"),
            (r#"unknown variant `half " s3cret`, expected `a`"#, "unknown variant `…`, expected `a`"),
            ("unknown field `n`, expected `plan`", "unknown field `n`, expected `plan`"),
        ] {
            assert_eq!(without_values(error), shown);
        }
    }

    #[test]
    fn a_reason_is_one_line_and_bounded() {
        assert_eq!(detail("a\nb\tc"), "a b c");
        let long = detail(&"é".repeat(DETAIL_BYTES_MAX));
        assert!(long.len() <= DETAIL_BYTES_MAX && long.len() > DETAIL_BYTES_MAX - 2);
    }

    #[test]
    fn what_is_wrong_in_a_rollout_is_said_at_once_and_again_at_its_turn() {
        let (rollout, failed) = (Target::Rollout("c".into()), (Verdict::Failed("x".into()), 0));
        let at = Instant::now() + EVERY;
        let mut turn = Turn { said: Some((Verdict::Healthy, 0)), seen: None, at };
        assert!(turn.due(&rollout, &failed).is_some_and(|at| at <= Instant::now()));
        assert_eq!(turn.due(&rollout, &(Verdict::Healthy, 0)), Some(at));
        let mut turn = Turn { said: Some(failed.clone()), ..turn };
        assert_eq!(turn.due(&rollout, &failed), Some(at));
        assert_eq!(turn.due(&rollout, &(Verdict::Unknown, 0)), None);
    }

    #[test]
    fn what_is_wrong_with_a_config_is_said_soon_and_its_end_once() {
        let config = Target::Config("d".into(), "k".into());
        let failed = |revision| (Verdict::Failed("x".into()), revision);
        let mut turn = Turn::after(&config, failed(7)).unwrap();
        let at = turn.at;
        assert_eq!(turn.due(&config, &failed(7)), Some(at));
        let soon = turn.due(&config, &failed(8)).unwrap();
        assert!(soon < at && soon <= Instant::now() + FIRST_WITHIN);
        assert_eq!(turn.due(&config, &failed(8)), Some(soon), "it is put off no further");
        assert!(Turn::after(&config, (Verdict::Healthy, 8)).is_none());
    }

    #[test]
    fn a_silence_is_of_all_configs_of_a_definition_and_said_once() {
        let config = |key: &str| Target::Config("d".into(), key.into());
        let mut silences = Silences::default();
        assert!(silences.begin(&config("a")) && !silences.begin(&config("b")));
        silences.tidy(&BTreeMap::new());
        assert!(silences.has(&config("c")) && !silences.has(&Target::Config("e".into(), "c".into())));
        let rollout = Target::Rollout("c".into());
        assert!(silences.begin(&rollout) && silences.has(&rollout));
        silences.tidy(&BTreeMap::new());
        assert!(!silences.has(&rollout), "it is over");
    }
}
