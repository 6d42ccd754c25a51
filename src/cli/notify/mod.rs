//! `concord notify`: posts what happens to change requests to a webhook, as a chat service takes it.
//!
//! | what | file |
//! |---|---|
//! | following the cluster, and which events are posted | this one |
//! | the requests to the webhook, and their retries | `webhook` |
//! | how far it has come, on disk | `position` |
//! | what a message says | `message` |
//!
//! Nodes call no URL: who runs this decides where the events go, with an access key that sees no more than it may.
//!
//! **Invariant:** the position moves past an event only once the webhook has taken it. So each event is posted at least
//! once, whatever ends in between. If the history no longer has the events, the state of each change request that has
//! changed since is posted in their place.

mod message;
mod position;
pub(super) mod webhook;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use concord_client::{Client, Error, Request};
use http::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    connection::{Failure, NodeArgs, tries_of_operator, with_cluster},
    output::{cell, counted, note, say},
};
use message::{KINDS, Message, PHASES};
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
    after_help = "Example: concord notify --webhook-file hook.url --environment prod --position notify.json\n\nEach event \
                  is posted as JSON: `text` is a line for people, `event` has its members. It is posted until the \
                  webhook answers 2xx, however long that takes; it may get an event twice, with the same `id`."
)]
pub(super) struct NotifyArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    webhook: WebhookArgs,
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
    /// Post what has happened since the position, then exit
    #[arg(long, requires = "position")]
    once: bool,
}

/// Runs the command.
pub(super) fn run(args: &NotifyArgs) -> Result<(), Failure> {
    let webhook = Webhook::new(&args.webhook)?;
    let file = args.position.as_deref().map(PositionFile::hold).transpose()?;
    with_cluster(&args.node, &tries_of_operator(), async |client| {
        let mut notifier = Notifier { args, webhook, file, client, posted: 0 };
        notifier.follow().await
    })
}

/// A running command.
struct Notifier<'a> {
    args: &'a NotifyArgs,
    webhook: Webhook,
    file: Option<PositionFile>,
    client: Client,
    /// How many events it has posted.
    posted: u64,
}

/// What a poll returned.
struct Polled {
    events: Vec<Value>,
    /// Where the next one begins, and in which cluster.
    after: Position,
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
                let from = event["revision"].as_u64().map_or(position.from, |revision| revision + 1);
                position = Position { from, ..polled.after.clone() };
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
        let request = Request::get("/api/v1/changes").query("change_requests", true);
        let request = from.into_iter().fold(request, |request, from| request.query("from", from));
        let request = request.query("wait", wait.as_secs()).timeout(POLL_TIMEOUT);
        let answer = self.client.send(request).await?;
        let from = answer.header("x-concord-next-from").and_then(|text| text.parse().ok());
        let from = from.ok_or_else(|| Error::Protocol("the response does not say how to go on".into()))?;
        let cluster = answer.cluster().map(str::to_owned);
        let events = match answer.status() {
            StatusCode::NOT_MODIFIED => Vec::new(),
            _ => answer.data()?["events"].as_array().cloned().unwrap_or_default(),
        };
        Ok(Polled { events, after: Position { from, cluster } })
    }

    fn keep(&self, position: &Position) -> Result<(), Failure> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(position))
    }

    /// Posts all of an event that the options select: one message for each change request.
    async fn post_all(&mut self, event: &Value, position: &Position) -> Result<(), Failure> {
        let changes = event["changes"].as_array().into_iter().flatten();
        for (place, change) in changes.enumerate() {
            let cluster = position.cluster.as_deref().unwrap_or_default();
            let id = format!("{cluster}/{}/{place}", event["revision"]);
            self.post(&Message::of_event(id, event, change)).await?;
        }
        Ok(())
    }

    async fn post(&mut self, message: &Message) -> Result<(), Failure> {
        let NotifyArgs { environments, states, kinds, text_only, once, .. } = self.args;
        let is_asked =
            |all: &[String], of: &[String]| all.is_empty() || all.iter().any(|one| of.contains(one));
        // What is no longer kept was closed long ago.
        let selected = message.kind() != "dropped"
            && is_asked(environments, &message.environments())
            && is_asked(states, &message.phase())
            && is_asked(kinds, &[message.kind().to_owned()]);
        if selected {
            let until = once.then(|| Instant::now() + ONCE_TIMEOUT);
            self.webhook.post(message.id(), &message.body(*text_only), until).await?;
            self.posted += 1;
            note(format_args!("posted: {}", message.text()));
        }
        Ok(())
    }

    /// Posts how each change request is that has changed since a position whose events can't be read any more. Of another
    /// cluster, whose revisions are others, those that wait.
    async fn resync(&mut self, missed: &Position, why: &str) -> Result<Position, Failure> {
        say(format_args!("warning: {why}: posting how the change requests are that changed meanwhile"));
        // What happens after this is posted as an event, perhaps once more.
        let position = self.now().await?;
        let is_same = position.is_of(missed);
        let cluster = position.cluster.as_deref().unwrap_or_default().to_owned();
        let mut pages = self.client.pages(Request::get("/api/v1/change_request/").query("limit", PAGE));
        while let Some(page) = pages.next().await? {
            for change in page {
                let revision = change["revision"].as_u64().unwrap_or(u64::MAX);
                let is_over = matches!(cell(&change["phase"]).as_str(), "applied" | "closed");
                // A person must decide about a revert that the cluster did not do.
                let waits = !is_over || matches!(change["revert"]["state"].as_str(), Some("failed" | "held"));
                if if is_same { revision >= missed.from } else { waits } {
                    let id = format!("{cluster}/{revision}/{}", cell(&change["change_id"]));
                    self.post(&Message::of_missed(id, &change)).await?;
                }
            }
        }
        self.keep(&position)?;
        Ok(position)
    }
}

/// Whether another attempt gets the same answer: the request or the access key is not accepted.
fn is_final(error: &Error) -> bool {
    let status = error.status();
    let is_refused = |status: StatusCode| status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
    matches!(error, Error::Usage(_)) || status.is_some_and(is_refused)
}
