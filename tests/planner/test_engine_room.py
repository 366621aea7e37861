"""At how much of the engine's time another draft is as fast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.cost.engine import EngineSteps
from treeopt.draft_family import OFF, Draft
from treeopt.planner.engine_room import EngineRoom, engine_room
from treeopt.solve.options import Option
from treeopt.solve.price import option
from treeopt.tree import DraftTree

# 0.3 ms per step, and what a speculative one adds: 1.5 ms, whatever is drafted.
KERNELS: Any = SimpleNamespace(engine=EngineSteps(step_s=0.3e-3, speculative_step_s=1.5e-3))


def of(draft: Draft, tokens: float, ms: float) -> Option:
    return option(draft, tokens, ms * 1e-3, 8)


def test_the_worked_example() -> None:
    plain, ours = of(OFF, 1.0, 8.0), of(DraftTree.chain(3), 2.5, 17.0)
    shorter = of(DraftTree.chain(2), 2.0, 13.8)
    found = engine_room(ours, plain, shorter, 8, KERNELS)
    assert found == EngineRoom(pytest.approx(1.5), pytest.approx(4.5), pytest.approx(0.5), False)
    assert engine_room(ours, plain, None, 8, KERNELS) == EngineRoom(pytest.approx(1.5), pytest.approx(4.5), None, False)
    # Where nothing is drafted: what the engine may add for the best draft to pay.
    slow = of(DraftTree.chain(3), 2.0, 17.0)
    assert engine_room(plain, plain, slow, 8, KERNELS) == EngineRoom(
        pytest.approx(1.5), None, pytest.approx(0.5), False
    )
    assert engine_room(plain, plain, None, 8, KERNELS) is None
    assert engine_room(plain, plain, plain, 8, KERNELS) is None


@given(st.floats(1.1, 4.0), st.floats(9.0, 30.0), st.floats(1.1, 4.0), st.floats(9.0, 30.0), st.floats(-1.4, 20.0))
def test_a_rival_wins_beyond_its_milliseconds(E: float, T: float, E2: float, T2: float, more: float) -> None:
    """Every speculative step `more` ms longer, compared outright."""
    plain, ours, theirs = of(OFF, 1.0, 8.0), of(DraftTree.chain(3), E, T), of(DraftTree.chain(2), E2, T2)
    found = engine_room(ours, plain, theirs, 8, KERNELS)
    assert found is not None
    adds = found.added_ms + more
    if found.plain_ms is not None and abs(adds - found.plain_ms) > 1e-6:
        assert (T + more > 8.0 * E) == (adds > found.plain_ms)
    if found.runner_up_ms is not None and abs(adds - found.runner_up_ms) > 1e-6 and abs(E - E2) > 1e-3:
        wins = E2 / (T2 + more) > E / (T + more)
        assert wins == ((adds > found.runner_up_ms) == found.runner_up_above)
