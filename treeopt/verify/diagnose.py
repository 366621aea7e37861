"""What is wrong with a dumped step, in a step's own order: tree, mask, positions, acceptance, output, cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from treeopt.arrays import BoolArray, FloatArray
from treeopt.decode.step import prune
from treeopt.draft_family import DynamicTree
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump
from treeopt.verify.outcome import Difference as Difference
from treeopt.verify.outcome import Expected, acceptance, emission, gathering, numbers, targets, text_of

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
_SOMETHING: Final[tuple[tuple[str, ...], ...]] = (  # any of these can be checked without the rest
    *(("parents",), ("ranks",), ("mask",), ("positions",), ("accepted",)),
    *(("probabilities", "target_tokens"), ("probabilities", "node_probability", "tokens")),
)


class Unchecked(NamedTuple):
    """A key of a dump that can be checked fully only beside others, and those of them that are not there."""

    key: str
    needs: tuple[str, ...]


def diagnose(dump: StepDump, tree: DraftTree, dynamic: DynamicTree | None = None) -> tuple[Difference, ...]:
    """Every kind of difference between a dumped step and what the tree demands, the earliest first.

    Nothing is run: masks, positions, paths and slots follow from the tree, the acceptance from the dump's own
    `target_tokens`, what nodes were judged by from its `probabilities`. What the dump does not hold is not checked.
    With `dynamic` the engine builds the tree anew in every step: the dump's own is checked for the triple's limits, and
    everything else against it.
    """
    if dump.parents is None and dump.nodes not in (None, len(tree)):
        counts = f"it verifies {dump.nodes} nodes, the plan's tree has {len(tree)}"
        return (Difference("another tree", f"{counts}; without 'parents' nothing else can be checked"),)
    found: dict[str, Difference] = {}
    step = Expected(dump, tree, dynamic)
    for check in _CHECKS:
        for difference in check(dump, step):
            found.setdefault(difference.name, difference)
    return tuple(found.values())


def checkable(dump: StepDump) -> bool:
    """Whether a dump holds anything that can be compared with a tree or with the rest of it."""
    return any(all(getattr(dump, key) is not None for key in keys) for keys in _SOMETHING)


def remarks(dump: StepDump, dynamic: DynamicTree | None = None) -> tuple[str, ...]:
    """What a reader must know of a diagnosis that is no difference."""
    found = []
    if dynamic is not None:
        steps, topk, nodes = dynamic
        found.append(
            "the engine builds another tree in every step: the step was compared with the dump's own tree, and that "
            f"with the limits of {steps} steps, topk {topk} and {nodes} nodes"
        )
    text = text_of(dump)
    if text is not None and dump.tokens_left is None and text.stops_early:
        found.append(
            f"only the first {len(text.found)} of the step's {len(text.ended)} tokens were emitted: a limit of tokens "
            "explains that, or they were lost; 'tokens_left' in the dump would tell"
        )
    return tuple(found)


def unchecked(dump: StepDump) -> tuple[Unchecked, ...]:
    """What a dump holds that can be checked further with keys that it does not hold."""
    lacking = []
    for key, partners in _PARTNERS.items():
        missing = tuple(name for name in partners if getattr(dump, name) is None)
        if getattr(dump, key) is not None and missing:
            lacking.append(Unchecked(key, missing))
    return tuple(lacking)


def _tree(dump: StepDump, step: Expected) -> Iterator[Difference]:
    if dump.parents is None and dump.ranks is None:
        return
    ranks = None if dump.ranks is None else dump.ranks.tolist()
    found = DraftTree.from_parents(step.parents.tolist(), ranks)
    if step.dynamic is not None:
        wrong = _beyond(found, step, dump)
    else:
        wrong = _other_paths(found, step.tree if ranks else DraftTree.from_parents(step.tree.parents.tolist()), dump)
    if wrong:
        yield Difference("another tree", f"it verifies {wrong}")


def _other_paths(found: DraftTree, plan: DraftTree, dump: StepDump) -> str:
    """How the step's tree differs from the plan's, which may be cut to what can still be emitted."""
    extra = sorted(set(found.paths) - set(plan.paths), key=lambda path: (len(path), path))
    if extra:
        return f"the path {list(extra[0])}, which the plan's tree does not have"
    kept = plan if dump.tokens_left is None else prune(plan, dump.tokens_left)
    missing = [path for path in kept.paths if path not in set(found.paths)]
    return f"{len(found)} nodes without the path {list(missing[0])} of the plan's tree" if missing else ""


def _beyond(found: DraftTree, step: Expected, dump: StepDump) -> str:
    """Which limit of a dynamic tree is broken: N, S levels, k children per node, and k parents per level."""
    assert step.dynamic is not None
    steps, topk, nodes = step.dynamic
    if len(found) > nodes or (len(found) < nodes and dump.tokens_left is None):
        return f"{len(found)} nodes, not {nodes}"
    if found.depth > steps:
        return f"a path of {found.depth} tokens, drafted in {steps} steps"
    widest = int(np.argmax([len(kids) for kids in found.children]))
    if len(found.children[widest]) > topk or found.ranks.max() >= topk:
        rank = f", and a guess of rank {found.ranks.max()}" if found.ranks.max() >= topk else ""
        return f"{len(found.children[widest])} children below one node{rank}, where topk is {topk}"
    parents = np.bincount(found.depths[[node for node, kids in enumerate(found.children) if kids]])
    if parents.max(initial=0) > topk:
        return f"{parents.max()} nodes with children at depth {parents.argmax()}, where topk is {topk}"
    return ""


def _mask(dump: StepDump, step: Expected) -> Iterator[Difference]:
    if dump.mask is None:
        return
    N, L = len(step.parents), dump.mask.shape[1] - len(step.parents)
    prefix, own = dump.mask[:, :L], dump.mask[:, L:]
    if _inverted(prefix, own, step.ancestors):
        kept = int(prefix.sum() + (own == step.ancestors).sum())
        rest = f"; {kept} of {dump.mask.size} entries are not inverted" if kept else ""
        yield Difference("inverted mask", f"nodes attend to what they should not: true must mean visible{rest}")
        return
    if not prefix.all():
        node, slot = np.argwhere(~prefix)[0].tolist()
        yield Difference("missing prefix", f"node {node} does not attend to committed token {slot} of {L}")
    causal = N > 1 and bool((own == np.tri(N, dtype=np.bool_)).all())
    note = "; the mask is causal over the flattened nodes" if causal else ""
    wrong = np.argwhere(own != step.ancestors).tolist()
    if causal:  # nodes before their parents: what they see says more than what they miss
        wrong.sort(key=lambda pair: not own[pair[0], pair[1]])
    for node, other in wrong:
        if own[node, other]:
            yield Difference(_visible(step, node, other), f"node {node} attends to node {other}{note}")
        else:
            name = "itself hidden" if node == other else "ancestor hidden"
            yield Difference(name, f"node {node} does not attend to node {other}{note}")


def _inverted(prefix: BoolArray, own: BoolArray, ancestors: BoolArray) -> bool:
    """Whether most of what should be hidden shows, and most of what should show is hidden.

    A transposed mask of a chain does that too outside its diagonal, so the prefix or the diagonal must be hidden.
    """
    itself = np.eye(len(own), dtype=np.bool_)
    hidden = [_most(~prefix), _most(~own[itself])]
    if len(own) == 1:
        return all(hidden if prefix.size else hidden[1:])
    return any(hidden) and _most(own[~ancestors]) and _most(~own[ancestors & ~itself])


def _most(values: BoolArray) -> bool:
    return 4 * int(np.count_nonzero(values)) >= 3 * values.size > 0


def _visible(step: Expected, node: int, other: int) -> str:
    if step.ancestors[other, node]:
        return "descendant visible"
    if step.parents[node] == step.parents[other]:
        return "sibling visible"
    return "other branch visible"


def _positions(dump: StepDump, step: Expected) -> Iterator[Difference]:
    if dump.positions is None:
        return
    expected, found = dump.prefix_len + step.depths, dump.positions
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return
    node = int(wrong[0])
    detail = f"node {node} at depth {step.depths[node]} has position {found[node]}, not {expected[node]}"
    shift = int(found[0] - expected[0])
    if (found - expected == shift).all():
        yield Difference("shifted positions", f"{detail}: all positions are off by {shift}")
    elif (found == found[0] + np.arange(len(found))).all():
        start = f", from {found[0]} instead of {expected[0]}" if shift else ""
        yield Difference("sequential positions", f"{detail}: positions count nodes, not depth{start}")
    else:
        yield Difference("wrong position", detail)


def _cache(dump: StepDump, step: Expected) -> Iterator[Difference]:
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


def _slots(dump: StepDump, step: Expected) -> Iterator[Difference]:
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


_CHECKS: Final[tuple[Callable[[StepDump, Expected], Iterator[Difference]], ...]] = (
    *(_tree, _mask, _positions, numbers, targets, gathering, acceptance, emission, _cache, _slots),
)
