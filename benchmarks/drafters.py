"""Block drafters and draft trees against what others published: `python benchmarks/drafters.py [FOLDER]`.

Writes docs/drafters-judged.md from the FOLDER that `measured_data.py` describes, which has `drafters/` and
`measured/sglang_autospec_tok_s.csv`. Every row is used, or counted with the reason why not.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from drafter_rows import FILES, Row, Rows
from drafter_tables import adaptive_gain, flat_lengths, markdown, shipped_profiles, step_of, verify_steps
from measured_data import data_folder

from treeopt.acceptance.budget_law import DECAY, length_at
from treeopt.acceptance.budget_tree import DDTREE, JETSPEC
from treeopt.cost import BlockHeads, Eagle3, ModelStep, load_hardware, load_model, parse_drafter
from treeopt.cost.served.published import PUBLISHED, EngineKey
from treeopt.errors import InputError
from treeopt.files.shipped import locate
from treeopt.planner.search import search

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "drafters-judged.md"
AUTOSPEC: Final = "measured/sglang_autospec_tok_s.csv"
NEEDED: Final = f"""\
drafters/{{{",".join(FILES)}}}.csv: 1,089 numbers of 29 public sources about DFlash, DDTree, JetSpec, DSpark,
P-EAGLE and suffix decoding, and {AUTOSPEC}: SGLang PR 22246"""
TIE: Final = 0.03
# SpecForge's configs/deepseek-v4-flash-dspark-official.json: the sizes that a price needs.
V4_DSPARK: Final = {
    "architectures": ["DSparkV4DraftModel"],
    "block_size": 5,
    "dflash_config": {"markov_rank": 256, "projector_type": "dspark_v4", "target_layer_ids": [40, 41, 42]},
    "hidden_size": 4096,
    "vocab_size": 129280,
    "num_hidden_layers": 3,
    "hc_mult": 4,
    "tie_word_embeddings": False,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "sliding_window": 128,
}
Table = list[Sequence[str]]


def main() -> None:
    """Write the document."""
    folder = data_folder(NEEDED, *(f"drafters/{name}.csv" for name in FILES), AUTOSPEC)
    rows = Rows.read(folder / "drafters")
    parts = [_law(rows), _draft_ms(rows), _held_out(rows, folder), _by_kernels(rows), adaptive_gain(rows)]
    parts += [shipped_profiles(rows), flat_lengths(rows), verify_steps(rows)]
    text = "\n\n".join([_heading(len(rows.rows)), *parts, _coverage(rows)]) + "\n"
    DOCUMENT.write_text(text, encoding="utf-8")
    print(f"wrote {DOCUMENT}")


def _heading(rows: int) -> str:
    return f"""# Block drafters and draft trees, judged

Made by `python benchmarks/drafters.py FOLDER` from {rows:,} published numbers (`drafters/`, 29 sources) and SGLang's
AutoSpec sweep. How each drafter is priced and trees are valued: [drafters](drafters.md)."""


def _law(rows: Rows) -> str:
    """E of one budget from two others, with the factor that the other eleven tables give."""
    name = "E by budget"
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for r in rows.claim(
        name,
        "acceptance",
        lambda r: r["budget"] and r["drafter_kind"] in ("dflash", "jetspec") and r["source"] == "jetspec_blog",
    ):
        found[r["drafter"], r["workload"]][int(r["budget"])] = float(r["acceptance_length"])
    decay = {key: math.log(E[256] / E[128]) / math.log(E[128] / E[64]) for key, E in found.items()}
    table, between, beyond = [], [], []
    for key, E in found.items():
        others = statistics.median(value for other, value in decay.items() if other != key)
        inner = length_at(128, {n: E[n] for n in (64, 256)}, decay=others).value / E[128] - 1
        outer = length_at(256, {n: E[n] for n in (64, 128)}, decay=others).value / E[256] - 1
        between.append(abs(inner))
        beyond.append(abs(outer))
        table.append([*key, *(f"{E[n]:.2f}" for n in (64, 128, 256)), f"{inner:+.1%}", f"{outer:+.1%}"])
    head = ["tree", "data set", "E(64)", "E(128)", "E(256)", "128 from 64, 256", "256 from 64, 128"]
    return f"""## E over the budget

The factor is the median of the other eleven tables (of all twelve {statistics.median(decay.values()):.3f}, as
`acceptance/budget_law.py` has it: {DECAY}). Largest error between {max(between):.1%}, beyond {max(beyond):.1%}.

{markdown(head, table)}"""


def _v4_flash() -> ModelStep:
    """DeepSeek-V4-Flash's drafter beside it on 4 B300: of the target only width, format and GPUs matter to it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(V4_DSPARK), encoding="utf-8")
        drafter = parse_drafter(str(file), load_model=lambda name: load_model(Path(name)))
    assert isinstance(drafter, BlockHeads)
    assert drafter.head is not None
    target = replace(drafter.head.model, layers=43, window=None)
    times = load_hardware(locate("hardware", "b300").path).kernel_times()
    engine = PUBLISHED[EngineKey("vllm", "V1", "eagle3")].steps
    return ModelStep(model=target, times=times, drafter=drafter, tp=4, dtype="fp8", engine=engine)


def _draft_ms(rows: Rows) -> str:
    table, v4, errors = [], _v4_flash(), []
    for r in rows.claim("draft round, ms", "costs", lambda r: r["what"] == "draft"):
        batch, measured = int(r["requests"]), float(r["ms"])
        if r["source"] == "vllm_blog_dspark_adaptive":
            predicted = v4.drafting_s(batch=batch, length=5, context=8192) * 1e3
            errors += [predicted / measured - 1] if batch <= 8 else []
            if batch & (batch - 1):  # powers of two are enough to read
                continue
            note = "" if batch <= 8 else "what the host takes per request is not known"
        else:
            model = r["target"].lower()
            predicted = step_of("a800", model, BlockHeads()).drafting_s(batch=1, length=15, context=1000) * 1e3
            note = "a constant of an eager Python loop: its launches are missing, which no profile here has"
        table.append(
            [
                r["engine"],
                r["target"],
                str(batch),
                f"{measured:.2f}",
                f"{predicted:.2f}",
                f"{predicted / measured - 1:+.0%}",
                note,
            ]
        )
    return f"""## Milliseconds of a draft round

vLLM: kernels of the B300 data sheet, experts in 8 bits (the sheet has no 4), and the
{v4.engine.draft_pass_s * 1e3:.2f} ms per pass that `served/published.py` has for vLLM with EAGLE-3: nothing was fitted
to these rows. At batch 1 to 8 the largest error is {max(map(abs, errors)):.0%}.

{markdown(["engine", "target", "batch", "measured", "priced", "off by", "what is missing"], table)}"""


def _sweeps(rows: Rows, folder: Path) -> Iterator[tuple[str, dict[tuple[int, int], float]]]:
    """`(setting, {(concurrency, K): tokens/s})`."""
    for source in ("vllm_blog_dspark_adaptive", "vllm_pr_32628"):
        found = rows.claim(
            "best K, held out",
            "throughput",
            lambda r, source=source: (
                r["source"] == source and r["metric"] == "output_tok_s" and r["policy"] in ("fixed", "none")
            ),
        )
        yield source, {(int(r["concurrency"]), int(r["k"] or 0)): float(r["value"]) for r in found}
    with (folder / AUTOSPEC).open(encoding="utf-8", newline="") as file:
        rest = [r for r in csv.DictReader(file) if r["config"] != "AutoSpec"]
    yield "sglang_autospec_tok_s", {(int(r["batch"]), int(r["config"].split("_")[0])): float(r["tok_s"]) for r in rest}


def _chosen(cells: Mapping[tuple[int, int], float], kept: Sequence[int], batch: int) -> int | None:
    """K by `treeopt search --cost` from some concurrencies; None where it says that it has no times there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        lines = [f"{b},{K},{rate}" for (b, K), rate in cells.items() if b in kept]
        file.write_text("\n".join(["batch,k,tok_s", *lines, ""]), encoding="utf-8")
        try:
            (bucket,) = search(batch, cost=str(file), only_listed=True).buckets
        except InputError:
            return None
    return bucket.num_speculative_tokens


def _held_out(rows: Rows, folder: Path) -> str:
    table, good, judged, outside = [], 0, 0, 0
    for name, cells in _sweeps(rows, folder):
        sizes = sorted({b for b, _ in cells})
        for kept in (sizes[::2], sizes[1::2]):
            for batch in (b for b in sizes if b not in kept):
                K = _chosen(cells, kept, batch)
                if K is None:
                    outside += 1
                    continue
                best = max((rate, k) for (b, k), rate in cells.items() if b == batch)
                loss = 1 - cells[batch, K] / best[0]
                judged, good = judged + 1, good + (loss <= TIE)
                table.append([name, ", ".join(map(str, kept)), str(batch), str(K), str(best[1]), f"{loss:.1%}"])
    for r in rows.claim("1 / tokens/s of the same run", "throughput", lambda r: r["source"] == "vllm_pr_32628"):
        assert r["metric"] == "tpot_ms"
    return f"""## The best K from every second concurrency

`treeopt search --cost` on the rows of every second concurrency, then the K at the others: right or within 3 % in
{good} of {judged}. {outside} others lie outside what the kept rows reach: the search says that it has no times there.

{markdown(["setting", "kept", "batch", "K", "best K", "loses"], table)}"""


def _by_kernels(rows: Rows) -> str:
    """Concurrency 1, where GPU and model are priced: trees on Qwen3-8B and an H100, in a Hugging Face loop."""
    found: dict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
    of_trees = rows.claim(
        "best budget by kernels", "throughput", lambda r: r["source"] == "jetspec_blog" and r["budget"]
    )
    for r in of_trees:
        found[r["drafter"], r["workload"]][int(r["budget"])] = r
    floor = _eager_floor(rows)
    table, good, judged = [], [0, 0], 0
    for (tree, workload), runs in found.items():
        kind = next(iter(runs.values()))["drafter_kind"]
        measured = {budget: float(r["value"]) for budget, r in runs.items()}
        line, best = [tree, workload], max(measured, key=measured.__getitem__)
        judged += len(runs) > 1
        for way, least in enumerate((Loop(0.0, 0.0), floor)):
            priced = {
                budget: _speedup(kind, budget, float(r["acceptance_length"]), least) for budget, r in runs.items()
            }
            choice = max(priced, key=priced.__getitem__)
            loss = 1 - measured[choice] / measured[best]
            good[way] += len(runs) > 1 and loss <= TIE
            off = statistics.median(priced[budget] / measured[budget] - 1 for budget in runs)
            line += [f"{choice}, {loss:.1%}" if len(runs) > 1 else "", f"{off:+.0%}"]
        table.append(line)
    head = [
        "tree",
        "data set",
        "chosen by kernels, loses",
        "speedup off by",
        "with the loop's floor, loses",
        "speedup off by",
    ]
    return f"""## By kernels at concurrency 1

Of all settings only these have a target and a GPU that can be priced and several drafts to choose from: Qwen3-8B on an
H100 (`h100-sxm`, data sheet), published E, in a Hugging Face loop that launches kernels one by one. Its steps do not
grow before the kernels outlast the launches: by kernels alone the best budget, 256 throughout, is right or within 3 %
in {good[0]} of {judged}; with the floor of such a loop from another source (CaDDTree's Qwen3-8B on an A800:
{floor.forward_s * 1e3:.1f} ms per forward pass, {floor.draft_s * 1e3:.1f} ms per draft) in {good[1]} of {judged}.

{markdown(head, table)}"""


class Loop(NamedTuple):
    """The least that a loop of single launches takes: per forward pass of the target, and per draft."""

    forward_s: float
    draft_s: float


def _eager_floor(rows: Rows) -> Loop:
    own = [
        r
        for name, r in rows.rows
        if name == "costs" and r["source"] == "caddtree_cost_models" and r["target"] == "Qwen3-8B"
    ]
    forward = next(r for r in own if (r["what"], r["tokens"], r["context"]) == ("verify", "1", "1"))
    draft = next(r for r in own if r["what"] == "draft")
    return Loop(float(forward["ms"]) * 1e-3, float(draft["ms"]) * 1e-3)


def _speedup(kind: str, budget: int, E: float, least: Loop) -> float:
    if kind == "eagle3":
        step, nodes, depth, widths = step_of("h100-sxm", "qwen3-8b", Eagle3()), budget, 8, [1] + [8] * 7
    else:
        step, depth, widths = step_of("h100-sxm", "qwen3-8b", BlockHeads(kind=kind)), 15, [1] * 15
        nodes = (DDTREE if kind == "dflash" else JETSPEC).nodes(budget)
    plain = step.terms(batch=1, nodes=1, depth=0, widths=[], context=1000).total_s
    terms = step.terms(batch=1, nodes=nodes, depth=depth, widths=widths, context=1000)
    # EAGLE's passes are a layer each, of the target's 36 and a head.
    draft_s = least.forward_s * depth / 36 if kind == "eagle3" else least.draft_s
    verify_s = terms.total_s - terms.drafter_s
    return E * max(plain, least.forward_s) / (max(verify_s, least.forward_s) + max(terms.drafter_s, draft_s))


def _coverage(rows: Rows) -> str:
    found = rows.coverage()
    used = sum(count for *_, count, why in found if not why.startswith("left out"))
    table = [[name, source, str(count), why] for name, source, count, why in found]
    return f"""## Every row

{used:,} of {len(rows.rows):,} rows are used, {len(rows.rows) - used:,} are left out for the reason beside them.

{markdown(["file", "source", "rows", "for"], table)}"""


if __name__ == "__main__":
    main()
