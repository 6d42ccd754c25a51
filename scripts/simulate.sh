#!/usr/bin/env bash
# A cluster in deterministic simulation (docs/internals/simulation.md): every failure is a seed.
#
#   scripts/simulate.sh N                         N new seeds; FIRST names the first one
#   scripts/simulate.sh seed SEED [--log] [--trace FILE]   one seed, with the logs of the nodes, or each event in a file
#   scripts/simulate.sh test                      what scripts/test.sh runs: one seed twice, which must give one hash; the
#                                                 seeds that once failed; others for BOUND_S seconds, from
#                                                 the seed FIRST
#
# SABOTAGE=BUG runs it with a seeded bug (crates/model/src/sabotage.rs).
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -z ${SABOTAGE:-} ]] || export CONCORD_SABOTAGE=$SABOTAGE
cargo build --locked --quiet --package concord-simulation --features simulation
program=${CARGO_TARGET_DIR:-$PWD/target}/debug/concord-simulate

case ${1:-} in
    seed) exec "$program" "$@" ;;
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
    '' | *[!0-9]*) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
    *) exec "$program" seeds "${FIRST:-$(date +%s)000}" "$1" ;;
esac
