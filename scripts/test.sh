#!/usr/bin/env bash
# The tests. Installs the tools that they need.
#
#   scripts/test.sh          all of them: checks, unit tests, tests over HTTP and of clusters, a short run with power cuts,
#                            definitions from the schemas of other libraries, the test suite of JSON Schema, a short run
#                            of the fuzzer, the console in a browser, the packages, the clients for
#                            languages, the commands of the documents, simulated clusters
#   scripts/test.sh --fast   checks, unit tests, the contract of the interface and the stored formats; less than 3 minutes
#                            once the tests are built
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

case ${1:-} in
    '' | --fast) ;;
    *) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac

if [[ ${1:-} == --fast ]]; then
    say "checks"
    scripts/check.sh
    say "unit tests"
    cargo test --locked --workspace --lib
    say "contract and stored formats"
    cargo test --locked --workspace --test it -- spec:: format:: real_schemas:: replay:: tidy::
    say "done"
    exit
fi

say "tools"
# What a test can't find it skips, or it fails and says what is missing.
for tool in curl python3 sslscan "setpriv util-linux"; do
    # shellcheck disable=SC2086  # a command and the package that has it
    install_deb $tool || true
done
# A library and no command: the tests of wrong clocks preload it.
if ! compgen -G '/usr/lib*/*/faketime/libfaketimeMT.so.1' /usr/lib64/faketime/libfaketimeMT.so.1 > /dev/null; then
    install_deb libfaketimeMT.so.1 libfaketime || true
fi
if ! python3 -c 'import ensurepip' 2> /dev/null; then install_deb ensurepip python3-venv || true; fi

# What follows the build needs no compiler, and mostly waits for nodes, pages and clocks. Two lanes run beside each other:
# what they do to each other is what a busy machine does to a test. One begins with the tests of cargo, then both take what
# is left, one step after the other. After a step that fails its lane goes on, so that one run finds all that is wrong.
TESTS=(
    "tests|cargo test --locked --workspace --all-targets --no-fail-fast"
    "power cuts|env CUTS=3 PROFILE=dev scripts/powercut.sh"
    "the test suite of JSON Schema|scripts/schema-suite.sh"
    "numbers and unions beside Python|scripts/schema-oracle.sh"
    "flags beside flagd's evaluator|scripts/flags-oracle.sh"
)
# The longest first. The same seeds each time: what a new one finds is no fault of the change. `scripts/simulate.sh N`
# draws new ones.
LEFT=(
    "the clients for languages|env QUICK=1 scripts/clients-test.sh"
    "the documents|python3 scripts/docs-test.py"
    "the console|scripts/console-test.sh"
    "the packages|scripts/release-test.sh --short"
    "simulation|env FIRST=100 BOUND_S=60 scripts/simulate.sh test"
    "schemas of other libraries|scripts/schemas-test.sh"
    "fuzzing|env DURATION_S=45 SEED=1 scripts/fuzz.sh"
    "the dashboard and the alerts|scripts/metrics-test.sh"
)
failures=$PWD/target/test-failures.log times=$PWD/target/test-times.log next=$PWD/target/test-next.txt

step() {
    local name=${1%%|*} command begin=$SECONDS
    read -r -a command <<< "${1#*|}"
    say "$name"
    "${command[@]}" || { echo "$name" >> "$failures"; echo "test.sh: FAILED: $name"; }
    printf '%5d s  %s\n' "$((SECONDS - begin))" "$name" >> "$times"
}

# The number of a step that nobody has taken.
take() (
    flock 9
    local number
    number=$(< "$next")
    echo "$((number + 1))" > "$next"
    echo "$number"
) 9>> "$next.lock"

# What is printed of each of these steps comes in one piece, when it has ended.
left() {
    export CONCORD_BIN=$PWD/target/debug/concord
    local number log
    log=$(mktemp)
    while number=$(take) && ((number < ${#LEFT[@]})); do
        step "${LEFT[number]}" > "$log" 2>&1
        cat "$log"
    done
    rm -f "$log"
}

tests() {
    local one
    for one in "${TESTS[@]}"; do step "$one"; done
    left
}

say "checks"
scripts/check.sh quick
say "the build"
cargo test --locked --workspace --all-targets --no-run --quiet
scripts/simulate.sh build
for version in tests/fixtures/*/; do scripts/fixture.sh build "$(basename "$version")" > /dev/null; done

echo 0 > "$next"
: > "$failures"
: > "$times"
trap 'trap - INT TERM; kill 0' INT TERM
left &
lanes=([$!]="the other lane")
tests &
lanes[$!]="the tests"
for lane in "${!lanes[@]}"; do
    wait "$lane" || echo "${lanes[$lane]}" >> "$failures"
done
say "done"
cat "$times"
if [[ -s $failures ]]; then
    sed 's/^/test.sh: FAILED: /' "$failures" >&2
    exit 1
fi
