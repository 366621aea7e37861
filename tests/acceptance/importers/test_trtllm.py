from __future__ import annotations

import json

import pytest


def stats(drafted: int, accepted: int, requests: int, length: float | None = None) -> dict[str, object]:
    spec = {"numDraftTokens": drafted, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": requests}
    return {"iter": 1, "specDecodingStats": {**spec, "acceptanceLength": length or 1 + accepted / max(requests, 1)}}


def test_iterations_add_up_by_length(read) -> None:
    rows = [stats(24, 12, 8), stats(12, 3, 4), stats(8, 6, 8), stats(0, 0, 0), {"specDecodingStats": None}]
    found = read(json.dumps(rows))
    assert {s.tally.draft_tokens: (s.tally.drafts, s.tally.mean_accepted_length) for s in found.sources} == {
        1: (8, 1.75),
        3: (12, 2.25),
    }
    assert read("\n".join(map(json.dumps, rows))).profiles[1].evidence == found.profiles[1].evidence


def test_iterations_of_several_lengths_are_no_evidence(read) -> None:
    found = read(json.dumps([stats(24, 12, 8), stats(11, 4, 4)]))
    assert found.sources[0].tally.drafts == 8
    assert "2.75 tokens on average" in str(found.unplanned[0])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (stats(24, 25, 8), "25 draft tokens accepted, but only 24 drafted"),
        (stats(24, 12, 8, 3.5), "mean accepted length 3.5 stated, but its counts give 2.5"),
        (stats(10**9, 0, 1), "1000000000 draft tokens per step"),
        (stats(-24, 0, 8), "out of range"),
    ],
)
def test_contradicting_iterations_are_reported(refusal, row: dict[str, object], words: str) -> None:
    error = refusal("\n".join([json.dumps(stats(24, 12, 8)), json.dumps(row)]))
    assert "sample.txt:2: " in str(error)
    assert words in str(error)


def metrics(drafted: list[int], accepted: list[int], *, drafted_all: int, accepted_all: int) -> str:
    labels = 'model_name="m"'
    lines = [
        f"trtllm_spec_decode_num_draft_tokens_total{{{labels}}} {drafted_all}",
        f"trtllm_spec_decode_num_accepted_tokens_total{{{labels}}} {accepted_all}",
        f"trtllm_spec_decode_acceptance_length{{{labels}}} 2.5",
    ]
    for name, values in (("drafted", drafted), ("accepted", accepted)):
        for i, value in enumerate(values):
            lines.append(f'trtllm_spec_decode_{name}_tokens_total{{{labels},token_position="{i}"}} {value}')
    return "\n".join(lines) + "\n"


def test_complete_positions_give_survival(read) -> None:
    text = metrics([20, 20, 20, 0], [12, 12, 6, 0], drafted_all=60, accepted_all=30)
    evidence = read(text).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (20, [12.0, 12.0, 6.0])


def test_some_positions_give_the_mean_only(read) -> None:
    found = read(metrics([20], [12], drafted_all=60, accepted_all=30))
    assert (found.sources[0].tally.draft_tokens, found.sources[0].tally.mean_accepted_length) == (3, 2.5)
    assert "positions are missing" in found.warnings[0]


def test_a_gauge_alone_is_no_evidence(read) -> None:
    found = read(metrics([], [], drafted_all=60, accepted_all=30))
    assert not found.profiles
    assert found.unplanned[0].mean_accepted_length == 2.5


def test_two_scrapes_are_subtracted_but_not_their_gauges(read) -> None:
    first = metrics([10, 10], [6, 3], drafted_all=20, accepted_all=9)
    second = metrics([30, 30], [16, 9], drafted_all=60, accepted_all=25)
    evidence = read(first, second).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (20, [10.0, 6.0])


def test_contradicting_positions_are_reported(refusal) -> None:
    text = metrics([20, 20, 20], [12, 6, 12], drafted_all=60, accepted_all=30)
    assert "sample.txt:9: acceptance rises from 6 at position 1 to 12 at position 2" in str(refusal(text))
    assert "but not 0" in str(refusal(text.replace('_position="0"', '_position="7"')))
    assert "token_position is 'x'" in str(refusal(text.replace('_position="0"', '_position="x"')))


CHOICE = {
    "acceptance_rate": 0.5,
    "total_accepted_draft_tokens": 30,
    "total_draft_tokens": 60,
    "num_spec_steps": 20,
    "acceptance_histogram": [8, 0, 6, 6],
    "num_spec_tokens": 3,
}


def test_choices_give_survival(read, refusal) -> None:
    evidence = read(json.dumps({"choices": [{"speculative_decoding": CHOICE}]})).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (20, [12.0, 12.0, 6.0])
    assert "acceptance rate 0.6 stated" in str(refusal(json.dumps({**CHOICE, "acceptance_rate": 0.6})))
    assert "counts 19 drafts" in str(refusal(json.dumps({**CHOICE, "acceptance_histogram": [7, 0, 6, 6]})))
