"""`treeopt ranks`: acceptance evidence, imported, shown and merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treeopt.cli.collect import collect
from treeopt.cli.options import Drafted, DraftTokens, EvidenceKind, Json, Out
from treeopt.cli.record import HOW, record

if TYPE_CHECKING:
    from treeopt.acceptance.importers import Imported
    from treeopt.acceptance.profile import RankProfile
    from treeopt.draft_family import Draft

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Rank profiles: collect, import, show, merge.")


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files of one kind, - for standard input; two scrapes are subtracted."),
    ],
    kind: EvidenceKind = None,
    draft_tokens: DraftTokens = None,
    drafted: Drafted = None,
    source: Annotated[
        str | None, typer.Option(help="Which source to write, where a file holds several.", show_default=False)
    ] = None,
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


@app.command("list")
def list_(
    target: Annotated[str | None, typer.Option(help="Only pairs whose target's name holds this.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Only pairs with this kind of drafter.")] = None,
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


@app.command("show")
def show(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped name, a profile or a trace.")],
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


@app.command("merge")
def merge(
    profiles: Annotated[list[str], typer.Argument(metavar="PROFILE...", help="Profiles of the same thing.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the merged profile here.")],
    name: Annotated[str, typer.Option(help="Its name.")] = "merged",
    force: Annotated[bool, typer.Option("--force", help="Merge although conditions differ.")] = False,
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


app.command("collect")(collect)
app.command(
    "record", help="Show how to record ranks inside a serving engine.", epilog="\b\n" + HOW.replace("\n\n", "\n\n\b\n")
)(record)


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
