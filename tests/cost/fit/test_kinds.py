"""What columns mean, one row of each kind by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import Rows, joined
from treeopt.cost.fit.tables import read_table
from treeopt.cost.kernels.family import SIZES, Family
from treeopt.errors import FileFormatError, UnknownNameError


def read(folder: Path, *lines: str, name: str = "rows.csv") -> list[Rows]:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return rows_of(read_table(path))


def sizes(rows: Rows, row: int = 0) -> dict[str, float]:
    return dict(zip(SIZES[rows.family], rows.sizes[row].tolist(), strict=True))


def test_gemm_in_16_bit_and_in_named_formats(tmp_path: Path) -> None:
    (plain,) = read(tmp_path, "kernel_source,m,n,k,latency_us", "torch_linear,2,1024,4096,10.5")
    assert (plain.family, plain.dtype) == (Family.GEMM, "bf16")
    assert sizes(plain) == {"tokens": 2, "outputs": 1024, "inputs": 4096}
    assert plain.time_s.tolist() == pytest.approx([10.5e-6])
    lines = ("gemm_dtype,m,n,k,latency_us", "fp8,1,8,8,1", "int4_wo,1,8,8,1", "nvfp4,1,8,8,1", "fp8_block,1,8,8,1")
    assert [part.dtype for part in read(tmp_path, *lines)] == ["fp8", "int4", "nvfp4", "fp8_block"]


def test_tables_in_milliseconds(tmp_path: Path) -> None:
    (rows,) = read(tmp_path, "op_name,gemm_dtype,m,n,k,latency", "gemm,bfloat16,1,8,8,0.25")
    assert rows.time_s.tolist() == pytest.approx([0.25e-3])


def test_decode_and_context_attention(tmp_path: Path) -> None:
    heads = "num_heads,num_key_value_heads,kv_cache_dtype,batch_size"
    (decode,) = read(tmp_path, f"{heads},kv_len,latency_us", "32,8,bfloat16,4,1024,20")
    assert sizes(decode) == {
        "keys": 1024,
        "requests": 4,
        "queries": 1,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "causal": 0,
    }
    (context,) = read(tmp_path, f"{heads},isl,latency_us", "32,8,bfloat16,2,64,20")
    assert (sizes(context)["keys"], sizes(context)["queries"], sizes(context)["causal"]) == (64, 64, 1)


def test_attention_tables_count_the_new_token_and_leave_windows_out(tmp_path: Path) -> None:
    header = "num_heads,num_key_value_heads,head_dim,kv_cache_dtype,attn_dtype,batch_size,isl,step,window_size,latency"
    (rows,) = read(
        tmp_path,
        header,
        "32,8,64,bfloat16,bfloat16,4,1,1023,0,0.02",
        "32,8,64,bfloat16,bfloat16,4,1,1023,128,0.01",
        "32,8,64,bfloat16,bfloat16,4,512,0,0,0.5",
    )
    assert len(rows) == 2
    assert (sizes(rows)["keys"], sizes(rows)["queries"], sizes(rows)["causal"]) == (1024, 1, 0)
    assert (sizes(rows, 1)["keys"], sizes(rows, 1)["queries"], sizes(rows, 1)["causal"]) == (512, 512, 1)


def test_experts_share_out_and_name_their_routing(tmp_path: Path) -> None:
    header = "moe_dtype,hidden_size,inter_size,topk,num_experts,moe_tp_size,distribution,num_tokens,latency_us"
    rows = joined(
        read(tmp_path, header, "fp8,4096,1536,8,128,8,power_law_1.2,16,99", "fp8,4096,1536,8,128,1,balanced,16,99")
    )[0]
    assert sizes(rows) == {
        "tokens": 16,
        "hidden": 4096,
        "intermediate": 192,
        "experts": 128,
        "per_token": 8,
        "skewed": 1.2,
    }
    assert sizes(rows, 1)["skewed"] == 0.0


@pytest.mark.parametrize("routing", ["zipf_1.2", "power_law_", "power_law_x", "xpower_law_1.2", ""])
def test_a_routing_that_is_not_known_is_not_taken_for_balanced(tmp_path: Path, routing: str) -> None:
    header = "moe_dtype,hidden_size,inter_size,topk,num_experts,moe_tp_size,distribution,num_tokens,latency_us"
    rows = ("fp8,4096,1536,8,128,1,balanced,16,99", f"fp8,4096,1536,8,128,1,{routing},16,99")
    with pytest.raises(
        FileFormatError, match=rf"rows\.csv:3: unknown routing '{routing}' in column distribution"
    ) as caught:
        read(tmp_path, header, *rows)
    assert "`--select distribution=balanced`" in caught.value.hint


def test_all_reduce_counts_bytes_and_captured_graphs(tmp_path: Path) -> None:
    (rows,) = read(
        tmp_path,
        "kernel_source,num_gpus,elements_bf16,latency_us",
        "vLLM_custom_graph,4,1024,5",
        "vLLM_custom_eager,4,1024,25",
    )
    assert sizes(rows) == {"message_bytes": 2048, "tp": 4}
    assert len(rows) == 1


def test_vidur_is_half_precision(tmp_path: Path) -> None:
    (rows,) = read(tmp_path, "model,tp,op,m,n,k,latency_us", "Llama-2-70b-hf,1,attn_pre_proj,1,10240,8192,63.0")
    assert rows.dtype == "fp16"


def test_our_own_rows(tmp_path: Path) -> None:
    gemm, tree = read(
        tmp_path,
        '{"operator": "gemm", "dtype": "fp8", "tokens": 4, "outputs": 64, "inputs": 32, "time_s": 1e-5}',
        '{"operator": "tree_attention", "requests": 2, "queries": 8, "keys": 520, "heads": 8, "kv_heads": 2, '
        '"head_dim": 64, "dtype": "bf16", "time_s": 2e-5}',
        name="rows.jsonl",
    )
    assert (gemm.family, gemm.dtype, gemm.time_s.tolist()) == (Family.GEMM, "fp8", [1e-5])
    assert sizes(tree) == {
        "keys": 520,
        "requests": 2,
        "queries": 8,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "causal": 0,
    }
    assert tree.place(0).endswith("rows.jsonl:2")


def test_unknown_columns_operators_and_missing_sizes(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no known kind of timing rows has the columns speed"):
        read(tmp_path, "speed", "1")
    with pytest.raises(UnknownNameError, match="unknown operator 'gem'"):
        read(tmp_path, "operator,time_s", "gem,1")
    with pytest.raises(FileFormatError, match="gemm rows lack the column inputs"):
        read(tmp_path, "operator,tokens,outputs,time_s", "gemm,1,2,1")
