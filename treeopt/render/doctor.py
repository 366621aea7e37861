"""What works here, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.doctor import EnginePackage, ExtraState, Health, SeenGpu


def report(found: Health, width: int) -> RenderableType:
    """Extras, the GPU, and the engines that are installed."""
    head = Text(
        f"treeopt {found.treeopt}, Python {found.python}: search, show, explain, compare, replay, check, export, "
    )
    head.append("import, ranks import and profile fit need nothing more")
    return Group(head, Text(), _extras(found.extras), Text(), _gpu(found.gpu), Text(), *_engines(found.engines))


def _extras(extras: tuple[ExtraState, ...]) -> Table:
    table = _table("extra", "here", "needed by", "to get it")
    for extra in extras:
        lacks = Text("no: " + ", ".join(extra.missing), style="yellow") if extra.missing else Text("yes", style="green")
        table.add_row(extra.name, lacks, extra.needed_by, extra.install if extra.missing else "")
    return table


def _gpu(gpu: SeenGpu) -> Text:
    if gpu.name:
        return Text("GPU: ").append(gpu.name, style="green")
    text = Text("GPU: ").append("none", style="yellow").append(f" ({gpu.why_not}). Answers need none; ")
    return text.append("`treeopt profile` times the processor instead")


def _engines(engines: tuple[EnginePackage, ...]) -> list[RenderableType]:
    if not engines:
        return [Text("Engines: none is installed here. Answers need none; name yours with --engine NAME==VERSION.")]
    table = _table("engine", "here", "checked against", "")
    for engine in engines:
        wanted = f"--engine {engine.name}=={engine.version}"
        table.add_row(engine.name, engine.version, engine.checked or "-", wanted if engine.is_known else "not known")
    return [table]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
