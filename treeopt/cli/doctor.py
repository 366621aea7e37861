"""`treeopt doctor`: what works here."""

from __future__ import annotations

from treeopt.cli.options import Json


def doctor(json: Json = False) -> None:
    """List what is installed here, which GPU torch sees or why not, and what each lack costs."""
    from treeopt.cli import console
    from treeopt.doctor import examine
    from treeopt.render.doctor import report

    with console.working("looking"):
        found = examine()
    console.report(found, json, report)
