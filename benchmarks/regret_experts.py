"""What a wrong price of experts costs when it chooses the draft: `python benchmarks/regret_experts.py [FOLDER]`.

Truth is the sum of measured layers of block-scaled experts in FOLDER (`measured_data.py` says which), balanced routing,
three H100 engines; layers between two measured token counts are on a line in logs. Every chooser picks N in 1..64 for
each B of 1..256; its regret is the tokens/s that it loses against the best N. What else a step takes is left out: it
would dampen what is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from measured_data import GEMM, data_folder
from regret import ENGINES, curve, expected_tokens

from treeopt.arrays import FloatArray
from treeopt.cost import Dtype, Experts, KernelTimes, load_hardware
from treeopt.cost.fit.choose import fit_family
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.tables import Selection, read_table
from treeopt.cost.kernels.experts import experts_work
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fit import KernelFit
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.files.shipped import locate

TABLE: Final = "gemm/aic_moe.csv"
BATCHES: Final = range(1, 257)
NODES: Final = np.arange(1, 65)
MOST_TOKENS: Final = 4096
ACCEPTANCE: Final = {"good": (0.80, 0.08, 0.03, 0.02), "ok": (0.65, 0.12, 0.05, 0.03), "poor": (0.45, 0.15, 0.07, 0.04)}


class Layer(NamedTuple):
    """One GPU's part of a model's layer of experts."""

    name: str
    hidden: int
    intermediate: int
    count: int
    per_token: int

    @property
    def experts(self) -> Experts:
        """With balanced routing, every token on its own, as the rows were timed."""
        return Experts(
            count=self.count,
            per_token=self.per_token,
            intermediate=self.intermediate,
            shared_intermediate=0,
            dense_layers=0,
            skew=0.0,
            correlation=0.0,
        )


LAYERS: Final = (
    Layer("DeepSeek-V3, TP8", 7168, 2048 // 8, 256, 8),
    Layer("Qwen3-30B-A3B, TP1", 2048, 768, 128, 8),
)


def kept_rows(fit: KernelFit) -> Rows:
    """The rows that a shipped profile keeps, back from its curves."""
    curves = fit.residuals
    assert curves is not None
    shape, point = np.nonzero(~np.isnan(curves.values))
    hidden, intermediate, count, per_token, routing = np.round(np.exp(curves.points[shape])).T
    tokens, skewed = np.round(np.exp(curves.sweep[point])), 1.2 * (routing > 1)
    sizes = np.stack([tokens, hidden, intermediate, count, per_token, skewed], axis=1)
    form_s = np.empty(len(tokens))
    for at, (T, h, i, c, k, s) in enumerate(sizes.tolist()):
        work = experts_work(
            np.array(T), int(h), int(i), int(c), int(k), fit.skew if s else 0.0, Dtype.FP8_BLOCK.bytes_per_value
        )
        form_s[at] = fit.roofline.time_s(work)
    none = np.zeros(len(tokens), dtype=np.int64)
    return Rows(
        family=Family.EXPERTS,
        dtype=Dtype.FP8_BLOCK,
        sizes=sizes,
        time_s=form_s * np.exp(curves.values[shape, point]),
        origin=none,
        lines=none + 1,
        files=("profile",),
    )


def without(rows: Rows, layer: Layer) -> Rows:
    """The rows of all other models: neither this layer nor another part of it."""
    _, hidden, _, count, per_token, _ = rows.sizes.T
    own = (hidden == layer.hidden) & (count == layer.count) & (per_token == layer.per_token)
    return rows.where(~own)


def regret(truth: Callable[[FloatArray], FloatArray], price: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """`[768]` lost shares of tokens/s over batch sizes and drafters."""
    lost = []
    for ranks in ACCEPTANCE.values():
        expected = expected_tokens(ranks)
        for batch in BATCHES:
            tokens = batch * NODES.astype(np.float64)
            able = tokens <= MOST_TOKENS
            gained = np.where(able, expected / truth(tokens), -np.inf)
            choice = int(np.argmax(np.where(able, expected / price(tokens), -np.inf)))
            lost.append(1.0 - gained[choice] / gained.max())
    return np.array(lost)


def price_of(times: KernelTimes, layer: Layer) -> Callable[[FloatArray], FloatArray]:
    """The price of one layer by its tokens."""
    return lambda tokens: times.experts_s(tokens, layer.experts, layer.hidden, Dtype.FP8_BLOCK)


def main() -> None:
    """Print the table in Markdown."""
    folder = data_folder(GEMM, TABLE)
    print("| layer | its rows left out: mean % | p90 | max | its own rows: mean % | max |\n|---|---|---|---|---|---|")
    for layer in LAYERS:
        left_out, own = [], []
        for engine, profile in ENGINES.items():
            select = [("gpu", "h100_sxm"), ("engine", engine), ("moe_dtype", "fp8_block"), ("distribution", "balanced")]
            (rows,) = rows_of(read_table(folder / TABLE).select([Selection(*pair) for pair in select]))
            truth = curve(rows, (*layer[1:], 0.0), "tokens")
            times = load_hardware(locate("hardware", profile).path).kernel_times()
            entry = times.fits.get(Family.EXPERTS, Dtype.FP8_BLOCK)
            assert entry is not None
            refit = fit_family(without(kept_rows(entry.fit), layer)).fit
            others = KernelFits(
                entries=tuple(FitEntry(e.family, e.dtype, refit if e is entry else e.fit) for e in times.fits.entries)
            )
            for kept, fits in ((left_out, others), (own, times.fits)):
                priced = KernelTimes(name=profile, fits=fits, link_bandwidth_bytes_per_s=1e11)
                kept.append(regret(truth, price_of(priced, layer)))
        out, mine = 100 * np.concatenate(left_out), 100 * np.concatenate(own)
        cells = (out.mean(), np.quantile(out, 0.9), out.max(), mine.mean(), mine.max())
        print(f"| {layer.name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


if __name__ == "__main__":
    sys.exit(main())
