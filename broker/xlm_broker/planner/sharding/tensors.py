"""From the tensors of a model file to the operations of its sub-layers: which part a name belongs to, and its shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from xlm.protocol.link import Kind

from .quant import weight_type
from .work import Experts, MatMul

# ggml_type of ggml.h
TYPE_NAMES: Final[Mapping[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

# (kind, pattern of the name behind "blk.N."), the first that matches; as the native backend has it (classify.cpp)
_CLASSES: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("small", re.compile(r".*(norm|scale|bias|exp_probs_b|ffn_gate_inp|sinks|rope_)")),
    ("experts", re.compile(r"ffn_(gate|up|down|gate_up)_(exps|chexps)")),
    ("shared_experts", re.compile(r"ffn_(gate|up|down)_shexp")),
    ("extras", re.compile(r"(inp_gate|proj|ple_|altup_|laurel_|per_layer)")),
    ("attention", re.compile(r"(attn|indexer|ssm_|shortconv|time_mix_|hc_attn_|cross_attn_)")),
    ("ffn", re.compile(r"(ffn_|channel_mix_|hc_ffn_)")),
)
_LOOKUP: Final = re.compile(r"(token_embd|position_embd|token_types|per_layer_token_embd)")
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.*)")


@dataclass(frozen=True, slots=True)
class FileTensor:
    """``type`` is ggml's name. ``n_columns``: the first dimension, which a product sums over."""

    name: str
    type: str
    n_columns: int
    n_elements: int
    n_bytes: int
    known: bool = True  # False: of a type without a name here; ``type`` is the stand-in

    @classmethod
    def of(cls, name: str, type_id: int, n_columns: int, n_elements: int, n_bytes: int) -> FileTensor:
        """An unknown type is the default's, marked so."""
        found = weight_type(TYPE_NAMES.get(type_id, "?"))
        size = n_bytes if n_bytes > 0 else round(n_elements * found.bytes_per_weight)
        return cls(name, found.name, max(1, n_columns), max(0, n_elements), size, found.known)


def classify(name: str) -> tuple[int, Kind]:
    """(layer, kind); layer -1 for what has none."""
    found = _LAYER.match(name)
    if found is None:
        if _LOOKUP.match(name):
            return -1, "lookup"
        return -1, "small" if "norm" in name or "rope" in name or name.endswith(".bias") else "output"
    layer, rest = int(found.group(1)), found.group(2)
    for kind, pattern in _CLASSES:
        if pattern.match(rest):
            return layer, kind
    return layer, "extras"


def grouped(tensors: Iterable[FileTensor]) -> dict[tuple[int, Kind], list[FileTensor]]:
    """By (layer, kind); a tied embedding serves as output too, and look-ups are left out."""
    groups: dict[tuple[int, Kind], list[FileTensor]] = {}
    embedding: list[FileTensor] = []
    for tensor in tensors:
        layer, kind = classify(tensor.name)
        if kind != "lookup":
            groups.setdefault((layer, kind), []).append(tensor)
        elif tensor.name == "token_embd.weight":
            embedding.append(tensor)
    if embedding and not any(kind == "output" for _, kind in groups):
        groups[-1, "output"] = embedding
    return groups


def products(tensors: Iterable[FileTensor]) -> tuple[MatMul, ...]:
    """One for each matrix; vectors are part of small operations."""
    matrices = (t for t in tensors if t.n_elements > t.n_columns)
    return tuple(MatMul(t.type, t.n_columns, t.n_elements // t.n_columns, float(t.n_bytes)) for t in matrices)


def expert_products(tensors: Iterable[FileTensor], n_expert: int, n_used: int) -> tuple[Experts, ...]:
    """One for each matrix of experts, all of them stacked in one tensor."""
    return tuple(
        Experts(t.type, t.n_columns, max(1, t.n_elements // t.n_columns // n_expert), n_expert, n_used,
                float(t.n_bytes))
        for t in tensors
        if t.n_elements > t.n_columns
    )  # fmt: skip
