//! Decides the writes that other nodes forward to this one.
//!
//! **Invariant:** one hop. A node that receives a forwarded write decides it or answers that it does not lead; it
//! never forwards the write again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesOrdered};
use tokio::time::Instant;

use crate::{
    peer::{
        ReceiveError,
        codec::{decode, encode},
    },
    service::{
        Service,
        forward::{
            INLINE_PARSE_BYTES_MAX,
            batching::BATCH_WRITES_MAX,
            wire::{WireAnswer, WireRequest},
        },
        request::{Decision, Refusal, WriteRequest},
        retry::{Attempt, AttemptError},
        run_blocking,
    },
};

/// The part of the sender's time that is left for the answer's way back.
const ANSWER_TIME: Duration = Duration::from_millis(100);

impl Service {
    /// Decides a write that another node has forwarded.
    ///
    /// # Errors
    /// When this version can't read the body. Everything else is an answer.
    pub(crate) async fn answer_write(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let json_depth = self.limits().json_depth;
        let open = move |body: &[u8]| decode::<WireRequest<'static>>(body)?.open(json_depth);
        let (remaining, request) = if body.len() > INLINE_PARSE_BYTES_MAX {
            let opened = run_blocking(move || open(&body)).await;
            opened.map_err(|_| ReceiveError::Failed("the write could not be read".into()))??
        } else {
            open(&body)?
        };
        Ok(encode(&WireAnswer::from(self.decide_forwarded(request, remaining).await)))
    }

    /// Decides the writes of a forwarding batch, each by itself.
    ///
    /// # Errors
    /// When this version can't read the body, or it holds more writes than a batch may. Everything else is an answer.
    pub(crate) async fn answer_writes(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let requests: Vec<WireRequest<'static>> = decode(&body)?;
        drop(body);
        if requests.len() > BATCH_WRITES_MAX {
            return Err(ReceiveError::Malformed(format!("{} writes in one call", requests.len())));
        }
        let json_depth = self.limits().json_depth;
        let decide = async |request: WireRequest<'static>| match request.open(json_depth) {
            Ok((remaining, request)) => self.decide_forwarded(request, remaining).await.into(),
            // It alone is refused; the others of its batch are decided.
            Err(error) => WireAnswer::Retry(format!("the leader: {error}")),
        };
        let decisions: FuturesOrdered<_> = requests.into_iter().map(decide).collect();
        Ok(encode(&decisions.collect::<Vec<_>>().await))
    }

    async fn decide_forwarded(&self, request: WriteRequest, remaining: Duration) -> Attempt<Decision> {
        let Some(consensus) = self.consensus() else { return Err(AttemptError::Retry(self.absence())) };
        if !self.leads(consensus) {
            return Err(AttemptError::Retry(format!("node {} does not lead", self.node_id())));
        }
        let _permit = self.inner.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        self.check_disk(&request.write)?;
        let time = remaining.saturating_sub(ANSWER_TIME).min(self.time_for(&request.write));
        self.decide(consensus, &Arc::new(request), Instant::now() + time).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{command::Expect, document::Document, limits::Limits},
        service::{
            Principal,
            request::{Caller, Write},
        },
    };

    #[tokio::test]
    async fn a_write_that_can_not_be_read_is_refused_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let service =
            crate::service::tests::service(directory.path(), Limits { json_depth: 2, ..Limits::default() });
        let write = |text: &str| {
            let data = Document { text: text.into(), value: serde_json::Value::Null };
            let (definition, key) = ("d".into(), "k".into());
            let write = Write::WriteConfig { definition, key, data, expect: Expect::Any };
            let principal = Principal { id: "root".into() };
            let caller = Caller { principal, reason: None, idempotency_key: None, dry_run: false };
            WriteRequest { caller, write }
        };
        let body = |requests: &[WriteRequest]| {
            encode(
                &requests
                    .iter()
                    .map(|request| WireRequest::of(request, Duration::from_secs(30)))
                    .collect::<Vec<_>>(),
            )
        };
        let batch = body(&[write("{}"), write("[[[[]]]]"), write("{}")]);
        let answers: Vec<WireAnswer> = decode(&service.answer_writes(batch).await.unwrap()).unwrap();
        // The node does not lead: that is the answer to the writes that it could read.
        let is_unread =
            |answer: &WireAnswer| matches!(answer, WireAnswer::Retry(text) if text.starts_with("the leader"));
        assert_eq!(answers.iter().map(is_unread).collect::<Vec<_>>(), [false, true, false], "{answers:?}");
        let many: Vec<WriteRequest> = (0..=BATCH_WRITES_MAX).map(|_| write("{}")).collect();
        assert!(service.answer_writes(body(&many)).await.is_err());
    }
}
