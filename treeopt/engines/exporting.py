"""From a plan, or from drafts that run elsewhere, to the file that an engine loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from treeopt.draft_family import OFF, in_words
from treeopt.engines.fitting import FittedDrafts, Loss, fit_plan, fit_schedule
from treeopt.engines.format import Bug, Format, Setup, Written
from treeopt.engines.registry import EngineAt
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError, UnknownNameError
from treeopt.plan.plan import Plan
from treeopt.solve.buckets import batches_in_words

FORMAT: Final = "treeopt.export/1"


@dataclass(frozen=True, kw_only=True)
class Export:
    """What an engine loads, how to start it, what is lost, how to see that it acts, and what is known to go wrong."""

    target: EngineAt
    format: str
    schedule: DraftSchedule
    written: Written
    losses: tuple[Loss, ...]
    notes: tuple[str, ...]
    bugs: tuple[Bug, ...]

    def document(self) -> dict[str, Any]:
        """The value of `--json`; `content` is null where the file is binary."""
        written = self.written
        return {
            "format": FORMAT,
            "engine": self.target.engine.name,
            "version": self.target.version,
            "kind": self.format,
            "drafts": [
                {"batch": {"min": r.batch_min, "max": r.batch_max}, "draft": in_words(r.draft)}
                for r in self.schedule.ranges()
            ],
            "file": written.file_name,
            "content": written.content if isinstance(written.content, str) else None,
            "launch": written.launch,
            "capture_sizes": {"unit": written.capture_unit, "sizes": list(written.capture_sizes)},
            "losses": [
                {
                    "batch": {"min": loss.batch_min, "max": loss.batch_max},
                    "planned": loss.planned,
                    "exported": loss.exported,
                    "share": None if loss.share is None else float(f"{loss.share:.6g}"),
                }
                for loss in self.losses
            ],
            "proof": written.proof,
            "notes": list(self.notes),
            "bugs": [{"reference": bug.reference, "text": bug.text} for bug in self.bugs],
        }


def export(
    drafts: Plan | DraftSchedule, target: EngineAt, setup: Setup, *, batch: int | None = None, allow_off: bool = False
) -> Export:
    """Drafts in the format of an engine that loses nothing of them, or else the one that loses least.

    Raises:
        InputError: the engine can load none of them: why, and what it can load.
    """
    setup = replace(setup, release=target.release)
    fitting: list[tuple[Format, FittedDrafts]] = []
    refusals: list[InputError] = []
    for form in target.support.formats:
        if (unknown := form.refusal(setup)) is not None:
            refusals.append(unknown)
            continue
        try:
            fitting.append((form, _fit(drafts, form, batch, allow_off)))
        except InputError as error:
            refusals.append(error)
    if not fitting:
        raise _nothing_fits(target, setup, refusals)
    form, fitted = min(fitting, key=lambda pair: _lost(pair[1]))
    written = form.write(fitted.schedule, setup)
    return Export(
        target=target,
        format=form.name,
        schedule=fitted.schedule,
        written=written,
        losses=fitted.losses,
        notes=(
            *(_floored(drafts, fitted.schedule, target) if batch is None else ()),
            *fitted.notes,
            *written.notes,
            *_general_notes(target, form, fitted.schedule, setup),
        ),
        bugs=target.engine.bugs_of(fitted.schedule, target.release),
    )


def _lost(fitted: FittedDrafts) -> tuple[bool, float]:
    """By what formats are compared: is anything lost, and how much; what has no price counts as all of it."""
    return bool(fitted.losses), sum(1.0 if loss.share is None else loss.share for loss in fitted.losses)


def _fit(drafts: Plan | DraftSchedule, form: Format, batch: int | None, allow_off: bool) -> FittedDrafts:
    if isinstance(drafts, Plan):
        return fit_plan(drafts, form.limits, batch=batch, allow_off=allow_off)
    return fit_schedule(drafts if batch is None else DraftSchedule.constant(drafts.at(batch)), form.limits)


def _nothing_fits(target: EngineAt, setup: Setup, refusals: list[InputError]) -> InputError:
    if all(form.refusal(setup) for form in target.support.formats):
        first = refusals[0]
        other = "; or name it with --method" if isinstance(first, UnknownNameError) and setup.method is None else ""
        return InputError(str(first), hint=f"{first.hint}{other}")
    reasons = list(dict.fromkeys(str(error) for error in refusals))
    hints = list(dict.fromkeys(error.hint for error in refusals))
    return InputError(f"{target.engine.title}: {'; '.join(reasons)}", hint="; ".join(hints))


def _floored(drafts: Plan | DraftSchedule, schedule: DraftSchedule, target: EngineAt) -> list[str]:
    """Where a plan is off and the export is not."""
    buckets = drafts.buckets if isinstance(drafts, Plan) else ()
    floored = [b for b in buckets if not b.speculate and schedule.at(b.batch_max) != OFF]
    if not floored:
        return []
    may_be_off = any(form.limits.refusal(OFF) is None for form in target.support.formats)
    off = "add --allow-off to draft nothing there" if may_be_off else "the engine cannot be off"
    ranges = ", ".join(batches_in_words(b.batch_min, b.batch_max) for b in floored)
    return [f"the plan does not speculate at {ranges}; a chain keeps the drafter's state fresh ({off})"]


def _general_notes(target: EngineAt, form: Format, schedule: DraftSchedule, setup: Setup) -> list[str]:
    notes = []
    if form.methods is not None and (assumed := form.methods.assumed(setup)):
        notes.append(assumed)
    if setup.method is None and setup.kind is not None and (other := target.engine.mismatch(setup.kind)):
        notes.append(f"the plan was made for another drafter: {other}")
    if schedule.only == OFF:
        notes.append("nothing is drafted: the list is empty")
    if target.version != target.engine.checked:
        notes.append(f"checked with {target.engine.title} {target.engine.checked}, not with {target.version}")
    return notes
