"""One document's rows: what the drafter guessed at every position, against what the target then wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.rules import BLOCK, RECURSIVE_REJECTION
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.arrays import FloatArray, IntArray
from treeopt.collect.drafters import load_drafter
from treeopt.collect.rules import accepted_prefixes, accepted_sibling
from treeopt.collect.settings import CollectSettings
from treeopt.decode.batch import NOTHING
from treeopt.decode.drafting import TextDrafter
from treeopt.decode.guesses import Guesses, Probabilities, as_probabilities
from treeopt.decode.hf import HuggingFaceModel
from treeopt.decode.rules import Rule, Siblings
from treeopt.errors import InputError
from treeopt.files.npz import npz_bytes

LISTED: Final = 8  # guesses whose probability is written down


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A prompt as the target reads it: `tokens [L]`."""

    doc_id: int
    tokens: IntArray


@dataclass(frozen=True, kw_only=True)
class TraceRows:
    """Rows of a trace.

    A continuation of T tokens has T rows. In row p the prompt and the continuation's tokens 0..p are committed: token
    p, the last of them, is the root of the draft that starts here (the prefill gives token 0, so nobody drafts it).
    Depth d guesses token p + d, given that tokens p + 1 .. p + d - 1 are on the path: a node at depth d counts only if
    its path is right, so the true tokens are the path that the drafter would be on.

    Args:
        rank: `[T, D]` place of the right guess: under recursive rejection the index of the accepted sibling, under
            block verification 0 as far as the drafted chain is accepted, else how many guesses the drafter places
            before the target's token; -1 beyond the recorded ranks, -2 where the continuation is over.
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
    def blank(cls, doc_id: int, *, length: int, depth: int) -> TraceRows:
        """The rows of a document in which nothing was guessed."""
        return cls(
            rank=np.full((length, depth), PAST_END, dtype=np.int16),
            topk_prob=np.zeros((length, depth, LISTED), dtype=np.float16),
            target_p1=np.zeros((length, depth), dtype=np.float16),
            doc_id=np.full(length, doc_id, dtype=np.int64),
            pos=np.arange(length, dtype=np.int32),
        )


class Outcome(NamedTuple):
    """What came of n guesses: `rank [n]`, the drafter's `best [n, 8]` probabilities, `share [n]` drafter's / target's.

    The last is of the text's token, where block verification asks for it.
    """

    rank: IntArray
    best: Probabilities
    share: FloatArray = np.zeros(0)


class Recorder:
    """A target and a drafter in memory."""

    def __init__(self, settings: CollectSettings, target: HuggingFaceModel, drafter: TextDrafter) -> None:
        self._settings = settings
        self._target = target
        self._drafter = drafter

    @classmethod
    def load(cls, settings: CollectSettings) -> Recorder:
        """Load both.

        Raises:
            InputError: one cannot be loaded, or they do not go together.
        """
        device, dtype = settings.device, settings.dtype
        target = HuggingFaceModel.load(settings.target, device=device, dtype=dtype)
        drafter = load_drafter(
            settings.drafter, target, temperature=settings.temperature, depth=settings.depth, device=device, dtype=dtype
        )
        return cls(settings, target, drafter)

    def record(self, document: EncodedPrompt) -> TraceRows:
        """Let the target continue the prompt, and run both along it; the same for the same settings and document."""
        settings, first = self._settings, len(document.tokens) + 1
        for_text, for_rule = np.random.SeedSequence([settings.seed, document.doc_id]).spawn(2)
        written = self._target.continuation(
            document.tokens,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=int(for_text.generate_state(1, np.uint64)[0] >> np.uint64(1)),
        )
        rows = TraceRows.blank(document.doc_id, length=len(written), depth=settings.depth)
        if len(written) > 1:
            tokens = np.concatenate([document.tokens, written])
            p = as_probabilities(self._target.reference(tokens[:-1], first=first - 1), settings.temperature)
            guesses = self._drafter.along(tokens, first=first, depth=settings.depth)
            rng = np.random.default_rng(for_rule)
            outcomes = [self._outcome(g, p[d:], tokens[first + d :], rng) for d, g in enumerate(guesses)]
            _fill(rows, outcomes)
            if settings.acceptance_rule == BLOCK:
                _fill_accepted(rows, outcomes, rng)
            _fill_target(rows, np.take_along_axis(p, tokens[first:, None], axis=1)[:, 0])
        return rows

    def _outcome(self, guesses: Guesses, p: Probabilities, tokens: IntArray, rng: np.random.Generator) -> Outcome:
        siblings = self._settings.ranks
        if self._settings.acceptance_rule == BLOCK:
            # Row by row: all laws at once may not fit.
            share = [
                guesses.distribution(slice(i, i + 1))[0, token] / row[token]
                for i, (row, token) in enumerate(zip(p, tokens.tolist(), strict=True))
            ]
            return _ranked(guesses, tokens, ranks=siblings)._replace(share=np.array(share, dtype=np.float64))
        if self._settings.acceptance_rule != RECURSIVE_REJECTION:
            return _ranked(guesses, tokens, ranks=siblings)
        events = []
        for i, (row, token) in enumerate(zip(p, tokens.tolist(), strict=True)):
            (q,) = guesses.distribution(slice(i, i + 1))
            events.append(accepted_sibling(row.astype(np.float64), q, token, siblings=siblings, rng=rng))
        return Outcome(rank=np.array(events, dtype=np.int64), best=guesses.best(LISTED))


class DecodedText(NamedTuple):
    """One request of a run: its prompt, and what was decoded behind it."""

    prompt: Sequence[int]
    written: Sequence[int]


def record_trace(
    texts: Sequence[DecodedText], drafter: TextDrafter, *, rule: Rule, depth: int, ranks: int = 32
) -> Trace:
    """The trace of finished requests, with request i as document i.

    The drafter is asked again along the text, so what it answers in a run and what is recorded are two computations.
    Guesses from rank `ranks` on count as not listed.

    Raises:
        InputError: a rule whose accepted sibling does not follow from the emitted token (recursive rejection draws
            it), or an approximate one.
        EvidenceError: nothing was decoded.
    """
    if not rule.exact or rule.siblings is not Siblings.BEST:
        raise InputError(
            f"no trace of a run under {rule.label}: the accepted node does not follow from the token",
            hint="record a run under greedy or target-sample, or collect one with `treeopt ranks collect`",
        )
    parts = []
    for number, text in enumerate(texts):
        rows, first = TraceRows.blank(number, length=len(text.written), depth=depth), len(text.prompt) + 1
        tokens = np.array([*text.prompt, *text.written], dtype=np.int64)
        if len(text.written) > 1:
            found = drafter.along(tokens, first=first, depth=depth)
            _fill(rows, [_ranked(g, tokens[first + d :], ranks=ranks) for d, g in enumerate(found)])
        parts.append(rows)
    parts = parts or [TraceRows.blank(0, length=0, depth=depth)]
    joined = {name: np.concatenate([vars(part)[name] for part in parts]) for name in ("rank", "doc_id", "pos")}
    return Trace(**joined)


def to_npz(rows: Iterable[TraceRows], conditions: Conditions) -> bytes:
    """An NPZ file of documents' rows, end to end; the same rows make the same bytes."""
    parts = [vars(part) for part in rows]
    arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return npz_bytes({**arrays, "conditions": np.array(json.dumps(asdict(conditions)))})


def _ranked(guesses: Guesses, tokens: IntArray, *, ranks: int) -> Outcome:
    rank = guesses.ranks(tokens)
    return Outcome(rank=np.where(rank < ranks, rank, NOTHING), best=guesses.best(LISTED))


def _fill(rows: TraceRows, outcomes: list[Outcome]) -> None:
    """Depth d of row p is guess p of `outcomes[d - 1]`, or guess p + d - 1 of the one that serves all depths."""
    for d in range(rows.rank.shape[1]):
        shift = d if len(outcomes) == 1 else 0
        outcome = outcomes[0 if len(outcomes) == 1 else d]
        known = max(len(rows.pos) - 1 - d, 0)
        rows.rank[:known, d] = outcome.rank[shift:]
        rows.topk_prob[:known, d] = outcome.best[shift:]


def _fill_accepted(rows: TraceRows, outcomes: list[Outcome], rng: np.random.Generator) -> None:
    """Rank 0 as far as block verification accepts the chain that the drafter draws at a row, -1 behind."""
    shares: FloatArray = np.zeros(rows.rank.shape)
    for d in range(shares.shape[1]):
        known = max(len(rows.pos) - 1 - d, 0)
        alone = len(outcomes) == 1
        shares[:known, d] = outcomes[0 if alone else d].share[d if alone else 0 :]
    accepted = np.arange(shares.shape[1]) < accepted_prefixes(shares, rng=rng)[:, None]
    rows.rank[...] = np.where(rows.rank == PAST_END, PAST_END, np.where(accepted, 0, NOTHING))


def _fill_target(rows: TraceRows, chosen: Probabilities) -> None:
    for d in range(rows.rank.shape[1]):
        rows.target_p1[: max(len(chosen) - d, 0), d] = chosen[d:]
