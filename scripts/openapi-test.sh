#!/usr/bin/env bash
# Clients that are generated from the OpenAPI document of a node of CONCORD_BIN, by the commands of
# docs/guides/generated-clients.md as they stand there. They are compiled, and a program for each language in
# clients/generated runs a batch, lists with a filter, and gets a 404.
#
#   scripts/openapi-test.sh            all languages
#   scripts/openapi-test.sh go java    these, of go, java, python, typescript, php, ruby, csharp
#
# What they need is installed, for the most part under target. A language that can't be had is skipped, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

CONCORD_BIN=$(realpath "${CONCORD_BIN:-target/debug/concord}")
# Of programs in Java that run once, most of the time is that of the compiler.
quick_java=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC)
guide=$PWD/docs/guides/generated-clients.md programs=$PWD/clients/generated home=$PWD/target/openapi
skip() { echo "openapi-test.sh: SKIPPED $*" >&2; }
fail() { echo "openapi-test.sh: FAILED $*" >&2; return 1; }

# run_of_guide PATTERN: runs the one command of the guide that the pattern fits, in $home.
run_of_guide() {
    local command
    command=$(grep -E -- "$1" "$guide") || fail "the guide has no command of $1"
    (cd "$home" && eval "$command") > "$home/generate.log" 2>&1 || { cat "$home/generate.log" >&2; return 1; }
}

# generate GENERATOR FOLDER: a client by OpenAPI Generator.
generate() {
    rm -rf "${home:?}/$2"
    JAVA_TOOL_OPTIONS="${quick_java[*]}" run_of_guide "^openapi-generator-cli .* -g $1( |\$)"
    [[ -d $home/$2 ]] || fail "the guide's command for $1 writes no $2"
}

# The package brings a program in Java.
find_generator() {
    local command
    install_deb java default-jre-headless && command=$(pip_tool openapi-generator-cli 7.26.0 openapi-generator-cli) || return 1
    PATH=${command%/*}:$PATH
}

test_go() {
    if ! install_deb go golang-go || [[ $(printf 'go1.23\n%s\n' "$(go env GOVERSION)" | sort -V | head -n 1) != go1.23 ]]; then
        skip "go: there is no Go 1.23 or later"
        return
    fi
    generate go go-client
    mkdir "$home/go-client/program"
    cp "$programs/program.go" "$home/go-client/program/"
    cd "$home/go-client"
    go mod download > "$home/go.log" 2>&1 || { cat "$home/go.log" >&2; skip "go: the modules can't be had from the proxy for Go modules"; return; }
    [[ -z $(gofmt -l program) ]] || fail "program.go is not formatted"
    go vet . ./program
    go run ./program
}

test_java() {
    local client=$home/java-client
    if ! { install_deb javac default-jdk-headless && install_deb mvn maven; }; then
        skip "java: there is no JDK, or no Maven"
        return
    fi
    generate java java-client
    if ! (cd "$client" && MAVEN_OPTS="${quick_java[*]}" mvn --batch-mode --no-transfer-progress compile dependency:build-classpath -DincludeScope=compile \
        -Dmdep.outputFile=target/classpath) > "$home/maven.log" 2>&1; then
        cat "$home/maven.log" >&2
        grep -qE 'Could not transfer|Unknown host' "$home/maven.log" || return 1
        skip "java: the packages can't be had from Maven Central"
        return
    fi
    local path
    path=$client/target/classes:$(cat "$client/target/classpath")
    java "${quick_java[@]}" -cp "$path" "$programs/Program.java"
}

test_python() {
    local generator
    generator=$(pip_tool openapi-python-client 0.29.1 openapi-python-client) || { skip "python: the generator can't be had from PyPI"; return; }
    rm -rf "$home/concord_api"
    PATH=${generator%/*}:$PATH run_of_guide '^openapi-python-client '
    # It says what it leaves out: the page of metrics, which is no JSON.
    if grep '^WARNING' "$home/generate.log" | grep -v 'GET /metrics'; then fail "python: the generator leaves something out"; fi
    PYTHONPATH=$home "${generator%/*}/python" "$programs/program.py"
}

test_typescript() {
    local packages=(openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 @types/node@20.19.25) client=$home/typescript-client
    install_deb npm || { skip "typescript: there is no npm"; return; }
    mkdir -p "$client"
    if ! cmp -s <(echo "${packages[*]}") "$client/installed"; then
        echo '{"private": true, "type": "module"}' > "$client/package.json"
        (cd "$client" && npm install --silent --no-audit --no-fund --no-package-lock --loglevel=error "${packages[@]}") >&2 ||
            { skip "typescript: the packages can't be had from npm"; return; }
        echo "${packages[*]}" > "$client/installed"
    fi
    cp "$programs/program.ts" "$client/"
    rm -f "$client/concord.d.ts"
    PATH=$client/node_modules/.bin:$PATH run_of_guide '^openapi-typescript '
    (cd "$client" && node_modules/.bin/tsc --strict --target es2022 --module nodenext --lib es2022,dom --types node program.ts)
    node "$client/program.js"
}

test_php() {
    if ! { install_deb php php-cli && php_library GuzzleHttp guzzlehttp-guzzle && php_extension mbstring; }; then
        skip "php: there is no PHP, or it lacks Guzzle or mbstring"
        return
    fi
    generate php php-client
    php "$programs/program.php" "$home/php-client"
}

test_ruby() {
    if ! { install_deb ruby && ruby_library typhoeus && ruby_library marcel; }; then
        skip "ruby: there is no Ruby, or not the gems typhoeus and marcel"
        return
    fi
    generate ruby ruby-client
    ruby -I "$home/ruby-client/lib" "$programs/program.rb"
}

test_csharp() {
    if ! command -v dotnet > /dev/null; then
        skip "csharp: there is no SDK of .NET"
        return
    fi
    generate csharp csharp-client
    dotnet build --nologo --verbosity quiet "$home/csharp-client"
}

# php_library FOLDER PACKAGE, php_extension NAME, ruby_library GEM: the language has it, or the system's packages.
php_library() { [[ -e /usr/share/php/$1/autoload.php ]] || install_deb "$1 for PHP" "php-$2"; }
php_extension() { [[ -n $(php -r "echo phpversion('$1');") ]] || install_deb "$1 for PHP" "php-$1"; }
ruby_library() { ruby -e "require '$1'" 2> /dev/null || install_deb "$1 for Ruby" "ruby-$1"; }

mkdir -p "$home"
# It ends when its standard input is closed.
coproc DEMO { exec "$CONCORD_BIN" demo --nodes 1 --no-sample --output json 2> "$home/demo.log"; }
# shellcheck disable=SC2034  # the redirection below names it
demo=$DEMO_PID demo_input=${DEMO[1]}
trap 'exec {demo_input}>&-; wait "$demo" || true' EXIT
if ! read -r -t 120 where <&"${DEMO[0]}"; then
    cat "$home/demo.log" >&2
    fail "the demo does not say where its node is"
fi
CONCORD_URL=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["urls"][0])' "$where")
CONCORD_API_KEY=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["key"])' "$where")
export CONCORD_URL CONCORD_API_KEY
"$CONCORD_BIN" openapi > "$home/openapi.json"

if (($# == 0)); then set -- python typescript go java php ruby csharp; fi
failed=0 generator=unknown
for language; do
    if [[ $language != @(python|typescript) ]]; then
        if [[ $generator == unknown ]]; then generator=none; if find_generator; then generator=found; fi; fi
        if [[ $generator == none ]]; then
            skip "$language: OpenAPI Generator can't be had from PyPI, or there is no Java"
            continue
        fi
    fi
    # In a shell of its own, which its first error ends.
    "test_$language" &
    wait $! || { echo "openapi-test.sh: FAILED $language" >&2; failed=1; }
done
((failed == 0))
