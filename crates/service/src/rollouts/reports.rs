//! Reports of readers and words of gates, on any node: the leader remembers them (`evidence`), the others forward them.
//!
//! A reader reports about a rollout that it is in, and outside rollouts about a config that it follows. Both are taken,
//! forwarded and remembered in the same way.
//!
//! They are no writes: the log has nothing of them, and a new leader does not know them. Readers and monitors repeat them.
//!
//! **Invariants:** one hop: what was forwarded is never forwarded again. The leader authorizes again what was forwarded.
//! Reports have places of their own among the requests in progress, and few connections to the leader: they take none from
//! writes.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{
    evidence::{ConfigSaid, EvidenceStore, EvidenceView},
    memory::Taken,
    readers::NodeReaders,
};
use crate::{
    access::Authentication,
    clock::Clock,
    context::Context,
    editions::find,
    forward::{
        answer_time,
        wire::{named, principal},
    },
    freshness::Freshness,
    request::{Principal, Refusal, WatchCount},
    retry::{Attempt, AttemptError, Leader, OnUnknown, Retry, confirm_leadership},
    write::admission::WriteAdmission,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    feature::ROLLOUTS,
    key::Key,
    limits::{GATE_NAME_BYTES_MAX, INSTANCE_BYTES_MAX, REPORT_TEXT_BYTES_MAX},
    record::Revision,
    system::{
        change::ChangeId,
        rollout::{Reader, ReaderError, Rollout},
    },
    unseen::is_unseen,
};
use concord_net::{
    Member, NodeId, ReceiveError,
    call::Call,
    client::Lane,
    codec::{decode, encode},
};
use concord_state::State;

/// Calls to the leader at once: each is answered from its memory.
const CALLS_MAX: usize = 16;
/// Requests at once that ask all members: one of them may hang.
const ROUNDS_MAX: usize = 16;
/// How long a node that shows a rollout waits for what the leader knows of it.
const SHOW_TIMEOUT: Duration = Duration::from_secs(1);

/// How a reader runs. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReaderState {
    /// It runs well with the candidates.
    Healthy,
    /// It does not.
    Failed,
}

/// What a report is about. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportAbout {
    /// The rollout of the change request with this id.
    Rollout(String),
    /// A config, with its proven data.
    Config {
        /// The key of its definition.
        definition: String,
        /// Its own key.
        key: String,
        /// The revision that the reader has.
        revision: Revision,
    },
}

/// What a reader says of a rollout or of a config. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderReport {
    /// What it is about.
    pub about: ReportAbout,
    /// The name of the reader.
    pub reader: String,
    /// Its labels, as [`Reader::parse`] takes them.
    pub labels: String,
    /// Which of the programs with this name; `None` if there is only one.
    pub instance: Option<String>,
    /// How it runs.
    pub state: ReaderState,
    /// What is wrong; kept of a failure only.
    pub detail: String,
}

/// What a monitor says. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateWord {
    /// The name of the gate.
    pub gate: String,
    /// Whether all is well.
    pub is_ok: bool,
    /// What it has seen.
    pub evidence: String,
}

/// What became of a report or a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// Whether it counts: a report of a reader that does not see the candidates does not.
    pub is_counted: bool,
    /// Whether it is a new failure, or a gate says something else than before.
    pub is_news: bool,
}

/// What a node asks of the leader. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Asked {
    Report(ReaderReport),
    Word(GateWord),
    /// What is known of the rollout of a change request.
    Show(String),
    /// How many watches of a node follow the configs of a rollout. It need not lead.
    CountWatches(String),
    /// Which readers follow a config by watches of a node, by the id of its definition and its key. It need not lead.
    ListWatches(u64, String),
    /// What readers say of a config.
    Said(SaidQuestion),
}

/// What a node asks the leader about the readers of a config. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SaidQuestion {
    /// The id of the definition.
    pub(super) definition: u64,
    /// The key of the config.
    pub(super) key: String,
    /// The change request whose candidate some of the readers see.
    pub(super) change: Option<String>,
    /// Readers, each with whether it sees that candidate.
    pub(super) readers: Vec<(String, bool)>,
}

/// The leader's answer. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Reported(Reported),
    Shown(Box<EvidenceView>),
    Watches(WatchCount),
    Listed(Box<NodeReaders>),
    Said(Box<ConfigSaid>),
}

/// What is sent to the leader.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Forwarded {
    /// Who asks, as a forwarded write has it.
    by: String,
    /// How long its sender waits for the answer.
    remaining_ms: u64,
    asked: Asked,
}

/// Counts the watches of this node that follow a config, by the id of its definition and its key.
type CountWatches = dyn Fn(&State, u64, &Key) -> WatchCount + Send + Sync;
/// Lists them.
type ListWatches = dyn Fn(&State, u64, &Key) -> NodeReaders + Send + Sync;

/// What knows the watches of this node: a unit above this one has them.
pub(crate) struct KnownWatches {
    pub(crate) count: Box<CountWatches>,
    pub(crate) list: Box<ListWatches>,
}

impl fmt::Debug for KnownWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownWatches")
    }
}

/// Takes reports of readers and words of gates.
#[derive(Debug)]
pub struct Reports {
    pub(super) cx: Arc<Context>,
    clock: Arc<Clock>,
    pub(super) freshness: Arc<Freshness>,
    authentication: Arc<Authentication>,
    evidence: Arc<EvidenceStore>,
    pub(super) watches: KnownWatches,
    pub(super) admission: WriteAdmission,
    calls: Semaphore,
    rounds: Semaphore,
}

fn violation(name: &'static str, text: String) -> Refusal {
    Invalid::from(Violation::at(vec![name.into()], text)).into()
}

/// Checks what is said in words.
fn check_text(name: &'static str, text: &str) -> Result<(), Refusal> {
    if text.len() <= REPORT_TEXT_BYTES_MAX && !text.contains(|char| is_unseen(char) && char != '\n') {
        return Ok(());
    }
    let msg = format!(
        "`{name}` has at most {REPORT_TEXT_BYTES_MAX} bytes, and no characters that can't be seen but line breaks"
    );
    Err(violation(name, msg))
}

impl ReaderReport {
    /// The reader that it is of, if all of it has its form.
    fn reader(&self) -> Result<Reader, Refusal> {
        check_text("detail", &self.detail)?;
        let instance = self.instance.as_deref().unwrap_or("-");
        let is_seen = |char: char| !is_unseen(char) && !char.is_whitespace();
        if !(1..=INSTANCE_BYTES_MAX).contains(&instance.len()) || !instance.chars().all(is_seen) {
            let msg = format!("`instance` has 1 to {INSTANCE_BYTES_MAX} bytes, and visible characters only");
            return Err(violation("instance", msg));
        }
        Reader::parse(&self.reader, &self.labels).map_err(|error| match error {
            ReaderError::Id => violation("reader", error.to_string()),
            ReaderError::Labels => violation("labels", error.to_string()),
        })
    }

    /// The definition that the key must be able to report of; `None` of a rollout, which the leader knows.
    fn definition(&self) -> Option<&str> {
        match &self.about {
            ReportAbout::Rollout(_) => None,
            ReportAbout::Config { definition, .. } => Some(definition),
        }
    }

    /// What it says of a failure.
    fn failure(&self) -> Option<&str> {
        match self.state {
            ReaderState::Healthy => None,
            ReaderState::Failed => Some(&self.detail),
        }
    }
}

impl GateWord {
    fn check(&self) -> Result<(), Refusal> {
        check_text("evidence", &self.evidence)?;
        if (1..=GATE_NAME_BYTES_MAX).contains(&self.gate.len()) && !self.gate.contains(is_unseen) {
            return Ok(());
        }
        let msg = format!(
            "the name of a gate has 1 to {GATE_NAME_BYTES_MAX} bytes, and no characters that can't be seen"
        );
        Err(violation("name", msg))
    }
}

impl Reports {
    pub(crate) fn new(
        (cx, clock): (&Arc<Context>, &Arc<Clock>),
        freshness: &Arc<Freshness>,
        authentication: &Arc<Authentication>,
        (evidence, watches): (&Arc<EvidenceStore>, KnownWatches),
    ) -> Self {
        Self {
            cx: Arc::clone(cx),
            clock: Arc::clone(clock),
            freshness: Arc::clone(freshness),
            authentication: Arc::clone(authentication),
            evidence: Arc::clone(evidence),
            watches,
            admission: WriteAdmission::new(cx.options.limits.writes_in_flight),
            calls: Semaphore::new(CALLS_MAX),
            rounds: Semaphore::new(ROUNDS_MAX),
        }
    }

    /// Takes what a reader says of a rollout or of a config. Who may not report all that the change request changes is answered
    /// as if there were none, unless the key may read it.
    ///
    /// # Errors
    /// When the report is not valid, its key may not report, no rollout of this change request runs or there is no such config,
    /// the leader has no room, or none answers in time.
    pub async fn report(&self, principal: &Principal, report: ReaderReport) -> Result<Reported, Refusal> {
        principal.authorize(Verb::Report, report.definition())?;
        report.reader()?;
        self.taken(principal, Asked::Report(report)).await
    }

    /// Takes what a monitor says of a gate. It counts for the rollouts of which the key may report everything; a key that
    /// may report anything may say something.
    ///
    /// # Errors
    /// When the word is not valid, its key may report nothing, the leader has no room, or none answers in time.
    pub async fn say(&self, principal: &Principal, word: GateWord) -> Result<Reported, Refusal> {
        principal.authorize(Verb::Report, None)?;
        word.check()?;
        self.taken(principal, Asked::Word(word)).await
    }

    async fn taken(&self, principal: &Principal, asked: Asked) -> Result<Reported, Refusal> {
        let _place = self.admission.admit(principal)?;
        self.freshness.expect_level(ROLLOUTS).await?;
        let deadline = Instant::now() + self.cx.options.write_timeout;
        match self.ask(principal, asked, deadline).await? {
            Answer::Reported(reported) => Ok(reported),
            Answer::Shown(_) | Answer::Watches(_) | Answer::Listed(_) | Answer::Said(_) => {
                Err(Refusal::Internal("the leader has answered something else".into()))
            }
        }
    }

    /// What the leader knows of the rollout of a change request which the client may see. `None` if no leader says so in
    /// time: what is shown besides does not wait for it.
    pub(crate) async fn shown(&self, change: &ChangeId) -> Option<EvidenceView> {
        let asked = Asked::Show(change.as_str().to_owned());
        let deadline = Instant::now() + SHOW_TIMEOUT.min(self.cx.options.read_timeout);
        match self.ask(&Principal::cluster(), asked, deadline).await.ok()? {
            Answer::Shown(view) => Some(*view),
            Answer::Reported(_) | Answer::Watches(_) | Answer::Listed(_) | Answer::Said(_) => None,
        }
    }

    /// How many watches follow the first config of a rollout, on all nodes. `None` if a member does not say so in time.
    pub(crate) async fn watches(&self, change: &ChangeId) -> Option<WatchCount> {
        let consensus = self.cx.consensus()?;
        let own = self.own_watches(&consensus.state(), change);
        let answers =
            self.ask_others(consensus, Asked::CountWatches(change.as_str().to_owned())).await.ok()?;
        answers.into_iter().try_fold(own, |all, (_, answer)| {
            let WatchCount { identified, unidentified } = match answer? {
                Answer::Watches(count) => count,
                Answer::Reported(_) | Answer::Shown(_) | Answer::Listed(_) | Answer::Said(_) => return None,
            };
            Some(WatchCount {
                identified: all.identified + identified,
                unidentified: all.unidentified + unidentified,
            })
        })
    }

    /// What each other member answers by itself, whether it leads or not. `None` of those that do not in time.
    ///
    /// # Errors
    /// When too many other requests ask all members.
    pub(super) async fn ask_others(
        &self,
        consensus: &Consensus,
        asked: Asked,
    ) -> Result<Vec<(NodeId, Option<Answer>)>, Refusal> {
        let place = timeout_at(Instant::now() + SHOW_TIMEOUT, self.rounds.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(Refusal::Overloaded) };
        let members = consensus.status().members.into_iter().map(|status| status.member);
        let others: Vec<Member> = members.filter(|member| member.id != self.cx.node_id()).collect();
        let asking =
            others.iter().map(async |member| (member.id, self.ask_member(member, asked.clone()).await));
        Ok(join_all(asking).await)
    }

    async fn ask_member(&self, member: &Member, asked: Asked) -> Option<Answer> {
        let deadline = Instant::now() + SHOW_TIMEOUT;
        let body = encode(&Forwarded {
            by: named(&Principal::cluster()).into_owned(),
            remaining_ms: u64::try_from(SHOW_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
            asked,
        });
        let (peers, time) = (self.cx.peers(), deadline.saturating_duration_since(Instant::now()));
        let call = peers.call(Lane::Forward, member.id, &member.peer_addr, Call::Report, body, time);
        decode::<Attempt<Answer>>(&call.await.ok()?).ok()?.ok()
    }

    /// What readers say of a config, as the leader knows it. `None` if no leader says so in time.
    pub(super) async fn said(&self, question: SaidQuestion) -> Option<ConfigSaid> {
        let deadline = Instant::now() + SHOW_TIMEOUT.min(self.cx.options.read_timeout);
        match self.ask(&Principal::cluster(), Asked::Said(question), deadline).await.ok()? {
            Answer::Said(said) => Some(*said),
            Answer::Reported(_) | Answer::Shown(_) | Answer::Watches(_) | Answer::Listed(_) => None,
        }
    }

    /// Of this node, and of the first config of the rollout: many follow several, and to count is work.
    fn own_watches(&self, state: &State, change: &ChangeId) -> WatchCount {
        let first = state.rollout(change).and_then(|rollout| rollout.candidates.first());
        first.map_or_else(WatchCount::default, |candidate| {
            (self.watches.count)(state, candidate.definition, &candidate.key)
        })
    }

    /// Asks the leader, whichever node it is.
    async fn ask(&self, principal: &Principal, asked: Asked, deadline: Instant) -> Result<Answer, Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        // Whatever an attempt has done, the next one does again.
        let retry = Retry::until(deadline, OnUnknown::Repeat, "no leader took the report in time");
        let attempt = async |deadline| match self.cx.known_leader(consensus)? {
            Leader::ThisNode => self.answer(consensus, principal, &asked, deadline).await,
            Leader::Other(leader) => self.forward(consensus, (principal, &asked), &leader, deadline).await,
        };
        retry.run(consensus, attempt).await
    }

    async fn forward(
        &self,
        consensus: &Consensus,
        (principal, asked): (&Principal, &Asked),
        leader: &Member,
        deadline: Instant,
    ) -> Attempt<Answer> {
        let Ok(Ok(_place)) = timeout_at(deadline, self.calls.acquire()).await else {
            return Err(AttemptError::Retry(
                "the time was up before the report was sent to the leader".into(),
            ));
        };
        let remaining = deadline.saturating_duration_since(Instant::now());
        let forwarded = Forwarded {
            by: named(principal).into_owned(),
            remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            asked: asked.clone(),
        };
        let (peers, body) = (self.cx.peers(), encode(&forwarded));
        let call = peers.call(Lane::Forward, leader.id, &leader.peer_addr, Call::Report, body, remaining);
        let response = tokio::select! {
            response = call => response?,
            // It may be lost. What is repeated does no harm.
            () = consensus.leader_changed() => {
                return Err(AttemptError::Retry("the leader changed before it answered".into()));
            }
        };
        decode::<Attempt<Answer>>(&response).unwrap_or_else(|error| {
            Err(AttemptError::Unknown(format!("the leader's response is invalid: {error}")))
        })
    }

    /// Answers what another node has forwarded.
    ///
    /// # Errors
    /// When the body is not one of this version. Everything else is a response.
    pub async fn answer_report(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let Forwarded { by, remaining_ms, asked } = decode(&body)?;
        Ok(encode(&self.answer_forwarded(principal(&by)?, remaining_ms, asked).await))
    }

    async fn answer_forwarded(
        &self,
        principal: Principal,
        remaining_ms: u64,
        asked: Asked,
    ) -> Attempt<Answer> {
        let Some(consensus) = self.cx.consensus() else { return Err(AttemptError::Retry(self.cx.absence())) };
        let _place = self.admission.admit(&principal)?;
        match &asked {
            Asked::CountWatches(change) => {
                let change = ChangeId::parse(change).ok_or(Refusal::from(Rejection::ChangeNotFound))?;
                return Ok(Answer::Watches(self.own_watches(&consensus.state(), &change)));
            }
            Asked::ListWatches(definition, key) => {
                let key = Key::parse(key).map_err(|_| Refusal::from(Rejection::ConfigNotFound))?;
                let listed = (self.watches.list)(&consensus.state(), *definition, &key);
                return Ok(Answer::Listed(Box::new(listed)));
            }
            Asked::Report(_) | Asked::Word(_) | Asked::Show(_) | Asked::Said(_) => {}
        }
        let remaining = Duration::from_millis(remaining_ms).min(self.cx.options.write_timeout);
        let deadline = Instant::now() + remaining.saturating_sub(answer_time(remaining));
        self.answer(consensus, &principal, &asked, deadline).await
    }

    /// Answers on this node, which leads or did so a moment ago. What is rejected rests on a state that was confirmed.
    async fn answer(
        &self,
        consensus: &Consensus,
        principal: &Principal,
        asked: &Asked,
        deadline: Instant,
    ) -> Attempt<Answer> {
        let first = self.answer_at_once(consensus, principal, asked);
        if !matches!(
            first,
            Err(AttemptError::Refused(Refusal::Rejected(_) | Refusal::Forbidden { .. } | Refusal::KeyEnded))
        ) {
            return first;
        }
        confirm_leadership(consensus, deadline).await?;
        self.answer_at_once(consensus, principal, asked)
    }

    fn answer_at_once(&self, consensus: &Consensus, principal: &Principal, asked: &Asked) -> Attempt<Answer> {
        if !self.cx.leads(consensus) {
            return Err(AttemptError::Retry(format!("node {} does not lead", self.cx.node_id())));
        }
        let state = consensus.state();
        Ok(match asked {
            Asked::Report(report) => Answer::Reported(self.take_report(&state, principal, report)?),
            Asked::Word(word) => Answer::Reported(self.take_word(&state, principal, word)?),
            Asked::Show(change) => {
                let shown = ChangeId::parse(change)
                    .and_then(|change| Some(self.evidence.shown(&change, state.rollout(&change)?)));
                Answer::Shown(Box::new(shown.unwrap_or_default()))
            }
            Asked::Said(question) => Answer::Said(Box::new(self.known_said(&state, question)?)),
            Asked::CountWatches(_) | Asked::ListWatches(..) => {
                return Err(Refusal::Internal("watches are counted by the node that has them".into()).into());
            }
        })
    }

    fn known_said(&self, state: &State, question: &SaidQuestion) -> Result<ConfigSaid, Refusal> {
        let key = Key::parse(&question.key).map_err(|_| Rejection::ConfigNotFound)?;
        let change = question.change.as_deref().and_then(ChangeId::parse);
        let rollout = change.as_ref().and_then(|change| Some((change, state.rollout(change)?)));
        let config = state.definition_by_id(question.definition).and_then(|found| found.config(key.as_str()));
        let revision = config.ok_or(Rejection::ConfigNotFound)?.revision;
        Ok(self.evidence.said((question.definition, &key, revision), rollout, &question.readers))
    }

    fn take_report(
        &self,
        state: &State,
        principal: &Principal,
        report: &ReaderReport,
    ) -> Result<Reported, Refusal> {
        let principal = self.authentication.current(principal)?;
        principal.authorize(Verb::Report, report.definition())?;
        let reader = report.reader()?;
        let instance = SmolStr::new(report.instance.as_deref().unwrap_or_default());
        let (who, time) = ((&reader, &instance), self.clock.log_time(state));
        let taken = match &report.about {
            ReportAbout::Rollout(change) => {
                let id = ChangeId::parse(change).ok_or(Rejection::ChangeNotFound)?;
                let rollout = reported_rollout(state, &principal, &id)?;
                self.evidence.report((&id, rollout), who, report.failure(), time)
            }
            ReportAbout::Config { definition, key, revision } => {
                let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
                let config = found.config(key).ok_or(Rejection::ConfigNotFound)?;
                // What is said of earlier data counts no more. There are no later ones.
                if *revision < config.revision {
                    return Ok(Reported { is_counted: false, is_news: false });
                }
                let about = (found.definition.id, &config.key, config.revision);
                self.evidence.report_of_config(about, &principal, who, (report.failure(), time))
            }
        };
        let taken = taken.map_err(|_| full("reports of readers"))?;
        if taken == Taken::News {
            match &report.about {
                ReportAbout::Rollout(change) => {
                    tracing::info!(change, reader = reader.id, "a reader has failed in a rollout");
                }
                ReportAbout::Config { definition, key, .. } => {
                    tracing::info!(definition, config = key, reader = reader.id, "a reader rejects `{key}`");
                }
            }
        }
        Ok(Reported { is_counted: taken != Taken::Dropped, is_news: taken == Taken::News })
    }

    fn take_word(&self, state: &State, principal: &Principal, word: &GateWord) -> Result<Reported, Refusal> {
        let principal = self.authentication.current(principal)?;
        principal.authorize(Verb::Report, None)?;
        word.check()?;
        let (said, time) = ((&principal, word.is_ok, word.evidence.clone()), self.clock.log_time(state));
        let is_news = self.evidence.say(&word.gate, said, time).map_err(|_| full("words of gates"))?;
        if is_news {
            tracing::info!(gate = word.gate, is_ok = word.is_ok, "a gate says something new");
        }
        Ok(Reported { is_counted: true, is_news })
    }
}

/// The rollout that a reader may report of.
fn reported_rollout<'s>(
    state: &'s State,
    principal: &Principal,
    id: &ChangeId,
) -> Result<&'s Rollout, Refusal> {
    let found = find(state, id).ok_or(Rejection::ChangeNotFound)?;
    if !principal.may_in(Verb::Report, found.scope()) {
        let may_know = principal.may_see_change(found.scope());
        return Err(if may_know {
            Refusal::Forbidden { verb: Verb::Report }
        } else {
            Rejection::ChangeNotFound.into()
        });
    }
    let rollout = state.rollout(id).filter(|rollout| rollout.is_running());
    Ok(rollout.ok_or(Rejection::RolloutStage)?)
}

fn full(what: &str) -> Refusal {
    Refusal::LimitReached(format!("limit reached: the leader keeps no more {what}; retry later"))
}

#[cfg(test)]
mod tests;
