//! Records leave the service for a principal only: what `http` can call names one, or stands in a list of what tells
//! nothing.

use std::ops::Range;

use super::{SRC, Source, Token, assert_none, syntax::named_paths};

/// Methods of the service that ask nobody who calls, and why they need not.
const FOR_ANYBODY: [(&str, &str); 37] = [
    ("admit_credential", "before there is a principal"),
    ("caller_connections", "counts"),
    ("consensus", "calls between nodes, and the node's life"),
    ("count_failed_login", "before there is a principal"),
    ("echo", "what the caller wrote, shown to whom `shown_to` names"),
    ("failed", "the node's life"),
    ("form_when_possible", "the node's life: what its settings say"),
    ("hand_over", "the node's life"),
    ("keep_certificates", "the node's life"),
    ("is_stored", "before there is a principal"),
    ("judge", "finds the principal"),
    ("judge_ticket", "finds the principal"),
    ("knows_leader", "a fact that the probes tell"),
    ("log_in", "its token says who it is"),
    ("last_at", "the time of the newest change, for a line of the audit log"),
    ("levels", "what this program knows"),
    ("limits", "settings"),
    ("moved", "the node's life: what its settings say"),
    ("node_id", "a setting"),
    ("node_connections", "counts"),
    ("open_metrics", "a listener that the operator chooses: sizes and times"),
    ("peers", "calls between nodes"),
    ("project", "parts of what the caller was given"),
    ("ready", "a probe: no records"),
    ("ready_for_writes", "a probe: no records"),
    ("reservation", "memory"),
    ("restored", "in the name of the caller that `begin_rollbacks` was given"),
    ("revision", "a number that every answer bears"),
    ("run_long", "threads"),
    ("set_root_keys", "settings, read again"),
    ("settle", "finds the principal"),
    ("shutdown", "the node's life"),
    ("staleness", "a time"),
    ("start", "the node's life"),
    ("stop", "the node's life"),
    ("write_timeout", "a setting"),
    ("new", "makes the service"),
];

/// What the names of methods that answer another node begin with. Only the files below may call them.
const FOR_A_NODE: &str = "answer_";

/// Files of `http` that serve other nodes, or that serve no requests.
const FOR_NODES: [&str; 2] = ["crates/http/src/peer/mod.rs", "crates/http/src/peer/refusal_log.rs"];

/// The token that closes what an opening one opens.
fn close(tokens: &[Token], open: usize) -> usize {
    let (opening, closing) = match tokens[open].text.as_str() {
        "(" => ("(", ")"),
        _ => ("{", "}"),
    };
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        if token.text == opening {
            depth += 1;
        } else if token.text == closing {
            depth -= 1;
            if depth == 0 {
                return place;
            }
        }
    }
    tokens.len()
}

/// The type of each public field of a struct; of `Arc<X>`, `X`.
fn public_fields(source: &Source, of: &str) -> Vec<String> {
    let text = |at: usize| source.tokens.get(at).map_or("", |token| token.text.as_str());
    let is_begin = |at: &usize| text(*at) == "struct" && text(at + 1) == of && text(at + 2) == "{";
    let Some(begin) = (0..source.tokens.len()).find(is_begin) else { return Vec::new() };
    let fields = begin + 3..close(&source.tokens, begin + 2);
    let public = fields.filter(|at| text(*at) == "pub" && text(at + 2) == ":");
    public.map(|at| if text(at + 3) == "Arc" { text(at + 5) } else { text(at + 3) }.to_owned()).collect()
}

/// What `http` reaches of the service: itself and its units. The audit log and the spans of `Context` take in what is
/// recorded; a page of the log is a row of `tests/hostile/grants.rs`.
fn reachable(sources: &[Source]) -> Vec<String> {
    let of = |name: &str| sources.iter().flat_map(|source| public_fields(source, name)).collect::<Vec<_>>();
    [vec!["Service".into()], of("Units")].concat()
}

/// The bodies of `impl X`, for these types.
fn bodies(tokens: &[Token], types: &[String]) -> Vec<Range<usize>> {
    let is_begin = |place: &usize| {
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
        text(*place) == "impl" && types.iter().any(|name| name == text(place + 1)) && text(place + 2) == "{"
    };
    (0..tokens.len()).filter(is_begin).map(|place| place + 3..close(tokens, place + 2)).collect()
}

/// Methods of the service that `http` can call and that name neither a principal nor a caller.
fn for_anybody(source: &Source, types: &[String]) -> Vec<(usize, String)> {
    let tokens = &source.tokens;
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    for place in bodies(tokens, types).into_iter().flatten() {
        let name = match (text(place), text(place + 1), text(place + 2)) {
            ("pub", "async", "fn") => place + 3,
            ("pub", "fn", _) => place + 2,
            _ => continue,
        };
        let Some(open) = (name..tokens.len()).find(|at| text(*at) == "(") else { continue };
        let parameters = &tokens[open..close(tokens, open)];
        let names_who = parameters.iter().any(|token| token.text == "Principal" || token.text == "Caller");
        if !names_who && !text(name).starts_with(FOR_A_NODE) {
            found.push((tokens[name].line, text(name).to_owned()));
        }
    }
    found
}

/// Where `http` reaches past the service, or answers as if a node had asked.
fn reaches_past(source: &Source) -> Vec<String> {
    let named = named_paths(&source.path, &source.tokens).into_iter();
    let mut found: Vec<String> = named
        .filter(|named| {
            let named: Vec<&str> = named.segments.iter().map(String::as_str).collect();
            named.starts_with(&["state", "State"]) || named.starts_with(&["consensus"])
        })
        .map(|named| format!("{}:{} names `{}`", source.path, named.line, named.segments.join("::")))
        .collect();
    for three in source.tokens.windows(3) {
        let name = three[1].text.as_str();
        let is_past = name == "consensus" || name.starts_with(FOR_A_NODE);
        if three[0].text == "." && is_past && three[2].text == "(" {
            found.push(format!("{}:{} calls `{name}`", source.path, three[1].line));
        }
    }
    found
}

#[test]
fn what_the_interface_can_call_names_a_principal() {
    let service =
        || SRC.iter().filter(|source| source.path.starts_with("crates/service/src/") && !source.is_test());
    let types = reachable(&SRC);
    assert!(types.len() > 10, "the units of the service: {types:?}");
    let mut breaches = Vec::new();
    for source in service() {
        let unknown = for_anybody(source, &types).into_iter();
        let unknown = unknown.filter(|(_, name)| !FOR_ANYBODY.iter().any(|(known, _)| known == name));
        breaches.extend(unknown.map(|(line, name)| format!("{}:{line} `{name}`", source.path)));
    }
    assert_none("a method that `http` can call names a principal, or stands in the list here", &breaches);
    let is_there =
        |name: &str| service().flat_map(|source| for_anybody(source, &types)).any(|(_, found)| found == name);
    assert!(FOR_ANYBODY.iter().all(|(name, _)| is_there(name)), "a name in the list is no method any more");
}

#[test]
fn the_interface_reaches_no_state() {
    let api = SRC.iter().filter(|source| source.path.starts_with("crates/http/src/") && !source.is_test());
    let breaches: Vec<String> =
        api.filter(|source| !FOR_NODES.contains(&source.path.as_str())).flat_map(reaches_past).collect();
    assert_none("`http` gets records from the service only, for a principal", &breaches);
    assert!(
        FOR_NODES.iter().all(|path| SRC.iter().any(|source| source.path == *path)),
        "a name here is no file"
    );
}

#[test]
fn a_method_for_anybody_is_found() {
    let names = |text: &str| {
        let source = Source::new("crates/service/src/x.rs", text);
        let found = for_anybody(&source, &reachable(std::slice::from_ref(&source)));
        found.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    let text = "impl Other { pub fn a(&self) {} }\nimpl Service {\n pub async fn b(&self, at: u64) { f(Principal::root()) }\n \
                pub fn c(&self, principal: &Principal) {}\n pub(super) fn d(&self) {}\n pub fn answer_x(&self) {}\n \
                pub fn e(&self, caller: Caller) {}\n \
                pub fn f<T>(&self, work: impl FnOnce(T)) {}\n}\nimpl Service { pub fn g() {} }\n \
                pub struct Units { pub a: Arc<Reads>, b: Hidden }\nimpl Reads { pub fn h() {} }\nimpl Hidden { pub fn i() {} }";
    assert_eq!(names(text), ["b", "f", "g", "h"]);
}

#[test]
fn a_way_past_the_service_is_found() {
    let found = |text: &str| reaches_past(&Source::new("crates/http/src/x.rs", text)).len();
    assert_eq!(found("use concord_state::{Collection, State};"), 1);
    assert_eq!(found("fn f(state: &concord_state::State) {}"), 1);
    assert_eq!(found("use concord_consensus::Consensus;"), 1);
    assert_eq!(found("let state = service.consensus().unwrap().state();"), 1);
    assert_eq!(found("service.answer_page(body).await"), 1);
    assert_eq!(found("use axum::extract::State; use concord_state::query::QueryResult;"), 0);
}
