"""The command against a server on this machine whose steps and acceptance are known, and which fails as told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measure.fake_server import ACCEPTED, Fake, serving

import treeopt.cli
from treeopt.acceptance.loading import load_profile
from treeopt.cost.served.csv_rows import read_csv_steps
from treeopt.errors import InputError
from treeopt.files.opening import remembering_inputs

pytest.importorskip("httpx")
E = 1 + sum(ACCEPTED) / len(ACCEPTED)


def run(url: str, *options: str) -> Result:
    asked = ["measure", url, "--tokens", "160", "--budget-s", "2", *options]
    with remembering_inputs():  # as the command line does: what was read is not written over
        return CliRunner().invoke(treeopt.cli.app, asked)


def rows(result: Result) -> list[dict[str, float]]:
    return json.loads(result.stdout)["rows"]  # type: ignore[no-any-return]


def test_rows_of_a_speculating_server(tmp_path: Path) -> None:
    out, ranks = tmp_path / "steps.csv", tmp_path / "ranks.yaml"
    fake = Fake()
    with serving(fake) as url:
        # Long, so that drafts cut short at the end of a text weigh little, however late the counters are asked for.
        long = ("--tokens", "640")
        result = run(url, "--concurrency", "1,3", *long, "--out", str(out), "--ranks-out", str(ranks), "--json")
    assert result.exit_code == 0, result.output
    found = rows(result)
    assert [(r["batch"], r["k"], r["k_max"]) for r in found] == [(1, 3, 3), (3, 3, 3)]
    for r in found:
        assert r["accept_len"] == pytest.approx(E, rel=0.05)  # the window does not end with a whole round of four
        assert r["step_ms"] >= 0.99 * 1e3 * fake.step_s  # a busy machine makes steps longer, never shorter
        assert r["low"] <= r["step_ms"] <= r["high"]
        assert r["context"] == 7 + 320
    steps = read_csv_steps(out, out.read_text())
    assert [(s.batch, s.depth, s.tokens_per_step) for s in steps] == [
        (r["batch"], r["k"], pytest.approx(r["accept_len"], rel=1e-4)) for r in found
    ]
    survival = load_profile(ranks).evidence.survival  # type: ignore[union-attr]
    # Of 2, 0, 1 and 3 accepted: the first draft in three of four, the second in two, the third in one.
    assert survival == pytest.approx([0.75, 0.5, 0.25], abs=0.06)


def test_a_server_without_a_drafter_gives_plain_rows() -> None:
    with serving(Fake(drafts=0)) as url:
        result = run(url, "--concurrency", "2", "--json")
    (row,) = rows(result)
    assert (row["k"], row["k_max"], row["accept_len"]) == (0, 0, 1.0)
    assert "missing for a verdict: a drafter" in result.stderr


def test_steps_that_come_several_in_a_chunk_are_told_from_the_counters() -> None:
    fake = Fake(steps_per_chunk=4)
    with serving(fake) as url:
        result = run(url, "--concurrency", "2", "--json")
    assert result.exit_code == 0, result.output
    (row,) = rows(result)
    assert row["step_ms"] == pytest.approx(1e3 * fake.step_s)  # the server's own clock, not four steps
    assert row["accept_len"] == pytest.approx(E, rel=0.05)


def test_what_was_measured_before_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    with serving(Fake()) as url:
        assert run(url, "--concurrency", "1", "--out", str(out)).exit_code == 0
        first = out.read_text().splitlines()
        assert run(url, "--concurrency", "1,2", "--out", str(out)).exit_code == 0
    assert out.read_text().splitlines()[:2] == first
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"fault": "429"}, "the server answered 429"),
        ({"fault": "503"}, "the server answered 503"),
        ({"fault": "garbage"}, "a chunk is no JSON"),
        ({"fault": "hang"}, "sent nothing for too long"),
        ({"fault": "die"}, "broke off"),
        ({"fault": "no-metrics"}, "does not count generated tokens"),
        ({"fault": "no-usage"}, "does not say how many tokens"),
        ({"fault": "short"}, "ended after"),
        ({"fault": "other-requests"}, "works on 1 other requests"),
        ({"fault": "damaged-metrics"}, "not a Prometheus sample"),
        ({"fault": "restart"}, "the server's counters fell"),
        ({"fault": "others-join"}, "requests of ours got"),
        ({"fault": "no-drafts"}, "tokens per step, and the server counts no drafts"),
        ({"at_once": 1}, "the server ran 1 of 2 requests at once"),
    ],
)
def test_a_server_that_fails_is_told_and_earlier_rows_stay(
    fault: dict[str, object], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "steps.csv"
    with serving(Fake()) as url:
        assert run(url, "--concurrency", "1", "--out", str(out)).exit_code == 0
    before = out.read_text()
    with serving(Fake(**fault)) as url:  # type: ignore[arg-type]
        result = run(url, "--concurrency", "2", "--out", str(out), "--timeout-s", "1")
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert words in str(result.exception)
    assert out.read_text() == before


@pytest.mark.parametrize("fault", ["429", "503", "garbage", "hang", "die", "no-usage", "short"])
def test_a_server_that_fails_later_leaves_the_rows_before_it(fault: str, tmp_path: Path) -> None:
    """One request at once is measured; with a second one beside it the server goes wrong."""
    out = tmp_path / "steps.csv"
    with serving(Fake(fault=fault, fault_beside=1)) as url:
        result = run(url, "--concurrency", "1,2", "--out", str(out), "--timeout-s", "1", "--json")
    assert isinstance(result.exception, InputError)
    assert [(r["batch"], r["k"]) for r in rows(result)] == [(1, 3)]
    assert len(out.read_text().splitlines()) == 2
    assert "has the rows of 1 requests at once" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["http://127.0.0.1:1"], "nothing answers"),
        (["127.0.0.1:1"], "is no address"),
        ([], "no server"),
    ],
)
def test_no_server(options: list[str], words: str) -> None:
    result = CliRunner().invoke(treeopt.cli.app, ["measure", *options])
    assert isinstance(result.exception, InputError)
    assert words in str(result.exception)


def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    out.write_text("batch,k\n1,2\n")
    result = CliRunner().invoke(treeopt.cli.app, ["measure", "http://127.0.0.1:1", "--out", str(out)])
    assert "not written by `treeopt measure`" in str(result.exception)
    assert out.read_text() == "batch,k\n1,2\n"


def test_a_schedule_to_calibrate_by(tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    result = CliRunner().invoke(
        treeopt.cli.app, ["measure", "--plan-calibration", "--concurrency", "1,2,4", "--k", "2", "--out", str(out)]
    )
    assert result.exit_code == 0
    assert json.loads(out.read_text()) == [[1, 1, 2], [2, 2, 0], [3, 4, 1]]


def test_a_users_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"token_ids": [1, 2, 3]}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    with serving(Fake()) as url:
        assert run(url, "--concurrency", "2", "--prompts", str(prompts)).exit_code == 0
