//! What callers without a key, and slow connections do to the cluster.
