#!/usr/bin/env bash
# The schemas of Pydantic, zod and schemars on a node: scripts/schemas-test.sh [ARGUMENT of schemas-test.py]...
#
#   scripts/schemas-test.sh                                          a short run, half a minute
#   SERDE=1 scripts/schemas-test.sh --documents 1000 --queries 12000    a long one; serde is asked as well, for which
#                                                                    schemas/schemars is built
#
# Installs what it needs (Pydantic and jsonschema from PyPI, zod from npm) under target/tools. Where one of these can't be
# had it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

skip() { echo "schemas-test.sh: SKIPPED: $*" >&2; exit 0; }

python=$(pip_tool pydantic 2.14.3 python3) || skip "there is no Pydantic"
tools=${python%/bin/python3}
if [[ ! -e $tools/others ]]; then
    "$tools/bin/pip" install --quiet --disable-pip-version-check --retries 3 "jsonschema[format-nongpl]==4.26.0" \
        email-validator==2.4.0 regex==2026.11.15 >&2 || skip "there is no jsonschema"
    touch "$tools/others"
fi
install_deb npm || skip "there is no npm, which has zod"
zod=$PWD/target/tools/zod-3.25.76
if [[ ! -e $zod/installed ]]; then
    mkdir -p "$zod"
    npm install --silent --no-audit --no-fund --prefix "$zod" zod@3.25.76 zod-to-json-schema@3.25.2 > /dev/null 2>&1 || skip "there is no zod"
    touch "$zod/installed"
fi
# Node finds packages from the directory of the file on.
cp scripts/schemas/zod_models.mjs "$zod/"
export ZOD_MODELS=$zod/zod_models.mjs
if [[ -n ${SERDE:-} ]]; then
    cargo build --quiet --locked --manifest-path scripts/schemas/schemars/Cargo.toml --target-dir target/tools/schemars >&2
    export SCHEMARS_BIN=$PWD/target/tools/schemars/debug/schemars-models
fi
exec "$python" scripts/schemas-test.py "$@"
