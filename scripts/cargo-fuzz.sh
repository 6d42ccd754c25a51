#!/usr/bin/env bash
# libFuzzer on what reads foreign bytes (src/fuzz_targets): scripts/cargo-fuzz.sh [TARGET…|all] [SECONDS]
#
#   scripts/cargo-fuzz.sh               every target, 60 s each
#   scripts/cargo-fuzz.sh patch 600     one target, ten minutes
#   scripts/cargo-fuzz.sh list          their names
#
# Starts from the corpus in fuzz/corpus. What a run finds beyond it stays under target/cargo-fuzz, also the input of a
# finding, after which the script exits with 1: once it is mended, that input goes into the corpus, which the unit tests
# run. The sanitizer needs an unstable flag of the compiler, which RUSTC_BOOTSTRAP=1 allows for this build alone.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

mapfile -t all < <(sed -n 's/^ *Target { name: "\([a-z_]*\)".*/\1/p' src/fuzz_targets/mod.rs)
seconds=60 targets=()
for argument in "$@"; do
    case $argument in
        list) printf '%s\n' "${all[@]}"; exit ;;
        all) targets=("${all[@]}") ;;
        *[!0-9]*)
            [[ " ${all[*]} " == *" $argument "* ]] || { echo "cargo-fuzz.sh: no target $argument; there are: ${all[*]}" >&2; exit 2; }
            targets+=("$argument")
            ;;
        *) seconds=$argument ;;
    esac
done
((${#targets[@]})) || targets=("${all[@]}")

cargo_fuzz=$(cargo_tool cargo-fuzz 0.13.2) || { echo "cargo-fuzz.sh: SKIPPED, nothing was fuzzed: cargo-fuzz can't be installed" >&2; exit 0; }
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$PWD/target/cargo-fuzz/build
"$cargo_fuzz" build --fuzz-dir fuzz any

found=0
for target in "${targets[@]}"; do
    corpus=$PWD/target/cargo-fuzz/corpus/$target
    mkdir -p "$corpus" "target/cargo-fuzz/artifacts/$target"
    # What a schema costs is bounded, but not to milliseconds; memory is.
    if ! FUZZ_TARGET=$target "$cargo_fuzz" run --fuzz-dir fuzz any "$corpus" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="target/cargo-fuzz/artifacts/$target/" > "target/cargo-fuzz/$target.txt" 2>&1; then
        found=$((found + 1))
        echo "cargo-fuzz.sh: $target: a finding; its input is in target/cargo-fuzz/artifacts/$target" >&2
        tail -n 30 "target/cargo-fuzz/$target.txt" >&2
        continue
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "target/cargo-fuzz/$target.txt")
    echo "cargo-fuzz.sh: $target: $seconds s, $runs inputs, no finding"
done
((found == 0))
