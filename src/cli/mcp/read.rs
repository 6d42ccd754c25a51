//! The tools that read.

use concord_client::{Answer, Error, Request, segment};
use form_urlencoded::parse;
use serde_json::{Map, Value, json};

use super::{
    result::{ToolError, first, fit, omit},
    tools::{Arguments, PAGE},
};
use crate::cli::{
    config_read::{history_of, pair},
    current::{self, config_path, definition_path},
    explain,
    redacted::Redactions,
};
use concord_client::Client;

const DEFINITIONS: &str = "/api/v1/config_definition/";
/// Parameters of a list of configs. A filter for a field of this name is written `data.NAME`.
const PARAMETERS: [&str; 14] = [
    "page",
    "limit",
    "sort_by",
    "sort_order",
    "search",
    "consistency",
    "max_staleness_ms",
    "min_revision",
    "cursor",
    "revision",
    "include",
    "fields",
    "pretty",
    "raw",
];
/// Changes of one revision that are shown when it is too long for a result.
const CHANGES_SHOWN: usize = 50;
/// Names of members that are shown in place of data that is too long.
const MEMBERS_SHOWN: usize = 100;

/// What a tool returns.
pub(super) type Found = Result<Value, ToolError>;

pub(super) async fn list_definitions(client: &Client, arguments: &Arguments) -> Found {
    let request =
        Request::get(DEFINITIONS).query("sort_by", "config_definition_key").query("sort_order", "asc");
    let request = optional(request, arguments, "search", "search");
    let prefix = arguments.text("prefix").map(|prefix| format!("{prefix}*"));
    let request = prefix.into_iter().fold(request, |request, prefix| request.query("definition", prefix));
    let (answer, mut data) = list(client, request, arguments).await?;
    for definition in records(&mut data) {
        let schema = definition["json_schema"].take();
        *definition = json!({
            "definition": definition["config_definition_key"].take(), "indexes": definition["indexes"].take(),
            "title": schema["title"], "description": schema["description"],
            "created_at": definition["created_at"].take(), "modified_at": definition["modified_at"].take(),
        });
    }
    fit(records(&mut data), &["description", "title", "indexes"]);
    Ok(page(&answer, &mut data))
}

pub(super) async fn get_definition(client: &Client, arguments: &Arguments) -> Found {
    let key = arguments.required("definition");
    let Some(found) = current::definition(client, key).await? else {
        return Err(missing(client, Request::get(definition_path(key))).await);
    };
    let (revision, found) = (found.revision, found.value);
    let mut definition = json!({
        "definition": key, "revision": revision, "indexes": found.indexes, "unique": found.unique,
        "protected": found.protected, "format_assertion": found.format_assertion, "schema": found.schema,
    });
    fit([&mut definition], &["schema"]);
    Ok(definition)
}

pub(super) async fn explain_schema(client: &Client, arguments: &Arguments) -> Found {
    let (key, path) = (arguments.required("definition"), arguments.texts("path"));
    let answer = client.send(Request::get(format!("{}/schema", definition_path(key)))).await?;
    let schema = answer.data()?["json_schema"].take();
    let Some(mut found) = explain::described(&schema, &path) else {
        let names = explain::fields(&schema).into_iter().take(MEMBERS_SHOWN).collect::<Vec<_>>().join(", ");
        let text = format!("the schema of {key} has no path {}; its first members are: {names}", json!(path));
        return Err(ToolError::new("no_such_path", text));
    };
    found["definition"] = key.into();
    found["path"] = json!(path);
    fit([&mut found], &["schema"]);
    Ok(found)
}

pub(super) async fn list_configs(client: &Client, arguments: &Arguments) -> Found {
    let path = format!("{}/config/", definition_path(arguments.required("definition")));
    let order = if arguments.is_set("descending") { "desc" } else { "asc" };
    let mut request = Request::get(path)
        .query("sort_by", arguments.text("sort_by").unwrap_or("config_key"))
        .query("sort_order", order)
        .query("$include", "revision");
    for filter in arguments.texts("filters") {
        let (path, value) = pair(&filter)?;
        let name = path.split('[').next().unwrap_or(path);
        if PARAMETERS.contains(&name) || name.starts_with('$') {
            let text = format!(
                "`{name}` is the name of a parameter: filter the field of this name with `data.{path}`"
            );
            return Err(ToolError::arguments(text));
        }
        request = request.query(path, value);
    }
    request = optional(request, arguments, "search", "search");
    request = selected(request, arguments, "$fields");
    if let Some(revision) = arguments.number("at_revision")? {
        request = request.query("$revision", revision);
    }
    let (answer, data) = list(client, request, arguments).await?;
    Ok(configs(&answer, data))
}

pub(super) async fn search_configs(client: &Client, arguments: &Arguments) -> Found {
    let mut request = Request::get("/api/v1/config")
        .query("search", arguments.required("text"))
        .query("sort_by", "config_key")
        .query("sort_order", "asc")
        .query("include", "revision");
    for definition in arguments.texts("definitions") {
        request = request.query("definition", definition);
    }
    let (answer, data) = list(client, selected(request, arguments, "fields"), arguments).await?;
    Ok(configs(&answer, data))
}

pub(super) async fn get_config(client: &Client, arguments: &Arguments) -> Found {
    let (definition, key) = (arguments.required("definition"), arguments.required("key"));
    let mut request = selected(Request::get(config_path(definition, key)), arguments, "fields");
    if let Some(revision) = arguments.number("at_revision")? {
        request = request.query("revision", revision);
    }
    let answer = client.send(request).await?;
    let mut record = answer.data()?;
    let _ = Redactions::of(&mut record, &answer);
    let mut config = config(&mut record);
    (config["definition"], config["revision"]) = (definition.into(), json!(answer.revision()));
    let names: Vec<String> =
        config["data"].as_object().into_iter().flat_map(Map::keys).take(MEMBERS_SHOWN).cloned().collect();
    fit([&mut config], &["data"]);
    if config["omitted"].is_object() {
        config["members"] = json!(names);
    }
    Ok(config)
}

pub(super) async fn config_history(client: &Client, arguments: &Arguments) -> Found {
    let limit = arguments.number("limit")?.unwrap_or(PAGE);
    let path = config_path(arguments.required("definition"), arguments.required("key"));
    let request = history_of(&path, usize::try_from(limit).unwrap_or(usize::MAX));
    let request = before(request, arguments)?;
    let answer = client.send(request).await?;
    let mut data = answer.data()?;
    let places = answer.redacted_places();
    for change in records(&mut data) {
        Redactions::default().record("", change, &places);
    }
    let next = data["meta"]["next_before"].take();
    Ok(newest(data["results"].take(), &next, &data["meta"]["floor"], |change| omit(change, &["data"])))
}

pub(super) async fn recent_changes(client: &Client, arguments: &Arguments) -> Found {
    let limit = arguments.number("limit")?.unwrap_or(PAGE);
    let mut request = Request::get("/api/v1/changes").query("latest", limit).query("prev", true);
    for (argument, name) in
        [("definition", "definition"), ("key", "config_key"), ("since", "since"), ("by", "by")]
    {
        request = optional(request, arguments, argument, name);
    }
    let mut data = client.send(before(request, arguments)?).await?.data()?;
    let next = data["next_before"].take();
    let shrink = |event: &mut Value| {
        let Some(changes) = event["changes"].as_array_mut() else { return };
        let more = changes.len().saturating_sub(CHANGES_SHOWN);
        changes.truncate(CHANGES_SHOWN);
        fit(changes, &["data", "prev", "json_schema"]);
        if more > 0 {
            event["more_changes"] = more.into();
        }
    };
    Ok(newest(data["events"].take(), &next, &data["floor"], shrink))
}

pub(super) async fn get_change_request(client: &Client, arguments: &Arguments) -> Found {
    let path = format!("/api/v1/change_request/{}", segment(arguments.required("change_id")));
    let mut change = client.send(Request::get(path)).await?.data()?;
    fit([&mut change], &["operations", "authors", "approvals", "rejections", "reviews"]);
    Ok(change)
}

/// Sends the request for a page.
async fn list(
    client: &Client,
    request: Request,
    arguments: &Arguments,
) -> Result<(Answer, Value), ToolError> {
    let request = request.query("limit", arguments.number("limit")?.unwrap_or(PAGE));
    let answer = client.send(optional(request, arguments, "cursor", "cursor")).await?;
    let data = answer.data()?;
    if !data["results"].is_array() {
        return Err(Error::Protocol("the response is not a list".into()).into());
    }
    Ok((answer, data))
}

/// A parameter that an argument sets.
fn optional(request: Request, arguments: &Arguments, argument: &str, name: &str) -> Request {
    arguments.text(argument).into_iter().fold(request, |request, text| request.query(name, text))
}

fn before(request: Request, arguments: &Arguments) -> Result<Request, ToolError> {
    Ok(arguments
        .number("before")?
        .into_iter()
        .fold(request, |request, before| request.query("before", before)))
}

/// The selected members of the data.
fn selected(request: Request, arguments: &Arguments, name: &str) -> Request {
    let fields = arguments.texts("fields");
    if fields.is_empty() { request } else { request.query(name, fields.join(",")) }
}

fn records(data: &mut Value) -> impl Iterator<Item = &mut Value> {
    data["results"].as_array_mut().into_iter().flatten()
}

/// Configs as a page of a result.
fn configs(answer: &Answer, mut data: Value) -> Value {
    let places = answer.redacted_places();
    for record in records(&mut data) {
        Redactions::default().record("", record, &places);
        *record = config(record);
    }
    fit(records(&mut data), &["data"]);
    page(answer, &mut data)
}

/// A config with the names that the tools have.
fn config(record: &mut Value) -> Value {
    const NAMES: [(&str, &str); 7] = [
        ("config_definition_key", "definition"),
        ("config_key", "key"),
        ("revision", "revision"),
        ("data", "data"),
        ("redacted", "redacted"),
        ("created_at", "created_at"),
        ("modified_at", "modified_at"),
    ];
    let taken =
        NAMES.into_iter().filter_map(|(name, shown)| Some((shown.to_owned(), record.get_mut(name)?.take())));
    Value::Object(taken.collect())
}

/// A page of a list, with the cursor of the next one.
fn page(answer: &Answer, data: &mut Value) -> Value {
    let next = answer.next_page();
    let query = next.as_deref().and_then(|path| path.split_once('?')).map_or("", |(_, query)| query);
    let cursor =
        parse(query.as_bytes()).find(|(name, _)| name == "cursor").map(|(_, cursor)| cursor.into_owned());
    let mut page = json!({ "results": data["results"].take(), "total": data["meta"]["total"].take() });
    if let Some(cursor) = cursor {
        page["next_cursor"] = cursor.into();
    }
    if let Some(revision) = answer.state_revision() {
        page["state_revision"] = revision.into();
    }
    page
}

/// Changes, newest first, as many as fit into a result.
fn newest(changes: Value, next: &Value, compacted: &Value, shrink: impl Fn(&mut Value)) -> Value {
    let changes = if let Value::Array(changes) = changes { changes } else { Vec::new() };
    let (changes, is_cut) = first(changes, shrink);
    let last = changes.last().map_or(Value::Null, |last| last["revision"].clone());
    json!({ "next_before": if is_cut { &last } else { next }, "compacted_to": compacted, "results": changes })
}

/// The error of a record that is not there, as the cluster says it.
async fn missing(client: &Client, request: Request) -> ToolError {
    match client.send(request).await {
        Ok(_) => ToolError::new("failed", "the record has just been created: try again"),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_page_goes_on_before_its_last_change() {
        let change = |revision: u64, bytes: usize| json!({"revision": revision, "data": "x".repeat(bytes)});
        let shrink = |change: &mut Value| omit(change, &["data"]);
        let all = newest(json!([change(9, 10), change(7, 10)]), &json!(7), &json!(0), shrink);
        assert_eq!((&all["next_before"], all["results"].as_array().unwrap().len()), (&json!(7), 2));
        let cut = newest(json!([change(9, 40 << 10), change(7, 40 << 10)]), &Value::Null, &json!(0), shrink);
        assert_eq!((&cut["next_before"], cut["results"].as_array().unwrap().len()), (&json!(9), 1));
    }

    #[test]
    fn a_config_has_the_names_of_the_tools() {
        let mut record = json!({"config_key": "k", "data": {"a": 1}, "created_at": "t", "modified_at": "u", "revision": 7});
        let found = config(&mut record);
        assert_eq!(
            found,
            json!({"key": "k", "revision": 7, "data": {"a": 1}, "created_at": "t", "modified_at": "u"})
        );
    }
}
