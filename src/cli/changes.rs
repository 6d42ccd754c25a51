//! `concord changes`: the latest changes of all definitions or of some, newest first.
//!
//! The table is for people, as the lines of `config watch` are, so secret values are hidden in it. All other formats print
//! the events of the API, with what the access key may see.
//!
//! **Invariants:** if there are older changes than those printed, a note says so. The name of an access key stands for its
//! id only where the key in use may list the names.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use concord_client::{Client, Error, Request};
use concord_model::time::Timestamp;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::texts,
    env::parse_duration,
    follow::{WatchMasks, id, what},
    output::{Table, cell, note},
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
/// Access keys of a page.
const PAGE_KEYS: usize = 1000;
/// The author of changes with the root key.
const ROOT: &str = "root";
/// The environment of definitions without one of their own.
const DEFAULT: &str = "default";

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
    #[arg(conflicts_with = "environment")]
    definition: Option<String>,
    /// The key of one config
    key: Option<String>,
    /// Only the definitions of this environment
    #[arg(long = "env", value_name = "NAME")]
    environment: Option<String>,
    /// Only changes from this time on (RFC 3339), or in the last `90m`, `1h` or `2d`
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// Only changes with the access key of this name or id
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
    /// The request of a page.
    fn request(&self, page: &ChangesPage, by: Option<&str>) -> Result<Request, Failure> {
        let count = page.room.min(PAGE_REVISIONS);
        let mut request = Request::get("/api/v1/changes").query("latest", count).query("prev", true);
        if let Some(name) = &self.environment {
            if name == DEFAULT {
                let text =
                    "the definitions of `default` have no common prefix: name a definition, or PREFIX*";
                return Err(Failure::Usage(text.into()));
            }
            request = request.query("definition", format_args!("{name}.*"));
        }
        let texts = [
            ("definition", self.definition.clone()),
            ("config_key", self.key.clone()),
            ("since", self.since.map(|since| since.to_string())),
            ("by", by.map(str::to_owned)),
            ("before", page.before.map(|before| before.to_string())),
        ];
        for (name, text) in texts {
            request = text.iter().fold(request, |request, text| request.query(name, text));
        }
        Ok(request)
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
        let mut names = KeyNames::default();
        let by = match &args.by {
            Some(by) => Some(names.id_of(&client, by).await?),
            None => None,
        };
        let limit = args.limit.unwrap_or(if args.since.is_some() { LIMIT_SINCE } else { LIMIT });
        let mut page = ChangesPage { room: limit, before: args.before };
        let (mut events, mut oldest) = (Vec::new(), Value::Null);
        while page.room > 0 {
            let mut data = client.send(args.request(&page, by.as_deref())?).await?.data()?;
            let Value::Array(found) = data["events"].take() else {
                return Err(Error::Protocol("the response has no list of changes".into()).into());
            };
            page.room = page.room.saturating_sub(found.len());
            events.extend(found);
            page.before = data["next_before"].as_u64();
            oldest = data["floor"].take();
            if page.before.is_none() {
                break;
            }
        }
        let mut table = Table::new("revision", &["REVISION", "TIME", "BY", "CHANGE", "REASON"], &[]);
        let mut redactions = Redactions::default();
        if format.is_table() {
            let mut masks = (!args.show_secrets).then(WatchMasks::of_list);
            for event in &mut events {
                if let Some(masks) = &mut masks {
                    masks.hide(&client, event).await;
                }
                let by = names.of(&client, &cell(&event["by"])).await?;
                table.row(&[
                    event["revision"].to_string(),
                    cell(&event["at"]),
                    by,
                    described(event),
                    cell(&event["reason"]),
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

/// The names of access keys, read when the first is needed.
#[derive(Debug, Default)]
struct KeyNames(Option<BTreeMap<String, String>>);

impl KeyNames {
    /// Names by ids; none if the key in use may not list them.
    async fn all(&mut self, client: &Client) -> Result<&BTreeMap<String, String>, Failure> {
        if self.0.is_none() {
            let first = Request::get("/api/v1/api_key/").query("limit", PAGE_KEYS);
            let found = match client.pages(first).all().await {
                Err(Error::Refused(refusal)) if refusal.status == StatusCode::FORBIDDEN => Vec::new(),
                found => found?,
            };
            let name = |key: &Value| (cell(&key["key_id"]), cell(&key["name"]));
            self.0 = Some(found.iter().map(name).collect());
        }
        Ok(self.0.get_or_insert_default())
    }

    /// The name of a key, or its id.
    async fn of(&mut self, client: &Client, id: &str) -> Result<String, Failure> {
        if id == ROOT {
            return Ok(id.into());
        }
        Ok(self.all(client).await?.get(id).cloned().unwrap_or_else(|| id.into()))
    }

    /// The id of the key with a name. What is the name of no key is taken as an id: it may be that of a revoked key.
    async fn id_of(&mut self, client: &Client, text: &str) -> Result<String, Failure> {
        if text == ROOT {
            return Ok(text.into());
        }
        let all = self.all(client).await?;
        let ids: Vec<&String> = all.iter().filter(|(_, name)| *name == text).map(|(id, _)| id).collect();
        match ids.as_slice() {
            [] if all.contains_key(text) => Ok(text.into()),
            [] => {
                note(format_args!(
                    "no access key that can be listed has the name `{text}`: it is taken as an id"
                ));
                Ok(text.into())
            }
            [one] => Ok((*one).clone()),
            several => {
                let ids = several.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
                Err(Failure::Usage(format!("several access keys have the name `{text}`: pass one of {ids}")))
            }
        }
    }
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
