"""How often so many requests run, as the user gives it: pairs, a table, or counted from what a server wrote."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from treeopt.errors import FileFormatError, InputError
from treeopt.files.evidence_lines import Line, SourceFile
from treeopt.files.rows import csv_rows
from treeopt.files.shipped import is_there
from treeopt.solve.problem import MAX_BATCH
from treeopt.solve.weights import BatchWeight

_HINT: Final = "write --traffic 1=0.1,8=0.3,32=0.6, a CSV with running,weight, or a server's log or /metrics"
# Where servers tell how many requests run, at every line or scrape once: vLLM 0.24 and SGLang 0.5 logs, their gauges,
# TensorRT-LLM's iteration statistics, TGI's gauge.
_RUNNING: Final = re.compile(
    r"(?:\bRunning:\s*|#running-req:\s*|\"numGenRequests\":\s*"
    r"|^(?:vllm:num_requests_running|sglang:num_running_reqs|tgi_batch_current_size)(?:\{.*\})?\s+)"
    r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b"
)


class _Weighed(NamedTuple):
    running: float
    weight: float
    place: Line


def load_weights(traffic: str | Mapping[int, float]) -> tuple[BatchWeight, ...]:
    """The share of the time at which so many requests run, of any scale: they are made to sum to 1.

    `{1: 1, 8: 3}` are 0.25 at 1 request and 0.75 at 8. Times at which nothing runs have no step and do not count.

    Raises:
        InputError: no batch sizes with weights above 0, or a file that tells none, with its line.
    """
    if not isinstance(traffic, str):
        return _shares(Counter(dict(traffic)))
    if "=" in traffic and not is_there(traffic):
        return _shares(_pairs(traffic))
    file = SourceFile(Path(traffic), what="traffic")
    total = Counter[int]()
    for running, weight, place in _of_table(file) or _of_log(file):
        if running != int(running) or not 0 <= running <= MAX_BATCH:
            raise place.error(f"{running:g} requests", hint=f"a step has 1 to {MAX_BATCH} requests")
        total[int(running)] += weight  # type: ignore[assignment]
    if not total:
        raise file.error("it does not tell how many requests run", hint=_HINT)
    return _shares(total)


def _pairs(text: str) -> Counter[int]:
    total = Counter[int]()
    for item in text.split(","):
        size, _, weight = item.strip().partition("=")
        try:
            total[int(size)] += float(weight)  # type: ignore[assignment]
        except ValueError:
            raise InputError(f"'{item.strip()}' is no batch size with its weight", hint=_HINT) from None
    return total


def _shares(total: Mapping[int, float]) -> tuple[BatchWeight, ...]:
    wrong = [(b, w) for b, w in total.items() if not 0 <= b <= MAX_BATCH or not 0.0 <= w < math.inf]
    if wrong:
        raise InputError(
            f"batch {wrong[0][0]} with weight {wrong[0][1]:g}", hint="weights are 0 or more, sizes 1 or more"
        )
    used = {batch: weight for batch, weight in sorted(total.items()) if batch and weight > 0.0}
    whole = sum(used.values())
    if not used or whole == math.inf:
        raise InputError("no batch size has a weight above 0", hint=_HINT)
    return tuple(BatchWeight(batch, weight / whole) for batch, weight in used.items())


def _of_table(file: SourceFile) -> list[_Weighed]:
    """The rows of a CSV with columns `running` and `weight`; none if it is no such table."""
    try:
        rows = csv_rows(file)
        head = [cell.lower() for cell in next(rows, (None, []))[1]]
    except FileFormatError:
        return []
    if not {"running", "weight"} <= set(head):
        return []
    at, by = head.index("running"), head.index("weight")
    return [_Weighed(_number(line, cells, at), _number(line, cells, by), line) for line, cells in rows]


def _number(line: Line, cells: list[str], at: int) -> float:
    try:
        value = float(cells[at])
    except (ValueError, IndexError):
        raise line.error("no number of running requests with a weight", hint="write running,weight") from None
    if not 0.0 <= value < math.inf:
        raise line.error(f"{value:g} is out of range", hint="give 0 or more")
    return value


def _of_log(file: SourceFile) -> Iterator[_Weighed]:
    """Every time that a log, a scrape or several of them say how many requests run."""
    for line in file.lines():
        if found := _RUNNING.search(line.text):
            yield _Weighed(float(found[1]), 1.0, line)
