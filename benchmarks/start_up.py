"""What a command takes to start: `python benchmarks/start_up.py > docs/start-up.md`, where treeopt is installed.

Runs are alternated, so that a busy machine slows all alike; times are shown in units of `import numpy` too.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import Final, NamedTuple

RUNS: Final = 7
RUN: Final = "import sys; from treeopt.cli import main; main()"
COMMANDS: Final = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
    "treeopt --help": ["-c", RUN, "--help"],
    "treeopt search --batch 32": ["-c", RUN, "search", "--batch", "32"],
}
LIMITS: Final = {"treeopt --help": 2.5, "treeopt search --batch 32": 4.5}
_LINE: Final = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")
_SHOWN: Final = ("numpy", "click", "rich", "yaml", "treeopt")


class Taken(NamedTuple):
    """Seconds of one run: by the clock, and of the processor."""

    wall_s: float
    cpu_s: float


def _environment() -> dict[str, str]:
    """This one; with modules that are compiled once, as pip leaves them."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def once(arguments: list[str]) -> Taken:
    """One process from start to end, its output thrown away."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=_environment(), capture_output=True, check=True)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def alternated() -> dict[str, Taken]:
    """The medians of every command, one run of each after another; the first round warms caches and is dropped."""
    rounds = [{name: once(arguments) for name, arguments in COMMANDS.items()} for _ in range(RUNS + 1)][1:]
    return {
        name: Taken(*(statistics.median(taken) for taken in zip(*(one[name] for one in rounds), strict=True)))
        for name in COMMANDS
    }


def breakdown() -> dict[str, float]:
    """What `search --batch 32` takes by the clock, as shares: imports by package (`-X importtime`), and the rest."""
    arguments = [sys.executable, "-X", "importtime", *COMMANDS["treeopt search --batch 32"]]
    start = time.perf_counter()
    said = subprocess.run(arguments, env=_environment(), capture_output=True, text=True, check=True).stderr
    wall_us = 1e6 * (time.perf_counter() - start)
    own: dict[str, float] = defaultdict(float)
    for took, module in _LINE.findall(said):
        package = module.partition(".")[0]
        own[package if package in _SHOWN else "the standard library"] += float(took) / wall_us
    return own


def main() -> None:
    taken, shares = alternated(), [breakdown() for _ in range(RUNS)]
    numpy, bare = taken["python -c 'import numpy'"], taken["python -c pass"]
    print("# How long a command takes to start\n")
    print(
        f"Made by `python benchmarks/start_up.py > docs/start-up.md`: medians of {RUNS} alternated runs, on a shared "
        "server whose other work doubles and halves every line."
    )
    print("\n| command | wall | of the processor | in units of `import numpy` | asked |\n|---|---|---|---|---|")
    for name, (wall_s, cpu_s) in taken.items():
        asked = f"{LIMITS[name]:g} at most" if name in LIMITS else ""
        units = f"{wall_s / numpy.wall_s:.2f} (wall), {cpu_s / numpy.cpu_s:.2f} (processor)"
        print(f"| `{name}` | {wall_s:.2f} s | {cpu_s:.2f} s | {units} | {asked} |")
    print("\nWhere the wall time of `treeopt search --batch 32` goes:\n\n| part | share |\n|---|---|")
    packages = {name: statistics.median(own[name] for own in shares) for name in shares[0]}
    start = bare.wall_s / taken["treeopt search --batch 32"].wall_s
    for package, share in sorted(packages.items(), key=lambda item: -item[1]):
        print(f"| importing {package} | {share:.0%} |")
    print(f"| the interpreter, its own imports with it | {start:.0%} |")
    rest = 1.0 - sum(packages.values()) - start
    print(f"| the search: files read, drafts listed and judged at their own starts, intervals, printing | {rest:.0%} |")


if __name__ == "__main__":
    main()
