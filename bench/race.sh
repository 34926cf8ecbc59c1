#!/bin/sh
# race.sh: how low does a model get on one GPU in minutes? docs/race.md has the rules. Needs a GPU, python3 and the text.
#   make race                                                    the preset race over 93, 143 and 300 s of training
#   sh bench/race.sh [-n SECONDS]... [-o FOLDER] [OPTION VALUE]...      other distances; other options of train_moe: -e plain -sd 2
# Steps are chosen for each distance from a run of 40 that are timed; with -x they are given, and there is one distance. FOLDER (out-race): all
# runs, race.txt and race.svg, which have the curves of bench/results/race-*.txt, too; runs that are complete are kept. By environment:
#   RACE_DATA=data/linux  TOKENS=16384      the text: a folder of train.txt and val.txt, and -tk; or of train.bin, val.bin and tokenizer.json
#   DEVICE=cuda  BATCH=128  SEQ=1024  VAL=10  TIMED=40           other values are another race, and race.txt says so
set -eu
RACE_DATA=${RACE_DATA:-data/linux} TOKENS=${TOKENS:-16384} DEVICE=${DEVICE:-cuda} BATCH=${BATCH:-128} SEQ=${SEQ:-1024} VAL=${VAL:-10} TIMED=${TIMED:-40}
train=${TRAIN_MOE:-./train_moe} tools=$(dirname -- "$0") folder=out-race distances= steps= label= staged=
stop() { echo "$0: $*" >&2; exit 1; }
usage() { echo "$0: $*. usage: $0 [-n SECONDS]... [-o FOLDER] [OPTION VALUE]... (see its head and docs/race.md)" >&2; exit 2; }
left=$# model=race
while [ "$left" -gt 0 ]; do
    [ "$left" -ge 2 ] || usage "$1 needs a value"
    case $1 in
        -n) case $2 in *[!0-9.]*|''|.|0) usage "-n $2: a number of seconds" ;; esac; distances="$distances $2" ;;
        -x) case $2 in *[!0-9]*|''|0) usage "-x $2: a number of steps" ;; esac; steps=$2 ;;
        -o) folder=$2 ;;
        -e) model=$2 ;;
        -i|-j|-tk|-tp|-b|-t|-m|-v|-s|-nb|-dv|-ng|-y|-cf|--*) usage "$1: the rules say what this is" ;;
        -*) [ "$1" != -ds ] || staged=1; label="$label$1$2"; set -- "$@" "$1" "$2" ;;
        *) usage "$1: no option" ;;
    esac
    shift 2; left=$((left - 2))
done
[ -z "$steps" ] || [ -z "$distances" ] || usage "-n or -x, not both"
[ -z "$staged" ] || [ -n "$steps" ] || usage "-ds needs -x: steps of stages take different times"
label=$(printf %s "$model$label" | tr -c 'A-Za-z0-9._:-' _)
command -v python3 > /dev/null || stop "needs python3 for the table and the picture; it was not found"
[ -x "$train" ] || stop "no $train; make train_moe"
mkdir -p "$folder"
"$train" -i "$0" -dv "$DEVICE" -e d1:c32h1f32 -b 1 -t 8 -x 1 -v 1 -m 1 -s 0 -nb 0 -o "$folder/probe" -y 0 > "$folder/probe.txt" 2>&1 ||
    stop "no race here, which needs a GPU of this machine: $(tail -1 "$folder/probe.txt")"
rm -r "$folder/probe" "$folder/probe.txt"
if [ -s "$RACE_DATA/train.bin" ] && [ -s "$RACE_DATA/val.bin" ]; then tokens=$RACE_DATA/tokenizer.json
elif [ -s "$RACE_DATA/train.txt" ] && [ -s "$RACE_DATA/val.txt" ]; then tokens=$TOKENS
else stop "no train.txt and val.txt (or train.bin and val.bin) in $RACE_DATA; sh data/linux/fetch.sh 560"; fi
[ "$tokens" = "$TOKENS" ] || [ -f "$tokens" ] || stop "no $tokens, the tokenizer of train.bin"

# The tokens that the first run keeps serve all others: text is encoded once.
cached=
run() {                                 # run TO STEPS EVERY OPTIONS...
    to=$1 all=$2 every=$3; shift 3
    mkdir -p "$to"
    [ -z "$cached" ] || cp -f "$cached" "$to/tokens.cache"
    "$train" -i "$RACE_DATA" -tk "$tokens" -e "$model" -x "$all" -b "$BATCH" -t "$SEQ" -v "$every" -m "$VAL" -s 0 -nb 0 -nt 0 -dv "$DEVICE" -ng 1 \
        "$@" -o "$to" -y 0 > "$to.txt" 2>&1 || { tail -3 "$to.txt" >&2; stop "$model $* failed; see $to.txt"; }
    rm -rf "$to/state" "$to/model.safetensors"
    [ ! -f "$to/tokens.cache" ] || cached=$to/tokens.cache
}
race() {                                # race NAME STEPS OPTIONS...
    name=$1 long=$2; shift 2
    echo "$label, $name: $long steps"
    run "$folder/$label/$name" "$long" $(((long + 13) / 14)) "$@"
}
complete() { grep -qs '"event": "end"' "$folder/$label/$1/log.jsonl" && echo "$label, $1: complete, kept"; }
if [ -n "$steps" ]; then complete "${steps}steps" || race "${steps}steps" "$steps" "$@"
else
    for seconds in ${distances:-93 143 300}; do
        ! complete "$seconds" || continue
        [ -f "$folder/$label/timed/log.jsonl" ] || run "$folder/$label/timed" "$TIMED" "$TIMED" "$@"
        # the first ten steps begin the run; the others say how long one takes
        race "$seconds" "$(sed -n 's/^{"event": "step".*"ms": \([0-9.e+-]*\),.*/\1/p' "$folder/$label/timed/log.jsonl" |
            awk -v all="$seconds" 'NR <= 10 { begin += $1; next } { sum += $1; n++ }
                END { steps = n && sum > 0 ? int(10 + (1e3 * all - begin) / (sum / n)) : 0; print (steps > 20 ? steps : 20) }')" "$@"
    done
fi
{ echo "# $(date -u +%Y-%m-%d), $(git describe --always --dirty 2> /dev/null), $RACE_DATA, -tk $tokens -b $BATCH -t $SEQ -m $VAL -dv $DEVICE; docs/race.md has the rules"
  ! command -v nvidia-smi > /dev/null || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed 's/^/# /;1q'
  python3 "$tools/race.py" "$folder" "$tools"/results/race-*.txt -svg "$folder/race.svg"; } > "$folder/race.new"
mv "$folder/race.new" "$folder/race.txt"
cat "$folder/race.txt"
