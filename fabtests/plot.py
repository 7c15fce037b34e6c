# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws results by message size as plain SVG, a curve for each provider: plot.py FILE SVG

FILE is the CSV of `make demo` (bandwidth), of `make demo-hosts` (time of an operation) or of
`make bench-upstream` (time of a message), or docs/user/performance.md, whose first table is drawn.
Of several placements the one with the most figures is drawn.
"""

import csv
import math
import re
import sys
from collections import Counter

DEMO = {
    ("debian", "netpipe", "2"): "NetPIPE, Debian Open MPI 4.1",
    ("mpich5", "pingpong", "2"): "mpi4py ping-pong, MPICH 5.0.2",
}
UPSTREAM = {
    "tagged_pingpong": "tagged messages: half a round trip",
    "tagged_bw": "tagged messages: in a window of 64",
    "rma_pingpong_write": "RMA write: half a round trip",
    "rma_bw_write": "RMA write: in a window of 64",
    "rma_bw_read": "RMA read: in a window of 64",
}
HOSTS_MPI = {"mpich5": "MPICH 5.0.2", "debian": "Debian Open MPI 4.1"}
HOSTS_OPERATIONS = {
    "pingpong-between": "half a round trip between hosts",
    "pingpong-within": "half a round trip within a host",
    "alltoall": "alltoall, 2 x 2 ranks",
    "allreduce": "allreduce, 2 x 2 ranks",
}
HOSTS_WAYS = {"tcp": "tcp alone", "net": "tcp alone", "own": "shared memory + tcp"}
COLOURS = ["#c0392b", "#2c7fb8", "#7f8c8d", "#8e44ad"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 520, 380, 70, 50, 20, 60
COLUMNS = 2


def size_name(size):
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def read_demo(rows):
    """Returns the curves of each panel, and the name of their axis."""
    panels = {title: {} for title in DEMO.values()}
    for row in rows:
        title = DEMO.get((row["mpi"], row["program"], row["ranks"]))
        rate = float(row["mb_per_second"])
        if title and rate > 0:
            panels[title].setdefault(row["provider"], []).append((int(row["bytes"]), rate))
    return panels, "bandwidth, MB/s"


def read_hosts(rows):
    panels = {f"{name}, {mpi}": {} for name in HOSTS_OPERATIONS.values()
              for mpi in HOSTS_MPI.values()}
    for row in rows:
        curves = panels[f"{HOSTS_OPERATIONS[row['operation']]}, {HOSTS_MPI[row['mpi']]}"]
        point = int(row["bytes"]), float(row["seconds"]) * 1e6
        curves.setdefault(HOSTS_WAYS.get(row["way"], row["way"]), []).append(point)
    return panels, "time, µs"


def read_upstream(rows):
    rows = [row for row in rows if row["test"] in UPSTREAM]
    placements = Counter(row["placement"] for row in rows).most_common(1)
    panels = {title: {} for title in UPSTREAM.values()}
    for row in rows:
        if row["placement"] == placements[0][0]:
            curves = panels[UPSTREAM[row["test"]]]
            curves.setdefault(row["subject"], []).append((int(row["size"]), float(row["median"])))
    return panels, "time of a message, µs"


def read_page(page):
    """Returns the same of the first table of a page. A column with a colon is of its own panel."""
    table = re.search(r"(?:^\|.*\n)+", page, re.M).group().replace("`", "").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    (_, *names), rows = cells[0], cells[2:]
    panels = {"half a round trip": {}, "in a window of 64": {}}
    for at, name in enumerate(names, 1):
        window, _, provider = name.rpartition(": ")
        curves = panels["in a window of 64" if window else "half a round trip"]
        curves[provider] = [(int(row[0].replace(",", "")), float(row[at])) for row in rows]
    return panels, "time of a message, µs"


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'


def text(x, y, words, style='text-anchor="middle"'):
    return f'<text x="{x}" y="{y}" {style}>{words}</text>'


class Panel:
    """One diagram, both of its axes logarithmic, with its corner at (x0, y0)."""

    def __init__(self, x0, y0, curves):
        points = [point for curve in curves.values() for point in curve]
        self.x0, self.y0, self.curves = x0, y0, curves
        self.low_x = math.floor(math.log2(min(size for size, _ in points)))
        self.high_x = math.ceil(math.log2(max(size for size, _ in points)))
        self.low_y = math.floor(math.log10(min(value for _, value in points)))
        self.high_y = math.ceil(math.log10(max(value for _, value in points)))
        self.span_x, self.span_y = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(self, size, value):
        along = (math.log2(size) - self.low_x) / max(1, self.high_x - self.low_x)
        up = (self.high_y - math.log10(value)) / max(1, self.high_y - self.low_y)
        return self.x0 + LEFT + self.span_x * along, self.y0 + TOP + self.span_y * up

    def frame(self, title, axis):
        left, right = self.x0 + LEFT, self.x0 + LEFT + self.span_x
        top, bottom = self.y0 + TOP, self.y0 + TOP + self.span_y
        centre, middle = f"{(left + right) / 2:.0f}", (top + bottom) / 2
        out = [text(centre, self.y0 + 28, title, 'text-anchor="middle" font-size="15"')]
        for power in range(self.low_x, self.high_x + 1):
            x, _ = self.place(2**power, 10**self.low_y)
            out.append(line(f"{x:.1f}", top, f"{x:.1f}", bottom, 'stroke="#eee"'))
            if power % 4 == 0:
                out.append(text(f"{x:.1f}", bottom + 18, size_name(2**power)))
        for power in range(self.low_y, self.high_y + 1):
            _, y = self.place(2**self.low_x, 10**power)
            out.append(line(left, f"{y:.1f}", right, f"{y:.1f}", 'stroke="#ddd"'))
            out.append(text(left - 8, f"{y + 4:.1f}", f"{10**power:g}", 'text-anchor="end"'))
        turned = f'text-anchor="middle" transform="rotate(-90 {self.x0 + 16} {middle})"'
        out.append(text(centre, self.y0 + HEIGHT - 18, "message size, bytes"))
        out.append(text(self.x0 + 16, middle, axis, turned))
        return out

    def lines(self, providers):
        out = []
        shown = [provider for provider in providers if provider in self.curves]
        for i, provider in enumerate(shown):
            colour = COLOURS[providers.index(provider) % len(COLOURS)]
            points = (self.place(*point) for point in sorted(self.curves[provider]))
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            style = f'fill="none" stroke="{colour}" stroke-width="2"'
            out.append(f'<polyline points="{path}" {style}/>')
            x, y = self.x0 + LEFT + 12, self.y0 + TOP + 16 + 18 * i
            out.append(line(x, y, x + 24, y, f'stroke="{colour}" stroke-width="3"'))
            out.append(text(x + 30, y + 4, provider, 'text-anchor="start"'))
        return out


def drawing(panels, axis):
    """Returns the SVG of all panels that have curves; empty without any."""
    panels = {title: curves for title, curves in panels.items() if curves}
    if not panels:
        return ""
    providers = sorted({p for curves in panels.values() for p in curves},
                       key=lambda p: (p != "scif", p))
    columns = min(COLUMNS, len(panels))
    width, height = WIDTH * columns, HEIGHT * math.ceil(len(panels) / columns)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (title, curves) in enumerate(panels.items()):
        panel = Panel(i % columns * WIDTH, i // columns * HEIGHT, curves)
        out += panel.frame(title, axis) + panel.lines(providers)
    return "\n".join([*out, "</svg>\n"])


def main():
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        if sys.argv[1].endswith(".md"):
            svg = drawing(*read_page(file.read()))
        else:
            rows = list(csv.DictReader(row for row in file if not row.startswith("#")))
            columns = rows[0] if rows else ()
            reader = (read_upstream if "test" in columns
                      else read_hosts if "operation" in columns else read_demo)
            svg = drawing(*reader(rows))
    if not svg:
        sys.exit(f"{sys.argv[1]}: nothing to plot")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(svg)


if __name__ == "__main__":
    main()
