//! A few threads that run closures of one kind, apart from those that serve requests.
//!
//! tokio's pool for blocking work has them: it starts a thread when one is needed, ends it when it was idle for some
//! seconds, and keeps what waits in order.
//!
//! **Invariant:** no more threads than `threads_max`; dropping it blocks nobody.

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// The threads.
#[derive(Debug)]
pub(super) struct OwnThreads {
    /// Owns the threads and nothing else: no task runs on it. `None` only while this is dropped.
    runtime: Option<Runtime>,
}

impl OwnThreads {
    /// So many threads of this name, each of which calls `on_start` first.
    pub(super) fn new(name: &str, threads_max: usize, on_start: impl Fn() + Send + Sync + 'static) -> Self {
        let mut builder = Builder::new_current_thread();
        let built =
            builder.max_blocking_threads(threads_max).thread_name(name).on_thread_start(on_start).build();
        Self { runtime: Some(built.expect("a runtime without drivers needs nothing that could be missing")) }
    }

    /// Runs `work` on one of the threads, when one is free. A panic of it, or the end of the node, is an error.
    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.runtime.as_ref().expect("it is there until this is dropped").spawn_blocking(work)
    }
}

impl Drop for OwnThreads {
    /// Does not wait for work in progress: it may be dropped on a worker, which must not block.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
