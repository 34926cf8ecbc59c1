#!/bin/sh
# sharded.sh: measures models that one GPU does not hold on the GPUs of this machine, what docs/scaling.md says of `-z 3` and of nodes.
#   make train_moe infer_moe && sh bench/sharded.sh [PART...] | tee bench/results/NAME.txt
# Parts, all if none is named:
#   speed       tokens/s of each model of MODELS at each level of LEVELS
#   saves       how long steps wait for a save of SEVEN that is written behind them (about 100 GB in the folder for temporary files)
#   bits        losses and weights with -rp 1: the same for all levels, AdamW and Muon
#   sockets     two processes, each a pretended machine whose NCCL has nothing but sockets: the same bits, and the time of a step
#   generation  infer_moe -ng 1 and all: the same text
# Settings by environment: RANKS (all GPUs)  DEVICE=cuda  STEPS=30  SAVE_AT=100  PATIENCE=240 (s for the steps of a run)  LEVELS="1 3"  MODELS="seven thirty"
#   SEVEN, THIRTY: model and options of each;  SMALL: of bits and sockets
set -u
RANKS=${RANKS:-$(nvidia-smi -L | wc -l)} DEVICE=${DEVICE:-cuda} STEPS=${STEPS:-30} SAVE_AT=${SAVE_AT:-100} PATIENCE=${PATIENCE:-240} LEVELS=${LEVELS:-1 3}
MODELS=${MODELS:-seven thirty}
SEVEN=${SEVEN:--e m16:c2048h16e64k8f1024u1 -b 8 -t 4096 -d 0 -wo adamw}                             # OLMoE's shape
THIRTY=${THIRTY:--e m48:c2048h32d128q4e128k8f768u1 -b 8 -t 4096 -d 0 -wo muon -mw 0 -mo bf16}       # Qwen3-30B-A3B's
SMALL=${SMALL:--e m4:c256e16k4 -b 8 -t 128 -d 4096}
train=$(pwd)/train_moe infer=$(pwd)/infer_moe
. "$(dirname -- "$0")/runs.sh"
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
[ "$RANKS" -ge 2 ] || { echo "$0: needs two GPUs or more, or RANKS=2 DEVICE=cpu" >&2; exit 1; }
wants() { [ -z "$parts" ] || case " $parts " in *" $1 "*) ;; *) return 1; esac; }
parts="$*"
for part in $parts; do case $part in speed|saves|bits|sockets|generation) ;; *) echo "$0: no part $part" >&2; exit 2; esac; done

nvidia-smi -L 2> /dev/null
echo "# $(git describe --always --dirty 2> /dev/null), $RANKS ranks"
random_tokens "$work"
options_of() { case $1 in seven) echo "$SEVEN";; thirty) echo "$THIRTY";; esac; }
tokens="-i $work/train.bin -j $work/val.bin -dv $DEVICE -x 1000000 -v 1000000 -m 1 -s 0 -nb 0"
planned() { sed -n "s/^|   $1 *| *\([0-9.]*\) .*/\1/p" "$work/said"; }         # the number of that row of the table at the start

if wants speed; then
    echo; echo "model    level   GB a rank (plan)   s to the first step   ms a step (least - most)     tokens/s a GPU"
    for model in $MODELS; do for level in $LEVELS; do
        rm -rf "$work/out"
        # shellcheck disable=SC2046
        train_until "^s:$STEPS " "$work/out/main.log" "$work/said" "$PATIENCE" "$train" $tokens $(options_of "$model") -ng "$RANKS" -z "$level" \
            -nt 0 -o "$work/out" || continue
        step_times "$work/out" | awk -v m="$model" -v z="$level" -v gb="$(planned 'total ')" -v s="$first" -v n="$(planned 'tokens per step')" -v w="$RANKS" \
            '{ printf "%-8s %5s %18.1f %21.1f %11.1f (%.1f - %.1f) %18.0f\n", m, "-z " z, gb / 1000, s / 1000, $1, $2, $3, 1000 * n / w / $1 }'
    done; done
fi

if wants saves; then
    # The next save, SAVE_AT steps later, would wait for this one; before the first, the memory for a copy has to be there.
    echo; echo "a save behind the steps: s that steps waited, s until it was written; ms of the step before it, and of the one after it"
    for level in $LEVELS; do
        rm -rf "$work/out"
        train_until '"event": "save"' "$work/out/log.jsonl" "$work/said" "$PATIENCE" "$train" $tokens $SEVEN -ng "$RANKS" -z "$level" -nt 0 -n "$SAVE_AT" -nk 1 -o "$work/out" || continue
        echo "-z $level: $(grep '"event": "save"' "$work/out/log.jsonl" | sed 's/.*"paused": \([0-9.]*\), "seconds": \([0-9.]*\).*/\1 \2/' | head -1);" \
            "$(of_steps "$work/out" ms | sed -n "$SAVE_AT,$((SAVE_AT + 1))p" | tr '\n' ' ')" \
            "$(grep -o 'a copy for saves.*' "$work/said" | head -1)"
    done
fi

# print_of FOLDER: fingerprint of the weights; how many losses the run has, and their checksum.
print_of() { echo "$(fingerprint "$1") $(losses "$1" | cksum)"; }
short="-dv $DEVICE -x 40 -v 1000000 -m 1 -s 0 -nb 0 -nt 0 -rp 1"
cat llmc/*/*.c > "$work/text.txt"
if wants bits; then
    echo; echo "fingerprint, checksum and bytes of 40 losses with -rp 1"
    for optimizer in adamw muon; do for level in 0 1 2 3; do
        rm -rf "$work/out"
        "$train" -i "$work/text.txt" $SMALL $short -wo $optimizer -ng "$RANKS" -z $level -o "$work/out" > "$work/said" 2>&1 || { grep error "$work/said"; continue; }
        echo "$optimizer -z $level: $(print_of "$work/out")"
    done; done
fi

# Two processes with half of the ranks each. Without peer access and shared memory NCCL has only sockets between them.
if wants sockets; then
    echo; echo "two processes, NCCL by sockets only: fingerprint, checksum and bytes of 40 losses with -rp 1; median ms a step"
    half=$((RANKS / 2)) port=$((20000 + $$ % 20000))
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    for options in "-ng $RANKS -z 1" "-z 1" "-z 3 -zn $half" "-z 3 -zn 0"; do
        rm -rf "$work/out"; port=$((port + 1))
        case $options in -ng*)
            (unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE; "$train" -i "$work/text.txt" $SMALL $short $options -o "$work/out" > "$work/said" 2>&1) || { grep error "$work/said"; continue; };;
        *)
            pids=
            for i in 0 1; do
                [ "$DEVICE" = cpu ] || export CUDA_VISIBLE_DEVICES="$(seq -s, $((i * half)) $(((i + 1) * half - 1)))"
                "$train" -i "$work/text.txt" $SMALL $short $options -ng "$half" -pn 2 -pr $i -ps 127.0.0.1 -pp $port -o "$work/out" > "$work/said$i" 2>&1 & pids="$pids $!"
            done
            unset CUDA_VISIBLE_DEVICES
            failed=0; for pid in $pids; do wait "$pid" || failed=1; done
            [ $failed = 0 ] || { grep error "$work/said0" "$work/said1"; continue; };;
        esac
        step_times "$work/out" | awk -v o="$options" -v p="$(print_of "$work/out")" '{ printf "%-14s %s   %.1f ms\n", o ":", p, $1 }'
    done
    unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE
fi

if wants generation; then
    echo; echo "infer_moe, greedy, 64 tokens: tokens/s, and whether the text is that of one device"
    rm -rf "$work/out"
    "$train" -i "$work/text.txt" $SMALL -dv "$DEVICE" -x 40 -v 1000000 -m 1 -s 0 -nt 0 -ng 1 -o "$work/out" > "$work/said" 2>&1 || { grep error "$work/said"; exit 1; }
    for n in 1 $RANKS; do
        "$infer" "$work/out" -i "static int " -n 64 -t 0 -dv "$DEVICE" -ng "$n" > "$work/text-$n" 2> "$work/rate"
        cmp -s "$work/text-1" "$work/text-$n" && same=same || same=other
        echo "-ng $n: $same text; $(tail -1 "$work/rate")"
    done
fi
