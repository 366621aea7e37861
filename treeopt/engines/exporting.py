"""From a plan, or from drafts that run elsewhere, to the file that an engine loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from treeopt.acceptance.prompt_lookup import PromptLookup, parse_lookup
from treeopt.acceptance.rules import DRAWN_RULES
from treeopt.draft_family import OFF, in_words
from treeopt.engines.fitting import FittedDrafts, Loss, fit_plan, fit_schedule
from treeopt.engines.format import Bug, CheckedBy, Format, Setup, Written
from treeopt.engines.registry import EngineAt
from treeopt.engines.schedule import BatchSpan, DraftSchedule
from treeopt.errors import InputError
from treeopt.plan.plan import Plan
from treeopt.solve.buckets import batches_in_words
from treeopt.tree import DraftTree


class RangeDraft(NamedTuple):
    """What is drafted at a range of batch sizes, in words; `max` is null where it is without end."""

    batch: BatchSpan
    draft: str


class CaptureSizes(NamedTuple):
    """The sizes to capture graphs for."""

    unit: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Export:
    """What an engine loads, how to start it, what is lost, how to see that it acts, and what is known to go wrong."""

    FORMAT: ClassVar[str] = "treeopt.export/2"
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("engine", "version", "kind", "drafts", "file", "content", "launch", "capture_sizes"),
        *("losses", "proof", "notes", "bugs", "checked_by"),
    )
    target: EngineAt
    kind: str
    schedule: DraftSchedule
    written: Written
    losses: tuple[Loss, ...]
    notes: tuple[str, ...]
    bugs: tuple[Bug, ...]
    checked_by: CheckedBy

    @property
    def engine(self) -> str:
        """Its name, as `--engine` takes it."""
        return self.target.engine.name

    @property
    def version(self) -> str:
        """Its release."""
        return self.target.version

    @property
    def drafts(self) -> tuple[RangeDraft, ...]:
        """What is drafted at which batch sizes."""
        ranges = self.schedule.ranges()
        return tuple(RangeDraft(BatchSpan(r.batch_min, r.batch_max), in_words(r.draft)) for r in ranges)

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.written.file_name

    @property
    def content(self) -> str | None:
        """The file, null where it is binary."""
        return self.written.content if isinstance(self.written.content, str) else None

    @property
    def launch(self) -> str:
        """The line that starts the engine with it."""
        return self.written.launch

    @property
    def capture_sizes(self) -> CaptureSizes:
        """The graphs that it needs."""
        return CaptureSizes(self.written.capture_unit, self.written.capture_sizes)

    @property
    def proof(self) -> str:
        """The metric or log line that shows the drafts at work."""
        return self.written.proof


def export(
    drafts: Plan | DraftSchedule,
    target: EngineAt,
    setup: Setup,
    *,
    batch: int | None = None,
    allow_off: bool = False,
    synthetic: bool = False,
) -> Export:
    """Drafts in the format of an engine that loses nothing of them, or else the one that loses least.

    With `synthetic` the engine is told to accept by the plan's f, whatever is drafted: its speed can be measured before
    a drafter exists.

    Raises:
        InputError: the engine can load none of them: why, and what it can load.
    """
    setup = replace(setup, release=target.release, lookup=_recorded_lookup(drafts) or setup.lookup)
    if isinstance(drafts, Plan):
        graphs = drafts.sources.hardware
        setup = replace(
            setup,
            rule=drafts.verification.rule,
            captured=graphs.capture_tokens or (),
            capture_limit=graphs.capture_limit,
        )
    fitting: list[tuple[Format, FittedDrafts]] = []
    refusals: list[InputError] = []
    for form in _formats(target, setup):
        try:
            fitting.append((form, _fit(drafts, form, batch, allow_off)))
        except InputError as error:
            refusals.append(error)
    if not fitting:
        reasons, hints = (dict.fromkeys(words) for words in zip(*((str(r), r.hint) for r in refusals), strict=True))
        raise InputError(f"{target.engine.title}: {'; '.join(reasons)}", hint="; ".join(hints))
    form, fitted = min(fitting, key=lambda pair: _lost(pair[1]))
    if synthetic:
        setup = replace(setup, survival=_survival(drafts, fitted.schedule, form, target))
    left_out = _left_out(target, form, setup)
    if left_out:
        setup = replace(setup, rule=None)
    written = form.write(fitted.schedule, setup, form.drafters.word(setup))
    unasked = _unasked(target, form, setup)
    return Export(
        target=target,
        kind=form.name,
        schedule=fitted.schedule,
        written=written,
        losses=fitted.losses,
        notes=(
            *(_floored(drafts, fitted.schedule, target) if batch is None else ()),
            *fitted.notes,
            *written.notes,
            *_general_notes(form, fitted.schedule, setup),
            *left_out,
            *unasked,
            *_foreign_lookup(drafts, target),
        ),
        bugs=target.engine.bugs_of(fitted.schedule, target.release),
        checked_by="documentation only" if unasked else target.engine.checked_by,
    )


def _formats(target: EngineAt, setup: Setup) -> tuple[Format, ...]:
    try:
        return target.formats_for(setup)
    except InputError as error:
        if setup.method is not None:
            raise
        other = "the plan's numbers do not hold for another drafter: name it with --method to export all the same"
        raise InputError(str(error), hint=f"{error.hint}; {other}") from None


def _recorded_lookup(drafts: Plan | DraftSchedule) -> PromptLookup | None:
    """The n-gram lookup that the plan's ranks were recorded with; None where they do not say, or of another kind."""
    recorded = drafts.sources.ranks.drafter if isinstance(drafts, Plan) else None
    return parse_lookup(recorded) if recorded else None


def _foreign_lookup(drafts: Plan | DraftSchedule, target: EngineAt) -> tuple[str, ...]:
    if not isinstance(drafts, Plan):
        return ()
    return tuple(filter(None, [target.foreign_lookup(drafts.sources.drafter.kind, drafts.sources.ranks.drafter)]))


def _survival(
    drafts: Plan | DraftSchedule, schedule: DraftSchedule, form: Format, target: EngineAt
) -> tuple[float, ...]:
    """f by depth of the longest chain, as the plan has it: `[1, .7, .4]` of a chain of 2 is `(.7, .4)`.

    Raises:
        InputError: the release cannot pretend acceptance, or the plan has no f of that chain.
    """
    since = form.pretends_since
    if since is None or target.release < since:
        raise InputError(
            f"{target.words} cannot be told what to accept ({form.name})", hint="leave --synthetic out, or use vllm"
        )
    chain = DraftTree.chain(schedule.longest)
    buckets = drafts.buckets if isinstance(drafts, Plan) else ()
    f = next((b.path_probabilities for b in buckets if b.tree == chain), None)
    if f is None:
        raise InputError(
            f"the plan has no acceptance of {in_words(chain)}", hint="search with --engine, then export that plan"
        )
    return tuple(float(f"{p:.6g}") for p in f[1:])


def _lost(fitted: FittedDrafts) -> tuple[bool, float]:
    """By what formats are compared: is anything lost, and how much; what has no price counts as all of it."""
    return bool(fitted.losses), sum(1.0 if loss.share is None else loss.share for loss in fitted.losses)


def _fit(drafts: Plan | DraftSchedule, form: Format, batch: int | None, allow_off: bool) -> FittedDrafts:
    if isinstance(drafts, Plan):
        return fit_plan(drafts, form.limits, batch=batch, allow_off=allow_off)
    return fit_schedule(drafts if batch is None else DraftSchedule.constant(drafts.at(batch)), form.limits)


def _floored(drafts: Plan | DraftSchedule, schedule: DraftSchedule, target: EngineAt) -> list[str]:
    """Where a plan is off and the export is not."""
    buckets = drafts.buckets if isinstance(drafts, Plan) else ()
    floored = [b for b in buckets if not b.speculate and schedule.at(b.batch.max) != OFF]
    if not floored:
        return []
    may_be_off = any(form.limits.refusal(OFF) is None for form in target.formats)
    off = "add --allow-off to draft nothing there" if may_be_off else "the engine cannot be off"
    ranges = ", ".join(batches_in_words(b.batch.min, b.batch.max) for b in floored)
    return [f"the plan does not speculate at {ranges}; a chain keeps the drafter's state fresh ({off})"]


def _general_notes(form: Format, schedule: DraftSchedule, setup: Setup) -> list[str]:
    notes = []
    if (assumed := form.drafters.assumed(setup)) is not None:
        notes.append(assumed)
    if schedule.only == OFF:
        notes.append("nothing is drafted: the list is empty")
    return notes


def _left_out(target: EngineAt, form: Format, setup: Setup) -> list[str]:
    """That the rule behind the plan's ranks is not the engine's usual one, and not switched on."""
    since = form.switches.get(setup.rule or "")
    if setup.rule not in DRAWN_RULES or (since is not None and since <= target.release):
        return []
    return [f"the plan's ranks are under {setup.rule}, which nothing here switches on: {target.words} may accept less"]


def _unasked(target: EngineAt, form: Format, setup: Setup) -> list[str]:
    """That the release's own code takes the file in no test; nothing where it does, or there is no engine."""
    engine, kind = target.engine, form.drafters.kind(setup)
    if not engine.checked_by or engine.is_asked(target.release, kind):
        return []
    if engine.checked_by == "documentation only":
        return [f"documentation only: {engine.title} {engine.checked} was read, its code was not run on such a file"]
    since = engine.checked_since or engine.newest
    if since <= target.release <= engine.newest:
        whose = "such" if kind is None else f"{kind}"
        return [f"documentation only: {target.words}'s code was not run on settings of {whose} drafters"]
    return [f"documentation only: checked with {engine.title} {engine.checked}, not with {target.version}"]
