//! What a cluster promises while its nodes are killed, stopped, emptied and misled. Each test has its own cluster.

mod access_keys;
mod backup;
mod batch;
mod change_requests;
mod cursor;
mod disk_of_an_earlier_time;
mod earlier;
mod encryption;
mod failover;
mod forming;
mod freezes;
mod groups;
mod history;
mod indexing;
mod lease;
mod members;
mod monotone;
mod point_in_time;
mod polls;
mod rebuild;
mod recover;
mod refusal;
mod replicas;
mod restart;
mod revoked;
mod root_rotated;
mod schema_change;
mod snapshot;
#[cfg(feature = "otlp")]
mod spans;
mod staged;
mod strangers;
mod transactions;
mod undelete;
mod watch;
mod watched;
