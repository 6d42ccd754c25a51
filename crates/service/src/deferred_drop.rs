//! Frees large values on a thread for blocking work: dropping the last reference to a million records, or the values of a
//! long body, takes as long as reading them took.
//!
//! **Invariant:** no worker thread frees the values of a [`DeferredDrop`].

use concord_consensus::blocking::drop_elsewhere;
use tokio::runtime::Handle;

/// Values that are freed on a thread for blocking work when this is dropped.
#[derive(Debug)]
pub(super) struct DeferredDrop<T: Send + 'static>(pub(super) Vec<T>);

impl<T: Send + 'static> Drop for DeferredDrop<T> {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.0);
        if values.is_empty() {
            return;
        }
        // Without a runtime there are no worker threads either.
        if Handle::try_current().is_ok() {
            drop_elsewhere(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        thread::{self, ThreadId},
        time::Duration,
    };

    use super::*;

    #[tokio::test]
    async fn values_are_freed_on_another_thread() {
        struct Records(mpsc::Sender<ThreadId>);
        impl Drop for Records {
            fn drop(&mut self) {
                self.0.send(thread::current().id()).unwrap();
            }
        }
        let (freed, wait) = mpsc::channel();
        drop(DeferredDrop(vec![Records(freed)]));
        assert_ne!(wait.recv_timeout(Duration::from_secs(60)).unwrap(), thread::current().id());
    }
}
