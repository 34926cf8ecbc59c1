#!/bin/sh
# readers.sh: folders of every kind that train_moe writes, opened by versions of Transformers. Start it from the repository's
# root after `make train_moe infer_moe`.
#   sh tests/readers.sh [-k] [-w]    -k: keep the folders; -w: write tests/reference/readers/
# Everywhere the small files are compared with those of tests/reference/readers, which the versions below have opened. Where
# tests/.venv/NAME/bin/python exist (environments with torch and a version of Transformers each, which git does not see), each
# opens all folders: no tensor is missing, 48 greedy tokens are those of infer_moe, and generate() stops where it should
# (readers.py). -w needs that.
set -u
root=$(pwd) keep=0 write=0 goldens=$(pwd)/tests/reference/readers
for word; do case $word in -k) keep=1 ;; -w) write=1 ;; *) echo "$0: no option $word"; exit 2 ;; esac; done
train=$root/train_moe infer=$root/infer_moe
passed=0 failed=0
verdict() {                             # verdict RESULT WHAT: RESULT 0 is good
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok   readers  $2"
    else failed=$((failed + 1)); echo "FAIL readers  $2"; fi
}
work=$(mktemp -d) || exit 1
trap '[ "$keep" = 1 ] && echo "kept: $work" || rm -rf "$work"' EXIT
cd "$work" || exit 1
LC_ALL=C OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
export LC_ALL OMP_NUM_THREADS CUDA_VISIBLE_DEVICES

# Texts of a few words, conversations of short answers, and tokens below 29.
awk 'BEGIN { for (i = 0; i < 400; i++) printf "{\"text\": \"the %s cat sat on mat %d.\"}\n", i % 3 ? "small" : "old", i % 5 }' > docs.jsonl
awk 'BEGIN { for (i = 0; i < 200; i++) printf "{\"messages\": [{\"role\": \"user\", \"content\": \"say %d\"}, " \
    "{\"role\": \"assistant\", \"content\": \"%d it is\"}]}\n", i % 4, i % 4 }' > chats.jsonl
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c", 1 + (i * i + i % 7) % 28 }' | od -An -v -tu1 -w1 | awk '
    function word(x) { printf "\\%03o\\%03o\\%03o\\%03o", x % 256, int(x / 256) % 256, int(x / 65536) % 256, int(x / 16777216) }
    { id[n++] = $1 } END { word(20240520); word(1); word(n); for (i = 3; i < 256; i++) word(0)
                           for (i = 0; i < n; i++) printf "\\%03o\\000", id[i] }' > escapes
printf "$(cat escapes)" > ids_train.bin && cp ids_train.bin ids_val.bin

run() { "$train" -dv cpu -v 1000 -s 0 "$@" > log 2>&1 || { tail -2 log; return 1; }; }
tokens="-i ids_train.bin -j ids_val.bin -b 2 -t 24 -d 48 -x 2 -l 1e-3"
# make KIND SORT OPTIONS...: a folder. SORT: docs, chats and bytes end their texts; text and ids do not
kinds=
make() {
    kind=$1 sort=$2; shift 2
    run -o "$kind" "$@"
    result=$?
    verdict $result "$kind is made"
    [ $result = 0 ] || return
    kinds="$kinds $kind"
    echo "$sort" > "$kind/sort"
    for name in config generation_config tokenizer_config; do
        echo "== $name.json"; cat "$kind/$name.json" 2> /dev/null
    done > "$kind/small.txt"
    [ "$write" = 1 ] || { diff "$goldens/$kind.txt" "$kind/small.txt" > difference; verdict $? "$kind: its small files are those that were opened"; head -5 difference; }
}
new="-i docs.jsonl -b 8 -t 24 -l 1e-2"
make default docs $new -tk 270 -e m2:c32h2e4k2f32 -x 100
make shared docs $new -tk 270 -e m2:c32h2e4k2f24s1n0 -x 20
make mixtral docs $new -tk 270 -e m2:c32h2e4k2f32n0 -x 20
make jetmoe docs $new -tk 270 -e m2:c32h2d16e4k2f32a4x2n0 -x 20
make olmoe docs $new -tk 270 -e m2:c32h2e4k2f32n2 -rs softmax-topk -x 20
make dense docs $new -tk 270 -e d2:c32h2 -x 100
make llama docs $new -tk 270 -e d2:c32h2n0 -x 20
make smoe docs $new -tk 270 -e m2:c32h2e4k2f32 -rb 0.01 -x 20
make bytes text -i docs.jsonl -b 8 -t 48 -x 20 -l 1e-2 -e m2:c32h2e4k2f32
make byte_chats bytes -i chats.jsonl -ct chatml -b 4 -t 128 -d 512 -x 120 -l 1e-2 -e m2:c32h2e4k2f32
make own_chats bytes -i chats.jsonl -ct chatml -tk 270 -tp gpt2 -b 4 -t 128 -d 512 -x 250 -l 1e-2 -e m2:c32h2e4k2f32
make upcycled docs $new -e dense -up e4k2 -x 5
# a base that has the template's mark, but does not end with it
cp -r default marked
sed 's/"added_tokens": \[/&{"id": 270, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}, /' \
    default/tokenizer.json > marked/tokenizer.json
run -i docs.jsonl -tk marked/tokenizer.json -b 8 -t 24 -x 2 -e m2:c32h2e4k2f32 -o base
make tuned_chats chats -i chats.jsonl -ct chatml -b 4 -t 128 -d 512 -x 120 -l 1e-2 -e base
for family in "$root"/tests/reference/families/*/; do
    name=$(basename "$family")
    case $name in smoe_*) ;; *) make "family_$name" ids $tokens -e "$family" ;; esac
done
[ -d "$root/tests/reference/jetmoe" ] && make family_jetmoe ids $tokens -e "$root/tests/reference/jetmoe"

readers=
for python in "$root"/tests/.venv/*/bin/python; do [ -x "$python" ] && readers="$readers $python"; done
if [ -z "$readers" ]; then echo "skip readers  no tests/.venv/*/bin/python: nothing is opened here"
else
    for kind in $kinds; do
        case $(cat $kind/sort) in
        ids)  "$infer" $kind -dv cpu-f32 -i '1 2 3 4 5' -t 0 -n 48 -e 0 -v 0 -c 96 ;;
        text|docs) "$infer" $kind -dv cpu-f32 -i 'the' -t 0 -n 48 -e 0 -v 0 -c 96 ;;
        *)    echo 'say 2' | "$infer" $kind -dv cpu-f32 -m chat -t 0 -n 48 -v 0 ;;
        esac > $kind/infer.txt 2> $kind/infer.log
    done
    for python in $readers; do
        HF_HOME=$work/hf "$python" "$root/tests/readers.py" $kinds > said 2> errors
        while read -r word what; do
            if [ "$word" = skip ]; then echo "skip readers  $what"; else [ "$word" = ok ]; verdict $? "$what"; fi
        done < said
        grep -q . said || { verdict 1 "$python opens folders: $(tail -1 errors)"; }
    done
fi
if [ "$write" = 1 ] && [ $failed = 0 ] && [ -n "$readers" ]; then
    mkdir -p "$goldens" && rm -f "$goldens"/*.txt
    for kind in $kinds; do cp $kind/small.txt "$goldens/$kind.txt"; done
    echo "written: tests/reference/readers"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
