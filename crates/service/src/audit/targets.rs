//! What a write turns out to be about: its keys may stand in its body, which only its handler reads.
//!
//! It belongs to the task that serves the request, like the request's origin: all layers between would only pass it on.
//!
//! **Invariant:** it is what the caller asked for, whether it was allowed and done or not.

use std::sync::{Arc, Mutex, PoisonError};

use super::line::What;
use crate::request::{AccessWrite, Target, Write};

/// What is known so far of a request.
pub type Targets = Arc<Mutex<What>>;

tokio::task_local! {
    static TARGETS: Targets;
}

/// Serves a request whose targets are to be known.
pub fn observe<F: Future>(targets: Targets, request: F) -> impl Future<Output = F::Output> {
    TARGETS.scope(targets, request)
}

/// Names a definition that a read is about.
pub(crate) fn name_read(definition: &str) {
    // Without a log there is nobody to tell.
    let _unobserved = TARGETS.try_with(|targets| {
        targets.lock().unwrap_or_else(PoisonError::into_inner).add_definition(definition);
    });
}

/// Names what a write is about.
pub(crate) fn name(write: &Write) {
    // Without a log there is nobody to tell.
    let _unobserved = TARGETS.try_with(|targets| {
        let mut what = targets.lock().unwrap_or_else(PoisonError::into_inner);
        for definition in write.definitions() {
            what.add_definition(definition);
        }
        match write.target() {
            Target::Definition(_) => {}
            // The path has the id of a key that there is; that of a new one is drawn for its request.
            Target::Keys => {
                if let Some(AccessWrite::Create { id, .. }) = write.access() {
                    what.set_id(id.as_str());
                }
            }
            Target::Config { key, .. } => what.set_config(key),
            Target::Batch => what.set_operations(write.operations().len()),
        }
    });
}
