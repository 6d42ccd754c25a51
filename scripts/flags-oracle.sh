#!/usr/bin/env bash
# Random flags and contexts beside flagd's own evaluator: scripts/flags-oracle.sh [COUNT [SEED]]
#
#   scripts/flags-oracle.sh              a short run, seconds
#   scripts/flags-oracle.sh 100000 7     a long one, about two minutes
#
# Installs @openfeature/flagd-core from npm under target/tools. Where it can't be had it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

VERSION=4.0.1
home=$PWD/target/tools/flagd-core-$VERSION
skip() { echo "flags-oracle.sh: SKIPPED: $*" >&2; exit 0; }

install_deb npm || skip "there is no npm"
if [[ ! -e $home/installed ]]; then
    rm -rf "$home"
    mkdir -p "$home"
    npm install --prefix "$home" --silent --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error \
        "@openfeature/flagd-core@$VERSION" @openfeature/core@1.12.0 >&2 || skip "flagd-core can't be had from npm"
    touch "$home/installed"
fi
cases=$(mktemp)
trap 'rm -f "$cases"' EXIT
timeout 600 node scripts/flags-oracle.mjs "$home" "${1:-5000}" "${2:-1}" > "$cases"
FLAGS_ORACLE=$cases cargo test --locked --workspace --test it -- --ignored --exact --nocapture \
    oracle::results_are_those_of_flagd_core
