"""Watching a server: one on this machine whose counters grow by the step, read until the question is decided."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from check.logs import OFF
from cli.conftest import Run
from hypothesis import given
from hypothesis import strategies as st

from treeopt.acceptance.importers import read_evidence
from treeopt.check.live import share_interval
from treeopt.check.matching import planned_survival
from treeopt.plan.reading import load_plan

Page = Callable[[int], str | None]
SURVIVAL = (0.7, 0.4, 0.2)
STEPS = 4000  # of requests between two looks


class Served:
    """Answers a page that depends on how often it was asked for; None is a refusal."""

    def __init__(self, page: Page, path: str = "/metrics") -> None:
        asked = [0]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = page(asked[0]) if self.path == path else None
                asked[0] += self.path == path
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write((content or "").encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.asked = asked
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(page: Page, path: str = "/metrics") -> Served:
        made.append(Served(page, path))
        return made[-1]

    yield start
    for server in made:
        server.close()


def vllm(drafts: float, survival: tuple[float, ...] = SURVIVAL) -> str:
    accepted = [round(drafts * s) for s in survival]
    rows = {
        "drafts_total": drafts,
        "draft_tokens_total": drafts * len(survival),
        "accepted_tokens_total": sum(accepted),
    }
    lines = [f'vllm:spec_decode_num_{name}{{model_name="m"}} {value}' for name, value in rows.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="{i}"}} {n}'
        for i, n in enumerate(accepted)
    ]
    return "\n".join(lines) + "\n"


def trtllm(drafts: int) -> str:
    accepted = [round(drafts * s) for s in SURVIVAL]
    lines = [
        f'trtllm_spec_decode_num_draft_tokens_total{{model_name="m"}} {3 * drafts}',
        f'trtllm_spec_decode_num_accepted_tokens_total{{model_name="m"}} {sum(accepted)}',
    ]
    for i, n in enumerate(accepted):
        lines.append(f'trtllm_spec_decode_drafted_tokens_total{{model_name="m",token_position="{i}"}} {drafts}')
        lines.append(f'trtllm_spec_decode_accepted_tokens_total{{model_name="m",token_position="{i}"}} {n}')
    return "\n".join(lines) + "\n"


def sglang(steps: int, *, nodes: int = 4) -> str:
    requests = steps // 50
    tokens = requests + steps + round(steps * sum(SURVIVAL))
    rows = {
        "spec_verify_calls_total": steps,
        "generation_tokens_total": tokens,
        "num_requests_total": requests,
        "spec_num_steps": 3,
        "spec_num_draft_tokens": nodes,
    }
    return "".join(f'sglang:{name}{{model_name="m"}} {value}\n' for name, value in rows.items())


def growing(page: Callable[[int], str]) -> Page:
    return lambda asked: page(1000 + asked * STEPS)


def watched(run: Run, url: str, *words: object) -> dict[str, object]:
    ran = run("ranks", "watch", url, "--interval-s", "0.05", *words, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, object] = json.loads(ran.out)
    return found


@pytest.mark.parametrize(("page", "path"), [(vllm, "/metrics"), (trtllm, "/prometheus/metrics")])
def test_a_chain_is_decided_when_it_is_known(run: Run, serve: Callable[..., Served], page, path: str) -> None:  # type: ignore[no-untyped-def]
    found = watched(run, serve(growing(page), path).url, "--for", "2")
    assert found["format"] == "treeopt.watch/1"
    (source,) = found["sources"]
    # Only what came since the watch began counts.
    assert source["steps"] % STEPS == 0
    assert [p["value"] for p in source["positions"]] == pytest.approx(SURVIVAL, abs=1e-3)
    assert all(p["low"] < p["value"] < p["high"] for p in source["positions"])
    assert str(found["decided"]).startswith("chains of 2 give 2.10 tokens per step, within 0.0")
    assert not found["cannot"]


def test_intervals_tighten_and_an_error_above_the_gate_goes_on(run: Run, serve: Callable[..., Served]) -> None:
    server = serve(growing(vllm))
    ran = run("ranks", "watch", server.url, "--interval-s", "0.05", "--for", "3", "--gate", "0.02")
    polls = [line for line in ran.err.splitlines() if " steps, E " in line]
    ends = [re.findall(r"E \S+ \[([\d.]+), ([\d.]+)\]", line)[0] for line in polls]
    reach = [round(float(high) - float(low), 2) for low, high in ends]
    assert len(polls) > 1
    assert reach == sorted(reach, reverse=True)
    assert "decided: chains of 3" in ran.out


def test_what_cannot_be_decided_is_said_at_once(run: Run, serve: Callable[..., Served]) -> None:
    found = watched(run, serve(growing(vllm)).url, "--for", "5")
    assert "up to 3 tokens" in str(found["cannot"])
    assert "start the server with 5 or more" in str(found["cannot"])
    found = watched(run, serve(growing(sglang)).url, "--for", "2")
    assert "only a mean" in str(found["cannot"])
    (source,) = found["sources"]
    assert source["acceptance_length"]["value"] == pytest.approx(2.3, abs=1e-3)


def test_sglang_trees_have_a_mean_alone(tmp_path: Path) -> None:
    scrape = tmp_path / "metrics.prom"
    scrape.write_text(sglang(1000, nodes=8))
    imported = read_evidence([scrape])
    assert imported.kind == "sglang-prometheus"
    assert [u.mean_accepted_length for u in imported.unplanned] == pytest.approx([2.3])
    scrape.write_text(sglang(1000))
    (source,) = read_evidence([scrape]).sources
    assert source.profile.evidence.mean_accepted_length == pytest.approx(2.3)
    assert source.tally.draft_tokens == 3


def test_a_server_that_starts_again_is_counted_from_there(run: Run, serve: Callable[..., Served]) -> None:
    server = serve(lambda asked: vllm((5000, 9000, 1000, 5000, 9000, 13000)[min(asked, 5)]))
    found = watched(run, server.url, "--seconds", "0.4")
    (source,) = found["sources"]
    assert source["steps"] == 13000
    assert "started again 1 times" in found["notes"][0]


def test_time_over_and_no_server(run: Run, serve: Callable[..., Served]) -> None:
    found = watched(run, serve(lambda asked: vllm(0)).url, "--seconds", "0.1")
    assert found["sources"] == []
    assert not found["decided"]
    ran = run("ranks", "watch", "http://127.0.0.1:9")
    assert ran.code == 1
    assert "nothing answers" in ran.err
    assert run("ranks", "watch", "127.0.0.1:9").code == 1
    ran = run("ranks", "watch", serve(lambda asked: None).url)
    assert ran.code == 1
    assert "404" in ran.err


@pytest.fixture
def plan(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    words = ("--ranks", "example", "--max-children", "1", "--out", path)
    assert run("search", "--batch", "8", *words).code == 0
    return path


@pytest.mark.parametrize(("factor", "code", "words"), [(1.0, 0, "the plan holds"), (0.6, 3, "does not hold")])
def test_a_plan_is_judged_live(
    run: Run, serve: Callable[..., Served], plan: Path, factor: float, code: int, words: str
) -> None:
    survival = tuple((planned_survival(load_plan(plan).buckets[0]) * factor).tolist())
    server = serve(lambda asked: vllm(asked * 40_000, survival))
    assert words in str(watched(run, server.url, "--for", plan, "--batch", "8")["decided"])
    ran = run("check", plan, "--url", server.url, "--batch", "8")
    assert ran.code == code
    assert run("check", plan).code == 2  # neither a file nor a server


@given(st.integers(1, 400), st.integers(0, 2**32 - 1), st.floats(0.02, 0.98))
def test_the_interval_of_a_share_holds_it(hundreds: int, seed: int, share: float) -> None:
    """Of draws as alike as the design effect says it misses about one in twenty: never by far."""
    steps = 9.0 * 100 * hundreds
    drawn = np.random.default_rng(seed).binomial(100 * hundreds, share) / (100 * hundreds)
    found = share_interval(float(drawn), steps)
    assert found.low is not None
    assert found.high is not None
    reach = found.high - found.low
    assert found.low - 1.5 * reach <= share <= found.high + 1.5 * reach
    half = share_interval(0.5, 900)
    assert (half.low, half.high) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_a_server_without_speculation_is_told_at_the_first_look(
    run: Run, serve: Callable[..., Served], plan: Path
) -> None:
    server = serve(lambda asked: OFF["vLLM metrics"])
    assert "speculation is not on" in run("ranks", "watch", server.url, "--for", "3").out
    ran = run("check", plan, "--url", server.url)
    assert ran.code == 3
    assert "plan not active (batch 8)" in ran.out
