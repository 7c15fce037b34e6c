# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Turns outputs of ../net/demo.sh into one CSV file (a line per size), and prints their table.

hosts_table.py DIRECTORY CSV; files of the directory are STACK.WAY.{out,failed}. The lines of an
output are those of jobs/hosts.py.
"""

import csv
import re
import sys
from pathlib import Path

from table import machine

STACKS = {"mpich5": "MPICH 5.0.2", "debian": "Debian Open MPI 4.1"}
OPERATIONS = {
    "pingpong-between": "ping-pong between hosts",
    "pingpong-within": "ping-pong within a host",
    "alltoall": "alltoall",
    "allreduce": "allreduce",
}
WAYS = ("scif", "tcp", "net", "own")
LABELS = {"tcp": "tcp alone", "net": "net alone", "own": "shared memory + tcp"}
SIZES = {8: "8 B", 1 << 10: "1 KiB", 16 << 10: "16 KiB", 256 << 10: "256 KiB"}
NOTES = (
    "Microseconds: half a round trip of a message, or one collective operation of all 4 ranks.",
    "*: the least of its operation and size. Ranks that take no part in a ping-pong sleep.",
    "tcp alone, net alone: libfabric's provider, also within a host. Both are one provider: "
    "libfabric 1.17 names it net.",
    "shared memory + tcp: the MPI's own shared memory, and tcp between hosts. MPICH uses "
    "libfabric's tcp, Open MPI its own.",
)


def read(directory):
    """{(stack, way): ({(operation, size): seconds}, reason)}; without a failure no reason."""
    runs = {}
    for path in sorted(directory.glob("*.out")):
        stack, way = path.stem.split(".")
        failed = path.with_suffix(".failed")
        found = re.findall(r"^hosts: (\S+) (\d+) (\S+)$", path.read_text(errors="replace"), re.M)
        runs[stack, way] = (
            {(operation, int(size)): float(seconds) for operation, size, seconds in found},
            failed.read_text().strip() if failed.exists() else "",
        )
    return runs


def rows_of(runs, stack, operation):
    ways = [way for way in WAYS if (stack, way) in runs]
    least = {
        size: min((runs[stack, way][0].get((operation, size), float("inf")) for way in ways))
        for size in SIZES
    }
    for way in ways:
        figures, reason = runs[stack, way]
        cells = []
        for size in SIZES:
            seconds = figures.get((operation, size))
            if seconds is None:
                cells.append("-")
            else:
                cells.append(f"{seconds * 1e6:.1f}{'*' if seconds == least[size] else ' '}")
        yield LABELS.get(way, way), cells, reason if "-" in cells else ""


def table(runs):
    rows = [("MPI", "operation", "over", *SIZES.values(), "")]
    for stack, title in STACKS.items():
        for operation, name in OPERATIONS.items():
            for label, cells, reason in rows_of(runs, stack, operation):
                rows.append((title, name, label, *cells, reason))
                title = name = ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [cell.rjust(w) if 2 < i < 7 else cell.ljust(w)
                 for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths).rstrip())


def main():
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    runs = read(directory)
    with out.open("w", newline="") as file:
        file.write(f"# {machine()}\n")
        writer = csv.writer(file)
        writer.writerow(("mpi", "operation", "way", "bytes", "seconds"))
        for (stack, way), (figures, _) in runs.items():
            for (operation, size), seconds in figures.items():
                writer.writerow((stack, operation, way, size, f"{seconds:.4e}"))
    print(f"{machine()}\n")
    table(runs)
    print("\n" + "\n".join(NOTES))
    for stack in STACKS:
        if not runs.get((stack, "scif"), ({}, ""))[0]:
            sys.exit(f"no figure for scif under {STACKS[stack]}")


main()
