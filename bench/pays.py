#!/usr/bin/env python3
"""pays.py: does the mixture pay? Reads the logs of bench/pays.sh, prints its table and draws its picture. Standard library only.

    python3 bench/pays.py FOLDER [-svg FILE]
FOLDER/{twin,mixture}/RATE/log.jsonl. Time is training time, the sum of the steps' milliseconds; losses are those of validations. The twin's
curve is the rate with the lowest last loss; the mixture's the one that is first at that loss, or, if none gets there, the lowest.
"""
import argparse
import json
import math
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures"))
import chart

MARKS = (0.1, 0.25, 0.5, 0.75, 1)       # of the twin's training time


class Run:
    def __init__(self, path):
        self.rate, self.model, seconds, ms = path.parent.name, "?", {}, 0.0
        self.points, self.complete = [], False              # [(seconds, loss)]
        for line in path.read_text().splitlines():
            e = json.loads(line)
            if e["event"] == "start":
                self.model, self.parameters, self.active = e["model"], e["parameters"], e["active"]
                self.name, self.text = e["options"]["model"], e["train_tokens"]
            elif e["event"] == "step":
                ms += e["ms"]
                seconds[e["step"]] = ms / 1e3
            elif e["event"] == "val" and e["step"] in seconds and isinstance(e["loss"], float) and math.isfinite(e["loss"]):
                self.points.append((seconds[e["step"]], e["loss"]))
            elif e["event"] == "end":
                self.complete, self.tokens, self.steps = True, e["tokens"], e["steps"]
        self.seconds = ms / 1e3
        self.last = self.points[-1][1] if self.points else math.inf

    def at(self, seconds):
        """The loss at this time, between the validations before and after it; None: not measured then."""
        for (t0, y0), (t1, y1) in zip(self.points, self.points[1:]):
            if t0 <= seconds <= t1:
                return y0 + (y1 - y0) * (seconds - t0) / (t1 - t0 or 1)
        return None

    def reaches(self, loss):
        """The first time at which the curve is this low; None: never."""
        for i, (t, y) in enumerate(self.points):
            if y <= loss:
                if not i:
                    return t
                t0, y0 = self.points[i - 1]
                return t0 + (t - t0) * (y0 - loss) / (y0 - y or 1)
        return None


def load(folder, kind):
    runs = []
    for path in sorted((folder / kind).glob("*/log.jsonl"), key=lambda p: float(p.parent.name)):
        run = Run(path)
        if not run.complete or len(run.points) < 2:
            print(f"left out: {path}: {'the run has not ended' if not run.complete else 'fewer than two validations'}", file=sys.stderr)
        else:
            runs.append(run)
    if not runs:
        sys.exit(f"error: {folder}/{kind}: no complete run with at least two validations")
    return runs


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("-svg", type=pathlib.Path)
    a = p.parse_args()
    twins, mixtures = load(a.folder, "twin"), load(a.folder, "mixture")
    twin = min(twins, key=lambda r: r.last)
    mixture = min(mixtures, key=lambda r: (r.reaches(twin.last) or math.inf, r.last))
    marks = [m * twin.seconds for m in MARKS]
    print(f"{'loss after':34}" + "".join(f"{m:7.1f} s" for m in marks) + "     last   tokens/s")
    for run in twins + mixtures:
        losses = [run.at(m) if m < run.seconds else run.last if abs(m - run.seconds) < 1e-9 else None for m in marks]
        print(f"{'*' if run in (twin, mixture) else ' '} {run.name:20} -l {run.rate:8}" +
              "".join(f"{y:9.4f}" if y is not None else "        -" for y in losses) +
              f"{run.last:9.4f}{run.tokens / run.seconds:11,.0f}")
    print(f"* the best rate of each. {twin.name}: {twin.parameters:,} parameters, {twin.active:,} active on a token; "
          f"{mixture.name}: {mixture.parameters:,}, {mixture.active:,}")
    own, other = twin.reaches(twin.last), mixture.reaches(twin.last)
    if other:
        print(f"time to the twin's last loss {twin.last:.4f}: {twin.name} {own:.1f} s, {mixture.name} {other:.1f} s, ratio {other / own:.3f}")
        told = [(own, "", 0), (other, f"{other:.3g} s, {other / own:.2f} of the twin's", 1)]
    else:
        print(f"time to the twin's last loss {twin.last:.4f}: {twin.name} {own:.1f} s, {mixture.name} not in {mixture.seconds:.1f} s, "
              f"where it has {mixture.last:.4f}")
        told = [(own, "", 0)]
    if a.svg:
        curves = [chart.Curve(f"{r.name}, rate {r.rate}", r.points, c, r in (twin, mixture)) for c, rs in ((0, twins), (1, mixtures)) for r in rs]
        a.svg.write_text(chart.chart(f"{mixture.name} and its dense twin {twin.name}", "seconds of training", "validation loss, nats a token",
                                     curves, twin.last, f"last loss of {twin.name}", told))
        print(f"picture: {a.svg}")


if __name__ == "__main__":
    main()
