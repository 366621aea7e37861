"""What is wrong with a dumped step, in a step's own order: tree, mask, positions, acceptance, output, cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.decode.dump import StepDump
from treeopt.tree import DraftTree

_PROBABILITY_ERROR: Final = 1e-2  # relative; half precision and a gathering mistake are far apart


_PARTNERS: Final[dict[str, tuple[str, ...]]] = {
    "target_tokens": ("tokens", "accepted"),
    "accepted": ("tokens", "target_tokens"),
    "probabilities": ("tokens", "node_probability"),
    "node_probability": ("tokens", "probabilities"),
    "next_token": ("tokens", "accepted", "target_tokens"),
    "emitted": ("tokens", "accepted"),
    "kv_before": ("accepted", "kv_after"),
    "kv_after": ("accepted", "kv_before"),
    "kept_slots": ("accepted",),
}


class Unchecked(NamedTuple):
    """A key of a dump that can be checked fully only beside others, and those of them that are not there."""

    key: str
    needs: tuple[str, ...]


class Difference(NamedTuple):
    """A kind of mistake, by the name that `docs/decoding.md` explains it under, and where it shows first."""

    name: str
    detail: str


def diagnose(dump: StepDump, tree: DraftTree) -> tuple[Difference, ...]:
    """Every kind of difference between a dumped step and what the tree demands, the earliest first.

    Nothing is run: masks, positions, paths and slots follow from the tree, the acceptance from the dump's own
    `target_tokens`, what nodes were judged by from its `probabilities`. What the dump does not hold is not checked.
    """
    found: dict[str, Difference] = {}
    step = _Expected(dump, tree)
    for check in (_tree, _mask, _positions, _gathering, _acceptance, _emission, _cache, _slots):
        for difference in check(dump, step):
            found.setdefault(difference.name, difference)
    return tuple(found.values())


def unchecked(dump: StepDump) -> tuple[Unchecked, ...]:
    """What a dump holds that can be checked further with keys that it does not hold."""
    lacking = []
    for key, partners in _PARTNERS.items():
        missing = tuple(name for name in partners if getattr(dump, name) is None)
        if getattr(dump, key) is not None and missing:
            lacking.append(Unchecked(key, missing))
    return tuple(lacking)


class _Expected:
    """The tree in the dump's own order of nodes."""

    def __init__(self, dump: StepDump, tree: DraftTree) -> None:
        self.tree = tree
        self.parents = tree.parents if dump.parents is None else dump.parents
        N = len(tree)
        self.ancestors: BoolArray = np.eye(N, dtype=np.bool_)
        self.depths: IntArray = np.zeros(N, dtype=np.int64)
        for node in range(N):
            parent = int(self.parents[node])
            while parent >= 0:
                self.ancestors[node, parent] = True
                self.depths[node] += 1
                parent = int(self.parents[parent])

    def children(self, node: int) -> list[int]:
        return [int(child) for child in np.flatnonzero(self.parents == node)]


def _tree(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    if dump.parents is None and dump.ranks is None:
        return
    ranks = None if dump.ranks is None else dump.ranks.tolist()
    found = DraftTree.from_parents(step.parents.tolist(), ranks)
    plan = step.tree if ranks is not None else DraftTree.from_parents(step.tree.parents.tolist())
    extra = sorted(set(found.paths) - set(plan.paths), key=lambda path: (len(path), path))
    if extra:
        yield Difference("another tree", f"it verifies the path {list(extra[0])}, which the plan's tree does not have")


def _mask(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    if dump.mask is None:
        return
    N, L = len(step.parents), dump.mask.shape[1] - len(step.parents)
    prefix, own = dump.mask[:, :L], dump.mask[:, L:]
    if not prefix.any() and (own != step.ancestors).all():
        yield Difference("inverted mask", "node 0 attends to everything but what it should: true must mean visible")
        return
    if not prefix.all():
        node, slot = np.argwhere(~prefix)[0].tolist()
        yield Difference("missing prefix", f"node {node} does not attend to committed token {slot} of {L}")
    causal = N > 1 and bool((own == np.tri(N, dtype=np.bool_)).all())
    note = "; the mask is causal over the flattened nodes" if causal and (own != step.ancestors).any() else ""
    for node, other in np.argwhere(own != step.ancestors).tolist():
        if own[node, other]:
            yield Difference(_visible(step, node, other), f"node {node} attends to node {other}{note}")
        else:
            name = "itself hidden" if node == other else "ancestor hidden"
            yield Difference(name, f"node {node} does not attend to node {other}")


def _visible(step: _Expected, node: int, other: int) -> str:
    if step.ancestors[other, node]:
        return "descendant visible"
    if step.parents[node] == step.parents[other]:
        return "sibling visible"
    return "other branch visible"


def _positions(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    if dump.positions is None:
        return
    expected, found = dump.prefix_len + step.depths, dump.positions
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return
    node = int(wrong[0])
    detail = f"node {node} at depth {step.depths[node]} has position {found[node]}, not {expected[node]}"
    shift = int(found[0] - expected[0])
    if (found == dump.prefix_len + np.arange(len(found))).all():
        yield Difference("sequential positions", f"{detail}: positions count nodes, not depth")
    elif shift and (found - expected == shift).all():
        yield Difference("shifted positions", f"{detail}: all positions are off by {shift}")
    else:
        yield Difference("wrong position", detail)


def _gathering(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    p, judged, tokens = dump.probabilities, dump.node_probability, dump.tokens
    if p is None or judged is None or tokens is None or len(tokens) < 2:
        return
    nodes = 1 + np.flatnonzero(tokens[1:] >= 0)  # the drafter had no guess for the others
    right, own, given = p[step.parents[nodes], tokens[nodes]], p[nodes, tokens[nodes]], judged[nodes]
    wrong = np.flatnonzero(~np.isclose(given, right, rtol=_PROBABILITY_ERROR, atol=1e-6))
    if not len(wrong):
        return
    first = wrong[0]
    detail = f"node {nodes[first]} was judged by {given[first]:.4g}, its parent's row says {right[first]:.4g}"
    if np.isclose(given[wrong], own[wrong], rtol=_PROBABILITY_ERROR, atol=1e-6).all():
        yield Difference("unshifted gathering", f"{detail}: {own[first]:.4g} is from the node's own row")
    else:
        yield Difference("wrong probability", detail)


def _acceptance(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    path = dump.accepted
    if path is None:
        return
    for before, node in zip(path[:-1].tolist(), path[1:].tolist(), strict=True):
        if step.parents[node] != before:
            yield Difference("not a path", f"node {node} was accepted after node {before}, which is not its parent")
            return
    if dump.tokens is None or dump.target_tokens is None:
        return
    right = _walk(step, dump.tokens, dump.target_tokens)
    ends = [] if dump.end_tokens is None else dump.end_tokens.tolist()
    cut = next((i for i, node in enumerate(right) if i and dump.tokens[node] in ends), None)
    if path.tolist() not in (right, right if cut is None else right[: cut + 1]):
        unshifted = _walk(step, dump.tokens, dump.target_tokens, shifted=False)
        detail = f"it accepted {path.tolist()}, the target's tokens lead along {right}"
        if path.tolist() == unshifted:
            yield Difference("unshifted gathering", f"{detail}: nodes were compared with their own row's token")
        else:
            yield Difference("another path accepted", detail)
        return
    last, token = int(path[-1]), dump.next_token
    expected = int(dump.target_tokens[last])
    if token is not None and token != expected and (cut is None or len(path) <= cut):
        detail = f"{token} follows the path, node {last}'s row says {expected}"
        parent = int(step.parents[last])
        unshifted_bonus = parent >= 0 and token == dump.target_tokens[parent]
        yield Difference("unshifted gathering" if unshifted_bonus else "wrong next token", detail)


def _walk(step: _Expected, tokens: IntArray, target: IntArray, *, shifted: bool = True) -> list[int]:
    """The path along which children hold their parent's target token, or, unshifted, their own."""
    path = [0]
    while True:
        kids = step.children(path[-1])
        right = [child for child in kids if tokens[child] == target[path[-1] if shifted else child]]
        if not right:
            return path
        path.append(right[0])


def _emission(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    if dump.emitted is None or dump.accepted is None or dump.tokens is None:
        return
    found, path = dump.emitted.tolist(), dump.tokens[dump.accepted[1:]].tolist()
    ends = [] if dump.end_tokens is None else dump.end_tokens.tolist()
    next_token = dump.next_token
    if next_token is None and dump.target_tokens is not None:
        next_token = int(dump.target_tokens[dump.accepted[-1]])
    if next_token is None and not set(path) & set(ends):  # any one token may follow
        next_token = found[len(path)] if len(found) > len(path) else None
    whole = path if next_token is None else [*path, next_token]
    cut = next((i for i, token in enumerate(whole) if token in ends), len(whole) - 1)
    expected = whole[: cut + 1]
    if found == expected:
        return
    detail = f"it emitted {found}, the accepted path gives {expected}"
    if found in ([int(dump.tokens[0]), *expected], [*expected, expected[-1]]):
        yield Difference("bonus counted twice", detail)
    elif found == whole:
        yield Difference("tokens past the end", detail)
    else:
        yield Difference("wrong output", detail)


def _cache(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    before, after, path, L = dump.kv_before, dump.kv_after, dump.accepted, dump.prefix_len
    if before is None or after is None or path is None:
        return
    if len(after) < L + len(path):
        yield Difference("short cache", f"{len(after)} slots after compaction, {L + len(path)} tokens are committed")
        return
    changed = np.flatnonzero(~_same(after[:L], before[:L]))
    if len(changed):
        yield Difference("prefix overwritten", f"slot {changed[0]} of the {L} committed ones changed")
    for k, node in enumerate(path.tolist()):
        if _same(after[L + k], before[L + node]):
            continue
        detail = f"slot {L + k} does not hold node {node} of the accepted path"
        if _same(after[L + k], before[L + k]):
            yield Difference("stale KV", f"{detail}: node {k} is still there")
        else:
            yield Difference("wrong KV", f"{detail}{_holder(before, after[L + k], L)}")
        return


def _same(a: FloatArray, b: FloatArray) -> BoolArray:
    """`[..., W]` slots to whether they are equal bit for bit, or both not a number."""
    return np.asarray(((a == b) | (np.isnan(a) & np.isnan(b))).all(axis=-1))


def _holder(before: FloatArray, row: FloatArray, L: int) -> str:
    same = np.flatnonzero(_same(before, row))
    return f": it holds node {same[0] - L}" if len(same) and same[0] >= L else ""


def _slots(dump: StepDump, step: _Expected) -> Iterator[Difference]:
    kept, path, L = dump.kept_slots, dump.accepted, dump.prefix_len
    if kept is None or path is None:
        return
    if len(kept) != L + len(path):
        yield Difference(
            "short cache" if len(kept) < L + len(path) else "wrong KV",
            f"it keeps {len(kept)} slots, {L + len(path)} tokens are committed",
        )
        return
    wanted, slots = (L + path).tolist(), np.arange(len(kept))
    if (kept[:L] != slots[:L]).any():
        yield Difference(
            "prefix overwritten",
            f"slot {np.flatnonzero(kept[:L] != slots[:L])[0]} of the {L} committed ones is not kept in its place",
        )
    if kept[L:].tolist() == wanted:
        return
    if (kept[L:] == slots[L:]).all():
        yield Difference("stale KV", f"it keeps slots {L} to {L + len(path) - 1}, the path lies in {wanted}")
    else:
        yield Difference("wrong KV", f"it keeps slots {kept[L:].tolist()} behind the prefix, the path lies in {wanted}")
