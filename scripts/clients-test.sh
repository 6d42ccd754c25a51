#!/usr/bin/env bash
# The clients for languages, each with played nodes and with three real nodes of CONCORD_BIN; and the SDKs of
# OpenFeature with their OFREP providers, as they are published, with a real node.
#
#   scripts/clients-test.sh             all of them
#   scripts/clients-test.sh python      this one
#   scripts/clients-test.sh javascript  this one
#   scripts/clients-test.sh openfeature these: Python, Node.js, Java, Go and a browser
#
# What they need is installed under target/tools. A language that can't be had is skipped, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

CONCORD_BIN=$(realpath "${CONCORD_BIN:-target/debug/concord}")
export CONCORD_BIN
skip() { echo "clients-test.sh: SKIPPED $*" >&2; }

# Lints, types, tests, a short soak, and the wheel and the sdist in an environment of their own, used from outside of the checkout.
python() {
    local home=$PWD/target/tools/python-client-1 dist=$PWD/target/python-client package=$PWD/clients/python
    local tools=(httpx==0.28.1 pydantic==2.12.4 pytest==8.4.2 mypy==1.18.2 ruff==0.14.5 build==1.3.0 hatchling==1.27.0)
    if [[ ! -e $home/installed ]]; then
        mkdir -p "${home%/*}"
        { python3 -m venv --clear "$home" && "$home/bin/pip" install --quiet --disable-pip-version-check "${tools[@]}"; } >&2 ||
            { skip "python: the tools can't be had from PyPI"; return; }
        touch "$home/installed"
    fi
    mkdir -p "$dist"
    # Beside the tests, which mostly wait for nodes.
    (
        cd "$package"
        "$home/bin/ruff" check --quiet --cache-dir "$dist/ruff" .
        "$home/bin/ruff" format --quiet --cache-dir "$dist/ruff" --check .
        "$home/bin/mypy" --cache-dir "$dist/mypy"
    ) &
    local lints=$!
    (cd "$package" && "$home/bin/python" -m pytest --quiet -o cache_dir="$dist/pytest")
    wait "$lints"
    "$home/bin/python" "$package/soak.py" --seconds 5 --seed "${SEED:-1}" > "$dist/soak.log" 2>&1 || { cat "$dist/soak.log" >&2; return 1; }
    rm -rf "$dist/dist" "$dist/fresh"
    "$home/bin/python" -m build --no-isolation --outdir "$dist/dist" "$package" > "$dist/build.log" 2>&1 || { cat "$dist/build.log" >&2; return 1; }
    python3 -m venv "$dist/fresh"
    local kind
    for kind in "$dist"/dist/*.tar.gz "$dist"/dist/*.whl; do
        "$dist/fresh/bin/pip" install --quiet --disable-pip-version-check --force-reinstall "$kind"
        (cd / && "$dist/fresh/bin/python" "$package/tests/newcomer.py")
    done
}

# Types, tests with made-up and with real nodes, a browser, and the package that `npm pack` makes, installed in an empty
# folder and used from JavaScript and TypeScript.
javascript() {
    local source=$PWD/clients/js home=$PWD/target/javascript-client chromium playwright
    install_deb npm || { skip "javascript: there is no npm"; return; }
    mkdir -p "$home/package"
    # A copy, so that nothing is written into the checkout. Its modules stay.
    rm -rf "$home/package/src" "$home/package/types" "$home/fresh"
    cp -r "$source"/{src,package.json,tsconfig.json,README.md,LICENSE} "$home/package/"
    if ! cmp -s "$source/package.json" "$home/package/installed"; then
        (cd "$home/package" && npm install --silent --no-audit --no-fund --no-package-lock --loglevel=error) >&2 ||
            { skip "javascript: the tools can't be had from npm"; return; }
        cp "$source/package.json" "$home/package/installed"
    fi
    (cd "$home/package" && npm pack --silent --loglevel=error --pack-destination "$home" > /dev/null)
    (cd "$source" && node --test test/unit/ test/cluster/ > "$home/test.log") || { cat "$home/test.log" >&2; return 1; }
    SEED=${SEED:-1} DURATION_S=8 node "$source/test/soak.js"

    mkdir "$home/fresh"
    cp "$source"/test/newcomer/program.* "$home/fresh/"
    (
        cd "$home/fresh"
        echo '{"private": true, "type": "module"}' > package.json
        npm install --silent --offline --no-audit --no-fund --no-package-lock --loglevel=error "$home"/concord-client-*.tgz
        "$home/package/node_modules/.bin/tsc" --strict --target es2022 --module nodenext --lib es2022,dom --skipLibCheck false \
            --typeRoots "$home/package/node_modules/@types" --types node program.ts
        node "$source/test/newcomer/run.js" "$PWD"
    )

    chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
    if [[ -z $chromium ]] && install_deb chromium; then chromium=$(command -v chromium); fi
    if [[ -z $chromium ]] || ! playwright=$(pip_tool playwright 1.55.0 python3); then
        skip "javascript in a browser: there is no Chromium, or no Playwright"
        return
    fi
    CHROMIUM=$chromium "$playwright" "$source/test/browser.py"
}

# The versions of the packages are in the table of tools here, and in package.json, pom.xml and go.mod.
openfeature() {
    local source=$PWD/clients/openfeature home=$PWD/target/openfeature chromium
    local tools=(openfeature-provider-ofrep==0.3.0 openfeature-sdk==0.10.0 playwright==1.55.0) commands=()
    mkdir -p "$home"
    cp "$source"/* "$home/"
    if ! cmp -s <(echo "${tools[*]}") "$home/python.installed"; then
        { python3 -m venv --clear "$home/python" && "$home/python/bin/pip" install --quiet --disable-pip-version-check "${tools[@]}"; } >&2 ||
            { skip "openfeature: the packages can't be had from PyPI"; return; }
        echo "${tools[*]}" > "$home/python.installed"
    fi
    commands+=("python=$(printf %q "$home/python/bin/python")")

    if ! install_deb npm; then
        skip "openfeature for Node.js and browsers: there is no npm"
    elif ! cmp -s "$source/package.json" "$home/npm.installed" &&
        ! (cd "$home" && npm install --silent --no-audit --no-fund --no-package-lock --loglevel=error) >&2; then
        skip "openfeature for Node.js and browsers: the packages can't be had from npm"
    else
        cp "$source/package.json" "$home/npm.installed"
        commands+=("node=node")
        chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
        if [[ -z $chromium ]] && install_deb chromium; then chromium=$(command -v chromium); fi
        if [[ -n $chromium ]]; then commands+=("web=$(printf %q "$chromium")"); else skip "openfeature in a browser: there is no Chromium"; fi
    fi

    if ! { install_deb javac default-jdk-headless && install_deb mvn maven; }; then
        skip "openfeature for Java: there is no JDK, or no Maven"
    elif ! cmp -s "$source/pom.xml" "$home/maven.installed" &&
        ! (cd "$home" && rm -rf lib && mvn --quiet --batch-mode --no-transfer-progress \
            org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$home/lib") > "$home/maven.log" 2>&1; then
        cat "$home/maven.log" >&2
        skip "openfeature for Java: the packages can't be had from Maven Central"
    else
        cp "$source/pom.xml" "$home/maven.installed"
        (cd "$home" && javac -cp 'lib/*' -d . Ask.java)
        commands+=("java=java -cp lib/*:.")
    fi

    if ! install_deb go golang-go; then
        skip "openfeature for Go: there is no Go"
    elif ! cmp -s "$source/go.mod" "$home/go.installed" && ! (cd "$home" && GOTOOLCHAIN=local go build -o /dev/null ask.go) > "$home/go.log" 2>&1; then
        cat "$home/go.log" >&2
        skip "openfeature for Go: the modules can't be had from the proxy for Go modules"
    else
        cp "$source/go.mod" "$home/go.installed"
        commands+=("go=go run")
    fi
    "$home/python/bin/python" "$source/check.py" "$home" "${commands[@]}"
}

languages=("$@")
if ((${#languages[@]} == 0)); then languages=(python javascript openfeature); fi
for language in "${languages[@]}"; do
    printf -- '-- %s\n' "$language"
    "$language"
done
