#!/usr/bin/env bash
# Format, lints, docs, shell scripts. Writes nothing but build output.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check
cargo fmt --check --manifest-path bench/Cargo.toml
cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items --quiet
if command -v shellcheck > /dev/null; then shellcheck scripts/*.sh .ci/run
else echo "check.sh: SKIPPED shellcheck: it is not installed (apt-get install shellcheck)" >&2; fi
