# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Judges a run of mpi4py's tests by its controls: suite.py [--needs MODULE] RUN CONTROL...

Each argument is a directory with the verbose report of each rank (rank-*). A test fails when it fails, or never ends,
in RUN at any rank, and passes at every rank in all controls that ran. Ends with "N passed, N failed".
"""

import argparse
import re
from pathlib import Path

NAMED = re.compile(r"^(\w+) \((test_\w+\.[\w.]+)\)")
FAILURE = re.compile(r"^(FAIL|ERROR): (.*)$", re.M)


class Report:
    """What the ranks of one run said: which tests began, which failed, which was open when a rank ended."""

    def __init__(self, directory):
        self.name = directory.name
        self.begun, self.failed, self.skipped, self.complete = set(), set(), 0, True
        ranks = sorted(directory.glob("rank-*"))
        self.exists = bool(ranks)
        for path in ranks:
            text = path.read_text(errors="replace")
            begun = [f"{m[1]} ({m[2]})" for line in text.splitlines() if (m := NAMED.match(line))]
            self.begun.update(begun)
            for found in FAILURE.finditer(text):
                self.failed.add(self.identity(found[2]))
            ended = re.search(r"^Ran (\d+) tests? in", text, re.M)
            if not ended:
                self.complete = False
                if begun:
                    self.failed.add(begun[-1])
            if counted := re.search(r"skipped=(\d+)", text):
                self.skipped = max(self.skipped, int(counted[1]))

    @staticmethod
    def identity(text):
        """The test of a failure; sub-tests and class set-ups keep what tells them apart."""
        found = NAMED.match(text)
        return f"{found[1]} ({found[2]})" if found else text

    def allows(self, test):
        """Whether this run excuses a failure: it failed here too, or this run broke off before it came to it."""
        return test in self.failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--needs", action="append", default=[])
    parser.add_argument("run", type=Path)
    parser.add_argument("controls", nargs="+", type=Path)
    options = parser.parse_args()
    run = Report(options.run)
    controls = [r for r in map(Report, options.controls) if r.exists]
    problems = []
    for test in sorted(run.failed):
        excuse = next((c.name for c in controls if c.allows(test)), None)
        if excuse:
            print(f"fails as well in {excuse}: {test}")
        else:
            problems.append(f"fails, and passes in the control: {test}")
    if not run.complete and not any(run.failed & c.failed for c in controls if not c.complete):
        problems.append(f"{run.name} did not come to its end")
    if not controls:
        problems.append("no control ran")
    for module in options.needs:
        count = sum(f"({module}." in test for test in run.begun)
        print(f"{module}: {count} tests ran")
        if count == 0:
            problems.append(f"{module} did not run")
    for problem in problems:
        print(f"FAIL: {problem}")
    print(f"{len(run.begun)} tests, {len(run.failed)} fail, {run.skipped} skipped; control: {len(controls[0].failed) if controls else '-'} fail")
    print(f"{max(len(run.begun) - len(run.failed), 0)} passed, {len(problems)} failed")
    return 1 if problems else 0


raise SystemExit(main())
