#!/bin/sh
# The kernels of kernels/cuda, emulated on a CPU: emulate.sh RUN_TESTS [OPERATION...]. Without operations all of group kernels, which takes
# minutes. EMULATOR_SEED=n: threads, copies and products in another order.
tests=$1
shift
[ $# -gt 0 ] || exec "$tests" -d cuda-bf16 -q kernels
status=0
for operation; do OMP_NUM_THREADS=1 "$tests" -d cuda-bf16 -q -k "$operation" kernels || status=1; done
exit $status
