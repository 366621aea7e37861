"""Damage: what disks, editors, copies, other programs and hostile hands do to a file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

import numpy as np
import yaml

EXTREMES: Final = (
    *("nan", ".nan", "inf", "-.inf", "Infinity", "-1", "0", "-0.0", "1", "2", "3", "0.1", "0.5", "1.0000001", "4.5"),
    *("1e308", "-1e308", "1e-308", "1e400", "9223372036854775808", "-9223372036854775809", "18446744073709551616"),
    *("1_000", "0x10", "1e5", "1e15", "100000", "4097", "1000000000", "9" * 30, "9" * 5000, "٣", "", "true", "null"),
    *("~", "'1'", '"x"', "2026-01-01", "[]", "{}", "[0]", "1,5", "1 000", "+1", "--1", "50%", "1e"),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 1e308, -1e308, 1e-300, 2**31, 2**53, 2**63, 2**64, 10**40),
    *(float("nan"), float("inf"), "", "x", "1", "nan", "1_000", "../x", "/dev/null", "\x00", "é" * 9, "x" * 3000),
    *([], [0], [[0]], [None], {}, {"x": 1}, [[], []], [1, 2, 3], ["a", "b"], [1e308, 1e308], "\ud800"),
)
PIECES: Final = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\r\n",
        b"\n",
        b"\t",
        b" ",
        b",",
        b";",
        b'"',
        b"'",
        b"#",
        b"{",
        b"]",
    ),
    *(b"\xe2\x80\xa8", b"\x1b[31m", b"[" * 3000, b"- " * 500, b"a: &a [*a]\n", b"!!python/object:os.system x\n"),
    *(b"9" * 400, b"\xed\xa0\x80", b"---\n", b"...\n", b"&x ", b"*x", b"<<: *x\n", b": ", b"\\u0000", b"\x1a"),
)
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
Change = Callable[[bytes, Random], bytes]


def flipped(data: bytes, rng: Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def cut(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.8 else data[at:]


def inserted(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(PIECES) + data[at + rng.choice((0, 0, 1, 9)) :]


def lines_moved(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines = lines[:i] * 2 + lines[i:]
    return b"\n".join(lines)


def number_swapped(data: bytes, rng: Random) -> bytes:
    found = list(_NUMBER.finditer(data[: 1 << 16]))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if found:
            at = rng.choice(found)
            if at.end() <= len(data):
                data = data[: at.start()] + rng.choice(EXTREMES).encode() + data[at.end() :]
                found = list(_NUMBER.finditer(data[: 1 << 16]))
    return data


def encoded(data: bytes, rng: Random) -> bytes:
    text = data.decode("utf-8", errors="replace")
    kind = rng.randrange(5)
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind == 1:
        return text.encode("utf-16")
    if kind == 2:
        return text.replace("a", "ä").encode("latin-1", errors="replace")
    if kind == 3:
        return data.replace(b"\n", b"\r" if rng.random() < 0.5 else b"\r\n")
    return data.replace(b" ", "\u00a0".encode())


def _changed(value: Any, rng: Random, depth: int = 0) -> Any:
    """A value in which one place is changed."""
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or rng.random() < 0.15:
        return _replaced(value, rng)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.15:
            return {**value, rng.choice(("x", "", "format", str(key).upper(), "0", "\x00")): rng.choice(VALUES)}
        if kind < 0.2:
            return {(f"{key} " if k == key else k): v for k, v in value.items()}
        return {**value, key: _changed(value[key], rng, depth + 1)}
    i = rng.randrange(len(value))
    kind = rng.random()
    if kind < 0.1:
        return value[:i] + value[i + 1 :]
    if kind < 0.2:
        return value[:i] + [value[i]] * rng.choice((2, 2, 40)) + value[i + 1 :]
    return [*value[:i], _changed(value[i], rng, depth + 1), *value[i + 1 :]]


def _replaced(value: Any, rng: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((-value, value * 1e3, value * 1e-3, value + 1, value - 1, float(value), str(value), [value]))
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice((value.upper(), value[:-1], value + "x", [value], f"{value}\n", f" {value}"))
    return rng.choice(VALUES)


def tree_changed(data: bytes, rng: Random) -> bytes:
    """JSON, JSON lines or YAML whose values are changed in place."""
    text = data.decode()
    times = rng.choice((1, 1, 1, 2, 4))
    try:
        value = json.loads(text)
    except ValueError:
        lines = text.split("\n")
        rows = [i for i, line in enumerate(lines) if line.startswith("{")]
        if rows:
            i = rng.choice(rows)
            lines[i] = json.dumps(_changed(json.loads(lines[i]), rng))
            return "\n".join(lines).encode()
        value = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(value, dict | list):
            raise ValueError("not a tree") from None
        for _ in range(times):
            value = _changed(value, rng)
        return yaml.dump(value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False).encode(
            errors="surrogateescape"
        )
    for _ in range(times):
        value = _changed(value, rng)
    return json.dumps(value).encode()


def cell_changed(data: bytes, rng: Random) -> bytes:
    """A table whose cells or columns are changed."""
    rows = [line.split(",") for line in data.decode().split("\n")]
    row = rng.randrange(len(rows))
    column = rng.randrange(len(rows[row]))
    kind = rng.random()
    if kind < 0.6:
        rows[row][column] = rng.choice(EXTREMES)
    elif kind < 0.7:
        del rows[row][column]
    elif kind < 0.8:
        rows[0][rng.randrange(len(rows[0]))] = rng.choice(("batch", "k", "m", "", "x", rows[0][0]))
    else:
        rows[row].insert(column, rng.choice(EXTREMES))
    return "\n".join(",".join(row) for row in rows).encode()


def arrays_changed(data: bytes, rng: Random) -> bytes:
    """An archive whose arrays are missing, swapped, of other shapes, types and values."""
    with np.load(io.BytesIO(data)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(arrays))
        kind = rng.randrange(4)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            other = rng.choice(list(arrays))
            arrays[name], arrays[other] = arrays[other], arrays[name]
        else:
            arrays[name] = _reshaped(arrays[name], rng) if kind == 2 else _revalued(arrays[name], rng)
        if not arrays:
            break
    file = io.BytesIO()
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _reshaped(array: np.ndarray, rng: Random) -> np.ndarray:
    kind = rng.randrange(7)
    if kind == 0 or array.ndim == 0:
        return array[None]
    if kind == 1:
        return array[: rng.randrange(len(array) + 1)]
    if kind == 2:
        return array.T
    if kind == 3:
        return np.asfortranarray(array)
    if kind == 4:
        return array.reshape(-1)
    if kind == 5:
        return np.concatenate([array, array])
    return array[:, :0] if array.ndim > 1 else array[:0]


def _revalued(array: np.ndarray, rng: Random) -> np.ndarray:
    if array.dtype.kind not in "iuf":
        return np.array(rng.choice(("", "{}", "[]", "x", '{"temperature": -1}', '{"temperature": NaN}', '{"a": 1}')))
    kind = rng.randrange(5)
    if kind == 0:
        types = ("float16", "float32", "float64", "int8", "int64", "uint64", "bool", "complex64", "U5", "M8[s]", "V4")
        try:
            return array.astype(rng.choice(types))
        except (TypeError, ValueError):
            return array.astype(np.float64)
    values = array.astype(np.float64) if kind < 3 else array.copy()
    flat = values.reshape(-1)
    if len(flat):
        extreme = rng.choice((np.nan, np.inf, -1.0, -2.0, 1e308, 0.5, 40000.0, -40000.0))
        with np.errstate(all="ignore"):
            bounds = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
            whole = bounds is not None
            flat[rng.randrange(len(flat))] = (
                (bounds.max if extreme > 0 else bounds.min) if whole and bounds else extreme
            )
    return values


BYTES: Final[tuple[Change, ...]] = (flipped, cut, inserted, lines_moved, number_swapped, number_swapped, encoded)


def changes_of(name: str, data: bytes) -> tuple[Change, ...]:
    """What may be done to a file of that name and content."""
    if data[:2] == b"PK" and name.endswith(".npz"):
        return (arrays_changed, arrays_changed, arrays_changed, flipped, cut, inserted)
    if name.endswith(".csv"):
        return (*BYTES, cell_changed, cell_changed, cell_changed)
    if b"\0" in data[:64] or data[:2] in (b"PK", b"PA", b"\x80\x02"):
        return (flipped, flipped, cut, inserted)
    return (*BYTES, tree_changed, tree_changed, tree_changed, tree_changed)


def mutated(name: str, data: bytes, rng: Random) -> bytes:
    """The file with one to three things done to it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(changes_of(name, data))
        try:
            data = change(data, rng)
        except Exception:  # what is damaged already may be no tree, table or archive any more
            data = rng.choice((flipped, cut, inserted))(data, rng)
    return data
