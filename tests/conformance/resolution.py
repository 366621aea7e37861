"""What pip installs of an engine alone and beside treeopt, in minutes: `python tests/conformance/resolution.py FOLDER`.

pip takes an index's wheels whole where the index does not hand out their metadata: gigabytes for every question, and
there are 132. So each release is asked for once. uv, which is another resolver, answers every question on the index.
pip then fetches the metadata of all releases that were in an answer, and resolves every question itself over these
releases alone, from stub wheels that hold their metadata. A release in none of uv's answers is not seen by pip.

Needs uv and a pip of 23.1 or newer; FOLDER keeps what was fetched, so that an interrupted run goes on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
ENGINES: Final = ("vllm==0.33.0", "vllm==0.12.0", "sglang==0.5.23", "sglang==0.5.6")  # newest, and a year before
PYTHONS: Final = ("3.11", "3.12", "3.13")
GLIBC: Final = 39
FETCHED_AT_ONCE: Final = 4
EVERY: Final = "all"
PIPS: Final = ("", EVERY)  # what pip is asked too: it takes half a minute for each
PLATFORMS: Final = (
    *(f"manylinux_2_{n}_x86_64" for n in range(GLIBC, 4, -1)),
    *("manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"),
)
TIMEOUT_S: Final = 1800
# What a machine's own settings would add to the answers.
OWN: Final = ("PIP_FIND_LINKS", "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONSTRAINT")

Pins = dict[str, str]


def extras() -> list[str]:
    """All that users install; `dev` and `docs` are for a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - {"dev", "docs"})


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel(folder: Path) -> Path:
    """treeopt as a wheel."""
    words = ("wheel", "-q", "--no-deps", "--no-build-isolation", str(ROOT), "-w", str(folder))
    run(sys.executable, "-m", "pip", *words)
    (found,) = folder.glob("treeopt-*.whl")
    return found


def run(*words: str) -> str:
    """Its standard output.

    Raises:
        RuntimeError: it failed, with the end of what it said.
    """
    environment = {k: v for k, v in os.environ.items() if k not in OWN} | {"PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-1500:])
    return done.stdout


def asked_of_uv(python: str, *requirements: str, kept: bool = False) -> Pins:
    """What uv would install, by the index; with `kept` by what it has in its cache, where that is enough.

    Raises:
        RuntimeError: there is no way, with uv's reasons.
    """
    words = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:", "--no-config"]
    words += ["--python-version", python, "--python-platform", f"x86_64-manylinux_2_{GLIBC}", "-"]
    for more in (["--offline"], []) if kept else ([],):
        done = subprocess.run(
            [*words, *more],
            input="\n".join(requirements),
            env={k: v for k, v in os.environ.items() if k not in OWN},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if not done.returncode:
            lines = [line.partition("==") for line in done.stdout.split() if "==" in line]
            return {normal(name): version for name, _, version in lines}
    raise RuntimeError(done.stderr[-1500:])


@dataclass
class Releases:
    """Metadata of releases, fetched once, and the stub wheels that pip resolves over."""

    folder: Path
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "metadata").mkdir(parents=True, exist_ok=True)
        (self.folder / "stubs").mkdir(exist_ok=True)
        for path in (self.folder / "metadata").glob("*.json"):
            for item in json.loads(path.read_text()):
                self._add(item)

    def fetch(self, python: str, pins: Pins) -> None:
        """What is not known yet, by pip from the index, in its lazy way: the ends of wheels only."""
        new = sorted(f"{name}=={version}" for name, version in pins.items() if f"{name}=={version}" not in self.known)
        parts = [new[i::FETCHED_AT_ONCE] for i in range(FETCHED_AT_ONCE)]
        with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
            for items in pool.map(lambda part: self._fetched(python, part), [part for part in parts if part]):
                for item in items:
                    self._add(item)

    def _fetched(self, python: str, wanted: list[str]) -> list[dict[str, Any]]:
        path = self.folder / "metadata" / f"{normal(wanted[0])}-{len(wanted)}-{python}.json"
        words = ("--use-feature=fast-deps", "--no-deps", *wanted)
        items = [item["metadata"] for item in report(self.folder, python, *words)["install"]]
        path.write_text(json.dumps(items))
        return items

    def _add(self, metadata: dict[str, Any]) -> None:
        name, version = normal(metadata["name"]), metadata["version"]
        self.known[f"{name}=={version}"] = metadata
        plain = name.replace("-", "_")
        path = self.folder / "stubs" / f"{plain}-{version}-py3-none-any.whl"
        lines = ["Metadata-Version: 2.1", f"Name: {metadata['name']}", f"Version: {version}"]
        lines += [f"Requires-Python: {metadata['requires_python']}"] if "requires_python" in metadata else []
        lines += [f"Provides-Extra: {extra}" for extra in metadata.get("provides_extra", ())]
        lines += [f"Requires-Dist: {needed}" for needed in metadata.get("requires_dist", ())]
        with zipfile.ZipFile(path, "w") as made:
            info = f"{plain}-{version}.dist-info"
            made.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
            made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            made.writestr(f"{info}/RECORD", "")

    def asked_of_pip(self, python: str, *requirements: str) -> Pins:
        """What pip would install, over the releases that are known."""
        links = ("--no-index", "--find-links", str(self.folder / "stubs"))
        found = report(self.folder, python, *links, *requirements)["install"]
        return {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in found}


def report(folder: Path, python: str, *words: str) -> dict[str, Any]:
    """pip's account of what it would install from wheels on Linux."""
    where = ("--python-version", python, *(word for name in PLATFORMS for word in ("--platform", name)))
    how = ("--dry-run", "--ignore-installed", "-q", "--only-binary", ":all:", "--target", str(folder), "--report", "-")
    found: dict[str, Any] = json.loads(run(sys.executable, "-m", "pip", "install", *how, *where, *words))
    return found


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One engine and Python: what it installs alone, and for each extra what is another version beside treeopt."""

    engine: str
    python: str
    alone: Pins
    changed: dict[str, list[str]]
    by_uv: dict[str, list[str]]
    why_not: str = ""


def differences(alone: Pins, together: Pins) -> list[str]:
    return [
        f"{name} {version} -> {together.get(name)}" for name, version in alone.items() if together.get(name) != version
    ]


def together(ours: Path) -> dict[str, str]:
    """The requirement for none, each and all of the extras."""
    named = {"": "", EVERY: ",".join(extras()), **{extra: extra for extra in extras()}}
    return {name: f"treeopt{f'[{words}]' if words else ''} @ {ours.as_uri()}" for name, words in named.items()}


def ask_uv(engine: str, python: str, ours: Path) -> dict[str, Pins]:
    """uv's answers to all questions about one engine and Python; the index is asked for the first two."""
    questions = together(ours)
    answers = {"alone": asked_of_uv(python, engine), EVERY: asked_of_uv(python, engine, questions[EVERY])}
    for extra, requirement in questions.items():
        answers[extra] = asked_of_uv(python, engine, requirement, kept=True)
    return answers


def settled(engine: str, python: str, ours: Path, releases: Releases) -> Answer:
    """Both resolvers' answers; `why_not` where the engine itself cannot be installed from wheels."""
    try:
        uv = ask_uv(engine, python, ours)
    except RuntimeError as error:
        return Answer(engine=engine, python=python, alone={}, changed={}, by_uv={}, why_not=str(error).strip()[-300:])
    for pins in (
        *uv.values(),
        *(asked_of_uv(python, requirement, kept=True) for requirement in together(ours).values()),
    ):
        releases.fetch(python, {name: version for name, version in pins.items() if name != "treeopt"})
    alone = releases.asked_of_pip(python, engine)
    changed = {
        extra: differences(alone, releases.asked_of_pip(python, engine, requirement))
        for extra, requirement in together(ours).items()
        if extra in PIPS
    }
    by_uv = {extra: differences(uv["alone"], uv[extra]) for extra in together(ours)}
    return Answer(engine=engine, python=python, alone=alone, changed=changed, by_uv=by_uv)


def row(answer: Answer) -> str:
    head = f"| {answer.engine} | {answer.python} |"
    if answer.why_not:
        return f"{head} not installable from wheels alone: {' '.join(answer.why_not.split())[:160]} | | |"
    said = [
        ("; ".join(f"[{extra}] {', '.join(found)}" for extra, found in by.items() if found) or "none")
        for by in (answer.changed, answer.by_uv)
    ]
    return f"{head} {len(answer.alone)} | {said[0]} | {said[1]} |"


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    engines = [
        engine for engine in ENGINES if not sys.argv[2:] or any(engine.startswith(word) for word in sys.argv[2:])
    ]
    (folder / "wheel").mkdir(parents=True, exist_ok=True)
    ours, releases = wheel(folder / "wheel"), Releases(folder)
    print("| engine | Python | packages alone | changed beside treeopt, and with all extras | each extra, by uv |")
    print("|---|---|---|---|---|")
    for engine in engines:
        for python in PYTHONS:
            print(row(settled(engine, python, ours, releases)), flush=True)


if __name__ == "__main__":
    main()
