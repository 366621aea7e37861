"""The checks of one tree: every node's distribution, mask, position, gathering, cache, end, batch and text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.batch import TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.decoder import Decoder, Decoding, emissions, same_tree
from treeopt.decode.drafting import DraftLevel
from treeopt.decode.draws import RandomDraws
from treeopt.decode.guesses import Listed, ListedGuesses
from treeopt.decode.models import as_float64
from treeopt.decode.rules import RULES, Rule
from treeopt.decode.step import text_step, tree_step
from treeopt.decode.verdicts import StepToVerify, end_at
from treeopt.tree import DraftTree
from treeopt.verify.case import Case, cache_difference, own_dump
from treeopt.verify.diagnose import diagnose
from treeopt.verify.report import Check

_TEXT_TOKENS: Final = 16  # decoded beyond the tree's depth


def check_tree(case: Case) -> tuple[Check, ...]:
    """All checks of one case."""
    checks: tuple[Callable[[Case], Check], ...] = (
        _plain_decoding,
        _own_step,
        _distributions,
        _repeated_tokens,
        _batched,
        _gathering,
        _ends,
        _cache_in_place,
        _cache_by_copy,
        _decoding,
    )
    return tuple(check(case) for check in (*checks, *([_cache_by_kernel] if case.kernels else [])))


def _plain_decoding(case: Case) -> Check:
    """The yardstick: along every path, with a cache and without one, before any tree comes in."""
    error = np.abs(case.plain.stepwise - case.plain.logits).max(axis=1)
    return _by_node("plain decoding, with and without cache", case, error, case.allowed_noise)


def _own_step(case: Case) -> Check:
    """What a foreign dump is checked for, on this decoder's own step."""
    dump = own_dump(case)
    found = diagnose(dump, case.tree)
    where = f"{found[0].name}: {found[0].detail}" if found else ""
    return Check(
        name="mask, positions, output", worst=float(len(found)), allowed=0.0, cases=len(case.tree), where=where
    )


def _distributions(case: Case) -> Check:
    error = np.abs(as_float64(case.run().logits) - case.plain.logits).max(axis=1)
    return _by_node("distribution of every path", case, error, case.allowed_logits)


def _repeated_tokens(case: Case) -> Check:
    """The same token everywhere: nodes are told apart by their history, never by their token."""
    same = replace(case, tokens=np.full(len(case.tree), case.tokens[0]))
    error = np.abs(as_float64(same.run().logits) - same.plain.logits).max(axis=1)
    return _by_node("repeated tokens", case, error, same.allowed_logits)


def _batched(case: Case) -> Check:
    """Beside other trees, behind prefixes of other lengths, a request gets what it gets alone."""
    half = len(case.prefix) // 2
    others = [DraftTree(()), DraftTree.chain(case.tree.depth), _without_last(case.tree), case.tree]
    prefixes = [case.prefix, case.prefix[:half], case.prefix[: half + 1], case.prefix[:1]]
    cases = [
        replace(case, tree=tree, prefix=prefix, tokens=case.tokens[: len(tree)])
        for tree, prefix in zip(others, prefixes, strict=True)
    ]
    cases.append(case)
    trees = TreeBatch.of([c.tree for c in cases])
    rows, lengths = np.arange(len(cases)), np.array([len(c.prefix) for c in cases])
    tokens = np.array([np.pad(c.tokens, (0, trees.nodes - len(c.tokens))) for c in cases])
    cache, none = SlotCache(), np.zeros(len(cases), dtype=np.int64)
    prefill = text_step([c.prefix.tolist() for c in cases], lengths=none, rows=rows)
    case.model.forward(prefill, cache, at=none)
    together = as_float64(case.model.forward(tree_step(trees, tokens, lengths=lengths, rows=rows), cache))
    errors = [np.abs(together[i, : len(c.tree)] - as_float64(c.run().logits)).max() for i, c in enumerate(cases)]
    worst = int(np.argmax(errors))
    names = ("the root alone", "a chain", "the tree without its last node", "a short prefix", "the tree")
    return Check(
        name="unequal trees in a batch",
        worst=float(errors[worst]),
        allowed=case.allowed_logits,
        cases=len(cases),
        where=names[worst],
    )


def _gathering(case: Case) -> Check:
    """For every node and rule: a target that wants exactly that node's path accepts exactly that path."""
    N = len(case.tree)
    labels = np.arange(N)[None].repeat(N, axis=0)  # a vocabulary of one token per node, and one that no node has
    wanted = np.full((N, N), N)
    for node in range(N):
        path = case.path(node)
        wanted[node] = np.where(np.isin(np.arange(N), path), N, np.arange(N))  # other nodes want themselves
        wanted[node, path[:-1]] = path[1:]
    p = np.eye(N + 1)[wanted]
    q = np.broadcast_to(np.full(N + 1, 1.0 / (N + 1)), p.shape)
    trees = TreeBatch.repeat(case.tree, N)
    evidence = StepToVerify(trees=trees, tokens=labels, best=wanted, p=p, q=q)
    rules = [rule for rule in RULES if not rule.chains_only or case.tree.is_chain]
    wrong = [_misjudged(rule, evidence, case) for rule in rules]
    worst = int(np.argmax([len(nodes) for nodes in wrong]))
    where = f"{rules[worst].label}: node {wrong[worst][0]}" if wrong[worst] else ""
    return Check(
        name="parent gathering, every rule",
        worst=float(sum(map(len, wrong))),
        allowed=0.0,
        cases=N * len(rules),
        where=where,
    )


def _misjudged(rule: Rule, evidence: StepToVerify, case: Case) -> list[int]:
    path, token = rule.judge(evidence, RandomDraws(np.random.default_rng(0)))
    N = len(case.tree)
    return [n for n in range(N) if path[n][path[n] >= 0].tolist() != case.path(n).tolist() or token[n] != N]


def _ends(case: Case) -> Check:
    """An end token at any node of an accepted path is the last token that is emitted."""
    N, wrong = len(case.tree), []
    for node in range(1, N):
        leaf = case.leaves[case.row_of(node)]
        wanted = np.full((1, N), N)
        wanted[0, case.path(leaf)[:-1]] = case.path(leaf)[1:]
        labels = np.arange(N)[None]
        evidence = StepToVerify(trees=TreeBatch.of([case.tree]), tokens=labels, best=wanted)
        verdict = end_at(RULES[0].judge(evidence, RandomDraws(np.random.default_rng(0))), labels, frozenset({node}))
        if emissions(verdict, labels) != [tuple(case.path(node)[1:].tolist())]:
            wrong.append(node)
    where = f"node {wrong[0]}" if wrong else ""
    return Check(name="end token on a path", worst=float(len(wrong)), allowed=0.0, cases=N - 1, where=where)


def _cache_in_place(case: Case) -> Check:
    return _compacted("cache after compaction, in place", case, SlotCache.compact)


def _cache_by_copy(case: Case) -> Check:
    return _compacted("cache after compaction, by copy", case, SlotCache.compact_by_copy)


def _cache_by_kernel(case: Case) -> Check:
    return _compacted("cache after compaction, by the kernel", case, SlotCache.compact_by_kernel)


def _compacted(name: str, case: Case, compact: Callable[..., None]) -> Check:
    """For every node: after its path was accepted, the cache is the one that plain decoding of that path builds."""
    L, row = len(case.prefix), np.zeros(1, dtype=np.int64)
    cache, errors = case.run().cache, []
    for node in range(len(case.tree)):
        path = case.path(node)
        ours = replace(cache, layers=[(copy.deepcopy(keys), copy.deepcopy(values)) for keys, values in cache.layers])
        compact(ours, path[None], lengths=row + L, rows=row)
        errors.append(cache_difference(ours, 0, case.plain.cache, case.row_of(node), L + len(path)))
    return _by_node(name, case, np.array(errors), case.allowed_cache)


class _Script:
    """A drafter that knows the text: the right token comes at a rank that changes from place to place."""

    def __init__(self, text: Sequence[int], *, ranks: int, vocabulary_size: int) -> None:
        self._text = list(text)
        self._ranks = ranks
        self._vocabulary_size = vocabulary_size

    def guesses(self, level: DraftLevel) -> ListedGuesses:
        """See `Drafter`."""
        places = [self._listed(level.text(i)) for i in range(len(level))]
        return ListedGuesses(places, vocabulary_size=self._vocabulary_size)

    def _listed(self, before: list[int]) -> Listed:
        n, V = len(before), self._vocabulary_size
        order = np.roll(np.arange(V), n)[: self._ranks + 1]
        if n < len(self._text) and before == self._text[:n]:
            order = order[order != self._text[n]][: self._ranks]
            order = np.insert(order, min((7 * n) % (self._ranks + 1), len(order)), self._text[n])
        return Listed(tuple(order.tolist()), tuple(0.5**place for place in range(len(order))))


def _decoding(case: Case) -> Check:
    """Greedy decoding with the tree writes what greedy decoding without cache and tree writes.

    Where the texts part, the error is how much the target prefers its own token to the one that was written.
    """
    tokens = case.tree.depth + _TEXT_TOKENS
    prompt = [*case.prefix.tolist(), int(case.tokens[0])]
    text, rows = list(prompt), []
    for _ in range(tokens):
        rows.append(as_float64(case.model.reference(np.array(text))[-1]))
        text.append(int(rows[-1].argmax()))
    script = _Script(text, ranks=int(case.tree.ranks.max(initial=0)) + 1, vocabulary_size=case.model.vocabulary_size)
    decoder = Decoder(case.model, script, decoding=Decoding(max_new_tokens=tokens))
    (written,) = decoder.generate([prompt], same_tree(case.tree))
    worst, where = _parting(rows, text[len(prompt) :], written)
    return Check(name="greedy text", worst=worst, allowed=case.allowed_logits, cases=tokens, where=where)


def _parting(rows: list[np.ndarray], expected: list[int], written: list[int]) -> tuple[float, str]:
    for i, (row, ours, theirs) in enumerate(zip(rows, expected, written, strict=False)):
        if ours != theirs:
            return float(row[ours] - row[theirs]), f"token {i}: {theirs} instead of {ours}"
    if len(written) != len(expected):
        return float("inf"), f"{len(written)} tokens instead of {len(expected)}"
    return 0.0, ""


def _without_last(tree: DraftTree) -> DraftTree:
    return DraftTree(tree.paths[:-1])


def _by_node(name: str, case: Case, error: np.ndarray, allowed: float) -> Check:
    node = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    worst = float("inf") if np.isnan(error[node]) else float(error[node])
    where = f"node {node}, path {list(case.tree.nodes[node])}"
    return Check(name=name, worst=worst, allowed=allowed, cases=len(case.tree), where=where)


def tokens_for(tree: DraftTree, vocabulary_size: int, rng: np.random.Generator) -> IntArray:
    """`[N]` random tokens for the nodes, all different where the vocabulary has so many, else among siblings."""
    if vocabulary_size >= len(tree):
        return rng.permutation(vocabulary_size)[: len(tree)]
    return np.maximum(tree.ranks, 0) % vocabulary_size
