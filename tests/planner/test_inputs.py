"""What a search is made from: the options that change a price, and how a plan remembers them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from treeopt.acceptance.replay import ALL_POSITIONS_FLATTER
from treeopt.cost.engine import PUBLISHED_EAGER_S
from treeopt.cost.served.published import TYPICAL
from treeopt.errors import InputError
from treeopt.files.shipped import locate
from treeopt.plan.reading import load_plan
from treeopt.planner.inputs import inputs_of, load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.solve.problem import Problem


def test_captured_graphs_and_skew_reach_the_price() -> None:
    names = Names(
        ranks="example",
        hardware="h100-sxm",
        model="qwen3-30b-a3b",
        capture_tokens=(1, 8),
        capture_limit=8,
        expert_skew=1.2,
    )
    cost = load_inputs(names).kernels
    captures = {"capture_tokens": (1, 8), "capture_limit": 8, "eager_s": PUBLISHED_EAGER_S}
    assert cost.engine == replace(TYPICAL, **captures)  # a data sheet knows no engine
    assert cost.model.experts is not None
    assert cost.model.experts.skew == 1.2


def test_a_plan_remembers_what_changed_its_prices(tmp_path: Path) -> None:
    given = Names(
        ranks="example",
        hardware="h100-sxm",
        model="qwen3-30b-a3b",
        capture_tokens=(1, 8),
        capture_limit=64,
        expert_skew=1.2,
    )
    path = tmp_path / "plan.yaml"
    inputs = load_inputs(given)
    make_plan(Problem(batches=(2,)), inputs, command="x").save(path)
    assert inputs_of(load_plan(path)).cost == inputs.cost


def test_a_plan_without_them_says_nothing_of_them(tmp_path: Path) -> None:
    inputs = load_inputs(Names(ranks="example"))
    of = inputs.sources
    assert (of.hardware.capture_tokens, of.hardware.capture_limit, of.model.expert_skew) == (None, None, None)
    assert (of.model.dtype, of.model.tp) == ("bf16", 1)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (Names(ranks="example", expert_skew=1.0), "llama-3.1-8b has no experts"),
        (Names(ranks="example", model="mixtral-8x7b", expert_skew=9.0), "an expert skew of 9 is out of range"),
        (Names(ranks="example", capture_tokens=(8, 4)), "capture sizes 8, 4"),
    ],
)
def test_what_makes_no_sense_is_refused(names: Names, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_inputs(names)


def profile(folder: Path, name: str, rule: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"format: treeopt.ranks/1\nname: {name}\nevidence: depth-rank\nprobabilities: [[0.6, 0.1]]\n"
        + (f"conditions: {{rule: {rule}}}\n" if rule else "")
    )
    return path


def test_a_mixture_is_of_one_rule(tmp_path: Path) -> None:
    greedy, typical = profile(tmp_path, "code", "greedy"), profile(tmp_path, "chat", "typical")
    with pytest.raises(InputError, match="rule differs: typical in chat, greedy in code"):
        load_inputs(Names(ranks=f"{typical}=0.9,{greedy}=0.1"))
    # As in a merge, a part that does not say goes with any.
    silent = profile(tmp_path, "silent")
    inputs = load_inputs(Names(ranks=f"{silent}=0.9,{typical}=0.1"))
    assert inputs.rule == "typical"
    assert any("typical acceptance" in note.text for note in inputs.notes(1, 2048))
    assert load_inputs(Names(ranks=str(silent))).rule == "greedy"


def test_ranks_counted_over_all_positions_are_said_to_flatter(tmp_path: Path) -> None:
    path = profile(tmp_path, "counted")
    path.write_text(path.read_text() + "conditions: {sampling: all-positions}\n")
    notes = load_inputs(Names(ranks=str(path))).notes(1, 2048)
    assert sum(f"ranks counted: {ALL_POSITIONS_FLATTER}" in note.text for note in notes) == 1


def test_notes_name_the_limits_of_the_numbers_once() -> None:
    names = Names(ranks="example", hardware="h100-sxm", drafter="eagle3", capture_limit=64)
    notes = load_inputs(names).notes(32, 2048, nodes=10)
    for part in ("datasheet roofline", "past 64 tokens a step leaves the captured graphs", "32,000 tokens"):
        assert sum(part in note.text for note in notes) == 1
    assert len(notes) == len(set(notes))


def test_a_cache_that_does_not_fit_is_said() -> None:
    inputs = load_inputs(Names(ranks="example"))
    # 16.6 GB of weights and 131072 + 4096 bytes per token of each of 256 requests, EAGLE's included
    assert any("need 158 GB per GPU" in note.text for note in inputs.notes(256, 4096))
    assert not any("per GPU" in note.text for note in inputs.notes(16, 4096))


TABLE = '{"batch_stats": {"1": {"0": 7.0, "1": 7.5, "2": 8.0}, "8": {"0": 8.0, "1": 9.0, "2": 30.0}}}'


def test_a_cost_table_prices_what_it_has_and_the_model_the_rest(tmp_path: Path) -> None:
    table = tmp_path / "steps.json"
    table.write_text(TABLE)
    inputs = load_inputs(Names(ranks="example", cost=str(table)))
    plan = make_plan(Problem(batches=(1, 8), only_listed=True), inputs, command="x")
    first, second = plan.buckets
    assert first.plain is not None
    assert second.plain is not None
    assert first.plain.tokens_per_s.value == pytest.approx(1 / 0.007)
    assert second.plain.tokens_per_s.value == pytest.approx(8 / 0.008)
    assert second.best_chain.depth == 1  # two drafts took 30 ms
    assert second.best_chain.tokens_per_s.value == pytest.approx(8 * second.best_chain.acceptance_length.value / 0.009)
    assert first.sensitivity is None
    assert any("does not say at what context" in note.text for note in plan.notes)
    assert table in inputs.files


def test_a_plan_remembers_its_cost_table(tmp_path: Path) -> None:
    table, path = tmp_path / "steps.json", tmp_path / "plan.yaml"
    table.write_text(TABLE)
    inputs = load_inputs(Names(ranks="example", cost=str(table)))
    make_plan(Problem(batches=(8,)), inputs, command="x").save(path)
    plan = load_plan(path)
    assert plan.sources.cost is not None
    assert (plan.sources.cost.name, plan.sources.cost.reference) == ("steps.json", str(table))
    price = inputs_of(plan).cost.step_time_s(8, 3, 2, np.array([1, 1]), 2048)
    assert float(price) == pytest.approx(0.030)
    table.write_text(TABLE.replace("30.0", "9.5"))
    with pytest.raises(InputError, match=r"steps.json \(cost\) has changed"):
        inputs_of(plan)


def piped(content: bytes) -> str:
    """A file that can be read only once, as a shell's `<(command)` is."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(content)
    return f"/dev/fd/{reader}"


def test_the_hash_is_of_what_was_read() -> None:
    contents = {
        "hardware": locate("hardware", "h100-sxm").path.read_bytes(),
        "model": locate("models", "llama-3.1-8b").path.read_bytes(),
        "cost": TABLE.encode(),
    }
    inputs = load_inputs(Names(ranks="example", **{kind: piped(content) for kind, content in contents.items()}))
    assert inputs.sources.cost is not None
    found = {"hardware": inputs.sources.hardware, "model": inputs.sources.model, "cost": inputs.sources.cost}
    expected = {kind: hashlib.sha256(content).hexdigest() for kind, content in contents.items()}
    assert {kind: source.sha256 for kind, source in found.items()} == expected
    rows = b"batch,k,step_ms\n1,0,7.0\n1,1,8.0\n"
    served = load_inputs(Names(ranks="example", cost=piped(rows))).sources.cost
    assert served is not None
    assert served.sha256 == hashlib.sha256(rows).hexdigest()


def test_constants_of_another_drafter_are_said() -> None:
    names = Names(ranks="example", hardware="h100-sxm-vllm-0.24", drafter="mtp")
    assert any("was fitted with eagle, not mtp" in note.text for note in load_inputs(names).notes(8, 2048))
    eagle = Names(ranks="example", hardware="h100-sxm-vllm-0.24")
    assert not any("was fitted with" in note.text for note in load_inputs(eagle).notes(8, 2048))


@pytest.mark.parametrize(
    ("recorded", "priced", "said"),
    [
        ("ngram:3", "eagle", "--drafter ngram"),
        ("early-exit:12", "eagle", "--drafter model:NAME"),
        ("ngram:3", "ngram", None),
        ("a head of ours", "eagle", None),
    ],
)
def test_ranks_of_another_drafter_than_the_priced_one_are_told(
    recorded: str, priced: str, said: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    text = locate("ranks", "example").path.read_text().replace("name: example", "name: mine")
    path.write_text(f"{text}conditions:\n  drafter: {recorded}\n")
    notes = load_inputs(Names(ranks=str(path), drafter=priced)).notes(1, 2048)
    told = [note.text for note in notes if "of the drafter" in note.text]
    assert [said in note for note in told] == ([True] if said else [])


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (Names(), "smollm2-135m-eagle"),
        (Names(drafter="eagle3"), "eagle3-llama-3.1-8b-mt-bench"),
        (Names(model="vicuna-7b", drafter="medusa"), "medusa-vicuna-7b"),
        (Names(model="qwen3-8b", drafter="ngram"), "smollm2-135m-eagle"),  # nothing of it is published
        (Names(model="vicuna-7b", drafter="medusa", ranks="example"), "example"),
    ],
)
def test_a_pair_gets_what_is_published_of_it(names: Names, ranks: str) -> None:
    assert load_inputs(names).sources.ranks.name == ranks


def test_published_ranks_of_another_target_are_said_to_be() -> None:
    near = load_inputs(Names(model="llama-3.3-70b", tp=4, drafter="eagle3"))
    assert any("not of llama-3.3-70b" in note.text for note in near.notes(8, 2048))
    own = load_inputs(Names(drafter="eagle3"))
    assert not any("others' numbers" in note.text for note in own.notes(8, 2048))
