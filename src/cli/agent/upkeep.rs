//! One managed file: renders it, writes it, and runs its command.
//!
//! Before the file is written, a note in the data directory records that its command is due. The note is removed when the
//! command has succeeded. So an agent that stops in between runs the command at its next start, and an agent that finds
//! the file up to date runs nothing.
//!
//! A config that is not in the copy may be deleted, or the access key may have lost the permission to read it. Where that
//! matters, the agent asks a node. A template may use every definition, so a note in the data directory has the
//! definitions that had configs when its file was written.
//!
//! Another program may change or remove a file. The agent compares what the file system says of it with what it said, and
//! only if that differs, the bytes.
//!
//! **Invariants:** an error leaves the file unchanged. A lost permission changes no file, also after a restart. A file that
//! another program has changed is reported until it is written again. The last-known-good file is at least as new as every written file,
//! so that a start without the cluster never reverts one.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use concord_client::{Answer, Cache, Config, Request};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Agent,
    command::{self, Output},
    format::data_of,
    history::{Failure, History, Outcome, Step},
    settings::{FileContent, FileSettings, WhenAbsent},
    verdicts::uses,
};
use crate::cli::{
    current::{config_path, definition_path},
    place::{FileDigest, FileStamp, Target},
};

/// The first pause before a failed command is retried; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// If the configs keep changing, a file waits for at most this many debounce intervals.
const DEBOUNCES_MAX: u32 = 10;

/// How often the agent checks whether another program has changed a file: one system call for each file.
const COMPARE_EVERY: Duration = Duration::from_secs(2);
/// A file is restored no more often than this, so that a program that changes it whenever the command runs does not get
/// the command over and over.
const RESTORE_PAUSE: Duration = Duration::from_secs(60);
/// Time limit for asking whether something is deleted.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of updating a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    Same,
    Changed,
}

/// Why a file could not be brought up to date.
#[derive(Debug)]
struct Problem {
    step: Step,
    reason: String,
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self { step: Step::Write, reason }
    }
}

/// A file and its state.
#[derive(Debug)]
pub(super) struct Upkeep<'a> {
    agent: &'a Agent,
    file: &'a FileSettings,
    /// The file that notes that its command is due.
    due: PathBuf,
    /// The version of the configs that the file was last rendered from.
    seen: Option<(u64, u64)>,
    /// The file that notes which definitions had configs then, and what it says; `None` until it is read.
    had_note: Target,
    had: Option<BTreeSet<String>>,
    /// The bytes that the file has, or that it does not exist; `None` until it was written or found up to date.
    expected: Option<Option<FileDigest>>,
    /// What the file system said when the file had them.
    stamp: Option<FileStamp>,
    /// Another program has changed it since, and it was not written again yet.
    is_altered: bool,
    /// The last look has failed.
    has_failed: bool,
    restored_at: Option<Instant>,
    /// The configs that it was rendered from last, and when it was well.
    history: History,
    /// Why its command failed, until it has succeeded.
    command_failure: Option<Failure>,
    /// Failures of its command since it last succeeded or was given up.
    failures: u32,
    retry_at: Option<Instant>,
}

impl<'a> Upkeep<'a> {
    pub(super) fn new(agent: &'a Agent, file: &'a FileSettings) -> Self {
        let name = Sha256::digest(file.path.as_os_str().as_encoded_bytes());
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let due = agent.settings.data_dir.join("due").join(&name);
        let had_note = Target::private(&agent.settings.data_dir.join("had").join(name));
        Self {
            agent,
            file,
            due,
            seen: None,
            had_note,
            had: None,
            expected: None,
            stamp: None,
            is_altered: false,
            has_failed: false,
            restored_at: None,
            history: History::new(),
            command_failure: None,
            failures: 0,
            retry_at: None,
        }
    }

    /// Maintains the file until the agent stops.
    pub(super) async fn follow(mut self) {
        self.sweep().await;
        let mut changes = self.agent.cache.subscribe();
        while !self.agent.stopping.is_cancelled() {
            if let Err(error) = self.look().await {
                tracing::error!(file = %self.file.path.display(), "the file was not updated: {error}");
            }
            let wake = self.attend().await;
            let agent = self.agent;
            tokio::select! {
                () = agent.stopping.cancelled() => {}
                () = self.rest(wake) => {}
                _ = changes.next() => self.debounce(&mut changes).await,
            }
            self.compare().await;
        }
    }

    /// Waits for this long, or until the file has to be written again.
    async fn rest(&mut self, pause: Duration) {
        let (end, had_failed) = (Instant::now() + pause, self.seen.is_none());
        while Instant::now() < end && (had_failed || self.seen.is_some()) {
            sleep(end.saturating_duration_since(Instant::now()).min(COMPARE_EVERY)).await;
            self.compare().await;
        }
    }

    /// Notices that another program has changed or removed the file since it was written. Then the next look writes it
    /// again, and its command is due.
    async fn compare(&mut self) {
        let Some(expected) = self.expected.filter(|_| self.seen == Some(self.version())) else { return };
        let target = self.file.target.clone();
        // Read before the bytes: what changes in between is another stamp.
        let stamp = target.stamp();
        if self.stamp == Some(stamp) && !self.is_altered {
            return;
        }
        let found = blocking(move || {
            let found = target.digest()?;
            if found == expected && found.is_some() {
                target.mend()?;
            }
            Ok(found)
        });
        if found.await.is_ok_and(|found| found == expected) {
            // The mode may have been mended just now: the next comparison has the new stamp.
            self.stamp = Some(stamp);
            if std::mem::take(&mut self.is_altered) {
                self.agent.metrics.put_back(&self.file.path, self.has_failed);
            }
            return;
        }
        if !std::mem::replace(&mut self.is_altered, true) {
            tracing::warn!(file = %self.file.path.display(), "another program has changed or removed the file: it is written again");
            self.agent.metrics.altered(&self.file.path);
        }
        if self.restored_at.is_none_or(|at| at.elapsed() >= RESTORE_PAUSE) {
            self.restored_at = Some(Instant::now());
            self.seen = None;
        }
    }

    /// Runs the command if it is due and not paused after a failure. Returns the time until the next check.
    async fn attend(&mut self) -> Duration {
        let now = Instant::now();
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return at - now;
        }
        if !self.due.exists() {
            return PAUSE_MAX;
        }
        self.retry_at = None;
        if self.run().await.is_ok() {
            self.failures = 0;
        } else if self.failures >= self.file.retries {
            tracing::error!(file = %self.file.path.display(), "the command failed too often; it runs again after the next change");
            self.failures = 0;
            self.settle();
        } else {
            let pause = (PAUSE_MIN * 2_u32.saturating_pow(self.failures.min(10))).min(PAUSE_MAX);
            self.failures += 1;
            self.retry_at = Some(Instant::now() + pause);
            return pause;
        }
        PAUSE_MAX
    }

    /// Writes the file once and runs its command if it changed.
    pub(super) async fn once(mut self) -> Result<(), String> {
        self.sweep().await;
        self.look().await?;
        if self.due.exists() { self.run().await } else { Ok(()) }
    }

    /// Waits until the configs have not changed for a while. Checks without changes don't count.
    async fn debounce(&self, changes: &mut concord_client::Changes) {
        let end = Instant::now() + self.file.debounce * DEBOUNCES_MAX;
        let mut before = self.version();
        if self.seen.is_none() || self.seen == Some(before) {
            return;
        }
        let mut quiet = Instant::now() + self.file.debounce;
        while Instant::now() < quiet.min(end) && !self.agent.stopping.is_cancelled() {
            let left = quiet.min(end).saturating_duration_since(Instant::now());
            // The version is compared in either case.
            let _ = timeout(left, changes.next()).await;
            let now = self.version();
            if now != before {
                (before, quiet) = (now, Instant::now() + self.file.debounce);
            }
        }
    }

    fn version(&self) -> (u64, u64) {
        let status = self.agent.cache.status();
        (status.changes, status.listings)
    }

    /// Renders the file if the configs have changed, and writes it if its bytes differ.
    async fn look(&mut self) -> Result<(), String> {
        let version = self.version();
        if self.seen == Some(version) {
            return Ok(());
        }
        // No node has responded, and there was no file.
        let Ok((configs, _)) = self.agent.cache.all() else { return Ok(()) };
        // A render error is logged once, and retried when the configs have changed. All others are always retried.
        self.seen = Some(version);
        let (rendered, is_used) = self.render(&configs);
        let inputs = configs.iter().zip(is_used);
        self.history.begin(inputs.filter(|(config, _)| uses(&self.file.content, config)));
        let looked = match rendered {
            Ok(rendered) => {
                let written = match self.confirm(&configs, rendered.as_deref()).await {
                    Ok(exists) => match self.bring(rendered.filter(|_| exists)).await {
                        Ok(looked) => Ok(looked),
                        Err(Problem { step, reason }) => {
                            self.reject(step, &reason);
                            Err(reason)
                        }
                    },
                    Err(error) => Err(error),
                };
                match &written {
                    Err(_) => self.seen = None,
                    Ok(looked) => {
                        self.is_altered = false;
                        let outcome = self.outcome(*looked);
                        self.judge(&outcome);
                    }
                }
                written
            }
            Err(error) => {
                self.reject(Step::Render, &error);
                Err(error)
            }
        };
        self.has_failed = looked.is_err();
        self.agent.metrics.rendered(&self.file.path, looked.is_ok());
        if looked? == Looked::Changed {
            tracing::info!(file = %self.file.path.display(), "wrote the file");
            self.agent.metrics.written(&self.file.path);
        }
        Ok(())
    }

    /// How a file is that is up to date. A command that has failed is not well until it succeeds, also if it was given up.
    fn outcome(&self, looked: Looked) -> Outcome {
        match (&self.command_failure, looked) {
            (Some(failure), Looked::Same) => Outcome::Failed(failure.clone()),
            (Some(_), Looked::Changed) | (None, _) if self.due.exists() => Outcome::Due,
            (Some(_), Looked::Changed) | (None, _) => Outcome::Well,
        }
    }

    /// Says of the configs that the file was rendered from whether they do.
    fn judge(&mut self, outcome: &Outcome) {
        let said = self.history.judge(&self.file.path, outcome);
        self.agent.verdicts.note(&self.file.path, said);
    }

    fn reject(&mut self, step: Step, reason: &str) -> Failure {
        let failure = self.history.failure(step, reason);
        self.judge(&Outcome::Failed(failure.clone()));
        failure
    }

    /// Brings the file to this text, or to not being there.
    async fn bring(&mut self, text: Option<String>) -> Result<Looked, Problem> {
        let digest = text.as_ref().map(|text| FileDigest::of(text.as_bytes()));
        let brought = match text {
            Some(text) => self.write(text).await,
            None => self.absent().await.map_err(Problem::from),
        };
        self.stamp = None;
        // A file that is kept without its config is nobody's.
        let is_known = digest.is_some() || self.file.when_absent == WhenAbsent::Remove;
        if brought.is_ok() {
            self.expected = is_known.then_some(digest);
        }
        brought
    }

    /// Whether what the file is rendered from exists. What is not in the copy, and would change the file, is requested:
    /// the copy does not tell a config that is deleted from one that the access key may no longer read.
    ///
    /// # Errors
    /// When a node does not say that it is deleted.
    async fn confirm(&mut self, configs: &[Arc<Config>], rendered: Option<&str>) -> Result<bool, String> {
        let has = |definition: &str| configs.iter().any(|one| one.definition == definition);
        match &self.file.content {
            FileContent::Config(definition, key, _) => {
                let exists = configs.iter().any(|one| one.definition == *definition && one.key == *key);
                if !exists && self.file.when_absent == WhenAbsent::Remove && self.file.path.exists() {
                    let path = config_path(definition, key);
                    if self.exists(&path, &format!("config {definition}/{key}")).await? {
                        return Err(format!("config {definition}/{key} exists, and is not in the copy yet"));
                    }
                }
                Ok(exists)
            }
            FileContent::Definition(definition, _) => {
                let is_written =
                    || rendered.is_some_and(|text| self.file.target.has(text.as_bytes()) == Ok(true));
                if has(definition) || is_written() {
                    return Ok(true);
                }
                self.is_empty(definition).await
            }
            FileContent::Template(_) => {
                let now: BTreeSet<String> = configs.iter().map(|one| one.definition.clone()).collect();
                let noted = match self.had.take() {
                    Some(had) => Some(had),
                    None => self.read_had().await?,
                };
                // Without a note, nobody knows what the present file was written from.
                let is_new = noted.is_none() && !self.file.path.exists();
                let had = noted.clone().unwrap_or_else(|| self.agent.settings.named_definitions());
                for definition in had.difference(&now).filter(|_| !is_new) {
                    self.is_empty(definition).await?;
                }
                // Before the file is written: its next text is compared with what this one has.
                if noted.as_ref() != Some(&now) {
                    self.note_had(&now).await?;
                }
                self.had = Some(now);
                Ok(true)
            }
        }
    }

    /// Makes sure that a definition of which the copy has nothing has none of the configs that the agent keeps. Returns
    /// whether it exists.
    ///
    /// # Errors
    /// When a node does not say so: it does not respond, the access key may not read, or the copy is behind.
    async fn is_empty(&self, definition: &str) -> Result<bool, String> {
        let behind = |what: &str| format!("{what} exists, and is not in the copy yet; the file is kept");
        for config in self.agent.settings.kept_of(definition) {
            if let Some(key) = config {
                let what = format!("config {definition}/{key}");
                if self.exists(&config_path(definition, key), &what).await? {
                    return Err(behind(&what));
                }
                continue;
            }
            let what = format!("definition {definition}");
            let path = format!("{}/config/?limit=1", definition_path(definition));
            let Some(answer) = self.asked(&path, &what).await? else { return Ok(false) };
            let total = answer.data().map_err(|error| error.to_string())?["meta"]["total"].as_u64();
            return if total == Some(0) { Ok(true) } else { Err(behind(&format!("a config of {what}"))) };
        }
        Ok(true)
    }

    /// The definitions that had configs when the file was written last; `None` without a valid note.
    async fn read_had(&self) -> Result<Option<BTreeSet<String>>, String> {
        let note = self.had_note.clone();
        let text = blocking(move || note.read()).await?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    async fn note_had(&self, had: &BTreeSet<String>) -> Result<(), String> {
        let (note, text) = (self.had_note.clone(), json!(had).to_string());
        blocking(move || {
            note.make_folder()?;
            note.stage(text.as_bytes())?.publish()
        })
        .await
        .map_err(|error| format!("the note of the definitions can't be written: {error}"))
    }

    /// Asks a node whether something exists.
    async fn exists(&self, path: &str, what: &str) -> Result<bool, String> {
        Ok(self.asked(path, what).await?.is_some())
    }

    /// The response of a node; `None` if what it is about does not exist.
    async fn asked(&self, path: &str, what: &str) -> Result<Option<Answer>, String> {
        let asked = self.agent.client.send(Request::get(path).timeout(ASK_TIMEOUT));
        let answer = tokio::select! {
            answer = asked => answer,
            () = self.agent.stopping.cancelled() => return Err("the agent stops".into()),
        };
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(format!(
                "{what} is not in the copy, and no node says that it is deleted: {error}; the file is kept"
            )),
        }
    }

    /// Removes what a killed agent left beside the file.
    async fn sweep(&self) {
        let (target, note) = (self.file.target.clone(), self.had_note.clone());
        if let Err(error) = blocking(move || target.sweep().and_then(|()| note.sweep())).await {
            tracing::warn!(file = %self.file.path.display(), "what an earlier agent left beside the file was not removed: {error}");
        }
    }

    /// The text of the file, `None` when its config does not exist, and which configs it uses.
    fn render(&self, configs: &[Arc<Config>]) -> (Result<Option<String>, String>, Vec<bool>) {
        let content = &self.file.content;
        let text = match content {
            FileContent::Config(definition, key, layout) => {
                let found = configs.iter().find(|one| one.definition == *definition && one.key == *key);
                found.map(|config| layout.write(data_of(config)?)).transpose()
            }
            FileContent::Definition(definition, layout) => {
                let of = configs.iter().filter(|one| one.definition == *definition);
                let data = of.map(|one| Ok((one.key.clone(), data_of(one)?.clone())));
                let data = data.collect::<Result<Map<String, Value>, String>>();
                data.and_then(|data| layout.write(&data.into()).map(Some))
            }
            FileContent::Template(template) => {
                let (text, is_used) = template.render(configs);
                return (text.map(Some), is_used);
            }
        };
        (text, configs.iter().map(|config| uses(content, config)).collect())
    }

    async fn write(&self, text: String) -> Result<Looked, Problem> {
        let target = self.file.target.clone();
        let bytes = text.into_bytes();
        let (target, bytes, has) = blocking(move || {
            let has = target.has(&bytes)?;
            Ok((target, bytes, has))
        })
        .await?;
        if has {
            blocking(move || target.mend()).await?;
            return Ok(Looked::Same);
        }
        let (target, bytes, staged) = blocking(move || {
            let staged = target.stage(&bytes)?;
            Ok((target, bytes, staged))
        })
        .await?;
        let (check, timeout) = (&self.file.check, self.file.timeout);
        command::check(check, staged.path(), timeout, &self.agent.stopping).await.map_err(|error| {
            Problem { step: Step::Check, reason: format!("the check of the new file failed: {error}") }
        })?;
        let work = move || {
            let done = staged.publish();
            // It may have failed after the change.
            let is_changed = done.is_ok() || target.has(&bytes).unwrap_or(true);
            Ok((done, is_changed))
        };
        Ok(self.change(work).await?)
    }

    /// Changes the file. If it stays unchanged, its command is not due.
    async fn change(
        &self,
        work: impl FnOnce() -> Result<(Result<(), String>, bool), String> + Send + 'static,
    ) -> Result<Looked, String> {
        let was_due = self.due.exists();
        self.prepare().await?;
        let (done, is_changed) = blocking(work).await?;
        if !is_changed && !was_due && self.due.exists() {
            self.settle();
        }
        done.map(|()| Looked::Changed)
    }

    async fn absent(&self) -> Result<Looked, String> {
        let exists = self.file.path.exists();
        if self.file.when_absent == WhenAbsent::Keep {
            let kept = if exists { "; the file is kept" } else { "" };
            tracing::warn!(file = %self.file.path.display(), "what the file is written from does not exist{kept}");
            return Ok(Looked::Same);
        }
        if !exists {
            return Ok(Looked::Same);
        }
        let (target, path) = (self.file.target.clone(), self.file.path.clone());
        let work = move || {
            let done = target.remove().map(drop);
            Ok((done, !path.exists()))
        };
        self.change(work).await
    }

    /// Makes durable, before the file changes, the configs that it is rendered from and that its command is due.
    async fn prepare(&self) -> Result<(), String> {
        let cache: &Cache = &self.agent.cache;
        cache.save().await.map_err(|error| format!("the last-known-good file can't be written: {error}"))?;
        if self.file.command.is_empty() {
            return Ok(());
        }
        let (due, path) = (self.due.clone(), self.file.path.clone());
        blocking(move || note(&due, &path)).await
    }

    /// Runs the command, and removes the note that it is due if it succeeds.
    async fn run(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        // Only what is reported is read: a process that the command leaves behind keeps its own output otherwise.
        let output = if self.history.has_candidate() { Output::Read } else { Output::Passed };
        let (path, stopping) = (&self.file.path, &self.agent.stopping);
        let done = command::run(&self.file.command, path, self.file.timeout, stopping, output).await;
        let (file, duration_ms) = (self.file.path.display(), begin.elapsed().as_millis());
        self.agent.metrics.ran(&self.file.path, done.is_ok());
        match &done {
            Ok(()) => {
                tracing::info!(%file, duration_ms, "the command of the file succeeded");
                self.settle();
                self.command_failure = None;
                self.judge(&Outcome::Well);
            }
            Err(error) => {
                tracing::error!(%file, duration_ms, "the command of the file failed: {error}");
                if !self.agent.stopping.is_cancelled() {
                    self.command_failure = Some(self.reject(Step::Command, error));
                }
            }
        }
        done
    }

    fn settle(&self) {
        if let Err(error) = fs::remove_file(&self.due) {
            tracing::warn!(file = %self.file.path.display(), "the note that the command of the file is due could not be removed: {error}");
        }
    }
}

fn note(due: &Path, path: &Path) -> Result<(), String> {
    let folder = due.parent().unwrap_or(Path::new("."));
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(due, path.as_os_str().as_encoded_bytes()));
    written
        .and_then(|()| fs::File::open(folder)?.sync_all())
        .map_err(|error| format!("{}: {error}", due.display()))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
