"""What a search is made from, found by name or file: rank profile, hardware, model, drafter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.acceptance.intervals import MIN_DOCUMENTS
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.profile import RankProfile, differs, stated
from treeopt.acceptance.replay import ALL_POSITIONS_FLATTER
from treeopt.acceptance.rules import APPROXIMATE_RULES, GREEDY
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.cost import (
    Hardware,
    ModelShape,
    ModelStep,
    load_model,
    parse_drafter,
)
from treeopt.cost.drafter import PRICED_AS
from treeopt.cost.hardware import hardware_document
from treeopt.cost.kernels.experts import MAX_SKEW
from treeopt.cost.model_file import model_document, model_from
from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import TableStep
from treeopt.errors import InputError
from treeopt.files.shipped import DEFAULT_RANKS, locate
from treeopt.plan.plan import Plan, Source
from treeopt.planner.names import Names
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from treeopt.cost.tables.loading import CostTable


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs, loaded, with where they came from."""

    names: Names
    evidence: Traffic
    ranks_source: Source
    hardware: Hardware
    hardware_source: Source
    model: ModelShape
    model_source: Source
    kernels: ModelStep
    cost: StepCost
    cost_source: Source | None = None
    cost_findings: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The files that a result must not be written over."""
        traces = [file for part in self.evidence.parts for file in part.profile.files]
        named = [item.rpartition("=")[0] or item for item in self.names.ranks.split(",")]
        tables = [] if self.names.cost is None else [self.names.cost]
        return [*traces, *map(Path, (*named, self.names.hardware, self.names.model, *tables))]

    @property
    def rule(self) -> str:
        """The verification rule that the evidence was measured under; greedy where it does not say."""
        return next(iter(stated([part.profile for part in self.evidence.parts], "rule")), GREEDY)

    def notes(self, batch: int, context: int, nodes: int = 1) -> list[str]:
        """What a reader of any number made from these inputs, up to these sizes, must know."""
        found = []
        for part in self.evidence.parts:
            if part.profile.name == DEFAULT_RANKS:
                found.append(f"ranks are {part.profile.note}; measure yours and pass --ranks")
            elif part.profile.note:
                found.append(f"ranks {part.name}: {part.profile.note}")
            recorded, ours = part.profile.conditions.drafter, self.kernels.drafter.kind
            theirs = PRICED_AS.get((recorded or "").partition(":")[0], ours)
            if theirs != ours:
                found.append(
                    f"ranks {part.name} are of the drafter {recorded}, the step is priced with "
                    f"{ours}: pass --drafter {'model:NAME' if theirs == 'model' else theirs}"
                )
            if part.trace is None and part.profile.conditions.sampling == "all-positions":
                found.append(
                    f"ranks {part.name}: {ALL_POSITIONS_FLATTER}, and without documents, so that the interval "
                    "is several times too narrow; give a trace with doc_id and pos"
                )
            if part.trace is not None and part.trace.documents < MIN_DOCUMENTS:
                found.append(f"ranks {part.name}: {part.trace.documents} documents are too few for an interval")
        if self.rule in APPROXIMATE_RULES:
            found.append(f"the ranks were measured under {self.rule} acceptance, which changes what the model says")
        if self.model.note:
            found.append(f"model {self.model.name}: {self.model.note}")
        need = self.kernels.memory_bytes + batch * self.kernels.kv_bytes(context)
        if need > self.hardware.memory_bytes:
            have = self.hardware.memory_bytes / 1e9
            found.append(
                f"weights and KV of batch {batch} at context {context} need {need / 1e9:,.0f} GB per GPU, "
                f"{self.hardware.name} has {have:.0f} GB"
            )
        if isinstance(self.cost, TableStep):
            found += [*self.cost_findings, *self.cost.notes(batch=batch, nodes=nodes, context=context)]
        served = self.kernels.engine.evidence
        if served is not None and served.drafter != self.kernels.drafter.kind:
            found.append(
                f"engine constants were fitted to served steps with the drafter {served.drafter}, not with "
                f"{self.kernels.drafter.kind}"
            )
        return found + self.kernels.notes(batch=batch, nodes=nodes, context=context)


def load_inputs(names: Names, *, confidence: bool = False) -> Inputs:
    """Find and read everything; a trace's recorded confidence, which only dynamic trees need, with `confidence`.

    Raises:
        InputError: an unknown name, an unreadable file, or a contradiction in one.
    """
    hardware_at, model_at = locate("hardware", names.hardware), locate("models", names.model)
    evidence, ranks_source = load_evidence(names.ranks, confidence=confidence)
    # Read once, so that the hash is of what was used: a pipe has nothing to give a second time.
    hardware_file, model_file = hardware_document(hardware_at.path), model_document(model_at.path)
    hardware = Hardware.from_document(hardware_file)
    model = _routed(model_from(model_file), names)
    drafter = parse_drafter(names.drafter, load_model=lambda name: load_model(locate("models", name).path))
    engine = hardware.engine(names.capture_tokens, names.capture_limit)
    kernels = ModelStep(
        model=model,
        times=hardware.kernel_times(),
        drafter=drafter,
        dtype=names.dtype or model.dtype,
        kv_dtype=names.kv_dtype,
        tp=names.tp,
        engine=engine,
    )
    ridge = float(f"{kernels.ridge_tokens:.6g}")
    table = None if names.cost is None else _cost_table(names.cost).at_lengths(_chain_lengths(evidence))
    return Inputs(
        names=names,
        evidence=evidence,
        ranks_source=ranks_source,
        hardware=hardware,
        hardware_source=Source(
            name=hardware.name,
            reference=hardware_at.reference,
            sha256=hardware_file.sha256,
            facts=(
                ("source", hardware.source),
                ("ridge_tokens", ridge),
                *_given(names, "capture_tokens", "capture_limit"),
            ),
        ),
        model=model,
        model_source=Source(
            name=model.name,
            reference=model_at.reference,
            sha256=model_file.sha256,
            facts=(
                ("dtype", names.dtype or model.dtype),
                ("tp", names.tp),
                *_given(names, "kv_dtype", "expert_skew", "expert_correlation"),
            ),
        ),
        kernels=kernels,
        cost=kernels if table is None else table.step(carried_by=kernels),
        cost_source=None if table is None else Source(name=table.name, reference=str(names.cost), sha256=table.sha256),
        cost_findings=() if table is None else table.findings,
    )


def _chain_lengths(evidence: Traffic) -> Callable[[int], float]:
    """Tokens per step of chains of K drafts."""
    models = [(part.weight, part.profile.model()) for part in evidence.parts]

    def tokens_per_step(K: int) -> float:
        chain = DraftTree.chain(K)
        return sum(weight * expected_tokens(path_probabilities(model, chain)) for weight, model in models)

    return tokens_per_step


def _cost_table(name: str) -> CostTable:
    from treeopt.cost.tables.loading import load_cost_table  # imports all readers of step times

    return load_cost_table(Path(name))


def _given(names: Names, *options: str) -> list[tuple[str, Any]]:
    """The options that the user gave, as a plan records them."""
    values = [(option, getattr(names, option)) for option in options]
    return [
        (option, list(value) if isinstance(value, tuple) else value) for option, value in values if value is not None
    ]


def _routed(model: ModelShape, names: Names) -> ModelShape:
    """The model with the routing that was asked for."""
    skew, correlation = names.expert_skew, names.expert_correlation
    if skew is None and correlation is None:
        return model
    if model.experts is None:
        raise InputError(f"{model.name} has no experts to be routed", hint="leave the skew and correlation out")
    if skew is not None and not 0.0 <= skew <= MAX_SKEW:
        raise InputError(f"an expert skew of {skew:g} is out of range", hint=f"give 0 (balanced) to {MAX_SKEW:g}")
    if correlation is not None and not 0.0 <= correlation <= 1.0:
        raise InputError(f"an expert correlation of {correlation:g} is out of range", hint="give 0 (none) to 1")
    experts = replace(
        model.experts,
        skew=model.experts.skew if skew is None else skew,
        correlation=model.experts.correlation if correlation is None else correlation,
    )
    return replace(model, experts=experts)


def load_evidence(text: str, *, confidence: bool = False) -> tuple[Traffic, Source]:
    """A rank profile by name or file, or a mixture of several: `code.npz=0.3,chat.npz=0.7`, shares of the drafts.

    Raises:
        InputError: an unknown name, an unreadable file, shares that do not sum to 1, or parts that were measured under
            different rules.
    """
    if "=" not in text or Path(text).exists():
        located = locate("ranks", text)
        profile = load_profile(located.path, keep=True, confidence=confidence)
        facts: dict[str, Any] = {
            "evidence": profile.kind,
            "positions": None if (n := profile.evidence.trials) is None else round(n),
        }
        facts |= {"documents": profile.documents or None, "temperature": profile.conditions.temperature}
        facts["sampling"] = "draft-starts" if profile.trace is not None else profile.conditions.sampling
        source = Source(
            name=profile.name, reference=located.reference, sha256=profile.sha256, facts=tuple(facts.items())
        )
        return Traffic(parts=(_part(profile, 1.0),)), source
    shares = [_share(item) for item in text.split(",")]
    if abs(sum(share for _, share in shares) - 1.0) > 1e-6:
        total = sum(share for _, share in shares)
        raise InputError(
            f"the shares of '{text}' sum to {total:g}", hint="they are shares of the drafts: make them sum to 1"
        )
    if len({name for name, _ in shares}) != len(shares):
        raise InputError(f"'{text}' names a profile twice", hint="add its shares")
    profiles = [load_profile(locate("ranks", name).path, keep=True, confidence=confidence) for name, _ in shares]
    rules = stated(profiles, "rule")
    if len(rules) > 1:
        raise differs("rule", rules, hint="mix what ran alike: a plan is for one rule")
    parts = tuple(_part(profile, share) for profile, (_, share) in zip(profiles, shares, strict=True))
    combined = hashlib.sha256("".join(part.profile.sha256 for part in parts).encode()).hexdigest()
    kinds = " + ".join(dict.fromkeys(part.profile.kind for part in parts))
    return Traffic(parts=parts), Source(name=text, reference=text, sha256=combined, facts=(("evidence", kinds),))


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
    return Part(name=profile.name, weight=weight, profile=profile, trace=profile.trace)


def inputs_of(plan: Plan, *, ranks: str | None = None, confidence: bool = False) -> Inputs:
    """The inputs that a plan was made from; `ranks` says where its rank profile is now.

    A trace's recorded confidence is read with `confidence`, and where the plan has dynamic trees.

    Raises:
        InputError: one of them is gone, or has changed since.
    """
    model_facts, hardware_facts = dict(plan.model.facts), dict(plan.hardware.facts)
    captures = hardware_facts.get("capture_tokens")
    inputs = load_inputs(
        Names(
            ranks=ranks or plan.ranks.reference,
            hardware=plan.hardware.reference,
            model=plan.model.reference,
            drafter=plan.drafter,
            dtype=str(model_facts.get("dtype", "bf16")),
            tp=int(model_facts.get("tp", 1)),
            capture_tokens=None if captures is None else tuple(captures),
            capture_limit=hardware_facts.get("capture_limit"),
            kv_dtype=model_facts.get("kv_dtype"),
            expert_skew=model_facts.get("expert_skew"),
            expert_correlation=model_facts.get("expert_correlation"),
            cost=None if plan.cost is None else plan.cost.reference,
        ),
        confidence=confidence or any(bucket.dynamic for bucket in plan.buckets),
    )
    pairs: tuple[tuple[str, Source | None, Source | None], ...] = (
        ("ranks", plan.ranks, inputs.ranks_source),
        ("hardware", plan.hardware, inputs.hardware_source),
        ("models", plan.model, inputs.model_source),
        ("cost", plan.cost, inputs.cost_source),
    )
    for kind, then, now in pairs:
        if then is not None and now is not None and then.sha256 != now.sha256:
            raise InputError(
                f"{then.reference} ({kind}) has changed since the plan was made",
                hint="search again, so that plan and evidence agree",
            )
    return inputs
