"""A plan inside an engine: tables made once, the right ones for each step, and calm at the borders of buckets.

    runtime = load_runtime("plan.yaml", backend="torch", device="cuda")
    for tables in runtime.buckets: ...      # capture one CUDA graph each
    tables = runtime.select(len(running))   # the same objects again and again: replay that graph

`docs/runtime.md` says what each table is for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Literal

from treeopt.errors import InputError, UnknownNameError
from treeopt.extras import require
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.runtime.hysteresis import Area, Hysteresis, Range, Switch
from treeopt.runtime.tables import Pass, Shape, Tables, tables_of
from treeopt.tree import DraftTree

__all__ = ["BucketTables", "Hysteresis", "Pass", "Runtime", "Shape", "Tables", "load_runtime", "tables_of"]

Backend = Literal["numpy", "torch"]
_BACKENDS: Final = ("numpy", "torch")


@dataclass(frozen=True, kw_only=True)
class BucketTables:
    """What an engine needs for the batch sizes and contexts of one bucket.

    `tables` holds NumPy arrays or tensors on the device; `shape` is what they are padded to. A tree of one node is
    plain decoding.
    """

    batch: Range
    context: Range
    tree: DraftTree
    shape: Shape
    tables: Tables

    @property
    def speculate(self) -> bool:
        """False where plain decoding is the answer."""
        return len(self.tree) > 1


class Runtime:
    """The buckets of a plan with their tables, and the switch between them.

    Everything is allocated here, once; `select` only chooses. Batch sizes and contexts that the plan does not cover
    get the nearest bucket.
    """

    def __init__(self, buckets: tuple[BucketTables, ...], hysteresis: Hysteresis) -> None:
        self.buckets = buckets
        self._by_context = len({bucket.context for bucket in buckets}) > 1
        areas = [Area(b.batch, b.context if self._by_context else Range(0, 0)) for b in buckets]
        self._switch = Switch(areas=areas, hysteresis=hysteresis)

    def select(self, batch: int, context: int | None = None) -> BucketTables:
        """The bucket for the next step, with hysteresis; call it once per step.

        Args:
            batch: requests in the step.
            context: their longest committed prefix in tokens; needed only where the plan has several contexts.

        Raises:
            InputError: no request at all, or no context where the plan needs one.
        """
        return self.buckets[self._switch.step(batch, self._checked(context))]

    def bucket_of(self, batch: int, context: int | None = None) -> BucketTables:
        """The bucket that a step belongs to, whatever is in use (see `select`)."""
        return self.buckets[self._switch.index_of(batch, self._checked(context))]

    def _checked(self, context: int | None) -> int:
        if not self._by_context:
            return 0
        if context is None:
            raise InputError("the plan has trees for several contexts", hint="give the context of the step too")
        return context


def load_runtime(
    plan: Plan | str | Path,
    *,
    backend: Backend = "numpy",
    device: str | None = None,
    common_shape: bool = False,
    multiple_of: int = 1,
    hysteresis: Hysteresis | None = None,
) -> Runtime:
    """Make all tables of a plan.

    Args:
        plan: the plan or its file.
        backend: `numpy`, or `torch` for tensors.
        device: where the tensors live (default: the CPU).
        common_shape: pad all buckets that speculate to one shape, so that one graph per batch size serves all trees.
        multiple_of: round the nodes of every tree up to a multiple, as some kernels want.
        hysteresis: when to change buckets (default: 8 steps, or a quarter past the border).

    Raises:
        InputError: the plan cannot be read or has dynamic trees, or the backend is unknown or not installed.
    """
    if backend not in _BACKENDS:
        raise UnknownNameError("backend", backend, _BACKENDS)
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    for bucket in plan.buckets:
        if bucket.dynamic is not None:
            raise InputError(
                f"batch {bucket.batches} has a dynamic tree: it is built anew in every step, so no table holds it",
                hint="let its engine build it (treeopt export), or search without that engine",
            )
    buckets = []
    for bucket, shape in zip(plan.buckets, _shapes(plan, multiple_of, common=common_shape), strict=True):
        tables = tables_of(bucket.tree, shape)
        buckets.append(
            BucketTables(
                batch=Range(*bucket.batch),
                context=Range(*bucket.context),
                tree=bucket.tree,
                shape=shape,
                tables=tables if backend == "numpy" else _on_device(tables, device),
            )
        )
    return Runtime(tuple(buckets), Hysteresis() if hysteresis is None else hysteresis)


def _shapes(plan: Plan, multiple_of: int, *, common: bool) -> list[Shape]:
    """What each bucket's tables are padded to; with `common` one shape for all buckets that speculate."""
    shapes = [Shape.of(bucket.tree, multiple_of=multiple_of if bucket.speculate else 1) for bucket in plan.buckets]
    pairs = list(zip(plan.buckets, shapes, strict=True))
    speculating = [shape for bucket, shape in pairs if bucket.speculate]
    if not common or not speculating:
        return shapes
    largest = reduce(or_, speculating)
    return [largest if bucket.speculate else shape for bucket, shape in pairs]


def _on_device(tables: Tables, device: str | None) -> Tables:
    torch = require("torch", extra="gpu")

    def moved(part: Tables | Pass) -> dict[str, Any]:
        arrays = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "passes"}
        return {name: torch.as_tensor(array).to(device or "cpu") for name, array in arrays.items()}

    passes = tuple(replace(one, **moved(one)) for one in tables.passes)
    return replace(tables, **moved(tables), passes=passes)
