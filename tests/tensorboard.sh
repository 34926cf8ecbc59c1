#!/bin/sh
# tensorboard.sh: what train_moe -tb 1 writes, read by TensorBoard's own reader. Start it from the repository root after `make train_moe`. Without
# a python that has the package tensorboard it says so and ends. PYTHON names one.
#   sh tests/tensorboard.sh
set -u
root=$(pwd)
python=${PYTHON:-python3}
"$python" -c 'import tensorboard.backend.event_processing.event_accumulator' 2> /dev/null ||
    { echo "skip tensorboard  no python with the package tensorboard (python3 -m venv V; V/bin/pip install tensorboard; PYTHON=V/bin/python)"; echo "0 passed, 0 failed"; exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cat "$root"/llmc/base/*.c | head -c 60000 > "$work/text.txt"
cd "$work" || exit 1
train() { OMP_NUM_THREADS=1 exec "$root/train_moe" -i text.txt -e m2:c32h2e4k2f32a2x1 -b 2 -t 32 -v 10 -s 30 -g 40 -n 20 -tb 1 -o run "$@" > said 2>&1; }

# A run that is killed at a step after its last checkpoint, resumed, and once more resumed. Then what it saw is in the log.
train -x 100000 & run=$!
for i in $(seq 600); do grep -qs '"step": 57,' run/log.jsonl && break; sleep 0.02; done
kill -9 $run; wait $run 2> /dev/null
cp run/log.jsonl killed.jsonl
train -y 1 -x 1000000 & run=$!
killed=$(grep -c '"event": "step"' killed.jsonl)
for i in $(seq 600); do grep -qs "\"step\": $((killed + 20))," run/log.jsonl && break; sleep 0.02; done
kill -INT $run; wait $run
TF_CPP_MIN_LOG_LEVEL=3 "$python" - 2> errors << 'END'
import glob, json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
passed = failed = 0
def check(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("FAIL tensorboard " + what)
log = [json.loads(line) for line in open("run/log.jsonl")]
steps = {e["step"]: e for e in log if e["event"] == "step"}
seen = EventAccumulator("run", {"scalars": 0, "histograms": 0, "tensors": 0})
seen.Reload()
check(len(glob.glob("run/events*")) == 2, "a file for each session")
killed = max(json.loads(line)["step"] for line in open("killed.jsonl").read().splitlines()[1:] if '"event": "step"' in line)
check(killed > next(e["step"] for e in log if e["event"] == "resume"), "steps were done twice")
for tag, key in ("loss/training", "loss"), ("optimizer/learning rate", "lr"), ("optimizer/gradient norm", "norm"), ("speed/tokens per second", "tok_s"):
    points = seen.Scalars(tag)
    check([p.step for p in points] == sorted(steps), f"{tag}: each step once: {len(points)} of {len(steps)}")
    check(all(abs(p.value - steps[p.step][key]) <= 1e-6 * abs(steps[p.step][key]) for p in points if p.step in steps), f"{tag}: the values of the log")
vals = {e["step"]: e["loss"] for e in log if e["event"] == "val"}
check({p.step: round(p.value, 4) for p in seen.Scalars("loss/validation")} == {s: round(v, 4) for s, v in vals.items()}, "validations")
loads = [e for e in log if e["event"] == "load"]
for router in loads[-1]["routers"]:
    h = seen.Histograms(router["name"])
    check([p.step for p in h] == [e["step"] for e in loads] and list(h[-1].histogram_value.bucket) == router["load"], f"loads of {router['name']}")
samples = [e for e in log if e["event"] == "sample"]
texts = seen.Tensors("sample")
check([t.step for t in texts] == [e["step"] for e in samples] and
      texts[-1].tensor_proto.string_val[0].decode() == "\n".join("    " + line for line in samples[-1]["text"].split("\n")), "samples")
print(f"ok   tensorboard  its reader sees what the log has: {passed} checks" if not failed else "")
print(f"{passed} passed, {failed} failed")
raise SystemExit(failed > 0)
END
code=$?
[ $code = 0 ] || cat errors said | tail -3
exit $code
