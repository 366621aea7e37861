"""A collection as a job: parts that are written as they are done, resumed where it stopped, joined at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from treeopt.acceptance.profile import Conditions
from treeopt.collect.drafters import check_pair
from treeopt.collect.join import join_npz
from treeopt.collect.models import Encoder
from treeopt.collect.prompts import read_prompts
from treeopt.collect.record import Document, Recorder, to_npz
from treeopt.collect.settings import Settings
from treeopt.errors import InputError
from treeopt.files.documents import os_error, read_text
from treeopt.files.opening import file_sha256
from treeopt.files.writing import check_writable, write_atomically

FORMAT: Final = "treeopt.collect/1"
Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which of `count` equal shares of the documents: those whose place modulo `count` is `index`."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `I/N`.

        Raises:
            InputError: not two numbers, or I not below N.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise InputError(f"shard '{text}'", hint="write --shard I/N with I from 0 to N - 1, e.g. --shard 0/4")
        return cls(index=int(index), count=int(count))


@dataclass(frozen=True, kw_only=True)
class Part:
    """Documents whose rows are written together; a run that is killed loses at most the parts it is at."""

    index: int
    documents: tuple[Document, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is collected from which prompts into which file.

    The parts lie in a folder beside the file until all are done. The folder says which job it belongs to, and only the
    same job goes on with it.
    """

    settings: Settings
    prompts: Path
    out: Path
    shard: Shard = Shard()
    documents_per_part: int = 8

    def __post_init__(self) -> None:
        if self.documents_per_part < 1:
            raise InputError(f"{self.documents_per_part} documents per part", hint="give 1 or more")
        if self.out.suffix != ".npz":
            raise InputError(f"{self.out}: a trace is written as .npz", hint="end the name with .npz")
        check_writable(self.out, what="trace")

    @property
    def folder(self) -> Path:
        """Where the parts are until all are done."""
        return self.out.with_name(f"{self.out.name}.parts")

    @property
    def conditions(self) -> Conditions:
        """What the trace says about itself."""
        return self.settings.conditions(dataset=self.prompts.stem)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder.load(self.settings.target)

    def part_path(self, part: Part) -> Path:
        """Where a part's rows are written."""
        return self.folder / f"part-{part.index:06d}.npz"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """This shard's documents, in the order of the file.

        Raises:
            InputError: the prompts cannot be read (with file and line), or the target has no tokenizer.
        """
        mine = read_prompts(self.prompts)[self.shard.index :: self.shard.count]
        if not mine:
            raise InputError(f"{self.prompts}: shard {self.shard.index} has no documents", hint="make fewer shards")
        length = self.settings.max_new_tokens
        documents = [Document(doc_id=p.doc_id, tokens=self._encoder.encode(p, max_new_tokens=length)) for p in mine]
        step = self.documents_per_part
        return tuple(
            Part(index=start // step, documents=tuple(documents[start : start + step]))
            for start in range(0, len(documents), step)
        )

    @property
    def documents(self) -> int:
        """How many documents this shard has."""
        return documents_in(self.parts)

    def start(self) -> None:
        """Read the prompts and make the folder, or find it as an earlier run of this job left it.

        Raises:
            InputError: the prompts are wrong, the drafter does not go with the target, or the folder cannot be written
                or belongs to another job.
        """
        check_pair(self.settings.drafter, self._encoder)
        _ = self.parts
        manifest = self.folder / "job.json"
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise os_error(error, self.folder, what="trace", verb="write") from error
        if manifest.exists():
            self._check_same(manifest)
        elif any(self.folder.iterdir()):
            raise InputError(f"{self.folder}: holds something else", hint="write the trace under another name")
        else:
            write_atomically(manifest, json.dumps(self._identity(), indent=2) + "\n", what="trace")

    def missing(self) -> list[Part]:
        """Parts that no run has written yet."""
        return [part for part in self.parts if not self.part_path(part).exists()]

    def finish(self) -> None:
        """Join the parts into the trace and remove them.

        Raises:
            InputError: the trace cannot be written; the parts stay.
        """
        join_npz([self.part_path(part) for part in self.parts], self.out)
        shutil.rmtree(self.folder)

    def _check_same(self, manifest: Path) -> None:
        ours = json.loads(json.dumps(self._identity()))
        try:
            theirs = json.loads(read_text(manifest, what="trace"))
        except ValueError:
            theirs = {}
        differing = [key for key, value in ours.items() if not isinstance(theirs, dict) or theirs.get(key) != value]
        if differing:
            raise InputError(
                f"{self.folder}: an unfinished collection with another {' and '.join(differing)}",
                hint="go on with the options it was begun with, or remove the folder to begin anew",
            )

    def _models(self) -> list[str]:
        draft = self.settings.drafter
        return [self.settings.target, *([draft.argument] if draft.kind in ("model", "medusa") else [])]

    def _identity(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self.settings),
            "rule": self.settings.acceptance_rule,
            "weights": {spec: _weights(spec) for spec in self._models()},
            "prompts_sha256": file_sha256(self.prompts),
            "shard": f"{self.shard.index}/{self.shard.count}",
            "documents_per_part": self.documents_per_part,
        }


def run(job: Job, *, advance: Advance) -> None:
    """Collect the missing parts in this process, one after the other; `advance` is told of every document done.

    Raises:
        InputError: a model cannot be loaded, or a part cannot be written.
    """
    missing = job.missing()
    advance(job.documents - documents_in(missing))
    if not missing:
        return
    recorder = Recorder.load(job.settings)
    for part in missing:
        write_atomically(job.part_path(part), record_part(recorder, part, job.conditions, advance), what="trace")


def record_part(recorder: Recorder, part: Part, conditions: Conditions, advance: Advance) -> bytes:
    """The NPZ file of a part."""

    def rows() -> Iterator[Any]:
        for document in part.documents:
            yield recorder.record(document)
            advance(1)

    return to_npz(rows(), conditions)


def documents_in(parts: Sequence[Part]) -> int:
    """How many documents the parts hold."""
    return sum(len(part.documents) for part in parts)


def _weights(spec: str) -> list[tuple[str, int, int]]:
    """A model's files by name, size and time of change: enough to notice that a checkpoint was written anew."""
    path = Path(spec)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
