//! Why a command failed: its message, its hint and its exit code.
//!
//! **Invariant:** an unknown outcome is never reported as a failed write, and has the exit code of an unavailable cluster.

use concord_client::{Error, Item, Refusal};
use http::StatusCode;
use percent_encoding::percent_decode_str;

use super::output::say;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The command line or a setting is wrong.
    Usage(String),
    /// The command could not be carried out.
    Failed(String),
    /// The command could not be carried out, and the reason is logged; the exit code.
    Logged(u8),
    /// A request failed.
    Client(Error),
    /// The command worked and the answer is no: there is a difference, or a check failed.
    Difference,
    /// A comparison could not be made.
    NoAnswer(String),
    /// The record does not exist.
    Missing(String),
    /// Data are invalid; the errors.
    Invalid(String),
    /// What the command was to do is no longer what it would do.
    Stale(String),
    /// The access key may not see what the command selects.
    Hidden(String),
    /// A part was done; the message says which part was not.
    Partial(String),
    /// A signal interrupted the work; what is left, and the exit code.
    Interrupted(String, u8),
    /// A child process did the work and reported its failure; its exit code.
    Reported(u8),
    /// The reader closed the output, as `head` does: there is nothing left to do.
    Closed,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl Failure {
    /// The exit code: docs/reference/command-line.md lists them.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Failed(_) | Self::Difference => 1,
            Self::Usage(_) | Self::Client(Error::Usage(_)) => super::EXIT_USAGE,
            Self::Missing(_) => 3,
            Self::Stale(_) => 4,
            Self::Invalid(_) => 5,
            Self::Hidden(_) => 6,
            Self::Partial(_) => 8,
            Self::NoAnswer(_) => 9,
            Self::Interrupted(_, code) | Self::Reported(code) | Self::Logged(code) => *code,
            Self::Client(Error::Refused(refusal)) => match refusal.status {
                StatusCode::NOT_FOUND | StatusCode::GONE => 3,
                StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => 4,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => 6,
                status if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => 5,
                _ => 7,
            },
            Self::Client(Error::Unavailable(_) | Error::Unknown { .. } | Error::Protocol(_)) => 7,
        }
    }

    /// Whether no node could serve the request in time.
    pub(super) fn is_unavailable(&self) -> bool {
        let is_late =
            |status| matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT);
        matches!(self, Self::Client(Error::Unavailable(_) | Error::Unknown { .. }))
            || matches!(self, Self::Client(Error::Refused(refusal)) if is_late(refusal.status))
    }

    /// Prints the message and the hint.
    pub(super) fn report(&self) {
        if let Some(text) = self.text() {
            say(text.trim_end_matches('\n'));
        }
    }

    /// The message without the hint, as a part of another text.
    pub(super) fn into_text(self) -> String {
        if let Self::Usage(text)
        | Self::Failed(text)
        | Self::Stale(text)
        | Self::Invalid(text)
        | Self::Hidden(text)
        | Self::Partial(text)
        | Self::NoAnswer(text)
        | Self::Interrupted(text, _)
        | Self::Missing(text) = self
        {
            text
        } else {
            self.text().unwrap_or_default()
        }
    }

    /// The failure of a comparison: code 1 means a difference, so other failures get another code. If the output was
    /// closed, the code still says whether there is a difference.
    pub(super) fn of_comparison(self, is_different: bool) -> Self {
        if let Self::Failed(text) = self {
            Self::NoAnswer(text)
        } else if is_different && matches!(self, Self::Closed) {
            Self::Difference
        } else {
            self
        }
    }

    fn text(&self) -> Option<String> {
        let (text, hint) = match self {
            Self::Logged(_) | Self::Difference | Self::Closed | Self::Reported(_) => return None,
            Self::Interrupted(text, _) => (format!("interrupted: {text}"), None),
            Self::Usage(text)
            | Self::Failed(text)
            | Self::Stale(text)
            | Self::Invalid(text)
            | Self::Hidden(text)
            | Self::Partial(text)
            | Self::NoAnswer(text)
            | Self::Missing(text) => (text.clone(), None),
            Self::Client(Error::Refused(refusal)) => (refused(refusal), hint_of_refusal(refusal)),
            Self::Client(error) => (error.to_string(), hint(error).map(str::to_owned)),
        };
        let hint = hint.map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
        Some(format!("concord: {text}\n{hint}"))
    }
}

/// The errors of a rejection; several errors are one line each.
fn refused(refusal: &Refusal) -> String {
    let (node, _) = parts(&refusal.url);
    let from = format!("({} from {node})", refusal.status.as_u16());
    let named = |item: &Item| match (named(refusal), item.code.as_str()) {
        // Whether it existed at the revision that the request names is another question.
        (Some(name), "definition_not_found" | "config_not_found") => format!("{item}: {name}"),
        (_, _) => item.to_string(),
    };
    // A dry run that is rejected has done what it was to do: it says what would happen.
    let is_rule = |item: &Item| matches!(item.code.as_str(), "environment_frozen" | "change_required");
    match refusal.items.as_slice() {
        [one] if is_rule(one) && has_flag(refusal, "dry_run") => {
            format!("dry run: this would be rejected: {} {from}", named(one))
        }
        [one] => format!("{} {from}", named(one)),
        all => {
            let lines = all.iter().map(|item| format!("\n  {item}"));
            format!("{} reasons {from}:{}", all.len(), lines.collect::<String>())
        }
    }
}

/// The node of a URL, and its path without the parameters.
fn parts(url: &str) -> (&str, &str) {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let (node, path) = url.split_at(url[begin..].find('/').map_or(url.len(), |at| begin + at));
    (node, path.split('?').next().unwrap_or(path))
}

/// The definition and the config that a request was about, as its path has them.
fn named(refusal: &Refusal) -> Option<String> {
    let (_, path) = parts(&refusal.url);
    let rest = path.strip_prefix("/api/v1/config_definition/")?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut segments = rest.split('/').filter(|segment| !segment.is_empty());
    let definition = decoded(segments.next()?);
    let is_config =
        refusal.items.iter().any(|item| item.code == "config_not_found" || item.code == "not_there");
    match (is_config, segments.next(), segments.next()) {
        (true, Some("config"), Some(key)) => Some(format!("{definition}/{}", decoded(key))),
        _ => Some(definition),
    }
}

/// Whether a request was to change the rules of an environment without approval.
fn is_environment_bypass(refusal: &Refusal) -> bool {
    parts(&refusal.url).1.starts_with("/api/v1/environment/") && has_flag(refusal, "bypass")
}

fn has_flag(refusal: &Refusal, name: &str) -> bool {
    let query = refusal.url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|parameter| parameter.strip_prefix(name) == Some("=true"))
}

/// The change request that a request was about, as its path has it.
fn change(refusal: &Refusal) -> &str {
    let (_, path) = parts(&refusal.url);
    let rest = path.strip_prefix("/api/v1/change_request/").unwrap_or_default();
    rest.split('/').next().filter(|id| !id.is_empty()).unwrap_or("ID")
}

/// The earlier revision that a request reads.
fn revision(refusal: &Refusal) -> Option<&str> {
    let (_, query) = refusal.url.split_once('?')?;
    query.split('&').find_map(|parameter| parameter.strip_prefix("revision="))
}

fn hint_of_refusal(refusal: &Refusal) -> Option<String> {
    let code = refusal.items.first().map_or("", |item| item.code.as_str());
    let is_index = refusal.items.iter().any(|item| item.msg.ends_with("is not an indexed path"));
    // A command that is run again has the same environment.
    let own = |name: String| {
        let prefix = refusal.environment.as_ref().map(|environment| format!("{environment}."));
        prefix.and_then(|prefix| name.strip_prefix(&prefix).map(str::to_owned)).unwrap_or(name)
    };
    let definition = named(refusal)
        .map_or_else(|| "DEF".into(), |name| own(name.split('/').next().unwrap_or_default().to_owned()));
    let name = || own(named(refusal).unwrap_or_default()).replacen('/', " ", 1);
    let text = match (code, refusal.status) {
        // The response is not from a node.
        ("", StatusCode::NOT_FOUND) => {
            "does the URL name a node's client listener, and not its peer listener?".into()
        }
        ("path_not_found", _) => "does the URL name a node, as in http://127.0.0.1:8101? A node of an earlier version does not know what is new: `concord cluster status` shows the versions".into(),
        ("definition_not_found", _) if revision(refusal).is_some() => {
            format!("`concord definition history {definition}` shows when it existed")
        }
        ("not_there", _) => format!("`concord config history {}` shows when it was created", name()),
        ("definition_not_there", _) => {
            format!("`concord definition history {definition}` shows when it existed")
        }
        ("deletion_not_kept", _) => "`concord definition get --deleted` lists those that are kept".into(),
        ("definition_not_found", _) => "`concord definition get` lists the definitions, with `--deleted` those that `undelete` can bring back".into(),
        ("config_not_found", _) => format!(
            "`concord config get {definition}` lists the configs, `concord config create {definition} KEY` creates one"
        ),
        ("flag_not_found", _) => "`concord flag list` lists the flags of a definition; --env and --definition name it".into(),
        ("definition_exists", _) => "`concord apply -f FILE` updates an existing definition; delete it first to undelete an earlier one of this key".into(),
        ("config_exists", _) => format!("`concord config put {definition} KEY` replaces an existing config"),
        ("environment_frozen", _) => "`concord env list` shows the freezes and their reasons; `concord unfreeze ENVIRONMENT` ends one, with `--propose TITLE` where all changes are change requests".into(),
        ("environment_not_found", _) => "`concord env list` lists the environments, `concord env set NAME` creates one".into(),
        ("change_required", _) => "the environment takes change requests only: `--propose TITLE` makes one, of a command that has it; in an emergency `--bypass REASON` does without, with the permission `bypass` and a later review".into(),
        ("not_approved", _) => format!("`concord change show {0}` shows who has approved it, `concord change approve {0}` approves it", change(refusal)),
        ("change_stale", _) if parts(&refusal.url).1.ends_with("/revert") => "`--propose TITLE` on a command makes a change request that sets the records right".into(),
        ("not_approver", _) => "who has approved it takes it back; `--bypass REASON` does without, for a later review".into(),
        ("change_not_due", _) => format!("`concord change show {}` shows its times", change(refusal)),
        ("change_stale", _) => format!("`concord change rebase {}` bases it on the current records; then it must be approved again", change(refusal)),
        ("change_digest" | "change_closed", _) => format!("`concord change show {}` shows the change request as it is", change(refusal)),
        ("change_not_found", _) => "`concord change list` lists the change requests whose definitions the key may read".into(),
        ("cluster_not_upgraded", _) => "`concord cluster status` shows which members run an earlier version".into(),
        ("own_change", _) => "another person must approve it: neither this key nor another one of the same person counts".into(),
        ("key_not_attested", _) => "only an attested key of a person approves, and never the root key: the root key, or two persons with attested keys, attest one with `concord key attest ID`".into(),
        ("index_building", _) => format!("`concord definition reindex {definition}` waits until it is built"),
        (_, _) if is_index => format!(
            "`concord definition get {definition}` shows its indexed paths, `concord definition reindex {definition} --add PATH` adds one"
        ),
        (_, StatusCode::UNAUTHORIZED) => {
            "set CONCORD_API_KEY or CONCORD_API_KEY_FILE, or choose a context: `concord context use NAME`"
                .into()
        }
        (_, StatusCode::FORBIDDEN) if is_environment_bypass(refusal) => "the rules and the freezes of an environment are bypassed with the root key only, whatever verbs a key has; without it, `--propose TITLE` makes a change request, with the permission `define` for all of the environment".into(),
        (_, StatusCode::FORBIDDEN) => "`concord whoami` shows the permissions of the key".into(),
        (_, StatusCode::PRECONDITION_FAILED) => {
            "another client changed the record: read it again, then retry".into()
        }
        (_, StatusCode::GONE) => "omit the revision to start from the current state".into(),
        (_, StatusCode::SERVICE_UNAVAILABLE) => {
            "nothing was changed; `concord cluster status` shows the members".into()
        }
        (_, StatusCode::TOO_MANY_REQUESTS) => {
            "nothing was changed; wait and retry, or send fewer requests at once".into()
        }
        (_, StatusCode::INTERNAL_SERVER_ERROR) => {
            format!("see the log of that node for request id {}", refusal.request_id)
        }
        _ => return None,
    };
    Some(text)
}

fn hint(error: &Error) -> Option<&'static str> {
    /// Fragments of connection errors, and their hints.
    const CAUSES: [(&str, &str); 6] = [
        (
            "is not issued by a CA",
            "nothing was sent: pass the nodes' CA with --cacert FILE or CONCORD_CA_FILE. While the CA is replaced, that \
             file holds both",
        ),
        (
            "not valid for name",
            "nothing was sent: `concord cert show` shows the names that a certificate is valid for",
        ),
        ("CertificateRequired", "the node requires a client certificate: pass --cert FILE and --key FILE"),
        (
            "UnknownCA",
            "the node does not trust the client certificate: pass one of its client CA with --cert FILE and --key FILE",
        ),
        ("InvalidContentType", "the node does not use TLS at this address: use an http URL?"),
        ("invalid HTTP version parsed", "does the node use TLS? Then its URL begins with https"),
    ];
    match error {
        Error::Unavailable(text) | Error::Unknown { text, .. }
            if CAUSES.iter().any(|(cause, _)| text.contains(cause)) =>
        {
            CAUSES.iter().find(|(cause, _)| text.contains(cause)).map(|(_, hint)| *hint)
        }
        Error::Unavailable(_) => {
            Some("nothing was changed; is the URL correct? `concord probe live` shows which nodes respond")
        }
        Error::Unknown { .. } => Some("check whether the write was applied before you retry"),
        Error::Refused(_) | Error::Usage(_) | Error::Protocol(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn refusal(status: u16, path: &str, items: &[(&str, &str)]) -> Failure {
        let items =
            items.iter().map(|(code, msg)| Item { code: (*code).into(), msg: (*msg).into(), loc: vec![] });
        let status = StatusCode::from_u16(status).unwrap();
        let (url, request_id) = (format!("http://n:1{path}"), "r".into());
        Failure::Client(Error::Refused(Box::new(Refusal {
            status,
            items: items.collect(),
            url,
            request_id,
            body: Value::Null,
            current_revision: None,
            environment: None,
        })))
    }

    #[test]
    fn a_refusal_names_what_it_is_about_and_what_to_do() {
        let text = |failure: &Failure| failure.text().unwrap();
        let path = "/api/v1/config_definition/d/config/a%20b?limit=1";
        let missing = refusal(404, path, &[("config_not_found", "config does not exist")]);
        assert_eq!(
            text(&missing),
            "concord: config does not exist: d/a b (404 from http://n:1)\nhint: `concord config get d` lists the configs, `concord config create d KEY` creates one\n"
        );
        let missing = refusal(404, path, &[("definition_not_found", "definition does not exist")]);
        assert!(
            text(&missing).starts_with("concord: definition does not exist: d (404 "),
            "{}",
            text(&missing)
        );
        let past = format!("{path}&revision=3");
        let missing = refusal(404, &past, &[("definition_not_found", "definition does not exist")]);
        assert_eq!(
            text(&missing),
            "concord: definition does not exist: d (404 from http://n:1)\nhint: `concord definition history d` shows when it existed\n"
        );
        let missing = refusal(404, &past, &[("not_there", "the config did not exist at revision 3")]);
        assert!(text(&missing).contains("`concord config history d a b`"), "{}", text(&missing));
        let missing = refusal(404, &past, &[("definition_not_there", "in any words")]);
        assert!(text(&missing).contains("`concord definition history d`"), "{}", text(&missing));
        let elsewhere = refusal(404, path, &[("", "no reason was given")]);
        assert!(text(&elsewhere).contains("client listener"), "{}", text(&elsewhere));
        let misshapen = refusal(422, path, &[("", "input should be a valid object")]);
        assert!(!text(&misshapen).contains("hint"), "{}", text(&misshapen));
        let invalid = refusal(422, path, &[("data_invalid", "one"), ("data_invalid", "two")]);
        assert_eq!(text(&invalid), "concord: 2 reasons (422 from http://n:1):\n  one\n  two\n");
        let index = refusal(422, path, &[("query_invalid", "`x` is not an indexed path")]);
        assert!(text(&index).contains("reindex d --add PATH"), "{}", text(&index));
        assert_eq!((missing.code(), invalid.code(), refusal(429, path, &[("x", "y")]).code()), (3, 5, 7));
    }

    #[test]
    fn a_hint_is_a_command_of_the_same_environment() {
        let path = "/api/v1/config_definition/prod.d/config/prod.k";
        let mut missing = refusal(404, path, &[("config_not_found", "config does not exist")]);
        if let Failure::Client(Error::Refused(refusal)) = &mut missing {
            refusal.environment = Some("prod".into());
        }
        let text = missing.text().unwrap();
        assert!(text.contains("does not exist: prod.d/prod.k") && text.contains("config get d`"), "{text}");
    }

    #[test]
    fn an_unknown_outcome_is_not_called_unchanged() {
        let unknown = Error::Unknown { text: "the time is up".into(), idempotency_key: None };
        let text = Failure::Client(unknown).text().unwrap();
        assert!(text.contains("may have been applied") && !text.contains("nothing was changed"), "{text}");
        assert_eq!(Failure::Difference.text(), None);
    }
}
