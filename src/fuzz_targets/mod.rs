//! What reads bytes that somebody else wrote, one function each, for a fuzzer and for the unit test below.
//!
//! Only a test build and one with the feature `fuzzing` have this. `scripts/cargo-fuzz.sh` runs libFuzzer on a target;
//! the unit test runs each target on its corpus (`fuzz/corpus/`) and on some thousand mutations of it, with a seed, so
//! that it costs seconds and needs no other tool. A target must not panic, must not allocate out of proportion, and
//! asserts what the format promises: what is decoded is encoded to bytes that decode to the same.
//!
//! Checksums would stop nearly every mutation at once. So a target whose format has some takes, beside the bytes as
//! they are, inputs of `concord_state::testing::parts`, which it puts into frames with right checksums.
//!
//! This file has the list of targets, and those of `model`. The others are in the files `fuzz` of their crates. The
//! values whose encodings are the first inputs, and inputs of parts, are in `concord_state::testing`.
//!
//! **Invariant:** each target is a function of its input alone.

use serde_json::Value;

use concord_consensus::{self as raft};
use concord_identity::{self as identity};
use concord_model::{
    command::Proposal,
    document::{self, Document},
    entry, index,
    limits::{Limits, PATCH_COST_MAX},
    patch::{Patch, PatchFormat},
    query,
    record::Definition,
    schema::{Formats, Schema},
};
use concord_service::{self as service};
use concord_state::testing::{JSON_DEPTH, samples};
use concord_storage::{self as store};

/// A function that takes any bytes.
#[derive(Debug)]
pub struct FuzzTarget {
    /// Its name, also that of its directory in the corpus.
    pub name: &'static str,
    /// Whether the input was decoded. Panics on a finding.
    pub run: fn(&[u8]) -> bool,
    /// Real encodings, from which the corpus was made.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [FuzzTarget; 14] = [
    FuzzTarget { name: "peer_call", run: raft::fuzz::peer_call, seeds: raft::fuzz::peer_call_seeds },
    FuzzTarget { name: "snapshot_header", run: raft::fuzz::snapshot_header, seeds: raft::fuzz::header_seeds },
    FuzzTarget { name: "log_record", run: raft::fuzz::log_record, seeds: raft::fuzz::log_record_seeds },
    FuzzTarget { name: "snapshot_file", run: store::fuzz::snapshot_file, seeds: store::fuzz::snapshot_seeds },
    FuzzTarget {
        name: "history_segment",
        run: store::fuzz::history_segment,
        seeds: store::fuzz::history_seeds,
    },
    FuzzTarget {
        name: "forwarded_write",
        run: service::fuzz::forwarded,
        seeds: service::fuzz::forwarded_seeds,
    },
    FuzzTarget { name: "cursor", run: service::fuzz::cursor, seeds: service::fuzz::cursor_seeds },
    FuzzTarget { name: "token", run: identity::fuzz::token, seeds: identity::fuzz::token_seeds },
    FuzzTarget { name: "identity", run: identity::fuzz::document, seeds: identity::fuzz::document_seeds },
    FuzzTarget { name: "proposal", run: proposal, seeds: samples::proposals },
    FuzzTarget { name: "patch", run: patch, seeds: samples::patches },
    FuzzTarget { name: "schema", run: schema, seeds: samples::schemas },
    FuzzTarget { name: "index_value", run: index_value, seeds: samples::values },
    FuzzTarget { name: "query_string", run: query_string, seeds: samples::queries },
];

/// The target with a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

fn json(bytes: &[u8]) -> Option<Value> {
    document::parse(bytes, JSON_DEPTH).ok()
}

/// Two parts of an input, divided by a zero byte, which no JSON text has.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..at], bytes.get(at + 1..).unwrap_or_default())
}

/// An entry of the log.
fn proposal(bytes: &[u8]) -> bool {
    let Ok(proposals) = entry::decode(bytes) else { return false };
    let again = entry::decode(&entry::encode(proposals.iter().map(Proposal::to_bytes).collect()));
    assert_eq!(again.as_ref(), Ok(&proposals), "an entry is decoded as it was encoded");
    assert!(proposals.iter().all(|proposal| !proposal.to_string().is_empty()));
    true
}

/// A patch and its target.
fn patch(bytes: &[u8]) -> bool {
    let (patch, target) = halves(bytes);
    let (Some(patch), Some(target)) = (json(patch), json(target)) else { return false };
    let mut applied = false;
    for format in [PatchFormat::Merge, PatchFormat::Json] {
        if !Patch::check_shape(format, &patch).is_empty() {
            continue;
        }
        let patch = Patch { format, document: Document::new(patch.clone()) };
        let apply = |target: &Value| patch.apply(target.clone(), &mut { PATCH_COST_MAX });
        let Ok(once) = apply(&target) else { continue };
        assert_eq!(apply(&target).as_ref(), Ok(&once), "a patch has one result");
        if format == PatchFormat::Merge {
            assert_eq!(apply(&once).as_ref(), Ok(&once), "a merge that is repeated changes nothing");
        }
        assert!(once.to_string().len() < bytes.len() * 2 + (64 << 20), "a patch is bounded");
        applied = true;
    }
    applied
}

/// A schema, its patterns among them, and data.
fn schema(bytes: &[u8]) -> bool {
    let (schema, data) = halves(bytes);
    let Some(text) = json(schema) else { return false };
    let Ok(schema) = Schema::compile(&text, Formats::Asserted) else { return false };
    let data = json(data).unwrap_or(Value::Null);
    let first = format!("{:?}", schema.check(&data));
    assert_eq!(format!("{:?}", schema.check(&data)), first, "a check has one result");
    true
}

/// Two values and their order.
fn index_value(bytes: &[u8]) -> bool {
    let (one, other) = halves(bytes);
    let (Some(one), Some(other)) = (json(one), json(other)) else { return false };
    let (first, second) = (index::encode(&one), index::encode(&other));
    assert_eq!(first == second, index::encode(&other) == index::encode(&one));
    // Where another order is at hand, it is the same one.
    let whole = |value: &Value| value.as_i64().filter(|_| !value.to_string().contains(['.', 'e', 'E']));
    if let (Some(one), Some(other)) = (whole(&one), whole(&other)) {
        assert_eq!(first.cmp(&second), one.cmp(&other), "{one} {other}");
    }
    if let (Some(one), Some(other)) = (one.as_str(), other.as_str()) {
        assert_eq!(first.cmp(&second), one.cmp(other), "{one} {other}");
    }
    // Another spelling of a number is the same value.
    if let Value::Number(number) = &one
        && !number.as_str().contains(['e', 'E'])
        && let Some(spelled) = json(format!("{number}e0").as_bytes())
    {
        assert_eq!(index::encode(&spelled), first, "{number}");
    }
    true
}

/// The query string of a list.
fn query_string(bytes: &[u8]) -> bool {
    let params: Vec<(String, String)> = form_urlencoded::parse(bytes).into_owned().collect();
    let limits = Limits::default();
    let definition: Definition = samples::definition();
    // Both are refusals or queries; that they end is what is tested.
    let shape = query::configs_shape(&params, &limits);
    let whole = query::configs(&params, &definition, &limits);
    assert!(whole.is_err() || shape.is_ok(), "what has a wrong shape is refused in any case");
    drop(query::definitions(&params, &limits));
    whole.is_ok()
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        path::{Path, PathBuf},
    };

    use super::*;

    /// Mutations of each file of the corpus.
    const MUTATIONS: usize = 3000;
    /// The corpus is small on purpose: it is read by people, too.
    const CORPUS_BYTES_MAX: u64 = 200_000;

    fn corpus(target: &FuzzTarget) -> Vec<(PathBuf, Vec<u8>)> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
    }

    /// Some bits, bytes and stretches of an input changed, as libFuzzer changes them.
    fn mutated(input: &[u8], other: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..rng.usize(1..5) {
            if bytes.is_empty() {
                bytes.push(rng.u8(..));
            }
            let at = rng.usize(..bytes.len());
            match rng.u8(..7) {
                0 => bytes[at] ^= 1 << rng.u8(..8),
                1 => bytes[at] = rng.u8(..),
                2 => bytes[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff, b'"', b'[', b'0']).unwrap(),
                3 => bytes.truncate(at),
                4 => bytes.insert(at, rng.u8(..)),
                5 => drop(bytes.drain(at..bytes.len().min(at + rng.usize(1..16)))),
                _ if other.is_empty() => {}
                _ => {
                    let from = rng.usize(..other.len());
                    let to = other.len().min(from + rng.usize(1..64));
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
            }
        }
        bytes
    }

    #[test]
    fn no_target_panics_on_its_corpus_or_near_it() {
        let mut rng = fastrand::Rng::with_seed(1);
        for target in &TARGETS {
            let inputs = corpus(target);
            assert!(!inputs.is_empty(), "{} has no corpus", target.name);
            for (_, input) in &inputs {
                // Some were findings, and are refused now.
                let _: bool = (target.run)(input);
                for _ in 0..MUTATIONS {
                    let (_, other) = &inputs[rng.usize(..inputs.len())];
                    let _: bool = (target.run)(&mutated(input, other, &mut rng));
                }
            }
        }
    }

    #[test]
    fn the_corpus_is_small_and_has_no_strangers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        let is: BTreeSet<String> = std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(is, TARGETS.iter().map(|target| target.name.to_owned()).collect());
        let bytes: u64 = TARGETS.iter().flat_map(corpus).map(|(_, bytes)| bytes.len() as u64).sum();
        assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes");
    }

    /// A target that refuses its own real encodings tests nothing beyond the first check.
    #[test]
    fn every_seed_is_decoded() {
        for target in &TARGETS {
            let seeds = (target.seeds)();
            assert!(seeds.len() >= 3, "{} has {} seeds", target.name, seeds.len());
            for (number, seed) in seeds.iter().enumerate() {
                assert!((target.run)(seed), "seed {number} of {} is refused", target.name);
            }
        }
    }

    #[test]
    #[ignore = "writes fuzz/corpus: after a new target or format"]
    fn write_the_corpus() {
        for target in &TARGETS {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
            std::fs::create_dir_all(&directory).unwrap();
            for (number, seed) in (target.seeds)().iter().enumerate() {
                std::fs::write(directory.join(format!("seed-{number:02}")), seed).unwrap();
            }
        }
    }
}
