"""The work of a model file's sub-layers, from its header alone. The file is read by a child process of the engine's
package (``xlm_engine.gguf_describe``): a damaged or hostile file never meets the broker.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xlm.errors import ModelError, ShapeError, from_code
from xlm.protocol.link import Kind
from xlm_broker.planner.memory import tier_tokens
from xlm_broker.planner.sharding.quant import weight_type
from xlm_broker.planner.sharding.shapes import (
    ModelShape,
    router_product,
    scratch_bytes,
)
from xlm_broker.planner.sharding.tensors import FileTensor, expert_products, grouped, products
from xlm_broker.planner.sharding.work import Attention, ModelWork, Unit, of_outputs

READ_TIMEOUT_S: Final = 60.0
MAX_PIECE_BYTES: Final = 64 << 20

_ORDER: Final = ("attention", "extras", "shared_experts", "experts", "ffn")


def read_header(path: Path) -> dict[str, Any]:
    """The header as gguf_describe prints it. ModelError for a file that cannot be used."""
    command = [sys.executable, "-m", "xlm_engine.gguf_describe", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False, text=True)
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ModelError(f"the header of {path} could not be read", code="model_unreadable") from error
    if "error" in answer:
        raise from_code(answer["error"]["code"], answer["error"]["message"], hint=answer["error"]["hint"])
    return dict(answer)


def work_from_gguf(path: Path, *, n_ctx: int = 0, n_ubatch: int = 512, kv_type: str = "F16") -> ModelWork:
    """``n_ctx`` 0: the length the model was trained for. ModelError, ShapeError."""
    return work_from_header(path.name, read_header(path), n_ctx=n_ctx, n_ubatch=n_ubatch, kv_type=kv_type)


def work_from_header(name: str, header: Mapping[str, Any], *, n_ctx: int, n_ubatch: int, kv_type: str) -> ModelWork:
    reader = _Header(name, header["metadata"], header["tensors"])
    context = n_ctx or reader.number("context_length")
    if context <= 0 or n_ubatch <= 0:
        raise ShapeError(f"context {context} and ubatch {n_ubatch} must be positive", code="shape_invalid")
    shape = reader.shape()
    units = reader.units(shape, context, kv_type)
    return ModelWork(
        name=name,
        units=tuple(units),
        n_embd=shape.n_embd,
        n_ctx=context,
        n_ubatch=n_ubatch,
        small_bytes=reader.small_bytes,
        scratch_bytes={tokens: scratch_bytes(shape, tokens) for tokens in tier_tokens(n_ubatch)},
        n_sublayers=len(units),
        fallbacks=tuple(reader.notes),
        n_ctx_train=max(0, reader.number("context_length")),
    )


@dataclass
class _Header:
    name: str
    metadata: Mapping[str, Any]
    raw: list[list[Any]]
    notes: list[str] = field(default_factory=list)
    small_bytes: int = 0

    def __post_init__(self) -> None:
        self.architecture = str(self.metadata.get("general.architecture", ""))
        self.tensors = [self._tensor(*entry) for entry in self.raw]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _tensor(self, name: str, type_id: int, n_columns: int, n_elements: int, n_bytes: int) -> FileTensor:
        tensor = FileTensor.of(name, type_id, n_columns, n_elements, n_bytes)
        if not tensor.known:
            self.note(f"unknown quantisation (ggml type {type_id}): times of {tensor.type}")
        return tensor

    def number(self, key: str) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0

    def shape(self) -> ModelShape:
        """The numbers the time model needs. ShapeError for a file without them."""
        n_embd, heads = self.number("embedding_length"), self.number("attention.head_count")
        layers = self.number("block_count")
        if min(n_embd, layers) <= 0 or not self.tensors:
            raise ShapeError(f"{self.name} says no width or number of layers", code="shape_invalid")
        heads = heads or max(1, n_embd // 128)
        embedding = sum(t.n_elements for t in self.tensors if t.name == "token_embd.weight")
        return ModelShape(
            name=self.name, n_layer=layers, n_embd=n_embd, n_head=heads,
            n_head_kv=self.number("attention.head_count_kv") or heads,
            head_dim=self.number("attention.key_length") or max(1, n_embd // heads),
            n_vocab=max(1, embedding // n_embd), n_ff=self.number("feed_forward_length"),
            n_expert=self.number("expert_count"), n_expert_used=self.number("expert_used_count"),
            n_ff_expert=self.number("expert_feed_forward_length") or self.number("feed_forward_length"),
        )  # fmt: skip

    def units(self, shape: ModelShape, n_ctx: int, kv_type: str) -> tuple[Unit, ...]:
        groups = grouped(self.tensors)
        self.small_bytes = sum(t.n_bytes for key, tensors in groups.items() if key[1] == "small" for t in tensors)
        groups = {key: tensors for key, tensors in groups.items() if key[1] != "small"}
        layers = sorted((k for k in groups if k[1] in _ORDER), key=lambda k: (k[0], _ORDER.index(k[1])))
        last = sorted((k for k in groups if k[1] not in _ORDER), key=lambda k: k[1])
        return of_outputs(self._unit(i, *k, groups[k], shape, n_ctx, kv_type) for i, k in enumerate([*layers, *last]))

    def _unit(
        self, index: int, layer: int, kind: Kind, tensors: list[FileTensor], shape: ModelShape, n_ctx: int, kv_type: str
    ) -> Unit:
        sparse = kind == "experts" and 0 < shape.n_expert_used <= shape.n_expert
        row_bytes = 2.0 * shape.n_head_kv * shape.head_dim * weight_type(kv_type).bytes_per_weight
        cache = Attention(kv_type, shape.head_dim, shape.n_head, shape.n_head_kv, row_bytes)
        has_kv = kind == "attention" and any("attn_k" in t.name or "attn_qkv" in t.name for t in tensors)
        return Unit(
            index=index,
            layer=layer,
            kind=kind,
            device_bytes=sum(t.n_bytes for t in tensors),
            kv_bytes=round(row_bytes * n_ctx) if has_kv else 0,
            piece_bytes=min(max((t.n_bytes for t in tensors), default=0), MAX_PIECE_BYTES),
            matmuls=(router_product(shape.n_embd, shape.n_expert),) if sparse else products(tensors),
            experts=expert_products(tensors, shape.n_expert, shape.n_expert_used) if sparse else (),
            attention=cache if has_kv else None,
            small_ops=shape.small_ops(kind),
        )
