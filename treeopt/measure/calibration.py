"""A schedule whose only purpose is to be measured: one server start, a different draft length at every batch size."""

from __future__ import annotations

from collections.abc import Sequence

from treeopt.errors import InputError

Range = tuple[int, int, int]


def calibration_schedule(batches: Sequence[int], *, k_max: int) -> list[Range]:
    """vLLM's `num_speculative_tokens_per_batch_size` with `[first, last, K]` for each batch size to be measured.

    K goes through 0 to `k_max` in an order whose neighbours lie far apart, so that batch size and K are not told
    together: of 4 at six batch sizes it is 4, 0, 3, 1, 2, 4.

    Raises:
        InputError: no batch sizes, or no drafts.
    """
    if not batches or k_max < 1 or min(batches) < 1:
        raise InputError("no batch sizes or draft length to calibrate", hint="for example --batches 1,2,4,8 --k 4")
    order = _far_apart(k_max)
    found, first = [], 1
    for i, last in enumerate(sorted(set(batches))):
        found.append((first, last, order[i % len(order)]))
        first = last + 1
    return found


def _far_apart(k_max: int) -> list[int]:
    """All draft lengths, from both ends in turn."""
    low, high = list(range(k_max // 2 + 1)), list(range(k_max, k_max // 2, -1))
    pairs = [k for pair in zip(high, low, strict=False) for k in pair]
    return pairs + [k for k in low if k not in pairs]
