//! The operator's file of data keys is read again while the node runs.
//!
//! A new first key takes the place of the old one in seconds, without a restart: it encrypts the key of the data
//! directory, which is one small file. A file that can't be used changes nothing, and the node says so.
//!
//! **Invariant:** a data key that the directory still needs is never given up.

use std::{sync::Arc, time::Duration};

use super::{context::Context, request::Alarm};

/// How often the file is read: the longest time that an operator waits for a new key.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reads the file until the node ends.
pub(super) async fn keep(cx: Arc<Context>) -> Result<(), String> {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(consensus) = cx.consensus() else { continue };
        let at_rest = consensus.store().at_rest().clone();
        if !at_rest.seals() {
            return std::future::pending().await;
        }
        tokio::task::spawn_blocking(move || at_rest.refresh()).await.map_err(|error| error.to_string())?;
    }
}

/// What is wrong with the file.
pub(super) fn alarm(cx: &Context) -> Option<Alarm> {
    let message = cx.consensus()?.store().at_rest().problem()?;
    Some(Alarm { kind: "data_key", node_id: Some(cx.node_id()), message })
}
