"""Settings that exist in open pull requests alone, under the request's own name: no release loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from treeopt.errors import named


class BudgetBuild(NamedTuple):
    """A build that makes trees by confidence within a budget.

    Attributes:
        name: what it is asked for by.
        drafters: the kinds of drafters that it runs.
        flags: the start line's flags for a budget that leaves the root out.
        says: what a reader must know of it.
    """

    name: str
    drafters: tuple[str, ...]
    flags: Callable[[int], str]
    says: str


# sgl-project/sglang pull request 29907 (open): draft tokens = budget + 1; page size 1, no overlap, no rejection
# sampling.
SGLANG_DDTREE: Final = BudgetBuild(
    "sglang-pr-29907",
    ("dflash",),
    lambda budget: (
        f"--speculative-algorithm DDTREE --speculative-ddtree-budget {budget} "
        f"--speculative-num-draft-tokens {budget + 1} --page-size 1"
    ),
    "SGLang pull request 29907 is open: no release has DDTREE; one budget serves all batch sizes, without overlap "
    "scheduling and rejection sampling",
)
BUILDS: Final = (SGLANG_DDTREE,)


def budget_build(name: str) -> BudgetBuild:
    """The build of that name.

    Raises:
        UnknownNameError: there is none.
    """
    return named("build", name, BUILDS)
