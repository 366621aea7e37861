"""Drafts that are not always there: lengths from traces, files and counters, and a server written out as its loop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.acceptance.draft_lengths import DraftLengths, mixed_lengths, recorded_lengths
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.replay import accepted_lengths, draft_starts
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.cost.part_drafts import token_law
from treeopt.files.typed import write
from treeopt.planner.inputs import load_inputs
from treeopt.planner.names import Names
from treeopt.tree import DraftTree

DEPTH, LONGEST_RUN = 4, 2


def written(rng: np.random.Generator, length: int) -> list[int]:
    """A text that repeats runs of itself now and then."""
    text = rng.integers(0, 100, 6).tolist()
    while len(text) < length:
        if rng.random() < 0.25:
            start = int(rng.integers(0, len(text) - 2))
            text += text[start : start + int(rng.integers(2, 7))]
        else:
            text.append(int(rng.integers(0, 100)))
    return text[:length]


def copied(text: list[int], K: int) -> list[int]:
    """What vLLM's rule drafts behind a text: a search as it is said, without tables."""
    for run in range(min(LONGEST_RUN, len(text)), 0, -1):
        for end in range(run, len(text)):
            if text[end - run : end] == text[-run:]:
                return text[end : end + K]
    return []


def recorded(texts: list[list[int]]) -> Trace:
    """Each token of a text is the root of a draft that may start there."""
    ranks, listed = [], []
    for text in texts:
        for root in range(len(text)):
            draft, after = copied(text[: root + 1], DEPTH), text[root + 1 :]
            row = [0 if d < len(draft) and draft[d] == token else -1 for d, token in enumerate(after[:DEPTH])]
            ranks.append(row + [PAST_END] * (DEPTH - len(row)))
            listed.append([[float(d < len(draft) and d < len(row))] for d in range(DEPTH)])
    lengths = [len(text) for text in texts]
    return Trace(
        rank=np.array(ranks, dtype=np.int16),
        doc_id=np.repeat(np.arange(len(texts)), lengths),
        pos=np.concatenate([np.arange(n) for n in lengths]),
        topk_prob=np.array(listed, dtype=np.float32),
    )


def served(texts: list[list[int]], K: int, batch: int) -> tuple[float, list[int]]:
    """Tokens per request-step, and what each step verified: so many requests at a time, step by step."""
    waiting, running = list(texts), []
    verified, emitted, steps = [], 0, 0
    while True:
        while waiting and len(running) < batch:
            running.append([waiting.pop(), 1])
        if len(running) < batch:
            return emitted / steps, verified  # only full steps count
        tokens = 0
        for request in running:
            text, known = request
            draft = copied(text[:known], K)
            right = 0
            while right < len(draft) and known + right < len(text) and draft[right] == text[known + right]:
                right += 1
            tokens += 1 + len(draft)
            emitted, steps, request[1] = emitted + right + 1, steps + 1, known + right + 1
        verified.append(tokens)
        running = [request for request in running if request[1] < len(request[0])]


def stairs(tokens: np.ndarray) -> np.ndarray:
    """A made-up step time of so many tokens: flat at first, then in steps of 8."""
    return 1.0 + 0.1 * np.maximum(np.ceil(tokens / 8) - 2, 0) + 0.001 * tokens


@pytest.mark.parametrize("K", [2, DEPTH])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_tokens_per_second_are_those_of_a_server_step_by_step(K: int, batch: int) -> None:
    rng = np.random.default_rng(14)
    texts = [written(rng, 120) for _ in range(400)]
    trace = recorded(texts)
    own = recorded_lengths(trace)
    assert own is not None
    assert 0.2 < own.at_least[0] < 0.98  # neither always nor never
    starts = draft_starts(trace, accepted := accepted_lengths(trace.rank, DraftTree.chain(K)))
    tokens = float(starts @ (accepted + 1) / starts.sum())
    law = token_law(own, batch, K + 1)
    promised = batch * tokens / float(law.shares @ stairs(law.tokens))
    measured, verified = served(texts, K, batch)
    really = batch * measured / float(np.mean(stairs(np.array(verified))))
    assert promised == pytest.approx(really, rel=0.02)
    full = batch * tokens / float(stairs(np.array(batch * (K + 1.0))))
    if batch == 16:
        assert full < 0.97 * really  # what verifying a whole draft in every step would promise


def test_lengths_of_a_trace_are_counted_at_its_starts() -> None:
    trace = recorded([[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2]])
    own = recorded_lengths(trace)
    assert own is not None
    assert list(own.at_least) == sorted(own.at_least, reverse=True)
    assert recorded_lengths(Trace(rank=trace.rank, doc_id=trace.doc_id, pos=trace.pos)) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 8))
def test_what_is_verified_is_a_law(shares: list[float], nodes: int) -> None:
    law = DraftLengths(tuple(sorted(shares, reverse=True))).verified(nodes)
    assert law.min() >= 0.0
    assert law.sum() == pytest.approx(1.0)


def test_by_hand() -> None:
    assert DraftLengths((0.3, 0.2)).verified(3) == pytest.approx([0.7, 0.1, 0.2])
    assert DraftLengths((0.3, 0.2)).verified(1) == pytest.approx([1.0])
    mixed = mixed_lengths([(0.5, DraftLengths((0.4, 0.2))), (0.5, None)])
    assert mixed is not None
    assert mixed.at_least == pytest.approx((0.7, 0.6))
    assert mixed_lengths([(1.0, None)]) is None


@pytest.mark.parametrize("shares", [(), (1.2,), (0.2, 0.3), (float("nan"),)])
def test_no_shares(shares: tuple[float, ...]) -> None:
    with pytest.raises(EvidenceError):
        DraftLengths(shares)


METRICS = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{model_name="m"} 475.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 1384.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 62.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 53.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 2.0
vllm:generation_tokens_total{model_name="m"} 757.0
vllm:request_success_total{finished_reason="length",model_name="m"} 12.0
"""


def test_counters_tell_them_and_files_keep_them(tmp_path: Path) -> None:
    scrape, profile = tmp_path / "after.prom", tmp_path / "ranks.yaml"
    scrape.write_text(METRICS)
    found = load_profile(scrape)
    assert found.lengths is not None
    assert found.lengths.at_least == pytest.approx((475 / 683, 909 / 683 / 2, 909 / 683 / 2))
    profile.write_text(json.dumps(write(found.document())))
    assert load_profile(profile).lengths == found.lengths
    for drafter, expected in (("ngram", found.lengths), ("eagle", None)):
        inputs = load_inputs(Names(ranks=str(profile), drafter=drafter))
        assert inputs.kernels.lengths == expected
