//! Another data key, while everything else goes on: a new key is put before the others, a node is killed while it may be
//! taking it over, and once every node says that it uses the new one, the others are taken away.
//!
//! **Invariant:** a key is taken from the file only when every node has said that it does not need it any more.

use std::{process::Command, time::Duration};

use serde_json::Value;

use super::nemesis::Nemesis;
use crate::harness::{check, data_keys, node::BINARY, time::lasts, tls::replace, within};

/// Nodes read the file every 5 seconds.
const READ_WITHIN_MS: u64 = 5500;
/// How long all nodes may take to use the new key before the others are left in the file: a fault may hold some.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

impl Nemesis<'_> {
    pub(super) async fn rotate_data_key(&mut self) {
        let file = data_keys(self.cluster.root());
        let made = self.cluster.root().join("new-data-key");
        let output = Command::new(BINARY.as_path()).args(["keygen", "data", "--out"]).arg(&made).output();
        let output = output.expect("the binary can be started");
        assert!(output.status.success(), "{output:?}");
        let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON on the standard output");
        let new = std::fs::read_to_string(&made).expect("it was made");
        std::fs::remove_file(&made).expect("it was made");
        let before = std::fs::read_to_string(&file).expect("there are data keys");
        replace(&file, format!("{new}{before}").as_bytes());

        let id = self.victim(false).await;
        lasts(Duration::from_millis(self.rng.u64(..READ_WITHIN_MS))).await;
        self.kill(id);
        self.start(id).await;
        let clients = self.cluster.clients();
        let taken = within(TAKEN_WITHIN, async || {
            for client in &clients {
                let status = client.status().await?;
                check(status["data_key"] == shown["data_key"], || format!("{status}"))?;
            }
            Ok(())
        });
        if taken.await.is_ok() {
            replace(&file, new.as_bytes());
            self.record.data_keys_removed += 1;
        }
    }
}
