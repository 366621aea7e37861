from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decode.models import BUSHY, toy
from decode.mutants import causal, prefix_hidden, sequential

from treeopt.decode import decoder as decoder_module
from treeopt.decode import rules
from treeopt.decode.cache import SlotCache
from treeopt.decode.step import ForwardBatch, tree_step
from treeopt.decode.toy import ToyTransformer
from treeopt.decode.verdicts import AcceptedPaths
from treeopt.tree import DraftTree
from treeopt.verify import case as case_module
from treeopt.verify import case as own_module
from treeopt.verify import checks as checks_module
from treeopt.verify.case import Case
from treeopt.verify.checks import check_tree, tokens_for
from treeopt.verify.report import Check

pytest.importorskip("torch", reason="verifying needs torch")


def case(tree: DraftTree = BUSHY, *, dtype: str = "float64", L: int = 9) -> Case:
    rng = np.random.default_rng(0)
    model = ToyTransformer(replace(toy().shape, vocabulary=32), seed=3, dtype=dtype)
    return Case(model=model, tree=tree, prefix=rng.integers(0, 32, L), tokens=tokens_for(tree, 32, rng))


def failed(checks: tuple[Check, ...]) -> set[str]:
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize(
    "tree", [DraftTree(()), DraftTree.chain(3), BUSHY, DraftTree.from_widths([4, 3]), DraftTree(((2,), (5,), (5, 1)))]
)
@pytest.mark.parametrize("L", [0, 1, 9])
def test_the_decoder_itself_passes(tree: DraftTree, L: int) -> None:
    checks = check_tree(case(tree, L=L))
    assert not failed(checks)
    assert max(check.worst for check in checks) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_pass_with_their_own_errors(dtype: str) -> None:
    checks = {check.name: check for check in check_tree(case(dtype=dtype))}
    assert not failed(tuple(checks.values()))
    error = checks["distribution of every path"].worst
    assert (1e-8 if dtype == "float32" else 1e-3) < error < (1e-3 if dtype == "float32" else 0.5)


def test_tokens_differ_where_there_are_enough() -> None:
    rng = np.random.default_rng(0)
    assert len(set(tokens_for(BUSHY, 32, rng).tolist())) == len(BUSHY)
    few = tokens_for(BUSHY, 4, rng)
    assert all(len({int(few[kid]) for kid in kids}) == len(kids) for kids in BUSHY.children)


SHOWS = {
    causal: {"mask, positions, output", "distribution of every path", "repeated tokens"},
    sequential: {"mask, positions, output", "distribution of every path", "repeated tokens"},
    prefix_hidden: {"mask, positions, output", "distribution of every path", "repeated tokens"},
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("change", [causal, sequential, prefix_hidden])
def test_mutant_steps_are_caught(
    change: Callable[[ForwardBatch], ForwardBatch], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*args: Any, **kwargs: Any) -> ForwardBatch:
        return change(tree_step(*args, **kwargs))

    for module in (case_module, own_module, decoder_module, checks_module):
        monkeypatch.setattr(module, "tree_step", changed)
    found = failed(check_tree(case(dtype=dtype)))
    assert found >= SHOWS[change]
    assert "greedy text" in found or dtype == "bfloat16"


def test_a_cache_that_holds_no_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's `max` passes over them."""
    kept = SlotCache.compact

    def spoilt(self: SlotCache, path: np.ndarray, *, lengths: np.ndarray, rows: np.ndarray) -> None:
        kept(self, path, lengths=lengths, rows=rows)
        self.layers[-1][1][:] = float("nan")

    monkeypatch.setattr(SlotCache, "compact", spoilt)
    assert "cache after compaction, in place" in failed(check_tree(case()))


@pytest.mark.parametrize("name", ["compact", "compact_by_copy"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_mutant_keys_and_values_left_in_place_are_caught(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlotCache, name, lambda *args, **kwargs: None)
    found = failed(check_tree(case(dtype=dtype)))
    assert f"cache after compaction, {'in place' if name == 'compact' else 'by copy'}" in found


def test_a_compaction_in_the_wrong_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the path to its start: a slot is overwritten before it was read."""
    ascending = SlotCache.compact

    def descending(self: SlotCache, path: np.ndarray, *, lengths: np.ndarray, rows: np.ndarray) -> None:
        for k in range(path.shape[1] - 1, -1, -1):
            for store in self._stores():
                store[:, :, int(lengths[0]) + k] = store[:, :, int(lengths[0] + path[0, k])]

    chain_beside = DraftTree(((0,), (1,), (1, 0), (1, 0, 0), (1, 0, 0, 0)))  # the path 2, 3, 4, 5 overlaps 1, 2, 3, 4
    assert not failed(check_tree(case(chain_beside)))
    monkeypatch.setattr(SlotCache, "compact", descending)
    assert "cache after compaction, in place" in failed(check_tree(case(chain_beside)))
    monkeypatch.setattr(SlotCache, "compact", ascending)


def test_mutant_gathering_from_the_node_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(evidence: Any, wanted: Any) -> AcceptedPaths:
        """A child is taken if its OWN row wants its token."""
        trees, tokens, best = evidence.trees, evidence.tokens, evidence.best
        path = np.full((len(trees), trees.depth + 1), -1)
        path[:, 0] = 0
        last = np.zeros(len(trees), dtype=np.int64)
        for b in range(len(trees)):
            kids = [k for k in trees.children[b, 0] if k >= 0 and best[b, k] == tokens[b, k]]
            if kids:
                path[b, 1] = last[b] = kids[0]
        return AcceptedPaths(path, best[np.arange(len(trees)), last])

    monkeypatch.setattr(rules, "_walk", walk)
    assert {"parent gathering, every rule", "end token on a path"} <= failed(check_tree(case()))


def test_mutant_bonus_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = decoder_module.emissions

    def twice(verdict: Any, tokens: np.ndarray) -> list[tuple[int, ...]]:
        return [(int(tokens[b, 0]), *found) for b, found in enumerate(kept(verdict, tokens))]

    for module in (decoder_module, own_module, checks_module):
        monkeypatch.setattr(module, "emissions", twice)
    assert {"mask, positions, output", "greedy text", "end token on a path"} <= failed(check_tree(case()))


def test_an_end_token_that_is_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "end_at", lambda verdict, tokens, ends: verdict)
    assert "end token on a path" in failed(check_tree(case()))


def test_a_batch_that_mixes_requests_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SlotCache.write

    def mixed(self: SlotCache, layer: int, keys: Any, values: Any, step: ForwardBatch) -> Any:
        found, values = kept(self, layer, keys, values, step)
        return (found.roll(1, 0) if len(step.rows) == 5 and step.trees is not None else found), values

    monkeypatch.setattr(SlotCache, "write", mixed)
    assert failed(check_tree(case())) == {"unequal trees in a batch"}
