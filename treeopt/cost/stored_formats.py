"""The number formats that a checkpoint is stored in, from the `quantization_config` of its config.json."""

from __future__ import annotations

from typing import Final, NamedTuple

from treeopt.cost.formats import Dtype
from treeopt.files.documents import Field

_MIXED_EXPERTS: Final = "self_attn"  # a module left alone that says: only the experts are quantised


class StoredFormats(NamedTuple):
    """What weights and KV cache are stored in, by the names of `WeightFormats.parse`; `note` is what is not known."""

    dtype: str
    kv_dtype: str | None = None
    note: str = ""


def stored_formats(config: Field) -> StoredFormats:
    """The formats of a config.json; 16-bit where it names no quantisation.

    Methods: fp8 (blocks by `weight_block_size`), awq, gptq, mxfp4, bitsandbytes, compressed-tensors, modelopt.
    """
    text = config.get("text_config") if "text_config" in config.mapping() else config
    stored = str(
        text.mapping().get("torch_dtype") or text.mapping().get("dtype") or config.mapping().get("torch_dtype")
    )
    wide = "fp16" if stored == "float16" else "bf16"
    field = next((c for c in (config, text) if isinstance(c.mapping().get("quantization_config"), dict)), None)
    if field is None:
        return StoredFormats(wide)
    quantization = field.get("quantization_config")
    method = str(quantization.get("quant_method", "").value).lower()
    found = _of_method(method, quantization)
    if found is None:
        return StoredFormats(wide, note=f"its quantization '{method}' has no price: weights count as {wide}")
    skipped = str(quantization.mapping().get("modules_to_not_convert") or quantization.mapping().get("ignore") or "")
    experts_only = _MIXED_EXPERTS in skipped
    return StoredFormats(f"{wide}/{found}" if experts_only else _name(found), _kv_dtype(quantization))


def _name(dtype: Dtype) -> str:
    # A checkpoint that says one scale per tensor means it, with experts too.
    return "fp8_tensor" if dtype is Dtype.FP8 else str(dtype)


def _of_method(method: str, quantization: Field) -> Dtype | None:
    given = quantization.mapping()
    if method in ("fp8", "fbgemm_fp8"):
        if given.get("weight_block_size"):
            return Dtype.FP8_BLOCK
        return Dtype.FP8_STATIC if given.get("activation_scheme") == "static" else Dtype.FP8
    if method == "mxfp4":
        return Dtype.MXFP4
    if method in ("awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin"):
        return Dtype.INT4 if given.get("bits", given.get("w_bit", 4)) == 4 else None
    if method == "bitsandbytes":
        return Dtype.INT4 if given.get("load_in_4bit") else None
    if method == "compressed-tensors":
        groups = given.get("config_groups")
        group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        return _compressed(str(given.get("format", "")), group) if isinstance(group, dict) else None
    if method == "modelopt":
        algorithm = str(given.get("quant_algo") or "").upper()
        known = {"FP8": Dtype.FP8_STATIC, "NVFP4": Dtype.NVFP4, "W4A16_AWQ": Dtype.INT4, "FP8_PB_WO": Dtype.FP8_BLOCK}
        return known.get(algorithm)
    return None


def _compressed(name: str, group: dict[str, object]) -> Dtype | None:
    """The format of one group of compressed-tensors, by the bits of its weights and what it says of activations."""
    weights, activations = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        return None
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    if kind == "float" and bits == 8:
        if strategy == "block":
            return Dtype.FP8_BLOCK
        fixed = isinstance(activations, dict) and not activations.get("dynamic")
        return Dtype.FP8_STATIC if fixed else Dtype.FP8
    if kind == "float" and bits == 4:
        return Dtype.MXFP4 if name.startswith("mxfp4") or weights.get("group_size") == 32 else Dtype.NVFP4
    if kind == "int" and bits == 8 and isinstance(activations, dict):
        return Dtype.INT8
    return Dtype.INT4 if kind == "int" and bits == 4 and activations is None else None


def _kv_dtype(quantization: Field) -> str | None:
    scheme = quantization.mapping().get("kv_cache_scheme")
    algorithm = str(quantization.mapping().get("kv_cache_quant_algo") or "").upper()
    is_8_bit = isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    return str(Dtype.FP8) if is_8_bit or algorithm == "FP8" else None
