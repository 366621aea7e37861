"""Two hundred simulated logs and scrapes: exact counts, or a stated interval that holds them."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

import pytest
from acceptance.importers import simulator
from acceptance.importers.simulator import Run, served
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.importers import Imported, read_evidence
from treeopt.errors import InputError

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "misses": {"misses": 0.6},
    "tails": {"tails": 0.05},
    "rare": {"misses": 0.97},
    "both": {"misses": 0.3, "tails": 0.1},
}
RUNS = [
    pytest.param(served(seed, steps=800, longest=longest, **KINDS[kind]), id=f"{kind}-{longest}-{seed}")
    for seed, (longest, kind) in enumerate(itertools.product((1, 2, 3, 5, 8), KINDS))
]


def totals(found: Imported) -> tuple[int, int, int]:
    """Drafts, drafted and accepted tokens over all sources."""
    tallies = [source.tally for source in found.sources]
    return (
        sum(t.drafts or 0 for t in tallies),
        sum(t.drafted_tokens or 0 for t in tallies),
        sum(t.accepted_tokens or 0 for t in tallies),
    )


def counted(run: Run) -> tuple[int, int, int]:
    drafts = run.drafts
    return len(drafts), sum(s.drafted for s in drafts), sum(s.accepted for s in drafts)


def check(found: Imported, *runs: Run) -> None:
    """The counts are those of the runs; drafts that were restored are as near as is said."""
    expected = [sum(parts) for parts in zip(*map(counted, runs), strict=True)]
    if found.unplanned:  # totals over drafts of several lengths, whose mean is told and is that of no chain
        steps = sum(len(run.steps) for run in runs)
        assert "the drafts varied in length" in found.unplanned[0].reason
        assert found.unplanned[0].mean_accepted_length == pytest.approx(1 + expected[2] / steps)
        return
    drafts, drafted, accepted = totals(found)
    assert [drafted, accepted] == expected[1:]
    unsure = [int(n) for w in found.warnings for n in re.findall(r"restored from printed digits, \d+ within (\d+)", w)]
    assert abs(drafts - expected[0]) <= sum(unsure)


def check_steps(found: Imported, *runs: Run) -> None:
    """Tokens per step = emitted tokens, those past a text's end too and those of prefills not, over request-steps."""
    steps = sum(len(run.steps) for run in runs)
    tokens = sum(run.emitted - run.requests + run.cut for run in runs)
    tally = found.sources[0].tally
    assert (tally.steps or tally.drafts) == steps
    assert tally.mean_accepted_length == pytest.approx(tokens / steps)
    evidence = found.profiles[0].evidence
    assert evidence.trials == steps
    assert 1 + evidence.survival.sum() == pytest.approx(tokens / steps)  # type: ignore[union-attr]


@pytest.mark.parametrize("run", RUNS)
def test_a_vllm_scrape(read, run: Run) -> None:
    found = read(simulator.vllm_scrape(run))
    check(found, run)
    check_steps(found, run)
    positions = [n for n in run.positions(run.drafts) if n]
    accepted = found.profiles[0].evidence.accepted.tolist()
    assert accepted[: len(positions)] == positions
    drafted = max(step.drafted for step in run.drafts)
    assert len(accepted) <= drafted  # never a depth that was not drafted


@pytest.mark.parametrize("run", RUNS[:10])
def test_texts_that_end_within_a_draft(read, run: Run) -> None:
    """Accepted tokens are counted before the text is cut to its length: tokens that came out give too few steps."""
    run = simulator.cut_off(run)
    check_steps(read(simulator.vllm_scrape(run)), run)


@pytest.mark.parametrize("run", RUNS[:10])
def test_without_the_counter_of_steps_the_tokens_tell_them(read, run: Run) -> None:
    lines = simulator.vllm_scrape(run).splitlines(keepends=True)
    check_steps(read("".join(line for line in lines if "inter_token" not in line)), run)


@pytest.mark.parametrize("run", RUNS[:10])
def test_two_vllm_servers_and_the_time_between_two_scrapes(read, run: Run) -> None:
    first = served(99, steps=300, longest=run.longest)
    both = Run(first.steps + tuple(s._replace(request=s.request + 5) for s in run.steps), run.longest)
    check_steps(read(simulator.vllm_scrape(first), simulator.vllm_scrape(both)), run)
    check_steps(read(simulator.vllm_scrape(first) + simulator.vllm_scrape(run, engine=1)), first, run)


@pytest.mark.parametrize("run", RUNS)
def test_a_vllm_log(read, run: Run) -> None:
    check(read(simulator.vllm_log(run)), run)


@pytest.mark.parametrize("seed", range(20))
def test_a_vllm_log_under_a_schedule_keeps_its_lengths_apart(read, seed: int) -> None:
    run = served(seed, steps=1600, longest=4, schedule=(4, 2, 1))
    found = read(simulator.vllm_log(run))
    check(found, run)
    assert sorted(source.tally.draft_tokens or 0 for source in found.sources) == [1, 2, 4]
    for source in found.sources:
        own = [s for s in run.drafts if s.drafted == source.tally.draft_tokens]
        assert source.tally.accepted_tokens == sum(s.accepted for s in own)


@pytest.mark.parametrize("seed", range(10))
def test_two_vllm_servers_in_one_log(read, seed: int) -> None:
    one, other = served(seed, steps=400, longest=3), served(seed + 50, steps=700, longest=5, tails=0.1)
    lines = zip(simulator.vllm_log(one).splitlines(), simulator.vllm_log(other).splitlines(), strict=True)
    check(read("".join(f"a | {a}\nb | {b}\n" for a, b in lines)), one, other)


@pytest.mark.parametrize("run", RUNS)
def test_vllm_requests(read, run: Run) -> None:
    found = read(simulator.vllm_requests(run), name="requests.jsonl")
    check(found, run)
    for source in found.sources:
        own = [s for s in run.drafts if s.drafted == source.tally.draft_tokens]
        assert source.tally.drafts == len(own)


@pytest.mark.parametrize("run", RUNS[:20:5])
def test_sglang_requests(read, run: Run) -> None:
    found = read(simulator.sglang_requests(run))
    check(found, run)
    check_steps(found, run)


@pytest.mark.parametrize("seed", range(25))
def test_sglang_scrapes_of_one_server_two_and_the_time_between(read, seed: int) -> None:
    """It verifies as many tokens in every step, so nothing is ever short or missing."""
    run, other = (served(seed + n, steps=400, longest=seed % 5 + 1) for n in (0, 100))
    one = read(simulator.sglang_scrape(run))
    check(one, run)
    check_steps(one, run)
    check(read(simulator.sglang_scrape(run, other, names=("a", "b"))), run, other)
    both = Run(steps=(*run.steps, *other.steps), longest=run.longest)
    later = simulator.sglang_scrape(both).replace(
        f'requests_total{{model_name="m"}} {float(both.requests)}',
        f'requests_total{{model_name="m"}} {float(run.requests + other.requests)}',
    )
    later = later.replace(f" {float(both.emitted)}", f" {float(run.emitted + other.emitted)}")
    check(read(simulator.sglang_scrape(run), later), other)
    with pytest.raises(InputError, match="fell"):
        read(later, simulator.sglang_scrape(run))


@pytest.mark.parametrize("seed", range(10))
def test_a_sglang_scrape_of_texts_that_end_within_a_draft_says_how_far_off_it_may_be(read, seed: int) -> None:
    """Its tokens are those of the texts, so what was accepted behind their ends is missing."""
    whole = served(seed, steps=100, longest=seed % 5 + 1)
    run = simulator.cut_off(whole)
    found = read(simulator.sglang_scrape(run))
    right = 1 + sum(s.accepted for s in whole.steps) / len(whole.steps)
    (said,) = (w for w in found.warnings if "are not counted" in w)
    more = float(re.search(r"at most ([\d.]+) more", said)[1])  # type: ignore[index]
    low = found.sources[0].tally.mean_accepted_length
    assert low <= right + 1e-9
    assert right <= low + more + 0.0005


@pytest.mark.parametrize("seed", range(20))
def test_a_sglang_log(read, seed: int) -> None:
    run = served(seed, steps=800, longest=seed % 5 + 1)
    found = read(simulator.sglang_log(run), draft_tokens=None)
    mean = 1 + sum(s.accepted for s in run.steps) / len(run.steps)
    told = [source.tally for source in found.sources] or list(found.unplanned)
    assert told[0].mean_accepted_length == pytest.approx(mean, abs=0.0051)
    K = found.sources[0].tally.draft_tokens if found.sources else run.longest
    assert run.longest == K or "K is one of" in str(found.warnings)


@pytest.mark.parametrize("seed", range(20))
def test_a_sglang_log_under_a_schedule_keeps_its_lengths_apart(read, seed: int) -> None:
    """Length and rate of a line tell its K, as far as two decimals do; lines that allow several are given to one."""
    run = served(seed, steps=1600, longest=4, schedule=(4, 2, 1))
    found = read(simulator.sglang_log(run))
    assert {source.tally.draft_tokens for source in found.sources} == {1, 2, 4}
    for source in found.sources:
        own = [s for s in run.steps if s.drafted == source.tally.draft_tokens]
        mean = 1 + sum(s.accepted for s in own) / len(own)
        assert source.tally.mean_accepted_length == pytest.approx(mean, abs=0.0051)


@pytest.mark.parametrize("run", RUNS)
def test_a_trtllm_scrape(read, run: Run) -> None:
    found = read(simulator.trtllm_scrape(run))
    check(found, run)
    positions = [n for n in run.positions(run.drafts) if n]
    assert found.profiles[0].evidence.accepted.tolist()[: len(positions)] == positions


def test_what_counts_drafts_alone_says_so(read) -> None:
    (said,) = read(simulator.vllm_log(RUNS[0].values[0])).warnings
    assert said.startswith("counted per draft: steps in which an n-gram or suffix drafter found nothing")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("rates", [True, False])
def test_a_llamacpp_log(read, run: Run, rates: bool) -> None:
    found = read(simulator.llamacpp_log(run, rates=rates))
    check(found, run)
    if found.sources:
        tally = found.sources[0].tally
        assert (tally.steps or tally.drafts) == len(run.steps)


@pytest.mark.parametrize("rates", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_llamacpp_restarts_and_two_servers(read, seed: int, rates: bool) -> None:
    one, other = (served(seed + i, steps=500, longest=3, misses=0.2) for i in (0, 70))
    check(read(simulator.llamacpp_log(one, rates=rates) + simulator.llamacpp_log(other, rates=rates)), one, other)
    logs = [simulator.llamacpp_log(r, rates=rates, prefix=p) for r, p in ((one, "[101] "), (other, "[102] "))]
    mixed = "".join(f"{a}\n{b}\n" for a, b in zip(*(log.splitlines() for log in logs), strict=True))
    check(read(mixed), one, other)


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("misses", [0.0, 0.4])
def test_trtllm_iterations(read, longest: int, misses: float) -> None:
    run = served(longest, steps=500, longest=longest, misses=misses)
    found = read(simulator.trtllm_stats(run))
    check(found, run)


ENGINES = SHARED / "data" / "faults" / "engines"


@needs_shared
@pytest.mark.parametrize(
    ("names", "K", "counts", "steps"),
    [
        (("m_v13c1_before.prom", "m_v13c1_after.prom"), 3, (475, 1384, 62), 683),
        (("m_v13c4_before.prom", "m_v13c4_after.prom"), 2, (1173, 2319, 149), 1615),  # one text ended within a draft
        (("real_log_line_refused.log",), 3, (60, 174, 9), None),
    ],
)
def test_what_a_real_server_counted(
    names: tuple[str, ...], K: int, counts: tuple[int, int, int], steps: int | None
) -> None:
    found = read_evidence([ENGINES / name for name in names])
    tally = found.sources[0].tally
    assert (tally.draft_tokens, totals(found), tally.steps) == (K, counts, steps)
    assert tally.mean_accepted_length == pytest.approx(1 + counts[2] / (steps or counts[0]))
    assert len(found.profiles[0].evidence.survival) == K  # type: ignore[union-attr]


MUTATED = {
    "vllm-log": (simulator.vllm_log, r"Drafted: (\d+) tokens"),
    "llamacpp-log": (lambda run: simulator.llamacpp_log(run, rates=True), r"accepted / *(\d+) generated"),
}
NOISE = st.sampled_from(["", "\n", "x", "0", "9", ".", ",", " ", "-", "\x1b[0m", "12", "\r\n", "Drafted:", "rate"])


@pytest.mark.parametrize("kind", MUTATED)
@settings(max_examples=int(os.environ.get("TREEOPT_MUTATIONS", "60")))
@given(data=st.data())
def test_a_damaged_log_never_loses_drafts_without_a_word(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, drafted = MUTATED[kind]
    text = write(served(data.draw(st.integers(0, 5)), steps=200, longest=3, misses=0.2))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(NOISE) + text[at + data.draw(st.integers(0, 3)) :]
    path = tmp_path_factory.mktemp("damaged") / "log.txt"
    path.write_text(text)
    try:
        found = read_evidence([path], kind=kind)
    except InputError:
        return
    counted_there = sum(int(n) for n in re.findall(drafted, text))
    left_out = any("left out" in w or "without counts" in w for w in found.warnings)
    assert left_out or found.unplanned or totals(found)[1] >= counted_there


REPORTS = {
    "vllm-request": (simulator.vllm_requests, "num_draft_tokens"),
    "sglang-request": (simulator.sglang_requests, "spec_num_proposed_drafts"),
}


@pytest.mark.parametrize("kind", REPORTS)
@settings(max_examples=int(os.environ.get("TREEOPT_MUTATIONS", "60")))
@given(data=st.data())
def test_damaged_requests_never_lose_drafts_without_a_word(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, key = REPORTS[kind]
    text = write(served(data.draw(st.integers(0, 5)), steps=60, longest=3))
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(NOISE) + text[at + data.draw(st.integers(0, 3)) :]
    path = tmp_path_factory.mktemp("damaged") / "requests.jsonl"
    path.write_text(text)
    try:
        found = read_evidence([path], kind=kind)
    except InputError:
        return
    expected = sum(int(n) for n in re.findall(rf'"{key}": (\d+)', text))
    assert found.warnings or totals(found)[1] >= expected
