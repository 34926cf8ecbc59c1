#!/bin/bash
# Loading, then fine-tuning, at OLMoE's shape. One H200, 40 s.
T0=$(date +%s%N); ms() { echo $(( ($(date +%s%N) - T0) / 1000000 )); }; at() { printf "[%6d ms] " "$(ms)"; }
W=/dev/shm; [ "$(df -k --output=avail /dev/shm | tail -1)" -gt 25000000 ] || W=/tmp
echo "files in $W, $(nproc) cores, $(free -g | awk '/Mem/ { print $2 }') GB"
W=$W/fam; rm -rf $W; mkdir -p $W/w $W/log
# conversations of the documents' own text, about 1000 bytes an answer
awk 'BEGIN { ORS="" } { gsub(/["\\\t\r]/, " "); buf = buf " " $0; if (length(buf) > 900 + (NR * 37) % 700) {
  print "{\"messages\": [{\"role\": \"user\", \"content\": \"Say more of part " NR "\"}, {\"role\": \"assistant\", \"content\": \"" buf "\"}]}\n"; buf = "" } }' \
  $(ls docs/*.md llmc/*/*.c) | head -c 3000000 | grep '}]}$' > $W/chats.jsonl

timeout 24 ./bench_moe -d cuda-bf16 -e loading -o $W/w OLMoE-1B-7B > $W/log/loading 2>&1
at; tail -2 $W/log/loading
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4096/' $W/w/config.json
./train_moe -e $W/w -i $W/chats.jsonl -ct chatml -b 8 -t 4096 -mw 0 -mo bf16 -x 200 -v 10000 -m 1 -s 0 -nt 0 -o $W/tuned > $W/log/train 2>&1 & R=$!
while [ "$(ms)" -lt 38500 ] && kill -0 $R 2>/dev/null && [ "$(grep -a -c '^step' $W/log/train)" -lt 15 ]; do sleep 0.1; done
kill -9 $R 2>/dev/null
at; grep -a -i 'load\|memory\|error\|warning' $W/log/train | head -12; grep -a '^step' $W/log/train | tail -12; tail -2 $W/log/train
at; nvidia-smi --query-gpu=name,clocks.sm,memory.used --format=csv,noheader
rm -rf $W
