//! Which configs of a file its failure is about.
//!
//! A file is written from several configs, and fails as a whole. The history of the file says which of them are new in it
//! since it was last well: only these are reported as failed. What changed nothing is not blamed for a failure that
//! was there before.
//!
//! The output of a program may quote the file, so a report has it only if all configs of the file are of the definition
//! that the report is about. So a reason shows a reader of one definition nothing of another.
//!
//! **Invariants:** a candidate of a rollout is reported as failed only if the file was well before it, or nothing is known of
//! before. While a file uses a candidate, it reports no failure of other configs.

use std::{
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::Arc,
};

use concord_client::{Config, Verdict};

/// The most configs outside rollouts that a file says something of. The cache reports no more.
const PROVEN_MAX: usize = 50;

/// The most configs of a file whose versions are kept: 16 bytes each. Nothing is known of the good state of a larger file.
const VERSIONS_MAX: usize = 100_000;

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Render,
    Write,
    Check,
    Command,
}

impl Step {
    /// What a report says of it where it must not have the reason.
    fn without_reason(self) -> &'static str {
        match self {
            Self::Render => "it can't be rendered; the agent's log has the reason",
            Self::Write => "it can't be written; the agent's log has the reason",
            Self::Check => "its check failed; the agent's log has the output",
            Self::Command => "its command failed; the agent's log has the output",
        }
    }
}

/// Why a file is not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    step: Step,
    /// The reason, which may quote the configs that the file was rendered from.
    reason: String,
    /// The definition of all configs that it can quote; `None` if they are of several.
    definition: Option<String>,
}

impl Failure {
    /// The reason as a report about a definition has it.
    fn about(&self, file: &Path, definition: &str) -> Verdict {
        let file = file.display();
        Verdict::Failed(if self.definition.as_deref() == Some(definition) {
            format!("{file}: {}", self.reason)
        } else {
            format!("file {file}: {}", self.step.without_reason())
        })
    }
}

/// How a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is up to date, and its command has succeeded.
    Well,
    /// It is up to date, and its command is due.
    Due,
    Failed(Failure),
}

/// A config with the verdict of a file.
pub(super) type Judged = (Arc<Config>, Verdict);

/// What a file says of the configs that it was rendered from.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    /// All candidates of rollouts among them.
    pub(super) candidates: Vec<Judged>,
    /// Other configs that it has failed with, or may have: those that have failed first, and not more than are reported.
    pub(super) proven: Vec<Judged>,
}

/// A config and its version, as hashes. The version of a candidate is its change request.
type Version = (u64, u64);

/// A config that the file is rendered from now.
#[derive(Debug)]
struct Current {
    config: Arc<Config>,
    version: Version,
    /// The rendering has read it. A template reads some of what it could.
    is_used: bool,
    /// The file was not well with this version yet, or was well with another one since.
    is_new: bool,
}

/// What is known of a file.
#[derive(Debug)]
enum Last {
    Nothing,
    Well,
    /// It fails, and this is due to these candidates. It stays so until the file is well, or they are gone.
    Failed(Vec<Version>),
}

/// The configs of a file now, and when it was last well.
#[derive(Debug)]
pub(super) struct History {
    hasher: RandomState,
    /// All that the file could use, in order; `None` if they are too many.
    versions: Option<Arc<[Version]>>,
    /// The same when the file was last well.
    well: Option<Arc<[Version]>>,
    last: Last,
    candidates: Vec<Current>,
    /// Some of the other configs that the file uses, those that are new first.
    proven: Vec<Current>,
    /// How many configs it uses, and their definition if that is one.
    used: usize,
    definition: Option<String>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            versions: None,
            well: None,
            last: Last::Nothing,
            candidates: Vec::new(),
            proven: Vec::new(),
            used: 0,
            definition: None,
        }
    }

    /// Begins with the configs that the file is rendered from now: those that it could use, each with whether it does.
    pub(super) fn begin<'c>(&mut self, configs: impl Iterator<Item = (&'c Arc<Config>, bool)> + Clone) {
        let of = |config: &Config| -> Version {
            let name = self.hasher.hash_one((&config.definition, &config.key));
            let version = config.variant.as_ref().map(|change| self.hasher.hash_one(change));
            (name, version.unwrap_or(config.revision))
        };
        let mut versions: Vec<Version> =
            configs.clone().take(VERSIONS_MAX + 1).map(|(config, _)| of(config)).collect();
        versions.sort_unstable();
        self.versions = (versions.len() <= VERSIONS_MAX).then(|| versions.into());
        let well = self.well.as_deref();
        let is_new = |version: &Version| well.is_some_and(|well| well.binary_search(version).is_err());
        let current = |(config, is_used): (&Arc<Config>, bool)| {
            let version = of(config);
            Current { config: config.clone(), version, is_used, is_new: is_new(&version) }
        };
        let is_candidate = |config: &Config| config.variant.is_some();
        let candidates = configs.clone().filter(|(config, _)| is_candidate(config)).map(current).collect();
        let used = configs.filter(|(_, is_used)| *is_used);
        let proven = used.clone().filter(|(config, _)| !is_candidate(config)).map(current);
        let (new, old) = (proven.clone().filter(|one| one.is_new), proven.filter(|one| !one.is_new));
        let proven = new.chain(old).take(PROVEN_MAX).collect();
        let first = used.clone().next().map(|(config, _)| config.definition.clone());
        let is_sole = |definition: &String| used.clone().all(|(one, _)| one.definition == *definition);
        self.definition = first.filter(is_sole);
        self.used = used.count();
        (self.candidates, self.proven) = (candidates, proven);
    }

    pub(super) fn has_candidate(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// A failure with the present configs.
    pub(super) fn failure(&self, step: Step, reason: &str) -> Failure {
        Failure { step, reason: reason.to_owned(), definition: self.definition.clone() }
    }

    /// What the file says of its configs.
    pub(super) fn judge(&mut self, file: &Path, outcome: &Outcome) -> Said {
        match outcome {
            Outcome::Well => {
                self.well = self.versions.clone();
                self.last = Last::Well;
                self.candidates.iter_mut().chain(&mut self.proven).for_each(|one| one.is_new = false);
            }
            Outcome::Due => {}
            Outcome::Failed(_) => self.last = Last::Failed(self.blamed()),
        }
        let candidates = self.candidates.iter();
        let candidates = candidates.map(|one| (one.config.clone(), self.of_candidate(one, file, outcome)));
        let proven = self.proven.iter().filter(|_| *outcome != Outcome::Well);
        let mut proven: Vec<Judged> =
            proven.map(|one| (one.config.clone(), self.of_proven(one, file, outcome))).collect();
        // The cache reports the first ones.
        proven.sort_by_key(|(_, verdict)| *verdict == Verdict::Unknown);
        Said { candidates: candidates.collect(), proven }
    }

    /// The candidates that a failure is due to.
    fn blamed(&self) -> Vec<Version> {
        let used = || self.candidates.iter().filter(|one| one.is_used);
        let blamed: Vec<&Current> = match &self.last {
            // They were there when the agent started.
            Last::Nothing => used().collect(),
            Last::Failed(blamed) => {
                return blamed
                    .iter()
                    .filter(|one| self.candidates.iter().any(|now| now.version == **one))
                    .copied()
                    .collect();
            }
            // The file was not well with what is proven now, or that is not known.
            Last::Well if self.well.is_none() || self.proven.iter().any(|one| one.is_new) => Vec::new(),
            Last::Well if used().any(|one| one.is_new) => used().filter(|one| one.is_new).collect(),
            // It was well with all of them, and before them.
            Last::Well => used().collect(),
        };
        blamed.into_iter().map(|one| one.version).collect()
    }

    fn of_candidate(&self, one: &Current, file: &Path, outcome: &Outcome) -> Verdict {
        match outcome {
            Outcome::Well => Verdict::Healthy,
            // The end of the template, which was not reached, may use it.
            Outcome::Failed(failure) if !one.is_used && failure.step == Step::Render => Verdict::Unknown,
            Outcome::Due | Outcome::Failed(_) if !one.is_used => Verdict::Healthy,
            Outcome::Due => Verdict::Unknown,
            Outcome::Failed(failure) => match &self.last {
                Last::Failed(blamed) if blamed.contains(&one.version) => {
                    failure.about(file, &one.config.definition)
                }
                Last::Failed(_) | Last::Nothing | Last::Well => Verdict::Unknown,
            },
        }
    }

    fn of_proven(&self, one: &Current, file: &Path, outcome: &Outcome) -> Verdict {
        match outcome {
            Outcome::Well => Verdict::Healthy,
            Outcome::Failed(failure)
                if !self.candidates.iter().any(|one| one.is_used) && (one.is_new || self.used == 1) =>
            {
                failure.about(file, &one.config.definition)
            }
            Outcome::Due | Outcome::Failed(_) => Verdict::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A config `DEFINITION/KEY` at a revision.
    fn config(name: &str, revision: u64) -> Arc<Config> {
        let (definition, key) = name.split_once('/').unwrap();
        let record =
            json!({"config_definition_key": definition, "config_key": key, "data": {}, "revision": revision});
        Arc::new(serde_json::from_value(record).unwrap())
    }

    /// A candidate of a change request.
    fn candidate(name: &str, change: &str) -> Arc<Config> {
        let mut config = config(name, 0);
        Arc::make_mut(&mut config).variant = Some(change.into());
        config
    }

    /// What a file says that uses all of these configs.
    fn said(history: &mut History, configs: &[Arc<Config>], is_well: bool) -> Said {
        let is_used = vec![true; configs.len()];
        said_of(history, configs, &is_used, (!is_well).then_some(Step::Command))
    }

    fn said_of(
        history: &mut History,
        configs: &[Arc<Config>],
        is_used: &[bool],
        failed: Option<Step>,
    ) -> Said {
        history.begin(configs.iter().zip(is_used.iter().copied()));
        let failed = failed.map(|step| Outcome::Failed(history.failure(step, "secret")));
        history.judge(Path::new("/f"), &failed.unwrap_or(Outcome::Well))
    }

    /// The names of those that a file says this of.
    fn names(judged: &[Judged], is_so: impl Fn(&Verdict) -> bool) -> Vec<String> {
        let judged = judged.iter().filter(|(_, verdict)| is_so(verdict));
        judged.map(|(config, _)| format!("{}/{}", config.definition, config.key)).collect()
    }

    fn failed(judged: &[Judged]) -> Vec<String> {
        names(judged, |verdict| matches!(verdict, Verdict::Failed(_)))
    }

    fn unknown(judged: &[Judged]) -> Vec<String> {
        names(judged, |verdict| *verdict == Verdict::Unknown)
    }

    #[test]
    fn a_reason_is_for_those_who_may_read_all_configs_of_the_file() {
        let reason = |judged: &[Judged]| match judged {
            [(_, Verdict::Failed(reason)), ..] => reason.clone(),
            _ => panic!("{judged:?}"),
        };
        let without = "file /f: its command failed; the agent's log has the output";
        // Of one definition.
        let mut history = History::new();
        said(&mut history, &[config("a/k", 1), config("a/l", 1)], true);
        let one = said(&mut history, &[config("a/k", 2), config("a/l", 1)], false);
        assert_eq!(reason(&one.proven), "/f: secret");
        // A candidate of another one, and a config of another one.
        for other in [candidate("b/k", "c"), config("b/k", 7)] {
            let mut history = History::new();
            said(&mut history, &[config("a/k", 1), config("b/k", 1)], true);
            let both = said(&mut history, &[config("a/k", 1), other], false);
            let both = if both.candidates.is_empty() { both.proven } else { both.candidates };
            assert_eq!(reason(&both), without);
        }
        // A template that does not read the other one.
        let mut history = History::new();
        let all = [config("a/k", 1), config("b/k", 1)];
        let one = said_of(&mut history, &all, &[true, false], Some(Step::Render));
        assert_eq!(reason(&one.proven), "/f: secret");
        // A failure is about what the file had then.
        history.begin(all.iter().zip([true, true]));
        let of_both = history.failure(Step::Check, "secret");
        history.begin(all.iter().zip([true, false]));
        let one = history.judge(Path::new("/f"), &Outcome::Failed(of_both));
        assert_eq!(reason(&one.proven), "file /f: its check failed; the agent's log has the output");
    }

    #[test]
    fn a_failure_is_of_what_has_changed_since_the_file_was_well() {
        let mut history = History::new();
        // Nothing is known of before.
        let first = said(&mut history, &[config("a/k", 1), config("a/l", 2)], false);
        assert_eq!((failed(&first.proven), unknown(&first.proven).len()), (vec![], 2));
        assert_eq!(said(&mut history, &[config("a/k", 1), config("a/l", 2)], true), Said::default());
        // What changed nothing, is not blamed.
        let same = said(&mut history, &[config("a/k", 1), config("a/l", 2)], false);
        assert_eq!((failed(&same.proven), unknown(&same.proven).len()), (vec![], 2));
        let next = said(&mut history, &[config("a/k", 1), config("a/l", 3)], false);
        assert_eq!((failed(&next.proven), unknown(&next.proven)), (vec!["a/l".into()], vec!["a/k".into()]));
        let more = said(&mut history, &[config("a/k", 1), config("a/l", 3), config("a/m", 1)], false);
        assert_eq!(failed(&more.proven), ["a/l", "a/m"]);
        // While its command is due, nothing is known.
        let due = history.judge(Path::new("/f"), &Outcome::Due);
        assert_eq!((failed(&due.proven), unknown(&due.proven).len()), (vec![], 3));
        // The only config of a file.
        let mut history = History::new();
        let only =
            said_of(&mut history, &[config("a/k", 1), config("a/l", 1)], &[false, true], Some(Step::Render));
        assert_eq!((failed(&only.proven), unknown(&only.proven)), (vec!["a/l".into()], vec![]));
    }

    #[test]
    fn what_has_failed_is_among_those_that_are_reported() {
        let mut history = History::new();
        let all = |last: u64| -> Vec<Arc<Config>> {
            (0..200).map(|n| config(&format!("a/{n:03}"), if n == 199 { last } else { 1 })).collect()
        };
        said(&mut history, &all(1), true);
        let said = said(&mut history, &all(2), false);
        assert_eq!((failed(&said.proven), said.proven.len()), (vec!["a/199".into()], PROVEN_MAX));
    }

    #[test]
    fn a_candidate_has_failed_only_if_the_file_was_well_before_it() {
        let proven = [config("a/k", 1), config("a/l", 2)];
        let with = [candidate("a/k", "c"), config("a/l", 2)];
        // It was. Of the others nothing is known, also if they change now.
        let mut history = History::new();
        said(&mut history, &proven, true);
        let bad = said(&mut history, &with, false);
        assert_eq!((failed(&bad.candidates), failed(&bad.proven)), (vec!["a/k".into()], vec![]));
        let other = said(&mut history, &[candidate("a/k", "c"), config("a/l", 3)], false);
        assert_eq!(
            (failed(&other.candidates), unknown(&other.proven)),
            (vec!["a/k".into()], vec!["a/l".into()])
        );
        // It was not: until it is well.
        let mut history = History::new();
        said(&mut history, &proven, true);
        said(&mut history, &[config("a/k", 1), config("a/l", 3)], false);
        let with = [candidate("a/k", "c"), config("a/l", 3)];
        let after = said(&mut history, &with, false);
        assert_eq!((unknown(&after.candidates), failed(&after.proven)), (vec!["a/k".into()], vec![]));
        let well = said(&mut history, &with, true);
        assert_eq!(names(&well.candidates, |verdict| *verdict == Verdict::Healthy), ["a/k"]);
        assert_eq!(failed(&said(&mut history, &with, false).candidates), ["a/k"]);
        // Another config changed in the same moment.
        let mut history = History::new();
        said(&mut history, &proven, true);
        assert_eq!(unknown(&said(&mut history, &with, false).candidates), ["a/k"]);
    }

    #[test]
    fn of_two_candidates_the_new_one_has_failed() {
        let mut history = History::new();
        said(&mut history, &[config("a/k", 1), config("a/l", 2)], true);
        said(&mut history, &[candidate("a/k", "c"), config("a/l", 2)], true);
        let both = [candidate("a/k", "c"), candidate("a/l", "d")];
        let bad = said(&mut history, &both, false);
        assert_eq!(
            (failed(&bad.candidates), unknown(&bad.candidates)),
            (vec!["a/l".into()], vec!["a/k".into()])
        );
    }

    #[test]
    fn a_candidate_that_is_there_at_the_start_has_failed_by_the_first_check() {
        let mut history = History::new();
        let with = [candidate("a/k", "c"), config("a/l", 2)];
        history.begin(with.iter().zip([true, true]));
        assert_eq!(unknown(&history.judge(Path::new("/f"), &Outcome::Due).candidates), ["a/k"]);
        let bad = said(&mut history, &with, false);
        assert_eq!((failed(&bad.candidates), failed(&bad.proven)), (vec!["a/k".into()], vec![]));
    }

    #[test]
    fn a_template_says_nothing_bad_of_a_candidate_that_it_does_not_read() {
        let with = [candidate("a/k", "c"), config("b/k", 2)];
        for (step, expected) in [(Step::Command, Verdict::Healthy), (Step::Render, Verdict::Unknown)] {
            let mut history = History::new();
            let bad = said_of(&mut history, &with, &[false, true], Some(step));
            assert_eq!(bad.candidates, [(with[0].clone(), expected)]);
            // It does not hide the failure of what the template reads.
            assert_eq!(failed(&bad.proven), ["b/k"]);
        }
    }

    #[test]
    fn a_file_of_too_many_configs_blames_none() {
        let mut all: Vec<Arc<Config>> = (0..=VERSIONS_MAX).map(|n| config(&format!("a/{n:06}"), 1)).collect();
        let mut history = History::new();
        said(&mut history, &all, true);
        assert!(history.well.is_none());
        all[0] = candidate("a/000000", "c");
        let bad = said(&mut history, &all, false);
        assert_eq!((unknown(&bad.candidates), failed(&bad.proven)), (vec!["a/000000".into()], vec![]));
    }
}
