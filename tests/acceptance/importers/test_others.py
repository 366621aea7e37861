from __future__ import annotations

import json

import pytest

from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.table import DepthRanks


def alpha(right: list[int], tried: list[int]) -> str:
    choice = {"index": 0, "idxs": [tried[0] - 1], "new_tokens": [500], "alpha": right, "alpha_num": tried}
    return json.dumps({"question_id": 81, "model_id": "v-temperature-0.0", "choices": [choice]}) + "\n"


def test_alpha_counts_add_up(read) -> None:
    found = read(alpha([60, 30], [100, 60]) + alpha([20, 5], [50, 20]))
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, DepthRanks)
    assert (evidence.reached.tolist(), evidence.counts.tolist()) == ([150.0, 80.0], [[80.0], [35.0]])
    assert found.sources[0].tally.mean_accepted_length == pytest.approx(1 + 115 / 150)
    assert found.profiles[0].conditions.temperature == 0.0
    assert not any("a tree was verified" in warning for warning in found.warnings)


def test_a_depth_that_was_tried_too_rarely_betrays_a_tree(read) -> None:
    found = read(alpha([90, 61], [121, 85]))
    assert "depth 2 was tried 85 times after 90 acceptances: a tree was verified" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (alpha([60, 70], [100, 60]), "70 draft tokens accepted, but only 60 drafted"),
        (alpha([60, 30], [100, 80]), "tried 80 times, but the depth above was accepted 60 times"),
        (alpha([60, 30, 10], [100, 60]), "3 values of alpha, 2 of alpha_num"),
        (alpha([0] * 2000, [1] + [0] * 1999), "2000 values of alpha"),
    ],
)
def test_contradicting_alphas_are_reported(refusal, text: str, words: str) -> None:
    error = refusal(alpha([1], [2]) + text)
    assert "sample.txt:2: " in str(error)
    assert words in str(error)


def answers(last: list[int], new: list[int]) -> str:
    return json.dumps({"model_id": "medusa", "choices": [{"idxs": last, "new_tokens": new}]}) + "\n"


def test_answers_count_their_last_index_as_a_step(read, refusal) -> None:
    found = read(answers([99, 49], [300, 150]))
    assert (found.profiles, found.unplanned[0].mean_accepted_length) == ((), 3.0)
    chain = read(answers([99, 49], [300, 150]), draft_tokens=4).profiles[0].evidence
    assert chain == MeanLength(mean_accepted_length=3.0, draft_tokens=4, drafts=150)
    assert "sample.txt:2: " in str(refusal(answers([99], [300]) + answers([99], [99])))


def lengths(accepted: list[int], new: list[int]) -> str:
    return json.dumps({"model_id": "m", "choices": [{"accept_lengths": accepted, "new_tokens": new}]}) + "\n"


def test_spec_bench_needs_to_know_what_was_drafted(read, refusal) -> None:
    text = lengths([4, 3, 4, 1, 3, 2, 4], [12, 9])
    assert read(text).unplanned[0].mean_accepted_length == 3.0
    evidence = read(text, draft_tokens=3).profiles[0].evidence
    assert isinstance(evidence, PositionSurvival)
    assert (evidence.drafts, evidence.accepted.tolist()) == (7, [6.0, 5.0, 3.0])
    assert "3 tokens of a draft accepted, but drafts have 2" in str(refusal(text, draft_tokens=2))
    past = refusal(lengths([4, 3, 4], [10]))
    assert "sample.txt:1: " in str(past)
    assert "make 11, but the output has 10" in str(past)
    assert "out of range" in str(refusal(lengths([0], [10])))


PROFILE = {
    "measured": True,
    "draft_checkpoint": {"id": "org/draft"},
    "target_model": {"id": "org/target"},
    "num_speculative_tokens": 3,
    "conditional_accept_rates": [0.65, 0.676923, 0.636364],
    "marginal_accept_rates": [0.65, 0.44, 0.28],
    "mean_accept_length": 2.37,
    "acceptance_length_histogram": {"1": 350, "2": 210, "3": 160, "4": 280},
    "measurement_conditions": {"dataset": "mtbench", "temperature": 0},
}


def test_modelopt_profile(read) -> None:
    found = read(json.dumps(PROFILE, indent=1))
    evidence = found.profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (1000, [650.0, 440.0, 280.0])
    assert found.profiles[0].conditions.known() == {
        "target": "org/target",
        "drafter": "org/draft",
        "temperature": 0.0,
        "dataset": "mtbench",
        "sampling": "draft-starts",
    }
    rates = read(json.dumps({**PROFILE, "acceptance_length_histogram": None})).profiles[0].evidence
    assert (rates.drafts, rates.survival.tolist()) == (None, [0.65, 0.44, 0.28])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"measured": False}, "nothing was measured"),
        ({"mean_accept_length": 2.5}, "mean accepted length 2.5 stated, but its counts give 2.37"),
        ({"marginal_accept_rates": [0.65, 0.54, 0.28]}, "multiply up to 0.44 at position 1"),
        ({"conditional_accept_rates": None, "marginal_accept_rates": [0.65, 0.54, 0.28]}, "rate 0.54 stated"),
        ({"marginal_accept_rates": [0.65, 0.75, 0.28]}, "multiply up to 0.44 at position 1, the marginal rate is 0.75"),
        ({"acceptance_length_histogram": {"0": 1, "2": 210}}, "1 steps of length 0"),
        ({"acceptance_length_histogram": {"x": 1}}, "'x' is no number of tokens"),
        ({"num_speculative_tokens": 2}, "3 tokens of a draft accepted, but drafts have 2"),
    ],
)
def test_contradicting_profiles_are_reported(refusal, change: dict[str, object], words: str) -> None:
    assert words in str(refusal(json.dumps({**PROFILE, **change})))


GOLDEN = """# dataset: coding | temperature: 1.0 | top_p: 0.95
# key = num_speculative_tokens; value = golden AL
_metadata:
  draft-model: org/draft
m:
  thinking_on: {1: 1.78, 2: 2.38}
  thinking_off: {1: 1.84, 2: 1.80}
"""


def test_golden_lengths_stay_runs_of_their_own(read, refusal) -> None:
    found = read(GOLDEN, name="golden.yaml")
    assert [p.name for p in found.profiles] == [f"golden-thinking_{m}-k{k}" for m in ("on", "off") for k in (1, 2)]
    assert [s.tally.mean_accepted_length for s in found.sources] == [1.78, 2.38, 1.84, 1.80]
    conditions = found.profiles[0].conditions
    assert (conditions.temperature, conditions.dataset, conditions.drafter) == (1.0, "coding", "org/draft")
    assert "sample.txt:6: m.thinking_on.2: 3.38 is out of range" in str(refusal(GOLDEN.replace("2.38", "3.38")))
    assert "the key is no number of drafts" in str(refusal(GOLDEN.replace("1: 1.78", "x: 1.78")))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("2.3\n", {"kind": "mean", "draft_tokens": 5}, (2.3, 5)),
        ("Mean accepted length 2.3 with K=5", {}, (2.3, 5)),
        ("mean acceptance length: 2.46\nnum_speculative_tokens: 3\n", {}, (2.46, 3)),
        ("#Mean accepted tokens:  1.3 without bonus, draft tokens: 5", {}, (2.3, 5)),
    ],
)
def test_bare_means(read, text: str, options: dict[str, object], expected: tuple[float, int]) -> None:
    evidence = read(text, **options).profiles[0].evidence
    assert (evidence.mean_accepted_length, evidence.draft_tokens) == (pytest.approx(expected[0]), expected[1])


def test_a_mean_without_k_plans_nothing(read, refusal) -> None:
    assert "add `draft tokens: K`" in str(read("mean accepted length 2.3").unplanned[0])
    two = read("mean accepted length 2.3\nmean accepted length 2.5\nmean accepted length 2.5").unplanned
    assert [u.mean_accepted_length for u in two] == [2.3, 2.5]
    assert "4 drafts give 1 to 5" in str(refusal("mean accepted length 5.3, K = 4"))
