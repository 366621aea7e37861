"""What a search is made from, found by name or file: rank profile, hardware, model, drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treeopt.acceptance.profile import stated
from treeopt.acceptance.rules import APPROXIMATE_RULES, GREEDY, RULES
from treeopt.acceptance.traffic import Traffic
from treeopt.answer import Note
from treeopt.cost import (
    Hardware,
    ModelShape,
    ModelStep,
    load_model,
    named_drafter,
    parse_drafter,
)
from treeopt.cost.drafter import Ngram, OnePass, Suffix
from treeopt.cost.hardware import hardware_document
from treeopt.cost.kernels.rough import ROUGH_PRICES
from treeopt.cost.model_file import model_document
from treeopt.cost.served.published import ConstantsFrom, PriceError, ServedConstants, served_constants
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import MeasuredDrafts
from treeopt.errors import FileFormatError, InputError, UnknownNameError
from treeopt.files.shipped import locate
from treeopt.plan.plan import Plan
from treeopt.plan.sources import (
    DrafterSource,
    HardwareSource,
    ModelSource,
    Source,
    Sources,
)
from treeopt.planner.cost_input import cost_table, priced_by
from treeopt.planner.evidence_notes import evidence_notes
from treeopt.planner.model_input import default_dtype, priced_model
from treeopt.planner.names import DEFAULT_HARDWARE, Names
from treeopt.planner.traffic_input import file_of, load_traffic, traffic_of_table

if TYPE_CHECKING:
    from treeopt.cost.step_table import TableStep

MAX_TEMPERATURE: Final = 10.0  # beyond, text is noise


_TELL: Final = "two minutes of `treeopt measure` on your server tell"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs, loaded, with where they came from."""

    names: Names
    evidence: Traffic
    sources: Sources
    hardware: Hardware
    model: ModelShape
    kernels: ModelStep
    served: ServedConstants
    cost: StepCost
    cost_findings: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The files that a result must not be written over."""
        traces = [file for part in self.evidence.parts for file in part.profile.files]
        named = [item.rpartition("=")[0] or item for item in (self.names.ranks or "").split(",")]
        tables = [self.names.cost] if isinstance(self.names.cost, str) else []
        return [*traces, *map(Path, (*named, self.names.hardware, self.names.model, *tables))]

    @property
    def has_own_cost(self) -> bool:
        """Whether a program's own object prices the step."""
        return self.sources.cost is not None and self.sources.cost.file is None

    @property
    def rule(self) -> str:
        """The verification rule that was asked for, else that of the evidence; greedy where neither says."""
        measured = stated([part.profile for part in self.evidence.parts], "rule")
        return self.names.rule or next(iter(measured), GREEDY)

    @property
    def measured(self) -> MeasuredDrafts | None:
        """All that may be drafted, where only a tree of the engine's own shape was measured."""
        if self._by_table is None:
            return None
        from treeopt.cost.step_table import TreeTable

        table = self._by_table.table
        return MeasuredDrafts(drafts=(table.tree,)) if isinstance(table, TreeTable) else None

    @property
    def _by_table(self) -> TableStep | None:
        """The step times, where the user's table gives them."""
        if self.cost is self.kernels:
            return None
        from treeopt.cost.step_table import TableStep  # only a table needs it

        return self.cost if isinstance(self.cost, TableStep) else None

    @property
    def price_error(self) -> PriceError | None:
        """How far published steps lay from steps priced so; None for step times that the user gave."""
        return self.served.error if self.cost is self.kernels else None

    def _of_engine(self) -> list[Note]:
        """Whose constants the engine is priced with, where they are not its own for this drafter."""
        evidence, kind, runs_of = self.kernels.engine.evidence, self.kernels.drafter.kind, self.served.runs_of
        if self.served.basis is ConstantsFrom.OWN:
            return []
        if self.served.basis is ConstantsFrom.ENGINE:
            release = self.hardware.engine_release
            return [Note.note(f"what the engine adds is that of published runs ({runs_of}), not of {release} itself")]
        if evidence is not None:
            return [Note.warning(f"what the engine adds was fitted with {evidence.drafter}, not {kind}: {_TELL}")]
        only = f" of this release, only of {runs_of}" if runs_of else ""
        return [Note.warning(f"what this engine adds with {kind} is not published{only}; typical times count: {_TELL}")]

    def notes(self, batch: int, context: int, nodes: int = 1) -> list[Note]:
        """What a reader of any number made from these inputs, up to these sizes, must know."""
        table = self._by_table
        kind = None if table is not None and table.carried_by is None else self.kernels.drafter.kind
        found = evidence_notes(self.evidence.parts, self.names, self.model.name, kind, context)
        if self.rule in APPROXIMATE_RULES:
            found.append(Note.warning(f"{self.rule} acceptance changes what the model says"))
        if self.has_own_cost:
            return found  # neither the model nor the GPU has a part in the answer
        if table is not None and table.carried_by is None:
            of_table = [*self.cost_findings, *table.notes(batch=batch, nodes=nodes, context=context)]
            return [*found, *map(Note.note, of_table)]
        if self.model.note:
            found.append(Note.note(f"model {self.model.name}: {self.model.note}"))
        need = self.kernels.memory_bytes + batch * self.kernels.kv_bytes(context)
        # Measured steps ran somewhere: only on a GPU that was named is there something to fit into.
        measured_elsewhere = table is not None and self.names.hardware == DEFAULT_HARDWARE
        if need > self.hardware.memory_bytes and not measured_elsewhere:
            have, most = self.hardware.memory_bytes, self.kernels.largest_batch(context, self.hardware.memory_bytes)
            found.append(
                Note.error(
                    f"weights and KV of batch {batch} at context {context}, the drafter's included, need "
                    f"{need / 1e9:,.0f} GB per GPU, {self.hardware.name} has {have / 1e9:.0f} GB: "
                    + (f"{most} requests fit" if most else "not one request fits")
                )
            )
        if table is not None:
            of_table = [*self.cost_findings, *table.notes(batch=batch, nodes=nodes, context=context)]
            found += map(Note.note, of_table)
        elif self.price_error is not None:
            found += self._of_engine()
        of_kernels = self.kernels.notes(batch=batch, nodes=nodes, context=context)
        return found + [
            (Note.warning if text.startswith(("implausible", ROUGH_PRICES)) else Note.note)(text) for text in of_kernels
        ]


def load_inputs(names: Names, *, confidence: bool = False) -> Inputs:
    """Find and read everything; a trace's recorded confidence, which only dynamic trees need, with `confidence`.

    Raises:
        InputError: an unknown name, an unreadable file, or a contradiction in one.
    """
    if names.rule is not None and names.rule not in RULES:
        raise UnknownNameError("rule", names.rule, RULES)
    if names.temperature is not None and not 0.0 <= names.temperature <= MAX_TEMPERATURE:
        raise InputError(f"temperature {names.temperature:g} is out of range", hint=f"give 0 to {MAX_TEMPERATURE:g}")
    names = replace(names, drafter=named_drafter(names.drafter))
    hardware_at, model_at = locate("hardware", names.hardware), locate("models", names.model)
    table = cost_table(names.cost) if isinstance(names.cost, str) else None
    # Read once, so that the hash is of what was used: a pipe has nothing to give a second time.
    hardware_file, model_file = hardware_document(hardware_at.path), model_document(model_at.path)
    hardware = Hardware.from_document(hardware_file)
    model, no_price = priced_model(model_file, names)
    unnamed, names = names.ranks is None, names.with_ranks(model.name)
    # Others' ranks are nobody's table's.
    if table is not None and unnamed:
        evidence, ranks = traffic_of_table(table, str(names.cost))
    else:
        evidence, ranks = load_traffic(names.ranks or "", confidence=confidence)
    drafter = parse_drafter(names.drafter, load_model=lambda name: load_model(locate("models", name).path))
    if names.masks is not None and isinstance(drafter, OnePass):
        drafter = drafter.starting_with(names.masks)
    served = served_constants(hardware, drafter.kind)
    engine = replace(hardware, engine_steps=served.steps).engine(names.capture_tokens, names.capture_limit)
    dtype = names.dtype or default_dtype(hardware, model)
    kernels = ModelStep(
        model=model,
        times=hardware.kernel_times(),
        drafter=drafter,
        dtype=dtype,
        kv_dtype=names.kv_dtype,
        tp=names.tp,
        engine=engine,
        lengths=evidence.lengths_of_drafts if isinstance(drafter, Ngram | Suffix) else None,
    )
    priced = priced_by(table or names.cost, kernels, evidence, names, no_price)
    return Inputs(
        names=names,
        evidence=evidence,
        sources=Sources(
            ranks=ranks,
            hardware=HardwareSource(
                name=hardware.name,
                file=file_of(hardware_at),
                sha256=hardware_file.sha256,
                source=hardware.source,
                ridge_tokens=float(f"{kernels.ridge_tokens:.6g}"),
                capture_tokens=names.capture_tokens,
                capture_limit=names.capture_limit,
            ),
            model=ModelSource(
                name=model.name,
                file=file_of(model_at),
                sha256=model_file.sha256,
                dtype=dtype,
                tp=names.tp,
                kv_dtype=names.kv_dtype,
                expert_skew=names.expert_skew,
                expert_correlation=names.expert_correlation,
            ),
            drafter=replace(_drafter_source(names.drafter), num_speculative_tokens=names.masks),
            cost=priced.source,
        ),
        hardware=hardware,
        model=model,
        kernels=kernels,
        served=served,
        cost=priced.cost,
        cost_findings=priced.findings,
    )


def _drafter_source(text: str) -> DrafterSource:
    """The drafter's kind, and the file of its model where one was named."""
    kind, _, name = text.partition(":")
    if not name:
        return DrafterSource(kind=kind)
    return DrafterSource(kind=text) if locate("models", name).shipped else DrafterSource(kind=kind, file=name)


def inputs_of(
    plan: Plan, *, ranks: str | None = None, confidence: bool = False, cost: StepCost | None = None
) -> Inputs:
    """The inputs that a plan was made from; `ranks` says where its rank profile is now, `cost` is the caller's own.

    A trace's recorded confidence is read with `confidence`, and where the plan has dynamic trees.

    Raises:
        InputError: one of them is gone, or has changed since.
    """
    of = plan.sources
    if cost is None and of.cost is not None and not of.cost.file:
        raise InputError(
            f"the plan's step times are those of the program that made it ({of.cost.name})",
            hint="ask that program, or search again with --cost FILE",
        )
    names = Names(
        ranks=ranks or (None if _by_its_table(of) else of.ranks.reference),
        hardware=of.hardware.reference,
        model=of.model.reference,
        drafter=of.drafter.reference,
        masks=of.drafter.num_speculative_tokens,
        dtype=of.model.dtype,
        tp=of.model.tp,
        capture_tokens=of.hardware.capture_tokens,
        capture_limit=of.hardware.capture_limit,
        kv_dtype=of.model.kv_dtype,
        expert_skew=of.model.expert_skew,
        expert_correlation=of.model.expert_correlation,
        cost=cost or (None if of.cost is None else of.cost.reference),
        temperature=plan.verification.temperature,
        rule=plan.verification.rule,
    )
    try:
        inputs = load_inputs(names, confidence=confidence or any(bucket.dynamic for bucket in plan.buckets))
    except FileFormatError:
        raise
    except InputError as error:
        raise InputError(f"what the plan was made from: {error}", hint=error.hint) from error
    now = inputs.sources
    pairs: tuple[tuple[str, Source | None, Source | None], ...] = (
        ("ranks", of.ranks, now.ranks),
        ("hardware", of.hardware, now.hardware),
        ("models", of.model, now.model),
        ("cost", of.cost, now.cost),
    )
    for kind, then, today in pairs:
        if then is not None and today is not None and then.sha256 != today.sha256:
            raise InputError(
                f"{then.reference} ({kind}) has changed since the plan was made",
                hint="search again, so that plan and evidence agree",
            )
    return inputs


def _by_its_table(of: Sources) -> bool:
    """Whether a plan's acceptance is that of the file of its step times."""
    return of.cost is not None and of.cost.file is not None and of.ranks.file == of.cost.file
