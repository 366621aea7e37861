"""Keys and values of several requests, each with its own length, and their compaction after a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.step import ForwardBatch
from treeopt.extras import require

_KEYS, _VALUES = 0, 1
_ROUND_UP: Final = 64  # slots are added in runs of this many


@dataclass(kw_only=True, eq=False)
class SlotCache:
    """One pair of tensors `[requests, heads, slots, head_dim]` per layer, made when the layer is first written.

    Slots are never cleared: what lies behind a request's length is hidden by the mask of the next step.
    """

    requests: int = 0
    slots: int = 0
    layers: list[tuple[Any, Any]] = field(default_factory=list)

    def reserve(self, *, requests: int, slots: int) -> None:
        """Make room, keeping what is there."""
        if requests <= self.requests and slots <= self.slots:
            return
        self.requests = max(self.requests, requests)
        if slots > self.slots:
            self.slots = -(-slots // _ROUND_UP) * _ROUND_UP
        self.layers = [(self._grown(keys), self._grown(values)) for keys, values in self.layers]

    def bind(self, step: ForwardBatch) -> StepCache:
        """This cache for one forward pass."""
        self.reserve(requests=int(step.rows.max()) + 1, slots=step.slots)
        return StepCache(self, step)

    def write(self, layer: int, keys: Any, values: Any, step: ForwardBatch) -> tuple[Any, Any]:
        """Store a step's `[A, heads, M, head_dim]` keys and values; returns both with all S slots of its requests."""
        if layer == len(self.layers):
            self.layers.append((self._empty(keys), self._empty(values)))
        slots = step.starts[:, None] + np.arange(keys.shape[2])
        everyone = len(step.rows) == self.requests and (step.rows == np.arange(self.requests)).all()
        found = []
        for store, new in zip(self.layers[layer], (keys, values), strict=True):
            rows = _index(step.rows, store)
            store[rows[:, None], :, _index(slots, store)] = new.swapaxes(1, 2)
            found.append((store if everyone else store[rows])[:, :, : step.slots])
        return found[_KEYS], found[_VALUES]

    def compact(self, path: IntArray, *, lengths: IntArray, rows: IntArray) -> None:
        """Move the accepted nodes' slots together, in place: `path [A, D + 1]` as in a verdict, behind `lengths [A]`.

        Node `path[k]` lies at L + path[k] >= L + k. In rising order of k nothing is overwritten before it is read;
        in any other order, or at once, slot L + k may be the source of another move.
        """
        for k in range(path.shape[1]):
            moving = path[:, k] >= 0
            if (path[moving, k] == k).all():
                continue
            for store in self._stores():
                chosen = _index(rows[moving], store)
                source, target = _index((lengths + path[:, k])[moving], store), _index((lengths + k)[moving], store)
                store[chosen, :, target] = store[chosen, :, source]

    def compact_by_copy(self, path: IntArray, *, lengths: IntArray, rows: IntArray) -> None:
        """The same through a scratch copy: all accepted slots are read before any is written, in any order."""
        request, k = np.nonzero(path >= 0)
        for store in self._stores():
            chosen = _index(rows[request], store)
            scratch = store[chosen, :, _index(lengths[request] + path[request, k], store)]  # a copy
            store[chosen, :, _index(lengths[request] + k, store)] = scratch

    def compact_by_kernel(self, path: IntArray, *, lengths: IntArray, rows: IntArray) -> None:
        """The same by `treeopt.kernels`, all layers and requests in one launch; off a GPU in Triton's interpreter.

        Raises:
            InputError: no GPU and no interpreter, or Triton is not installed.
        """
        torch = require("torch", extra="gpu")
        from treeopt.kernels.compaction import TokenStore, compact_kv

        stores = [store.transpose(1, 2) for store in self._stores()]
        device = stores[0].device
        accepted = np.full((self.requests, path.shape[1]), -1, dtype=np.int32)
        behind = np.zeros(self.requests, dtype=np.int32)
        accepted[rows], behind[rows] = path, lengths
        compact_kv(
            TokenStore.of(stores),
            torch.as_tensor(behind, device=device),
            torch.as_tensor(accepted, device=device),
            impl="triton",
        )

    def committed(self, row: int, length: int) -> list[tuple[Any, Any]]:
        """Per layer, the `[heads, length, head_dim]` keys and values of a request."""
        return [(keys[row, :, :length], values[row, :, :length]) for keys, values in self.layers]

    def _stores(self) -> list[Any]:
        return [store for layer in self.layers for store in layer]

    def _empty(self, like: Any) -> Any:
        _, heads, _, width = like.shape
        shape = (self.requests, heads, self.slots, width)
        return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)

    def _grown(self, store: Any) -> Any:
        grown = self._empty(store)
        grown[: store.shape[0], :, : store.shape[2]] = store
        return grown


class StepCache:
    """A cache bound to a step, with the methods that Hugging Face models call on theirs."""

    is_compileable = False

    def __init__(self, cache: SlotCache, step: ForwardBatch) -> None:
        self.cache = cache
        self.step = step

    def update(self, keys: Any, values: Any, layer: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Store the step's keys and values of a layer, and return all that the step may attend to."""
        return self.cache.write(layer, keys, values, self.step)

    def get_seq_length(self, layer: int = 0) -> int:
        """The longest length; models ask, but positions are given to them."""
        return int(self.step.starts.max())


def _index(values: IntArray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return values
    return require("torch", extra="gpu").as_tensor(values, device=like.device)
