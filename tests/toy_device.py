"""A model of a few thousand weights, and a device that exists on paper."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from treeopt.cost import ModelShape, parse_drafter
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.profile.device import Device
from treeopt.profile.measure import KernelBench, Questions
from treeopt.profile.points import Ceilings, KernelPoint
from treeopt.profile.rows import RowFile, Timed
from treeopt.profile.timer import Timing

HEADS = GroupedAttention(heads=4, kv_heads=2, head_dim=32)
MODEL = ModelShape(
    name="toy",
    source="test",
    hidden=64,
    layers=2,
    vocab=512,
    intermediate=128,
    tied_embeddings=True,
    attention=HEADS,
)
# 10 GB/s and 100 GFLOP/s
CEILINGS = Ceilings(bandwidth_bytes_per_s=10e9, flops_per_s=100e9)
DEVICE = Device(
    kind="cpu", name="paper", libraries="torch 2", memory_bytes=6 << 30, cache_bytes=1 << 20, processors=None, threads=1
)
CONFIG = """\
{"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, "intermediate_size": 128, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true}
"""


def questions(drafter: str = "eagle", *, dtype: Dtype = Dtype.FP32, max_tokens: int = 8) -> Questions:
    return Questions(
        model=MODEL,
        drafter=parse_drafter(drafter, load_model=lambda name: MODEL),
        dtype=dtype,
        tp=1,
        max_tokens=max_tokens,
        max_context=512,
    )


def bench(path: Path, *, max_tokens: int = 8) -> KernelBench:
    return KernelBench(
        device=DEVICE, rows=RowFile(path=path, device=DEVICE.key), questions=questions(max_tokens=max_tokens)
    )


def at(point: KernelPoint, time_s: float) -> Timed:
    return Timed(point=point, timing=Timing(time_s=time_s, spread=0.0, calls=7), error=0.0)


def one_dies(torch: Any, kind: str, point: KernelPoint) -> Timed:
    """Times of two ranks, one of which dies; here, since their processes can import no test module by its name."""
    rank = torch.distributed.get_rank()
    if point.size("message_bytes") == 8192 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if point.size("message_bytes") == 8192:
        torch.distributed.barrier()
    if point.size("message_bytes") == 16384 and rank == 0:
        raise RuntimeError("out of memory")
    return at(point, 1e-6 * (1 + rank))
