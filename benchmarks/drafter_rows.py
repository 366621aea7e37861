"""The published numbers of block drafters and draft trees, row by row, and why a row is not used.

A folder `drafters` with acceptance.csv, positions.csv, throughput.csv, costs.csv and confidence.csv; `drafters.py`
judges the tool by them. Every row is claimed once by a judgement, or its source stands in `LEFT_OUT`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FILES: Final = ("acceptance", "positions", "throughput", "costs", "confidence")

_ENGINE: Final = "an engine whose steps are not priced here, one concurrency, so no other one to predict"
_MODEL: Final = "no price of the target is shipped, one concurrency or two"
_HIDDEN: Final = "the target is not visible in the source"
# By file and source: why what no judgement claims is left out.
LEFT_OUT: Final[dict[tuple[str, str], str]] = {
    ("acceptance", "thor_ddtree"): "chains and trees of several builders at one budget each, five prompts",
    ("acceptance", "vmlx_pr_276"): "K of the block is given in two countings",
    ("acceptance", "vllm_pr_24852"): _HIDDEN,
    ("acceptance", "jetspec_blog"): "one budget, or a training ablation without one",
    ("acceptance", "vllm_test_speculators"): "K is not stated",
    ("positions", "vllm_pr_24852"): _HIDDEN,
    ("positions", "dspark_paper"): "read from curves by words: first and last position only",
    ("throughput", "atlas_pr_844"): _ENGINE,
    ("throughput", "jetspec_blog"): "a training ablation without a budget",
    ("throughput", "llamacpp_pr_22105_comment"): _ENGINE,
    ("throughput", "llamacpp_pr_25173"): _ENGINE,
    ("throughput", "ninfer3090_pr_65"): _ENGINE,
    ("throughput", "ninfer_issue_53"): _ENGINE,
    ("throughput", "rapid_mlx_472"): _ENGINE,
    ("throughput", "sparkinfer_pr_867_944"): _ENGINE,
    ("throughput", "vmlx_pr_276"): _ENGINE,
    ("throughput", "thor_ddtree"): _ENGINE,
    ("throughput", "sglang_pr_19952"): _MODEL,
    ("throughput", "vllm_pr_42910_comment"): _MODEL,
    ("throughput", "vllm_recipes_839"): _MODEL,
    ("throughput", "zlab_card_qwen3.5_4b"): _MODEL,
    ("throughput", "trtllm_issue_18085"): _MODEL,
    ("throughput", "vllm_pr_41044"): _MODEL,
    ("throughput", "vllm_pr_25784"): _HIDDEN,
    ("throughput", "vllm_blog_peagle"): "a ratio to another drafter's best K, no tokens/s of either",
    ("costs", "ninfer_issue_53"): "rounds with the host in an engine whose steps are not priced here",
    ("confidence", "dspark_paper"): "calibration of a trained confidence head; no confidence per step is published",
}

Row = dict[str, str]


@dataclass
class Rows:
    """All rows of the folder, and which judgement claimed each."""

    rows: list[tuple[str, Row]]
    claimed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Rows:
        """Every row of every file."""
        found: list[tuple[str, Row]] = []
        for name in FILES:
            with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                found += [(name, row) for row in csv.DictReader(file)]
        return cls(found)

    def claim(self, judgement: str, name: str, wanted: Callable[[Row], object]) -> list[Row]:
        """The rows of a file that a judgement reads; none twice."""
        found = []
        for at, (of, row) in enumerate(self.rows):
            if of == name and at not in self.claimed and wanted(row):
                self.claimed[at] = judgement
                found.append(row)
        return found

    def coverage(self) -> list[tuple[str, str, int, str]]:
        """`(file, source, rows, what for or why not)` in order."""
        found: dict[tuple[str, str, str], int] = {}
        for at, (name, row) in enumerate(self.rows):
            why = self.claimed.get(at) or f"left out: {LEFT_OUT[name, row['source']]}"
            key = (name, row["source"], why)
            found[key] = found.get(key, 0) + 1
        return [(name, source, count, why) for (name, source, why), count in found.items()]
