use std::io;
use std::sync::Arc;
#[cfg(feature = "simulation")]
use std::sync::Mutex;
#[cfg(feature = "simulation")]
use std::sync::atomic::AtomicBool;
#[cfg(feature = "simulation")]
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use crate::WalTypes;
use crate::wal::flush_request::SeqRequest;
use crate::wal::flush_request::WorkerRequest;
#[cfg(feature = "simulation")]
use crate::wal::flush_worker::FlushWorker;
use crate::wal::flush_worker::WorkerState;

/// Sends sequenced requests to the flush worker and tracks its progress.
pub(super) struct FlushClient<W>
where W: WalTypes
{
    /// Channel for sending ordered requests to the flush worker.
    ///
    /// `None` after [`FlushClient::close`], which rejects further requests.
    tx: Option<SyncSender<SeqRequest<W>>>,

    /// Sequence number assigned to the most recent request.
    sent_seq: u64,

    /// Shared completion and failure state reported by the flush worker.
    state: Arc<WorkerState>,

    /// Serves the queue, for lack of a thread.
    #[cfg(feature = "simulation")]
    worker: Arc<Mutex<FlushWorker<W>>>,

    /// Whether the queue will be served later.
    #[cfg(feature = "simulation")]
    is_due: Arc<AtomicBool>,
}

/// A queue that will be served. When the simulated machine loses power
/// before, what is queued is lost.
#[cfg(feature = "simulation")]
struct Due<W>
where W: WalTypes
{
    worker: Arc<Mutex<FlushWorker<W>>>,
    is_due: Arc<AtomicBool>,
}

#[cfg(feature = "simulation")]
impl<W> Due<W>
where W: WalTypes
{
    fn serve(self) {
        self.is_due.store(false, Ordering::Relaxed);
        self.worker.lock().unwrap().serve_queued();
    }
}

#[cfg(feature = "simulation")]
impl<W> Drop for Due<W>
where W: WalTypes
{
    fn drop(&mut self) {
        if crate::simulation::power_is_off() {
            // A callback may own the log that owns the queue, so nothing else
            // would end both.
            let lost = self.worker.lock().unwrap().lose_queued();
            drop(lost);
        }
    }
}

impl<W> FlushClient<W>
where W: WalTypes
{
    /// Creates a client with no requests assigned.
    pub(super) fn new(
        tx: SyncSender<SeqRequest<W>>,
        state: Arc<WorkerState>,
        #[cfg(feature = "simulation")] worker: FlushWorker<W>,
    ) -> Self {
        Self {
            tx: Some(tx),
            sent_seq: 0,
            state,
            #[cfg(feature = "simulation")]
            worker: Arc::new(Mutex::new(worker)),
            #[cfg(feature = "simulation")]
            is_due: Arc::default(),
        }
    }

    /// Serves what is queued now.
    #[cfg(feature = "simulation")]
    pub(super) fn serve_queued(&self) {
        self.worker.lock().unwrap().serve_queued();
    }

    /// Serves what is queued when the simulation says. A queue that is half
    /// full is served now, because nobody else would empty it.
    #[cfg(feature = "simulation")]
    fn serve_later(&self) {
        const WAITING_MAX: u64 = 512;
        const WAITING_BYTES_MAX: usize = 8 << 20;

        if self.sent_seq - self.done_seq() > WAITING_MAX
            || self.state.queued_bytes().used() > WAITING_BYTES_MAX
        {
            return self.serve_queued();
        }
        if self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let due = Due {
            worker: self.worker.clone(),
            is_due: self.is_due.clone(),
        };
        crate::simulation::later(move || due.serve());
    }

    /// Assigns the next sequence number and sends the request to the worker.
    pub(super) fn send(
        &mut self,
        req: WorkerRequest<W>,
    ) -> Result<(), io::Error> {
        let Some(tx) = self.tx.as_ref() else {
            return Err(io::Error::other(
                "Failed to send request: WAL is shut down",
            ));
        };

        // Reserve the request's memory before queueing it, so a slow worker
        // throttles the sender instead of letting queued data grow without
        // bound.
        let reserved = match &req {
            WorkerRequest::Write(write) => write.data.len(),
            _ => 0,
        };
        self.state.queued_bytes().acquire(reserved);

        self.sent_seq += 1;
        let res = tx
            .send(SeqRequest {
                seq: self.sent_seq,
                queued_at: Instant::now(),
                req,
            })
            .map_err(|e| {
                io::Error::other(format!("Failed to send request: {}", e))
            });

        if res.is_err() {
            self.state.queued_bytes().release(reserved);
        }
        #[cfg(feature = "simulation")]
        self.serve_later();

        res
    }

    /// Rejects further requests and lets the worker stop once its queue is
    /// drained.
    pub(super) fn close(&mut self) {
        self.tx = None;
    }

    /// Waits until the worker reaches the current sequence or reports failure.
    pub(super) fn wait_idle(&self) -> Result<(), io::Error> {
        #[cfg(feature = "simulation")]
        self.serve_queued();

        self.state.wait_for(self.sent_seq)
    }

    /// Returns the sequence number assigned to the most recent request.
    pub(super) fn sent_seq(&self) -> u64 {
        self.sent_seq
    }

    /// Returns the highest sequence number completed by the worker.
    pub(super) fn done_seq(&self) -> u64 {
        self.state.done_seq()
    }
}
