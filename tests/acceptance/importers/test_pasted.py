"""Texts as people pasted them into public reports: each row of data/faults, and other texts of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.draft_family import DynamicTree
from treeopt.errors import InputError
from treeopt.tree import DraftTree

FAULTS = SHARED / "data" / "faults"


def told(found) -> list[tuple[int | None, float]]:
    """K and the mean of every source, and of what cannot be planned from."""
    known = [(s.tally.draft_tokens, s.tally.mean_accepted_length) for s in found.sources]
    return [*known, *((None, u.mean_accepted_length) for u in found.unplanned)]


@needs_shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k_to_al_eagle3.yaml", [(2, 2.36), (3, 2.79), (4, 3.08), (5, 3.32), (6, 3.46), (7, 3.54)]),
        ("totals_taken_as_k.txt", [(None, 2.46)]),
        ("ik_spec_bench.txt", [(None, 3.76), (None, 3.72), (None, 2.39)]),
        ("sglang_bench_serving.txt", [(None, 4.53)]),
        ("sglang_bench_line.txt", [(None, 5.39)]),
        ("trtllm_bench_al.txt", [(None, 1.86)]),
        ("spark350_summary.txt", [(7, pytest.approx(2.762))]),
        ("vllm_issue20780_eagle3.log", [(7, pytest.approx(3.54))]),
        ("vllm_k3.prom", [(3, pytest.approx(3.06))]),
    ],
)
def test_the_reports(name: str, expected: list[tuple[int | None, float]]) -> None:
    assert told(read_evidence([FAULTS / name])) == expected


@needs_shared
def test_positions_beside_a_mean_are_used() -> None:
    evidence = read_evidence([FAULTS / "spark350_summary.txt"]).profiles[0].evidence
    assert isinstance(evidence, PositionSurvival)
    assert evidence.survival.tolist() == [0.576, 0.378, 0.266, 0.2, 0.15, 0.111, 0.081]


@needs_shared
def test_llamacpp_of_2025_keeps_its_drafters_apart() -> None:
    found = read_evidence([FAULTS / "llamacpp_old_statistics.log"])
    tallies = {s.profile.conditions.drafter: s.tally for s in found.sources}
    mtp, ngram = tallies["draft-mtp"], tallies["ngram-mod"]
    assert (mtp.drafts, mtp.drafted_tokens, mtp.accepted_tokens) == (1308, 2602, 2031)
    assert mtp.mean_accepted_length == pytest.approx(2.553, abs=5e-4)
    # Asked 1,315 times, it had 7 drafts: 90 tokens more in 1,315 steps.
    assert (ngram.drafts, ngram.steps, ngram.drafted_tokens, ngram.accepted_tokens) == (7, 1315, 448, 90)
    assert ngram.mean_accepted_length == pytest.approx(1 + 90 / 1315)
    assert "ngram-map-k was asked for drafts and had none" in found.warnings


@needs_shared
def test_a_trees_log_is_no_chain() -> None:
    log, tree = FAULTS / "sglang_s3_k4_n16_h200.log", DynamicTree(3, 4, 16)
    with pytest.raises(InputError, match="a tree was drafted, not a chain") as caught:
        read_evidence([log])
    assert "--drafted sglang:STEPS,TOPK,16" in caught.value.hint
    for drafted in (tree, DraftTree.chain(15)):
        evidence = read_evidence([log], drafted=drafted).profiles[0].evidence
        assert isinstance(evidence, MeanLength)
        assert (evidence.tree, evidence.draft_tokens) == (tree if drafted == tree else None, 15)
        assert evidence.mean_accepted_length == pytest.approx(2.952)


TOTALS = "Mean acceptance length: 2.46\nDraft tokens: 6567\nAccepted tokens: 3187\n"
MARKDOWN = "| model | K | AL |\n|--|--|--|\n| a | 0 | 1.0 |\n| a | 2 | 2.1 |\n| b | 4 | 2.9 \u00b1 0.1 |\n"
TRIPLES = "batch,steps,topk,num_draft_tokens,accept_length\n1,0,0,0,1\n1,3,1,4,1.9\n1,3,4,16,2.5\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Accept length:                          4.53\n", [(None, 4.53)]),
        ("#questions: 80, Throughput: 1.0 token/s, Acceptance length: 3.1\n", [(None, 3.1)]),
        (
            "Mean acceptance length: 2.46\nDraft tokens: 6567\nAccepted tokens: 3187\n",
            [(3, pytest.approx(1 + 3187 / 2189))],
        ),
        ("Mean acceptance length: 2.46\nDraft tokens: 930\n", [(None, 2.46)]),
        ("avg accept length: 2.76\nDraft acceptance rate: 25.19%\n", [(7, 2.76)]),
        ("K=4\nacceptance length (incl. bonus): 2.9\n", [(4, 2.9)]),
        ("acceptance length (K=4): 2.9, K=4\n", [(4, 2.9)]),
        ("tau = 3.94\n", [(None, 3.94)]),
        ("AL: 3.2, num_speculative_tokens: 5\n", [(5, 3.2)]),
        ("position 0: 80.5%\nposition 1: 60.1%\nmean acceptance length 2.41\n", [(2, pytest.approx(2.406))]),
        (
            "| model | K | AL |\n|--|--|--|\n| a | 0 | 1.0 |\n| a | 2 | 2.1 |\n| b | 4 | 2.9 \u00b1 0.1 |\n",
            [(2, 2.1), (4, 2.9)],
        ),
        ("model,accept_len\na,2.1\nb,**2.2**\n", [(None, 2.1), (None, 2.2)]),
        ("batch_size\tthroughput\taccept_length\n1\t100\t2.5\n", [(None, 2.5)]),
        (
            "batch,steps,topk,num_draft_tokens,accept_length\n1,0,0,0,1\n1,3,1,4,1.9\n1,3,4,16,2.5\n",
            [(3, 1.9), (None, 2.5)],
        ),
        ('{"llama": {"on": {"1": 1.7, "2": 2.2}}}', [(1, 1.7), (2, 2.2)]),
        ("1: 1.7\n2: 2.2\n", [(1, 1.7), (2, 2.2)]),
        ("n_draft   = 5\nn_predict = 265\nn_drafted = 900\nn_accept  = 80\n", [(5, pytest.approx(265 / 185))]),
        ("n_draft   = 16\nn_predict = 265\nn_drafted = 312\nn_accept  = 180\n", [(None, pytest.approx(265 / 85))]),
    ],
)
def test_texts_of_the_same_kinds(read, text: str, expected: list[tuple[int | None, float]]) -> None:
    assert told(read(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("| K | accept len |\n| 3 | 0.4 |\n", "sample.txt:2: an accepted length of 0.4"),
        ("| K | accept len |\n| 3 | 4.4 |\n", "3 drafts give 1 to 4"),
        ("pos 1: 0.5\npos 3: 0.2\nmean acceptance length 1.7\n", "sample.txt:2: position 3 is given, but not 2"),
        ("pos 1: 0.5\npos 2: 0.7\nmean acceptance length 2.2\n", "sample.txt:2: acceptance rises from 0.5"),
        ("pos 1: 0.5\npos 2: 0.2\nmean acceptance length 2.2\n", "sample.txt:3: mean accepted length 2.2 stated"),
        ("m:\n  1: 1.7\n  2: 3.2\n", "sample.txt:3: m.2: 3.2 is out of range"),
        ("m:\n  1: 1.7\n  x: 3.2\n  3: 2.2\n", "'x': the key is no number of drafts"),
    ],
)
def test_pasted_texts_that_contradict_themselves(refusal, text: str, words: str) -> None:
    assert words in str(refusal(text))


LENGTHS = st.decimals(min_value=1, max_value=9, places=2)
BEFORE = st.sampled_from(["Mean acceptance length: ", "Accept length:      ", "Acceptance length = ", "[AL] AVERAGE: "])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LENGTHS, st.text("abc \n", max_size=30)), min_size=1, max_size=4), BEFORE)
def test_every_mean_of_a_text_is_told(tmp_path_factory, runs: list[tuple[object, str]], before: str) -> None:
    path: Path = tmp_path_factory.mktemp("pasted") / "runs.txt"
    path.write_text("".join(f"{noise}\n{before}{length}\n" for length, noise in runs))
    expected = list(dict.fromkeys(float(str(length)) for length, _ in runs))
    assert [mean for _, mean in told(read_evidence([path]))] == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), min_size=1, max_size=6), st.sampled_from("|,\t;"))
def test_every_row_of_a_table_is_told(tmp_path_factory, rows: list[tuple[int, int]], bar: str) -> None:
    means = [(K, round(1 + K * part / 100, 2)) for K, part in rows]
    lines = [
        bar.join(("name", "K", "accept_len")),
        *(bar.join((f"r{i}", str(K), f"{m}")) for i, (K, m) in enumerate(means)),
    ]
    path: Path = tmp_path_factory.mktemp("table") / "table.txt"
    path.write_text("\n".join(f"| {line} |" if bar == "|" else line for line in lines))
    assert told(read_evidence([path])) == means
