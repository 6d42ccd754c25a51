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
# what they do to each other is what a busy machine does to a test.
tests() {
    say "tests"
    cargo test --locked --workspace --all-targets
    say "power cuts"
    CUTS=3 PROFILE=dev scripts/powercut.sh
    say "the test suite of JSON Schema"
    scripts/schema-suite.sh
    say "numbers and unions beside Python"
    scripts/schema-oracle.sh
    say "flags beside flagd's evaluator"
    scripts/flags-oracle.sh
}

others() {
    export CONCORD_BIN=$PWD/target/debug/concord
    say "the documents"
    python3 scripts/docs-test.py
    say "the console"
    scripts/console-test.sh
    say "the clients for languages"
    scripts/clients-test.sh
    say "the dashboard and the alerts"
    scripts/metrics-test.sh
    say "the packages"
    scripts/release-test.sh --short
    say "schemas of other libraries"
    scripts/schemas-test.sh
    say "fuzzing"
    DURATION_S=45 SEED=1 scripts/fuzz.sh
    say "simulation"
    # The same seeds each time: what a new one finds is no fault of the change. `scripts/simulate.sh N` draws new ones.
    FIRST=100 BOUND_S=60 scripts/simulate.sh test
}

say "checks"
scripts/check.sh
say "the build"
cargo test --locked --workspace --all-targets --no-run --quiet
scripts/simulate.sh build
for version in tests/fixtures/*/; do scripts/fixture.sh build "$(basename "$version")" > /dev/null; done

others=$PWD/target/test-others.log
trap 'trap - INT TERM; kill 0' INT TERM
(others) > "$others" 2>&1 &
lanes=([$!]="the other lane")
(tests) &
lanes[$!]="the tests"
failed=0
for lane in "${!lanes[@]}"; do
    wait "$lane" || { echo "test.sh: ${lanes[$lane]} failed" >&2; failed=1; }
done
say "beside the tests"
cat "$others"
say "done"
exit "$failed"
