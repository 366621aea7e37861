"""Rows against what the models say when they are asked directly, prefix by prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from treeopt.arrays import IntArray
from treeopt.collect.record import EncodedPrompt, Recorder, TraceRows
from treeopt.collect.settings import CollectSettings
from treeopt.decode.guesses import Guesses, LogitGuesses
from treeopt.errors import FileFormatError, InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and transformers warn of their own plans

PROMPT = np.array([5, 17, 31])
DEPTH, LENGTH = 4, 20


def load(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def record(target: Path, draft: str, **options: Any) -> TraceRows:
    settings = CollectSettings(target=str(target), draft=draft, depth=DEPTH, max_new_tokens=LENGTH, ranks=10, **options)
    return Recorder.load(settings).record(EncodedPrompt(doc_id=3, tokens=PROMPT))


def next_token(model: Any, text: list[int], layers: int | None = None) -> npt.NDArray[np.float64]:
    """The distribution behind a prefix, from one forward pass over it alone."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        output = model(torch.tensor([text]), output_hidden_states=True)
        logits = output.logits[0, -1]
        if layers is not None:  # hidden_states[k] is what comes out of layer k
            logits = model.lm_head(model.model.norm(output.hidden_states[layers][0, -1]))
        return np.asarray(logits.softmax(-1).double().numpy())


def greedy_text(model: Any) -> list[int]:
    """The continuation of the prompt, by argmax over whole prefixes, up to the token 49 that ends a text."""
    text = PROMPT.tolist()
    while len(text) < len(PROMPT) + LENGTH and (len(text) == len(PROMPT) or text[-1] != 49):
        text.append(int(next_token(model, text).argmax()))
    return text


def rank_of(q: npt.NDArray[np.float64], token: int) -> int:
    rank = int(np.argsort(-q, kind="stable").tolist().index(token))
    return rank if rank < 10 else -1


def check_rows(
    rows: TraceRows, text: list[int], guess: Callable[[int, int], npt.NDArray[np.float64]], model: Any
) -> None:
    """`guess(root, depth)` is the drafter's distribution for `text[root + depth]`, root an index into the text."""
    T = len(text) - len(PROMPT)
    assert rows.rank.shape == (T, DEPTH)
    assert rows.pos.tolist() == list(range(T))
    assert set(rows.doc_id.tolist()) == {3}
    for p in range(T):
        root = len(PROMPT) + p
        for d in range(1, DEPTH + 1):
            if root + d >= len(text):
                assert rows.rank[p, d - 1] == -2
                assert not rows.topk_prob[p, d - 1].any()
                continue
            q = guess(root, d)
            assert rows.rank[p, d - 1] == rank_of(q, text[root + d])
            np.testing.assert_allclose(rows.topk_prob[p, d - 1], np.sort(q)[::-1][:8], atol=1e-3)
            chosen = next_token(model, text[: root + d])[text[root + d]]
            assert rows.target_p1[p, d - 1] == pytest.approx(chosen, abs=1e-3)


def test_early_exit_reads_the_head_behind_its_layers(target: Path) -> None:
    model = load(target)
    text = greedy_text(model)
    check_rows(
        record(target, "early-exit:2"), text, lambda root, d: next_token(model, text[: root + d], layers=2), model
    )


def test_a_draft_model_guesses_from_the_text_before(target: Path, small: Path) -> None:
    model, draft = load(target), load(small)
    text = greedy_text(model)
    check_rows(record(target, str(small)), text, lambda root, d: next_token(draft, text[: root + d]), model)


def test_the_target_as_its_own_drafter_is_always_right(target: Path) -> None:
    rank = record(target, str(target)).rank
    assert set(np.unique(rank)) == {-2, 0}


def medusa_heads(folder: Path, heads: int = DEPTH, *, hidden: int = 16, form: str = "pt", prefix: str = "") -> Any:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for h in range(heads):
        for layer in range(2):
            weights[f"{prefix}{h}.{layer}.linear.weight"] = torch.randn(hidden, hidden, generator=generator)
            weights[f"{prefix}{h}.{layer}.linear.bias"] = torch.randn(hidden, generator=generator)
        weights[f"{prefix}{h}.2.weight"] = torch.randn(50, hidden, generator=generator)
    folder.mkdir()
    if form == "pt":
        torch.save(weights, folder / "medusa_lm_head.pt")
    else:
        pytest.importorskip("safetensors.torch").save_file(weights, folder / "medusa_lm_head.safetensors")
    return weights


@pytest.mark.parametrize(("form", "prefix"), [("pt", ""), ("safetensors", "medusa_head.")])
def test_medusa_heads_read_the_state_before_the_root(target: Path, tmp_path: Path, form: str, prefix: str) -> None:
    torch = pytest.importorskip("torch")
    weights = medusa_heads(tmp_path / "heads", form=form, prefix=prefix)
    model = load(target)
    text = greedy_text(model)

    def guess(root: int, d: int) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            x = model.model(torch.tensor([text[:root]])).last_hidden_state[0, -1]  # the root itself is not read
            for layer in range(2):
                W, b = (weights[f"{prefix}{d - 1}.{layer}.linear.{name}"] for name in ("weight", "bias"))
                x = x + torch.nn.functional.silu(W @ x + b)
            return np.asarray((weights[f"{prefix}{d - 1}.2.weight"] @ x).softmax(-1).double().numpy())

    check_rows(record(target, f"medusa:{tmp_path / 'heads'}"), text, guess, model)


def test_medusa_refuses_what_it_cannot_run(target: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"no medusa_lm_head\.safetensors"):
        record(target, f"medusa:{tmp_path}")
    medusa_heads(tmp_path / "few", heads=2)
    with pytest.raises(InputError, match="2 heads, but depth 4"):
        record(target, f"medusa:{tmp_path / 'few'}")
    medusa_heads(tmp_path / "wide", hidden=8)
    with pytest.raises(FileFormatError, match=r"0\.0\.linear\.bias is \(8,\), expected \(16,\)"):
        record(target, f"medusa:{tmp_path / 'wide'}")
    (tmp_path / "few" / "medusa_lm_head.pt").write_bytes(b"no weights")
    with pytest.raises(FileFormatError, match="cannot be read as nothing but tensors") as caught:
        record(target, f"medusa:{tmp_path / 'few'}")
    assert "weights_only" not in f"{caught.value} {caught.value.hint}"  # torch would have it loaded unsafely
    torch.save({"lm_head.weight": torch.zeros(2)}, tmp_path / "few" / "medusa_lm_head.pt")
    with pytest.raises(FileFormatError, match="heads are named lm_head"):
        record(target, f"medusa:{tmp_path / 'few'}")


def test_early_exit_must_leave_layers_out(target: Path) -> None:
    with pytest.raises(InputError, match="early exit after 3 of 3 layers"):
        record(target, "early-exit:3")


def test_another_architecture_exits_early_too(make_llama: Callable[..., Path], tmp_path: Path) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    make_llama(tmp_path / "gpt2", seed=0)  # for its tokenizer
    config = transformers.GPT2Config(vocab_size=50, n_positions=64, n_embd=16, n_layer=3, n_head=2, eos_token_id=49)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = load(tmp_path / "gpt2")
    rows = record(tmp_path / "gpt2", "early-exit:1")
    text = greedy_text(model)
    with torch.no_grad():
        hidden = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[1][0]
        q = model.lm_head(model.transformer.ln_f(hidden)).softmax(-1).double().numpy()
    expected = [rank_of(q[i - 1], text[i]) for i in range(len(PROMPT) + 1, len(text))]
    assert rows.rank[:-1, 0].tolist() == expected


def test_sampled_text_is_the_targets_at_the_temperature(target: Path) -> None:
    """The checkpoint asks for top-p, top-k and a repetition penalty; the frequency of the first token shows none."""
    settings = CollectSettings(target=str(target), draft="ngram", max_new_tokens=2, temperature=1.5)
    recorder = Recorder.load(settings)
    draws = 60
    found = np.zeros(50)
    for seed in range(draws):
        written = recorder._target.continuation(PROMPT, max_new_tokens=1, temperature=1.5, seed=seed)
        found[written[0]] += 1
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        logits = load(target)(torch.tensor([PROMPT.tolist()])).logits[0, -1]
        p = (logits / 1.5).softmax(-1).double().numpy()
    assert np.count_nonzero(found) > 3
    assert np.all(np.abs(found / draws - p) <= 5 * np.sqrt(p * (1 - p) / draws) + 1e-6)


def test_target_sampling_records_the_rank_of_the_sampled_token(target: Path) -> None:
    rows = record(target, str(target), temperature=1.0, seed=1)
    # The drafter is the target: its probability of the token that has this rank is the target's.
    known = (rows.rank >= 0) & (rows.rank < 8)
    assert known.any()
    row, depth = np.nonzero(known)
    listed = rows.topk_prob[row, depth, rows.rank[known]]
    np.testing.assert_allclose(listed, rows.target_p1[known], rtol=2e-3)
    assert rows.rank.max() > 0


def test_recursive_rejection_accepts_an_equal_drafter_at_once(target: Path) -> None:
    rows = record(target, str(target), temperature=1.0, seed=1, rule="recursive-rejection")
    assert set(np.unique(rows.rank)) == {-2, 0}


class Coin:
    """A target whose every token comes from one distribution, and a drafter that holds another."""

    p, q = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]

    def continuation(self, tokens: IntArray, *, max_new_tokens: int, temperature: float, seed: int) -> IntArray:
        return np.random.default_rng(seed).choice(4, size=max_new_tokens, p=self.p)

    def reference(self, tokens: IntArray, *, first: int = 0) -> Any:
        return pytest.importorskip("torch").tensor(self.p).log().repeat(len(tokens) - first, 1)

    def along(self, tokens: IntArray, *, first: int, depth: int) -> tuple[Guesses, ...]:
        logits = pytest.importorskip("torch").tensor(self.q).log().repeat(len(tokens) - first, 1)
        return (LogitGuesses(logits, vocabulary_size=4, temperature=1.0),)


@pytest.mark.parametrize(
    ("rule", "first_accepted"),
    [  # sum(min(p, q)), which block verification does not exceed for one token; p(best of q)
        ("recursive-rejection", 0.1 + 0.2 + 0.2 + 0.1),
        ("block", 0.1 + 0.2 + 0.2 + 0.1),
        ("target-sample", 0.1),
    ],
)
def test_the_first_sibling_is_accepted_as_often_as_the_rule_says(rule: str, first_accepted: float) -> None:
    settings = CollectSettings(target="t/t", draft="d/d", depth=2, max_new_tokens=10_001, temperature=1.0, rule=rule)
    coin: Any = Coin()
    rows = Recorder(settings, coin, coin).record(EncodedPrompt(doc_id=0, tokens=PROMPT))
    found = float(np.mean(rows.rank[:-1, 0] == 0))
    assert abs(found - first_accepted) < 5 * np.sqrt(first_accepted * (1 - first_accepted) / 10_000)
    assert rows.rank.max() <= 3
    if rule != "block":
        np.testing.assert_array_equal(rows.rank[1:-1, 0], rows.rank[:-2, 1])  # the guess is the same at every depth


def test_block_verification_accepts_an_equal_drafter_to_the_end(target: Path) -> None:
    rows = record(target, str(target), temperature=1.0, seed=1, rule="block")
    assert set(np.unique(rows.rank)) == {-2, 0}


def test_block_verification_accepts_more_than_token_by_token() -> None:
    """Two tokens of the same laws: 1 + .6 + sum of min(p p', q q') where token by token gives 1 + .6 + .36."""
    settings = CollectSettings(target="t/t", draft="d/d", depth=2, max_new_tokens=10_001, temperature=1.0, rule="block")
    coin: Any = Coin()
    rows = Recorder(settings, coin, coin).record(EncodedPrompt(doc_id=0, tokens=PROMPT))
    laws = [*zip(coin.p, coin.q, strict=True)]
    both = sum(min(p1 * p2, min(p1, q1) * p2, q1 * q2) for p1, q1 in laws for p2, q2 in laws)
    found = float(np.mean(rows.rank[:-2, 1] == 0))
    assert both > 0.36
    assert abs(found - both) < 5 * np.sqrt(both * (1 - both) / 10_000)
