"""The device at hand: what it is called, what it holds, and how it is timed."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.profile.gpu_state import GpuState, gpu_state
from treeopt.profile.timer import CpuTimer, CudaTimer, Timer

Kind = Literal["cpu", "cuda"]
# A share of the memory for the inputs of one point: the float64 check and the results come on top.
_INPUT_SHARE: Final = 1 / 6
_UNKNOWN_CACHE: Final = 32 << 20
_INFINITY_CACHE: Final = 256 << 20  # AMD's, behind the L2 caches that torch reports
_GPU_NODES: Final = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What kernels are timed on.

    Attributes:
        name: as its maker calls it.
        libraries: versions that its kernels come from.
        cache_bytes: its last-level cache.
        processors: multiprocessors of a GPU; None for a processor.
        threads: that torch uses on a processor; None for a GPU.
        free_bytes: of a GPU's memory when it was found; None for a processor.
        uuid: of a GPU, as its driver's tool names it.
    """

    kind: Kind
    name: str
    libraries: str
    memory_bytes: int
    cache_bytes: int
    processors: int | None = None
    threads: int | None = None
    free_bytes: int | None = None
    uuid: str = ""

    @property
    def label(self) -> str:
        """Its name, of a processor with the threads that are used."""
        count = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        return self.name if self.threads is None else f"{self.name}, {count}"

    @property
    def key(self) -> str:
        """What rows must share to be rows of one device."""
        return f"{self.label}, {self.libraries}"

    @property
    def input_bytes(self) -> float:
        """What the inputs of one point may take: a sixth of the memory, of a GPU of that which was free.

        Free memory counts in powers of two, so that a run goes on with the grid that it began with: of 141 GB with 139
        free, a sixth of 128 GiB.
        """
        if self.free_bytes is None:
            return _INPUT_SHARE * self.memory_bytes
        return _INPUT_SHARE * (1 << max(self.free_bytes.bit_length() - 1, 0))

    def gpu_state(self) -> GpuState | None:
        """The state that it is in; None for a processor, and where nothing says."""
        return gpu_state(self.uuid) if self.uuid else None

    @property
    def timer(self) -> Timer:
        """What times calls on it."""
        return CpuTimer() if self.kind == "cpu" else CudaTimer()


def find_device(kind: str | None, *, threads: int | None = None) -> Device:
    """The device of a kind, or the best there is; sets the threads that torch uses on a processor.

    Raises:
        InputError: an unknown kind, no such device, a GPU that torch cannot use, torch missing, or threads of a GPU.
    """
    torch = require("torch", extra="gpu")
    there = torch.cuda.is_available()
    if kind not in (None, "cpu", "cuda"):
        raise InputError(f"unknown device '{kind}'", hint="known: cpu, cuda")
    if kind == "cuda" and not there:
        raise InputError("torch finds no CUDA device", hint="use --device cpu, or install torch for CUDA")
    if kind == "cuda" or (kind is None and there):
        if threads is not None:
            raise InputError("--threads is for --device cpu", hint="leave it out")
        return _gpu(torch)
    if kind is None:
        _refuse_unseen(torch)
    if threads is not None:
        torch.set_num_threads(threads)
    return Device(
        kind="cpu",
        name=_cpu_name(),
        libraries=f"torch {torch.__version__}",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cache_bytes=_cpu_cache_bytes(),
        threads=torch.get_num_threads(),
    )


def _refuse_unseen(torch: Any) -> None:
    """A GPU that torch cannot use must not turn into a profile of the processor."""
    there = next((node for node in _GPU_NODES if Path(node).exists()), None)
    if there is not None:
        built = torch.version.cuda or torch.version.hip
        why = (
            f"torch {torch.__version__} was built for the CPU only" if built is None else "driver and torch do not fit"
        )
        raise InputError(
            f"this machine has a GPU ({there}) that torch does not see: {why}",
            hint="install torch for your driver, or time the processor with --device cpu",
        )


def _gpu(torch: Any) -> Device:
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    triton = require("triton", extra="gpu")
    return Device(
        kind="cuda",
        name=found.name,
        libraries=f"torch {torch.__version__}, triton {triton.__version__}",
        memory_bytes=found.total_memory,
        cache_bytes=_INFINITY_CACHE if torch.version.hip else getattr(found, "L2_cache_size", _UNKNOWN_CACHE),
        processors=found.multi_processor_count,
        free_bytes=int(torch.cuda.mem_get_info()[0]),
        uuid=str(getattr(found, "uuid", "")),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpu_cache_bytes() -> int:
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):  # not on every system
        return _UNKNOWN_CACHE
