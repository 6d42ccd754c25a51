//! What callers, strangers, disks, clocks and upgrades do to a cluster, beside a client that only wants to be served.
//!
//! | module | question |
//! |---|---|
//! | `audit` | what do full volumes, kills and guessed credentials do to the audit log? |
//! | `audit_anchors` | does a rewritten audit log show, and is no other one accused? |
//! | `audit_syslog` | does a syslog server get every line, and does it hold nothing up? |
//! | `audit_lines` | has every request its line, and is every change of the lines found? |
//! | `clocks` | do clocks that jump change what is kept? |
//! | `disks` | do full, slow, hung or failing disks stop the others? |
//! | `earlier` | what do lists of many different earlier revisions do? |
//! | `frames` | what do broken and flooding frames of HTTP/2 do? |
//! | `good_client` | the client that writes and reads on every node, and what it saw |
//! | `grants` | does every route ask who may use it? |
//! | `greedy` | does an access key that asks too much hurt others, or store more than it may? |
//! | `leaks` | where are the secrets found that a node was given? |
//! | `many_configs` | do updates among a million configs keep their rate beside lists that test all of them? |
//! | `reads` | what do expensive reads with a valid key do? |
//! | `raw` | connections byte by byte, and what a process has open |
//! | `secret` | what does a node give away to an address that a caller names? |
//! | `side_doors` | does a way round the rules of `default`, a full disk or many deletions open a restricted environment? |
//! | `smuggling` | does one request of HTTP/1 ever become two? |
//! | `streams` | what do streams of HTTP/2 do that their caller does not take? |
//! | `strangers` | what do callers without a key, and slow connections, do? |
//! | `together` | do attacks of different kinds at once use up what each alone leaves? |
//! | `floods` | do floods over many connections, or of one key, keep others waiting? |
//! | `upgrades` | do two versions serve one cluster, forward and back? |
//! | `versions` | do programs of one version work with a cluster of another, also while a rollout runs? |
//! | `writes` | what do expensive writes with a valid key do? |
//!
//! Each test attacks real processes and asserts what the attacker is answered, what the good client saw, and that the
//! leader stayed. How fast the good client was is printed; `scripts/hostile.sh` runs the same tests with a release
//! build and a bound for it, because a bound in time proves nothing on a busy machine.

mod audit;
mod audit_anchors;
mod audit_lines;
mod audit_syslog;
mod clocks;
mod disks;
mod earlier;
mod floods;
mod frames;
mod good_client;
pub(crate) mod grants;
mod greedy;
mod leaks;
mod many_configs;
pub(crate) mod raw;
pub(crate) mod reads;
mod released;
mod secret;
mod side_doors;
mod smuggling;
mod strangers;
mod streams;
mod together;
// A build for use knows no level of the tests.
#[cfg(any(debug_assertions, feature = "sabotage"))]
mod upgrades;
mod versions;
mod writes;

pub(crate) use good_client::GoodClient;

use std::collections::BTreeMap;

use crate::harness::{Cluster, check, eventually};

/// How often each status was answered.
fn counts(statuses: &[u16]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for status in statuses {
        *counts.entry(*status).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn without_an_attack_the_good_client_is_served() {
    let cluster = Cluster::start("hostile-none").await;
    let good = GoodClient::start(&cluster).await;
    eventually("requests are answered", async || {
        check(good.requests() > 300, || format!("{} requests", good.requests()))
    })
    .await;
    good.stop(&cluster, "no attack").await.is_unhurt().memory_within(512);
}
