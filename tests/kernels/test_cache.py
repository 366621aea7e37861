from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels.cache import ContiguousCache, PagedCache  # noqa: E402

LENGTHS = torch.tensor([5, 2], dtype=torch.int32)


def paged() -> PagedCache:
    k = torch.arange(6 * 4).float().view(6, 4, 1, 1)
    table = torch.tensor([[4, 1, 0], [2, 3, 5]], dtype=torch.int32)
    return PagedCache(k=k, v=-k, table=table, lengths=LENGTHS)


def test_rows_come_in_the_order_of_the_table() -> None:
    cache = paged()
    assert (cache.page_size, cache.capacity) == (4, 12)
    assert cache.rows(cache.k, 0, 5).flatten().tolist() == [16, 17, 18, 19, 4]
    assert cache.rows(cache.v, 1, 2).flatten().tolist() == [-8, -9]
    assert cache.rows(cache.k, 0, 0).shape == (0, 1, 1)


def test_a_stretch_per_request_has_no_pages() -> None:
    k = torch.arange(20.0).view(2, 10, 1, 1)
    cache = ContiguousCache(k=k, v=k, lengths=LENGTHS)
    assert (cache.page_size, cache.capacity) == (0, 10)
    assert cache.rows(cache.k, 1, 3).flatten().tolist() == [10, 11, 12]
    cache.check([10, 0])
    with pytest.raises(InputError, match=r"argument cache\.lengths: request 1 needs 11"):
        cache.check([10, 11])


def test_pages_that_do_not_exist_are_found() -> None:
    cache = paged()
    cache.check([12, 12])
    with pytest.raises(InputError, match=r"argument cache\.lengths: request 0 needs 13"):
        cache.check([13, 0])
    for page in (-1, 6):
        table = cache.table.clone()
        table[1, 2] = page
        replace(cache, table=table).check([12, 8])  # that page is not read
        with pytest.raises(InputError, match=r"argument cache\.table: request 1 has pages"):
            replace(cache, table=table).check([12, 9])


def test_wrong_tensors_are_named() -> None:
    cache = paged()
    for field, value, message in [
        ("k", cache.k[0], r"cache\.k: its shape is \[4, 1, 1\]"),
        ("k", "keys", r"cache\.k: str is not a tensor"),
        ("v", cache.v[:2], r"cache\.v: its shape"),
        ("v", cache.v.half(), r"cache\.v: its dtype"),
        ("k", cache.k[:0], r"cache\.[kv]: its shape is \[\d, 4, 1, 1\]"),
        ("table", cache.table[:1], r"cache\.table: its shape is \[1, 3\]"),
        ("table", cache.table.long(), r"cache\.table: its dtype"),
        ("lengths", LENGTHS.long(), r"cache\.lengths: its dtype"),
    ]:
        with pytest.raises(InputError, match=f"argument {message}"):
            replace(cache, **{field: value})
    with pytest.raises(InputError, match=r"argument cache\.k: it has 6 requests"):
        ContiguousCache(k=cache.k, v=cache.v, lengths=LENGTHS)
