from __future__ import annotations

import json

import pytest

from treeopt.acceptance.position import MeanLength
from treeopt.acceptance.table import DepthRanks


def old(length: float, rate: float | None, running: int = 1) -> str:
    rated = "" if rate is None else f"accept rate: {rate}, "
    return (
        f"[2025-10-22 10:27:57 TP0] Decode batch. #running-req: {running}, #token: 108, token usage: 0.00, "
        f"accept len: {length}, {rated}cuda graph: True, gen throughput (token/s): 0.39, #queue-req: 0, \n"
    )


def new(length: float, rate: float, running: int = 16) -> str:
    return (
        f"[2026-08-06 09:53:41 DP0 TP0] Decode batch, #running-req: {running}, #token: 7352, token usage: 0.01, "
        f"accept len: {length}, accept rate: {rate}, cuda graph: True, gen throughput (token/s): 1.0, #queue-req: 0\n"
    )


def mean(found) -> tuple[float, int]:
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, MeanLength)
    return evidence.mean_accepted_length, evidence.draft_tokens


def test_k_follows_from_what_the_two_values_allow(read) -> None:
    # 2.17 / 0.54 = 4.02 nodes, the root included; (3.03 - 1) / 0.29 = 7.0 drafts.
    assert mean(read(old(2.17, 0.54))) == (2.17, 3)
    assert mean(read(new(3.03, 0.29))) == (3.03, 7)


def test_the_old_meaning_lived_on_behind_the_new_separator(read) -> None:
    assert mean(read(new(2.17, 0.54) + new(1.95, 0.49))) == (pytest.approx(2.06), 3)


def test_lines_weigh_as_much_as_their_requests(read) -> None:
    found = read(old(2.17, 0.54, running=1) + old(1.95, 0.49, running=3))
    assert mean(found) == (pytest.approx((2.17 + 3 * 1.95) / 4), 3)
    assert "mean of 2 log lines, 1.95 to 2.17" in found.profiles[0].note


def test_lines_without_a_rate_need_k(read) -> None:
    found = read(old(2.54, None))
    assert not found.profiles
    assert "no accept rate" in str(found.unplanned[0])
    assert mean(read(old(2.54, None), draft_tokens=3)) == (2.54, 3)


def test_arguments_in_the_log_tell_k_and_trees(read) -> None:
    arguments = (
        "server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk={}, speculative_num_draft_tokens=4)\n"
    )
    chain = read(arguments.format(1) + old(2.54, None))
    assert mean(chain) == (2.54, 3)
    assert chain.warnings == ()
    tree = read(arguments.format(4) + old(2.54, None))
    assert not tree.profiles
    assert "speculative_eagle_topk 4" in str(tree.unplanned[0])


def test_a_length_that_changes_is_told_apart(read) -> None:
    # Adaptive speculation: K = 3 gives rates 0.5 and 0.4, K = 1 gives 0.6 (accepted per draft token).
    found = read(new(2.5, 0.5) + new(2.2, 0.4) + new(1.6, 0.6))
    assert {s.tally.draft_tokens: s.tally.mean_accepted_length for s in found.sources} == {
        1: 1.6,
        3: pytest.approx(2.35),
    }
    assert any("changed during the log" in warning for warning in found.warnings)


def test_nothing_accepted_tells_no_length(read) -> None:
    assert not read(new(1.0, 0.0)).profiles


def test_a_cut_line_is_left_out(read) -> None:
    assert mean(read(old(2.17, 0.54) + old(2.99, 0.75)[: old(2.99, 0.75).index("9, accept rate")])) == (2.17, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [(new(0.5, 0.29), "accept len 0.5 is below 1"), (new(3.03, 1.29), "accept rate 1.29 is above 1")],
)
def test_impossible_lines_are_reported(refusal, text: str, words: str) -> None:
    error = refusal(new(3.03, 0.29) + text)
    assert "sample.txt:2: " in str(error)
    assert words in str(error)


INFO = {
    "completion_tokens": 8,
    "spec_verify_ct": 7,
    "spec_num_correct_drafts": 1,
    "spec_num_proposed_drafts": 21,
    "spec_correct_drafts_histogram": [6, 1],
}


def test_request_histograms_add_up(read) -> None:
    older = {
        "spec_verify_ct": 3,
        "spec_accept_token_num": 4,
        "spec_draft_token_num": 9,
        "spec_accept_histogram": [1, 1, 0, 1],
    }
    evidence = read(json.dumps([{"meta_info": INFO}, {"meta_info": older}])).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (10, [3.0, 1.0, 1.0])


def test_requests_without_a_histogram_give_the_mean(read) -> None:
    info = {k: v for k, v in INFO.items() if "histogram" not in k}
    assert mean(read(json.dumps({"meta_info": info}))) == (pytest.approx(8 / 7), 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completion_tokens": 7}, "make 8, but the output has 7"),
        ({"spec_correct_drafts_histogram": [5, 2]}, "counts 2 accepted tokens, the total says 1"),
        ({"spec_num_correct_drafts": 22}, "the histogram counts 1 accepted tokens"),
        ({"spec_num_proposed_drafts": 0}, "0 draft tokens per step"),
        ({"spec_verify_ct": 10**20}, "out of range"),
    ],
)
def test_contradicting_requests_are_reported(refusal, change: dict[str, object], words: str) -> None:
    info = {**INFO, **change}
    info.pop("completion_tokens" if "completion_tokens" not in change else "none", None)
    assert words in str(refusal(json.dumps(info))) or "accepted, but only" in str(refusal(json.dumps(info)))


def test_server_info(read) -> None:
    state = {"avg_spec_accept_length": 2.54, "speculative_num_steps": 3}
    assert mean(read(json.dumps({"internal_states": [state]}))) == (2.54, 3)
    assert not read(json.dumps({"speculative_eagle_topk": 4, "internal_states": [state]})).profiles
    assert not read(json.dumps({"avg_spec_accept_length": 2.54})).profiles


def bench(steps: int, topk: int, length: float) -> str:
    return json.dumps({"batch_size": 1, "steps": steps, "topk": topk, "num_draft_tokens": 4, "acc_length": length})


def test_benchmarks_of_trees_are_listed_and_of_chains_planned(read, refusal) -> None:
    found = read("\n".join([bench(0, 0, 1.0), bench(3, 1, 1.86), bench(3, 4, 2.2)]))
    assert mean(found) == (1.86, 3)
    assert [u.mean_accepted_length for u in found.unplanned] == [2.2]
    assert "3 drafts give 1 to 4" in str(refusal(bench(3, 1, 4.5)))


def test_specforge_results(read) -> None:
    runs = [
        {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "metrics": [{"accept_length": 1.86}]},
        {"batch_size": 1, "steps": None, "topk": None, "num_draft_tokens": None, "metrics": [{"accept_length": 2.0}]},
    ]
    found = read(json.dumps({"model": "org/draft", "mtbench": runs}, indent=4))
    assert mean(found) == (1.86, 3)
    assert (found.profiles[0].conditions.drafter, found.profiles[0].conditions.dataset) == ("org/draft", "mtbench")
    assert "does not say what was drafted" in str(found.unplanned[0])


PROBE = """[DDTREE rank-probe] target-token rank in draft dist (cumulative):
depth reached  t1    t2    t4    t8    t16   t32
d0    1000    0.70  0.80  0.90  0.92  0.95  0.97
d1    700     0.60  0.70  0.80  0.88  0.90  0.92
"""


def test_rank_probe_gives_ranks_where_they_are_alone(read) -> None:
    found = read(PROBE.replace("1000", "500").replace("700 ", "350 ") + PROBE)
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, DepthRanks)
    assert evidence.counts.tolist() == [[700.0, 100.0], [420.0, 70.0]]
    assert evidence.reached.tolist() == [1000.0, 700.0]
    first = found.sources[0].known_sums[0]
    assert (first.depth, first.first_rank, first.last_rank) == (1, 2, 3)
    assert first.probability == pytest.approx(0.10)
    assert "2 guesses per node" in found.supports


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("700 ", "1700"), "sample.txt:4: depth 1 was reached 1700 times, the one above it 1000"),
        (("0.60  0.70", "0.70  0.60"), "sample.txt:4: top-2 0.6 after top-1 0.7"),
        (("0.97", "97.0"), "sample.txt:3: top-32 97 is above 1"),
        (("0.60  0.70", "0.60"), "sample.txt:4: 5 rates under 6 columns"),
    ],
)
def test_contradicting_probes_are_reported(refusal, change: tuple[str, str], words: str) -> None:
    assert words in str(refusal(PROBE.replace(*change)))
