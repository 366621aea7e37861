from __future__ import annotations

import pytest

pytest.importorskip("torch")

from treeopt.errors import InputError
from treeopt.kernels.config import ELSEWHERE, REGISTERS, TABLE, AttentionConfig, HeadShape, attention_config, split_dim

LINES = [line for lines in [*TABLE.values(), *ELSEWHERE.values()] for line in lines]


@pytest.mark.parametrize(
    ("dim", "parts"), [(64, (64, 0)), (96, (64, 32)), (128, (128, 0)), (192, (128, 64)), (576, (512, 64))]
)
def test_head_dimensions_are_two_powers_of_two(dim: int, parts: tuple[int, int]) -> None:
    assert split_dim(dim) == parts


def test_float32_parts_have_at_most_128() -> None:
    parts = [split_dim(shape.keys, element_bytes=4) for shape, size in TABLE if size == 4]
    assert all(max(part) <= 128 for part in parts)
    assert [sum(part) for part in parts] == [64, 96, 128, 192, 256]


@pytest.mark.parametrize(("rows", "tile"), [(1, 16), (16, 16), (17, 32), (33, 64), (65, 128), (1000, 128)])
def test_the_smallest_tile_that_holds_the_rows(rows: int, tile: int) -> None:
    assert attention_config(shape=HeadShape(128, 128), element_bytes=2, rows=rows).block_m == tile


@pytest.mark.parametrize("line", LINES)
def test_lines_keep_to_the_kernels_assumptions(line: AttentionConfig) -> None:
    assert line.block_m in (16, 32, 64, 128)
    assert 64 % line.tail_n == 0  # a tile of tree keys lies in one word of ancestor bits
    assert line.block_n % line.tail_n == 0
    assert (line.maxnreg or 0) * 32 * line.num_warps * line.programs <= REGISTERS
    assert line.stages(paged=True) == 2 * line.buffers + 1
    assert line.stages(paged=False) == line.buffers + 1


def test_all_promised_head_shapes_are_there_in_order() -> None:
    assert {shape for shape, size in TABLE if size == 2} >= {(d, d) for d in (64, 96, 128, 192, 256)} | {(576, 512)}
    assert {shape for shape, size in TABLE if size == 4} >= {(d, d) for d in (64, 96, 128, 192, 256)}
    for lines in [*TABLE.values(), *ELSEWHERE.values()]:
        assert [line.block_m for line in lines] == sorted({line.block_m for line in lines})


def test_unknown_head_shapes_list_the_known() -> None:
    with pytest.raises(InputError, match="argument q: head dimension 80, of values 80") as refused:
        attention_config(shape=HeadShape(80, 80), element_bytes=2, rows=1)
    assert "576 (values 512)" in refused.value.hint
