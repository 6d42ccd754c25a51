#!/usr/bin/env bash
# The cluster under faults: SEED=… DURATION_S=… HISTORY=file.jsonl scripts/chaos.sh
#
# Runs processes of a release build, checks their history for linearizability, and prints a JSON summary as the last
# line; exits with 1 when a promise was broken. Cuts between nodes need a network namespace of the run's own, slow
# and failing disks need strace, wrong clocks libfaketime, lost packets iptables. A fault that can't be made is
# skipped, and the run says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."

export CONCORD_CHAOS=1 DURATION_S=${DURATION_S:-60}
PROFILE=${PROFILE:-release}
binary=$(cargo test --locked --profile "$PROFILE" --test it --no-run --message-format=json 2> /dev/null |
    sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p')
[[ -x $binary ]] || { echo "chaos.sh: the tests do not build: cargo test --test it --no-run" >&2; exit 1; }
run=("$binary" --exact chaos::promises_hold_under_faults --nocapture)

if unshare -rn true 2> /dev/null; then
    # The rule for local addresses gets a lower priority than ours, or no rule could cut loopback.
    # shellcheck disable=SC2016  # the inner shell expands it
    exec unshare -rn bash -c '
        ip link set lo up
        ip rule add pref 1000 from all lookup local && ip rule del pref 0
        export CONCORD_CHAOS_NETNS=1
        "$@" | grep --line-buffered -v "^\(running\|test \|$\)"
        exit "${PIPESTATUS[0]}"' chaos "${run[@]}"
fi
echo "chaos.sh: SKIPPED network faults: no right to make a network namespace (unshare -rn)" >&2
"${run[@]}" | grep --line-buffered -v '^\(running\|test \|$\)'
exit "${PIPESTATUS[0]}"
