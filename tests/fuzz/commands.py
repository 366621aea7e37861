"""Every command with options in combination: `{slot}` is a file of a kind, `<slot>` a value."""

from __future__ import annotations

import re
from random import Random
from typing import Final, NamedTuple

from treeopt.acceptance.importers import KINDS
from treeopt.engines.registry import ENGINES

FILES: Final[dict[str, tuple[str, ...]]] = {
    "ranks": ("ranks", "ranks", "trace", "metrics"),
    "evidence": ("metrics", "metrics", "metrics", "trace", "ranks"),
    "trace": ("trace",),
    "plan": ("plan",),
    "drafts": ("plan", "tree", "engine"),
    "hardware": ("hardware",),
    "model": ("model",),
    "head": ("head", "model"),
    "cost": ("cost", "cost", "steps"),
    "rows": ("rows",),
    "steps": ("steps", "cost"),
    "dump": ("dump",),
    "prompts": ("prompts",),
    "engine": ("engine", "tree"),
    "target": ("target",),
    "drafter": ("drafter", "target"),
    "measured": ("measured",),
}
_SMALL: Final = ("1", "2", "3", "4", "5", "7", "8", "16")
_WILD: Final = ("0", "-1", "1000000", "9223372036854775808", "1e3", "", "x", "1_000", "nan", "inf", "1e308", "0.5")
VALUES: Final[dict[str, tuple[str, ...]]] = {
    "n": _SMALL,
    "nodes": ("1", "2", "4", "8", "12"),
    "share": ("0.1", "0.3", "0.5", "0.9", "1"),
    "ms": ("0.001", "5", "8", "12.5", "1000"),
    "context": ("0", "1", "100", "2048", "16384", "1000000"),
    "contexts": ("1024,8192", "0,1", "2048", "16384,1024"),
    "batches": ("1", "1,8,64", "1-4", "2-3,16", "512", "4096", "1,1,1"),
    "captures": ("1,2,4,8", "8", "16,32,64,128", "1-64"),
    "dtype": ("bf16", "fp8", "int4", "nvfp4", "fp8/bf16", "fp16", "mxfp4_mxfp8", "fp32", "x"),
    "kv": ("bf16", "fp8", "int4"),
    "tp": ("1", "2", "3", "8"),
    "drafter": ("eagle", "eagle3", "medusa", "mtp", "ngram", "model:llama-3.2-1b", "model:", "x"),
    "name": ("h100-sxm", "a10", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v3", "example", "smollm2-135m-eagle", "x"),
    "engine": (*(f"{engine.name}{at}" for engine in ENGINES for at in ("", "==1.0")), "x", "vllm==0.20.2"),
    "kind": (*KINDS, "x"),
    "objective": ("throughput", "length", "x"),
    "rule": ("greedy", "target-sample", "recursive-rejection", "typical", "x"),
    "draft": ("chain:3", "sglang:3,4,16", "none", "chain:0", "chain:x", "sglang:1,1,1", "sglang:,,", "x"),
    "temperature": ("0", "0.5", "1", "2", "-1"),
    "table": ("vllm", "sglang", "sglang-additive", "x"),
    "tokens": ("0-3", "1,3", "0", "1-8", "200"),
    "method": ("eagle", "eagle3", "medusa", "mtp", "ngram", "model", "draft-eagle3", "x"),
    "select": ("gpu=toy", "engine=engine-1", "m=1", "x=y", "=", "gpu"),
    "collected": ("ngram", "ngram:2", "ngram:vllm:1-3", "early-exit:1", "mtp", "small", "x"),
    "out": ("out.yaml", "out.json", "out.txt", "out", "out.npz", "nowhere/out.yaml", "shards", "/dev/null", "-"),
}


class Template(NamedTuple):
    """A command: what it needs, what it may have, and how often it is tried."""

    weight: int
    needed: str
    options: tuple[str, ...] = ()


_PLAN: Final = ("--ranks {ranks}", "--json", "--batch <n>", "--context <context>")
_SEARCH: Final = (
    *("--hardware {hardware}", "--hardware <name>", "--model {model}", "--model <name>", "--drafter <drafter>"),
    *("--drafter eagle3:{head}", "--cost {cost}", "--cost {cost}", "--context <context>", "--contexts <contexts>"),
    *("--objective <objective>", "--budget <n>", "--max-tpot-ms <ms>", "--max-p99-tpot-ms <ms>", "--output-tokens <n>"),
    *("--max-depth <n>", "--max-children <n>", "--max-ranks <n>", "--max-trees <n>", "--sharing-loss <share>"),
    *("--only-listed", "--dtype <dtype>", "--tp <tp>", "--kv-dtype <kv>", "--capture-sizes <captures>"),
    *("--capture-limit <n>", "--expert-skew <share>", "--expert-correlation <share>", "--holdout <share>"),
    *("--temperature <temperature>", "--rule <rule>", "--engine <engine>", "--engine <engine>", "--allow-off"),
    *("--seed <n>", "--out <out>", "--json", "--traffic 1=0.5,8=0.5", "--traffic {cost}"),
)
COMMANDS: Final = (
    Template(22, "search --batches <batches> --ranks {ranks} --max-nodes <nodes>", _SEARCH),
    Template(4, "search --batch <n> --mix {ranks}=<share>,{ranks}=<share> --max-nodes <nodes>", _SEARCH),
    Template(6, "search --batch <n> --cost {cost} --ranks {ranks} --max-nodes <nodes>", _SEARCH),
    Template(5, "search --batch <n> --model {model} --ranks counts.yaml --max-nodes <nodes>", _SEARCH),
    Template(5, "search --batch <n> --hardware {hardware} --ranks counts.yaml --max-nodes <nodes>", _SEARCH),
    Template(6, "show {drafts}", ("--mask", *_PLAN)),
    Template(5, "compare {plan} --with {drafts} --with <draft>", ("--ranks {ranks}", "--json")),
    Template(5, "explain {plan} --batch <n>", ("--ranks {ranks}", "--context <context>", "--json")),
    Template(6, "replay {drafts} --trace {trace}", ("--dynamic", "--seed <n>", *_PLAN[1:])),
    Template(
        8,
        "check {plan} --metrics {evidence}",
        (
            *("--metrics {evidence}", "--gate <share>", "--batch <n>", "--context <context>", "--deployed <draft>"),
            *("--deployed {engine}", "--kind <kind>", "--draft-tokens <n>", "--ranks {ranks}", "--json"),
        ),
    ),
    Template(
        8,
        "export {drafts} --engine <engine>",
        (
            *(
                "--batch <n>",
                "--context <context>",
                "--allow-off",
                "--max-batch <n>",
                "--method <method>",
                "--synthetic",
            ),
            *("--model <name>", "--draft-model <name>", "--device cpu", "--heads <n>", "--out <out>", "--json"),
        ),
    ),
    Template(2, "report {plan} --out <out>", ("--with {drafts}", "--with <draft>", "--engine <engine>", *_PLAN[:2])),
    Template(
        3,
        "budget --batches <n> --ranks {trace}",
        (
            *("--lengths 64=7.16,256=9.81", "--rule ddtree", "--rule jetspec", "--rule x", "--most <n>", "--topk <n>"),
            *("--hardware {hardware}", "--model {model}", "--drafter <drafter>", "--contexts <contexts>", "--tp <tp>"),
            *("--dtype <dtype>", "--kv-dtype <kv>", "--seed <n>", "--json"),
        ),
    ),
    Template(8, "import {engine}", ("--engine <engine>", "--out <out>", "--json")),
    Template(
        20,
        "ranks import {evidence}",
        (
            *("{evidence}", "--kind <kind>", "--draft-tokens <n>", "--drafted <draft>", "--source <name>"),
            *("--out <out>", "--out <out>", "--json"),
        ),
    ),
    Template(6, "ranks show {ranks}", ("--json",)),
    Template(6, "ranks merge {ranks} {ranks} --out <out>", ("{ranks}", "--name <name>", "--force")),
    Template(1, "ranks list", ("--target <name>", "--drafter <drafter>", "--json")),
    Template(
        8,
        "profile fit --rows {rows} --out <out>",
        (
            *("{rows}", "--name <name>", "--select <select>", "--device x", "--datasheet {hardware}", "--json"),
            *("--datasheet h100-sxm", "--memory-gb <ms>", "--link-gb-s <ms>", "--processors <n>", "--engine x-1"),
        ),
    ),
    Template(
        6,
        "profile fit --steps {steps} --out <out>",
        (
            *("{steps}", "--hardware {hardware}", "--model {model}", "--drafter <drafter>", "--context <context>"),
            *("--dtype <dtype>", "--tp <tp>", "--capture-sizes <captures>", "--json"),
        ),
    ),
    Template(
        6,
        "profile table --engine <table> --batches <batches> --draft-tokens <tokens> --out <out>",
        ("--cost {cost}", "--ranks {ranks}", "--hardware {hardware}", "--model {model}", "--drafter <drafter>"),
    ),
    Template(6, "verify {drafts} --dump {dump}", ("--batch <n>", "--context <context>", "--json")),
    Template(2, "verify dumped.yaml --dump {dump}", ("--json",)),
    Template(1, "measure --plan-calibration", ("--concurrency <batches>", "--k <n>", "--out <out>", "--json")),
    Template(
        2,
        "measure http://127.0.0.1:9 --concurrency <n> --budget-s 1 --timeout-s 1",
        ("--out {measured}", "--prompts {prompts}", "--ranks-out <out>", "--model x", "--tokens 32"),
    ),
)
# What runs models: slower by far, and only where torch is.
OF_TORCH: Final = (
    Template(1, "verify {drafts}", ("--batch <n>", "--context <n>", "--seed <n>", "--json", "--write-dump <out>")),
    Template(1, "verify {drafts} --model {target}", ("--batch <n>", "--dtype <dtype>", "--json")),
    Template(
        3,
        "ranks collect --target {target} --draft <collected> --prompts {prompts} --out out.npz --max-new-tokens 4",
        (
            *("--depth <n>", "--ranks <n>", "--temperature <temperature>", "--rule <rule>", "--shard 0/1", "--json"),
            *("--documents-per-part <n>", "--seed <n>", "--device x", "--dtype float64"),
        ),
    ),
    Template(2, "ranks collect --target target --draft {drafter} --prompts ids.jsonl --out out.npz --max-new-tokens 4"),
    Template(
        1,
        "bench --target {target} --draft <collected> --plan {plan} --prompts {prompts} --new-tokens 4 --batches 1",
        ("--with <draft>", "--with {drafts}", "--ranks {ranks}", "--out <out>", "--steps-out <out>", "--clock cpu"),
    ),
    Template(1, "profile --dry-run --device cpu --model {model} --max-tokens 8 --max-context 512 --budget-s 1"),
)
_SLOT: Final = re.compile(r"\{(\w+)\}|<(\w+)>")


class Words(NamedTuple):
    """A command's words, and which files of the corpus are in them."""

    words: list[str]
    files: list[str]


def written(template: Template, kinds: dict[str, list[str]], rng: Random) -> Words:
    """The command with its slots filled: rarely with another kind of file, or a value that no one means."""
    text = [template.needed]
    text += [option for option in template.options if rng.random() < 0.12]
    files: list[str] = []

    def filled(slot: re.Match[str]) -> str:
        kind, value = slot.groups()
        if kind is None:
            return rng.choice(_WILD if rng.random() < 0.04 and value != "out" else VALUES[value])
        wanted = rng.choice(FILES[kind]) if rng.random() < 0.92 else rng.choice(list(kinds))
        files.append(rng.choice(kinds.get(wanted) or kinds["ranks"]))
        return files[-1]

    words = [_SLOT.sub(filled, word) for part in text for word in part.split()]
    return Words(words, files)
