#!/bin/sh
# smoe.sh: smoe.c builds alone, without a warning, and computes what train_moe computes. Start it from the
# repository's root after `make train_moe`. The text is this repository's documents.
set -u
passed=0 failed=0
verdict() {                             # verdict RESULT WHAT: RESULT 0 is good
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok   smoe  $2"
    else failed=$((failed + 1)); echo "FAIL smoe  $2"; fi
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
text=$work/text
LC_ALL=C CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1
export LC_ALL CUDA_VISIBLE_DEVICES OMP_NUM_THREADS
cat docs/*.md | head -c 40000 > "$text"         # the validation takes much of the time

for cc in gcc clang; do
    if ! command -v $cc > /dev/null; then echo "skip smoe  no $cc"; continue; fi
    for omp in -fopenmp ""; do
        [ -z "$omp" ] || echo 'int main(void) { return 0; }' | $cc $omp -x c - -o "$work/probe" 2> /dev/null || continue
        $cc -std=c11 -Wall -Wextra -pedantic -Werror -O3 $omp smoe.c -o "$work/$cc" -lm
        verdict $? "$cc $omp builds it without a warning"
    done
done

# build SIZES FLAGS...: as it is, or with other sizes
build() { sizes=$1; shift; ${CC:-cc} -std=c11 "$@" ${sizes:+"-DSIZES=$sizes"} smoe.c -o "$work/smoe" -lm; }
openmp=-fopenmp
build "" $openmp 2> /dev/null || openmp=

# Loss and norm of every step, and the loss of the validation: what smoe prints, and train_moe's log.jsonl.
printed() { sed -n -e 's/^step.* loss \([0-9.]*\) .*norm \([0-9.]*\).*/\1 \2/p' -e 's/^val loss \([0-9.]*\).*/\1 0/p' "$1"; }
logged() { sed -n -e 's/.*"step",.*"loss": \([^,]*\), "norm": \([^,]*\),.*/\1 \2/p' -e 's/.*"val",.*"loss": \([^,]*\), "bits.*/\1 0/p' "$1"; }
compare() {                             # compare WHAT SIZES OPTIONS-OF-TRAIN_MOE...
    what=$1 sizes=$2; shift 2
    build "$sizes" -O3 $openmp && "$work/smoe" "$text" 5 > "$work/a" &&
    ./train_moe -i "$text" -o "$work/out" -y 0 -dv cpu-f32 -wo adamw -l 1e-3 -k cosine -u 50 -q 0.1 -c 0.1 -ra 0.01 -x 5 -s 0 -nt 0 "$@" > "$work/b" 2>&1 &&
    printed "$work/a" > "$work/an" && logged "$work/out/log.jsonl" > "$work/bn" &&
    paste "$work/an" "$work/bn" | awk '
        function far(a, b) { return a > b ? a - b : b - a }
        !(NF == 4 && far($1, $3) <= 2e-6 && far($2, $4) <= 1e-5 * $4 + 5e-6) { print "     smoe.c " $1, $2 ", train_moe " $3, $4; bad = 1 }
        END { exit bad || NR != 6 }'
    verdict $? "$what: 5 losses and the validation's within 2e-6 of train_moe's, norms within 1e-5"
}
compare "default sizes" "" -e m4:z1
compare "other sizes" "L=3,C=96,HEADS=2,E=5,F=40,A=1,B=4,T=33" -e m3:c96h2e5f40z1 -b 4 -t 33
compare "eight attention experts" "L=2,C=64,HEADS=4,E=4,F=32,A=8,B=8,T=64" -e m2:c64h4e4f32a8z1 -b 8 -t 64

if build "L=2,C=32,HEADS=2,E=4,F=16,A=4,B=2,T=16" -g -O1 -fsanitize=address,undefined -fno-sanitize-recover 2> /dev/null; then
    head -c 3000 "$text" > "$work/short"
    "$work/smoe" "$work/short" 60 > "$work/a" 2>&1; verdict $? "no report of the sanitizers in 60 steps, over an epoch's end"
    "$work/smoe" "$work/short" 0 > "$work/a" 2>&1; verdict $? "nor in none"
else echo "skip smoe  no sanitizers"; fi
"$work/smoe" > "$work/a" 2>&1; [ $? = 2 ] && grep -q usage "$work/a"; verdict $? "without a file it says how it is used"
"$work/smoe" "$work/short" 4x > "$work/a" 2>&1; [ $? = 2 ] && grep -q usage "$work/a"; verdict $? "steps that are no number are refused"
"$work/smoe" "$work/probe/none" > "$work/a" 2>&1; [ $? = 2 ]; verdict $? "a missing file is refused"
head -c 20 "$text" > "$work/tiny"; "$work/smoe" "$work/tiny" > "$work/a" 2>&1; [ $? = 3 ] && grep -q "too short" "$work/a"
verdict $? "so is one that is too short"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
