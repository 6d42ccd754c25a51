//! Places for what is done at once: so many in all, and so many for one host.
//!
//! **Invariant:** a wait for a place of a host takes no place of the others: a host that hangs delays only itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of one kind of work.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    of_host: usize,
    hosts: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    _all: OwnedSemaphorePermit,
    _of_host: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(all: usize, of_host: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_host, hosts: Mutex::default() }
    }

    /// A place for a host, as soon as there is one.
    pub(super) async fn take(&self, host: &str) -> Place {
        let of_host = self.of_host(host).acquire_owned().await.expect("it is never closed");
        let all = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
        Place { _all: all, _of_host: of_host }
    }

    /// The places of a host. Each place that is taken, and each wait for one, holds a reference.
    fn of_host(&self, host: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, places| Arc::strong_count(places) > 1);
        Arc::clone(hosts.entry(host.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.of_host))))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_host_has_a_part_of_the_places_and_its_waits_take_none_of_others() {
        let places = Places::new(3, 2);
        let take = |host: &str| places.take(host).now_or_never();
        let held = [take("a").unwrap(), take("a").unwrap()];
        let mut waiting = Box::pin(places.take("a"));
        assert!(waiting.as_mut().now_or_never().is_none() && take("a").is_none());
        let other = take("b").expect("one is left");
        assert!(take("c").is_none(), "all are taken");
        drop(other);
        drop(held);
        let held = waiting.now_or_never().expect("one is free again");
        drop((held, take("b").unwrap(), take("c").unwrap()));
        drop(take("d"));
        assert_eq!(places.hosts.lock().unwrap().len(), 1, "a host without a place is dropped");
    }
}
