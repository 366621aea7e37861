"""Rows made from known parameters, so that what a fit finds can be compared with what was put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LAUNCH_S = 4e-6
BANDWIDTH = 2.5e12
PEAK = 7e14
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
WEIGHTS = tuple((n, k) for n in (4096, 8192, 16384) for k in (4096, 6144, 8192))


def gemm_time_s(m: float, n: float, k: float, q: float = 4.0) -> float:
    memory_s = (2 * n * k + 2 * m * (n + k)) / BANDWIDTH
    return LAUNCH_S + float((memory_s**q + (2 * m * n * k / PEAK) ** q) ** (1 / q))


def gemm_lines(noise: float = 0.0, seed: int = 0) -> list[str]:
    """A CSV with the columns of `aic_gemm_bf16.csv`."""
    random = np.random.default_rng(seed)
    lines = ["gpu,engine,m,n,k,latency_us"]
    for n, k in WEIGHTS:
        for m in TOKENS:
            time_us = gemm_time_s(m, n, k) * 1e6 * np.exp(noise * random.standard_normal())
            lines.append(f"toy,engine-1,{m},{n},{k},{time_us:.9g}")
    return lines


def write_gemm(folder: Path, noise: float = 0.0) -> Path:
    path = folder / "gemm.csv"
    path.write_text("\n".join(gemm_lines(noise)) + "\n")
    return path


def decode_lines(heads: tuple[tuple[int, int], ...] = ((8, 1), (16, 4), (32, 8))) -> list[str]:
    """Decode attention: 10 us, 3 TB/s, 20 ns per request and KV head."""
    lines = ["num_heads,num_key_value_heads,kv_cache_dtype,batch_size,kv_len,latency_us"]
    for h, kv in heads:
        for batch in (1, 4, 16):
            for keys in (128, 1024, 8192):
                time_us = 10 + 0.02 * batch * kv + 2 * batch * keys * 2 * kv * 128 / 3e6
                lines.append(f"{h},{kv},bfloat16,{batch},{keys},{time_us:.9g}")
    return lines
