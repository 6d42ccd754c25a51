//! The Rust client, its local cache above all: real nodes that are killed, paused and cut off.
//!
//! | file | question |
//! |---|---|
//! | `cache` | does the cache follow, go on without nodes, and begin without them? |
//! | `environment` | does one program do and see the same in every environment, and nothing of another one? |
//! | `operations` | does each typed operation do what its name says, in a batch, in a transaction and alone? |
//! | `soak` | is an update lost, a change missed, or a stale value called fresh under faults? |
//! | `model` | what the clients did, and what it says about what they may see |

mod cache;
mod environment;
mod model;
mod operations;
mod soak;

use std::time::Duration;

use concord_client::{Client, Operation, Options, Request};

use crate::harness::{Cluster, DEADLINE};

/// A client of all nodes, as a program has it.
fn client(cluster: &Cluster) -> Client {
    client_with(cluster, DEADLINE)
}

/// The same with another limit of a request.
fn client_with(cluster: &Cluster, timeout: Duration) -> Client {
    let urls = cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
    let key = cluster.client(1).key;
    Client::new(Options { urls, key, timeout, ..Options::default() }).expect("the options are good")
}

/// Makes a definition that admits anything.
async fn define(client: &Client, definition: &str) {
    let operation = Operation::CreateDefinition {
        definition: definition.into(),
        indexes: Vec::new(),
        schema: None,
        format_assertion: None,
    };
    let request = Request::operation(&operation);
    client.send(request).await.expect("the definition is new");
}
