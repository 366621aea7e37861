"""Every branch that a rule's draws can take, with its exact probability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from treeopt.decode.batch import TreeBatch
from treeopt.decode.draws import draw_siblings
from treeopt.decode.rules import Rule, Siblings
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify
from treeopt.tree import DraftTree

Law = dict[tuple[int, ...], float]
Next = Callable[[tuple[int, ...]], np.ndarray]  # from a text to [V] probabilities of its next token


class ScriptedDraws:
    """Answers the i-th question with the i-th number of a script for all requests alike, and keeps each one's
    probability. A request that was not asked is counted under the first answer only."""

    def __init__(self, script: list[int], requests: int) -> None:
        self.script = script
        self.options: list[int] = []
        self.weight = np.ones(requests)

    def choose(self, weights: np.ndarray, active: np.ndarray) -> np.ndarray:
        answer = self._answer(weights.shape[1])
        total = weights.sum(axis=1)
        share = np.divide(weights[:, answer], total, out=np.zeros(len(weights)), where=total > 0)
        self.weight *= np.where(active, share, answer == 0)
        return np.full(len(weights), answer)

    def accept(self, probability: np.ndarray, active: np.ndarray) -> np.ndarray:
        answer = self._answer(2)
        self.weight *= np.where(active, probability if answer == 0 else 1 - probability, answer == 0)
        return active & (answer == 0)

    def _answer(self, options: int) -> int:
        if len(self.options) == len(self.script):
            self.script.append(0)
        self.options.append(options)
        return self.script[len(self.options) - 1]


def every_script(run: Callable[[ScriptedDraws], None], requests: int) -> None:
    """Call `run` once for every sequence of answers."""
    script: list[int] = []
    while True:
        draws = ScriptedDraws(script, requests)
        run(draws)
        del script[len(draws.options) :]
        while script and script[-1] == draws.options[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


@dataclass
class Drafts:
    """All drafts of a tree behind one text: `tokens [n, N]`, the distributions behind every node, and `weight [n]`."""

    trees: TreeBatch
    tokens: np.ndarray
    p: np.ndarray
    q: np.ndarray
    weight: np.ndarray


def laws(tokens: np.ndarray, tree: DraftTree, text: tuple[int, ...], law: Next, V: int) -> np.ndarray:
    """`[N, V]` distributions after each node of one draft."""
    found = np.zeros((len(tree), V))
    for node in range(len(tree)):
        path = [int(tokens[a]) for a in np.flatnonzero(tree.ancestor_mask[node])[1:]]
        if -1 not in path:
            found[node] = law((*text, *path))
    return found


def best_guesses(tree: DraftTree, text: tuple[int, ...], q: Next) -> np.ndarray:
    """`[N]` the drafter's best guesses by rank, -1 beyond the vocabulary."""
    tokens = np.full(len(tree), -1)
    tokens[0] = text[-1] if text else 0
    for node, kids in enumerate(tree.children):
        path = [int(tokens[a]) for a in np.flatnonzero(tree.ancestor_mask[node])[1:]]
        if -1 in path:
            continue
        order = np.argsort(-q((*text, *path)), kind="stable")
        for kid in kids:
            rank = int(tree.ranks[kid])
            tokens[kid] = order[rank] if rank < len(order) else -1
    return tokens


def all_drafts(tree: DraftTree, text: tuple[int, ...], p: Next, q: Next, siblings: Siblings, V: int) -> Drafts:
    drafts: list[tuple[float, np.ndarray]] = []
    if siblings is Siblings.BEST:
        drafts = [(1.0, best_guesses(tree, text, q))]
    else:
        start = np.full(len(tree), -1)
        start[0] = text[-1] if text else 0
        drafts = [(1.0, start)]
        for node, kids in enumerate(tree.children):
            if kids:
                drafts = [
                    (weight * chance, filled)
                    for weight, tokens in drafts
                    for chance, filled in _fill(tokens, tree, node, text, q, siblings)
                ]
    tokens = np.array([tokens for _, tokens in drafts])
    return Drafts(
        trees=TreeBatch.repeat(tree, len(drafts)),
        tokens=tokens,
        p=np.array([laws(t, tree, text, p, V) for t in tokens]),
        q=np.array([laws(t, tree, text, q, V) for t in tokens]),
        weight=np.array([weight for weight, _ in drafts]),
    )


def _fill(
    tokens: np.ndarray, tree: DraftTree, node: int, text: tuple[int, ...], q: Next, siblings: Siblings
) -> list[tuple[float, np.ndarray]]:
    kids = list(tree.children[node])
    path = [int(tokens[a]) for a in np.flatnonzero(tree.ancestor_mask[node])[1:]]
    if -1 in path:
        return [(1.0, tokens)]
    found: list[tuple[float, np.ndarray]] = []

    def run(draws: ScriptedDraws) -> None:
        replacement = siblings is Siblings.INDEPENDENT
        drawn = draw_siblings(q((*text, *path))[None], len(kids), draws, replacement=replacement)[0]
        if draws.weight[0] > 0:
            filled = tokens.copy()
            filled[kids] = drawn
            found.append((float(draws.weight[0]), filled))

    every_script(run, 1)
    return found


def step_law(rule: Rule, tree: DraftTree, text: tuple[int, ...], p: Next, q: Next, V: int) -> Law:
    """The exact law of what one step emits behind a text."""
    drafts = all_drafts(tree, text, p, q, rule.siblings, V)
    evidence = StepToVerify(
        trees=drafts.trees, tokens=drafts.tokens, best=drafts.p.argmax(axis=2), p=drafts.p, q=drafts.q
    )
    law: Law = defaultdict(float)

    def run(draws: ScriptedDraws) -> None:
        verdict = rule.judge(evidence, draws)
        for i in np.flatnonzero(draws.weight > 0):
            law[emitted(verdict, drafts.tokens, int(i))] += float(drafts.weight[i] * draws.weight[i])

    every_script(run, len(drafts.weight))
    return dict(law)


def emitted(verdict: AcceptedPaths, tokens: np.ndarray, i: int) -> tuple[int, ...]:
    return (*(int(tokens[i, node]) for node in verdict.path[i, 1:] if node >= 0), int(verdict.token[i]))


def output_law(rule: Rule, tree: DraftTree, p: Next, q: Next, V: int, length: int) -> Law:
    """The exact law of the first `length` tokens that steps of the rule write behind an empty text."""
    steps: dict[tuple[int, ...], Law] = {}
    law: Law = {(): 1.0}
    while any(len(text) < length for text in law):
        longer: Law = defaultdict(float)
        for text, chance in law.items():
            if len(text) >= length:
                longer[text] += chance
                continue
            if text not in steps:
                steps[text] = step_law(rule, tree, text, p, q, V)
            for tokens, weight in steps[text].items():
                longer[(*text, *tokens)[:length]] += chance * weight
        law = dict(longer)
    return law


def target_law(p: Next, V: int, length: int) -> Law:
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {(*text, t): chance * float(p(text)[t]) for text, chance in law.items() for t in range(V)}
    return law


def table(seed: int, V: int, *, concentration: float = 1.5, zeros: bool = False) -> Next:
    """Random distributions, a function of the text; some tokens impossible with `zeros`."""

    @cache
    def law(text: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([seed, len(text), *text])
        weights = rng.gamma(concentration, size=V) + 1e-3
        if zeros:
            weights[rng.integers(V)] = 0.0
        return weights / weights.sum()

    return law
