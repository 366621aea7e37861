"""What a search is made from, found by name or file: rank profile, hardware, model, drafter."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.catalog import DEFAULT_RANKS, Kind, file_sha256, locate
from treeopt.cost import Hardware, ModelShape, RooflineStep, load_hardware, load_model, parse_drafter
from treeopt.errors import InputError
from treeopt.plan import APPROXIMATE_RULES, Plan, Source
from treeopt.ranks.intervals import MIN_DOCUMENTS
from treeopt.ranks.profile import RankProfile, load_profile
from treeopt.ranks.trace import TraceFile
from treeopt.settle import Evidence, Part

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
    evidence: Evidence
    ranks_source: Source
    hardware: Hardware
    hardware_source: Source
    model: ModelShape
    model_source: Source
    cost: RooflineStep

    @property
    def files(self) -> list[Path]:
        """The files that a result must not be written over."""
        sources = [part.profile.trace for part in self.evidence.parts]
        traces = [source.path for source in sources if isinstance(source, TraceFile)]
        named = [item.rpartition("=")[0] or item for item in self.names.ranks.split(",")]
        return [*traces, *map(Path, (*named, self.names.hardware, self.names.model))]

    @property
    def rule(self) -> str:
        """The verification rule that the evidence was measured under; greedy where it does not say."""
        rules = {part.profile.conditions.rule for part in self.evidence.parts} - {None}
        return next(iter(rules)) or "greedy" if len(rules) == 1 else "greedy"

    def notes(self, batch: int, context: int) -> list[str]:
        """What a reader of any number made from these inputs must know."""
        found = []
        for part in self.evidence.parts:
            if part.profile.name == DEFAULT_RANKS:
                found.append(f"ranks are {part.profile.note}; measure yours and pass --ranks")
            elif part.profile.note:
                found.append(f"ranks {part.name}: {part.profile.note}")
            if part.trace is None and part.profile.conditions.sampling == "all-positions":
                found.append(
                    f"ranks {part.name}: counted over all positions, without documents: a decoder gets 2 to 7 % less, "
                    "and the interval is several times too narrow; give a trace with doc_id and pos"
                )
            if part.trace is not None and part.trace.documents < MIN_DOCUMENTS:
                found.append(f"ranks {part.name}: {part.trace.documents} documents are too few for an interval")
        if self.rule in APPROXIMATE_RULES:
            found.append(f"the ranks were measured under {self.rule} acceptance, which changes what the model says")
        if self.model.note:
            found.append(f"model {self.model.name}: {self.model.note}")
        need = self.cost.memory_bytes + batch * context * self.cost.kv_bytes_per_token
        if need > self.hardware.memory_bytes:
            have = self.hardware.memory_bytes / 1e9
            found.append(
                f"weights and KV of batch {batch} at context {context} need {need / 1e9:,.0f} GB per GPU, "
                f"{self.hardware.name} has {have:.0f} GB"
            )
        if self.hardware.source == "datasheet":
            found.append("step times are a datasheet roofline, not measured: trust the shape more than the number")
        return found


def load_inputs(names: Names) -> Inputs:
    """Find and read everything.

    Raises:
        InputError: an unknown name, an unreadable file, or a contradiction in one.
    """
    hardware_at, model_at = locate("hardware", names.hardware), locate("models", names.model)
    evidence, ranks_source = load_evidence(names.ranks)
    hardware, model = load_hardware(hardware_at.path), load_model(model_at.path)
    drafter = parse_drafter(names.drafter, load_model=lambda name: load_model(locate("models", name).path))
    cost = RooflineStep(model=model, hardware=hardware, drafter=drafter, dtype=names.dtype, tp=names.tp)
    ridge = float(f"{cost.ridge_tokens:.6g}")
    return Inputs(
        names=names,
        evidence=evidence,
        ranks_source=ranks_source,
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


def load_evidence(text: str) -> tuple[Evidence, Source]:
    """A rank profile by name or file, or a mixture of several: `code.npz=0.3,chat.npz=0.7`, shares of the drafts.

    Raises:
        InputError: an unknown name, an unreadable file, or shares that do not sum to 1.
    """
    if "=" not in text or Path(text).exists():
        located = locate("ranks", text)
        profile = load_profile(located.path)
        facts: dict[str, Any] = {
            "evidence": profile.kind,
            "positions": None if (n := profile.evidence.trials) is None else round(n),
        }
        facts |= {"documents": profile.documents or None, "temperature": profile.conditions.temperature}
        facts["sampling"] = "draft-starts" if profile.trace is not None else profile.conditions.sampling
        source = Source(
            name=profile.name, reference=located.reference, sha256=profile.sha256, facts=tuple(facts.items())
        )
        return Evidence(parts=(_part(profile, 1.0),)), source
    shares = [_share(item) for item in text.split(",")]
    if abs(sum(share for _, share in shares) - 1.0) > 1e-6:
        total = sum(share for _, share in shares)
        raise InputError(
            f"the shares of '{text}' sum to {total:g}", hint="they are shares of the drafts: make them sum to 1"
        )
    if len({name for name, _ in shares}) != len(shares):
        raise InputError(f"'{text}' names a profile twice", hint="add its shares")
    parts = tuple(_part(load_profile(locate("ranks", name).path), share) for name, share in shares)
    combined = hashlib.sha256("".join(part.profile.sha256 for part in parts).encode()).hexdigest()
    kinds = " + ".join(dict.fromkeys(part.profile.kind for part in parts))
    return Evidence(parts=parts), Source(name=text, reference=text, sha256=combined, facts=(("evidence", kinds),))


def _share(item: str) -> tuple[str, float]:
    name, _, number = item.strip().rpartition("=")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not name or not 0.0 < share <= 1.0:
        raise InputError(f"'{item.strip()}' is not a share", hint="write NAME_OR_FILE=SHARE, for example code.npz=0.3")
    return name, share


def _part(profile: RankProfile, weight: float) -> Part:
    trace = profile.trace
    if isinstance(trace, TraceFile) and not {"doc_id", "pos"} <= set(trace.arrays()):
        trace = None  # counts without documents
    return Part(name=profile.name, weight=weight, profile=profile, trace=None if trace is None else trace.load())


def inputs_of(plan: Plan, *, ranks: str | None = None) -> Inputs:
    """The inputs that a plan was made from; `ranks` says where its rank profile is now.

    Raises:
        InputError: one of them is gone, or has changed since.
    """
    model_facts = dict(plan.model.facts)
    inputs = load_inputs(
        Names(
            ranks=ranks or plan.ranks.reference,
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
