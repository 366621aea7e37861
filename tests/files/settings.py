"""What commands that run a model, a device or a server are killed in: their inputs, and what is around them."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from toy_device import CONFIG

PLAN: Final = "search --batches 1,2 --max-depth 2 --max-nodes 6 --context 32 --out small.yaml"


class Setting(NamedTuple):
    """The folder of inputs, made once in another folder, and what a process runs in: words of the command by name."""

    inputs: Callable[[Path], Path]
    around: Callable[[], AbstractContextManager[Mapping[str, str]]]


@contextlib.contextmanager
def _nothing() -> Iterator[Mapping[str, str]]:
    yield {}


def _made(name: str, make: Callable[[Path], None]) -> Callable[[Path], Path]:
    def inputs(folder: Path) -> Path:
        place = folder / name
        if not place.exists():
            place.mkdir()
            make(place)
        return place

    return inputs


def _model(folder: Path) -> None:
    from collect.conftest import save_llama

    save_llama(folder / "target", seed=1, layers=3)
    (folder / "ids.jsonl").write_text("".join(json.dumps({"token_ids": [3 + i, 7, 11 + i]}) + "\n" for i in range(3)))


def _benched(folder: Path) -> None:
    from files.killing import Writing, run

    _model(folder)
    assert run(Writing(PLAN, ("small.yaml",)), folder) == 0


@contextlib.contextmanager
def _steady_clock() -> Iterator[Mapping[str, str]]:
    """Every look at the clock is 2^-10 s later, which differs by no rounding: the same bytes in every run."""
    ticks = itertools.count()
    with mock.patch.object(time, "perf_counter", side_effect=lambda: next(ticks) / 1024):
        yield {}


def _toy(folder: Path) -> None:
    (folder / "toy.json").write_text(CONFIG)


def _timed(folder: Path) -> None:
    from files.killing import PROFILE, Writing, run

    _toy(folder)
    assert run(Writing(f"{PROFILE} --rows timed.jsonl", (), setting="profile"), folder) == 0
    for path in folder.glob("out*"):
        path.unlink()


@contextlib.contextmanager
def _quick() -> Iterator[Mapping[str, str]]:
    """Seven calls of each kernel, and small ceilings."""
    from treeopt.profile import grid, timer

    sizes: Any = (mock.patch.dict(grid._MATMUL, cpu=256), mock.patch.dict(grid._COPY_BYTES, cpu=1 << 24))
    with mock.patch.object(timer, "REPEAT_S", 0.0), sizes[0], sizes[1]:
        yield {}


@contextlib.contextmanager
def _server() -> Iterator[Mapping[str, str]]:
    from measure.fake_server import Fake, serving

    with serving(Fake()) as url:
        yield {"URL": url}


def rows_of(path: Path) -> list[Any]:
    """The rows of a file that is added to line by line: the last may be half there."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


SETTINGS: Final = {
    "": Setting(lambda folder: folder, _nothing),
    "bench": Setting(_made("of-bench", _benched), _steady_clock),
    "collect": Setting(_made("of-collect", _model), _nothing),
    "profile": Setting(_made("of-profile", _toy), _quick),
    "timed": Setting(_made("of-timed", _timed), _quick),
    "measure": Setting(_made("of-measure", lambda folder: None), _server),
}
