#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Unpacks Debian's kernel, without installing it, into build/vm; prints the directory.
set -euo pipefail
dir=$(cd "$(dirname "$0")/../.." && pwd)/build/vm
package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
[ -n "$package" ] || { echo "no package linux-image-amd64; run apt-get update" >&2; exit 1; }
if [ ! -e "$dir/$package/unpacked" ]; then
    rm -rf "${dir:?}/$package"
    mkdir -p "$dir/$package"
    cd "$dir/$package"
    apt-get -qq download "$package" 2> /dev/null || { echo "cannot download $package" >&2; exit 1; }
    dpkg -x "$package"_*.deb .
    rm "$package"_*.deb
    /sbin/depmod -b . "$(ls lib/modules)"
    touch unpacked
fi
echo "$dir/$package"
