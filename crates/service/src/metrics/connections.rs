//! How many connections a listener has open.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Open connections of a listener. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<AtomicUsize>);

/// An open connection. Dropping it ends it.
#[derive(Debug)]
pub struct Open(Connections);

impl Connections {
    /// Counts one more.
    #[must_use]
    pub fn open(&self) -> Open {
        self.0.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }

    /// How many are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_open_no_more() {
        let connections = Connections::default();
        let (one, other) = (connections.open(), connections.clone().open());
        assert_eq!(connections.count(), 2);
        drop(one);
        assert_eq!(connections.count(), 1);
        drop(other);
        assert_eq!(connections.count(), 0);
    }
}
