#!/usr/bin/env bash
# Verdicts about numbers and the places of violations in unions, beside Python: scripts/schema-oracle.sh [ARGUMENT of schema-oracle.py]...
#
#   scripts/schema-oracle.sh                                      a short run, seconds
#   scripts/schema-oracle.sh --numbers 100000 --unions 10000      a long one
#
# Installs jsonschema from PyPI under target/tools. Where it can't be had it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

if ! python=$(pip_tool jsonschema 4.26.0 python3); then
    echo "schema-oracle.sh: SKIPPED: there is no jsonschema" >&2
    exit 0
fi
cases=$(mktemp)
trap 'rm -f "$cases"' EXIT
"$python" scripts/schema-oracle.py "$@" > "$cases"
CONCORD_ORACLE=$cases cargo test --locked --workspace --test it -- --ignored --exact --nocapture \
    oracle::verdicts_and_places_are_those_of_python
