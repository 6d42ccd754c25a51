//! What callers with a valid key whose writes are expensive do to the cluster.
