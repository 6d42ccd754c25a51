//! How a change request is shown to people: who asks for it, what it waits for, and each record before and after.
//!
//! While an edition waits, the node makes its preview. What was applied is in the history, and comes from there: so a
//! bypass, which never waited, is shown before it is reviewed, too.
//!
//! **Invariants:** data and words of others are shown as JSON, in one line: none looks like a line of this program, and no
//! two values look alike. What is not shown is named.

use concord_client::Client;
use serde_json::{Value, json};

use super::{
    change::NAME,
    changes,
    connection::Failure,
    current::texts,
    follow::differences,
    output::{cell, counted, escaped, line, printable},
    rollout, schedule,
};

/// How far a change request is, in a few words.
pub(super) fn approvals(change: &Value) -> String {
    if change["bypass"] == true || change["reviews_missing"].as_u64().unwrap_or(0) > 0 {
        return match change["reviews_missing"].as_u64().unwrap_or(0) {
            0 => "bypass, reviewed".into(),
            missing => format!("bypass, {} missing", counted(missing, "review")),
        };
    }
    if !change["rejections"].as_array().is_none_or(Vec::is_empty) {
        return "rejected".into();
    }
    format!("{} of {}", change["approvals_counted"], change["approvals_needed"])
}

/// Who somebody is, as far as the key may know it. A key may have any name, so it never stands for a person.
pub(super) fn name_of(party: &Value) -> String {
    author(&party["key_id"], &party["name"], &party["person"])
}

/// The author of a change, by the id of the key, its name, and its person.
pub(super) fn author(id: &Value, name: &Value, person: &Value) -> String {
    let key = match name.as_str() {
        Some(name) => format!("key {}", word(name)),
        None => cell(id),
    };
    match person.as_str() {
        Some(person) => format!("{} ({key})", word(person)),
        None => key,
    }
}

/// A name of others, quoted if it could be taken for something else.
fn word(text: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "_-.@+/: ".contains(char);
    if text.chars().all(is_plain) { text.to_owned() } else { json_of(&text.into()) }
}

/// Changed records that are named with who did it.
const CHANGED_SHOWN_MAX: usize = 10;

/// Prints a change request for people.
pub(super) async fn show(client: &Client, change: &Value) -> Result<(), Failure> {
    // Change requests have whole keys.
    let client = client.in_environment(None)?;
    head(change).into_iter().try_for_each(line)?;
    if let Some(revision) = change["applied"]["revision"].as_u64() {
        line("what it changed:")?;
        changed_at(&client, revision, change).await.into_iter().try_for_each(line)?;
    }
    if let Some(revision) = change["revert"]["revision"].as_u64() {
        line("what taking it back changed:")?;
        changed_at(&client, revision, change).await.into_iter().try_for_each(line)?;
    }
    if let Some(stale) = change["stale"].as_str() {
        line(format_args!("stale: {}", printable(stale)))?;
        changed_since(&client, change).await.iter().try_for_each(|text| line(format_args!("  {text}")))?;
    }
    let records = &change["preview"]["records"];
    if change["phase"] == "applied" && !records.is_null() {
        match change["revert"]["stale"].as_str() {
            Some(stale) => {
                line(format_args!("it can't be taken back any more: {}", printable(stale)))?;
                let changed = changed_since(&client, change).await;
                changed.iter().try_for_each(|text| line(format_args!("  {text}")))?;
            }
            None => line("what taking it back would change:")?,
        }
    }
    if change["revert"]["stale"].is_null() {
        records.as_array().into_iter().flatten().flat_map(record_lines).try_for_each(line)?;
    }
    let effect = &change["preview"]["environment_effect"];
    if !effect.is_null() {
        let definitions = counted(effect["definitions"].as_u64().unwrap_or(0), "definition");
        let configs = counted(effect["configs"].as_u64().unwrap_or(0), "config");
        line(format_args!("these rules are for {definitions} with {configs}"))?;
    }
    line(format_args!("digest: {}", cell(&change["digest"])))
}

/// What it is, whose, and how far it is.
fn head(change: &Value) -> Vec<String> {
    let mut lines =
        vec![format!("change request {}: {}", cell(&change[NAME]), printable(&cell(&change["title"])))];
    if !change["description"].as_str().unwrap_or_default().is_empty() {
        lines.push(format!("description: {}", json_of(&change["description"])));
    }
    lines.push(format!(
        "{}, edition {} by {}{}",
        cell(&change["phase"]),
        change["edition"],
        name_of(&change["sender"]),
        unattested(change)
    ));
    lines.extend(schedule::lines(change));
    lines.extend(rollout::lines(change));
    lines.push(format!("approvals: {}", approvals(change)));
    for (opinion, verb) in [("approvals", "approved"), ("rejections", "rejected"), ("reviews", "reviewed")] {
        lines.extend(change[opinion].as_array().into_iter().flatten().map(|vote| vote_line(verb, vote)));
    }
    lines.extend(ended(change));
    lines
}

/// Because of whom one more person must approve it.
fn unattested(change: &Value) -> String {
    if change["attested"] == true {
        return String::new();
    }
    match change["unattested"].as_array().map_or(&[][..], Vec::as_slice) {
        [one] if *one == change["sender"] => ", whose key is not attested".into(),
        [] => "; the key of an author was not attested when it was sent".into(),
        authors => {
            let names: Vec<String> = authors.iter().map(name_of).collect();
            format!("; not attested, or revoked, is an author of it: {}", names.join(", "))
        }
    }
}

/// The lines about what was changed at a revision, as the history has it.
async fn changed_at(client: &Client, revision: u64, change: &Value) -> Vec<String> {
    if let Some(environment) = change["environment"].as_str() {
        return vec![format!("environment {}: its rules", word(environment))];
    }
    // Who votes can do that without the history.
    let event = match changes::at_revision(client, revision).await {
        Ok(Some(event)) => event,
        Ok(None) => {
            return vec![format!("  revision {revision} is compacted: its changes are no longer known")];
        }
        Err(failure) => return vec![format!("  it can't be read: {}", printable(&failure.into_text()))],
    };
    let records = event["changes"].as_array().into_iter().flatten();
    let mut lines: Vec<String> = records.flat_map(event_lines).collect();
    if lines.is_empty() {
        lines.push("  nothing that this access key may read".into());
    }
    lines
}

/// A change of the history, in lines. The fields that differ are found in what is shown.
fn event_lines(change: &Value) -> Vec<String> {
    let definition = cell(&change["config_definition_key"]);
    if change["config_key"].is_null() {
        let what = match change["type"].as_str() {
            Some("definition_created") => "is created",
            Some("definition_deleted") => "is deleted",
            _ => "is changed",
        };
        let count = change["count"].as_u64().map(|count| format!(" with {}", counted(count, "config")));
        let schema = &change["json_schema"];
        let schema = if schema.is_null() { String::new() } else { format!(": {}", json_of(schema)) };
        return vec![format!("definition {definition} {what}{}{schema}", count.unwrap_or_default())];
    }
    let hidden: Vec<String> =
        ["redacted", "prev_redacted"].iter().flat_map(|places| texts(&change[*places])).collect();
    let fields: Vec<String> = if change["data"].is_object() && change["prev"].is_object() {
        differences(&change["prev"], &change["data"]).into_iter().map(|field| field.pointer).collect()
    } else {
        vec![String::new()]
    };
    record_lines(&json!({
        "config_definition_key": definition, "config_key": change["config_key"],
        "before": change["prev"], "after": change["data"], "fields": fields, "redacted": hidden,
        "revision": if change["type"] == "config_created" { Value::Null } else { true.into() },
        "deleted": change["type"] == "config_deleted",
    }))
}

/// Who has changed the records since on which a change request rests, or which it has left. Each is a request, so they are
/// few.
pub(super) async fn changed_since(client: &Client, change: &Value) -> Vec<String> {
    let applied = change["applied"]["revision"].as_u64();
    let is_other = |record: &&Value| {
        let rests_on = if applied.is_some() { applied } else { record["base_revision"].as_u64() };
        !record["config_definition_key"].is_null() && rests_on != record["revision"].as_u64()
    };
    let all: Vec<&Value> =
        change["preview"]["records"].as_array().into_iter().flatten().filter(is_other).collect();
    let mut lines = Vec::new();
    for record in all.iter().take(CHANGED_SHOWN_MAX) {
        let (definition, config) = (cell(&record["config_definition_key"]), record["config_key"].as_str());
        let name = config.map_or_else(|| definition.clone(), |key| format!("{definition}/{key}"));
        let by = changes::by_whom(client, &definition, config, &[]).await;
        lines.push(format!("{name} was changed{by}"));
    }
    if all.len() > CHANGED_SHOWN_MAX {
        lines.push(format!("and {} more", all.len() - CHANGED_SHOWN_MAX));
    }
    lines
}

fn vote_line(verb: &str, vote: &Value) -> String {
    let counts = if vote["counts"] == false { ", no longer counts" } else { "" };
    let redacted = if vote["redacted"] == true { ", without secret values" } else { "" };
    let comment = match vote["comment"].as_str().unwrap_or_default() {
        "" => String::new(),
        _ => format!(": {}", json_of(&vote["comment"])),
    };
    format!("  {verb} by {}{redacted}{counts}{comment}", name_of(vote))
}

/// How it was applied, or ended otherwise.
fn ended(change: &Value) -> Vec<String> {
    let (applied, closed) = (&change["applied"], &change["closed"]);
    let mut lines = Vec::new();
    if !applied.is_null() {
        lines.push(format!("applied by {}  revision {}", schedule::doer(applied), applied["revision"]));
    }
    if !closed.is_null() {
        let error = &closed["error"];
        let why = if error.is_null() { json_of(&closed["comment"]) } else { schedule::failure(error) };
        lines.push(format!("closed: {} {why}", cell(&closed["reason"])));
    }
    lines
}

/// A value as JSON in one line, with characters that nobody sees escaped.
pub(super) fn json_of(value: &Value) -> String {
    escaped(&value.to_string())
}

/// A JSON pointer as it is, or quoted if it could be taken for something else.
fn place(pointer: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "/_-.~$@".contains(char);
    if pointer.chars().all(is_plain) { pointer.to_owned() } else { json_of(&pointer.into()) }
}

/// A record before and after, in lines.
fn record_lines(record: &Value) -> Vec<String> {
    let name = match (&record["config_definition_key"], &record["config_key"]) {
        (Value::Null, _) => format!("environment {}", cell(&record["environment"])),
        (definition, Value::Null) => format!("definition {}", cell(definition)),
        (definition, config) => format!("{}/{}", cell(definition), cell(config)),
    };
    let places = |name: &str| record[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let is_hidden = places("redacted").any(str::is_empty);
    let whole = |value: &Value| if is_hidden { "(not shown)".to_owned() } else { json_of(value) };
    let (before, after) = (&record["before"], &record["after"]);
    let (is_new, is_deleted) = (record["revision"].is_null(), record["deleted"] == true);
    let is_cut = record["before_omitted"] == true;
    // Where not every difference is named, the whole is shown.
    let is_whole =
        is_cut || is_hidden || record["fields_omitted"] == true || places("fields").any(str::is_empty);
    let before_shown = if is_cut { "(too large to show)".to_owned() } else { whole(before) };
    let mut lines = match (is_new, is_deleted) {
        (true, true) => vec![format!("{name} is created and deleted")],
        (true, false) => vec![format!("{name} is created: {}", whole(after))],
        (false, true) => vec![format!("{name} is deleted: {before_shown}")],
        (false, false) if is_whole => vec![format!("{name}: {before_shown} -> {}", whole(after))],
        (false, false) => {
            let at = |value: &Value, field: &str| value.pointer(field).map_or("(absent)".into(), json_of);
            let change =
                |field: &str| format!("  {}: {} -> {}", place(field), at(before, field), at(after, field));
            [name].into_iter().chain(places("fields").map(change)).collect()
        }
    };
    for operation in record["operations"].as_array().into_iter().flatten() {
        let note = match (operation["force"] == true, operation["restrict"] == true) {
            (true, _) => ", even if configs violate it",
            (_, true) => ", only if it has no configs",
            (false, false) => "",
        };
        lines.push(format!("  operation: {}{note}", cell(&operation["op"])));
    }
    if let Some(configs) = record["configs"].as_u64() {
        let again = if is_deleted { "" } else { "; it is created again without them" };
        lines.push(format!("  deletes the definition with its {}{again}", counted(configs, "config")));
    }
    if let Some(configs) = record["returned_configs"].as_u64() {
        lines.push(format!("  brings back {}; at most 200 of them are shown", counted(configs, "config")));
    }
    let hidden: Vec<String> =
        places("redacted").map(|at| if at.is_empty() { "all of it".into() } else { place(at) }).collect();
    if !hidden.is_empty() {
        lines.push(format!("  not shown to this access key: {}", hidden.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(more: Value) -> Vec<String> {
        let mut record = json!({
            "config_definition_key": "prod.a", "revision": 7, "before": null, "after": null, "fields": [],
            "redacted": [], "before_omitted": false, "fields_omitted": false, "deleted": false,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            record[name] = value.clone();
        }
        record_lines(&record)
    }

    #[test]
    fn a_definition_that_is_deleted_and_created_again_says_that_its_configs_go() {
        let same = json!({"indexes": []});
        let operations = json!([{"op": "delete_definition", "restrict": false}, {"op": "create_definition"}]);
        let lines = record(json!({
            "before": same, "after": same, "fields": [""], "configs": 5000, "operations": operations,
        }));
        assert_eq!(
            lines,
            [
                r#"definition prod.a: {"indexes":[]} -> {"indexes":[]}"#,
                "  operation: delete_definition",
                "  operation: create_definition",
                "  deletes the definition with its 5000 configs; it is created again without them",
            ]
        );
        let lines = record(json!({"deleted": true, "before": same, "fields": [""], "configs": 1}));
        assert_eq!(lines[1], "  deletes the definition with its 1 config");
        let forced = record(json!({"operations": [{"op": "set_schema", "force": true}]}));
        assert_eq!(forced[1], "  operation: set_schema, even if configs violate it");
        let back = record(json!({"revision": null, "after": same, "fields": [""], "returned_configs": 3}));
        assert!(back[1].starts_with("  brings back 3 configs"), "{back:?}");
    }

    #[test]
    fn what_is_not_named_is_shown_as_a_whole() {
        let more = json!({
            "config_key": "k", "before": {"a": 1, "z": 1}, "after": {"a": 2, "z": 2}, "fields": ["/a"],
        });
        assert_eq!(record(more.clone()), ["prod.a/k", "  /a: 1 -> 2"]);
        let mut omitted = more;
        omitted["fields_omitted"] = true.into();
        assert_eq!(record(omitted), [r#"prod.a/k: {"a":1,"z":1} -> {"a":2,"z":2}"#]);
        let cut = json!({"config_key": "k", "after": {"a": 2}, "before_omitted": true});
        assert_eq!(record(cut), [r#"prod.a/k: (too large to show) -> {"a":2}"#]);
    }

    #[test]
    fn no_two_values_look_alike_and_none_is_a_line_of_its_own() {
        let shown = |before: Value, after: Value| {
            let lines = record(
                json!({"config_key": "k", "before": {"a": before}, "after": {"a": after}, "fields": ["/a"]}),
            );
            assert_eq!(lines.len(), 2, "{lines:?}");
            lines[1].clone()
        };
        assert_eq!(shown(json!(1000), json!("1000")), r#"  /a: 1000 -> "1000""#);
        assert_eq!(shown(json!(null), json!("")), r#"  /a: null -> """#);
        let forged = "x\ndigest: 00";
        assert_eq!(shown(json!("\u{200b}"), json!(forged)), r#"  /a: "\u200b" -> "x\ndigest: 00""#);
        let named =
            json!({"config_key": "k", "before": {}, "after": {"a: 1 -> 2\n": 3}, "fields": ["/a: 1 -> 2\n"]});
        assert_eq!(record(named)[1], r#"  "/a: 1 -> 2\n": (absent) -> 3"#);
        let null = record(json!({"config_key": "k", "before": 1, "fields": [""]}));
        assert_eq!(null, ["prod.a/k: 1 -> null"], "it is not deleted");
        let gone = record(json!({"config_key": "k", "before": 1, "fields": [""], "deleted": true}));
        assert_eq!(gone, ["prod.a/k is deleted: 1"]);
        let hidden = record(json!({"config_key": "k", "redacted": [""]}));
        assert_eq!(hidden[0], "prod.a/k: (not shown) -> (not shown)");
    }
}
