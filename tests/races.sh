#!/bin/sh
# races.sh: the thread sanitizer over several ranks: the groups of run_tests that have threads and processes, and training with four
# ranks in two processes, which validates, samples, saves, stops on request and resumes. Any report is a failure.
#   sh tests/races.sh FOLDER         FOLDER: of the build, by `make races`
. "$(dirname "$0")/sanitizers.sh"
found='WARNING: ThreadSanitizer'
TSAN_OPTIONS="halt_on_error=0 exitcode=0 second_deadlock_stack=1 log_path=$work/report"
export TSAN_OPTIONS

limit=1800                              # seconds of a group, ten times what the longest takes alone on two cores
for group in messages strangers comm parallel; do
    done=true start=$(date +%s) late=
    timeout $limit "$build/run_tests" -q -s 1 $group > "$work/log" 2>&1 || { [ $? != 124 ] || late=", out of time"; done=false; }
    judge "run_tests -q $group, $(($(date +%s) - start)) s$late" $done
done

cat llmc/*/*.c | head -c 60000 > "$work/text.txt"
port=$((20000 + $$ % 12000))
train="$build/train_moe -i $work/text.txt -dv cpu -e m2:c32h4e4k2f32a4x2 -b 2 -t 32 -v 5 -s 10 -g 8 -n 5 -ng 2 -pn 2 -pp $port -pt 60 -o $work/out"
pair() {                                # pair CODE WHAT OPTIONS...: two processes of two ranks
    code=$1 what=$2 done=true; shift 2
    $train "$@" -pr 0 > "$work/log" 2>&1 & first=$!
    $train "$@" -pr 1 > "$work/log2" 2>&1 & second=$!
    if [ "$code" = 75 ]; then
        tries=0
        until grep -q 'saved step 5' "$work/log" || [ $((tries += 1)) -gt 1200 ]; do sleep 0.1; done
        kill -TERM $second
    fi
    wait $first || [ $? = "$code" ] || done=false
    wait $second || [ $? = "$code" ] || done=false
    first= second=
    judge "four ranks in two processes, $what" $done
}
pair 75 "until a request to stop" -x 100000
pair 0 "resumed" -y 1 -x $(($(ls "$work/out/state" | sed -n '$s/step-0*//p') + 10))
pair 0 "with -rp 1 and the state of Muon" -y 0 -x 12 -rp 1 -wo muon -rb 1e-3 -dr 0.1
pair 0 "without sharding" -y 0 -x 12 -z 0
pair 0 "as two nodes that shard everything" -y 0 -x 12 -z 3 -zn 2
exit $bad
