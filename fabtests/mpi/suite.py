# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs mpi4py's own tests over a provider, with the MPI's own shared memory as a control.

suite.py --tests DIRECTORY --reports DIRECTORY [--needs MODULE] [--env NAME=VALUE]
         [--left-out NAME=VALUE@PROVIDER:MODULE] [--explained-by PROVIDER] [--at-random MODULE]
         [--control PROVIDER] [--run SCRIPT] [--silence SECONDS] STACK PROVIDER RANKS

A failure over the provider counts if the test passes in the control. A test that crashes or hangs
ends its job. The job is then started again without it, from its module on. The same is done after
the first test that fails: it may have left messages behind that later tests receive. The last job
therefore has no failures. Exclusions must be justified in the same run:

--env        a setting of both sides, the run and its control
--left-out   another value of such a setting. The tests of MODULE must fail with it over PROVIDER,
             or over the MPI's own shared memory ("own"): the component is broken without the
             provider under test
--explained-by  for a broken path of the MPI: a failure is named without being counted, if the
             same path fails the same test over PROVIDER too
--at-random  for a module whose tests break jobs of the MPI at random: one that breaks
             its job is named without being counted, if the control broke a job in this module
             in the same run
--control    another provider as the control, where the MPI has no shared memory
--run        another script than run.sh, with the same arguments
--silence    time without output after which a job counts as hung

Ends with "N passed, N failed".
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN = re.compile(r"^ *(\w+) \((test_\w+\.[\w.]+)\)", re.M)
# At the end of a test's line, and in the list at the end.
FAILED = re.compile(r"(?:^|\.\.\. )(?:FAIL|ERROR)$", re.M)
FAILURE = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.M)
# Each rank reports into a separate file; its lines would be lost among those of the others.
RANK = 'exec "$0" "$@" 2>"$REPORTS/rank-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"'
# Seconds without output after which a job counts as hung; about two hundred hung jobs determine the
# time of a whole run. The end of a run prints the longest silence of a job that went on.
QUIET_SECONDS = 12
# Path cm of Debian's Open MPI breaks about forty jobs even without the provider.
ATTEMPTS = 150
# Number of jobs in which a test must pass over another provider to count as passing there.
STARTS = 5
# Line of a rank that Open MPI prints for a signal such as SIGSEGV.
CRASHED = "*** Process received signal ***"


def name_of(method, where):
    """Returns `test_x.Class.test` for any Python version; class set-ups keep their form."""
    known = where.endswith("." + method) or method.startswith("setUp")
    return where if known else f"{where}.{method}"


def of_a_job(name):
    """Whether the name stands for a failure of a whole job."""
    return " " in name


class Job:
    """One start of the tests, with the reports of the ranks."""

    # Longest time in seconds without output of a job that then went on.
    longest_silence = 0.0

    def __init__(self, options, stack, provider, directory, arguments, settings=()):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        env = dict(os.environ, REPORTS=str(directory), PIN="0")
        env.update(word.split("=", 1) for word in [*options.env, *settings])
        python = HERE.parent.parent / f"build/venv-{stack.removesuffix('-btl')}/bin/python"
        command = [options.run, stack, provider, str(options.ranks), "1800", "sh", "-c", RANK]
        command += [python, options.tests / "main.py", "-v", *arguments]
        with open(directory / "output", "w") as output:
            child = subprocess.Popen(command, env=env, cwd=options.tests.parent,
                                     stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT)
            self.hung = not self.watch(child, directory, options.silence)
        self.passed, self.failed, self.skipped, self.open = set(), set(), set(), set()
        # Failed tests, also of a job that another test broke.
        self.said = set()
        paths = sorted(directory.glob("rank-*"))
        self.complete = len(paths) >= options.ranks and not self.hung
        texts = [path.read_text(errors="replace") for path in paths]
        self.begun = [self.read(text) for text in texts]
        self.passed -= self.failed | self.said | self.skipped | self.open
        crashed = {begun[-1] for text, begun in zip(texts, self.begun)
                   if CRASHED in text and begun}
        # Where the ranks are in different tests, the others wait for the one that is behind.
        last = crashed or set(min(self.begun, key=len, default=[])[-1:])
        if self.open.intersection(last):
            self.open = last

    def first_failed(self, known):
        """Returns the test that failed before all others, unless an open one may be its cause.

        Failures in `known` are ignored: a failed set-up of a class cannot be left out."""
        found = []
        for begun in self.begun:
            ends = [at for at, name in enumerate(begun) if name in self.open]
            end = min(ends, default=len(begun))
            found += [(at, name) for at, name in enumerate(begun[:end])
                      if name in (self.said | self.failed) - known]
        return min(found, default=(0, None))[1]

    @staticmethod
    def watch(child, directory, limit):
        """Whether the job came to its end; a job without output for so many seconds is killed."""
        size, changed = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(0.2)
            now = sum(path.stat().st_size for path in directory.iterdir())
            if now != size:
                silence = time.monotonic() - changed
                Job.longest_silence = max(Job.longest_silence, silence)
                size, changed = now, time.monotonic()
            elif time.monotonic() - changed > limit:
                child.send_signal(signal.SIGTERM)
                child.wait()
                return False
        return True

    def read(self, text):
        """Reads the report of a rank, and returns the tests that it began."""
        found = list(BEGIN.finditer(text))
        for begin, end in zip(found, [*(m.start() for m in found[1:]), len(text)]):
            said, name = text[begin.end() : end], name_of(begin[1], begin[2])
            if "skipped '" in said or 'skipped "' in said:
                self.skipped.add(name)
            else:
                self.passed.add(name)
            if FAILED.search(said):
                self.said.add(name)
        self.failed.update(name_of(m[1], m[2]) for m in FAILURE.finditer(text))
        # Failures are listed again at the end, unless a rank did not finish.
        if not re.search(r"^Ran \d+ tests? in", text, re.M):
            self.complete = False
            if found:
                self.open.add(name_of(found[-1][1], found[-1][2]))
        return [name_of(begin[1], begin[2]) for begin in found]


class Run:
    """All tests over one provider, in as many jobs as necessary."""

    def __init__(self, options, stack, provider):
        self.label = f"{stack} over {provider}"
        self.passed, self.failed, self.skipped, self.broke = set(), set(), set(), set()
        modules = sorted(path.stem for path in options.tests.glob("test_*.py"))
        for attempt in range(ATTEMPTS):
            arguments = [rf"-i\b{module}\b" for module in modules]
            # A pattern without a wildcard would also leave out tests with a longer name.
            arguments += [f"-x*{name}" for name in sorted(self.broke | self.failed)]
            reports = options.reports / f"{stack}-{provider}-{attempt}"
            job = Job(options, stack, provider, reports, arguments)
            self.passed |= job.passed
            self.skipped |= job.skipped
            failed = job.first_failed(self.failed)
            if failed:
                self.failed.add(failed)
                first = failed.split(".")[0]
            elif job.complete:
                break
            else:
                culprits = job.open - self.broke
                if not culprits:
                    self.failed |= job.said
                    self.broke.add(f"the start or end of a job ({self.label})")
                    break
                self.broke |= culprits
                first = min(name.split(".")[0] for name in culprits)
            modules = [module for module in modules if module >= first]
        else:
            self.broke.add(f"more than {ATTEMPTS} jobs ({self.label})")
        self.passed -= self.failed | self.skipped | self.broke
        print(f"{self.label}, {options.ranks} ranks: "
              f"{len(self.passed)} pass, {len(self.failed)} fail, "
              f"{len(self.broke)} break their job, {len(self.skipped)} skipped", flush=True)

    def broken_in(self, module, modules):
        """Returns the tests that broke their job in `module`, if it is one of `modules`."""
        within = module + "."
        return sorted(name for name in self.broke if module in modules and name.startswith(within))


def fails_alone(options, stack, provider, name):
    """Whether this test did not pass over `provider`, in one of STARTS jobs.

    Whether the defects of a path show depends on the times of the ranks."""
    directory = options.reports / f"{stack}-{provider}-{name}"
    module = name.split(".")[0]
    for _ in range(STARTS):
        job = Job(options, stack, provider, directory, [rf"-i\b{module}\b", "-k", name])
        if name in job.failed | job.said | job.open:
            return True
    return False


def breaks(options, what):
    """Whether the excluded component breaks without the provider, as `what` claims."""
    setting, where = what.split("@", 1)
    provider, module = where.split(":", 1)
    directory = options.reports / f"left-out-{re.sub('[^a-z]+', '-', setting.lower())}-{provider}"
    job = Job(options, options.stack, provider, directory, [rf"-i\b{module}\b"], [setting])
    culprits = job.open | job.failed | job.said
    if not culprits:
        return False
    first = sorted(culprits)[0]
    print(f"left out: {setting}, which breaks {first} over {provider}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--needs", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--left-out", action="append", default=[])
    parser.add_argument("--explained-by")
    parser.add_argument("--at-random", action="append", default=[])
    parser.add_argument("--control", default="own")
    parser.add_argument("--run", type=Path, default=HERE / "run.sh")
    parser.add_argument("--silence", type=int, default=QUIET_SECONDS)
    parser.add_argument("stack")
    parser.add_argument("provider")
    parser.add_argument("ranks", type=int)
    options = parser.parse_args()
    problems = [f"{what}: works, so nothing excuses leaving it out"
                for what in options.left_out if not breaks(options, what)]
    run = Run(options, options.stack, options.provider)
    control = Run(options, options.stack, options.control)
    over = "the MPI's own shared memory" if options.control == "own" else options.control
    count = dict.fromkeys(("worse", "same", "explained"), 0)
    for name in sorted(run.failed | run.broke):
        what = "breaks its job" if name in run.broke else "fails"
        if name not in control.passed and not of_a_job(name):
            count["same"] += 1
            print(f"not ours: {name} {what}; it does not pass over {over}")
        elif name in run.broke and (
            others := control.broken_in(name.split(".")[0], options.at_random)
        ):
            count["same"] += 1
            print(f"not ours: {name} {what}; over {over} {len(others)} "
                  f"of its module did, as {others[0]}")
        elif options.explained_by and not of_a_job(name) and fails_alone(
            options, options.stack, options.explained_by, name
        ):
            count["explained"] += 1
            print(f"explained: {name} {what}, and so by the same path over {options.explained_by}")
        else:
            count["worse"] += 1
            problems.append(f"{name} {what}, and passes over {over}")
    print(f"compared: {len(run.passed)} pass, "
          f"{count['worse']} fail that pass over {over}, "
          f"{count['same']} fail there too, {count['explained']} explained")
    for name in sorted(control.passed - run.passed - run.failed - run.broke):
        state = "is skipped" if name in run.skipped else "does not run"
        problems.append(f"{name} {state}, and passes over {over}")
    for module in options.needs:
        of_it = [name for name in run.passed if name.startswith(module + ".")]
        print(f"{module}: {len(of_it)} pass")
        if not of_it or any(name.startswith(module + ".") for name in run.failed | run.broke):
            problems.append(f"{module} must pass")
    print(f"longest silence of a job that went on: {Job.longest_silence:.1f} s, "
          f"of {options.silence} s for a hung one")
    if not control.passed:
        problems.append("no test passes in the control")
    for problem in problems:
        print(f"FAIL: {problem}")
    print(f"{len(run.passed)} passed, {len(problems)} failed")
    return 1 if problems else 0


sys.exit(main())
