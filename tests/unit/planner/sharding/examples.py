"""Models and machines as facts, for tests. Shapes are public; rates are round numbers of their class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xlm.protocol.link import RESIDENT, STREAM, DeviceFacts, ModelFacts, SubLayer, Tier
from xlm_broker.planner.sharding.costs import Capabilities
from xlm_broker.planner.sharding.hardware import Machine, machine_from_row
from xlm_broker.planner.sharding.plan import Planning, prepare
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry
from xlm_broker.planner.sharding.workload import Workload

MIB = 1 << 20

DENSE: dict[str, Any] = {
    "n_layer": 40, "n_embd": 4096, "n_head": 32, "n_head_kv": 8, "head_dim": 128, "n_ff": 11520, "n_vocab": 131072,
    "weights": "F16", "file_gib": 15.7,
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "n_layer": 94, "n_embd": 4096, "n_head": 64, "n_head_kv": 4, "head_dim": 128, "n_expert": 128, "n_expert_used": 8,
    "n_ff_expert": 1536, "n_vocab": 151936, "weights": "Q2_K mix", "file_gib": 77.0,
}  # fmt: skip
TINY: dict[str, Any] = {  # its output matrix and caches weigh as much as its layers
    "n_layer": 30, "n_embd": 576, "n_head": 9, "n_head_kv": 3, "head_dim": 64, "n_ff": 1536, "n_vocab": 49152,
    "weights": "Q4_1",
}  # fmt: skip
DESKTOP = {
    "machine": "desktop", "gpu": "RTX 4070", "gpu_vram_gib": 12, "cpu_threads_used": 8, "ram_gib": 256,
    "ram_bandwidth_gb_s": 80, "pcie_h2d_gb_s": 24,
}  # fmt: skip
LAPTOP = {**DESKTOP, "machine": "laptop", "gpu": "RTX 4060", "ram_bandwidth_gb_s": 100, "pcie_h2d_gb_s": 12}
SIM = DeviceFacts(kind="sim", description="sim", total_bytes=4 << 30, link_bytes_per_s=12e9)


def small(entry: dict[str, Any], n_layer: int, n_vocab: int = 8192) -> dict[str, Any]:
    """The same model with fewer layers; its file size is not stated."""
    return {k: v for k, v in entry.items() if k != "file_gib"} | {"n_layer": n_layer, "n_vocab": n_vocab}


def planning(
    entry: dict[str, Any],
    row: dict[str, Any],
    *,
    n_ctx: int = 4096,
    n_ubatch: int = 512,
    workload: Workload | None = None,
    capabilities: Capabilities | None = None,
) -> Planning:
    work = model_work(shape_from_entry("example", entry), n_ctx=n_ctx, n_ubatch=n_ubatch)
    return prepare(work, machine(row), workload, capabilities=capabilities)


def machine(row: dict[str, Any]) -> Machine:
    return machine_from_row(row)


def facts(n_layer: int = 6, *, experts: bool = False, **options: Any) -> ModelFacts:
    """As an engine reports a model: small group, then attention and feed-forward of each layer, output, look-up."""
    subs = [SubLayer(index=0, layer=-1, kind="small", device_bytes=MIB)]
    for layer in range(n_layer):
        attention: dict[str, int] = {"device_bytes": 8 * MIB, "kv_bytes": 2 * MIB, "largest_piece_bytes": 3 * MIB}
        subs.append(SubLayer(index=len(subs), layer=layer, kind="attention", **attention))
        size = 64 * MIB if experts else 20 * MIB
        kind = "experts" if experts else "ffn"
        subs.append(
            SubLayer(index=len(subs), layer=layer, kind=kind, device_bytes=size, largest_piece_bytes=7 * MIB)  # type: ignore[arg-type]
        )
    subs.append(SubLayer(index=len(subs), layer=-1, kind="output", device_bytes=30 * MIB, largest_piece_bytes=8 * MIB))
    subs.append(SubLayer(index=len(subs), layer=-1, kind="lookup", device_bytes=0, host_bytes=30 * MIB))
    values: dict[str, Any] = {
        "n_ctx": 2048,
        "n_ubatch": 256,
        "scratch_bytes": {1: MIB, 256: 12 * MIB},
        "quantisation": "Q8_0",
    }
    return ModelFacts(**({"name": "example", "sublayers": subs} | values | options))


def kept_bytes(model: ModelFacts, tiers: Sequence[Tier]) -> int:
    """Weights and caches that the tables of these tiers keep between them."""
    total = 0
    for sub in model.sublayers:
        places = {tier.placement[sub.index] for tier in tiers}
        total += sub.device_bytes if RESIDENT in places else 0
        total += sub.kv_bytes if places & {RESIDENT, STREAM} else 0
    return total
