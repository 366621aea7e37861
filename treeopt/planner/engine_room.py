"""What the engine adds to a speculative step, and at how much of it another draft would be as fast."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeopt.cost.step import ModelStep
from treeopt.files.typed import NotNegative
from treeopt.solve.options import Option


class EngineRoom(NamedTuple):
    """Milliseconds that the engine adds to a speculative step beyond what it adds to a plain one.

    `added_ms` is what the choice is priced with, or its best rival where nothing is drafted; `plain_ms` and
    `runner_up_ms` are those at which that rival is as fast, all speculative steps changed by as much; None where it
    never is. Plain decoding wins above its own, the runner-up above if it accepts more (`runner_up_above`).
    """

    added_ms: float
    plain_ms: NotNegative | None
    runner_up_ms: NotNegative | None
    runner_up_above: bool = False


def engine_room(
    choice: Option, plain: Option, runner_up: Option | None, batch: int, kernels: ModelStep
) -> EngineRoom | None:
    """Where the engine's time decides; None where nothing is drafted by either.

    A choice of 2.5 tokens in 17 ms beside a plain step of 8 ms may take 20 ms: priced with 1.5 ms of the engine's,
    plain decoding is as fast at 4.5 ms. A runner-up of 2.0 tokens in 13.8 ms is as fast 1 ms below: at 0.5 ms.
    """
    rival = runner_up if runner_up is not None and runner_up.nodes > 1 else None
    drafted = choice if choice.nodes > 1 else rival
    if drafted is None:
        return None
    added_s = engine_adds_s(drafted, batch, kernels)
    at_plain_s = added_s + drafted.acceptance_length.value * plain.step_time_s - drafted.step_time_s
    if choice.nodes == 1:
        return EngineRoom(1e3 * added_s, None, _ms(at_plain_s))
    longer = rival is not None and rival.acceptance_length.value > choice.acceptance_length.value
    return EngineRoom(1e3 * added_s, _ms(at_plain_s), _ms(_as_fast_s(choice, rival, added_s)), longer)


def engine_adds_s(option: Option, batch: int, kernels: ModelStep) -> float:
    """Seconds of the engine in a draft's step less those in a plain one."""
    at, engine = np.array(batch), kernels.engine
    ours = engine.time_s(at, np.array(option.nodes), passes=np.array(option.depth))
    return float(ours) - float(engine.time_s(at, np.array(1), passes=np.array(0)))


def _as_fast_s(choice: Option, rival: Option | None, added_s: float) -> float | None:
    """E / (T + x) of both are equal at x = (E' T - E T') / (E - E')."""
    if rival is None or rival.acceptance_length.value == choice.acceptance_length.value:
        return None
    ours, theirs = choice.acceptance_length.value, rival.acceptance_length.value
    return added_s + (theirs * choice.step_time_s - ours * rival.step_time_s) / (ours - theirs)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or seconds < 0.0 else 1e3 * seconds
