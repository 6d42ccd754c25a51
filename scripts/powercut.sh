#!/usr/bin/env bash
# Power cuts under write load: CUTS=50 SEED=1 scripts/powercut.sh; with encrypted data directories: ENCRYPTED=1
#
# Every fifth cut takes all nodes at once. Real processes of a release build on loop-mounted ext4 volumes; a JSON
# summary is the last line; exits with 1 when an acknowledged write was lost. Needs root; without the right to mount
# it says SKIPPED and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

skip() { echo "powercut.sh: SKIPPED, nothing was tested: $*" >&2; exit 0; }

export CUTS=${CUTS:-50} SEED=${SEED:-1} ENCRYPTED=${ENCRYPTED:-0}
PROFILE=${PROFILE:-release}
for tool in mkfs.ext4 python3 unshare mount; do
    command -v "$tool" > /dev/null || skip "$tool is missing"
done
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
truncate -s 16M "$probe/image"
mkdir "$probe/point"
mkfs.ext4 -q -F "$probe/image"
# shellcheck disable=SC2016  # the inner shell expands it
unshare -m bash -c 'mount -o loop "$1/image" "$1/point" && python3 -c "
import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack(\"I\", 2))" "$1/point"' _ "$probe" 2> /dev/null ||
    skip "no right to mount an ext4 image and shut it down (needs root, a loop device and ext4)"

binary=${POWER_BINARY:-$(test_binary "$PROFILE")}
unshare -m "$binary" --exact chaos::power::power_cuts_lose_nothing_that_was_acknowledged --ignored --nocapture |
    grep --line-buffered -v '^\(running\|test \|$\)'
exit "${PIPESTATUS[0]}"
