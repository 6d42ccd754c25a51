//! Messages of the protocol: JSON-RPC 2.0, and what the versions of the Model Context Protocol say of a server with tools.
//!
//! Until 2025-11-25 a session begins with `initialize`. From 2026-07-28 on there is none: each request names its version in
//! `_meta`, and `server/discover` tells what the server has. So no request depends on an earlier one.
//!
//! The official SDK for Rust would add 1.5 MB to the program, and ignores lines that are no messages.
//!
//! **Invariant:** each request has one response, unless it is cancelled.

use serde_json::{Map, Value, json};

use super::lines::{LINE_BYTES_MAX, Line};

/// The versions that begin with `initialize`, oldest first.
const VERSIONS_WITH_SESSION: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The version without.
const VERSION_WITHOUT_SESSION: &str = "2026-07-28";
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const UNSUPPORTED_VERSION: i64 = -32022;

/// What a client sends.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    Request(Request),
    /// The request of this id is no longer wanted.
    Cancelled(Value),
    /// Nothing is to be done.
    Ignored,
}

/// A request.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// A text or an integer.
    pub(super) id: Value,
    method: String,
    params: Map<String, Value>,
}

/// What a request asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// The response is known.
    Done(Value),
    /// The list of the tools.
    Tools,
    /// A call of a tool.
    Call { tool: String, arguments: Map<String, Value> },
}

/// An error of the protocol.
#[derive(Debug, PartialEq)]
pub(super) struct ProtocolError {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl ProtocolError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    fn request(message: &str) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// A request with this id is in work.
    pub(super) fn id_in_use() -> Self {
        Self::request("a request with this id is still in work")
    }

    /// The response; without an id where none could be read.
    pub(super) fn response(self, id: Option<&Value>) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = self.data {
            error["data"] = data;
        }
        let mut response = json!({ "jsonrpc": "2.0" });
        if let Some(id) = id {
            response["id"] = id.clone();
        }
        response["error"] = error;
        response
    }
}

/// Reads a line.
///
/// # Errors
/// The response to a line that is no message.
pub(super) fn message(line: &Line) -> Result<Message, Value> {
    let Line::Text(text) = line else {
        let text = format!("the line is longer than {LINE_BYTES_MAX} bytes");
        return Err(ProtocolError::request(&text).response(None));
    };
    let text = text.trim_ascii();
    if text.is_empty() {
        return Ok(Message::Ignored);
    }
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        ProtocolError::new(PARSE_ERROR, format!("the line is not JSON: {error}")).response(None)
    })?;
    let id = value.get("id").filter(|id| id.is_string() || id.is_i64() || id.is_u64()).cloned();
    of_value(value, id.clone()).map_err(|error| error.response(id.as_ref()))
}

fn of_value(mut value: Value, id: Option<Value>) -> Result<Message, ProtocolError> {
    if value["jsonrpc"] != "2.0" {
        return Err(ProtocolError::request("this is no message of JSON-RPC 2.0"));
    }
    let params = match value.get_mut("params").map(Value::take) {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(ProtocolError::params("`params` must be an object")),
    };
    match (value["method"].as_str(), id) {
        (Some(method), Some(id)) => Ok(Message::Request(Request { id, method: method.to_owned(), params })),
        (Some(_), None) if value.get("id").is_some() => {
            Err(ProtocolError::request("`id` must be a text or an integer"))
        }
        (Some("notifications/cancelled"), None) => {
            Ok(params.get("requestId").cloned().map_or(Message::Ignored, Message::Cancelled))
        }
        (Some(_), None) => Ok(Message::Ignored),
        // Nothing was asked of the client.
        (None, _) if value.get("result").is_some() || value.get("error").is_some() => Ok(Message::Ignored),
        (None, _) => Err(ProtocolError::request("the message has no `method`")),
    }
}

fn server() -> Value {
    json!({ "name": "concord", "version": env!("CARGO_PKG_VERSION") })
}

fn capabilities() -> Value {
    json!({ "tools": {} })
}

impl Request {
    /// What is to be done. `instructions` are what a client is told of this server.
    ///
    /// # Errors
    /// When the request leads to nothing.
    pub(super) fn asked(&mut self, instructions: &str) -> Result<Asked, ProtocolError> {
        let has_session = self.has_session()?;
        match (self.method.as_str(), has_session) {
            ("initialize", true) => {
                let Some(version) = self.params.get("protocolVersion").and_then(Value::as_str) else {
                    return Err(ProtocolError::params("`initialize` needs `protocolVersion`"));
                };
                let [.., newest] = VERSIONS_WITH_SESSION;
                let version =
                    VERSIONS_WITH_SESSION.into_iter().find(|known| *known == version).unwrap_or(newest);
                Ok(Asked::Done(json!({
                    "protocolVersion": version, "capabilities": capabilities(), "serverInfo": server(),
                    "instructions": instructions,
                })))
            }
            ("server/discover", false) => Ok(Asked::Done(json!({
                "supportedVersions": versions(), "capabilities": capabilities(),
                "instructions": instructions, "ttlMs": 0, "cacheScope": "private",
                "_meta": { META_SERVER: server() },
            }))),
            ("server/discover", true) => Err(ProtocolError::params(format!("`_meta` needs {META_VERSION}"))),
            ("ping", true) => Ok(Asked::Done(json!({}))),
            ("tools/list", _) => Ok(Asked::Tools),
            ("tools/call", _) => {
                let Some(Value::String(tool)) = self.params.remove("name") else {
                    return Err(ProtocolError::params("`tools/call` needs the `name` of a tool"));
                };
                match self.params.remove("arguments") {
                    None => Ok(Asked::Call { tool, arguments: Map::new() }),
                    Some(Value::Object(arguments)) => Ok(Asked::Call { tool, arguments }),
                    Some(_) => Err(ProtocolError::params("`arguments` must be an object")),
                }
            }
            (method, _) => {
                Err(ProtocolError::new(METHOD_NOT_FOUND, format!("there is no method `{method}`")))
            }
        }
    }

    /// Whether it is of a version whose sessions begin with `initialize`. A request that names no version is.
    fn has_session(&self) -> Result<bool, ProtocolError> {
        let meta = |name: &str| self.params.get("_meta").and_then(|meta| meta.get(name));
        let Some(version) = meta(META_VERSION) else { return Ok(true) };
        if *version != VERSION_WITHOUT_SESSION {
            if VERSIONS_WITH_SESSION.iter().any(|known| version == known) {
                return Ok(true);
            }
            let mut error = ProtocolError::new(UNSUPPORTED_VERSION, "Unsupported protocol version");
            error.data = Some(json!({ "requested": version, "supported": versions() }));
            return Err(error);
        }
        if !meta(META_CAPABILITIES).is_some_and(Value::is_object) {
            return Err(ProtocolError::params(format!("`_meta` needs {META_CAPABILITIES}")));
        }
        Ok(false)
    }

    /// The response with a result.
    pub(super) fn response(&self, mut result: Value) -> Value {
        // Whoever began with `initialize` does not know these members.
        if self.has_session() == Ok(false) {
            result["resultType"] = "complete".into();
            if self.method == "tools/list" {
                (result["ttlMs"], result["cacheScope"]) = (0.into(), "private".into());
            }
        }
        json!({ "jsonrpc": "2.0", "id": self.id, "result": result })
    }
}

fn versions() -> Vec<&'static str> {
    VERSIONS_WITH_SESSION.into_iter().chain([VERSION_WITHOUT_SESSION]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Message, Value> {
        message(&Line::Text(text.into()))
    }

    fn request(value: &Value) -> Request {
        match of(&value.to_string()) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    const ABOUT: &str = "read me";

    #[test]
    fn what_is_no_message_gets_an_error() {
        for (text, code, id) in [
            ("{", PARSE_ERROR, None),
            ("\u{fffd}", PARSE_ERROR, None),
            ("[]", INVALID_REQUEST, None),
            ("7", INVALID_REQUEST, None),
            ("{}", INVALID_REQUEST, None),
            (r#"[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}"#, INVALID_REQUEST, None),
            (r#"{"jsonrpc": "2.0", "id": 3}"#, INVALID_REQUEST, Some(json!(3))),
            (r#"{"jsonrpc": "1.0", "id": "a", "method": "ping"}"#, INVALID_REQUEST, Some(json!("a"))),
            (
                r#"{"jsonrpc": "2.0", "id": 4, "method": "ping", "params": []}"#,
                INVALID_PARAMS,
                Some(json!(4)),
            ),
        ] {
            let error = of(text).unwrap_err();
            assert_eq!(
                (error["error"]["code"].as_i64(), error.get("id")),
                (Some(code), id.as_ref()),
                "{text}"
            );
        }
        let error = message(&Line::TooLong).unwrap_err();
        assert!(error.to_string().contains("longer than 4194304 bytes"), "{error}");
        for text in [
            " \r\n",
            r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}"#,
        ] {
            assert_eq!(of(text), Ok(Message::Ignored), "{text}");
        }
        let cancelled =
            of(r#"{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}"#);
        assert_eq!(cancelled, Ok(Message::Cancelled(json!(7))));
    }

    #[test]
    fn numbers_of_arguments_keep_their_digits() {
        let text = r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"b": 1.50, "a": 123456789012345678901234567890}}}"#;
        let Ok(Message::Request(mut request)) = of(text) else { panic!("no request") };
        let Ok(Asked::Call { tool, arguments }) = request.asked(ABOUT) else { panic!("no call") };
        assert_eq!(tool, "x");
        assert_eq!(Value::Object(arguments).to_string(), r#"{"b":1.50,"a":123456789012345678901234567890}"#);
    }

    #[test]
    fn a_session_has_a_version_that_both_know() {
        for (version, agreed) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("x", "2025-11-25"),
        ] {
            let params = json!({ "protocolVersion": version, "capabilities": {} });
            let mut request =
                request(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
            let Ok(Asked::Done(result)) = request.asked(ABOUT) else { panic!("{version}") };
            assert_eq!(
                (&result["protocolVersion"], &result["instructions"]),
                (&json!(agreed), &json!("read me"))
            );
            assert!(request.response(result)["result"].get("resultType").is_none());
        }
        let mut without = request(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize"}));
        assert_eq!(without.asked(ABOUT).unwrap_err().code, INVALID_PARAMS);
    }

    #[test]
    fn a_request_may_bring_its_version() {
        let with = |method: &str, meta: Value| {
            request(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta}}))
        };
        let modern = json!({META_VERSION: VERSION_WITHOUT_SESSION, META_CAPABILITIES: {}});
        let mut discover = with("server/discover", modern.clone());
        let Ok(Asked::Done(result)) = discover.asked(ABOUT) else { panic!("no result") };
        assert_eq!(result["supportedVersions"].as_array().map(Vec::len), Some(5));
        assert_eq!(discover.response(result)["result"]["resultType"], "complete");
        let mut list = with("tools/list", modern.clone());
        assert_eq!(list.asked(ABOUT), Ok(Asked::Tools));
        let response = list.response(json!({"tools": []}));
        assert_eq!(
            response["result"],
            json!({"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
        );
        // What there no longer is.
        for method in ["ping", "initialize", "no/such"] {
            assert_eq!(
                with(method, modern.clone()).asked(ABOUT).unwrap_err().code,
                METHOD_NOT_FOUND,
                "{method}"
            );
        }
        let error = with("tools/list", json!({META_VERSION: "2030-01-01"})).asked(ABOUT).unwrap_err();
        assert_eq!(
            (error.code, &error.data.unwrap()["requested"]),
            (UNSUPPORTED_VERSION, &json!("2030-01-01"))
        );
        let incomplete = json!({META_VERSION: VERSION_WITHOUT_SESSION});
        assert_eq!(with("tools/list", incomplete).asked(ABOUT).unwrap_err().code, INVALID_PARAMS);
        assert_eq!(with("server/discover", json!({})).asked(ABOUT).unwrap_err().code, INVALID_PARAMS);
    }
}
