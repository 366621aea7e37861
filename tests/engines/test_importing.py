from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engines.conftest import Read
from engines.samples import BINARY, CHAIN, EAGLE, INTENT, TRIPLE, chain
from hypothesis import given
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.prompt_lookup import PromptLookup, parse_lookup
from treeopt.draft_family import OFF, Chains, DynamicTree
from treeopt.engines.format import Engine, Format, Setup
from treeopt.engines.importing import import_file, load_drafts, parse_spec
from treeopt.engines.registry import ENGINES, EngineAt, find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.errors import InputError, TreeoptError
from treeopt.plan.plan import Plan

Refused = Callable[..., None]


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("none", OFF),
        ("chain:0", OFF),
        ("chain:7", chain(7)),
        ("sglang:3,4,16", DynamicTree(3, 4, 16)),
        ("sglang:3, 4, 16", DynamicTree(3, 4, 16)),
        ("sglang:3,1,4", chain(3)),
        ("vllm:4", chain(4)),
        ("trtllm:6,10,60", DynamicTree(6, 10, 61)),  # the root is not counted
        ("openvino:3,2,10", DynamicTree(3, 2, 11)),
    ],
)
def test_a_few_words(text: str, draft: object) -> None:
    schedule = parse_spec(text)
    assert schedule is not None
    assert schedule.only == draft


@pytest.mark.parametrize("text", ["plan.yaml", "a:b:c", "C:/file", ""])
def test_other_words(text: str) -> None:
    assert parse_spec(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chain:x", "is not a chain"),
        ("chain:", "is not a chain"),
        ("chain:99999999", "is not a chain"),
        ("sglang:3,4", "is not a dynamic tree"),
        ("sglang:3,4,-1", "is not a dynamic tree"),
        ("sglang:5,4,999", "cannot verify 999 tokens"),
        ("sglang:3,1,9", "cannot verify 9 tokens"),
        ("trtllm:6,10,61", "cannot verify 62 tokens"),
        ("openvino:0,2,4", "OpenVINO GenAI cannot draft 0 steps of 2 guesses"),
        ("nothing", "neither a file nor known words"),
        ("missing.json", "no such file"),
        ("no/such", "no such file"),
    ],
)
def test_words_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_drafts(text)
    assert words in str(caught.value)


def test_numbers_without_the_root_are_explained() -> None:
    with pytest.raises(InputError) as caught:
        load_drafts("trtllm:6,10,61")
    assert "7 to 61; the number after the last comma leaves the root out: one less" in caught.value.hint


def test_own_files(tmp_path: Path, real_plan: Plan) -> None:
    path = tmp_path / "f.yaml"
    real_plan.save(path)
    loaded = load_drafts(str(path))
    assert isinstance(loaded, Plan)
    assert [b.tree for b in loaded.buckets] == [b.tree for b in real_plan.buckets]
    for schedule in (INTENT, TRIPLE, EAGLE):
        path.write_text(schedule.yaml())
        assert load_drafts(str(path)) == schedule
    path.write_text("format: treeopt.ranks/1\n")
    with pytest.raises(InputError, match=r"expected 'treeopt\.tree/1'"):
        load_drafts(str(path))


def test_each_file_is_found_by_its_shape(read: Read, tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden"
    for path in golden.iterdir():
        expected = {"intent": INTENT, "triple": TRIPLE, "chain": CHAIN, "eagle": EAGLE, "binary": BINARY}
        assert import_file(path).schedule.steps == expected[path.name.split("-")[0]].steps, path.name


def test_the_named_engine_must_have_the_shape(refused: Refused) -> None:
    refused("[[0], [1]]", "vllm", "not what vLLM 0.33.0 loads", "one chain length")
    refused('{"num_speculative_tokens": 2, "speculative_token_tree": "[(0,), (1,)]"}', "vllm==0.21.0", "not what vLLM")
    refused("{}", None, "nothing in it is known")
    refused("just words", None, "nothing in it is known")
    refused("", None, "the file is empty")
    refused(b"\xff\xfe", None, "not a text file")


_KEYS = (
    *("1", "5", "candidate_steps", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"),
    *("speculative_token_tree", "speculative_config", "decoding_type", "max_draft_len", "eagle_choices"),
    *("draft_len_schedule", "use_dynamic_tree", "dynamic_tree_max_topK", "max_total_draft_tokens", "tree_depth"),
    *("branching_factor", "num_assistant_tokens", "spec_draft_length", "spec_tree_width", "proposal_methods"),
    *("speculative_tokens", "num_assistant_tokens_schedule", "max_concurrency"),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats(-2, 9) | st.sampled_from(["", "1", "(0,)", "[[0]]"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(value=_JSON, engine=st.sampled_from([None, "vllm", "vllm==0.20.2", "sglang", "trtllm==1.3", "openvino", "mlc"]))
def test_any_file_is_read_or_refused(
    value: object, engine: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import json

    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    hint, start = "", 0
    try:
        start = import_file(path, None if engine is None else find_engine(engine)).schedule.steps[0].batch_min
    except TreeoptError as error:
        hint = error.hint
    assert start == 1 or hint


@needs_shared
@pytest.mark.parametrize(
    ("name", "engine", "length", "drafter"),
    [("trt_mtp.yaml", "TensorRT-LLM", 3, "mtp"), ("sglang_dflash_cmd.txt", "SGLang", 15, "dflash")],
)
def test_settings_as_people_posted_them(name: str, engine: str, length: int, drafter: str) -> None:
    found = import_file(SHARED / "data" / "faults" / name)
    assert (found.engine.title, found.drafter) == (engine, drafter)
    assert found.schedule.only == chain(length)  # a block of 16 is 15 drafts and the token before them


KINDS = [(e, f, kind) for e in ENGINES for f in e.formats for kind in f.drafters.words if e.name != "sequoia"]


@pytest.mark.parametrize(("engine", "form", "kind"), KINDS, ids=lambda v: getattr(v, "name", v))
def test_what_is_exported_is_read_back_with_its_drafter(
    engine: Engine, form: Format, kind: str, tmp_path: Path
) -> None:
    """In every format of every engine, by every drafter; where the file names no drafter, none is read."""
    word, release = form.drafters.words[kind], form.since or engine.newest
    release = max(release, word.since or release)
    per_batch = isinstance(form.limits, Chains) and form.limits.per_batch
    schedule = DraftSchedule(steps=(ScheduleStep(1, chain(3)), ScheduleStep(9, chain(2)))) if per_batch else CHAIN
    setup = Setup(drafter=kind, release=release, lookup=PromptLookup(rule="treeopt", shortest=1, longest=4))
    written = form.write(schedule, setup, word)
    text = str(written.content)
    path = tmp_path / "file"
    path.write_text(written.launch if text.startswith("--") else text)
    target = EngineAt(engine, engine.checked, release, (form,))
    found = import_file(path, target)
    assert all(found.schedule.at(batch) == schedule.at(batch) for batch in (1, 8, 9, 256))
    named = word.text and word.text in path.read_text()
    alike = [k for k, w in form.drafters.words.items() if (w.text, w.parallel) == (word.text, word.parallel)]
    runs = found.drafter is not None and found.drafter.startswith(alike[0])  # DFlash2 is a DFlash to vLLM's settings
    assert runs if named else found.drafter is None or runs
    lookup = parse_lookup(found.drafter or "")
    assert lookup is None or lookup.longest == 4 or engine.name == "sglang"  # SGLang's trie has no longest run
