//! The environment of a client: put with a dot before the definition keys of requests, and taken off those of responses.
//!
//! ```text
//! program ── limits ──▶ enter ── prod.limits ──▶ node
//! program ◀── limits ── leave ◀── prod.limits ── node
//! ```
//!
//! It is done once, at the way out and at the way in, so that no request can be forgotten. Without a definition, lists and
//! watches are of all definitions of the environment. `clients/cases.json` has the routes with their keys, for all clients.
//!
//! The environment `default` has no prefix: with it everything is as without an environment. So a program takes the name
//! from its settings, whatever it is.
//!
//! Names of environments, grants of access keys, change requests that are read, the audit log and the texts of errors have
//! the whole key: they are read by people who must see the environment.
//!
//! **Invariants:** a client with an environment reads and writes no definition outside of it. Data, schemas and patches are
//! never changed.

use std::{borrow::Cow, sync::Arc};

use http::Method;
use serde_json::Value;

use crate::{Error, Request};

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// The environment without a prefix.
const DEFAULT: &str = "default";
const DEFINITIONS: &str = "/api/v1/config_definition";
/// The member that has the key of a definition.
const KEY: &str = "config_definition_key";
/// The parameter that has keys of definitions, or patterns.
const PARAMETER: &str = "definition";

/// The environment of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The name, with the dot behind it.
    prefix: Arc<str>,
}

/// Where a response has the keys of definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Nowhere, or it shows whole keys.
    None,
    /// In the data themselves.
    Data,
    /// In each of the `results`.
    Results,
    /// In the changes of each of the `events`.
    Events,
}

impl Environment {
    /// Checks a name; `None` for the one without a prefix.
    pub(crate) fn new(name: &str) -> Result<Option<Self>, Error> {
        let is_first = |byte: &u8| byte.is_ascii_alphanumeric();
        let is_any = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'~' | b'-');
        let bytes = name.as_bytes();
        if !bytes.first().is_some_and(is_first) || bytes.len() > NAME_BYTES_MAX || !name.bytes().all(is_any) {
            return Err(Error::Usage(format!(
                "`{}` is not the name of an environment: expected 1 to {NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, `_`, `~`, `-`, the first a letter or a digit",
                name.escape_debug()
            )));
        }
        Ok((name != DEFAULT).then(|| Self { prefix: format!("{name}.").into() }))
    }

    pub(crate) fn name(&self) -> &str {
        self.prefix.trim_end_matches('.')
    }

    /// The request with the whole keys.
    pub(crate) fn enter(&self, mut request: Request) -> Request {
        let target = request.target();
        let path = path_of(&target);
        if let Some((_, body)) = &mut request.body
            && let Some(entered) = self.entered_body(&request.method, path, body)
        {
            *body = entered.into();
        }
        request.path = self.entered(&request.method, &target);
        request.query.clear();
        request
    }

    /// What to warn of in a request with the whole keys: a definition that it creates has the prefix twice, as where a file
    /// or a person names whole keys.
    pub(crate) fn warning(&self, sent: &Request) -> Option<String> {
        let text = std::str::from_utf8(&sent.body.as_ref()?.1).ok()?;
        let twice = format!("{0}{0}", self.prefix);
        let key = format!(r#""{KEY}":"{twice}"#);
        let is_alone = without_slash(path_of(&sent.path)) == DEFINITIONS && text.contains(&key);
        let is_created = is_alone || text.contains(&format!(r#""op":"create_definition",{key}"#));
        is_created.then(|| {
            let (name, prefix) = (self.name(), &self.prefix);
            format!("a new definition has a key with `{twice}`: in the environment `{name}`, keys are given without `{prefix}`")
        })
    }

    /// A path with its query, with the whole keys.
    fn entered(&self, method: &Method, target: &str) -> String {
        let (path, query) = parts_of(target);
        let entered = match of_definition(path) {
            Some(rest) => format!("{DEFINITIONS}/{}{rest}", self.prefix),
            None => path.to_owned(),
        };
        let Some(has_all) = selects(method, path) else {
            return joined(entered, query.map(str::to_owned));
        };
        let (mut pairs, mut is_named) = (Vec::new(), !has_all || is_of_change_requests(query));
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let names_one = name == PARAMETER && !value.is_empty();
            is_named |= names_one;
            pairs.push(if names_one { format!("{name}={}{value}", self.prefix) } else { pair.to_owned() });
        }
        if !is_named {
            pairs.push(format!("{PARAMETER}={}*", self.prefix));
        }
        joined(entered, (!pairs.is_empty()).then(|| pairs.join("&")))
    }

    /// A body with the whole keys; `None` if it has none. What is not JSON is left for the node to reject.
    fn entered_body(&self, method: &Method, path: &str, body: &[u8]) -> Option<String> {
        let path = without_slash(path);
        let lists: &[&str] = match (method.as_str(), path) {
            ("POST", DEFINITIONS) => &[],
            ("POST", "/api/v1/read") => &["configs"],
            ("POST", "/api/v1/batch") => &["operations", "if", "then", "else"],
            ("POST" | "PUT", _) if path.starts_with("/api/v1/change_request") => &["operations"],
            _ => return None,
        };
        let mut body: Value = serde_json::from_slice(body).ok()?;
        if path == DEFINITIONS {
            self.enter_key(&mut body);
        }
        for list in lists {
            let items = body.get_mut(*list).and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(|item| self.enter_key(item));
        }
        Some(body.to_string())
    }

    fn enter_key(&self, value: &mut Value) {
        if let Some(Value::String(key)) = value.get_mut(KEY) {
            key.insert_str(0, &self.prefix);
        }
    }

    /// The data of a response as the program asked for them.
    pub(crate) fn leave(&self, keys: Keys, data: &mut Value) {
        match keys {
            Keys::None => {}
            Keys::Data => self.leave_key(data),
            Keys::Results => self.leave_list(data, "results"),
            Keys::Events => {
                let events = data.get_mut("events").and_then(Value::as_array_mut);
                events.into_iter().flatten().for_each(|event| self.leave_event(event));
            }
        }
    }

    /// An event of a watch as the program asked for it.
    pub(crate) fn leave_event(&self, event: &mut Value) {
        for list in ["changes", "definitions", "configs"] {
            self.leave_list(event, list);
        }
    }

    fn leave_list(&self, value: &mut Value, list: &str) {
        let items = value.get_mut(list).and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(|item| self.leave_key(item));
    }

    fn leave_key(&self, value: &mut Value) {
        if let Some(Value::String(key)) = value.get_mut(KEY)
            && key.starts_with(&*self.prefix)
        {
            key.drain(..self.prefix.len());
        }
    }

    /// The path of a next page as the program can send it.
    pub(crate) fn left(&self, target: &str) -> String {
        let (path, query) = parts_of(target);
        let left = match of_definition(path).and_then(|rest| rest.strip_prefix(&*self.prefix)) {
            Some(rest) => format!("{DEFINITIONS}/{rest}"),
            None => path.to_owned(),
        };
        if selects(&Method::GET, path).is_none() {
            return joined(left, query.map(str::to_owned));
        }
        // Nodes encode this one character of names in queries.
        let encoded = self.prefix.replace('~', "%7E");
        let pairs = query.map(|query| query.split('&').map(|pair| self.left_pair(pair, &encoded)));
        joined(left, pairs.map(|pairs| pairs.collect::<Vec<_>>().join("&")))
    }

    fn left_pair<'a>(&self, pair: &'a str, encoded: &str) -> Cow<'a, str> {
        let value = pair.split_once('=').filter(|(name, _)| *name == PARAMETER).map(|(_, value)| value);
        let left = value.and_then(|value| value.strip_prefix(&*self.prefix).or(value.strip_prefix(encoded)));
        left.map_or(Cow::Borrowed(pair), |left| format!("{PARAMETER}={left}").into())
    }
}

/// Whether a request selects definitions by a parameter; if so, whether it selects all of them without one.
fn selects(method: &Method, path: &str) -> Option<bool> {
    match without_slash(path) {
        DEFINITIONS if method.is_safe() => Some(true),
        "/api/v1/deleted_definition" | "/api/v1/config" | "/api/v1/watch" | "/api/v1/changes" => Some(true),
        // The lines of the log are of requests, of which many are about no definition.
        "/api/v1/audit" => Some(false),
        _ => None,
    }
}

/// Whether a watch is of change requests, which are of no one definition. Any other value than this one may mean a watch
/// of definitions, and of several values the last one counts.
fn is_of_change_requests(query: Option<&str>) -> bool {
    let pairs = query.into_iter().flat_map(|query| query.split('&'));
    let flags: Vec<&str> = pairs.filter(|pair| pair.split('=').next() == Some("change_requests")).collect();
    !flags.is_empty() && flags.iter().all(|flag| *flag == "change_requests=true")
}

/// Where the response to a request has the keys of definitions.
pub(crate) fn keys_of(method: &Method, target: &str) -> Keys {
    let path = path_of(target);
    if let Some(rest) = of_definition(path) {
        // The data of a config's response are its own, except when it is deleted.
        let is_config = rest.split('/').nth(1) == Some("config");
        return if is_config && *method != Method::DELETE { Keys::None } else { Keys::Data };
    }
    match without_slash(path) {
        DEFINITIONS if method.is_safe() => Keys::Results,
        DEFINITIONS => Keys::Data,
        "/api/v1/deleted_definition" | "/api/v1/config" | "/api/v1/read" | "/api/v1/batch" => Keys::Results,
        "/api/v1/changes" => Keys::Events,
        _ => Keys::None,
    }
}

/// The rest of a path below the definitions, from the key of one on.
fn of_definition(path: &str) -> Option<&str> {
    path.strip_prefix(DEFINITIONS)?.strip_prefix('/').filter(|rest| !rest.is_empty())
}

/// Nodes take a path with a slash at its end for the same one.
fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

fn path_of(target: &str) -> &str {
    parts_of(target).0
}

fn parts_of(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

fn joined(path: String, query: Option<String>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;

    fn cases() -> Value {
        let mut cases: Value = serde_json::from_str(include_str!("../../cases.json")).unwrap();
        cases["environments"].take()
    }

    fn of(cases: &Value) -> Environment {
        Environment::new(cases["name"].as_str().unwrap()).unwrap().unwrap()
    }

    fn list<'a>(cases: &'a Value, name: &str) -> &'a Vec<Value> {
        let list = cases[name].as_array().unwrap();
        assert!(!list.is_empty(), "{name}");
        list
    }

    fn method(case: &Value) -> Method {
        case["method"].as_str().unwrap().parse().unwrap()
    }

    #[test]
    fn a_name_is_that_of_an_environment() {
        let cases = cases();
        for name in list(&cases, "names") {
            let environment = Environment::new(name.as_str().unwrap()).unwrap().unwrap();
            assert_eq!(environment.name(), name.as_str().unwrap());
        }
        for name in list(&cases, "without_prefix") {
            assert_eq!(Environment::new(name.as_str().unwrap()).unwrap(), None);
        }
        for name in list(&cases, "refused") {
            assert!(matches!(Environment::new(name.as_str().unwrap()), Err(Error::Usage(_))), "{name}");
        }
    }

    #[test]
    fn requests_have_the_whole_keys() {
        let cases = cases();
        let environment = of(&cases);
        for case in list(&cases, "requests") {
            let mut request = Request::new(method(case), case["path"].as_str().unwrap());
            if let Some(body) = case.get("body") {
                request = request.json(body);
            }
            let sent = environment.enter(request);
            assert_eq!(sent.target(), case["sent"].as_str().unwrap(), "{case}");
            let body = sent.body.map(|(_, body)| String::from_utf8(body.to_vec()).unwrap());
            let expected = case.get("sent_body").or(case.get("body")).map(Value::to_string);
            assert_eq!(body, expected, "{case}");
        }
    }

    #[test]
    fn responses_have_the_keys_that_were_asked_for() {
        let cases = cases();
        let environment = of(&cases);
        for case in list(&cases, "responses") {
            let mut data = case["data"].clone();
            environment.leave(keys_of(&method(case), case["path"].as_str().unwrap()), &mut data);
            assert_eq!(data, *case.get("shown").unwrap_or(&case["data"]), "{case}");
        }
        for case in list(&cases, "events") {
            let mut data = case["data"].clone();
            environment.leave_event(&mut data);
            assert_eq!(data, case["shown"], "{case}");
        }
    }

    #[test]
    fn the_next_page_is_asked_for_like_the_first() {
        let cases = cases();
        for case in list(&cases, "next_pages") {
            let environment = Environment::new(case["environment"].as_str().unwrap()).unwrap().unwrap();
            let left = environment.left(case["link"].as_str().unwrap());
            assert_eq!(left, case["shown"].as_str().unwrap());
            assert_eq!(environment.entered(&Method::GET, &left), case["sent"].as_str().unwrap());
        }
    }

    #[test]
    fn a_new_definition_with_the_prefix_twice_is_warned_of() {
        let environment = Environment::new("prod").unwrap().unwrap();
        let create = |definition: &str| Operation::CreateDefinition {
            definition: definition.into(),
            indexes: Vec::new(),
            schema: None,
            format_assertion: None,
        };
        for (definition, expected) in [("limits", false), ("product", false), ("prod.limits", true)] {
            let operation = create(definition);
            for request in [Request::operation(&operation), Request::batch([&create("other"), &operation])] {
                let warning = environment.warning(&environment.enter(request));
                assert_eq!(warning.is_some(), expected, "{definition}: {warning:?}");
            }
        }
        let read = Operation::GetConfig { definition: "prod.limits".into(), key: "a".into() };
        assert_eq!(environment.warning(&environment.enter(Request::batch([&read]))), None);
    }

    #[test]
    fn digits_and_the_order_of_members_stay() {
        let text = r#"{"operations":[{"op":"put_config","config_definition_key":"d","data":{"z":1.50,"a":1e+400}}]}"#;
        let environment = Environment::new("prod").unwrap().unwrap();
        let sent =
            environment.enter(Request::new(Method::POST, "/api/v1/batch").body("application/json", text));
        assert_eq!(sent.body.unwrap().1, text.replace(r#""d""#, r#""prod.d""#));
    }
}
