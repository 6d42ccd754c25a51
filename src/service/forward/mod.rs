//! Carries a write to the leader's peer listener, and answers the writes that other nodes carry here.
//!
//! The typed write goes, not the HTTP request: the asked node has authenticated, limited and parsed it. JSON goes
//! as the text that was checked and is parsed again on the leader, because a value has no compact form of its own.
//!
//! **Invariant:** one hop. A node that is given another's write decides it or says that it does not lead; it never
//! passes it on. What became of a call is told apart exactly: not sent, refused before anything was done, or
//! unknown.

pub(crate) mod batching;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Caller, Compiled, NewSchema, NewUnique, Principal, Refusal, Rollback, Service, Write,
    write::{Attempt, prepare::Asked, run_blocking},
};
use crate::peer::call::Call;
use crate::peer::codec::{decode, encode};
use crate::{
    model::{
        command::{Expect, IdempotencyKey},
        document::{self, Document, DocumentError},
        patch::{Patch, PatchFormat},
        record::Revision,
    },
    peer::{
        Member, ReceiveError,
        client::{CallError, Lane, Peers},
    },
    raft::Consensus,
};
use batching::may_join;

/// What the leader leaves of the caller's time for its answer to come back.
const WAY_BACK: Duration = Duration::from_millis(100);
/// Bytes above which a write is parsed off the threads that serve requests.
pub(super) const LONG: usize = 64 << 10;

/// A write under way to the leader.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Carried {
    by: String,
    reason: Option<String>,
    request: Option<IdempotencyKey>,
    remaining_ms: u64,
    write: CarriedWrite,
    dry_run: bool,
}

/// [`Write`] with texts in the place of documents. New variants go to the end.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum CarriedWrite {
    CreateDefinition { key: String, indexes: Vec<String>, schema: Option<Arc<str>> },
    SetIndexes { key: String, indexes: Vec<String>, expect: Expect },
    DeleteDefinition { key: String, expect: Expect, restrict: bool },
    WriteConfig { definition: String, key: String, data: Arc<str>, expect: Expect },
    DeleteConfig { definition: String, key: String, expect: Expect },
    Rollback { definition: String, id: Revision, key: String, data: Arc<str>, expect: Expect },
    SetSchema { key: String, schema: Option<Arc<str>>, expect: Expect, force: bool },
    SetUnique { key: String, paths: Vec<String>, expect: Expect },
    PatchConfig { definition: String, key: String, form: CarriedForm, patch: Arc<str>, expect: Expect },
    Batch(Vec<CarriedWrite>),
}

/// [`PatchFormat`] on its way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum CarriedForm {
    Merge,
    Json,
}

impl Service {
    /// Tries a write on the leader.
    pub(super) async fn forward(
        &self,
        consensus: &Consensus,
        asked: &Asked,
        leader: &Member,
        deadline: Instant,
    ) -> Attempt {
        let (peers, convoys) = (&self.inner.peers, &self.inner.convoys);
        let sent = async {
            if may_join(asked) {
                convoys.send(peers, leader, asked, deadline).await
            } else {
                alone(peers, leader, asked, deadline).await
            }
        };
        tokio::select! {
            attempt = sent => attempt,
            // A lost leader never answers. A write that may be sent again need not wait for that.
            () = consensus.leader_changed(), if asked.may_repeat() => {
                Attempt::Unknown("the leader changed while the write was under way".into())
            }
        }
    }

    /// Decides a write that another node carried here.
    ///
    /// # Errors
    /// When the body is none of this version's. Everything else is an answer.
    pub(crate) async fn answer_write(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let depth = self.limits().json_depth;
        let (remaining, asked) = if body.len() > LONG {
            let opened = run_blocking(move || open(&body, depth)).await;
            opened.map_err(|_| ReceiveError::Failed("the write could not be read".into()))??
        } else {
            open(&body, depth)?
        };
        Ok(encode(&self.answer(asked, remaining).await))
    }

    pub(super) async fn answer(&self, asked: Asked, remaining: Duration) -> Attempt {
        let Some(consensus) = self.consensus() else { return Attempt::Later(self.absence()) };
        if !self.leads(consensus) {
            return Attempt::Later(format!("node {} does not lead", self.node_id()));
        }
        let Ok(_permit) = self.inner.admission.try_acquire() else {
            return Attempt::Refused(Refusal::Overloaded);
        };
        if let Err(refusal) = self.check_room(&asked.write) {
            return Attempt::Refused(refusal);
        }
        let time = remaining.saturating_sub(WAY_BACK).min(self.time_for(&asked.write));
        self.decide(consensus, &Arc::new(asked), Instant::now() + time).await
    }
}

/// Sends a write with a call of its own.
async fn alone(peers: &Peers, leader: &Member, asked: &Asked, deadline: Instant) -> Attempt {
    let remaining = deadline.saturating_duration_since(Instant::now());
    let body = encode(&Carried::of(asked, remaining));
    match peers.call(Lane::Forward, leader.id, &leader.peer_addr, Call::Write, body, remaining).await {
        Ok(answer) => decode(&answer)
            .unwrap_or_else(|error| Attempt::Unknown(format!("the leader's answer is {error}"))),
        Err(error) => error.into(),
    }
}

fn open(body: &[u8], depth: usize) -> Result<(Duration, Asked), ReceiveError> {
    decode::<Carried>(body)?.open(depth)
}

impl Carried {
    pub(super) fn of(asked: &Asked, remaining: Duration) -> Self {
        Self {
            by: asked.caller.principal.id.clone(),
            reason: asked.caller.reason.clone(),
            request: asked.caller.request,
            remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            write: CarriedWrite::of(&asked.write),
            dry_run: asked.caller.dry_run,
        }
    }

    /// What its sender leaves the leader.
    pub(super) fn remaining(&self) -> Duration {
        Duration::from_millis(self.remaining_ms)
    }

    /// The write, and how long its sender waits for it.
    ///
    /// # Errors
    /// When a document is none.
    pub(super) fn open(self, depth: usize) -> Result<(Duration, Asked), ReceiveError> {
        let remaining = self.remaining();
        let malformed = |error: DocumentError| ReceiveError::Malformed(error.to_string());
        let write = self.write.open(depth).map_err(malformed)?;
        let (principal, dry_run) = (Principal { id: self.by }, self.dry_run);
        let caller = Caller { principal, reason: self.reason, request: self.request, dry_run };
        Ok((remaining, Asked { caller, write }))
    }
}

impl CarriedWrite {
    fn of(write: &Write) -> Self {
        let text = |document: &Document| Arc::clone(&document.text);
        match write {
            Write::CreateDefinition { key, indexes, schema } => Self::CreateDefinition {
                key: key.clone(),
                indexes: indexes.clone(),
                schema: schema.as_ref().map(text),
            },
            Write::SetIndexes { key, indexes, expect } => {
                Self::SetIndexes { key: key.clone(), indexes: indexes.clone(), expect: *expect }
            }
            Write::DeleteDefinition { key, expect, restrict } => {
                Self::DeleteDefinition { key: key.clone(), expect: *expect, restrict: *restrict }
            }
            Write::WriteConfig { definition, key, data, expect } => Self::WriteConfig {
                definition: definition.clone(),
                key: key.clone(),
                data: text(data),
                expect: *expect,
            },
            Write::DeleteConfig { definition, key, expect } => {
                Self::DeleteConfig { definition: definition.clone(), key: key.clone(), expect: *expect }
            }
            Write::PatchConfig { definition, key, patch, expect } => Self::PatchConfig {
                definition: definition.clone(),
                key: key.clone(),
                form: match patch.format {
                    PatchFormat::Merge => CarriedForm::Merge,
                    PatchFormat::Json => CarriedForm::Json,
                },
                patch: text(&patch.document),
                expect: *expect,
            },
            Write::Rollback(Rollback { definition, id, key, data, expect }) => Self::Rollback {
                definition: definition.clone(),
                id: *id,
                key: key.clone(),
                data: text(data),
                expect: *expect,
            },
            Write::SetSchema(NewSchema { key, schema, expect, force, compiled: _ }) => Self::SetSchema {
                key: key.clone(),
                schema: schema.as_ref().map(text),
                expect: *expect,
                force: *force,
            },
            Write::SetUnique(NewUnique { key, paths, expect }) => {
                Self::SetUnique { key: key.clone(), paths: paths.clone(), expect: *expect }
            }
            Write::Batch(operations) => Self::Batch(operations.iter().map(Self::of).collect()),
        }
    }

    fn open(self, depth: usize) -> Result<Write, DocumentError> {
        let parse = |text: Arc<str>| {
            document::parse(text.as_bytes(), depth).map(|value| Document { text: Arc::clone(&text), value })
        };
        Ok(match self {
            Self::CreateDefinition { key, indexes, schema } => {
                Write::CreateDefinition { key, indexes, schema: schema.map(parse).transpose()? }
            }
            Self::SetIndexes { key, indexes, expect } => Write::SetIndexes { key, indexes, expect },
            Self::DeleteDefinition { key, expect, restrict } => {
                Write::DeleteDefinition { key, expect, restrict }
            }
            Self::WriteConfig { definition, key, data, expect } => {
                Write::WriteConfig { definition, key, data: parse(data)?, expect }
            }
            Self::DeleteConfig { definition, key, expect } => Write::DeleteConfig { definition, key, expect },
            Self::PatchConfig { definition, key, form, patch, expect } => {
                let form = match form {
                    CarriedForm::Merge => PatchFormat::Merge,
                    CarriedForm::Json => PatchFormat::Json,
                };
                let patch = Patch { format: form, document: parse(patch)? };
                Write::PatchConfig { definition, key, patch, expect }
            }
            Self::Rollback { definition, id, key, data, expect } => {
                Write::Rollback(Rollback { definition, id, key, data: parse(data)?, expect })
            }
            Self::SetSchema { key, schema, expect, force } => {
                let schema = schema.map(parse).transpose()?;
                Write::SetSchema(NewSchema { key, schema, expect, force, compiled: Compiled::default() })
            }
            Self::SetUnique { key, paths, expect } => Write::SetUnique(NewUnique { key, paths, expect }),
            Self::Batch(operations) => {
                let opened = operations.into_iter().map(|operation| operation.open(depth));
                Write::Batch(opened.collect::<Result<_, _>>()?)
            }
        })
    }
}

impl From<CallError> for Attempt {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(_) => Self::Later(format!("the leader was not reached: {error}")),
            // A fault of the leader may have struck after it proposed; everything else it refuses on sight.
            CallError::Refused { status, .. } if status < 500 => Self::Later(format!("the leader: {error}")),
            CallError::Refused { .. } | CallError::Unknown(_) => {
                Self::Unknown(format!("the leader did not answer: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        command::Applied,
        error::{Invalid, LocSegment, Rejection, Violation},
        time::Timestamp,
    };

    fn asked(write: Write) -> Asked {
        let principal = Principal { id: "root".into() };
        let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
        let caller = Caller { principal, reason: Some("because".into()), request, dry_run: false };
        Asked { caller, write }
    }

    fn writes() -> Vec<Write> {
        let document = |text: &str| Document { text: text.into(), value: serde_json::Value::Null };
        let (key, indexes) = (String::from("app"), vec![String::from("a.b")]);
        vec![
            Write::CreateDefinition {
                key: key.clone(),
                indexes: indexes.clone(),
                schema: Some(document("{}")),
            },
            Write::CreateDefinition { key: key.clone(), indexes: Vec::new(), schema: None },
            Write::SetIndexes { key: key.clone(), indexes, expect: Expect::Present },
            Write::DeleteDefinition { key: key.clone(), expect: Expect::At(9), restrict: true },
            Write::WriteConfig {
                definition: key.clone(),
                key: "ä/?".into(),
                data: document("[1.0]"),
                expect: Expect::None,
            },
            Write::DeleteConfig { definition: key.clone(), key: "db".into(), expect: Expect::Present },
            Write::Rollback(Rollback {
                definition: key.clone(),
                id: 4,
                key: "db".into(),
                data: document("[1.0]"),
                expect: Expect::Any,
            }),
            Write::SetSchema(NewSchema {
                key: key.clone(),
                schema: Some(document("{}")),
                expect: Expect::At(9),
                force: true,
                compiled: Compiled::default(),
            }),
            Write::SetUnique(NewUnique {
                key: key.clone(),
                paths: vec!["a".into()],
                expect: Expect::Present,
            }),
            Write::PatchConfig {
                definition: key,
                key: "db".into(),
                patch: Patch { format: PatchFormat::Json, document: document("[]") },
                expect: Expect::At(3),
            },
        ]
    }

    #[test]
    fn a_carried_write_comes_back_as_it_was() {
        for write in writes().into_iter().chain([Write::Batch(writes())]) {
            let carried = Carried::of(&asked(write), Duration::from_millis(1500));
            assert_eq!(carried.remaining_ms, 1500);
            let back: Carried = decode(&encode(&carried)).unwrap();
            assert_eq!(back, carried);
        }
    }

    #[test]
    fn every_attempt_comes_back_as_it_was() {
        let applied = Applied { revision: 7, at: Timestamp(8), created: false };
        let faults = vec![Violation::at(vec![LocSegment::from("data"), LocSegment::Index(2)], "bad")];
        for attempt in [
            Attempt::Decided(Ok(applied)),
            Attempt::Decided(Err(Rejection::Precondition { current: 5 })),
            Attempt::Refused(Refusal::Invalid(Invalid::Violations(faults))),
            Attempt::Refused(Refusal::Overloaded),
            Attempt::Refused(Refusal::Breaks(2, vec![Violation::new("bad")])),
            Attempt::Later("no".into()),
            Attempt::Unknown("perhaps".into()),
            Attempt::Made(applied, "{}".into()),
        ] {
            assert_eq!(decode::<Attempt>(&encode(&attempt)).unwrap(), attempt);
        }
    }

    #[test]
    fn a_failed_call_says_whether_the_write_may_have_happened() {
        let refused = |status| CallError::Refused { status, text: "no".into() };
        assert!(matches!(CallError::NotSent("refused".into()).into(), Attempt::Later(_)));
        assert!(matches!(refused(421).into(), Attempt::Later(_)));
        assert!(matches!(refused(500).into(), Attempt::Unknown(_)));
        assert!(matches!(CallError::Unknown("time-out".into()).into(), Attempt::Unknown(_)));
    }
}
