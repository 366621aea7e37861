"""One opening of an input: pipes, standard input and files give the same bytes however often they are looked at."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance.importers import read_evidence
from treeopt.errors import InputError
from treeopt.files import opening
from treeopt.files.documents import read_text
from treeopt.files.opening import OpenedFile

LOG = (
    "SpecDecoding metrics: Mean acceptance length: 2.37, Accepted: 137 tokens, Drafted: 300 tokens, "
    "Per-position acceptance rate: 0.650, 0.440, 0.280, Avg Draft acceptance rate: 45.7%\n"
)


def through_fifo(path: Path, data: bytes) -> threading.Thread:
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    return writer


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 5000), max_size=4))
def test_every_look_sees_the_same_bytes(tmp_path_factory, data: bytes, cuts: list[int]) -> None:
    path = tmp_path_factory.mktemp("look") / "file"
    path.write_bytes(data)
    opened = OpenedFile(path)
    streams = [opened.stream() for _ in cuts]
    heads = [stream.read(cut) for stream, cut in zip(streams, cuts, strict=True)]  # interleaved: no shared position
    assert heads == [data[:cut] for cut in cuts]
    assert [stream.read() for stream in streams] == [data[cut:] for cut in cuts]
    assert (opened.size, opened.sha256()) == (len(data), hashlib.sha256(data).hexdigest())
    assert b"".join(opened.chunks()) == data


def test_a_file_that_grows_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    opened = OpenedFile(path)
    with path.open("ab") as file:
        file.write(b" and after")
    assert opened.stream().read() == b"before"


def test_a_pipe_is_kept(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    writer = through_fifo(tmp_path / "fifo", data)
    opened = OpenedFile(tmp_path / "fifo")
    writer.join()
    assert opened.stream().read() == opened.stream().read() == data


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "FIFO_WAIT_S", 0.05)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match=r"fifo: cannot read it: nothing was written to the pipe for 0\.05 s"):
        read_text(tmp_path / "fifo", what="plan")


def test_a_pipe_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_PIPED_BYTES", 1 << 20)
    with pytest.raises(InputError, match="brings more than"):
        read_text(Path("/dev/zero"), what="plan")


@pytest.mark.parametrize("reads_some", [True, False])
def test_a_long_log_through_a_pipe_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_some: bool
) -> None:
    text = (LOG * 12_000).encode()  # 2.2 MB: 100 drafts to a line
    if reads_some:
        writer = through_fifo(tmp_path / "fifo", text)
        found = read_evidence([tmp_path / "fifo"])
        writer.join()
    else:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        found = read_evidence([Path("-")])
    assert found.sources[0].tally.drafts == 1_200_000
    assert found.profiles[0].sha256 == hashlib.sha256(text).hexdigest()


def test_the_file_behind_standard_input_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`treeopt ... - --out FILE < FILE` may not write over what it read."""
    log = tmp_path / "log.txt"
    log.write_text(LOG)
    with log.open("rb") as raw, opening.remembering_inputs():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
        (profile,) = read_evidence([Path("-")]).profiles
        assert opening.was_read(log)
        assert profile.name == "imported"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        read_text(tmp_path, what="plan")


# What is no input: the machine's own description, and files that a command keeps for itself while it runs.
READERS = {"treeopt.profile.device", "treeopt.collect.parts", "treeopt.record.shards", "treeopt.cli"}


def test_no_command_opens_an_input_otherwise() -> None:
    root = Path(opening.__file__).parents[1]
    found = []
    for path in sorted(p for p in root.rglob("*.py") if "files" not in p.relative_to(root).parts[:1]):
        module = ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())) if module not in READERS else ():
            if isinstance(node, ast.Call) and opens(node):
                found.append(f"{module}:{node.lineno}")
    assert found == []


def opens(call: ast.Call) -> bool:
    """Whether a call is `open(...)`, `path.open("r...")`, `read_text()` or `read_bytes()`."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
    return (name == "open" and mode in ("r", "rb", "rt")) or (name in ("read_text", "read_bytes") and not call.args)
