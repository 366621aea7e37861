"""What a search is made from, found by name or file: rank profile, hardware, model, drafter."""

from __future__ import annotations

from dataclasses import dataclass

from treeopt.catalog import Kind, file_sha256, locate
from treeopt.cost import Hardware, ModelShape, RooflineStep, load_hardware, load_model, parse_drafter
from treeopt.errors import InputError
from treeopt.plan import Plan, Source
from treeopt.ranks.profile import RankProfile, load_profile

DEFAULT_RANKS = "smollm2-135m-eagle"
DEFAULT_HARDWARE = "h100-sxm"
DEFAULT_MODEL = "llama-3.1-8b"


@dataclass(frozen=True, kw_only=True)
class Names:
    """The inputs as the user gives them: shipped names or files."""

    ranks: str = DEFAULT_RANKS
    hardware: str = DEFAULT_HARDWARE
    model: str = DEFAULT_MODEL
    drafter: str = "eagle"
    dtype: str = "bf16"
    tp: int = 1


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs, loaded, with where they came from."""

    names: Names
    ranks: RankProfile
    ranks_source: Source
    hardware: Hardware
    hardware_source: Source
    model: ModelShape
    model_source: Source
    cost: RooflineStep

    @property
    def warnings(self) -> list[str]:
        """What a reader of any number made from these inputs must know."""
        found = []
        if self.names.ranks == DEFAULT_RANKS:
            found.append(f"ranks are {self.ranks.note}; measure yours and pass --ranks")
        elif self.ranks.note:
            found.append(f"ranks {self.ranks.name}: {self.ranks.note}")
        if self.cost.memory_bytes > self.hardware.memory_bytes:
            need, have = self.cost.memory_bytes / 1e9, self.hardware.memory_bytes / 1e9
            found.append(f"the weights need {need:.0f} GB per GPU, {self.hardware.name} has {have:.0f} GB: raise --tp")
        if self.hardware.source == "datasheet":
            found.append("step times are a datasheet roofline, not measured: trust the shape more than the number")
        return found


def load_inputs(names: Names) -> Inputs:
    """Find and read everything.

    Raises:
        InputError: an unknown name, an unreadable file, or a contradiction in one.
    """
    ranks_at, hardware_at, model_at = (
        locate("ranks", names.ranks),
        locate("hardware", names.hardware),
        locate("models", names.model),
    )
    ranks, hardware, model = load_profile(ranks_at.path), load_hardware(hardware_at.path), load_model(model_at.path)
    drafter = parse_drafter(names.drafter, load_model=lambda name: load_model(locate("models", name).path))
    cost = RooflineStep(model=model, hardware=hardware, drafter=drafter, dtype=names.dtype, tp=names.tp)
    facts = {"evidence": ranks.kind, "positions": ranks.evidence.trials, "documents": ranks.documents or None}
    facts["temperature"] = ranks.conditions.temperature
    facts["sampling"] = ranks.conditions.sampling
    ridge = float(f"{cost.ridge_tokens:.6g}")
    return Inputs(
        names=names,
        ranks=ranks,
        ranks_source=Source(
            name=ranks.name, reference=ranks_at.reference, sha256=ranks.sha256, facts=tuple(facts.items())
        ),
        hardware=hardware,
        hardware_source=Source(
            name=hardware.name,
            reference=hardware_at.reference,
            sha256=file_sha256(hardware_at.path),
            facts=(("source", hardware.source), ("ridge_tokens", ridge)),
        ),
        model=model,
        model_source=Source(
            name=model.name,
            reference=model_at.reference,
            sha256=file_sha256(model_at.path),
            facts=(("dtype", names.dtype), ("tp", names.tp)),
        ),
        cost=cost,
    )


def inputs_of(plan: Plan) -> Inputs:
    """The inputs that a plan was made from.

    Raises:
        InputError: one of them is gone, or has changed since.
    """
    model_facts = dict(plan.model.facts)
    inputs = load_inputs(
        Names(
            ranks=plan.ranks.reference,
            hardware=plan.hardware.reference,
            model=plan.model.reference,
            drafter=plan.drafter,
            dtype=str(model_facts.get("dtype", "bf16")),
            tp=int(model_facts.get("tp", 1)),
        )
    )
    pairs: tuple[tuple[Kind, Source, Source], ...] = (
        ("ranks", plan.ranks, inputs.ranks_source),
        ("hardware", plan.hardware, inputs.hardware_source),
        ("models", plan.model, inputs.model_source),
    )
    for kind, then, now in pairs:
        if then.sha256 != now.sha256:
            raise InputError(
                f"{then.reference} ({kind}) has changed since the plan was made",
                hint="search again, so that plan and evidence agree",
            )
    return inputs
