//! The wire format of forwarded writes and of their answers.
//!
//! The typed write is sent, not the HTTP request: the node that the caller asked has authenticated, limited and parsed
//! it. JSON is sent as the validated text and parsed again on the leader, because a parsed value has no compact
//! encoding. The texts are borrowed from the write where it is encoded and owned where it has been decoded.
//!
//! **Invariant:** the order of fields and variants is the encoding: new variants go to the end.

mod condition;

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    model::{
        command::{Applied, Expect, IdempotencyKey, Outcome},
        document::{self, Document, DocumentError},
        flat::decode_without,
        patch::{Patch, PatchFormat},
        record::Revision,
    },
    peer::{
        ReceiveError,
        codec::{decode, decode_head, encode},
    },
    service::{
        request::{
            AccessWrite, Caller, Check, Choice, Compiled, Decision, NewSchema, NewUnique, Principal, Refusal,
            Rollback, Write, WriteRequest,
        },
        retry::{Attempt, AttemptError},
    },
};

use condition::WireCondition;

/// Bytes of a part of a response: the answers to all writes of a call, with long violations.
const PART_BYTES_MAX: usize = 32 << 20;

type Text<'a> = Cow<'a, str>;
type Texts<'a> = Cow<'a, [String]>;

/// A [`WriteRequest`] on its way to the leader.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::service) struct WireRequest<'a> {
    /// The caller: `root`, `cluster`, or for a stored key its id, a dot and the revision that made the secret. No text
    /// of a key leaves the node that was asked.
    by: Text<'a>,
    reason: Option<Text<'a>>,
    idempotency_key: Option<IdempotencyKey>,
    /// How long its sender waits for the answer.
    remaining_ms: u64,
    write: WireWrite<'a>,
    dry_run: bool,
}

/// The first fields of a [`WireRequest`].
#[derive(Debug, Deserialize)]
struct WireHead<'a> {
    _by: &'a str,
    _reason: Option<&'a str>,
    _idempotency_key: Option<IdempotencyKey>,
    remaining_ms: u64,
}

/// The decisions of some writes of a call, each with its place in the call. A response is one part or several, each
/// with its length in front.
pub(in crate::service) type WirePart = Vec<(u16, WireAnswer)>;

/// Bytes of a length in front of a part.
const LENGTH_BYTES: usize = 4;

/// Encodes a part of a response.
pub(in crate::service) fn encode_part(part: &WirePart) -> Bytes {
    let encoded = encode(part);
    let length = u32::try_from(encoded.len()).expect("the answers to some small writes are far below 4 GiB");
    [&length.to_le_bytes()[..], &encoded].concat().into()
}

/// Takes the next part from the bytes that were received; `None` while it is incomplete.
///
/// # Errors
/// When the bytes are no part of this version.
pub(in crate::service) fn take_part(received: &mut BytesMut) -> Result<Option<WirePart>, ReceiveError> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > PART_BYTES_MAX {
        return Err(ReceiveError::Malformed(format!("a part of {length} bytes")));
    }
    if received.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    let part = received.split_to(LENGTH_BYTES + length);
    decode(&part[LENGTH_BYTES..]).map(Some)
}

/// How long the sender of an encoded [`WireRequest`] waits for the answer.
///
/// # Errors
/// When the bytes begin with anything else.
pub(in crate::service) fn remaining_of(body: &[u8]) -> Result<Duration, ReceiveError> {
    decode_head::<WireHead<'_>>(body).map(|head| Duration::from_millis(head.remaining_ms))
}

/// A [`Write`] with texts in place of documents. New variants go to the end.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum WireWrite<'a> {
    CreateDefinition {
        key: Text<'a>,
        indexes: Texts<'a>,
        schema: Option<Text<'a>>,
        format_assertion: Option<bool>,
    },
    SetIndexes {
        key: Text<'a>,
        indexes: Texts<'a>,
        expect: Expect,
    },
    DeleteDefinition {
        key: Text<'a>,
        expect: Expect,
        restrict: bool,
    },
    WriteConfig {
        definition: Text<'a>,
        key: Text<'a>,
        data: Text<'a>,
        expect: Expect,
    },
    DeleteConfig {
        definition: Text<'a>,
        key: Text<'a>,
        expect: Expect,
    },
    Rollback {
        definition: Text<'a>,
        id: Revision,
        key: Text<'a>,
        data: Text<'a>,
        expect: Expect,
    },
    SetSchema {
        key: Text<'a>,
        schema: Option<Text<'a>>,
        format_assertion: Option<bool>,
        expect: Expect,
        force: bool,
    },
    SetUnique {
        key: Text<'a>,
        paths: Texts<'a>,
        expect: Expect,
    },
    PatchConfig {
        definition: Text<'a>,
        key: Text<'a>,
        form: WirePatchForm,
        patch: Text<'a>,
        expect: Expect,
    },
    Batch(Vec<WireOperation<'a>>),
    Access(Cow<'a, AccessWrite>),
    /// A batch that is chosen by conditions.
    Choice {
        operations: Vec<WireOperation<'a>>,
        conditions: usize,
        then: usize,
    },
    Check {
        definition: Text<'a>,
        key: Text<'a>,
        condition: WireCondition<'a>,
    },
    Read {
        definition: Text<'a>,
        key: Text<'a>,
    },
}

/// An operation of a batch; never a batch.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct WireOperation<'a>(#[serde(deserialize_with = "decode_operation")] WireWrite<'a>);

fn decode_operation<'de, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<WireWrite<'a>, D::Error> {
    decode_without(deserializer, &["Batch", "Choice"])
}

/// The wire format of [`PatchFormat`]. New variants go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum WirePatchForm {
    Merge,
    Json,
    Replace,
}

/// What an attempt on the leader came to. New variants go to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::service) enum WireAnswer {
    Decided(Outcome),
    Refused(Refusal),
    Retry(String),
    Unknown(String),
    /// Decided, with the content that the leader computed.
    Computed(Applied, Arc<str>),
}

impl From<Attempt<Decision>> for WireAnswer {
    fn from(attempt: Attempt<Decision>) -> Self {
        match attempt {
            Ok(Decision { outcome: Ok(applied), content: Some(content) }) => Self::Computed(applied, content),
            Ok(Decision { outcome, .. }) => Self::Decided(outcome),
            Err(AttemptError::Refused(refusal)) => Self::Refused(refusal),
            Err(AttemptError::Retry(text)) => Self::Retry(text),
            Err(AttemptError::Unknown(text) | AttemptError::Begun(text)) => Self::Unknown(text),
        }
    }
}

impl From<WireAnswer> for Attempt<Decision> {
    fn from(answer: WireAnswer) -> Self {
        match answer {
            WireAnswer::Decided(outcome) => Ok(Decision::new(outcome, None)),
            WireAnswer::Computed(applied, content) => Ok(Decision::new(Ok(applied), Some(content))),
            WireAnswer::Refused(refusal) => Err(AttemptError::Refused(refusal)),
            WireAnswer::Retry(text) => Err(AttemptError::Retry(text)),
            WireAnswer::Unknown(text) => Err(AttemptError::Unknown(text)),
        }
    }
}

impl<'a> WireRequest<'a> {
    pub(in crate::service) fn of(request: &'a WriteRequest, remaining: Duration) -> Self {
        let WriteRequest { caller, write } = request;
        Self {
            by: named(&caller.principal),
            reason: caller.reason.as_deref().map(Cow::Borrowed),
            idempotency_key: caller.idempotency_key,
            remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            write: WireWrite::of(write),
            dry_run: caller.dry_run,
        }
    }

    /// The request, and how long its sender waits for the answer.
    ///
    /// # Errors
    /// When a document is not JSON within the limits.
    pub(in crate::service) fn open(
        self,
        json_depth: usize,
    ) -> Result<(Duration, WriteRequest), ReceiveError> {
        let malformed = |error: DocumentError| ReceiveError::Malformed(error.to_string());
        let write = self.write.open(json_depth).map_err(malformed)?;
        let caller = Caller {
            principal: principal(&self.by)?,
            reason: self.reason.map(Cow::into_owned),
            idempotency_key: self.idempotency_key,
            dry_run: self.dry_run,
        };
        Ok((Duration::from_millis(self.remaining_ms), WriteRequest { caller, write }))
    }
}

impl<'a> WireWrite<'a> {
    fn of(write: &'a Write) -> Self {
        match write {
            Write::CreateDefinition { key, indexes, schema, format_assertion } => Self::CreateDefinition {
                key: text(key),
                indexes: Cow::Borrowed(indexes),
                schema: schema.as_ref().map(json),
                format_assertion: *format_assertion,
            },
            Write::SetIndexes { key, indexes, expect } => {
                Self::SetIndexes { key: text(key), indexes: Cow::Borrowed(indexes), expect: *expect }
            }
            Write::DeleteDefinition { key, expect, restrict } => {
                Self::DeleteDefinition { key: text(key), expect: *expect, restrict: *restrict }
            }
            Write::WriteConfig { definition, key, data, expect } => Self::WriteConfig {
                definition: text(definition),
                key: text(key),
                data: json(data),
                expect: *expect,
            },
            Write::DeleteConfig { definition, key, expect } => {
                Self::DeleteConfig { definition: text(definition), key: text(key), expect: *expect }
            }
            Write::PatchConfig { definition, key, patch, expect } => Self::PatchConfig {
                definition: text(definition),
                key: text(key),
                form: match patch.format {
                    PatchFormat::Merge => WirePatchForm::Merge,
                    PatchFormat::Json => WirePatchForm::Json,
                    PatchFormat::Replace => WirePatchForm::Replace,
                },
                patch: json(&patch.document),
                expect: *expect,
            },
            Write::Rollback(Rollback { definition, id, key, data, expect }) => Self::Rollback {
                definition: text(definition),
                id: *id,
                key: text(key),
                data: json(data),
                expect: *expect,
            },
            Write::SetSchema(NewSchema { key, schema, format_assertion, expect, force, compiled: _ }) => {
                Self::SetSchema {
                    key: text(key),
                    schema: schema.as_ref().map(json),
                    format_assertion: *format_assertion,
                    expect: *expect,
                    force: *force,
                }
            }
            Write::SetUnique(NewUnique { key, paths, expect }) => {
                Self::SetUnique { key: text(key), paths: Cow::Borrowed(paths), expect: *expect }
            }
            Write::Access(write) => Self::Access(Cow::Borrowed(write)),
            Write::Batch(operations) => Self::Batch(wire_operations(operations)),
            Write::Choice(Choice { operations, conditions, then }) => {
                Self::Choice { operations: wire_operations(operations), conditions: *conditions, then: *then }
            }
            Write::Check(Check { definition, key, condition }) => Self::Check {
                definition: text(definition),
                key: text(key),
                condition: WireCondition::of(condition),
            },
            Write::Read { definition, key } => Self::Read { definition: text(definition), key: text(key) },
        }
    }

    fn open(self, depth: usize) -> Result<Write, DocumentError> {
        let parse = |text: Text<'_>| {
            document::parse(text.as_bytes(), depth).map(|value| Document { text: text.into(), value })
        };
        Ok(match self {
            Self::CreateDefinition { key, indexes, schema, format_assertion } => Write::CreateDefinition {
                key: key.into_owned(),
                indexes: indexes.into_owned(),
                schema: schema.map(parse).transpose()?,
                format_assertion,
            },
            Self::SetIndexes { key, indexes, expect } => {
                Write::SetIndexes { key: key.into_owned(), indexes: indexes.into_owned(), expect }
            }
            Self::DeleteDefinition { key, expect, restrict } => {
                Write::DeleteDefinition { key: key.into_owned(), expect, restrict }
            }
            Self::WriteConfig { definition, key, data, expect } => Write::WriteConfig {
                definition: definition.into_owned(),
                key: key.into_owned(),
                data: parse(data)?,
                expect,
            },
            Self::DeleteConfig { definition, key, expect } => {
                Write::DeleteConfig { definition: definition.into_owned(), key: key.into_owned(), expect }
            }
            Self::PatchConfig { definition, key, form, patch, expect } => {
                let form = match form {
                    WirePatchForm::Merge => PatchFormat::Merge,
                    WirePatchForm::Json => PatchFormat::Json,
                    WirePatchForm::Replace => PatchFormat::Replace,
                };
                let patch = Patch { format: form, document: parse(patch)? };
                Write::PatchConfig {
                    definition: definition.into_owned(),
                    key: key.into_owned(),
                    patch,
                    expect,
                }
            }
            Self::Rollback { definition, id, key, data, expect } => Write::Rollback(Rollback {
                definition: definition.into_owned(),
                id,
                key: key.into_owned(),
                data: parse(data)?,
                expect,
            }),
            Self::SetSchema { key, schema, format_assertion, expect, force } => Write::SetSchema(NewSchema {
                key: key.into_owned(),
                schema: schema.map(parse).transpose()?,
                format_assertion,
                expect,
                force,
                compiled: Compiled::default(),
            }),
            Self::SetUnique { key, paths, expect } => {
                Write::SetUnique(NewUnique { key: key.into_owned(), paths: paths.into_owned(), expect })
            }
            Self::Access(write) => Write::Access(write.into_owned()),
            Self::Batch(operations) => Write::Batch(open_operations(operations, depth)?),
            Self::Choice { operations, conditions, then } => {
                open_choice(operations, (conditions, then), depth)?
            }
            Self::Check { definition, key, condition } => Write::Check(Check {
                definition: definition.into_owned(),
                key: key.into_owned(),
                condition: condition.open(parse)?,
            }),
            Self::Read { definition, key } => {
                Write::Read { definition: definition.into_owned(), key: key.into_owned() }
            }
        })
    }
}

fn wire_operations(operations: &[Write]) -> Vec<WireOperation<'_>> {
    operations.iter().map(|write| WireOperation(WireWrite::of(write))).collect()
}

fn open_operations(operations: Vec<WireOperation<'_>>, depth: usize) -> Result<Vec<Write>, DocumentError> {
    operations.into_iter().map(|WireOperation(write)| write.open(depth)).collect()
}

fn open_choice(
    operations: Vec<WireOperation<'_>>,
    (conditions, then): (usize, usize),
    depth: usize,
) -> Result<Write, DocumentError> {
    let operations = open_operations(operations, depth)?;
    // More than there are would be no batch of this version; whoever sends it gets the fewest.
    let conditions = conditions.min(operations.len());
    let then = then.min(operations.len() - conditions);
    Ok(Write::Choice(Choice { operations, conditions, then }))
}

/// A caller as another node is told of it.
pub(in crate::service) fn named(principal: &Principal) -> Text<'_> {
    if principal.key.is_none() {
        return text(&principal.id);
    }
    Cow::Owned(format!("{}.{}", principal.id, principal.secret))
}

/// The caller that another node names. Of a stored key only the name is known here: it is found in the state.
///
/// # Errors
/// When the text names none.
pub(in crate::service) fn principal(by: &str) -> Result<Principal, ReceiveError> {
    let (root, cluster) = (Principal::root(), Principal::cluster());
    if let Some(known) = [root, cluster].into_iter().find(|known| known.id == by) {
        return Ok(known);
    }
    let named = by.split_once('.').and_then(|(id, secret)| Some(Principal::named(id, secret.parse().ok()?)));
    named.ok_or_else(|| ReceiveError::Malformed(format!("a write by `{by}`")))
}

fn text(text: &str) -> Text<'_> {
    Cow::Borrowed(text)
}

fn json(document: &Document) -> Text<'_> {
    Cow::Borrowed(&document.text)
}

#[cfg(test)]
mod tests;
