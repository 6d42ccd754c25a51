//! What disks that are full, slow, hung or failing do to the cluster.
