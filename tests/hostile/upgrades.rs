//! What two versions in one cluster do to the cluster.
