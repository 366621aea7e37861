"""What is written is whole or not there, never over an input, and leaves nothing behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import treeopt
from treeopt.cost.hardware import load_hardware, save_hardware
from treeopt.errors import InputError
from treeopt.files.opening import OpenedFile, remembering_inputs
from treeopt.files.pending import finish, note_at
from treeopt.files.shipped import locate
from treeopt.files.writing import Output, check_all_writable, check_writable, write_atomically, write_files

ROOT = Path(treeopt.__file__).parent


def test_writing_replaces_the_whole_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, "new", what="plan")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(InputError, match="cannot write it: no space left"):
        write_atomically(path, "new", what="plan")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_writing_where_nobody_can(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory"):
        write_atomically(tmp_path / "no" / "plan.yaml", "x", what="plan")
    with pytest.raises(InputError, match="is a directory"):
        write_atomically(tmp_path, "x", what="plan")
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, device = tmp_path / "plan.yaml", Path(os.devnull)
    file.write_text("old")
    for right in (file, tmp_path / "new.yaml", device):
        check_writable(right, what="plan")
    for wrong, words in (
        (tmp_path / "no" / "plan.yaml", "no: no such file or directory"),
        (tmp_path, "is a directory"),
        (file / "plan.yaml", "cannot write it: not a directory"),
    ):
        with pytest.raises(InputError, match=words):
            check_writable(wrong, what="plan")
    assert os.listdir(tmp_path) == ["plan.yaml"]
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # root may write anything
    check_writable(device, what="plan")
    for wrong in (file, tmp_path / "new.yaml"):
        with pytest.raises(InputError, match="cannot write it: permission denied"):
            check_writable(wrong, what="plan")


def test_read_only_files_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(InputError, match="cannot write it: permission denied"):
        write_atomically(path, "new", what="plan")
    assert path.read_text() == "old"


def test_nothing_that_a_command_has_read_is_written_over(tmp_path: Path) -> None:
    source, link = tmp_path / "source", tmp_path / "link"
    source.write_text("mine")
    link.symlink_to(source)
    with remembering_inputs():
        OpenedFile(source)
        for path in (source, link):
            with pytest.raises(InputError, match="is an input of this command"):
                check_writable(path, what="plan")
            with pytest.raises(InputError, match="is an input of this command"):
                write_files(Output(tmp_path / "other", "x", "plan"), Output(path, "x", "plan"))
        write_atomically(source, "what the command keeps for itself", what="rows", own=True)
    assert sorted(os.listdir(tmp_path)) == ["link", "source"]
    write_atomically(source, "and another command", what="plan")


class Killed(BaseException):
    """Stands for a kill: nothing after it runs but what the operating system does."""


# The calls that change something on the disk, and how often one profile makes each: two files, and a note of each.
CHANGES = {"open": 4, "fdopen": 4, "fsync": 4, "fchmod": 2, "replace": 4}


@pytest.mark.parametrize(
    ("call", "number"), [(call, i) for call, times in CHANGES.items() for i in range(1, times + 1)]
)
def test_a_profile_and_its_curves_are_both_old_or_both_new(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call is the last that the process lives to make, a profile is there and its curves are its own."""
    old = load_hardware(locate("hardware", "h100-sxm-vllm-0.24").path)
    new = load_hardware(locate("hardware", "h200-sxm-vllm-0.24").path)
    path = tmp_path / "mine.yaml"
    save_hardware(path, old)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying(getattr(os, call), number))
        with pytest.raises(Killed):
            save_hardware(path, new)
    assert load_hardware(path).name in (old.name, new.name)  # its curves are checked by their hash
    save_hardware(path, new)
    assert load_hardware(path).name == new.name


def dying(real: Callable[..., object], number: int) -> Callable[..., object]:
    """The call, which is made `number - 1` times and then is the end."""
    left = iter(range(1, number))

    def call(*args: object, **options: object) -> object:
        if next(left, None) is None:
            raise Killed
        return real(*args, **options)

    return call


def test_a_set_of_files_is_not_begun_where_one_cannot_be_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "no" / "second"
    first.write_text("old")
    with pytest.raises(InputError, match="no such file or directory"):
        write_files(Output(first, "new", "result"), Output(second, "new", "steps"))
    assert first.read_text() == "old"
    assert os.listdir(tmp_path) == ["first"]


def set_of(folder: Path, word: str) -> list[Output]:
    return [Output(folder / name, f"{word} {name}", name) for name in ("result.yaml", "steps.csv", "x" * 240)]


def killed(folder: Path, number: int) -> bool:
    """Write the set in a process that is killed at its n-th call; False if it ended before."""
    process = os.fork()
    if process == 0:
        left = iter(range(1, number))
        for name in ("open", "fdopen", "fsync", "replace", "unlink", "fchmod"):
            setattr(os, name, killing(getattr(os, name), left))
        try:
            write_files(*set_of(folder, "new"))
        finally:
            os._exit(0)
    return os.waitpid(process, 0)[1] != 0


def killing(real: Callable[..., object], left: Iterator[int]) -> Callable[..., object]:
    def call(*args: object, **options: object) -> object:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    return call


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child at a chosen call")
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("before", ["old", ""])
def test_a_set_of_files_is_all_old_or_all_new_to_whoever_opens_one(first: int, before: str, tmp_path: Path) -> None:
    found = []
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        if before:
            write_files(*set_of(folder, before))
        if not killed(folder, number):
            break
        paths = [output.path for output in set_of(folder, "")]
        finish(paths[first])
        words = {path.read_text().split()[0] if path.exists() else "" for path in paths}
        assert len(words) == 1, (number, words)
        found += words
        write_files(*set_of(folder, "newer"))
        assert sorted(os.listdir(folder)) == sorted(path.name for path in paths), number
    assert found == sorted(found, reverse=before == "old")
    assert set(found) == {before, "new"}


def test_what_was_put_there_since_is_left_alone(tmp_path: Path) -> None:
    number, paths = 1, [output.path for output in set_of(tmp_path, "")]
    while killed(tmp_path, number) and not note_at(paths[0]).exists():
        number += 1
    paths[1].write_text("mine")
    assert OpenedFile(paths[1]).stream().read() == b"mine"
    assert paths[0].read_text() == "new result.yaml"
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)


def test_a_note_of_someone_else_moves_nothing(tmp_path: Path) -> None:
    path, secret = tmp_path / "plan.yaml", tmp_path / ".secret"
    path.write_text("plan")
    secret.write_text("secret")
    note_at(path).write_text(
        json.dumps({"process": 1, "files": [{"staged": str(secret), "place": str(tmp_path / "open"), "before": None}]})
    )
    assert OpenedFile(path).stream().read() == b"plan"
    assert secret.read_text() == "secret"


def test_two_results_are_two_files(tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    check_all_writable((path, "result"), (None, "steps"), (tmp_path / "steps.csv", "steps"))
    with pytest.raises(InputError, match="is given for two results"):
        check_all_writable((path, "result"), (tmp_path / "." / "out.yaml", "steps"))


WAITING = """
import sys, time
from pathlib import Path
from treeopt.files.writing import replacing
with replacing(Path(sys.argv[1]), what="plan") as file:
    file.write(b"new")
    print("staged", flush=True)
    time.sleep(60)
"""


def waiting(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WAITING, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "staged\n"
    return process


def test_a_terminated_command_leaves_nothing_and_a_killed_one_is_cleaned_up_after(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    with waiting(path) as process:
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == ["plan.yaml"]
    with waiting(path) as process:
        process.kill()
        process.wait(30)
    assert len(os.listdir(tmp_path)) == 2
    with waiting(path) as alive:
        write_atomically(path, "newer", what="plan")
        assert len(os.listdir(tmp_path)) == 2  # the dead one's is gone, what is being written stays
        alive.terminate()
    assert os.listdir(tmp_path) == ["plan.yaml"]
    assert path.read_text() == "newer"


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_standard_output_is_written_to_in_its_order(name: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from treeopt.files.writing import write_atomically\n"
        "print('before'); write_atomically(Path(sys.argv[1]), 'the plan\\n', what='plan'); print('after')"
    )
    command = [sys.executable, "-c", code, name]
    assert subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout == "before\nthe plan\nafter\n"
    with (tmp_path / "file").open("w") as file:  # sent to a file, it is not begun anew
        subprocess.run(command, stdout=file, cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_text() == "before\nthe plan\nafter\n"
    assert os.listdir(tmp_path) == ["file"]


# Where files are changed, and why there too.
WRITERS = {
    "treeopt.files.writing": "the one writer",
    "treeopt.files.pending": "the other half of the one writer",
    "treeopt.files.npz": "an archive in memory",
    "treeopt.files.opening": "a pipe's bytes are kept in a temporary file",
    "treeopt.cli": "a stream that the shell closed",
    "treeopt.record.shards": "inside a serving engine, which it must never stop",
    "treeopt.collect.parts": "the folder of a collection, which a lock holds",
    "treeopt.check.live": "scrapes in a folder that goes with the command",
    "treeopt.profile.messages": "where processes meet, in a folder that goes with the command",
}
CHANGING = {"fdopen", "write_text", "write_bytes", "rename", "unlink", "rmtree", "mkdir", "touch", "savez", "memmap"}
CHANGING |= {"mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory", "savez_compressed"}


def changes(tree: ast.Module) -> set[str]:
    """Calls that change files: by name, where they are of `os`, or open one to write."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            call = node.func
            name = call.id if isinstance(call, ast.Name) else call.attr if isinstance(call, ast.Attribute) else ""
            of_os = isinstance(call, ast.Attribute) and is_os(call) and name in ("replace", "remove")
            if name in CHANGING or of_os or (name == "open" and opens_to_write(node)):
                found.add(name)
    return found


def opens_to_write(call: ast.Call) -> bool:
    given = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    return any(
        isinstance(word, str) and word and set(word) <= set("wxab+t") and set(word) & set("wxa") for word in given
    )


def is_os(call: ast.Attribute) -> bool:
    return isinstance(call.value, ast.Name) and call.value.id in ("os", "shutil")


def test_no_command_changes_files_otherwise() -> None:
    found = {}
    for folder, _, files in os.walk(ROOT, followlinks=True):
        for path in (Path(folder, file) for file in files if file.endswith(".py")):
            module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
            if module not in WRITERS and (names := changes(ast.parse(path.read_text()))):
                found[module] = names
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Path('x').open('wb')", {"open"}),
        ("open(path, mode='a')", {"open"}),
        ("path.open('rb')", set()),
        ("path.write_text(text)", {"write_text"}),
        ("os.replace(a, b)", {"replace"}),
        ("text.replace('a', 'b')", set()),
        ("np.savez(path, rank=rank)", {"savez"}),
    ],
)
def test_a_change_of_files_is_found(text: str, names: set[str]) -> None:
    assert changes(ast.parse(text)) == names


def test_an_input_that_was_not_read_yet_is_none_to_write_over(tmp_path: Path) -> None:
    plan, ranks = tmp_path / "plan.yaml", tmp_path / "ranks.yaml"
    plan.write_text("format: treeopt.plan/2\n")  # fails before the ranks are read
    ranks.write_text("ranks")
    command = [sys.executable, "-m", "treeopt", "report", str(plan), "--ranks", str(ranks), "--out", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, ranks.read_text()) == (1, "ranks")
    assert "ranks.yaml is an input of this command" in done.stderr
