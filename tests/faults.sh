#!/bin/sh
# faults.sh: what a run survives (docs/reliability.md). Calls of the operating system fail at every place, programs are killed at every
# place, files of a checkpoint are damaged at every place. After each: the exit code is one of the table, the next start ends with the
# same bits as a run without faults, best/ and the model at the top are those of that run, and no temporary file remains.
# Start it from the repository root after `make train_moe infer_moe`. Needs Linux with glibc, and a C compiler.
#   sh tests/faults.sh [-l] [-k]     -l: every place (`make faults`; a quarter of an hour); else some of them (`make test`)
#                                    -k: keep the folder of the runs
set -u
root=$(pwd)
long=0 keep=0
for word; do case $word in -l) long=1 ;; -k) keep=1 ;; *) echo "$0: no option $word"; exit 2 ;; esac; done
work=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) || exit 1         # in memory, if possible: a run syncs 40 files
cd "$work" || exit 1
clean() { cd / && if [ "$keep" = 1 ]; then echo "kept: $work"; else rm -rf "$work"; fi; }
trap clean EXIT
trap 'exit 130' INT TERM
LC_ALL=C OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= GOMP_SPINCOUNT=10000
export LC_ALL OMP_NUM_THREADS CUDA_VISIBLE_DEVICES GOMP_SPINCOUNT
train=$root/train_moe infer=$root/infer_moe

failed=0 cases=0
verdict() { cases=$((cases + 1)); [ "$1" = 0 ] || { failed=$((failed + 1)); echo "FAIL faults    $2"; }; }
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
    cp -r "$name" "$name.4"; rm -rf "$name.4/state/step-00000006"
}
reference one "$train" $options
reference two "$train" $options -ng 2 -dv cpu
reference words "$train" $options -tk 300
cp -r one eight; calm "$train" -o eight -y 1 -x 8
"$infer" one -n 20 -s 5 -i 'static ' > text 2> said

# same A B: A is in the state of B, of step $3: weights, optimizer, best/, top; and holds no temporary file.
same() {
    why=
    cmp -s "$1/state/step-0000000$3/model.safetensors" "$2/state/step-0000000$3/model.safetensors" || why="other weights"
    cmp -s "$1/state/step-0000000$3/optimizer.safetensors" "$2/state/step-0000000$3/optimizer.safetensors" || why="$why, other state"
    cmp -s "$1/best/model.safetensors" "$2/best/model.safetensors" || why="$why, other best/"
    [ "$1/model.safetensors" -ef "$1/state/step-0000000$3/model.safetensors" ] || why="$why, a stale top"
    for file in "$1"/.tmp* "$1"/*.tmp* "$1"/state/.tmp* "$1"/best/*.tmp*; do [ ! -e "$file" ] || why="$why, $file remains"; done
    [ -z "$why" ]
}

# ---- one call fails ------------------------------------------------------------------------------------------------------------

hits=0 codes=
# broken FAULT CODES COMMAND: runs it with the fault in the run `o`; false: there is no such call any more.
broken() {
    fault=$1 allowed=$2; shift 2
    rm -f hit
    timeout -s KILL 60 env FAULT=$fault FAULT_HIT=hit LD_PRELOAD="$work/faults.so" "$@" > said 2>&1
    got=$?
    [ -e hit ] || return 1
    hits=$((hits + 1))
    case " $allowed " in *" $got "*) ;; *) verdict 1 "$fault: exit code $got, not $allowed: $* : $(tail -1 said)"; return 0 ;; esac
    [ $got = 0 ] || [ $got = 137 ] || grep -q '^error: ..' said || verdict 1 "$fault: exit code $got without a message: $*"
}
# fails NAME PREPARED CALLS STEP COMMAND: CALLS fail one after the other, every STEP-th, in a run that begins as a copy of PREPARED (-: as
# nothing). Then the command runs again, without a fault.
fails() {
    name=$1 prepared=$2 calls=$3 step=$4 before=$hits; shift 4
    for call in $calls; do
        what=${call#*:} call=${call%%:*} at=1
        case $call in malloc) allowed="0 7" ;; *) allowed="0 3 4 5" ;; esac
        case $what in kill*) allowed=137 ;; esac
        while :; do
            rm -rf o; [ "$prepared" = - ] || cp -r "$prepared" o
            broken "$call:$at:$what" "$allowed" "$@" -o o || break
            if [ $got = 0 ]; then same o "$name" 6; verdict $? "$call:$at:$what: exit code 0, but$why: $*"; fi
            "$@" -o o > said 2>&1; code=$?
            [ $code = 0 ] && same o "$name" 6
            verdict $? "$call:$at:$what ($got): the next start ($code)${why:+:$why}: $(grep -v '^warn' said | tail -1)"
            at=$((at + step))
        done
    done
    total "$name from $prepared, $calls: $((hits - before)) places"
}
if [ $long = 1 ]; then few=1 some=1 many=1; else few=7 some=31 many=211; fi
errors="write:EIO write:ENOSPC write:short write:EINTR fsync:EIO rename:EIO link:EPERM link:EIO mkdir:ENOSPC open:EMFILE open:EIO opendir:EIO close:EIO flush:ENOSPC"
fails one - "$errors" $few "$train" $options -x 6 -y 1
fails one one.4 "$errors" $few "$train" -y 1
fails two two.4 "$errors" $few "$train" -y 1 -ng 2
fails words - "$errors" $few "$train" $options -tk 300 -x 6 -y 1
fails one - "malloc:ENOMEM" $many "$train" $options -x 6 -y 1
fails one one.4 "malloc:ENOMEM" $many "$train" -y 1
fails two two.4 "malloc:ENOMEM" $many "$train" -y 1 -ng 2
# and everything after it, too: a disk that stays full, a broken one
fails one - "write:ENOSPC+ fsync:EIO+ rename:EIO+ any:EIO+" $some "$train" $options -x 6 -y 1

# Text is generated, or a file measured, or the program says why not.
generates() {                           # generates CALLS STEP COMMAND
    calls=$1 step=$2 before=$hits; shift 2
    "$@" > right 2> said
    for call in $calls; do
        what=${call#*:} call=${call%%:*} at=1
        case $call in malloc) allowed="0 7" ;; *) allowed="0 3 4 5" ;; esac
        while rm -f hit; timeout -s KILL 60 env FAULT=$call:$at:$what FAULT_HIT=hit LD_PRELOAD="$work/faults.so" "$@" > text 2> said; got=$?; [ -e hit ]; do
            hits=$((hits + 1)) at=$((at + step))
            case " $allowed " in *" $got "*) bad=0 ;; *) bad=1 ;; esac
            [ $got != 0 ] || cmp -s text right || bad=1
            [ $got = 0 ] || grep -q '^error: ..' said || bad=1
            verdict $bad "$call:$at:$what: exit code $got: $* : $(tail -1 said)"
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
fails one - "rename:kill rename:killed link:killed any:kill" $few "$train" $options -x 6 -y 1
fails one one.4 "rename:kill rename:killed link:killed any:kill" $few "$train" -y 1
fails two two.4 "rename:killed any:kill" $few "$train" -y 1 -ng 2
fails words - "any:kill" $some "$train" $options -tk 300 -x 6 -y 1
kills=$hits

echo "injected $injected, killed $kills; $cases verdicts, $failed wrong"
echo "$((cases - failed)) passed, $failed failed"
[ $failed = 0 ]
