# shellcheck shell=bash
# Commands that the scripts need beside cargo. Sourced from the root of the checkout:
#
#   install_deb COMMAND [PACKAGE]       installs PACKAGE from the system's packages unless COMMAND is there
#   pip_tool PACKAGE VERSION COMMAND    prints the path of COMMAND; installs PACKAGE from PyPI where it is missing
#   cargo_tool CRATE VERSION            prints the path of the command CRATE; builds it from crates.io where it is missing
#   test_binary PROFILE                 builds the tests that start processes of the program, and prints their path
#
# All return 1, with the reason on standard error, when the command can't be had. What is not a system's package has a
# directory of its own under target/tools, so that it changes neither the system nor the checkout.

# Scripts that run beside each other install one after the other.
alone() {
    mkdir -p target/tools
    (
        flock 9
        "$@"
    ) 9>> target/tools/lock
}

install_deb() {
    command -v "$1" > /dev/null || alone install_deb_now "$@"
}

install_deb_now() {
    local command=$1 package=${2:-$1} apt=(apt-get)
    ((EUID == 0)) || apt=(sudo apt-get)
    command -v "$command" > /dev/null && return
    if "${apt[@]}" update -qq >&2 && "${apt[@]}" install -y -qq "$package" > /dev/null; then return; fi
    echo "could not install $package, which has $command" >&2
    return 1
}

pip_tool() { alone pip_tool_now "$@"; }

pip_tool_now() {
    local package=$1 version=$2 command=$3
    local home=$PWD/target/tools/$package-$version
    if [[ ! -e $home/installed ]]; then
        mkdir -p "${home%/*}"
        if ! python3 -m venv --clear "$home" >&2; then
            echo "could not install $package: python3 makes no virtual environment" >&2
            return 1
        fi
        if ! "$home/bin/pip" install --quiet --disable-pip-version-check --retries 3 "$package==$version" >&2; then
            echo "could not install $package $version from PyPI" >&2
            return 1
        fi
        touch "$home/installed"
    fi
    echo "$home/bin/$command"
}

cargo_tool() {
    local crate=$1 version=$2
    local home=$PWD/target/tools/$crate-$version
    if [[ ! -x $home/bin/$crate ]] && ! cargo install --quiet --locked --root "$home" "$crate@$version" >&2; then
        echo "could not build $crate $version from crates.io" >&2
        return 1
    fi
    echo "$home/bin/$crate"
}

# With `--workspace`, as scripts/test.sh builds: other features of the dependencies would compile them again.
test_binary() {
    local messages
    if ! messages=$(cargo test --locked --workspace --profile "$1" --test it --no-run --message-format=json); then
        echo "the tests do not build" >&2
        return 1
    fi
    sed -n "\|\"manifest_path\":\"$PWD/Cargo.toml\"|s/.*\"kind\":\[\"test\"\].*\"executable\":\"\([^\"]*\)\".*/\1/p" <<< "$messages"
}
