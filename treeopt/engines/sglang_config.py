"""SGLang's words for drafters and flags, its captured sizes, and what its flags and adaptive file say, read back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from treeopt.draft_family import SGLANG as RULE
from treeopt.draft_family import Draft, DynamicTree
from treeopt.engines.format import Drafters, DrafterWord, Found
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_ADAPTIVE_WORDS: Final = {
    "eagle": DrafterWord(text="EAGLE"),
    "eagle3": DrafterWord(text="EAGLE3"),
    "mtp": DrafterWord(text="NEXTN", has_model=False),
}
DRAFTERS: Final = Drafters(
    engine="SGLang", words=_ADAPTIVE_WORDS | {"model": DrafterWord(text="STANDALONE")}, default="eagle3"
)
ADAPTIVE: Final = Drafters(engine="SGLang's adaptive lengths", words=_ADAPTIVE_WORDS, default="eagle3", closed=True)
NGRAM: Final = Drafters(
    engine="SGLang's n-grams", words={"ngram": DrafterWord(text="NGRAM", has_model=False)}, closed=True
)
DFLASH: Final = Drafters(engine="SGLang's blocks", words={"dflash": DrafterWord(text="DFLASH")}, closed=True)
DSPARK: Final = Drafters(engine="SGLang's DSPARK", words={"dspark": DrafterWord(text="DSPARK")}, closed=True)
STEPS, TOPK, NODES = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
BLOCK, TRIE = "speculative-dflash-block-size", "speculative-ngram-max-trie-depth"
BREADTHS: Final = ("speculative-ngram-min-bfs-breadth", "speculative-ngram-max-bfs-breadth")
GAMMA, SPS = "speculative-dspark-block-size", "speculative-dspark-sps-table-path"
_GAMMA_DEFAULT: Final = 7  # SGLang's, where the checkpoint does not say
ALGORITHM: Final = "speculative-algorithm"


def default_capture_sizes(max_batch: int) -> tuple[int, ...]:
    """Batch sizes that SGLang captures for speculation unless told otherwise."""
    spaced = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_batch + 1, 16))
    return tuple(sorted({n for n in spaced if n <= max_batch} | {max_batch}))


def capture_sizes_for(starts: Sequence[int], max_batch: int) -> tuple[int, ...]:
    """The default sizes and the batch before each start, so that no smaller batch is padded up to a start."""
    return tuple(sorted({*default_capture_sizes(max_batch), *(s - 1 for s in starts if 1 < s <= max_batch + 1)}))


def effective_start(start: int, captured: Sequence[int]) -> int:
    """The batch size from which a key acts: the one after the largest captured size below it.

    Beyond the largest captured size nothing is padded, so there a key acts from itself on.
    """
    place = bisect_left(captured, start)
    return start if place == len(captured) else captured[place - 1] + 1 if place else 1


def read_ngram(source: EngineFile) -> Found | None:
    """The chain that NGRAM drafts with a breadth of 1."""
    if source.flags.get(ALGORITHM, "").upper() != "NGRAM":
        return None
    nodes, breadth = source.flag_number(NODES) or 12, source.flag_number(BREADTHS[1]) or 10
    if breadth > 1:
        raise InputError(
            f"{source.name}: SGLang drafts trees of n-grams up to {breadth} wide, shaped anew in each step",
            hint=f"only chains can be told: --{BREADTHS[1]} 1",
        )
    return Found(DraftSchedule.constant(DraftTree.chain(nodes - 1)), (), "ngram")


def read_block(source: EngineFile) -> Found | None:
    """The chain of a DFLASH block, which counts the root."""
    if source.flags.get(ALGORITHM, "").upper() != "DFLASH":
        return None
    block = source.flag_number(BLOCK, NODES)
    if block is None or block < 2:
        raise InputError(
            f"{source.name}: the drafter's own configuration says how long its block is", hint=f"add --{BLOCK} N"
        )
    note = f"a block of {block} counts the token before the drafts: {block - 1} are drafted, in one pass"
    return Found(DraftSchedule.constant(DraftTree.chain(block - 1)), (note,), "dflash")


def read_dspark(source: EngineFile) -> Found | None:
    """The chain of a DSPARK block, which does not count the root."""
    if source.flags.get(ALGORITHM, "").upper() != "DSPARK":
        return None
    gamma, nodes = source.flag_number(GAMMA), source.flag_number(NODES)
    if gamma is not None and nodes is not None and nodes != gamma + 1:
        raise InputError(
            f"{source.name}: {nodes} draft tokens with a DSPARK block of {gamma}",
            hint=f"--{NODES} counts the root: {gamma + 1}",
        )
    drafted = gamma or (nodes - 1 if nodes else _GAMMA_DEFAULT)
    by_table = f"; by the table of --{SPS} a step verifies fewer where that pays" if SPS in source.flags else ""
    return Found(
        DraftSchedule.constant(DraftTree.chain(drafted)), (f"{drafted} are drafted, in one pass{by_table}",), "dspark"
    )


def _drafter_of(source: EngineFile) -> str | None:
    return DRAFTERS.kind_of(source.flags.get(ALGORITHM))


def read_triple(source: EngineFile) -> Found | None:
    """Steps, topk and draft tokens: a chain or a dynamic tree for all batch sizes."""
    if "speculative-adaptive-config" in source.flags:
        raise InputError(f"{source.name}: the lengths are in another file", hint="give the adaptive configuration file")
    steps, topk, nodes = (source.flag_number(name) for name in (STEPS, TOPK, NODES))
    if steps is None and topk is None and nodes is None:
        return None
    if steps is None or topk is None or nodes is None:
        raise InputError(
            f"{source.name}: steps, topk and draft tokens belong together",
            hint=f"SGLang wants all of --{STEPS}, --{TOPK}, --{NODES}, or none",
        )
    if topk == 1 and nodes != steps + 1:
        note = f"SGLang sets {steps + 1} draft tokens, not {nodes}: a chain of {steps} has no others"
        return Found(DraftSchedule.constant(DraftTree.chain(steps)), (note,), _drafter_of(source))
    return Found(DraftSchedule.constant(checked_triple(DynamicTree(steps, topk, nodes))), (), _drafter_of(source))


def checked_triple(triple: DynamicTree) -> Draft:
    """A triple that SGLang can run, as a chain where it is one.

    Raises:
        InputError: it fails at run time: more draft tokens than candidates.
    """
    RULE.check(triple)
    return DraftTree.chain(triple.num_steps) if triple.topk == 1 else triple


def read_adaptive(source: EngineFile) -> Found | None:
    """The adaptive file, where every key has one length."""
    section = source.section()
    if section is None or not any(isinstance(v, dict) and "candidate_steps" in v for v in section.value.values()):
        return None
    lengths: dict[int, int] = {}
    for key in section.mapping():
        field = section.get(key)
        if not key.isdecimal() or len(key) > 9:
            if isinstance(field.value, dict):
                raise field.error("SGLang ignores this key", hint="keys are single numbers: the smallest batch size")
            continue
        steps = [step.integer(low=0) for step in field.get("candidate_steps").items()]
        if len(set(steps)) != 1:
            raise field.error(
                f"SGLang chooses among {steps} by what was accepted",
                hint="one candidate per key is a schedule; compare with chain:K for each of them",
            )
        lengths[int(key)] = steps[0]
    if not lengths:
        raise section.error("there is no batch size", hint='write {"1": {"candidate_steps": [4]}}')
    first = min(lengths)
    # A batch below the first key takes the first one.
    steps_ = tuple(ScheduleStep(1 if b == first else b, DraftTree.chain(k)) for b, k in sorted(lengths.items()))
    starts = [b for b in sorted(lengths) if b != first]
    wrong = [s for s in starts if effective_start(s, default_capture_sizes(max(s, 256))) != s]
    notes = [f"with SGLang's default captured sizes key {s} acts from batch {_default_start(s)} on" for s in wrong]
    return Found(DraftSchedule(steps=steps_), tuple(notes))


def _default_start(start: int) -> int:
    return effective_start(start, default_capture_sizes(max(start, 256)))
