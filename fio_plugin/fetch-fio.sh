#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# usage: fetch-fio.sh DIR
# Unpacks and configures the source of exactly the fio that is installed into DIR/fio, from
# the same archive that apt got it from, without touching apt's own lists.
set -euo pipefail
dir=$1
mkdir -p "$dir"
dir=$(realpath "$dir")
version=$(dpkg-query -W -f '${source:Version}' fio 2>/dev/null) || {
    echo "fio is not installed from a package; give its source: make FIO_SRC=/path/to/fio" >&2; exit 1; }

# "500 http://mirror/debian bookworm/main amd64 Packages" -> "deb-src URI SUITE COMPONENT"
apt-cache policy fio | awk '$2 ~ /^(https?|file|ftp|copy):/ && $5 == "Packages" {
    split($3, part, "/"); print "deb-src", $2, part[1], part[2] }' | sort -u > "$dir/sources.list"
[ -s "$dir/sources.list" ] || {
    echo "apt does not know where fio came from; run apt-get update, or give FIO_SRC=" >&2; exit 1; }

mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
apt=(apt-get -q=2 -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
     -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=
     -o APT::Get::List-Cleanup=0)
"${apt[@]}" update
rm -rf "$dir/fio" "$dir"/fio-*/
(cd "$dir" && "${apt[@]}" source "fio=$version")
mv "$dir"/fio-*/ "$dir/fio"
(cd "$dir/fio" && ./configure --disable-native > configure.log 2>&1) || {
    tail -3 "$dir/fio/configure.log" >&2; exit 1; }
rm -rf "$dir/lists" "$dir/cache"
