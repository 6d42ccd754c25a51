#!/usr/bin/env bash
# The Rust client under faults beside a model: SEED=… DURATION_S=… scripts/client-soak.sh
#
# Nodes are killed, paused and cut off from each other while clients write, watch, and read their local caches. Prints a
# JSON summary as the last line, and exits with 1 when an update was lost, a change missed, or a stale value called
# fresh. CONCORD_BIN names the binary of the nodes. Cuts need a network namespace of the run's own; where there is no
# right to make one, the run says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

binary=${SOAK_BINARY:-$(test_binary dev)}
export DURATION_S=${DURATION_S:-600} SEED=${SEED:-$(date +%s)}

test=(--exact rust_client::soak::no_update_is_lost_no_change_missed_and_nothing_stale_called_fresh --nocapture)
# The rule for local addresses gets a lower priority than the run's own, or no rule could cut loopback.
# shellcheck disable=SC2016  # the inner shell expands it
inside='ip link set lo up
    ip rule add pref 1000 from all lookup local && ip rule del pref 0
    export CONCORD_CHAOS_NETNS=1
    exec "$@"'
install_deb ip iproute2 || true
if unshare -rn true 2> /dev/null; then
    run=(unshare -rn bash -c "$inside" client-soak "$binary" "${test[@]}")
else
    echo "client-soak.sh: SKIPPED network faults: no right to make a network namespace (unshare -rn)" >&2
    run=("$binary" "${test[@]}")
fi
"${run[@]}" | grep --line-buffered -v '^\(running\|test \|$\)'
