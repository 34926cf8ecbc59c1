#!/usr/bin/env python3
"""race.py: the curves of bench/race.sh, as text and as a picture. Standard library only.

    python3 bench/race.py FOLDER [RECORDED...] [-svg FILE]
FOLDER/LABEL/NAME/log.jsonl: complete runs, but not those that are called timed. RECORDED: files of other curves, in lines "name seconds loss";
lines that begin with # are comments. The text has the same form, so it can be recorded. Time is training time, as in pays.py.
"""
import argparse
import pathlib
import sys

from pays import Run
import chart


def recorded(path):
    curves = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        part = line.split()
        if part and not line.startswith("#"):
            try:
                name, seconds, loss = part
                curves.setdefault(name, []).append((float(seconds), float(loss)))
            except ValueError:
                sys.exit(f"error: {path}, line {number}: expected a name, seconds and a loss")
    return curves


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("recorded", nargs="*", type=pathlib.Path)
    p.add_argument("-svg", type=pathlib.Path)
    a = p.parse_args()
    others = {name: points for path in a.recorded for name, points in recorded(path).items()}
    runs = {f"{path.parent.parent.name},{path.parent.name}": Run(path)
            for path in sorted(a.folder.glob("*/*/log.jsonl")) if path.parent.name != "timed"}
    runs = {name: r for name, r in sorted(runs.items(), key=lambda item: (item[0].split(",")[0], item[1].seconds)) if r.complete and r.points}
    if not runs:
        sys.exit(f"error: {a.folder}: no complete run with a validation")
    for name, r in runs.items():
        print(f"# {name}: {r.model}, {r.parameters:,} parameters, {r.active:,} active; {r.steps:,} steps, {r.tokens / 1e6:.1f} M tokens, "
              f"{r.tokens / r.text:.2f} of the text; {r.seconds:.1f} s, last loss {r.last:.4f}, {r.tokens / r.seconds:,.0f} tokens/s")
        for other, points in others.items():
            end, last = points[-1]
            at = r.reaches(last)
            print(f"#     the last loss of {other}, {last:.4f} after {end:.1f} s: " + (f"after {at:.1f} s" if at else "not reached"))
    for name, r in runs.items():
        print("".join(f"{name} {seconds:.2f} {loss:.4f}\n" for seconds, loss in r.points), end="")
    if a.svg:
        curves = [chart.Curve(name, points, i) for i, (name, points) in enumerate([(n, r.points) for n, r in runs.items()] + list(others.items()))]
        a.svg.write_text(chart.chart("The race: one GPU, the same text and validation", "seconds of training", "validation loss, nats a token", curves))


if __name__ == "__main__":
    main()
