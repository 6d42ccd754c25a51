#!/usr/bin/env bash
# The clients for languages, each with the cases of clients/conformance, with played nodes and with three real nodes of
# CONCORD_BIN, and the package that a registry would get (scripts/release-clients.sh); and clients of others, as they are
# published, with real nodes: the SDKs of OpenFeature with their OFREP providers, clients for Consul, Spring Boot with
# Spring Cloud Config.
#
#   scripts/clients-test.sh             all of them
#   scripts/clients-test.sh rust        the cases and the package alone; its other tests are cargo's
#   scripts/clients-test.sh python      this one
#   scripts/clients-test.sh javascript  this one
#   scripts/clients-test.sh go          this one, and its providers for koanf and Viper
#   scripts/clients-test.sh java        this one, its node for tests, and its starter for Spring Boot
#   scripts/clients-test.sh openfeature these: Python, Node.js, Java, Go and a browser
#   scripts/clients-test.sh protocols   clients for Consul in Python, Node.js and Go, Spring Cloud Config and Consul, curl
#   scripts/clients-test.sh openapi     clients that are generated from the OpenAPI document; scripts/openapi-test.sh
#   scripts/clients-test.sh editors     the language server for YAML with the schemas of files
#   scripts/clients-test.sh mcp         `concord mcp` with the official client for Python and the conformance suite
#
# What they need is installed under target/tools. A language that can't be had is skipped, and that is said. With QUICK=1, as in
# scripts/test.sh, what takes minutes of a compiler for programs of others is skipped as well: consul-template and Viper, and
# all generated clients but those for Go, Python and TypeScript.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

CONCORD_BIN=$(realpath "${CONCORD_BIN:-target/debug/concord}")
export CONCORD_BIN
skip() { echo "clients-test.sh: SKIPPED $*" >&2; }

# The package of a client in target/release-clients. Skips the language if its tools can't be had.
packed() {
    local status=0
    scripts/release-clients.sh --quick "$1" || status=$?
    ((status != 3)) || exit 0
    return "$status"
}

# Runs the cases of all clients with the program of one.
conformance() { python3 clients/conformance/check.py -- "$@"; }

test_rust() {
    # As the tests are built, so that no crate is compiled for it alone.
    cargo build --locked --quiet --workspace --bin concord --example testee
    conformance target/debug/examples/testee
    packed rust
}

# Lints, types, tests, a short soak, and the wheel and the sdist in an environment of their own, used from outside of the checkout.
test_python() {
    local home=$PWD/target/tools/python-client-2 dist=$PWD/target/python-client package=$PWD/clients/python
    local tools=(httpx==0.28.1 pydantic==2.12.4 pydantic-settings==2.12.0 dynaconf==3.2.12 pytest==8.4.2 mypy==1.18.2 ruff==0.14.5)
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
    PYTHONPATH=$package/src conformance "$home/bin/python" "$package/tests/testee.py"
    PYTHONPATH=$package/src conformance "$home/bin/python" "$package/tests/testee.py" --asyncio
    "$home/bin/python" "$package/soak.py" --seconds 5 --seed "${SEED:-1}" > "$dist/soak.log" 2>&1 || { cat "$dist/soak.log" >&2; return 1; }
    packed python
    rm -rf "$dist/fresh"
    python3 -m venv "$dist/fresh"
    local kind
    for kind in target/release-clients/python/*; do
        "$dist/fresh/bin/pip" install --quiet --disable-pip-version-check --force-reinstall "$kind"
        (cd / && "$dist/fresh/bin/python" "$package/tests/newcomer.py")
    done
}

# Types, tests with made-up and with real nodes, a browser, and the package that `npm pack` makes, installed in an empty
# folder and used from JavaScript and TypeScript.
test_javascript() {
    local source=$PWD/clients/js home=$PWD/target/javascript-client packages=$PWD/target/release-clients/javascript chromium playwright
    packed javascript
    (cd "$source" && node --test test/unit/ test/cluster/ > "$home/test.log") || { cat "$home/test.log" >&2; return 1; }
    conformance node "$source/test/testee.js"
    SEED=${SEED:-1} DURATION_S=8 node "$source/test/soak.js"

    rm -rf "$home/fresh"
    mkdir "$home/fresh"
    cp "$source"/test/newcomer/program.* "$home/fresh/"
    (
        cd "$home/fresh"
        echo '{"private": true, "type": "module"}' > package.json
        npm install --silent --offline --no-audit --no-fund --no-package-lock --loglevel=error "$packages"/*.tgz
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

test_go() {
    local source=$PWD/clients/go home=$PWD/target/go-client
    if ! install_deb go golang-go || [[ $(printf 'go1.23\n%s\n' "$(go env GOVERSION)" | sort -V | head -n 1) != go1.23 ]]; then
        skip "go: there is no Go 1.23 or later"
        return
    fi
    mkdir -p "$home"
    (
        cd "$source"
        [[ -z $(gofmt -l .) ]] || { gofmt -d . >&2; return 1; }
        go vet ./...
        go test ./...
        go build -o "$home/testee" ./internal/testee
        go run ./internal/soak -for 8s -seed "${SEED:-1}" > "$home/soak.log" 2>&1 || { cat "$home/soak.log" >&2; return 1; }
    )
    conformance "$home/testee"
    local provider
    for provider in koanf viper; do
        if ! (cd "$source/$provider" && go mod download) > "$home/$provider.log" 2>&1; then
            cat "$home/$provider.log" >&2
            skip "go: the modules of $provider can't be had from the proxy for Go modules"
            continue
        fi
        (cd "$source/$provider" && go vet ./... && go test ./...)
    done
    packed go
}

test_java() {
    local home=$PWD/target/java-client modules path
    if ! { install_deb javac default-jdk-headless && install_deb mvn maven; }; then
        skip "java: there is no JDK, or no Maven"
        return
    fi
    # A copy: Maven writes beside the sources.
    rm -rf "$home"
    mkdir -p "$home/clients"
    cp -r clients/java clients/cases.json "$home/clients/"
    modules=$home/clients/java
    # With the sources and the documentation that Maven Central requires.
    if ! (cd "$modules" && mvn --batch-mode --no-transfer-progress -Prelease package dependency:build-classpath \
        -DincludeScope=runtime -Dmdep.outputFile=target/classpath) > "$home/maven.log" 2>&1; then
        cat "$home/maven.log" >&2
        grep -qE 'Could not transfer|Unknown host' "$home/maven.log" || return 1
        skip "java: the packages can't be had from Maven Central"
        return
    fi
    grep -E '^\[INFO\] Tests run:.*Time|^\[WARNING\] Tests run:' "$home/maven.log" || true
    path=$modules/client/target/test-classes:$modules/client/target/classes:$(cat "$modules/client/target/classpath")
    conformance java -XX:TieredStopAtLevel=1 -cp "$path" io.github.concordconfig.client.Testee
    path=$modules/testing/target/test-classes:$modules/testing/target/classes:$path
    java -XX:TieredStopAtLevel=1 -cp "$path" io.github.concordconfig.testing.Soak 8 "${SEED:-1}" > "$home/soak.log" 2>&1 || { cat "$home/soak.log" >&2; return 1; }
    python3 scripts/publishable.py "$modules"/*/target/concord-config-*.jar
}

# The versions of the packages are in the table of tools here, and in package.json, pom.xml and go.mod.
test_openfeature() {
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

# The versions of the packages are in the table of tools here, and in package.json, pom.xml and go.mod.
test_protocols() {
    local source=$PWD/clients/protocols home=$PWD/target/protocols python=$PWD/target/tools/protocols
    local tools=(py-consul==1.8.0 PyYAML==6.0.3) commands=()
    install_deb curl || { skip "protocols: there is no curl"; return; }
    mkdir -p "$home" "${python%/*}"
    cp "$source"/* "$home/"
    if ! cmp -s <(echo "${tools[*]}") "$python/installed"; then
        { python3 -m venv --clear "$python" && "$python/bin/pip" install --quiet --disable-pip-version-check "${tools[@]}"; } >&2 ||
            { skip "protocols: the packages can't be had from PyPI"; return; }
        echo "${tools[*]}" > "$python/installed"
    fi
    commands+=("python=$(printf %q "$python/bin/python")")

    if ! install_deb npm; then
        skip "protocols for Node.js: there is no npm"
    elif ! cmp -s "$source/package.json" "$home/npm.installed" &&
        ! (cd "$home" && npm install --silent --no-audit --no-fund --no-package-lock --loglevel=error) >&2; then
        skip "protocols for Node.js: the package can't be had from npm"
    else
        cp "$source/package.json" "$home/npm.installed"
        commands+=("node=node")
    fi

    if ! { install_deb javac default-jdk-headless && install_deb mvn maven; }; then
        skip "protocols for Java: there is no JDK, or no Maven"
    elif ! cmp -s "$source/pom.xml" "$home/maven.installed" &&
        ! (cd "$home" && rm -rf lib && mvn --quiet --batch-mode --no-transfer-progress \
            org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$home/lib") > "$home/maven.log" 2>&1; then
        cat "$home/maven.log" >&2
        skip "protocols for Java: the packages can't be had from Maven Central"
    else
        cp "$source/pom.xml" "$home/maven.installed"
        (cd "$home" && javac -parameters -cp 'lib/*' -d . Load.java Service.java)
        commands+=("java=java -XX:TieredStopAtLevel=1 -cp lib/*:.")
    fi

    if [[ ${QUICK:-} == 1 && ! -x $home/bin/consul-template ]]; then
        skip "protocols for Go: consul-template and Viper compile for minutes, and this is the quick run"
    elif ! install_deb go golang-go; then
        skip "protocols for Go: there is no Go"
    elif ! (cd "$home" && GOTOOLCHAIN=local go list -deps viper.go && GOTOOLCHAIN=local go list -deps github.com/hashicorp/consul-template) > "$home/go.log" 2>&1; then
        cat "$home/go.log" >&2
        skip "protocols for Go: the modules can't be had from the proxy for Go modules"
    else
        (
            cd "$home"
            GOTOOLCHAIN=local go build -o bin/viper viper.go
            GOTOOLCHAIN=local go build -o bin/consul-template github.com/hashicorp/consul-template
        )
        commands+=("viper=$(printf %q "$home/bin/viper")" "template=$(printf %q "$home/bin/consul-template")")
    fi
    "$python/bin/python" "$source/check.py" "$home" "${commands[@]}"
}

test_openapi() {
    local languages=()
    [[ ${QUICK:-} != 1 ]] || languages=(go python typescript)
    scripts/openapi-test.sh "${languages[@]}"
}

test_editors() {
    local home=$PWD/target/editors
    if ! install_deb npm || { [[ ! -e $home/node_modules ]] && ! npm install --silent --prefix "$home" --no-audit --no-fund --no-package-lock --loglevel=error yaml-language-server@1.19.2 >&2; }; then
        skip "editors: the language server can't be had from npm"
        python3 scripts/editor-test.py
        return
    fi
    python3 scripts/editor-test.py node "$home/node_modules/yaml-language-server/bin/yaml-language-server" --stdio
}

# The conformance suite needs a newer Node.js than many systems have, so npm brings one.
test_mcp() {
    local home=$PWD/target/mcp python
    local packages=(@modelcontextprotocol/conformance@0.1.16 @modelcontextprotocol/sdk@1.32.2 node@22)
    python=$(pip_tool mcp 2.3.0 python3) || { skip "mcp: the client can't be had from PyPI"; return; }
    mkdir -p "$home"
    if ! install_deb npm || { ! cmp -s <(echo "${packages[*]}") "$home/installed" &&
        ! npm install --silent --prefix "$home" --no-audit --no-fund --no-package-lock --loglevel=error "${packages[@]}" >&2; }; then
        skip "mcp: the conformance suite can't be had from npm"
        "$python" scripts/mcp-test.py
        return
    fi
    echo "${packages[*]}" > "$home/installed"
    cp scripts/mcp-bridge.mjs "$home/"
    "$python" scripts/mcp-test.py "$home/node_modules/.bin/node" "$home"
}

# Several: each in a process of its own, so that one run finds what is wrong with any.
if (($# != 1)); then
    if (($# == 0)); then set -- rust python javascript go java openfeature protocols openapi editors mcp; fi
    failed=0
    for language; do
        scripts/clients-test.sh "$language" || { echo "clients-test.sh: FAILED $language" >&2; failed=1; }
    done
    exit "$failed"
fi
printf -- '-- %s\n' "$1"
"test_$1"
