"""The plan beside rivals: against plain decoding the same interval as the plan's own speedup."""

from __future__ import annotations

import pytest

from treeopt.answer import PRICE_LEVEL, Estimate
from treeopt.planner.compare import Standing, compare
from treeopt.planner.inputs import load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import Limits, Problem


def test_against_plain_decoding_the_gain_is_the_plans_speedup() -> None:
    question = Problem(batches=(1, 64, 256), limits=Limits(max_nodes=8))
    plan = make_plan(question, load_inputs(Names(ranks="example")), command="x", target=None)
    drafting = [bucket for bucket in plan.buckets if bucket.speculate]
    assert drafting
    compared = {c.batch: c.gain for c in compare(plan, "none").comparisons}
    for bucket in drafting:
        gain, speedup = compared[bucket.batch.max], bucket.speedup
        assert speedup is not None
        assert gain.level == speedup.level == PRICE_LEVEL
        assert (1 + gain.value, 1 + (gain.low or 0), 1 + (gain.high or 0)) == pytest.approx(
            (speedup.value, speedup.low, speedup.high)
        )


@pytest.mark.parametrize(
    ("low", "high", "level", "standing"),
    [
        (0.01, 0.2, PRICE_LEVEL, Standing.BETTER),
        (-0.27, 0.41, PRICE_LEVEL, Standing.NOT_KNOWN),
        (-0.27, 0.41, 0.95, Standing.TIE),
    ],
)
def test_what_the_prices_error_covers_is_not_known(low: float, high: float, level: float, standing: Standing) -> None:
    assert Standing.of(Estimate(value=0.09, low=low, high=high, level=level)) is standing
