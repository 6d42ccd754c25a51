#!/usr/bin/env bash
# Bits that flip on disks: FLIPS=200 SEED=1 scripts/bitrot.sh; with encrypted data directories: ENCRYPTED=1
#
# Real processes of a release build; a JSON summary is the last line; exits with 1 when a node served
# altered data, lost anything silently, or refused to start without naming the file.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

export FLIPS=${FLIPS:-200} SEED=${SEED:-1} ENCRYPTED=${ENCRYPTED:-0}
PROFILE=${PROFILE:-release}
binary=$(test_binary "$PROFILE")
"$binary" --exact chaos::bitrot::a_flipped_bit_is_reported_or_repaired_and_never_served --nocapture |
    grep --line-buffered -v '^\(running\|test \|$\)'
exit "${PIPESTATUS[0]}"
