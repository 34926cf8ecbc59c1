#!/bin/sh
# Puts enwik8, the first 100,000,000 bytes of an English Wikipedia of 2006 (Hutter Prize), next to this script, split as is usual: the first
# 90 MB are train.txt, the next 5 MB val.txt, the last 5 MB test.txt, which nothing here reads.
#   sh data/enwik8/fetch.sh
# From $MOE_DATA_DIR/enwik8/enwik8 or enwik8.zip (default of MOE_DATA_DIR: shared/data next to the repository), else over the network (36 MB).
# Needs curl or wget, and one of unzip, bsdtar, python3. The SHA-1 is the one published with it.
set -eu
url=https://mattmahoney.net/dc/enwik8.zip
size=100000000
sha1=57b8363b814821dc9d47aa4d41f58733519076b2

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
stop() { echo "data/enwik8: $*" >&2; exit 1; }
say() { echo "data/enwik8: $*" >&2; }
has() { command -v "$1" > /dev/null 2>&1; }
[ $# = 0 ] || { echo "usage: $0" >&2; exit 2; }
work=$here/fetch.tmp.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work" || stop "cannot write to $here"

copies=${MOE_DATA_DIR:-$here/../../../shared/data}/enwik8
text=$work/enwik8 zip=$copies/enwik8.zip
if [ -f "$copies/enwik8" ]; then text=$copies/enwik8
else
    if [ ! -f "$zip" ]; then
        zip=$work/enwik8.zip
        say "downloading $url"
        if has curl; then curl -fL --connect-timeout 10 --progress-bar -o "$zip" "$url"
        elif has wget; then wget -q --tries=2 --timeout=30 -O "$zip" "$url"
        else stop "needs curl or wget to download, or a copy at $copies/enwik8"
        fi || stop "$url cannot be downloaded; a copy at $copies/enwik8 would do"
    fi
    if has unzip; then unzip -p "$zip" enwik8 > "$text"
    elif has bsdtar; then bsdtar -xOf "$zip" enwik8 > "$text"
    elif has python3; then python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("enwik8"))' "$zip" > "$text"
    else stop "needs unzip, bsdtar or python3 to unpack $zip"
    fi || stop "$zip cannot be unpacked"
fi
found=$(wc -c < "$text" | tr -d ' ')
[ "$found" = $size ] || stop "$text: found $found bytes, expected $size"
found=$(if has sha1sum; then sha1sum < "$text"; else shasum -a 1 < "$text"; fi | cut -c 1-40)
[ "$found" = $sha1 ] || stop "$text: its SHA-1 is $found, expected $sha1"
head -c 90000000 "$text" > "$work/train.txt"
tail -c 10000000 "$text" | head -c 5000000 > "$work/val.txt"
tail -c 5000000 "$text" > "$work/test.txt"
mv -f "$work/train.txt" "$work/val.txt" "$work/test.txt" "$here"
say "train.txt, val.txt and test.txt"
