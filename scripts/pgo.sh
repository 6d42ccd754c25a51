#!/usr/bin/env bash
# What the program executes under load, counted, for a build that is laid out by it: scripts/pgo.sh
#
# Builds a program that counts, runs the loads of the benchmark on three nodes of it, and writes
# target/pgo/concord.profdata (15 minutes on two cores). Where that file exists, scripts/package.sh builds with it, and
# `PGO=0 scripts/package.sh` without. The counts belong to the source: after large changes they fit less and are made
# again; code that has none is built as ever.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/training.sh

profdata=$(compgen -G "$(rustc --print sysroot)/lib/rustlib/*/bin/llvm-profdata" | head -n 1) || {
    echo "pgo.sh: there is no llvm-profdata: rustup component add llvm-tools" >&2
    exit 1
}
out=$PWD/target/pgo host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$out"
rm -rf "$out/counts"
# With a target of its own the flags are not those of build scripts and macros. What is counted is placed before the
# optimisations across crates, which this program does without: it is built in a third of the time.
CARGO_PROFILE_DIST_LTO=off CARGO_PROFILE_DIST_CODEGEN_UNITS=16 RUSTFLAGS="-Cprofile-generate=$out/counts" cargo build --profile dist --locked --bin concord --target "$host" \
    --target-dir "$out/build"
LLVM_PROFILE_FILE="$out/counts/%p.profraw" train "$out/build/$host/dist/concord" "$out/data"
"$profdata" merge --output "$out/concord.profdata" "$out"/counts/*.profraw
rm -rf "$out/counts"
ls -lh "$out/concord.profdata"
