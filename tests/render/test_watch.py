"""A line per poll of a watched server: what was counted, and nothing where it was not."""

from __future__ import annotations

import pytest

from treeopt.answer import Estimate
from treeopt.check.live import Watch, Watched
from treeopt.render.watch import line

LENGTH = Estimate(value=2.31, low=2.2, high=2.4)
RARE = Estimate(value=0.02, low=0.003, high=0.137)


@pytest.mark.parametrize(
    ("steps", "length", "positions", "said"),
    [
        (1204.0, LENGTH, (RARE,), "12 s: 1,204 steps, E 2.31 [2.20, 2.40]; 0.020 [0.003, 0.137]"),
        (1204.0, None, (RARE,), "12 s: 1,204 steps; 0.020 [0.003, 0.137]"),
        (1204.0, None, (), "12 s: 1,204 steps"),
        (None, LENGTH, (), "12 s: E 2.31 [2.20, 2.40]"),
        (None, None, (), "12 s: not counted"),
    ],
)
def test_a_poll_says_what_was_counted(
    steps: float | None, length: Estimate | None, positions: tuple[Estimate, ...], said: str
) -> None:
    source = Watched(
        source="m", steps=steps, draft_tokens_per_draft=None, acceptance_length=length, positions=positions
    )
    assert line(Watch(url="u", seconds=12.0, sources=(source,))) == said
