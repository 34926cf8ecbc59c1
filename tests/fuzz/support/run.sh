#!/bin/sh
# run.sh: runs the targets of `make fuzz` and prints a table. Needs build/fuzz/, made by make.
#   sh tests/fuzz/support/run.sh SECONDS [TARGET...]
# Two run at a time; FUZZ_JOBS=1: one. FUZZ_LENGTH: of the longest input (20000); short ones are faster. What libFuzzer collects is kept in
# build/fuzz/kept/corpus, so that the next start goes on from there; tests/fuzz/corpus has what every start begins with. Exit code 1: a crash, a hang of 2 s, or too much memory;
# the input is in build/fuzz/kept/crashes.
set -u
seconds=$1; shift
[ $# -gt 0 ] || set -- $(ls tests/fuzz/*.c | sed 's|.*/||; s|\.c$||')
work=build/fuzz kept=build/fuzz/kept
mkdir -p $kept/crashes $kept/log $kept/corpus
scratch=$(mktemp -d /dev/shm/moe-fuzz-XXXXXX 2> /dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
FUZZ_FOLDER=$scratch
export FUZZ_FOLDER

one() {                                 # one TARGET: a line of the table on stdout; the rest goes to build/fuzz/kept/log
    own=$kept/corpus/$1 seeds= dictionary=
    mkdir -p "$own"
    [ "$1" = tokenizer ] && seeds=tests/reference/tokenizers
    [ -d "tests/fuzz/corpus/$1" ] && seeds="$seeds tests/fuzz/corpus/$1"
    [ -f "tests/fuzz/corpus/$1.dict" ] && dictionary="-dict=tests/fuzz/corpus/$1.dict"
    $work/$1 -max_total_time="$seconds" -timeout=2 -rss_limit_mb=2048 -malloc_limit_mb=600 -max_len="${FUZZ_LENGTH:-20000}" -detect_leaks=0 -print_final_stats=1 \
        -artifact_prefix=$kept/crashes/$1- $dictionary "$own" $seeds > $kept/log/$1 2>&1
    code=$?
    awk -v name="$1" -v code=$code '
        /stat::number_of_executed_units/ { runs = $2 }
        /stat::average_exec_per_sec/ { rate = $2 }
        /stat::peak_rss_mb/ { rss = $2 }
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
        /^fuzz: slowest input/ { slow = $4; memory = $8 }
        END { printf "%-14s %12d %8d %8d %8d %12s %12s %8s\n", name, runs, rate, cov, code != 0, slow == "" ? "-" : slow, memory == "" ? "-" : memory, rss == "" ? "-" : rss }
    ' $kept/log/$1
    [ $code = 0 ] || { grep -E '^(fuzz:|SUMMARY|ERROR|.*ERROR: |.*runtime error)' $kept/log/$1 | head -4 | sed 's/^/    /'; echo "    see $kept/log/$1 and $kept/crashes/$1-*"; }
    return $code
}

printf '%-14s %12s %8s %8s %8s %12s %12s %8s\n' target inputs 'per s' coverage crashes 'slowest, ms' 'peak, MB' 'RSS, MB'
jobs=${FUZZ_JOBS:-2}
[ "$jobs" -le 2 ] || jobs=2
running=
for target; do
    one "$target" > "$scratch/$target.line" & running="$running $!"
    if [ $(echo $running | wc -w) -ge "$jobs" ]; then set -- $running; wait "$1"; shift; running="$*"; fi
done
wait
cat "$scratch"/*.line | awk '{ print } $2 ~ /^[0-9]+$/ && NF == 8 { all += $2; bad += $5; n++ } END { printf "%d targets, %d inputs, %d crashes\n", n, all, bad; exit bad > 0 || n == 0 }'
