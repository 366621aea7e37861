"""SGLang 0.5: one dynamic tree (steps, topk, draft tokens), or a chain length per batch size in its adaptive file.

Rules: sglang 0.5.23, `srt/speculative/adaptive_spec_params.py`, `srt/arg_groups/speculative_hook.py` and
`cuda_graph_hook.py`. A key of the adaptive file is a lower bound on the batch size after that was padded up to the
next captured one; other keys are ignored without a word. `--speculative-num-draft-tokens` counts the root. Releases
before 0.5.13 ignore all keys and choose among all lengths; 0.5.13 knows no length of 0. NGRAM looks its drafts up in a
trie of what was seen; with a breadth of 1 they are one chain. DFLASH and DSPARK draft a block in one pass; the former's
block counts the root, the latter's does not.
"""

from __future__ import annotations

import json
import shlex
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from treeopt.draft_family import OFF, Chains, Draft, DynamicTree, DynamicTrees, as_dynamic_tree, chain_length
from treeopt.draft_family import SGLANG as RULE
from treeopt.engines.format import Bug, Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_KEYED: Final = Release(0, 5, 13)  # keys of the adaptive file act
_KEYED_OFF: Final = Release(0, 5, 14)  # and a length of 0 is allowed
_ADAPTIVE_WORDS: Final = {
    "eagle": DrafterWord(text="EAGLE"),
    "eagle3": DrafterWord(text="EAGLE3"),
    "mtp": DrafterWord(text="NEXTN", has_model=False),
}
_DRAFTERS: Final = Drafters(
    engine="SGLang", words=_ADAPTIVE_WORDS | {"model": DrafterWord(text="STANDALONE")}, default="eagle3"
)
_ADAPTIVE: Final = Drafters(engine="SGLang's adaptive lengths", words=_ADAPTIVE_WORDS, default="eagle3", closed=True)
_NGRAM: Final = Drafters(
    engine="SGLang's n-grams", words={"ngram": DrafterWord(text="NGRAM", has_model=False)}, closed=True
)
_DFLASH: Final = Drafters(engine="SGLang's blocks", words={"dflash": DrafterWord(text="DFLASH")}, closed=True)
_DSPARK: Final = Drafters(engine="SGLang's DSPARK", words={"dspark": DrafterWord(text="DSPARK")}, closed=True)
_STEPS, _TOPK, _NODES = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
_BLOCK, _TRIE = "speculative-dflash-block-size", "speculative-ngram-max-trie-depth"
_BREADTHS: Final = ("speculative-ngram-min-bfs-breadth", "speculative-ngram-max-bfs-breadth")
_GAMMA, _SPS = "speculative-dspark-block-size", "speculative-dspark-sps-table-path"
_GAMMA_DEFAULT: Final = 7  # SGLang's, where the checkpoint does not say
_TRIE_DEPTH: Final = 18  # SGLang's default
_ALGORITHM: Final = "speculative-algorithm"
_PROOF: Final = "the log's 'Decode batch' lines have 'accept len', /metrics has sglang:spec_accept_length"
_REQUESTS: Final = "SGLang lowers max_running_requests to 48 unless you set it"


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


def _write_triple(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    triple = None if schedule.only is None else as_dynamic_tree(schedule.only)
    if triple is None:
        raise InputError("SGLang loads one triple for all batch sizes", hint="give one chain or one dynamic tree")
    if setup.survival is not None and triple.topk > 1:
        raise InputError("SGLang pretends acceptance of chains only", hint="leave --synthetic out, or export a chain")
    paged = "topk > 1 with a page size above 1 needs the attention backend flashinfer, fa3 or triton"
    notes = (_REQUESTS, paged) if triple.topk > 1 else (_REQUESTS,)
    return _flags_only(setup, word, _tree_flags(triple), f"{_PROOF}: at most {triple.num_steps + 1}", notes)


def _write_ngram(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    length, depth = schedule.longest, setup.lookup.longest
    if setup.lookup.rule != "sglang":  # whose longest run is the depth of its trie
        depth += length
    flags = [f"--{_NODES}", str(length + 1), *(w for name in _BREADTHS for w in (f"--{name}", "1"))]
    flags += [f"--{_TRIE}", str(depth)] if depth > _TRIE_DEPTH else []
    note = "SGLang looks n-grams up in a trie over all requests, by its own rule of which match counts"
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {length + 1}", (_REQUESTS, note))


def _write_block(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    flags = [f"--{_BLOCK}", str(schedule.longest + 1)]
    note = "the block counts the token before the drafts; another size than the drafter was trained with drafts worse"
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {schedule.longest + 1}", (note,))


def _write_dspark(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    flags = [f"--{_GAMMA}", str(schedule.longest)]
    notes = (
        "the DSPARK block does not count the token before the drafts, unlike DFLASH's",
        f"how many drafts a step verifies is chosen by --{_SPS} TABLE, which `treeopt profile table --engine sglang` "
        "writes; without a table all are verified",
    )
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {schedule.longest + 1}", notes)


def _write_adaptive(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    lengths = {s.batch_min: chain_length(s.draft) or 0 for s in schedule.steps}
    config = {str(start): {"candidate_steps": [length]} for start, length in lengths.items()}
    captured = capture_sizes_for(list(lengths), setup.end_of(schedule))
    file_name = "sglang_adaptive.json"
    flags = _tree_flags(DynamicTree(schedule.longest, 1, schedule.longest + 1))
    adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", setup.written_to(file_name)]
    old = setup.release is not None and setup.release < _KEYED_OFF
    graphs = ["--cuda-graph-bs" if old else "--cuda-graph-bs-decode", *map(str, captured)]
    return Written(
        content=json.dumps(config, separators=(",", ":")),
        file_name=file_name,
        launch=_launch(setup, word, [*flags, *adaptive, *graphs]),
        proof=f"the log has 'AdaptiveSpeculativeParams initialized' at the start; {_PROOF}",
        capture_sizes=captured,
        notes=(
            "a key acts from the batch after the captured size before it: with other captured sizes the borders move",
            "adaptive lengths need topk 1, and are switched off with no more than a warning under DP attention, "
            "two-batch overlap or multi-layer EAGLE",
            _REQUESTS,
        ),
    )


def _tree_flags(tree: DynamicTree) -> list[str]:
    return [word for name, n in zip((_STEPS, _TOPK, _NODES), tree, strict=True) for word in (f"--{name}", str(n))]


def _flags_only(setup: Setup, word: DrafterWord, flags: list[str], proof: str, notes: tuple[str, ...]) -> Written:
    return Written(
        content=shlex.join(flags),
        file_name="sglang_flags.txt",
        launch=_launch(setup, word, flags),
        proof=proof,
        notes=notes,
    )


def _launch(setup: Setup, word: DrafterWord, flags: list[str]) -> str:
    start = ["python", "-m", "sglang.launch_server", "--model-path", setup.model, f"--{_ALGORITHM}", word.text]
    model = ["--speculative-draft-model-path", setup.draft_model] if word.has_model else []
    pretended = "" if setup.survival is None else f"SGLANG_SIMULATE_ACC_LEN={1.0 + sum(setup.survival):.6g} "
    return pretended + shlex.join([*start, *model, *flags])


def _read_ngram(source: EngineFile) -> Found | None:
    if source.flags.get(_ALGORITHM, "").upper() != "NGRAM":
        return None
    nodes, breadth = source.flag_number(_NODES) or 12, source.flag_number(_BREADTHS[1]) or 10
    if breadth > 1:
        raise InputError(
            f"{source.name}: SGLang drafts trees of n-grams up to {breadth} wide, shaped anew in each step",
            hint=f"only chains can be told: --{_BREADTHS[1]} 1",
        )
    return Found(DraftSchedule.constant(DraftTree.chain(nodes - 1)), (), "ngram")


def _read_block(source: EngineFile) -> Found | None:
    if source.flags.get(_ALGORITHM, "").upper() != "DFLASH":
        return None
    block = source.flag_number(_BLOCK, _NODES)
    if block is None or block < 2:
        raise InputError(
            f"{source.name}: the drafter's own configuration says how long its block is", hint=f"add --{_BLOCK} N"
        )
    note = f"a block of {block} counts the token before the drafts: {block - 1} are drafted, in one pass"
    return Found(DraftSchedule.constant(DraftTree.chain(block - 1)), (note,), "dflash")


def _read_dspark(source: EngineFile) -> Found | None:
    if source.flags.get(_ALGORITHM, "").upper() != "DSPARK":
        return None
    gamma, nodes = source.flag_number(_GAMMA), source.flag_number(_NODES)
    if gamma is not None and nodes is not None and nodes != gamma + 1:
        raise InputError(
            f"{source.name}: {nodes} draft tokens with a DSPARK block of {gamma}",
            hint=f"--{_NODES} counts the root: {gamma + 1}",
        )
    drafted = gamma or (nodes - 1 if nodes else _GAMMA_DEFAULT)
    by_table = f"; by the table of --{_SPS} a step verifies fewer where that pays" if _SPS in source.flags else ""
    return Found(
        DraftSchedule.constant(DraftTree.chain(drafted)), (f"{drafted} are drafted, in one pass{by_table}",), "dspark"
    )


def _drafter_of(source: EngineFile) -> str | None:
    return _DRAFTERS.kind_of(source.flags.get(_ALGORITHM))


def _read_triple(source: EngineFile) -> Found | None:
    if "speculative-adaptive-config" in source.flags:
        raise InputError(f"{source.name}: the lengths are in another file", hint="give the adaptive configuration file")
    steps, topk, nodes = (source.flag_number(name) for name in (_STEPS, _TOPK, _NODES))
    if steps is None and topk is None and nodes is None:
        return None
    if steps is None or topk is None or nodes is None:
        raise InputError(
            f"{source.name}: steps, topk and draft tokens belong together",
            hint=f"SGLang wants all of --{_STEPS}, --{_TOPK}, --{_NODES}, or none",
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


def _read_adaptive(source: EngineFile) -> Found | None:
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


def _has_topk(schedule: DraftSchedule) -> bool:
    return any(chain_length(step.draft) is None for step in schedule.steps)


def _adaptive(*, may_be_off: bool, since: Release, before: Release | None) -> Format:
    return Format(
        name="adaptive",
        limits=Chains(per_batch=True, may_be_off=may_be_off),
        write=_write_adaptive,
        read=_read_adaptive,
        drafters=_ADAPTIVE,
        since=since,
        before=before,
    )


SGLANG: Final = Engine(
    name="sglang",
    title="SGLang",
    length_setting="--speculative-num-steps",
    tree_settings="--speculative-num-steps, -eagle-topk, -num-draft-tokens",
    checked="0.5.23",
    checked_by="own code",
    checked_since=Release(0, 5, 11),
    lookup_rule="sglang",
    formats=(
        Format(
            name="ngram",
            limits=Chains(),
            write=_write_ngram,
            read=_read_ngram,
            drafters=_NGRAM,
            since=Release(0, 5, 11),
        ),
        Format(
            name="block",
            limits=Chains(),
            write=_write_block,
            read=_read_block,
            drafters=_DFLASH,
            since=Release(0, 5, 11),
        ),
        Format(
            name="dspark",
            limits=Chains(),
            write=_write_dspark,
            read=_read_dspark,
            drafters=_DSPARK,
            since=Release(0, 5, 23),
        ),
        Format(
            name="triple",
            limits=DynamicTrees(rule=RULE),
            write=_write_triple,
            read=_read_triple,
            drafters=_DRAFTERS,
            since=Release(0, 5, 0),
            pretends_since=Release(0, 5, 0),
        ),
        _adaptive(may_be_off=True, since=_KEYED_OFF, before=None),
        _adaptive(may_be_off=False, since=_KEYED, before=_KEYED_OFF),
    ),
    bugs=(
        Bug(
            reference="sgl-project/sglang#13212",
            text="the logged accept rate is wrong where draft tokens are not steps + 1; use the accept length",
            hits=_has_topk,
        ),
        Bug(
            reference="sgl-project/sglang#26866",
            text="accept_index runs out of bounds where draft tokens exceed steps + 1, in releases before June 2026",
            hits=_has_topk,
        ),
        Bug(
            reference="sgl-project/sglang#35275",
            text="adaptive lengths crash at the start or waste graph memory in releases before August 2026",
            hits=lambda schedule: schedule.only is None,
        ),
        Bug(
            reference="NVIDIA/TensorRT-LLM#16888",
            text="seen in another engine: acceptance falls after a phase without drafts, as the drafter's state ages; "
            "watch it where the length goes to 0",
            hits=lambda schedule: any(step.draft == OFF for step in schedule.steps),
        ),
    ),
)
