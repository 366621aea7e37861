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
from typing import Final

from treeopt.acceptance.rules import BLOCK as BLOCK_RULE
from treeopt.acceptance.rules import INDEPENDENT_REJECTION, RECURSIVE_REJECTION
from treeopt.draft_family import OFF, Chains, DynamicTree, DynamicTrees, as_dynamic_tree, chain_length
from treeopt.draft_family import SGLANG as RULE
from treeopt.engines.format import Bug, DrafterWord, Engine, Format, Setup, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.sglang_config import (
    ADAPTIVE,
    ALGORITHM,
    BLOCK,
    BREADTHS,
    DFLASH,
    DRAFTERS,
    DSPARK,
    GAMMA,
    NGRAM,
    NODES,
    SPS,
    STEPS,
    TOPK,
    TRIE,
    capture_sizes_for,
    read_adaptive,
    read_block,
    read_dspark,
    read_ngram,
    read_triple,
)
from treeopt.errors import InputError

_KEYED: Final = Release(0, 5, 13)  # keys of the adaptive file act
_KEYED_OFF: Final = Release(0, 5, 14)  # and a length of 0 is allowed
_TRIE_DEPTH: Final = 18  # SGLang's default
_RULE_FLAGS: Final = {
    RECURSIVE_REJECTION: "--speculative-use-rejection-sampling",
    INDEPENDENT_REJECTION: "--speculative-use-rejection-sampling",
    BLOCK_RULE: "--speculative-use-block-verification",  # and rejection sampling with it
}
_SWITCHES: Final = dict.fromkeys(_RULE_FLAGS, Release(0, 5, 23))
_PROOF: Final = "the log's 'Decode batch' lines have 'accept len', /metrics has sglang:spec_accept_length"
_REQUESTS: Final = "SGLang lowers max_running_requests to 48 unless you set it"


def _write_triple(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    triple = None if schedule.only is None else as_dynamic_tree(schedule.only)
    if triple is None:
        raise InputError("SGLang loads one triple for all batch sizes", hint="give one chain or one dynamic tree")
    if setup.survival is not None and triple.topk > 1:
        raise InputError("SGLang pretends acceptance of chains only", hint="leave --synthetic out, or export a chain")
    paged = "topk > 1 with a page size above 1 needs the attention backend flashinfer, fa3 or triton"
    notes = (_REQUESTS, paged) if triple.topk > 1 else (_REQUESTS,)
    if setup.rule in _RULE_FLAGS and triple.topk > 1:
        notes = (
            *notes,
            f"the plan's ranks are under {setup.rule}, which SGLang has for chains alone: it may accept less",
        )
    flags = [*_tree_flags(triple), *(_rule_flags(setup) if triple.topk == 1 else [])]
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {triple.num_steps + 1}", notes)


def _write_ngram(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    length, depth = schedule.longest, setup.lookup.longest
    if setup.lookup.rule != "sglang":  # whose longest run is the depth of its trie
        depth += length
    flags = [f"--{NODES}", str(length + 1), *(w for name in BREADTHS for w in (f"--{name}", "1"))]
    flags += [f"--{TRIE}", str(depth)] if depth > _TRIE_DEPTH else []
    note = "SGLang looks n-grams up in a trie over all requests, by its own rule of which match counts"
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {length + 1}", (_REQUESTS, note))


def _write_block(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    flags = [f"--{BLOCK}", str(schedule.longest + 1)]
    note = "the block counts the token before the drafts; another size than the drafter was trained with drafts worse"
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {schedule.longest + 1}", (note,))


def _write_dspark(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    flags = [f"--{GAMMA}", str(schedule.longest)]
    notes = (
        "the DSPARK block does not count the token before the drafts, unlike DFLASH's",
        f"how many drafts a step verifies is chosen by --{SPS} TABLE, which `treeopt profile table --engine sglang` "
        "writes; without a table all are verified",
    )
    return _flags_only(setup, word, flags, f"{_PROOF}: at most {schedule.longest + 1}", notes)


def _write_adaptive(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    lengths = {s.batch_min: chain_length(s.draft) or 0 for s in schedule.steps}
    config = {str(start): {"candidate_steps": [length]} for start, length in lengths.items()}
    captured = capture_sizes_for(list(lengths), setup.end_of(schedule))
    file_name = "sglang_adaptive.json"
    flags = [*_tree_flags(DynamicTree(schedule.longest, 1, schedule.longest + 1)), *_rule_flags(setup)]
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
    return [word for name, n in zip((STEPS, TOPK, NODES), tree, strict=True) for word in (f"--{name}", str(n))]


def _rule_flags(setup: Setup) -> list[str]:
    flag = _RULE_FLAGS.get(setup.rule or "") if setup.survival is None else None
    return [flag] if flag else []


def _flags_only(setup: Setup, word: DrafterWord, flags: list[str], proof: str, notes: tuple[str, ...]) -> Written:
    return Written(
        content=shlex.join(flags),
        file_name="sglang_flags.txt",
        launch=_launch(setup, word, flags),
        proof=proof,
        notes=notes,
    )


def _launch(setup: Setup, word: DrafterWord, flags: list[str]) -> str:
    start = ["python", "-m", "sglang.launch_server", "--model-path", setup.model, f"--{ALGORITHM}", word.text]
    model = ["--speculative-draft-model-path", setup.draft_model] if word.has_model else []
    pretended = "" if setup.survival is None else f"SGLANG_SIMULATE_ACC_LEN={1.0 + sum(setup.survival):.6g} "
    return pretended + shlex.join([*start, *model, *flags])


def _has_topk(schedule: DraftSchedule) -> bool:
    return any(chain_length(step.draft) is None for step in schedule.steps)


def _adaptive(*, may_be_off: bool, since: Release, before: Release | None) -> Format:
    return Format(
        name="adaptive",
        limits=Chains(per_batch=True, may_be_off=may_be_off),
        write=_write_adaptive,
        read=read_adaptive,
        drafters=ADAPTIVE,
        since=since,
        before=before,
        switches=_SWITCHES,
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
            read=read_ngram,
            drafters=NGRAM,
            since=Release(0, 5, 11),
        ),
        Format(
            name="block",
            limits=Chains(),
            write=_write_block,
            read=read_block,
            drafters=DFLASH,
            since=Release(0, 5, 11),
        ),
        Format(
            name="dspark",
            limits=Chains(),
            write=_write_dspark,
            read=read_dspark,
            drafters=DSPARK,
            since=Release(0, 5, 23),
        ),
        Format(
            name="triple",
            limits=DynamicTrees(rule=RULE),
            write=_write_triple,
            read=read_triple,
            drafters=DRAFTERS,
            since=Release(0, 5, 0),
            pretends_since=Release(0, 5, 0),
            switches=_SWITCHES,
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
