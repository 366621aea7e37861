"""The step: arrays against a plain loop, and the properties that the search relies on, on jagged kernel times too."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_steps import STEPS, jagged_step_of, step_of

from treeopt.cost import ModelStep, Ngram, StepTerms, Term
from treeopt.tree import DraftTree

ALL_STEPS = [*(step_of(*key) for key in STEPS), *(jagged_step_of(*key) for key in STEPS)]
smooth_steps = st.sampled_from([step_of(*key) for key in STEPS])
steps = st.sampled_from(ALL_STEPS)
every_step = pytest.mark.parametrize("step", ALL_STEPS)


def priced(step: ModelStep, tree: DraftTree, batch: int, context: int) -> StepTerms:
    widths = tree.expanded_widths.tolist()
    return step.terms(batch=batch, nodes=len(tree), depth=tree.depth, widths=widths, context=context)


def random_widths(shape: tuple[int, ...], depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    widths = np.random.default_rng(0).integers(1, 9, size=shape)
    return np.where(np.arange(shape[-1]) < depth[..., None], widths, 0)


@every_step
def test_a_broadcast_call_is_the_loop_over_its_points(step: ModelStep) -> None:
    batch = np.array([1, 7, 64])[:, None, None]
    nodes = np.array([3, 6, 20, 65])[:, None]
    depth = np.array([0, 1, 2, 5])
    context = np.array([100, 5000])[:, None, None, None]
    widths = random_widths((4, 4, 5), np.broadcast_to(depth, (4, 4)))
    found = step.step_time_s(batch, nodes, depth, widths, context)
    assert found.shape == (2, 3, 4, 4)
    for c, b, n, d in np.ndindex(found.shape):
        alone = step.step_time_s(
            int(batch[b, 0, 0]), int(nodes[n, 0]), int(depth[d]), widths[n, d], int(context[c, 0, 0, 0])
        )
        assert alone.shape == ()
        assert found[c, b, n, d] == pytest.approx(float(alone), rel=1e-12)


@every_step
def test_a_batch_that_varies_with_the_trees_is_the_loop_too(step: ModelStep) -> None:
    depth = np.array([1, 3, 2])
    widths = random_widths((3, 3), depth)
    batch, nodes = np.array([8, 1, 8]), np.array([4, 9, 6])
    found = step.step_time_s(batch, nodes, depth, widths, 512)
    for i in range(3):
        alone = step.step_time_s(int(batch[i]), int(nodes[i]), int(depth[i]), widths[i], 512)
        assert found[i] == pytest.approx(float(alone), rel=1e-12)


def test_the_result_has_the_broadcast_shape_even_where_an_input_has_no_price() -> None:
    step = step_of("qwen3-30b-a3b", "ngram", 2)
    found = step.step_time_s(4, 8, 2, np.ones((3, 5, 2), dtype=np.int64), 100)
    assert found.shape == (3, 5)
    assert found.min() == found.max() > 0


@every_step
def test_the_terms_add_up_to_the_step(step: ModelStep) -> None:
    tree = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    terms = priced(step, tree, batch=24, context=3000)
    whole = step.step_time_s(24, len(tree), tree.depth, tree.expanded_widths, 3000)
    assert terms.total_s == pytest.approx(float(whole), rel=1e-12)
    assert sum(getattr(terms, field.name) for field in fields(terms)) == pytest.approx(terms.total_s, rel=1e-12)
    assert terms.layers_s > 0
    assert terms.compaction_s > 0
    assert [terms.of(term) for term in Term] == [getattr(terms, field.name) for field in fields(terms)]


class Point:
    """Strategies of valid points: `nodes` leaves room for the widths and for one level more."""

    batch = st.integers(1, 512)
    context = st.integers(0, 100_000)
    widths = st.lists(st.integers(1, 40), min_size=1, max_size=7)


@given(step=steps, batch=Point.batch, context=Point.context, widths=Point.widths, extra=st.integers(1, 40))
def test_a_deeper_tree_is_never_cheaper(
    step: ModelStep, batch: int, context: int, widths: list[int], extra: int
) -> None:
    depth = len(widths)
    nodes = 1 + sum(widths) + extra + 1  # more than depth + 2: no chain on either side
    shallow = np.array([*widths, 0])
    deep = np.array([*widths, extra])
    before = step.step_time_s(batch, nodes, depth, shallow, context)
    after = step.step_time_s(batch, nodes, depth + 1, deep, context)
    assert after >= before
    if not isinstance(step.drafter, Ngram):
        assert after > before


@given(
    step=steps,
    batch=Point.batch,
    context=Point.context,
    widths=Point.widths,
    wider=st.lists(st.integers(0, 40), min_size=7, max_size=7),
)
def test_a_wider_tree_is_never_cheaper(
    step: ModelStep, batch: int, context: int, widths: list[int], wider: list[int]
) -> None:
    narrow = np.array(widths)
    wide = narrow + np.array(wider[: len(widths)])
    nodes = 1 + int(wide.sum())
    before = step.step_time_s(batch, nodes, len(widths), narrow, context)
    after = step.step_time_s(batch, nodes, len(widths), wide, context)
    assert after >= before * (1 - 1e-12)


@given(step=smooth_steps, nodes=st.integers(1, 64), batch=Point.batch, context=Point.context)
def test_more_requests_nodes_or_context_never_cost_less(step: ModelStep, nodes: int, batch: int, context: int) -> None:
    widths = np.zeros(1, dtype=np.int64)
    base = step.step_time_s(batch, nodes, 0, widths, context)
    for more in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):  # measured kernels may get cheaper with more; a roofline does not
        dearer = step.step_time_s(batch + more[0], nodes + more[1], 0, widths, context + more[2])
        assert dearer >= base * (1 - 1e-12)


def test_only_a_chain_can_undercut_a_shallower_tree_of_as_many_nodes() -> None:
    step = step_of("qwen3-30b-a3b", "ngram", 2)
    tree = DraftTree(((0,), (1,), (0, 0), (0, 0, 0)))
    chain = DraftTree.chain(4)
    assert len(tree) == len(chain)
    shallower, deeper = (priced(step, t, batch=8, context=100) for t in (tree, chain))
    assert shallower.total_s - deeper.total_s == pytest.approx(shallower.compaction_s, rel=1e-9)
    assert shallower.compaction_s > 0


def test_a_call_with_wide_trees_prices_the_narrow_ones_as_one_without() -> None:
    # A bound asks for the narrowest trees in a call of their own; it must not pay more there than the trees do.
    step = jagged_step_of("llama-3.1-8b", "eagle", 1)
    widths = np.array([[1, 1, 1], [1, 2, 2], [1, 60, 70]])
    together = step.step_time_s(16, 200, 3, widths, 1000)
    alone = [float(step.step_time_s(16, 200, 3, row, 1000)) for row in widths]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


def test_each_term_has_the_error_of_its_kernels() -> None:
    # JaggedTimes: gemm 1 %, attention 2 %, latent attention 3 %, experts 4 %, all-reduce 5 %, stream 6 %
    found = dict(jagged_step_of("deepseek-v3", "mtp", 8).error_p90())
    assert (found[Term.LAYERS], found[Term.LM_HEAD]) == (0.01, 0.01)
    assert (found[Term.ATTENTION], found[Term.EXPERTS], found[Term.ALL_REDUCE]) == (0.03, 0.04, 0.05)
    assert (found[Term.ELEMENTWISE], found[Term.SAMPLING], found[Term.COMPACTION]) == (0.06, 0.06, 0.06)
    assert (found[Term.DRAFTER], found[Term.ENGINE]) == (0.06, None)
    assert dict(jagged_step_of("llama-3.1-8b", "medusa", 2).error_p90())[Term.DRAFTER] == 0.01
    assert dict(jagged_step_of("qwen3-30b-a3b", "ngram", 2).error_p90())[Term.DRAFTER] is None


def test_notes_ask_how_far_every_kind_of_kernel_is_used() -> None:
    step = jagged_step_of("qwen3-30b-a3b", "mtp", 1)
    # 2 x 5 tokens are padded to 64
    assert step.notes(batch=2, nodes=5, context=1000)[:4] == [
        "gemm bf16 64 0x0 over 0, 0 B",
        "attention bf16 0 2x5 over 1005, 0 B",
        "stream bf16 0 0x0 over 0, 0 B",
        "experts bf16 64 0x0 over 0, 0 B",
    ]
    sent_bytes = 64 * 129280  # 2 bytes, and gathering sends half of summing
    assert f"all_reduce bf16 0 0x0 over 0, {sent_bytes} B" in jagged_step_of("deepseek-v3", "mtp", 8).notes(
        batch=2, nodes=5, context=1000
    )
