#!/usr/bin/env bash
# The released versions from which the tests upgrade: tests/fixtures/VERSION has the sources of its program and data
# directories that it left.
#
#   scripts/fixture.sh build VERSION   builds the program of a released version, unless it is built, and prints its path
#   scripts/fixture.sh make            stores the version of the last commit, on the day of its release. What is stored is
#                                      never made again: users have such directories
set -euo pipefail
cd "$(dirname "$0")/.."

FIXTURES=tests/fixtures
# What the program is built from. The tests and benchmarks that its manifest names are empty files.
SOURCES=(Cargo.toml Cargo.lock rust-toolchain.toml LICENSE crates src vendor clients/rust scripts/console)
EMPTY=(tests/main.rs benches/micro/main.rs)

build() {
    local version=$1 place=target/fixtures/$1
    local archive=$PWD/$FIXTURES/$version/sources.tar.gz program=$PWD/$place/program
    [[ -f $archive ]] || { echo "fixture.sh: $archive does not exist" >&2; exit 1; }
    if [[ ! -x $program || $archive -nt $program ]]; then
        rm -rf "$place/sources"
        mkdir -p "$place/sources"
        tar -xzf "$archive" -C "$place/sources"
        # Its tests need neither the newest toolchain nor a fast program.
        (cd "$place/sources" && CARGO_TARGET_DIR=$PWD/../target \
            cargo build --locked --profile quick --no-default-features --bin concord >&2)
        # Renamed, so that nobody starts half a file.
        cp "$place/target/quick/concord" "$program.new"
        mv "$program.new" "$program"
        rm -rf "$place/sources" "$place/target"
    fi
    echo "$program"
}

make() {
    local version place
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    place=$FIXTURES/$version
    [[ -z $(git status --porcelain -- "${SOURCES[@]}") ]] || { echo "fixture.sh: commit the sources first" >&2; exit 1; }
    mkdir -p "$place"
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    git archive HEAD "${SOURCES[@]}" | tar -x -C "$tree"
    local file
    for file in "${EMPTY[@]}"; do
        mkdir -p "$tree/$(dirname "$file")"
        : > "$tree/$file"
    done
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c -C "$tree" . | gzip -9n > "$place/sources.tar.gz"
    FIXTURE=$PWD/$place cargo test --locked --workspace --test it -- \
        --exact --ignored hostile::released::the_directories_of_this_version_are_stored
    ls -l "$place"
}

case ${1:-} in
    build) build "${2:?a version}" ;;
    make) make ;;
    *) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
