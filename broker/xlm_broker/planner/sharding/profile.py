"""What was measured on one machine: kernel times and link rates. Pure data; the file is profile_store's business.

Shapes. One point names an operation of ggml, a weight type and four numbers whose meaning depends on the operation:

    MUL_MAT         (k, n, 0, 0)                     n x k weights times k x tokens activations
    MUL_MAT_ID      (k, n, n_expert, n_expert_used)  the same per expert; tokens x n_expert_used pairs
    FLASH_ATTN_EXT  (head_dim, n_head, n_head_kv, context)   type: the KV cache's
    RMS_NORM, ...   (elements of a row, 0, 0, 0)     element-wise; type F32
    GRAPH           (0, 0, 0, 0)                     one empty step: launch, synchronisation; CPU: waking
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

DeviceName = Literal["cpu", "gpu"]
Load = Literal["idle", "h2d", "d2h", "both"]  # what the link did while the kernel was timed
Memory = Literal["pinned", "pageable"]
Direction = Literal["h2d", "d2h"]

SHAPE_NUMBERS = 4
Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile depends on. Two equal keys are the same machine as far as times go."""

    cpu: str  # model name as the system reports it
    n_cores: int  # physical
    isa: str  # ggml-cpu's features, e.g. "AVX2,F16C,FMA"
    gpu: str  # the inner device's description; "" without one
    driver: str  # of the GPU; "" without one
    ggml: str  # version and commit

    def differences(self, other: ProfileKey) -> tuple[str, ...]:
        """One phrase for each field that differs, "ggml: 0.25.3 here, 0.25.2 in the profile"."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return tuple(f"{name}: {here} here, {there} in the profile" for name, here, there in pairs if here != there)


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """Median time of one operation. ``threads`` is 0 on the gpu."""

    device: DeviceName
    op: str
    type: str  # ggml's name: F16, Q4_0, Q6_K ...
    shape: Shape
    tokens: int
    threads: int
    load: Load
    ns: int


@dataclass(frozen=True, slots=True)
class LinkPoint:
    """Median time of one transfer. ``cpu_threads``: how many CPU threads computed meanwhile, 0 for an idle CPU."""

    direction: Direction
    memory: Memory
    size_bytes: int
    cpu_threads: int
    ns: int


@dataclass(frozen=True)
class MachineProfile:
    key: ProfileKey
    kernels: tuple[KernelPoint, ...] = ()
    links: tuple[LinkPoint, ...] = ()
    quick: bool = False  # a coarse grid
    complete: bool = True  # False: the measurement was interrupted; what is there is sound
    notes: dict[str, str] = field(default_factory=dict)
