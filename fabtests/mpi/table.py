# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Turns the outputs of demo.sh into one CSV file (a line per size) and prints the table of it.

table.py DIRECTORY PROVIDER CSV; files of the directory are
STACK.PROVIDER.RANKS.PROGRAM.{out,err,np,failed}. Latency is half a round trip, or one hop of the
ring. Bandwidth is bytes divided by that time, in 10^6 bytes per second.
"""

import csv
import platform
import re
import sys
from pathlib import Path

STACKS = {"debian": "Debian Open MPI 4.1", "mpich5": "MPICH 5.0.2"}
PROGRAMS = {"netpipe": "NetPIPE", "ring": "mpi4py ring", "pingpong": "mpi4py ping-pong"}
SMALL, LARGE = 8, 1 << 20
COLUMNS = (
    "MPI, program: as installed by their packages, unmodified.",
    "ranks: processes of the job. More ranks than cores take turns.",
    "provider: libfabric's, by FI_PROVIDER.",
    "8 B: half a round trip, or one hop of the ring. Less is better.",
    "1 MiB: bandwidth of one direction. More is better.",
    "against the best other: scif beside the best other provider of the same program.",
)


def netpipe(path):
    """Columns: bytes, megabits per second, seconds."""
    for line in path.read_text().splitlines():
        size, _, seconds = line.split()
        yield int(size), float(seconds)


def ring(path):
    line = r"time for (\d+) loops = (\S+) seconds \((\d+) processes, (\d+) bytes"
    found = re.search(line, path.read_text())
    if found:
        loops, seconds, ranks, size = found.groups()
        yield int(size), float(seconds) / int(loops) / int(ranks)


def pingpong(path):
    for found in re.finditer(r"^ *(\d+) +\S+ \| (\S+)", path.read_text(), re.M):
        yield int(found[1]), float(found[2])


def read(directory):
    """{(stack, program, ranks): {provider: {size: seconds} or a reason}}"""
    runs = {}
    for path in sorted(directory.iterdir()):
        stack, provider, ranks, name, kind = path.name.split(".")
        program = name.split("-")[0]
        runs_of = runs.setdefault((stack, program, int(ranks)), {})
        if kind == "failed":
            runs_of[provider] = path.read_text().strip()
            continue
        points = runs_of.setdefault(provider, {})
        if isinstance(points, str):
            continue
        if kind == "np" and program == "netpipe":
            points.update(netpipe(path))
        elif kind == "out" and program == "ring":
            points.update(ring(path))
        elif kind == "out" and program == "pingpong":
            points.update(pingpong(path))
    return runs


def machine():
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {platform.system()} {platform.release()}, {platform.machine()}"


def latency(points):
    return points.get(SMALL) if isinstance(points, dict) else None


def bandwidth(points):
    return LARGE / points[LARGE] / 1e6 if isinstance(points, dict) and LARGE in points else None


def best(values, pick):
    values = [v for v in values if v is not None]
    return pick(values) if values else None


def table(runs, ours):
    head = ("MPI", "program", "ranks", "provider", "8 B", "1 MiB", "against the best other")
    rows = [head]
    for (stack, program, ranks), by_provider in runs.items():
        others = [points for provider, points in by_provider.items() if provider != ours]
        order = sorted(by_provider, key=lambda p: (p != ours, p))
        for provider in order:
            points = by_provider[provider]
            first = provider == order[0]
            left = (STACKS.get(stack, stack), PROGRAMS.get(program, program), str(ranks))
            left = left if first else ("", "", "")
            if isinstance(points, str):
                rows.append((*left, provider, points, "", ""))
                continue
            lat, bw = latency(points), bandwidth(points)
            against = []
            if provider == ours:
                other = best(map(latency, others), min)
                if lat and other:
                    against.append(f"latency {other / lat:.1f}x better" if other >= lat
                                   else f"latency {lat / other:.1f}x worse")
                other = best(map(bandwidth, others), max)
                if bw and other:
                    against.append(f"{bw / other:.1f}x the bandwidth")
            rows.append((
                *left,
                provider,
                f"{lat * 1e6:.2f} us" if lat else "-",
                f"{bw:.0f} MB/s" if bw else "-",
                ", ".join(against),
            ))
    widths = [max(len(row[i]) for row in rows if i < 4 or row[5]) for i in range(len(head))]
    for number, row in enumerate(rows):
        cells = [cell.rjust(w) if i in (2, 4, 5) and row[5] else cell.ljust(w)
                 for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))


def main():
    directory, ours, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    runs = read(directory)
    with out.open("w", newline="") as file:
        file.write(f"# {machine()}\n")
        writer = csv.writer(file)
        writer.writerow(
            ("mpi", "program", "ranks", "provider", "bytes", "seconds", "mb_per_second"))
        for (stack, program, ranks), by_provider in runs.items():
            for provider, points in by_provider.items():
                if isinstance(points, dict):
                    for size, seconds in sorted(points.items()):
                        rate = size / seconds / 1e6 if seconds > 0 else 0
                        writer.writerow((stack, program, ranks, provider, size,
                                         f"{seconds:.4e}", f"{rate:.2f}"))
    print(f"{machine()}\n")
    table(runs, ours)
    print("\n" + "\n".join(COLUMNS))
    if not any(isinstance(by.get(ours), dict) and by[ours] for by in runs.values()):
        sys.exit(f"no figure for {ours}")


if __name__ == "__main__":
    main()
