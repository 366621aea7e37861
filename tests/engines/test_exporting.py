from __future__ import annotations

from pathlib import Path

import pytest
from engines.conftest import Part, Planned
from engines.samples import BINARY, CHAIN, EAGLE, INTENT, TRIPLE, chain

from treeopt.draft_family import OFF, chain_length, has_leading_parents
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.importing import import_file
from treeopt.engines.registry import ENGINES, find_engine
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.errors import InputError
from treeopt.files.typed import write
from treeopt.plan.plan import Plan
from treeopt.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "intent": (INTENT, ("vllm", "sglang", "trtllm")),
    "triple": (TRIPLE, ("sglang", "trtllm", "openvino")),
    "chain": (
        CHAIN,
        (
            *("vllm", "vllm==0.22.0", "sglang", "trtllm", "openvino", "mlc", "llamacpp", "transformers", "tgi"),
            *("lmdeploy", "speculators", "medusa"),
        ),
    ),
    "eagle": (EAGLE, ("paths", "medusa", "eagle1", "hydra", "trtllm==1.3.0")),
    "binary": (BINARY, ("vllm==0.20.2", "mlc", "medusa")),
}


@pytest.mark.parametrize(("case", "engine"), [(case, e) for case, (_, engines) in CASES.items() for e in engines])
def test_golden_files(case: str, engine: str) -> None:
    """Byte by byte what was read through and found right, and it reads back."""
    target = find_engine(engine)
    named = "eagle" if target.engine.name in ("vllm", "mlc") or "eagle3" not in target.kinds else "eagle3"
    drafter = named if named in target.kinds or not target.kinds else target.usual_drafter
    setup = Setup(drafter=drafter, draft_model="org/drafter")
    found = export(CASES[case][0], target, setup)
    name = f"{case}-{engine.replace('==', '-')}{Path(found.written.file_name).suffix}"
    assert found.written.content == (GOLDEN / name).read_text()
    back = import_file(GOLDEN / name, target).schedule
    assert back.steps == CASES[case][0].steps


def test_every_golden_file_is_tested() -> None:
    named = {f"{case}-{e.replace('==', '-')}" for case, (_, engines) in CASES.items() for e in engines}
    assert {path.stem for path in GOLDEN.iterdir()} == named


def test_a_format_without_loss_is_preferred(planned: Planned) -> None:
    uniform = DraftTree.from_widths([2, 2])
    plan = planned(Part(1, 8, uniform, 400.0, 2, 300.0, 100.0))
    legacy = export(plan, find_engine("vllm==0.20.2"), Setup())
    assert (legacy.kind, legacy.losses) == ("token-tree", ())
    today = export(plan, find_engine("vllm"), Setup())
    assert (today.kind, [x.share for x in today.losses]) == ("chain", [pytest.approx(0.25)])
    assert chain_length(today.schedule.only) == 2  # type: ignore[arg-type]


def test_a_format_without_loss_is_preferred_even_to_one_that_gains(planned: Planned) -> None:
    """A chain that is faster at the largest batch size is not what the plan says."""
    plan = planned(Part(1, 8, DraftTree.from_widths([2, 2]), 400.0, 2, 420.0, 100.0))
    assert export(plan, find_engine("vllm==0.20.2"), Setup()).kind == "token-tree"
    chain_only = export(plan, find_engine("vllm"), Setup())
    assert [x.share for x in chain_only.losses] == [pytest.approx(-0.05)]


def test_off_is_written_by_the_format_that_can_be_off(planned: Planned) -> None:
    """One length for all batch sizes fits too, but loses more."""
    parts = (
        Part(1, 16, EAGLE.only, 800.0, 2, 700.0, 500.0),  # type: ignore[arg-type]
        Part(17, 64, OFF, 1000.0, 2, 900.0, 1000.0),
    )
    plan = planned(*parts)
    for engine, form in (("vllm", "schedule"), ("sglang", "adaptive"), ("trtllm", "schedule")):
        kept = export(plan, find_engine(engine), Setup(drafter="eagle3"))
        assert kept.schedule == DraftSchedule(steps=(ScheduleStep(1, chain(2)),), covers=64)
        assert "the plan does not speculate at batch 17-64" in kept.notes[0]
        assert "--allow-off" in kept.notes[0]
        off = export(plan, find_engine(engine), Setup(drafter="eagle3"), allow_off=True)
        assert (off.kind, off.schedule.steps) == (form, (ScheduleStep(1, chain(2)), ScheduleStep(17, OFF)))
        assert [loss.batch.min for loss in off.losses] == [1]
        assert not any("does not speculate" in note for note in off.notes)
    one = export(plan, find_engine("vllm"), Setup(drafter="eagle3"), batch=8)
    assert not any("does not speculate" in note for note in one.notes)  # the user chose one setting for all
    never = export(plan, find_engine("llamacpp"), Setup(drafter="eagle3"), allow_off=True)
    assert "the engine cannot be off" in never.notes[0]


@pytest.mark.parametrize(
    ("engine", "kind", "runs"),
    [
        ("tgi", "eagle", False),
        ("tgi", "medusa", True),
        ("medusa", "eagle3", False),
        ("mlc", "model:llama", True),
        ("paths", "mtp", True),
        ("llamacpp", "eagle", False),
        ("sglang", "medusa", False),
        ("sglang", "ngram", True),
        ("transformers", "ngram", True),
        ("vllm==0.10.2", "mtp", False),
        ("vllm==0.11.0", "mtp", True),
    ],
)
def test_a_drafter_that_an_engine_lacks_is_refused(planned: Planned, engine: str, kind: str, runs: bool) -> None:
    plan, target = planned(Part(1, 8, chain(2), 400.0, 2, 400.0, 100.0)), find_engine(engine)
    if runs:
        assert export(plan, target, Setup(drafter=kind)).written.content
        return
    with pytest.raises(InputError, match=f"{kind}|from 0.11.0") as caught:
        export(plan, target, Setup(drafter=kind))
    assert caught.value.hint
    word = {"vllm==0.10.2": "deepseek_mtp", "llamacpp": "draft-simple"}.get(engine, "medusa")
    assert export(plan, target, Setup(drafter=kind, method=word)).written.content  # who names one knows it


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ("vllm", "eagle3"),
        ("sglang", "EAGLE3"),
        ("trtllm", "Eagle3"),
        ("lmdeploy", "eagle3"),
        ("mlc", "eagle"),
        ("llamacpp", "draft-simple"),
        ("tgi", None),
        ("speculators", None),
        ("medusa", None),
    ],
)
def test_a_drafter_is_said_to_be_assumed_where_one_is(engine: str, word: str | None) -> None:
    """Whatever the models are called."""

    def assumed(**given: str) -> list[str]:
        setup = Setup(model="acme/eagle3-base", draft_model="my-eagle3.gguf", **given)
        return [note for note in export(CHAIN, find_engine(engine), setup).notes if "assumed" in note]

    said = [f"the drafter is not known, {word} is assumed: name another with --method"]
    assert assumed() == (said if word else [])
    assert assumed(drafter=find_engine(engine).usual_drafter) == []


def test_a_drafter_that_an_engine_cannot_name() -> None:
    with pytest.raises(InputError, match=r"^LMDeploy 0\.18\.0 runs no medusa drafter$") as caught:
        export(CHAIN, find_engine("lmdeploy"), Setup(drafter="medusa"))
    assert caught.value.hint.startswith("it runs eagle, eagle3, mtp, dflash; ")
    own = export(CHAIN, find_engine("lmdeploy"), Setup(drafter="medusa", method="their-own"))
    assert '"method": "their-own"' in str(own.written.content)


def test_refusals_say_why_and_what_loads() -> None:
    with pytest.raises(InputError) as caught:
        export(EAGLE, find_engine("vllm"), Setup())
    assert str(caught.value) == "vLLM: a tree of 26 nodes, depth 5 is no chain"
    assert "one chain length" in caught.value.hint
    assert "a chain length per range of batch sizes" in caught.value.hint


def test_a_real_plan_goes_to_every_engine(real_plan: Plan) -> None:
    for engine in ENGINES:
        if engine.name == "sequoia" or (
            engine.name == "eagle1" and not has_leading_parents(real_plan.bucket_for(1).tree)
        ):
            continue  # binary, or a tree that EAGLE-1 drafts wrongly
        target = find_engine(engine.name)
        found = export(real_plan, target, Setup(drafter=target.usual_drafter), batch=1)
        kept = found.schedule.only == real_plan.bucket_for(1).tree
        assert kept == (found.losses == ())
        assert found.written.content
        assert found.written.proof


@pytest.mark.parametrize(
    ("engine", "method", "said"),
    [
        ("trtllm", None, "TensorRT-LLM 1.4.0rc4 was read, its code was not run on such a file"),
        ("llamacpp", "draft-simple", "llama.cpp commit of 2026-11 was read, its code was not run on such a file"),
        ("vllm==0.17.0", None, "vLLM 0.17.0's code was not run on settings of eagle3 drafters"),
        ("vllm==0.25.1", "mtp", "vLLM 0.25.1's code was not run on settings of mtp drafters"),
        ("vllm==0.31.0", "dflash", "vLLM 0.31.0's code was not run on settings of dflash drafters"),
        ("vllm", "custom_class", "vLLM 0.33.0's code was not run on settings of such drafters"),
        ("sglang==0.5.10", None, "checked with SGLang 0.5.23, not with 0.5.10"),
        ("vllm==0.17.0", "custom_class", "vLLM 0.17.0's code was not run on settings of such drafters"),
        ("vllm==0.25.1", "eagle3", None),
        ("vllm==0.32.0", "dflash", None),
        ("sglang==0.5.13", None, None),
        ("openvino", None, None),
        ("paths", None, None),
    ],
)
def test_where_no_code_was_asked_export_says_documentation_only(
    engine: str, method: str | None, said: str | None
) -> None:
    found = export(CHAIN, find_engine(engine), Setup(method=method))
    notes = [note for note in found.notes if note.startswith("documentation only")]
    assert notes == ([] if said is None else [f"documentation only: {said}"])
    assert found.checked_by == ("documentation only" if said else "" if engine == "paths" else "own code")


def test_what_is_said_beside_the_file() -> None:
    found = export(CHAIN, find_engine("vllm==0.34.0"), Setup())
    assert "documentation only: checked with vLLM 0.33.0, not with 0.34.0" in found.notes
    asked = export(CHAIN, find_engine("vllm==0.24.0"), Setup())
    assert not any("documentation only" in note for note in asked.notes)
    assert (found.checked_by, asked.checked_by) == ("documentation only", "own code")
    assert any("--method" in note for note in found.notes)
    assert not any("--method" in note for note in export(CHAIN, find_engine("vllm"), Setup(drafter="eagle3")).notes)
    only = export(INTENT, find_engine("vllm"), Setup(), batch=6)
    assert only.schedule == DraftSchedule.constant(chain(2))
    document = write(only)
    assert document["format"] == "treeopt.export/2"
    assert document["drafts"] == [{"batch": {"min": 1, "max": None}, "draft": "a chain of 2"}]
    bugs = write(export(INTENT, find_engine("vllm"), Setup()))["bugs"]
    assert "vllm-project/vllm#49548" in [bug["reference"] for bug in bugs]


@pytest.mark.parametrize(
    ("engine", "drafter", "recorded", "words"),
    [
        ("vllm", "ngram", "ngram:3", "follow treeopt's rule, vLLM has its own"),
        ("vllm", "ngram", None, "do not say by whose rule"),
        ("vllm", "ngram", "prompt lookup, 3 tokens", "do not say by whose rule"),
        ("vllm", "ngram", "ngram:vllm:1-3", None),
        ("vllm", "ngram", "ngram:transformers:1-3", None),  # the same rule
        ("transformers", "ngram", "ngram:vllm:1-3", None),
        ("sglang", "ngram", "ngram:vllm:1-3", "follow vllm's rule, SGLang has its own"),
        ("vllm", "eagle3", "ngram:3", None),
        ("lmdeploy", "eagle3", None, None),
    ],
)
def test_ranks_of_another_lookup_are_said(engine: str, drafter: str, recorded: str | None, words: str | None) -> None:
    said = find_engine(engine).foreign_lookup(drafter, recorded)
    assert (said is None) == (words is None)
    assert words is None or words in str(said)
