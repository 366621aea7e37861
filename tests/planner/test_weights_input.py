"""How often so many requests run, from pairs, tables, logs and scrapes, and the plan that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treeopt
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.errors import TreeoptError
from treeopt.planner.explain import explain
from treeopt.planner.inputs import inputs_of
from treeopt.planner.weights_input import load_weights
from treeopt.solve.weights import BatchWeight

VLLM_LOG = """\
INFO 08-14 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs
INFO 08-14 10:00:10 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs
INFO 08-14 10:00:20 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 8 reqs, Waiting: 1 reqs
INFO 08-14 10:00:30 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs
"""
SGLANG_LOG = "Decode batch. #running-req: 2, #token: 1\nDecode batch. #running-req: 8, #token: 1\n" * 2
SCRAPES = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 9.0
vllm:num_requests_running{engine="0",model_name="m"} 8.0
"""
TABLE = "running,weight\n8,30\n2,10\n0,60\n"


@pytest.mark.parametrize(
    ("text", "low"), [(VLLM_LOG, 1 / 3), (SGLANG_LOG, 0.5), (SCRAPES, 0.5), (TABLE, 0.25), ("2=1,8=3", 0.25)]
)
def test_every_source_gives_shares_of_the_time(tmp_path: Path, text: str, low: float) -> None:
    given_ = text
    if "\n" in text:
        file = tmp_path / "traffic"
        file.write_text(text)
        given_ = str(file)
    assert load_weights(given_) == (
        BatchWeight(2, pytest.approx(low)),
        BatchWeight(8, pytest.approx(1 - low)),
    )


@given(st.dictionaries(st.integers(1, 1000), st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_weights_sum_to_1_in_the_order_of_the_sizes(pairs: dict[int, float]) -> None:
    found = load_weights(pairs)
    assert [w.batch for w in found] == sorted(pairs)
    assert sum(w.share for w in found) == pytest.approx(1.0)
    for weight in found:
        assert weight.share == pytest.approx(pairs[weight.batch] / sum(pairs.values()))
    written = ",".join(f"{batch}={weight!r}" for batch, weight in pairs.items())
    assert [(w.batch, pytest.approx(w.share)) for w in load_weights(written)] == list(found)


@pytest.mark.parametrize(
    "wrong",
    ["1=x", "1", "=", "1=0.1,,2=1", "1.5=1", "1=-1", "1=nan", "1=inf", "0=1", "1=0", "-1=1", "10000000=1", "no-such"],
)
def test_what_is_no_weight_is_refused(wrong: str) -> None:
    with pytest.raises(TreeoptError):
        load_weights(wrong)


@pytest.mark.parametrize(
    "text", ["", "nothing\n", "running,weight\n", "running,weight\nx,1\n", "running,weight\n1.5,1\n"]
)
def test_a_file_that_tells_no_requests_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(TreeoptError):
        load_weights(str(file))


def table(folder: Path) -> str:
    """At 1 request 2 drafts are best, at 32 none: the one setting depends on which of them runs."""
    file = folder / "steps.csv"
    file.write_text(
        "batch,k,accept_len,step_ms\n1,0,1,10\n1,1,1.7,12\n1,2,2.2,13\n32,0,1,20\n32,1,1.7,30\n32,2,2.2,50\n"
    )
    return str(file)


@pytest.mark.parametrize(("traffic", "K"), [({1: 0.99, 32: 0.01}, 2), ({1: 0.5, 32: 0.5}, 1), ({1: 1}, 2)])
def test_search_reason_explain_and_export_agree(tmp_path: Path, traffic: dict[int, float], K: int) -> None:
    plan = treeopt.search(
        [1, 32], cost=table(tmp_path), engine="llamacpp", drafter="mtp", traffic=traffic, only_listed=True
    )
    (bucket,) = plan.buckets
    rates = {1: {1: 1700 / 12, 2: 2200 / 13}, 32: {1: 32 * 1700 / 30, 2: 32 * 2200 / 50}}
    total = sum(traffic.values())
    mean = {k: sum(w / total * rates[b][k] for b, w in traffic.items()) for k in (1, 2)}
    assert bucket.num_speculative_tokens == K == max(mean, key=mean.__getitem__)
    assert plan.expected is not None
    assert plan.expected.tokens_per_s == pytest.approx(mean[K], rel=1e-6)
    assert f"{mean[K]:,.0f} tokens/s over the weights of batch sizes" in bucket.reason
    told = explain(plan, inputs_of(plan), batch=1)
    assert told.expected == plan.expected
    assert told.choice.draft == bucket.draft
    made = export(plan, find_engine("llamacpp"), Setup(drafter="mtp"))
    assert made.schedule.only == bucket.draft
    assert any("by the weights of the plan" in note for note in made.notes)
    file = tmp_path / "plan.yaml"
    plan.save(file)
    read = treeopt.load_plan(file)
    assert [w.batch for w in read.weights] == sorted(traffic)
    assert read.buckets[0].minimax is not None
