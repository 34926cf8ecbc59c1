#!/bin/sh
# Puts input.txt, the 1,115,394 characters of tinyshakespeare, next to this script: from a local copy, or from the network.
#   sh data/tinyshakespeare/fetch.sh [--strict]
# MOE_DATA_DIR  folder of local copies, as tinyshakespeare/input.txt (default: shared/data next to the repository)
# `make` runs this, so a missing network is not an error: it prints a message and exits with 0, and the trainer uses the
# project's own text instead. --strict: exits with 1. input.txt is replaced only by the right text.
set -u
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
size=1115394
sha256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
target=$here/input.txt
local_copy=${MOE_DATA_DIR:-$here/../../../shared/data}/tinyshakespeare/input.txt
failure=0
case ${1-} in
    '') ;;
    --strict) failure=1 ;;
    *) echo "usage: $0 [--strict]" >&2; exit 2 ;;
esac

digest() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum < "$1"
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 < "$1"
    else openssl dgst -sha256 -r < "$1"
    fi 2>/dev/null | cut -c 1-64
}
verified() {
    [ -f "$1" ] && [ "$(wc -c < "$1" 2>/dev/null | tr -d ' ')" = "$size" ] && [ "$(digest "$1")" = "$sha256" ]
}
download() {
    if command -v curl >/dev/null 2>&1; then curl -fsSL --connect-timeout 5 --max-time 20 -o "$1" "$url"
    elif command -v wget >/dev/null 2>&1; then wget -q --tries=1 --timeout=10 -O "$1" "$url"
    else return 1
    fi 2>/dev/null
}

verified "$target" && exit 0
temporary=$target.tmp.$$
trap 'rm -f "$temporary"' EXIT
trap 'exit 1' HUP INT TERM

for source in copy network network; do
    if [ $source = copy ]; then verified "$local_copy" && cp "$local_copy" "$temporary"
    else download "$temporary"
    fi && verified "$temporary" && chmod 644 "$temporary" && mv -f "$temporary" "$target" && exit 0
done 2>/dev/null
echo "tinyshakespeare: cannot be fetched: no verified copy at $local_copy, and none from $url" >&2
exit $failure
