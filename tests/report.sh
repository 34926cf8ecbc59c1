#!/bin/sh
# report.sh: report.html of small runs in headless chromium: tests/report.js drives cursor, zoom, hiding, comparison. Start it from the
# repository root after `make train_moe`. Without a chromium it says so and ends. BROWSER names one.
#   sh tests/report.sh [-v]     -v: print every check
set -u
root=$(pwd)
skipped() { echo "skip report    $1"; echo "0 passed, 0 failed"; exit 0; }
for b in ${BROWSER:-chromium chromium-browser google-chrome}; do browser=$(command -v "$b") && break; done
[ -n "${browser:-}" ] || skipped "no chromium: the page was not driven (apt install chromium; BROWSER=name)"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
limit=$(command -v timeout > /dev/null && echo "timeout 120")
browse() {                              # browse MILLISECONDS FILE: the page as it is after so much time of its own
    $limit "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --virtual-time-budget="$1" --dump-dom "file://$2" 2> "$work/browser.log"
}
echo '<p id=a></p><script>a.textContent=6*7</script>' > "$work/try.html"
browse 100 "$work/try.html" | grep -q '>42<' || skipped "$browser does not start here: $(grep -v dbus "$work/browser.log" | tail -1)"

echo "     report    two small runs, then their pages in $(basename "$browser")"
cat "$root"/llmc/base/*.c | head -c 60000 > "$work/text.txt"
cd "$work" || exit 1
train() { OMP_NUM_THREADS=1 "$root/train_moe" -i text.txt -e m1:c32h2e4k2f32a2x1 -b 2 -t 32 -s 30 -g 40 "$@" > said 2>&1 || { tail -2 said; echo "FAIL report    no run"; echo "0 passed, 1 failed"; exit 1; }; }
train -x 60 -l 2e-3 -v 10 -o one
train -x 40 -l 1e-2 -v 40 -vs 20 -o two                 # with short validations

# A text as a string of JavaScript that cannot end the script around it.
string() { sed -e 's/[\\"]/\\&/g' -e 's/</\\u003c/g' -e 's/$/\\n\\/' "$1"; }
{
    echo '<!DOCTYPE html><meta charset="utf-8"><body><script>const given = {'
    for part in page=one/report.html other=two/report.html log=two/log.jsonl; do printf '%s: "' "${part%%=*}"; string "${part#*=}"; echo '",'; done
    echo '};'
    cat "$root/tests/report.js"
    echo '</script></body>'
} > drive.html
browse 20000 "$work/drive.html" | sed -n '/<pre id="says">/,/<\/pre>/p' | sed -e '/pre>/d' -e '/<pre/d' -e 's/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' > says
grep -q passed says || { echo "FAIL report    the page was not driven: $(grep CONSOLE browser.log | tail -1)"; echo "0 passed, 1 failed"; exit 1; }

# A page of a run that goes on loads itself again; that of one that has ended does not.
passed=$(sed -n 's/ passed, .*//p' says) failed=$(sed -n 's/.* passed, \([0-9]*\) failed/\1/p' says)
loads() {                               # loads WHAT EXPECTED FILE
    sed 's|</body>|<script>document.documentElement.id = performance.getEntriesByType("navigation")[0].type</script></body>|' "$3" > again.html
    if browse 9000 "$work/again.html" | grep -q "<html[^>]* id=\"$2\""; then passed=$((passed + 1)); echo "ok   $1" >> says
    else failed=$((failed + 1)); echo "FAIL $1" >> says; fi
}
loads "a run that has ended is not loaded again" navigate one/report.html
sed -e "s/^{\"every\":0,\"written\":0/{\"every\":3,\"written\":$(date +%s)/" -e 's/"end":{[^}]*}/"end":null/' one/report.html > live.html
loads "a run that goes on is loaded again" reload live.html

if [ "${1:-}" = -v ]; then grep -v ' passed, ' says; else sed -n 's/^FAIL /FAIL report    /p' says; fi
echo "ok   report    the page in $(basename "$browser"): $passed checks"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
