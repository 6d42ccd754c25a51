#!/usr/bin/env bash
# The packages, installed and started: scripts/release-test.sh [--short]
#
# Packs CONCORD_BIN (by default target/package/concord, or else what scripts/release.sh builds) and checks:
#
#   everywhere   checksums; the same bytes twice; the tarball unpacked and run; the Debian package unpacked and its
#                files, modes and scripts looked at; the unit's exposure (scripts/hardening.py); the manifests, also those of
#                the documents, against the published schemas of Kubernetes
#   as root,     the Debian package in a fresh Debian made by debootstrap, with systemd as its first process: it is
#   not --short  installed, keeps its data over restarts, an upgrade and a boot, and leaves nothing when it is purged; the
#                image built by buildah from the container file; the pods of the manifests run on that image, each in a
#                network of its own, with the commands and the environment of the manifests (scripts/pods-test.py)
#
# The first run downloads a Debian system, which takes some minutes and is kept in target/tools.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

short=
case ${1:-} in
    '') ;;
    --short) short=1 ;;
    *) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
binary=${CONCORD_BIN:-target/package/concord}
if [[ ! -x $binary ]]; then
    scripts/package.sh
fi
binary=$(realpath "$binary")
SUITE=bookworm MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
KUBERNETES=1.31
work=$(mktemp -d)
mounted=()
node=
cleanup() {
    if [[ -n $node ]]; then kill "$node" 2> /dev/null || true; fi
    for place in "${mounted[@]}"; do umount "$place" || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

say() { printf -- '-- %s (%d s)\n' "$*" "$SECONDS"; }
fail() { echo "release-test.sh: $*" >&2; exit 1; }
pack() { CONCORD_BIN=$binary COMPRESSION=fast PACKAGE_VERSION=$1 scripts/release.sh "$2" > "$work/pack.log" 2>&1 || { cat "$work/pack.log" >&2; fail "packing failed"; }; }

say "packages"
# A debug build is ten times as large with what debuggers need.
objcopy --strip-all "$binary" "$work/program"
binary=$work/program
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
pack "$version" "$work/new"
architecture=$(dpkg --print-architecture)
deb=$work/new/concord_${version}_$architecture.deb
tarball=$work/new/concord-$version-$(uname -m)-linux.tar.gz
(cd "$work/new" && sha256sum --check --quiet --strict SHA256SUMS)
[[ $(wc -l < "$work/new/SHA256SUMS") == 3 ]] || fail "SHA256SUMS: $(cat "$work/new/SHA256SUMS")"
pack "$version" "$work/again"
cmp "$work/new/SHA256SUMS" "$work/again/SHA256SUMS" || fail "the same program gives other bytes"

say "the tarball"
tar --extract --file "$tarball" --directory "$work"
unpacked=$work/concord-$version-$(uname -m)-linux
for file in bin/concord share/man/man1/concord.1.gz share/man/man1/concord-config-get.1.gz share/completions/bash \
    share/completions/zsh share/completions/fish cluster/concord.service cluster/revoked \
    cluster/tmpfiles.conf cluster/kubernetes.yaml Containerfile LICENSE; do
    [[ -s $unpacked/$file ]] || fail "the tarball has no $file"
done
bash -n "$unpacked/share/completions/bash"
concord=$unpacked/bin/concord
[[ $("$concord" --version) == concord\ * ]] || fail "the program of the tarball does not run"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
peer_port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export CONCORD_API_KEY=the-root-key-of-a-test-0123456789 CONCORD_URL=http://127.0.0.1:$port
CONCORD_NODE_ID=1 CONCORD_DATA_DIR=$work/data CONCORD_API_ADDR=127.0.0.1:$port CONCORD_PEER_ADDR=127.0.0.1:$peer_port \
    CONCORD_CLUSTER_SECRET=the-secret-of-a-test-0123456789 "$concord" serve 2> "$work/node.log" &
node=$!
tries=0
until "$concord" init --member "1=127.0.0.1:$port@127.0.0.1:$peer_port" > /dev/null 2> "$work/init.log"; do
    kill -0 "$node" 2> /dev/null || { cat "$work/node.log" >&2; fail "the node of the tarball ended"; }
    ((tries += 1))
    ((tries < 300)) || { cat "$work/init.log" >&2; fail "the node of the tarball forms no cluster"; }
    sleep 0.2
done
echo '{}' > "$work/schema.json"
"$concord" definition create limits --schema "$work/schema.json" > /dev/null
"$concord" config create limits acme --data '{"plan": "pro"}' > /dev/null
[[ $("$concord" config get limits acme -o jsonpath='{.data.plan}') == *pro* ]] || fail "what was written is not read"
kill "$node"
wait "$node" || fail "the node of the tarball did not end in order"
node=
unset CONCORD_API_KEY CONCORD_URL

say "the Debian package"
if [[ -z $short ]] && command -v lintian > /dev/null; then
    # What is said of a binary package without a source package of Debian is not asked for.
    lintian --fail-on error --suppress-tags bad-distribution-in-changes-file,unstripped-binary-or-object "$deb" \
        > "$work/lintian.log" || { cat "$work/lintian.log" >&2; fail "lintian refuses the package"; }
fi
dpkg-deb --info "$deb" > "$work/info.log"
(mkdir "$work/files" && dpkg-deb --extract "$deb" "$work/files" && cd "$work/files" \
    && dpkg-deb --control "$deb" "$work/control" && md5sum --check --quiet --strict "$work/control/md5sums")
for script in postinst prerm postrm; do sh -n "$work/control/$script"; done
grep -q '^Depends: adduser, libc6 (>= 2\.' "$work/control/control" || fail "the package does not say what it needs"
cmp "$work/program" "$work/files/usr/bin/concord"

say "the unit, the manifests, the compose file"
if python=$(pip_tool PyYAML 6.0.3 python3); then "$python" scripts/hardening.py
else echo "release-test.sh: SKIPPED the rules of cluster/: there is no PyYAML" >&2; fi
if validate=$(pip_tool kubernetes-validate 1.37.0 kubernetes-validate); then
    "$validate" --quiet --strict --kubernetes-version "$KUBERNETES" "$work/new/concord-$version-kubernetes.yaml"
    python3 scripts/docs-test.py --manifests > "$work/pages.yaml"
    [[ -s $work/pages.yaml ]] || fail "no page has a manifest"
    "$validate" --quiet --strict --kubernetes-version "$KUBERNETES" "$work/pages.yaml"
    # A schema that refuses nothing would pass, too.
    sed 's/replicas: 3/replicas: three/' cluster/kubernetes.yaml > "$work/wrong.yaml"
    if "$validate" --strict --kubernetes-version "$KUBERNETES" "$work/wrong.yaml" > /dev/null 2>&1; then
        fail "the schemas of Kubernetes refuse nothing"
    fi
else echo "release-test.sh: SKIPPED the schemas of Kubernetes: there is no kubernetes-validate" >&2; fi

if [[ -n $short ]]; then say "done, the short part"; exit; fi
if ((EUID != 0)); then echo "release-test.sh: SKIPPED the fresh Debian: it takes root" >&2; exit; fi

say "a fresh Debian"
install_deb debootstrap
install_deb systemd-nspawn systemd-container
base=$PWD/target/tools/debian-$SUITE
if [[ ! -e $base.made ]]; then
    rm -rf "$base"
    debootstrap --variant=minbase --include=adduser,dbus,systemd,systemd-sysv "$SUITE" "$base" "$MIRROR" > "$work/base.log" \
        || { tail -n 5 "$work/base.log" >&2; fail "debootstrap failed"; }
    touch "$base.made"
fi
# root NAME: a fresh root, whose changes are thrown away
root() {
    mkdir -p "$work/$1/upper" "$work/$1/work" "$work/$1/root"
    mount -t overlay -o "lowerdir=$base,upperdir=$work/$1/upper,workdir=$work/$1/work" overlay "$work/$1/root"
    mounted=("$work/$1/root" "${mounted[@]}")
}
pack 0.0.9 "$work/old"
root debian
machine=$work/debian/root
mkdir -p "$machine/packages" "$machine/etc/systemd/system/multi-user.target.wants"
cp "$work/old/concord_0.0.9_$architecture.deb" "$machine/packages/old.deb"
cp "$deb" "$machine/packages/new.deb"
cp scripts/release-test-machine.sh "$machine/packages/test.sh"
cat > "$machine/etc/systemd/system/release-test.service" << 'END'
[Unit]
After=multi-user.target
[Service]
Type=idle
ExecStart=/packages/test.sh
[Install]
WantedBy=multi-user.target
END
ln -s ../release-test.service "$machine/etc/systemd/system/multi-user.target.wants/release-test.service"
for part in first second; do
    say "the $part boot"
    echo "$part" > "$machine/packages/part"
    timeout 300 systemd-nspawn --quiet --directory "$machine" --boot --register=no --keep-unit --private-network \
        < /dev/null > "$work/boot.log" 2>&1 || { tail -n 20 "$work/boot.log" >&2; fail "the machine failed"; }
    if [[ $(cat "$machine/packages/$part.status") != 0 ]]; then
        cat "$machine/packages/$part.log" >&2
        fail "the $part boot"
    fi
done

say "the image"
if install_deb buildah; then
    install_deb ip iproute2
    store=(--root "$work/images" --runroot "$work/images-run" --storage-driver vfs)
    base_image=$(sed -n 's/^FROM \(debian:.*\)$/\1/p' cluster/Dockerfile)
    # The registry of images can't be reached everywhere; the fresh Debian stands for the base image.
    buildah "${store[@]}" from --name base scratch > /dev/null
    buildah "${store[@]}" copy --quiet base "$base" / > /dev/null
    buildah "${store[@]}" commit --quiet base "docker.io/library/$base_image" > /dev/null
    buildah "${store[@]}" build --isolation chroot --pull-never --quiet --tag "concord:$version" \
        --file "$unpacked/Containerfile" "$unpacked" > "$work/build.log" 2>&1 \
        || { tail -n 20 "$work/build.log" >&2; fail "the image is not built"; }
    buildah "${store[@]}" from --pull-never --name image "concord:$version" > /dev/null
    user=$(buildah "${store[@]}" inspect --format '{{.OCIv1.Config.User}}' image)
    [[ $user == 10001:10001 ]] || fail "the image runs as $user"
    image=$(buildah "${store[@]}" mount image)
    say "the pods"
    "$python" scripts/pods-test.py "$work/new/concord-$version-kubernetes.yaml" "$image" "$work/pods"
    buildah "${store[@]}" umount image > /dev/null
else echo "release-test.sh: SKIPPED the image and the pods: there is no buildah" >&2; fi
say "done"
