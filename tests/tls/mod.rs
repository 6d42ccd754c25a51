//! TLS for callers, and mutual TLS between nodes.
//!
//! | module | question |
//! |---|---|
//! | `callers` | which versions and suites are spoken, and does everything work over them? |
//! | `files` | which files does a node refuse, and what happens when they change? |
//! | `migration` | does a plain cluster become an encrypted one without a break? |
//! | `nodes` | which certificates are accepted between nodes? |
//! | `raw` | a connection with any certificate, or with none |
//! | `replacement` | is a CA replaced without a failed request of a client? |

mod callers;
mod files;
mod migration;
mod nodes;
pub(crate) mod raw;
mod replacement;

use crate::harness::{Cluster, Node, Options, tls::Authority};

/// A cluster whose nodes speak mutual TLS with each other and TLS with callers, and its authority. It has no secret.
pub(crate) async fn encrypted(name: &str, options: &Options) -> (Cluster, Authority) {
    let mut options = options.clone();
    options.settings.remove("CONCORD_CLUSTER_SECRET");
    let mut made = None;
    let cluster = Cluster::start_prepared(name, &options, |root, nodes| {
        let authority = Authority::new(root, "ca");
        for node in nodes {
            equip(&authority, node);
        }
        made = Some(authority);
    })
    .await;
    (cluster, made.expect("the nodes were prepared"))
}

/// Gives a node its certificates for both listeners.
fn equip(authority: &Authority, node: &mut Node) {
    authority.equip(node);
    authority.equip_for_callers(node);
}
