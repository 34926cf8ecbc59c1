#!/bin/bash
# Windows, loading, fine-tuning at OLMoE's shape. One H200, 75 s.
T0=$(date +%s%N); ms() { echo $(( ($(date +%s%N) - T0) / 1000000 )); }; at() { printf "[%6d ms] " "$(ms)"; }
W=/dev/shm; [ "$(df -k --output=avail /dev/shm | tail -1)" -gt 25000000 ] || W=/tmp
W=$W/fam; rm -rf $W; mkdir -p $W/w $W/log
# conversations of the documents' own text, about 1000 bytes an answer
awk 'BEGIN { ORS="" } { gsub(/["\\\t\r]/, " "); buf = buf " " $0; if (length(buf) > 900 + (NR * 37) % 700) {
  print "{\"messages\": [{\"role\": \"user\", \"content\": \"Say more of part " NR "\"}, {\"role\": \"assistant\", \"content\": \"" buf "\"}]}\n"; buf = "" } }' \
  $(ls docs/*.md llmc/*/*.c) | head -c 3000000 | grep '}]}$' > $W/chats.jsonl
at; wc -lc $W/chats.jsonl

# (b) written, then loaded three times; beside it (a) the tests, one process each
timeout 60 ./bench_moe -d cuda-bf16 -e loading -o $W/w OLMoE-1B-7B > $W/log/loading 2>&1 & B=$!
T=""
for d in cuda-bf16 cuda-f32; do for p in 1/2 2/2; do
  OMP_NUM_THREADS=1 timeout 40 ./run_tests -d $d -k attention -p $p kernels > $W/log/kernels-$d-${p%/2} 2>&1 & T="$T $!"
done; done
OMP_NUM_THREADS=4 timeout 45 ./run_tests -d cuda-bf16 decoding > $W/log/decoding-bf16 2>&1 & T="$T $!"
OMP_NUM_THREADS=4 timeout 45 ./run_tests -d cuda-f32 decoding > $W/log/decoding-f32 2>&1 & T="$T $!"
OMP_NUM_THREADS=2 timeout 30 ./run_tests reference > $W/log/reference 2>&1 & T="$T $!"
wait $B; at; tail -2 $W/log/loading

# (c) a user's command but for -ct (the folder has no template) and what keeps the run short
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4096/' $W/w/config.json
timeout -s KILL 40 ./train_moe -e $W/w -i $W/chats.jsonl -ct chatml -b 8 -t 4096 -mw 0 -mo bf16 -x 200 -v 10000 -m 1 -s 0 -nt 0 -o $W/tuned > $W/log/train 2>&1 & R=$!
for i in $(seq 1 400); do
  sleep 0.1
  kill -0 $R 2>/dev/null || break
  [ "$(grep -c '^step' $W/log/train)" -ge 15 ] && break
  [ "$(ms)" -gt 73000 ] && break
done
kill -9 $(pgrep -P $R) $R 2>/dev/null
at; grep -a -i 'load\|memory\|error\|warning' $W/log/train | head -12; grep -a '^step' $W/log/train | tail -12; tail -3 $W/log/train
kill $T 2>/dev/null; wait $T 2>/dev/null
echo; for f in $W/log/kernels* $W/log/decoding* $W/log/reference; do printf '%-24s ' "$(basename $f)"; tail -1 $f; grep -a FAIL $f | head -6; done
at; echo done
nvidia-smi --query-gpu=name,memory.used --format=csv,noheader
