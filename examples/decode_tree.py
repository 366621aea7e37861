"""Decode with a draft tree, and see that nothing but the number of steps changes.

pip install 'treeopt[gpu]'
python examples/decode_tree.py                   # a toy transformer, its drafter the same model under noise
python examples/decode_tree.py MODEL 24          # a Hugging Face model, drafted by its own first 24 layers
"""

from __future__ import annotations

import sys

from treeopt.acceptance.replay import replay
from treeopt.collect.record import DecodedText, record_trace
from treeopt.decode.decoder import Decoder, Decoding, same_tree
from treeopt.decode.drafters import ModelDrafter, NoisyDrafter
from treeopt.decode.drafting import Drafter
from treeopt.decode.models import CausalModel
from treeopt.decode.reports import StepReport
from treeopt.decode.rules import rule_named
from treeopt.tree import DraftTree

TREE = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)))
WAYS = {"plain": DraftTree(()), "chain of 3": DraftTree.chain(3), "tree of 9": TREE}
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [1, 6, 1, 8, 0, 3]]
TOKENS = 48


def models(arguments: list[str]) -> tuple[CausalModel, Drafter]:
    if arguments:
        from treeopt.decode.hf import HuggingFaceModel

        target = HuggingFaceModel.load(arguments[0])
        return target, ModelDrafter(target.early_exit(int(arguments[1])), vocabulary_size=target.vocabulary_size)
    from treeopt.decode.toy import ToyTransformer

    toy = ToyTransformer(seed=1)
    return toy, NoisyDrafter(ModelDrafter(toy, vocabulary_size=toy.vocabulary_size), scale=0.7)


def main(arguments: list[str]) -> None:
    target, drafter = models(arguments)
    decoder = Decoder(target, drafter, decoding=Decoding(max_new_tokens=TOKENS))
    written: dict[str, list[list[int]]] = {}
    for name, tree in WAYS.items():
        reports = list(decoder.steps(PROMPTS, same_tree(tree), batch=len(PROMPTS)))
        written[name] = texts(reports)
        lengths = [len(emitted) for step in reports if step.kind == "verify" for emitted in step.emitted]
        print(f"{name}: {sum(lengths) / len(lengths):.2f} tokens per step")
    print("the same text in all ways:", len({str(text) for text in written.values()}) == 1)

    # The run's own trace: what a plan predicts from such a trace is what this decoder does.
    run = [DecodedText(prompt, text) for prompt, text in zip(PROMPTS, written["tree of 9"], strict=True)]
    trace = record_trace(run, drafter, rule=rule_named("greedy"), depth=TREE.depth)
    print(f"replay of the recorded trace, over all start phases: {replay(trace, TREE).tokens_per_step:.2f}")


def texts(reports: list[StepReport]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in PROMPTS]
    for step in reports:
        for request, emitted in zip(step.requests, step.emitted, strict=True):
            found[request].extend(emitted)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
