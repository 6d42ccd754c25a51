#!/usr/bin/env bash
# The packages of the clients, as registries get them: scripts/release-clients.sh [--quick] [LANGUAGE...]
#
# Makes and checks those of rust, python, javascript, go and java, or of the languages that are named. It sends nothing to
# a registry. The packages are in target/release-clients/LANGUAGE. Who owns the names publishes them so:
#
#   rust        crates.io      cargo publish --locked --package concord-config-client
#   python      PyPI           twine upload target/release-clients/python/*
#   javascript  npm            npm publish target/release-clients/javascript/*.tgz
#   go          tags in Git    clients/go/vVERSION, and the same for clients/go/koanf and clients/go/viper
#   java        Maven Central  mvn -Prelease deploy in clients/java, with the signing key and the server `central`
#
# --quick leaves out `cargo publish --dry-run`, which compiles the crate alone and takes a checkout without changes, and
# `npm publish --dry-run`.
#
# The exit code is 3 if a tool or a dependency can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

quick=
if [[ ${1:-} == --quick ]]; then
    quick=1
    shift
fi
NAME=concord-config-client
MODULE=github.com/concord-config/concord/clients/go
HOME_OF_ALL=$PWD/target/release-clients

absent() { echo "release-clients.sh: SKIPPED $*" >&2; exit 3; }
# Shows what a command prints only if it fails: logged FILE COMMAND...
logged() { "${@:2}" > "$1" 2>&1 || { cat "$1" >&2; return 1; }; }

pack_rust() {
    local out=$1 build=$HOME_OF_ALL/build-rust
    rm -rf "$build/package"
    logged "$out.log" cargo package --locked --no-verify --allow-dirty --package "$NAME" --target-dir "$build"
    cp "$build"/package/"$NAME"-*.crate "$out/"
    if [[ -z $quick ]]; then logged "$out.log" cargo publish --dry-run --locked --package "$NAME" --target-dir "$build"; fi
}

pack_python() {
    local out=$1 tools=$PWD/target/tools/python-release
    local packages=(build==1.3.0 hatchling==1.27.0 twine==6.2.0)
    if ! cmp -s <(echo "${packages[*]}") "$tools/installed"; then
        mkdir -p "${tools%/*}"
        { python3 -m venv --clear "$tools" && "$tools/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"; } >&2 ||
            absent "python: the tools can't be had from PyPI"
        echo "${packages[*]}" > "$tools/installed"
    fi
    logged "$out.log" "$tools/bin/python" -m build --no-isolation --outdir "$out" clients/python
    logged "$out.log" "$tools/bin/twine" check --strict "$out"/*
}

# The modules of the copy stay, so that the tests have them.
pack_javascript() {
    local out=$1 copy=$PWD/target/javascript-client/package source=$PWD/clients/js
    install_deb npm || absent "javascript: there is no npm"
    mkdir -p "$copy"
    rm -rf "$copy/src" "$copy/types"
    cp -r "$source"/{src,package.json,tsconfig.json,README.md,LICENSE} "$copy/"
    if ! cmp -s "$source/package.json" "$copy/installed"; then
        (cd "$copy" && npm install --silent --no-audit --no-fund --no-package-lock --loglevel=error) >&2 ||
            absent "javascript: the tools can't be had from npm"
        cp "$source/package.json" "$copy/installed"
    fi
    (cd "$copy" && npm pack --silent --loglevel=error --pack-destination "$out" > /dev/null)
    if [[ -z $quick ]]; then logged "$out.log" npm publish --dry-run "$out/$NAME"-*.tgz; fi
}

# The registry of Go modules is Git: a repository with the tags of a release stands for it, and a program outside of the
# checkout requires the modules by their versions.
pack_go() {
    local out=$1 version module
    install_deb go golang-go || absent "go: there is no Go"
    version=v$(sed -n 's/^const Version = "\(.*\)"$/\1/p' clients/go/doc.go)
    git init --quiet "$out/repository"
    git ls-files -z --cached --others --exclude-standard -- clients/go LICENSE | xargs -0 cp --parents -t "$out/repository"
    (
        cd "$out/repository"
        export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.com GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.com
        git add .
        git commit --quiet --message release
        for module in clients/go clients/go/koanf clients/go/viper; do git tag "$module/$version"; done
    )
    mkdir "$out/program"
    cd "$out/program"
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=url.file://$out/repository.insteadOf GIT_CONFIG_VALUE_0=https://${MODULE%/clients/go}
    # Of its own, as a module of this name may be there with other content. What others publish is taken from the usual place.
    export GOPRIVATE=$MODULE GOFLAGS=-modcacherw GOMODCACHE=$out/modules
    GOPROXY=file://$(cd / && GOMODCACHE='' go env GOMODCACHE)/cache/download,$(go env GOPROXY)
    export GOPROXY
    logged "$out.log" go mod init example.com/program
    logged "$out.log" go get "$MODULE@$version"
    printf 'package main\n\nimport (\n\t_ "%s"\n\t_ "%s/concordtest"\n)\n\nfunc main() {}\n' "$MODULE" "$MODULE" > main.go
    logged "$out.log" go build -o /dev/null .
    cmp "$out/modules/$MODULE@$version/LICENSE" "$out/repository/LICENSE"
    for module in koanf viper; do
        logged "$out.log" go get "$MODULE/$module@$version" || {
            grep -qE 'dial tcp|Forbidden|no such host' "$out.log" || return 1
            absent "go: the modules of $module can't be had from the proxy for Go modules"
        }
        cmp "$out/modules/$MODULE/$module@$version/LICENSE" "$out/repository/LICENSE"
    done
    cd - > /dev/null
    rm -rf "$out"
}

pack_java() {
    local out=$1 copy=$HOME_OF_ALL/build-java
    { install_deb javac default-jdk-headless && install_deb mvn maven; } || absent "java: there is no JDK, or no Maven"
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -r clients/java clients/cases.json "$copy/"
    # Signatures are made later, by the owner of the key.
    logged "$out.log" mvn --batch-mode --no-transfer-progress --file "$copy/java" -Prelease -DskipTests package || {
        grep -qE 'Could not transfer|Unknown host' "$out.log" || return 1
        absent "java: the packages can't be had from Maven Central"
    }
    cp "$copy"/java/*/target/concord-config-*.jar "$out/"
}

if (($# == 0)); then set -- rust python javascript go java; fi
python3 scripts/publishable.py
for language; do
    rm -rf "${HOME_OF_ALL:?}/$language"
    mkdir -p "$HOME_OF_ALL/$language"
    "pack_$language" "$HOME_OF_ALL/$language"
    packages=()
    [[ ! -d $HOME_OF_ALL/$language ]] || mapfile -t packages < <(find "$HOME_OF_ALL/$language" -type f | LC_ALL=C sort)
    if ((${#packages[@]})); then python3 scripts/publishable.py "${packages[@]}"; fi
    echo "$language: ${#packages[@]} packages"
done
