from __future__ import annotations

import runpy
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from plans import bucket_of, plan_of

from treeopt.draft_family import DynamicTree
from treeopt.errors import InputError, UnknownNameError
from treeopt.plan.plan import Plan
from treeopt.runtime import Hysteresis, Runtime, Tables, load_runtime
from treeopt.tree import DraftTree

BUSHY = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
CHAIN = DraftTree.chain(4)


@pytest.fixture
def plan() -> Plan:
    return plan_of(bucket_of(BUSHY, 1, 4), bucket_of(CHAIN, 5, 16), bucket_of(DraftTree(()), 17, 64))


def arrays(tables: Tables) -> list[np.ndarray]:
    own = [getattr(tables, f.name) for f in fields(tables) if f.name != "passes"]
    return own + [getattr(one, f.name) for one in tables.passes for f in fields(one)]


def test_dynamic_trees_have_no_tables() -> None:
    dynamic = replace(bucket_of(BUSHY, 1, 4), dynamic=DynamicTree(3, 3, 8))
    with pytest.raises(InputError, match="batch 1-4 has a dynamic tree"):
        load_runtime(plan_of(dynamic))


def test_select_follows_the_plan(plan: Plan) -> None:
    runtime = load_runtime(plan, hysteresis=Hysteresis(steps=1))
    for batch in range(1, 65):
        bucket = runtime.select(batch)
        assert bucket.tree == plan.tree_for(batch)
        assert bucket.speculate == (batch <= 16)
        assert len(bucket.tables.valid) == len(bucket.tree)
    assert runtime.select(200).tree == DraftTree(())


def test_selecting_allocates_nothing(plan: Plan) -> None:
    runtime = load_runtime(plan)
    before = [id(array) for bucket in runtime.buckets for array in arrays(bucket.tables)]
    seen = {id(runtime.select(batch)) for batch in [1, 60, 8, 8, 3, 64] * 20}
    assert seen == {id(bucket) for bucket in runtime.buckets}
    assert [id(array) for bucket in runtime.buckets for array in arrays(bucket.tables)] == before


def test_default_hysteresis(plan: Plan) -> None:
    runtime = load_runtime(plan)
    assert [runtime.select(batch).batch.high for batch in [4, 5] * 10] == [4] * 20
    runtime.select(4)
    assert [runtime.select(5).batch.high for _ in range(8)] == [4] * 7 + [16]
    assert runtime.bucket_of(4).batch.high == 4


def test_a_common_shape_for_all_trees(plan: Plan) -> None:
    runtime = load_runtime(plan, common_shape=True, multiple_of=16)
    first, second, plain = runtime.buckets
    assert first.shape == second.shape
    assert [a.shape for a in arrays(first.tables)] == [a.shape for a in arrays(second.tables)]
    assert first.shape.nodes == 16
    assert plain.shape.nodes == 1  # plain decoding stays plain


def test_from_a_file(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.yaml")
    assert load_runtime(str(tmp_path / "plan.yaml")).select(2).tree == BUSHY


def test_wrong_inputs(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="tensorflow"):
        load_runtime(plan, backend="tensorflow")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such file"):
        load_runtime(tmp_path / "none.yaml")


def test_tensors(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    runtime = load_runtime(plan, backend="torch")
    expected = load_runtime(plan)
    for bucket, numpy_bucket in zip(runtime.buckets, expected.buckets, strict=True):
        for tensor, array in zip(arrays(bucket.tables), arrays(numpy_bucket.tables), strict=True):
            assert isinstance(tensor, torch.Tensor)
            assert tensor.dtype in (torch.int64, torch.bool)
            assert (tensor.numpy() == array).all()
    places = _places(runtime)
    for batch in [1, 64, 8, 8, 2, 50] * 10:
        runtime.select(batch)
    assert _places(runtime) == places


def _places(runtime: Runtime) -> list[int]:
    return [tensor.data_ptr() for bucket in runtime.buckets for tensor in arrays(bucket.tables)]


def test_several_contexts() -> None:
    short, long = (0, 1000), (1001, 8000)
    plan = plan_of(
        bucket_of(BUSHY, 1, 8, contexts=short),
        bucket_of(CHAIN, 9, 64, contexts=short),
        bucket_of(CHAIN, 1, 64, contexts=long),
    )
    runtime = load_runtime(plan, hysteresis=Hysteresis(steps=1))
    for batch, context in [(1, 0), (8, 1000), (9, 500), (64, 1000), (1, 1001), (64, 8000)]:
        assert runtime.select(batch, context).tree == plan.tree_for(batch, context)
    assert runtime.select(100, 9000).context.high == 8000  # beyond the plan: the nearest
    with pytest.raises(InputError, match="several contexts"):
        runtime.select(1)
    calm = load_runtime(plan, hysteresis=Hysteresis(steps=4, margin=0.1))
    # 1,001 and 1,100 are at most a tenth past the border, 1,102 is more.
    assert [calm.select(8, context).context.high for context in [1000, 1001, 1100, 999, 1102]] == [1000] * 4 + [8000]


def test_beyond_the_plan_one_context_does_not_flap() -> None:
    plan = plan_of(bucket_of(CHAIN, 1, 4, contexts=(0, 100)), bucket_of(BUSHY, 1, 4, contexts=(101, 200)))
    runtime = load_runtime(plan)
    assert {runtime.select(500, context).context.high for context in [100, 101] * 20} == {100}


def test_custom_engine(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """examples/custom_engine.py decodes what plain decoding would, with more than one token per step."""
    example = Path(__file__).resolve().parents[2] / "examples" / "custom_engine.py"
    plan.save(tmp_path / "plan.yaml")
    monkeypatch.setattr(sys, "argv", ["custom_engine.py", str(tmp_path / "plan.yaml")])
    runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    assert "step 0: 4 requests, graph of 8 nodes" in out
    assert float(out.splitlines()[-1].split()[0]) > 1.3
