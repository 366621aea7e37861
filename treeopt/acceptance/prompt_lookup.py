"""Prompt lookup as engines do it: guess what followed the last few tokens where they stood before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from treeopt.errors import InputError

LookupRule = Literal["treeopt", "vllm", "sglang", "trtllm", "transformers", "llamacpp"]
_RULES: Final[tuple[LookupRule, ...]] = get_args(LookupRule)
EARLIEST_RULES: Final[tuple[LookupRule, ...]] = ("vllm", "transformers")
COPYING_RULES: Final[tuple[LookupRule, ...]] = (*EARLIEST_RULES, "llamacpp")  # those of `copied_from`
KNOWN_RULES: Final[tuple[LookupRule, ...]] = (*COPYING_RULES, "sglang")  # equal to the engine's own code
_NAME: Final = re.compile(r"ngram(?::(?P<rule>[a-z]+))?(?::(?:(?P<low>\d{1,4})-)?(?P<high>\d{1,4}))?")
_LONGEST: Final[dict[LookupRule, int]] = {"sglang": 18}  # its own default; elsewhere 3


@dataclass(frozen=True, kw_only=True)
class PromptLookup:
    """Whose rule an n-gram drafter follows, and how long the runs are that it looks up.

    `treeopt` is the rule of `treeopt ranks collect --draft ngram:3`: anew for every node, the most frequent follower
    first. vLLM and Transformers copy what followed the earliest match of the longest run. llama.cpp's `ngram-simple`
    copies what followed the latest match of runs of exactly `longest` tokens. SGLang merges what followed all runs of
    up to `longest` tokens, the longest and latest first (`treeopt.acceptance.sglang_lookup`). TensorRT-LLM's code
    cannot be run here: of its rule there is documentation only.

    Raises:
        InputError: lengths that leave nothing, or several of llama.cpp.
    """

    rule: LookupRule
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise InputError(f"runs of {self.shortest} to {self.longest} tokens", hint="give rising lengths from 1 on")
        if self.rule == "llamacpp" and self.shortest != self.longest:
            raise InputError(
                f"runs of {self.shortest} to {self.longest} tokens: llama.cpp looks up one length",
                hint=f"write ngram:llamacpp:{self.longest}",
            )

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
    longest = int(found["high"] or _LONGEST.get(rule, DEFAULT_LOOKUP.longest))
    return PromptLookup(
        rule=rule, shortest=int(found["low"] or (longest if rule == "llamacpp" else 1)), longest=longest
    )


def drafts_at_times(drafter: str | None) -> bool:
    """Whether a rule makes the drafts whose engine verifies one token in a step without a match.

    treeopt's own decoder and SGLang verify as many tokens in every step.
    """
    if drafter is None or drafter.partition(":")[0] != "ngram":
        return False
    lookup = parse_lookup(drafter)
    return lookup is not None and lookup.rule in COPYING_RULES


def copied_from(tokens: Sequence[int], lookup: PromptLookup, *, length: int) -> list[range]:
    """What drafts of up to `length` tokens behind the first 1, 2, ... tokens of a text copy: places in the text.

    By the rule of vLLM and Transformers `[5, 1, 2, 9, 1, 2]` with runs of 1 to 3 ends in the run 1, 2, which stood
    before the 9 at index 3, so the last element is 3 to 5 and the draft is 9, 1, 2.

    Source: vllm 0.32.0, `v1/spec_decode/ngram_proposer.py`; transformers 5.19, `PromptLookupCandidateGenerator`;
    llama.cpp, `common/ngram-map.cpp` (`common_ngram_simple_draft`) as llama-cpp-python 0.3.36 has it.
    """
    return (_latest if lookup.rule == "llamacpp" else _earliest)(tokens, lookup, length)


def _earliest(tokens: Sequence[int], lookup: PromptLookup, length: int) -> list[range]:
    first: dict[tuple[int, ...], int] = {}  # the end of each run's first appearance
    found: list[range] = []
    for end in range(1, len(tokens) + 1):
        ends = [
            first.setdefault(tuple(tokens[end - run : end]), end)
            for run in range(min(lookup.longest, end), lookup.shortest - 1, -1)
        ]
        place = next((place for place in ends if place < end), end)
        found.append(range(place, min(place + length, end)))
    return found


def _latest(tokens: Sequence[int], lookup: PromptLookup, length: int) -> list[range]:
    """The text's last token is neither in a match nor copied, nor is the first one in a match."""
    run, latest = lookup.longest, dict[tuple[int, ...], int]()  # the end of each run's last appearance
    found: list[range] = []
    for end in range(1, len(tokens) + 1):
        if (known := end - 2) - run >= 1:
            latest[tuple(tokens[known - run : known])] = known
        place = latest.get(tuple(tokens[end - run : end])) if end > run + length + 2 else None
        stop = end if place is None else min(place + length, end - 1)
        is_long = place is not None and stop - place >= run
        found.append(range(place or 0, stop) if is_long else range(0))
    return found
