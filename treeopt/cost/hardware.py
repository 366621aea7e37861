"""One GPU by the numbers of its data sheet or of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from treeopt.cost.dtype import Dtype
from treeopt.documents import Document, Field, read_document
from treeopt.errors import InputError

HARDWARE_FORMAT: Final = "treeopt.hardware/1"
_SOURCES: Final = ("datasheet", "measured")
_RATES: Final = ("bandwidth_bytes_per_s", "peak_flops", "memory_bytes", "link_bandwidth_bytes_per_s", "launch_s")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A GPU: how fast it streams, computes, sends and starts kernels.

    Attributes:
        source: `datasheet` or `measured`.
        bandwidth_bytes_per_s: memory bandwidth.
        peak_flops: dense operations per second by dtype, two per multiply-add.
        memory_bytes: memory of one GPU.
        link_bandwidth_bytes_per_s: to the other GPUs, per direction.
        launch_s: what a kernel inside a CUDA graph costs beyond its work.
        sources: where each number is from, by field name.
    """

    name: str
    device: str
    source: str
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[Dtype, float]
    memory_bytes: float
    link_bandwidth_bytes_per_s: float
    launch_s: float
    sources: Mapping[str, str]

    @classmethod
    def from_document(cls, document: Document) -> Hardware:
        """The GPU of a treeopt.hardware/1 file.

        Raises:
            FileFormatError: a key that is missing or unknown, or a number out of range, with its line.
        """
        root = document.root
        found = root.get("format")
        if found.text() != HARDWARE_FORMAT:
            raise found.error(f"'{found.text()}' is not a hardware file", hint=f"expected format: {HARDWARE_FORMAT}")
        root.only("format", "name", "device", "source", *_RATES, "sources")
        return cls(
            name=root.get("name").text(),
            device=root.get("device").text(),
            source=_read_source(root.get("source")),
            bandwidth_bytes_per_s=root.get("bandwidth_bytes_per_s").number(low=1),
            peak_flops=_read_peaks(root.get("peak_flops")),
            memory_bytes=root.get("memory_bytes").number(low=1),
            link_bandwidth_bytes_per_s=root.get("link_bandwidth_bytes_per_s").number(low=1),
            launch_s=root.get("launch_s").number(low=0, high=1),
            sources=_read_sources(root.get("sources")),
        )

    def flops_per_s(self, dtype: str) -> float:
        """Peak operations per second.

        Raises:
            InputError: a dtype that this GPU has no arithmetic for.
        """
        for known, peak in self.peak_flops.items():
            if known == dtype:
                return peak
        raise InputError(f"{self.name} has no {dtype} arithmetic", hint=f"it has: {', '.join(self.peak_flops)}")

    def ridge_tokens(self, dtype: str) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic, two operations per token.

        Source: Williams et al. 2009, "Roofline". H100 BF16: 989e12 * 2 / (2 * 3.35e12) = 295.2.
        """
        return self.flops_per_s(dtype) * Dtype(dtype).bytes_per_value / (2 * self.bandwidth_bytes_per_s)


def break_even_batch(ridge_tokens: float, nodes: int) -> int:
    """The largest batch whose B x N tokens stay within the ridge; 0 when a single tree already passes it."""
    return int(ridge_tokens // nodes)


def load_hardware(path: Path) -> Hardware:
    """Read a treeopt.hardware/1 file.

    Raises:
        InputError: it cannot be read.
        FileFormatError: as `Hardware.from_document`.
    """
    return Hardware.from_document(read_document(path, what="hardware profile"))


def _read_source(field: Field) -> str:
    if field.text() not in _SOURCES:
        raise field.error(f"unknown source '{field.text()}'", hint=f"known: {', '.join(_SOURCES)}")
    return field.text()


def _read_peaks(field: Field) -> Mapping[Dtype, float]:
    field.only(*Dtype)
    if not field.mapping():
        raise field.error("no dtype at all", hint="give the dense peak of at least one dtype")
    return MappingProxyType({Dtype(key): field.get(key).number(low=1) for key in field.mapping()})


def _read_sources(field: Field) -> Mapping[str, str]:
    field.only(*_RATES)
    return MappingProxyType({key: field.get(key).text() for key in field.mapping()})
