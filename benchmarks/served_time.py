"""Times per token as served, by hand: `python benchmarks/served_time.py FOLDER`.

Writes docs/served-time.md: plain steps with the prompts of other requests between them, against 1,226 measured times
per token of plain serving. Nothing is fitted to them. FOLDER is that of `measured_data.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from measured_data import data_folder
from published_models import SHAPES

from treeopt.arrays import FloatArray
from treeopt.cost import (
    Experts,
    GroupedAttention,
    ModelShape,
    ModelStep,
    Ngram,
    SlidingWindow,
    load_hardware,
    load_model,
)
from treeopt.cost.prefill import Prompts, between_tokens_s
from treeopt.cost.served.published import served_constants
from treeopt.files.shipped import locate

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "served-time.md"
ROWS: Final = "measured/aic_silicon_tpot.csv"
SOURCE: Final = f"""{ROWS}: the H100 and H200 rows of systems/silicon_sample.csv of NVIDIA's aiconfigurator-core (PyPI,
Apache-2.0) with their columns; the time per token is that of plain serving, prompts of others in between"""
RELEASES: Final = {"vllm": "vllm-0.24", "sglang": "sglang-0.5.14", "trtllm": "trtllm-1.3"}
SMALL: Final = 16
LIMITS: Final = (0.10, 0.20)  # of the median signed error, up to and above that batch size
# From the config.json of openai/gpt-oss-120b.
GPT_OSS: Final = ModelShape(
    name="gpt-oss-120b",
    source="config.json",
    hidden=2880,
    layers=36,
    vocab=201088,
    intermediate=2880,
    tied_embeddings=False,
    attention=GroupedAttention(heads=64, kv_heads=8, head_dim=64),
    experts=Experts(count=128, per_token=4, intermediate=2880, shared_intermediate=0, dense_layers=0),
    window=SlidingWindow(tokens=128, layers=18),
    dtype="mxfp4",
)
MODELS: Final = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.3-70b",  # the same shape
    "openai/gpt-oss-120b": GPT_OSS.name,
}


class Served(NamedTuple):
    """One measured time per token beside the priced ones, in ms: undisturbed, and between the prompts of others."""

    group: str
    batch: int
    measured: float
    alone: float
    served: float


def dtype_of(row: dict[str, str]) -> str:
    """The format of the weights: the checkpoints that Qwen published in FP8 are scaled by blocks."""
    if row["model_path"].startswith("openai/"):
        return "mxfp4"
    return "bf16" if not row["precision"] else "fp8_block" if row["model_path"].startswith("Qwen/") else "fp8"


@lru_cache
def step_of(hardware: str, model: str, dtype: str, tp: int) -> ModelStep:
    """A plain step with the engine's constants."""
    gpu = load_hardware(locate("hardware", hardware).path)
    shape = {**SHAPES, GPT_OSS.name: GPT_OSS}.get(model) or load_model(locate("models", model).path)
    engine = served_constants(gpu, "eagle3").steps
    return ModelStep(model=shape, times=gpu.kernel_times(), drafter=Ngram(), dtype=dtype, tp=tp, engine=engine)


def priced(folder: Path) -> Iterator[Served]:
    """Every row."""
    with (folder / ROWS).open() as file:
        for row in csv.DictReader(file):
            gpu = row["system"].replace("_", "-")
            hardware, dtype = f"{gpu}-{RELEASES[row['backend']]}", dtype_of(row)
            step = step_of(hardware, MODELS[row["model_path"]], dtype, int(float(row["tp_size"])))
            batch, prompt, answer = int(float(row["batch_size"])), int(row["isl"]), int(row["osl"])
            alone = 1e3 * float(step.step_time_s(batch, 1, 0, np.zeros(1, dtype=np.int64), prompt + answer // 2))
            waiting = 1e3 * between_tokens_s(step, Prompts(prompt, answer), batch=batch)
            yield Served(
                f"{row['backend']} | {gpu} | {dtype}", batch, float(row["silicon_tpot_ms"]), alone, alone + waiting
            )


def errors(rows: Sequence[Served], *, served: bool) -> FloatArray:
    """`[R]` priced over measured, less 1."""
    return np.array([(row.served if served else row.alone) / row.measured - 1 for row in rows])


def table(rows: Sequence[Served]) -> Iterator[str]:
    """A line per engine, GPU and format, and how many of them keep within the limits."""
    kept = asked = 0
    for group in sorted({row.group for row in rows}):
        for small, limit in zip((True, False), LIMITS, strict=True):
            own = [row for row in rows if row.group == group and (row.batch <= SMALL) == small]
            if own:
                before, after = (float(np.median(errors(own, served=served))) for served in (False, True))
                within, asked = abs(after) <= limit, asked + 1
                kept += within
                which = "up to" if small else "above"
                yield (
                    f"| {group} | {which} {SMALL} | {len(own)} | {before:+.0%} | {after:+.0%} | "
                    f"{'yes' if within else '**no**'} |"
                )
    both = (np.median(np.abs(errors(rows, served=served))) for served in (False, True))
    before, after = both
    yield f"| all, size of the error | | {len(rows)} | {before:.0%} | {after:.0%} | {kept} of {asked} |"


def main() -> None:
    """Write the document."""
    rows = list(priced(data_folder(SOURCE, ROWS)))
    DOCUMENT.write_text(HEAD + "\n".join(table(rows)) + TAIL)
    print(f"wrote {DOCUMENT}")


HEAD: Final = f"""# Times per token as served

A step's price, and every limit on a time per token, is of undisturbed decoding. A server works on the prompts of other
requests in between: while a request decodes its R tokens each of the other B - 1 ends and is replaced, so it waits for
B - 1 prompts. `treeopt search --prompt-tokens P --output-tokens R [--chunk-tokens C]` says how long that is and what
it leaves of the speedup. `python benchmarks/served_time.py FOLDER` prices plain serving so and compares it with the
times per token that NVIDIA's aiconfigurator-core ships (H100 and H200, prompts of 128 to 8192 and answers of 100 to
8192 tokens, 2 to 512 requests at once). Nothing here was fitted to these rows. The median signed error should lie
within {LIMITS[0]:.0%} up to {SMALL} requests at once and within {LIMITS[1]:.0%} above.

| engine | GPU | weights | requests | rows | undisturbed | with prompts | within |
| --- | --- | --- | --- | ---: | ---: | ---: | --- |
"""
TAIL: Final = """

What stays is the kernels' price in other releases than those that were measured (the rows are of vLLM 0.11 to 0.18,
SGLang 0.5.1 to 0.5.8 and TensorRT-LLM 1.0 to 1.3; the profiles of vLLM 0.24, SGLang 0.5.14 and TensorRT-LLM 1.3),
expert parallelism, which is priced as tensor parallelism, and servers that were given all requests at once: their
prompts stand before the first token, not between tokens.
"""


if __name__ == "__main__":
    main()
