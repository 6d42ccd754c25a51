//! What a message about a change request says.
//!
//! **Invariant:** the line for people is short, and has nothing in it that a chat service would take for a mention, or for a
//! link that says where it leads to in words of its own: most of it is written by others.

use serde_json::{Value, json};

use crate::cli::output::{cell, printable};

/// What can happen, as events name it behind [`PREFIX`]; and `missed`, for what a notifier could not follow.
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
/// What the types of events begin with.
const PREFIX: &str = "change_request_";
/// Characters of a title or comment in the line for people.
const SHOWN_MAX: usize = 300;
/// Characters of the line: some services refuse a longer one, and it would then hold back all later ones.
const TEXT_MAX: usize = 1000;
/// Environments that the line names.
const ENVIRONMENTS_MAX: usize = 3;

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    id: String,
    kind: String,
    event: Value,
}

impl Message {
    /// Of a change request in an event.
    pub(super) fn of_event(id: String, event: &Value, change: &Value) -> Self {
        let kind = cell(&change["type"]).trim_start_matches(PREFIX).to_owned();
        let mut about = json!({ "id": id, "revision": event["revision"], "at": event["at"] });
        for (name, value) in change.as_object().into_iter().flatten() {
            about[name] = value.clone();
        }
        about["reason"] = event["reason"].clone();
        Self { id, kind, event: about }
    }

    /// Of a change request of which events are missing, as it is in a list.
    pub(super) fn of_missed(id: String, change: &Value) -> Self {
        let mut about = json!({ "id": id, "revision": change["revision"], "at": change["modified_at"] });
        about["type"] = format!("{PREFIX}missed").into();
        for name in ["change_id", "title", "phase", "bypass", "edition", "digest", "environments"] {
            about[name] = change[name].clone();
        }
        Self { id, kind: "missed".into(), event: about }
    }

    /// The same in each attempt, by which a receiver knows that it has the message already.
    pub(super) fn id(&self) -> &str {
        &self.id
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
        let event = &self.event;
        let id = cell(&event["change_id"]);
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
    pub(super) fn body(&self, text_only: bool) -> Value {
        let text = self.text();
        if text_only { json!({ "text": text }) } else { json!({ "text": text, "event": self.event }) }
    }
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

    fn text(change: Value) -> String {
        let mut change = change;
        change["change_id"] = "AbC".into();
        change["environments"] = json!(["prod"]);
        Message::of_event("c/7/0".into(), &json!({"revision": 7, "reason": null}), &change).text()
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
            assert_eq!(text(change), format!("[prod] change request AbC {expected}"));
        }
        let hidden = text(json!({"type": "change_request_hidden"}));
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
        let line = Message::of_event("c/7/0".into(), &json!({}), &change).text();
        assert!(line.chars().count() <= TEXT_MAX + 1 && line.contains(" and 29 more]"), "{line}");
    }
}
