"""From timed points to a hardware profile, and what its reader must know of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, NamedTuple

from treeopt.cost.fit.choose import FittedFamily
from treeopt.cost.fit.profile import FitRequest, FittedProfile, fit_profile
from treeopt.errors import InputError
from treeopt.profile.beside import Beside, beside
from treeopt.profile.measure import KernelBench, PointTime
from treeopt.profile.points import SCHEDULE, Ceilings, KernelPoint

# No link is timed; what prices messages until all-reduce rows are added is this.
_PCIE_BYTES_PER_S: Final = 64e9
_DRIFT: Final = 0.1  # beyond what two timings of one point differ by
_ASSUMED: Final = "assumed, not measured: PCIe 5.0 x16, one direction"


class OverFloor(NamedTuple):
    """How far the points of one operator are above their floors."""

    operator: str
    points: int
    median: float
    worst: PointTime


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a run would time: the points that are left, and the seconds that each is expected to take."""

    FORMAT: ClassVar = "treeopt.profile-dry-run/1"
    WRITTEN: ClassVar = ("device", "ceilings", "points", "floors_s", "expected_s")

    device: str
    ceilings: Ceilings
    points: list[KernelPoint]
    seconds: list[float]

    @property
    def floors_s(self) -> list[float]:
        """The least time of each point."""
        return [point.floor_s(self.ceilings) for point in self.points]

    @property
    def expected_s(self) -> float:
        """Of all together."""
        return sum(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A measured profile and the evidence behind it."""

    FORMAT: ClassVar = "treeopt.profile/3"
    WRITTEN: ClassVar = (
        *("name", "device", "engine", "ceilings", "noise"),
        *("families", "over_floor", "beside", "times", "notes"),
    )

    fitted: FittedProfile
    ceilings: Ceilings
    times: list[PointTime]
    noise: float | None
    notes: list[str]

    @property
    def name(self) -> str:
        """The profile's."""
        return self.fitted.name

    @property
    def device(self) -> str:
        """What was timed."""
        return self.fitted.hardware.device

    @property
    def engine(self) -> str | None:
        """The libraries whose kernels were timed."""
        return self.fitted.engine

    @property
    def families(self) -> tuple[FittedFamily, ...]:
        """The fits."""
        return self.fitted.families

    @property
    def over_floor(self) -> list[OverFloor]:
        """How far the points are above their floors, by operator."""
        return over_floor(self.times)

    @property
    def beside(self) -> list[Beside]:
        """What was timed without being fitted, beside prices and other rows."""
        return beside({time.point: time.time_s for time in self.times}, self.fitted.hardware.kernel_times())


def profile_of(bench: KernelBench, *, name: str, command: str, noise: float | None) -> Profiled:
    """Fit all rows of the bench's file.

    Raises:
        InputError: too few rows for a fit; the hint says how to get more.
    """
    device = bench.device
    memory = "torch: total_memory" if device.kind == "cuda" else "physical memory of the machine"
    request = FitRequest(
        name=name,
        device=device.label,
        memory_bytes=float(device.memory_bytes),
        link_bandwidth_bytes_per_s=_PCIE_BYTES_PER_S,
        sources={"memory_bytes": memory, "link_bandwidth_bytes_per_s": _ASSUMED},
        sheet=None,
        processors=device.processors,
        numbers=f"own measurement, {bench.rows.path.name}",
        licence="own",
        date=datetime.now(UTC).date().isoformat(),
        command=command,
        engine=device.libraries.replace(", ", "+").replace(" ", "-"),
    )
    try:
        fitted = fit_profile([bench.rows.path], [], request)
    except InputError as error:
        if "too few" not in str(error):
            raise
        failures = bench.failures()
        why = (
            f"; {len(failures)} points failed, the first: {failures[0].point}: {failures[0].reason}" if failures else ""
        )
        raise InputError(
            f"{error}{why}",
            hint=f"{bench.rows.path} keeps what was timed: run again with more time or a larger grid",
        ) from None
    drift = bench.drift()
    notes = [
        *bench.notes(),
        *_state(bench, drift),
        *(warning for warning in fitted.warnings if "without a price" not in warning),
    ]
    return Profiled(fitted=fitted, ceilings=bench.ceilings, times=bench.times(), noise=noise, notes=notes)


def _state(bench: KernelBench, drift: float | None) -> list[str]:
    """What the device's state says about its times."""
    state = bench.device.gpu_state()
    notes = [] if state is None else list(state.notes())
    if drift is not None and drift > _DRIFT:
        notes.append(f"the device's rates are {drift:.0%} from those at the start: it was throttled, or others used it")
    return notes


def over_floor(times: list[PointTime]) -> list[OverFloor]:
    """The distance to the floor by operator, in the order of the points."""
    found = []
    for operator in dict.fromkeys(time.point.operator for time in times if time.point.operator != SCHEDULE):
        mine = [time for time in times if time.point.operator == operator]
        median = statistics.median(time.over_floor for time in mine)
        found.append(OverFloor(operator, len(mine), median, max(mine, key=lambda time: time.over_floor)))
    return found
