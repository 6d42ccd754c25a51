//! What the files of the agent say of the configs that they are written from: whether they could be written, and their
//! commands succeeded.
//!
//! The client's cache asks before each of its reports. A candidate of a rollout is healthy once every file that uses it has
//! been brought up to date with it and no command is due; it has failed as soon as one of them has. Of other configs, only
//! failures are reported.
//!
//! **Invariant:** what a file says counts only for the data that it was written from.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use concord_client::{Config, Verdict};

use super::settings::{AgentSettings, FileContent};

/// The most configs outside rollouts that a file says something of. The cache reports no more.
const PROVEN_MAX: usize = 50;

/// The configs that a file was written from last, and what it says of them.
#[derive(Debug)]
struct Said {
    configs: FileConfigs,
    verdict: Verdict,
}

/// The configs that a file is written from.
#[derive(Debug, Clone, Default)]
pub(super) struct FileConfigs {
    /// Candidates of rollouts.
    pub(super) candidates: Vec<Arc<Config>>,
    /// Some of the others, as many as are reported.
    proven: Vec<Arc<Config>>,
}

impl FileConfigs {
    /// Those of all that a file uses.
    pub(super) fn of(content: &FileContent, configs: &[Arc<Config>]) -> Self {
        let used = || configs.iter().filter(|config| uses(content, config)).cloned();
        Self {
            candidates: used().filter(|config| config.variant.is_some()).collect(),
            proven: used().filter(|config| config.variant.is_none()).take(PROVEN_MAX).collect(),
        }
    }
}

/// What files say, each by its path.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<BTreeMap<PathBuf, Said>>);

impl Verdicts {
    /// Notes what a file says of the configs that it was written from.
    pub(super) fn note(&self, file: &Path, configs: FileConfigs, verdict: Verdict) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(file.to_owned(), Said { configs, verdict });
    }

    /// The configs outside rollouts that a file could not be written from, or its command failed with, and those of which that
    /// is not known yet.
    pub(super) fn rejected(&self) -> Vec<(Arc<Config>, Verdict)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = known.values().filter(|said| said.verdict != Verdict::Healthy);
        others
            .flat_map(|said| said.configs.proven.iter().map(|one| (one.clone(), said.verdict.clone())))
            .collect()
    }

    /// What all files say of a candidate.
    pub(super) fn of(&self, settings: &AgentSettings, config: &Config) -> Verdict {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = |path: &PathBuf| match known.get(path) {
            Some(said) if said.configs.candidates.iter().any(|one| **one == *config) => said.verdict.clone(),
            Some(_) | None => Verdict::Unknown,
        };
        let users = settings.files.iter().filter(|file| uses(&file.content, config));
        users.map(|file| said(&file.path)).fold(Verdict::Healthy, |all, one| match (&all, &one) {
            (Verdict::Failed(_), _) | (_, Verdict::Healthy) => all,
            (Verdict::Healthy | Verdict::Unknown, Verdict::Failed(_) | Verdict::Unknown) => one,
        })
    }
}

/// Whether a file is written from a config. A template may use all of them.
fn uses(content: &FileContent, config: &Config) -> bool {
    match content {
        FileContent::Config(definition, key, _) => *definition == config.definition && *key == config.key,
        FileContent::Definition(definition, _) => *definition == config.definition,
        FileContent::Template(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings() -> AgentSettings {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.yaml");
        let text = "configs: [{definition: a}, {definition: b}]\ndata_dir: d\nfiles: [{path: /one, definition: a, config: k}, \
                    {path: /all, definition: a}, {path: /b, definition: b}]";
        std::fs::write(&path, text).unwrap();
        AgentSettings::read(&path).unwrap()
    }

    fn candidate(n: u64) -> Arc<Config> {
        let config =
            json!({"config_definition_key": "a", "config_key": "k", "data": {"n": n}, "variant": "change-1"});
        Arc::new(serde_json::from_value(config).unwrap())
    }

    fn with(candidate: Arc<Config>) -> FileConfigs {
        FileConfigs { candidates: vec![candidate], ..FileConfigs::default() }
    }

    #[test]
    fn what_a_file_rejects_is_reported_of_what_it_uses() {
        let verdicts = Verdicts::default();
        let config = |definition: &str, variant: Option<&str>| -> Arc<Config> {
            let config = json!({"config_definition_key": definition, "config_key": "k", "data": {}, "variant": variant});
            Arc::new(serde_json::from_value(config).unwrap())
        };
        let all = [config("a", None), config("b", None), config("a", Some("change-1"))];
        let configs = FileConfigs::of(&settings().files[0].content, &all);
        assert_eq!((configs.candidates.len(), configs.proven.len()), (1, 1));
        verdicts.note(Path::new("/one"), configs.clone(), Verdict::Failed("exit status: 1".into()));
        let failed = Verdict::Failed("exit status: 1".into());
        assert_eq!(verdicts.rejected(), [(config("a", None), failed)]);
        verdicts.note(Path::new("/one"), configs, Verdict::Healthy);
        assert!(verdicts.rejected().is_empty());
    }

    #[test]
    fn every_file_that_uses_a_candidate_says_something_of_it() {
        let (settings, verdicts) = (settings(), Verdicts::default());
        let failed = Verdict::Failed("x".into());
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), with(candidate(1)), Verdict::Healthy);
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/all"), with(candidate(1)), Verdict::Healthy);
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Healthy);
        // What was said of other data says nothing of these.
        assert_eq!(verdicts.of(&settings, &candidate(2)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), with(candidate(2)), failed.clone());
        assert_eq!(verdicts.of(&settings, &candidate(2)), failed);
    }
}
