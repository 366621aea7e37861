"""Dumps of other engines' steps, read and checked: every error names the key."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.draft_family import DynamicTree
from treeopt.errors import FileFormatError, TreeError
from treeopt.files.documents import os_error, read_document
from treeopt.files.npz import read_npz
from treeopt.files.opening import OpenedFile, called
from treeopt.files.typed import check_format
from treeopt.tree import MAX_PREFIX, DraftTree
from treeopt.verify.dump import BY_NODE, StepDump

_HIDDEN: Final = -1e3  # an additive mask hides with a large negative number
_ZIP_MAGIC: Final = b"PK"
_TABLES: Final = ("mask", "probabilities")
_MAX_NODES: Final = 4096  # far beyond any engine's; masks grow with the square
_WHOLE_FLOATS: Final = 2.0**53  # above it floats skip whole numbers
_HINT: Final = (
    f"a dump is an NPZ or JSON file with format '{StepDump.FORMAT}', prefix_len, and any of the keys in "
    "docs/decoding.md"
)


def load_dump(path: Path, tree: DraftTree, dynamic: DynamicTree | None = None) -> StepDump:
    """Read a dump of a step that should have verified `tree`, or if it is `dynamic`, a tree that the dump holds.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no dump, or an array has the wrong shape or kind; the message names the key.
    """
    values = _read(path)
    known = {f.name for f in fields(StepDump)}
    for key in values:
        if key not in known:
            raise FileFormatError(
                f"{called(path)}: unknown key '{key}'", hint=f"known keys: {', '.join(sorted(known))}"
            )
    if values.get("prefix_len") is None:
        raise FileFormatError(f"{called(path)}: 'prefix_len' is missing", hint=_HINT)
    if dynamic is not None and values.get("parents") is None:
        raise FileFormatError(
            f"{called(path)}: 'parents' is missing, and the engine builds another tree in every step",
            hint="give the tree of this step: parents, and ranks where siblings are not listed by rank",
        )
    return _Reading(path, values, tree).dump()


class _Reading:
    def __init__(self, path: Path, values: dict[str, Any], tree: DraftTree) -> None:
        self._path = path
        self._values = values
        self._tree = tree
        self._N = len(tree)  # the plan's, until the dump tells its own

    def dump(self) -> StepDump:
        L = self._count("prefix_len", low=0)
        if L is None or L > MAX_PREFIX:
            raise self._error("prefix_len", f"is {L}", f"committed tokens before the root, at most {MAX_PREFIX}")
        parents = self._parents()
        self._N = N = self._common_length() if parents is None else len(parents)
        ranks = self._whole("ranks", (N,))
        self._check_tree(parents, ranks)
        p = self._real("probabilities", (N, None))
        if p is not None and not p.shape[1]:
            raise self._error("probabilities", f"has shape {list(p.shape)}", "a column per token")
        next_token = self._whole("next_token", ())
        before = self._real("kv_before", (L + N, None))
        return StepDump(
            prefix_len=L,
            parents=parents,
            ranks=ranks,
            tokens=self._tokens("tokens", p),
            mask=self._mask(L),
            positions=self._whole("positions", (N,)),
            target_tokens=self._tokens("target_tokens", p),
            probabilities=p,
            node_probability=self._real("node_probability", (N,)),
            accepted=self._accepted(),
            next_token=None if next_token is None else int(next_token),
            emitted=self._whole("emitted", (None,)),
            end_tokens=self._whole("end_tokens", (None,)),
            tokens_left=self._count("tokens_left", low=1),
            kv_before=before,
            kv_after=self._real("kv_after", (None, None if before is None else before.shape[1])),
            kept_slots=self._whole("kept_slots", (None,)),
        )

    def _count(self, key: str, *, low: int) -> int | None:
        number = self._whole(key, ())
        if number is not None and number < low:
            raise self._error(key, f"is {number}", f"a number of tokens, {low} or more")
        return None if number is None else int(number)

    def _parents(self) -> IntArray | None:
        parents = self._whole("parents", (None,))
        if parents is not None and (not len(parents) or parents[0] != -1):
            found = f"node 0 has parent {parents[0]}" if len(parents) else "has no nodes"
            raise self._error("parents", found, "node 0 is the root, with parent -1")
        if parents is not None and len(parents) > max(_MAX_NODES, len(self._tree)):
            raise self._error("parents", f"has {len(parents)} nodes", f"one request's tree, {_MAX_NODES} nodes at most")
        return parents

    def _common_length(self) -> int:
        """N without parents: the plan's, unless several arrays agree on another one."""
        lengths = []
        for key in BY_NODE:
            if self._values.get(key) is not None:
                array = _without_leading(self._array(key), 2 if key in _TABLES else 1)
                lengths.append(len(array) if array.ndim else 0)
        agreed = len(lengths) > 1 and len(set(lengths)) == 1 and lengths[0] > 0
        return lengths[0] if agreed else len(self._tree)

    def _check_tree(self, parents: IntArray | None, ranks: IntArray | None) -> None:
        if parents is None and len(self._tree) != self._N:
            return  # which tree it is, the dump does not tell
        array = (self._tree.parents if parents is None else parents).tolist()
        for key, given in (("parents", None), ("ranks", ranks)):
            try:
                DraftTree.from_parents(array, None if given is None else given.tolist())
            except TreeError as error:
                raise FileFormatError(f"{called(self._path)}: '{key}': {error}", hint=error.hint) from error

    def _tokens(self, key: str, p: FloatArray | None) -> IntArray | None:
        tokens = self._whole(key, (self._N,))
        if tokens is not None and p is not None and tokens.max() >= p.shape[1]:
            raise self._error(key, f"holds {tokens.max()}", f"tokens below {p.shape[1]}, the width of 'probabilities'")
        return tokens

    def _accepted(self) -> IntArray | None:
        given = self._whole("accepted", (None,))
        if given is None:
            return None
        nodes = given[: len(given) - int(np.argmax(given[::-1] != -1))] if (given != -1).any() else given[:0]
        if not len(nodes) or nodes[0] != 0:
            raise self._error("accepted", f"is {given.tolist()}", "the accepted nodes, the root 0 first")
        outside = nodes[(nodes < 0) | (nodes >= self._N)]
        if len(outside):
            raise self._error("accepted", f"holds {outside[0]}", f"nodes go from 0 to {self._N - 1}")
        return nodes

    def _mask(self, L: int) -> BoolArray | None:
        if self._values.get("mask") is None:
            return None
        mask, N = _without_leading(self._array("mask"), 2), self._N
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
        if array.dtype.kind not in "iuf":
            raise self._error(key, f"holds {array.dtype} values", "whole numbers")
        if array.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is what is asked
                fits = (array == np.floor(array)) & (np.abs(array) < _WHOLE_FLOATS)
        else:
            fits = array <= np.iinfo(np.int64).max
        if not fits.all():
            raise self._error(key, f"holds {array[~fits].flat[0]}", "whole numbers below 2^63, as floats below 2^53")
        return array.astype(np.int64)

    def _real(self, key: str, shape: tuple[int | None, ...]) -> FloatArray | None:
        if self._values.get(key) is None:
            return None
        array = self._shaped(key, shape)
        if array.dtype.kind not in "iuf":
            raise self._error(key, f"holds {array.dtype} values", "numbers")
        return array.astype(np.float64)

    def _shaped(self, key: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        array = _without_leading(self._array(key), len(shape))
        if not array.size and len(shape) == 2 and array.ndim == 1:
            array = array.reshape(0, shape[1] or 0)  # no rows, as JSON writes them
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
            found = "holds something that is no number" if array.ndim else f"is {array.item()!r:.60}"
            raise self._error(key, found, "numbers of at most 18 digits")
        return array

    def _error(self, key: str, found: str, expected: str) -> FileFormatError:
        return FileFormatError(f"{called(self._path)}: '{key}' {found}", hint=f"expected {expected}")


def _without_leading(array: npt.NDArray[Any], ndim: int) -> npt.NDArray[Any]:
    """Without those dimensions of 1 in front that are too many: a batch of one request."""
    while array.ndim > ndim and array.shape[0] == 1:
        array = array[0]
    return array


def _read(path: Path) -> dict[str, Any]:
    try:
        start = OpenedFile(path).stream().read(len(_ZIP_MAGIC))
    except OSError as error:
        raise os_error(error, path, what="dump", verb="read") from error
    if start != _ZIP_MAGIC:
        document = read_document(path, what="dump")
        check_format(document.root, StepDump.FORMAT, what="dump")
        return {key: value for key, value in document.root.mapping().items() if key != "format"}
    values: dict[str, Any] = read_npz(path, what="dump", hint=_HINT)
    if str(np.squeeze(values.pop("format", np.array("")))) != StepDump.FORMAT:
        raise FileFormatError(f"{called(path)}: this is not a dump", hint=_HINT)
    return values
