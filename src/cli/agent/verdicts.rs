//! What the files of the agent say of candidates of rollouts: whether they could be written, and their commands succeeded.
//!
//! The client's cache asks before each of its reports. A candidate is healthy once every file that uses it has been brought
//! up to date with it and no command is due; it has failed as soon as one of them has.
//!
//! **Invariant:** what a file says counts only for the data that it was written from.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use concord_client::{Config, Verdict};

use super::settings::{AgentSettings, FileContent};

/// The candidates that a file was written from last, and what it says of them.
type Said = (Vec<Arc<Config>>, Verdict);

/// What files say, each by its path.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<BTreeMap<PathBuf, Said>>);

impl Verdicts {
    /// Notes what a file says of the candidates that it was written from.
    pub(super) fn note(&self, file: &Path, candidates: Vec<Arc<Config>>, verdict: Verdict) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(file.to_owned(), (candidates, verdict));
    }

    /// What all files say of a candidate.
    pub(super) fn of(&self, settings: &AgentSettings, config: &Config) -> Verdict {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = |path: &PathBuf| match known.get(path) {
            Some((candidates, verdict)) if candidates.iter().any(|one| **one == *config) => verdict.clone(),
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
pub(super) fn uses(content: &FileContent, config: &Config) -> bool {
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

    #[test]
    fn every_file_that_uses_a_candidate_says_something_of_it() {
        let (settings, verdicts) = (settings(), Verdicts::default());
        let failed = Verdict::Failed("x".into());
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), vec![candidate(1)], Verdict::Healthy);
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/all"), vec![candidate(1)], Verdict::Healthy);
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Healthy);
        // What was said of other data says nothing of these.
        assert_eq!(verdicts.of(&settings, &candidate(2)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), vec![candidate(2)], failed.clone());
        assert_eq!(verdicts.of(&settings, &candidate(2)), failed);
    }
}
