#!/bin/sh
# programs.sh: the programs as their users meet them. How bad input is answered, and what stop requests, kills, full disks and
# damaged files do to a run. Start it from the repository root after `make train_moe infer_moe bench_moe`. Needs only a POSIX
# shell; tests more as root (a small disk) and with python3 (parsing the logs). Every wait has a limit: no test hangs.
#   sh tests/programs.sh [-k]        -k: keep the folder with all runs
set -u
root=$(pwd)
keep=0
for word; do case $word in -k) keep=1 ;; *) echo "$0: no option $word"; exit 2 ;; esac; done
train=$root/train_moe infer=$root/infer_moe
[ -x "$train" ] && [ -x "$infer" ] || { echo "FAIL programs  build train_moe and infer_moe first"; echo "0 passed, 1 failed"; exit 1; }

work=$(mktemp -d) || exit 1
mkdir "$work/here" && cd "$work/here" || exit 1
said=$work/said                         # output of the last program that ran in the foreground
background= other= task= mounted=       # processes: of start, the second of pair, of limited; a mounted folder
clean() {
    for process in $background $other $task; do kill -9 "$process" 2>/dev/null; done
    [ -n "$mounted" ] && umount "$mounted"
    cd / && if [ "$keep" = 1 ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap clean EXIT
trap 'exit 130' INT TERM
LC_ALL=C
OMP_NUM_THREADS=1                       # the models are tiny, and the machine may be busy
CUDA_VISIBLE_DEVICES=                   # all of this is about the host: -dv auto is the CPU
export LC_ALL OMP_NUM_THREADS CUDA_VISIBLE_DEVICES

passed=0 failed=0
verdict() {                             # verdict RESULT WHAT: RESULT 0 is good
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok   programs  $2"
    else failed=$((failed + 1)); echo "FAIL programs  $2"; fi
}
ok() { what=$1; shift; "$@"; verdict $? "$what"; }
skipped() { echo "skip programs  $1"; }

# Waits for a child process, for at most 20 minutes, as a busy machine is only slow; then it is killed. Sets `got` to its exit code (137: killed).
reap() {
    ( tries=0
      while kill -0 "$1"; do
          tries=$((tries + 1))
          [ $tries -lt 6000 ] || { kill -9 "$1"; exit; }
          sleep 0.2
      done ) > /dev/null 2>&1 &
    guard=$!
    wait "$1" 2> /dev/null; got=$?
    kill $guard 2> /dev/null; wait $guard 2> /dev/null
}
limited() { "$@" & task=$!; reap $task; task=; return $got; }        # the command, within the time of reap

# Every file here, with size and times, or a checksum where find cannot tell. The lock is left out: it names the last process that tried it.
moving=none                             # a folder in which a run is in progress
tell='-exec cksum {} +'
find . -maxdepth 0 -printf '' 2> /dev/null && tell='-printf %p\t%s\t%i\t%T@\t%C@\n'
tree() { find . -name "$moving" -prune -o -type d -print -o -type f ! -name lock $tell; }

# expect CODE TEXT COMMAND...: the command exits with CODE and prints TEXT, a pattern. If CODE means "refused", no file has
# appeared, vanished or changed.
expect() {
    code=$1 text=$2 good=0 refused=0; shift 2
    case $code in 2|3|4|7) refused=1; tree > "$work/before" ;; esac
    limited "$@" > "$said" 2>&1
    why=
    [ $got = "$code" ] || why="exit code $got instead of $code"
    grep -q -e "$text" "$said" || why="$why, no \"$text\""
    [ $refused = 0 ] || { tree > "$work/after"; cmp -s "$work/before" "$work/after"; } ||
        why="$why, files changed: $(diff "$work/before" "$work/after" | tail -n +2 | head -3)"
    [ -z "$why" ] || { good=1; why=": $why: $(tail -2 "$said" | cut -c1-300)"; }
    verdict $good "$(printf '%s' "$*" | tr -c ' -~' '?' | sed "s|$some|train_moe ...|; s|$data $model|...|; s|$root/||g" | cut -c1-120): $code$why"
}
start() { : > "$work/log"; "$@" >> "$work/log" 2>&1 < /dev/null & background=$!; }       # its output goes to log
await() {                               # await COMMAND...: repeats it until it succeeds, for at least 400 s
    tries=0
    until "$@" 2> /dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 20000 ] || { verdict 1 "still false after 400 s: $*: $(tail -2 "$work/log")"; return 1; }
        sleep 0.02
    done
}
ends() { reap "$background"; background=; ok "$2 (exit code $got, expected $1)" [ $got = "$1" ]; }       # ends CODE WHAT

fingerprint() { sed -n 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/p' "$1/log.jsonl" | tail -1; }
losses() { grep -E '"event": "(step|val)"' "$1/log.jsonl" | sed 's/"ms": [^,]*, "tok_s": [^,]*, //; s/, "seconds": [^}]*//'; }
same_run() {                            # same_run A B WHAT: weights and all logged numbers except times agree bit for bit
    losses "$1" > "$work/a"
    losses "$2" > "$work/b"
    f=$(fingerprint "$1")
    ok "$3: the same weights" [ -n "$f" -a "$f" = "$(fingerprint "$2")" ]
    ok "$3: the same log" cmp -s "$work/a" "$work/b"
}
steps_of() { ls "$1/state" 2>/dev/null | sed 's/step-0*//' | tr '\n' ' '; }

# Files byte by byte. bytes 1 2 255; number N: 32 bits, low byte first; overwrite FILE OFFSET BYTES...
bytes() { for b; do printf "\\$(printf %03o "$b")"; done; }
number() { bytes $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }
overwrite() { file=$1 at=$2; shift 2; bytes "$@" | dd of="$file" bs=1 seek="$at" conv=notrunc 2> /dev/null; }
inode() { ls -i "$1" | sed 's/^ *//; s/ .*//'; }
size() { wc -c < "$1" | tr -d ' '; }
shard() {                               # shard MAGIC VERSION TOKENS: an llm.c header; the tokens come from stdin
    number "$1"; number "$2"; number "$3"; head -c 1012 /dev/zero; cat
}
letters() { tr -cd 'a-z' < text.txt | head -c "$1" | sed 's/./&\
/g' | tr '\n' '\0'; }                   # as 16-bit tokens

# ---- the data, and the run that others are compared with --------------------------------------------------------------------------

cat "$root"/llmc/*/*.c | head -c 60000 > text.txt
head -c 5000 "$root/train_moe.c" > val.txt
model="-e m2:c32h4e4k2f32a4x2"
data="-i text.txt -j val.txt"
some="$train $data $model -b 2 -t 32 -u 10 -v 20 -s 25 -g 20"
run="$some -d 256 -x 60"                # about 2 ms a step
slow="$some -d 2560 -x 60"              # about 20 ms a step: long enough to be interrupted

expect 0 'fingerprint' $run -o whole -n 20
ok "the last line suggests a prompt from the text" grep -q "to generate text:.*infer_moe whole/best -i ." "$said"
ok "steps without z-scores have no sign of them" sh -c '! grep -q "z)" "$0"' "$said"
ok "the table has what was given or chosen" sh -c 'grep -q "  -b .*2  (given)" "$0" && grep -q "  -lr\|  -l " "$0" && ! grep -q "  -nk " "$0"' "$said"
expect 0 'fingerprint' $run -o short -n 20 -vs 20
ok "short validations change no weight" [ -n "$(fingerprint short)" -a "$(fingerprint short)" = "$(fingerprint whole)" ]
ok "there are twenty, and one with each validation" [ "$(grep -c '"event": "val_short", "step": [0-9]*, "loss": [0-9.]*, "tokens": 64' short/log.jsonl)" = 22 ]
ok "with loads of experts, once a step" [ "$(grep -c '"event": "load"' short/log.jsonl)" = 22 -a "$(grep -c val_short whole/log.jsonl)" = 0 ]
rm -rf short
ok "the folder and the best model have a card" [ "$(grep -c '^library_name: transformers$\|^- moe$\|^# license: \|^Best validation loss [0-9.]* nats\|^Trained with smoe.c on .text.txt., ' whole/README.md)" = 5 -a -s whole/best/README.md ]
cp -r whole cards && echo mine >> cards/best/README.md && cp cards/best/README.md card
expect 0 'cards/best/README.md was edited' $train -o cards -y 1 -x 61
ok "a card that was edited stays, another is renewed" sh -c 'cmp -s card cards/best/README.md && grep -q "in 61 steps" cards/README.md'
rm -rf cards card
expect 0 '  -nk  keep            | 2$' $some -x 0 -as 1
ok "a run leaves its report, logs, model and best model" [ -f whole/report.html -a -f whole/main.log -a -f whole/config.json -a -f whole/tokenizer.json -a -f whole/best/model.safetensors ]
if script -qec 'stty cols 60' /dev/null > "$said" 2>&1 < /dev/null; then
    limited script -qec "stty cols 60; $some -d 2560 -x 8 -o narrow" /dev/null > "$said" 2>&1 < /dev/null
    tr '\r' '\n' < "$said" > "$work/a"
    ok "a line that is refreshed fits into the terminal" awk '/^step    [2-7]\/8/ { n++; wide += length($0) - 3 > 59 } END { exit !n || wide }' "$work/a"
    ok "eta and speed come first" grep -q '^step    [2-7]/8 | eta [0-9:]* | [0-9]* tok/s | loss' "$work/a"
    ok "a first step says what it does" grep -q '^step    1/8: the first, of 2560 tokens, micro-batch 40 of 40' "$work/a"
    rm -rf narrow
    limited script -qec "stty cols 60; $some -x 0" /dev/null > "$said" 2>&1 < /dev/null
    ok "the start table fits into the terminal" awk '{ sub(/\r$/, "") } length($0) > 60 { bad = 1 } END { exit bad || NR < 20 }' "$said"
    for i in 1 2 3 4 5 6 7 8; do cat text.txt; done > long.txt
    limited script -qec "$infer whole -x long.txt" /dev/null > "$said" 2>&1 < /dev/null
    ok "infer_moe -x shows no control characters as pictures" sh -c 'grep -q "bits/byte" "$0" && ! grep -q "$(printf "\342\220\215")" "$0"' "$said"
    rm long.txt
else skipped "no script(1): no terminal"; fi
ok "its last step is the best: one file of weights" [ "$(inode whole/best/model.safetensors)" = "$(inode whole/model.safetensors)" ]
slots() { echo $(($(sed -n '/"event": "load"/s/.*"load": \[\([^]]*\)\]}\]}$/\1/p' "$1/log.jsonl" | tail -1 | tr , +))); }
ok "the loads of a validation are those of all its 4,999 tokens, without what fills the last batch" [ "$(slots whole)" = $((4999 * 2)) ]
ok "the two newest checkpoints are kept" [ "$(steps_of whole)" = "40 60 " ]
ok "no temporary file remains" [ -z "$(find whole -name '*tmp*')" ]

# ---- options: exit code 2, and no file changes -------------------------------------------------------------------------------

expect 2 'given twice' $run -o new -b 4
for wrong in '-l nan' '-l inf' '-l 1e-3x' '-l -1' '-w1 1' '-n -1' '-n 99999999999999999999' '-n 1.5' '-nk 0' '-r 3' '-sd x' '-k step' '-fa tanh'; do
    expect 2 'expected' $run -o new $wrong
done
for wrong in '-b 0' '-t 1000000' '-v 0'; do expect 2 'expected a whole number from 1' $train $data $model -o new $wrong; done
expect 2 'multiple of B\*T = 4\*32' $train $data $model -o new -b 4 -t 32 -d 200
expect 2 'device' $run -o new -dv cpu-f16
expect 2 'does not store bf16' $run -o new -mo bf16
for wrong in m0 x4 m2:z4 m2:c32c32 m2:c m2:e4k5 m2:a4x5 m2:c30h4 m2:c32h4d7 m2:c32h6q4a1 m99999999999; do
    expect 2 "$wrong" $train $data -o new -e $wrong
done
expect 2 'config.json defines' $train $data -o new -e whole -fa gelu
expect 0 'usage\|--help' $train --help
expect 0 'channels, the width' $train --help model
expect 2 'no such topic' $train --help weather
expect 0 '--batch .*\[24\]' $train -h
expect 0 'about 54000 training tokens (less than 10 million.*on cpu' $train --help -i text.txt
expect 0 '--batch .*\[64\]' $train --help -i text.txt -gm h100
[ -e /dev/nvidiactl ] || expect 0 'training tokens.* on cuda-bf16\.$' $train --help -i text.txt -dv cuda
expect 0 '--tokens .*\[256\]' $infer -h
if [ -x "$root/run_tests" ]; then
    expect 0 'groups: house files' $root/run_tests --help
    expect 2 'kernel: no option or group' $root/run_tests messages kernel
    ok "run_tests -k NAME: a group of that name does not run" sh -c "! $root/run_tests messages -k house | grep '^house'"
fi
expect 2 'Did you mean -i text.txt' $train text.txt
echo 'warmpu = 3' > wrong.txt
expect 2 'line 1: warmpu: no such option. The nearest is -u (--warmup)' $train $data -cf wrong.txt -o new
for far in --foo --wandb -zz; do expect 2 "^error: $far: no such option. --help lists all" $run -o new $far 1; done
for near in --batch-size=-b --batch_size=-b --learning-rate=-l --learning_rate=-l -lr=-l --epochs=-x -batch=-b --weight-decay=-c --output=-o; do
    expect 2 "nearest is ${near##*=} " $run -o new "${near%=*}" 1
done

# A file of settings. Every run writes its own, which repeats it.
ok "a run leaves its settings" grep -q '^batch  *= 2$' whole/settings.txt
expect 0 fingerprint $train -cf whole/settings.txt -o repeated
same_run whole repeated "repeated from its settings.txt"
ok "with the same settings.txt" cmp -s whole/settings.txt repeated/settings.txt
# Stages of the batch, further targets: resumed within a stage; on two ranks.
expect 0 'stages  ' $some -d 128 -ds 1:2:3 -ft 0.5 -k wsd -kd 0.6 -x 12 -n 5 -rp 1 -ng 1 -o staged
cp -R staged staged2 && rm -rf staged2/state/step-0000001*
expect 0 'at step 5' $train -o staged2 -y 1
same_run staged staged2 "stages: resumed in the second"
expect 0 fingerprint $some -d 128 -ds 1:2:3 -ft 0.5 -k wsd -kd 0.6 -x 12 -n 5 -rp 1 -ng 2 -o staged3
same_run staged staged3 "stages on two ranks"
expect 2 'ds 1:2:x: a stage is a number' $some -ds 1:2:x -o none
expect 2 'ds 1:2:3: a run of 2 steps' $some -ds 1:2:3 -x 2 -o none
printf '# mine\r\n\n-i text.txt\r\nval=val.txt\n  --seq = 16\nb 4\n' > mine.txt
expect 0 'in llama.cpp  *| other text: of this family it knows -rs topk-softmax only' $train -i text.txt -e m2:c32h2e4k2f32 -rs softmax-topk -x 0
expect 0 'in llama.cpp  *| other text: of this family it knows -rs softmax-topk only' $train -i text.txt -e m2:c32h2e4k2f32n2 -x 0
expect 0 'n1, qwen3_moe' $train -i text.txt -e m2:c32h2e4k2f32 -x 0
ok "the default is what llama.cpp computes" [ -z "$(grep 'in llama.cpp' "$said")" ]
expect 0 '= 8 x 16 x 1 micro' $train --config=mine.txt -b 8 -d 128 $model -x 0
expect 0 '= 4 x 16 x 1 micro' $train $model -cf mine.txt -x 0
printf 'tensorboard = 1\n' >> mine.txt                  # of an earlier version
expect 0 'tb (--tensorboard) was removed and is ignored' $train $model -cf mine.txt -x 0
expect 0 'tb (--tensorboard) was removed and is ignored' $train $data $model -tb 1 -x 0
expect 2 'nowhere.txt: No such file' $train -cf nowhere.txt -o new

[ -e /dev/nvidiactl ] || expect 2 'make test_gpu needs a GPU and the CUDA toolkit; here is no' env -u MAKEFLAGS -u MAKELEVEL make -C "$root" NO_CUDA=1 test_gpu
# Plans for a GPU that this machine lacks.
expect 0 'total .* MB of 80000 MB$' $train $data -x 0 -gm h100 -e m6
expect 0 'memory on cuda-bf16' $train $data -x 0 -dv cuda -ng 2
expect 0 'time .* | [0-9]* tokens/s, .* ms per step' $train $data -x 0 -gm h100 -e m6
ok "how long the default run takes, and an epoch" sh -c 'grep -q "| 800 steps take .*: .* tokens per parameter, .* per active one" "$0" && grep -q "| 20 tokens per parameter, [0-9]* steps, take [0-9]" "$0" && grep -q "| an epoch, [0-9]* steps, takes" "$0" && grep -q "within 15 %" "$0"' "$said"
expect 0 'time .* | [0-9]* tokens/s' $train $data -x 0 -gm 80:2000:312
expect 0 'time .* | not known: -gm NAME' $train $data -x 0 -gm 80
expect 0 'from rates measured now' $train $data $model -x 0
expect 2 'or its GB, GB/s and TFLOP/s' $train $data -x 0 -gm 80:2000
expect 0 'which GPU? -gm h100' $train $data -x 0 -dv cuda
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: -b 16 .*-mw 0 -mo bf16: ' $train $data -x 0 -gm 1 -e m6 -r 0
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: -b 5 -d 6400: ' $train $data -x 0 -gm 1 -e m6 -r 0 -b 25
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: .*-r auto -mw 0' $train $data -x 0 -gm 1 -e m6 -r 0
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: .*, -r auto: ' $train $data -x 0 -gm 1.5 -e m6 -r 0
expect 0 'auto recomputes norms of .* of 6 layers: .* MB less, about .* more work' $train $data -x 0 -gm 1.5 -e m6
expect 0 'recomputing would save: norms .*up projections' $train $data -x 0 -gm 1.5 -e m6
expect 0 'recomputes 5 of 6 layers' $train $data -x 0 -e m6 -r 2
expect 2 'expected auto, or a whole number from 0 to 2' $train $data -r 3
expect 2 '67108864 tokens on all ranks, and 4294967296 slots' $train $data -x 0 -b 65536 -t 1024 -e m1:c16h2e64k64f1
expect 2 'tokens on all ranks, and 2147483648 slots' $train $data -x 0 -b 262144 -t 1024 -e m1:c16h8a8x8f1e1
for gpu in h1000 4090; do expect 2 'expected the memory of a GPU in GB, or one of a10 ' $train $data -x 0 -gm $gpu; done
expect 0 'total .* MB of 80000 MB$' $train $data -x 0 -gm H100 -e m6
expect 2 'held below a number of gigabytes, such as -gm 40. The plan for a GPU that is not here needs -x 0' $train $data -x 5 -gm h100 -o new
for gpu in h100 80:2000:312 many; do expect 2 "gm $gpu: a run on cpu-f32 is held below a number" $train $data -x 0 -gm $gpu -dv cpu; done
expect 0 'GPUs that hold it, time  *| 24 GB (rtx4090): 1, .*; 40 GB (a100-40): 1, .*; 80 GB (h100): 1, .*; 141 GB (h200): 1, ' $train $data -x 0 -gm 1 -e m6
expect 0 '24 GB (rtx4090): 4 with -ga momentum, .*, or 1 with -mw 0 -mo bf16 -ga momentum, .*; 40 GB (a100-40): 2 with -ga momentum, .*, or 1 with -mw 0 -mo bf16, .*; 80 GB (h100): 1, .*; 141 GB (h200): 1, [0-9:h]*$' $train $data -x 0 -gm 40 -e m12:c2048h32d128q4e64k8f1024 -t 1024 -b 4
expect 0 '24 GB (rtx4090): 1 with -ga momentum, .*; 40 GB (a100-40): 1, ' $train $data -x 0 -gm 141 -e m12:c2048h32d128q4e24k8f1024 -t 1024 -b 4
expect 0 '24 GB (rtx4090): 2, .*, or 1 with -mw 0 -mo bf16, .*; 40 GB (a100-40): 1, ' $train $data -x 0 -gm 141 -e m12:c2048h32d128q4e24k8f1024 -t 1024 -b 4 -ga gradients
expect 0 '24 GB (rtx4090): not on 1024; .*not on 1024$' $train $data -x 0 -gm 40 -e m2:c32768h256d128e1024k8f32768 -b 1 -t 1024
# A run that is held below a limit of memory: what is recomputed and sharded changes, and no bit.
held="$train $data -dv cpu -e m6:c64h2e8k2f64 -t 32 -s 3 -g 4 -x 3 -v 3 -u 1 -wn 0"
expect 0 fingerprint $held -b 4 -o held
expect 0 'recomputes norms of 5 and QKV projections of 3 of 6 layers' $held -b 4 -gm 0.0228 -o held1
same_run held held1 "held below 22.8 MB"
expect 7 'the 21.4 MB that this run needs; it has 21.3 MB within -gm: 0.1 MB are missing. Backward .* This would fit: -ga momentum: .*, -b 2 -d 128: ' $held -b 4 -ga gradients -gm 0.0213 -o new
expect 7 'This would fit: -wl 0 -ga momentum: ' $held -b 4 -wl 1 -gm 0.0213 -o new
expect 0 'ga momentum, chosen by the plan' $held -b 4 -gm 0.0213 -o held5
sharded="$train $data -dv cpu -ng 2 -e m12:c64h2e16k2f64 -b 1 -t 16 -s 0 -wn 0"
expect 0 'optimizer state sharded over 2 ranks, -z 1; ' $sharded -gm 0.049 -x 1 -o held2
expect 0 'optimizer state and gradients sharded over 2 ranks, -z 2; ' $sharded -gm 0.0461 -x 1 -o held3
expect 0 'gradients and weights sharded over 2 ranks, -z 3; ' $sharded -gm 0.0435 -x 1 -o held4
expect 7 'rank 0 of 2: .* needs with -z 3; it has 42.0 MB within -gm: .* MB are missing' $sharded -gm 0.042 -ga gradients -x 1 -o new
expect 0 'ga momentum, chosen by the plan' $sharded -gm 0.042 -x 1 -o held6
expect 0 'total  *|  *42.* MB of 42 MB (-gm)' $sharded -gm 0.0424 -x 0
# What is saved, and how much of the host's memory that takes.
kept="$held -b 4 -n 2"
host() { sed -n 's/^|   memory of the host  *| *\([0-9.]*\) MB.*/\1/p' "$said"; }
expect 0 'saved step 2 in' $kept -o kept
expect 0 'no run resumes from weights alone' $kept -sv weights -o kept1
ok "-sv weights: the same weights, and no state of the optimizer" sh -c 'cmp kept/model.safetensors kept1/model.safetensors && cmp kept/best/model.safetensors kept1/best/model.safetensors && [ -z "$(find kept1 -name "optimizer*")" ]'
expect 4 'only weights (-sv weights), so no run resumes from it. To train its model further: -e kept1, and another folder' $train -o kept1 -y 1 -x 6
expect 0 fingerprint $train -e kept1 $data -dv cpu -t 16 -x 1 -o kept2
start $some -sv weights -x 1000000 -o kept3; await grep -q 'step *3/' "$work/log" && kill -TERM $background
ends 75 "-sv weights: SIGTERM saves weights"
ok "and the way on is said" grep -q 'to train these weights further:  ./train_moe -e kept3 ' "$work/log"
expect 0 'no weights were saved (-sv none)' $kept -sv none -o kept4
ok "-sv none: no model, no card, no checkpoint, the same losses" sh -c '[ -z "$(find kept4 -name "*.safetensors" -o -name README.md)" ]'
same_run kept kept4 "-sv none"
expect 0 'nothing is saved (-sv none)' $kept -sv none -y 1 -o kept4
expect 0 'snapshot, host  *|  *none: nothing is saved' $train $data -x 0 -gm h100 -sv none
disk="$train $data -x 0 -dv cpu -e m6:c64h2e8k2f64 -t 32 -b 4 -wn 0"
expect 0 'disk  *|  *22.94 MB at most; [0-9]* MB are free' $disk
expect 0 'disk  *|  *5.67 MB at most' $disk -sv weights -nk 1 -nb 0
expect 0 'the saves of this run may take [0-9.]* GB, and /proc/none has 0.0 GB free. Less: -nk 1' $disk -o /proc/none
mkdir unfetched && cp kept/config.json unfetched                  # a model of which only the description is here
expect 0 'unfetched has no weights: this is the plan by its config.json, and of a text of bytes, as it has no tokenizer.json' $train $data -x 0 -e unfetched -gm h100
ok "it has the parameters of the model" [ "$(grep '|   parameters ' "$said")" = "$($train $data -x 0 -e kept -gm h100 | grep '|   parameters ')" ]
mkdir thirty && cat > thirty/config.json <<'END'             # Qwen3-30B-A3B: what tunes it on one GPU is said in one sentence
{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
 "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144, "norm_topk_prob": true, "vocab_size": 151936,
 "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "hidden_act": "silu", "decoder_sparse_step": 1,
 "tie_word_embeddings": false, "attention_bias": false, "mlp_only_layers": []}
END
tune="$train -i $root/data/talk/train.jsonl -ct chatml -x 0 -e thirty -gm 141"
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: -mw 0 -mo bf16 -wo muon -ga momentum: 140[0-9.]* MB, 8 GPUs ' $tune
expect 0 '141 GB (h200): 8, [0-9:]*, or 1 with -mw 0 -mo bf16 -wo muon -ga momentum, ' $tune
expect 0 'total  *|  *140[0-9.]* MB of 141000 MB$' $tune -mw 0 -mo bf16 -wo muon -ga momentum
ok "the rate is twice AdamW's with Muon" grep -q '  -l   lr  *| 4e-05$' "$said"
expect 3 'unfetched: holds neither model.safetensors nor' $train $data -e unfetched -o new
large="$train $data -dv cpu -e m4:c256h4e16k2f256 -b 4 -t 64 -s 0 -x 1"
expect 0 'snapshot, host  *|  *[0-9.]* MB: training pauses only while' $large -o large
with=$(host) peak=$(sed -n 's/^peak memory  *| *\([0-9.]*\) MB.*/\1/p' "$said") copy=$(sed -n 's/.*snapshot, host  *| *\([0-9.]*\) MB.*/\1/p' "$said")
ok "memory of the host: planned $with MB, taken $peak MB" awk -v a="$with" -v b="$peak" 'BEGIN { exit !(b > 0.8 * a && b < 1.1 * a + 10) }'
limit=$(awk -v a="$with" -v c="$copy" 'BEGIN { print (a - c / 3) / 1000 }')
expect 0 'none: it would leave too little memory. Training pauses while each checkpoint of [0-9.]* MB is written from the device in pieces (0:00, at 1 GB/s)' $large -hm "$limit" -o large1
ok "in pieces: the same files" sh -c 'cmp large/state/step-00000001/model.safetensors large1/state/step-00000001/model.safetensors && cmp large/state/step-00000001/optimizer.safetensors large1/state/step-00000001/optimizer.safetensors'
expect 7 'hm 0.05: this run takes at least [0-9.]* MB of the host.s memory' $large -hm 0.05 -o new
[ -e /dev/nvidiactl ] || expect 2 'To plan .* for a GPU you don.t have: .*-x 0 -gm' $train $data -x 5 -dv cuda-f64 -o new
expect 0 'smoe.c' $train --version

# ---- data: exit code 3 -------------------------------------------------------------------------------------------------------

: > empty.txt
mkdir void && echo x > void/notes.md
printf 'too short' > short.txt
head -c 1000 text.txt > page.txt
letters 2000 | shard 20240520 1 2000 > good.bin
{ letters 1999; bytes 255 255; } | shard 20240520 1 2000 > large.bin
expect 3 'nowhere.txt: No such file' $train -i nowhere.txt -o new
expect 3 'nowhere.txt: No such file' $train -i text.txt -j nowhere.txt -o new
expect 3 'void.*expected' $train -i void -o new
expect 3 'short.txt.*window' $train -i short.txt -o new
expect 3 'window' $train -i text.txt -j short.txt -o new
expect 3 'sequences, less than the 64' $train $data $model -b 64 -t 1000 -x -1 -o new
expect 3 'large.bin: token id 65535 .*vocabulary of 256' $train -i large.bin -j good.bin -e whole -t 32 -o new
expect 3 'tokenizer.json' $train -i text.txt -tk nowhere/tokenizer.json -o new
expect 2 'expected one of cl100k|gpt2' $train -i text.txt -tk 300 -tp gpt5 -o new
printf '{"text": "one"}\n{"text": oops}\n' > broken.jsonl
mkdir documents && cp page.txt documents/b.txt && cp broken.jsonl documents/
expect 3 'documents/broken.jsonl: line 2' $train -i documents -tk 300 -o new
expect 3 'config.json' $train $data -e void -o new

# Files that are no text are named, with what to do.
for kind in '\037\213\010\000=a gzip archive.* gunzip -k odd.dat' '\377\376a\000=text in UTF-16.* iconv' 'ab\000c=NUL bytes'; do
    { printf "${kind%%=*}"; cat page.txt; } > odd.dat
    expect 3 "odd.dat is .*${kind##*=}" $train -i odd.dat -o new
done
expect 0 'text as bytes' $train -i odd.dat -ab 1 -t 16 -x 0
printf '\377\376a\000' > 'two words.txt'
expect 3 "iconv.* 'two words.txt' > utf-8.txt" $train -i 'two words.txt' -o new
{ printf '{"text": "'; tr -d '"\n\\' < page.txt; printf '"}\n'; } > odd.json
cp odd.json odd.txt && expect 0 'odd.txt looks like JSON' $train -i odd.txt -t 16 -x 0
expect 0 'text as bytes, 1 file' $train -i odd.json -t 16 -x 0
printf '[{"instruction": "a",\n"output": "b"},\n{"instruction": "c", "output": "d"}]\n' > forms.json
expect 0 'forms.json: conversations, 1 file' $train -i forms.json -ct chatml -t 64 -b 1 -x 0
expect 3 'forms.json.*no chat template' $train -i forms.json -t 64 -x 0
cp forms.json forms.txt && expect 3 'forms.txt holds JSON of texts or conversations.*-ab 1' $train -i forms.txt -t 16 -x 0
expect 0 'text as bytes' $train -i forms.txt -ab 1 -t 4 -x 0
printf '{"body": "%060d", "n": 1}\n{"body": "%060d"}\n' 1 2 > body.jsonl
expect 3 'body.jsonl: line 1: .*found "body", "n".*-tf' $train -i body.jsonl -t 16 -x 0
expect 0 'text as bytes' $train -i body.jsonl -tf body -t 16 -x 0
printf 'na\357ve %.0s' $(seq 200) > latin.txt
expect 0 'latin.txt is not UTF-8: byte 2 is 0xef.* iconv -f ISO-8859-1 -t UTF-8 latin.txt' $train -i latin.txt -t 16 -x 0
ok "bytes are asked for" sh -c "$train -i latin.txt -t 16 -x 0 -ab 1 2>&1 | grep -q 'not UTF-8'; test \$? = 1"

# ---- the output folder -------------------------------------------------------------------------------------------------------

expect 2 'another run.*-y 1.*-y 0' $run -o whole
expect 2 'plan of a new run' $train $data -o whole -y 1 -x 0
for out in text.txt text.txt/out; do expect 5 'text.txt' $run -o $out; done
ok "text.txt is unchanged" [ "$(size text.txt)" = 60000 ]
if [ "$(id -u)" != 0 ]; then
    mkdir shut && chmod 555 shut
    for out in shut/out shut; do expect 5 'Permission denied' $run -o $out; done
else expect 5 '/proc' $run -o /proc/out; fi
cp -r whole mine && rm -rf mine/state mine/*.log* mine/best
expect 2 'another run or model' $run -o mine
expect 4 'no state to resume from' $run -o mine -y 1
cp -r whole again
expect 3 'nowhere.txt' $train -i nowhere.txt -o again -y 0
expect 3 'config.json' $train $data -e void -o again -y 0
expect 2 'given twice' $run -o again -y 0 -b 1
expect 2 '-e again would be discarded' $train $data -e again -o ./again -y 0
expect 2 '-e again/best would be discarded' $train $data -e again/best -o again -y 0
expect 0 'step    1/60' $run -o again -y 0 -n 20
same_run whole again "-y 0 starts over"
cp -r again reseeded && expect 0 'from here on the seed is 1; the run began with 1337' $train -o reseeded -y 1 -sd 1 -x 61
ok "-y 0 deletes the old run" [ "$(grep -c '"event": "start"' again/log.jsonl)" = 1 ]

expect 2 'typo: there is no run to continue.* -y auto' $some -o typo -y 1 -x 1
expect 0 'anew: no run to continue (-y auto): a new one begins' $some -o anew -y auto -x 1
expect 0 'resuming anew' $train -o anew -y auto -x 2
ok "launchers begin or continue a run" [ "$(grep -c 'train_moe.* -y auto' "$root/scripts/mpirun.sh" "$root/scripts/slurm.sbatch" | tr '\n' ' ')" = "$root/scripts/mpirun.sh:4 $root/scripts/slurm.sbatch:1 " ]
mkdir none
expect 127 'neither mpirun nor mpiexec is here' env PATH=none HOSTS=a,b MOE_SECRET=s /bin/sh "$root/scripts/mpirun.sh"
mkdir texts && cp text.txt val.txt texts/
expect 0 '2 files' sh -c "cd texts && exec $train -i . $model -b 2 -t 32 -s 0 -x 1"
expect 0 'resuming out' sh -c "cd texts && exec $train -i . -y 1 -x 2"
ok "a folder of texts, with its runs in it, is trained on as before them" grep -q 'text as bytes, 2 files' "$said"
expect 3 'texts/out: a folder, where a pattern must match files alone' $train -i 'texts/*t' -o new

expect 0 'total ' $some -o new -x 0
expect 2 'has no experts' $train $data -e d2:c32h4f32 -rt nearest -x 0
expect 2 'the MLP of this model has no experts, and only swiglu' $train $data -e d2:c128h4f128 -pe fp8 -x 0
expect 2 'multiples of 128, and this model has 128 and 32. .*c128f128' $train $data -e m2:c128h4e4k2f32 -pe fp8 -x 0
expect 0 'parameters ' $train $data -e m12:e64k8f256 -x 0
ok "-x 0 creates nothing" [ ! -e new -a ! -e out ]

# ---- raw text ----------------------------------------------------------------------------------------------------------------

words="$train -i text.txt $model -tk 400 -b 2 -t 32 -u 10 -v 20 -s 25 -g 20 -d 256 -x 40 -n 20"
expect 0 'text, 1 file' $words -o words
ok "the tokenizer and the tokens are kept" [ -s words/tokenizer.json -a -s words/tokens.cache ]
cp -r words x0 && rm -rf x0/state/step-00000040
expect 0 'as encoded before' $train -o x0 -y 1
same_run words x0 "resumed with the tokens of the first start"
rm -rf x0/state/step-00000040 x0/tokens.cache
expect 0 'text, 1 file' $train -o x0 -y 1
same_run words x0 "resumed with its tokenizer, text encoded again"
expect 0 'as encoded before' $words -o x0 -y 0
mkdir away && mv text.txt away/
expect 0 'generated 20 tokens' $infer words/best -i 'static' -n 20
mv away/text.txt .

# ---- a model of a folder: what came with it stays ------------------------------------------------------------------------------

plain="$train -i text.txt -b 2 -t 32 -u 10 -v 20 -s 25 -g 20 -d 256 -n 10"
expect 0 'mixtral' $plain -e m2:c32h4e4k2f32n0 -tk 333 -x 20 -o folder
ok "the vocabulary is saved without its padding" grep -q '"vocab_size": 333,' folder/config.json
ok "its config.json does not mention the padding" [ -z "$(grep padded folder/config.json)" ]
printf '{"eos_token_id": [1, 2, 3], "temperature": 0.6}' > folder/generation_config.json
printf '{{ messages }}' > folder/chat_template.jinja
cp folder/config.json config.was
sed 's/"vocab_size"/"our_own_key": {"a": [1, 2.0]}, "vocab_size"/' config.was > folder/config.json
expect 3 '"our_own_key" is not known.*remove it' $plain -e folder -x 20 -o never
sed 's/"vocab_size"/"task_specific_params": {"a": [1, 2.0]}, "vocab_size"/' config.was > folder/config.json
expect 0 'encoding\|333\|text' $plain -e folder -x 20 -o on
for name in tokenizer.json tokenizer_config.json generation_config.json chat_template.jinja; do
    ok "-e FOLDER keeps its $name" cmp folder/$name on/$name
done
ok "-e FOLDER keeps keys of config.json that this program does not use" grep -q '"task_specific_params": {' on/config.json
last=$(grep '"event": "step"' folder/log.jsonl | tail -1 | sed 's/.*"loss": \([0-9.]*\).*/\1/') first=$(grep '"event": "step"' on/log.jsonl | head -1 | sed 's/.*"loss": \([0-9.]*\).*/\1/')
ok "-e FOLDER goes on with its tokens: loss $first after $last" awk "BEGIN { exit !($first < $last + 0.3) }"
# The form in which weights are left: as they came, or as -sw and -ss say; what is resumed is exact.
expect 0 'fingerprint' $train -i text.txt -j val.txt -e d2:c32h2n0 -b 2 -t 32 -d 128 -x 6 -v 3 -s 0 -o exact
expect 0 'saved as  .*| llama, in [3-9] files' $train -i text.txt -j val.txt -e d2:c32h2n0 -b 2 -t 32 -d 128 -x 6 -v 3 -s 0 -sw bf16 -ss 0.00001 -o small
ok "-ss: an index, shards, and no single file" [ -f small/model.safetensors.index.json -a -f small/best/model-00001-of-*.safetensors -a ! -f small/model.safetensors ]
ok "-sw: config.json says bfloat16" grep -q '"dtype": "bfloat16"' small/config.json
same_run exact small "-sw and -ss change nothing but the model's files"
expect 0 'bits/byte' $infer exact -x val.txt
theirs=$(sed -n 's/.*loss \([0-9.]*\) nats.*/\1/p' "$said")
expect 0 'bits/byte' $infer small -x val.txt
ours=$(sed -n 's/.*loss \([0-9.]*\) nats.*/\1/p' "$said")
ok "infer_moe opens shards of bf16: $ours and $theirs" awk "BEGIN { d = $theirs - $ours; exit !(d < 5e-3 && d > -5e-3) }"
expect 0 'fingerprint' $train -i text.txt -j val.txt -e small/best -b 2 -t 32 -d 128 -x 2 -v 3 -s 0 -o onward
ok "a model of bf16 is left in bf16" grep -q '"dtype": "bfloat16"' onward/config.json
ok "and takes half the bytes" [ $(($(wc -c < onward/model.safetensors) * 18)) -lt $(($(wc -c < exact/model.safetensors) * 10)) ]
expect 0 'fingerprint' $train -o small -y 1 -ss 0
ok "resuming finds the best weights in their shards" [ -z "$(grep 'best weights are lost' "$said")" ]
ok "-ss 0: one file again" [ -f small/model.safetensors -a ! -f small/model.safetensors.index.json -a -z "$(ls small | grep model-0)" ]
expect 0 'fingerprint' $train -i text.txt -j val.txt -e d2:c32h2 -b 2 -t 32 -d 128 -x 3 -v 3 -s 0 -ss 0.00003 -o small -y 0
rm small/model-00002-of-*.safetensors small/best/model-00002-of-*.safetensors
expect 4 'small/best/model-00002-of-.*: No such file' $infer small/best -x val.txt
# What generation_config.json says of sampling is the default.
cp -r exact sampled
echo '{"do_sample": true, "temperature": 0.6, "repetition_penalty": 1.1, "typical_p": 0.5, "diversity_penalty": 0.5,
"no_repeat_ngram_size": 1, "bad_words_ids": [[1]], "num_beams": 1, "suppress_tokens": [], "use_cache": true}' > sampled/generation_config.json
expect 0 'as in generation_config.json: temperature 0.6 (-t), top-p 1 (-p, Transformers. default), top-k 50 (-k, Transformers. default), repetition-penalty 1.1 (-rp)' $infer sampled -i a -n 2
for key in typical_p diversity_penalty no_repeat_ngram_size bad_words_ids; do expect 0 "$key is not followed" $infer sampled -i a -n 2; done
ok "what changes nothing is not named" [ -z "$(grep -E '(num_beams|suppress_tokens|use_cache) is not' "$said")" ]
expect 0 'as in generation_config.json: top-p 1 (-p, Transformers. default), top-k 50 (-k, Transformers. default)$' $infer sampled -i a -n 2 -t 1 -rp 1
echo '{"do_sample": false, "temperature": 0.6}' > sampled/generation_config.json
expect 0 'as in generation_config.json: temperature 0 (-t)$' $infer sampled -i a -n 2
echo '{"do_sample": false, "stop_strings": ["q", "z"]}' > sampled/generation_config.json
expect 0 'temperature 0 (-t), stop q (-st), stop z (-st)$' $infer sampled -i a -n 2
expect 0 'temperature 0 (-t)$' $infer sampled -i a -n 2 -st b
echo '{"do_sample": true, "top_p": 3}' > sampled/generation_config.json
expect 3 'top_p: .*expected a number from 0 to 1; -p sets another' $infer sampled -i a -n 2
# A mixture of a dense model begins with its loss.
expect 0 'fingerprint' $train -i text.txt -j val.txt -tk 300 -e d2:c32h2n1 -b 2 -t 32 -d 128 -x 20 -v 20 -s 0 -o plain
# Tokens without a row: refused, or rows are added on request, which are saved like all others.
sed 's/"special":true}\],$/"special":true},{"id":300,"content":"<|new|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],/' plain/tokenizer.json > more.json
expect 3 'has 300 tokens, the data need 301. -nr 1 adds rows' $train -i text.txt -j val.txt -e plain -tk more.json -b 2 -t 32 -d 128 -x 2 -v 2 -s 0 -o grown
expect 0 '1 rows are added to the vocabulary of plain' $train -i text.txt -j val.txt -e plain -tk more.json -nr 1 -b 2 -t 32 -d 128 -x 2 -v 2 -s 0 -o grown
ok "-nr: config.json has the new row" grep -q '"vocab_size": 301' grown/config.json
ok "-nr: and the tokenizer the new token" cmp grown/tokenizer.json more.json
expect 0 'bits/byte' $infer grown -x val.txt
expect 0 'resuming' $train -o grown -y 1 -x 3
# A row without a token is in the softmax like all others: the loss does not depend on whether its token has a name.
sed -e '/":298,$/s/,$/},/' -e '/":299},$/d' -e '$d' plain/tokenizer.json | sed '$s/,$/]}}/' > fewer.json
echo 'q z q z q' > odd.txt
expect 0 'bits/byte' $infer plain -x odd.txt -v 0
cp "$said" all-named
expect 0 'bits/byte' $infer plain -x odd.txt -v 0 -z fewer.json
ok "-x: rows without a token are in the softmax" cmp all-named "$said"
expect 0 'fingerprint' $train -i text.txt -j val.txt -e plain -b 2 -t 32 -d 128 -x 1 -v 20 -s 0 -o plain2
expect 0 'every expert is a copy of an MLP of plain, a dense qwen3' $train -i text.txt -j val.txt -e plain -up e4k2 -b 2 -t 32 -d 128 -x 20 -v 20 -s 0 -o mixed
first() { grep '"event": "step"' "$1/log.jsonl" | head -1 | sed 's/.*"loss": \([0-9.]*\).*/\1/'; }
dense=$(first plain2) mixed=$(first mixed)
ok "-up: the first loss is the dense model's: $dense and $mixed" awk "BEGIN { d = $dense / $mixed - 1; exit !(d < 3e-7 && d > -3e-7) }"
ok "-up: a qwen3_moe with the ids of its tokenizer" grep -q '"model_type": "qwen3_moe"' mixed/config.json
ok "-up: and the tokenizer" cmp plain/tokenizer.json mixed/tokenizer.json
expect 0 'bits/byte' $infer mixed -x val.txt
expect 2 'has experts already' $train -i text.txt -j val.txt -e mixed -up e4k2 -o never
expect 2 'needs a dense model in a folder' $train -i text.txt -j val.txt -e d2 -up e4k2 -o never
expect 2 'width is ' $train -i text.txt -j val.txt -e plain -up e4k2f7 -o never
expect 2 '-up makes the model of a new run' $train -o mixed -y 1 -up e4k2
# A folder called as a preset is a folder. Presets are for much text; a plan only says so. Tables do not go with what would break them.
expect 0 'plain is the model of the folder of this name' $train -i text.txt -j val.txt -e plain -x 0
expect 2 'race is for 10 million training tokens.* has [0-9]*,.*Without -e' $train -i text.txt -e race -o never
expect 0 '| preset race: -e m6:[a-z0-9]* .*-kd 0.6' $train -i text.txt -e race -x 0
expect 0 'cpu.* a step of 65536 tokens takes minutes' $train -i text.txt -e race -x 0
expect 0 'race: no experts in 8 bits' $train -i text.txt -e race -x 0 -gm a100
expect 0 '-pe  expert-precision | fp8-head' $train -i text.txt -e race -x 0 -gm h100
expect 0 'table of bigrams  .* rows of 768; ' $train -i text.txt -e race -x 0 -gm h100
mkdir -p long && truncate -s 200000000 long/train.bin && truncate -s 4000 long/val.bin
printf '\377\077' | dd of=long/train.bin conv=notrunc 2> dd.log
expect 0 '-d   total  *| 131072' $train -i long -e race -x 0 -gm h100
rm -r long
expect 0 'DOES NOT FIT: .* missing.*t[0-9]* for t200 in -e: ' $train -i text.txt -e m2:c2048e2f64t200 -b 1 -t 32 -x 0 -gm 1.5
expect 0 'reads the text [0-9.]* times, and tables' $train -i text.txt -j val.txt -tk 300 -e d1:c32h2f32v1t2 -b 40 -t 32 -d 1280 -x 60 -v 60 -m 1 -s 0 -o tables
expect 3 '-nr 1: which rows of its table of bigrams' $train -i text.txt -j val.txt -e tables -tk more.json -nr 1 -o never
expect 0 'fingerprint' $plain -e folder -x 20 -o half
rm -rf half/state/step-00000020 half/tokens.cache && rm -rf x1 && mv folder x1
expect 0 'resuming' $train -o half -y 1
same_run on half "resumed without the folder that it began with"
mv x1 folder
ok "a resumed run keeps the chat template" cmp folder/chat_template.jinja half/chat_template.jinja
letters 3000 | shard 20240520 1 3000 > ids_train.bin 2> /dev/null && cp ids_train.bin ids_val.bin
expect 0 'fingerprint' $train -i 'ids_train.bin' -j 'ids_val.bin' -e folder -b 2 -t 32 -d 128 -x 5 -v 5 -s 5 -o named
ok "a run on tokens keeps the tokenizer of its folder" cmp folder/tokenizer.json named/tokenizer.json
expect 0 '98 97 115' $train -i 'ids_train.bin' -j 'ids_val.bin' -e m2:c32h4e4k2f32a1 -b 2 -t 32 -d 128 -x 5 -v 5 -s 5 -o unnamed
ok "without a tokenizer no text is suggested" [ -z "$(grep ROMEO unnamed/main.log)" ]
cp -r "$root/tests/reference/families/olmoe" ends && printf '{"eos_token_id": [%s]}' "$(seq 0 28 | paste -s -d , -)" > ends/generation_config.json
expect 0 'generated 1 tokens' $infer ends -i '1 2 3' -n 20
rm -rf folder/best folder/model.safetensors && touch folder/pytorch_model.bin
expect 3 'save_pretrained' $plain -e folder -x 20 -o never
expect 4 'save_pretrained' $infer folder
cp -r "$root/tests/reference/families/qwen3_moe" shards && rm shards/model-00002-of-00003.safetensors
expect 3 'model-00002' $train -i 'ids_train.bin' -j 'ids_val.bin' -e shards -b 2 -t 32 -x 5 -o never
sed 's/"num_hidden_layers": 3/"num_hidden_layers": 4/' "$root/tests/reference/families/olmoe/config.json" | sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' > c.json
cp -r "$root/tests/reference/families/olmoe" deeper && cp c.json deeper/config.json
expect 3 'model.layers.2.* is missing' $train -i 'ids_train.bin' -j 'ids_val.bin' -e deeper -b 2 -t 32 -x 5 -o never
expect 2 'no bias for choosing' $train -i 'ids_train.bin' -j 'ids_val.bin' -e "$root/tests/reference/families/olmoe" -rb 0.1 -b 2 -t 32 -x 5 -o never

# What is validated is what is saved: biases for choosing experts, too.
expect 0 'smoe, which Transformers opens with trust_remote_code' $some -d 256 -x 40 -rb 0.3 -o biased
expect 0 'bits/byte' $infer biased -x val.txt
theirs=$(sed -n 's/.*loss \([0-9.]*\) nats.*/\1/p' "$said") ours=$(tail -1 biased/main.log | sed 's/.*tel://')
ok "infer_moe -x has the loss of a trainer with -rb: $theirs and $ours" awk "BEGIN { d = $theirs - $ours; exit !(d < 2e-5 && d > -2e-5) }"
ok "a model of no other family has its PyTorch beside it" cmp "$root/llmc/files/modeling_smoe.py" biased/best/modeling_smoe.py
python=${PYTHON:-python3}
if "$python" -c 'import torch, tokenizers, transformers' 2> /dev/null; then
    expect 0 'agrees with' env HF_HOME="$work/hf" "$python" "$root/tests/check_export.py" biased val.txt --loss "$theirs" -n 5
    $infer mixed -x val.txt > loss.txt 2> /dev/null
    expect 0 'agrees with' env HF_HOME="$work/hf" "$python" "$root/tests/check_export.py" mixed val.txt --loss "$(sed 's/.*loss \([0-9.]*\) nats.*/\1/' loss.txt)" -n 5
else skipped "$python has no torch, tokenizers and transformers (PYTHON names another): Transformers opened no model"; fi

# ---- conversations ---------------------------------------------------------------------------------------------------------------

i=0; while [ $i -lt 60 ]; do i=$((i + 1))
    echo '{"messages": [{"role": "user", "content": "say '$i'"}, {"role": "assistant", "content": "it is '$((i % 7))' or '$i'"}]}'; done > chats.jsonl
expect 0 'mixtral' $train -i text.txt -e m2:c32h4e4k2f32n0 -tk 333 -b 2 -t 128 -d 256 -x 5 -v 5 -s 5 -o base
printf '{"eos_token": "<|endoftext|>", "chat_template": "{%%- for m in messages %%}{%% include '"'other'"' %%}{%% endfor %%}"}' > base/tokenizer_config.json
expect 3 'line 1 of the chat template.*include.*-ct NAME' $train -i chats.jsonl -e base -o never
expect 3 'line 1 of the chat template.*include.*-ct NAME' $infer base -m chat
printf '{"eos_token": "<|endoftext|>", "chat_template": "%s%s"}' "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\\\n' + message['content'] + '<|im_end|>'" \
    " + '\\\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}" > base/tokenizer_config.json
mkdir bare && cp base/config.json base/model.safetensors bare/
expect 3 'bare/tokenizer.json is missing.*-tk' $train -i text.txt -e bare -b 2 -t 32 -x 1 -o never
expect 0 '--steps .*\[-2\]' $train --help -i chats.jsonl -e base
expect 0 'training tokens' $train --help -i chats.jsonl
expect 0 '\[\[it is 1 or 1<|im_end|>\]\]' $train -i chats.jsonl -e base -x 0 -o never
ok "a dry run leaves no folder" [ ! -e never ]
printf '{"messages": [{"role": "user", "content": "a\\u0000b"}, {"role": "assistant", "content": "c"}]}\n%.0s' 1 2 3 > zero.jsonl
expect 0 '^a\\x00b<|im_end|>$' $train -i zero.jsonl -e base -x 0 -o never
expect 3 'no chat template.*-ct NAME' $train -i chats.jsonl -e m2:c32h4e4k2f32a1 -o never
tune="$train -i chats.jsonl -e base -u 2 -v 5 -s 10 -g 20 -x 10 -n 5 -l 1e-2 -b 2"
rows="-t 128 -d 512"
expect 0 'conversations, 1 file.*every tenth' $tune $rows -o tuned
ok "it says how to talk to the model" grep -q 'infer_moe tuned -m chat' "$said"
ok "its sample is an answer" sh -c 'grep -A1 "^---" "$1" | grep -q "<|im_start|>user" && grep -q "^<|im_start|>assistant" "$1"' - "$said"
for name in tokenizer.json tokenizer_config.json; do ok "fine-tuning keeps $name" cmp base/$name tuned/$name; done
ok "its generation ends where the template ends an answer" grep -q '"stop_strings": \["<|im_end|>"\]' tuned/generation_config.json
rm -rf chatted && cp -r tuned chatted && rm -rf chatted/state/step-00000010
expect 0 'as encoded before' $train -o chatted -y 1
same_run tuned chatted "conversations: resumed"
rm -rf chatted/state/step-00000010 chatted/tokens.cache
expect 0 'conversations' $train -o chatted -y 1
same_run tuned chatted "conversations: resumed, encoded again"
mkdir early && head -1 tuned/log.jsonl > early/log.jsonl
expect 0 'no checkpoint was saved yet' $train -o early -y 1
same_run tuned early "conversations: killed before the first checkpoint, and started again with its saved settings"
expect 0 'fingerprint' $tune $rows -rp 1 -ng 1 -o ranks1
expect 0 'fingerprint' $tune $rows -rp 1 -ng 2 -o ranks2
same_run ranks1 ranks2 "conversations on two ranks"
expect 0 'conversations for training that are longer than -t 64' $tune -t 64 -o short
expect 3 '-sk 10: the data hold conversations' $tune -t 64 -sk 10 -o never
expect 0 fingerprint $tune -t 64 -sk auto -o unread
expect 0 'fingerprint' $train -i chats.jsonl -ct zephyr -e base -b 2 -t 128 -x 2 -s 0 -o chosen
ok "-ct leaves the template of a folder as it is" [ ! -e chosen/chat_template.jinja ]
expect 0 'fingerprint' $train -i chats.jsonl -ct chatml -e m2:c32h4e4k2f32a1 -b 2 -t 256 -x 2 -s 0 -o ours
ok "-ct saves the template with a model that had none" [ -s ours/chat_template.jinja -a -s ours/best/chat_template.jinja ]
expect 4 'tuned.* is another model than -e ours' $train -i chats.jsonl -e ours -o tuned -y 1 -x 12
expect 0 'generated 24 tokens' sh -c "printf 'say 3\n/reset\n\nsay 4\n' | $infer tuned -m chat -t 0 -n 12"
expect 0 'chat template chatml\|tokens/s' sh -c "printf 'hello\n' | $infer ours -m chat -n 5"
expect 2 'for chats' $infer tuned -ct chatml
expect 3 'a line of more than 64 MB' sh -c "$infer tuned -m chat < /dev/zero"
expect 3 'a text of more than 64 MB' sh -c "$infer tuned -i - < /dev/zero"
expect 0 'forgotten' sh -c "printf 'one\ntwo\nthree\nfour\nfive\nsix\n' | $infer tuned -m chat -c 64 -n 20"
# Control tokens that messages spell out: counted, and with -sp 1 encoded as text.
sed '3s/say 3/say <|endoftext|> and <|endoftext|>/; 4s/it is 4/it is <|endoftext|>/' chats.jsonl > spelt.jsonl
expect 0 'warning: spelt.jsonl spells out 3 control tokens, the first <|endoftext|>: encoded as control tokens.*-sp 1' $train -i spelt.jsonl -e base -b 2 -t 128 -x 2 -s 0 -o spelt
expect 0 'spells out 3 control tokens, .*: encoded as text (-sp)' $train -i spelt.jsonl -e base -b 2 -t 128 -x 2 -s 0 -sp 1 -o split
ok "other tokens, another run" [ "$(fingerprint spelt)" != "$(fingerprint split)" ]
expect 0 'as encoded before' $train -o split -y 1 -x 3
expect 4 'other data' $train -o split -y 1 -x 4 -sp 0
expect 3 '-sp 1: good.bin: .*encoded already' $train -i good.bin -e m2:c32h4e4k2f32a1 -b 2 -t 32 -x 1 -o never -sp 1
for sp in 0 1; do
    [ $sp = 0 ] && as="control tokens (-sp 1: as text)" || as=text
    expect 0 "^2 control tokens in messages are read as $as\$" sh -c "printf 'hello\n<|endoftext|>a<|endoftext|>\n' | $infer spelt -m chat -n 2 -sp $sp"
    ok "and only of the message that has them" [ "$(grep -c 'control tokens in messages' "$said")" = 1 ]
    expect 0 "spelt.jsonl spells out 3 control tokens, encoded as $as" $infer spelt -x spelt.jsonl -sp $sp
done
rm -rf spelt split chatted chosen ours base bare short ranks1 ranks2

# ---- damaged checkpoints -----------------------------------------------------------------------------------------------------

# edit SCRIPT FOLDER: changes run.json of the newest checkpoint by sed, and removes its seal, as if an old version had written it.
edit() { sed -e "$1" -e 's/, "crc32c": "[0-9a-f]*"}$/}/' "$2/$newest/run.json" > run.json && mv run.json "$2/$newest/"; }
resume() { expect "$1" "$2" $train -o "$3" -y 1; }               # resume CODE TEXT FOLDER: with the settings of the run
newest=state/step-00000060

cp -r whole x1; head -c 3000 x1/$newest/model.safetensors > cut; mv cut x1/$newest/model.safetensors
resume 0 'has 3000 bytes, expected .*trying the checkpoint before it' x1
ok "the run resumes from step 40" grep -q 'resuming .*step-00000040 at step 40' "$said"
same_run whole x1 "resumed from the checkpoint before a truncated one"
cp -r whole x2; cp -r whole x3

rm -rf x1/state/step-00000040 && overwrite x1/$newest/model.safetensors 100000 1 2 3 4
resume 4 'model.safetensors is damaged' x1
edit 's/"format": 1/"format": 2/' x2 && rm -rf x2/state/step-00000040
resume 4 'format 2.*reads format 1' x2
edit 's/"intermediate_size": 32/"intermediate_size": 48/' x3 && rm -rf x3/state/step-00000040
resume 4 'input_linear.weight has shape \[4, 64, 32\], the model needs \[4, 96, 32\]' x3

# What stands in run.json is not believed (more of it: tests/files/test_state.c).
cp -r whole x6
rm -rf x6/state/step-00000040
for change in 's/"samples": [0-9]*/"samples": -5/=samples' 's/"batch": [0-9]*/"batch": 0/=batch' 's/"step": 60/"step": 59/=step'; do
    rm -rf x7 && cp -r x6 x7 && edit "${change%=*}" x7
    resume 4 "run.json: .*${change##*=}" x7
done
edit s/x/x/ x6
resume 0 'complete' x6                  # the seal alone is missing: an old version wrote it

# A run that was killed before its first checkpoint goes on with the settings in the first line of its log.
mkdir x8 && head -1 whole/log.jsonl | sed 's/"batch": 2/"batch": 3/' > x8/log.jsonl
resume 4 'first line.*damaged.*-y 0' x8
: > x8/log.jsonl
resume 4 'first line.*damaged.*-y 0' x8

# A checkpoint knows its run: the state of another one, whole and undamaged, is named and passed over.
run_of() { sed -n 's/.*"run": "\([0-9a-f]*\)".*/\1/p' "$1" | head -1; }
ok "a run has an identity in its log and in its checkpoints" [ -n "$(run_of whole/log.jsonl)" -a "$(run_of whole/log.jsonl)" = "$(run_of whole/$newest/run.json)" ]
expect 0 'step   20/20' $some -d 256 -x 20 -o other -sd 7
ok "another run has another one" [ "$(run_of whole/log.jsonl)" != "$(run_of other/log.jsonl)" ]
cp -r other foreign; rm -rf foreign/state/*; cp -r whole/$newest foreign/state/
resume 4 "another run, $(run_of whole/log.jsonl).*log is of $(run_of other/log.jsonl).*--allow-run-change 1" foreign
cp -r other/state/step-00000020 foreign/state/
resume 0 'step-00000060 cannot be used.*another run.*trying the checkpoint before it' foreign
ok "its own checkpoint is resumed" grep -q 'resuming .*at step 20' "$said"
rm foreign/log.jsonl
resume 0 'resuming .*at step 60' foreign      # nothing says whose folder it is
ok "a log that was lost has the identity again" [ "$(run_of whole/log.jsonl)" = "$(run_of foreign/log.jsonl)" ]
cp other/log.jsonl foreign/ && expect 0 'resuming .*at step 60' $train -o foreign -y 1 --allow-run-change 1 -x 64
ok "what is resumed then belongs to this run" [ "$(run_of other/log.jsonl)" = "$(run_of foreign/state/step-00000064/run.json)" ]
cp -r whole moved
resume 0 'run of 60 steps is complete' moved    # a copy of a whole run is the same run
edit '/^  "run"/d' moved
ok "a checkpoint without an identity" [ -z "$(run_of moved/$newest/run.json)" ]
resume 0 'run of 60 steps is complete' moved    # an older program wrote it
for size in 280 300; do expect 0 fingerprint $train -i text.txt -e m2:c32h4e4k2f32n0 -tk $size -b 2 -t 32 -x 1 -s 0 -o tk$size; done
expect 0 fingerprint $train -i text.txt -e tk300 -tk tk280/tokenizer.json -b 2 -t 32 -x 60 -s 0 -o rows
resume 0 'run of 60 steps is complete' rows
edit '/^  "run"/d' rows; sed 's/"run": "[0-9a-f]*", //' rows/log.jsonl > log && mv log rows/log.jsonl
resume 4 'an older program began this run, and left the 20 rows of the vocabulary that have no token out.*--allow-data-change 1' rows
expect 0 'step   61/61' $train -o rows -y 1 -x 61 --allow-data-change 1
resume 0 'run of 61 steps is complete' rows     # it is a run of this program now
rm -rf rows tk280 tk300
rm -rf other foreign moved

# A run that diverges says so, keeps what was there before, and ends with exit code 9.
cp -r whole wild
expect 9 'the run has diverged at step 7[0-9], and did not recover' $train -o wild -y 1 -x 120 -l 10 -k constant -c 0.1
ok "it is said when it is seen, with the way back" grep -q '^warning: step 7[0-9]: the run has DIVERGED: .*checkpoint of step 60, .*train_moe -o wild -y 1 -ys 60 -l 5$' "$said"
ok "the end says so, too" grep -q '^DIVERGED  *| since step 7[0-9]; .* -ys 60' "$said"
ok "best/ is that of before" cmp -s wild/best/model.safetensors whole/best/model.safetensors
ok "the checkpoint of before stays, with -nk 2" [ "$(steps_of wild)" = "60 100 120 " ]
ok "it is an event of the log" [ "$(grep -c '"event": "diverged", "step": 7[0-9], "loss": .*"checkpoint": 60}' wild/log.jsonl)" = 1 ]
ok "and part of the end" [ "$(grep '"event": "end"' wild/log.jsonl | tail -1 | grep -c '"diverged": true')" = 1 ]
expect 9 'this run diverged at step 7[0-9]' $train -o wild -y 1
expect 4 'no checkpoint of step 59 or before; the oldest is of step 60' $train -o wild -y 1 -ys 59
expect 2 '-ys 60 .* needs -y 1' $train -o new -ys 60
expect 0 'resuming .*at step 60' $train -o wild -y 1 -ys 60 -l 1e-3 -x 80
ok "later checkpoints are gone" [ "$(steps_of wild)" = "60 80 " ]
ok "and what the log had of them" [ "$(grep -c '"event": "diverged"' wild/log.jsonl)" = 0 ]
expect 9 'the run has diverged' $train $data $model -b 2 -t 32 -d 256 -x 60 -l 10 -u 0 -k constant -c 0.1 -v 30 -s 0 -o wilder
ok "no first validation of a diverged run is the best" [ ! -e wilder/best/model.safetensors ]
ok "there is no way back but a new start" grep -q 'No checkpoint of before is there. A lower learning rate' "$said"
rm -rf wild wilder

# The top of the folder and best/ follow the newest checkpoint.
cp -r whole x9; cp x9/state/step-00000040/model.safetensors x9/; rm -rf x9/best
touch x9/.tmp-x9 x9/model.safetensors.tmp.77 x9/state/.tmp-step-80
resume 0 'complete' x9
ok "a stale model at the top is replaced" cmp -s x9/model.safetensors x9/$newest/model.safetensors
ok "best/ is there again" cmp -s x9/best/model.safetensors whole/best/model.safetensors
ok "no temporary file remains" [ -z "$(find x9 -name '*tmp*')" ]

# Best weights that cannot be saved: two attempts, the truth, and no other harm.
mkdir lost && : > lost/best
expect 5 'the weights with the best validation loss, of step [246]0, could not be saved' $run -o lost
ok "each was tried twice" [ "$(grep -c 'step 20, were not saved' "$said")" = 2 ]
same_weights() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
ok "the run itself is not harmed" same_weights lost whole
rm lost/best
resume 0 'complete' lost

cp -r whole x5
expect 4 'hidden_size 32 and 64' $train $data -e m2:c64 -o x5 -y 1
expect 4 'activation' $train -fa gelu -o x5 -y 1
expect 4 'other data than page.txt.*--allow-data-change 1' $train -i page.txt -o x5 -y 1
for size in gpt2 16k x5; do expect 3 "-tk $size: .*; expected a tokenizer.json, or a number" $train $data -o new -tk $size; done
expect 2 '-tk 300: .*x5 .*256 tokens' $train $data -o x5 -y 1 -tk 300
sed 's/"version":"1.0"/"version": "1.0"/' x5/tokenizer.json > other.json
expect 4 'other.json is not the tokenizer of the run in x5.*--allow-data-change 1' $train $data -o x5 -y 1 -tk other.json
expect 0 'run of 60 steps is complete' $train $data -o x5 -y 1 -tk x5/tokenizer.json
expect 0 "infer_moe 'two words/best' -i" $some -x 2 -o 'two words'
mv x5/tokenizer_config.json plain.json
echo '{"additional_special_tokens": ["<extra>"]}' > x5/tokenizer_config.json        # that an older program did not read
expect 4 'a file beside x5/tokenizer.json names tokens that the run in x5 began without.*--allow-data-change 1' $train $data -o x5 -y 1 -tk x5/tokenizer.json
mv plain.json x5/tokenizer_config.json
expect 0 'step   64/64' $train -i page.txt -o x5 -y 1 -x 64 --allow-data-change 1
ok "the best loss on other data is forgotten" grep -q 'counts no more' "$said"
ok "and the best weights are those of a step on these" grep -q '^best val loss .* at step 64$' "$said"
resume 0 'run of 64 steps is complete' x5
cp -r x5 blocked && rm blocked/best/model.safetensors && mkdir -p blocked/best/model.safetensors/in-the-way
expect 5 'validation loss, of step 66, could not be saved' $train -i page.txt -o blocked -y 1 -x 66 -v 1
ok "written beside the steps they are tried twice, too" [ "$(grep -c 'step 65, were not saved' "$said")" = 2 ]
rm -r blocked/best/model.safetensors
expect 0 'run of 66 steps is complete' $train -i page.txt -o blocked -y 1
ok "best weights that could not be saved are those of the last step's checkpoint" test -f blocked/best/model.safetensors
expect 0 'step   66/66' $train -i page.txt -o x5 -y 1 -x 66 -m 1
ok "so is the best loss over other tokens" grep -q 'validations are now over .* counts no more' "$said"
ok "whose best weights are again those of a step on these" grep -q '^best val loss .* at step 66$' "$said"
ok "other weights, other fingerprint" [ "$(fingerprint whole)" != "$(fingerprint x5)" ]
dense="$train $data -e d2:c32h4f32 -rs sigmoid -b 2 -t 32 -s 0 -o dense"
expect 0 fingerprint $dense -x 3
expect 0 'step    4/4' $dense -x 4 -y 1      # -rs does not matter to a dense model

cp -r whole nan; end=$(size nan/model.safetensors)
overwrite nan/model.safetensors $((end - 4)) 0 0 192 127
expect 3 'NaN or infinite' $train $data -e nan -o new
expect 4 'NaN or infinite' $infer nan -n 4
head -c 3000 nan/model.safetensors > cut && mv cut nan/model.safetensors
expect 3 'model.safetensors' $train $data -e nan -o new
expect 4 'model.safetensors' $infer nan -n 4

# With the largest finite number as the 32 weights of the last norm, whose largest input is at least 1, every gradient overflows: no step
# changes the weights.
largest="255 255 127 127"; largest="$largest $largest $largest $largest"; largest="$largest $largest"
cp -r whole loud; overwrite loud/model.safetensors $((end - 128)) $largest $largest $largest $largest
expect 9 '3 steps in a row without a finite gradient' $train $data -e loud -b 2 -t 32 -x 30 -n 1 -s 0 -mb 3 -o bad
ok "the newest checkpoint is named" grep -q 'bad holds the checkpoint of step 2' "$said"
ok "each bad step is reported with a tensor" [ "$(grep -c 'warning: step [123]: the gradient of [a-z0-9_.]* is not finite' "$said")" = 3 ]
ok "each bad step is in log.jsonl" [ "$(grep -c '"event": "skip", "step": [123], "tensor": "[a-z0-9_.]*"' bad/log.jsonl)" = 3 ]
ok "skipped steps leave the weights unchanged" [ "$(for s in bad/state/*/model.safetensors; do tail -c 100000 "$s" | cksum; done | sort -u | wc -l)" = 1 ]
ok "the last checkpoint has the initial weights" [ "$(tail -c 100000 bad/model.safetensors | cksum)" = "$(tail -c 100000 loud/model.safetensors | cksum)" ]

expect 9 'lonely holds no checkpoint' $train $data -e loud -b 2 -t 32 -x 30 -s 0 -mb 3 -o lonely
expect 9 'logits are not finite' $infer loud -n 4

# ---- requests from outside ---------------------------------------------------------------------------------------------------

endless="$train $data $model -b 2 -t 32 -d 256 -u 10 -x 1000000000 -v 1000000000 -s 0"
moving=busy
start $endless -o busy
await grep -q 'this run takes about [0-9.]* days on this CPU' "$work/log" && verdict 0 "a run that would take days is announced"
if [ -r /proc/$background/comm ]; then ok "the process is called train_moe" [ "$(cat /proc/$background/comm)" = train_moe ]
else skipped "no /proc/PID/comm: the name of the process"; fi
if [ -r /proc/$background/schedstat ]; then
    for i in $(seq $((2 * $(getconf _NPROCESSORS_ONLN)))); do (ulimit -t 20; while :; do :; done) & task="$task $!"; done
    await grep -q 'other programs are using this machine' "$work/log" && verdict 0 "a busy machine is noticed"
    kill $task; wait $task 2> /dev/null; task=
else skipped "no /proc/PID/schedstat: a busy machine"; fi
expect 2 'another run' $run -o busy
for resume in 1 0; do expect 2 'in use by another trainer (process' $run -o busy -y $resume; done
kill -USR1 $background && await grep -q 'saved step' "$work/log"
saved=$(sed -n 's/^saved step \([0-9]*\).*/\1/p' "$work/log" | head -1)
ok "SIGUSR1 saves a checkpoint" [ -f busy/state/step-"$(printf %08d "$saved")"/run.json ]
await grep -q "step *$((saved + 20))/" "$work/log"
ok "the run continues after SIGUSR1" kill -0 $background
kill -HUP $background; kill -TERM $background
ends 75 "SIGHUP is ignored and SIGTERM stops the run"
ok "it prints how to resume" grep -q 'to continue:.*-o busy -y 1' "$work/log"
ok "it saves a checkpoint of its last step" grep -q "\"step\": $(tail -1 busy/main.log | sed 's/s:\([0-9]*\).*/\1/')," "$(ls -d busy/state/* | tail -1)/run.json"
start $train -o busy -y 1
await grep -q 'step *[0-9]*/' "$work/log" && touch busy/STOP
ends 75 "a STOP file stops the run"
moving=none
ok "the STOP file is consumed" [ ! -e busy/STOP ]

start $some -d 1280000 -o torn             # one step takes half a minute
await grep -q '"start"' torn/log.jsonl && sleep 0.1
kill -INT $background && await grep -q 'finishing step 1, then saving; Ctrl-C again stops at once' "$work/log" && verdict 0 "SIGINT is answered at once"
ok "after SIGINT the step is finished first" kill -0 $background
kill -INT $background
ends 130 "a second SIGINT stops the run at once"
ok "no partial checkpoint remains" [ -z "$(steps_of torn)" ]
expect 0 'no checkpoint was saved yet; starting from the beginning' $train -o torn -y 1 -d 256 -x 60
same_run whole torn "restarted from the beginning with its saved settings"
start $train -i good.bin $model -b 2 -t 32 -d 1280000 -x 3 -s 0 -o torn2
await grep -q '"start"' torn2/log.jsonl; kill -9 $background
ends 137 "a run on tokens is killed before its first checkpoint"
expect 0 'step    3/3' $train -o torn2 -y 1 -d 64

expect 0 fingerprint $slow -o long
for signal in INT TERM USR2; do
    start $slow -o stop$signal
    await grep -q 'step    [3-9]/' "$work/log" && kill -$signal $background
    ends 75 "SIG$signal stops the run"
    resume 0 fingerprint stop$signal
    same_run long stop$signal "stopped by SIG$signal and resumed"
done

{ limited $run -o piped; echo $? > code; } 2>&1 | head -1 > /dev/null
ok "the run survives when the reader of stdout exits" [ "$(cat code)" = 0 ]
same_run whole piped "with a stdout that was closed by its reader"
limited sh -c 'exec "$@" >&- <&- 2>&-' sh $run -o closed
ok "the run survives a closed stdout" [ $? = 0 ]
same_run whole closed "with stdin, stdout and stderr closed"

# ---- checkpoints by time, long validations ----------------------------------------------------------------------------------

# The interval is short here; by default it is two minutes, and half of it before the first.
start $slow -nt 0.05 -o timed
await grep -q '^saved step' "$work/log" && await grep -q 'step *[1-5][0-9]/' "$work/log"
kill -9 $background; ends 137 "a run that saves by time is killed"
at=$(steps_of timed | tr ' ' '\n' | tail -2 | head -1)
ok "what it saved by time is there: step $at" [ "$at" -ge 1 ]
ok "and that one alone" [ "$(steps_of timed | wc -w)" -le 2 ]
resume 0 'resuming .*step' timed
same_run long timed "killed between checkpoints by time"            # at any moment: faults.sh
seq 60 > a; sed -n 's/^s:\([0-9]*\) trl.*/\1/p' timed/main.log > b
ok "every step is in main.log once" cmp -s a b
cp -r timed killed
expect 0 fingerprint $slow -nt 0.05 -n 20 -nk 1 -o timed -y 0
ok "by steps and by time: of the latter only the newest stays" [ "$(steps_of timed)" = "60 " ]
same_run long timed "saved by time"
expect 0 'kill -9 would lose .* at most 7 s of work (-nt), 3.5 s before the first checkpoint, or 20 steps (-n)' $some -nt 7 -n 20 -x 0
expect 0 'kill -9 would lose .* all work' $some -nt 0 -x 0
expect 0 'kill -9 would lose .* at most 120 s' $some -x 0

# A stop request ends a long validation, which the resumed run repeats.
for i in 1 2 3 4; do cat "$root"/llmc/*/*.c; done | head -c 1500000 > much.txt
patient="$train -i much.txt $model -b 2 -t 32 -d 256 -u 10 -v 20 -s 20 -g 20"
expect 0 'validation reads .* the first 131072 of its 150000 tokens (-m -1: all)' $patient -x 0
ok "a short split is validated as a whole" [ -z "$($some -x 0 | grep 'validation reads')" ]
expect 0 fingerprint $patient -x 40 -m 1500 -o long2
for step in 20 40; do
    start $patient -x 40 -m 1500 -o patient
    await grep -q "step   $step/" "$work/log" && kill -INT $background
    ends 75 "SIGINT stops a run in the validation of step $step"
    ok "which was not completed" grep -q '"unvalidated": 1' patient/state/step-000000$step/run.json
    resume 0 fingerprint patient
    same_run long2 patient "stopped in the validation of step $step and resumed"
    ok "with the same best weights" same_weights long2/best patient/best
    rm -rf patient
done
# Windows left out: what the steps do not read, kept when the run goes on with more steps; the same for two ranks.
skips="$train -i much.txt $model -b 2 -t 32 -d 256 -u 2 -v 10 -m 2 -s 0 -sk auto"
expect 0 'windows .* 20 % of the text' $skips -rp 1 -ng 1 -x 10 -o skip1
expect 0 'windows .* 20 % of the text' $skips -rp 1 -ng 2 -x 10 -o skip2
same_run skip1 skip2 "windows left out, on two ranks"
expect 4 'other data' $train -o skip1 -y 1 -x 12 -sk 0
expect 0 'windows .* 20 % of the text' $train -o skip1 -y 1 -x 12
expect 0 'windows .* 3 % of the text' $train -i much.txt $model -b 2 -t 32 -d 256 -s 0 -v 10 -m 2 -sk 3 -x 10 -o skip3
expect 0 'windows .* 3 % of the text' $train -o skip3 -y 1 -x 12 -sk auto
mkdir skip4 && head -1 skip3/log.jsonl > skip4/log.jsonl
expect 0 'windows .* 3 % of the text' $train -o skip4 -y 1 -sk auto
rm -rf skip1 skip2 skip3 skip4
expect 0 'eta 0:0*[1-9]' $train -i much.txt $model -b 1 -t 8 -x 1 -v 1 -m -1 -s 0 -o patient      # that of the validation

# ---- several ranks: threads and processes ------------------------------------------------------------------------------------

# alike A B WHAT: every loss agrees within 1e-5.
alike() {
    for f in "$1" "$2"; do sed 's/ lr:.*//; s/s:\([0-9]*\) \(t[re]l\):/\1 \2 /' "$f/main.log"; done | sort -k2,2 -k1,1n > "$work/a"
    ok "$3: the same losses, within 1e-5" awk '{ k = $1 $2; if (k in x) { n++; d = x[k] - $3; if (!(d <= 1e-5 && d >= -1e-5)) bad++ } else x[k] = $3 } END { exit !(n >= 40 && n == NR / 2 && !bad) }' "$work/a"
}
# 12 sequences a step; with other seeds a tie of two experts may fall otherwise before step 40
shared="$train $data $model -t 32 -u 10 -s 0 -dv cpu -d 384 -sd 2"
expect 0 fingerprint $shared -x 40 -v 20 -b 12 -o r1
expect 0 "optimizer state sharded over 4 ranks" $shared -x 40 -v 20 -b 3 -ng 4 -n 20 -o r4
alike r1 r4 "4 ranks"
expect 0 'state, gradients and weights sharded over 4 ranks' $shared -x 40 -v 20 -b 3 -ng 4 -z 3 -n 20 -o r4z3
alike r1 r4z3 "4 ranks, each with a quarter of everything"
expect 0 fingerprint $shared -x 40 -v 20 -b 3 -ng 4 -z 3 -zn 2 -n 20 -o r4n3
alike r1 r4n3 "two nodes of 2 ranks, -z 3"
ordered="$shared -rp 1 -b 3 -x 25 -v 20 -dr 0.1 -rb 1e-3"              # 4 micro-batches, split across the ranks
expect 0 fingerprint $ordered -ng 1 -o o1
expect 0 fingerprint $ordered -ng 4 -o o4
same_run o1 o4 "-rp 1: 4 ranks give the bits of one"
expect 0 fingerprint $ordered -wo muon -ng 1 -o u1
expect 0 'weights sharded over 2 ranks of a node, alike in each of 2 nodes, -z 3 -zn 2; in all ' $ordered -wo muon -ng 4 -z 3 -zn 2 -o u43n
same_run u1 u43n "-rp 1 -wo muon: two nodes of 2 ranks that shard weights"
ok "with the same files" cmp -s u1/state/step-00000025/optimizer.safetensors u43n/state/step-00000025/optimizer.safetensors
samples="$train $data $model -t 32 -u 10 -dv cpu -d 384 -rp 1 -b 2 -x 20 -v 20 -m 7 -s 10 -g 40"    # the validation's 7 batches are not a multiple of 3
shown() { grep '"sample"' "$1/log.jsonl"; }
expect 0 fingerprint $samples -ng 1 -o s1
expect 0 fingerprint $samples -ng 3 -z 3 -o s3
same_run s1 s3 "-z 3 on 3 ranks"
ok "-z 3 on 3 ranks: the samples of one" [ -n "$(shown s1)" -a "$(shown s1)" = "$(shown s3)" ]
expect 0 fingerprint $shared -b 3 -x 25 -v 20 -dr 0.1 -rb 1e-3 -ng 4 -o o4plain
ok "without -rp 1 the bits differ" [ "$(fingerprint o4plain)" != "$(fingerprint o4)" ]
expect 2 'depends on positions in memory' $train $data $model -dv cpu-bf16 -rp 1 -mw 0 -x 0
rm -rf r4/state/step-00000040 && cp -r r4 r43 && cp -r r4 r41
expect 0 'step-00000020 at step 20' $train -o r4 -y 1 -ng 4
expect 0 '-b 2 instead of 3: the steps of this run have 384 tokens' $train -o r43 -y 1 -ng 3
expect 2 'steps of this run have 384 tokens.*-b 4 would do' $train -o r41 -y 1 -b 5
expect 0 'step-00000020 at step 20' $train -o r41 -y 1 -b 12
alike r1 r41 "saved on 4 ranks, resumed on 1"
rm -rf r4z3/state/step-00000040
expect 0 'step-00000020 at step 20' $train -o r4z3 -y 1 -ng 3 -z 3 -b 4
alike r1 r4z3 "saved with -z 3 on 4 ranks, resumed so on 3"
expect 2 '-zn 3: 4 ranks are not nodes of 3 ranks each' $shared -b 3 -ng 4 -z 3 -zn 3 -o new
expect 2 'expected auto, or a whole number from 0 to 3' $train -z 4
plan="$train $data -x 0 -dv cuda -ng 4 -e m12:e64k8f256 -b 2 -t 512"
expect 0 'optimizer state sharded over 4 ranks, -z 1; in all -z 0: .*, -z 3: ' $plan -gm 8
expect 0 'state and gradients sharded over 4 ranks, -z 2' $plan -gm 4
expect 0 'gradients and weights sharded over 4 ranks, -z 3' $plan -gm 3.5
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: .*-z 3: ' $plan -gm 4 -z 1
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: -mw 0 -mo bf16 -ga momentum: .*, 8 GPUs (-ng, or several machines) with -z 3 -r auto -ga momentum: .* each. Otherwise shorter' $plan -gm 2 -r 0
expect 0 'DOES NOT FIT: .* MB are missing. Only shorter sequences' $plan -gm 0.01
hosts="env WORLD_SIZE=2 RANK=0 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=192.0.2.1 $plan"
expect 0 'optimizer state sharded over 8 ranks, -z 1; .* -z 3 -zn 0: .* -z 3 -zn 4: ' $hosts -gm 8
expect 0 'weights sharded over 4 ranks of a node, alike in each of 2 nodes, -z 3 -zn 4' $hosts -gm 3.5
expect 0 'gradients and weights sharded over 8 ranks, -z 3 -zn 0' $hosts -gm 2.4
expect 0 'DOES NOT FIT: .* MB are missing. This would fit: .*-z 3 -zn 0: ' $hosts -gm 2.4 -z 3
expect 0 'sharded over 4 ranks of a node' $hosts -z 3
huge="$train $data -dv cpu -ng 2 -b 1 -t 32 -e m48:c4096h32e256k8f2048"
expect 7 'rank [01] of 2: cpu-f32 does not have the .* MB that this run needs with -z 1; it has .* MB' $huge -z 1 -o new
expect 7 'needs with -z 3; it has' $huge -o new
expect 2 'multiple of B\*T = 5\*32, times the ranks' $shared -x 40 -v 20 -b 5 -ng 2 -o new
expect 0 'sharded over 4 ranks' $shared -x 0 -b 3 -ng 4
expect 0 '= 6 x 128 x 1 micro-batches x 4 ranks' $train $data $model -dv cpu -x 0 -ng 4

port=$((20000 + $$ % 12000))            # below those that systems give to connections: one to itself would occupy it
silence=60                              # a limit that is not tested here: on a busy machine 2 s pass without a sign of life
for signal in TERM USR2; do             # while it waits for another process
    start $shared -x 40 -v 20 -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 0 -pt $silence -o early$signal
    await [ -e early$signal.secret ] && kill -$signal $background
    ends 75 "SIG$signal stops a run that has not begun"
    ok "and it says so" grep -q 'stopped before the first step' "$work/log"
done
pair() {                                # pair FOLDER OPTIONS...: two processes of two ranks each
    folder=$1; shift; port=$((port + 1)); : > "$work/log2"
    start $shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 0 -pt $silence -o "$folder" "$@"
    $shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 1 -pt $silence -o "$folder" "$@" >> "$work/log2" 2>&1 < /dev/null & other=$!
}
end_both() {                            # end_both CODE CODE2 WHAT
    ends "$1" "$3"
    reap $other; other=
    ok "$3, and the second process (exit code $got, expected $2)" [ $got = "$2" ]
}
pair r22 -x 40 -v 20 -n 20; end_both 0 0 "two processes of two ranks"
same_run r4 r22 "4 ranks in two processes instead of one"
ok "only the first process prints" [ ! -s "$work/log2" ]
ok "the secret is in a file that only its owner reads" [ "$(ls -l r22.secret | cut -c1-10)" = -rw------- ]
pair r22wild -x 60 -v 100 -l 10 -k constant -c 0.1; end_both 9 9 "two processes whose run diverges"
ok "where the time of the start went is an event" grep -q '"event": "begun", "settings and folder": [0-9.e-]*, .*"ranks": .*"weights": .*"first step": [0-9.]*, "seconds": ' r22/log.jsonl
took='"seconds": \([5-9]\|[1-9][0-9][0-9]*\)[.}]'       # 5 or more: so long is also the start of a machine that is busy
ok "a short start is no line" [ "$(grep -c '^the start took' "$work/log")" = "$(grep '"event": "begun"' r22wild/log.jsonl | grep -c "$took")" ]
port=$((port + 1))
start $shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 0 -pt 5 -o later -x 1
sleep 5.5
$shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 1 -pt 5 -o later -x 1 > "$work/log2" 2>&1 < /dev/null & other=$!
end_both 0 0 "a process that starts 5 s later"
ok "a long start says what it waited for" grep -q '^the start took [0-9.]* s:.* ranks [0-9.]*' "$work/log"
expect 2 'export MOE_SECRET=' $shared -b 3 -ng 2 -pn 2 -pr 0 -ps 192.0.2.1 -x 40 -o new
MOE_SECRET=0123456789abcdef; export MOE_SECRET
pair r23 -x 2 -v 20; end_both 0 0 "two processes with MOE_SECRET"
ok "which need no file" [ ! -e r23.secret ]
# A host that has room for the model, but not for a copy of what is saved: then no host makes one.
if unshare -m true 2> /dev/null; then
    plan=$($shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pr 0 -pt $silence -x 0 -o lean | awk '$2 == "total" { print int($4 * 2.4e3) }')
    sed "s/^MemAvailable:.*/MemAvailable: $plan kB/" /proc/meminfo > "$work/meminfo"; port=$((port + 1))
    start $shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 0 -pt $silence -x 4 -n 2 -o lean
    unshare -m sh -c 'mount --bind "$0" /proc/meminfo && exec "$@"' "$work/meminfo" $shared -b 3 -ng 2 -pn 2 -ps 127.0.0.1 -pp $port -pr 1 -pt $silence \
        -x 4 -n 2 -o lean >> "$work/log2" 2>&1 < /dev/null & other=$!
    end_both 0 0 "two hosts, of which one has no room for a copy"
    ok "which is said" grep -q 'the host of another rank has no room for a copy' "$work/log"
else skipped "no unshare(1), or not root: no host with less memory"; fi
unset MOE_SECRET
moving=r5
pair r22m -x 25 -v 20 -dr 0.1 -rb 1e-3 -rp 1 -wo muon -z 3 -zn 2; end_both 0 0 "two processes as two nodes, -rp 1 -wo muon"
same_run u1 r22m "-rp 1 -wo muon: two nodes, each a process, give the bits of one rank"
pair r5 -x 1000000 -v 1000000 -n 20 -z 3; await grep -q 'saved step 20' "$work/log" && kill -9 $other
end_both 8 137 "a process that is killed ends the run"
ok "the message names the ranks" grep -q 'rank.* 2 .*ended before the run' "$work/log"
ok "and how to continue" grep -q 'the same command with -y 1' "$work/log"
expect 0 'at step [0-9]*0' $train -o r5 -y 1 -x 200
pair r7 -x 1000000 -v 1000000; await grep -q 'step  *20/' "$work/log" && kill -TERM $other
end_both 75 75 "a stop request to any process stops all"
ok "both stop after the same step, with a checkpoint" [ "$(steps_of r7)" = "$(tail -1 r7/main.log | sed 's/s:\([0-9]*\).*/\1/') " ]
moving=none

# ---- the disk is full --------------------------------------------------------------------------------------------------------

( ulimit -f 400; limited $run -o limited -n 20 > "$said" 2>&1 )         # blocks of 512 bytes: the optimizer's file does not fit
ok "no checkpoint can be written: exit code 5" [ $? = 5 ]
ok "the message gives the reason" grep -q 'step 20 was not saved.*File too large' "$said"
ok "the run continues to its end" grep -q 'step   60/60' "$said"
ok "no partial checkpoint remains" [ -z "$(steps_of limited)" -a -z "$(find limited -name '*tmp*')" ]

mkdir disk
if mount -t tmpfs -o size=2200k tmpfs disk 2> /dev/null; then
    mounted=$work/here/disk
    grew() { [ "$(steps_of disk/out)" != "$kept" ]; }
    moving=disk
    start $endless -o disk/out
    await grep -q 'step   *20/' "$work/log"
    kill -USR1 $background; await grep -q 'saved step' "$work/log"
    kept=$(steps_of disk/out)
    head -c 1400000 /dev/zero > disk/ballast
    kill -USR1 $background; await grep -q 'was not saved; .* holds the checkpoint of step .*needs .* MB free' "$work/log"
    ok "on a full disk the previous checkpoint is kept" [ "$(steps_of disk/out)" = "$kept" ]
    rm disk/ballast
    kill -USR1 $background; await grew
    kill -TERM $background
    ends 75 "with space again it saves and stops"
    rm -rf disk/out
    start $slow -n 20 -o disk/out
    await [ -d disk/out/state/step-00000020 ] && head -c 1400000 /dev/zero > disk/ballast
    ends 5 "a run whose disk fills up ends with an error"
    ok "the message names the missing checkpoint" grep -q 'the last checkpoint could not be saved' "$work/log"
    ok "that run continues to its end" grep -q 'step   60/60' "$work/log"
    rm disk/ballast
    resume 0 fingerprint disk/out
    moving=none
    same_run long disk/out "resumed from the last checkpoint before the disk was full"
    umount disk && mounted=
else skipped "no small disk can be mounted here: only a limit on file sizes was tested"; fi

# ---- watching and checks -----------------------------------------------------------------------------------------------------

for how in "$model -t 8" "$model -t 1" "$model -tk 300 -t 8" '-e m1:c128h2e2f128 -pe fp8-all -t 4'; do
    expect 0 'gradient check passed: 0 bad tensors' $train $data $how -gc 1 -o new
done
expect 9 'router.layer.weight .* it is zero everywhere' $train $data -e m1:c32h4e4k1 -ra 0 -rz 0 -gc 1 -o new
ok "-gc creates nothing" [ ! -e new ]
seq 1000 2000 > numbers.txt                             # a fixed text: the final loss depends on it
expect 0 'step  300/300' $train -i numbers.txt $model -b 4 -t 32 -x 300 -u 10 -l 1e-2 -a 1 -v 1000 -m 1 -s 0 -o overfit
last=$(tail -2 overfit/main.log | sed -n 's/s:300 trl:\([0-9.]*\).*/\1/p')
ok "-a 1 overfits one batch: loss $last" awk "BEGIN { exit !($last < 0.05) }"
expect 0 'routes\|round robin' $train $data $model -b 4 -t 32 -x 5 -m 1 -s 0 -rf 1 -o forced
ok "-rf 1: every expert gets the same number of tokens" [ "$(grep -c 'max:1.00 dead:0' forced/main.log)" = 5 ]
expect 0 'tile waste [1-9].* 0.0 % as rounded' $train $data $model -b 16 -t 32 -x 8 -v 4 -m 1 -s 0 -n 4 -nk 3 -rt nearest -o rounded
cp -r rounded rounded2 && rm -rf rounded2/state/step-00000008
resume 0 'step    8/8' rounded2
same_run rounded rounded2 "rounded routing, resumed"
expect 2 'field b: attention experts that every token has were removed' $train $data -e m2:c32h3e4a4x2b1 -o new
for rule in stochastic up down; do expect 2 "rt $rule was removed: -rt nearest" $train $data $model -rt $rule -o new; done
expect 0 'step    8/8' $train $data -e m1:c128h4e4k2f128 -b 4 -t 32 -x 8 -v 4 -m 1 -s 0 -n 4 -nk 3 -pe fp8-all -o eight
for copy in eight2 eight3; do cp -r eight $copy && rm -rf $copy/state/step-00000008; done
resume 0 'step    8/8' eight2
same_run eight eight2 "experts in 8 bits, resumed"
expect 0 'step    8/8' $train $data -o eight3 -y 1 -pe bf16
ok "a run in 8 bits goes on without them" [ "$(fingerprint eight)" != "$(fingerprint eight3)" ]
expect 0 'experts in e4m3 .* none: smaller than .*fp8-all' $train $data -e m1:c128h4e4k2f128 -b 4 -t 32 -pe fp8 -x 0
expect 0 'experts in e4m3 .* all products, of 4096 rows' $train $data -e m2:c2048h16e64k8f1024 -b 32 -t 1024 -pe fp8 -x 0
for device in cpu-bf16 'cpu-bf16 -mw 0 -mo bf16 -mg f32' cpu-f64 'cpu-f32 -wo muon' 'cpu-bf16 -wo muon -mw 0 -mo bf16 -wn 0.9 -e1 0.5 -wl 0' \
        'cpu-bf16 -wo muon -mw 0 -mo bf16 -ga momentum -d 192' 'cpu-bf16 -mw 0 -mo int8 -wp 2 -ga momentum -d 192' \
        'cpu-f32 -mo int8'; do
    expect 0 fingerprint $some -x 20 -dv $device -o once
    expect 0 fingerprint $some -x 20 -dv $device -n 10 -nk 9 -o twice
    rm -rf twice/state/step-00000020
    resume 0 "resuming .*step 10" twice
    same_run once twice "resumed on $device"
    rm -rf once
    [ "$device" = 'cpu-f32 -wo muon' ] && mv twice muon
    rm -rf twice
done
owners="$some -x 20 -dv cpu-bf16 -mw 0 -mo bf16 -ga momentum -ng 2"
expect 0 'state and gradients sharded over 2 ranks, -z 2; ' $owners -o owners
expect 0 fingerprint $owners -n 10 -nk 9 -o owners2 && rm -rf owners2/state/step-00000020
expect 0 'resuming .*step 10' $train -o owners2 -y 1 -ng 2
same_run owners owners2 "owners add to their momentum: resumed"
cp -r muon absorbed
expect 0 'norms are of the gradients of what AdamW updates' $train -o absorbed -y 1 -x 25 -ga momentum
expect 0 fingerprint $train -o absorbed -y 1 -x 30 -ga gradients
expect 0 'state and gradients sharded over 2 ranks, -z 2' $train -o absorbed -y 1 -x 35 -ga momentum -ng 2 -b 1
expect 0 fingerprint $train -o absorbed -y 1 -x 40 -ga momentum -b 2
rm -rf absorbed
cp -r muon coded
expect 0 'state is in F32 and was converted' $train -o coded -y 1 -x 25 -mo int8
expect 0 'state is in I8 and was converted' $train -o coded -y 1 -x 30 -mo f32
rm -rf coded
expect 2 'mo int8: only Muon.s momentum .* -wo adamw has none' $train $data $model -wo adamw -mo int8 -o new
expect 2 'rp 1: not with .* -mo int8' $train $data $model -rp 1 -mo int8 -o new
expect 2 'mo int8: .* has matrices of 21 x 16 elements' $train $data -e d1:c16h4f21 -mo int8 -o new
expect 2 'ga momentum: .* which -wo adamw has not' $train $data $model -wo adamw -ga momentum -o new
expect 2 'ga momentum: not with -z 0 or 1 on several ranks, .* or -z 2' $train $data $model -b 2 -ng 2 -dv cpu -z 1 -ga momentum -o new
expect 2 'ga momentum: not with nodes (-zn), .* or -zn 0' $train $data $model -b 2 -ng 4 -dv cpu -z 3 -zn 2 -ga momentum -o new
expect 0 'state and gradients sharded over 8 ranks, -z 2 -zn 0' $hosts -ga momentum -gm 80
expect 2 'ga momentum: not with -rp 1, ' $train $data $model -rp 1 -ga momentum -o new
expect 2 'ga momentum: .* -wl 0, or -ga gradients' $train $data $model -wl 1 -ga momentum -o new
expect 0 'ga momentum, chosen by the plan' $train $data -e m12:e64k8f256 -gm 4.6 -dv cuda -mw 0 -mo bf16 -d 65536 -x 0
expect 0 'wm  momentum        | 0.64$' $train $data $model -ga momentum -x 0 -o new
expect 0 'wm  momentum        | 0.7  ' $train $data $model -ga momentum -wm 0.7 -x 0 -o new
expect 4 'has no v of model.layers.0.self_attention.kv_proj.weight.*-wo muon' $train -o muon -y 1 -x 25 -wo adamw
expect 0 fingerprint $train -i good.bin $model -b 2 -t 32 -x 8 -n 4 -nk 3 -l 0.00123456789 -dr 0.1 -rb 1e-3 -rs sigmoid -o ids
rm -rf ids/state/step-00000008 && cp -r ids ids2
resume 0 'step    8/8' ids2
same_run ids ids2 "a run on tokens with dropout and selection bias, resumed"

if command -v python3 > /dev/null; then
    cat whole/log.jsonl killed/log.jsonl bad/log.jsonl ids2/log.jsonl > all.jsonl
    ok "every line of log.jsonl is JSON" python3 -c 'import json, sys
for line in open("all.jsonl", encoding="utf-8"): json.loads(line, parse_constant=lambda x: sys.exit(x + " is not JSON"))'
else skipped "no python3: log.jsonl was not parsed"; fi
ok "every line of main.log has the documented form" [ "$(cat whole/main.log killed/main.log | grep -cvE '^s:[0-9]+ (trl:[0-9.]+ lr:[0-9.]+ norm:[0-9.]+ bal:[0-9.]+ max:[0-9.]+ dead:[0-9]+|tel:[0-9.]+)$')" = 0 ]
ok "report.html is complete" grep -q '</html>' whole/report.html

# ---- infer_moe ---------------------------------------------------------------------------------------------------------------

expect 4 'To train one: ./train_moe' sh -c "cd void && exec $infer"
expect 4 'no such folder' $infer nowhere
expect 4 'no model in this folder' $infer void
expect 2 'nearest is' $infer whole --temprature 1
expect 2 'expected' $infer whole -t -1
expect 2 'not an option' $infer whole other
expect 3 'nowhere.txt' $infer whole -x nowhere.txt
# Whatever is in a file's place, nothing waits for it.
if mkfifo pipe 2> /dev/null; then
    expect 3 'pipe: not a regular file but a pipe' $infer whole -x pipe
    expect 3 'pipe: not a regular file but a pipe' $infer whole -ev pipe
    expect 3 'pipe: not a regular file but a pipe' $infer whole -i @pipe
    expect 3 'pipe: not a regular file but a pipe' $infer whole -z pipe -n 3
    expect 2 'pipe: not a regular file but a pipe' $infer whole -m chat -ct pipe
    expect 2 'pipe: not a regular file but a pipe' $train $model -i text.txt -cf pipe -o piped2
    expect 3 'pipe: not a regular file' $train $model -i text.txt -tk pipe -o piped2
    expect 3 'pipe: not a regular file but a pipe' $train $model -i pipe -o piped2
    for file in config model tokenizer tokenizer_config generation_config; do
        code=3; case $file in config|model) code=4 ;; esac
        file=$file.$(case $file in model) echo safetensors ;; *) echo json ;; esac)
        cp -r whole odd && rm -f odd/$file && mkfifo odd/$file
        expect $code "odd/$file: not a regular file but a pipe" $infer odd -n 3
        rm odd/$file && ln -s /dev/zero odd/$file
        expect $code "odd/$file: not a regular file but a device" $infer odd -n 3
        rm odd/$file && mkdir odd/$file
        expect $code "odd/$file: not a regular file but a folder" $infer odd -n 3
        rm -r odd
    done
    for file in model.safetensors optimizer.safetensors run.json; do
        cp -r whole odd && rm odd/state/step-00000060/$file && mkfifo odd/state/step-00000060/$file
        expect 0 "$file: not a regular file but a pipe.*trying the checkpoint before it" $train -o odd -y 1 -d 64
        rm -r odd
    done
    cp -r whole odd && rm odd/main.log && mkfifo odd/main.log
    expect 5 'odd/main.log: a pipe that nobody reads' $train -o odd -y 1 -x 61 -d 64
    rm -r odd pipe
fi
expect 3 'nowhere.txt' $infer whole -i @nowhere.txt
expect 3 'tokens' $infer whole -x empty.txt
expect 0 'odd.json looks like JSON' $infer whole -x odd.json
{ head -c 300 /dev/zero; head -c 300 text.txt; } > zeros
expect 0 "'.x00' 100%" $infer whole -x zeros -v 3
expect 4 'no such folder (a prompt is given with -i)' $infer 'ROMEO:'
cp -r whole/state/step-00000040 stepped
expect 4 'stepped: this is the state of a run.*config.json and tokenizer.json' $infer stepped
cp whole/config.json whole/tokenizer.json stepped/ && expect 0 'generated 3 tokens' $infer stepped -n 3
( ulimit -f 0; limited $infer whole -n 4 -v 0 > "$work/full" 2> "$said" )
ok "infer_moe on a full disk: exit code 5" [ $? = 5 ]
limited $infer whole -n 4 -v 0 >&- 2> "$said"
ok "infer_moe without stdout: exit code 5" [ $? = 5 ]
{ limited $infer whole -n 4000 -v 0 -s 1 2> "$said"; echo $? > code; } | head -c 5 > /dev/null
ok "infer_moe whose reader goes ends by SIGPIPE, without a word" [ "$(cat code)" = 141 -a ! -s "$said" ]
mkdir deep && sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1000000000/' whole/config.json > deep/config.json && cp whole/model.safetensors deep/
expect 4 'num_hidden_layers\|layers' $infer deep -n 4
cp -r whole out
expect 0 'model out/best' $infer -n 3 -s 1
limited $infer -t 0 -n 40 -i 'static ' > greedy 2> /dev/null
limited $infer -t 0 -n 40 -i 'static ' > greedy2 2> /dev/null
ok "-t 0 repeats its text" cmp -s greedy greedy2
ok "prompt and 40 tokens are at least 47 bytes" [ "$(size greedy)" -ge 47 ]
limited $infer -s 7 -n 40 > a 2> /dev/null; limited $infer -s 7 -n 40 > b 2> /dev/null; limited $infer -s 8 -n 40 > c 2> /dev/null
ok "same seed, same text" cmp -s a b
ok "another seed, another text" [ "$(cksum < a)" != "$(cksum < c)" ]
expect 0 'context of 32 tokens is full' $infer -n 0 -s 1 -i 'int'
expect 0 'generated 5 tokens' $infer -n 5 -i "$(bytes 255 254 65 195)" -s 1
expect 0 'last 32 are read' $infer -n 2 -i "$(head -c 300 text.txt)" -s 1

# Names from outside reach the terminal without what it would obey: ESC, and U+009B.
evil=$(printf 'evil\033]0;title\007\302\233[31m')
harmless() { ok "$1" sh -c '! tr -d "\n\t\040-\176\240-\377" < "$0" | tr -d "\200-\237" | grep -q . && ! grep -q "$(printf "\302[\200-\237]")" "$0"' "$said"; }
cp -r whole "$evil"
expect 0 'model evil.*]0;title' $infer "$evil" -n 1 -s 1
harmless "infer_moe names its folder without control characters"
cp text.txt "$evil.txt"
expect 0 'evil.*]0;title.*txt' $train -i "$evil.txt" -j val.txt $model -b 2 -t 32 -x 0
harmless "train_moe names its data without control characters"
cp whole/config.json config.kept
sed 's/"model_type": "[a-z]*"/"model_type": "x\\u001b[31m\\u009b"/' config.kept > "$evil/config.json"
expect 4 'model_type "x' $infer "$evil" -n 1
harmless "infer_moe names a kind of model without control characters"
sed 's/"ByteLevel"/"x\\u001b[31m\\u009b"/g' whole/tokenizer.json > bad.json
expect 3 'x.*31m' $infer whole -z bad.json -n 1
harmless "infer_moe names a part of a tokenizer without control characters"

# infer_moe -x uses the windows of the trainer's validation, so only the order of the sum differs.
expect 0 'bits/byte' $infer whole -x val.txt
theirs=$(sed -n 's/.*loss \([0-9.]*\) nats.*/\1/p' "$said") ours=$(tail -1 whole/main.log | sed 's/.*tel://')
ok "infer_moe -x has the loss of the trainer's validation: $theirs and $ours" awk "BEGIN { d = $theirs - $ours; exit !(d < 2e-5 && d > -2e-5) }"
theirs=$(sed -n 's/.*bits\/byte \([0-9.]*\).*/\1/p' "$said") ours=$(grep '"event": "val", "step": 60' whole/log.jsonl | sed 's/.*bits_per_byte": \([0-9.]*\).*/\1/')
ok "infer_moe -x has its bits per byte: $theirs and $ours" awk "BEGIN { d = $theirs / $ours - 1; exit !(d < 1e-3 && d > -1e-3) }"

# Weights in 8 bits: almost the same loss, dealt out or not.
expect 0 'weights in 8 bits' $infer whole -x val.txt -pe fp8
theirs=$(sed -n 's/.*loss \([0-9.]*\) nats.*/\1/p' "$said") ours=$(tail -1 whole/main.log | sed 's/.*tel://')
ok "infer_moe -pe fp8 has nearly that loss: $theirs and $ours" awk "BEGIN { d = $theirs / $ours - 1; exit !(d < 1e-2 && d > -1e-2 && d != 0) }"
expect 0 '' $train $data -e m2:c32h4e4k2f24a4x2 -b 2 -t 32 -u 1 -x 1 -o narrow
expect 2 'rows of a multiple of 16 elements, and those of .* have 24' $infer narrow -x val.txt -pe fp8

# Layers dealt out over pretended devices: the same text, loss and answers.
for how in "-t 0 -n 40" "-s 7 -n 40 -r 2 -pe fp8" "-x val.txt" "-s 2 -n 0"; do
    limited $infer whole -dv cpu $how > one.txt 2> /dev/null; limited $infer whole -dv cpu $how -ng 2 > dealt.txt 2> "$said"
    ok "infer_moe $how -ng 2 prints the same" sh -c 'cmp -s one.txt dealt.txt && [ -s one.txt ]'
    ok "and says which layers are where" grep -q 'layer 1 on pretended device 0: .* MB' "$said"
done
printf 'int a;\n/reset\nstatic\n' > lines.txt
limited sh -c "$infer whole -dv cpu -m chat -s 4 -n 30 < lines.txt > one.txt 2> /dev/null; $infer whole -dv cpu -m chat -s 4 -n 30 -ng 2 < lines.txt > dealt.txt 2> /dev/null"
ok "infer_moe -m chat -ng 2 answers the same" sh -c 'cmp -s one.txt dealt.txt && [ -s one.txt ]'
expect 2 'it has only 2 layers' $infer whole -dv cpu -ng 3
for more in '-v 2' '-m web'; do expect 2 'cannot be combined with -ng' $infer whole -dv cpu -ng 2 $more; done

# Multiple-choice questions. What is wrong with a file is said before the weights are read.
printf '{"context": "a", "choices": ["b", "c"], "answer": 1}\n\n{"ctx": "de", "endings": ["f", "gh"], "label": "0"}\n' > asked.jsonl
expect 0 'asked.jsonl: questions 2  accuracy [0-9.]* ([012] of 2)  per token .*  per character ' $infer whole -ev asked.jsonl -eo answers.jsonl
ok "a line of details for each question" [ "$(grep -c '"logprobs": \[-.*, -.*\], "tokens": \[' answers.jsonl)" = 2 ]
expect 0 '1 questions are longer than the 3 tokens' $infer whole -ev asked.jsonl -c 3
expect 0 'accuracy' $infer whole -ev asked.jsonl -eo dealt.jsonl -dv cpu -ng 2
limited $infer whole -ev asked.jsonl -eo answers.jsonl -dv cpu > /dev/null 2>&1
ok "infer_moe -ev -ng 2 has the same likelihoods" cmp -s answers.jsonl dealt.jsonl
echo '{"context": "a", "choices": ["b", "c"], "answer": 2}' >> asked.jsonl
expect 3 'asked.jsonl: line 4: "answer" is 2' $infer whole -ev asked.jsonl
expect 3 'missing.jsonl: No such file' $infer whole -ev missing.jsonl
expect 2 'cannot be combined with -n' $infer whole -ev asked.jsonl -n 3
expect 2 'one at a time' $infer whole -ev asked.jsonl -x val.txt
expect 2 '-eo is for' $infer whole -eo answers.jsonl

# ---- scripts -----------------------------------------------------------------------------------------------------------------

# Text from sources that look like a kernel's: another kind of file, a folder and a size that are not picked; nothing half done stays.
if command -v xz > /dev/null; then
    mkdir -p fetch/linux copies/linux tree/linux-0/kernel tree/linux-0/elsewhere
    cp "$root/data/linux/fetch.sh" fetch/linux/
    for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do for k in 0 1 2; do cp page.txt tree/linux-0/kernel/$i$j$k.c; done; done; done
    cp page.txt tree/linux-0/kernel/picture.png; cp page.txt tree/linux-0/elsewhere/a.c; echo tiny > tree/linux-0/kernel/tiny.c
    printf 'caf\351 %s\n' "$(cat page.txt)" > tree/linux-0/kernel/latin.c
    tar -C tree -cJf copies/linux/linux-0.tar.xz linux-0
    expect 0 'from linux-0.tar.xz' env MOE_DATA_DIR="$work/here/copies" sh fetch/linux/fetch.sh 1
    ok "train.txt and val.txt of the files that are to be picked" [ "$(cat fetch/linux/train.txt fetch/linux/val.txt | grep -c '^// FILE kernel/[0-9l].*[.]c$')" = 301 ]
    ok "and of no other" [ "$(cat fetch/linux/train.txt fetch/linux/val.txt | grep -c '^// FILE')" = 301 ]
    expect 0 '2 files.*for validation' $train -i fetch/linux $model -t 32 -x 0 -o new
    expect 2 'whole number from 1' sh fetch/linux/fetch.sh 0
    echo damaged > copies/linux/linux-0.tar.xz
    expect 1 'linux-0.tar.xz: ' env MOE_DATA_DIR="$work/here/copies" sh fetch/linux/fetch.sh 1
    ok "what failed leaves the old text and no folder" [ "$(ls fetch/linux | tr '\n' ' ')" = "fetch.sh train.txt val.txt " ]
else skipped "xz is not installed: data/linux/fetch.sh"; fi
if command -v dpkg-deb > /dev/null && command -v python3 > /dev/null; then
    mkdir -p fetch/english copies/english pages/DEBIAN pages/usr/share/doc/one/html/de && cp "$root/data/english/fetch.sh" fetch/english/
    printf 'Package: one-doc\nVersion: 0\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: d\n' > pages/DEBIAN/control
    awk 'BEGIN { for (i = 0; i < 400; i++) {
        file = "pages/usr/share/doc/one/html/" i ".html"
        printf "<html><head><title>no</title></head><body><nav>menu</nav><div class=\"sphinxsidebar\">menu</div><script>var menu = \"<p>\";</script>" > file
        for (n = 0; n < 12; n++) printf "<p>Page %d says for the %dth time that C:\\dir &amp; \"quotes\" &#x27;are&#39; kept in a line that is long enough", i, n > file
        print "<p>The menu is on every page of this manual, and so nobody reads it again</body></html>" > file
        close(file) } }'
    cp pages/usr/share/doc/one/html/7.html pages/usr/share/doc/one/html/again.html
    cp pages/usr/share/doc/one/html/8.html pages/usr/share/doc/one/html/de/8.html
    dpkg-deb -b pages copies/english/one-doc_0_all.deb > one-doc.log
    expect 0 'from 1 packages' env PACKAGES=one-doc MOE_DATA_DIR="$work/here/copies" sh fetch/english/fetch.sh 5
    ok "English: pages without menus, each once" python3 -c 'import json
pages = [json.loads(line)["text"] for split in ("train", "val") for line in open(f"fetch/english/{split}.jsonl", encoding="utf-8")]
assert len(pages) == 400 and all("menu" not in p and "C:\\dir & \"quotes\" \x27are\x27 kept" in p and p.count("\n") == 12 for p in pages)'
    expect 1 'no package was found' env PACKAGES=two-doc PATH="$PATH" MOE_DATA_DIR="$work/here/none" sh fetch/english/fetch.sh 5
else skipped "dpkg-deb or python3 is not installed: data/english/fetch.sh"; fi
mkdir -p fetch/enwik8 copies/enwik8 && cp "$root/data/enwik8/fetch.sh" fetch/enwik8/ && echo short > copies/enwik8/enwik8
expect 1 'found 6 bytes, expected 100000000' env MOE_DATA_DIR="$work/here/copies" sh fetch/enwik8/fetch.sh

# The twin and the mixture at two rates: a table, a picture, and a second call that finds all runs complete.
if command -v python3 > /dev/null; then
    pays="env DATA=text.txt TOKENS=300 TWIN=d1:c32h4f64 MIXTURE=m1:c32h4e4k2f32a1 STEPS=20 BATCH=2 SEQ=32 TOTAL=64 EVERY=4 VAL=2 DEVICE=cpu TRAIN_MOE=$train"
    expect 0 'time to the twin.s last loss' $pays RATES="1e-3 8e-3" RECIPE="-u 5" sh "$root/bench/pays.sh" pays
    ok "the table has a row for each run" [ "$(grep -c -e ' -l 8e-3 ' -e ' -l 1e-3 ' pays/table.txt)" = 4 ]
    ok "the picture is well-formed and has a curve for each run" python3 -c '
import sys, xml.dom.minidom as m
paths = m.parse("pays/pays.svg").getElementsByTagName("path")
sys.exit(len(paths) != 4 or any(len(p.getAttribute("d").split()) != 10 or "nan" in p.getAttribute("d") for p in paths))'
    expect 0 'complete, kept' $pays RATES="1e-3 8e-3" RECIPE="-u 5" sh "$root/bench/pays.sh" pays
    expect 1 'failed; see' $pays RATES=1e-3 RECIPE="-zz 1" sh "$root/bench/pays.sh" pays1
    expect 1 'no text at nowhere' $pays DATA=nowhere sh "$root/bench/pays.sh" pays2
else skipped "python3 is not installed: bench/pays.sh"; fi

# The race, with a stand-in: a tiny model on a CPU. Steps are chosen, given or kept; curves of others are drawn, too; what the rules fix is refused.
if command -v python3 > /dev/null; then
    race="env RACE_DATA=stand TOKENS=300 BATCH=2 SEQ=32 VAL=2 TIMED=12 DEVICE=cpu TRAIN_MOE=$train sh $root/bench/race.sh -o race -e d1:c32h1f32"
    mkdir -p stand && cp text.txt stand/train.txt && cp val.txt stand/val.txt
    expect 0 '^# d1:c32h1f32,0.2: .* steps, .* last loss ' $race -n 0.2
    ok "steps are chosen" sh -c '[ "$(grep -c "\"event\": \"step\"" race/d1:c32h1f32/0.2/log.jsonl)" -ge 20 ]'
    expect 0 '^d1:c32h1f32-sd2,28steps .* [0-9.]*$' $race -x 28 -sd 2
    expect 0 '28steps: complete, kept' $race -x 28 -sd 2
    ok "a curve has its validations: name, seconds, loss" [ "$(grep -c '^d1:c32h1f32-sd2,28steps [0-9.]* [0-9.]*$' race/race.txt)" = 14 ]
    ok "the picture has a curve for each run and each recorded one" python3 -c '
import sys, xml.dom.minidom as m
paths = m.parse("race/race.svg").getElementsByTagName("path")
recorded = {line.split()[0] for name in sys.argv[1:] for line in open(name) if line.strip() and line[0] != "#"}
sys.exit(len(paths) != 2 + len(recorded) or any("nan" in p.getAttribute("d") for p in paths))' "$root"/bench/results/race-*.txt
    expect 2 '-b: the rules say' $race -b 3
    expect 2 '-ds needs -x' $race -ds 1:2
    expect 1 'no train.txt and val.txt' env RACE_DATA=nowhere DEVICE=cpu TRAIN_MOE="$train" sh "$root/bench/race.sh" -o race
    expect 1 'no race here, which needs a GPU.*no such device' env RACE_DATA=stand DEVICE=cuda-none TRAIN_MOE="$train" sh "$root/bench/race.sh" -o race
else skipped "python3 is not installed: bench/race.sh"; fi

# The benchmark of operations (make ci times all of them), and of a step, print their tables to the last line.
expect 0 '^m4 routing of a layer, forward: ' "$root/bench_moe" -t 0 -e m4 rout
expect 0 'all  .*100.00%' "$root/bench_moe" -step m1:c64f32,1,16

echo "$passed passed, $failed failed"
[ $failed = 0 ]
