#!/usr/bin/env bash
# A cluster in deterministic simulation (docs/internals/simulation.md): every failure is a seed.
#
#   scripts/simulate.sh N                         N new seeds; FIRST names the first one. The first failure is cut down
#   scripts/simulate.sh seed SEED [--log] [--trace FILE] [--html FILE] [OVERRIDE…]
#                                                 one seed, with the logs of the nodes, each event in a file, or a timeline
#   scripts/simulate.sh cut SEED [--seconds S] [OVERRIDE…]   cuts down what a seed finds
#   scripts/simulate.sh test                      what scripts/test.sh runs: one seed twice, which must give one hash; the
#                                                 seeds that once failed; others for BOUND_S seconds, from
#                                                 the seed FIRST
#   scripts/simulate.sh sabotage [BUG…]           how many seeds find each seeded bug (crates/model/src/sabotage.rs): up to
#                                                 RUNS seeds (200) or BOUND_S seconds (120) for each, from the seed FIRST (1)
#   scripts/simulate.sh build                     builds it only
#
# SABOTAGE=BUG runs it with a seeded bug.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -z ${SABOTAGE:-} ]] || export CONCORD_SABOTAGE=$SABOTAGE
# The code of the workspace is optimised a little, too, so that a run takes a fraction of the time. `--workspace` selects the
# features of all packages, so that the dependencies are those of every other build.
export CARGO_PROFILE_DEV_OPT_LEVEL=1
cargo build --locked --quiet --workspace --bin concord-simulate --features concord-simulation/simulation
program=${CARGO_TARGET_DIR:-$PWD/target}/debug/concord-simulate

# Seeded bugs that no seed can find, and why.
NOT_SIMULATED='
digest-ignored       | what sled writes is always durable and whole here
task-end-ignored     | nothing makes a task panic
level-raised-alone   | all nodes are of one version
directory-not-marked | all nodes are of one version
stall-ignored        | no operation of a disk hangs
budget-ignored       | the memory of the process is not measured
work-without-turns   | there is one thread
good-key-throttled   | failed credentials do not throttle here
audit-line-lost      | there is no audit log
trust-ignored        | nobody logs in here
session-outlives-its-end | nobody logs in here
policy-ignored       | nobody logs in here
key-set-ignored      | nobody logs in here
late-token-accepted  | nobody logs in here
nonce-reused         | the directories are not encrypted
plain-file-accepted  | the directories are not encrypted
armed-after-restore  | no cluster is restored or recovered here
digests-not-compared | nothing makes states differ here, and the simulation compares them itself
distrusted-replayed  | a state is found to be wrong after a damage that sled has, and sled has none here
'

sabotage() {
    local bug why line runs found=0 all=0
    printf '%-28s | %-6s | %s\n' bug seeds "found by, or why not"
    while read -r bug; do
        (($# == 0)) || [[ " $* " == *" $bug "* ]] || continue
        why=$(sed -n "s/^$bug *| //p" <<< "$NOT_SIMULATED")
        if [[ -n $why ]]; then
            printf '%-28s | %-6s | %s\n' "$bug" - "$why"
            continue
        fi
        all=$((all + 1))
        CONCORD_SABOTAGE=$bug "$program" seeds "${FIRST:-1}" "${RUNS:-200}" --seconds "${BOUND_S:-120}" --until-found > "$log" 2>&1 || true
        runs=$(sed -n 's/^\([0-9]*\) seeds in .*/\1/p' "$log")
        line=$(grep -m 1 '^VIOLATION' "$log" || true)
        [[ -z $line ]] || found=$((found + 1))
        line=${line#VIOLATION }
        printf '%-28s | %-6s | %s\n' "$bug" "$runs" "${line:-NOT FOUND}" | cut -c1-160
    done < <(grep -o '^//! | [^a-z][a-z-]*[^a-z] |' crates/model/src/sabotage.rs | tr -dc 'a-z\n-')
    echo "simulate.sh: seeds have found $found of $all seeded bugs"
    ((found == all))
}

case ${1:-} in
    seed | cut) exec "$program" "$@" ;;
    test)
        BOUND_S=${BOUND_S:-60}
        # The first seed of the list is the one that runs twice.
        mapfile -t seeds < <(sed 's/ *#.*//; /^$/d' crates/simulation/seeds.txt)
        hash() { grep -o 'hash [0-9a-f]*, [0-9]* events' <<< "$1"; }
        if ! first=$("$program" seed "${seeds[0]}") || ! second=$("$program" seed "${seeds[0]}"); then
            printf '%s\n%s\n' "$first" "${second:-}"
            exit 1
        fi
        if [[ $(hash "$first") != "$(hash "$second")" ]]; then
            printf 'simulate.sh: one seed, two traces:\n%s\n%s\n' "$first" "$second" >&2
            exit 1
        fi
        printf '%s\n%s\n' "$first" "$second"
        for seed in "${seeds[@]:1}"; do
            "$program" seed "$seed"
        done
        exec "$program" seeds "${FIRST:-$(date +%s)000}" 1000000 --seconds "$BOUND_S"
        ;;
    build) ;;
    sabotage)
        log=$(mktemp)
        trap 'rm -f "$log"' EXIT
        sabotage "${@:2}"
        ;;
    '' | *[!0-9]*) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    *) exec "$program" seeds "${FIRST:-$(date +%s)000}" "$1" --cut 120 ;;
esac
