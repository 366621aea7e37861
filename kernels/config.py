"""Tile sizes of the attention kernel, by head shape, element size and rows; chosen from what they compile to.

`docs/kernels.md` lists registers, shared memory and programs per multiprocessor of every line. None has been timed yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from treeopt.kernels.tensors import wrong

REGISTERS: Final = 65536  # of a multiprocessor


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One way to run the attention kernel.

    Fields:
        block_m: rows (node x query head of the group) per program.
        block_n: cache positions per step of the loop over the prefix.
        tail_n: keys per masked step: the rest of the prefix and the tree.
        num_warps: warps per program; one warpgroup has four.
        buffers: tiles of K and V on their way while one is worked on.
        programs: programs that run at once on a multiprocessor of the chip the line is for, as far as registers and
            shared memory go.
        maxnreg: registers per thread at most; None leaves it to the assembler, which may spill a few to fit one
            program more than shared memory has room for.
    """

    block_m: int
    block_n: int
    tail_n: int
    num_warps: int
    buffers: int
    programs: int
    maxnreg: int | None

    def stages(self, *, paged: bool) -> int:
        """Triton's `num_stages`: behind a page table every buffer takes two, one to load the page number in."""
        return 1 + self.buffers * (2 if paged else 1)


def _config(
    block_m: int,
    block_n: int,
    num_warps: int,
    buffers: int,
    programs: int,
    *,
    tail: int = 32,
    maxnreg: int | None = None,
) -> AttentionConfig:
    """A line; programs that share a multiprocessor share its registers, unless the limit is given."""
    if maxnreg is None and programs > 1:
        maxnreg = min(255, REGISTERS // (32 * num_warps * programs) // 8 * 8)
    return AttentionConfig(
        block_m=block_m,
        block_n=block_n,
        tail_n=tail,
        num_warps=num_warps,
        buffers=buffers,
        programs=programs,
        maxnreg=maxnreg,
    )


class HeadShape(NamedTuple):
    """Dimensions of a key and of a value."""

    keys: int
    values: int


class DimParts(NamedTuple):
    """A dimension as two powers of two; the second may be 0."""

    first: int
    second: int


Lines = tuple[AttentionConfig, ...]
# Hopper, sm_90: what is measured first, and the default.
TABLE: Final[dict[tuple[HeadShape, int], Lines]] = {
    (HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 5),
        _config(32, 64, 4, 2, 4),
        _config(64, 64, 4, 2, 3),
        _config(128, 64, 8, 2, 2),
    ),
    (HeadShape(96, 96), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 32, 4, 2, 2, tail=16),
        _config(64, 64, 4, 2, 2),
        _config(128, 64, 8, 2, 1),
    ),
    (HeadShape(128, 128), 2): (
        _config(16, 64, 4, 2, 3),
        _config(32, 64, 4, 2, 2),
        _config(64, 64, 4, 2, 2),
        _config(128, 64, 8, 2, 1, tail=16),
    ),
    (HeadShape(192, 128), 2): (
        _config(16, 32, 4, 2, 4),
        _config(32, 64, 4, 1, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 64, 8, 1, 1),
    ),
    (HeadShape(192, 192), 2): (
        _config(16, 32, 4, 2, 3),
        _config(32, 32, 4, 2, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 32, 8, 2, 1),
    ),
    (HeadShape(256, 256), 2): (
        _config(16, 32, 4, 2, 2),
        _config(32, 32, 4, 1, 2),
        _config(64, 32, 8, 2, 1),
        _config(128, 32, 8, 2, 1, tail=16),
    ),
    (HeadShape(576, 512), 2): (_config(16, 32, 8, 1, 1, tail=16), _config(32, 32, 8, 1, 1, tail=16)),
    (HeadShape(64, 64), 4): (_config(16, 32, 4, 1, 3, tail=16),),
    (HeadShape(96, 96), 4): (_config(16, 32, 4, 1, 2, tail=16),),
    (HeadShape(128, 128), 4): (_config(16, 32, 4, 1, 2, tail=16),),
    (HeadShape(192, 192), 4): (_config(16, 16, 8, 1, 1, tail=16),),
    (HeadShape(256, 256), 4): (_config(16, 16, 8, 1, 1, tail=16),),
}


# Other chips, where a line of the table spills there: by the first number of their compute capability.
ELSEWHERE: Final[dict[tuple[int, HeadShape, int], Lines]] = {
    (8, HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 64, 4, 2, 3),
        _config(64, 64, 4, 2, 2),
        _config(128, 64, 8, 2, 1),
    ),
    (8, HeadShape(96, 96), 2): (
        _config(16, 64, 4, 2, 3),
        _config(32, 32, 4, 2, 2, tail=16),
        _config(64, 32, 4, 2, 2, tail=16),
        _config(128, 64, 8, 2, 1),
    ),
    (8, HeadShape(128, 128), 2): (
        _config(16, 64, 4, 2, 2),
        _config(32, 64, 4, 2, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 64, 8, 2, 1, tail=16),
    ),
    (8, HeadShape(192, 128), 2): (_config(16, 32, 4, 2, 4), _config(32, 64, 4, 1, 2), _config(64, 32, 4, 2, 2)),
    (8, HeadShape(192, 192), 2): (_config(16, 32, 4, 2, 3), _config(32, 32, 4, 2, 2)),
    (8, HeadShape(256, 256), 2): (_config(16, 32, 4, 2, 2), _config(32, 32, 4, 1, 2), _config(64, 32, 8, 2, 1)),
    (10, HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 64, 4, 2, 4),
        _config(64, 64, 4, 2, 3),
        _config(128, 64, 8, 2, 1, maxnreg=160),
    ),
}
HOPPER: Final = 9


def split_dim(dim: int, *, element_bytes: int = 2) -> DimParts:
    """A head dimension as two powers of two, the second 0 where one does: 96 = 64 + 32, 576 = 512 + 64.

    Parts of float32 have at most 128: each product by three TF32 ones holds its queries in registers.
    """
    first = 1 << (dim.bit_length() - 1)
    if element_bytes == 4 and first == dim == 256:
        return DimParts(128, 128)
    return DimParts(first, dim - first)


def attention_lines(*, shape: HeadShape, element_bytes: int, chip: int = HOPPER) -> Lines:
    """The lines for a head shape, by rows; `chip` is the first number of the GPU's compute capability.

    Raises:
        InputError: a head shape or element size that no line is for.
    """
    lines = ELSEWHERE.get((chip, shape, element_bytes)) or TABLE.get((shape, element_bytes))
    if lines is None:
        known = sorted({f"{qk}" if qk == v else f"{qk} (values {v})" for (qk, v), _ in TABLE})
        raise wrong("q", f"head dimension {shape.keys}, of values {shape.values}", hint=f"known: {', '.join(known)}")
    return lines


def attention_config(*, shape: HeadShape, element_bytes: int, rows: int, chip: int = HOPPER) -> AttentionConfig:
    """The line for so many rows: the smallest tile that holds them, else the largest.

    Raises:
        InputError: see `attention_lines`.
    """
    lines = attention_lines(shape=shape, element_bytes=element_bytes, chip=chip)
    return next((line for line in lines if line.block_m >= rows), lines[-1])
