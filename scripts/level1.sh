#!/usr/bin/env bash
# Builds the last program of feature level 1, which the tests of upgrades start beside the new one. Prints its path.
#
#   scripts/level1.sh        debug/concord-level-1 in cargo's target directory, from tests/fixtures/level-1/source.tar.gz
#
# It needs no history: the archive holds the sources of version 0.1.0. It shares the target directory with the tests, so
# that of all crates only concord itself and those that are in vendor/ now are compiled again; its manifest names the
# dependencies of the tests as its own for that reason. What is in vendor/ now is fetched on a new machine.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=$PWD/tests/fixtures/level-1/source.tar.gz
target=${CARGO_TARGET_DIR:-$PWD/target}
source=$target/level-1/source
binary=$target/debug/concord-level-1

# Unpacked once for each archive and version of this script: new times would make cargo compile it again.
sum=$(cat "$archive" scripts/level1.sh | sha256sum | cut -d' ' -f1)
if [[ $(cat "$target/level-1/sum" 2> /dev/null) != "$sum" ]]; then
    rm -rf "$source"
    mkdir -p "$source"
    tar xzf "$archive" -C "$source"
    cp rust-toolchain.toml "$source/"
    # It lies below this project's manifest, of whose workspace it would be taken for a member.
    printf '\n[workspace]\n' >> "$source/Cargo.toml"
    echo "$sum" > "$target/level-1/sum"
fi
# Its own lines are of no use: without debug information it is built and linked in half the time.
CARGO_TARGET_DIR=$target cargo build --quiet --locked --config profile.dev.debug=false \
    --manifest-path "$source/Cargo.toml" --bin concord-level-1 >&2
echo "$binary"
