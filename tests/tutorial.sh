#!/bin/sh
# tutorial.sh: runs every command of docs/tutorial.md, in its order, in a copy of the files that git knows. Start it from the repository's root.
#   sh tests/tutorial.sh        short: after `make train_moe infer_moe`, whose programs stand for section 1; training runs get -x 3
#   sh tests/tutorial.sh -f     in full, from the build on: also counts right answers, and the CPU time of all commands
# Commands are the lines indented by four blanks, and the Python of section 6 where a python3 (or one of tests/.venv) has transformers. Added
# to them are only -x 3 (short) and, for the page, -wp 0: a port that is free. The chat is asked what section 5 asks.
set -u
full=0
case ${1:-} in "") ;; -f) full=1 ;; *) echo "$0: no option $1"; exit 2 ;; esac
command -v python3 > /dev/null || { echo "skip tutorial  no python3"; echo "0 passed, 0 failed"; exit 0; }
root=$(pwd) passed=0 failed=0
verdict() {                             # verdict RESULT WHAT: RESULT 0 is good
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok   tutorial  $2"
    else failed=$((failed + 1)); echo "FAIL tutorial  $2"; tail -3 said 2> /dev/null; fi
}
work=$(mktemp -d) || exit 1
page=
trap '[ -z "$page" ] || kill $page 2> /dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
unset MAKEFLAGS MAKELEVEL MFLAGS
LC_ALL=C NO_COLOR=1
export LC_ALL NO_COLOR
git ls-files --cached --others --exclude-standard 2> /dev/null > "$work.list" || find . -type f ! -path './build/*' > "$work.list"
tar -cf - -T "$work.list" 2> /dev/null | tar -xf - -C "$work"; rm "$work.list"
text=data/tinyshakespeare/input.txt     # of this tree, if it is here: nothing is fetched twice
[ ! -f $text ] || cp $text "$work/$text"
[ $full = 1 ] || cp -L train_moe infer_moe "$work"/ 2> /dev/null || { echo "FAIL tutorial  no programs: make train_moe infer_moe"; exit 1; }
cd "$work" || exit 1

# A line for each command, and one for the Python, which goes to the file section6.py.
awk '/^```python/ { print "python section6.py"; python = 1; next } /^```/ { python = 0 } python { print > "section6.py" }
     !python && /^    [a-z.]/ { sub(/^ +/, ""); print }' docs/tutorial.md > commands
[ "$(wc -l < commands)" -ge 12 ]; verdict $? "has $(wc -l < commands | tr -d ' ') commands"
questions='Hello!\nWhat is the capital of Italy?\nMy name is Clara.\nDo you know my name?\n/reset\nWhat is the capital of Italy?\n/quit\n'
serve() {                               # serve COMMAND: the page is there, and Ctrl-C ends its server
    $1 -wp 0 > said 2>&1 & page=$!
    for i in $(seq 600); do grep -q http said || ! kill -0 $page 2> /dev/null && break; sleep 0.1; done
    python3 -c 'import sys, urllib.request; sys.exit(b"<html" not in urllib.request.urlopen(sys.argv[1], timeout=60).read())' \
        "$(grep -o 'http://[0-9.:]*/' said | head -1)" 2>> said
    result=$?
    kill -INT $page; wait $page; page=
    return $result
}
while read -r command; do
    case $command in
    make*) [ $full = 1 ] || continue; $command > said 2>&1 ;;
    "python section6.py")
        for python in "$root"/tests/.venv/*/bin/python python3; do "$python" -c 'import transformers, torch' 2> /dev/null && break; python=; done
        [ -n "$python" ] || { echo "skip tutorial  section 6: no python3 with transformers and torch"; continue; }
        "$python" section6.py > answer 2> said && { [ $full = 0 ] || [ "$(cat answer)" = "$(tail -1 talk | sed "s/^ *//")" ]; } ;;
    *"-m chat"*) printf "$questions" | $command > talk 2> said && [ "$(wc -l < talk)" -ge 5 ] ;;
    *"-m web"*) serve "$command" ;;
    *"-x 0"*) eval "$command" > said 2>&1 < /dev/null ;;
    ./train_moe*) eval "$command $([ $full = 1 ] || echo -x 3)" > said 2>&1 < /dev/null ;;
    *ask.py*) eval "$command $([ $full = 0 ] || echo -m 90)" > said 2>&1; result=$?; [ $full = 0 ] || tail -1 said; [ $result = 0 ] ;;
    *) eval "$command" > said 2>&1 < /dev/null ;;
    esac
    verdict $? "$command"
done < commands
if [ $full = 1 ]; then                  # what the shell's children used: user and system time in minutes and seconds
    times > used
    awk 'NR == 2 { gsub(/[ms]/, " "); s = ($1 * 60 + $2 + $3 * 60 + $4) / 2
                   printf "all commands: %.0f s of two cores\n", s; exit s > 900 }' used
    verdict $? "fifteen minutes of two cores are enough"
else
    python3 data/talk/make.py . && cmp train.jsonl data/talk/train.jsonl && cmp held-out.jsonl data/talk/held-out.jsonl
    verdict $? "data/talk/make.py writes what is in data/talk"
    python3 - <<'END'
import json, sys
lines = {name: [json.loads(line) for line in open(f"data/talk/{name}.jsonl")] for name in ("train", "held-out")}
trained = {m["content"] for r in lines["train"] for m in r["messages"] if m["role"] == "user"}
sys.exit(any(r["messages"][-2]["content"] in trained or r["right"].lower() not in r["messages"][-1]["content"].lower() for r in lines["held-out"]))
END
    verdict $? "no question that is asked was trained on, and the answers given are right ones"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
