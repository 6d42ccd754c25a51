//! Validates every answer that a test gets against the `OpenAPI` document: its status, its headers and its body.
//!
//! **Invariant:** an answer that the document does not describe fails the test that got it.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use concord_http::openapi;
use concord_model::limits::Limits;
use http::{HeaderMap, Method};
use jsonschema::Validator;
use serde_json::{Value, json};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    serde_json::to_value(openapi::document(&Limits::default())).expect("the document is plain data")
});

/// A validator of each schema that was needed, made once.
static VALIDATORS: LazyLock<Mutex<BTreeMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// The headers that only some answers of an operation have.
const OPTIONAL: [&str; 12] = [
    "Link",
    "Warning",
    "Accept-Patch",
    "X-Concord-Dry-Run",
    "X-Concord-Index-Building",
    "X-Concord-Breaking-Configs",
    "RateLimit-Policy",
    "RateLimit",
    "X-Concord-Redacted",
    "X-Concord-Variant",
    "Content-Encoding",
    "Vary",
];
/// The headers that a write has only when it was stored, not as a dry run.
const OF_STORED: [&str; 3] = ["ETag", "Last-Modified", "X-Concord-Write-Revision"];

/// Whether the document describes an answer; the error says what it does not.
pub(crate) fn check(
    method: &Method,
    path: &str,
    status: u16,
    headers: &HeaderMap,
    text: &str,
) -> Result<(), String> {
    if method == Method::OPTIONS {
        // What browsers ask before a request is no operation.
        return Ok(());
    }
    if is_of_others(path) || matches!(status, 200 | 304) && is_raw(path, headers) {
        return Ok(());
    }
    let Some(response) = response(method, path, status)? else { return Ok(()) };
    let is_dry_run = headers.contains_key("x-concord-dry-run");
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        match headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()) {
            Some(value) => valid(&resolve(header)["schema"], &json!(value), name)?,
            None if OPTIONAL.contains(&name.as_str()) => {}
            // The refusals that all operations share name it; an operation that needs no key does not tell it.
            None if name == "X-Concord-Revision" && needs_no_key(method, path) => {}
            // Before the credential was looked at, or while the node can't know whether it is good.
            None if name == "X-Concord-Revision" && [429, 503].contains(&status) => {}
            // One of the operations of a batch.
            None if name == "ETag" && status == 412 => {}
            // A conflict has it only while a freeze lasts.
            None if name == "Retry-After" && status == 409 => {}
            None if is_dry_run && OF_STORED.contains(&name.as_str()) => {}
            None => return Err(format!("the header `{name}` is missing")),
        }
    }
    let contents = response["content"].as_object().filter(|contents| !contents.is_empty());
    if method == Method::HEAD || contents.is_none() {
        return if text.is_empty() { Ok(()) } else { Err("there is a body".into()) };
    }
    let kind =
        headers.get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let content = contents
        .into_iter()
        .flatten()
        .find(|(name, _)| *name == essence || *name == "*/*")
        .ok_or_else(|| format!("the content type `{kind}` is not documented"))?;
    if essence == "application/json" {
        let body: Value = serde_json::from_str(text).map_err(|error| format!("the body: {error}"))?;
        valid(&content.1["schema"], &body, "the body")?;
    }
    Ok(())
}

/// Whether a path is one of the protocols of others, which the document does not have.
fn is_of_others(path: &str) -> bool {
    path.starts_with("/v1/") || path.starts_with("/spring/")
}

/// Whether a response is one without an envelope.
fn is_raw(path: &str, headers: &HeaderMap) -> bool {
    let kind =
        headers.get(http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    path.contains("raw=true")
        || ["application/yaml", "text/x-java-properties", "application/schema+json"].contains(&kind)
}

/// Whether the document says that an operation needs no key.
fn needs_no_key(method: &Method, path: &str) -> bool {
    let name = if method == Method::HEAD { "get".into() } else { method.as_str().to_ascii_lowercase() };
    let path = path.split('?').next().unwrap_or_default();
    is_page(path) || item(path).is_some_and(|item| item[&name]["security"].is_array())
}

/// Whether a path is that of a page for people, or of a file of one. The document does not have these.
fn is_page(path: &str) -> bool {
    ["/docs", "/ui"]
        .iter()
        .any(|page| path.strip_prefix(page).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// What the document says of an answer; `None` where it can't say anything.
fn response(method: &Method, path: &str, status: u16) -> Result<Option<&'static Value>, String> {
    let path = path.split('?').next().unwrap_or_default();
    let common = |name: &str| Ok(Some(&DOCUMENT["components"]["responses"][name]));
    let Some(item) = item(path) else {
        return match status {
            200 | 304 if is_page(path) => Ok(None),
            // Without a key nothing is said of a path.
            401 => common("Unauthorized"),
            404 => common("NotFound"),
            500 => common("ServerError"),
            _ => Err("the path is not documented".into()),
        };
    };
    let name = if method == Method::HEAD { "get".into() } else { method.as_str().to_ascii_lowercase() };
    let Some(operation) = item.get(&name) else {
        return match status {
            401 => common("Unauthorized"),
            405 => common("MethodNotAllowed"),
            _ => Err("the method is not documented".into()),
        };
    };
    let response = operation["responses"].get(status.to_string());
    response.map(|response| Some(resolve(response))).ok_or_else(|| "the status is not documented".into())
}

/// The item of the path whose segments are these; a path with and without a slash at its end is one.
fn item(path: &str) -> Option<&'static Value> {
    let segments = |path: &str| -> Vec<String> {
        let path = path.strip_suffix('/').filter(|_| path.starts_with("/api/")).unwrap_or(path);
        path.split('/').map(str::to_owned).collect()
    };
    let asked = segments(path);
    let fits = |template: &str| {
        let template = segments(template);
        let last = asked.len() - 1;
        // A key may be empty between two slashes, and is refused. At the end that is another path.
        let takes =
            |place: usize, t: &str, a: &str| t == a || t.starts_with('{') && (!a.is_empty() || place < last);
        template.len() == asked.len()
            && template.iter().zip(&asked).enumerate().all(|(place, (t, a))| takes(place, t, a))
    };
    let mut items: Vec<_> = DOCUMENT["paths"].as_object().into_iter().flatten().collect();
    // A literal segment wins over a parameter.
    items.sort_by_key(|(template, _)| template.matches('{').count());
    items.into_iter().find(|(template, _)| fits(template)).map(|(_, item)| item)
}

/// The target of a reference, or what is none.
fn resolve(value: &'static Value) -> &'static Value {
    let target = value["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
    target.map_or(value, |place| DOCUMENT.pointer(place).expect("every `$ref` resolves"))
}

fn valid(schema: &Value, value: &Value, what: &str) -> Result<(), String> {
    let text = schema.to_string();
    let known = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner).get(&text).cloned();
    let validator = known.unwrap_or_else(|| {
        let mut whole = schema.clone();
        whole["components"] = DOCUMENT["components"].clone();
        let options = jsonschema::options().should_validate_formats(true);
        let made = Arc::new(options.build(&whole).expect("the document's schemas are valid"));
        let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(validators.entry(text).or_insert(made))
    });
    let wrong: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{what}: {}", wrong.join("; "))) }
}
