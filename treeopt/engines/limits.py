"""What an engine can load, as values: the search keeps to them, and the export refuses by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.acceptance.dynamic_tree import Triple, TripleRule
from treeopt.engines.schedule import OFF, chain_length, in_words
from treeopt.errors import InputError
from treeopt.solve.families import Draft, has_leading_parents, is_uniform
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class ChainLimits:
    """One chain, or one per range of batch sizes.

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
        """Why a draft cannot be loaded, or None."""
        length = chain_length(draft)
        if length is None:
            return f"{in_words(draft)} is no chain"
        if length == 0:
            return None if self.may_be_off else "it cannot be told to draft nothing"
        if self.max_length is not None and length > self.max_length:
            return f"{in_words(draft)} is longer than {self.max_length}"
        return None


@dataclass(frozen=True, kw_only=True)
class TreeLimits:
    """One static tree for all batch sizes.

    `max_ranks` is the number of guesses per node, `max_expanded` the number of nodes of one depth that may have
    children. `rank_gaps`: a node may lack a better-ranked sibling. `uniform`: all nodes of a depth have equally many
    children; `equal_widths`: and so have all depths. `leading_parents`: in every depth the nodes with grandchildren
    come before those with children only.
    """

    max_ranks: int | None = None
    max_depth: int | None = None
    min_depth: int = 0
    max_expanded: int | None = None
    rank_gaps: bool = False
    uniform: bool = False
    equal_widths: bool = False
    leading_parents: bool = False

    @property
    def per_batch(self) -> bool:
        """One tree serves all batch sizes."""
        return False

    @property
    def words(self) -> str:
        """What is loaded, as messages say it."""
        rules = (
            (self.max_ranks is not None, f"of ranks below {self.max_ranks}"),
            (self.max_depth is not None, f"of depth {self.max_depth} or less"),
            (self.min_depth > 1, f"of depth {self.min_depth} or more"),
            (self.max_expanded is not None, f"with at most {self.max_expanded} parents per depth"),
            (self.equal_widths, "in which every node has as many children"),
            (self.uniform and not self.equal_widths, "in which all nodes of a depth have as many children"),
            (not self.rank_gaps, "without rank gaps"),
        )
        said = ", ".join(text for holds, text in rules if holds)
        return f"one static tree for all batch sizes {said}".rstrip()

    @property
    def search_options(self) -> str:
        """The options of `treeopt search` that keep to the limits it knows."""
        caps = (("--max-ranks", self.max_ranks), ("--max-depth", self.max_depth))
        return " ".join(f"{option} {cap}" for option, cap in caps if cap is not None)

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft cannot be loaded, or None."""
        if isinstance(draft, Triple):
            return f"{in_words(draft)} is no static tree"
        return next((reason for check in _TREE_CHECKS if (reason := check(self, draft)) is not None), None)


@dataclass(frozen=True, kw_only=True)
class TripleLimits:
    """One dynamic tree for all batch sizes, told as three numbers; a chain is one of them."""

    rule: TripleRule

    @property
    def per_batch(self) -> bool:
        """One triple serves all batch sizes."""
        return False

    @property
    def words(self) -> str:
        """What is loaded, as messages say it."""
        return "one dynamic tree (steps, guesses per node, nodes) or one chain for all batch sizes"

    def refusal(self, draft: Draft) -> str | None:
        """Why a draft cannot be loaded, or None."""
        if draft == OFF:
            return "it cannot be told to draft nothing"
        triple = as_triple(draft)
        if triple is None:
            return f"{in_words(draft)} is static, the engine shapes its trees itself"
        try:
            self.rule.check(triple)
        except InputError as error:
            return f"{error}: {error.hint}"
        return None


Limits = ChainLimits | TreeLimits | TripleLimits


def as_triple(draft: Draft) -> Triple | None:
    """A dynamic tree as it is, a chain of K as (K, 1, K + 1), None for any other tree."""
    if isinstance(draft, Triple):
        return draft
    length = chain_length(draft)
    return Triple(length, 1, length + 1) if length else None


def _rank_refusal(limits: TreeLimits, tree: DraftTree) -> str | None:
    deepest = int(tree.ranks.max())
    if limits.max_ranks is not None and deepest >= limits.max_ranks:
        path = next(list(p) for p in tree.paths if max(p) >= limits.max_ranks)
        return f"{path} has a rank of {max(path)}, the engine lists {limits.max_ranks} guesses"
    if tree.has_rank_gaps and not limits.rank_gaps:
        path = next(list(p) for p in tree.paths if p[-1] and (*p[:-1], p[-1] - 1) not in tree.paths)
        return f"{path} lacks a better-ranked sibling"
    return None


def _depth_refusal(limits: TreeLimits, tree: DraftTree) -> str | None:
    if limits.max_depth is not None and tree.depth > limits.max_depth:
        return f"it is {tree.depth} deep, the engine drafts {limits.max_depth}"
    if tree.depth < limits.min_depth:
        return f"it is {tree.depth} deep, the engine loads trees of depth {limits.min_depth} or more"
    return None


def _shape_refusal(limits: TreeLimits, tree: DraftTree) -> str | None:
    widest = int(tree.expanded_widths.max(initial=0))
    if limits.max_expanded is not None and widest > limits.max_expanded:
        return f"{widest} nodes of one depth have children, the engine expands {limits.max_expanded}"
    if (limits.uniform or limits.equal_widths) and not is_uniform(tree):
        return "nodes of one depth have different numbers of children"
    if limits.equal_widths and len({len(kids) for kids in tree.children if kids}) > 1:
        return "the number of children changes with the depth"
    if limits.leading_parents and not has_leading_parents(tree):
        return "a node with grandchildren comes after one without, and the engine would draft from the wrong one"
    return None


_TREE_CHECKS: tuple[Callable[[TreeLimits, DraftTree], str | None], ...] = (
    _rank_refusal,
    _depth_refusal,
    _shape_refusal,
)
