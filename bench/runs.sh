# runs.sh: what the scripts of this folder that time training runs have in common; they read it by `. bench/runs.sh`.

# random_tokens FOLDER: train.bin and val.bin, random tokens below 50,176, and one 50,256. The speed does not depend on the data.
random_tokens() {
    { head -c 8000000 /dev/urandom | LC_ALL=C tr -d '\304-\377' | head -c 4000000; printf '\120\304'; } > "$1/train.bin"
    head -c 400000 "$1/train.bin" > "$1/val.bin"
}

# train_until PATTERN FILE OUT SECONDS COMMAND...: runs the command, whose output goes to OUT, until FILE, a log in the run's folder, has a line of
# PATTERN, and kills it. first: the ms until its first step was logged. 1: it ended before, or the seconds did; then OUT's error, or a line
# that says so, is printed.
train_until() {
    pattern=$1 file=$2 said=$3 seconds=$4 begin=$(date +%s%N) first=; shift 4
    "$@" > "$said" 2>&1 & run=$!
    until grep -q "$pattern" "$file" 2> /dev/null; do
        kill -0 $run 2> /dev/null || { wait $run; grep error "$said" || tail -1 "$said"; return 1; }
        passed=$(( ($(date +%s%N) - begin) / 1000000 ))
        [ -n "$first" ] || ! grep -q '^s:1 ' "${file%/*}/main.log" 2> /dev/null || first=$passed
        [ $passed -lt $((1000 * seconds)) ] || { kill -9 $run; wait $run 2> /dev/null; echo "no line $pattern in $seconds s: $*"; tail -3 "$said"; return 1; }
        sleep 0.1
    done
    kill -9 $run; wait $run 2> /dev/null; return 0
}

# of_steps FOLDER NAME: that number of each step of a run, a line each; losses FOLDER; fingerprint FOLDER: of its weights at the end.
of_steps() { grep '"event": "step"' "$1/log.jsonl" | sed "s/^.*\"$2\": \([^,}]*\).*$/\1/"; }
losses() { of_steps "$1" loss; }
fingerprint() { sed -n 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/p' "$1/log.jsonl"; }

# step_times FOLDER: median, least and most ms of a run's steps after the first ten.
step_times() {
    of_steps "$1" ms | tail -n +11 | sort -n |
        awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)], x[1], x[NR] }'
}
