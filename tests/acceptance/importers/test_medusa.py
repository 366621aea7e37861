from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest

from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.table import DepthRanks

CSV = """"Name","train/medusa0_top1","train/medusa0_top2","train/medusa1_top1","train/medusa1_top2"
"7b","0.5604","0.6717","0.3164","0.4236"
"33b","0.6046","0.7162","0.3558","0.4690"
"""
TOPK = """TopK=0
> Head 0 Accuracy=0.68
> Head 1 Accuracy=0.33
> Head 2 Accuracy=0.18
TopK=4
> Head 0 Accuracy=0.85
> Head 1 Accuracy=0.55
"""


def test_cumulative_columns_become_rank_probabilities_by_difference(read) -> None:
    found = read(CSV, name="acc.csv")
    assert [p.name for p in found.profiles] == ["acc-7b", "acc-33b"]
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, DepthRanks)
    assert evidence.rates.tolist() == [pytest.approx([0.5604, 0.1113]), pytest.approx([0.3164, 0.1072])]
    assert "2 guesses per node" in found.supports


def test_a_step_of_several_ranks_is_not_split(read) -> None:
    found = read(TOPK)
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, DepthRanks)
    assert evidence.rates.tolist() == [[0.68], [0.33], [0.18]]
    assert [(s.depth, s.first_rank, s.last_rank) for s in found.sources[0].known_sums] == [(1, 1, 4), (2, 1, 4)]
    assert [s.probability for s in found.sources[0].known_sums] == pytest.approx([0.17, 0.22])
    assert "never widths" in found.supports


def test_consecutive_steps_are_split(read) -> None:
    second = "TopK=1\n> Head 0 Accuracy=0.74\n> Head 1 Accuracy=0.40\n> Head 2 Accuracy=0.25\n"
    evidence = read(second + TOPK).profiles[0].evidence
    assert evidence.rates.tolist() == [pytest.approx(row) for row in ([0.68, 0.06], [0.33, 0.07], [0.18, 0.07])]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CSV.replace("0.6717", "0.5517"), "sample.txt:2: top-2 0.5517 after top-1 0.5604"),
        (CSV.replace("0.6717", "67.17"), "sample.txt:2: column 3 is 67.17"),
        (CSV.replace('"0.6717"', "?"), "sample.txt:2: column 3 holds no number"),
        (CSV.replace(',"0.4690"', ""), "sample.txt:3: column 5 holds no number"),
        (CSV.replace("0.6717", "nan"), "sample.txt:2: column 3 is nan"),
        (CSV.replace("medusa1", "medusa2"), "heads [0, 2] have a gap"),
        (TOPK.replace("0.85", "0.65"), "sample.txt:6: top-5 0.65 after top-1 0.68"),
        (TOPK.replace("0.85", "8.5"), "sample.txt:6: top-5 8.5 is above 1"),
        (TOPK + TOPK, "sample.txt:9: top-1 0.68 after top-1 0.68"),
        ("TopK=4\n> Head 0 Accuracy=0.85\n", "the first head has no top-1 accuracy"),
        ("> Head 0 Accuracy=0.85\n", "under a `TopK=` line"),
    ],
)
def test_contradicting_tables_are_reported(refusal, text: str, words: str) -> None:
    assert words in str(refusal(text))


def glued(samples: int, steps: int, heads: int, ranks: int = 4) -> tuple[list[list[list[bool]]], np.ndarray]:
    """Heads' tables as the script writes them, and the ranks [positions, heads] they came from (-2: past the end)."""
    rank = np.random.default_rng(0).integers(-1, ranks, (samples, steps, heads))
    tables = []
    for i in range(heads):
        rank[:, steps - i :, i] = -2
        own = rank[:, : steps - i, i].reshape(-1)
        tables.append([[r == column for column in range(ranks)] for r in own.tolist()])
    return tables, rank.reshape(-1, heads)


def count(rank: np.ndarray, path: tuple[int, ...]) -> int:
    return int((rank[:, : len(path)] == path).all(axis=1).sum())


@pytest.mark.parametrize("samples", [1, 5])
def test_rows_that_line_up_give_joint_counts(read, samples: int) -> None:
    tables, rank = glued(samples, steps=20, heads=3)
    found = read(pickle.dumps(tables), name="7b_heads_accuracy.pt")
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, PathCounts)
    assert evidence.starts == samples * 20
    assert {item.path: item.count for item in evidence} == {item.path: count(rank, item.path) for item in evidence}
    assert sum(item.count for item in evidence if len(item.path) == 1) == (rank[:, 0] >= 0).sum()
    assert found.profiles[0].documents == samples
    assert "joint counts" in found.supports


def test_rows_that_do_not_line_up_give_one_table_per_head(read) -> None:
    tables, _ = glued(5, steps=20, heads=3)
    found = read(pickle.dumps([tables[0], tables[1][:-1], tables[2][:-7]]))
    evidence = found.profiles[0].evidence
    assert isinstance(evidence, DepthRanks)
    assert evidence.reached.tolist() == [100.0, 94.0, 83.0]
    assert "do not line up" in found.warnings[0]


def test_a_pickle_that_wants_to_run_code_is_refused(refusal) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, ("1/0",)

    assert "more than lists of booleans: SHORT_BINUNICODE builtins" in str(refusal(pickle.dumps([Evil()])))


def test_a_memo_that_would_exhaust_memory_is_refused(refusal) -> None:
    assert "LONG_BINPUT 4294967295" in str(refusal(b"\x80\x02]r\xff\xff\xff\xff."))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "more than lists of booleans: EMPTY_DICT"),
        (7, "no list of 1 to 64 heads"),
        ([], "no list of 1 to 64 heads"),
        ([[]], "head 0 is no table"),
        ([[[1, 0], [1]]], "head 0 is no table"),
        ([[[2, 0]]], "head 0 is no table"),
        ([[[1, 0]], [[1, 0, 0]]], "the heads list [2, 3] ranks"),
        ([[[1, 1]]], "row 0 of head 0 has 2 right ranks"),
        ([[[0, 0]]], "no recorded rank"),
    ],
)
def test_pickles_of_something_else_are_refused(refusal, value: object, words: str) -> None:
    assert words in str(refusal(pickle.dumps(value)))


def tensor_archive() -> bytes:
    """A zip with a pickle that asks for torch, as torch.save writes it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/data.pkl", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.")
    return archive.getvalue()


def test_tensors_need_torch(refusal, read, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = glued(2, steps=10, heads=2)

    class Tensor:
        def __init__(self, rows: object) -> None:
            self.numpy = lambda: np.array(rows, dtype=np.bool_)
            self.numel = lambda: np.size(rows)
            self.element_size = lambda: 1
            self.untyped_storage = lambda: types.SimpleNamespace(nbytes=lambda: np.size(rows))

    def load(file: object, *, map_location: str, weights_only: bool) -> list[Tensor]:
        assert weights_only
        return [Tensor(table) for table in tables]

    monkeypatch.setitem(sys.modules, "torch", None)
    assert "[gpu]" in refusal(tensor_archive()).hint
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    assert isinstance(read(tensor_archive()).profiles[0].evidence, PathCounts)
