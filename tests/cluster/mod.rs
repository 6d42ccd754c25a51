//! What a cluster promises while its nodes are killed, stopped, emptied and misled. Each test has its own cluster.

mod backup;
mod cursor;
mod failover;
mod forming;
mod members;
mod monotone;
mod rebuild;
mod refusal;
mod restart;
mod snapshot;
mod strangers;
