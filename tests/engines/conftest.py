from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from plans import option_of

from treeopt.answer import Estimate, Span
from treeopt.cli import main
from treeopt.engines.importing import import_file
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.plan.sources import DrafterSource
from treeopt.solve.bucket import Bucket
from treeopt.tree import DraftTree


class Part(NamedTuple):
    """One bucket of a made-up plan; rates are tokens/s."""

    low: int
    high: int
    tree: DraftTree
    rate: float
    chain: int
    chain_rate: float
    plain_rate: float


Planned = Callable[..., Plan]
Read = Callable[..., DraftSchedule]


@pytest.fixture(scope="session")
def real_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan as the search writes it."""
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(
            sys, "argv", ["treeopt", "search", "--batches", "1,8,64", "--ranks", "example", "--out", str(path)]
        )
        main()
    return load_plan(path)


@pytest.fixture
def planned(real_plan: Plan) -> Planned:
    """A plan of made-up buckets; what does not matter to engines is taken from a real one."""

    def planned(*parts: Part, drafter: str = "eagle3") -> Plan:
        sources = replace(real_plan.sources, drafter=DrafterSource(kind=drafter))
        return replace(real_plan, sources=sources, buckets=tuple(_bucket(real_plan.buckets[0], p) for p in parts))

    return planned


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The drafts that a text says, read as one engine or as the first that fits."""

    def read(text: str | bytes, engine: str | None = None, name: str = "file.txt") -> DraftSchedule:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return import_file(path, None if engine is None else find_engine(engine)).schedule

    return read


@pytest.fixture
def refused(read: Read) -> Callable[..., None]:
    """A text is refused with all of these words."""

    def refused(text: str | bytes, engine: str | None, *words: str, name: str = "file.txt") -> None:
        with pytest.raises(InputError) as caught:
            read(text, engine, name)
        said = f"{caught.value} {caught.value.hint}"
        assert all(word in said for word in words), said

    return refused


def _bucket(like: Bucket, part: Part) -> Bucket:
    return replace(
        like,
        batch=Span(part.low, part.high),
        tree=part.tree,
        path_probabilities=np.ones(len(part.tree)),
        tokens_per_s=Estimate.priced(part.rate),
        best_chain=option_of(DraftTree.chain(part.chain), 1.5, part.chain_rate, part.high),
        plain=option_of(DraftTree(()), 1.0, part.plain_rate, part.high),
    )
