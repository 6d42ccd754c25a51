#!/usr/bin/env bash
# The binary that is distributed: scripts/package.sh
#
# Builds the profile `dist` and writes target/package/concord, without symbols, and target/package/concord.debug, which
# holds them. gdb, addr2line and perf find the second by the name that the first has of it, if both are in one directory.
# target/package/concord.cdx.json is the bill of materials.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

command -v objcopy > /dev/null || { echo "package.sh: there is no objcopy: install binutils" >&2; exit 1; }
out=target/package
mkdir -p "$out"
# Files of the page at /docs that it never loads: other forms of its script, 2.35 MB. They are built in empty, and the
# node answers for them as for a file that is not there (src/api/docs.rs).
unused="$PWD/$out/unused-page-files"
mkdir -p "$unused"
for name in swagger-ui.js swagger-ui-es-bundle.js swagger-ui-es-bundle-core.js; do
    : > "$unused/$name"
done
export SWAGGER_UI_OVERWRITE_FOLDER="$unused"
# The build of its own keeps the symbols, and is not the one that `cargo build --profile dist` strips.
CARGO_PROFILE_DIST_STRIP=none cargo build --profile dist --locked --bin concord --target-dir "$out/build"
objcopy --only-keep-debug "$out/build/dist/concord" "$out/concord.debug"
objcopy --strip-all "$out/build/dist/concord" "$out/concord"
(cd "$out" && objcopy --add-gnu-debuglink=concord.debug concord)
# What is in it: each package with its version, licence, source and checksum, as CycloneDX has it.
if cyclonedx=$(cargo_tool cargo-cyclonedx 0.5.9); then
    target=$(rustc -vV | sed -n 's/^host: //p')
    "$cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --target "$target" \
        --override-filename concord.cdx
    mv concord.cdx.json "$out/concord.cdx.json"
else echo "package.sh: SKIPPED the bill of materials: there is no cargo-cyclonedx" >&2; fi
ls -lh "$out/concord" "$out/concord.debug"
