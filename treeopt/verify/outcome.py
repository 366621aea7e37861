"""What is wrong with what a dumped step decided: probabilities, target tokens, acceptance and output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.draft_family import DynamicTree
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump


class Difference(NamedTuple):
    """A kind of mistake, by the name that `docs/decoding.md` explains it under, and where it shows first."""

    name: str
    detail: str


class Expected:
    """The tree in the dump's own order of nodes."""

    def __init__(self, dump: StepDump, tree: DraftTree, dynamic: DynamicTree | None) -> None:
        self.tree = tree
        self.dynamic = dynamic
        self.parents = tree.parents if dump.parents is None else dump.parents
        N = len(self.parents)
        self.ancestors: BoolArray = np.eye(N, dtype=np.bool_)
        self.depths: IntArray = np.zeros(N, dtype=np.int64)
        for node in range(N):
            parent = int(self.parents[node])
            while parent >= 0:
                self.ancestors[node, parent] = True
                self.depths[node] += 1
                parent = int(self.parents[parent])

    def children(self, node: int) -> list[int]:
        """A node's children, in the order in which they are listed."""
        return [int(child) for child in np.flatnonzero(self.parents == node)]


_PROBABILITY_ERROR: Final = 1e-2  # relative; half precision and a gathering mistake are far apart


def numbers(dump: StepDump, step: Expected) -> Iterator[Difference]:
    """Probabilities, keys and values that are no numbers, and probabilities that cannot be."""
    p, judged, tokens = dump.probabilities, dump.node_probability, dump.tokens
    if p is not None:
        for name, wrong in _wrong(p):
            node = int(np.argmax(wrong.any(axis=1)))
            yield Difference(name, f"'probabilities' of node {node} hold {p[node][wrong[node]][0]:.4g}")
    if judged is not None:
        asked = np.arange(len(judged)) > 0  # nobody judged the root
        asked &= True if tokens is None else tokens >= 0
        for name, wrong in _wrong(judged):
            if (wrong & asked).any():
                node = int(np.argmax(wrong & asked))
                yield Difference(name, f"'node_probability' of node {node} is {judged[node]:.4g}")
    committed = None if dump.accepted is None else dump.prefix_len + len(dump.accepted)
    for key, slots in (("kv_before", dump.kv_before), ("kv_after", dump.kv_after)):
        if slots is None:
            continue
        lost = np.flatnonzero(~np.isfinite(slots).all(axis=1))
        lost = lost if key == "kv_before" or committed is None else lost[lost < committed]  # the rest is left over
        if len(lost):
            slot = int(lost[0])
            odd = slots[slot][~np.isfinite(slots[slot])][0]
            yield Difference("not a number", f"'{key}' of slot {slot} holds {odd}")


def _wrong(p: FloatArray) -> Iterator[tuple[str, BoolArray]]:
    """Which values are no probabilities, by the name of that difference."""
    lost = ~np.isfinite(p)
    impossible = ~lost & ((p < 0) | (p > 1 + _PROBABILITY_ERROR))
    for name, wrong in (("not a number", lost), ("impossible probability", impossible)):
        if wrong.any():
            yield name, wrong


def targets(dump: StepDump, step: Expected) -> Iterator[Difference]:
    """Target tokens that are not the likeliest of their probabilities, which tokens equal within rounding all are."""
    p, target = dump.probabilities, dump.target_tokens
    if p is None or target is None:
        return
    nodes = np.flatnonzero((target >= 0) & np.isfinite(p).all(axis=1))
    given, best = p[nodes, target[nodes]], p[nodes].max(axis=1)
    wrong = np.flatnonzero(given < best - _PROBABILITY_ERROR * np.abs(best))
    if len(wrong):
        node = int(nodes[wrong[0]])
        yield Difference(
            "wrong target token",
            f"node {node}'s is {target[node]} with probability {given[wrong[0]]:.4g}, "
            f"the likeliest is {p[node].argmax()} with {best[wrong[0]]:.4g}",
        )


class _Judged(NamedTuple):
    """Nodes whose probability is not their parent's row's: `right` and `given` of the first, and whether all of them
    have their own row's."""

    node: int
    given: float
    right: float
    own: float
    by_own_rows: bool


def _misjudged(dump: StepDump, step: Expected) -> _Judged | None:
    p, judged, tokens = dump.probabilities, dump.node_probability, dump.tokens
    if p is None or judged is None or tokens is None or len(tokens) < 2:
        return None
    nodes = 1 + np.flatnonzero(tokens[1:] >= 0)  # the drafter had no guess for the others
    right, own, given = p[step.parents[nodes], tokens[nodes]], p[nodes, tokens[nodes]], judged[nodes]
    numbers = np.isfinite(right) & np.isfinite(own) & np.isfinite(given)
    wrong = np.flatnonzero(numbers & ~np.isclose(given, right, rtol=_PROBABILITY_ERROR, atol=1e-6))
    if not len(wrong):
        return None
    by_own_rows = bool(np.isclose(given[wrong], own[wrong], rtol=_PROBABILITY_ERROR, atol=1e-6).all())
    first = int(wrong[0])
    return _Judged(int(nodes[first]), float(given[first]), float(right[first]), float(own[first]), by_own_rows)


def gathering(dump: StepDump, step: Expected) -> Iterator[Difference]:
    """Nodes that were not judged by their parent's row."""
    wrong = _misjudged(dump, step)
    if wrong is None:
        return
    detail = f"node {wrong.node} was judged by {wrong.given:.4g}, its parent's row says {wrong.right:.4g}"
    if wrong.by_own_rows:
        yield Difference("unshifted gathering", f"{detail}: {wrong.own:.4g} is from the node's own row")
    else:
        yield Difference("wrong probability", detail)


def acceptance(dump: StepDump, step: Expected) -> Iterator[Difference]:
    """An accepted path that is none, or not the target's, and the token that follows it."""
    if dump.accepted is None:
        return
    path = dump.accepted.tolist()
    for before, node in pairwise(path):
        if step.parents[node] != before:
            yield Difference("not a path", f"node {node} was accepted after node {before}, which is not its parent")
            return
    if dump.tokens is None or dump.target_tokens is None:
        return
    if not _is_right(path, dump, step):
        right = _walk(step, dump.tokens, dump.target_tokens)
        detail = f"it accepted {path}, the target's tokens lead along {right}"
        unshifted = path == _walk(step, dump.tokens, dump.target_tokens, shifted=False)
        judged = _misjudged(dump, step)
        # That nothing was accepted has many causes: only the probabilities can tell this one.
        if unshifted and (len(path) > 1 or (judged is not None and judged.by_own_rows)):
            yield Difference("unshifted gathering", f"{detail}: nodes were compared with their own row's token")
        else:
            yield Difference("another path accepted", detail)
        return
    last, token = path[-1], dump.next_token
    expected = int(dump.target_tokens[last])
    ended = bool(np.isin(dump.tokens[path[1:]], _ends(dump)).any())
    if token is not None and token != expected and not ended:
        detail = f"{token} follows the path, node {last}'s row says {expected}"
        parent = int(step.parents[last])
        unshifted_bonus = parent >= 0 and token == dump.target_tokens[parent]
        yield Difference("unshifted gathering" if unshifted_bonus else "wrong next token", detail)


def _is_right(path: list[int], dump: StepDump, step: Expected) -> bool:
    """Whether every node of a path holds its parent's target token, and the path had a reason to stop.

    Of siblings with the same token either is right. A path may stop at an end token or where no token is left.
    """
    tokens, target = dump.tokens, dump.target_tokens
    assert tokens is not None
    assert target is not None
    if any(tokens[node] != target[before] for before, node in pairwise(path)):
        return False
    last = path[-1]
    ended = len(path) > 1 and int(tokens[last]) in _ends(dump)
    used_up = dump.tokens_left is not None and len(path) >= dump.tokens_left
    return ended or used_up or all(tokens[child] != target[last] for child in step.children(last))


def _ends(dump: StepDump) -> list[int]:
    return [] if dump.end_tokens is None else [int(token) for token in dump.end_tokens]


def _walk(step: Expected, tokens: IntArray, target: IntArray, *, shifted: bool = True) -> list[int]:
    """The path along which children hold their parent's target token, or, unshifted, their own."""
    path = [0]
    while True:
        kids = step.children(path[-1])
        right = [child for child in kids if tokens[child] == target[path[-1] if shifted else child]]
        if not right:
            return path
        path.append(right[0])


class StepTexts(NamedTuple):
    """What was emitted, what the accepted path and the token after it are, and that up to the first end token."""

    found: list[int]
    whole: list[int]
    ended: list[int]

    @property
    def stops_early(self) -> bool:
        """Whether only the first of the tokens were emitted, as under a limit of tokens."""
        return 0 < len(self.found) < len(self.ended) and self.found == self.ended[: len(self.found)]


def text_of(dump: StepDump) -> StepTexts | None:
    """The texts of a step, None if the dump does not hold enough."""
    if dump.emitted is None or dump.accepted is None or dump.tokens is None:
        return None
    found, path, ends = dump.emitted.tolist(), dump.tokens[dump.accepted[1:]].tolist(), _ends(dump)
    next_token = dump.next_token
    if next_token is None and dump.target_tokens is not None:
        next_token = int(dump.target_tokens[dump.accepted[-1]])
    if next_token is None and not set(path) & set(ends):  # any one token may follow
        next_token = found[len(path)] if len(found) > len(path) else None
    whole = path if next_token is None else [*path, next_token]
    cut = next((i for i, token in enumerate(whole) if token in ends), len(whole) - 1)
    return StepTexts(found, whole, whole[: cut + 1])


def emission(dump: StepDump, step: Expected) -> Iterator[Difference]:
    """Emitted tokens that do not follow from the accepted path."""
    text = text_of(dump)
    if text is None:
        return
    found, left = text.found, dump.tokens_left
    expected = text.ended[:left]
    if found == expected or (left is None and text.stops_early):  # then `remarks` says so
        return
    limit = "" if len(expected) == len(text.ended) else f" with {left} tokens left"
    detail = f"it emitted {found}, the accepted path gives {expected}{limit}"
    if dump.tokens is not None and found in ([int(dump.tokens[0]), *expected], [*expected, *expected[-1:]]):
        yield Difference("bonus counted twice", detail)
    elif len(found) > len(text.ended) and found == text.whole[: len(found)]:
        yield Difference("tokens past the end", detail)
    else:
        yield Difference("wrong output", detail)
