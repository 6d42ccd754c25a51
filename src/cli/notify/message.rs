//! What a message says: of a change request, of a config or of a definition.
//!
//! The data of a config stay text: as a tree, a megabyte of numbers took 100 megabytes.
//!
//! **Invariants:** the id of an event is the same whenever it is read, and the id of no other event. The line for people is short, and has nothing in it that a chat service would take for a mention, or for a
//! link that says where it leads to in words of its own: most of it is written by others.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{position::Position, webhook::Letter};
use crate::cli::output::{cell, printable};

/// What can happen, as events name it; and `missed`, for what a notifier could not follow.
pub(super) const KINDS: [&str; 21] = [
    "created",
    "edited",
    "approved",
    "rejected",
    "scheduled",
    "begun",
    "advanced",
    "paused",
    "resumed",
    "applied",
    "reverted",
    "revert_failed",
    "kept",
    "closed",
    "held",
    "bypassed",
    "reviewed",
    "updated",
    "hidden",
    "dropped",
    "missed",
];
/// The states of change requests.
pub(super) const PHASES: [&str; 6] = ["open", "scheduled", "rolling", "held", "applied", "closed"];
/// What the types of events begin with, before an `_`.
const FAMILIES: [&str; 4] = [CHANGE_REQUEST, "config", "definition", CHANGES];
const CHANGE_REQUEST: &str = "change_request";
const CHANGES: &str = "changes";
/// What the types of `CloudEvents` begin with.
const CLOUD_TYPE: &str = "io.github.concordconfig";
/// Members of a change of a record that say which one it is: all others are its content.
const NAMING: [&str; 4] = ["type", "config_definition_key", "config_key", "count"];
/// Characters of a title or comment in the line for people.
const SHOWN_MAX: usize = 300;
/// Characters of the line: some services refuse a longer one, and it would then hold back all later ones.
const TEXT_MAX: usize = 1000;
/// Environments that the line names.
const ENVIRONMENTS_MAX: usize = 3;

/// How a message is posted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// The line for people, and the event.
    Message,
    /// The line for people.
    Text,
    /// A `CloudEvent` in the structured mode of HTTP.
    CloudEvent,
}

/// All changes of a revision, as a poll returns them.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    pub(super) revision: u64,
    at: Value,
    #[serde(default)]
    by: Value,
    #[serde(default)]
    reason: Value,
    change_id: Option<Value>,
    change_title: Option<Value>,
    change_reverted: Option<Value>,
    pub(super) changes: Vec<Box<RawValue>>,
}

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// The id of the cluster, which the id of the message begins with.
    cluster: String,
    /// What the event is about: the id of a change request, or the key of a definition and of a config.
    subject: String,
    family: &'static str,
    kind: String,
    event: Value,
    /// Further members of the event, as they came.
    content: BTreeMap<String, Box<RawValue>>,
}

impl Message {
    /// Of a change request in an event.
    pub(super) fn of_change_request(
        cluster: &str,
        place: usize,
        event: &Event,
        change: &RawValue,
    ) -> serde_json::Result<Self> {
        let change: Value = serde_json::from_str(change.get())?;
        let mut about = json!({ "id": null, "revision": event.revision, "at": event.at });
        for (name, value) in change.as_object().into_iter().flatten() {
            about[name] = value.clone();
        }
        about["reason"] = event.reason.clone();
        let subject = cell(&change["change_id"]);
        Ok(Self::new(cluster, &place.to_string(), subject, about))
    }

    /// Of a change request of which events are missing, as it is in a list.
    pub(super) fn of_missed(cluster: &str, change: &Value) -> Self {
        let mut about = json!({ "id": null, "revision": change["revision"], "at": change["modified_at"] });
        about["type"] = format!("{CHANGE_REQUEST}_missed").into();
        for name in ["change_id", "title", "phase", "bypass", "edition", "digest", "environments"] {
            about[name] = change[name].clone();
        }
        let subject = cell(&change["change_id"]);
        Self::new(cluster, &subject.clone(), subject, about)
    }

    /// Of a config or a definition in an event.
    pub(super) fn of_record(
        cluster: &str,
        event: &Event,
        change: &RawValue,
        with_data: bool,
    ) -> serde_json::Result<Self> {
        let mut content: BTreeMap<String, Box<RawValue>> = serde_json::from_str(change.get())?;
        let mut about = json!({ "id": null, "revision": event.revision, "at": event.at });
        for name in NAMING {
            if let Some(value) = content.remove(name) {
                about[name] = serde_json::from_str(value.get())?;
            }
        }
        let author = [
            ("by", Some(&event.by)),
            ("reason", Some(&event.reason)),
            ("change_id", event.change_id.as_ref()),
            ("change_title", event.change_title.as_ref()),
            ("change_reverted", event.change_reverted.as_ref()),
        ];
        for (name, value) in author {
            if let Some(value) = value {
                about[name] = value.clone();
            }
        }
        let keys = ["config_definition_key", "config_key"].map(|name| cell(&about[name]));
        let subject = keys.join("/").trim_end_matches('/').to_owned();
        // By its name, because the places in an event are others with another selection or access key. A full stop would
        // be ambiguous in what is signed. A batch may delete a definition and create one with its key.
        let place = format!("{}/{}", subject.replace('.', ":"), family_of(&cell(&about["type"])).1);
        let message = Self::new(cluster, &place, subject, about);
        Ok(if with_data { Self { content, ..message } } else { message })
    }

    /// Of changes of configs and definitions that can't be read any more: those before the position, from this revision on.
    pub(super) fn of_missed_records(from: u64, position: &Position) -> Self {
        let to = position.from.saturating_sub(1);
        let at = concord_service::now().to_string();
        let kind = format!("{CHANGES}_missed");
        let about = json!({ "id": null, "revision": to, "at": at, "type": kind, "from": from, "to": to });
        Self::new(position.cluster(), &format!("{from}-{to}"), format!("{from}-{to}"), about)
    }

    fn new(cluster: &str, place: &str, subject: String, mut event: Value) -> Self {
        event["id"] = format!("{cluster}/{}/{place}", event["revision"]).into();
        let (family, kind) = family_of(&cell(&event["type"]));
        Self { cluster: cluster.to_owned(), subject, family, kind, event, content: BTreeMap::new() }
    }

    /// What happened.
    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    /// The environments whose rules the change request is under; none if that is not known.
    pub(super) fn environments(&self) -> Vec<String> {
        self.event["environments"].as_array().into_iter().flatten().map(cell).collect()
    }

    /// The state of the change request, if it is known.
    pub(super) fn phase(&self) -> Vec<String> {
        self.event["phase"].as_str().map(str::to_owned).into_iter().collect()
    }

    /// The line for people.
    pub(super) fn text(&self) -> String {
        let (event, id) = (&self.event, &self.subject);
        if self.family == CHANGES {
            return format!("the changes of revisions {id} are missing: read the current state");
        }
        if self.family != CHANGE_REQUEST {
            let reason = event["reason"].as_str().or(event["change_title"].as_str()).map(harmless);
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let by = harmless(&cell(&event["by"]));
            return cut(&format!("{} {id} was {} by {by}{reason}", self.family, self.kind), TEXT_MAX);
        }
        if self.kind == "hidden" {
            return format!("change request {id} now changes more than this key may read");
        }
        let who = ["person", "name", "key_id"].iter().find_map(|name| event["by"][*name].as_str());
        let by = who.map(|who| format!(" by {}", harmless(who))).unwrap_or_default();
        let what = match (self.kind.as_str(), event["closed_reason"].as_str()) {
            ("bypassed", _) => "was applied as a bypass, and waits for a review:".to_owned(),
            ("begun", _) => format!("is released in stages{by}:"),
            ("advanced", _) => format!("is at the next stage of its rollout{by}:"),
            ("paused", _) => format!("waits at its stage, paused{by}:"),
            ("resumed", _) => format!("goes on with its rollout{by}:"),
            ("reverted", _) => format!("was taken back{by}:"),
            ("revert_failed", _) => "could not be taken back:".to_owned(),
            ("kept", _) => format!("is not taken back{by}: what it changed stays:"),
            ("missed", _) => format!("has changed; it is {}:", cell(&event["phase"])),
            (_, Some(reason)) => format!("was closed ({reason}){by}:"),
            (kind, None) => format!("was {kind}{by}:"),
        };
        let by = if self.kind == "bypassed" { by } else { String::new() };
        let title = harmless(event["title"].as_str().unwrap_or_default());
        let comment = event["comment"].as_str().filter(|comment| !comment.is_empty());
        let comment = comment.map(|comment| format!(" ({})", harmless(comment))).unwrap_or_default();
        let mut environments = self.environments();
        let more = environments.len().saturating_sub(ENVIRONMENTS_MAX);
        environments.truncate(ENVIRONMENTS_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let environments = environments.join(", ");
        let text = format!("[{environments}{more}] change request {id} {what} {title}{by}{comment}");
        cut(&text, TEXT_MAX)
    }

    /// What is posted.
    pub(super) fn letter(&self, form: Form) -> serde_json::Result<Letter> {
        let text = || json!({ "text": self.text() });
        let (content_type, head, member) = match form {
            Form::Text => ("application/json", text(), None),
            Form::Message => ("application/json", text(), Some("event")),
            Form::CloudEvent => {
                let head = json!({
                    "specversion": "1.0",
                    "id": self.event["id"],
                    "source": format!("urn:uuid:{}", self.cluster),
                    "type": format!("{CLOUD_TYPE}.{}.{}", self.family, self.kind),
                    "subject": self.subject,
                    "time": self.event["at"],
                    "datacontenttype": "application/json",
                });
                ("application/cloudevents+json", head, Some("data"))
            }
        };
        let content = self.content.iter().map(|(name, value)| (name.as_str(), value.get()));
        let event = with_members(&self.event, content);
        let body = with_members(&head, member.map(|member| (member, event.as_str())));
        let body = RawValue::from_string(body)?;
        Ok(Letter { id: cell(&self.event["id"]), content_type: content_type.into(), body })
    }
}

/// The text of an object that is not empty, with further members that are JSON already.
fn with_members<'a>(object: &Value, members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = object.to_string();
    text.pop();
    for (name, value) in members {
        text.push_str(&format!(",{}:{value}", Value::from(name)));
    }
    text.push('}');
    text
}

/// The two parts of the type of an event: what it is about, and what happened.
fn family_of(kind: &str) -> (&'static str, String) {
    let split = |family: &'static str| {
        let rest = kind.strip_prefix(family)?.strip_prefix('_')?;
        Some((family, rest.to_owned()))
    };
    FAMILIES.into_iter().find_map(split).unwrap_or((CHANGES, kind.to_owned()))
}

/// Words of others in one line, without what chat services read as a mention or a link.
fn harmless(text: &str) -> String {
    let same = |character| match character {
        '<' => '‹',
        '>' => '›',
        '[' => '［',
        ']' => '］',
        '@' => '＠',
        '\n' | '\t' => ' ',
        other => other,
    };
    let text: String = text.chars().map(same).collect();
    cut(&printable(&text).replace("://", ":⁄⁄"), SHOWN_MAX)
}

/// A text of at most so many characters, with an ellipsis where it was longer.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let text =
            r#"{"revision":7,"at":"2026-11-28T12:00:00Z","by":"root","reason":"[more] load","changes":[]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn raw(value: &Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).unwrap()
    }

    fn body(message: &Message, form: Form) -> Value {
        serde_json::from_str(message.letter(form).unwrap().body.get()).unwrap()
    }

    fn text(given: &Value) -> String {
        let mut change = json!({"environments": ["prod"], "change_id": "AbC"});
        for (name, value) in given.as_object().unwrap() {
            change[name] = value.clone();
        }
        Message::of_change_request("c", 0, &event(), &raw(&change)).unwrap().text()
    }

    #[test]
    fn a_line_says_what_happened_and_by_whom() {
        let ann = json!({"key_id": "K", "person_id": "1", "person": "ann@example.com"});
        let machine = json!({"key_id": "K", "person_id": null, "person": null});
        for (kind, by, more, expected) in [
            ("created", &ann, json!({}), "was created by ann＠example.com: more"),
            ("approved", &machine, json!({"comment": "fine"}), "was approved by K: more (fine)"),
            (
                "closed",
                &ann,
                json!({"closed_reason": "withdrawn"}),
                "was closed (withdrawn) by ann＠example.com: more",
            ),
            ("closed", &Value::Null, json!({"closed_reason": "expired"}), "was closed (expired): more"),
            ("begun", &ann, json!({}), "is released in stages by ann＠example.com: more"),
            ("advanced", &Value::Null, json!({}), "is at the next stage of its rollout: more"),
            (
                "bypassed",
                &ann,
                json!({}),
                "was applied as a bypass, and waits for a review: more by ann＠example.com",
            ),
        ] {
            let mut change = json!({"type": format!("change_request_{kind}"), "title": "more", "by": by});
            for (name, value) in more.as_object().unwrap() {
                change[name] = value.clone();
            }
            assert_eq!(text(&change), format!("[prod] change request AbC {expected}"));
        }
        let hidden = text(&json!({"type": "change_request_hidden"}));
        assert_eq!(hidden, "change request AbC now changes more than this key may read");
    }

    #[test]
    fn words_of_others_mention_nobody_and_stay_in_their_line() {
        assert_eq!(harmless("<!channel> x@all\ny\u{202e}z"), "‹!channel› x＠all y\u{fffd}z");
        assert_eq!(harmless("[here](https://evil.example)"), "［here］(https:⁄⁄evil.example)");
        let long = harmless(&"x".repeat(SHOWN_MAX + 1));
        assert!(long.ends_with("x…") && long.chars().count() == SHOWN_MAX + 1);
        // Whatever somebody proposes, no service refuses the line for its length.
        let names: Vec<String> = (0..32).map(|number| format!("{number:0>64}")).collect();
        let words = "y".repeat(1000);
        let change = json!({"type": "change_request_created", "title": words, "comment": words, "environments": names});
        let line = text(&change);
        assert!(line.chars().count() <= TEXT_MAX + 1 && line.contains(" and 29 more]"), "{line}");
    }

    fn record(kind: &str, more: &Value, with_data: bool) -> Message {
        let mut change = json!({"type": kind, "config_definition_key": "prod.limits"});
        for (name, value) in more.as_object().unwrap() {
            change[name] = value.clone();
        }
        Message::of_record("c", &event(), &raw(&change), with_data).unwrap()
    }

    #[test]
    fn a_change_of_a_record_is_named_by_what_it_changed_and_not_by_its_place() {
        let config = json!({"config_key": "acme.eu", "data": {"n": 7.0}, "redacted": ["#/pin"]});
        let message = record("config_updated", &config, false);
        assert_eq!(message.text(), "config prod.limits/acme.eu was updated by root: ［more］ load");
        let letter = message.letter(Form::CloudEvent).unwrap();
        assert_eq!(letter.content_type, "application/cloudevents+json");
        let expected = json!({
            "specversion": "1.0", "id": "c/7/prod:limits/acme:eu/updated", "source": "urn:uuid:c",
            "type": "io.github.concordconfig.config.updated", "subject": "prod.limits/acme.eu",
            "time": "2026-11-28T12:00:00Z", "datacontenttype": "application/json",
            "data": {
                "id": "c/7/prod:limits/acme:eu/updated", "revision": 7, "at": "2026-11-28T12:00:00Z",
                "type": "config_updated", "config_definition_key": "prod.limits", "config_key": "acme.eu",
                "by": "root", "reason": "[more] load",
            },
        });
        assert_eq!(
            (letter.id.as_str(), letter.body.get()),
            ("c/7/prod:limits/acme:eu/updated", &*expected.to_string())
        );
        let whole = record("config_updated", &config, true).letter(Form::Message).unwrap();
        assert!(whole.body.get().ends_with(r##""data":{"n":7.0},"redacted":["#/pin"]}}"##), "{}", whole.body);
        let deleted = record("definition_deleted", &json!({"count": 3}), false);
        assert_eq!(deleted.text(), "definition prod.limits was deleted by root: ［more］ load");
        let deleted = body(&deleted, Form::CloudEvent);
        assert_eq!((&deleted["subject"], &deleted["data"]["count"]), (&json!("prod.limits"), &json!(3)));
        // Both are in one revision if a batch deletes a definition and creates it again.
        let created = record("definition_created", &json!({}), false).letter(Form::Text).unwrap();
        assert_eq!(
            (&*cell(&deleted["id"]), &*created.id),
            ("c/7/prod:limits/deleted", "c/7/prod:limits/created")
        );
        assert_eq!(
            created.body.get(),
            r#"{"text":"definition prod.limits was created by root: ［more］ load"}"#
        );
    }

    #[test]
    fn a_gap_says_from_which_revision_to_which() {
        let position = Position { from: 41, cluster: Some("c".into()) };
        let message = Message::of_missed_records(12, &position);
        assert_eq!(message.text(), "the changes of revisions 12-40 are missing: read the current state");
        let missed = body(&message, Form::CloudEvent);
        assert_eq!(missed["type"], "io.github.concordconfig.changes.missed");
        assert_eq!((&missed["data"]["from"], &missed["data"]["to"]), (&json!(12), &json!(40)));
        let change = raw(&json!({"type": "change_request_revert_failed", "change_id": "AbC"}));
        let message = Message::of_change_request("c", 2, &event(), &change).unwrap();
        let failed = body(&message, Form::CloudEvent);
        assert_eq!((&failed["id"], &failed["subject"]), (&json!("c/7/2"), &json!("AbC")));
        assert_eq!(failed["type"], "io.github.concordconfig.change_request.revert_failed");
    }
}
