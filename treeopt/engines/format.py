"""The parts of an engine: the formats it reads, by release and drafter, and what is known to go wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple

from treeopt.acceptance.prompt_lookup import DEFAULT_LOOKUP, LookupRule, PromptLookup
from treeopt.draft_family import DraftFamily
from treeopt.engines.release import Release, is_within, parse_release, range_in_words
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError, UnknownNameError

DRAFT_TOKENS: Final = "draft tokens per draft"  # the words of `export` and of `check` for what was drafted
MODEL: Final = "MODEL"
DRAFTER: Final = "DRAFTER"
DEFAULT_MAX_BATCH: Final = 256
USUAL_DRAFTERS: Final = ("eagle", "eagle3", "medusa", "mtp", "ngram")
_DEVICES: Final = ("cuda", "cpu")
CheckedBy = Literal["own code", "documentation only", ""]


@dataclass(frozen=True, kw_only=True)
class DrafterWord:
    """An engine's word for a kind of drafter; '' where its file names none.

    `has_model`: the drafter is a model of its own, to be named beside the word; `parallel`: it is told to guess all
    tokens in one pass, by a switch beside the word; `since`, `before`: the releases that run it.
    """

    text: str
    has_model: bool = True
    parallel: bool = False
    since: Release | None = None
    before: Release | None = None


@dataclass(frozen=True, kw_only=True)
class Drafters:
    """The drafters that a format runs: `words` are the engine's, by kind; without any all drafters are alike to it.

    `default` is the kind that is taken where none is known, None where that needs saying nothing. `closed` formats take
    no other word.
    """

    engine: str
    words: Mapping[str, DrafterWord] = field(default_factory=dict)
    default: str | None = None
    closed: bool = False

    def word(self, setup: Setup) -> DrafterWord:
        """The engine's word for the drafter.

        Raises:
            UnknownNameError: the format does not run such a drafter.
            InputError: the release does not run it.
        """
        word = self._of_kind(setup.kind) if setup.method is None else self._given(setup.method)
        if setup.release is not None and not is_within(setup.release, word.since, word.before):
            known = range_in_words(word.since, word.before)
            raise InputError(f"{self.engine} runs a {word.text} drafter {known}", hint="name such a release")
        return word

    def kind(self, setup: Setup) -> str | None:
        """The kind of the drafter that is exported; None for a word that is not known, or where none is named."""
        if setup.method is None:
            return setup.kind or self.default
        return setup.method if setup.method in self.words else self.kind_of(setup.method)

    def assumed(self, setup: Setup) -> str | None:
        """A sentence where the default is taken; None where the drafter is known, or the file names none."""
        if self.default is None or setup.method is not None or setup.kind is not None:
            return None
        return f"the drafter is not known, {self.words[self.default].text} is assumed: name another with --method"

    def kind_of(self, text: str | None) -> str | None:
        """The kind that a word stands for, None for a word that is not known."""
        return next((k for k, w in self.words.items() if text is not None and w.text.lower() == text.lower()), None)

    def _given(self, method: str) -> DrafterWord:
        """The user's own word, as the engine spells it where it is a known one."""
        if (kind := self.kind_of(method) or (method if method in self.words else None)) is not None:
            return self.words[kind]
        if self.closed:
            raise UnknownNameError(f"drafter for {self.engine}", method, [w.text for w in self.words.values()])
        return DrafterWord(text=method)

    def _of_kind(self, kind: str | None) -> DrafterWord:
        if not self.words:
            return DrafterWord(text="")
        if kind is None and self.default is None and self.closed:
            raise InputError(f"the drafter is not known, {self.engine} is one", hint="name the drafter with --method")
        if kind is not None and kind not in self.words:
            raise UnknownNameError(f"drafter for {self.engine}", kind, self.words)
        return self.words[kind or self.default or next(iter(self.words))]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a file names beside the drafts.

    `drafter` is the plan's kind (None: not known), `method` the engine's own word for it where the user gave one,
    `lookup` the rule that an n-gram drafter follows. `max_batch` is the largest batch size the engine runs, `heads` the
    number of parallel heads, `out` the file or folder that is written to, `release` the engine's, `survival` f by
    depth to pretend, None for real drafts, `rule` the acceptance rule that is to be switched on. `captured`,
    `capture_limit`: the graphs, in tokens per step, that the plan was priced with where the user said so.

    Raises:
        UnknownNameError: a device that is none.
    """

    drafter: str | None = None
    method: str | None = None
    lookup: PromptLookup = DEFAULT_LOOKUP
    model: str = MODEL
    draft_model: str = DRAFTER
    device: str = "cuda"
    max_batch: int | None = None
    heads: int | None = None
    out: Path | None = None
    release: Release | None = None
    survival: Sequence[float] | None = None
    rule: str | None = None
    captured: tuple[int, ...] = ()
    capture_limit: int | None = None

    def __post_init__(self) -> None:
        if self.device not in _DEVICES:
            raise UnknownNameError("device", self.device, _DEVICES)

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
    """What a file says, and what its engine does with it without saying so; `drafter` is a kind, None if not known."""

    schedule: DraftSchedule
    notes: tuple[str, ...] = ()
    drafter: str | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to tell an engine its drafts, in the releases from `since` on and before `before`.

    `read` answers None for a file of another shape and raises for one of this shape that the engine would refuse
    or misread. `pretends_since`: the
    release from which on the engine can be told what to accept (`Setup.survival`), None where none can. `switches`:
    the acceptance rules that a setting switches on, and from which release; the engine's usual one is not among them.
    """

    name: str
    limits: DraftFamily
    write: Callable[[DraftSchedule, Setup, DrafterWord], Written]
    read: Callable[[EngineFile], Found | None]
    drafters: Drafters
    since: Release | None = None
    before: Release | None = None
    pretends_since: Release | None = None
    switches: Mapping[str, Release] = field(default_factory=dict)

    def refusal(self, setup: Setup) -> InputError | None:
        """Why the engine does not run the drafter in this way; None where it does."""
        try:
            self.drafters.word(setup)
        except InputError as error:
            return error
        return None


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A known problem of an engine: where it is discussed, what happens, and to which drafts."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("reference", "text")
    reference: str
    text: str
    hits: Callable[[DraftSchedule], bool] = field(default=lambda schedule: True)
    since: Release | None = None
    before: Release | None = None


class Unasked(NamedTuple):
    """Releases whose own code no test could ask about these kinds of drafter (none named: about any)."""

    kinds: tuple[str, ...] = ()
    since: Release | None = None
    before: Release | None = None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine: its formats, the preferred one first.

    `checked` is the release or commit against which they were checked, '' where there is none, `checked_by` by what:
    "own code" where a test of this project runs the engine's, "documentation only" where that, or source, was read;
    `checked_since`: so were all releases from that one on but `unasked`. `lookup_rule`: whose rule its n-grams follow.
    `length_setting`, `tree_settings`: what a chain's K and a dynamic tree's three numbers are called in it.
    """

    name: str
    title: str
    checked: str
    checked_by: CheckedBy
    formats: tuple[Format, ...]
    bugs: tuple[Bug, ...] = ()
    checked_since: Release | None = None
    unasked: tuple[Unasked, ...] = ()
    lookup_rule: LookupRule | None = None
    length_setting: str = ""
    tree_settings: str = ""

    @property
    def newest(self) -> Release:
        """The release that is meant where none is named."""
        return Release(10**6, 0, 0) if self.checked[:6] in ("", "commit") else parse_release(self.checked)

    def is_asked(self, release: Release, kind: str | None) -> bool:
        """Whether the release's own code is run on what is exported for such a drafter."""
        first = self.checked_since or self.newest
        return (
            self.checked_by == "own code"
            and first <= release <= self.newest
            and not any(
                is_within(release, u.since, u.before) and (not u.kinds or kind is None or kind in u.kinds)
                for u in self.unasked
            )
        )

    def formats_at(self, release: Release) -> tuple[Format, ...]:
        """What a release reads.

        Raises:
            InputError: treeopt knows nothing about that release.
        """
        found = tuple(f for f in self.formats if is_within(release, f.since, f.before))
        if not found:
            known = ", ".join(dict.fromkeys(range_in_words(f.since, f.before) for f in self.formats))
            raise InputError(f"{self.title} {'.'.join(map(str, release))} is not known", hint=f"known: {known}")
        return found

    def bugs_of(self, schedule: DraftSchedule, release: Release) -> tuple[Bug, ...]:
        """What is known to go wrong with these drafts in this release."""
        return tuple(b for b in self.bugs if is_within(release, b.since, b.before) and b.hits(schedule))
