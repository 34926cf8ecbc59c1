#!/bin/sh
# addresses.sh: the sanitizers for addresses and undefined behaviour over the programs: a run that resumes, ranks as threads and as
# processes, sharded and not, conversations, text, a chat, the page. Any report is a failure.
#   sh tests/addresses.sh FOLDER     FOLDER: of the build, by `make addresses`
. "$(dirname "$0")/sanitizers.sh"
found='ERROR: AddressSanitizer\|runtime error'
ASAN_OPTIONS="detect_leaks=0:log_path=$work/report" UBSAN_OPTIONS="print_stacktrace=1:log_path=$work/report" OMP_NUM_THREADS=2
export ASAN_OPTIONS UBSAN_OPTIONS OMP_NUM_THREADS
try() { what=$1 done=true; shift; "$@" < "$work/said" > "$work/log" 2>&1 || done=false; judge "$what" $done; }

cat llmc/*/*.c | head -c 60000 > "$work/text.txt"
head -c 2000 train_moe.c > "$work/val.txt"
awk 'BEGIN { for (i = 0; i < 100; i++) printf "{\"messages\": [{\"role\": \"user\", \"content\": \"say %d <|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"%d\"}]}\n", i, i }' > "$work/chats.jsonl"
printf 'hello\n/help\n/reset\nwhat\n' > "$work/said"
cd "$work" || exit 2
short="$build/train_moe -i text.txt -j val.txt -dv cpu -b 2 -t 32 -v 2"
train="$short -s 3 -g 4 -n 2"
model="-e m2:c32h4e4k2f32a4x2"
try "the default model" $train -x 6 -o run
try "better weights after each save" $short $model -x 40 -n 3 -s 0 -k constant -o often
try "resumed" $build/train_moe -o run -y 1 -x 9
try "with a trained tokenizer" $train $model -x 6 -tk 300 -o words
try "two ranks that share all" $train $model -ng 2 -z 3 -x 6 -o ranks
try "resumed by one" $build/train_moe -o ranks -y 1 -x 9 -dv cpu -ng 1
try "with Muon, dropout and -rp 1" $train $model -x 6 -wo muon -dr 0.1 -rp 1 -o muon
try "a model of a folder" $build/train_moe -e muon -i text.txt -x 4 -o further
try "conversations" $build/train_moe -i chats.jsonl -ct chatml -tk 280 -e m2:c32h2e4k2f32a1x1 -b 4 -t 128 -x 12 -s 0 -o talk
port=$((20000 + $$ % 12000))
$train $model -x 6 -o two -ng 2 -pn 2 -pp $port -pr 0 > log 2>&1 & first=$!
$train $model -x 6 -o two -ng 2 -pn 2 -pp $port -pr 1 > log2 2>&1 & second=$!
done=true
wait $first || done=false
wait $second || done=false
judge "four ranks in two processes" $done
first= second=
try "text" $build/infer_moe run -i "static " -n 40
try "bits per byte" $build/infer_moe run -x val.txt
try "a chat" $build/infer_moe talk -m chat -n 20
$build/infer_moe talk -m web -wp 0 -v 0 > link 2> log & first=$!
until [ -s link ] || ! kill -0 $first; do sleep 0.1; done
done=true
python3 - "$(cat link)" <<'END' >> log 2>&1 || done=false
import json, sys, urllib.request
for path, body in ("/", None), ("/v1/models", None), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say 3"}], "max_tokens": 8, "logprobs": True}):
    data = json.dumps(body).encode() if body else None
    print(len(urllib.request.urlopen(urllib.request.Request(sys.argv[1].strip("/") + path, data, {"Content-Type": "application/json"})).read()))
END
kill -INT $first; wait $first || done=false
judge "the page" $done
first=
exit $bad
