"""The fixed point of acceptance and draft: f where the draft's own drafts start, and the best draft under that f.

A tree decides where drafts start, and where drafts start decides which tree is best. With every position weighted by
how often a draft starts there, f(v) is counted at draft starts and given that the parent was reached, and 1 + sum f
over the tree is the replayed tokens per step exactly. Correcting only one of the two makes the number worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from treeopt.acceptance.model import PathModel

MAX_ITERATIONS: Final = 20

Model = TypeVar("Model", bound=PathModel)
Found = TypeVar("Found")


def settled_model(
    under: Callable[[Found | None], Model], choose: Callable[[Model], Found], tokens: Callable[[Found], float]
) -> Model:
    """f at the starts of a draft that is the search's answer to it.

    `under(draft)` is f at the draft's own starts, `under(None)` as measured; `choose` must give the same draft for the
    same f. Where the search goes round in circles, f is that under the draft tried with the largest E, `tokens`, under
    its own.
    """
    tried: dict[Found, Model] = {}
    draft = choose(under(None))
    while draft not in tried and len(tried) < MAX_ITERATIONS:
        tried[draft] = under(draft)
        draft = choose(tried[draft])
    if draft != list(tried)[-1]:
        draft = max(tried, key=tokens)
    return tried[draft]
