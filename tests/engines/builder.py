"""The dynamic tree's rule written out with lists and paths: slow, and without the package's numbering."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Path = tuple[int, ...]
Row = Callable[[Path], Sequence[float]]


def listed(row: Row, steps: int, topk: int) -> list[tuple[Path, float]]:
    """All candidates in the order in which the drafter lists them, with the product of their probabilities."""
    found: list[tuple[Path, float]] = []
    beams: list[tuple[Path, float]] = [((), 1.0)]
    for _ in range(steps):
        level = [((*path, r), value * row(path)[r]) for path, value in beams for r in range(topk)]
        found += level
        beams = sorted(level, key=lambda item: -item[1])[:topk]
    return found


def dynamic_paths(row: Row, steps: int, topk: int, nodes: int) -> set[Path]:
    return {path for path, _ in sorted(listed(row, steps, topk), key=lambda item: -item[1])[: nodes - 1]}
