#!/bin/sh
# pays.sh: does the mixture pay? Text in, a dense twin and a mixture with the same recipe, each at every rate of a list; then a table of
# losses over training time, the time to the twin's last loss, and a picture of both curves (pays.py, which needs python3).
#   make train_moe && sh bench/pays.sh [FOLDER]        FOLDER (out-pays): all runs, table.txt and pays.svg; runs that are complete are kept
# Settings by environment:
#   DATA=data/linux  TOKENS=16384           -i and -tk of train_moe
#   TWIN=d6:c512h8f1536  MIXTURE=m6:c512e128k6f256           -e
#   RATES=4e-3 (several are compared)                       -l, of both; TWIN_RATES, MIXTURE_RATES: of one
#   STEPS=4240  MIXTURE_STEPS=2030          -x: a model that is faster or learns more needs fewer
#   BATCH=64  SEQ=1024  TOTAL=65536         -b, -t, -d
#   EVERY=25  VAL=4                         -v and -m: validations give the curves
#   DEVICE=cuda  RANKS=1                    -dv and -ng
#   RECIPE="-wo muon -k cosine -w2 0.95 -u 100"       other options of both; TWIN_RECIPE, MIXTURE_RECIPE: of one
set -eu
folder=${1:-out-pays}
DATA=${DATA:-data/linux} TOKENS=${TOKENS:-16384} TWIN=${TWIN:-d6:c512h8f1536} MIXTURE=${MIXTURE:-m6:c512e128k6f256}
RATES=${RATES:-4e-3} BATCH=${BATCH:-64} SEQ=${SEQ:-1024} TOTAL=${TOTAL:-65536}
TWIN_RATES=${TWIN_RATES:-$RATES} MIXTURE_RATES=${MIXTURE_RATES:-$RATES} MIXTURE_STEPS=${MIXTURE_STEPS:-${STEPS:-2030}} STEPS=${STEPS:-4240}
EVERY=${EVERY:-25} VAL=${VAL:-4} DEVICE=${DEVICE:-cuda} RANKS=${RANKS:-1}
RECIPE=${RECIPE--wo muon -k cosine -w2 0.95 -u 100} TWIN_RECIPE=${TWIN_RECIPE-} MIXTURE_RECIPE=${MIXTURE_RECIPE-}
train=${TRAIN_MOE:-./train_moe} tools=$(dirname -- "$0")
[ $# -le 1 ] || { echo "usage: $0 [FOLDER]" >&2; exit 2; }
command -v python3 > /dev/null || { echo "$0: needs python3 for the table and the picture; it was not found" >&2; exit 1; }
[ -x "$train" ] || { echo "$0: no $train; make train_moe" >&2; exit 1; }
[ -e "$DATA" ] && { [ "$DATA" != data/linux ] || [ -s data/linux/train.txt ]; } || { echo "$0: no text at $DATA; sh data/linux/fetch.sh" >&2; exit 1; }

# The tokens that the first run keeps serve all others: text is encoded once.
cached=
one() {                                 # one KIND MODEL STEPS RATE OPTIONS...
    to=$folder/$1/$4 kind=$1 model=$2 steps=$3 rate=$4; shift 4
    if grep -qs '"event": "end"' "$to/log.jsonl" && grep -qs "\"steps\": $steps, " "$to/log.jsonl"; then
        echo "$kind $model -l $rate: complete, kept"
        [ ! -f "$to/tokens.cache" ] || cached=$to/tokens.cache
        return
    fi
    echo "$kind $model -l $rate"
    mkdir -p "$to"
    [ -z "$cached" ] || cp -f "$cached" "$to/tokens.cache"
    "$train" -i "$DATA" -tk "$TOKENS" -e "$model" -l "$rate" -x "$steps" -b "$BATCH" -t "$SEQ" -d "$TOTAL" -v "$EVERY" -m "$VAL" -s 0 -nb 0 \
        -dv "$DEVICE" -ng "$RANKS" $RECIPE "$@" -o "$to" -y 0 > "$to.txt" 2>&1 || { tail -3 "$to.txt" >&2; echo "$0: $model -l $rate failed; see $to.txt" >&2; exit 1; }
    rm -rf "$to/state" "$to/model.safetensors"
    cached=$to/tokens.cache
}
for rate in $TWIN_RATES; do one twin "$TWIN" "$STEPS" "$rate" $TWIN_RECIPE; done
for rate in $MIXTURE_RATES; do one mixture "$MIXTURE" "$MIXTURE_STEPS" "$rate" $MIXTURE_RECIPE; done
{ echo "# $(git describe --always --dirty 2> /dev/null), $DATA, -tk $TOKENS, $TOTAL tokens a step, -dv $DEVICE -ng $RANKS, $RECIPE"
  ! command -v nvidia-smi > /dev/null || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
  python3 "$tools/pays.py" "$folder" -svg "$folder/pays.svg"; } > "$folder/table.new"
mv "$folder/table.new" "$folder/table.txt"
cat "$folder/table.txt"
