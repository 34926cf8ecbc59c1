#!/usr/bin/env python3
"""Are the tiles of the Hopper kernels' products well chosen? Every choice is built and timed on the same products.

    python3 bench/tiles.py [STEP]...

STEP is what bench_moe -step takes: "layers" (the twelve sizes of bench/layers.c), m12, ...; without any, those two. A line for
each product of routed rows: its time as chosen (kernels/cuda/hopper: rows_product in rows.cu, splits_of in weight.cu), and with
each choice forced: tiles of 128, 192 and 256 columns; for the gradient of a weight, 1 to 4 splits of the rows. The last column:
time as chosen / best time. Needs an H100 or H200 and nvcc; takes five minutes.
"""
import os, pathlib, re, shutil, statistics, subprocess, sys

COLUMNS = ["TILE_COLUMNS=128", "TILE_COLUMNS=192", "TILE_COLUMNS=256"]
SPLITS = ["TILE_SPLITS=1", "TILE_SPLITS=2", "TILE_SPLITS=3", "TILE_SPLITS=4"]
CHOSEN = "as chosen"


def make(choice=""):
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"TRY={choice}", "NO_FETCH=1", "bench_moe"], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(os.path.realpath("bench_moe"))


def build(choice, usual):
    """The path of a bench_moe with that choice: the usual one's objects, but for the two files that read the choice."""
    objects = usual.parent.parent / choice.replace("=", "-")
    shutil.rmtree(objects, ignore_errors=True)
    shutil.copytree(usual.parent.parent, objects, ignore=lambda folder, names: [n for n in names if n.startswith("TILE_")])
    for name in "rows", "weight":
        (objects / f"BF16/kernels/cuda/hopper/{name}.o").unlink()
    return make(choice)


def products(program, step):
    """{(size, operation, its sizes): ms of all its calls}"""
    found, size = {}, step
    for line in subprocess.run([program, "-d", "cuda-bf16", "-step", step], check=True, capture_output=True, text=True).stdout.split("\n"):
        if m := re.match(r"(\S+ n=\d+): N,C", line):
            size = m[1]
        if m := re.match(r"parallel_linear_(\w+) +(S=.*?) {2,}\d+ +([\d.]+) ", line):
            found[size, m[1], m[2]] = float(m[3])
    return found


def main():
    if any(a.startswith("-") for a in sys.argv[1:]):
        sys.exit(__doc__.strip())
    usual = make()
    if not (usual.parent.parent / "BF16/kernels/cuda/hopper/rows.o").is_file():
        sys.exit("tiles.py: this machine has no GPU or no nvcc, so bench_moe was built without the kernels to time")
    programs = {CHOSEN: usual} | {choice: build(choice, usual) for choice in COLUMNS + SPLITS}
    make()
    for step in sys.argv[1:] or ["layers", "m12"]:
        times = {choice: products(program, step) for choice, program in programs.items()}
        again = products(programs[CHOSEN], step)
        for choices, wanted in (COLUMNS, lambda op: op != "backward_weight"), (SPLITS, lambda op: op == "backward_weight"):
            print(f"{'ms':86s}   chosen   {'  '.join(c.split('_')[1].lower().rjust(11) for c in choices)}   chosen / best")
            for (size, op, sizes), first in times[CHOSEN].items():
                if wanted(op):
                    chosen, forced = statistics.mean([first, again[size, op, sizes]]), [times[c][size, op, sizes] for c in choices]
                    print(f"{size:12s} {op:16s} {sizes:56s} {chosen:8.4f}   {'  '.join(f'{t:11.4f}' for t in forced)}   {chosen / min(forced):.3f}", flush=True)


main()
