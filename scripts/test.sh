#!/usr/bin/env bash
# The tests. Installs the tools that they need.
#
#   scripts/test.sh          all of them: checks, unit tests, tests over HTTP and of clusters, a short run with power cuts,
#                            definitions from the schemas of other libraries, the test suite of JSON Schema, a short run
#                            of the fuzzer, the console in a browser, the packages, the clients for
#                            languages, the commands of the documents
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

say "checks"
scripts/check.sh
say "tests"
cargo test --locked --workspace --all-targets
say "power cuts"
CUTS=3 PROFILE=dev scripts/powercut.sh
say "schemas of other libraries"
CONCORD_BIN=$PWD/target/debug/concord scripts/schemas-test.sh
say "the test suite of JSON Schema"
scripts/schema-suite.sh
say "numbers and unions beside Python"
scripts/schema-oracle.sh
say "fuzzing"
DURATION_S=45 SEED=1 CONCORD_BIN=$PWD/target/debug/concord scripts/fuzz.sh
say "the console"
CONCORD_BIN=$PWD/target/debug/concord scripts/console-test.sh
say "the dashboard and the alerts"
CONCORD_BIN=$PWD/target/debug/concord scripts/metrics-test.sh
say "the packages"
CONCORD_BIN=$PWD/target/debug/concord scripts/release-test.sh --short
say "the clients for languages"
CONCORD_BIN=$PWD/target/debug/concord scripts/clients-test.sh
say "the documents"
CONCORD_BIN=$PWD/target/debug/concord python3 scripts/docs-test.py
say "done"
