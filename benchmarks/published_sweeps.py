"""Published sweeps against the tool, by hand: `python benchmarks/published_sweeps.py [FOLDER]`.

Writes docs/cost-steps.md from the FOLDER that `measured_data.py` describes. The numbers are those of
`tests/published.py`; each section says what was fitted and what was predicted, and which test asserts it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import published
import published_steps
import shared
from measured_data import PUBLISHED, data_folder
from published import TIE, Predicted, Verdict
from smooth_h100 import SmoothH100

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cost-steps.md"
FILES = (
    *(
        f"measured/{name}.csv"
        for name in (
            "vllm_step_ms_by_batch_k",
            "acceptance_by_position",
            "vllm_al_tpot_bs1",
            "sglang_autospec_tok_s",
            "specbundle_sglang",
            "speedup_by_batch",
        )
    ),
    "inputs/report_numbers.json",
    "inputs/specforge_bench_eagle3_results.json",
)
COMMAND = "python benchmarks/published_sweeps.py FOLDER"


def main() -> None:
    """Write the document."""
    shared.DATA = data_folder(PUBLISHED, *FILES)
    parts = [_heading(), _reading(), _steps(), _autospec(), _vllm(), _verdicts(), _moe(), _specbundle()]
    DOCUMENT.write_text("\n\n".join(map(_filled, "\n\n".join(parts).split("\n\n"))) + "\n")
    print(f"wrote {DOCUMENT}")


def _filled(block: str) -> str:
    """A paragraph with full lines; headings, tables and formulas as they are."""
    is_text = not block.startswith(("#", "|", "    "))
    return textwrap.fill(block, 118, break_on_hyphens=False, break_long_words=False) if is_text else block


def _heading() -> str:
    return f"""# Engine steps and cost tables

A step of a serving engine takes longer than its kernels: the scheduler, sampling, logits and the drafter's bookkeeping
come on top. `treeopt profile fit --steps` fits up to five constants for them to step times that were served, and
`treeopt profile table` writes step times as the tables that engines plan by. Made by `{COMMAND}` from published
numbers; asserted by `tests/cost/steps/test_published.py`. The project does not hold these numbers; each section names
its source. FOLDER holds them as `measured/*.csv` and `inputs/*.json`: `benchmarks/measured_data.py` lists which,
`tests/published.py` reads their columns."""


def _reading() -> str:
    return """## What is read

`--steps FILE` takes CSV with one row per batch size and shape, or what an engine's own benchmark writes.

| file | time of a step |
|---|---|
| CSV: `batch`, `k`, a time | `step_ms`, `step_s`, `step_us`; `tpot_ms` x `accept_len`; batch x `accept_len` / `tok_s` |
| CSV of trees: `nodes` and `depth` (and `width`), `paths`, or `steps,topk,num_draft_tokens` for `k` | as above |
| `vllm bench serve` JSON | `max_concurrency` x accepted length / `output_throughput` |
| vLLM's batch x K table (`batch_stats`) | as stated, ms |
| SGLang `bench_speculative.py` JSONL | `step_time`, s |
| SpecForge `bench_eagle3.py` results | `batch_size` x `accept_length` / `output_throughput` |
| TensorRT-LLM iteration statistics | median `iterLatencyMS` of steps without prefill |

Throughput of a server that is not full, or that prefills in between, makes steps look longer than they are: prefer
step times. Named with file and line: times of 0 or less, rows or files in another unit (a thousand times off), two
measurements of one point that contradict each other, rows listed twice, batch sizes that repeat another's times, times
that fall with more work (kept: kernels do that), steps out of graph capture. Fewer than 8 rows or a single batch size
are refused.

    step = kernels + per step + per verified token x B N + [N > 1] per speculative step + per draft pass x D
         + [N > 1] per speculative request x B

Non-negative least squares of the relative error. Constants can absorb what a kernel model gets wrong, so none, the
first, the first two and so on are taken, in this order, by the error at batch sizes that were left out; a larger set
must win by 5 %. "Set chosen anew" is the error when this choice, too, is made without the batch size that is judged.

A table of step times (`TableStep`) is priced linearly between its points, never between plain decoding and the first K:
a step that drafts starts with a jump. Beyond its points a step takes for ever and is not chosen, unless a model carries
the table on: its price times what the table measured over what the model says at the nearest chain."""


def _steps() -> str:
    return f"""## 23 vLLM steps, leave one batch size out

Llama-3.1-8B + EAGLE, batch 1, 16, 32, 64, K = 0, 1, 3, 4, 5, 7, from a public fork of vLLM PR #32374
(`_DYNAMIC_STATS`). The GPU is not named, its plain step is an H100's. The context is not published; 300 is MT-Bench's,
and the errors depend on it: 128 and 1000 stand beside it.
Batch 4 repeats batch 1 to the last digit and is left out. Out of graph capture and kept out of the constants:
{published_steps.eager()}.

{published_steps.table()}"""


def _autospec() -> str:
    sweep, acceptances = published.autospec(), published.qwen_acceptances()
    median, rms = sweep.scatter
    main_one = acceptances[published.DRAFTER, "mtbench"]
    survival = ", ".join(f"{s:.3f}" for s in main_one.survival[:6])
    lines = [
        f"| {p.what} | {_listed(p.ks)} | {' '.join(f'{loss:.1%}' for loss in p.losses)} | {p.ties} of {len(p.ks)} |"
        for p in published.autospec_predictions(sweep, main_one)
    ]
    return f"""## AutoSpec: K by batch size (SGLang PR 22246, Qwen3-235B-A22B + EAGLE3)

Tokens/s for K = 1 to 6 at batch 1 to 64; no acceptance, no plain decoding, no GPU stated (the file has this target
only, GLM-4.7 is not in it). Acceptance by position is taken from another source, SpecBundle: accepted lengths of
Qwen3-235B chains of 3, 5 and 7 with `{published.DRAFTER}` on MT-Bench, constant between two of them: {survival}.
Step times are batch x E(K) / (tokens/s) of the cells that a row names; all other cells are predicted: linear in K and
batch.

Measured best K at batch {_listed(sweep.batches)}: {_listed(sweep.best)}. A tie is a loss of at most {TIE:.0%} of the
measured tokens/s: cells scatter by {median:.1%} (median) to {rms:.1%} (root mean square) around smooth curves in K.
Ties with the best: {"; ".join(f"batch {b}: {_listed(sweep.ties(i))}" for i, b in enumerate(sweep.batches))}.

| step times known at | K chosen | loss against the measured best | best or tie |
|---|---|---|---|
{chr(10).join(lines)}

The first row, and known batch sizes with all their K, find the best by construction (the accepted length cancels):
they check units and readers only. The others are predictions. With all 14 acceptances of that target in SpecBundle
(two drafters, seven data sets, E(3) from 1.87 to 3.24):

{_spread(sweep, acceptances.values())}"""


def _spread(sweep: published.Sweep, acceptances: Iterable[published.PositionSurvival]) -> str:
    by_what: dict[str, list[Predicted]] = {}
    for survival in acceptances:
        for predicted in published.autospec_predictions(sweep, survival):
            by_what.setdefault(predicted.what, []).append(predicted)
    lines = ["| step times known at | best or tie | mean loss | worst loss |", "|---|---|---|---|"]
    for what, found in by_what.items():
        losses = [loss for p in found for loss in p.losses]
        ties = f"{sum(p.ties for p in found)} of {len(losses)}"
        lines.append(f"| {what} | {ties} | {sum(losses) / len(losses):.2%} | {max(losses):.1%} |")
    return "\n".join(lines)


def _vllm() -> str:
    lines = []
    for method in ("EAGLE-1", "EAGLE-3"):
        for found in published.vllm_best_k(method, SmoothH100()):
            cells = (method, found.batch, found.measured, found.searched, found.predicted, f"{found.loss:.1%}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    others = [published.vllm_20780(method) for method in ("EAGLE-1", "EAGLE-3")]
    trees = "; ".join(
        f"batch {t.batch}: {t.step_ratio:.3f} against {t.length_ratio:.3f}" for t in published.tree_or_chain()
    )
    at_one = "; ".join(f"{o.method}: best K = {o.measured}, chosen {o.chosen}, loss {o.loss:.1%}" for o in others)
    return f"""## vLLM: K by batch size, Llama-3.1-8B

Tokens/s = B E(K) / step, E from the acceptance by position in the same fork. "Search" is the search on the table,
which also prices K = 2 and 6 between measured ones; "predicted" prices every K by smooth rooflines with engine
constants from the other batch sizes only.

| drafter | batch | measured best of 0, 1, 3, 4, 5, 7 | search | predicted without this batch | its loss |
|---|---|---|---|---|---|
{chr(10).join(lines)}

vllm#20780 (another run, H100, batch 1, K = 2 to 7), from its steps at K = 2 and 7 only and the acceptance of the report
above. {at_one}.

vllm#22752 (tree attention backend, chain beside tree): the tree's step over the chain's, against the ratio of accepted
lengths that it must stay below to pay. {trees}. It pays at each, by less and less."""


def _verdicts() -> str:
    lines = [_verdict(v) for v in (*published.specforge_verdicts(), *published.speed_bench_verdicts())]
    search = ", ".join(f"batch {b}: {'yes' if s else 'no'}" for b, s in published.specforge_search().items())
    return f"""## Do not speculate

SpecForge#339 (Qwen3-30B-A3B + EAGLE3, 2 x H100) read from its results file; break-even is the step over the plain step
of the same batch size. SPEED-Bench gives lengths and speedups, so its break-even is their ratio. The search, given the
chain that ran at SpecForge#339, its mean length and both step times: speculate? {search}.

| run | break-even E | accepted | speedup | |
|---|---|---|---|---|
{chr(10).join(lines)}"""


def _verdict(v: Verdict) -> str:
    says = "pays" if v.pays else "do not speculate"
    return f"| {v.what} | {v.break_even_tokens:.2f} | {v.tokens_per_step:.2f} | {v.speedup:.2f} | {says} |"


def _moe() -> str:
    measured, coverage = published.moe_jump()
    return f"""## The second token of a mixture of experts

ik_llama.cpp#1630, GLM-4.5-Air (128 experts, 8 per token): a step of 2 tokens takes {measured:.2f} times one of 1
(17.93 and 5.88 ms). From the table alone: a single draft accepts at most 2 tokens per step, so it cannot pay. A
coverage model (E(1 - (1 - k/E)^T) distinct experts, all weights equally wide) streams {coverage:.2f} times the
weights: the rest of the jump is not experts but another code path for one token than for several, which only a
measured table knows. From 2 tokens on the step grows less than coverage says: 3 tokens take 1.15 times 2, 8 tokens
1.68 times (coverage: {_glm(3):.2f} and {_glm(8):.2f})."""


def _glm(tokens: int) -> float:
    return published.glm_weights(tokens) / published.glm_weights(2)


def _specbundle() -> str:
    lines = []
    for r in published.specbundle():
        ratios = " | ".join(f"{ratio:.2f}" for ratio in r.ratios)
        lines.append(
            f"| {r.target} | {r.batch} | {r.sets} | {ratios} | {r.slope:.3f} | {r.mean_error:.1%} | {r.max_error:.1%} |"
        )
    return f"""## SpecBundle: what longer chains cost (SGLang, H200)

Step with speculation over plain step, c = accepted length / speedup, of chains of N = 4, 6, 8 tokens. Predicted: c(6)
and c(8) of one data set from its own c(4) and the slope per draft of the target's other data sets.

| target | batch | runs | c(4) | c(6) | c(8) | slope per draft | mean error | worst |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Llama-4-Scout's c below 1 says that its plain and speculative runs are not comparable."""


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


if __name__ == "__main__":
    main()
