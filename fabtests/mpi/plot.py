# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws bandwidth by message size for each provider as plain SVG: plot.py demo.csv demo.svg."""

import csv
import math
import sys

PANELS = [
    ("debian", "netpipe", 2, "NetPIPE, Debian Open MPI 4.1"),
    ("mpich5", "pingpong", 2, "mpi4py ping-pong, MPICH 5.0.2"),
]
COLOURS = ["#c0392b", "#2c7fb8", "#7f8c8d", "#8e44ad"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 520, 380, 70, 50, 20, 60


def size_name(size):
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def read(path):
    curves = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            key = (row["mpi"], row["program"], int(row["ranks"]))
            rate = float(row["mb_per_second"])
            if rate > 0:
                points = curves.setdefault(key, {}).setdefault(row["provider"], [])
                points.append((int(row["bytes"]), rate))
    return curves


def panel(x0, title, curves, providers):
    points = [p for curve in curves.values() for p in curve]
    low_x, high_x = 0, math.ceil(math.log2(max(p[0] for p in points)))
    low_y = math.floor(math.log10(min(p[1] for p in points)))
    high_y = math.ceil(math.log10(max(p[1] for p in points)))
    span_x, span_y = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(size, rate):
        x = x0 + LEFT + span_x * (math.log2(size) - low_x) / (high_x - low_x)
        y = TOP + span_y * (high_y - math.log10(rate)) / (high_y - low_y)
        return x, y

    def line(x1, y1, x2, y2, style):
        return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'

    def text(x, y, words, style='text-anchor="middle"'):
        return f'<text x="{x}" y="{y}" {style}>{words}</text>'

    centre = f"{x0 + LEFT + span_x / 2:.0f}"
    out = [text(centre, 28, title, 'text-anchor="middle" font-size="15"')]
    for power in range(low_x, high_x + 1):
        x, _ = place(2**power, 10**low_y)
        out.append(line(f"{x:.1f}", TOP, f"{x:.1f}", TOP + span_y, 'stroke="#eee"'))
        if power % 4 == 0:
            out.append(text(f"{x:.1f}", TOP + span_y + 18, size_name(2**power)))
    for power in range(low_y, high_y + 1):
        _, y = place(1, 10**power)
        level = f"{y:.1f}"
        out.append(line(x0 + LEFT, level, x0 + LEFT + span_x, level, 'stroke="#ddd"'))
        out.append(text(x0 + LEFT - 8, f"{y + 4:.1f}", f"{10**power:g}", 'text-anchor="end"'))
    out.append(text(centre, HEIGHT - 18, "message size, bytes"))
    middle = TOP + span_y / 2
    turned = f'text-anchor="middle" transform="rotate(-90 {x0 + 16} {middle})"'
    out.append(text(x0 + 16, middle, "bandwidth, MB/s", turned))
    shown = [p for p in providers if p in curves]
    for i, provider in enumerate(shown):
        colour = COLOURS[providers.index(provider) % len(COLOURS)]
        points = (place(*p) for p in sorted(curves[provider]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 16 + 18 * i
        style = f'stroke="{colour}" stroke-width="3"'
        out.append(line(x0 + LEFT + 12, y, x0 + LEFT + 36, y, style))
        out.append(text(x0 + LEFT + 42, y + 4, provider, 'text-anchor="start"'))
    return out


def main():
    curves = read(sys.argv[1])
    wanted = ((title, curves.get((mpi, program, ranks))) for mpi, program, ranks, title in PANELS)
    panels = [(title, found) for title, found in wanted if found is not None]
    if not panels:
        sys.exit(f"{sys.argv[1]}: nothing to plot")
    providers = []
    for _, by_provider in panels:
        providers += [p for p in by_provider if p not in providers]
    providers.sort(key=lambda p: (p != "scif", p))
    width = WIDTH * len(panels)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (title, by_provider) in enumerate(panels):
        out += panel(i * WIDTH, title, by_provider, providers)
    with open(sys.argv[2], "w") as file:
        file.write("\n".join([*out, "</svg>\n"]))


main()
