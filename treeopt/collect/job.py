"""A collection as a job: what is collected, from which prompts, into which file, and the run that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.trace import PAST_END, Trace
from treeopt.collect.drafters import check_pair
from treeopt.collect.encoder import Encoder
from treeopt.collect.parts import Collection, JobPart, documents_in
from treeopt.collect.prompts import read_prompts
from treeopt.collect.record import EncodedPrompt, Recorder, TraceRows, to_npz
from treeopt.collect.settings import CollectSettings
from treeopt.errors import InputError
from treeopt.files.opening import file_sha256
from treeopt.files.writing import check_writable

FORMAT: Final = "treeopt.collect/1"
Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class PromptShard:
    """Which of `count` equal shares of the documents: those whose place modulo `count` is `index`."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> PromptShard:
        """From `I/N`.

        Raises:
            InputError: not two numbers, or I not below N.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise InputError(f"shard '{text}'", hint="write --shard I/N with I from 0 to N - 1, e.g. --shard 0/4")
        return cls(index=int(index), count=int(count))


@dataclass(frozen=True, kw_only=True)
class CollectJob:
    """What is collected from which prompts into which file.

    The parts lie in a folder beside the file until all are done. The folder says which job it belongs to, and only the
    same job goes on with it.
    """

    settings: CollectSettings
    prompts: Path
    out: Path
    shard: PromptShard = PromptShard()
    documents_per_part: int = 8

    def __post_init__(self) -> None:
        if self.documents_per_part < 1:
            raise InputError(f"{self.documents_per_part} documents per part", hint="give 1 or more")
        if self.out.suffix != ".npz":
            raise InputError(f"{self.out}: a trace is written as .npz", hint="end the name with .npz")
        check_writable(self.out, what="trace")

    @property
    def conditions(self) -> Conditions:
        """What the trace says about itself."""
        return self.settings.conditions(dataset=self.prompts.stem)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder.load(self.settings.target)

    @cached_property
    def parts(self) -> tuple[JobPart, ...]:
        """This shard's documents, in the order of the file.

        Raises:
            InputError: the prompts cannot be read (with file and line), or the target has no tokenizer.
        """
        mine = read_prompts(self.prompts)[self.shard.index :: self.shard.count]
        if not mine:
            raise InputError(f"{self.prompts}: shard {self.shard.index} has no documents", hint="make fewer shards")
        length = self.settings.max_new_tokens
        documents = [
            EncodedPrompt(doc_id=p.doc_id, tokens=self._encoder.encode(p, max_new_tokens=length)) for p in mine
        ]
        step = self.documents_per_part
        return tuple(
            JobPart(index=start // step, documents=tuple(documents[start : start + step]))
            for start in range(0, len(documents), step)
        )

    @property
    def documents(self) -> int:
        """How many documents this shard has."""
        return documents_in(self.parts)

    def start(self) -> Collection:
        """Read the prompts and make the folder, or find it as an earlier run of this job left it.

        Raises:
            InputError: the prompts are wrong, the drafter does not go with the target, or the folder cannot be written,
                belongs to another job, or is at work in another process.
        """
        check_pair(self.settings.drafter, self._encoder)
        return Collection.open(self.out, self.parts, self.identity, depth=self.settings.depth)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides what the rows are, by name."""
        draft = self.settings.drafter
        models = [self.settings.target, *([draft.argument] if draft.has_files else [])]
        return {
            "format": FORMAT,
            **asdict(self.settings),
            "rule": self.settings.acceptance_rule,
            "weights": {spec: _weights(spec) for spec in models},
            "prompts_sha256": file_sha256(self.prompts),
            "shard": f"{self.shard.index}/{self.shard.count}",
            "documents_per_part": self.documents_per_part,
        }


@dataclass(frozen=True, kw_only=True)
class Collected:
    """A trace that is written, as its command reports it."""

    FORMAT: ClassVar = "treeopt.collect/1"
    WRITTEN: ClassVar = ("trace", "documents", "positions", "depth", "top_guess_right", "conditions")

    path: Path
    rows: Trace
    job: CollectJob

    @property
    def trace(self) -> str:
        """Where it is."""
        return str(self.path)

    @property
    def documents(self) -> int:
        """How many texts it holds."""
        return self.rows.documents

    @property
    def positions(self) -> int:
        """T, how many drafts."""
        return len(self.rows)

    @property
    def depth(self) -> int:
        """D, the tokens that each guesses ahead."""
        return self.rows.depth

    @property
    def top_guess_right(self) -> list[float | None]:
        """The share by depth; None where every text had ended."""
        known = (self.rows.rank != PAST_END).sum(axis=0)
        right = (self.rows.rank == 0).sum(axis=0)
        return [float(r / k) if k else None for r, k in zip(right, known, strict=True)]

    @property
    def conditions(self) -> dict[str, Any]:
        """What the trace says about itself."""
        return self.job.conditions.known()


def run(job: CollectJob, collection: Collection, *, advance: Advance) -> None:
    """Collect the missing parts in this process, one after the other; `advance` is told of every document done.

    Raises:
        InputError: a model cannot be loaded, or a part cannot be written.
    """
    missing = collection.missing()
    advance(job.documents - documents_in(missing))
    if not missing:
        return
    recorder = Recorder.load(job.settings)
    for part in missing:
        collection.write(part, record_part(recorder, part, job.conditions, advance))


def record_part(recorder: Recorder, part: JobPart, conditions: Conditions, advance: Advance) -> bytes:
    """The NPZ file of a part."""

    def rows() -> Iterator[TraceRows]:
        for document in part.documents:
            yield recorder.record(document)
            advance(1)

    return to_npz(rows(), conditions)


def _weights(spec: str) -> list[list[str | int]]:
    """A model's files by name, size and time of change: enough to notice that a checkpoint was written anew."""
    path = Path(spec)
    files: Sequence[Path] = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
