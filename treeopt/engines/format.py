"""The parts of an engine: the formats it reads, by release, and what is known to go wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from treeopt.draft_family import DraftFamily
from treeopt.engines.release import Release, parse_release
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError, UnknownNameError

MODEL: Final = "MODEL"
DRAFTER: Final = "DRAFTER"
DEFAULT_MAX_BATCH: Final = 256
USUAL_DRAFTERS: Final = ("eagle", "eagle3", "medusa")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a file names beside the drafts.

    `drafter` is the plan's kind (None: not known), `method` the engine's own word for it where the user gave one.
    `max_batch` is the largest batch size the engine runs, `heads` the number of parallel heads, `out` the file or
    folder that is written to, `release` the engine's.
    """

    drafter: str | None = None
    method: str | None = None
    model: str = MODEL
    draft_model: str = DRAFTER
    max_batch: int | None = None
    heads: int | None = None
    out: Path | None = None
    release: Release | None = None

    @property
    def kind(self) -> str | None:
        """The drafter's kind without the model's name."""
        return None if self.drafter is None else self.drafter.partition(":")[0]

    def written_to(self, name: str) -> str:
        """Where a file of that name goes, for launch lines: to `out`, or into it where it is a folder."""
        if self.out is None:
            return name
        return str(self.out / name if self.out.is_dir() else self.out)

    def end_of(self, schedule: DraftSchedule) -> int:
        """The largest batch size to speak of."""
        last = schedule.steps[-1].batch_min
        return max(self.max_batch or schedule.covers or DEFAULT_MAX_BATCH, last)


@dataclass(frozen=True, kw_only=True)
class Methods:
    """The drafters that a format can name: `words` are the engine's, by kind.

    `default` is the kind that is taken where none is known. `closed` formats take no other word. `gone` are the words
    that releases from the named one on do not take.
    """

    engine: str
    words: Mapping[str, str]
    default: str
    closed: bool = False
    gone: Mapping[str, Release] = field(default_factory=dict)

    def word(self, setup: Setup) -> str:
        """The engine's word for the drafter.

        Raises:
            UnknownNameError: the format cannot name such a drafter.
            InputError: the release does not run it any more.
        """
        word = self._given(setup.method) if setup.method is not None else self._of_kind(setup.kind)
        since = self.gone.get(word)
        if since is not None and setup.release is not None and setup.release >= since:
            text = ".".join(map(str, since))
            raise InputError(
                f"{self.engine} runs no {word} drafter from {text} on",
                hint=f"name a release before {text}, or another engine",
            )
        return word

    def assumed(self, setup: Setup) -> str | None:
        """A sentence where the default is taken; None where the drafter is known."""
        if setup.method is not None or setup.kind is not None:
            return None
        return f"the drafter is not known, {self.words[self.default]} is assumed: name another with --method"

    def _given(self, method: str) -> str:
        """The user's own word, as the engine spells it where it is a known one."""
        word = next((w for w in self.words.values() if w.lower() == method.lower()), None)
        if word is None and self.closed:
            raise UnknownNameError(f"drafter for {self.engine}", method, self.words.values())
        return word or method

    def _of_kind(self, kind: str | None) -> str:
        if kind is not None and kind not in self.words:
            raise UnknownNameError(f"drafter for {self.engine}", kind, self.words)
        return self.words[kind or self.default]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file for an engine, and what goes with it.

    `launch` starts the engine with it. `capture_sizes` are the sizes to capture graphs for, in `capture_unit`.
    `proof` is the metric or log line that shows the drafts at work.
    """

    content: str | bytes
    file_name: str
    launch: str
    proof: str
    capture_sizes: tuple[int, ...] = ()
    capture_unit: Literal["requests", "tokens"] = "requests"
    notes: tuple[str, ...] = ()


class Found(NamedTuple):
    """What a file says, and what its engine does with it without saying so."""

    schedule: DraftSchedule
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to tell an engine its drafts.

    `read` answers None for a file of another shape and raises for one of this shape that the engine would refuse
    or misread. `methods` are the drafters that the file names; None where it names none.
    """

    name: str
    limits: DraftFamily
    write: Callable[[DraftSchedule, Setup], Written]
    read: Callable[[EngineFile], Found | None]
    methods: Methods | None = None

    def refusal(self, setup: Setup) -> InputError | None:
        """Why the file cannot name the drafter; None where it can, or names none."""
        try:
            if self.methods is not None:
                self.methods.word(setup)
        except InputError as error:
            return error
        return None


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A known problem of an engine: where it is discussed, what happens, and to which drafts."""

    reference: str
    text: str
    hits: Callable[[DraftSchedule], bool] = field(default=lambda schedule: True)
    since: Release | None = None
    before: Release | None = None


@dataclass(frozen=True, kw_only=True)
class Support:
    """What an engine reads in the releases from `since` on and before `before`, the preferred format first."""

    formats: tuple[Format, ...]
    since: Release | None = None
    before: Release | None = None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine: `checked` is the release or commit against which its formats were checked; '' where there is none.

    `drafters` are the kinds that it runs, for engines whose file does not name one; empty where any will do.
    """

    name: str
    title: str
    checked: str
    supports: tuple[Support, ...]
    bugs: tuple[Bug, ...] = ()
    drafters: tuple[str, ...] = ()

    def mismatch(self, kind: str) -> str | None:
        """A sentence where the engine does not run a kind of drafter; None where it does, or may."""
        if not self.drafters or kind in self.drafters:
            return None
        return f"{self.title} runs a drafter of kind {' or '.join(self.drafters)}, not {kind}"

    @property
    def usual_drafter(self) -> str:
        """What its step is priced with where nothing is said: the first of `USUAL_DRAFTERS` that it runs."""
        return next((kind for kind in USUAL_DRAFTERS if self.mismatch(kind) is None), USUAL_DRAFTERS[0])

    @property
    def newest(self) -> Release:
        """The release that is meant where none is named."""
        return Release(10**6, 0, 0) if self.checked[:6] in ("", "commit") else parse_release(self.checked)

    def support_at(self, release: Release) -> Support:
        """What a release reads.

        Raises:
            InputError: treeopt knows nothing about it.
        """
        for support in self.supports:
            if is_within(release, support.since, support.before):
                return support
        known = ", ".join(_range_in_words(s.since, s.before) for s in self.supports)
        raise InputError(f"{self.title} {'.'.join(map(str, release))} is not known", hint=f"known: {known}")

    def bugs_of(self, schedule: DraftSchedule, release: Release) -> tuple[Bug, ...]:
        """What is known to go wrong with these drafts in this release."""
        return tuple(b for b in self.bugs if is_within(release, b.since, b.before) and b.hits(schedule))


def one_format(name: str, title: str, checked: str, form: Format, *drafters: str) -> Engine:
    """An engine that reads one format in all releases, and runs these kinds of drafter (none named: any)."""
    return Engine(name=name, title=title, checked=checked, supports=(Support(formats=(form,)),), drafters=drafters)


def is_within(release: Release, since: Release | None, before: Release | None) -> bool:
    """Whether a release lies in a half-open range; None is without end."""
    return (since is None or since <= release) and (before is None or release < before)


def _range_in_words(since: Release | None, before: Release | None) -> str:
    low = "" if since is None else f"from {'.'.join(map(str, since))}"
    high = "" if before is None else f"before {'.'.join(map(str, before))}"
    return " ".join(part for part in (low, high) if part) or "all releases"
