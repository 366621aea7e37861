"""Steps priced from tables: exact at their points, linear between, never chosen beyond, or carried on by a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.cost.step_table import AdditiveTable, ChainTable, TableStep, TokenTable, known_times
from treeopt.errors import InputError

CELLS = {(1, 0): 6.0, (1, 1): 7.0, (1, 3): 9.0, (8, 0): 8.0, (8, 1): 10.0, (8, 3): 16.0, (32, 0): 20.0}


# 1 s per token of the step, 0.5 s per drafter pass, 0.01 s per token of context; wider levels cost 0.1 s each.
KERNELS = FakeCost(token_s=1.0, pass_s=0.5, context_s=0.01, drafted_s=0.1, ridge_tokens=7.0)


def chain_s(cost, batch: int, K: int, context: int = 0) -> float:
    return float(cost.step_time_s(batch, K + 1, K, np.ones(max(K, 1), dtype=np.int64) * (K > 0), context))


@pytest.fixture
def chains() -> ChainTable:
    return ChainTable.from_cells(CELLS)


def test_a_chain_table_returns_its_cells_and_lines_between_them(chains: ChainTable) -> None:
    cost = TableStep(table=chains, name="t")
    for (batch, K), seconds in CELLS.items():
        assert chain_s(cost, batch, K) == seconds
    assert chain_s(cost, 1, 2) == pytest.approx(8.0)  # between K = 1 and 3
    assert chain_s(cost, 4, 0) == pytest.approx(6.0 + 3 / 7 * 2.0)  # between batch 1 and 8
    assert chain_s(cost, 4, 2) == pytest.approx(8.0 + 3 / 7 * 5.0)
    assert chain_s(cost, 20, 0) == pytest.approx(14.0)


def test_no_line_leads_from_plain_decoding_to_the_first_drafts() -> None:
    # SpecForge#339 at batch 4: 7.06 ms plain, 16.61 ms with K = 3. A line would price K = 1 at 10.24 ms, as if drafting
    # had no fixed cost, and make it pay at 1.5 tokens per step.
    table = ChainTable.from_cells({(4, 0): 7.06e-3, (4, 3): 16.61e-3})
    assert math.isinf(chain_s(TableStep(table=table, name="t"), 4, 1))
    assert math.isinf(chain_s(TableStep(table=table, name="t"), 4, 2))
    # The model carries K = 1 on from the step that drafts, not from the plain one.
    carried = TableStep(table=table, name="t", carried_by=KERNELS)
    assert chain_s(carried, 4, 1) == pytest.approx(chain_s(KERNELS, 4, 1) * 16.61e-3 / chain_s(KERNELS, 4, 3))


def test_beyond_the_table_a_step_takes_for_ever(chains: ChainTable) -> None:
    cost = TableStep(table=chains, name="t")
    assert math.isinf(chain_s(cost, 1, 4))
    assert math.isinf(chain_s(cost, 32, 1))  # batch 32 was measured plain only
    assert math.isinf(chain_s(cost, 20, 1))  # and so nothing stands between 8 and 32
    tree = cost.step_time_s(1, 4, 2, np.array([1, 1]), 0)
    assert math.isinf(float(tree))


def test_a_batch_size_beyond_the_table_is_refused(chains: ChainTable) -> None:
    cost = TableStep(table=chains, name="steps.csv")
    with pytest.raises(InputError, match=r"steps\.csv has no times at batch 64") as raised:
        cost.step_time_s(np.array([1, 64]), 1, 0, np.zeros((2, 1), dtype=np.int64), 0)
    assert "batch 1 to 32, chains of K = 0 to 3" in raised.value.hint


def test_a_model_carries_a_chain_table_on_by_the_ratio_at_the_nearest_chain(chains: ChainTable) -> None:
    model = KERNELS
    cost = TableStep(table=chains, name="t", carried_by=model)
    for (batch, K), seconds in CELLS.items():
        assert chain_s(cost, batch, K) == pytest.approx(seconds)
    # Beyond K = 3: the model's chain of 5, times 9 s over the model's chain of 3.
    assert chain_s(cost, 1, 5) == pytest.approx(chain_s(model, 1, 5) * 9.0 / chain_s(model, 1, 3))
    # A tree of 4 nodes: the model's, times the ratio of the chain of 4 nodes.
    tree = float(cost.step_time_s(1, 4, 2, np.array([1, 2]), 0))
    assert tree == pytest.approx((4.0 + 1.0 + 0.3) * 9.0 / chain_s(model, 1, 3))
    # Beyond batch 32, where only plain steps were measured.
    assert chain_s(cost, 64, 0) == pytest.approx(64.0 * 20.0 / 32.0)
    assert chain_s(cost, 64, 2) == pytest.approx(chain_s(model, 64, 2) * 20.0 / 32.0)


def test_a_model_carries_a_table_to_another_context(chains: ChainTable) -> None:
    model = KERNELS
    cost = TableStep(table=chains, name="t", context=100, carried_by=model)
    assert chain_s(cost, 1, 1, context=100) == pytest.approx(7.0)
    longer = chain_s(model, 1, 1, context=500) / chain_s(model, 1, 1, context=100)
    assert chain_s(cost, 1, 1, context=500) == pytest.approx(7.0 * longer)


def test_a_token_table_does_not_ask_what_was_drafted() -> None:
    # ik_llama.cpp#1630: a step of GLM-4.5-Air by its tokens, in ms.
    table = TokenTable(tokens=(1, 2, 4, 8), step_s=(5.88e-3, 17.93e-3, 22.89e-3, 30.07e-3))
    cost = TableStep(table=table, name="t")
    assert chain_s(cost, 1, 1) == chain_s(cost, 2, 0) == 17.93e-3
    assert float(cost.step_time_s(1, 4, 2, np.array([1, 2]), 0)) == 22.89e-3
    assert chain_s(cost, 1, 2) == pytest.approx((17.93e-3 + 22.89e-3) / 2)
    assert math.isinf(chain_s(cost, 1, 8))
    # The jump from 1 to 2 tokens: 3.05, so no single draft can pay, however good.
    assert chain_s(cost, 1, 1) / chain_s(cost, 1, 0) == pytest.approx(3.05, abs=0.005)
    assert cost.ridge_tokens == 8


def test_an_additive_table_is_the_sum_of_its_parts() -> None:
    table = AdditiveTable(bias_s=5.0, batches=(1, 4), batch_s=(0.0, 3.0), tokens=(1, 16), token_s=(0.0, 15.0))
    cost = TableStep(table=table, name="t")
    assert chain_s(cost, 2, 3) == pytest.approx(5.0 + 1.0 + 7.0)
    with pytest.raises(InputError):
        chain_s(cost, 5, 0)
    assert math.isinf(chain_s(cost, 4, 4))


@pytest.mark.parametrize(
    "table",
    [
        ChainTable.from_cells(CELLS),
        TokenTable(tokens=(2, 24), step_s=(7.0, 30.0)),
        AdditiveTable(bias_s=5.0, batches=(1, 8), batch_s=(0.0, 3.0), tokens=(2, 24), token_s=(0.0, 15.0)),
    ],
)
@settings(max_examples=40)
@given(
    batch=st.integers(1, 40),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    spare=st.integers(1, 5),
    level=st.integers(0, 4),
)
def test_a_carried_table_never_gets_cheaper_as_a_level_widens(table, batch, widths, spare, level) -> None:
    """The contract of `StepCost`, at equal batch and nodes; a tree is no chain here."""
    cost = TableStep(table=table, name="t", carried_by=KERNELS)
    nodes = len(widths) + 1 + spare
    wider = [w + (i == level % len(widths)) for i, w in enumerate(widths)]
    times = cost.step_time_s(batch, nodes, len(widths), np.array([widths, wider]), 0)
    assert np.isfinite(times).all()
    assert times[0] <= times[1] + 1e-12
    deeper = cost.step_time_s(batch, nodes, len(widths) - 1, np.array([*widths[:-1], 0]), 0)
    assert float(deeper) <= times[0] + 1e-12


def test_what_lies_outside_is_said(chains: ChainTable) -> None:
    alone = TableStep(table=chains, name="steps.csv", context=300)
    assert alone.notes(batch=8, nodes=8, context=300)[0].endswith("what lies beyond it is never chosen")
    assert alone.notes(batch=8, nodes=1, context=2048) == [
        "steps.csv was measured at context 300, and counts for 2048 unchanged"
    ]
    carried = TableStep(table=chains, name="steps.csv", carried_by=KERNELS)
    assert "priced by the model" in carried.notes(batch=8, nodes=8, context=300)[0]
    assert "does not say at what context" in carried.notes(batch=8, nodes=1, context=300)[0]
    by_tokens = TableStep(table=TokenTable(tokens=(1, 8), step_s=(1.0, 2.0)), name="sps.json", context=300)
    assert "no speedup" in by_tokens.notes(batch=2, nodes=2, context=300)[0]
    assert chains.max_tokens == 32
    assert carried.ridge_tokens == 7.0


def test_known_times_refuses_what_a_table_lacks(chains: ChainTable) -> None:
    cost = TableStep(table=chains, name="t")
    assert known_times(cost, np.array([1, 8]), np.array([1, 4]), 0).tolist() == [[6.0, 9.0], [8.0, 16.0]]
    with pytest.raises(InputError, match="no time for some of these steps"):
        known_times(cost, np.array([1, 8]), np.array([1, 5]), 0)
