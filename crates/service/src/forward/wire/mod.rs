//! The wire format of forwarded writes and of their answers.
//!
//! The typed write is sent, not the HTTP request: the node that the caller asked has authenticated, limited and parsed
//! it. JSON is sent as the validated text and parsed again on the leader ([`WireRequest::open`]), because a parsed value
//! has no compact encoding. The write is borrowed where it is encoded and owned where it has been decoded.
//!
//! **Invariant:** the order of fields and variants is the encoding: new variants go to the end.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    request::{BypassRequest, Caller, Decision, Principal, Refusal, Write, WriteRequest},
    retry::{Attempt, AttemptError},
};
use concord_model::{
    access_key::KeyId,
    command::{Applied, IdempotencyKey, Outcome},
    document::DocumentError,
    schema::ListedVariants,
};
use concord_net::{
    ReceiveError,
    codec::{decode_head, encode},
    framed::frame,
};

type Text<'a> = Cow<'a, str>;

/// What the name of a session begins with: no id of a key has a slash.
const SESSION: &str = "session/";

/// A [`WriteRequest`] on its way to the leader.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireRequest<'a> {
    /// The caller: `root`, `cluster`; for a stored key its id, a dot and the revision that made the secret; for a session
    /// `session/`, its id, the id of its owner and the owner's name. No text of a key or session leaves the node that was
    /// asked.
    by: Text<'a>,
    reason: Option<Text<'a>>,
    idempotency_key: Option<IdempotencyKey>,
    /// How long its sender waits for the answer.
    remaining_ms: u64,
    write: Cow<'a, Write>,
    dry_run: bool,
    listed_variants: ListedVariants,
    bypass: Option<Cow<'a, BypassRequest>>,
}

/// The first fields of a [`WireRequest`].
#[derive(Debug, Deserialize)]
struct WireHead<'a> {
    _by: &'a str,
    _reason: Option<&'a str>,
    _idempotency_key: Option<IdempotencyKey>,
    remaining_ms: u64,
}

/// The decisions of some writes of an RPC, each with its place in the RPC. A response is one part or several, each a
/// frame.
pub(crate) type WirePart = Vec<(u16, WireAnswer)>;

/// Encodes a part of a response as a frame.
pub(crate) fn encode_part(part: &WirePart) -> Bytes {
    frame(encode(part))
}

/// How long the sender of an encoded [`WireRequest`] waits for the answer.
///
/// # Errors
/// When the bytes begin with anything else.
pub(crate) fn remaining_of(body: &[u8]) -> Result<Duration, ReceiveError> {
    decode_head::<WireHead<'_>>(body).map(|head| Duration::from_millis(head.remaining_ms))
}

/// What an attempt on the leader came to. New variants go to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum WireAnswer {
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
    pub(crate) fn of(request: &'a WriteRequest, remaining: Duration) -> Self {
        let WriteRequest { caller, write, edition: _ } = request;
        Self {
            by: named(&caller.principal),
            reason: caller.reason.as_deref().map(Cow::Borrowed),
            idempotency_key: caller.idempotency_key,
            remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            write: Cow::Borrowed(write),
            dry_run: caller.dry_run,
            listed_variants: caller.listed_variants,
            bypass: caller.bypass.as_ref().map(Cow::Borrowed),
        }
    }

    /// The request, and how long its sender waits for the answer.
    ///
    /// # Errors
    /// When a document is not JSON within the limits.
    pub(crate) fn open(self, json_depth: usize) -> Result<(Duration, WriteRequest), ReceiveError> {
        let malformed = |error: DocumentError| ReceiveError::Malformed(error.to_string());
        let mut write = self.write.into_owned();
        write.parse_received(json_depth).map_err(malformed)?;
        let caller = Caller {
            principal: principal(&self.by)?,
            reason: self.reason.map(Cow::into_owned),
            idempotency_key: self.idempotency_key,
            dry_run: self.dry_run,
            listed_variants: self.listed_variants,
            bypass: self.bypass.map(Cow::into_owned),
        };
        Ok((Duration::from_millis(self.remaining_ms), WriteRequest::new(caller, write)))
    }
}

/// A caller as another node is told of it.
pub(crate) fn named(principal: &Principal) -> Text<'_> {
    if principal.is_unbounded() {
        return Cow::Borrowed(&principal.id);
    }
    if let Some(session) = principal.session_id() {
        return Cow::Owned(format!("{SESSION}{session}/{}/{}", principal.owner(), principal.id));
    }
    Cow::Owned(format!("{}.{}", principal.id, principal.secret))
}

/// The caller that another node names. Of a stored key only the name is known here: it is found in the state.
///
/// # Errors
/// When the text names none.
pub(crate) fn principal(by: &str) -> Result<Principal, ReceiveError> {
    let (root, cluster) = (Principal::root(), Principal::cluster());
    if let Some(known) = [root, cluster].into_iter().find(|known| known.id == by) {
        return Ok(known);
    }
    if let Some(session) = by.strip_prefix(SESSION) {
        let mut parts = session.splitn(3, '/');
        let mut id = || parts.next().and_then(KeyId::parse);
        let named = id().zip(id()).zip(parts.next());
        let named = named.map(|((id, owner), name)| Principal::named_session(id, owner, name));
        return named.ok_or_else(|| ReceiveError::Malformed(format!("a write by `{by}`")));
    }
    let named = by.split_once('.').and_then(|(id, secret)| Some(Principal::named(id, secret.parse().ok()?)));
    named.ok_or_else(|| ReceiveError::Malformed(format!("a write by `{by}`")))
}

#[cfg(test)]
mod tests;
