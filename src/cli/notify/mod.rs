//! `concord notify`: posts what happens to a webhook: to change requests, as a chat service takes it, or to configs and
//! definitions, as other programs do.
//!
//! | what | file |
//! |---|---|
//! | following the cluster, and which events are posted | this one |
//! | the requests to the webhook, and their retries | `webhook` |
//! | their signatures | `signature` |
//! | the events that the webhook rejects for good | `dead_letters` |
//! | how far it has come, on disk | `position` |
//! | what a message says | `message` |
//!
//! Nodes call no URL: who runs this decides where the events go, with an access key that sees no more than it may.
//!
//! **Invariant:** the position moves past an event only once the webhook has taken it, or once it is durable among the dead
//! letters. So each event is posted at least once, whatever ends in between. If the history no longer has the events, a
//! `missed` event says so: of each change request that has changed since, with its state, and one of all configs and
//! definitions.

mod dead_letters;
mod message;
mod position;
mod signature;
pub(super) mod webhook;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use concord_client::{Client, Error, Request};
use http::StatusCode;
use serde::Deserialize;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use super::{
    connection::{Failure, NodeArgs, run_async, tries_of_operator, with_cluster},
    output::{cell, counted, note, say},
};
use dead_letters::{DeadLetterArgs, DeadLetters};
use message::{Event, Form, KINDS, Message, PHASES};
use position::{Position, PositionFile};
use webhook::{Pauses, Webhook, WebhookArgs};

/// How long a poll waits for an event.
const WAIT: Duration = Duration::from_secs(30);
/// Time limit of a poll with all its retries.
const POLL_TIMEOUT: Duration = Duration::from_secs(90);
/// With `--once`: how long a webhook that fails gets an event again.
const ONCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Change requests of a page.
const PAGE: usize = 200;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  concord notify --webhook-file hook.url --environment prod --position notify.json\n  \
                  concord notify --definition 'prod.*' --cloudevents --webhook-file hook.url --secret-file secrets \\\n      \
                  --position changes.json --dead-letters dead.ndjson\n\nEach event is posted as JSON: `text` is a line for \
                  people, `event` has its members. It is posted until the webhook answers 2xx, however long that takes; \
                  it may get an event twice, with the same `id`."
)]
pub(super) struct NotifyArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    webhook: WebhookArgs,
    #[command(flatten)]
    dead_letters: DeadLetterArgs,
    /// Post the changes of this definition and its configs, and not those of change requests. `PREFIX*` is all definitions
    /// with this prefix, `*` all that the access key may read; may be repeated
    #[arg(long = "definition", value_name = "DEFINITION", conflicts_with_all = ["environments", "states", "kinds"])]
    definitions: Vec<String>,
    /// With the data of configs and the schemas of definitions, as the access key sees them
    #[arg(long, requires = "definitions")]
    with_data: bool,
    /// Only change requests under the rules of this environment; may be repeated
    #[arg(long = "environment", value_name = "NAME")]
    environments: Vec<String>,
    /// Only events that leave the change request in this state; may be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = PHASES)]
    states: Vec<String>,
    /// Only events of this type; may be repeated
    #[arg(long = "event", value_name = "TYPE", value_parser = KINDS)]
    kinds: Vec<String>,
    /// The file that keeps how far it has come; without it, it begins with the next event at each start
    #[arg(long, value_name = "FILE")]
    position: Option<PathBuf>,
    /// Post `text` alone, for services that refuse other members
    #[arg(long)]
    text_only: bool,
    /// Post `CloudEvents`, as `application/cloudevents+json`
    #[arg(long, conflicts_with = "text_only")]
    cloudevents: bool,
    /// Post what has happened since the position, then exit
    #[arg(long, requires = "position")]
    once: bool,
}

/// Runs the command.
pub(super) fn run(args: &NotifyArgs) -> Result<(), Failure> {
    let webhook = Webhook::new(&args.webhook)?;
    let dead_letters = args.dead_letters.file();
    if let Some(dead_letters) = dead_letters.as_ref().filter(|_| args.dead_letters.retry_dead_letters) {
        args.node.hush();
        return run_async(dead_letters.retry(&webhook));
    }
    let file = args.position.as_deref().map(PositionFile::hold).transpose()?;
    let prefix = args.node.definition_prefix()?;
    let definitions = args.definitions.iter().map(|key| format!("{prefix}{key}")).collect();
    with_cluster(&args.node, &tries_of_operator(), async |client| {
        // Receivers know nothing of `--env`: events have whole keys.
        let client = client.in_environment(None)?;
        let mut notifier = Notifier { args, definitions, webhook, dead_letters, file, client, posted: 0 };
        let mut end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        tokio::select! {
            done = notifier.follow() => done,
            _ = end.recv() => Ok(()),
        }
    })
}

/// A running command.
struct Notifier<'a> {
    args: &'a NotifyArgs,
    /// The definitions whose changes it posts; with none, it posts those of change requests.
    definitions: Vec<String>,
    webhook: Webhook,
    dead_letters: Option<DeadLetters>,
    file: Option<PositionFile>,
    client: Client,
    /// How many events it has posted.
    posted: u64,
}

/// What a poll returned.
struct Polled {
    events: Vec<Event>,
    /// Where the next one begins, and in which cluster.
    after: Position,
}

/// The body of its response.
#[derive(Deserialize)]
struct Body {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    events: Vec<Event>,
}

impl Notifier<'_> {
    async fn follow(&mut self) -> Result<(), Failure> {
        let begun = self.file.as_ref().map(PositionFile::read).transpose()?.flatten();
        let mut position = match begun {
            Some(position) => position,
            None => {
                let position = self.now().await?;
                self.keep(&position)?;
                note(format_args!("begins after revision {}", position.from.saturating_sub(1)));
                position
            }
        };
        // A key may lose a permission and still have others: the next poll says whether it is refused.
        let (mut pauses, mut was_refused) = (Pauses::new(), false);
        loop {
            let wait = if self.args.once { Duration::ZERO } else { WAIT };
            let polled = match self.poll(Some(position.from), wait).await {
                Ok(polled) if !polled.after.is_of(&position) => {
                    let why = "the nodes belong to another cluster than before";
                    position = self.resync(&position, why).await?;
                    continue;
                }
                Ok(polled) => polled,
                Err(Error::Refused(refusal)) if refusal.status == StatusCode::GONE => {
                    position = self.resync(&position, "the history no longer has the events").await?;
                    continue;
                }
                Err(error) if self.args.once || (was_refused && is_final(&error)) => return Err(error.into()),
                Err(error) => {
                    was_refused = is_final(&error);
                    pauses.warn(format_args!("the cluster does not answer: {error}"));
                    pauses.wait(None).await;
                    continue;
                }
            };
            (pauses, was_refused) = (Pauses::new(), false);
            let is_last = polled.events.is_empty();
            for event in &polled.events {
                self.post_all(event, &position).await?;
                position = Position { from: event.revision + 1, ..polled.after.clone() };
                self.keep(&position)?;
            }
            if position != polled.after {
                position = polled.after;
                self.keep(&position)?;
            }
            if is_last && self.args.once {
                note(format_args!("{} posted", counted(self.posted, "event")));
                return Ok(());
            }
        }
    }

    /// Where the next event will be.
    async fn now(&self) -> Result<Position, Error> {
        Ok(self.poll(None, Duration::ZERO).await?.after)
    }

    /// The events from a revision on.
    async fn poll(&self, from: Option<u64>, wait: Duration) -> Result<Polled, Error> {
        let request = Request::get("/api/v1/changes");
        let request = if self.definitions.is_empty() {
            request.query("change_requests", true)
        } else {
            self.definitions.iter().fold(request, |request, key| request.query("definition", key))
        };
        let request = from.into_iter().fold(request, |request, from| request.query("from", from));
        let request = request.query("wait", wait.as_secs()).timeout(POLL_TIMEOUT);
        let answer = self.client.send(request).await?;
        let from = answer.header("x-concord-next-from").and_then(|text| text.parse().ok());
        let from = from.ok_or_else(|| Error::Protocol("the response does not say how to go on".into()))?;
        let cluster = answer.cluster().map(str::to_owned);
        let events = match answer.status() {
            StatusCode::NOT_MODIFIED => Vec::new(),
            _ => serde_json::from_slice::<Body>(answer.body()).map_err(strange)?.data.events,
        };
        Ok(Polled { events, after: Position { from, cluster } })
    }

    fn keep(&self, position: &Position) -> Result<(), Failure> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(position))
    }

    /// Posts all of an event that the options select: one message for each change request or record.
    async fn post_all(&mut self, event: &Event, position: &Position) -> Result<(), Failure> {
        for (place, change) in event.changes.iter().enumerate() {
            let message = if self.definitions.is_empty() {
                Message::of_change_request(position.cluster(), place, event, change)
            } else {
                Message::of_record(position.cluster(), event, change, self.args.with_data)
            };
            self.post(&message.map_err(strange)?).await?;
        }
        Ok(())
    }

    async fn post(&mut self, message: &Message) -> Result<(), Failure> {
        let NotifyArgs { environments, states, kinds, text_only, cloudevents, once, .. } = self.args;
        let is_asked =
            |all: &[String], of: &[String]| all.is_empty() || all.iter().any(|one| of.contains(one));
        // What is no longer kept was closed long ago.
        let selected = message.kind() != "dropped"
            && is_asked(environments, &message.environments())
            && is_asked(states, &message.phase())
            && is_asked(kinds, &[message.kind().to_owned()]);
        if !selected {
            return Ok(());
        }
        let form = match (text_only, cloudevents) {
            (true, _) => Form::Text,
            (false, true) => Form::CloudEvent,
            (false, false) => Form::Message,
        };
        let letter = message.letter(form).map_err(strange)?;
        let until = once.then(|| Instant::now() + ONCE_TIMEOUT);
        let dead_letters = self.dead_letters.as_ref();
        let rejections_max = dead_letters.map(|file| file.attempts);
        match (self.webhook.post(&letter, rejections_max, until).await?, dead_letters) {
            (Some(why), Some(dead_letters)) => dead_letters.bury(letter, why, until).await,
            (_, _) => {
                self.posted += 1;
                note(format_args!("posted: {}", message.text()));
                Ok(())
            }
        }
    }

    /// Posts how each change request is that has changed since a position whose events can't be read any more. Of another
    /// cluster, whose revisions are others, those that wait. Of configs and definitions: that changes are missing.
    async fn resync(&mut self, missed: &Position, why: &str) -> Result<Position, Failure> {
        // What happens after this is posted as an event, perhaps once more.
        let position = self.now().await?;
        let is_same = position.is_of(missed);
        if !self.definitions.is_empty() {
            say(format_args!("warning: {why}: posting that changes are missing"));
            let from = if is_same { missed.from } else { 1 };
            self.post(&Message::of_missed_records(from, &position)).await?;
            self.keep(&position)?;
            return Ok(position);
        }
        say(format_args!("warning: {why}: posting how the change requests are that changed meanwhile"));
        let mut pages = self.client.pages(Request::get("/api/v1/change_request/").query("limit", PAGE));
        while let Some(page) = pages.next().await? {
            for change in page {
                let revision = change["revision"].as_u64().unwrap_or(u64::MAX);
                let is_over = matches!(cell(&change["phase"]).as_str(), "applied" | "closed");
                // A person must decide about a revert that the cluster did not do.
                let waits = !is_over || matches!(change["revert"]["state"].as_str(), Some("failed" | "held"));
                if if is_same { revision >= missed.from } else { waits } {
                    self.post(&Message::of_missed(position.cluster(), &change)).await?;
                }
            }
        }
        self.keep(&position)?;
        Ok(position)
    }
}

/// A response that no node sends.
fn strange(error: serde_json::Error) -> Error {
    Error::Protocol(format!("the response is not that of a node: {error}"))
}

/// Whether another attempt gets the same answer: the request or the access key is not accepted.
fn is_final(error: &Error) -> bool {
    let status = error.status();
    let is_refused = |status: StatusCode| status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
    matches!(error, Error::Usage(_)) || status.is_some_and(is_refused)
}
