//! Who reads: the name and the labels that a client sends of itself, by which a rollout chooses who sees its candidates.
//!
//! They are sent with what follows configs: get, read-many, watch and poll. Nothing else is as a reader sees it, and a node
//! rejects a filtered watch of a reader, so that is sent without them and shows proven data. `clients/cases.json` has the
//! requests, for all clients.
//!
//! **Invariant:** what is sent fits a header and the limits of a node: what does not is rejected when the client is made,
//! never left out later.

use std::collections::BTreeMap;

use http::{HeaderMap, Method};

use crate::{Error, Request};

/// The most bytes of a name.
const NAME_BYTES_MAX: usize = 255;
/// The most labels.
const LABELS_MAX: usize = 16;
/// The most bytes of the labels, as they are sent.
const LABELS_BYTES_MAX: usize = 1024;
/// The most bytes of the name or of the value of a label.
const LABEL_BYTES_MAX: usize = 255;

/// The headers.
const READER: &str = "x-concord-reader";
const LABELS: &str = "x-concord-labels";
const VARIANT: &str = "x-concord-variant";

/// Where Linux has the host name, in containers their own.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The parameters of a watch or a poll that are no filters. With any other one it has no reader.
const UNFILTERED: [&str; 9] = [
    "definition",
    "config_key",
    "from",
    "initial",
    "prev",
    "wait",
    "consistency",
    "max_staleness_ms",
    "min_revision",
];

/// A reader, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The labels as they are sent; `None` without any.
    sent_labels: Option<String>,
}

impl Reader {
    /// Checks a name and labels; `None` without a name.
    pub(crate) fn new(name: Option<&str>, labels: &BTreeMap<String, String>) -> Result<Option<Self>, Error> {
        let Some(name) = name else {
            if labels.is_empty() {
                return Ok(None);
            }
            return Err(Error::Usage(
                "labels are those of a reader: give its name too, this machine has none that can be sent"
                    .into(),
            ));
        };
        if !is_sent_as_is(name) || name.len() > NAME_BYTES_MAX {
            return Err(Error::Usage(format!(
                "`{}` is not the name of a reader: expected 1 to {NAME_BYTES_MAX} visible ASCII characters",
                name.escape_debug()
            )));
        }
        Ok(Some(Self { name: name.to_owned(), labels: labels.clone(), sent_labels: sent_labels(labels)? }))
    }

    /// The request with the headers, if it is answered as a reader sees it. One that names a reader itself stays.
    pub(crate) fn on(&self, request: Request) -> Request {
        let names_one = request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(READER));
        if request.is_proven || names_one || !is_read_as_reader(&request.method, &request.target()) {
            return request;
        }
        let request = request.header(READER, &*self.name);
        self.sent_labels.iter().fold(request, |request, labels| request.header(LABELS, &**labels))
    }
}

/// The labels as they are sent; `None` without any.
fn sent_labels(labels: &BTreeMap<String, String>) -> Result<Option<String>, Error> {
    let is_part = |text: &str| is_sent_as_is(text) && text.len() <= LABEL_BYTES_MAX && !text.contains(',');
    if let Some((name, value)) =
        labels.iter().find(|(name, value)| !is_part(name) || name.contains('=') || !is_part(value))
    {
        return Err(Error::Usage(format!(
            "`{}={}` is not a label: expected 1 to {LABEL_BYTES_MAX} visible ASCII characters on each side, without `,`, and no `=` in the name",
            name.escape_debug(),
            value.escape_debug()
        )));
    }
    let all: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = all.join(",");
    if labels.len() > LABELS_MAX || text.len() > LABELS_BYTES_MAX {
        return Err(Error::Usage(format!(
            "a reader has at most {LABELS_MAX} labels, of {LABELS_BYTES_MAX} bytes in all"
        )));
    }
    Ok((!text.is_empty()).then_some(text))
}

/// Whether a header has this text as its value: visible ASCII, blanks only inside.
fn is_sent_as_is(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// The name of this machine, if it can be sent.
pub(crate) fn host_name() -> Option<String> {
    let text = std::fs::read_to_string(HOST_NAME).ok()?;
    let name = text.trim_end();
    (is_sent_as_is(name) && name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// Whether a request is answered as a reader sees it.
fn is_read_as_reader(method: &Method, target: &str) -> bool {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut names = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next());
    let path = path.strip_suffix('/').unwrap_or(path);
    match (method, path) {
        (&Method::POST, "/api/v1/read") => true,
        (&Method::GET, "/api/v1/watch" | "/api/v1/changes") => {
            names.all(|name| name.is_some_and(|name| UNFILTERED.contains(&name)))
        }
        (&Method::GET, _) => is_config(path) && !names.any(|name| name == Some("revision")),
        _ => false,
    }
}

fn is_config(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts.as_slice(), ["", "api", "v1", "config_definition", _, "config", key] if !key.is_empty())
}

/// The id of the change request whose candidate a response shows, by its headers.
pub(crate) fn variant_of(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(VARIANT)?.to_str().ok()?;
    let mut parts = text.split(';').map(str::trim);
    (parts.next() == Some("candidate")).then(|| parts.find_map(|part| part.strip_prefix("change=")))?
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn cases() -> Value {
        let mut cases: Value = serde_json::from_str(include_str!("../../cases.json")).unwrap();
        cases["readers"].take()
    }

    fn list<'a>(cases: &'a Value, name: &str) -> &'a Vec<Value> {
        let list = cases[name].as_array().unwrap();
        assert!(!list.is_empty(), "{name}");
        list
    }

    fn made(case: &Value) -> Result<Option<Reader>, Error> {
        let labels = case["labels"].as_object().into_iter().flatten();
        let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        Reader::new(case["reader"].as_str(), &labels.collect())
    }

    #[test]
    fn a_reader_is_sent_as_it_is_or_refused() {
        let cases = cases();
        for case in list(&cases, "sent") {
            let request = Request::get("/api/v1/watch");
            let request = made(case).unwrap().iter().fold(request, |request, reader| reader.on(request));
            let header = |name| request.headers.iter().find(|(other, _)| *other == name);
            let header = |name| header(name).map(|(_, value)| value.as_str());
            assert_eq!(header(READER), case["reader_header"].as_str(), "{case}");
            assert_eq!(header(LABELS), case["labels_header"].as_str(), "{case}");
        }
        for case in list(&cases, "refused") {
            assert!(matches!(made(case), Err(Error::Usage(_))), "{case}");
        }
    }

    #[test]
    fn what_follows_configs_has_the_reader() {
        for case in list(&cases(), "requests") {
            let method = case["method"].as_str().unwrap().parse().unwrap();
            let is_sent = is_read_as_reader(&method, case["path"].as_str().unwrap());
            assert_eq!(Value::from(is_sent), case["is_sent"], "{case}");
        }
    }

    #[test]
    fn a_candidate_is_known_by_its_change() {
        for case in list(&cases(), "variants") {
            let headers = [("x-concord-variant", case["header"].as_str().unwrap())];
            let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(variant_of(&headers), case["change"].as_str(), "{case}");
        }
    }
}
