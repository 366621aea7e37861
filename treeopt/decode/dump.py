"""What one request's verification step of any implementation looked like, as a file (`treeopt.dump/1`).

NPZ with one array per key, or JSON or YAML with the same keys. Only `format` and `prefix_len` must be there; whatever
else is there is checked. `docs/decoding.md` has the table of keys.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.documents import os_error, read_document, write_atomically
from treeopt.errors import FileFormatError, TreeError
from treeopt.plan_file import check_format
from treeopt.tree import MAX_PREFIX, DraftTree

FORMAT: Final = "treeopt.dump/1"
_HINT: Final = (
    f"a dump is an NPZ or JSON file with format '{FORMAT}', prefix_len, and any of the keys in docs/decoding.md"
)
_HIDDEN: Final = -1e3  # an additive mask hides with a large negative number
_ZIP_MAGIC: Final = b"PK"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepDump:
    """One step of one request, N nodes in the implementation's own order, node 0 the root.

    Args:
        prefix_len: L, committed tokens before the root.
        parents: `[N]` parent of each node, -1 for the root; None: the plan's tree in the plan's order.
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
        kv_before: `[L + N, W]` keys and values of each slot of a layer after the pass and before compaction.
        kv_after: `[L + A, W]` or longer, the same after compaction.
        kept_slots: `[L + A]` for paged caches that move nothing: the slots that hold the committed tokens afterwards.
    """

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
    kv_before: FloatArray | None = None
    kv_after: FloatArray | None = None
    kept_slots: IntArray | None = None

    @property
    def contents(self) -> tuple[str, ...]:
        """The keys that are there, besides `prefix_len`."""
        return tuple(f.name for f in fields(self) if f.name != "prefix_len" and getattr(self, f.name) is not None)

    def save(self, path: Path) -> None:
        """Write an NPZ file, or JSON if it is called so, atomically.

        Raises:
            InputError: it cannot be written.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in ("prefix_len", *self.contents)}
        if path.suffix == ".json":
            lists = {name: array.tolist() for name, array in arrays.items()}
            write_atomically(path, json.dumps({"format": FORMAT, **lists}).encode(), what="dump")
            return
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, format=np.array(FORMAT), **arrays)
        write_atomically(path, file.getvalue(), what="dump")


def load_dump(path: Path, tree: DraftTree) -> StepDump:
    """Read a dump of a step that verified `tree`.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no dump, or an array has the wrong shape or kind; the message names the key.
    """
    values = _read(path)
    known = {f.name for f in fields(StepDump)}
    for key in values:
        if key not in known:
            raise FileFormatError(f"{path}: unknown key '{key}'", hint=f"known keys: {', '.join(sorted(known))}")
    if values.get("prefix_len") is None:
        raise FileFormatError(f"{path}: 'prefix_len' is missing", hint=_HINT)
    return _Reading(path, values, tree).dump()


class _Reading:
    def __init__(self, path: Path, values: dict[str, Any], tree: DraftTree) -> None:
        self._path = path
        self._values = values
        self._tree = tree
        self._N = len(tree)

    def dump(self) -> StepDump:
        L, N = self._length(), self._N
        parents, ranks = self._parents(), self._whole("ranks", (N,))
        _check_tree(self._path, self._tree.parents if parents is None else parents, ranks)
        tokens, p = self._whole("tokens", (N,)), self._real("probabilities", (N, None))
        if tokens is not None and p is not None and tokens.max() >= p.shape[1]:
            raise self._error(
                "tokens", f"holds {tokens.max()}", f"tokens below {p.shape[1]}, the width of 'probabilities'"
            )
        next_token = self._whole("next_token", ())
        before = self._real("kv_before", (L + N, None))
        return StepDump(
            prefix_len=L,
            parents=parents,
            ranks=ranks,
            tokens=tokens,
            mask=self._mask(L),
            positions=self._whole("positions", (N,)),
            target_tokens=self._whole("target_tokens", (N,)),
            probabilities=p,
            node_probability=self._real("node_probability", (N,)),
            accepted=self._nodes("accepted", N),
            next_token=None if next_token is None else int(next_token),
            emitted=self._whole("emitted", (None,)),
            end_tokens=self._whole("end_tokens", (None,)),
            kv_before=before,
            kv_after=self._real("kv_after", (None, None if before is None else before.shape[1])),
            kept_slots=self._whole("kept_slots", (None,)),
        )

    def _length(self) -> int:
        length = self._whole("prefix_len", ())
        if length is None or not 0 <= length <= MAX_PREFIX:
            raise self._error("prefix_len", f"is {length}", "committed tokens before the root, 0 or more")
        return int(length)

    def _parents(self) -> IntArray | None:
        parents = self._whole("parents", (None,))
        if parents is None:
            return None
        if len(parents) != self._N:
            raise self._error("parents", f"has {len(parents)} nodes", f"the plan's tree has {self._N}, root included")
        if parents[0] != -1:
            raise self._error("parents", f"node 0 has parent {parents[0]}", "node 0 is the root, with parent -1")
        return parents

    def _nodes(self, key: str, N: int) -> IntArray | None:
        nodes = self._whole(key, (None,))
        if nodes is None:
            return None
        if not len(nodes) or nodes[0] != 0:
            raise self._error(key, f"is {nodes.tolist()}", "the accepted nodes, the root 0 first")
        if nodes.min() < 0 or nodes.max() >= N:
            raise self._error(key, f"holds {nodes.max()}", f"nodes go from 0 to {N - 1}")
        return nodes

    def _mask(self, L: int) -> BoolArray | None:
        if self._values.get("mask") is None:
            return None
        mask, N = self._array("mask"), self._N
        mask = mask.reshape(mask.shape[-2:]) if mask.ndim > 2 and mask.size == math.prod(mask.shape[-2:]) else mask
        if mask.shape not in ((N, L + N), (N, N)):
            raise self._error("mask", f"has shape {list(mask.shape)}", f"[{N}, {L + N}] or [{N}, {N}]")
        if mask.dtype == np.bool_ or np.isin(mask, (0, 1)).all():
            if np.issubdtype(mask.dtype, np.floating) and not mask.any():
                return np.ones(mask.shape, dtype=np.bool_)  # additive, and nothing hidden
            return mask.astype(np.bool_)
        if not ((mask == 0) | (mask < _HIDDEN)).all():
            raise self._error("mask", "holds other numbers", "booleans, or an additive mask of 0 and -inf")
        return np.asarray(mask == 0)

    def _whole(self, key: str, shape: tuple[int | None, ...]) -> IntArray | None:
        if self._values.get(key) is None:
            return None
        array = self._shaped(key, shape)
        if not np.issubdtype(array.dtype, np.integer):
            raise self._error(key, f"holds {array.dtype} values", "whole numbers")
        return array.astype(np.int64)

    def _real(self, key: str, shape: tuple[int | None, ...]) -> FloatArray | None:
        if self._values.get(key) is None:
            return None
        array = self._shaped(key, shape)
        if array.dtype.kind not in "iuf":
            raise self._error(key, f"holds {array.dtype} values", "numbers")
        return array.astype(np.float64)

    def _shaped(self, key: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        array = self._array(key)
        fits = len(array.shape) == len(shape) and all(s in (None, n) for s, n in zip(shape, array.shape, strict=True))
        if not fits:
            wanted = ", ".join("any" if s is None else str(s) for s in shape)
            raise self._error(key, f"has shape {list(array.shape)}", f"[{wanted}]")
        return np.zeros(array.shape, dtype=np.int64) if not array.size else array

    def _array(self, key: str) -> npt.NDArray[Any]:
        try:
            array = np.asarray(self._values[key])
        except ValueError:
            raise self._error(key, "has rows of unequal length", "a rectangular array") from None
        if array.dtype == np.object_ or array.dtype.kind in "US":
            raise self._error(key, "holds something that is no number", "numbers")
        return array

    def _error(self, key: str, found: str, expected: str) -> FileFormatError:
        return FileFormatError(f"{self._path}: '{key}' {found}", hint=f"expected {expected}")


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise os_error(error, path, what="dump", verb="read") from error
    if not raw.startswith(_ZIP_MAGIC):
        document = read_document(path, what="dump")
        check_format(document.root, FORMAT, what="dump")
        return {key: value for key, value in document.root.mapping().items() if key != "format"}
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            values = {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{path}: cannot be read: {error}", hint=_HINT) from error
    if str(values.pop("format", "")) != FORMAT:
        raise FileFormatError(f"{path}: this is not a dump", hint=_HINT)
    return values


def _check_tree(path: Path, parents: IntArray, ranks: IntArray | None) -> None:
    try:
        DraftTree.from_parents(parents.tolist(), None if ranks is None else ranks.tolist())
    except TreeError as error:
        key = "parents" if ranks is None else "ranks"
        raise FileFormatError(f"{path}: '{key}': {error}", hint=error.hint) from error
