#!/bin/sh
# faults.sh: tests the promises of docs/reliability.md. System calls fail, programs are killed, and files of a checkpoint are damaged, one
# fault per run. After each fault the exit code must be one of the table; the next start must end with the bits of a run without faults,
# including best/ and the model at the top, and leave no temporary file.
# Start it from the repository root after `make train_moe infer_moe`. Needs Linux with glibc, and a C compiler.
#   sh tests/faults.sh [-l] [-k] [-p I/N]     -l: every call (`make faults`; a quarter of an hour of one quiet core); else a sample (`make ci`)
#                                             -k: keep the folder of the runs
#                                             -p: part I of N: every N-th place, to run the parts side by side
set -u
root=$(pwd)
long=0 keep=0 part=1 parts=1
while [ $# -gt 0 ]; do
    case $1 in
        -l) long=1 ;; -k) keep=1 ;;
        -p) shift; part=${1%/*} parts=${1#*/}; [ "$part" -ge 1 ] && [ "$part" -le "$parts" ] || { echo "$0: -p I/N"; exit 2; } ;;
        *) echo "$0: no option $1"; exit 2 ;;
    esac
    shift
done
work=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) || exit 1         # in memory if possible: each run syncs 40 files
cd "$work" || exit 1
clean() { cd / && if [ "$keep" = 1 ]; then echo "kept: $work"; else rm -rf "$work"; fi; }
trap clean EXIT
trap 'exit 130' INT TERM
LC_ALL=C OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= GOMP_SPINCOUNT=10000
export LC_ALL OMP_NUM_THREADS CUDA_VISIBLE_DEVICES GOMP_SPINCOUNT
train=$root/train_moe infer=$root/infer_moe

failed=0 cases=0
verdict() { cases=$((cases + 1)); [ $((cases % 25)) != 0 ] || echo "     faults    $cases so far"; [ "$1" = 0 ] || { failed=$((failed + 1)); echo "FAIL faults    $2"; }; }
total() { echo "ok   faults    $1"; }
skipped() { echo "skip faults    $1"; echo "0 passed, 0 failed"; exit 0; }

${CC:-cc} -O2 -shared -fPIC "$root/tests/faults.c" -o faults.so -ldl 2> /dev/null && ${CC:-cc} -O2 "$root/tests/faults.c" -o tool -ldl 2> /dev/null ||
    skipped "faults.c cannot be built here (it needs glibc)"
LD_PRELOAD=$work/faults.so "$train" --version > /dev/null 2>&1 || skipped "a program with sanitizers cannot be preloaded"

# ---- the runs that others are compared with ------------------------------------------------------------------------------------

cat "$root"/llmc/*/*.c | head -c 6000 > text.txt
head -c 700 "$root/train_moe.c" > val.txt
options="-i text.txt -j val.txt -e m1:c16h2e4k2f16a2x1 -b 2 -t 16 -u 2 -v 2 -s 3 -g 4 -n 2 -d 64 -rb 1e-3 -k constant"
calm() { "$@" > said 2>&1 || { echo "FAIL faults    $* ends with $?: $(tail -1 said)"; echo "0 passed, 1 failed"; exit 1; }; }
reference() {                           # reference NAME COMMAND: NAME: 6 steps; NAME.4: the same run when it had done 4
    name=$1; shift
    calm "$@" -x 6 -o "$name"
    cp -a "$name" "$name.4"; rm -rf "$name.4/state/step-00000006"
}
reference one "$train" $options
reference two "$train" $options -ng 2 -dv cpu
reference shards "$train" $options -ng 2 -dv cpu -z 3
reference four "$train" $(echo "$options" | sed "s/-b 2/-b 1/") -ng 4 -dv cpu -z 3
reference words "$train" $options -tk 300
cp -a words eight; calm "$train" -o eight -y auto -x 8
"$infer" one -n 20 -s 5 -i 'static ' > text 2> said

# same A B STEP: run A has the state of this step, the best/ and the top of run B
same() {
    why=
    cmp -s "$1/state/step-0000000$3/model.safetensors" "$2/state/step-0000000$3/model.safetensors" || why="other weights"
    cmp -s "$1/state/step-0000000$3/optimizer.safetensors" "$2/state/step-0000000$3/optimizer.safetensors" || why="$why, other state"
    cmp -s "$1/best/model.safetensors" "$2/best/model.safetensors" || why="$why, other best/"
    [ "$1/model.safetensors" -ef "$1/state/step-0000000$3/model.safetensors" ] || cmp -s "$1/model.safetensors" "$2/model.safetensors" ||
        why="$why, a stale top"
    [ -z "$why" ]
}
tidy() {                                # no temporary file is in this run
    for file in "$1"/.tmp* "$1"/*.tmp* "$1"/state/.tmp* "$1"/best/*.tmp*; do [ ! -e "$file" ] || why="$why, $file remains"; done
    [ -z "$why" ]
}
# ends FOLDER REFERENCE STEP WHAT: after the command $again, FOLDER equals REFERENCE
ends() {
    why=
    $again > said 2>&1; code=$?
    [ $code = 0 ] && same "$1" "$2" "$3" && tidy "$1"
    verdict $? "$4: the next start ($code)${why:+:$why}: $(grep -v '^warn' said | tail -1)"
}

# ---- one call fails ------------------------------------------------------------------------------------------------------------

hits=0 codes=
# broken FAULT COMMAND: runs the command with this fault and checks its exit code; false: it made fewer calls, and all went well.
broken() {
    fault=$1; shift
    case $fault in *:kill*) allowed=137 ;; malloc*) allowed="0 7" ;; *) allowed="0 3 4 5" ;; esac
    rm -f hit
    timeout -s KILL 60 env FAULT=$fault FAULT_HIT=hit LD_PRELOAD="$work/faults.so" "$@" > text 2> said
    got=$?
    [ -e hit ] || { [ $got = 0 ] || verdict 1 "$fault: exit code $got without a fault: $* : $(tail -1 said)"; return 1; }
    hits=$((hits + 1))
    case " $allowed " in *" $got "*) ;; *) verdict 1 "$fault: exit code $got, not $allowed: $* : $(tail -1 said)"; return 0 ;; esac
    [ $got = 0 ] || [ $got = 137 ] || grep -q '^error: ..' said || verdict 1 "$fault: exit code $got without a message: $*"
}
# fails NAME PREPARED CALLS STEP COMMAND: for each of CALLS, makes call 1, 1 + STEP, 1 + 2 STEP ... (of this part) fail in a run `o` that starts as a copy of
# the folder PREPARED (-: none). Then repeats the command without a fault and compares with the run NAME.
fails() {
    name=$1 prepared=$2 calls=$3 step=$4 before=$hits; shift 4
    for call in $calls; do
        what=${call#*:} call=${call%%:*} at=$((1 + step * (part - 1)))
        while :; do
            rm -rf o; [ "$prepared" = - ] || cp -a "$prepared" o
            broken "$call:$at:$what" "$@" -o o || break
            if [ $got = 0 ]; then same o "$name" 6; verdict $? "$call:$at:$what: exit code 0, but$why: $*"; fi
            again="$* -o o" ends o "$name" 6 "$call:$at:$what ($got)"
            at=$((at + step * parts))
        done
    done
    total "$name from $prepared, $calls: $((hits - before)) places"
}
if [ $long = 1 ]; then few=1 some=1 many=1; else few=11 some=41 many=311; fi
errors="write:EIO write:ENOSPC write:short write:EINTR truncate:EIO fsync:EIO rename:EIO link:EPERM link:EIO mkdir:ENOSPC open:EMFILE open:EIO opendir:EIO close:EIO flush:ENOSPC"
fails one - "$errors" $few "$train" $options -x 6 -y auto
fails one one.4 "$errors" $few "$train" -y auto
fails two two.4 "$errors" $few "$train" -y auto -ng 2
fails shards shards.4 "$errors" $few "$train" -y auto -ng 2
fails shards - "write:ENOSPC truncate:EIO fsync:EIO" $few "$train" $options -x 6 -y auto -ng 2 -dv cpu -z 3
fails four four.4 "write:ENOSPC fsync:EIO rename:EIO open:EMFILE" $few "$train" -y auto -ng 4
fails words - "$errors" $few "$train" $options -tk 300 -x 6 -y auto
fails one - "malloc:ENOMEM" $many "$train" $options -x 6 -y auto
fails one one.4 "malloc:ENOMEM" $many "$train" -y auto
fails two two.4 "malloc:ENOMEM" $many "$train" -y auto -ng 2
# without memory for a copy of what is saved: in pieces, while steps wait
little() {                              # little RANKS OPTIONS: so many ranks of a process have what they need, but not for a copy
    ranks=$1; shift
    "$train" $options "$@" -x 0 > said
    sed -n 's/^|   total  *| *\([0-9.]*\) MB.*/\1/p' said | awk -v ranks=$ranks '{ printf "MemAvailable: %d kB\n", $1 * ranks * 1100 }' > memory
    FAULT_MEMORY=$work/memory LD_PRELOAD=$work/faults.so "$train" $options "$@" -x 0 > said
    grep -q 'pauses while each checkpoint' said; verdict $? "saves in pieces: $(grep snapshot said)"
}
FAULT_MEMORY=$work/memory; export FAULT_MEMORY
little 1
fails one - "write:ENOSPC truncate:EIO fsync:EIO rename:EIO close:EIO any:kill" $few "$train" $options -x 6 -y auto
little 2 -ng 2 -dv cpu -z 3
fails shards shards.4 "write:ENOSPC fsync:EIO any:kill" $few "$train" -y auto -ng 2
little 1
fails one one.4 "malloc:ENOMEM" $many "$train" -y auto
unset FAULT_MEMORY
# permanent faults: a disk that stays full, a broken disk
fails one - "write:ENOSPC+ fsync:EIO+ rename:EIO+ any:EIO+" $some "$train" $options -x 6 -y auto

# infer_moe prints the right text, or exits with a message.
generates() {                           # generates CALLS STEP COMMAND
    calls=$1 step=$2 before=$hits; shift 2
    "$@" > right 2> said
    for call in $calls; do
        what=${call#*:} call=${call%%:*} at=$((1 + step * (part - 1)))
        while broken "$call:$at:$what" "$@"; do
            [ $got != 0 ] || cmp -s text right
            verdict $? "$call:$at:$what: another text: $*"
            at=$((at + step * parts))
        done
    done
    total "infer_moe $calls: $((hits - before)) places"
}
generates "open:EIO open:EMFILE opendir:EIO close:EIO flush:ENOSPC write:EIO" $few "$infer" one -n 20 -s 5 -i 'static ' -v 0
generates "malloc:ENOMEM" $many "$infer" one -n 20 -s 5 -i 'static ' -v 0
generates "open:EIO malloc:ENOMEM" $many "$infer" one -x val.txt -v 0
injected=$hits

# ---- kill -9 -------------------------------------------------------------------------------------------------------------------

hits=0
fails one - "rename:kill rename:killed link:killed any:kill" $few "$train" $options -x 6 -y auto
fails one one.4 "rename:kill rename:killed link:killed any:kill" $few "$train" -y auto
fails two two.4 "rename:killed any:kill" $few "$train" -y auto -ng 2
fails shards shards.4 "any:kill" $few "$train" -y auto -ng 2
fails four four.4 "any:kill" $some "$train" -y auto -ng 4
fails words - "any:kill" $some "$train" $options -tk 300 -x 6 -y auto
random=$((12344 + part))
draw() { random=$(((random * 1103515245 + 12345) & 2147483647)); drawn=$((random / 65536 * 32768 % $1)); }       # drawn: 0 to $1 - 1
before=$hits tries=0
while [ $tries -lt $(((long ? 100 : 6) / parts)) ]; do
    tries=$((tries + 1)); draw 60
    rm -rf o
    "$train" $options -x 6 -y auto -o o > said 2>&1 & process=$!
    sleep 0.0$(printf %02d $((drawn + 5)))
    kill -9 $process 2> /dev/null; wait $process 2> /dev/null
    [ $? = 137 ] || continue            # it was faster
    hits=$((hits + 1))
    again="$train $options -x 6 -y auto -o o" ends o one 6 "killed after $((drawn + 5)) ms"
done
total "one from -, killed at random: $((hits - before)) times"
kills=$hits

# ---- a save is due while the one before is still being written --------------------------------------------------------------------

# late FOLDER OPTIONS: the first save (by then there is memory for its copy) does not end before the file `go` is there. The next is put off; steps go on. Then it is made, of a later
# step; SIGTERM's is of the last step.
rare="$(echo "$options" | sed 's/-v 2 -s 3/-v 1000000000 -s 0/; s/-n 2//') -nb 0"
late() {
    folder=$1; shift; rm -rf go "$folder"
    FAULT=link:1:wait FAULT_GO=$work/go LD_PRELOAD=$work/faults.so "$train" $rare -n 500 -x 1000000000 "$@" -o "$folder" > said 2>&1 & process=$!
    tries=0
    until grep -q 'checkpoint of step 1500 is put off: that of step 500 is still' said || [ $tries -gt 3000 ]; do tries=$((tries + 1)); sleep 0.02; done
    [ ! -e "$folder"/state/step-00001000 ]; verdict $? "$* -n 500: step 1000 is put off: $(tail -1 said)"
    : > go
    tries=0
    until grep -q '"event": "save".*"due": ' "$folder"/log.jsonl || [ $tries -gt 3000 ]; do tries=$((tries + 1)); sleep 0.02; done
    kill -TERM $process; wait $process; code=$?
    last=$(tail -1 "$folder"/main.log | sed 's/s:\([0-9]*\) .*/\1/')
    [ $code = 75 ] && [ -e "$folder/state/step-$(printf %08d "$last")/run.json" ]; verdict $? "$*: stopped ($code) with a checkpoint of step $last: $(ls "$folder"/state | tr '\n' ' ')"
    due=$(sed -n 's/.*"event": "save", "step": \([0-9]*\), "due": \([0-9]*\),.*/\1 \2/p' "$folder"/log.jsonl | head -1)
    [ "${due% *}" -gt "${due#* }" ] && [ $((${due#* } % 500)) = 0 ]; verdict $? "$*: the one that was put off is of a later step: $due"
    "$train" $rare "$@" -x "$last" -o straight > said 2>&1 && "$train" -o "$folder" -y 1 -x "$last" > said 2>&1          # the same steps without a fault
    cmp -s straight/model.safetensors "$folder"/model.safetensors; verdict $? "$*: the same weights: $(tail -1 said)"
    rm -rf straight
}
if [ $part = 1 ]; then late o; late o -ng 2 -dv cpu; fi
total "a save that is due while another is being written: put off"

# ---- two processes, one of them with a fault -------------------------------------------------------------------------------

port=$((20000 + $$ % 10000 / parts * parts + part)) before=$hits    # none is another part's
pair() {                                # pair FAULT OF LEVEL: two processes of one rank; OF (0 or 1) has the fault. Sets code0 and code1.
    port=$((port + parts))
    for i in 0 1; do
        with=; [ $i = $2 ] && with="FAULT=$1 FAULT_HIT=hit LD_PRELOAD=$work/faults.so"
        timeout -s KILL 60 env $with "$train" $options -x 6 -y auto -o o -dv cpu -ng 1 -z $3 -pn 2 -ps 127.0.0.1 -pp $port -pr $i -pt 3 -pw 3 > said.$i 2>&1 &
        eval "process$i=$!"
    done
    wait $process0 2> /dev/null; code0=$?
    wait $process1 2> /dev/null; code1=$?
    sleep 0.1                           # timeout does not wait for a process it killed
}
for fault in any:kill $([ $long = 0 ] || echo any:EIO malloc:ENOMEM); do
    for of in 0 1; do for level in 1 3; do
        case $fault in malloc*) step=$((long ? 60 : 700)) ;; *) step=$((long ? 8 : 90)) ;; esac
        at=$(((long ? 1 : 5) + step * (part - 1))) name=two; [ $level = 1 ] || name=shards
        while :; do
            rm -rf o hit; cp -a $name.4 o
            pair ${fault%:*}:$at:${fault#*:} $of $level
            [ -e hit ] || { [ "$code0 $code1" = "0 0" ]; verdict $? "no $fault $at in process $of, -z $level: exit codes $code0 and $code1"; break; }
            hits=$((hits + 1)) bad=0
            for code in $code0 $code1; do case $code in 0|3|4|5|7|8) ;; 137) [ $fault = any:kill ] || bad=1 ;; *) bad=1 ;; esac; done
            verdict $bad "$fault $at in process $of, -z $level: exit codes $code0 and $code1: $(tail -qn 1 said.0 said.1)"
            again="$train -y auto -ng 2 -o o" ends o $name 6 "$fault $at in process $of, -z $level"
            at=$((at + step * parts))
        done
    done; done
done
# A disk that is full for one process: both go on, the first says why, and a later save succeeds.
at=1 told=0
while [ $at -le $((long ? 6 : 3)) ]; do
    rm -rf o hit
    pair write:$at:ENOSPC 1 3
    hits=$((hits + 1))
    [ -e hit ] && [ "$code0 $code1" = "0 0" ] && same o shards 6; verdict $? "write $at of process 1 finds no space: exit codes $code0 and $code1: $(tail -qn 1 said.0 said.1)"
    ! grep -q 'not saved.*rank 1: .*No space left' said.0 || told=$((told + 1))
    at=$((at + 1))
done
# One process has the memory that the run needs, but not for a copy of what is saved.
little 1 -dv cpu -ng 2
rm -rf o
pair "none:1:EIO FAULT_MEMORY=$work/memory" 1 1
[ "$code0 $code1" = "0 0" ] && grep -q 'steps wait for saves' said.0 && same o two 6
verdict $? "process 1 has no memory for a copy: exit codes $code0 and $code1: $(tail -qn 1 said.0 said.1)"
[ $told -gt 0 ]; verdict $? "rank 0 says why rank 1 could not write: $told of $((at - 1)) times"
total "two processes: $((hits - before)) places"
pairs=$((hits - before))

# ---- power loss: a file is synced before its rename, and its folder after -----------------------------------------------------------

rm -rf o trace; cp -a words.4 o
for run in 1 2; do
    FAULT_TRACE=$work/trace LD_PRELOAD=$work/faults.so "$train" $options -tk 300 -x $((run * 4)) -y auto -o fresh > said 2>&1 || verdict 1 "traced: $(tail -1 said)"
done
awk -v work="$work" '
    function folder(path) { sub("/[^/]*$", "", path); return path }
    function wrong(what) { print what ": " $0 | "cat 1>&2"; bad = 1 }
    index($2, work) != 1 || $2 ~ /\/(lock|main.log|log.jsonl)$/ { next }
    $1 == "create" { dirty[folder($2)] = 1; next }
    $1 == "write"  { dirty[$2] = 1; next }
    $1 == "fsync"  { delete dirty[$2]; delete pending[$2]; syncs++; next }
    $1 == "link"   { if ($2 in dirty) wrong("linked before it was synced"); next }
    $1 == "rename" && $3 !~ /tmp-old/ {
        for (path in dirty) if (path == $2 || index(path, $2 "/") == 1) wrong("renamed before " path " was synced")
        for (path in pending) wrong("before " path " was synced")
        pending[folder($3)] = 1; renames++
    }
    END { for (path in pending) wrong(path " is not synced"); if (renames < 20 || syncs < 2 * renames) bad = 1; print renames + 0, syncs + 0; exit bad }
' trace > said 2>&1
verdict $? "the order of writes, syncs and renames: $(tail -1 said)"
total "renames and syncs in order: $(tail -1 said)"

# ---- damaged files -------------------------------------------------------------------------------------------------------------

flips=0
flip() {                                # flip FILE TIMES: single bits, somewhere
    bits=$(($(./tool size "words/$1") * 8)) tries=0
    while [ $tries -lt $2 ]; do
        tries=$((tries + 1)) flips=$((flips + 1))
        draw $bits
        rm -rf o; cp -a words o
        ./tool flip "o/$1" $drawn || verdict 1 "bit $drawn of $1 cannot be flipped"
        again="$train -o o -y auto -x 8" ends o eight 8 "bit $drawn of $1 flipped"
    done
}
newest=state/step-00000006
each=$(((long ? 1 : 40) * parts))
for many in $newest/run.json=400 $newest/model.safetensors=240 $newest/optimizer.safetensors=240 tokenizer.json=120 tokens.cache=120 \
    config.json=40 log.jsonl=40; do flip "${many%=*}" $((${many#*=} / each)); done
total "single bits flipped: $flips"
cuts=0 place=0
for file in $newest/run.json $newest/model.safetensors $newest/optimizer.safetensors tokenizer.json tokens.cache config.json; do
    bytes=$(./tool size words/$file)
    for left in none 0 1 8 $((bytes / 2)) $((bytes - 1)); do
        place=$((place + 1))
        [ $((place % parts)) = $((part - 1)) ] || continue
        cuts=$((cuts + 1))
        rm -rf o; cp -a words o
        if [ $left = none ]; then rm o/$file; else ./tool cut o/$file $left; fi
        again="$train -o o -y auto -x 8" ends o eight 8 "$file cut to $left"
    done
done
total "files cut or removed: $cuts"

# A run.json without a seal, as older versions wrote it: its damage may go unnoticed, but nothing crashes.
tries=0
while [ $tries -lt $(((long ? 400 : 10) / parts)) ]; do
    tries=$((tries + 1)) flips=$((flips + 1))
    rm -rf o; cp -a words.4 o
    sed 's/, "crc32c": "[0-9a-f]*"}$/}/' words.4/state/step-00000004/run.json > o/state/step-00000004/run.json
    draw $(($(./tool size o/state/step-00000004/run.json) * 8))
    ./tool flip o/state/step-00000004/run.json $drawn
    timeout -s KILL 20 "$train" -o o -y auto -x 5 > said 2>&1; code=$?
    case $code in 0|2|3|4) bad=0 ;; *) bad=1 ;; esac
    verdict $bad "bit $drawn of a run.json without a seal: exit code $code: $(tail -1 said)"
done
total "single bits of a run.json without a seal: $tries"

# ---- two trainers --------------------------------------------------------------------------------------------------------------

rm -rf o said.0
"$train" -i text.txt -j val.txt -e m1:c16h2e4k2f16a2x1 -b 2 -t 16 -x 1000000 -v 1000000 -s 0 -n 1 -o o > said.0 2>&1 & first=$!
tries=0
until grep -qs '^saved step' said.0; do tries=$((tries + 1)); [ $tries -lt 2400 ] || break; sleep 0.05; done
for i in 1 2 3; do
    "$train" -o o -y auto > said 2>&1; code=$?
    [ $code = 2 ] && grep -q 'in use by another trainer' said
    verdict $? "a second trainer on a folder ends with $code: $(tail -1 said)"
done
kill -9 $first; wait $first 2> /dev/null
step=$(($(ls o/state | tail -1 | sed 's/step-0*//') + 1))
"$train" -o o -y auto -x $step > said 2>&1
verdict $? "after the first one was killed, the second resumes: $(tail -1 said)"
total "two trainers on one folder"

echo "calls failed: $((injected + pairs)); killed: $kills; bits flipped: $flips; files cut: $cuts; verdicts: $cases"
echo "$((cases - failed)) passed, $failed failed"
[ $failed = 0 ]
