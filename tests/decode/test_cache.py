from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decode.models import trees
from hypothesis import given
from hypothesis import strategies as st

from treeopt.decode.cache import SlotCache
from treeopt.decode.step import text_step
from treeopt.tree import DraftTree

torch = pytest.importorskip("torch", reason="the cache needs torch")


def filled(requests: int, slots: int, layers: int = 2) -> SlotCache:
    cache = SlotCache()
    cache.reserve(requests=requests, slots=slots)
    shape = (requests, 3, cache.slots, 2)
    cache.layers = [(torch.randn(shape), torch.randn(shape)) for _ in range(layers)]
    return cache


def slot_values(cache: SlotCache, row: int) -> list[Any]:
    return [store[row].clone() for layer in cache.layers for store in layer]


@given(st.lists(trees(), min_size=1, max_size=3), st.data(), st.booleans())
def test_compaction_moves_the_path_and_nothing_else(chosen: list[DraftTree], data: st.DataObject, copy: bool) -> None:
    lengths = np.array([data.draw(st.integers(0, 5)) for _ in chosen])
    rows = np.array(data.draw(st.permutations(range(4))))[: len(chosen)]
    paths = [np.flatnonzero(t.ancestor_mask[data.draw(st.integers(0, len(t) - 1))]) for t in chosen]
    width = max(map(len, paths))
    path = np.array([np.pad(p, (0, width - len(p)), constant_values=-1) for p in paths])
    cache = filled(4, 40)
    before = [slot_values(cache, row) for row in range(4)]
    (cache.compact_by_copy if copy else cache.compact)(path, lengths=lengths, rows=rows)
    for row in range(4):
        for old, new in zip(before[row], slot_values(cache, row), strict=True):
            expected = old.clone()
            if row in rows:
                b = rows.tolist().index(row)
                for k, node in enumerate(paths[b].tolist()):
                    expected[:, lengths[b] + k] = old[:, lengths[b] + node]
            assert torch.equal(new, expected)


def test_rows_and_slots_grow_and_keep_what_they_hold() -> None:
    cache = filled(2, 10)
    before = slot_values(cache, 1)
    cache.reserve(requests=3, slots=100)
    assert (cache.requests, cache.slots) == (3, 128)
    assert all(torch.equal(a, b[:, :64]) for a, b in zip(before, slot_values(cache, 1), strict=True))
    kept = cache.layers
    cache.reserve(requests=1, slots=50)
    assert cache.layers is kept


def test_a_step_writes_to_its_own_rows_and_slots() -> None:
    cache = filled(3, 10)
    before = [slot_values(cache, row) for row in range(3)]
    step = text_step([[1, 2], [3]], lengths=np.array([4, 0]), rows=np.array([2, 0]))
    keys, values = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 2, 2)
    found = cache.bind(step).update(keys, values, 1)
    assert torch.equal(cache.layers[1][0][2, :, 4:6], keys[0])
    assert torch.equal(cache.layers[1][1][0, :, :2], values[1])
    assert all(torch.equal(a, b) for a, b in zip(before[1], slot_values(cache, 1), strict=True))
    assert torch.equal(found[0], cache.layers[1][0][[2, 0], :, :6])
