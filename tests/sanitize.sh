#!/bin/sh
# sanitize.sh: NVIDIA's compute-sanitizer on every kernel, with small cases (run_tests -q). Any report is a failure. Each tool and
# device has a few processes; all run at the same time, split among the GPUs, because they mostly wait for the host. With several
# GPUs the cases are split as well.
#
#   memcheck     accesses outside of allocations, or misaligned      initcheck    reads of memory that was never written
#   racecheck    unordered accesses of a block's threads to shared memory, including (bulk) copies, but not reads by wgmma, for
#                which there is the soak test                        synccheck    barriers that not all threads reach
tools=${*:-memcheck racecheck initcheck synccheck}
command -v compute-sanitizer > /dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not installed"; exit 1; }
logs=build/sanitize && rm -rf $logs && mkdir -p $logs
export CUDA_MODULE_LOADING=LAZY OMP_NUM_THREADS=1
gpus=$(nvidia-smi -L 2> /dev/null | grep -c .)
[ "$gpus" -gt 0 ] || { echo "there is no GPU here"; exit 1; }
gpu=0
watch() {       # watch TOOL DEVICE LOG OPTIONS: of run_tests
    run=$logs/$1-$2-$3 tests=./run_tests
    [ $1 = racecheck ] && tests=${RACE_TESTS:?the build of run_tests for racecheck: make sanitize}
    { CUDA_VISIBLE_DEVICES=$gpu compute-sanitizer --tool $1 --report-api-errors no --error-exitcode 9 $tests -q -s 1 -d $2 $4 > $run.txt 2>&1
      echo $? > $run.code; } &
    gpu=$(((gpu + 1) % gpus))
}
for tool in $tools; do
    for device in cuda-bf16 cuda-bf16-portable cuda-f32; do
        watch $tool $device gpu "gpu decoding comm"
        for part in $(seq $gpus); do watch $tool $device kernels-$part "-p $part/$gpus kernels ladder"; done
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
