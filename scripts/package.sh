#!/usr/bin/env bash
# The binary that is distributed: scripts/package.sh
#
# Where scripts/pgo.sh has counted, the program is laid out by what it executes under load (LLVM BOLT, from the system's
# package bolt-19), which takes 3 minutes; BOLT=0 does without, and PGO=0 without any counts.
#
# Builds the profile `dist` and writes target/package/concord, without symbols, and target/package/concord.debug, which
# holds them. gdb, addr2line and perf find the second by the name that the first has of it, if both are in one directory.
# target/package/concord.cdx.json is the bill of materials.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/training.sh

command -v objcopy > /dev/null || { echo "package.sh: there is no objcopy: install binutils" >&2; exit 1; }
out=target/package
mkdir -p "$out"
# Files of the page at /docs that it never loads: other forms of its script, 2.35 MB. They are built in empty, and the
# node answers for them as for a file that is not there (crates/http/src/docs.rs).
unused="$PWD/$out/unused-page-files"
mkdir -p "$unused"
for name in swagger-ui.js swagger-ui-es-bundle.js swagger-ui-es-bundle-core.js; do
    : > "$unused/$name"
done
export SWAGGER_UI_OVERWRITE_FOLDER="$unused"
# Compiled by what was counted under load (scripts/pgo.sh), where that was done.
host=$(rustc -vV | sed -n 's/^host: //p') counts=$PWD/target/pgo/concord.profdata
flags=${RUSTFLAGS:-}
[[ ${PGO:-1} == 1 && -s $counts ]] || counts=
# With the relocations that `lay_out` needs.
if [[ $counts ]]; then flags="-Cprofile-use=$counts -Clink-arg=-Wl,--emit-relocs $flags"; fi
# With its symbols, which are taken out below.
RUSTFLAGS=$flags cargo build --profile dist --locked --bin concord --target "$host" --target-dir "$out/build"
built=$out/build/$host/dist/concord

# The order of the finished code, block by block, is by what is counted in that very code: what is executed together
# lies together, and what is not is apart. The compiler's own counts are of the code before most optimisations.
lay_out() {
    local from=$1 to=$2 counted=$PWD/$out/layout
    rm -rf "$counted"
    mkdir -p "$counted"
    "$bolt/llvm-bolt" "$from" -instrument --instrumentation-file="$counted/counts" --instrumentation-file-append-pid \
        -o "$counted/concord" > "$counted/log" || return
    train "$counted/concord" "$counted/data" > "$counted/loads" || return
    "$bolt/merge-fdata" "$counted"/counts.*.fdata > "$counted/merged" 2>> "$counted/log" || return
    # What it can't carry over from the debugging information, it says for each item.
    "$bolt/llvm-bolt" "$from" -data="$counted/merged" -o "$to" -reorder-blocks=ext-tsp -reorder-functions=cdsort \
        -split-functions -split-all-cold -split-eh -use-gnu-stack -update-debug-sections >> "$counted/log" 2>&1 || return
    rm -rf "$counted"
}
bolt=/usr/lib/llvm-19/bin # not by its name in /usr/bin, from where it does not find its library
if [[ $counts ]]; then
    if [[ ${BOLT:-1} == 1 ]] && install_deb "$bolt/llvm-bolt" bolt-19; then
        lay_out "$built" "$built.laid-out" || {
            echo "package.sh: the code was not laid out: $out/layout/log" >&2
            exit 1
        }
        built=$built.laid-out
    else echo "package.sh: SKIPPED the layout by counts: there is no bolt-19" >&2; fi
fi
objcopy --only-keep-debug "$built" "$out/concord.debug"
objcopy --strip-all "$built" "$out/concord"
(cd "$out" && objcopy --add-gnu-debuglink=concord.debug concord)
# What is in it: each package with its version, licence, source and checksum, as CycloneDX has it.
if cyclonedx=$(cargo_tool cargo-cyclonedx 0.5.9); then
    "$cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --target "$host" \
        --override-filename concord.cdx
    mv concord.cdx.json "$out/concord.cdx.json"
    # It writes one for each member of the workspace.
    rm -f clients/rust/concord.cdx.json
else echo "package.sh: SKIPPED the bill of materials: there is no cargo-cyclonedx" >&2; fi
ls -lh "$out/concord" "$out/concord.debug"
