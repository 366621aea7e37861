from __future__ import annotations

import json

import pytest

from treeopt.acceptance.position import MeanLength, PositionSurvival

PREFIX = "vllm:spec_decode_num"


def scrape(drafts: float, drafted: float, accepted: float, positions: list[float], engine: int = 0) -> str:
    labels = f'engine="{engine}",model_name="m"'
    lines = [
        f"# HELP {PREFIX}_drafts_total Number of drafts.",
        f"{PREFIX}_drafts_total{{{labels}}} {drafts}",
        f"{PREFIX}_draft_tokens_total{{{labels}}} {drafted}",
        f"{PREFIX}_accepted_tokens_total{{{labels}}} {accepted}",
        *(f'{PREFIX}_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}' for i, n in enumerate(positions)),
        f"{PREFIX}_drafts_created{{{labels}}} 1.7e+09",
    ]
    return "\n".join(lines) + "\n"


def line(mean: float, accepted: int, drafted: int, rates: str, average: float) -> str:
    return (
        f"INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: {mean}, Accepted throughput: 1 tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {average}%\n"
    )


GOOD = line(2.37, 137, 300, "0.650, 0.440, 0.280", 45.7)


def test_counters_alone_give_k_and_the_mean(read) -> None:
    found = read(scrape(4816.0, 33712.0, 12208.0, []))
    assert found.kind == "vllm-prometheus"
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, MeanLength)
    assert (evidence.draft_tokens, evidence.drafts) == (7, 4816)
    assert evidence.mean_accepted_length == pytest.approx(3.535, abs=5e-4)
    assert "never widths" in found.supports
    assert "treeopt ranks collect" in found.supports


def test_positions_of_all_engines_add_up(read) -> None:
    found = read(scrape(100, 200, 90, [60, 30]) + scrape(300, 600, 210, [140, 70], engine=1))
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, PositionSurvival)
    assert evidence.survival.tolist() == pytest.approx([0.5, 0.25])
    assert found.sources[0].tally.mean_accepted_length == pytest.approx(1.75)
    assert found.profiles[0].conditions.target == "m"


def test_two_scrapes_are_subtracted(read) -> None:
    evidence = read(scrape(100, 200, 90, [60, 30]), scrape(300, 600, 190, [130, 60])).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (200, [70.0, 30.0])


def test_a_restart_between_scrapes_is_reported(refusal) -> None:
    error = refusal(scrape(300, 600, 190, [130, 60]), scrape(100, 200, 90, [60, 30]))
    assert ":2: " in str(error)
    assert "fell from 300 to 100" in str(error)


def test_a_scrape_while_the_engine_counts_is_read(read) -> None:
    assert read(scrape(1000, 2000, 901, [600, 300])).profiles[0].evidence.accepted.tolist() == [600.0, 300.0]


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        (scrape(100, 200, 90, [60, 70]), 6, "rises from 60 at position 0 to 70 at position 1"),
        (scrape(100, 200, 90, [160, 70]), 5, "160 at position 0: more than 100"),
        (scrape(100, 200, 250, [60, 30]), 2, "250 draft tokens accepted, but only 200 drafted"),
        (scrape(100, 500, 90, [60, 30]), 2, "500 tokens drafted, but 100 drafts of 2 make at most 200"),
        (scrape(1000, 2000, 1200, [600, 300]), 2, "count 900 accepted tokens, the total says 1200"),
        (scrape(100, 200, 90, [60, 30]) + scrape(100, 200, 90, [60, 30]), 9, "was already given in line 2"),
        (scrape(float("nan"), 200, 90, [60, 30]), 2, "is nan"),
        (scrape(-5, 200, 90, [60, 30]), 2, "is -5"),
        (scrape(1e300, 200, 90, [60, 30]), 2, "is 1e+300"),
        (scrape(0, 0, 0, [0, 0]), 2, "0 drafts"),
        (f'{PREFIX}_drafts_total{{a="b}} 3\n', 1, "not a Prometheus sample"),
        (f"{PREFIX}_emitted_tokens_total 3\n", 1, "not all there"),
    ],
)
def test_contradicting_counters_are_reported(refusal, text: str, number: int, words: str) -> None:
    error = refusal(text, name="m.prom")
    assert f"m.prom:{number}: " in str(error)
    assert words in str(error)


def test_drafts_of_several_lengths_have_no_chain(read) -> None:
    found = read(scrape(100, 250, 90, []))
    assert not found.profiles
    assert found.supports == "nothing can be planned from it"
    assert "2.5 tokens on average" in str(found.unplanned[0])


def test_log_intervals_add_up_by_draft_length(read) -> None:
    found = read("noise\n" + GOOD + GOOD + line(1.5, 50, 100, "0.500", 50.0))
    by_length = {source.tally.draft_tokens: source for source in found.sources}
    assert by_length[3].profile.evidence.accepted.tolist() == [130.0, 88.0, 56.0]
    assert (by_length[3].tally.drafts, by_length[1].tally.drafts) == (200, 100)
    assert [source.profile.name for source in found.sources] == ["sample-k1", "sample-k3"]


def test_shorter_drafts_are_told(read) -> None:
    # 100 drafts, of which 10 had one token only: 280 draft tokens.
    found = read(line(2.37, 137, 280, "0.650, 0.440, 0.280", 48.9))
    assert found.sources[0].tally.drafts == 100
    assert "20 of 300 draft tokens were not proposed" in found.warnings[0]


def test_a_wrapped_line_keeps_its_rates(read) -> None:
    found = read("Per-position acceptance rate: 0.844, 0.599, 0.385, 0.271\nAvg Draft acceptance rate: 52.5%\n")
    assert found.profiles[0].evidence.survival.tolist() == [0.844, 0.599, 0.385, 0.271]
    assert found.profiles[0].evidence.trials is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line(2.37, 137, 300, "0.650, 0.440, 0.480", 45.7), "rises from 0.44 at position 1 to 0.48 at position 2"),
        (line(2.37, 137, 300, "1.650, 0.440, 0.280", 45.7), "1.65 at position 0: more than 1"),
        (line(2.37, 337, 300, "0.650, 0.440, 0.280", 45.7), "337 draft tokens accepted, but only 300 drafted"),
        (line(2.97, 137, 300, "0.650, 0.440, 0.280", 45.7), "mean accepted length 2.97 stated"),
        (line(2.37, 137, 300, "0.650, 0.440, 0.280", 55.7), "acceptance rate 0.557 stated"),
        (line(2.37, 137, 300, "0.650, 0.440, 0.280", 155.7), "155.70%: more than 100 %"),
        ("Per-position acceptance rate: 0.844, 0.599\nAvg Draft acceptance rate: 92.5%\n", "0.925 stated"),
    ],
)
def test_contradicting_log_lines_are_reported(refusal, text: str, words: str) -> None:
    error = refusal(GOOD * 2 + text, name="vllm.log")
    assert "vllm.log:3: " in str(error) or "vllm.log:4: " in str(error)
    assert words in str(error)


def test_a_log_that_is_being_written_loses_its_last_line_only(read) -> None:
    found = read(GOOD + GOOD[:-45])
    assert found.sources[0].tally.drafts == 100
    assert found.warnings[0] == "the last line is cut off and left out"


def v0(rate: float, efficiency: float, accepted: int, drafted: int, emitted: int) -> str:
    return (
        f"INFO metrics.py:427] Speculative metrics: Draft acceptance rate: {rate}, System efficiency: {efficiency}, "
        f"Number of speculative tokens: 4, Number of accepted tokens: {accepted}, Number of draft tokens: {drafted}, "
        f"Number of emitted tokens: {emitted}.\n"
    )


FIRST, SECOND = v0(0.655, 0.649, 1735, 2648, 2149), v0(0.656, 0.654, 3268, 4980, 4074)


def test_v0_counters_run_on_so_the_last_line_counts(read) -> None:
    evidence = read(FIRST + SECOND).profiles[0].evidence
    assert (evidence.draft_tokens, evidence.drafts) == (4, 1245)
    assert evidence.mean_accepted_length == pytest.approx(4074 / 1245)


def test_v0_runs_add_up(read) -> None:
    found = read(SECOND + FIRST)
    assert found.profiles[0].evidence.drafts == 1245 + 662
    assert "started again 1 times" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FIRST + v0(0.656, 0.241, 3268, 4980, 1500), "emitted tokens fell from 2149 to 1500"),
        (FIRST + v0(0.656, 0.654, 5268, 4980, 4074), "5268 draft tokens accepted, but only 4980 drafted"),
        (FIRST + v0(0.656, 0.654, 3268, 4980, 9074), "9074 tokens emitted by 1245 drafts of 4"),
        (FIRST + v0(0.856, 0.654, 3268, 4980, 4074), "acceptance rate 0.856 stated"),
    ],
)
def test_contradicting_v0_lines_are_reported(refusal, text: str, words: str) -> None:
    error = refusal(text)
    assert "sample.txt:2: " in str(error)
    assert words in str(error)


RESULT = {
    "model_id": "m",
    "spec_decode_acceptance_rate": 45.6667,
    "spec_decode_acceptance_length": 2.37,
    "spec_decode_num_drafts": 100,
    "spec_decode_draft_tokens": 300,
    "spec_decode_accepted_tokens": 137,
    "spec_decode_per_position_acceptance_rates": [0.65, 0.44, 0.28],
}
TABLE = """
---------------Speculative Decoding---------------
Acceptance rate (%):                     45.67
Acceptance length:                       2.37
Drafts:                                  100
Draft tokens:                            300
Accepted tokens:                         137
Per-position acceptance (%):
  Position 0:                            65.0
  Position 1:                            44.0
  Position 2:                            28.0
==================================================
"""


@pytest.mark.parametrize("text", [json.dumps(RESULT), json.dumps(RESULT, indent=1), TABLE])
def test_percent_and_fractions_of_the_benchmark_agree(read, text: str) -> None:
    evidence = read(text).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (100, [65.0, 44.0, 28.0])


def test_a_table_without_counts_gives_rates(read) -> None:
    evidence = read("\n".join(row for row in TABLE.splitlines() if "raft" not in row)).profiles[0].evidence
    assert (evidence.drafts, evidence.survival.tolist()) == (None, [0.65, 0.44, 0.28])


def test_a_table_that_rises_names_the_position_and_its_line(refusal) -> None:
    error = refusal(TABLE.replace("28.0", "48.0"))
    assert "sample.txt:11: acceptance rises from 0.44 at position 1 to 0.48 at position 2" in str(error)


def test_runs_in_one_file_stay_apart(read) -> None:
    assert [p.name for p in read(TABLE + TABLE).profiles] == ["sample", "sample-2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec_decode_acceptance_rate": 145.67}, "145.67%: more than 100 %"),
        ({"spec_decode_acceptance_rate": 0.4567}, "acceptance rate 0.004567 stated"),
        ({"spec_decode_acceptance_length": 3.37}, "mean accepted length 3.37 stated"),
        ({"spec_decode_per_position_acceptance_rates": [65.0, 44.0, 28.0]}, "65 at position 0: more than 1"),
        ({"spec_decode_per_position_acceptance_rates": [0.65, 0.66, 0.28]}, "rises from 0.65"),
        ({"spec_decode_per_position_acceptance_rates": [0.65, 0.34, 0.28]}, "make 127 accepted tokens"),
        ({"spec_decode_num_drafts": 0}, "0 drafts"),
        ({"spec_decode_num_drafts": 10**30}, "out of range"),
        ({"spec_decode_num_drafts": -1}, "out of range"),
        ({"spec_decode_num_drafts": "many"}, "expected a number"),
    ],
)
def test_contradicting_results_are_reported(refusal, change: dict[str, object], words: str) -> None:
    error = refusal(json.dumps({**RESULT, **change}), name="result.json")
    assert "result.json:1: " in str(error)
    assert words in str(error)


def summary(**changes: object) -> dict[str, object]:
    info = {
        "mean_acceptance_length": 1 + 10 / 43,
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    return {"usage": {"completion_tokens": 53}, "metrics": {"speculative_decoding": {**info, **changes}}}


def test_requests_add_up(read) -> None:
    evidence = read("\n".join([json.dumps(summary())] * 2), name="requests.jsonl").profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (86, [8.0, 6.0, 6.0])


def test_requests_are_kept_apart_by_draft_length(read) -> None:
    parts = {"0": [4], "2": [20, 0, 2], "3": [15, 1, 0, 1]}
    found = read(
        json.dumps(
            summary(
                acceptance_histogram_by_draft_length=parts,
                acceptance_histogram=[39, 1, 2, 1],
                num_accepted_draft_tokens=8,
                mean_acceptance_length=1 + 8 / 43,
            )
        )
    )
    assert {s.tally.draft_tokens: s.profile.evidence.accepted.tolist() for s in found.sources} == {
        2: [2.0, 2.0],
        3: [2.0, 1.0, 1.0],
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_acceptance_length": 1.5}, "mean accepted length 1.5 stated, but its counts give 1.233"),
        ({"acceptance_histogram": [38, 1, 0, 3]}, "the histogram counts 42 drafts, the total says 43"),
        ({"acceptance_histogram": [38, 2, 0, 3]}, "the histogram counts 11 accepted tokens, the total says 10"),
        ({"num_spec_tokens": 2, "num_draft_tokens": 86}, "3 tokens of a draft accepted, but drafts have 2"),
        ({"num_draft_tokens": 9}, "10 draft tokens accepted, but only 9 drafted"),
        ({"num_spec_tokens": 5000}, "5000 draft tokens per step"),
    ],
)
def test_contradicting_requests_are_reported(refusal, changes: dict[str, object], words: str) -> None:
    error = refusal("\n".join([json.dumps(summary()), json.dumps(summary(**changes))]), name="requests.jsonl")
    assert "requests.jsonl:2: " in str(error)
    assert words in str(error)


def test_tokens_past_the_end_of_the_text_are_reported(refusal) -> None:
    error = refusal(json.dumps({**summary(), "usage": {"completion_tokens": 50}}, indent=1), name="r.json")
    assert "43 steps and 10 accepted tokens make 53, but the output has 50" in str(error)
    assert "r.json:6: " in str(error)


OFFLINE = """total_num_output_tokens: 237
num_drafts: 100
num_draft_tokens: 300
num_accepted_tokens: 137
mean acceptance length: 2.37
acceptance at token 0: 0.65
acceptance at token 1: 0.44
acceptance at token 2: 0.28
"""


def test_offline_run(read, refusal) -> None:
    evidence = read(OFFLINE).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (100, [65.0, 44.0, 28.0])
    assert "sample.txt:5: mean accepted length 2.97" in str(refusal(OFFLINE.replace("2.37", "2.97")))
    assert "sample.txt:7: acceptance rises" in str(refusal(OFFLINE.replace("0.44", "0.74")))
    assert [source.tally.drafts for source in read(OFFLINE * 2).sources] == [100, 100]


def test_a_log_written_three_times_over_holds_three_times_the_drafts(read) -> None:  # type: ignore[no-untyped-def]
    log = (
        "SpecDecoding metrics: Mean acceptance length: 2.37, Accepted: 137 tokens, Drafted: 300 tokens, "
        "Per-position acceptance rate: 0.650, 0.440, 0.280, Avg Draft acceptance rate: 45.7%\n"
        "Per-position acceptance rate: 0.844, 0.599, 0.385, 0.271\nAvg Draft acceptance rate: 52.5%\n"
    )
    once, thrice = read(log), read(log * 3)
    assert thrice.sources[0].tally.drafts == 3 * once.sources[0].tally.drafts
    assert len(thrice.sources) == len(once.sources)
