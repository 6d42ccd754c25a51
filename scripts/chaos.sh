#!/usr/bin/env bash
# The cluster under faults: SEED=… DURATION_S=… HISTORY=file.jsonl scripts/chaos.sh
#
#   scripts/chaos.sh               runs processes of a release build, checks their history for linearizability, and prints
#                                  a JSON summary as the last line; exits with 1 when a promise was broken
#   scripts/chaos.sh leaders       change requests while the leader is killed as fast as the cluster recovers: runs of 60
#                                  kills each, with a new seed and a new cluster, until KILLS leaders (1000) have been
#                                  killed; prints each run's summary and the sums; ends with the first run that finds something
#   scripts/chaos.sh rollouts      rollouts with readers and agents while leaders are killed, nodes are cut off and nodes hang:
#                                  ROLLOUTS (15) of them, with ROLLOUT_WATCHES (200) readers and
#                                  ROLLOUT_AGENTS (50) agents
#   scripts/chaos.sh check FILE    checks the history that a run has left
#
# TLS=1 lets the nodes call each other over mutual TLS. ENCRYPTED=1 encrypts the data directories, as every third seed does.
# FAULTS=KillLeader,Bridge makes only these kinds. The history is written as it goes, to HISTORY or to a file under
# target/chaos, so that a run that dies keeps it. Cuts between nodes need a network namespace of the run's own, full disks of some nodes root (for ext4 on loop devices),
# slow, hung and failing disks strace, wrong clocks libfaketime, lost packets iptables: what is missing is installed.
# CONCORD_OLD_BIN names a binary of the previous version, between which and this one nodes are switched. A fault that
# can't be made is skipped, and the run says SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

PROFILE=${PROFILE:-release}
binary=${CHAOS_BINARY:-$(test_binary "$PROFILE")}

# run TEST [COMMAND…]: runs one test, by a command that runs its arguments.
run() {
    local name=$1 status=0
    shift
    "$@" "$binary" --exact "chaos::$name" --include-ignored --nocapture |
        grep --line-buffered -v '^\(running\|test \|$\)' || status=${PIPESTATUS[0]}
    return "$status"
}

# leaders KILLS: runs until so many leaders have been killed.
leaders() {
    local most=$1 kills=0 applied=0 bypasses=0 deeds=0 runs=0 status=0 line seed
    export CONCORD_CHAOS=1
    seed=${SEED:-$(date +%s)}
    mkdir -p target/chaos
    number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" <<< "$line"; }
    while ((kills < most)); do
        export SEED=$((seed + runs)) KILLS=$((most - kills < 60 ? most - kills : 60))
        export HISTORY=$PWD/target/chaos/leaders-$SEED.jsonl
        run leaders::change_requests_hold_while_leaders_are_killed > target/chaos/leaders.out || status=$?
        line=$(grep '^{' target/chaos/leaders.out | tail -n 1 || true)
        # A run without a summary has died.
        [[ -n $line ]] || ((status != 0)) || status=1
        printf '%s\n' "${line:-no summary}"
        kills=$((kills + $(number kills || true)0 / 10)) applied=$((applied + $(number applied || true)0 / 10))
        bypasses=$((bypasses + $(number bypasses || true)0 / 10)) deeds=$((deeds + $(number deeds || true)0 / 10))
        runs=$((runs + 1))
        ((status == 0)) || break
        rm -f "$HISTORY"
    done
    echo "chaos.sh: $kills leaders killed in $runs runs, $deeds requests, $applied change requests and $bypasses bypasses applied"
    ((status == 0)) || echo "chaos.sh: SEED=$SEED found something; its history is in $HISTORY" >&2
    return "$status"
}

# In a network namespace of its own the rule for local addresses gets a lower priority than ours, or no rule could cut
# loopback.
# shellcheck disable=SC2016  # the inner shell expands it
inside='ip link set lo up
    ip rule add pref 1000 from all lookup local && ip rule del pref 0
    export CONCORD_CHAOS_NETNS=1
    exec "$@"'

# rollouts: one run, in a network of its own where that can be had.
rollouts() {
    local test=rollouts::rollouts_keep_their_invariants_while_leaders_die_and_nodes_are_cut_off
    export CONCORD_CHAOS=1 SEED=${SEED:-$(date +%s)}
    export ROLLOUTS=${ROLLOUTS:-15}
    export ROLLOUT_WATCHES=${ROLLOUT_WATCHES:-200} ROLLOUT_AGENTS=${ROLLOUT_AGENTS:-50}
    install_deb ip iproute2 || true
    if unshare -rn true 2> /dev/null; then
        run "$test" unshare -rn bash -c "$inside" chaos
    else
        echo "chaos.sh: SKIPPED cuts: no right to make a network namespace (unshare -rn)" >&2
        run "$test"
    fi
}

case ${1:-} in
    '') ;;
    rollouts)
        rollouts
        exit
        ;;
    check)
        export HISTORY=${2:?chaos.sh check needs the file}
        run a_history_file_has_no_violation
        exit
        ;;
    leaders)
        leaders "${KILLS:-1000}"
        exit
        ;;
    *) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac

# Each says why it could not be installed; the run skips what needs it.
install_deb faketime || true
install_deb iptables || true
install_deb strace || true
install_deb ip iproute2 || true

export CONCORD_CHAOS=1 DURATION_S=${DURATION_S:-60} SEED=${SEED:-$(date +%s)}
export HISTORY=${HISTORY:-$PWD/target/chaos/seed-$SEED.jsonl}
if [[ ${TLS:-} == 1 ]]; then export CONCORD_CHAOS_TLS=1; fi
mkdir -p "$(dirname "$HISTORY")"

# In a mount namespace of its own no mount outlives the run; file systems on loop devices need root itself.
# shellcheck disable=SC2016
mounts() {
    unshare -nm bash -c '
        point=$(mktemp -d) && truncate -s 16M "$point.img" && mkfs.ext4 -q -F "$point.img" && mount -o loop "$point.img" "$point"
        status=$?
        umount -l "$point" 2> /dev/null
        rm -rf "$point" "$point.img"
        exit $status' 2> /dev/null
}

status=0
if ((EUID == 0)) && mounts; then
    export CONCORD_CHAOS_MOUNTS=1
    run promises_hold_under_faults unshare -nm bash -c "$inside" chaos || status=$?
elif unshare -rn true 2> /dev/null; then
    run promises_hold_under_faults unshare -rn bash -c "$inside" chaos || status=$?
else
    echo "chaos.sh: SKIPPED network faults: no right to make a network namespace (unshare -rn)" >&2
    run promises_hold_under_faults || status=$?
fi
if ((status != 0)); then
    echo "chaos.sh: the history of this run is in $HISTORY (scripts/chaos.sh check FILE)" >&2
fi
exit "$status"
