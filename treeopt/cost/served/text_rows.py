"""Served step times from what servers and benches print: step = B x acceptance length / (tokens/s).

Formats: vLLM's log, whose throughput line (running requests, generated tokens/s) and `SpecDecoding metrics:` line cover
the same interval (0.9 to 0.33); the tables of `vllm bench serve` and SGLang's bench_serving.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from treeopt.cost.served.step import ServedStep, drafted_widths
from treeopt.files.evidence_lines import NUMBER, Line, SourceFile

_PAUSE: Final = 0.01  # the share of prompt tokens above which an interval is not one of decoding
_BENCH: Final = {
    "batch": r"^\s*Max(?:imum)? request concurrency:",
    "tok_s": r"^\s*Output token throughput \(tok/s\):",
    "length": r"^\s*(?:Acceptance length|Accept length):",
    "drafts": r"^\s*Drafts:",
    "drafted": r"^\s*Draft tokens:",
}
_PATTERNS: Final = {name: re.compile(rf"{words}\s*{NUMBER}", re.ASCII) for name, words in _BENCH.items()}


def holds_printed_steps(text: str) -> bool:
    """Whether a text is a log or a bench's table from which step times follow."""
    return "SpecDecoding metrics:" in text or "Output token throughput (tok/s):" in text


def read_printed_steps(file: SourceFile, text: str) -> list[ServedStep]:
    """The rows of a log or of printed tables, in order.

    Raises:
        FileFormatError: nothing in it gives a step time, or a table that lacks the concurrency.
    """
    rows = list(_vllm_log(file) if "SpecDecoding metrics:" in text else _benches(file))
    if not rows:
        raise file.error(
            "no step time follows from it",
            hint="in a log, steady intervals without prompts: the throughput line, then `SpecDecoding metrics:`",
        )
    return rows


def _vllm_log(file: SourceFile) -> Iterator[ServedStep]:
    """Intervals of steady decoding: as many requests as in the interval before, and no prompts."""
    running: tuple[float, float] | None = None  # requests and tokens/s of the interval
    before = None
    for line in file.lines():
        generated, requests = line.number_after("Avg generation throughput:"), line.number_after("Running:")
        if generated is not None and requests is not None:
            prompts = line.number_after("Avg prompt throughput:") or 0.0
            steady = requests == before and requests > 0 and prompts <= _PAUSE * generated
            running, before = (requests, generated) if steady and generated > 0 else None, requests
        length, rates = (
            line.number_after("Mean acceptance length:"),
            line.numbers_after("Per-position acceptance rate:"),
        )
        if length is not None and rates and running is not None:
            yield _row(line, int(running[0]), len(rates), length, running[1])
            running = None


def _benches(file: SourceFile) -> Iterator[ServedStep]:
    found: dict[str, float] = {}
    first: Line | None = None
    for line in file.lines():
        for name, pattern in _PATTERNS.items():
            if match := pattern.search(line.text):
                if name in found and first is not None:
                    yield _bench(first, found)
                    found = {}
                first = first if found else line
                found[name] = float(match["number"])
    if first is not None:
        yield _bench(first, found)


def _bench(line: Line, found: dict[str, float]) -> ServedStep:
    missing = [words for name, words in (("batch", "request concurrency"), ("tok_s", "tok/s")) if not found.get(name)]
    if missing:
        raise line.error(f"the table has no {missing[0]}", hint="run it with --max-concurrency, give the whole table")
    if "length" in found and not found.get("drafts"):
        raise line.error("the table does not say how many tokens were drafted", hint="give a CSV with batch, k, tok_s")
    K = -(-int(found["drafted"]) // int(found["drafts"])) if "length" in found else 0
    return _row(line, int(found["batch"]), K, found.get("length", 1.0), found["tok_s"])


def _row(line: Line, batch: int, K: int, length: float, tokens_per_s: float) -> ServedStep:
    return ServedStep(
        batch=batch,
        nodes=K + 1,
        depth=K,
        widths=drafted_widths(K, place=line),
        step_time_s=batch * length / tokens_per_s,
        tokens_per_step=length,
        place=line,
    )
