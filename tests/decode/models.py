"""Toys, trees and prompts for tests of the decoder, and plain decoding without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from treeopt.decode.drafters import ModelDrafter, NoisyDrafter
from treeopt.decode.drafting import Drafter
from treeopt.decode.toy import ToyShape, ToyTransformer
from treeopt.tree import DraftTree

SHAPE = ToyShape(vocabulary=16, layers=2, heads=4, kv_heads=2, head_dim=4, mlp=16)
BUSHY = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0, 0)))


def toy(seed: int = 0) -> ToyTransformer:
    return ToyTransformer(SHAPE, seed=seed)


def noisy(target: ToyTransformer, *, scale: float = 1.0, temperature: float = 0.0) -> Drafter:
    drafter = ModelDrafter(target, vocabulary_size=target.vocabulary_size, temperature=temperature)
    return NoisyDrafter(drafter, scale=scale)


def written_plainly(target: ToyTransformer, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy decoding in which every token is a pass over the whole text: no cache, no step, no tree."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(target.reference(np.array(text))[-1].argmax()))
    return text[len(prompt) :]


@st.composite
def trees(draw: st.DrawFn, depth: int = 4, ranks: int = 3, paths: int = 6) -> DraftTree:
    drawn = draw(st.lists(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=depth), max_size=paths))
    return DraftTree(tuple({tuple(path[: d + 1]) for path in drawn for d in range(len(path))}))


@st.composite
def prompts(draw: st.DrawFn, most: int = 4) -> list[list[int]]:
    return draw(st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=6), min_size=1, max_size=most))
