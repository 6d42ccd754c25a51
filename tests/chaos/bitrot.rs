//! Bits that flip on a disk while a node is down: the node reports or repairs them and never serves altered data.
//!
//! Every kind of file is damaged. A node that starts must have every record as the others do; one that refuses to start
//! must name the file. `scripts/bitrot.sh` runs it with `FLIPS`, `SEED` and `ENCRYPTED` from the environment.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::files::files_below;
use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{define, everything, set},
    number,
};

/// Flips of the short run: each kind of file three times or more.
const FLIPS: u64 = 20;
/// Records that are written over and over.
const RECORDS: usize = 60;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Log,
    Snapshot,
    History,
    Sled,
    Identity,
    LogSeen,
    /// Of an encrypted directory; without one there is nothing to damage.
    Keys,
}

const PARTS: [Part; 7] =
    [Part::Log, Part::Snapshot, Part::History, Part::Sled, Part::Identity, Part::LogSeen, Part::Keys];

impl Part {
    /// Its files in a node's directory that hold anything.
    fn files(self, directory: &Path) -> Vec<PathBuf> {
        let place = match self {
            Self::Log => "log",
            Self::Snapshot => "store/snapshot",
            Self::History => "store/history",
            Self::Sled => "store/sled",
            Self::Identity => return vec![directory.join("identity.json")],
            Self::LogSeen => return vec![directory.join("log.seen")],
            Self::Keys => {
                let mut files = ["keys", "keys.copy"].map(|name| directory.join(name)).to_vec();
                files.retain(|file| file.exists());
                return files;
            }
        };
        let mut files = files_below(&directory.join(place));
        let is_set_aside = |file: &PathBuf| file.extension().is_some_and(|end| end == "damaged");
        files.retain(|file| !is_set_aside(file) && std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
        files
    }
}

/// Where the blocks of a log file begin: a tag, a length, and the checksum of both.
fn blocks(bytes: &[u8]) -> Vec<usize> {
    let is_head = |head: &[u8]| {
        matches!(head[0], 0xC1..=0xC4 | 0xD1) && crc32c::crc32c(&head[..5]).to_be_bytes() == head[5..9]
    };
    (0..bytes.len().saturating_sub(8)).filter(|place| is_head(&bytes[*place..*place + 9])).collect()
}

/// A byte of a file; in the log often one of a length or of a record's own head.
fn place(part: Part, bytes: &[u8], rng: &mut fastrand::Rng) -> usize {
    let anywhere = rng.usize(..bytes.len());
    let blocks = if part == Part::Log { blocks(bytes) } else { Vec::new() };
    let Some(block) = rng.choice(&blocks).copied() else { return anywhere };
    match rng.u8(..3) {
        0 => block + rng.usize(1..5),
        1 => block.saturating_sub(rng.usize(1..45)),
        _ => anywhere,
    }
}

/// Whether a refusal names the file; for the log, its directory and the offset in it.
fn names(part: Part, file: &Path, text: &str) -> bool {
    let place = if part == Part::Log {
        file.parent().expect("it is in a directory").as_os_str()
    } else {
        file.file_name().expect("a file has a name")
    };
    let named =
        text.lines().any(|line| line.contains("ERROR concord") && line.contains(&*place.to_string_lossy()));
    named && (part != Part::Log || text.contains("offset"))
}

/// What the run has counted.
#[derive(Debug, Default)]
struct Tally {
    by_part: BTreeMap<String, u64>,
    refused: u64,
    unharmed: u64,
    violations: Vec<String>,
}

struct BitrotRun {
    cluster: Cluster,
    rng: fastrand::Rng,
    expected: BTreeMap<String, Value>,
    written: usize,
    tally: Tally,
}

impl BitrotRun {
    async fn start(seed: u64, options: Options) -> Self {
        let options = options.with("CONCORD_SNAPSHOT_LOG_BYTES", "16384");
        let cluster = Cluster::start_with("bitrot", &options).await;
        define(&cluster.client(1), "rot").await;
        let rng = fastrand::Rng::with_seed(seed);
        let mut run = Self { cluster, rng, expected: BTreeMap::new(), written: 0, tally: Tally::default() };
        run.write(2 * RECORDS).await;
        run
    }

    async fn write(&mut self, count: usize) {
        for _ in 0..count {
            let key = format!("k{}", self.written % RECORDS);
            let text: String = (0..400).map(|_| self.rng.alphanumeric()).collect();
            let data = json!({"turn": self.written, "text": text});
            set(&self.cluster.client(1 + self.written as u64 % 3), "rot", &key, &data).await;
            self.expected.insert(key, data);
            self.written += 1;
        }
    }

    /// One bit of one file of one node.
    async fn flip(&mut self, part: Part) {
        self.write(3).await;
        let id = self.rng.u64(1..=3);
        if self.rng.bool() {
            assert!(self.cluster.node(id).stop().await.success());
        } else {
            self.cluster.node(id).kill();
        }
        let files = part.files(&self.cluster.node(id).directory);
        let Some(file) = self.rng.choice(&files).cloned() else {
            self.cluster.node(id).start().await;
            return;
        };
        let before = std::fs::read(&file).expect("the file is there");
        let (place, bit) = (place(part, &before, &mut self.rng), self.rng.u8(..8));
        let mut after = before.clone();
        after[place] ^= 1 << bit;
        std::fs::write(&file, &after).expect("the file can be written");
        let what = format!("bit {bit} of byte {place} of {} in {}", before.len(), file.display());
        *self.tally.by_part.entry(format!("{part:?}")).or_default() += 1;
        match self.cluster.node(id).try_start().await {
            Ok(()) => {
                self.tally.unharmed += 1;
                self.compare(id, &what).await;
            }
            Err(text) => {
                self.tally.refused += 1;
                if !names(part, &file, &text) {
                    self.tally.violations.push(format!("{what}: refused, but it is not named:\n{text}"));
                }
                if text.contains("panicked at") {
                    self.tally.violations.push(format!("{what}: a panic:\n{text}"));
                }
                std::fs::write(&file, &before).expect("the file can be written");
                self.cluster.node(id).start().await;
                self.compare(id, &what).await;
            }
        }
        // A file that the node did not read is restored for the next flip.
        if std::fs::read(&file).is_ok_and(|now| now == after) && part != Part::Sled && part != Part::Log {
            std::fs::write(&file, &before).expect("the file can be written");
        }
    }

    /// The node lists the same changes as another one, once that has sent what a damaged piece of the history held.
    async fn has_all_changes(&mut self, id: u64) {
        let changes = async |client: &Client| {
            let call = client.get("/api/v1/changes").query(&[("latest", "1000"), ("definition", "rot")]);
            call.insist().await.expect(200).data()["events"].clone()
        };
        let expected = changes(&self.cluster.client(id % 3 + 1)).await;
        assert!(expected.as_array().is_some_and(|events| events.len() > RECORDS));
        assert_eq!(changes(&self.cluster.client(id)).await, expected);
    }

    /// Every record of the node, its digest, and the changes.
    async fn compare(&mut self, id: u64, what: &str) {
        self.cluster.ready().await;
        let shown = everything(&self.cluster.client(id), "rot").await;
        if shown != self.expected {
            let differ = self.expected.iter().filter(|(key, data)| shown.get(*key) != Some(*data));
            let keys: Vec<_> = differ.map(|(key, _)| key).collect();
            self.tally
                .violations
                .push(format!("{what}: node {id} shows {keys:?} different from what was written"));
        }
        self.cluster.equal_digests().await;
        self.has_all_changes(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_reported_or_repaired_and_never_served() {
    flip_bits(Options::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_an_encrypted_directory_is_reported_or_repaired_and_never_served() {
    flip_bits(Options::default().encrypted()).await;
}

async fn flip_bits(options: Options) {
    let (flips, seed) = (number("FLIPS").unwrap_or(FLIPS), number("SEED").unwrap_or(1));
    let mut run = BitrotRun::start(seed, options).await;
    let mut flip = 0;
    while run.tally.by_part.values().sum::<u64>() < flips {
        run.flip(PARTS[flip % PARTS.len()]).await;
        flip += 1;
    }
    let tally = run.tally;
    for violation in &tally.violations {
        eprintln!("VIOLATION {violation}");
    }
    println!(
        "{}",
        json!({
            "seed": seed,
            "violations": tally.violations.len(),
            "flips": tally.by_part,
            "refused_by_name": tally.refused,
            "served_unharmed": tally.unharmed,
        })
    );
    assert!(tally.violations.is_empty(), "{} violations with SEED={seed}", tally.violations.len());
}

#[tokio::test]
async fn a_damaged_newest_snapshot_costs_nothing() {
    let mut run = BitrotRun::start(2, Options::default()).await;
    let snapshots = |directory: &Path| {
        let mut files = Part::Snapshot.files(directory);
        files.retain(|file| file.extension().is_some_and(|end| end == "concord"));
        files
    };
    // When a snapshot is built depends on the pace of the writes, so they go on until there are enough.
    eventually("each node keeps two snapshots", async || {
        run.write(RECORDS).await;
        let kept: Vec<_> = run.cluster.nodes.iter().map(|node| snapshots(&node.directory).len()).collect();
        check(kept.iter().all(|kept| *kept >= 2), || format!("{kept:?}"))
    })
    .await;
    run.write(2 * RECORDS).await;
    let before = run.cluster.equal_digests().await;
    // All at once: no node can ask another, so the older snapshot and the log after it must suffice.
    run.cluster.kill_all();
    for node in &run.cluster.nodes {
        std::fs::remove_dir_all(node.directory.join("store/sled")).expect("sled's directory is there");
        let newest = snapshots(&node.directory).pop().expect("there are two");
        let mut bytes = std::fs::read(&newest).expect("the file is there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(newest, bytes).expect("the file can be written");
    }
    run.cluster.start_all().await;
    assert_eq!(run.cluster.equal_digests().await, before);
    for id in 1..=3 {
        run.compare(id, "the newest snapshot").await;
    }
    assert!(run.tally.violations.is_empty(), "{:?}", run.tally.violations);
}
