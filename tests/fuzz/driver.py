"""Every command on damaged files, in processes of its own, with the last net off.

    python -m fuzz.driver --cases 50000 --seed 1 --out found

A case is known by seed and number, and `--only NUMBER` runs it alone. What counts as a finding:

- an exception that is no `TreeoptError`, or a process that dies
- an error that names no file and no option
- more than 30 s, or more than 2 GB beyond what the program takes itself
- an input that is another file afterwards, a temporary file left, a result although the command failed
- an exit code outside 0 to 3, a warning of a library, a result that says `nan`
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz.case import LIMIT_S, Case, Workplace, limit_memory, run, warm_up
from fuzz.commands import COMMANDS, OF_TORCH, written
from fuzz.corpus import Corpus

CHUNK: Final = 200  # cases of one process: what a case leaves in memory goes with it
_PLACE: Final = struct.Struct("q")  # the number of the case that is running
_POLL_S: Final = 0.05


def case_of(corpus: Corpus, seed: int, number: int, *, torch: bool) -> Case:
    """The case of that number."""
    rng = Random(f"{seed}-{number}")
    heavy = torch and rng.random() < 0.02
    templates = OF_TORCH if heavy else COMMANDS
    template = rng.choices(templates, weights=[t.weight for t in templates])[0]
    words, files = written(template, corpus.kinds, rng)
    damaged = rng.choice(files) if files and rng.random() < 0.9 else None
    return Case(number, template, words, files, damaged, rng)


def fuzz(seed: int, numbers: range, corpus: Corpus, folder: Path, *, torch: bool) -> Iterator[dict[str, Any]]:
    """The findings, and one record `{"done": n}` for every chunk of cases."""
    todo = list(numbers)
    shared = mmap.mmap(-1, _PLACE.size)
    while todo:
        chunk = todo[:CHUNK]
        report = folder / "report.jsonl"
        report.write_text("")
        _PLACE.pack_into(shared, 0, -1)
        process = os.fork()
        if process == 0:
            _work(seed, chunk, corpus, folder, shared, report, torch=torch)
        status = _watch(process, shared)
        yield from map(json.loads, report.read_text().splitlines())
        (at,) = _PLACE.unpack_from(shared)
        done = chunk.index(at) + 1 if at in chunk else len(chunk)
        if status != 0:
            case = case_of(corpus, seed, chunk[done - 1], torch=torch)
            what = "hang" if status == signal.SIGKILL else "dead"
            yield {"number": case.number, "what": what, "where": f"status {status}", "words": case.words}
        todo = todo[done:]
        yield {"done": done}


def _work(
    seed: int, chunk: list[int], corpus: Corpus, folder: Path, shared: mmap.mmap, report: Path, *, torch: bool
) -> None:
    """In the child: the cases of a chunk; it never returns."""
    code = 1
    try:
        limit_memory()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        place = Workplace(corpus, folder / "place")
        before = place.originals()
        with report.open("a") as file:
            for number in chunk:
                _PLACE.pack_into(shared, 0, number)
                case = case_of(corpus, seed, number, torch=torch)
                for what, where in run(case, place):
                    print(json.dumps({"number": number, "what": what, "where": where, "words": case.words}), file=file)
                file.flush()
                if case.template in OF_TORCH:
                    break  # torch keeps the memory that a model took
            if before != place.originals():
                print(json.dumps({"number": chunk[0], "what": "input changed", "where": "?", "words": []}), file=file)
        code = 0
    except BaseException as error:
        report.open("a").write(json.dumps({"number": -1, "what": "driver", "where": repr(error), "words": []}) + "\n")
    finally:
        os._exit(code)


def _watch(process: int, shared: mmap.mmap) -> int:
    """Wait for the child; end it where a case takes far longer than its own alarm allows."""
    case, used, polls = -2, 0.0, 0
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return status & 0x7F or status >> 8
        (at,) = _PLACE.unpack_from(shared)
        if at != case:
            case, used, polls = at, _used_s(process), 0
        # Its own alarms come first; a busy or sleeping machine is no hang, so no clock is asked.
        if _used_s(process) - used > 2 * LIMIT_S or polls * _POLL_S > 30 * LIMIT_S:
            os.kill(process, signal.SIGKILL)
        polls += 1
        time.sleep(_POLL_S)


def _used_s(process: int) -> float:
    """Seconds that a process has computed."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Damaged files, every command.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone, here, and show what it says")
    parser.add_argument("--out", type=Path, help="write findings here, as JSON lines")
    parser.add_argument("--no-torch", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run the cases; 1 if there are findings."""
    given = _arguments()
    torch = not given.no_torch and find_spec("torch") is not None and find_spec("transformers") is not None
    os.environ.update(COLUMNS="110", NO_COLOR="1", TERM="dumb", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        corpus = Corpus(folder / "corpus", torch=torch)
        warm_up(Workplace(corpus, folder / "place"), torch=torch)
        if given.only is not None:
            case = case_of(corpus, given.seed, given.only, torch=torch)
            for finding in run(case, Workplace(corpus, folder / "place"), show=True):
                print(*finding)
            return 0
        return _all(given, corpus, folder, torch=torch)


def _all(given: argparse.Namespace, corpus: Corpus, folder: Path, *, torch: bool) -> int:
    start, done, kinds = time.monotonic(), 0, Counter[str]()
    numbers = range(given.first, given.first + given.cases)
    for record in fuzz(given.seed, numbers, corpus, folder, torch=torch):
        if "done" in record:
            done += record["done"]
            print(done, end="\r", file=sys.stderr, flush=True)
            continue
        line = json.dumps({"seed": given.seed, **record})
        if given.out is not None:
            with given.out.open("a") as file:
                print(line, file=file)
        kind = f"{record['what']}: {record['where']}"
        kinds[kind] += 1
        if kinds[kind] <= 3:
            print(line, flush=True)
    used = os.times()
    print(
        f"{done} cases, seed {given.seed}: {sum(kinds.values())} findings of {len(kinds)} kinds; "
        f"{time.monotonic() - start:.0f} s, {used.children_user + used.children_system:.0f} s of one processor"
    )
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main())
