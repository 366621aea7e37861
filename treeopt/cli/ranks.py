"""`treeopt ranks`: acceptance evidence, imported, shown and merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treeopt.cli.command import Argument, CliOption, Commands, LazyCommand
from treeopt.cli.options import Drafted, DraftTokens, EvidenceKind, Json, Out

if TYPE_CHECKING:
    from treeopt.acceptance.importers import Imported
    from treeopt.acceptance.profile import RankProfile
    from treeopt.draft_family import Draft


def import_(
    files: Annotated[
        list[Path],
        Argument(metavar="FILE...", help="Files of one kind, - for standard input; two scrapes are subtracted."),
    ],
    kind: EvidenceKind = None,
    draft_tokens: DraftTokens = None,
    drafted: Drafted = None,
    source: Annotated[str | None, CliOption(help="Which source to write, where a file holds several.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Turn an engine's metrics, logs or tables into a rank profile, and say what it supports."""
    from treeopt.acceptance.importers import read_evidence
    from treeopt.cli import console
    from treeopt.files.typed import yaml_text
    from treeopt.files.writing import write_atomically
    from treeopt.render.ranks import imported_report

    with console.working("reading"):
        imported = read_evidence(files, kind, draft_tokens, drafted=_drafted(drafted))
    if out is not None:
        chosen = _chosen(imported, source)
        write_atomically(out, yaml_text(chosen), what="rank profile")
    console.report(imported, json, imported_report)
    console.notes(imported.warnings)
    console.wrote(out)


def list_(
    target: Annotated[str | None, CliOption(help="Only pairs whose target's name holds this.")] = None,
    drafter: Annotated[str | None, CliOption(help="Only pairs with this kind of drafter.")] = None,
    json: Json = False,
) -> None:
    """List the published profiles of real pairs that --ranks takes by name."""
    from treeopt.acceptance.published import PublishedProfiles, published_profiles
    from treeopt.cli import console
    from treeopt.render.ranks import published_report

    listed = PublishedProfiles(found=tuple(published_profiles(target=target, drafter=drafter)))
    console.report(listed, json, published_report)
    if not json and not listed.found:
        console.notes(["no published pair is like that: `treeopt ranks list` alone shows all"])


def show(
    profile: Annotated[str, Argument(metavar="PROFILE", help="A shipped name, a profile or a trace.")],
    json: Json = False,
) -> None:
    """Show what was measured: the evidence, its conditions, the rates by depth and rank."""
    from treeopt.acceptance.loading import load_profile
    from treeopt.cli import console
    from treeopt.files.shipped import locate
    from treeopt.render.ranks import rank_report

    with console.working("reading"):
        loaded = load_profile(locate("ranks", profile).path)
    console.report(loaded, json, rank_report)


def merge(
    profiles: Annotated[list[str], Argument(metavar="PROFILE...", help="Profiles of the same thing.")],
    out: Annotated[Path, CliOption("--out", "-o", help="Write the merged profile here.")],
    name: Annotated[str, CliOption(help="Its name.")] = "merged",
    force: Annotated[bool, CliOption("--force", help="Merge although conditions differ.")] = False,
) -> None:
    """Add the counts of profiles that were measured under the same conditions."""
    from treeopt.acceptance.loading import load_profile
    from treeopt.acceptance.merge import merge as run
    from treeopt.cli import console
    from treeopt.files.shipped import locate
    from treeopt.files.typed import yaml_text
    from treeopt.files.writing import write_atomically
    from treeopt.render.ranks import rank_report

    with console.working("reading"):
        merged = run([load_profile(locate("ranks", p).path) for p in profiles], name=name, force=force)
    write_atomically(out, yaml_text(merged), what="rank profile")
    console.report(merged, False, rank_report)
    if merged.kind == "paths" and merged.documents:
        console.notes(
            ["counts keep no documents: to keep intervals and draft starts, put traces into one folder instead"]
        )
    console.wrote(out)


group = Commands(
    "ranks",
    {
        "import": LazyCommand("treeopt.cli.ranks:import_", "An engine's metrics, logs or tables to a rank profile."),
        "list": LazyCommand("treeopt.cli.ranks:list_", "The published profiles that --ranks takes by name."),
        "show": LazyCommand(
            "treeopt.cli.ranks:show", "What was measured: evidence, conditions, rates by depth and rank."
        ),
        "merge": LazyCommand("treeopt.cli.ranks:merge", "Counts of profiles of the same thing, added."),
        "collect": LazyCommand("treeopt.cli.collect:collect", "Run a target and a drafter and record a trace."),
        "watch": LazyCommand("treeopt.cli.watch:watch", "A running server's acceptance, until it is decided."),
        "record": LazyCommand("treeopt.cli.record:command_", "How to record ranks inside a serving engine."),
    },
    help="Rank profiles: collect, import, show, merge.",
)


def _drafted(text: str | None) -> Draft | None:
    from treeopt.engines.importing import parse_spec
    from treeopt.errors import InputError

    spec = None if text is None else parse_spec(text)
    if text is None or spec is not None:
        return None if spec is None else spec.at(1)
    raise InputError(f"'{text}' is no draft", hint="write chain:K, or SGLang's numbers as sglang:STEPS,TOPK,TOKENS")


def _chosen(imported: Imported, name: str | None) -> RankProfile:
    from treeopt.errors import InputError, UnknownNameError

    names = [profile.name for profile in imported.profiles]
    if not names:
        raise InputError("nothing in the file can be planned from", hint="see what it holds: run without --out")
    if name is None and len(names) > 1:
        raise InputError(f"the file holds {len(names)} sources: {', '.join(names)}", hint="choose one with --source")
    if name is not None and name not in names:
        raise UnknownNameError("source", name, names)
    return imported.profiles[0 if name is None else names.index(name)]
