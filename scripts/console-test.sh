#!/usr/bin/env bash
# The console in a real browser: scripts/console-test.sh [ARGUMENT of console-test.py]...
#
# Installs what it needs (Chromium from the system's packages, Playwright from PyPI, axe-core from npm; the latter two
# under target/tools), starts three nodes of CONCORD_BIN, and clicks through the console. Where one of these can't be had
# it says so and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

AXE_VERSION=4.14.1
skip() { echo "console-test.sh: SKIPPED: $*" >&2; exit 0; }

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [[ -z $chromium ]]; then
    install_deb chromium || skip "there is no Chromium"
    chromium=$(command -v chromium)
fi
install_deb npm || skip "there is no npm, which has axe-core"
python=$(pip_tool playwright 1.55.0 python3) || skip "there is no Playwright"
# What the console copies for Python uses the client of this tree, which needs this.
"${python%/*}/python3" -m pip install --quiet --disable-pip-version-check httpx==0.28.1 >&2 || skip "there is no httpx"
axe=target/tools/axe-core-$AXE_VERSION
if [[ ! -s $axe/axe.min.js ]]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && npm pack --silent "axe-core@$AXE_VERSION" > /dev/null && tar xzf axe-core-*.tgz) || skip "there is no axe-core"
    mkdir -p "$axe"
    cp "$work/package/axe.min.js" "$work/package/LICENSE" "$axe/"
    rm -rf "$work"
fi
export CHROMIUM=$chromium AXE=$PWD/$axe/axe.min.js
"$python" scripts/console-test.py "$@"
