"""What the docs' site has besides the pages in this folder: the project's own pages, and every command's `--help`.

Read by MkDocs (`mkdocs.yml`). Links to files that are no page of the site become their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

ROOT: Final = Path(__file__).resolve().parents[1]
# Pages outside this folder, by the name that they have in the site.
PAGES: Final = {
    "project.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{f"profiles-{kind}.md": f"profiles/{kind}/README.md" for kind in ("ranks", "hardware", "models")},
}
_LINK: Final = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE: Final = re.compile(r'(<img src=")docs/')
_HELP_WIDTH: Final = 84


def on_config(config: Any) -> Any:
    """Pages that the navigation does not name stand at its end."""
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    others = sorted(path.name for path in Path(config.docs_dir).glob("*.md") if path.name not in named)
    if others:
        config.nav.append({"More": others})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in this folder."""
    from mkdocs.structure.files import File

    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "cli.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the site's pages."""
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _IMAGE.sub(r"\1", linked(markdown, source))


def linked(markdown: str, source: str) -> str:
    """A page's text with its links as the site has them; `source` is its file from the root."""
    pages = {path: name for name, path in PAGES.items()}

    def replaced(match: re.Match[str]) -> str:
        to = match["to"]
        if re.match(r"[a-z]+:", to):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), to))
        name = pages.get(path)
        if name is None and path.startswith("docs/"):
            name = path.removeprefix("docs/")
        if name is None:
            return f"{match['text'].strip('![]')} (`{path}`)"
        return f"{match['text']}({name}{match['anchor'] or ''})"

    return _LINK.sub(replaced, markdown)


def commands_page() -> str:
    """Every command's `--help`."""
    from treeopt.cli import app

    parts = ["# Commands\n", "What `--help` prints, command by command.\n"]
    for name, text in _helps(app, "treeopt"):
        parts.append(f"## {name}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, max_content_width=_HELP_WIDTH, terminal_width=_HELP_WIDTH)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for own in command.list_commands(context):
            found = command.get_command(context, own)
            if found is not None:
                yield from _helps(found, f"{name} {own}")
