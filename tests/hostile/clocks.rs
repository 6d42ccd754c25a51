//! What clocks that jump do to the cluster.
