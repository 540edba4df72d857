"""What ``xlm bench`` asks its measuring processes: one JSON object a line, one answer each.

request   {"do": name, ...}; fields as in Request
answer    {"error": "", "code": "", "value": {...}}; ``code`` names what failed, the process goes on
"""

from __future__ import annotations

from typing import Any

import msgspec

from xlm.protocol.link import Schedule


class Card(msgspec.Struct, kw_only=True, frozen=True):
    """Rates of the modelled card. All zero: everything on the device takes no time (for loading and filling)."""

    link_bytes_per_s: float = 0.0
    link_latency_ns: float = 0.0
    flops_per_s: float = 0.0
    memory_bytes_per_s: float = 0.0
    op_launch_ns: float = 0.0
    graph_launch_ns: float = 0.0


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """A static setting of stock llama.cpp. ``on_cpu``: a regular expression of tensors that stay there (-ot)."""

    device: bool = True  # False: llama.cpp is not told of the card
    n_gpu_layers: int = 0
    on_cpu: str = ""
    kv_on_device: bool = True  # offload_kqv
    offload: bool = True  # op_offload: large steps copy host weights to the device
    repack: bool = False  # no_host: CPU weights in ggml-cpu's own layouts, not in the device's host buffers


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    do: str
    path: str = ""
    n_ctx: int = 0
    n_ubatch: int = 512
    n_threads: int = 0
    exact: bool = False
    vram_bytes: int = 0
    budget_bytes: int = 0
    setting: Setting | None = None
    schedule: Schedule | None = None
    card: Card | None = None
    depth: int = 0
    tokens: int = 0
    steps: int = 0
    limit_s: float = 0.0
    lead: int = 0
    prompt: list[int] = []


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    error: str = ""
    code: str = ""
    value: dict[str, Any] = {}
