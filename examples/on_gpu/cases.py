"""What is checked, compared and swept on a GPU, and a tiny part of it on a processor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

MODEL = {"cuda": "llama-3.1-8b", "cpu": "smollm2-135m"}
DTYPES = {"cuda": ("bf16", "fp16", "fp32"), "cpu": ("fp32",)}
GRID = {"cuda": (512, 8192), "cpu": (8, 512)}  # B x N, context


class Case(NamedTuple):
    """B requests of N nodes over a prefix of L; `heads` are KV heads and query heads of each, None the model's."""

    requests: int
    nodes: int
    prefix: int
    heads: tuple[int, int] | None = None

    def __str__(self) -> str:
        heads = f" {self.heads[0]} x {self.heads[1]}" if self.heads else ""
        return f"B={self.requests} N={self.nodes} L={self.prefix}{heads}"

    def shape(self, shape: Any) -> Any:
        """The attention shape of this case, by the model's."""
        from dataclasses import replace

        return replace(shape, kv_heads=self.heads[0], heads=self.heads[0] * self.heads[1]) if self.heads else shape

    def sizes(self, shape: Any) -> Any:
        """As the workloads of `treeopt.profile` take it."""
        from treeopt.profile.attention import AttentionSizes

        own = self.shape(shape)
        return AttentionSizes(
            requests=self.requests,
            nodes=self.nodes,
            prefix=self.prefix,
            heads=own.heads,
            kv_heads=own.kv_heads,
            head_dim=own.head_dim,
        )


CHECKED = {
    "cuda": (Case(1, 1, 1), Case(3, 16, 1000), Case(2, 63, 4096), Case(2, 64, 77), Case(2, 65, 300), Case(1, 200, 999)),
    "cpu": (Case(1, 1, 9), Case(2, 7, 70), Case(1, 65, 30)),
}
# The long prefixes that memory bounds come first, then what arithmetic bounds, then small steps.
COMPARED = {
    "cuda": (
        *(Case(16, 16, 8192), Case(16, 64, 8192), Case(32, 8, 2048), Case(1, 16, 2048), Case(16, 1, 8192)),
        *(Case(64, 64, 2048), Case(4, 64, 512), Case(1, 64, 8192), Case(64, 8, 1024), Case(16, 4, 16384)),
        *(Case(1, 64, 2048), Case(4, 64, 2048)),
    ),
    "cpu": (Case(2, 7, 121), Case(1, 16, 48)),
}
FLEX_CASES, FLEX_S = 2, 20.0  # each one compiles
PAGES = {"pages of 16": 16, "no pages": 0}  # beside those of 64
# What is swept, and the cases that it is swept on: few requests, where pieces decide, and a full GPU, where tiles do.
SWEPT = {
    "MIN_PIECE": (128, 256, 512),
    "SM_BYTES_PER_CLOCK": (20, 34, 64),
    "EFFICIENCY": (0.3, 0.46, 0.7),
    "START_CLOCKS": (256, 512, 2048),
    "MERGE_CLOCKS": (300, 900, 3000),
}
SWEPT_ON = {
    "cuda": (Case(1, 16, 8192), Case(1, 64, 2048), Case(4, 64, 2048), Case(4, 16, 8192), Case(16, 64, 8192)),
    "cpu": (Case(1, 7, 121),),
}
# Tiles of 128 x 128 heads beside the table's: block_m, block_n, warps, buffers, programs, keys per masked step; each on
# cases whose rows take a tile of so many.
TILES = (
    (128, 64, 8, 2, 1, 16),
    (64, 32, 4, 2, 2, 32),
    (64, 64, 4, 3, 1, 32),
    (16, 64, 4, 3, 2, 32),
)
TILED_ON = {
    128: (Case(4, 64, 2048), Case(16, 64, 8192)),
    64: (Case(4, 16, 8192), Case(16, 16, 8192)),
    16: (Case(4, 4, 8192), Case(16, 4, 8192)),
}


def modelled() -> tuple[Case, ...]:
    """The rows of docs/kernels.md's table of launches."""
    import kernel_model

    return tuple(Case(c.requests, c.nodes, c.length, (c.kv_heads, c.group)) for c in kernel_model.CASES)
