"""Measured points, as the profile stores them. The meaning of ``shape`` by operation:

MUL_MAT         (k, n, 0, 0)                             n x k weights times k x tokens activations
MUL_MAT_ID      (k, n, n_expert, n_expert_used)          the same per expert
FLASH_ATTN_EXT  (head_dim, n_head, n_head_kv, context)   type: of the KV cache
RMS_NORM, ...   (elements of a row, 0, 0, 0)             element-wise; type F32
GRAPH           (0, 0, 0, 0)                             the smallest step: launch, synchronisation; cpu: waking
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

DeviceName = Literal["cpu", "gpu"]
Load = Literal["idle", "h2d", "d2h", "both"]
Direction = Literal["h2d", "d2h"]
Memory = Literal["pinned", "pageable"]
Shape = tuple[int, int, int, int]

NO_SHAPE: Final[Shape] = (0, 0, 0, 0)


class KernelId(NamedTuple):
    """Names one measurement. ``threads`` is 0 on the gpu."""

    device: DeviceName
    op: str
    type: str
    shape: Shape
    tokens: int
    threads: int
    load: Load


class LinkId(NamedTuple):
    """``cpu_threads``: how many threads of the CPU computed meanwhile; 0 for an idle CPU."""

    direction: Direction
    memory: Memory
    size_bytes: int
    cpu_threads: int


class KernelPoint(msgspec.Struct, frozen=True):
    """``ns``: of one operation, in a graph of many of them."""

    device: DeviceName
    op: str
    type: str
    shape: Shape
    tokens: int
    threads: int
    load: Load
    ns: int

    @classmethod
    def of(cls, name: KernelId, ns: float) -> KernelPoint:
        return cls(*name, ns=max(1, round(ns)))


class LinkPoint(msgspec.Struct, frozen=True):
    """``ns``: of one transfer."""

    direction: Direction
    memory: Memory
    size_bytes: int
    cpu_threads: int
    ns: int

    @classmethod
    def of(cls, name: LinkId, ns: float) -> LinkPoint:
        return cls(*name, ns=max(1, round(ns)))
