//! `concord plan`: the memory and the disk that each node of a cluster needs for so many configs.
//!
//! `docs/operations/capacity.md` explains the figures and says what they were measured with. Each is an upper bound of a
//! part that grows, or the limit that a setting gives it.
//!
//! **Invariant:** every node holds all data, so the number of nodes changes nothing.

use clap::Args;
use serde_json::{Value, json};

use super::{
    connection::Failure,
    output::{Columns, OutputArgs, print_columns, shown_bytes},
};

const MIB: u64 = 1 << 20;
/// A node without data, with program and libraries.
const EMPTY_NODE_BYTES: u64 = 40_000_000;
/// What a config takes in memory beside its data.
const CONFIG_BYTES: u64 = 350;
/// The same for each indexed field.
const INDEX_BYTES: u64 = 60;
/// Of each row of sled, while it is open: one for the config and one for each indexed field.
const SLED_ROW_BYTES: u64 = 60;
/// What a config takes on disk beside its data, before compression.
const STORED_CONFIG_BYTES: u64 = 150;
/// A revision in the history, beside the data before and after it.
const REVISION_BYTES: u64 = 250;
/// The log's cache and the recent changes for watches, when both are full.
const CACHE_BYTES: u64 = 88 * MIB;
/// A connection after a request.
const CONNECTION_BYTES: u64 = 20_000;
/// sled is rebuilt when it is larger than this, and than so many times its content.
const SLED_BYTES_MIN: u64 = 256 * MIB;
const SLED_GROWTH: u64 = 4;

const COLUMNS: Columns = Columns {
    name: "part",
    narrow: &[("PART", "/part"), ("MEMORY", "/memory"), ("DISK", "/disk")],
    wide: &[("MEMORY BYTES", "/memory_bytes"), ("DISK BYTES", "/disk_bytes")],
};

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Configs of all definitions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    configs: u64,
    /// Bytes of a config's data, on average
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=16_777_216))]
    bytes: u64,
    /// Indexed fields of a config, on average
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u64).range(..=100))]
    indexes: u64,
    /// Client connections of a node
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    connections: u64,
    /// Revisions of history to retain, of a config each, as in `CONCORD_HISTORY_REVISIONS`
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    history_revisions: u64,
    /// Memory of requests in flight, as in `CONCORD_IN_FLIGHT_BYTES`
    #[arg(long, default_value_t = 512 << 20, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1 << 40))]
    in_flight_bytes: u64,
    #[command(flatten)]
    format: OutputArgs,
}

/// Runs `plan`.
pub(super) fn run(args: &PlanArgs) -> Result<(), Failure> {
    print_columns(&args.format.or_table(), &json!({ "results": parts(args) }), &COLUMNS)
}

/// The parts and their sum, in bytes of memory and of disk.
fn parts(args: &PlanArgs) -> Vec<Value> {
    let PlanArgs { configs, bytes, indexes, connections, history_revisions, in_flight_bytes, .. } = *args;
    let stored = configs * (bytes + STORED_CONFIG_BYTES + indexes * INDEX_BYTES);
    let parts = [
        ("node without data", EMPTY_NODE_BYTES, 0),
        ("configs", configs * (bytes + CONFIG_BYTES + indexes * INDEX_BYTES), 0),
        // While it is rebuilt, there are two.
        ("sled", configs * (1 + indexes) * SLED_ROW_BYTES, SLED_BYTES_MIN.max(stored * SLED_GROWTH) + stored),
        // A snapshot is due after as many bytes of log, and the log reaches back to the older of two snapshots.
        ("log", 0, 2 * stored.max(64 * MIB) + 64 * MIB),
        ("caches of log and watches", CACHE_BYTES, 0),
        // Two, and one that is being written or received.
        ("snapshots", 0, 3 * stored),
        ("history", 0, history_revisions * (2 * bytes + REVISION_BYTES)),
        ("audit log", 0, 1024 * MIB),
        ("connections", connections * CONNECTION_BYTES, 0),
        ("disk reserve", 0, 256 * MIB),
    ];
    let (used, disk) = parts.iter().fold((0, 0), |sum, part| (sum.0 + part.1, sum.1 + part.2));
    // A start builds the state beside what it reads, and a burst of large writes is in memory more than once.
    let room = used / 3;
    let ends = [("room for starts and bursts", room, 0), ("each node", used + room + in_flight_bytes, disk)];
    let row = |(part, memory, disk): &(&str, u64, u64)| {
        let shown = |bytes: u64| if bytes == 0 { Value::Null } else { shown_bytes(bytes).into() };
        json!({
            "part": part, "memory_bytes": memory, "disk_bytes": disk, "memory": shown(*memory), "disk": shown(*disk),
        })
    };
    let in_flight = [("requests in flight, at most", in_flight_bytes, 0)];
    parts.iter().chain(&in_flight).chain(&ends).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_node(configs: u64, bytes: u64, indexes: u64, history_revisions: u64) -> (u64, u64) {
        let (connections, in_flight_bytes, format) = (64, 0, OutputArgs::default());
        let args =
            PlanArgs { configs, bytes, indexes, connections, history_revisions, in_flight_bytes, format };
        let parts = parts(&args);
        let sum = parts.last().expect("the sum");
        let of = |name: &str| sum[name].as_u64().expect("a number");
        (of("memory_bytes"), of("disk_bytes"))
    }

    /// The table of `docs/operations/capacity.md`: configs, bytes, indexed fields, revisions; MB of memory and on disk.
    const MEASURED: [(u64, u64, u64, u64, u64, u64); 4] = [
        (1_000_000, 300, 2, 1_000_000, 1128, 0),
        (150_000, 300, 2, 150_000, 229, 350),
        (60_000, 300, 2, 120_000, 186, 207),
        (20_000, 3000, 0, 40_000, 273, 532),
    ];

    #[test]
    fn a_node_needs_no_more_than_planned_and_not_much_less() {
        for (configs, bytes, indexes, revisions, memory, disk) in MEASURED {
            let planned = each_node(configs, bytes, indexes, revisions);
            let planned = (planned.0 / 1_000_000, planned.1 / 1_000_000);
            assert!(
                planned.0 * 100 >= memory * 95,
                "{configs}: {planned:?} MB, measured {memory} and {disk}"
            );
            assert!(planned.0 <= memory * 7 / 4, "{configs}: {planned:?} MB, measured {memory} and {disk}");
            assert!(planned.1 >= disk, "{configs}: {planned:?} MB, measured {memory} and {disk}");
        }
    }

    #[test]
    fn the_largest_plan_is_a_number() {
        let (memory, disk) = each_node(1_000_000_000, 16_777_216, 100, 100_000_000_000);
        assert!(memory > 1 << 53 && disk > memory);
    }
}
