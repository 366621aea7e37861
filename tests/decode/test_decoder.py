from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decode.fixed import FixedDrafter
from decode.models import BUSHY, noisy, prompts, toy, trees, written_plainly
from decode.mutants import causal, prefix_hidden, sequential
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance.replay import accepted_lengths, replay
from treeopt.acceptance.trace import Trace
from treeopt.collect.record import DecodedText, record_trace
from treeopt.decode import decoder as decoder_module
from treeopt.decode.cache import SlotCache
from treeopt.decode.decoder import Decoder, Decoding, same_tree, tree_by_batch
from treeopt.decode.drafters import LookupDrafter
from treeopt.decode.reports import StepReport
from treeopt.decode.rules import RULES, Rule, Siblings, rule_named
from treeopt.decode.step import ForwardBatch, tree_step
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify
from treeopt.errors import InputError
from treeopt.tree import DraftTree

pytest.importorskip("torch", reason="decoding needs torch")

PLAIN = same_tree(DraftTree(()))
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [3, 3, 3]]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    chosen=st.lists(trees(), min_size=4, max_size=4),
    texts=prompts(),
    batch=st.integers(1, 4),
    scale=st.sampled_from([0.0, 0.5, 2.0]),
    compaction=st.sampled_from(["in-place", "copy"]),
)
def test_greedy_trees_write_what_plain_decoding_writes(
    seed: int, chosen: list[DraftTree], texts: list[list[int]], batch: int, scale: float, compaction: Any
) -> None:
    target = toy(seed)
    decoding = Decoding(max_new_tokens=12, compaction=compaction)
    decoder = Decoder(target, noisy(target, scale=scale), decoding=decoding)
    found = decoder.generate(texts, lambda requests: [chosen[r] for r in requests], batch=batch)
    assert found == [written_plainly(target, text, 12) for text in texts]


@pytest.mark.parametrize("tree", [DraftTree(()), DraftTree.chain(4), BUSHY, DraftTree.from_widths([2, 2, 2])])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_modes_and_batches(tree: DraftTree, batch: int) -> None:
    target = toy(7)
    reports = list(
        Decoder(target, noisy(target), decoding=Decoding(max_new_tokens=20)).steps(
            PROMPTS, same_tree(tree), batch=batch
        )
    )
    assert continuations(reports) == [written_plainly(target, prompt, 20) for prompt in PROMPTS]
    steps = [report for report in reports if report.kind == "verify"]
    assert all(len(e) == a + 1 for report in steps for e, a in zip(report.emitted, report.accepted, strict=True))
    assert max(report.batch for report in reports) == batch
    if len(tree) == 1:
        assert {len(e) for report in steps for e in report.emitted} == {1}
    else:
        assert sum(sum(report.accepted) for report in steps) > 20


def continuations(reports: list[StepReport]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in PROMPTS]
    for report in reports:
        for request, tokens in zip(report.requests, report.emitted, strict=True):
            found[request].extend(tokens)
    return found


def test_prompts_may_be_arrays() -> None:
    target = toy(7)
    prompts = [np.array([0]), np.array([4, 5, 6])]
    found = Decoder(target, decoding=Decoding(max_new_tokens=5)).generate(prompts, PLAIN, batch=2)
    assert found == [written_plainly(target, prompt.tolist(), 5) for prompt in prompts]


def test_a_stream_says_when_a_request_ends() -> None:
    target = toy(7)
    decoder = Decoder(target, noisy(target), decoding=Decoding(max_new_tokens=9))
    emissions = list(decoder.stream(PROMPTS, same_tree(BUSHY), batch=2))
    assert sorted(e.request for e in emissions if e.finished) == [*range(4)]
    assert all(sum(len(e.tokens) for e in emissions if e.request == r) == 9 for r in range(4))


def test_text_ends_at_an_end_token_wherever_it_comes() -> None:
    target = toy(7)
    for prompt in PROMPTS:
        plain = written_plainly(target, prompt, 20)
        for end in set(plain):
            decoding = Decoding(max_new_tokens=20, end_tokens=frozenset({end}))
            (found,) = Decoder(target, noisy(target, scale=0.2), decoding=decoding).generate([prompt], same_tree(BUSHY))
            assert found == plain[: plain.index(end) + 1]


def test_a_tree_is_cut_to_the_tokens_that_are_left() -> None:
    target = toy(7)
    reports = list(
        Decoder(target, noisy(target, scale=0.0), decoding=Decoding(max_new_tokens=8)).steps([[1, 2]], same_tree(BUSHY))
    )
    # The drafter is the target: 1 from the prefill, 4 + 1 from the whole tree, then 2 are left: the root and 3 guesses.
    assert [report.emitted[0] for report in reports] == [
        tuple(written_plainly(target, [1, 2], 8)[a:b]) for a, b in ((0, 1), (1, 6), (6, 8))
    ]
    assert [report.nodes for report in reports] == [(2,), (11,), (4,)]


def test_trees_by_batch_size() -> None:
    target = toy(7)
    decoder = Decoder(target, noisy(target), decoding=Decoding(max_new_tokens=6))
    trees_of = tree_by_batch(lambda batch: DraftTree.chain(3 if batch == 1 else 1))
    reports = list(decoder.steps(PROMPTS[:2], trees_of, batch=2))
    assert {max(r.nodes) for r in reports if r.kind == "verify" and r.batch == 2} == {2}


@pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.samples])
def test_sampling_rules_run_in_all_modes(name: str) -> None:
    target = toy(7)
    decoding = Decoding(rule=rule_named(name), temperature=1.0, max_new_tokens=10, seed=3)
    for tree in (DraftTree(()), DraftTree.chain(2), BUSHY):
        decoder = Decoder(target, noisy(target, temperature=1.0), decoding=decoding)
        found = decoder.generate(PROMPTS, same_tree(tree), batch=3)
        assert [len(text) for text in found] == [10] * 4
        assert found == decoder.generate(PROMPTS, same_tree(tree), batch=3)  # the same seed


@pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.samples and rule.exact])
def test_sampled_texts_follow_the_toy(name: str) -> None:
    """The whole decoder, cache and all: the third token's law, from many requests with the same prompt."""
    target = toy(7)
    decoding = Decoding(rule=rule_named(name), temperature=1.0, max_new_tokens=3, seed=1)
    decoder = Decoder(target, noisy(target, temperature=1.0), decoding=decoding)
    n = 1500
    found = decoder.generate([[1, 2]] * n, same_tree(DraftTree(((0,), (1,), (0, 0), (1, 0)))), batch=n)
    wanted = exact_third_token(target, [1, 2])
    counts = np.bincount([text[2] for text in found], minlength=16)
    # 15 degrees of freedom: above 44.3 with probability 1e-4.
    assert ((counts - n * wanted) ** 2 / (n * wanted)).sum() < 44.3


def exact_third_token(target: Any, prompt: list[int]) -> np.ndarray:
    def law(text: list[int]) -> np.ndarray:
        return np.asarray(target.reference(np.array(text))[-1].softmax(-1))

    first = law(prompt)
    return sum(
        first[a] * second * law([*prompt, a, b]) for a in range(16) for b, second in enumerate(law([*prompt, a]))
    )


# -- the trace of a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["greedy", "target-sample"])
@pytest.mark.parametrize("tree", [BUSHY, DraftTree.chain(3), DraftTree(((1,), (3,), (1, 2)))])
def test_accepted_lengths_are_those_of_the_recorded_trace(name: str, tree: DraftTree) -> None:
    target, rule = toy(7), rule_named(name)
    decoding = Decoding(rule=rule, temperature=float(rule.samples), max_new_tokens=40, seed=2)
    drafter = noisy(target)
    reports = list(Decoder(target, drafter, decoding=decoding).steps(PROMPTS, same_tree(tree), batch=3))
    written = continuations(reports)
    texts = [DecodedText(prompt, text) for prompt, text in zip(PROMPTS, written, strict=True)]
    trace = record_trace(texts, drafter, rule=rule, depth=5)
    lengths = accepted_lengths(trace.rank, tree)
    for request in range(len(PROMPTS)):
        row = int(trace.bounds[request])
        for report in reports:
            if report.kind == "verify" and request in report.requests:
                i = report.requests.index(request)
                left = 40 - int(trace.pos[row]) - 1  # tokens that were left to emit
                assert report.accepted[i] == min(lengths[row], left - 1)
                row += report.accepted[i] + 1
        assert trace.pos[row] == 39


def test_no_trace_of_a_run_whose_node_does_not_follow_from_the_token() -> None:
    with pytest.raises(InputError, match="no trace of a run under recursive-rejection") as caught:
        record_trace([], noisy(toy(7)), rule=rule_named("recursive-rejection"), depth=3)
    assert "`treeopt ranks collect`" in caught.value.hint


def decoded_by_phase(tree: DraftTree, *, depth: int, length: int) -> tuple[Trace, int, int]:
    """A recorded trace of `length` rows, and the tokens and steps of the decoder from each start phase of it."""
    target, prompt = toy(7), PROMPTS[1]
    drafter = noisy(target)
    decoder = Decoder(target, drafter, decoding=Decoding(max_new_tokens=length + 20))
    (text,) = decoder.generate([prompt], same_tree(tree))
    trace = record_trace([DecodedText(prompt, text[:length])], drafter, rule=rule_named("greedy"), depth=depth)
    tokens = steps = 0
    for phase in range(depth):
        root = phase
        for report in decoder.steps([[*prompt, *text[:phase]]], same_tree(tree)):
            if report.kind == "verify" and root < length and trace.complete[root]:
                emitted = len(report.emitted[0])
                tokens, steps, root = tokens + emitted, steps + 1, root + emitted
    return trace, tokens, steps


@pytest.mark.parametrize("tree", [BUSHY, DraftTree.chain(4)])
def test_replay_of_the_recorded_trace_counts_what_the_decoder_emits(tree: DraftTree) -> None:
    trace, tokens, steps = decoded_by_phase(tree, depth=4, length=50)
    result = replay(trace, tree)
    assert (int(result.tokens.sum()), int(result.steps.sum())) == (tokens, steps)


def test_a_trace_needs_a_rule_whose_acceptance_follows_from_the_token() -> None:
    for name in ("recursive-rejection", "typical"):
        with pytest.raises(InputError, match="no trace"):
            record_trace(
                [DecodedText([1], [2, 3])], FixedDrafter([1], vocabulary_size=4), rule=rule_named(name), depth=1
            )


def test_a_lookup_drafter_records_the_ranks_that_it_drafts() -> None:
    target = toy(7)
    drafter = LookupDrafter(vocabulary_size=16)
    decoder = Decoder(target, drafter, decoding=Decoding(max_new_tokens=40))
    reports = list(decoder.steps(PROMPTS, same_tree(BUSHY), batch=4))
    texts = [DecodedText(p, w) for p, w in zip(PROMPTS, continuations(reports), strict=True)]
    trace = record_trace(texts, drafter, rule=rule_named("greedy"), depth=4)
    first = next(report for report in reports if report.kind == "verify")
    rows = trace.bounds[:-1]
    assert [min(a, 38) for a in accepted_lengths(trace.rank, BUSHY)[rows].tolist()] == list(first.accepted)
    assert continuations(reports) == [written_plainly(target, prompt, 40) for prompt in PROMPTS]


# -- mutants: every one of them changes what is written ---------------------------------------------------------------


def written(target: Any, **changes: Any) -> list[list[int]]:
    decoder = Decoder(target, noisy(target, scale=0.8), decoding=Decoding(max_new_tokens=24, **changes))
    return decoder.generate(PROMPTS, same_tree(BUSHY), batch=4)


def changed_step(change: Callable[[ForwardBatch], ForwardBatch]) -> Callable[..., ForwardBatch]:
    return lambda *args, **kwargs: change(tree_step(*args, **kwargs))


@pytest.mark.parametrize("change", [causal, sequential, prefix_hidden])
def test_mutant_steps_write_something_else(
    change: Callable[[ForwardBatch], ForwardBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = toy(7)
    plain = [written_plainly(target, prompt, 24) for prompt in PROMPTS]
    assert written(target) == plain
    monkeypatch.setattr(decoder_module, "tree_step", changed_step(change))
    assert written(target) != plain


@pytest.mark.parametrize("compaction", ["in-place", "copy"])
def test_mutant_keys_and_values_left_in_place(compaction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = toy(7)
    plain = [written_plainly(target, prompt, 24) for prompt in PROMPTS]
    assert written(target, compaction=compaction) == plain
    name = "compact" if compaction == "in-place" else "compact_by_copy"
    monkeypatch.setattr(SlotCache, name, lambda *args, **kwargs: None)
    assert written(target, compaction=compaction) != plain


def test_mutant_gathering_from_the_node_itself() -> None:
    def judge(evidence: StepToVerify, draws: Any) -> AcceptedPaths:
        trees, best = evidence.trees, evidence.best
        assert best is not None
        if not trees.children.shape[2]:
            return rule_named("greedy").judge(evidence, draws)
        first = np.where(trees.children[:, :, 0] >= 0, trees.children[:, :, 0], np.arange(trees.nodes))
        shifted = best[np.arange(len(trees))[:, None], first]
        return rule_named("greedy").judge(replace(evidence, best=shifted), draws)

    target = toy(7)
    mutant = Rule(name="greedy", siblings=Siblings.BEST, judge=judge)
    assert written(target, rule=mutant) != [written_plainly(target, prompt, 24) for prompt in PROMPTS]


def test_mutant_bonus_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def emissions(verdict: AcceptedPaths, tokens: np.ndarray) -> list[tuple[int, ...]]:
        return [(int(tokens[b, 0]), *found) for b, found in enumerate(kept(verdict, tokens))]

    kept = decoder_module.emissions
    trace, tokens, steps = decoded_by_phase(BUSHY, depth=4, length=25)
    assert replay(trace, BUSHY).tokens_per_step == tokens / steps
    monkeypatch.setattr(decoder_module, "emissions", emissions)
    target = toy(7)
    assert written(target) != [written_plainly(target, prompt, 24) for prompt in PROMPTS]
    trace, tokens, steps = decoded_by_phase(BUSHY, depth=4, length=25)
    assert replay(trace, BUSHY).tokens_per_step != tokens / steps


# -- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.5}, "greedy at temperature"),
        ({"rule": rule_named("typical")}, "typical at temperature"),
        ({"max_new_tokens": 0}, "0 new tokens"),
    ],
)
def test_what_cannot_be_decoded(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decoding(**changes)


def test_what_cannot_be_started() -> None:
    decoder = Decoder(toy())
    with pytest.raises(InputError, match="empty prompt"):
        decoder.generate([[1], []], PLAIN)
    with pytest.raises(InputError, match="without room"):
        decoder.generate([[1]], PLAIN, batch=0)
    with pytest.raises(InputError, match="without a drafter"):
        decoder.generate([[1]], same_tree(BUSHY))
