//! The tasks of a cache: list and watch, confirm, save, report.
//!
//! **Invariants:** all that comes is applied by its revision, whichever task it comes by: once, and in order. A question
//! that was asked before a new listing began says nothing of it. Nothing of another cluster is applied to a listing.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{Shared, content, content::Content, report, source::Moment};
use crate::{Answer, Error, Event, EventKind, Refusal, Watch};

/// The first pause after a refusal; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The least time between two writes of the file: a burst of changes is one write.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// How long a question to the cluster may take. A node that hangs gets a second of it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(6);
/// The most polls that one confirmation takes. What is left is for the next.
const POLLS_MAX: usize = 1000;

/// Keeps a cache until it is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    // One task, so that dropping the cache ends all of it.
    tokio::join!(follow(&shared), confirm(&shared), keep_file(&shared), report::run(&shared));
}

/// Lists and watches, for ever.
async fn follow(shared: &Shared) {
    let mut pause = PAUSE_MIN;
    loop {
        let begun = Instant::now();
        let error = follow_once(shared).await;
        if begun.elapsed() > PAUSE_MAX {
            pause = PAUSE_MIN;
        }
        // Behind an outage as long as a request may take, the cluster may be another one, restored from a backup; and
        // changes that are no longer retained can't be read. Both start over with the whole state, immediately.
        let is_anew =
            matches!(error, Error::Unavailable(_)) || error.status() == Some(http::StatusCode::GONE);
        if error.status() == Some(http::StatusCode::GONE) {
            shared.doubt();
        }
        shared.fail(&error.to_string());
        if !is_anew || begun.elapsed() < PAUSE_MIN {
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Lists and watches until that fails.
async fn follow_once(shared: &Shared) -> Error {
    let mut begun = Moment::now();
    let listing = shared.begin_listing();
    let request = content::ask("/api/v1/watch", &shared.query).query("initial", "true");
    let mut watch = shared.client.watch(request);
    let mut staged = Some(Content::default());
    let mut superseded = shared.superseded.subscribe();
    loop {
        let event = tokio::select! {
            event = watch.next() => event,
            // The sender lives as long as this task.
            _ = superseded.wait_for(|last| *last >= listing) => {
                Err(Error::Refused(Box::new(Refusal::other_cluster("a node"))))
            }
        };
        let event = match event {
            Ok(event) => event,
            Err(error) => return error,
        };
        let done = match (event.kind, &mut staged) {
            (EventKind::Restarted, _) => {
                begun = Moment::now();
                staged = Some(Content::default());
                Ok(())
            }
            (EventKind::State, Some(content)) => {
                let added = content.add_state(&event.data, &shared.options.selections);
                if added.is_ok() && event.revision.is_some() {
                    shared.fill(staged.take().unwrap_or_default(), &event, begun, &watch);
                }
                added
            }
            (EventKind::Change, None) => shared.apply(listing, &[event.data], watch.node()),
            (EventKind::Heartbeat, None) => {
                shared.advance(listing, event.revision.unwrap_or_default());
                Ok(())
            }
            (EventKind::Change | EventKind::Heartbeat, Some(_)) | (EventKind::State, None) => Ok(()),
        };
        if let Err(text) = done {
            return Error::Protocol(text);
        }
    }
}

/// Asks every so often whether anything is missing.
async fn confirm(shared: &Shared) {
    loop {
        sleep(shared.options.confirm_every.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let Some(listing) = shared.listing_to_confirm() else { continue };
        match timeout(CONFIRM_TIMEOUT, confirm_once(shared, listing)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.fail(&error.to_string()),
            Err(_) => shared.fail("no node confirmed in time that the cache is complete"),
        }
    }
}

async fn confirm_once(shared: &Shared, listing: u64) -> Result<(), Error> {
    let asked = Moment::now();
    let known = shared.position(listing);
    // Without `from`, a poll tells the revision that a linearizable read sees. It returns no earlier changes.
    let request = content::ask("/api/v1/changes", &shared.query).query("wait", 0).timeout(CONFIRM_TIMEOUT);
    let answer = shared.client.send(request).await?;
    let wanted = upto(&answer)?;
    // A cluster does not go back: what this node knew before the question is in a linearizable answer.
    if shared.is_of_other(&answer) || known.is_some_and(|known| wanted < known) {
        shared.supersede(listing, &answer);
        return Ok(());
    }
    for _ in 0..POLLS_MAX {
        let Some(position) = shared.position(listing).filter(|position| *position < wanted) else { break };
        // What the watch has not brought: nothing, if all of it was of other configs, or what its node does not know.
        let request =
            content::ask("/api/v1/changes", &shared.query).query("wait", 0).query("from", position + 1);
        let polled = shared.client.send(request.timeout(CONFIRM_TIMEOUT)).await?;
        if shared.is_of_other(&polled) {
            shared.supersede(listing, &polled);
            return Ok(());
        }
        if polled.status().is_success() {
            let data = polled.data()?;
            let events = data["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            let node = polled.header("x-concord-node");
            shared.apply(listing, events, node).map_err(Error::Protocol)?;
        }
        shared.advance(listing, upto(&polled)?);
    }
    shared.confirm(listing, wanted, asked, answer.header("x-concord-node"));
    Ok(())
}

/// The revision up to which an answer has everything.
fn upto(answer: &Answer) -> Result<u64, Error> {
    let next = answer.header("x-concord-next-from").and_then(|text| text.parse::<u64>().ok());
    let next =
        next.ok_or_else(|| Error::Protocol("the response has no next revision to poll from".into()))?;
    Ok(next.saturating_sub(1))
}

/// Writes the file: soon after a change, and now and then in between.
async fn keep_file(shared: &Arc<Shared>) {
    if shared.options.file.is_none() {
        return;
    }
    let mut changed = shared.changed.subscribe();
    let (mut saved_at, mut saved_changes) = (None::<Instant>, None);
    loop {
        let changes = {
            let known = shared.known();
            (known.changes, known.listings)
        };
        let is_due = saved_at.is_none_or(|at| at.elapsed() >= shared.options.save_every);
        if (saved_changes != Some(changes) || is_due) && shared.to_save().is_some() {
            // The error is in the status, and a later write may succeed.
            let _ = save(shared).await;
            (saved_at, saved_changes) = (Some(Instant::now()), Some(changes));
        }
        sleep(SAVE_PAUSE).await;
        // The sender lives as long as this task.
        let _ = timeout(shared.options.save_every, changed.changed()).await;
    }
}

/// Writes the file.
pub(super) async fn save(shared: &Arc<Shared>) -> Result<(), String> {
    // One at a time: what is written last is the newest.
    let _turn = shared.saving.lock().await;
    let (Some(path), Some(saved)) = (shared.options.file.clone(), shared.to_save()) else { return Ok(()) };
    let selections = shared.options.selections.clone();
    let environment = shared.client.environment().map(str::to_owned);
    let write = move || saved.write(&path, environment.as_deref(), &selections);
    let written = tokio::task::spawn_blocking(write).await;
    let written = written.map_err(|error| error.to_string()).and_then(|written| written);
    shared.known_mut().file_problem = written.clone().err();
    written
}

impl Shared {
    fn begin_listing(&self) -> u64 {
        let mut known = self.known_mut();
        known.listing += 1;
        known.is_listing = true;
        known.listing
    }

    /// The content is the state that was listed. It may be older than what was there before: of a cluster that was
    /// restored.
    fn fill(&self, mut content: Content, event: &Event, begun: Moment, watch: &Watch) {
        content.position = event.revision.unwrap_or_default();
        let mut known = self.known_mut();
        known.is_listing = false;
        known.listings += 1;
        if !known.content.as_ref().is_some_and(|before| before.has_same(&content)) {
            known.changes += 1;
        }
        known.content = Some(content);
        known.is_live = true;
        known.cluster = watch.cluster().map(Into::into);
        known.is_superseded = false;
        known.confirmed = Some(begun);
        known.node = watch.node().map(Into::into);
        known.problem = None;
        drop(known);
        self.announce();
    }

    fn apply(&self, listing: u64, events: &[Value], node: Option<&str>) -> Result<(), String> {
        let mut known = self.known_mut();
        if known.listing != listing || known.is_listing {
            return Ok(());
        }
        let known = &mut *known;
        let Some(content) = &mut known.content else { return Ok(()) };
        let mut has_changed = false;
        for event in events {
            has_changed |= content.apply(event, &self.options.selections)?;
        }
        if has_changed {
            known.changes += 1;
            if known.node.as_deref() != node {
                known.node = node.map(Into::into);
            }
            self.announce();
        }
        Ok(())
    }

    /// Nothing that is selected has changed up to a revision.
    fn advance(&self, listing: u64, upto: u64) {
        let mut known = self.known_mut();
        if known.listing == listing
            && !known.is_listing
            && let Some(content) = &mut known.content
        {
            content.position = content.position.max(upto);
        }
    }

    fn position(&self, listing: u64) -> Option<u64> {
        let known = self.known();
        known.content.as_ref().filter(|_| known.listing == listing).map(|content| content.position)
    }

    /// The listing that can be confirmed: one that is complete.
    fn listing_to_confirm(&self) -> Option<u64> {
        let known = self.known();
        (known.is_live && !known.is_listing && !known.is_superseded).then_some(known.listing)
    }

    /// The content has everything that was acknowledged before the question was asked, if it has come as far.
    fn confirm(&self, listing: u64, wanted: u64, asked: Moment, node: Option<&str>) {
        let mut known = self.known_mut();
        let has_all = known.content.as_ref().is_some_and(|content| content.position >= wanted);
        if known.listing != listing || known.is_listing || known.is_superseded || !has_all {
            return;
        }
        known.confirmed = Some(asked);
        known.problem = None;
        if known.node.as_deref() != node {
            known.node = node.map(Into::into);
        }
        drop(known);
        self.announce();
    }

    /// Whether an answer is of another cluster than the content.
    fn is_of_other(&self, answer: &Answer) -> bool {
        let known = self.known();
        answer.cluster().zip(known.cluster.as_deref()).is_some_and(|(now, before)| now != before)
    }

    /// The nodes now belong to another cluster than the content: it is not fresh, and is listed again.
    fn supersede(&self, listing: u64, answer: &Answer) {
        let mut known = self.known_mut();
        if known.listing != listing || known.is_listing {
            return;
        }
        known.is_superseded = true;
        known.problem = Some(Refusal::other_cluster(&answer.url).to_string());
        drop(known);
        self.announce();
        self.superseded.send_replace(listing);
    }

    /// A node does not know the position, which may be that of another cluster.
    fn doubt(&self) {
        self.known_mut().is_superseded = true;
        self.announce();
    }

    fn fail(&self, problem: &str) {
        let mut known = self.known_mut();
        if known.problem.as_deref() == Some(problem) {
            return;
        }
        known.problem = Some(problem.to_owned());
        drop(known);
        self.announce();
    }
}
