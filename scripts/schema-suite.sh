#!/usr/bin/env bash
# The JSON Schema test suite: scripts/schema-suite.sh
#
# Takes the suite from the source package of PyPI's jsonschema, into target/tools, and compares what is found with
# crates/model/tests/fixtures/schema-suite.txt. Where the package can't be had it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=4.26.0
suite=$PWD/target/tools/schema-suite-$VERSION
if [[ ! -d $suite/tests ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if ! { python3 -m venv "$work/venv" &&
        "$work/venv/bin/pip" download --quiet --disable-pip-version-check --retries 3 --no-deps --no-binary jsonschema \
            --dest "$work" "jsonschema==$VERSION"; } >&2; then
        echo "schema-suite.sh: SKIPPED: there is no source of jsonschema" >&2
        exit 0
    fi
    tar xzf "$work/jsonschema-$VERSION.tar.gz" -C "$work"
    mkdir -p "$suite"
    cp -r "$work/jsonschema-$VERSION/json/tests" "$work/jsonschema-$VERSION/json/LICENSE" "$suite/"
fi
CONCORD_SUITE=$suite/tests cargo test --locked --workspace --test it -- --ignored --exact \
    schema_suite::verdicts_are_those_of_the_suite_except_the_named_ones
