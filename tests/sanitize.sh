#!/bin/sh
# sanitize.sh: NVIDIA's compute-sanitizer over every kernel, on small cases (run_tests -q); any report of it is a failure.
# Each tool and device is two processes of their own, all at once, dealt out to the GPUs there are: mostly they wait for the
# host. A few minutes on 16 cores.
#
#   memcheck     accesses outside of allocations, or misaligned      initcheck    reads of memory that nobody has written
#   racecheck    threads of a block that use shared memory without an order between them, and copies, bulk ones too; not
#                what wgmma reads, for which the soak test is there  synccheck    barriers that not all threads reach
tools=${*:-memcheck racecheck initcheck synccheck}
command -v compute-sanitizer > /dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer > /dev/null || { echo "there is no compute-sanitizer here"; exit 1; }
logs=build/sanitize && rm -rf $logs && mkdir -p $logs
export CUDA_MODULE_LOADING=LAZY OMP_NUM_THREADS=1
gpus=$(nvidia-smi -L 2> /dev/null | grep -c .)
turn=0
for tool in $tools; do
    for device in cuda-bf16 cuda-bf16-portable cuda-f32; do
        for groups in kernels "gpu comm ladder"; do
            run=$logs/$tool-$device-${groups%% *}
            [ "$gpus" -gt 1 ] && export CUDA_VISIBLE_DEVICES=$((turn % gpus))
            turn=$((turn + 1))
            tests=./run_tests
            [ $tool = racecheck ] && tests=${RACE_TESTS:?the build of run_tests for racecheck; see make sanitize}
            { compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 $tests -q -s 1 -d $device $groups > $run.txt 2>&1
              echo $? > $run.code; } &
        done
    done
done
wait
bad=0
for code in $logs/*.code; do
    run=${code%.code}
    printf '%-40s %s\n' "$(basename $run)" "$(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' $run.txt | tail -1 | sed 's/^=* //'), $(tail -2 $run.txt | grep passed)"
    [ "$(cat $code)" = 0 ] || { bad=1; grep -m 5 -A 4 '^========= [A-Z][a-z]' $run.txt; tail -3 $run.txt; }
done
exit $bad
