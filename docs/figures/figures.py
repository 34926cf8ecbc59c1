#!/usr/bin/env python3
"""figures.py: draws the figures of the documents, from sizes and rules of the code where they show any. Standard library only.

    python3 docs/figures/figures.py            writes docs/figures/*.svg
    python3 docs/figures/figures.py -check     says which of them are not what this script makes; exit code 1 if some are not
"""
import pathlib
import sys
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from chart import begin, chart, Curve, WIDTH, LEFT  # noqa: E402

STYLE = (".box{stroke-width:1.5;fill-opacity:.16}.plain{fill:none;stroke:#57606a;stroke-width:1.5}.dashed{fill:none;stroke:#57606a;stroke-width:1.5;"
         "stroke-dasharray:6 5}.arrow{stroke:#57606a;stroke-width:1.5}.head{fill:#57606a}.faint{opacity:.3}.small{font-size:13px}.bold{font-weight:600}"
         "@media (prefers-color-scheme:dark){.plain,.dashed,.arrow{stroke:#9aa4af}.head{fill:#9aa4af}}")


class Figure:
    """Boxes, arrows and text at pixel positions. color: 0 to 5 of the palette in chart.py; None: gray."""
    def __init__(self, title, height):
        self.out = begin(title, WIDTH, height, STYLE)
        self.out.append('<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
                        '<path class="head" d="M0 0 8 4 0 8z"/></marker>')

    def add(self, tag, text=None, **attributes):
        a = " ".join(f'{"class" if k == "kind" else k.replace("_", "-")}="{v}"' for k, v in attributes.items() if v is not None)
        self.out.append(f"<{tag} {a}/>" if text is None else f"<{tag} {a}>{escape(text)}</{tag}>")

    def text(self, x, y, *lines, kind="small", anchor="middle"):
        for i, line in enumerate(lines):
            self.add("text", line, x=f"{x:g}", y=f"{y + 17 * i:g}", kind=kind or None, text_anchor=anchor)

    def box(self, x, y, w, h, *lines, color=None, kind="", bold=False):
        """The first line may be bold. Text is centered."""
        look = f"box c{color} f{color}" if color is not None else "plain"
        self.add("rect", x=f"{x:g}", y=f"{y:g}", width=f"{w:g}", height=f"{h:g}", rx=5, kind=f"{look} {kind}".strip())
        top = y + h / 2 + 5 - 8.5 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x + w / 2, top + 17 * i, line, kind="small bold" if bold and not i else "small")

    def frame(self, x, y, w, h, text):
        self.add("rect", x=f"{x:g}", y=f"{y:g}", width=f"{w:g}", height=f"{h:g}", rx=8, kind="dashed")
        self.text(x + w / 2, y + h + 18, text, kind="small bold")

    def arrow(self, *points, head=True, color=None, kind=""):
        """A line through (x, y) points."""
        d = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        look = "arrow" if color is None else f"c{color}"
        self.add("path", kind=f"{look} {kind}".strip(), d=d, marker_end="url(#head)" if head else None,
                 stroke_width=None if color is None else 2)

    def circle(self, x, y, text, r=13):
        self.add("circle", cx=f"{x:g}", cy=f"{y:g}", r=r, kind="plain")
        self.text(x, y + 5, text, kind="")

    def svg(self):
        return "\n".join(self.out + ["</svg>", ""])


def sub_layer(f, x, name, color, experts, chosen, note):
    """From its norm at x to the sum; the stream is at y = 90."""
    f.arrow((x, 90), (x, 134))
    f.box(x - 30, 136, 60, 30, "norm", color=1)
    f.arrow((x, 166), (x, 248), (x + 40, 248))
    f.box(x + 42, 190, 168, 118, color=color)
    f.text(x + 126, 209, name, kind="small bold")
    f.text(x + 126, 228, f"router: {chosen} of {experts}")
    for e in range(8):
        hot = e in (2, 5)
        f.box(x + 52 + 19 * e, 238, 15, 24, color=color if hot else None, kind="" if hot else "faint")
    f.text(x + 126, 282, *note)
    f.arrow((x + 210, 248), (x + 242, 248))
    f.circle(x + 257, 248, "Σ")
    f.arrow((x + 257, 234), (x + 257, 106))
    f.circle(x + 257, 90, "+")


def block():
    f = Figure("A block: two mixtures, and where their sums are made", 380)
    first, second = 100, 426
    f.arrow((30, 90), (first + 243, 90), head=False)
    f.arrow((first + 271, 90), (second + 243, 90), head=False)
    f.arrow((second + 271, 90), (890, 90))
    f.text(30, 76, "x (N,C)", anchor="start")
    f.text(476, 76, "mid (N,C)", anchor="start")
    f.text(890, 76, "out (N,C)", anchor="end")
    sub_layer(f, first, "attention", 0, "A", "X", ("own: query, output", "shared: kv"))
    f.text(first + 6, 186, "att_normed", anchor="start")
    sub_layer(f, second, "experts", 2, "E", "K", ("each: up, down", "kept: pre (S,2F)"))
    f.text(second + 6, 186, "mlp_normed", anchor="start")
    f.arrow((752, 90), (752, 134))
    f.box(722, 136, 60, 30, "norm", color=1)
    f.arrow((752, 166), (752, 248), (800, 248))
    f.text(806, 244, "next block,", "or the head", anchor="start")
    f.frame(first + 236, 68, 130, 248, "add_norm_forward")
    f.frame(second + 236, 68, 130, 248, "add_norm_forward")
    f.text(WIDTH / 2, 362, "A sub-layer ends before its sum: one operation adds the experts' rows, the residual stream and makes the next norm.")
    return f.svg()


def slots():
    chosen = [(2, 0), (1, 2), (2, 1)]                               # of math.md, section 7
    K, E = 2, 3
    f = Figure("Slots, rows, experts: three tokens, K = 2 of E = 3", 418)
    expert = [e for token in chosen for e in token]
    slot_of_row = sorted(range(len(expert)), key=lambda s: (expert[s], s))
    start = [sum(e < i for e in expert) for i in range(E + 1)]
    token_y = [110 + 92 * n for n in range(3)]
    slot_y = [token_y[s // K] - 22 + 44 * (s % K) for s in range(6)]
    row_y = [82 + 46 * r + 10 * expert[slot_of_row[r]] for r in range(6)]
    heads = ((70, "x (N,C)"), (200, "expert[s], s = n*K + k"), (390, "slot[i], token[i]"), (588, "parallel_linear"), (750, "combine"), (860, "out (N,C)"))
    for x, text in heads:
        f.text(x, 62, text, kind="small bold")
    for n in range(3):
        f.box(35, token_y[n] - 16, 70, 32, f"token {n}")
        f.box(825, token_y[n] - 16, 70, 32, f"token {n}")
        f.circle(750, token_y[n], "Σ")
        f.arrow((764, token_y[n]), (823, token_y[n]))
    for s in range(6):
        f.arrow((105, token_y[s // K]), (148, slot_y[s]), head=False, color=expert[s])
        f.box(150, slot_y[s] - 14, 100, 28, f"{s}: expert {expert[s]}", color=expert[s])
    for r, s in enumerate(slot_of_row):
        e = expert[s]
        f.arrow((250, slot_y[s]), (338, row_y[r]), color=e)
        f.box(340, row_y[r] - 14, 100, 28, f"slot {s}, token {s // K}", color=e)
        f.arrow((660, row_y[r]), (737, token_y[s // K]), color=e)
    for e in range(E):
        rows = row_y[start[e]:start[e + 1]]
        f.box(530, rows[0] - 14, 116, rows[-1] - rows[0] + 28, f"expert {e}", *([f"start {start[e]}, load {len(rows)}"] if len(rows) > 1 else []), color=e)
        for y in rows:
            f.arrow((440, y), (528, y), color=e)
            f.arrow((646, y), (660, y), head=False, color=e)
    f.text(WIDTH / 2, 384, "Nothing is copied into this order: an expert reads rows of x by token[i] and writes by slot[i],",
           "and combine adds the K slots of each token, times weight[s].")
    return f.svg()


def kept():
    C, width = 2048, 8192                                           # width: K * F, the work of a token
    f = Figure("What an MLP mixture keeps for its backward pass", 440)
    f.text(LEFT, 56, "kB for each token and layer; bf16, C = 2048, and K experts of F = 8192 / K: the same work, split finer and finer", anchor="start")
    parts = ("x", "gathered x", "pre", "act", "y")
    everything = lambda K: (2 * C, 2 * K * C, 4 * width, 2 * width, 2 * K * C)
    here = lambda K: (2 * C, 0, 4 * width, 0, 0)
    scale = (WIDTH - LEFT - 150) / sum(everything(16))
    y = 76
    for K in (1, 2, 4, 8, 16):
        f.text(LEFT - 8, y + 31, f"K = {K}", anchor="end", kind="")
        for what, sizes in (("step by step", everything(K)), ("here", here(K))):
            x = LEFT
            for i, size in enumerate(sizes):
                if size:
                    f.add("rect", x=f"{x:.1f}", y=y, width=f"{size * scale:.1f}", height=22, kind=f"f{i}", fill_opacity=".75")
                x += size * scale
            f.text(x + 8, y + 16, f"{what}: {sum(sizes) / 1000:.1f}", anchor="start")
            y += 25
        y += 12
    for i, part in enumerate(parts):
        f.add("rect", x=LEFT + 130 * i, y=398, width=16, height=16, kind=f"f{i}", fill_opacity=".75")
        f.text(LEFT + 130 * i + 24, 411, part, anchor="start")
    return f.svg()


def backward():
    f = Figure("experts_backward and combine_backward: what is kept, what each step makes", 474)
    keep, make, weight = 0, 2, 1

    def node(x, y, w, *lines, color):
        f.box(x, y, w, 24 + 17 * (len(lines) - 1), *lines, color=color, bold=True)
    node(30, 212, 92, "dout", "(N,C)", color=make)
    node(180, 130, 92, "w->down", "(E,C,F)", color=keep)
    node(180, 212, 130, "da", "(S,F) = dout down", color=make)
    node(352, 130, 100, "pre", "(S,2F)", color=keep)
    node(352, 66, 100, "weight", "(N,K)", color=keep)
    f.box(352, 205, 116, 56, "silu, product,", "backward")
    node(520, 132, 110, "dweight", "<da, act>", color=make)
    node(520, 212, 110, "dpre", "(S,2F)", color=make)
    node(520, 292, 110, "weighted", "weight act", color=make)
    node(700, 66, 170, "dlogits", "router_backward", color=make)
    node(700, 132, 170, "dw->router", "+= dlogitsᵀ x", color=weight)
    node(700, 292, 170, "dw->up", "+= dpreᵀ x", color=weight)
    node(700, 352, 170, "dw->down", "+= doutᵀ weighted", color=weight)
    node(700, 212, 170, "dx of the slots", "dpre up", color=make)
    node(352, 408, 100, "x", "(N,C) normed", color=keep)
    node(700, 412, 170, "dx", "Σ slots + dlogits router", color=make)
    f.arrow((122, 233), (178, 233))
    f.arrow((226, 171), (226, 210))
    f.arrow((310, 233), (350, 233))
    f.arrow((402, 171), (402, 203))
    f.arrow((352, 86), (336, 86), (336, 190), (370, 190), (370, 203))
    for y in (152, 233, 312):
        f.arrow((468, 233), (518, y))
    f.arrow((575, 130), (575, 86), (698, 86))
    f.arrow((785, 108), (785, 130))
    f.arrow((630, 233), (698, 233))
    f.arrow((630, 240), (664, 240), (664, 304), (698, 304))
    f.arrow((630, 312), (648, 312), (648, 368), (698, 368))
    f.arrow((76, 253), (76, 380), (698, 380))
    f.arrow((452, 428), (680, 428), (680, 322), (698, 322))
    f.arrow((870, 86), (893, 86), (893, 432), (872, 432))
    f.arrow((870, 233), (893, 233), head=False)
    f.text(870, 470, "train_moe leaves this sum to add_norm_backward", kind="small", anchor="end")
    for i, (text, color) in enumerate((("kept from the forward pass, or a weight", keep), ("made and dropped", make), ("gradient of a weight", weight))):
        f.add("rect", x=30, y=56 + 21 * i, width=14, height=14, kind=f"box c{color} f{color}")
        f.text(52, 68 + 21 * i, text, anchor="start")
    return f.svg()


def tiles():
    load, tile = (300, 90, 210), 128
    stages, steps = 4, 12
    f = Figure("Tiles of rows, and the stages of one tile in time", 430)
    f.text(LEFT, 62, f"Rows of {len(load)} experts in tiles of {tile}: {', '.join(map(str, load))} rows. The last tile of each is partly empty.", anchor="start")
    x = LEFT
    for e, rows in enumerate(load):
        for i in range(-(-rows // tile)):
            used = min(tile, rows - i * tile)
            f.add("rect", x=f"{x:g}", y=74, width=112, height=34, kind="plain")
            f.add("rect", x=f"{x:g}", y=74, width=f"{112 * used / tile:.1f}", height=34, kind=f"box c{e} f{e}")
            f.text(x + 56, 96, f"{used}")
            x += 116
        x += 14
    # A load takes `late` until it arrives, and one can begin every `pace`; a product takes 1, when its stage is full.
    pace, late, unit = 0.45, 1.6, 56
    begin_load, begin_step, free = [], [], []
    for i in range(steps):
        begin_load.append(max(begin_load[-1] + pace if i else 0, free[i - stages] if i >= stages else 0))
        begin_step.append(max(begin_load[i] + late, begin_step[-1] + 1 if i else 0))
        free.append(begin_step[i] + 1)
    f.text(LEFT, 144, f"One tile: {steps} steps of 64 along k, {stages} stages in shared memory (the color is the stage).", anchor="start")
    for name, y in ("producer", 166), ("stages", 208), ("consumers", 322):
        f.text(8, y + 16, name, kind="small", anchor="start")
    for i in range(steps):
        s, x0, x1 = i % stages, LEFT + unit * begin_load[i], LEFT + unit * begin_step[i]
        f.add("rect", x=f"{x0:.1f}", y=166, width=f"{unit * pace - 2:.1f}", height=24, kind=f"box c{s} f{s}")
        f.add("rect", x=f"{x0:.1f}", y=208 + 26 * s, width=f"{x1 - x0 - 2:.1f}", height=20, kind=f"box c{s} f{s}")
        f.add("rect", x=f"{x1:.1f}", y=320, width=f"{unit - 2}", height=28, kind=f"f{s}", fill_opacity=".75")
        f.text(x0 + unit * pace / 2 - 1, 183, str(i))
        f.text(x1 + unit / 2 - 1, 339, str(i))
    for s in range(stages):
        f.text(WIDTH - 24, 223 + 26 * s, f"stage {s}", anchor="end")
    i = stages
    x = LEFT + unit * begin_load[i]
    f.arrow((x, 320), (x, 194))
    f.text(x - 4, 368, "↑ step 0 is done, its stage empty: step 4 may be loaded", anchor="start")
    f.text(WIDTH / 2, 398, "full: a stage's bytes have landed, so its product may begin. empty: its product is done, so it may be overwritten.",
           "After the first load the tensor cores never wait, as long as a load takes less than three steps.")
    return f.svg()


def crossing(points, level):
    """Where a falling curve passes a level."""
    for (x, y), (x2, y2) in zip(points, points[1:]):
        if y2 <= level < y:
            return x + (x2 - x) * (y - level) / (y - y2)
    sys.exit(f"the curve does not pass {level}")


def pays():
    """Losses of bench/results/pays-h200.txt over training time."""
    points = {"mixture": [], "twin": []}
    for line in (HERE / "../../bench/results/pays-h200.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, x, y = line.split()
            points[name].append((float(x), float(y)))
    last = points["twin"][-1]
    passed = crossing(points["mixture"], last[1])
    names = {"mixture": "mixture: 96 experts, 7 a token", "twin": "dense twin: as many active"}
    return chart("Kernel sources, one H200", "seconds of training", "validation loss, nats a token",
                       [Curve(names[n], points[n], i) for i, n in enumerate(points)], last[1], "the twin's last loss",
                       [(passed, f"{passed:.0f} s", 0), (last[0], f"{last[0]:.0f} s", 1)])


FIGURES = {"pays": pays, "block": block, "slots": slots, "kept": kept, "backward": backward, "tiles": tiles}


def main():
    if sys.argv[1:] not in ([], ["-check"]):
        sys.exit(__doc__)
    wrong = []
    for name, draw in FIGURES.items():
        path, svg = HERE / f"{name}.svg", draw()
        if sys.argv[1:]:
            wrong += [name] * (not path.exists() or path.read_text(encoding="utf-8") != svg)
        else:
            path.write_text(svg, encoding="utf-8")
    for name in wrong:
        print(f"docs/figures/{name}.svg is not what figures.py makes: python3 docs/figures/figures.py writes it")
    return wrong != []


if __name__ == "__main__":
    sys.exit(main())
