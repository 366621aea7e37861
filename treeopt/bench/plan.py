"""A bench of a plan: its inputs, its trees at each batch size, and what does not go with what runs here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from treeopt.bench.bench import BenchRuns, bench
from treeopt.bench.result import BenchResult
from treeopt.bench.runs import Advance, DecodingSetup, Method, ways_for
from treeopt.bench.setup import BenchRequest
from treeopt.collect.settings import model_name
from treeopt.cost.drafter import PRICED_AS
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.planner.compare import Rival, parse_rival
from treeopt.planner.inputs import Inputs, inputs_of
from treeopt.profile.device import Device, find_device

_LIKE: Final = 1.25  # texts whose lengths differ by less are alike


@dataclass(frozen=True, kw_only=True)
class PlanBench:
    """Everything that a bench of a plan needs, checked before any weights are loaded."""

    plan: Plan
    inputs: Inputs
    request: BenchRequest
    runs: BenchRuns
    rivals: tuple[Rival, ...]
    device: Device

    @classmethod
    def of(
        cls,
        path: Path,
        request: BenchRequest,
        *,
        batches: Sequence[int] | None = None,
        rivals: Sequence[str] = (),
        repeats: int = 1,
        together: bool = False,
        threads: int | None = None,
        ranks: str | None = None,
    ) -> PlanBench:
        """Read the plan and what it was made from; without `batches`, the largest one of every bucket.

        Raises:
            InputError: a file cannot be read or has changed, a batch size that the plan lacks, no such device, or a
                clock that does not go with it.
        """
        plan = load_plan(path)
        sizes = tuple(batches or dict.fromkeys(bucket.batch.max for bucket in plan.buckets))
        job = cls(
            plan=plan,
            inputs=inputs_of(plan, ranks=ranks),
            request=request,
            runs=BenchRuns(batches=sizes, repeats=repeats, together=together, seed=request.seed),
            rivals=tuple(map(parse_rival, rivals)),
            device=_device(request, threads),
        )
        for batch in sizes:
            job.ways(batch, job.plan.context)
        return job

    def ways(self, batch: int, context: int) -> tuple[Method, ...]:
        """What is compared at a batch size."""
        return ways_for(self.plan, batch, context, self.rivals, self.inputs.evidence.all_positions)

    def run(self, *, advance: Advance | None = None) -> BenchResult:
        """Load the models and run.

        Raises:
            InputError: a model or the prompts cannot be read, or the texts are too short.
        """
        subject = self.request.load(self.plan)
        lengths = [len(prompt) for prompt in subject.prompts]
        context = round(sum(lengths) / len(lengths)) + self.request.new_tokens // 2
        found = bench(
            subject,
            lambda batch: self.ways(batch, context),
            self.inputs,
            self.runs,
            setting=self._setting(subject),
            advance=advance,
        )
        return replace(found, notes=(*found.notes, *self._notes()))

    def _setting(self, subject: DecodingSetup) -> dict[str, Any]:
        plan = self.plan
        return {
            "target": model_name(self.request.target),
            "drafter": self.request.drafter.name,
            "rule": plan.verification.rule,
            "dtype": str(subject.target.dtype).removeprefix("torch."),
            "device": self.device.label,
            "libraries": self.device.libraries,
            "clock": self.request.clock,
            "prompts": len(subject.prompts),
            "new_tokens": self.request.new_tokens,
            "repeats": self.runs.repeats,
            "together": self.runs.together,
            "ranks": plan.sources.ranks.name,
            "hardware": plan.sources.hardware.name,
            "model": plan.sources.model.name,
            "priced_drafter": plan.sources.drafter.reference,
        }

    def _notes(self) -> Iterator[str]:
        hardware, plan, drafter = self.inputs.hardware, self.plan, self.request.drafter
        if hardware.device != self.device.label:
            yield f"the plan's step times are for {hardware.device}, this is {self.device.label}"
        if plan.sources.drafter.reference.partition(":")[0] != PRICED_AS[drafter.kind]:
            yield f"the plan prices the drafter {plan.sources.drafter.reference}, this run drafts with {drafter.name}"
        measured = self.inputs.evidence.parts[0].profile.conditions.drafter
        if measured is not None and measured != drafter.name:
            yield f"the plan's ranks are of {measured}, this run drafts with {drafter.name}"
        yield from self._other_lengths()
        if self.request.prompts is None:
            yield "built-in prompts: give your own with --prompts"
        if not self.inputs.evidence.can_be_replayed:
            yield "ranks without documents: predictions carry no interval"

    def _other_lengths(self) -> Iterator[str]:
        traces = [part.trace for part in self.inputs.evidence.parts if part.trace is not None]
        recorded, asked = (
            max((int(np.diff(trace.bounds).max()) for trace in traces), default=0),
            self.request.new_tokens,
        )
        if recorded and not 1 / _LIKE < recorded / asked < _LIKE:
            yield (
                f"the ranks were recorded on texts of up to {recorded} tokens, this run writes {asked}: "
                "acceptance depends on the place in the text"
            )


def _device(request: BenchRequest, threads: int | None) -> Device:
    found = find_device(None if request.device == "auto" else request.device, threads=threads)
    if request.clock == "cpu" and found.threads != 1:
        raise InputError(
            f"the clock cpu adds up the seconds of all threads, and this is {found.label}",
            hint="add --device cpu --threads 1, or take the wall clock",
        )
    return found
