#!/bin/sh
# scaling.sh: measures on the GPUs of this machine what docs/scaling.md predicts: weak scaling over 1, 2, 4, ... of them, the same
# losses on any number, the same bits in two runs, and the time from one process being killed to the others exiting.
#   make train_moe && sh bench/scaling.sh | tee bench/results/scaling.txt
# Settings by environment: RANKS="1 2 4"  MODEL=m12:e64k8f256  BATCH=32  SEQ=1024  STEPS=40  DEVICE=cuda  LOSSES=200  PATIENCE=60 (s)
set -u
RANKS=${RANKS:-$(n=$(nvidia-smi -L | wc -l); r=1; while [ $r -le "$n" ]; do printf '%s ' $r; r=$((2 * r)); done)}
MODEL=${MODEL:-m12:e64k8f256} BATCH=${BATCH:-32} SEQ=${SEQ:-1024} STEPS=${STEPS:-40} DEVICE=${DEVICE:-cuda} LOSSES=${LOSSES:-200} PATIENCE=${PATIENCE:-60}
train=$(pwd)/train_moe
. "$(dirname -- "$0")/runs.sh"
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
most=$(echo $RANKS | tr ' ' '\n' | sort -n | tail -1)
nvidia-smi -L 2> /dev/null
echo "# $(git describe --always --dirty 2> /dev/null) $MODEL B=$BATCH T=$SEQ on each rank, ranks $RANKS"

random_tokens "$work"
timed() {                               # timed FOLDER OPTIONS...: runs $STEPS steps, then kills the run
    folder=$1; shift
    train_until "^s:$STEPS " "$folder/main.log" "$work/said" "$PATIENCE" "$train" -i "$work/train.bin" -j "$work/val.bin" -e "$MODEL" -b "$BATCH" \
        -t "$SEQ" -d 0 -x 1000000 -v 1000000 -s 0 -dv "$DEVICE" "$@" -o "$folder"
}

echo; echo "ranks  options          ms a step   tokens/s   efficiency"
alone=
for n in $RANKS; do
    for options in '-z 1' '-z 1 -ce 0' '-z 0' '-z 1 -gr 2' '-z 3' '-z 3 -ce 0'; do
        [ "$n" = 1 ] && [ "$options" != '-z 1' ] && continue
        rm -rf "$work/speed"
        timed "$work/speed" -ng "$n" $options || continue
        ms=$(step_times "$work/speed" | cut -d" " -f1)
        alone=${alone:-$ms}
        awk -v n="$n" -v o="$options" -v ms="$ms" -v one="$alone" -v t="$((BATCH * SEQ))" \
            'BEGIN { printf "%5d  %-14s %11.2f %10.0f %12.3f\n", n, o, ms, n * t / ms * 1000, one / ms }'
    done
done

# The same global batch of 48 sequences, of this project's sources, on each number of ranks: with -rp 1 (the same micro-batches in
# the same order), and without.
cat llmc/*/*.c > "$work/text.txt"
echo; echo "type       options        ranks   largest and mean difference of $LOSSES losses from those of one rank; fingerprint, of two runs"
for device in $DEVICE-f32 $DEVICE-bf16; do for ordered in 1 0; do
    for n in $RANKS; do
        options="-rp $ordered -b $((48 / (ordered ? most : n)))"
        for repeat in 1 2; do
            "$train" -i "$work/text.txt" -e m4 $options -t 128 -d 6144 -x "$LOSSES" -v 1000000 -m 1 -s 0 -nb 0 -dr 0 -dv "$device" \
                -ng "$n" -o "$work/$device-$n" -y 0 > "$work/said" 2>&1 || tail -3 "$work/said"
            fingerprint "$work/$device-$n" > "$work/print$repeat"
        done
        losses "$work/$device-$n" > "$work/losses-$n"
        paste "$work/losses-${RANKS%% *}" "$work/losses-$n" | awk -v d="$device" -v o="$options" -v n="$n" -v f="$(cat "$work/print1" "$work/print2" | tr '\n' ' ')" \
            '{ x = $1 - $2; if (x < 0) x = -x; s += x; if (x > m) m = x } END { printf "%-10s %-14s %5d   %.1e %.1e   %s\n", d, o, n, m, s / NR, f }'
    done
done; done

# Two processes with half of the GPUs each; one is killed.
[ "$most" -ge 2 ] || exit 0
port=$((20000 + $$ % 20000))
for i in 0 1; do
    LOCAL="-pn 2 -pr $i -ps 127.0.0.1 -pp $port -ng $((most / 2))"
    [ "$DEVICE" = cpu ] || export CUDA_VISIBLE_DEVICES="$(seq -s, $((i * most / 2)) $(((i + 1) * most / 2 - 1)))"
    "$train" -i "$work/text.txt" -e m4 -b 8 -t 128 -x 1000000 -v 1000000 -s 0 -dv "$DEVICE" $LOCAL -o "$work/killed" > "$work/process$i" 2>&1 &
    eval process$i=$!
done
tries=0
until grep -q 'step  *20/' "$work/process0"; do
    kill -0 $process0 || break
    tries=$((tries + 1)); [ $tries -lt $((10 * PATIENCE)) ] || { echo "two processes: no 20 steps in $PATIENCE s"; kill -9 $process0 $process1; exit 1; }
    sleep 0.1
done
start=$(date +%s%N); kill -9 $process1; wait $process0; code=$?
echo; echo "a process killed: the other ended $(( ($(date +%s%N) - start) / 1000000 )) ms later with exit code $code: $(grep error "$work/process0" | cut -c1-90)"
