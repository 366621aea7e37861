from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treeopt.acceptance.importers import Imported, read_evidence
from treeopt.errors import InputError

Read = Callable[..., Imported]
Refusal = Callable[..., InputError]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Import one text (or several, as files in this order)."""

    def read(*texts: str | bytes, name: str = "sample.txt", **options: object) -> Imported:
        paths = []
        for i, text in enumerate(texts):
            folder = tmp_path / str(i)
            folder.mkdir(exist_ok=True)
            paths.append(folder / name)
            paths[-1].write_bytes(text.encode() if isinstance(text, str) else text)
        return read_evidence(paths, **options)  # type: ignore[arg-type]

    return read


@pytest.fixture
def refusal(read: Read) -> Refusal:
    """The error with which a text is refused."""

    def refusal(*texts: str | bytes, **options: object) -> InputError:
        with pytest.raises(InputError) as caught:
            read(*texts, **options)
        return caught.value

    return refusal
