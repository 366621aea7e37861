from __future__ import annotations

import importlib.util
import sys

import pytest

torch = pytest.importorskip("torch")

from treeopt.errors import InputError  # noqa: E402
from treeopt.extras import install_command  # noqa: E402
from treeopt.kernels.tensors import check_tensor, choose, jitted  # noqa: E402


def test_auto_is_torch_on_a_cpu_even_where_triton_could_interpret() -> None:
    assert choose("auto", torch.zeros(1)) == "torch"
    assert choose("torch", torch.zeros(1)) == "torch"


class OnGpu:
    is_cuda = True


def test_auto_is_triton_on_a_gpu_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"triton": True}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found.get(name))
    assert choose("auto", OnGpu()) == "triton"
    found.clear()
    assert choose("auto", OnGpu()) == "torch"


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match="triton is not installed") as refused:
        jitted("_attention_triton")
    assert refused.value.hint == install_command("gpu")
    with pytest.raises(InputError, match="triton is not installed"):
        choose("triton", torch.zeros(1))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1.0], "argument x: list is not a tensor"),
        (torch.zeros(2, 4), r"argument x: its shape is \[2, 4\]"),
        (torch.zeros(3), r"argument x: its shape is \[3\]"),
        (torch.zeros(3, 4).half(), "argument x: its dtype is torch.float16"),
        (torch.zeros(3, 4, device="meta"), "argument x: it is on meta"),
        (torch.zeros(4, 3).T, "argument x: the stride of its last dimension is 3"),
    ],
)
def test_tensors_are_checked_by_name(tensor: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_tensor("x", tensor, shape=(3, "D"), dtype=torch.float32, like=torch.zeros(1))


def test_free_sizes_and_strides_pass_unless_dense() -> None:
    wide = torch.zeros(3, 8)[:, :5]
    check_tensor("x", wide, shape=(3, "D"), dtype=torch.float32, like=wide)
    with pytest.raises(InputError, match=r"argument x: its strides are \[8, 1\]"):
        check_tensor("x", wide, shape=(3, "D"), dtype=torch.float32, like=wide, dense=True)
