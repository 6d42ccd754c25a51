#!/usr/bin/env bash
# The libraries of the console: scripts/console-vendor.sh
#
# Fetches the versions below from npm and writes crates/http/src/console/vendor/: preact.js (Preact, its hooks, signals, htm),
# editor.js (CodeMirror, loaded when somebody edits), and their licences. A build of Concord needs none of this: the files
# are in the source. `scripts/console-vendor.sh check` compares them with what it would write.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(
    preact@10.29.8 htm@3.1.1 @preact/signals@2.11.4 @preact/signals-core@1.14.5
    @codemirror/commands@6.11.1 @codemirror/lang-json@6.0.2 @codemirror/language@6.13.1 @codemirror/lint@6.9.8
    @codemirror/merge@6.12.3 @codemirror/search@6.7.2 @codemirror/state@6.7.6 @codemirror/streamparser@6.0.0
    @codemirror/view@6.43.15 @lezer/common@1.5.5 @lezer/highlight@1.2.5 @lezer/json@1.0.3 @lezer/lr@1.4.12
    @marijn/find-cluster-break@1.0.4 crelt@1.0.7 style-mod@4.1.4 w3c-keyname@2.2.8
)
BUNDLER=esbuild@0.28.2

out=crates/http/src/console/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp scripts/console/*.js "$work"
echo '{"private": true}' > "$work/package.json"
(cd "$work" && npm install --silent --no-audit --no-fund --no-package-lock --save-exact "${PACKAGES[@]}" "$BUNDLER")
mkdir -p "$work/vendor"
for name in preact editor; do
    (cd "$work" && npx --no-install esbuild "$name.js" --bundle --minify --format=esm --target=es2022 \
        --legal-comments=none --log-level=warning --outfile="vendor/$name.js")
done
{
    echo "The libraries in preact.js and editor.js, and the licences under which they are used."
    for package in "${PACKAGES[@]}"; do
        name=${package%@*}
        printf '\n%s %s\n\n' "$name" "${package##*@}"
        cat "$work/node_modules/$name/LICENSE"*
    done
} > "$work/vendor/LICENSES.txt"
if [[ ${1:-} == check ]]; then
    diff -r "$work/vendor" "$out" > /dev/null || { echo "console-vendor.sh: $out is not what these versions give" >&2; exit 1; }
    echo "$out is what these versions give"
else
    mkdir -p "$out"
    cp "$work"/vendor/* "$out/"
    ls -l "$out"
fi
