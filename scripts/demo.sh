#!/usr/bin/env bash
# The demonstration: loads a realistic sample into the running cluster through the public API, queries it on all
# three nodes, kills the leader, and shows that everything is still there. Fails when anything differs.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/demo.py "$@"
