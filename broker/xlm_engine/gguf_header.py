"""Reads the header of a GGUF file without llama.cpp, and without trusting it.

Every count and length is held against what is left of the file before anything
is allocated or looped over, so a hostile header costs at most one pass over
the file's own bytes. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from xlm.errors import ModelError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_KV: Final = 1 << 16
MAX_TENSORS: Final = 1 << 20
MAX_KEY: Final = 1 << 16
MAX_KEPT_STRING: Final = 1 << 20
MAX_KEPT_ARRAY: Final = 1 << 12  # longer arrays are stepped over, only their length is kept

# value type -> struct code; 8 is string, 9 is array
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9

# ggml type -> (elements in a block, bytes of a block): ggml.c's type_traits of ggml 0.25.3
TYPE_SIZES: Final[dict[int, tuple[int, int]]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    n_elements: int
    type: int
    offset: int  # bytes, from the start of the data section
    n_columns: int = 1  # the first dimension

    @property
    def n_bytes(self) -> int:
        """Size in the file; 0 for a type this table does not know."""
        block, size = TYPE_SIZES.get(self.type, (1, 0))
        return self.n_elements // block * size


@dataclass(slots=True)
class ArrayInfo:
    """An array too long to keep."""

    length: int


@dataclass(slots=True)
class Header:
    """What the file says of itself. ``data_start`` is where tensor data begins."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    data_start: int = 0

    def number(self, key: str) -> int:
        """An integer value; the largest of an array; 0 if it is missing or no number."""
        value = self.metadata.get(key, 0)
        if isinstance(value, list):
            value = max((v for v in value if isinstance(v, int)), default=0)
        return value if isinstance(value, int) else 0

    def text(self, key: str) -> str:
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def needed_file_bytes(self) -> int:
        return self.data_start + max((t.offset + t.n_bytes for t in self.tensors), default=0)


class _Truncated(Exception):
    """The file ends before its header does."""


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data: Final = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def need(self, n_bytes: int) -> None:
        if n_bytes > self.left:
            raise _Truncated

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def string(self, limit: int) -> str:
        """A string; one longer than ``limit`` is stepped over and comes back empty."""
        length = self.scalar("Q")
        self.need(length)
        raw = self.data[self.at : self.at + length] if length <= limit else b""
        self.at += length
        return raw.decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        unpack, data, at, end = struct.Struct("<Q").unpack_from, self.data, self.at, len(self.data)
        for _ in range(count):
            if at + 8 > end:
                raise _Truncated
            at += 8 + unpack(data, at)[0]
        self.at = min(at, end)
        if at > end:
            raise _Truncated

    def value(self) -> Any:
        kind = self.scalar("I")
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string(MAX_KEPT_STRING)
        if kind == _ARRAY:
            return self.array()
        raise _invalid(f"unknown value type {kind}")

    def array(self) -> Any:
        kind, length = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            self.need(8 * length)
            if length <= MAX_KEPT_ARRAY:
                return [self.string(MAX_KEPT_STRING) for _ in range(length)]
            self.skip_strings(length)
            return ArrayInfo(length)
        if kind not in _SCALARS:
            raise _invalid(f"array of type {kind}")
        return self.numbers(_SCALARS[kind], length)

    def numbers(self, code: str, length: int) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size * length)
        start, self.at = self.at, self.at + size * length
        if length > MAX_KEPT_ARRAY:
            return ArrayInfo(length)
        return list(struct.unpack_from(f"<{length}{code}", self.data, start))

    def tensor(self) -> Tensor:
        name = self.string(MAX_KEY)
        n_dims = self.scalar("I")
        if n_dims > 4:
            raise _invalid(f"tensor {name!r} has {n_dims} dimensions")
        dims = [self.scalar("Q") for _ in range(n_dims)]
        return Tensor(name, prod(dims), self.scalar("I"), self.scalar("Q"), dims[0] if dims else 1)


def _invalid(what: str) -> ModelError:
    return ModelError(f"the GGUF header is damaged: {what}", code="model_invalid", hint="download the file again")


def parse(path: Path) -> Header:
    """The header of a non-empty file. ModelError ``model_bad_magic``, ``model_truncated``, ``model_invalid``."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != MAGIC:
            raise ModelError(f"{path} does not begin with GGUF", code="model_bad_magic")
        try:
            return _parse(_Reader(data))
        except _Truncated as error:
            raise ModelError(f"{path} ends within its header", code="model_truncated") from error


def _parse(reader: _Reader) -> Header:
    reader.at = len(MAGIC)
    version = reader.scalar("I")
    if version not in VERSIONS:
        raise ModelError(f"GGUF version {version} is not supported", code="model_invalid", hint="convert it again")
    n_tensors, n_kv = reader.scalar("Q"), reader.scalar("Q")
    if n_tensors > MAX_TENSORS or n_kv > MAX_KV:
        raise _invalid(f"{n_tensors} tensors and {n_kv} metadata keys")
    header = Header()
    for _ in range(n_kv):
        key = reader.string(MAX_KEY)
        header.metadata[key] = reader.value()
    header.tensors = [reader.tensor() for _ in range(n_tensors)]
    header.data_start = _aligned(reader.at, header.number("general.alignment") or 32)
    return header


def _aligned(offset: int, alignment: int) -> int:
    if alignment <= 0 or alignment & (alignment - 1):
        raise _invalid(f"alignment {alignment}")
    return (offset + alignment - 1) // alignment * alignment
