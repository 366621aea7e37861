"""What one request's verification step of any implementation looked like, as a file (`treeopt.dump/1`).

NPZ with one array per key, or JSON or YAML with the same keys. Only `format` and `prefix_len` must be there; whatever
else is there is checked. `docs/decoding.md` has the table of keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.files.npz import npz_bytes
from treeopt.files.writing import write_atomically

BY_NODE: Final = ("ranks", "tokens", "mask", "positions", "target_tokens", "probabilities", "node_probability")


@dataclass(frozen=True, kw_only=True, eq=False)
class StepDump:
    """One step of one request, N nodes in the implementation's own order, node 0 the root.

    Args:
        prefix_len: L, committed tokens before the root.
        parents: `[N]` parent of each node, -1 for the root; None: the plan's tree in the plan's order, or if the other
            arrays have another N, a tree that the dump does not tell.
        ranks: `[N]` rank of each node among its siblings; None: siblings are listed by rank.
        tokens: `[N]` token of each node.
        mask: `[N, L + N]` or `[N, N]` (the tree's part), what each node attends to.
        positions: `[N]` position ids.
        target_tokens: `[N]` the target's greedy token after each node.
        probabilities: `[N, V]` the target's distribution after each node.
        node_probability: `[N]` the target's probability that each node was judged by; the root's is ignored.
        accepted: `[A]` accepted nodes, the root first.
        next_token: the token after the last accepted one.
        emitted: the tokens that the step emitted.
        end_tokens: tokens that end a text.
        tokens_left: the most tokens that the step might emit.
        kv_before: `[L + N, W]` keys and values of each slot of a layer after the pass and before compaction.
        kv_after: `[L + A, W]` or longer, the same after compaction.
        kept_slots: `[L + A]` for paged caches that move nothing: the slots that hold the committed tokens afterwards.
    """

    FORMAT: ClassVar[str] = "treeopt.dump/1"

    prefix_len: int
    parents: IntArray | None = None
    ranks: IntArray | None = None
    tokens: IntArray | None = None
    mask: BoolArray | None = None
    positions: IntArray | None = None
    target_tokens: IntArray | None = None
    probabilities: FloatArray | None = None
    node_probability: FloatArray | None = None
    accepted: IntArray | None = None
    next_token: int | None = None
    emitted: IntArray | None = None
    end_tokens: IntArray | None = None
    tokens_left: int | None = None
    kv_before: FloatArray | None = None
    kv_after: FloatArray | None = None
    kept_slots: IntArray | None = None

    @property
    def contents(self) -> tuple[str, ...]:
        """The keys that are there, besides `prefix_len`."""
        return tuple(f.name for f in fields(self) if f.name != "prefix_len" and getattr(self, f.name) is not None)

    @property
    def nodes(self) -> int | None:
        """N, or None if nothing that the dump holds tells it."""
        arrays = (getattr(self, name) for name in ("parents", *BY_NODE))
        return next((len(array) for array in arrays if array is not None), None)

    def save(self, path: Path) -> None:
        """Write an NPZ file, or JSON if it is called so, atomically.

        Raises:
            InputError: it cannot be written.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in ("prefix_len", *self.contents)}
        if path.suffix == ".json":
            lists = {name: array.tolist() for name, array in arrays.items()}
            write_atomically(path, json.dumps({"format": self.FORMAT, **lists}).encode(), what="dump")
            return
        write_atomically(path, npz_bytes({"format": np.array(self.FORMAT), **arrays}), what="dump")
