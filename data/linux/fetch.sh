#!/bin/sh
# Puts train.txt and val.txt, sources and documents of the Linux kernel, next to this script: real text, a lot of it.
#   sh data/linux/fetch.sh [MEGABYTES]     of train.txt (default 300; all of a kernel gives about 500)
# The sources are the first of these that is found:
#   $MOE_DATA_DIR/linux/linux-*.tar.xz     local copies (default of MOE_DATA_DIR: shared/data next to the repository)
#   /usr/src/linux-source-*.tar.xz         Debian's package linux-source, installed
#   that package, by apt-get download      where apt-get and dpkg-deb are; about 140 MB
#   linux-6.1.tar.xz of kernel.org         over the network, with its SHA-256
# Which files are picked, and in which order, is a function of their names: the same sources give the same text. One file in a hundred
# goes into val.txt. Needs tar and xz, 2 GB of disk while it works, and one to four minutes. Old files stay until the new ones are complete.
set -eu
LC_ALL=C; export LC_ALL
url=https://cdn.kernel.org/pub/linux/kernel/v6.x/linux-6.1.tar.xz
sha256=2ca1f17051a430f6fed1196e4952717507171acfd97d96577212502703b25deb

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
stop() { echo "data/linux: $*" >&2; exit 1; }
say() { echo "data/linux: $*" >&2; }
has() { command -v "$1" > /dev/null 2>&1; }
[ $# -le 1 ] || { echo "usage: $0 [MEGABYTES]" >&2; exit 2; }
megabytes=${1:-300}
case $megabytes in ''|*[!0-9]*|0*) echo "usage: $0 [MEGABYTES], a whole number from 1; found '$megabytes'" >&2; exit 2 ;; esac
for tool in tar xz awk find; do has $tool || stop "needs $tool, which is not installed"; done
work=$here/fetch.tmp.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work" || stop "cannot write to $here"

download() {                            # download URL FILE
    if has curl; then curl -fL --connect-timeout 10 --progress-bar -o "$2" "$1"
    elif has wget; then wget -q --tries=2 --timeout=30 -O "$2" "$1"
    else say "needs curl or wget to download"; return 1
    fi
}
digest() { if has sha256sum; then sha256sum < "$1"; else shasum -a 256 < "$1"; fi | cut -c 1-64; }
newest() { for f; do [ -f "$f" ] && echo "$f"; done | tail -1; }
from_package() {                        # Debian's package of that name names the newest one
    has apt-get && has apt-cache && has dpkg-deb || return 1
    package=$(apt-cache depends linux-source 2> /dev/null | sed -n 's/^ *Depends: \(linux-source-[0-9.]*\)$/\1/p' | head -1)
    [ -n "$package" ] || return 1
    say "downloading Debian's $package"
    (cd "$work" && apt-get -q download "$package" > apt.log 2>&1) || { say "apt-get: $(tail -1 "$work/apt.log")"; return 1; }
    dpkg-deb -x "$work/$package"_*.deb "$work/package" && rm -f "$work"/*.deb
}
from_network() {
    say "downloading $url"
    download "$url" "$work/linux.tar.xz" || return 1
    [ "$(digest "$work/linux.tar.xz")" = $sha256 ] || stop "$url: its SHA-256 is $(digest "$work/linux.tar.xz"), expected $sha256"
}

copies=${MOE_DATA_DIR:-$here/../../../shared/data}/linux
archive=$(newest "$copies"/linux-*.tar.xz)
[ -n "$archive" ] || archive=$(newest /usr/src/linux-source-*.tar.xz)
if [ -z "$archive" ] && from_package; then archive=$(newest "$work"/package/usr/src/linux-source-*.tar.xz); fi
if [ -z "$archive" ] && from_network; then archive=$work/linux.tar.xz; fi
[ -n "$archive" ] || stop "no sources: none at $copies/linux-*.tar.xz, no package linux-source, and $url cannot be downloaded"

say "unpacking $archive"
mkdir "$work/sources"
tar -xJf "$archive" --exclude='*asic_reg*' -C "$work/sources" 2> "$work/tar.log" || stop "$archive: $(tail -1 "$work/tar.log")"
cd "$work/sources"
set -- *
[ $# = 1 ] && [ -d "$1/kernel" ] || stop "$archive: expected one folder with the sources of a kernel, found $*"
cd "$1"

# A line for each file that is picked: its place in the order, the split, its bytes, its name. Text of 200 to 400,000 bytes; of drivers,
# sound and architectures only a part, so that one kind of code does not outweigh all others; without register tables that programs wrote (asic_reg).
say "picking files"
find . -type f \( -name '*.[chS]' -o -name '*.rst' -o -name '*.txt' -o -name '*.py' -o -name '*.sh' \) -size +0 ! -name '*[ 	
]*' -exec wc -c {} + | sed -n 's|^ *\([0-9][0-9]*\) \./\(.*\)$|\1 \2|p' | awk '
    BEGIN {
        for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i
        split("kernel mm fs net lib ipc security init block crypto include tools Documentation virt rust samples scripts", names, " ")
        for (i in names) share[names[i]] = 1
        share["sound"] = 0.5; share["drivers"] = 0.62; share["arch"] = 0.7
        PRIME = 2147483647
    }
    function number(text, h,   i) {     # in [0,1), a hash of the text
        for (i = 1; i <= length(text); i++) h = (h * 69069 + code[substr(text, i, 1)]) % PRIME
        for (i = 0; i < 4; i++) h = (h * 48271 + 11) % PRIME
        return h / PRIME
    }
    $1 >= 200 && $1 <= 400000 {
        split($2, part, "/")
        if (number($2, 1) < share[part[1]]) printf "%.9f %s %d %s\n", number($2, 2), number($2, 3) < 0.01 ? "val" : "train", $1, $2
    }' | sort > "$work/picked"
[ -s "$work/picked" ] || stop "$archive: no file in it is one to be picked"
awk -v most="$megabytes" '
    { bytes = $3 + length($4) + 10 }
    $2 == "val" { print $4 > "val.list"; next }
    train + bytes <= most * 1000000 { train += bytes; print $4 > "train.list" }' "$work/picked"

# Every file begins with its name. Bytes that are no UTF-8 are dropped, where iconv is installed.
text() { if has iconv; then iconv -c -f UTF-8 -t UTF-8; else cat; fi; }
for split in train val; do
    [ -s $split.list ] || stop "$megabytes MB: no file fits into $split.txt"
    say "writing $split.txt"
    xargs awk 'FNR == 1 { print "\n// FILE " FILENAME } { print }' < $split.list | text > "$work/$split.txt" || [ -s "$work/$split.txt" ]
done
cd "$here"
mv -f "$work/train.txt" "$work/val.txt" "$here"
say "train.txt $(wc -c < train.txt) bytes, val.txt $(wc -c < val.txt) bytes, from $(basename "$archive")"
