#!/usr/bin/env bash
# The packages of a release: scripts/release.sh [DIRECTORY]
#
# Builds the program that is distributed (scripts/package.sh) and writes into target/release-packages, or the directory:
#
#   concord-VERSION-x86_64-linux.tar.gz   the program, manual pages, completions, unit, container file, manifests
#   concord_VERSION_amd64.deb             for Debian and Ubuntu: with the unit, the account and the settings
#   concord-VERSION-kubernetes.yaml       three nodes in Kubernetes
#   concord-VERSION-debug.tar.gz          the symbols of the program, for gdb and perf
#   concord-VERSION.cdx.json              the bill of materials, CycloneDX
#   SHA256SUMS                            `sha256sum --check SHA256SUMS`
#
# The program needs the system's C library, of the version that is printed or later, and nothing else. Built on Debian 12
# that is 2.34, of 2021: Debian 12, Ubuntu 22.04, RHEL 9. It is not static, since the standard library of Rust for musl
# is in no package registry, and musl's resolver does not read nsswitch.conf, by which hosts find names.
#
# CONCORD_BIN names a program to pack in place of the build, PACKAGE_VERSION another version, and COMPRESSION=fast spends
# less time: scripts/release-test.sh needs them. The same program gives the same bytes: all times are that of the last
# commit.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

for tool in dpkg-deb objdump gzip; do
    command -v "$tool" > /dev/null || { echo "release.sh: there is no $tool" >&2; exit 1; }
done
out=${1:-target/release-packages}
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ -z ${CONCORD_BIN:-} ]]; then
    scripts/package.sh
    binary=target/package/concord symbols=target/package/concord.debug
else
    binary=$CONCORD_BIN symbols=
fi
materials=target/package/concord.cdx.json
machine=$(uname -m)
case $machine in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) echo "release.sh: Debian's name of the architecture $machine is not known here" >&2; exit 1 ;;
esac
# The newest version of the C library that a symbol asks for. Read whole: a command that ends early ends a pipe with an
# error.
symbols_text=$(objdump -T "$binary")
glibc=$(grep -o 'GLIBC_[0-9.]*' <<< "$symbols_text" | sort --version-sort --unique | sed -n '$s/GLIBC_//p')
libraries=$(objdump -p "$binary" | sed -n 's/^ *NEEDED *//p')
depends="libc6 (>= $glibc)"
while read -r library; do
    case $library in
        libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | ld-linux-*) ;;
        libgcc_s.so.1) depends+=', libgcc-s1' ;;
        *) echo "release.sh: the program needs $library, which no dependency of the package has" >&2; exit 1 ;;
    esac
done <<< "$libraries"

gzip_level=--best deb_compression=(-Zxz)
if [[ ${COMPRESSION:-best} == fast ]]; then gzip_level=--fast deb_compression=(-Zgzip -z1); fi

say() { printf '%s\n' "$*"; }
# A tarball whose bytes depend on the content alone: archive FILE DIRECTORY NAME
archive() {
    tar --create --directory "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --format=gnu "$3" | gzip --no-name "$gzip_level" > "$1"
}

# What both packages have: made by the program itself, without settings of this shell.
install -D -m 0755 "$binary" "$work/parts/concord"
env -i PATH="$PATH" "$work/parts/concord" man --dir "$work/parts/man"
gzip --no-name --best "$work"/parts/man/*.1
mkdir -p "$work/parts/completions"
for shell in bash zsh fish; do
    env -i PATH="$PATH" "$work/parts/concord" completions "$shell" > "$work/parts/completions/$shell"
done
if [[ -e $materials && -z ${CONCORD_BIN:-} ]]; then
    cp "$materials" "$work/parts/concord.cdx.json"
    cp "$materials" "$out/concord-$version.cdx.json"
fi
sed "s|image: concord:.*|image: concord:$version|" cluster/kubernetes.yaml > "$out/concord-$version-kubernetes.yaml"

tarball() {
    local name=concord-$version-$machine-linux to
    to=$work/$name
    install -D -m 0755 "$work/parts/concord" "$to/bin/concord"
    mkdir -p "$to/share/man/man1" "$to/cluster"
    cp "$work"/parts/man/*.1.gz "$to/share/man/man1"
    cp -R "$work/parts/completions" "$to/share/completions"
    cp LICENSE README.md CHANGELOG.md "$to"
    sed 's|/usr/bin/concord|/usr/local/bin/concord|' cluster/concord.service > "$to/cluster/concord.service"
    cp cluster/concord.env cluster/revoked cluster/tmpfiles.conf cluster/compose.yaml "$to/cluster"
    cp -R cluster/monitoring "$to/cluster/monitoring"
    cp "$out/concord-$version-kubernetes.yaml" "$to/cluster/kubernetes.yaml"
    # From here on the file of the image: it copies the program that is packed and builds nothing.
    sed -n '/^FROM debian/,$p' cluster/Dockerfile \
        | sed 's|^COPY --from=build .*|COPY --chmod=0555 bin/concord /usr/local/bin/concord|' > "$to/Containerfile"
    sed -i "s|image: concord:.*|image: concord:$version|; s|^  build: .*|  build: { context: .., dockerfile: Containerfile }|" \
        "$to/cluster/compose.yaml"
    if [[ -e $work/parts/concord.cdx.json ]]; then cp "$work/parts/concord.cdx.json" "$to"; fi
    archive "$out/$name.tar.gz" "$work" "$name"
}

deb() {
    local to=$work/deb
    install -D -m 0755 "$work/parts/concord" "$to/usr/bin/concord"
    install -D -m 0644 cluster/concord.service "$to/lib/systemd/system/concord.service"
    install -D -m 0644 cluster/concord.env "$to/etc/concord/concord.env"
    install -m 0644 cluster/revoked "$to/etc/concord/revoked"
    install -D -m 0644 cluster/tmpfiles.conf "$to/usr/lib/tmpfiles.d/concord.conf"
    mkdir -p "$to/usr/share/man/man1"
    cp "$work"/parts/man/*.1.gz "$to/usr/share/man/man1"
    install -D -m 0644 "$work/parts/completions/bash" "$to/usr/share/bash-completion/completions/concord"
    install -D -m 0644 "$work/parts/completions/zsh" "$to/usr/share/zsh/vendor-completions/_concord"
    install -D -m 0644 "$work/parts/completions/fish" "$to/usr/share/fish/vendor_completions.d/concord.fish"
    install -D -m 0644 cluster/debian/copyright "$to/usr/share/doc/concord/copyright"
    install -D -m 0644 cluster/debian/README.Debian "$to/usr/share/doc/concord/README.Debian"
    gzip --no-name --best < CHANGELOG.md > "$to/usr/share/doc/concord/NEWS.gz"
    printf 'concord (%s) stable; urgency=medium\n\n  * See NEWS.gz.\n\n -- %s  %s\n' "$version" "$maintainer" \
        "$(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")" \
        | gzip --no-name --best > "$to/usr/share/doc/concord/changelog.gz"
    if [[ -e $work/parts/concord.cdx.json ]]; then
        install -m 0644 "$work/parts/concord.cdx.json" "$to/usr/share/doc/concord/concord.cdx.json"
    fi
    chmod -R u+rwX,go+rX,go-w "$to"
    mkdir "$to/DEBIAN"
    install -m 0755 cluster/debian/postinst cluster/debian/prerm cluster/debian/postrm "$to/DEBIAN"
    printf '%s\n' /etc/concord/concord.env /etc/concord/revoked > "$to/DEBIAN/conffiles"
    (cd "$to" && find . -type f -not -path './DEBIAN/*' -not -path './etc/*' -printf '%P\n' | LC_ALL=C sort \
        | xargs -d '\n' md5sum > DEBIAN/md5sums)
    cat > "$to/DEBIAN/control" << END
Package: concord
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du --apparent-size --block-size=1024 --summarize "$to" | cut -f 1)
Depends: adduser, $depends
Section: database
Priority: optional
Description: replicated service for typed configuration
 Concord stores JSON records of types that have a schema, on three or more nodes
 that agree through Raft, and answers over HTTP. The package has the program,
 which is both the node and the command line, and a unit of systemd for a node.
END
    dpkg-deb --root-owner-group "${deb_compression[@]}" --build "$to" "$out/concord_${version}_$architecture.deb" > /dev/null
}

maintainer='Concord maintainers <maintainers@concord.invalid>'
tarball
deb
if [[ -n $symbols ]]; then
    mkdir "$work/concord-$version-debug"
    cp "$symbols" "$work/concord-$version-debug"
    archive "$out/concord-$version-debug.tar.gz" "$work" "concord-$version-debug"
fi
(cd "$out" && find . -maxdepth 1 -type f -name "concord[-_]${version}[-_.]*" -printf '%P\n' | LC_ALL=C sort \
    | xargs -d '\n' sha256sum > SHA256SUMS)
say "C library: $glibc or later; program: $(stat --format=%s "$binary") bytes"
(cd "$out" && du --apparent-size --human-readable -- *)
