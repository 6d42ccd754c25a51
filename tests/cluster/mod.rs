//! What a cluster promises while its nodes are killed, stopped, emptied and misled. Each test has its own cluster.

mod access_keys;
mod backup;
mod batch;
mod cursor;
mod encryption;
mod failover;
mod forming;
mod groups;
mod history;
mod indexing;
mod lease;
mod members;
mod monotone;
mod rebuild;
mod refusal;
mod restart;
mod schema_change;
mod snapshot;
mod strangers;
mod watch;
