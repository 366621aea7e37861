"""What may be drafted: the families of drafts that a search lists and engines load, and which drafts each holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from treeopt.errors import InputError
from treeopt.tree import DraftTree

# No engine's drafter lists more guesses per node of a dynamic tree.
MAX_TOPK: Final = 10
OFF: Final = DraftTree(())


class DynamicTree(NamedTuple):
    """A tree that the engine shapes anew in every step: drafter steps, guesses per node, verified tokens.

    SGLang's words; `num_draft_tokens` counts the root: (3, 4, 16) drafts three levels of four guesses per node and
    verifies 16 tokens, 15 of them drafted.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int


Draft = DraftTree | DynamicTree


def chain_length(draft: Draft) -> int | None:
    """How many tokens a chain drafts, 0 for nothing; None for what is no chain."""
    if isinstance(draft, DynamicTree):
        return draft.num_steps if draft.topk == 1 and draft.num_draft_tokens == draft.num_steps + 1 else None
    return draft.depth if draft.is_chain and not draft.has_rank_gaps else None


def in_words(draft: Draft) -> str:
    """A draft as messages name it."""
    length = chain_length(draft)
    if length is not None:
        return "nothing" if length == 0 else f"a chain of {length}"
    if isinstance(draft, DynamicTree):
        steps, topk, nodes = draft
        return f"a dynamic tree (steps {steps}, topk {topk}, draft tokens {nodes})"
    return f"a tree of {len(draft)} nodes, depth {draft.depth}"


def as_dynamic_tree(draft: Draft) -> DynamicTree | None:
    """A dynamic tree as it is, a chain of K as (K, 1, K + 1), None for any other tree."""
    if isinstance(draft, DynamicTree):
        return draft
    length = chain_length(draft)
    return DynamicTree(length, 1, length + 1) if length else None


def pool_size(num_steps: int, topk: int) -> int:
    """How many candidates a dynamic tree is chosen from: k + (S - 1) k^2; 36 for 3 steps of 4 guesses."""
    return topk + (num_steps - 1) * topk**2


@dataclass(frozen=True, kw_only=True)
class DynamicTreeRule:
    """What an engine accepts as a dynamic tree: the range of N for S steps of k guesses.

    `counts_root`: the engine's own number of draft tokens is N; elsewhere it is N - 1.
    """

    engine: str
    smallest: Callable[[int, int], int]
    largest: Callable[[int, int], int]
    counts_root: bool = False

    def trees(self, *, num_steps: int, topk: int, num_draft_tokens: int) -> Iterator[DynamicTree]:
        """All that the engine accepts up to these numbers, by (steps, guesses, tokens)."""
        for steps in range(1, num_steps + 1):
            for guesses in range(1, topk + 1):
                largest = min(self.largest(steps, guesses), num_draft_tokens)
                for nodes in range(self.smallest(steps, guesses), largest + 1):
                    yield DynamicTree(steps, guesses, nodes)

    def check(self, draft: DynamicTree) -> None:
        """Refuse what the engine would refuse, or fail on later.

        Raises:
            InputError: with the range that it accepts.
        """
        steps, topk, nodes = draft
        if steps < 1 or topk < 1:
            raise InputError(
                f"{self.engine} cannot draft {steps} steps of {topk} guesses", hint="steps and guesses are 1 or more"
            )
        low, high = self.smallest(steps, topk), self.largest(steps, topk)
        if not low <= nodes <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise InputError(
                f"{self.engine} cannot verify {nodes} tokens with {steps} steps of {topk} guesses",
                hint=f"N, the root included, must be {wanted}",
            )


# Own words for the engines' checks: sglang 0.5.23, `srt/speculative/spec_utils.py` and `srt/arg_groups/
# speculative_hook.py`; TensorRT-LLM 1.3.0rc, `tensorrt_llm/llmapi/llm_args.py`; openvino-genai 2026.4.1,
# `GenerationConfig`. SGLang does not check the upper end and fails at run time; it sets N = S + 1 where k is 1.
# OpenVINO documents its upper end without checking it.
SGLANG: Final = DynamicTreeRule(
    engine="SGLang",
    counts_root=True,
    smallest=lambda steps, topk: steps + 1 if topk == 1 else 2,
    largest=lambda steps, topk: pool_size(steps, topk) + 1,
)
TENSORRT_LLM: Final = DynamicTreeRule(
    engine="TensorRT-LLM",
    smallest=lambda steps, topk: steps + 1,
    largest=lambda steps, topk: steps * topk + 1,
)
OPENVINO: Final = DynamicTreeRule(
    engine="OpenVINO GenAI",
    smallest=lambda steps, topk: steps + 1,
    largest=lambda steps, topk: pool_size(steps, topk) + 1,
)


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Chains of top guesses: one, or with `per_batch` one per range of batch sizes.

    `may_be_off`: a range may draft nothing. `longest_first`: no range drafts more than the first one.
    """

    per_batch: bool = False
    max_length: int | None = None
    may_be_off: bool = False
    longest_first: bool = False

    @property
    def words(self) -> str:
        """What is loaded, as messages say it."""
        what = "a chain length per range of batch sizes" if self.per_batch else "one chain length for all batch sizes"
        return what if self.max_length is None else f"{what}, at most {self.max_length}"

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft is not in the family, or None."""
        length = chain_length(draft)
        if length is None:
            return f"{in_words(draft)} is no chain"
        if length == 0:
            return None if self.may_be_off else "it cannot be told to draft nothing"
        if self.max_length is not None and length > self.max_length:
            return f"{in_words(draft)} is longer than {self.max_length}"
        return None


@dataclass(frozen=True, kw_only=True)
class StaticTrees:
    """Static trees, one for all batch sizes where an engine loads them.

    `max_ranks` is the number of guesses per node, `max_expanded` the number of nodes of one depth that may have
    children. `min_depth` is 0, 1 or 2; with 0 nothing may be drafted. `rank_gaps`: a node may lack a better-ranked
    sibling. `leading_parents`: in every depth the nodes with grandchildren come before those with children only.
    """

    max_ranks: int | None = None
    max_depth: int | None = None
    min_depth: int = 0
    max_expanded: int | None = None
    rank_gaps: bool = False
    leading_parents: bool = False

    per_batch = False

    @property
    def may_be_off(self) -> bool:
        """Whether nothing may be drafted: an empty list of paths is a tree."""
        return self.min_depth == 0

    @property
    def words(self) -> str:
        """What is loaded, as messages say it."""
        rules = (
            (self.max_ranks is not None, f"of ranks below {self.max_ranks}"),
            (self.max_depth is not None, f"of depth {self.max_depth} or less"),
            (self.min_depth > 1, f"of depth {self.min_depth} or more"),
            (self.max_expanded is not None, f"with at most {self.max_expanded} parents per depth"),
            (not self.rank_gaps, "without rank gaps"),
        )
        return _static_words(", ".join(text for holds, text in rules if holds))

    @property
    def search_options(self) -> str:
        """The options of `treeopt search` that keep to the limits it knows."""
        caps = (("--max-ranks", self.max_ranks), ("--max-depth", self.max_depth))
        return " ".join(f"{option} {cap}" for option, cap in caps if cap is not None)

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft is not in the family, or None."""
        if isinstance(draft, DynamicTree):
            return f"{in_words(draft)} is no static tree"
        checks = (self._rank_refusal, self._depth_refusal, self._parents_refusal)
        return next((reason for check in checks if (reason := check(draft)) is not None), None)

    def _rank_refusal(self, tree: DraftTree) -> str | None:
        if self.max_ranks is not None and int(tree.ranks.max()) >= self.max_ranks:
            path = next(list(p) for p in tree.paths if max(p) >= (self.max_ranks or 0))
            return f"{path} has a rank of {max(path)}, the engine lists {self.max_ranks} guesses"
        return None if self.rank_gaps else _gap(tree)

    def _depth_refusal(self, tree: DraftTree) -> str | None:
        if self.max_depth is not None and tree.depth > self.max_depth:
            return f"it is {tree.depth} deep, the engine drafts {self.max_depth}"
        return _too_shallow(tree, self.min_depth)

    def _parents_refusal(self, tree: DraftTree) -> str | None:
        widest = int(tree.expanded_widths.max(initial=0))
        if self.max_expanded is not None and widest > self.max_expanded:
            return f"{widest} nodes of one depth have children, the engine expands {self.max_expanded}"
        if self.leading_parents and not has_leading_parents(tree):
            return "a node with grandchildren comes after one without, and the engine would draft from the wrong one"
        return None


@dataclass(frozen=True, kw_only=True)
class UniformTrees:
    """Trees in which all nodes of a depth have equally many children; with `equal_widths` also those of all depths."""

    min_depth: int = 0
    equal_widths: bool = False

    per_batch = False

    @property
    def may_be_off(self) -> bool:
        """Whether nothing may be drafted."""
        return self.min_depth == 0

    @property
    def words(self) -> str:
        """What is loaded, as messages say it."""
        all_depths = "in which every node has as many children"
        one_depth = "in which all nodes of a depth have as many children"
        return _static_words(f"{all_depths if self.equal_widths else one_depth}, without rank gaps")

    search_options = ""

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft is not in the family, or None."""
        if isinstance(draft, DynamicTree):
            return f"{in_words(draft)} is no static tree"
        if (reason := _gap(draft) or _too_shallow(draft, self.min_depth)) is not None:
            return reason
        if not is_uniform(draft):
            return "nodes of one depth have different numbers of children"
        if self.equal_widths and len({len(kids) for kids in draft.children if kids}) > 1:
            return "the number of children changes with the depth"
        return None


@dataclass(frozen=True, kw_only=True)
class DynamicTrees:
    """Dynamic trees within an engine's rule and `max_topk`, one for all batch sizes; a chain is one of them."""

    rule: DynamicTreeRule
    max_topk: int = MAX_TOPK

    per_batch = False
    may_be_off = False
    words = "one dynamic tree (steps, topk, draft tokens) or one chain for all batch sizes"

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft is not in the family, or None."""
        if draft == OFF:
            return "it cannot be told to draft nothing"
        dynamic = as_dynamic_tree(draft)
        if dynamic is None:
            return f"{in_words(draft)} is static, the engine shapes its trees itself"
        try:
            self.rule.check(dynamic)
        except InputError as error:
            return f"{error}: {error.hint}"
        return None


@dataclass(frozen=True, kw_only=True)
class MeasuredDrafts:
    """Drafts whose steps were measured, whole, and no others; or nothing."""

    drafts: tuple[Draft, ...]

    per_batch = True
    may_be_off = True
    words = "only what was measured"

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft is not in the family, or None."""
        return None if draft == OFF or draft in self.drafts else f"{in_words(draft)} was not measured"


DraftFamily = Chains | StaticTrees | UniformTrees | DynamicTrees | MeasuredDrafts

ANY_TREE: Final = StaticTrees(rank_gaps=True)


def is_uniform(tree: DraftTree) -> bool:
    """Whether all nodes of a depth have equally many children, ranked from 0."""
    if tree.has_rank_gaps:
        return False
    counts = np.array([len(kids) for kids in tree.children])
    return all(len(set(counts[tree.depths == depth])) == 1 for depth in range(tree.depth + 1))


def has_leading_parents(tree: DraftTree) -> bool:
    """Whether in every depth the nodes with grandchildren come before those with children only."""
    parent = np.array([bool(kids) for kids in tree.children])
    grand = np.array([any(parent[k] for k in kids) for kids in tree.children])
    # Among the parents of a depth, once one has no grandchildren no later one has.
    return all(
        not np.any(np.diff(grand[parent & (tree.depths == depth)].astype(int)) > 0) for depth in range(tree.depth)
    )


def _static_words(rules: str) -> str:
    return f"one static tree for all batch sizes {rules}".rstrip()


def _gap(tree: DraftTree) -> str | None:
    if not tree.has_rank_gaps:
        return None
    path = next(list(p) for p in tree.paths if p[-1] and (*p[:-1], p[-1] - 1) not in tree.paths)
    return f"{path} lacks a better-ranked sibling"


def _too_shallow(tree: DraftTree, min_depth: int) -> str | None:
    if tree.depth < min_depth:
        return f"it is {tree.depth} deep, the engine loads trees of depth {min_depth} or more"
    return None
