#!/usr/bin/env python3
"""mutate.py: can the tests fail? Breaks one line at a time and expects them to.

    python3 tests/mutate.py [-j JOBS] [-k] [FILTER]        FILTER: only mutants whose file or text contains it
                                                           -k: keep the folders with the builds
tests/mutants.txt lists the mutants and says how they are written. The sources are copied to a folder for each job and
built there by the Makefile; for each mutant one file is compiled again, and its tests run up to their first failure. A line says
how many seconds of a processor building and testing took; the last lines add them up for each group.
Exit code 0: every mutant was caught; 1: one survived, or its text is no longer in the file; 2: the tests fail without a
mutant, or mutants.txt cannot be read.
Standard library only.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUNDS = "kernels/cpu/optimizer.c", "check_rounded_update"       # a file, a test: stochastic rounding, in bf16 only
MAKE = ["make", "-s", "-j2", "NO_CUDA=1", "WARN=", "VERSION=mutant"]
LEVEL = "-O2"                           # of what is compiled again: building and running then take the least time
# The jobs share the cores. Of a make that started this nothing is passed on.
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}, "OMP_NUM_THREADS": "1"}
COMMANDS = {}                           # of files that were compiled again
BUILD_SECONDS, TEST_SECONDS = 600, 300


def read_mutants(path):
    """[(group, part, file, text, replacement)] of a file like mutants.txt; a line that is none of its forms ends the program."""
    mutants, target, text, replacement = [], None, [], []

    def error(what):
        print(f"{path}:{number}: {what}", file=sys.stderr)
        sys.exit(2)

    def finish():
        if text and not replacement:
            error("the text above has no replacement (a `+` alone removes it)")
        if text:
            mutant = (*target, "\n".join(text), "\n".join(replacement))
            if mutant[3] == mutant[4] or mutant in mutants:
                error("the mutant above changes nothing or stands here twice")
            mutants.append(mutant)
        text.clear()
        replacement.clear()

    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line != line.rstrip():
            error("blanks at the end of the line")
        if line.startswith("- "):
            if replacement:
                finish()
            if not target:
                error("no GROUP [PART] FILE above this text")
            text.append(line[2:])
        elif line.startswith("+ ") or line == "+":
            if not text:
                error("no text above this replacement")
            replacement.append(line[2:])
        elif not line or line.startswith("#"):
            finish()
        elif re.fullmatch(r"[a-z]+( [a-z0-9_]+)? [a-z0-9_/]+\.c", line):
            finish()
            words = line.split()
            target = (words[0], "".join(words[1:-1]), words[-1])
        else:
            error(f"neither GROUP [PART] FILE, `- text` nor `+ replacement`: {line}")
    finish()
    return mutants


MUTANTS = read_mutants(ROOT / "tests/mutants.txt")


def is_alone(mutant):
    """An operation is broken in cpu-f64 only, and tested without the other devices: they would tell the two apart."""
    return mutant[0] == "kernels" and not {*mutant[1:3]} & {*ROUNDS}


def tests_of(mutant):
    """The arguments of run_tests, which must fail with the mutant and pass without."""
    return *(("-d", "cpu-f64") if is_alone(mutant) else ()), *(("-k", mutant[1]) if mutant[1] else ()), mutant[0]


class Builder:
    """A copy of the sources with a build of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in ("kernels", "llmc", "tests"):
            shutil.copytree(ROOT / name, self.folder / name)
        if (ROOT / "build/made-by").is_file():               # what is up to date there is not compiled once more
            others = shutil.ignore_patterns("bench*", "check", "cuda-*", "debug*", "fuzz", "platforms", "race", "*_moe*")
            shutil.copytree(ROOT / "build", self.folder / "build", ignore=others)
        for name in ("Makefile", *(p.name for p in ROOT.glob("*.c"))):
            shutil.copy2(ROOT / name, self.folder / name)

    def shell(self, command, seconds):
        """(exit code, output) of a command. What it leaves running is ended with it."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                       env=ENVIRONMENT)
            late = threading.Event()

            def end():
                late.set()
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

            timer = threading.Timer(seconds, end)
            timer.start()
            _, status, used = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            code = None if late.is_set() else process.returncode
            end()
            self.used = used.ru_utime + used.ru_stime
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def build(self):
        return self.shell([*MAKE, "build/run_tests"], BUILD_SECONDS)

    def build_again(self, file, alone):
        """Compiles a changed file and links, by the commands that make prints for it; make itself would look for compilers and
        what they can do each time. alone: of kernels/cpu, for F64 only."""
        if file not in COMMANDS:
            COMMANDS[file] = self.shell([*MAKE, "-n", "-W", file, "build/run_tests"], BUILD_SECONDS)[1].splitlines()
        others = [f"-DPRECISION_{p} " for p in ("F32", "BF16")] if alone else []
        commands = [c.replace(" -O3 ", f" {LEVEL} ") for c in COMMANDS[file] if not any(o in c for o in others)]
        return self.shell(["sh", "-ec", "\n".join(commands)], BUILD_SECONDS)

    def run(self, tests, cpu_seconds=TEST_SECONDS):
        """'' if the tests pass, else their first complaint. The small shapes (-q) are enough to tell. tests: see tests_of."""
        code, output = self.shell(["sh", "-c", f'ulimit -t {cpu_seconds}; exec "$@"', "sh", "build/run_tests", "-q", "-f", "-s", "1", *tests], TEST_SECONDS)
        if code == 0:
            return ""
        if code is None:
            return f"took longer than {TEST_SECONDS} s"
        complaint = [line for line in output.splitlines() if line.startswith("FAIL")]
        return " ".join(complaint[0].split()[2:]) if complaint else f"exit code {code}"

    def objects(self, file):
        return [p for p in (self.folder / "build").rglob(pathlib.Path(file).stem + ".o") if p.as_posix().endswith(file[:-2] + ".o")]

    def judge(self, mutant, cpu_seconds):
        """(verdict, complaint, seconds of building, of testing) of one mutant. Restores the folder, objects included."""
        file, text, broken = mutant[2:]
        path = self.folder / file
        if not path.is_file():
            return "GONE", "there is no such file", 0, 0
        source, stat = path.read_text(), path.stat()
        if source.count(text) != 1:
            return "GONE", f"its text occurs {source.count(text)} times", 0, 0
        kept = [(p, p.read_bytes(), p.stat()) for p in self.objects(file)]
        path.write_text(source.replace(text, broken))
        code, output = self.build_again(file, is_alone(mutant))
        building, testing = self.used, 0
        if code == 0:
            complaint = self.run(tests_of(mutant), cpu_seconds)
            testing = self.used
        path.write_text(source)
        os.utime(path, (stat.st_atime, stat.st_mtime))
        for p, data, then in kept:
            p.write_bytes(data)
            os.utime(p, (then.st_atime, then.st_mtime))
        if code != 0:
            return "BUILD", (output.strip().splitlines() or ["the compiler failed"])[-1], building, testing
        return "caught" if complaint else "SURVIVED", complaint, building, testing


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("-k", "--keep", action="store_true")
    parser.add_argument("filter", nargs="?", default="")
    args = parser.parse_args()
    mutants = [m for m in MUTANTS if args.filter in m[2] or args.filter in m[3]]
    if not mutants:
        sys.exit(f"no mutant contains {args.filter!r}")
    begin = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="moe-mutate-"))
    try:
        builders = queue.Queue()
        first = Builder(folder / "0")
        code, output = first.build()
        if code != 0:
            print(output, file=sys.stderr)
            return 2
        jobs = max(1, args.jobs)
        builders.put(first)
        for job in range(1, jobs):
            shutil.copytree(folder / "0", folder / str(job), symlinks=True)      # with the times of the files: nothing is built again
            other = Builder.__new__(Builder)
            other.folder = folder / str(job)
            builders.put(other)

        def with_builder(work):
            builder = builders.get()
            try:
                return work(builder)
            finally:
                builders.put(builder)

        bad, sums = 0, {}
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            every = sorted({tests_of(m) for m in mutants})
            unbroken = dict(zip(every, pool.map(lambda tests: with_builder(lambda b: (b.run(tests), b.used)), every)))
            for tests, (complaint, _) in unbroken.items():
                if complaint:
                    print(f"the tests fail without a mutant: {' '.join(tests)}: {complaint}", file=sys.stderr)
                    return 2
            # A mutant that never ends is stopped after several times what its tests take unbroken.
            limit = {tests: 10 + int(4 * seconds) for tests, (_, seconds) in unbroken.items()}
            judged = pool.map(lambda m: with_builder(lambda b: b.judge(m, limit[tests_of(m)])), mutants)
            for mutant, (verdict, complaint, building, testing) in zip(mutants, judged):
                group, _, file, _, broken = mutant
                bad += verdict != "caught"
                sums[group] = [x + y for x, y in zip(sums.get(group, (0, 0, 0)), (1, building, testing))]
                print(f"{verdict:8s} {group:9s} {file:24s} {' '.join(broken.split())[:60] or '(removed)':60s} {building:4.1f} {testing:5.1f} s  {complaint[:70]}", flush=True)
        sums["unbroken"] = (len(every), 0, sum(seconds for _, seconds in unbroken.values()))
        for group, (count, building, testing) in sorted(sums.items(), key=lambda g: -sum(g[1][1:])):
            print(f"  {group:9s} {count:3d}: {building:6.1f} s of building, {testing:6.1f} s of testing")
        print(f"{len(mutants)} mutants, {len(mutants) - bad} caught, {bad} not, {time.monotonic() - begin:.0f} s")
        return bad != 0
    finally:
        if args.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
