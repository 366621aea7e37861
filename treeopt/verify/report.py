"""What a verification found, as it is printed and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treeopt.verify.diagnose import Difference, Unchecked


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of one tree: the largest error over `cases`, where it is, and what is allowed (0: none at all)."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("name", "worst", "allowed", "cases", "where", "passed")

    name: str
    worst: float
    allowed: float
    cases: int
    where: str

    @property
    def passed(self) -> bool:
        """Whether the error is within what is allowed."""
        return self.worst <= self.allowed


@dataclass(frozen=True, kw_only=True)
class TreeReport:
    """The checks of one tree; `where` names the buckets that share it."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("where", "nodes", "depth", "checks")

    where: str
    nodes: int
    depth: int
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class VerificationReport:
    """What was verified, with what, and what came out.

    Args:
        rule: the plan's rule, with its being approximate; None for a bare tree.
        attention: the implementation that ran, with its version.
        libraries: names and versions.
    """

    FORMAT: ClassVar[str] = "treeopt.verification/1"
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("passed", "rule", "exact", "model", "dtype", "device", "attention", "libraries"),
        *("context", "trees"),
    )

    rule: str | None
    exact: bool
    model: str
    dtype: str
    device: str
    attention: str
    libraries: tuple[str, ...]
    context: int
    trees: tuple[TreeReport, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader must know."""
        law = f"{self.rule}: what is checked is the step; the output does not follow the target's law"
        return () if self.exact else (law,)

    @property
    def passed(self) -> bool:
        """Whether every check of every tree did."""
        return all(check.passed for tree in self.trees for check in tree.checks)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a dump of another engine's step shows: the keys that it held, and the differences, the earliest first.

    `unchecked` are the keys that could be checked further with others, `remarks` what else a reader must know. The
    `nodes` are the plan's, of a dynamic tree those of the step.
    """

    FORMAT: ClassVar[str] = "treeopt.diagnosis/2"
    WRITTEN: ClassVar[tuple[str, ...]] = ("where", "nodes", "contents", "unchecked", "remarks", "differences")

    where: str
    nodes: int
    contents: tuple[str, ...]
    unchecked: tuple[Unchecked, ...]
    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be checked, and the remarks."""
        needs = [
            f"'{key}' was not fully checked: that needs {' and '.join(others)} in the dump too"
            for key, others in self.unchecked
        ]
        return (*needs, *self.remarks)
