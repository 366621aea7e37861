"""Cost tables by file, whatever engine wrote them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.arrays import FloatArray, IntArray
from treeopt.cost.served.reading import is_csv, steps_of
from treeopt.cost.served.step import ServedStep, chain_cells, payoffs
from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import ChainTable, StepTable, TableStep, TreeTable
from treeopt.cost.tables.sglang import ADDITIVE_KEY, SAMPLES_KEY, read_additive_table, read_token_table
from treeopt.cost.tables.trees import measured_tree
from treeopt.cost.tables.vllm import STATS_KEY, read_vllm_table
from treeopt.errors import InputError
from treeopt.files.documents import parse_document, read_text
from treeopt.files.opening import called


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table, the hash of the bytes that it was read from, and what was found odd in it.

    `lengths` are the mean accepted lengths that it has, by K. `by_rate`: it has tokens/s alone, so its times are of
    steps whose every draft is right, until `at_lengths` says what is accepted. `tree_length` is that of the one tree of
    a `TreeTable`.
    """

    table: StepTable
    name: str
    sha256: str
    findings: tuple[str, ...] = ()
    lengths: Mapping[int, float] = field(default_factory=dict)
    by_rate: bool = False
    tree_length: float | None = None

    def step(self, *, carried_by: StepCost | None = None, context: int | None = None) -> TableStep:
        """The table as a cost of steps; see `TableStep`."""
        return TableStep(table=self.table, name=self.name, context=context, carried_by=carried_by)

    def at_lengths(self, tokens_per_step: Callable[[int], float]) -> CostTable:
        """The same table for chains of K that yield so many tokens per step; acceptance cancels in its tokens/s.

        40 tokens/s of one request with 4 drafts: a step of 2 tokens takes 50 ms, one of 5 tokens 125 ms.
        """
        if not self.by_rate or not isinstance(self.table, ChainTable):
            return self
        K = np.arange(self.table.step_s.shape[1])
        share = np.array([tokens_per_step(int(k)) for k in K]) / (K + 1.0)
        return replace(self, table=replace(self.table, step_s=self.table.step_s * share))

    def profile(self) -> RankProfile | None:
        """The acceptance that the table itself measured, by K; None where it has none.

        Tokens/s alone stand for any: then every draft counts as right, and only ratios of tokens/s mean anything.
        """
        if self.tree_length is not None and isinstance(self.table, TreeTable):
            tree = self.table.tree
            drafted = tree.num_draft_tokens - 1
            return self._of(MeanLength(mean_accepted_length=self.tree_length, draft_tokens=drafted, tree=tree))
        if self.by_rate and isinstance(self.table, ChainTable):
            survival, note = np.ones(self.table.step_s.shape[1] - 1), _BY_RATE
        elif self.lengths:
            survival, note = survival_of(self.lengths), ""
        else:
            return None
        return self._of(PositionSurvival(survival=survival), note)

    def break_evens(self) -> tuple[int, dict[int, float]] | None:
        """The smallest batch size with plain steps, and the tokens per step from which on chains of K pay there.

        A step of 29.2 ms beside a plain one of 23.1 ms pays from 1.26 tokens on. None without chains beside plain
        steps.
        """
        if not isinstance(self.table, ChainTable):
            return None
        for batch, row in zip(self.table.batches, self.table.step_s, strict=True):
            known = [K for K in range(1, len(row)) if np.isfinite(row[K])]
            if np.isfinite(row[0]) and known:
                return batch, {K: float(row[K] / row[0]) for K in known}
        return None

    def _of(self, evidence: PositionSurvival | MeanLength, note: str = "") -> RankProfile:
        return RankProfile(
            name=self.name,
            evidence=evidence,
            conditions=Conditions(sampling="draft-starts"),
            sha256=self.sha256,
            note=note,
        )


_BY_RATE: Final = (
    "the table has tokens/s without acceptance: every draft counts as right, so tokens per step and step times are not "
    "known, and tokens/s are the table's own"
)


def survival_of(lengths: Mapping[int, float]) -> FloatArray:
    """`[K]` how often the first i drafts were all right, from the mean accepted lengths of chains of some K.

    A longer chain never accepts less, and its last draft never more often than the one before: lengths are levelled to
    that. {1: 1.8, 3: 2.4} gives 0.8, 0.3, 0.3.
    """
    ks = np.array([0, *sorted(k for k in lengths if k > 0)])
    if len(ks) == 1:
        return np.zeros(0)
    tokens = np.array([1.0, *(lengths[int(k)] for k in ks[1:])])
    # The least concave curve above the lengths, then never falling: its slopes are the rates.
    every = np.arange(ks[-1] + 1)
    keep = [0]
    for at in range(1, len(ks)):
        while len(keep) > 1 and _slope(ks, tokens, keep[-2], keep[-1]) <= _slope(ks, tokens, keep[-2], at):
            keep.pop()
        keep.append(at)
    curve = np.maximum.accumulate(np.interp(every, ks[keep], tokens[keep]))
    return np.minimum.accumulate(np.clip(np.diff(curve), 0.0, 1.0))


def _slope(ks: IntArray, tokens: FloatArray, left: int, right: int) -> float:
    return float((tokens[right] - tokens[left]) / (ks[right] - ks[left]))


def load_cost_table(path: Path) -> CostTable:
    """A SGLang DSPARK table, a vLLM batch x K table, or rows of served chains (CSV or an engine's benchmark).

    Raises:
        InputError: the file cannot be read, or holds steps of trees alone.
        FileFormatError: it is none of these, or holds a value that cannot be right, with its line.
    """
    text = read_text(path, what="cost table")
    found = _read(path, text)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return CostTable(
        table=found.table,
        name=path.name,
        sha256=sha256,
        findings=found.findings,
        lengths=found.lengths,
        by_rate=found.by_rate,
        tree_length=found.tree_length,
    )


class _Found(NamedTuple):
    table: StepTable
    findings: tuple[str, ...] = ()
    lengths: Mapping[int, float] = {}
    by_rate: bool = False
    tree_length: float | None = None


def _read(path: Path, text: str) -> _Found:
    if is_csv(text) or _is_json_lines(text):
        return _served(path, text)
    document = parse_document(text, name=called(path), what="cost table")
    keys = document.value if isinstance(document.value, dict) else {}
    if ADDITIVE_KEY in keys:
        return _Found(read_additive_table(document.root))
    if SAMPLES_KEY in keys:
        return _Found(read_token_table(document.root))
    if STATS_KEY in keys:
        found = read_vllm_table(document.root)
        survival = found.survival.survival if found.survival else ()
        lengths = {k: float(1.0 + sum(survival[:k])) for k in range(1, len(survival) + 1)}
        return _Found(found.table, found.findings, lengths)
    return _served(path, text)


def _is_json_lines(text: str) -> bool:
    """Whether the first line is a JSON value of its own, as in benchmarks' JSONL; tables are one value in all."""
    first, _, more = text.lstrip().partition("\n")
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(first)
        return bool(more.strip())
    return False


def _served(path: Path, text: str) -> _Found:
    found = steps_of(path, text)
    chains = [row for row in found.rows if row.is_chain]
    trees = len(found.rows) - len(chains)
    findings = [*found.findings]
    if not chains:
        raise InputError(
            found.rows[0].say("a tree's time says nothing of other trees, and there are no chains or plain steps"),
            hint="fit engine constants to it instead: `treeopt profile fit --steps`",
        )
    if not any(row.depth for row in chains) and (own := measured_tree(found.rows)) is not None:
        return _Found(own.table, (*findings, *own.findings), tree_length=own.length)
    if trees:
        findings.append(f"{trees} of {len(found.rows)} rows are of trees, which say nothing of other trees: left out")
    if trees and not any(row.depth for row in chains):
        gains = ", ".join(f"{p.step.named()} {p.speedup:.2f}x" for p in payoffs(found.rows) if p.speedup is not None)
        raise InputError(
            f"{called(path)} has plain steps and {trees} rows of trees, and no chain; beside plain decoding: {gains}",
            hint="fit engine constants to it instead: `treeopt profile fit --steps`",
        )
    by_rate = any(row.by_rate for row in chains)
    if by_rate:  # one meaning of time for all: every draft is right
        chains = [_by_rate(row) for row in chains]
    lengths: dict[int, list[float]] = {}
    for row in chains:
        if row.tokens_per_step is not None and row.depth:
            lengths.setdefault(row.depth, []).append(row.tokens_per_step)
    means = {K: fmean(values) for K, values in lengths.items()}
    return _Found(ChainTable.from_cells(chain_cells(chains)), tuple(findings), means, by_rate)


def _by_rate(row: ServedStep) -> ServedStep:
    tokens = row.nodes if row.by_rate or row.tokens_per_step is None else row.tokens_per_step
    return replace(row, step_time_s=row.step_time_s * row.nodes / tokens)
