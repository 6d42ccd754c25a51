#!/usr/bin/env bash
# Every test, on a fresh machine as on a warm one: checks, unit tests, black-box tests, the README's commands.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# What the tests use beside cargo: curl for the README, a Python with venv for the older service's client and the fuzzer.
install() {
    local missing=() tool
    for tool in curl python3 shellcheck setpriv; do command -v "$tool" > /dev/null || missing+=("$tool"); done
    python3 -c 'import ensurepip' 2> /dev/null || missing+=(python3-venv)
    ((${#missing[@]} == 0)) && return
    missing=("${missing[@]/setpriv/util-linux}")
    local apt=(apt-get)
    ((EUID == 0)) || apt=(sudo apt-get)
    "${apt[@]}" update -qq && "${apt[@]}" install -y -qq "${missing[@]}" > /dev/null \
        || echo "test.sh: could not install ${missing[*]}; what needs it will fail or be skipped" >&2
}

say "tools"
install
say "checks"
scripts/check.sh
say "tests"
cargo test --locked --all-targets
say "power cuts"
CUTS=3 PROFILE=dev scripts/powercut.sh
say "fuzzing"
DURATION_S=45 SEED=1 CONCORD_BIN=$PWD/target/debug/concord scripts/fuzz.sh
say "the README's commands"
CONCORD_BIN=$PWD/target/debug/concord python3 scripts/readme-test.py
say "done"
