"""Which experts the measured rows of skewed routing visit, by hand: `python benchmarks/routing.py`.

NVIDIA's collector (aiconfigurator, `power_law_logits_v3`) draws each expert's number of tokens from a density x^-1.2,
from 0.01 to 2 where the layer's choices are no more than its experts and from 1 to 0.8 T beyond, and rounds: the
experts visited jump where T k passes E. A price takes the rows over experts popular by rank (`visited_experts`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost import Dtype, load_hardware
from treeopt.cost.kernels.experts import experts_point, experts_work, visited_experts
from treeopt.cost.kernels.family import Family
from treeopt.files.shipped import locate

EXPONENT: Final = 1.2
TOKENS: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256)
DRAWS: Final = 200
# gpt-oss-120b: hidden, intermediate, experts, experts per token.
LAYER: Final = (2880, 2880, 128, 4)
PROFILE: Final = "h200-sxm-vllm-0.24"


def drawn(rng: np.random.Generator, tokens: int, count: int, per_token: int) -> int:
    """Experts that get a token in one draw of the collector's."""
    low, high = (1.0, 0.8 * tokens) if tokens * per_token > count else (0.01, 2.0)
    ends = np.array([low, high]) ** (1.0 - EXPONENT)
    share = (ends[0] + (ends[1] - ends[0]) * rng.random(count)) ** (1.0 / (1.0 - EXPONENT))
    given = np.minimum(np.rint(share / share.sum() * tokens * per_token), tokens)
    missing = int(tokens * per_token - given.sum())
    order = np.argsort(-given, kind="stable")
    while missing > 0:  # the most popular ones that may have more take the rest
        more = order[given[order] < tokens][:missing]
        given[more] += 1
        missing -= len(more)
    for expert in order[given[order] > 0][::-1][:-missing] if missing < 0 else ():
        given[expert] -= 1
    return int(np.count_nonzero(given))


def measured_s() -> FloatArray:
    """Seconds of the layer's own rows, as the profile keeps them."""
    entry = load_hardware(locate("hardware", PROFILE).path).kernel_times().fits.get(Family.EXPERTS, Dtype.MXFP4)
    assert entry is not None
    assert entry.fit.residuals is not None
    tokens = np.array(TOKENS, dtype=np.float64)
    work = experts_work(tokens, *LAYER, entry.fit.skew, Dtype.MXFP4.bytes_per_value)
    hidden, wide, count, chosen = (np.array(float(size)) for size in LAYER)
    point = experts_point(hidden, wide, count, chosen, np.array(1.0))[None]
    return np.asarray(entry.fit.roofline.time_s(work) * np.exp(entry.fit.residuals.at(point, 0, np.log(tokens))))


def main() -> None:
    """Print the table in Markdown."""
    rng = np.random.default_rng(0)
    _, _, count, per_token = LAYER
    print("| tokens | experts of the rows | by popularity | us measured | us per expert of the rows | by popularity |")
    print("|---|---|---|---|---|---|")
    for tokens, time_s in zip(TOKENS, measured_s(), strict=True):
        rows = float(np.mean([drawn(rng, tokens, count, per_token) for _ in range(DRAWS)]))
        ours = float(visited_experts(np.array(float(tokens)), count, per_token, 0.8))
        cells = (tokens, f"{rows:.1f}", f"{ours:.1f}", f"{1e6 * time_s:.0f}")
        print(f"| {' | '.join(map(str, cells))} | {1e6 * time_s / rows:.2f} | {1e6 * time_s / ours:.2f} |")


if __name__ == "__main__":
    main()
