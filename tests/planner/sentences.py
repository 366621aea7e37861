"""Every sentence of the reasons in one file that a person can read: `python tests/planner/sentences.py` writes it anew.

Each case is a small question whose answer says the sentence; what it takes to bring it about is in the case itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from costs import FakeCost
from planner.test_sensitivity import ERRORS, Terms

import treeopt
from treeopt.errors import TreeoptError

PAGE: Final = Path(__file__).with_name("sentences.md")
# Notes of the inputs, which are not the reasons' own.
OTHERS: Final = ("h100", "ranks", "steps.csv", "engine constants", "the EAGLE")
WIDE: Final = [[0.6, 0.2, 0.1]] * 6
SIBLINGS: Final = [[0.4, 0.39, 0.1], [0.02, 0.01, 0.01]]
CHAIN: Final = [[0.8], [0.7], [0.6]]
FLAT: Final = FakeCost(step_s=10e-3, token_s=20e-6, pass_s=0.5e-3)


class Jumping(FakeCost):
    """A step that tells where it jumps."""

    def cliff(self, tokens: int) -> str | None:
        """A sentence from 64 tokens on."""
        return f"a made-up jump stands before {tokens} tokens" if tokens >= 64 else None


def table(*seconds: float) -> np.ndarray:
    """Steps of one request by nodes."""
    return np.array([[np.nan] * (len(seconds) + 1), [np.nan, *seconds]])


NARROW: Final = FakeCost(step_s=5e-3, token_s=50e-6)
DEEP: Final = FakeCost(step_s=5e-3, token_s=50e-6, context_s=1e-9)
DEAR: Final = FakeCost(step_s=1e-3, token_s=1e-3)
# Two steps, plain and one draft, of 1 to 8 requests: dear for one request, cheap for eight.
UNEVEN: Final = FakeCost(table=np.array([[9.0] * 3, *[[9.0, 1.0, 1.7]] * 2, *[[9.0, 2.0, 2.2]] * 7]))
TWO: Final = {"max_nodes": 2, "max_trees": 1, "sharing_loss": 0.5}
MANY: Final = [4**i for i in range(10)]

# What is asked, by the sentences that it brings about: rates by depth and rank or a shipped name, and the question.
CASES: Final[dict[str, tuple[list[list[float]] | str, dict[str, Any]]]] = {
    "under the ridge; the cap on nodes binds": (WIDE, {"batches": 4, "cost": FLAT, "max_nodes": 8}),
    "over the ridge; the evidence ends": (CHAIN, {"batches": 128, "cost": FakeCost(step_s=1.0), "max_nodes": 8}),
    "the best tree is a chain": ([[0.9, 0.01]] * 8, {"batches": 4, "cost": FLAT, "max_nodes": 32}),
    "a chain loses little": (WIDE, {"batches": 64, "cost": NARROW}),
    "a tie": ([[0.8, 0.08]] * 8, {"batches": 4, "cost": FLAT, "max_nodes": 32}),
    "more than a tie, which the documents cannot tell": (
        "smollm2-135m-eagle",
        {"batches": 8, "cost": FakeCost(step_s=9e-3, token_s=6e-6, pass_s=2e-4)},
    ),
    "first guesses alone": (CHAIN, {"batches": 4, "cost": FLAT}),
    "two siblings are no chain": (SIBLINGS, {"batches": 4, "cost": FLAT, "max_nodes": 3}),
    "do not speculate": ([[0.1, 0.05]], {"batches": 64, "cost": DEAR}),
    "do not speculate, first guesses alone": ([[0.1]], {"batches": 64, "cost": DEAR}),
    "a gain below the tie margin": (
        [[0.2, 0.0]],
        {"batches": 1, "cost": FakeCost(table=table(1, 1.197)), "max_nodes": 2},
    ),
    "nothing to verify": (WIDE, {"batches": 4, "cost": FLAT, "max_nodes": 1}),
    "no plain run": (CHAIN, {"batches": 2, "cost": "batch,k,step_ms\n2,1,7.5\n2,3,8.5\n"}),
    "the longest draft under a budget": (WIDE, {"batches": 64, "cost": DEAR, "objective": "length", "budget": 640}),
    "one tree for all batch sizes": (WIDE, {"batches": [1, 64], "cost": NARROW, "max_trees": 1}),
    "and contexts": (WIDE, {"batches": [1, 64], "context": [512, 65536], "cost": DEEP, "max_trees": 1}),
    "many ranges that lose": (
        WIDE,
        {"batches": MANY, "cost": FakeCost(step_s=1e-3, token_s=1e-3), "sharing_loss": 0.0},
    ),
    "an engine with one setting": (WIDE, {"batches": [1, 64], "cost": NARROW, "engine": "medusa"}),
    "a loss at the smallest batch": ([[0.5]], {"batches": [1, 8], "cost": UNEVEN, **TWO}),
    "the same with one setting": ([[0.5]], {"batches": [1, 8], "cost": UNEVEN, "engine": "llamacpp", **TWO}),
    "one draft by the weights of batch sizes": (
        WIDE,
        {"batches": [1, 8, 64], "cost": NARROW, "engine": "medusa", "traffic": "1=0.9,8=0.08,64=0.02"},
    ),
    "the same, and its largest loss is the smallest": (
        WIDE,
        {"batches": [1, 2], "cost": FLAT, "engine": "medusa", "traffic": "1=0.5,2=0.5", "max_nodes": 4},
    ),
    "within a limit on the time per token": (WIDE, {"batches": [1, 64], "cost": FLAT, "max_tpot_ms": 5.0}),
    "within limits, by context": (
        WIDE,
        {"batches": [1, 8], "context": [512, 8192], "cost": DEEP, "max_tpot_ms": 5.0, "max_p99_tpot_ms": 6.0},
    ),
    "documents wait longer than steps say": (
        "smollm2-135m-eagle",
        {"batches": 8, "cost": FLAT, "max_p99_tpot_ms": 7.6},
    ),
    "one batch size beyond a limit": (
        WIDE,
        {"batches": [1, 2], "cost": FakeCost(request_s=10e-3), "max_nodes": 4, "max_tpot_ms": 6.0},
    ),
    "beyond a limit": (WIDE, {"batches": 64, "cost": FLAT, "max_tpot_ms": 0.1}),
    "beside a jump of the step": (WIDE, {"batches": [1, 32, 64], "cost": Jumping(step_s=10e-3, token_s=20e-6)}),
    "many jumps": (WIDE, {"batches": MANY, "cost": Jumping(step_s=10e-3, token_s=20e-6), "sharing_loss": 0.0}),
    "an error of the price would change the answer": (WIDE, {"batches": 16, "cost": Terms(ERRORS)}),
}


def page() -> str:
    """All cases with what their plans say."""
    parts = ["# What the reasons say\n\nMade by `python tests/planner/sentences.py`; a test compares.\n"]
    with tempfile.TemporaryDirectory() as folder:
        for name, (rates, asked) in CASES.items():
            parts += [f"## {name}\n", *said(rates, asked, Path(folder)), ""]
    return "\n".join(parts)


def said(rates: list[list[float]] | str, asked: dict[str, Any], folder: Path) -> Iterator[str]:
    """The reason of every bucket, and the notes that the reasons make."""
    ranks = rates if isinstance(rates, str) else written(rates, folder)
    asked = dict(asked)
    if isinstance(asked.get("cost"), str):
        (folder / "steps.csv").write_text(asked["cost"])
        asked["cost"] = str(folder / "steps.csv")
    try:
        plan = treeopt.search(asked.pop("batches"), ranks=ranks, **asked)
    except TreeoptError as error:
        yield f"- error: {error}; hint: {error.hint}"
        return
    several = len(plan.contexts) > 1
    for bucket in plan.buckets:
        context = f", context {bucket.context.words}" if several else ""
        yield f"- batch {bucket.batches}{context}, {bucket.nodes} nodes: {bucket.reason}"
    yield from (f"- {note.level}: {note.text}" for note in plan.notes if not note.text.startswith(OTHERS))


def written(rates: list[list[float]], folder: Path) -> str:
    """A rank profile of these rates: counters of first guesses where there is one rank."""
    ranks = folder / "ranks.yaml"
    kind = "position" if len(rates[0]) == 1 else "depth-rank"
    values = np.cumprod([row[0] for row in rates]).tolist() if kind == "position" else rates
    ranks.write_text(f"format: treeopt.ranks/1\nname: hand\nevidence: {kind}\nprobabilities: {values}\n")
    return str(ranks)


if __name__ == "__main__":
    PAGE.write_text(page())
