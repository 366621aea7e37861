"""Where a model's files are, and how they are read: nothing in them is ever run."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require
from treeopt.files.documents import os_error

Loaded = TypeVar("Loaded")

_HINT: Final = "give a directory, a .gguf file or the hub id OWNER/NAME of a causal language model"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a model is: what `from_pretrained` takes."""

    spec: str
    folder: str
    gguf: str | None = None

    @classmethod
    def locate(cls, spec: str) -> Checkpoint:
        """From a directory, a .gguf file or a hub id.

        Raises:
            InputError: a path at which there is nothing.
        """
        path = Path(spec)
        if path.suffix == ".gguf":
            if not path.is_file():
                raise os_error(FileNotFoundError(), path, what="model", verb="read")
            return cls(spec=spec, folder=str(path.parent), gguf=path.name)
        if not path.is_dir() and (spec.count("/") != 1 or spec.startswith((".", "/")) or path.exists()):
            raise InputError(f"{spec}: no such model", hint=_HINT)
        return cls(spec=spec, folder=spec)

    def load(self, load: Callable[..., Loaded], **options: Any) -> Loaded:
        """Call a `from_pretrained`, without the bars that it draws; code that lies beside the weights is never run.

        Raises:
            InputError: it cannot be loaded, with the library's own reason, or only by its own code.
        """
        if self.gguf is not None:
            options["gguf_file"] = self.gguf
        logging = require("transformers", extra="hf").utils.logging
        said = logging.get_verbosity()
        logging.set_verbosity_error()  # tensors that it does not use, such as MTP modules, are listed as warnings
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                return load(self.folder, trust_remote_code=False, **options)
        except Exception as error:  # the library and the readers below it have their own errors for each damage
            raise _refused(self.spec, error) from error
        finally:
            logging.set_verbosity(said)


def read_tensors(path: Path, *, what: str, hint: str) -> dict[str, Any]:
    """The tensors of a `.safetensors` file, or of one that torch pickled, of which nothing but tensors is read.

    Raises:
        FileFormatError: it cannot be read, or holds something else.
    """
    torch, safetensors = require("torch", extra="hf"), require("safetensors.torch", extra="hf")
    try:
        if path.suffix == ".safetensors":
            found = safetensors.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # see `Checkpoint.load`
        refused = _refused(str(path), error)
        raise FileFormatError(str(refused), hint=refused.hint if refused.hint != _HINT else hint) from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise FileFormatError(f"{path}: not {what}: it holds something other than named tensors", hint=hint)
    return {str(key): value for key, value in found.items()}


def _refused(where: str, error: Exception) -> InputError:
    """What went wrong, in words of its own where the library would advise to trust the file."""
    text = str(error)
    if "trust_remote_code" in text:
        return InputError(
            f"{where}: it can be loaded only by running the code that comes with it, which is never done",
            hint="give a model of a kind that the installed transformers knows by itself",
        )
    if "weights_only" in text or "Weights only" in text:
        return InputError(
            f"{where}: its pickled weights cannot be read as nothing but tensors; nothing of them was run",
            hint="give the weights as safetensors",
        )
    # Libraries print types as Python shows them.
    reason = re.sub(r"<class '([\w.]+)'>", r"\1", text.strip().partition("\n")[0]) or type(error).__name__
    return InputError(f"{where}: cannot be loaded: {reason}", hint=_HINT)
