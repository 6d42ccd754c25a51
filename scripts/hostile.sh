#!/usr/bin/env bash
# The attacks of tests/hostile against a release build, one after the other, with a bound for the good client beside
# them: HOSTILE_P99_MS=100 PROFILE=release scripts/hostile.sh [FILTER]
#
# Prints what the good client saw of each attack; exits with 1 when it was hurt.
set -euo pipefail
cd "$(dirname "$0")/.."

export HOSTILE_P99_MS=${HOSTILE_P99_MS:-100}
export HOSTILE_REWRITES=${HOSTILE_REWRITES:-600}
export HOSTILE_ROUNDS=${HOSTILE_ROUNDS:-10} # of three kinds at once: twelve kinds a round
cargo fetch --locked --quiet
# With a million configs in one of them: HOSTILE_CONFIGS=200000 makes it shorter.
cargo test --locked --profile "${PROFILE:-release}" --test it -- "hostile::${1:-}" --nocapture --test-threads=1 \
    --include-ignored
