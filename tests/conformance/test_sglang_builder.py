"""The search over triples, judged by SGLang's own tree builder."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance.test_dynamic_tree import LIMITS, check, drafter, searched
from conformance.sglang_code import own_modules, spec_utils
from conformance.wheels import needs_conformance
from costs import drafting_cost
from oracles import TableModel

from treeopt.acceptance.dynamic_tree import dynamic_tree_shape
from treeopt.draft_family import SGLANG, DynamicTree
from treeopt.engines.sglang_abi import decode
from treeopt.tree import DraftTree

torch = pytest.importorskip("torch")
pytestmark = [needs_conformance, pytest.mark.usefixtures("own_modules")]
__all__ = ["own_modules"]


def drafted(code, draft: TableModel, steps: int, k: int):  # type: ignore[no-untyped-def]
    """SGLang's three lists for one request; a token is the number of its path in base `ranks + 1`."""
    base = draft.ranks + 1

    def rows(paths):  # type: ignore[no-untyped-def]
        found = np.stack([draft._rows[path(int(p), base)] for p in paths])
        tokens = np.asarray(paths)[:, None] * base + 1 + np.arange(k)
        return torch.from_numpy(found[:, :k].copy()), torch.from_numpy(tokens)

    topk_p, topk_index = rows([0])
    scores, hidden, lists = None, torch.zeros(1, 1), ([], [], [])
    for step in range(steps):
        ids, hidden, scores, info = code.select_top_k_tokens(step, topk_p, topk_index, hidden, scores, k)
        for kept, part in zip(lists, info, strict=True):
            kept.append(part)
        if step + 1 < steps:
            topk_p, topk_index = rows(ids.tolist())
            hidden = ids[:, None].float()
    return lists


def path(number: int, base: int) -> tuple[int, ...]:
    digits: list[int] = []
    while number:
        number, digit = divmod(number, base)
        digits.insert(0, digit - 1)
    return tuple(digits)


def test_search_equals_brute_force_with_the_engine_as_builder() -> None:
    code = spec_utils()
    for seed in range(100):
        rng = np.random.default_rng(1000 + seed)
        draft, accept = drafter(seed)
        cost = drafting_cost(rng)
        batch, rates = int(rng.integers(1, 9)), {}
        for s in range(1, LIMITS.num_steps + 1):
            for k in range(1, LIMITS.topk + 1):
                lists = drafted(code, draft, s, k)
                sizes = [s + 1] if k == 1 else range(2, min(k + (s - 1) * k * k + 1, LIMITS.num_draft_tokens) + 1)
                for n in sizes:
                    parents, selected, tokens = code.organize_draft_results(*lists, n)
                    paths = {path(int(t), draft.ranks + 1) for t in tokens[0]}
                    assert decode(parents[0].tolist(), selected[0].tolist(), topk=k) == DraftTree(tuple(paths))
                    if n == sizes[-1] or n % 7 == 0:
                        assert dynamic_tree_shape(draft, DynamicTree(s, k, n)) == DraftTree(tuple(paths))
                    widths = np.array([1] + [k] * (s - 1))
                    value = batch * (1.0 + sum(map(accept.f, paths)))
                    rates[DynamicTree(s, k, n)] = value / float(cost.step_time_s(batch, n, s, widths, 0))
        check(searched(SGLANG, draft, accept, cost, batch), rates)
