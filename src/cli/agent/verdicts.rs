//! What the files of the agent say of the configs that they are written from: whether they could be written, and their
//! commands succeeded.
//!
//! The client's cache asks before each of its reports. A candidate of a rollout is healthy once every file that uses it has
//! been brought up to date with it and no command is due; it has failed as soon as one of them has failed by it. Of other
//! configs, only failures are reported.
//!
//! **Invariant:** what a file says counts only for the data that it was written from.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use concord_client::{Config, Verdict};

use super::{
    history::{Judged, Said},
    settings::{AgentSettings, FileContent},
};

/// What files say, each by its path.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<BTreeMap<PathBuf, Said>>);

impl Verdicts {
    /// Notes what a file says of the configs that it was written from.
    pub(super) fn note(&self, file: &Path, said: Said) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(file.to_owned(), said);
    }

    /// The configs outside rollouts that files have failed by, and then those of which that is not known.
    pub(super) fn rejected(&self) -> Vec<Judged> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Judged> = known.values().flat_map(|said| said.proven.iter().cloned()).collect();
        // The cache reports the first ones.
        all.sort_by_key(|(_, verdict)| *verdict == Verdict::Unknown);
        all
    }

    /// What all files say of a candidate.
    pub(super) fn of(&self, settings: &AgentSettings, config: &Config) -> Verdict {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = |path: &PathBuf| {
            let mut candidates = known.get(path).into_iter().flat_map(|said| &said.candidates);
            let found = candidates.find(|(one, _)| **one == *config);
            found.map_or(Verdict::Unknown, |(_, verdict)| verdict.clone())
        };
        let users = settings.files.iter().filter(|file| uses(&file.content, config));
        users.map(|file| said(&file.path)).fold(Verdict::Healthy, |all, one| match (&all, &one) {
            (Verdict::Failed(_), _) | (_, Verdict::Healthy) => all,
            (Verdict::Healthy | Verdict::Unknown, Verdict::Failed(_) | Verdict::Unknown) => one,
        })
    }
}

/// Whether a file may use a config. A template may use all of them; which ones it uses, its rendering says.
pub(super) fn uses(content: &FileContent, config: &Config) -> bool {
    match content {
        FileContent::Config(definition, key, _) => *definition == config.definition && *key == config.key,
        FileContent::Definition(definition, _) => *definition == config.definition,
        FileContent::Template(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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

    fn with(candidate: Arc<Config>, verdict: Verdict) -> Said {
        Said { candidates: vec![(candidate, verdict)], ..Said::default() }
    }

    #[test]
    fn what_has_failed_comes_before_what_is_not_known() {
        let verdicts = Verdicts::default();
        let config = |key: &str| -> Arc<Config> {
            let config = json!({"config_definition_key": "a", "config_key": key, "data": {}});
            Arc::new(serde_json::from_value(config).unwrap())
        };
        let said = |proven: Vec<Judged>| Said { proven, ..Said::default() };
        let (unknown, failed) = ((config("k"), Verdict::Unknown), (config("l"), Verdict::Failed("x".into())));
        verdicts.note(Path::new("/all"), said(vec![unknown.clone()]));
        verdicts.note(Path::new("/one"), said(vec![failed.clone()]));
        assert_eq!(verdicts.rejected(), [failed, unknown.clone()]);
        verdicts.note(Path::new("/one"), Said::default());
        assert_eq!(verdicts.rejected(), [unknown]);
    }

    #[test]
    fn every_file_that_uses_a_candidate_says_something_of_it() {
        let (settings, verdicts) = (settings(), Verdicts::default());
        let failed = Verdict::Failed("x".into());
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), with(candidate(1), Verdict::Healthy));
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Unknown);
        verdicts.note(Path::new("/all"), with(candidate(1), Verdict::Healthy));
        assert_eq!(verdicts.of(&settings, &candidate(1)), Verdict::Healthy);
        // What was said of other data says nothing of these.
        assert_eq!(verdicts.of(&settings, &candidate(2)), Verdict::Unknown);
        verdicts.note(Path::new("/one"), with(candidate(2), failed.clone()));
        assert_eq!(verdicts.of(&settings, &candidate(2)), failed);
    }
}
