"""All engines by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from treeopt.acceptance.prompt_lookup import EARLIEST_RULES, KNOWN_RULES, parse_lookup
from treeopt.engines.format import USUAL_DRAFTERS, Engine, Format, Setup
from treeopt.engines.growmap import SEQUOIA
from treeopt.engines.llamacpp import LLAMACPP
from treeopt.engines.lmdeploy import LMDEPLOY
from treeopt.engines.mlc import MLC
from treeopt.engines.openvino import OPENVINO
from treeopt.engines.paths import EAGLE1, HYDRA, MEDUSA, PATHS
from treeopt.engines.release import Release, parse_release, parse_wanted
from treeopt.engines.sglang import SGLANG
from treeopt.engines.speculators import SPECULATORS
from treeopt.engines.tgi import TGI
from treeopt.engines.transformers import TRANSFORMERS
from treeopt.engines.trtllm import TENSORRT_LLM
from treeopt.engines.vllm import VLLM
from treeopt.errors import InputError, UnknownNameError

ENGINES: Final = (
    *(VLLM, SGLANG, TENSORRT_LLM, OPENVINO, MLC, LLAMACPP, TRANSFORMERS, TGI, LMDEPLOY, SPECULATORS),
    *(PATHS, MEDUSA, EAGLE1, HYDRA, SEQUOIA),  # a list without more says no more than that
)


class EngineAt(NamedTuple):
    """An engine at a release, with what that one reads."""

    engine: Engine
    version: str
    release: Release
    formats: tuple[Format, ...]

    @property
    def words(self) -> str:
        """The engine and its release, as messages name them."""
        return " ".join(filter(None, (self.engine.title, self.version)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of drafter that the release runs in one format or another; none where all are alike to it."""
        return tuple(dict.fromkeys(kind for f in self.formats for kind in f.drafters.words))

    def formats_for(self, setup: Setup) -> tuple[Format, ...]:
        """The formats in which the release runs a drafter.

        Raises:
            InputError: there is none, with what it runs.
        """
        setup = replace(setup, release=self.release)
        refusals = [form.refusal(setup) for form in self.formats]
        found = tuple(f for f, refusal in zip(self.formats, refusals, strict=True) if refusal is None)
        if found:
            return found
        unknown = [isinstance(refusal, UnknownNameError) for refusal in refusals]
        if not all(unknown):
            raise next(r for r, is_unknown in zip(refusals, unknown, strict=True) if r is not None and not is_unknown)
        words = [w.text for f in self.formats for w in f.drafters.words.values() if w.text]
        raise InputError(
            f"{self.words} runs no {setup.method or setup.kind} drafter",
            hint=f"it runs {', '.join(dict.fromkeys(words) if setup.method else self.kinds)}",
        )

    def foreign_lookup(self, drafter: str, recorded: str | None) -> str | None:
        """A sentence where n-gram ranks follow another rule than the engine's drafts; None where they do not.

        Args:
            drafter: the kind that the engine runs.
            recorded: the drafter that the ranks are of, in the words of whoever counted.
        """
        rule, title = self.engine.lookup_rule, self.engine.title
        if drafter.partition(":")[0] != "ngram" or rule is None:
            return None
        lookup = parse_lookup(recorded) if recorded is not None and recorded.startswith("ngram:") else None
        if lookup is not None and (lookup.rule == rule or {lookup.rule, rule} <= {*EARLIEST_RULES}):
            return None
        ours = "do not say by whose rule n-grams were looked up" if lookup is None else f"follow {lookup.rule}'s rule"
        way = f"collect with ngram:{rule}"
        if rule not in KNOWN_RULES:
            way = f"there is documentation only of it, so count in {title} itself, and import that"
        return f"the ranks {ours}, {title} has its own and may accept much less: {way}"

    @property
    def usual_drafter(self) -> str:
        """What its step is priced with where nothing is said: the first of the usual ones that it runs, or of all."""
        usual = (kind for kind in USUAL_DRAFTERS if not self.kinds or kind in self.kinds)
        return next(usual, self.kinds[0] if self.kinds else USUAL_DRAFTERS[0])


def find_engine(text: str) -> EngineAt:
    """The engine that `NAME` or `NAME==VERSION` means, by its name or its title; without a version the newest one.

    Raises:
        UnknownNameError: no such engine; the hint lists them.
        InputError: not a version, or one that treeopt knows nothing about.
    """
    name, version = parse_wanted(text)
    engine = next((e for e in ENGINES if _letters(name) in (e.name, _letters(e.title))), None)
    if engine is None:
        raise UnknownNameError("engine", name, [e.name for e in ENGINES])
    release = engine.newest if version is None else parse_release(version)
    return EngineAt(engine, version or engine.checked, release, engine.formats_at(release))


def _letters(name: str) -> str:
    """A name without what people write differently: `tensorrt-llm`, `tensorrt_llm`, `TensorRT-LLM`."""
    return "".join(filter(str.isalnum, name.lower()))
