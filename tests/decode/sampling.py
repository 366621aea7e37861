"""Many requests decoded at once with tabled distributions, to compare a rule's output with the target's law."""

from __future__ import annotations

import numpy as np
from decode.enumeration import Law, Next
from scipy import stats

from treeopt.decode.batch import TreeBatch
from treeopt.decode.draws import RandomDraws, draw_siblings
from treeopt.decode.rules import Rule, Siblings
from treeopt.decode.verdicts import StepToVerify
from treeopt.tree import DraftTree


def sample(rule: Rule, tree: DraftTree, p: Next, q: Next, V: int, *, length: int, draws: int, seed: int) -> np.ndarray:
    """`[draws, length]` outputs of the rule, each decoded in as many steps as it takes."""
    source = RandomDraws(np.random.default_rng(seed))
    texts = np.zeros((draws, length), dtype=np.int64)
    have = np.zeros(draws, dtype=np.int64)
    while (have < length).any():
        for n in range(length):
            rows = np.flatnonzero(have == n)
            if len(rows):
                _step(rule, tree, p, q, V, texts, have, rows, source)
                break
    return texts


def _step(
    rule: Rule,
    tree: DraftTree,
    p: Next,
    q: Next,
    V: int,
    texts: np.ndarray,
    have: np.ndarray,
    rows: np.ndarray,
    source: RandomDraws,
) -> None:
    n, m, N = int(have[rows[0]]), len(rows), len(tree)
    tokens, laws = np.full((m, N), -1), np.zeros((2, m, N, V))
    tokens[:, 0] = 0
    for node, kids in enumerate(tree.children):
        ancestors = np.flatnonzero(tree.ancestor_mask[node])[1:]
        before = np.concatenate([texts[rows, :n], tokens[:, ancestors]], axis=1)
        there = (before >= 0).all(axis=1)
        laws[:, there, node] = _lookup((p, q), before[there])
        if not kids:
            continue
        if rule.siblings is Siblings.BEST:
            order = np.argsort(-laws[1, :, node], axis=1, kind="stable")
            found = order[:, tree.ranks[list(kids)]]
        else:
            replacement = rule.siblings is Siblings.INDEPENDENT
            found = draw_siblings(laws[1, :, node], len(kids), source, replacement=replacement)
        tokens[:, list(kids)] = np.where(there[:, None], found, -1)
    best = laws[0].argmax(axis=2)
    evidence = StepToVerify(trees=TreeBatch.repeat(tree, m), tokens=tokens, best=best, p=laws[0], q=laws[1])
    verdict = rule.judge(evidence, source)
    written = np.full((m, tree.depth + 1), -1)
    written[:, :-1] = np.where(
        verdict.path[:, 1:] >= 0, np.take_along_axis(tokens, np.maximum(verdict.path[:, 1:], 0), axis=1), -1
    )
    written[np.arange(m), verdict.accepted] = verdict.token
    for k in range(min(written.shape[1], texts.shape[1] - n)):
        texts[rows, n + k] = np.where(written[:, k] >= 0, written[:, k], texts[rows, n + k])
    have[rows] += verdict.accepted + 1


def _lookup(laws: tuple[Next, Next], texts: np.ndarray) -> np.ndarray:
    """`[2, m, V]` both laws behind `texts [m, n]`."""
    n = texts.shape[1]
    V = len(laws[0](()))
    different, which = np.unique(texts @ V ** np.arange(n), return_inverse=True)
    known = [tuple((code // V ** np.arange(n) % V).tolist()) for code in different]
    return np.array([[law(text) for text in known] for law in laws])[:, which]


def p_value(outputs: np.ndarray, law: Law) -> float:
    """Chi-square test of the outputs against a law; expected counts below 5 are put together."""
    length, V = outputs.shape[1], 1 + max(max(text) for text in law)
    power = V ** np.arange(length)
    expected = np.zeros(V**length)
    for text, chance in law.items():
        expected[np.array(text) @ power] += chance * len(outputs)
    found = np.bincount(outputs @ power, minlength=len(expected))
    if found[expected == 0].any():
        return 0.0  # what cannot come came
    rare = expected < 5
    found = np.append(found[~rare], found[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    seen = expected > 0
    return float(stats.chisquare(found[seen], expected[seen]).pvalue)
