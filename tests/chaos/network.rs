//! Cuts between nodes of one machine: each node has an address of 127.0.1.0/24, and a routing rule drops what one
//! sends to another.
//!
//! Needs a network namespace of the run's own, in which the rule for local addresses has a lower priority than ours:
//! `scripts/chaos.sh` makes it (`unshare`) and says so in `CONCORD_CHAOS_NETNS`. Established connections stall and
//! continue after the cut; new ones fail.

use std::process::Command;

/// The namespace that this process runs in.
#[derive(Debug)]
pub(crate) struct Network(());

impl Network {
    /// The network of this run, when it has one of its own.
    pub(crate) fn own() -> Option<Self> {
        std::env::var_os("CONCORD_CHAOS_NETNS").map(|_| Self(()))
    }

    /// The address of a node.
    pub(crate) fn host(id: u64) -> String {
        format!("127.0.1.{id}")
    }

    /// Drops what `from` sends to `to`.
    pub(crate) fn cut(&self, from: u64, to: u64) {
        ip(&format!("rule add pref 10 from {} to {} blackhole", Self::host(from), Self::host(to)));
    }

    pub(crate) fn cut_both(&self, one: u64, other: u64) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Ends all cuts.
    pub(crate) fn heal(&self) {
        while ip_try("rule del pref 10") {}
    }
}

fn ip(arguments: &str) {
    assert!(ip_try(arguments), "`ip {arguments}` works in the run's own namespace");
}

fn ip_try(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
