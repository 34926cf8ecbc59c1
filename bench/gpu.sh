#!/bin/sh
# gpu.sh: measures the figures of one GPU in docs/results.md on the first GPU of this machine, about four minutes on an H200. The tests come
# first; if they fail, nothing is timed.
#   make train_moe infer_moe run_tests bench_moe && sh bench/gpu.sh | tee bench/results/NAME.txt
# See also bench/peers.py (other implementations of the layer), bench/tiles.py (other tiles), bench/scaling.sh (several GPUs).
set -u
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
. "$(dirname -- "$0")/runs.sh"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
echo "# $(git describe --always --dirty 2> /dev/null), $(date -u +%Y-%m-%d)"
./run_tests kernels model gpu decoding ladder soak large > "$work/tests" 2>&1; code=$?
grep FAIL "$work/tests"; tail -1 "$work/tests"
[ $code = 0 ] || exit 1

random_tokens "$work"
tokens="-i $work/train.bin -j $work/val.bin -ng 1 -v 1000000 -s 0 -nb 0 -m 1"

echo; echo "## training, 64 x 1024 tokens a step: median of 20 steps"
for model in d12 m12 m12:e64k8f256; do
    train_until '^s:30 ' "$work/speed/main.log" "$work/said" 300 ./train_moe $tokens -e $model -b 64 -t 1024 -d 65536 -x 1000000 -o "$work/speed" &&
        step_times "$work/speed" | awk -v m=$model '{ printf "%-14s %8.2f ms (%.2f - %.2f) %9.0f tokens/s\n", m, $1, $2, $3, 65536000 / $1 }'
    rm -rf "$work/speed"
done
./bench_moe -d cuda-bf16 -e steps | tail -2

for device in cuda-bf16 cuda-bf16-portable; do echo; echo "## ./bench_moe -d $device -e layers"; ./bench_moe -d $device -e layers | tail -12; done
echo; echo "## ./bench_moe -d cuda-bf16 -e heads"; ./bench_moe -d cuda-bf16 -e heads | tail -12
echo; echo "## attention"; ./bench_moe -d cuda-bf16 -e c2048k8 attention_ | grep 'ms ('
for model in m12 m12:e64k8f256; do echo; echo "## ./bench_moe -d cuda-bf16 -step $model"; ./bench_moe -d cuda-bf16 -step $model | tail -n +7; done
seven="m16:c2048h16e64k8f1024a1,8,4096 -mw 0 -mo bf16"          # OLMoE's shape
echo; echo "## ./bench_moe -d cuda-bf16 -step $seven"; ./bench_moe -d cuda-bf16 -step $seven | tail -n +7

echo; echo "## decoding m12"
./train_moe $tokens -e m12 -x 1 -b 2 -t 1024 -d 2048 -o "$work/m12" > "$work/said" 2>&1 || tail -2 "$work/said"
for n in 1 2 4 8 16; do printf '%2d sequences: ' $n; ./infer_moe "$work/m12" -i "1 2 3" -n 600 -t 0 -s 1 -r $n 2>&1 > /dev/null | tail -1; done

echo; echo "## ./bench_moe -d cuda-bf16 -e decoding"; ./bench_moe -d cuda-bf16 -e decoding | tail -n +7

echo; echo "## the default run, three seeds"
for seed in 1337 1 2; do ./train_moe -ng 1 -sd $seed -o "$work/default$seed" 2>&1 | grep -E 'best val|^time|fingerprint' | sed "s/^/seed $seed: /"; done
