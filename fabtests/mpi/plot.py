# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws bandwidth by message size for each provider as plain SVG: plot.py demo.csv demo.svg."""

import csv
import math
import sys

PANELS = [("debian", "netpipe", 2, "NetPIPE, Debian Open MPI 4.1"), ("mpich5", "pingpong", 2, "mpi4py ping-pong, MPICH 5.0.2")]
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
                curves.setdefault(key, {}).setdefault(row["provider"], []).append((int(row["bytes"]), rate))
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

    out = [f'<text x="{x0 + LEFT + span_x / 2:.0f}" y="28" text-anchor="middle" font-size="15">{title}</text>']
    for power in range(low_x, high_x + 1):
        x, _ = place(2**power, 10**low_y)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + span_y}" stroke="#eee"/>')
        if power % 4 == 0:
            out.append(f'<text x="{x:.1f}" y="{TOP + span_y + 18}" text-anchor="middle">{size_name(2**power)}</text>')
    for power in range(low_y, high_y + 1):
        _, y = place(1, 10**power)
        out.append(f'<line x1="{x0 + LEFT}" y1="{y:.1f}" x2="{x0 + LEFT + span_x}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x0 + LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    out.append(f'<text x="{x0 + LEFT + span_x / 2:.0f}" y="{HEIGHT - 18}" text-anchor="middle">message size, bytes</text>')
    middle = TOP + span_y / 2
    out.append(f'<text x="{x0 + 16}" y="{middle}" text-anchor="middle" transform="rotate(-90 {x0 + 16} {middle})">bandwidth, MB/s</text>')
    shown = [p for p in providers if p in curves]
    for i, provider in enumerate(shown):
        colour = COLOURS[providers.index(provider) % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in sorted(curves[provider])))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 16 + 18 * i
        out.append(f'<line x1="{x0 + LEFT + 12}" y1="{y}" x2="{x0 + LEFT + 36}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        out.append(f'<text x="{x0 + LEFT + 42}" y="{y + 4}">{provider}</text>')
    return out


def main():
    curves = read(sys.argv[1])
    panels = [(title, curves[mpi, program, ranks]) for mpi, program, ranks, title in PANELS if (mpi, program, ranks) in curves]
    if not panels:
        sys.exit(f"{sys.argv[1]}: nothing to plot")
    providers = []
    for _, by_provider in panels:
        providers += [p for p in by_provider if p not in providers]
    providers.sort(key=lambda p: (p != "scif", p))
    width = WIDTH * len(panels)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (title, by_provider) in enumerate(panels):
        out += panel(i * WIDTH, title, by_provider, providers)
    with open(sys.argv[2], "w") as file:
        file.write("\n".join([*out, "</svg>\n"]))


main()
