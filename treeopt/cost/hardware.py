"""One GPU by the numbers of its data sheet or of a measurement."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from treeopt.cost.engine import EngineSteps
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fit import Form, KernelFit, Share
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.cost.kernels.roofline import Roofline
from treeopt.cost.kernels.times import KernelTimes
from treeopt.errors import InputError
from treeopt.files.documents import Document, Field, dump_yaml, read_document
from treeopt.files.typed import check_format, read, write
from treeopt.files.writing import Output, check_writable, write_files

_PROFILE: Final = "hardware profile"
_SOURCES: Final = ("datasheet", "measured")
_RATES: Final = ("bandwidth_bytes_per_s", "peak_flops", "memory_bytes", "link_bandwidth_bytes_per_s", "launch_s")
_MEASURED: Final = ("measurement", "rows", "fits")
# The most tokens per step that an engine captures graphs for unless it is told otherwise: vLLM's
# `max_cudagraph_capture_size`, 0.11 to 0.24.
DEFAULT_CAPTURE_LIMITS: Final = {"vllm": 512}
# What processors and GPUs are between, with room on both sides: a number in another unit falls outside.
BANDWIDTHS: Final = (1e7, 1e14)
PEAKS: Final = (1e7, 1e18)
MEMORIES: Final = (1e6, 1e14)
_ROOFLINE: Final = "step times are a datasheet roofline, not measured: trust the shape more than the number"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Where a measured profile is from.

    Attributes:
        engine: the serving engine and version whose kernels were timed.
        date: of the fit.
        numbers: who measured, and where the rows can be had.
        licence: of the rows.
        command: what made the profile from them.
    """

    engine: str
    date: str
    numbers: str
    licence: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A GPU: how fast it streams, computes, sends and starts kernels.

    A file with `fits` names in `rows` the one that holds their curves, with its hash.

    Attributes:
        source: `datasheet` or `measured`.
        bandwidth_bytes_per_s: memory bandwidth.
        peak_flops: dense operations per second by dtype, two per multiply-add.
        memory_bytes: memory of one GPU.
        link_bandwidth_bytes_per_s: to the other GPUs, per direction.
        launch_s: what a kernel inside a CUDA graph costs beyond its work.
        sources: where each number is from, by field name.
        measurement: where the fits are from; None without fits.
        fits: the kernel times through measured rows; None where only the rates are known.
        engine_steps: what the engine takes beyond kernels; None where nobody fitted it.
    """

    FORMAT: ClassVar[str] = "treeopt.hardware/1"
    SPARSE: ClassVar[bool] = True
    EXACT: ClassVar[bool] = True
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("name", "device", "source", "bandwidth_bytes_per_s", "memory_bytes", "link_bandwidth_bytes_per_s"),
        *("launch_s", "peak_flops", "sources", "measurement", "engine_steps", "fits"),
    )

    name: str
    device: str
    source: str
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[Dtype, float]
    memory_bytes: float
    link_bandwidth_bytes_per_s: float
    launch_s: float
    sources: Mapping[str, str]
    measurement: Measurement | None = None
    fits: KernelFits | None = None
    engine_steps: EngineSteps | None = None

    @classmethod
    def from_document(cls, document: Document) -> Hardware:
        """The GPU of a treeopt.hardware/1 file.

        Raises:
            FileFormatError: a key that is missing or unknown, or a number out of range, with its line.
        """
        root = document.root
        check_format(root, cls.FORMAT, what=_PROFILE)
        root.only("format", "name", "device", "source", *_RATES, "sources", *_MEASURED, "engine_steps")
        has_fits = bool({*_MEASURED} & root.mapping().keys())
        has_steps = "engine_steps" in root.mapping()
        return cls(
            name=root.get("name").text(),
            device=root.get("device").text(),
            source=_read_source(root.get("source")),
            bandwidth_bytes_per_s=_rate(root.get("bandwidth_bytes_per_s"), BANDWIDTHS, "byte/s", "1 GB/s is 1e9"),
            peak_flops=_read_peaks(root.get("peak_flops")),
            memory_bytes=_rate(root.get("memory_bytes"), MEMORIES, "byte", "1 GB is 1e9"),
            link_bandwidth_bytes_per_s=_rate(
                root.get("link_bandwidth_bytes_per_s"), BANDWIDTHS, "byte/s", "1 GB/s is 1e9"
            ),
            launch_s=root.get("launch_s").number(low=0, high=1),
            sources=_read_sources(root.get("sources")),
            measurement=read(Measurement, root.get("measurement")) if has_fits else None,
            fits=KernelFits.from_fields(root.get("fits"), root.get("rows")) if has_fits else None,
            engine_steps=read(EngineSteps, root.get("engine_steps")) if has_steps else None,
        )

    def kernel_times(self) -> KernelTimes:
        """Times of single kernels: the measured ones, or the roofline of the rates where there are none."""
        note = None
        if self.fits is None:
            note = _ROOFLINE if self.source == "datasheet" else ""
        return KernelTimes(
            name=self.name,
            fits=self.fits or KernelFits(entries=tuple(map(self._roofline, self.peak_flops))),
            link_bandwidth_bytes_per_s=self.link_bandwidth_bytes_per_s,
            note=note,
        )

    @property
    def engine_name(self) -> str:
        """`vllm` of a profile of vllm-0.24.0's kernels; empty for data sheets."""
        return self.measurement.engine.partition("-")[0] if self.measurement else ""

    @property
    def engine_release(self) -> str:
        """`0.24.0` of a profile of vllm-0.24.0's kernels; empty for data sheets."""
        return self.measurement.engine.partition("-")[2] if self.measurement else ""

    def engine(self, capture_tokens: tuple[int, ...] | None = None, capture_limit: int | None = None) -> EngineSteps:
        """What the engine takes beyond kernels, with the captured graphs that are given.

        Where nobody says what is captured, the engine's default limit is assumed.
        """
        steps = (self.engine_steps or EngineSteps()).with_captures(capture_tokens, capture_limit)
        if steps.largest_captured is None and self.engine_name in DEFAULT_CAPTURE_LIMITS:
            return steps.with_captures(None, DEFAULT_CAPTURE_LIMITS[self.engine_name])
        return steps

    def _roofline(self, dtype: Dtype) -> FitEntry:
        form = Roofline(
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            peak_flops=self.peak_flops[dtype],
            launch_s=self.launch_s,
        )
        return FitEntry(Family.GEMM, dtype, KernelFit(form=Form.DATASHEET, share=Share.NOTHING, roofline=form))


def break_even_batch(ridge_tokens: float, nodes: int) -> int:
    """The largest batch whose B x N tokens stay within the ridge; 0 when a single tree already passes it."""
    return int(ridge_tokens // nodes)


def load_hardware(path: Path) -> Hardware:
    """Read a treeopt.hardware/1 file.

    Raises:
        InputError: it cannot be read.
        FileFormatError: as `Hardware.from_document`.
    """
    return Hardware.from_document(hardware_document(path))


def hardware_document(path: Path) -> Document:
    """The file of a hardware profile, for who needs its hash too.

    Raises:
        InputError: it cannot be read.
    """
    return read_document(path, what=_PROFILE)


def check_profile_path(path: Path) -> None:
    """Refuse, before the work is done, where a profile cannot be written.

    Raises:
        InputError: nothing can be written there, or it is named as its curves would be.
    """
    if path.suffix == ".npz":
        raise InputError(f"{path}: the curves go to an .npz file beside the profile", hint="name the profile .yaml")
    check_writable(path, what=_PROFILE)


def save_hardware(path: Path, hardware: Hardware) -> tuple[Path, ...]:
    """Write a treeopt.hardware/1 file, and beside it the NPZ file with the curves of its fits; returns what there is.

    The curves are called by their content, so that they never take the place of another file: until the profile names
    them, the profile that was there and its curves stay whole.

    Raises:
        InputError: a file cannot be written, or is named as its curves would be.
    """
    check_profile_path(path)
    document, outputs = write(hardware), []
    if hardware.fits is not None:
        archive = hardware.fits.archive()
        sha256 = hashlib.sha256(archive).hexdigest()
        curves = path.with_name(f"{path.stem}-{sha256[:8]}.npz")
        document["rows"] = {"file": curves.name, "sha256": sha256}
        outputs.append(Output(curves, archive, "rows file of the hardware profile"))
    outputs.append(Output(path, dump_yaml(document), _PROFILE))
    write_files(*outputs)
    return tuple(output.path for output in reversed(outputs))


def _rate(field: Field, within: tuple[float, float], unit: str, scale: str) -> float:
    value, (low, high) = field.number(), within
    if not low <= value <= high:
        raise field.error(f"{value:g} {unit} is out of range: no hardware has it", hint=f"give {unit}: {scale}")
    return value


def _read_source(field: Field) -> str:
    if field.text() not in _SOURCES:
        raise field.error(f"unknown source '{field.text()}'", hint=f"known: {', '.join(_SOURCES)}")
    return field.text()


def _read_peaks(field: Field) -> Mapping[Dtype, float]:
    field.only(*(dtype for dtype in Dtype if dtype.arithmetic is dtype))
    if not field.mapping():
        raise field.error("no dtype at all", hint="give the dense peak of at least one dtype")
    peaks = {Dtype(key): _rate(field.get(key), PEAKS, "FLOP/s", "1 TFLOP/s is 1e12") for key in field.mapping()}
    return MappingProxyType(peaks)


def _read_sources(field: Field) -> Mapping[str, str]:
    field.only(*_RATES)
    return MappingProxyType({key: field.get(key).text() for key in field.mapping()})
