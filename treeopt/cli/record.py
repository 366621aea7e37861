"""`treeopt ranks record`: how to record ranks inside a serving engine; the recorder itself runs there."""

from __future__ import annotations

from typing import Final

import click

from treeopt.cli.command import command

HOW: Final = """\
vLLM (draft models, EAGLE, EAGLE-3, MTP, DFlash; n-gram and suffix drafters have
no distribution). Two lines beside the start command:

  pip install treeopt                   # into vLLM's environment
  TREEOPT_RECORD=ranks vllm serve ...   # writes ranks/vllm-*.jsonl

  TREEOPT_RECORD_RATE=0.1               # about so many of the steps (all)
  TREEOPT_RECORD_TOP=32                 # so many of the drafter's guesses

Served with vLLM 0.32 on a CPU (runner V1). The V2 runner was tried with its own
code only; there a drafter inside a whole CUDA graph cannot be seen, which vLLM's
log says: --compilation-config '{"cudagraph_mode": "PIECEWISE"}'. In SGLang
nothing is recorded, and its log says so.

Then, from the shards:

  treeopt ranks import ranks --out ranks.yaml
  treeopt search --batches 1,8,32 --ranks ranks.yaml

Written are ranks, probabilities and lengths, never text or tokens. What cannot
be written is dropped; serving goes on."""


def record() -> None:
    """Show how ranks are recorded inside a serving engine."""
    click.echo(HOW)


command_ = command(record, epilog="\b\n" + HOW.replace("\n\n", "\n\n\b\n"))
