//! `concord changes`: the latest changes of all definitions or of some, newest first.
//!
//! The table is for people, as the lines of `config watch` are, so secret values are hidden in it. All other formats print
//! the events of the API, with what the access key may see.
//!
//! **Invariants:** if there are older changes than those printed, a note says so. An author whom nobody knows is an error,
//! and no empty list.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use concord_client::{Client, Error, Request};
use concord_model::{
    access_key::KeyId,
    system::environment::{DEFAULT_ENVIRONMENT, environment_name},
    time::Timestamp,
};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    change_shown::author,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::texts,
    env::parse_duration,
    follow::{WatchMasks, id, reason_of, what},
    output::{Table, cell, note, printable},
    redacted::Redactions,
};

/// Revisions of a page.
const PAGE_REVISIONS: usize = 200;
/// Revisions that are printed if nothing else is said.
const LIMIT: usize = 50;
/// The same with `--since`: a busy hour is whole.
const LIMIT_SINCE: usize = 10_000;
/// Characters of the description of a revision.
const SHOWN_MAX: usize = 120;
/// Most revisions of a page of the latest changes.
const LATEST_MAX: usize = 1000;
/// Access keys of a page.
const PAGE_KEYS: usize = 1000;
/// Pages that are searched for changes of `default`: it may have few among many others.
const PAGES_OF_DEFAULT: usize = 100;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord changes --since 1h --env prod\n\nA batch or an `apply` is one revision; `concord undo \
                  REVISION` takes it back."
)]
pub(super) struct ChangesArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition, or `PREFIX*` [default: everything that the access key may read]
    definition: Option<String>,
    /// The key of one config
    key: Option<String>,
    /// Only changes from this time on (RFC 3339), or in the last `90m`, `1h` or `2d`
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// Only changes of this author: the name or the id of an access key, or its person
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Only changes before this revision
    #[arg(long, value_name = "REVISION")]
    before: Option<u64>,
    /// The number of revisions at most [default: 50; with --since 10000]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Show secret values in the table
    #[arg(long)]
    show_secrets: bool,
}

fn parse_since(text: &str) -> Result<Timestamp, String> {
    let before = |duration: Duration| {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Timestamp(concord_service::now().0.saturating_sub(us))
    };
    Timestamp::parse(text).or_else(|| parse_duration(text).ok().map(before)).ok_or_else(|| {
        "expected a time such as 2026-12-24T18:00:00Z, or a duration such as 90m, 1h or 2d".into()
    })
}

impl ChangesArgs {
    /// Whether it lists the changes of `default`, whose definitions have no common prefix.
    fn is_of_default(&self) -> bool {
        self.definition.is_none() && self.node.environment() == Some(DEFAULT_ENVIRONMENT)
    }

    /// The request of a page.
    fn request(&self, page: &ChangesPage) -> Request {
        let count = if self.is_of_default() { PAGE_REVISIONS } else { page.room.min(PAGE_REVISIONS) };
        let mut request = Request::get("/api/v1/changes").query("latest", count).query("prev", true);
        let texts = [
            ("definition", self.definition.clone()),
            ("config_key", self.key.clone()),
            ("since", self.since.map(|since| since.to_string())),
            ("by", self.by.clone()),
            ("before", page.before.map(|before| before.to_string())),
        ];
        for (name, text) in texts {
            request = text.iter().fold(request, |request, text| request.query(name, text));
        }
        request
    }
}

/// What is left to read.
#[derive(Debug)]
struct ChangesPage {
    /// The number of revisions.
    room: usize,
    before: Option<u64>,
}

/// Runs the command.
pub(super) fn run(args: &ChangesArgs) -> Result<(), Failure> {
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let limit = args.limit.unwrap_or(if args.since.is_some() { LIMIT_SINCE } else { LIMIT });
        let mut page = ChangesPage { room: limit, before: args.before };
        let others = if args.is_of_default() { Some(other_environments(&client).await?) } else { None };
        let (mut events, mut oldest, mut pages) = (Vec::new(), Value::Null, 0);
        while page.room > 0 && (others.is_none() || pages < PAGES_OF_DEFAULT) {
            pages += 1;
            let mut data = client.send(args.request(&page)).await?.data()?;
            let Value::Array(mut found) = data["events"].take() else {
                return Err(Error::Protocol("the response has no list of changes".into()).into());
            };
            if let Some(others) = &others {
                found.retain_mut(|event| keep_default(event, others));
            }
            page.before = data["next_before"].as_u64();
            if found.len() > page.room {
                found.truncate(page.room);
                page.before = found.last().and_then(|last| last["revision"].as_u64());
            }
            page.room = page.room.saturating_sub(found.len());
            events.extend(found);
            oldest = data["floor"].take();
            if page.before.is_none() {
                break;
            }
        }
        if let Some(by) = args.by.as_deref().filter(|_| events.is_empty()) {
            expect_known(&client, by).await?;
        }
        let mut table = Table::new("revision", &["REVISION", "TIME", "BY", "CHANGE", "REASON"], &[]);
        let mut redactions = Redactions::default();
        if format.is_table() {
            let mut masks = (!args.show_secrets).then(WatchMasks::of_list);
            for event in &mut events {
                if let Some(masks) = &mut masks {
                    masks.hide(&client, event).await;
                }
                table.row(&[
                    event["revision"].to_string(),
                    cell(&event["at"]),
                    by(event),
                    described(event),
                    reason_of(event).unwrap_or_default(),
                ]);
            }
        } else {
            for (place, event) in events.iter().enumerate() {
                add_redactions(&mut redactions, &format!("/results/{place}"), event);
            }
        }
        let meta = json!({ "next_before": page.before, "floor": oldest });
        redactions.print(&format, &json!({ "results": events, "meta": meta }), &table)?;
        if let Some(before) = page.before {
            note(format_args!("there may be older changes: pass --before {before}, or a larger --limit"));
        }
        Ok(())
    })
}

/// The environments other than `default`. Each definition that the access key may read shows it its environment.
async fn other_environments(client: &Client) -> Result<BTreeSet<String>, Failure> {
    let data = client.send(Request::get("/api/v1/environment/")).await?.data()?;
    let names = data["results"].as_array().into_iter().flatten().map(|one| cell(&one["environment"]));
    Ok(names.filter(|name| name != DEFAULT_ENVIRONMENT).collect())
}

/// Leaves those changes of a revision whose definitions belong to no other environment. False if there are none.
fn keep_default(event: &mut Value, others: &BTreeSet<String>) -> bool {
    let Some(changes) = event["changes"].as_array_mut() else { return false };
    changes.retain(|change| {
        let definition = cell(&change["config_definition_key"]);
        environment_name(&definition).is_none_or(|name| !others.contains(name))
    });
    !changes.is_empty()
}

/// The first change of a revision, and how many more there are.
fn described(event: &Value) -> String {
    let changes = event["changes"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(first) = changes.first() else { return String::new() };
    let (definition, key) = id(first);
    let name = if key.is_empty() { definition } else { format!("{definition}/{key}") };
    let mut text = format!("{name} {}", what(first));
    if let Some((end, _)) = text.char_indices().nth(SHOWN_MAX) {
        text.truncate(end);
        text.push('…');
    }
    match changes.len() {
        1 => text,
        count => format!("{text} (and {} more)", count - 1),
    }
}

fn add_redactions(redactions: &mut Redactions, pointer: &str, event: &Value) {
    for (place, change) in event["changes"].as_array().into_iter().flatten().enumerate() {
        for (data, places) in [("data", "redacted"), ("prev", "prev_redacted")] {
            redactions.data(
                &format!("{pointer}/changes/{place}/{data}"),
                &change[data],
                &texts(&change[places]),
            );
        }
    }
}

/// Fails if nobody is called so: no change that the access key may see is by them, whatever its time and place.
async fn expect_known(client: &Client, by: &str) -> Result<(), Failure> {
    let any = Request::get("/api/v1/changes").query("latest", 1).query("by", by);
    let data = client.in_environment(None)?.send(any).await?.data()?;
    // A long history is not searched to its end for it. The changes of a key may be compacted, or it has made none yet.
    let is_unseen = data["events"].as_array().is_some_and(Vec::is_empty) && data["next_before"].is_null();
    if is_unseen && KeyId::parse(by).is_none() && !is_listed(client, by).await? {
        return Err(Failure::Missing(format!(
            "`{by}` has made no change that this access key may see: it is no id, name or person of a key that has. \
             `concord whoami` shows the permissions; with `propose`, `write`, `approve` or `bypass` you see names"
        )));
    }
    Ok(())
}

/// Whether an access key that may list keys finds one with this name or person.
async fn is_listed(client: &Client, by: &str) -> Result<bool, Failure> {
    let first = Request::get("/api/v1/api_key/").query("limit", PAGE_KEYS);
    let found = match client.pages(first).all().await {
        Err(Error::Refused(refusal)) if refusal.status == StatusCode::FORBIDDEN => return Ok(false),
        found => found?,
    };
    Ok(found.iter().any(|key| key["name"] == by || key["person"]["label"] == by))
}

/// The changes of a revision, with the previous values of configs. `None` if they are compacted. They come from the list
/// of the latest changes: a watch ends at the undo of a deletion.
pub(super) async fn at_revision(client: &Client, revision: u64) -> Result<Option<Value>, Failure> {
    let request = Request::get("/api/v1/changes")
        .query("latest", 1)
        .query("before", revision.saturating_add(1))
        .query("prev", true);
    let mut data = client.send(request).await?.data()?;
    if data["floor"].as_u64().is_some_and(|compacted| revision <= compacted) {
        return Ok(None);
    }
    let event = data.pointer_mut("/events/0").filter(|event| event["revision"] == revision);
    Ok(Some(event.map_or_else(|| json!({ "changes": [] }), Value::take)))
}

/// Who has changed a record last, and why, to be put after what happened to it; `except` is not looked at. Nothing rests on it,
/// so that it can't be read is said and no failure.
pub(super) async fn by_whom(client: &Client, definition: &str, key: Option<&str>, except: &[u64]) -> String {
    let latest = (except.len() + 1).min(LATEST_MAX);
    let request = Request::get("/api/v1/changes").query("latest", latest).query("definition", definition);
    let request = key.into_iter().fold(request, |request, key| request.query("config_key", key));
    let found = client.send(request).await.and_then(|answer| answer.data());
    let is_other = |event: &&Value| event["revision"].as_u64().is_none_or(|at| !except.contains(&at));
    match found.as_ref().map(|data| data["events"].as_array().into_iter().flatten().find(is_other)) {
        Ok(None) => "; by whom is no longer known".into(),
        Ok(Some(event)) => {
            let why = reason_of(event).map(|reason| format!(": {}", printable(&reason))).unwrap_or_default();
            format!(" by {} at revision {}{why}", by(event), event["revision"])
        }
        Err(error) => format!("; by whom can't be read: {}", printable(&error.to_string())),
    }
}

/// Who has made a change, as far as the access key may know it.
pub(super) fn by(change: &Value) -> String {
    author(&change["by"], &change["by_name"], &change["by_person"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_described_by_its_first_change() {
        let change = |key: &str| {
            json!({"type": "config_updated", "config_definition_key": "d", "config_key": key,
            "prev": {"n": 1}, "data": {"n": 2}})
        };
        assert_eq!(described(&json!({"changes": [change("a")]})), "d/a n 1 → 2");
        assert_eq!(
            described(&json!({"changes": [change("a"), change("b"), change("c")]})),
            "d/a n 1 → 2 (and 2 more)"
        );
        let long = described(&json!({"changes": [change(&"é".repeat(200))]}));
        assert!(long.chars().count() == SHOWN_MAX + 1 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn the_changes_of_default_are_those_of_no_other_environment() {
        let others = BTreeSet::from(["prod".to_owned()]);
        let kept = |keys: &[&str]| {
            let changes = keys.iter().map(|key| json!({ "config_definition_key": key })).collect::<Vec<_>>();
            let mut event = json!({ "changes": changes });
            let has_any = keep_default(&mut event, &others);
            assert_eq!(has_any, !event["changes"].as_array().unwrap().is_empty());
            event["changes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| cell(&one["config_definition_key"]))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            kept(&["prod.a", "a", "dev.a", "product.a", "prod", "default.a"]),
            ["a", "dev.a", "product.a", "prod", "default.a"]
        );
        assert_eq!(kept(&["prod.a"]), Vec::<String>::new());
    }

    #[test]
    fn a_time_is_absolute_or_before_now() {
        assert_eq!(
            parse_since("2026-01-01T00:00:00Z"),
            Ok(Timestamp::parse("2026-01-01T00:00:00Z").unwrap())
        );
        let hour = parse_since("1h").unwrap();
        let now = concord_service::now();
        assert!(now.0 - hour.0 >= 3_600_000_000 && now.0 - hour.0 < 3_700_000_000);
        assert!(parse_since("yesterday").is_err());
    }
}
