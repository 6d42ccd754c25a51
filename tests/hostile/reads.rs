//! What callers with a valid key whose reads are expensive do to the cluster.
