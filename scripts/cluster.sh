#!/usr/bin/env bash
# A Concord cluster on this machine, as cluster/*.env describes it: each cluster/node<N>.env is a node that `up`
# starts, each cluster/extra<N>.env one that can be added later.
#
# Every command is idempotent. Commands for different nodes may run at the same time.
#
# The nodes call each other over mutual TLS: `up` makes a certificate authority (CA) for the cluster and a certificate
# for each node. With TLS=1, `up` makes the client listeners speak TLS as well, and the other commands remember it;
# TLS=0 ends it.
#
# `up` builds with the profile `quick` and without the features `encrypted-backups` and `otlp`: less than half the compile
# time of `release`, and a fifth of its speed. CONCORD_PROFILE names another profile, which builds the whole program, and
# CONCORD_BIN a binary. Whatever was built, the link target/concord leads to it, so that people and documents call the
# program by one path.
#
# `up` also saves a context of the command line, so that `concord get def` needs neither an address nor a key. Contexts
# are the user's own configuration. So only a cluster in the default data directory gets one unasked: another directory
# is that of a test or an experiment, which must leave no trace outside it. CONTEXT=NAME asks for one there.
set -euo pipefail

cd "$(dirname "$0")/.."
DEFAULT_DATA=$PWD/cluster/data
DATA=${CONCORD_DATA:-$DEFAULT_DATA}
[[ $DATA == /* ]] || DATA=$PWD/$DATA
PROFILE=${CONCORD_PROFILE:-quick}
BIN=${CONCORD_BIN:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/$PROFILE/concord}
WAIT_S=${CONCORD_WAIT_S:-120}
# $DATA/context holds the name of the context that `up` saved last.
if [[ -z ${CONTEXT+set} ]]; then
    if [[ -s $DATA/context ]]; then CONTEXT=$(<"$DATA/context")
    elif [[ $DATA -ef $DEFAULT_DATA || $DATA == "$DEFAULT_DATA" ]]; then CONTEXT=local
    else CONTEXT=; fi
fi
# The calls below name their node and their key. A context of the user's would add its CA, or fail them if it is gone.
unset CONCORD_CONTEXT

usage() {
    cat <<TEXT
usage: scripts/cluster.sh up          build if needed, start every node, bootstrap the cluster, wait until it is ready,
                                      save a context of the command line
       scripts/cluster.sh down        stop every node
       scripts/cluster.sh status      print the status of each node
       scripts/cluster.sh start N     start node N and wait until it is live
       scripts/cluster.sh stop N      SIGTERM: transfer leadership, finish requests, exit
       scripts/cluster.sh kill N      SIGKILL
       scripts/cluster.sh pause N     SIGSTOP
       scripts/cluster.sh resume N    SIGCONT
       scripts/cluster.sh logs N      follow the log of node N
       scripts/cluster.sh add N       start the extra node N, add it as a member, promote it to voter
       scripts/cluster.sh remove N    remove node N from the cluster and stop it; its id is never used again
       scripts/cluster.sh wipe        stop every node; delete all data, and the context that \`up\` saved

CONCORD_DATA     the data directory           (now $DATA)
CONCORD_PROFILE  the profile that \`up\` builds (now $PROFILE; \`release\` or \`dist\` for measurements)
CONCORD_BIN      the binary to run            (now $BIN)
CONTEXT          the context that \`up\` saves  (now ${CONTEXT:-none}; empty: none)
TLS              1: the client listeners speak TLS; the CA is in \$CONCORD_DATA/tls/ca.pem. 0: unencrypted again.
                 To change it, stop the nodes first
CONCORD_API_KEY  the root key; without it \`up\` writes a random one to \$CONCORD_DATA/root.key
CONCORD_WAIT_S   seconds until a step fails   (now $WAIT_S)
TEXT
}

die() { echo "cluster.sh: $*" >&2; exit 1; }

# The nodes that `up` starts; the extra nodes that were added.
nodes() { for file in cluster/node*.env; do file=${file#cluster/node}; echo "${file%.env}"; done; }
extras() {
    local file n
    for file in cluster/extra*.env; do
        n=${file#cluster/extra}; n=${n%.env}
        if [[ -d $DATA/node$n ]]; then echo "$n"; fi
    done
}
all() { nodes; extras; }
# The members: all nodes but the removed ones.
members() { local n; for n in $(all); do if [[ ! -e $DATA/node$n/removed ]]; then echo "$n"; fi; done; }

env_file() { if [[ -f cluster/node$1.env ]]; then echo "cluster/node$1.env"; else echo "cluster/extra$1.env"; fi; }

known() {
    local n
    for n in $(all); do if [[ $n == "${1:-}" ]]; then return; fi; done
    die "there is no node \`${1:-}\`; the nodes are: $(all | xargs)"
}
extra() { [[ "${1:-}" =~ ^[0-9]+$ && -f cluster/extra$1.env ]] || die "there is no cluster/extra${1:-N}.env"; }

# setting N NAME: the value of a setting in the node's file.
setting() { sed -n "s/^$2=//p" "$(env_file "$1")" | tail -n 1; }
url() { echo "$(if tls_for_callers; then echo https; else echo http; fi)://$(setting "$1" CONCORD_API_ADDR)"; }

tls_for_callers() { [[ -e $DATA/tls/callers ]]; }

# certify N: makes the authority and the certificate of a node, each once. Several may be asked at the same time.
certify() {
    local n=$1 dir=$DATA/tls host
    host=$(setting "$n" CONCORD_API_ADDR)
    host=${host%:*}
    mkdir -p "$dir"
    (
        flock 9
        # An interrupted attempt starts again.
        if [[ ! -s $dir/ca.pem ]]; then
            rm -f "$dir/ca.key"
            "$BIN" cert ca --cluster local --out "$dir"
        fi
        if [[ ! -s $dir/node-$n.pem ]]; then
            rm -f "$dir/node-$n.key"
            "$BIN" cert node "$n" --ca "$dir" --out "$dir" --host localhost --host "${host:-127.0.0.1}"
        fi
    ) 9> "$dir/lock" > /dev/null || die "no certificate could be made for node $n"
}

# A secret of this cluster, generated once. With `set -C` only one of two concurrent callers writes the file.
secret() {
    local file=$DATA/$1
    if [[ ! -s $file ]]; then
        mkdir -p "$DATA"
        (umask 077; set -C; head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$file") 2>/dev/null || true
    fi
    cat "$file"
}
root_key() { if [[ -n ${CONCORD_API_KEY:-} ]]; then echo "$CONCORD_API_KEY"; else secret root.key; fi; }

# alive PID: the process exists and is no zombie.
alive() { [[ -r /proc/$1/status ]] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }

# pid N: the process of the node, if it runs. A process id that was reused by another program does not count.
pid() {
    local file=$DATA/node$1/pid pid
    [[ -s $file ]] || return 1
    pid=$(<"$file")
    alive "$pid" || return 1
    tr '\0' ' ' 2>/dev/null < "/proc/$pid/cmdline" | grep -F "${BIN##*/} serve" > /dev/null || return 1
    echo "$pid"
}

# started_with N NAME: the value of a setting with which the running node N was started; empty if it had none.
started_with() {
    local pid
    pid=$(pid "$1") || return 1
    tr '\0' '\n' < "/proc/$pid/environ" | sed -n "s/^$2=//p"
}

# check_running: the nodes that run have the settings that `up` would start them with. Otherwise nothing would answer as
# this script asks.
check_running() {
    local n is asked=${TLS:-} key
    if [[ -z $asked ]]; then asked=$(if tls_for_callers; then echo 1; else echo 0; fi); fi
    key=$(root_key)
    for n in $(members); do
        pid "$n" > /dev/null || continue
        is=$(if [[ $(started_with "$n" CONCORD_TLS_CERT_FILE) ]]; then echo 1; else echo 0; fi)
        [[ $is == "$asked" ]] || die "node $n runs with TLS=$is, but TLS=$asked is asked for; first stop the nodes:" \
            "scripts/cluster.sh down"
        [[ $(started_with "$n" CONCORD_API_KEY) == "$key" ]] || die "node $n runs with another root key than" \
            "\$CONCORD_API_KEY or $DATA/root.key has now; first stop the nodes: scripts/cluster.sh down"
    done
}

answers() {
    local trust=()
    if tls_for_callers; then trust=(--cacert "$DATA/tls/ca.pem"); fi
    curl -fsS -o /dev/null --max-time 2 "${trust[@]}" "$(url "$1")$2" 2>/dev/null
}

start() {
    local n=$1 home=$DATA/node$1 key
    pid "$n" > /dev/null && { echo "node $n is already running"; return; }
    [[ -x $BIN ]] || die "there is no $BIN; \`scripts/cluster.sh up\` builds it"
    mkdir -p "$home"
    key=$(root_key)
    certify "$n"
    # shellcheck disable=SC2030  # the settings of a node are set in the environment of its process only
    (
        set -a
        # shellcheck disable=SC1091
        . cluster/cluster.env
        # shellcheck disable=SC1090
        . "$(env_file "$n")"
        set +a
        export CONCORD_DATA_DIR=$home/data CONCORD_API_KEY=$key
        tls=$DATA/tls
        export CONCORD_PEER_CERT_FILE=$tls/node-$n.pem CONCORD_PEER_KEY_FILE=$tls/node-$n.key
        export CONCORD_PEER_CA_FILE=$tls/ca.pem
        if tls_for_callers; then
            export CONCORD_TLS_CERT_FILE=$tls/node-$n.pem CONCORD_TLS_KEY_FILE=$tls/node-$n.key
        fi
        exec setsid "$BIN" serve < /dev/null >> "$home/log" 2>&1 &
        echo $! > "$home/pid"
    )
    local until=$((SECONDS + WAIT_S))
    # If another process has the node's port, that one answers while ours exits: ours must be alive afterwards.
    until alive "$(<"$home/pid")" && answers "$n" /livez && sleep 0.1 && alive "$(<"$home/pid")"; do
        if ! alive "$(<"$home/pid")"; then
            tail -n 5 "$home/log" >&2
            die "node $n did not start; its log is $home/log"
        fi
        ((SECONDS < until)) || die "node $n does not answer after $WAIT_S s; its log is $home/log"
        sleep 0.1
    done
    echo "node $n: $(url "$n")"
}

# stop N SIGNAL: sends the signal and waits until the process has exited.
stop() {
    local n=$1 pid until=$((SECONDS + WAIT_S))
    if ! pid=$(pid "$n"); then echo "node $n is not running"; return; fi
    kill "-$2" "$pid" 2>/dev/null || true
    [[ $2 == KILL ]] || kill -CONT "$pid" 2>/dev/null || true
    while pid "$n" > /dev/null; do
        ((SECONDS < until)) || die "node $n (process $pid) has not exited after $WAIT_S s"
        sleep 0.05
    done
    rm -f "$DATA/node$n/pid"
    echo "node $n stopped"
}

signal() {
    local pid
    pid=$(pid "$1") || die "node $1 is not running"
    kill "-$2" "$pid"
}

build() {
    [[ -n ${CONCORD_BIN:-} ]] && return
    command -v cargo > /dev/null || die "cargo is not installed; see https://rustup.rs"
    local features=()
    if [[ $PROFILE == quick ]]; then features=(--no-default-features); fi
    cargo build --profile "$PROFILE" "${features[@]}" --locked --bin concord
    mkdir -p target
    ln -sfn "$BIN" target/concord
}

# context PATH: what the context $CONTEXT has at a path. Fails if there is no such context.
context() { "$BIN" context list "$CONTEXT" -o "jsonpath={[0].$1}"; }

# context_is_ours: the context has the root key of this cluster, or it is what another checkout left behind: it names a
# node of cluster/*.env and a key that is gone.
context_is_ours() {
    local key address
    key=$(context api_key_file) || return
    [[ $key == "$DATA/root.key" ]] && return
    address=$(context 'urls[0]') || return
    [[ $key == /* && ! -e $key ]] && grep -qxF "CONCORD_API_ADDR=${address#*://}" cluster/*.env
}

# save_context: saves how to reach the cluster, and says in one line what came of it. It selects the context only if
# none is selected: which cluster `concord` changes without --context is the user's choice.
save_context() {
    local urls trust=()
    if [[ -z $CONTEXT ]]; then echo "no context is saved; CONTEXT=NAME saves one"; return; fi
    # shellcheck disable=SC2031
    if [[ -n ${CONCORD_API_KEY:-} ]]; then echo "no context is saved: the root key is \$CONCORD_API_KEY"; return; fi
    if context name > /dev/null 2>&1 && ! context_is_ours; then
        echo "the context \`$CONTEXT\` is of another cluster and stays; to save another: CONTEXT=NAME scripts/cluster.sh up"
        return
    fi
    urls=$(for n in $(members); do url "$n"; done | paste -sd ,)
    if tls_for_callers; then trust=(--cacert "$DATA/tls/ca.pem"); fi
    if ! "$BIN" context set "$CONTEXT" --url "$urls" --api-key-file "$DATA/root.key" "${trust[@]}"; then
        echo "no context is saved"
        return
    fi
    echo "$CONTEXT" > "$DATA/context"
    if [[ $(context current) == true ]]; then
        echo "the context \`$CONTEXT\` is saved and in use: commands need neither an address nor a key"
    else
        echo "the context \`$CONTEXT\` is saved, another is in use; to change: concord context use $CONTEXT"
    fi
}

# delete_context: deletes the context that `up` saved.
delete_context() {
    if [[ ! -s $DATA/context ]]; then return; fi
    if [[ ! -x $BIN ]]; then echo "the context \`$CONTEXT\` stays: there is no $BIN that could delete it"
    elif context_is_ours 2> /dev/null; then "$BIN" context delete "$CONTEXT" --yes; fi
}

up() {
    command -v curl > /dev/null || die "curl is not installed"
    local n starts=()
    case ${TLS:-} in
        "" | 0 | 1) ;;
        *) die "TLS is 0 or 1, not \`$TLS\`" ;;
    esac
    check_running
    build
    case ${TLS:-} in
        1) mkdir -p "$DATA/tls"; touch "$DATA/tls/callers" ;;
        0) rm -f "$DATA/tls/callers" ;;
    esac
    for n in $(members); do start "$n" & starts+=($!); done
    for n in "${starts[@]}"; do wait "$n" || die "not every node started"; done
    # If members were added or removed, the cluster is formed already.
    if [[ $(members) == "$(nodes)" ]]; then
        local list=()
        for n in $(nodes); do list+=(--member "$(member "$n")"); done
        ask /livez init "${list[@]}" > /dev/null
    fi
    local until=$((SECONDS + WAIT_S))
    for n in $(members); do
        until answers "$n" /readyz; do
            ((SECONDS < until)) || die "node $n is not ready after $WAIT_S s; its log is $DATA/node$n/log"
            sleep 0.1
        done
    done
    echo
    echo "the cluster is ready: $(for n in $(members); do url "$n"; done | xargs)"
    save_context
    if [[ -z ${CONCORD_BIN:-} ]]; then echo "the program is $PWD/target/concord; try: target/concord get def"
    else echo "the program is $BIN"; fi
    if [[ -z ${CONCORD_BIN:-} && $PROFILE == quick ]]; then
        echo "it compiles fast, runs slowly, and has no encrypted backups and no OTLP; for the whole program:"
        echo "scripts/cluster.sh down, CONCORD_PROFILE=dist scripts/cluster.sh up"
    fi
    # shellcheck disable=SC2031
    if [[ -n ${CONCORD_API_KEY:-} ]]; then echo "the root key is \$CONCORD_API_KEY"
    else echo "the root key is in $DATA/root.key"; fi
    if tls_for_callers; then echo "the CA of the nodes' certificates is in $DATA/tls/ca.pem"; fi
}

# trusting COMMAND...: runs the command line with the CA of the nodes' certificates.
trusting() { if tls_for_callers; then CONCORD_CA_FILE=$DATA/tls/ca.pem "$@"; else "$@"; fi; }

# ask PROBE ARGUMENT...: runs the command line against the first member whose probe succeeds. A member that is starting
# is live, but not ready.
ask() {
    local probe=$1 n until=$((SECONDS + WAIT_S))
    shift
    while :; do
        for n in $(members); do
            answers "$n" "$probe" || continue
            CONCORD_API_KEY=$(root_key) CONCORD_URL=$(url "$n") trusting "$BIN" "$@"
            return
        done
        # Without a running node no probe will ever succeed.
        for n in $(members) none; do if [[ $n == none ]] || pid "$n" > /dev/null; then break; fi; done
        [[ $n != none ]] || die "no node is running"
        ((SECONDS < until)) || die "no node answers $probe after $WAIT_S s"
        sleep 0.1
    done
}

member() { echo "$1=$(setting "$1" CONCORD_API_ADDR)@$(setting "$1" CONCORD_PEER_ADDR)"; }

add() {
    local n=$1 until=$((SECONDS + WAIT_S))
    [[ ! -e $DATA/node$n/removed ]] || die "node $n was removed, and an id is never used again; choose another"
    ask /readyz status > /dev/null
    start "$n"
    ask /readyz member add "$(member "$n")" > /dev/null
    ask /readyz member promote "$n" > /dev/null
    until answers "$n" /readyz; do
        ((SECONDS < until)) || die "node $n is not ready after $WAIT_S s; its log is $DATA/node$n/log"
        sleep 0.1
    done
    echo "node $n is a member with a vote"
}

remove() {
    local n=$1
    [[ ! -e $DATA/node$n/removed ]] || die "node $n was removed already"
    ask /readyz member remove "$n" --yes > /dev/null
    touch "$DATA/node$n/removed"
    stop "$n" TERM > /dev/null
    echo "node $n is no member any more"
}

down() {
    local n stops=()
    for n in $(all); do stop "$n" TERM & stops+=($!); done
    for n in "${stops[@]}"; do wait "$n"; done
}

status() {
    local n
    for n in $(members); do
        if ! pid "$n" > /dev/null; then echo "node $n: not running"; continue; fi
        CONCORD_API_KEY=$(root_key) trusting "$BIN" status --url "$(url "$n")" || echo "node $n: runs, but does not answer"
    done
}

wipe() {
    down > /dev/null
    local n
    for n in $(all); do rm -rf "${DATA:?}/node$n"; done
    delete_context
    rm -f "$DATA/root.key" "$DATA/context"
    rm -rf "${DATA:?}/tls"
    rmdir "$DATA" 2>/dev/null || true
    echo "all data is deleted"
}

case ${1:-} in
    up | down | status | wipe) "$1" ;;
    start) known "${2:-}"; start "$2" ;;
    stop) known "${2:-}"; stop "$2" TERM ;;
    kill) known "${2:-}"; stop "$2" KILL ;;
    pause) known "${2:-}"; signal "$2" STOP ;;
    resume) known "${2:-}"; signal "$2" CONT ;;
    add) extra "${2:-}"; add "$2" ;;
    remove) known "${2:-}"; remove "$2" ;;
    logs) known "${2:-}"; exec tail -n 100 -f "$DATA/node$2/log" ;;
    -h | --help | help) usage ;;
    *) usage >&2; exit 2 ;;
esac
