"""One document's rows: what the drafter guessed at every position, against what the target then wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.rules import RECURSIVE_REJECTION
from treeopt.acceptance.trace import PAST_END
from treeopt.arrays import IntArray
from treeopt.collect.drafters import Drafter, load_drafter
from treeopt.collect.guesses import Guesses
from treeopt.collect.models import CausalModel, Probabilities
from treeopt.collect.rules import accepted_sibling
from treeopt.collect.settings import Settings
from treeopt.files.npz import npz_bytes

LISTED: Final = 8  # guesses whose probability is written down
UNRANKED: Final = -1


@dataclass(frozen=True, kw_only=True)
class Document:
    """A prompt as the target reads it: `tokens [L]`."""

    doc_id: int
    tokens: IntArray


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a trace.

    A continuation of T tokens has T rows. In row p the prompt and the continuation's tokens 0..p are committed: token
    p, the last of them, is the root of the draft that starts here (the prefill gives token 0, so nobody drafts it).
    Depth d guesses token p + d, given that tokens p + 1 .. p + d - 1 are on the path: a node at depth d counts only if
    its path is right, so the true tokens are the path that the drafter would be on.

    Args:
        rank: `[T, D]` place of the right guess: under recursive rejection the index of the accepted sibling, else
            how many guesses the drafter places before the target's token; -1 beyond the recorded ranks, -2 where
            the continuation is over.
        topk_prob: `[T, D, 8]` the drafter's probabilities of its best guesses, best first; 0 where it has none.
        target_p1: `[T, D]` the target's probability of its token. Both are at the temperature, or at 1 if it is 0,
            and 0 where the continuation is over.
        doc_id: `[T]`, the same in all rows of a document.
        pos: `[T]`, p.
    """

    rank: npt.NDArray[np.int16]
    topk_prob: npt.NDArray[np.float16]
    target_p1: npt.NDArray[np.float16]
    doc_id: IntArray
    pos: npt.NDArray[np.int32]

    @classmethod
    def blank(cls, doc_id: int, *, length: int, depth: int) -> Rows:
        """The rows of a document in which nothing was guessed."""
        return cls(
            rank=np.full((length, depth), PAST_END, dtype=np.int16),
            topk_prob=np.zeros((length, depth, LISTED), dtype=np.float16),
            target_p1=np.zeros((length, depth), dtype=np.float16),
            doc_id=np.full(length, doc_id, dtype=np.int64),
            pos=np.arange(length, dtype=np.int32),
        )


class Outcome(NamedTuple):
    """What came of n guesses: `rank [n]`, the drafter's `best [n, 8]` probabilities."""

    rank: IntArray
    best: Probabilities


class Recorder:
    """A target and a drafter in memory."""

    def __init__(self, settings: Settings, target: CausalModel, drafter: Drafter) -> None:
        self._settings = settings
        self._target = target
        self._drafter = drafter

    @classmethod
    def load(cls, settings: Settings) -> Recorder:
        """Load both.

        Raises:
            InputError: one cannot be loaded, or they do not go together.
        """
        target = CausalModel.load(settings.target, device=settings.device, dtype=settings.dtype)
        return cls(settings, target, load_drafter(settings, target))

    def record(self, document: Document) -> Rows:
        """Let the target continue the prompt, and run both along it; the same for the same settings and document."""
        settings, first = self._settings, len(document.tokens) + 1
        for_text, for_rule = np.random.SeedSequence([settings.seed, document.doc_id]).spawn(2)
        written = self._target.continuation(
            document.tokens,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=int(for_text.generate_state(1, np.uint64)[0] >> np.uint64(1)),
        )
        rows = Rows.blank(document.doc_id, length=len(written), depth=settings.depth)
        if len(written) > 1:
            tokens = np.concatenate([document.tokens, written])
            p = self._target.probabilities(tokens, first=first, temperature=settings.temperature)
            guesses = self._drafter.guesses(tokens, first=first, depth=settings.depth)
            rng = np.random.default_rng(for_rule)
            _fill(rows, [self._outcome(g, p[d:], tokens[first + d :], rng) for d, g in enumerate(guesses)])
            _fill_target(rows, np.take_along_axis(p, tokens[first:, None], axis=1)[:, 0])
        return rows

    def _outcome(self, guesses: Guesses, p: Probabilities, tokens: IntArray, rng: np.random.Generator) -> Outcome:
        siblings = self._settings.ranks
        if self._settings.acceptance_rule == RECURSIVE_REJECTION:
            events = [
                accepted_sibling(row.astype(np.float64), guesses.distribution(i), token, siblings=siblings, rng=rng)
                for i, (row, token) in enumerate(zip(p, tokens.tolist(), strict=True))
            ]
            rank = np.array(events, dtype=np.int64)
        else:
            rank = guesses.ranks(tokens)
        return Outcome(rank=np.where(rank < siblings, rank, UNRANKED), best=guesses.best(LISTED))


def to_npz(rows: Iterable[Rows], conditions: Conditions) -> bytes:
    """An NPZ file of documents' rows, end to end; the same rows make the same bytes."""
    parts = [vars(part) for part in rows]
    arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return npz_bytes({**arrays, "conditions": np.array(json.dumps(asdict(conditions)))})


def _fill(rows: Rows, outcomes: list[Outcome]) -> None:
    """Depth d of row p is guess p of `outcomes[d - 1]`, or guess p + d - 1 of the one that serves all depths."""
    for d in range(rows.rank.shape[1]):
        shift = d if len(outcomes) == 1 else 0
        outcome = outcomes[0 if len(outcomes) == 1 else d]
        known = max(len(rows.pos) - 1 - d, 0)
        rows.rank[:known, d] = outcome.rank[shift:]
        rows.topk_prob[:known, d] = outcome.best[shift:]


def _fill_target(rows: Rows, chosen: Probabilities) -> None:
    for d in range(rows.rank.shape[1]):
        rows.target_p1[: max(len(chosen) - d, 0), d] = chosen[d:]
