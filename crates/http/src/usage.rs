//! Counts what a request uses, for its access key and for the definition that its path names.
//!
//! A response that is sent as a stream is counted when it begins, and its bytes while they are sent.
//!
//! **Invariant:** a request is counted once, also when its client disconnects before there is a response.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use http::Uri;
use hyper::body::{Frame, SizeHint};

use super::{endpoints::Matched, extract::MatchedRequest};
use concord_service::{
    Principal, RequestWork, Service,
    usage::{UsageCounts, UsageKey},
};

/// Bytes of a stream that are counted together: a part of one may be a single record.
const STREAM_BYTES: u64 = 256 << 10;

/// A request whose credential is good. It is counted when this is dropped, also without a response.
pub(super) struct CountedRequest<'a> {
    service: &'a Service,
    key: UsageKey,
    uri: Uri,
    matched: Matched,
    bytes_out: u64,
    is_rejected: bool,
}

impl<'a> CountedRequest<'a> {
    pub(super) fn begin(service: &'a Service, principal: &Principal, asked: &MatchedRequest) -> Self {
        let (key, uri) = (UsageKey::of(principal), asked.uri().clone());
        // Without a response it may name what does not exist.
        Self { service, key, uri, matched: asked.matched, bytes_out: 0, is_rejected: true }
    }

    /// Counts the request with its response.
    pub(super) fn answered(mut self, response: Response) -> Response {
        let status = response.status();
        self.is_rejected = status.is_client_error() || status.is_server_error();
        if let Some(bytes) = response.body().size_hint().exact() {
            self.bytes_out = bytes;
            return response;
        }
        let (service, key) = (self.service.clone(), self.key.clone());
        let definition = self.definition(|definition| definition.map(Into::into));
        let counted = CountedStream { service, key, definition, bytes: 0, busy: Duration::ZERO };
        response.map(|body| Body::new(StreamBody { body, counted }))
    }

    /// The definition that the path names, unless the request is rejected: then there may be none.
    fn definition<T>(&self, with: impl FnOnce(Option<&str>) -> T) -> T {
        let definition = self.matched.definition(&self.uri);
        with(Some(&*definition).filter(|key| !self.is_rejected && !key.is_empty()))
    }
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        let counts = UsageCounts { requests: 1, bytes_out: self.bytes_out, ..RequestWork::take() };
        self.definition(|definition| self.service.cx.usage.add(&self.key, definition, counts));
    }
}

/// Notes for how long threads work for the request that this task serves.
pub(super) async fn measured<F: Future>(mut work: Pin<&mut F>) -> F::Output {
    let poll = |cx: &mut Context<'_>| {
        let begun = Instant::now();
        let polled = work.as_mut().poll(cx);
        RequestWork::note_busy(begun.elapsed());
        polled
    };
    poll_fn(poll).await
}

/// What a response that is sent as a stream has used and is not counted yet.
struct CountedStream {
    service: Service,
    key: UsageKey,
    definition: Option<Box<str>>,
    bytes: u64,
    busy: Duration,
}

impl CountedStream {
    fn count(&mut self) {
        if self.bytes == 0 && self.busy.is_zero() {
            return;
        }
        let busy_ns = u64::try_from(std::mem::take(&mut self.busy).as_nanos()).unwrap_or(u64::MAX);
        let bytes_out = std::mem::take(&mut self.bytes);
        let counts = UsageCounts { bytes_out, busy_ns, ..UsageCounts::default() };
        self.service.cx.usage.add(&self.key, self.definition.as_deref(), counts);
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.count();
    }
}

/// The body of a response that is sent as a stream.
struct StreamBody {
    body: Body,
    counted: CountedStream,
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let begun = Instant::now();
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let counted = &mut self.counted;
        counted.busy = counted.busy.saturating_add(begun.elapsed());
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            counted.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        // Together, unless there is nothing more for now.
        if polled.is_pending() || counted.bytes >= STREAM_BYTES {
            counted.count();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::to_bytes;
    use futures::{StreamExt as _, stream};
    use http_body_util::BodyExt as _;

    use super::*;
    use concord_model::limits::Limits;
    use concord_service::testing::service;

    #[tokio::test]
    async fn the_bytes_of_a_stream_are_counted_while_it_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let service = service(directory.path(), Limits::default());
        let root = Principal::root();
        let counted = |definition: Option<&str>| CountedStream {
            service: service.clone(),
            key: UsageKey::of(&root),
            definition: definition.map(Into::into),
            bytes: 0,
            busy: Duration::ZERO,
        };
        let parts =
            |count| stream::iter((0..count).map(|_| Ok::<_, Infallible>(Bytes::from_static(&[7; 1000]))));
        let sent =
            async || service.usage(&root).await.unwrap().keys.first().map_or(0, |key| key.counts.bytes_out);
        // A watch that waits for the next event.
        let open = Body::from_stream(parts(3).chain(stream::pending()));
        let mut open = StreamBody { body: open, counted: counted(None) };
        for _ in 0..3 {
            assert_eq!(open.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1000);
        }
        assert!(futures::FutureExt::now_or_never(open.frame()).is_none());
        assert_eq!(sent().await, 3000, "while it is open");
        // An export that its client leaves.
        let mut left = StreamBody { body: Body::from_stream(parts(9)), counted: counted(Some("d")) };
        assert!(left.frame().await.unwrap().is_ok());
        drop(left);
        assert_eq!(sent().await, 4000);
        let whole = StreamBody { body: Body::from_stream(parts(1000)), counted: counted(Some("d")) };
        assert_eq!(to_bytes(Body::new(whole), usize::MAX).await.unwrap().len(), 1_000_000);
        let view = service.usage(&root).await.unwrap();
        assert_eq!(view.keys[0].counts.bytes_out, 1_004_000);
        let definition = &view.definitions[0];
        assert_eq!((definition.key.as_str(), definition.counts.bytes_out), ("d", 1_001_000));
        assert_eq!((definition.counts.requests, definition.configs), (0, None));
    }
}
