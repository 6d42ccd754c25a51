#!/usr/bin/env bash
# Fuzzes the interface from its own OpenAPI document: DURATION_S=300 SEED=1 scripts/fuzz.sh
#
# Schemathesis makes requests that keep the document and requests that break it, and validates every answer against it;
# schemathesis.toml says which answers are right although the document can't say so, fuzz_hooks.py what is not asked. A cluster of three nodes is
# started on free ports, or the node at CONCORD_URL is asked (with CONCORD_API_KEY; its data will be changed).
# EXAMPLES bounds the requests of each operation, DURATION_S the seconds of all. Exits with 1 on a finding.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

# More arguments for schemathesis.
read -r -a more <<< "${FUZZ_ARGS:-}"
DURATION_S=${DURATION_S:-60} SEED=${SEED:-1} EXAMPLES=${EXAMPLES:-100}
BIN=${CONCORD_BIN:-$PWD/target/release/concord}

die() { echo "fuzz.sh: $*" >&2; exit 1; }
skip() { echo "fuzz.sh: SKIPPED, nothing was fuzzed: $*" >&2; exit 0; }

schemathesis=$(pip_tool schemathesis 4.32.5 st) || skip "schemathesis can't be installed"
mkdir -p target/fuzz

work=$(mktemp -d "$PWD/target/fuzz/run-XXXXXX")
pids=()
finish() {
    local status=$?
    ((${#pids[@]} == 0)) || { kill "${pids[@]}" 2> /dev/null || true; wait "${pids[@]}" 2> /dev/null || true; }
    if ((status != 0)); then tail -n 5 "$work"/*.txt 2> /dev/null >&2 || true; fi
    rm -rf "$work"
}
trap finish EXIT

# ports N: N ports that nobody listens on, below the range of outgoing connections.
ports() {
    python3 - "$1" <<'PY'
import random, socket, sys
found = []
while len(found) < int(sys.argv[1]):
    port = random.randrange(20000, 32000)
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    if port not in found:
        found.append(port)
print(*found)
PY
}

start_cluster() {
    [[ -x $BIN ]] || cargo build --locked --release
    local port n members=""
    read -r -a port <<< "$(ports 6)"
    # A fresh key for each run: it is stored nowhere.
    CONCORD_API_KEY=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export CONCORD_API_KEY
    for n in 1 2 3; do
        local api=127.0.0.1:${port[n - 1]} peer=127.0.0.1:${port[n + 2]}
        # A read that waits for a revision that never comes is answered soon, and a write that a busy machine
        # does not do in time before schemathesis gives up (10 s).
        CONCORD_NODE_ID=$n CONCORD_DATA_DIR=$work/node$n CONCORD_API_ADDR=$api CONCORD_PEER_ADDR=$peer \
            CONCORD_CLUSTER_SECRET=the-secret-of-a-fuzzed-cluster-0123456789 CONCORD_READ_TIMEOUT_MS=1000 CONCORD_WRITE_TIMEOUT_MS=8000 \
            CONCORD_ELECTION_MIN_MS=2000 CONCORD_ELECTION_MAX_MS=3000 CONCORD_LOG=warn \
            CONCORD_FAILED_CREDENTIALS_PER_MINUTE=0 \
            "$BIN" serve > "$work/node$n.txt" 2>&1 &
        pids+=($!)
        members+="${members:+,}{\"id\":$n,\"api_addr\":\"$api\",\"peer_addr\":\"$peer\"}"
    done
    CONCORD_URL=http://127.0.0.1:${port[1]}
    local end=$((SECONDS + 120))
    until curl -fsS --max-time 20 -o /dev/null -H "Authorization: $CONCORD_API_KEY" \
        -H 'Content-Type: application/json' -d "{\"members\":[$members]}" \
        "$CONCORD_URL/api/v1/cluster/init" 2> /dev/null; do
        ((SECONDS < end)) || die "the cluster did not form"
        sleep 0.2
    done
    until curl -fsS --max-time 5 -o /dev/null "$CONCORD_URL/readyz" 2> /dev/null; do
        ((SECONDS < end)) || die "the cluster did not form"
        sleep 0.2
    done
}

if [[ -z ${CONCORD_URL:-} ]]; then start_cluster; fi
[[ -n ${CONCORD_API_KEY:-} ]] || die "CONCORD_API_KEY is not set"

config=$PWD/schemathesis.toml
export SCHEMATHESIS_HOOKS=fuzz_hooks PYTHONPATH=$PWD/scripts PYTHONDONTWRITEBYTECODE=1
# Its own files are removed with the run's directory.
cd "$work"
"$schemathesis" --config-file "$config" run "$CONCORD_URL/openapi.json" --url "$CONCORD_URL" \
    --header "Authorization: $CONCORD_API_KEY" --checks all --seed "$SEED" --max-time "$DURATION_S" \
    --max-examples "$EXAMPLES" --generation-database none --continue-on-failure "${more[@]}"
# Whatever the requests did, the nodes must still run.
for pid in "${pids[@]}"; do kill -0 "$pid" 2> /dev/null || die "a node ended"; done
curl -fsS --max-time 20 -o /dev/null "$CONCORD_URL/readyz" || die "the node is not ready any more"
echo "fuzz.sh: ${DURATION_S} s at most, seed $SEED: no finding"
