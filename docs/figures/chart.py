#!/usr/bin/env python3
"""chart.py: draws curves as an SVG that reads well on light and dark pages. Standard library only.

    python3 docs/figures/chart.py -o FILE.svg [-title T] [-x LABEL] [-y LABEL] NAME=POINTS ...
POINTS: a text file with two numbers, x and y, in each line. bench/pays.py draws with chart() itself. Curves begin where y has come into the
range that most of the chart shows, so that a steep start does not flatten the rest.
"""
import argparse
import math
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 500, 76, 24, 52, 58
LIGHT = ["#0b62c4", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490"]
DARK = ["#6cb0ff", "#ff9a62", "#5fd38a", "#cfa3ff", "#e6c35c", "#5fd0e0"]


class Curve:
    """points: [(x, y)], x ascending. color: index into the palette. strong 0: a thin line without a name in the legend."""
    def __init__(self, name, points, color=0, strong=1):
        self.name, self.points, self.color, self.strong = name, points, color % len(LIGHT), strong


def ticks(low, high, count):
    """Round numbers that divide [low, high] into about `count` parts."""
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw * 0.999)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(x):
    return f"{round(x, 10):g}"


def ranges(curves, level):
    """x from 0 to the longest curve, y of what follows after the first twelfth of each."""
    longest = max(c.points[-1][0] for c in curves)
    late = [y for c in curves for x, y in c.points if x >= c.points[-1][0] / 12] + ([level] if level is not None else [])
    low, high = min(late), max(late)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1
    return longest or 1, low - room, high + room


def begin(title, width, height, style=""):
    """The lines that every picture begins with: size, colors (c0 to c5 of lines, f0 to f5 of areas) for light and dark pages, background,
    title. style: more rules."""
    colors = lambda palette: "".join(f".c{i}{{stroke:{c}}}.f{i}{{fill:{c}}}" for i, c in enumerate(palette))
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{escape(title, {chr(34): "&quot;"})}">',
            "<style>text{font:15px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}.title{font-size:18px;"
            "font-weight:600}.back{fill:#fff}.grid{stroke:#d8dee4}.level{stroke:#57606a;stroke-dasharray:6 5}path,line{fill:none}"
            f".strong{{stroke-width:3;stroke-linejoin:round}}.thin{{stroke-width:1.3;opacity:.55}}{colors(LIGHT)}{style}"
            "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}.level{stroke:#9aa4af}"
            f"{colors(DARK)}}}</style>",
            f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
            f'<text class="title" x="{LEFT}" y="32">{escape(title)}</text>']


def chart(title, x_label, y_label, curves, level=None, level_name="", marks=()):
    """The SVG as a string. level: a dashed horizontal line; marks: [(x, text, color)], dots on it."""
    curves = [c for c in curves if c.points]
    if not curves:
        raise ValueError("no curve has a point")
    longest, low, high = ranges(curves, level)
    across = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / longest
    down = lambda y: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)
    out = begin(title, WIDTH, HEIGHT) + [
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/></clipPath>']
    for y in ticks(low, high, 6):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>'
                   f'<text x="{LEFT - 8}" y="{down(y) + 5:.1f}" text-anchor="end">{number(y)}</text>')
    for x in ticks(0, longest, 8):
        out.append(f'<line class="grid" x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{number(x)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>'
               f'<text transform="translate(20 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    if level is not None:
        out.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(level):.1f}" y2="{down(level):.1f}"/>'
                   f'<text x="{LEFT + 8}" y="{down(level) - 7:.1f}">{escape(level_name)}</text>')
    for c in sorted(curves, key=lambda c: c.strong):
        path = " ".join(f"{'L' if i else 'M'}{across(x):.1f} {down(y):.1f}" for i, (x, y) in enumerate(c.points))
        out.append(f'<path class="c{c.color} {"strong" if c.strong else "thin"}" clip-path="url(#inside)" d="{path}"/>')
        if len(c.points) == 1:          # a path of one point is not seen
            out.append(f'<circle class="f{c.color}" cx="{across(c.points[0][0]):.1f}" cy="{down(c.points[0][1]):.1f}" r="5"/>')
    for x, text, color in marks:        # falling curves leave the side below and left of a mark free
        left = across(x) - LEFT > 8 * len(text)
        out.append(f'<circle class="f{color}" cx="{across(x):.1f}" cy="{down(level):.1f}" r="6"/>'
                   f'<text x="{across(x) - 8 * left:.1f}" y="{down(level) + 22:.1f}" text-anchor="{"end" if left else "start"}">{escape(text)}</text>')
    for i, c in enumerate(c for c in curves if c.strong):
        y = TOP + 24 + 24 * i
        out.append(f'<line class="c{c.color} strong" x1="{WIDTH - 350}" x2="{WIDTH - 316}" y1="{y - 5}" y2="{y - 5}"/>'
                   f'<text x="{WIDTH - 306}" y="{y}">{escape(c.name)}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-o", required=True)
    p.add_argument("-title", default="")
    p.add_argument("-x", default="")
    p.add_argument("-y", default="")
    p.add_argument("curve", nargs="+", metavar="NAME=POINTS")
    a = p.parse_args()
    curves = []
    for i, text in enumerate(a.curve):
        name, _, path = text.partition("=")
        try:
            with open(path) as f:
                points = [tuple(map(float, line.split())) for line in f if line.strip()]
            assert points and all(len(point) == 2 for point in points)
        except (OSError, ValueError, AssertionError) as e:
            sys.exit(f"error: {text}: expected NAME=FILE with two numbers in each line: {e}")
        curves.append(Curve(name, points, i))
    with open(a.o, "w") as f:
        f.write(chart(a.title, a.x, a.y, curves))


if __name__ == "__main__":
    main()
