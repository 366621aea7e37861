"""Whole runs on a device of paper with failures at random points: a profile or a reason, and never a lost row.

`TREEOPT_TEST_ALL_FAULTS=1` makes 200 of them.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from toy_device import CEILINGS, DEVICE, at, questions

from treeopt.errors import InputError
from treeopt.profile.child import Child
from treeopt.profile.grid import ceiling_points
from treeopt.profile.measure import KernelBench
from treeopt.profile.points import KernelPoint
from treeopt.profile.profile import Profiled, profile_of
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.workload import WrongResultError

RUNS = 200 if os.environ.get("TREEOPT_TEST_ALL_FAULTS") else 8
LIMIT_S = 2.0
# Each with what is said of it. Signals end the process that times.
KINDS = {
    "memory": "OutOfMemoryError: CUDA out of memory.",
    "resources": "OutOfResources: out of resource: shared memory, Required: 102656",
    "compiler": "CompilationError: at 3:4: no",
    "wrong": "off by 0.2",
    "killed": "the process died (SIGKILL)",
    "segfault": "the process died (SIGSEGV)",
    "exit": "the process died (exit code 7)",
    "hangs": f"given up after {LIMIT_S:.0f} s",
}


class OutOfMemoryError(RuntimeError):
    pass


class OutOfResources(Exception):  # noqa: N818 (as Triton names it)
    pass


class CompilationError(Exception):
    pass


def on_paper(faults: dict[str, str], point: KernelPoint) -> Timed:
    """What the device takes, or how the point fails; in a child process."""
    kind = faults.get(str(point))
    match kind:
        case "memory":
            raise OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        case "resources":
            raise OutOfResources("out of resource: shared memory, Required: 102656")
        case "compiler":
            raise CompilationError("at 3:4: no")
        case "wrong":
            raise WrongResultError("off by 0.2", hint="report it")
        case "killed" | "segfault":
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGSEGV)
        case "exit":
            os._exit(7)
        case "hangs":
            time.sleep(60)
    return at(point, 2e-6 + point.floor_s(CEILINGS))


def run(path: Path, faults: dict[str, str], *, stop: int | None = None) -> KernelBench:
    """One run, which ends after `stop` points as if it had been killed there."""
    bench = KernelBench(device=DEVICE, rows=RowFile(path=path, device=DEVICE.key), questions=questions(max_tokens=16))
    child = Child(partial(partial, on_paper, faults), method="fork", limit_s=LIMIT_S)
    bench.__dict__["time_point"] = child  # a cached property
    try:
        for _ in itertools.islice(bench.run(bench.schedule(None).left), stop):
            pass
    finally:
        child.close()
    return bench


def outcome(bench: KernelBench) -> Profiled | str:
    """What `treeopt profile` would write, or say."""
    bench.__dict__["time_point"] = lambda point: on_paper({}, point)
    try:
        return profile_of(bench, name="paper", command="test", noise=None)
    except InputError as error:
        return f"{error}; {error.hint}"


def test_the_kinds_are_those_of_the_fake() -> None:
    assert set(KINDS) == {"memory", "resources", "compiler", "wrong", "killed", "segfault", "exit", "hangs"}


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_with_failures_ends_with_a_profile_or_a_reason(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    points = run(tmp_path / "points.jsonl", {}, stop=0).points
    # Every kind at a random point; in one run of four half of all points fail besides, and hanging is dear: once.
    kinds = [*KINDS, *draw.choices([k for k in KINDS if k != "hangs"], k=len(points) // 2 if seed % 4 == 3 else 4)]
    victims = draw.sample(points, len(kinds))
    faults = {str(point): kind for point, kind in zip(victims, kinds, strict=True)}
    ceilings = ceiling_points(questions().dtype, device="cpu", memory_bytes=DEVICE.input_bytes)
    if seed % 5 == 4:
        faults[str(draw.choice(ceilings))] = draw.choice(["memory", "killed"])
        with pytest.raises(InputError, match="the device's rate cannot be timed"):
            run(tmp_path / "none.jsonl", faults)
        faults = {name: kind for name, kind in faults.items() if name not in map(str, ceilings)}

    whole = run(tmp_path / "whole.jsonl", faults)
    assert {failed.point: failed.reason for failed in whole.failures()} == {
        point: KINDS[faults[str(point)]] for point in victims
    }
    assert {time.point for time in whole.times()} == {*points} - {*victims}  # no row is lost

    broken = tmp_path / "broken.jsonl"
    while True:
        bench = run(broken, faults, stop=draw.randint(1, len(points)))
        if len(bench.times()) + len(bench.failures()) == len(points):
            break
        half = draw.choice([None, bench.rows.path, bench.rows.failed])
        if half is not None:  # a kill in the middle of a line
            with half.open("a") as file:
                file.write('{"operator": "gem')
    for mine, other in ((whole.rows.path, broken), (whole.rows.failed, bench.rows.failed)):
        assert mine.read_text() == other.read_text()

    found, again = outcome(whole), outcome(bench)
    if isinstance(found, str):
        assert "too few" in found
        assert "points failed, the first: " in found
        assert found.replace("whole", "broken") == again
    else:
        assert isinstance(again, Profiled)
        assert (
            again.fitted.hardware.kernel_times().fits.document() == found.fitted.hardware.kernel_times().fits.document()
        )
        said = "\n".join(found.notes)
        assert all(KINDS[kind] in said for kind in set(faults.values()))
        assert len(json.loads("[" + ",".join(whole.rows.path.read_text().splitlines()) + "]")) == len(found.times) + 2
