from __future__ import annotations

from plans import comparison_of
from render.test_text import printed

from treeopt.acceptance.intervals import Interval
from treeopt.answer import Estimate, Span
from treeopt.planner.compare import Comparisons
from treeopt.planner.replay import Replayed, Replays
from treeopt.render.compare import report as comparison_table
from treeopt.render.replay import report as replay_table


def said(gain: float, interval: Interval | None) -> str:
    found = Comparisons(comparisons=(comparison_of(gain, interval),), notes=())
    return printed(comparison_table(found, 100), 100)[-3].split("  ")[-1]


def test_no_verdict_without_an_interval() -> None:
    assert said(-0.2, Interval(-0.3, -0.1)) == "worse"
    assert said(-0.2, None) == "no interval"
    assert said(0.2, None) == "no interval"
    assert said(0.0, None) == "tie"  # the same drafts


def replayed(low: float | None) -> Replayed:
    return Replayed(
        batch=Span(9, 64),
        context=Span(1, 2048),
        nodes=46,
        acceptance_length=Estimate(value=2.0, low=low, high=2.072),
        all_positions=2.045,
        steps=5324123.0,
        documents=30,
        predicted=1.997,
        dynamic_gain=0.103,
        dynamic_upper=0.296,
    )


def replays(*lows: float | None) -> Replays:
    return Replays(trace="trace.npz", replays=tuple(map(replayed, lows)))


def test_a_replay_at_80_columns_has_every_number() -> None:
    lines = printed(replay_table(replays(1.933, None), 80), 80)
    assert max(map(len, lines)) <= 80
    assert [line.startswith(("batch", "9-64", "")) for line in lines] == [True] * 7
    text = " ".join(lines)
    for word in (
        "95 % interval",
        "[1.933, 2.072]",
        "too few documents",
        "-0.1%",
        "2.045",
        "5,324,123",
        "+10.3%",
        "+29.6%",
    ):
        assert word in text
    assert len(printed(replay_table(replays(1.933), 160), 160)) == 2
