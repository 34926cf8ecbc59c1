#!/bin/sh
# web.sh: the page of infer_moe -m web: tests/web.py talks to its server over sockets, and drives the page in headless chromium where there is
# one. Start it from the repository root after `make train_moe infer_moe`.
#   sh tests/web.sh [-v] [-p FOLDER]     -v: print every check; -p: keep pictures of the page
command -v python3 > /dev/null || { echo "skip web       no python3: the server was not tested"; echo "0 passed, 0 failed"; exit 0; }
exec python3 tests/web.py "$@"
