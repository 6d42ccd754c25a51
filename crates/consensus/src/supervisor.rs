//! Owns the tasks that live as long as the node: the unexpected end of one of them ends the node.
//!
//! A node without one of these tasks looks healthy and is not: it never compares its state again, or its watches stay
//! silent. If the process exits, its supervisor restarts it, and the other members continue meanwhile.
//!
//! A failed node shuts down gracefully as far as it can. The failure may block any of its threads, so a thread of its own
//! bounds the time of the shutdown ([`end_process_later`]).
//!
//! **Invariant:** a supervised task that panics or returns an error ends the node, with one reason that names the task. A
//! task that returns `Ok` is done.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::{Arc, mpsc},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a node that has failed may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last line may take: it may go to the disk that hangs.
const LAST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts and ends the tasks of a node, and records why the node failed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Supervisor {
    /// Set once.
    failure: Arc<watch::Sender<Option<String>>>,
    stopped: CancellationToken,
}

impl Supervisor {
    /// Records why this node failed. The first reason stays.
    pub(super) fn fail(&self, why: String) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert(why);
            is_first
        });
    }

    /// Waits until this node has failed. Returns the reason.
    pub(super) async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Runs a task until it has nothing left to do or [`Self::stop`] is called. Its panic or error is the node's end.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let supervisor = self.clone();
        drop(tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                () = supervisor.stopped.cancelled() => return,
                ended = AssertUnwindSafe(task).catch_unwind() => ended,
            };
            match ended {
                Ok(Ok(())) => tracing::debug!(task = name, "a task is done"),
                Ok(Err(_)) | Err(_) if concord_model::sabotage::is("task-end-ignored") => {}
                Ok(Err(why)) => supervisor.fail(why),
                Err(panic) => {
                    supervisor.fail(format!("the task `{name}` panicked: {}", text_of(panic.as_ref())));
                }
            }
        }));
    }

    /// Ends all tasks at their next wait.
    pub(super) fn stop(&self) {
        self.stopped.cancel();
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Ends the process if it has not ended by itself in time, without waiting for anything that may wait for the disk.
#[expect(clippy::disallowed_methods, reason = "a graceful shutdown was tried and hangs on the I/O stall")]
pub fn end_process_later() {
    std::thread::sleep(END_TIMEOUT);
    let (said, is_said) = mpsc::channel();
    let speaker = std::thread::Builder::new().name("last-line".into()).spawn(move || {
        tracing::error!("the node did not exit within {} s: aborting the process", END_TIMEOUT.as_secs());
        // Nobody may wait any more.
        let _ = said.send(());
    });
    if speaker.is_ok() {
        // It is said, or it takes too long.
        let _ = is_said.recv_timeout(LAST_LINE_TIMEOUT);
    }
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    async fn failure(supervisor: &Supervisor) -> String {
        tokio::time::timeout(Duration::from_secs(60), supervisor.failed()).await.unwrap()
    }

    #[tokio::test]
    async fn a_panic_or_an_error_of_a_task_ends_the_node() {
        let one = Supervisor::default();
        one.spawn("counter", async { panic!("no {}", 1) });
        assert_eq!(failure(&one).await, "the task `counter` panicked: no 1");
        let other = Supervisor::default();
        other.spawn("counter", async { Err("the disk failed".into()) });
        assert_eq!(failure(&other).await, "the disk failed");
    }

    #[tokio::test]
    async fn a_task_that_is_done_or_stopped_does_not_end_the_node() {
        let supervisor = Supervisor::default();
        let (done, is_done) = oneshot::channel::<()>();
        supervisor.spawn("short", async move {
            drop(done);
            Ok(())
        });
        is_done.await.unwrap_err();
        let (held, is_dropped) = oneshot::channel::<()>();
        supervisor.spawn("long", async move {
            let _held = held;
            std::future::pending().await
        });
        supervisor.stop();
        is_dropped.await.unwrap_err();
        assert_eq!(*supervisor.failure.borrow(), None);
    }
}
