//! What a cache says of the candidates that it follows: that the program runs well with them, or not.
//!
//! A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
//! every 20 seconds: `failed` with the reason if a type or the judge of the program rejects it, at once and then every 5
//! seconds; otherwise `healthy`. One report is of all configs of a change request: it has failed if one of them has.
//!
//! **Invariants:** one report at a time is under way. Nothing is reported of what a node has not sent since the start. A key
//! that may not report is told so once for each change request. No report holds up a read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{Cache, Config, Shared, content::Content};
use crate::{Error, Request, Retry, reader::Reader, segment};

/// The pause between two reports of one change request. A report counts for a minute.
const EVERY: Duration = Duration::from_secs(20);
/// The same of failures: a new leader knows none, and must not wait long for them.
const EVERY_FAILED: Duration = Duration::from_secs(5);
/// The first report of a change request comes within this time, so that not all readers report in one moment.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a reason.
const DETAIL_BYTES_MAX: usize = 1024;

/// Whether a program runs well with a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Healthy,
    /// It does not, for this reason. It is stored nowhere, and shown to who may read the change request: it must contain no
    /// secret values.
    Failed(String),
    /// It does not know yet: nothing is reported.
    Unknown,
}

/// Says of a config that is a candidate whether the program runs well with it. It is called every few seconds, and must not
/// block.
#[derive(Clone)]
pub struct Judge(Arc<dyn Fn(&Config) -> Verdict + Send + Sync>);

impl Judge {
    /// A judge.
    pub fn new(judge: impl Fn(&Config) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(judge))
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

/// Whether a config is admitted, or why not.
type Admitted = Result<(), String>;
/// What admits a config.
type Admits = fn(&Config) -> Admitted;

/// What must admit a config, for as long as it is there.
#[derive(Debug)]
pub(super) struct Check {
    definition: String,
    key: String,
    admits: Admits,
    /// The last config that it was asked about, and what it said.
    last: Mutex<Option<(Arc<Config>, Admitted)>>,
}

impl Check {
    fn of(&self, config: &Arc<Config>) -> Admitted {
        if self.definition != config.definition || self.key != config.key {
            return Ok(());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((seen, said)) if Arc::ptr_eq(seen, config) => said.clone(),
            Some(_) | None => {
                let said = (self.admits)(config).map_err(|error| without_values(&error));
                *last = Some((config.clone(), said.clone()));
                said
            }
        }
    }
}

impl Cache {
    /// Adds a check of a config; it holds until the result is dropped.
    pub(super) fn check(&self, definition: String, key: String, admits: Admits) -> Arc<Check> {
        let check = Arc::new(Check { definition, key, admits, last: Mutex::default() });
        let mut checks = self.0.shared.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|known| known.strong_count() > 0);
        checks.push(Arc::downgrade(&check));
        check
    }
}

/// Why something is rejected, without texts and numbers of the data: they may be secret, and the reason is shown to others.
fn without_values(error: &str) -> String {
    let mut shown = String::with_capacity(error.len());
    let mut quoted = None;
    for character in error.chars() {
        match quoted {
            Some(end) if character == end => {
                quoted = None;
                shown.push('…');
                shown.push(character);
            }
            Some(_) => {}
            None => {
                shown.push(character);
                quoted = (character == '"' || is_value(&shown)).then_some(character);
            }
        }
    }
    shown
}

/// Whether what begins with the last character is a value of the data: as serde names them.
fn is_value(shown: &str) -> bool {
    ["boolean `", "integer `", "floating point `", "number `", "character `", "unknown variant `"]
        .iter()
        .any(|begin| shown.ends_with(begin))
}

/// A reason as it is sent: one line of so many bytes. A node rejects characters that nobody sees.
fn detail(reason: &str) -> String {
    let is_seen =
        |character: char| character == '…' || character.is_ascii_graphic() || character.is_alphanumeric();
    let mut text: String =
        reason.chars().map(|character| if is_seen(character) { character } else { ' ' }).collect();
    text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
    text
}

/// What was reported of a change request, and when it is reported again.
#[derive(Debug)]
struct Turn {
    said: Option<Verdict>,
    at: Instant,
}

impl Turn {
    fn first() -> Self {
        Self { said: None, at: Instant::now() + FIRST_WITHIN.mul_f64(fastrand::f64()) }
    }

    /// When a verdict is reported. That something is wrong is said at once.
    fn due(&self, verdict: &Verdict) -> Option<Instant> {
        match verdict {
            Verdict::Unknown => None,
            Verdict::Failed(_) if self.said.as_ref() != Some(verdict) => Some(Instant::now()),
            Verdict::Failed(_) | Verdict::Healthy => Some(self.at),
        }
    }
}

/// Reports until the cache is dropped.
pub(super) async fn run(shared: &Shared) {
    let Some(reader) = shared.client.as_reader() else { return };
    let mut changed = shared.changed.subscribe();
    let (mut turns, mut forbidden) = (BTreeMap::<String, Turn>::new(), BTreeSet::new());
    loop {
        let mut verdicts = shared.verdicts();
        forbidden.retain(|change| verdicts.contains_key(change));
        turns.retain(|change, _| verdicts.contains_key(change));
        verdicts.retain(|change, _| !forbidden.contains(change));
        let due = |(change, verdict): (&String, &Verdict), turns: &mut BTreeMap<String, Turn>| {
            let turn = turns.entry(change.clone()).or_insert_with(Turn::first);
            Some((turn.due(verdict)?, change.clone()))
        };
        let next = verdicts.iter().filter_map(|one| due(one, &mut turns)).min();
        let Some((at, change)) = next else {
            // The sender lives as long as this task.
            let _ = changed.changed().await;
            continue;
        };
        if at > Instant::now() {
            tokio::select! {
                () = sleep_until(at) => {}
                _ = changed.changed() => {}
            }
            continue;
        }
        let Some(verdict) = verdicts.remove(&change) else { continue };
        if !send(shared, reader, &change, &verdict).await {
            forbidden.insert(change);
            continue;
        }
        let every = if matches!(verdict, Verdict::Failed(_)) { EVERY_FAILED } else { EVERY };
        let pause = every.mul_f64(0.9 + fastrand::f64() / 10.0);
        turns.insert(change, Turn { said: Some(verdict), at: Instant::now() + pause });
    }
}

/// Sends a report. Returns whether there is a point in another one.
async fn send(shared: &Shared, reader: &Reader, change: &str, verdict: &Verdict) -> bool {
    let mut body = json!({ "reader": reader.name, "labels": reader.labels, "state": "healthy" });
    if let Verdict::Failed(reason) = verdict {
        body["state"] = "failed".into();
        body["detail"] = detail(reason).into();
    }
    let path = format!("/api/v1/change_request/{}/report", segment(change));
    let request = Request::new(Method::POST, path).json(&body).retry(Retry::OtherNode).timeout(TIMEOUT);
    match shared.client.send(request).await {
        // Who may not even know of a change request is told that there is none.
        Err(Error::Refused(refusal))
            if matches!(refusal.status, StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) =>
        {
            shared.client.warn_of(&format!("nothing is reported of change request {change}: {refusal}"));
            false
        }
        // What is wrong may be right at the next turn.
        Ok(_) | Err(_) => true,
    }
}

impl Shared {
    /// What there is to say of each change request with a candidate.
    fn verdicts(&self) -> BTreeMap<String, Verdict> {
        let candidates: Vec<(String, Arc<Config>)> = {
            let known = self.known();
            let content = known.content.as_ref().filter(|_| known.is_live && !known.is_superseded);
            let all = content.into_iter().flat_map(Content::candidates);
            all.map(|(change, config)| (change.to_owned(), config.clone())).collect()
        };
        let mut verdicts = BTreeMap::new();
        for (change, config) in candidates {
            let verdict = self.verdict(&config);
            let known = verdicts.entry(change).or_insert(Verdict::Healthy);
            match (&*known, &verdict) {
                (Verdict::Failed(_), _) | (Verdict::Unknown, Verdict::Healthy | Verdict::Unknown) => {}
                (Verdict::Healthy, _) | (Verdict::Unknown, Verdict::Failed(_)) => *known = verdict,
            }
        }
        verdicts
    }

    fn verdict(&self, config: &Arc<Config>) -> Verdict {
        let checks: Vec<Arc<Check>> = {
            let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
            checks.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        if let Some(reason) = checks.iter().find_map(|check| check.of(config).err()) {
            return Verdict::Failed(reason);
        }
        self.options.judge.as_ref().map_or(Verdict::Healthy, |judge| (judge.0)(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_no_values() {
        for (error, shown) in [
            (
                r#"a/k: invalid type: string "s3cret", expected u32"#,
                r#"a/k: invalid type: string "…", expected u32"#,
            ),
            ("invalid value: integer `4711`, expected u8", "invalid value: integer `…`, expected u8"),
            ("unknown variant `s3cret`, expected `a` or `b`", "unknown variant `…`, expected `a` or `b`"),
            ("missing field `plan`", "missing field `plan`"),
        ] {
            assert_eq!(without_values(error), shown);
        }
    }

    #[test]
    fn a_reason_is_one_line_and_bounded() {
        assert_eq!(detail("a\nb\tc"), "a b c");
        let long = detail(&"é".repeat(DETAIL_BYTES_MAX));
        assert!(long.len() <= DETAIL_BYTES_MAX && long.len() > DETAIL_BYTES_MAX - 2);
    }

    #[test]
    fn what_is_wrong_is_said_at_once_and_again_at_its_turn() {
        let failed = Verdict::Failed("x".into());
        let turn = Turn { said: Some(Verdict::Healthy), at: Instant::now() + EVERY };
        assert!(turn.due(&failed).is_some_and(|at| at <= Instant::now()));
        assert_eq!(turn.due(&Verdict::Healthy), Some(turn.at));
        let turn = Turn { said: Some(failed.clone()), ..turn };
        assert_eq!(turn.due(&failed), Some(turn.at));
        assert_eq!(turn.due(&Verdict::Unknown), None);
    }
}
