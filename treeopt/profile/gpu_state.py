"""The state that a GPU is timed in: what `nvidia-smi` says of clocks, heat, power, sharing, and who else is there."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_FIELDS: Final = (
    "uuid",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "power.default_limit",
    "memory.free",
    "mig.mode.current",
    "ecc.mode.current",
    "clocks_throttle_reasons.active",
)
# Bits of `clocks_throttle_reasons.active` that say something is wrong; an idle clock (1) is not.
_THROTTLED: Final = {
    0x4: "by its power cap",
    0x8: "by hardware",
    0x20: "by heat",
    0x40: "by heat",
    0x80: "by the power supply",
}
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """A GPU's state at one moment, as its driver's tool names it; what it does not say is left out.

    Attributes:
        state: by the tool's names, such as `clocks.sm` in MHz, `power.limit` in W, `memory.free` in MiB.
        others: processes of others on the GPU, with the MiB that each holds.
    """

    state: Mapping[str, str]
    others: Mapping[int, str]

    def notes(self) -> Iterator[str]:
        """What a reader of the times must know."""
        bits = int(self.state.get("clocks_throttle_reasons.active", "0"), 0)
        causes = dict.fromkeys(word for bit, word in _THROTTLED.items() if bits & bit)
        if causes:
            clock, most = (self.state.get(name, "?") for name in ("clocks.sm", "clocks.max.sm"))
            yield f"the GPU is throttled {' and '.join(causes)}: {clock} of {most} MHz"
        if self.others:
            held = ", ".join(f"process {pid} holds {size} MiB" for pid, size in sorted(self.others.items()))
            yield f"the GPU is shared: {held}"
        limit, usual = (self.state.get(name) for name in ("power.limit", "power.default_limit"))
        if limit is not None and usual is not None and limit != usual:
            yield f"the GPU's power is capped at {limit} W, by default {usual} W"
        if self.state.get("mig.mode.current") == "Enabled":
            yield "the GPU is divided (MIG): a part of it was timed"


def gpu_state(uuid: str, *, ask: Callable[..., str] | None = None) -> GpuState | None:
    """The state of the GPU with this UUID; None where there is no such tool, as with other makers' GPUs."""
    ask = ask or _nvidia_smi
    try:
        found = _rows(ask("--query-gpu=" + ",".join(_FIELDS)))
        processes = _rows(ask("--query-compute-apps=gpu_uuid,pid,used_memory"))
    except (OSError, subprocess.SubprocessError):
        return None
    for row in found:
        if len(row) == len(_FIELDS) and uuid in row[0]:
            said = {
                name: value for name, value in zip(_FIELDS, row, strict=True) if value and not value.startswith("[")
            }
            mine = (os.getpid(), os.getppid())
            others = {int(pid): size for gpu, pid, size in processes if uuid in gpu and int(pid) not in mine}
            return GpuState(state=said, others=others)
    return None


def _nvidia_smi(query: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise FileNotFoundError("nvidia-smi")
    command = [tool, query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
