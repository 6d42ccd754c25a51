#!/usr/bin/env bash
# The dashboard and the alerts of cluster/monitoring under a real Prometheus.
#
#   scripts/metrics-test.sh         the alerts that can be made to fire in seconds
#   scripts/metrics-test.sh --all   all of them, two minutes
#
# Installs prometheus from the system's packages, checks and fires the rules with promtool, and runs metrics-test.py
# with three nodes of CONCORD_BIN. Where Prometheus can't be had it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

skip() { echo "metrics-test.sh: SKIPPED: $*" >&2; exit 0; }
install_deb promtool prometheus || skip "there is no prometheus"

promtool check rules cluster/monitoring/rules.yaml
promtool check config cluster/monitoring/prometheus.yaml
(cd cluster/monitoring && promtool test rules rules-test.yaml)
install_deb strace || true
python3 scripts/metrics-test.py "$@"
