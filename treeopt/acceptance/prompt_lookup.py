"""Prompt lookup as engines do it: guess what followed the last few tokens where they stood before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from treeopt.errors import InputError

LookupRule = Literal["treeopt", "vllm", "sglang", "trtllm", "transformers", "llamacpp"]
_RULES: Final[tuple[LookupRule, ...]] = get_args(LookupRule)
COPYING_RULES: Final[tuple[LookupRule, ...]] = ("vllm", "transformers")  # those of `copied_from`
_NAME: Final = re.compile(r"ngram(?::(?P<rule>[a-z]+))?(?::(?:(?P<low>\d{1,4})-)?(?P<high>\d{1,4}))?")


@dataclass(frozen=True, kw_only=True)
class PromptLookup:
    """Whose rule an n-gram drafter follows, and how long the runs are that it looks up.

    `treeopt` is the rule of `treeopt ranks collect --draft ngram:3`: anew for every node, the most frequent follower
    first. The engines copy what followed one match: vLLM and Transformers the earliest match of the longest run; the
    rules of the others are not known here.

    Raises:
        InputError: lengths that leave nothing.
    """

    rule: LookupRule
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise InputError(f"runs of {self.shortest} to {self.longest} tokens", hint="give rising lengths from 1 on")

    @property
    def name(self) -> str:
        """As profiles and options name it: `ngram:3` for treeopt's own rule, else `ngram:vllm:1-3`."""
        if self.rule == "treeopt" and self.shortest == 1:
            return f"ngram:{self.longest}"
        return f"ngram:{self.rule}:{self.shortest}-{self.longest}"


DEFAULT_LOOKUP: Final = PromptLookup(rule="treeopt", shortest=1, longest=3)


def parse_lookup(text: str) -> PromptLookup | None:
    """Read `ngram`, `ngram:N` or `ngram:RULE:LOW-HIGH`; None for another kind of drafter.

    Raises:
        InputError: an n-gram drafter that says something else.
    """
    if text.partition(":")[0] != "ngram":
        return None
    found = _NAME.fullmatch(text)
    rule = next((r for r in _RULES if found is not None and r == (found["rule"] or "treeopt")), None)
    if found is None or rule is None:
        raise InputError(
            f"'{text}' is no n-gram drafter", hint=f"write ngram:3, or ngram:RULE:1-3 with {', '.join(_RULES)}"
        )
    if found["high"] is None:
        return PromptLookup(rule=rule, shortest=DEFAULT_LOOKUP.shortest, longest=DEFAULT_LOOKUP.longest)
    return PromptLookup(rule=rule, shortest=int(found["low"] or 1), longest=int(found["high"]))


def drafts_at_times(drafter: str | None) -> bool:
    """Whether an engine's rule makes the drafts: it verifies one token in a step without a match.

    treeopt's own decoder verifies its whole tree in every step.
    """
    if drafter is None or drafter.partition(":")[0] != "ngram":
        return False
    lookup = parse_lookup(drafter)
    return lookup is not None and lookup.rule in COPYING_RULES


def copied_from(tokens: Sequence[int], lookup: PromptLookup) -> list[int | None]:
    """Where a draft behind the first 1, 2, ... tokens of a text is copied from: its index, None where nothing matches.

    That is behind the earliest match of the longest run that ends there: `[5, 1, 2, 9, 1, 2]` with runs of 1 to 3 ends
    in the run 1, 2, which stood before the 9 at index 3, so the last element is 3 and the draft is 9, 1, 2.

    Source: vllm 0.32.0, `v1/spec_decode/ngram_proposer.py`; transformers 5.19, `PromptLookupCandidateGenerator`.
    """
    first: dict[tuple[int, ...], int] = {}  # the end of each run's first appearance
    found: list[int | None] = []
    for end in range(1, len(tokens) + 1):
        ends = [
            first.setdefault(tuple(tokens[end - run : end]), end)
            for run in range(min(lookup.longest, end), lookup.shortest - 1, -1)
        ]
        found.append(next((place for place in ends if place < end), None))
    return found
