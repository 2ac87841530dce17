#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the README's two commands in a Debian 12 that has nothing but its base system, from a
# clean clone of HEAD. Needs root (debootstrap, chroot, mount).
set -euo pipefail
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
[ "$(id -u)" = 0 ] || { echo "fresh-test needs root: debootstrap and chroot" >&2; exit 1; }
chroot=$(mktemp -d /var/tmp/vroom-fresh.XXXXXX)
chmod 755 "$chroot" # the suite runs jobs as another user, too

finish() {
    for dir in dev/shm dev/pts dev proc sys; do
        mountpoint -q "$chroot/$dir" && umount -l "$chroot/$dir"
    done
    rm -rf --one-file-system "$chroot"
}
trap finish EXIT

# The archive that this machine's own packages come from.
mirror=$(apt-cache policy base-files | awk '$2 ~ /^(https?|file):/ && $3 ~ /\/main$/ { print $2; exit }')
echo "== debootstrap"
debootstrap --variant=minbase bookworm "$chroot" "$mirror" > "$chroot.log" 2>&1 ||
    { tail -5 "$chroot.log" >&2; exit 1; }
rm -f "$chroot.log"
echo "deb $mirror bookworm main" > "$chroot/etc/apt/sources.list"
cp /etc/resolv.conf "$chroot/etc/" 2> /dev/null || true
# And whom this machine trusts for the package index.
cp /etc/ssl/certs/ca-certificates.crt "$chroot/etc/index.crt" 2> /dev/null ||
    touch "$chroot/etc/index.crt"

mount -t proc proc "$chroot/proc"
mount -t sysfs sys "$chroot/sys"
mount --bind /dev "$chroot/dev"
mount -t devpts devpts "$chroot/dev/pts" 2> /dev/null || true
mount -t tmpfs shm "$chroot/dev/shm"

git clone -q "$root" "$chroot/vroom"
inside() {
    chroot "$chroot" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 PIP_CERT=/etc/index.crt \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$1"
}
# A clone needs git, and one types make: all that a person has before the first command.
inside 'apt-get -qq update && apt-get -qq install -y --no-install-recommends make git > /dev/null 2>&1'
for target in demo test; do
    echo "== make $target"
    inside "cd /vroom && make $target"
done
