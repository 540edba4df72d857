"""A model from facts alone: an entry of models.json -> the work of its sub-layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from xlm.errors import ShapeError
from xlm_broker.planner.memory import tier_tokens

from .quant import DEFAULT_WEIGHTS, WeightType, weight_type
from .work import F32_BYTES, Attention, Experts, MatMul, ModelWork, SmallOp, Unit, of_outputs, small_ops

SHAPE_PIECE_BYTES: Final = 64 << 20  # large matrices are streamed in parts of this size
FILE_TOLERANCE: Final = 0.15  # stated and computed file size may differ by so much
KV_TYPES: Final = ("F16", "BF16", "F32", "Q8_0")
MAX_COUNT: Final = 1 << 24
MAX_LAYERS: Final = 4096  # each is two sub-layers in every table
MAX_FILE_GIB: Final = 1e5
FIELDS: Final = frozenset(
    {"arch", "n_layer", "n_embd", "n_head", "n_head_kv", "head_dim", "n_vocab", "n_ff", "n_expert", "n_expert_used",
     "n_ff_expert", "gated_ffn", "tied_embeddings", "weights", "file_gib", "n_ctx_train"}
)  # fmt: skip


@dataclass(frozen=True)
class ModelShape:
    """Numbers of a decoder with grouped-query attention and a dense or a sparse feed-forward part."""

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ff: int = 0  # dense
    gated: bool = True
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    tied: bool = False
    weights: WeightType = DEFAULT_WEIGHTS
    output: WeightType = DEFAULT_WEIGHTS
    fallbacks: tuple[str, ...] = ()
    n_ctx_train: int = 0  # 0: not known

    @property
    def sparse(self) -> bool:
        return self.n_expert > 0

    def small_ops(self, kind: str) -> tuple[SmallOp, ...]:
        """Of a sub-layer of that kind."""
        n_ff = self.n_ff_expert * self.n_expert_used if kind == "experts" else self.n_ff
        q, kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        used = max(1, self.n_expert_used)
        return small_ops(kind, self.n_embd, q_width=q, kv_width=kv, n_ff=n_ff, n_used=used)

    @property
    def attention_weights(self) -> int:
        """Of one layer: Q, K, V and output projection."""
        return 2 * self.n_embd * self.head_dim * (self.n_head + self.n_head_kv)

    @property
    def ffn_weights(self) -> int:
        """Of one layer, all experts."""
        if self.sparse:
            return 3 * self.n_embd * self.n_ff_expert * self.n_expert
        return (3 if self.gated else 2) * self.n_embd * self.n_ff

    @property
    def layer_weights(self) -> int:
        return self.n_layer * (self.attention_weights + self.ffn_weights)


def shape_from_entry(name: str, entry: Mapping[str, Any]) -> ModelShape:
    """ShapeError shape_invalid for numbers that are missing, impossible or at odds with the stated file size."""

    def count(key: str) -> int:
        return _count(entry, key)

    shape = ModelShape(
        name, count("n_layer"), count("n_embd"), count("n_head"), count("n_head_kv"), count("head_dim"),
        count("n_vocab"), gated=_flag(entry, "gated_ffn", True), tied=_flag(entry, "tied_embeddings", False),
        n_ctx_train=count("n_ctx_train") if "n_ctx_train" in entry else 0,
    )  # fmt: skip
    if entry.get("n_expert", 0) != 0:
        shape = replace(
            shape, n_expert=count("n_expert"), n_expert_used=count("n_expert_used"), n_ff_expert=count("n_ff_expert")
        )
    else:
        shape = replace(shape, n_ff=count("n_ff"))
    _check(shape)
    ignored = sorted(str(key) for key in entry if key not in FIELDS)
    notes = (f"ignored, as of no known name: {', '.join(ignored)}",) if ignored else ()
    return _with_types(replace(shape, fallbacks=notes), _weights(entry), _file_gib(entry))


def _count(entry: Mapping[str, Any], key: str) -> int:
    if key not in entry:
        raise _invalid(f"{key} is missing")
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_COUNT:
        raise _invalid(f"{key} = {value!r} is no sensible count")
    return value


def _flag(entry: Mapping[str, Any], key: str, default: bool) -> bool:
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise _invalid(f"{key} = {value!r} is neither true nor false")
    return value


def _weights(entry: Mapping[str, Any]) -> str:
    value = entry.get("weights", "")
    if not isinstance(value, str):
        raise _invalid(f"weights = {value!r} is no text")
    return value


def _file_gib(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("file_gib")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MAX_FILE_GIB:
        raise _invalid(f"file_gib = {value!r} cannot be")
    return float(value)


def _invalid(text: str) -> ShapeError:
    return ShapeError(text, code="shape_invalid", hint="docs/plan.md has the fields of a model")


def _check(shape: ModelShape) -> None:
    if shape.n_layer > MAX_LAYERS:
        raise ShapeError(f"{shape.n_layer} layers are more than {MAX_LAYERS}", code="shape_invalid")
    if shape.n_head % shape.n_head_kv:
        raise ShapeError(f"{shape.n_head} heads cannot share {shape.n_head_kv} KV heads evenly", code="shape_invalid")
    if shape.n_expert_used > shape.n_expert:
        raise ShapeError(f"{shape.n_expert_used} experts used of {shape.n_expert}", code="shape_invalid")


def _with_types(shape: ModelShape, text: str, file_gib: float | None) -> ModelShape:
    """Types from text such as "Q4_0 (output Q6_K)"; a mix takes its mean from the file's size."""
    base = weight_type(text)
    found = re.search(r"output ([A-Z0-9_]+)", text)
    output = weight_type(found.group(1)) if found else base
    known, mixed = base.known and output.known, "mix" in text.lower()
    notes = shape.fallbacks if known else (*shape.fallbacks, f"unknown quantisation {text!r}: times of {base.name}")
    if file_gib is None and not known:
        raise _invalid(f"weights = {text!r} is no type of ggml: give one, or file_gib for the size of a weight")
    if file_gib is None:
        notes = (*notes, f"mixed quantisation, no file_gib: every weight as {base.name}") if mixed else notes
        return replace(shape, weights=base, output=output, fallbacks=notes)
    if mixed or not base.known:
        base = replace(base, bytes_per_weight=_mean_bytes(shape, output, file_gib))
        notes = (*notes, "mixed quantisation: mean bytes a weight from the file's size")
    _check_file(shape, base, output, file_gib, FILE_TOLERANCE)
    return replace(shape, weights=base, output=output, fallbacks=notes)


def _vocabulary_weights(shape: ModelShape) -> int:
    return shape.n_vocab * shape.n_embd * (1 if shape.tied else 2)


def _mean_bytes(shape: ModelShape, output: WeightType, file_gib: float) -> float:
    rest = file_gib * 2**30 - _vocabulary_weights(shape) * output.bytes_per_weight
    return max(0.1, rest / shape.layer_weights)


def _check_file(shape: ModelShape, base: WeightType, output: WeightType, file_gib: float, tolerance: float) -> None:
    computed = shape.layer_weights * base.bytes_per_weight + _vocabulary_weights(shape) * output.bytes_per_weight
    stated = file_gib * 2**30
    if abs(computed - stated) > tolerance * stated or base.bytes_per_weight > F32_BYTES:
        raise ShapeError(
            f"{shape.name}: these shapes make {computed / 2**30:.1f} GiB, the file is said to have {file_gib} GiB",
            code="shape_invalid",
        )


def model_work(shape: ModelShape, *, n_ctx: int, n_ubatch: int, kv_type: str = "F16") -> ModelWork:
    """Sub-layers of a shape at a context length. Native order: attention, ffn or experts, layer by layer, output."""
    if n_ctx <= 0 or n_ubatch <= 0:
        raise ShapeError(f"context {n_ctx} and ubatch {n_ubatch} must be positive", code="shape_invalid")
    if kv_type not in KV_TYPES:
        raise ShapeError(f"a KV cache of type {kv_type} is not known", code="shape_invalid")
    units: list[Unit] = []
    for layer in range(shape.n_layer):
        units.append(_attention(shape, len(units), layer, n_ctx, kv_type))
        make = _experts if shape.sparse else _ffn
        units.append(make(shape, len(units), layer))
    units.append(_output(shape, len(units)))
    return ModelWork(
        name=shape.name,
        units=of_outputs(units),
        n_embd=shape.n_embd,
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        small_bytes=_small_bytes(shape),
        scratch_bytes={tokens: scratch_bytes(shape, tokens) for tokens in tier_tokens(n_ubatch)},
        n_sublayers=len(units),
        fallbacks=shape.fallbacks,
        n_ctx_train=shape.n_ctx_train,
    )


def _matmul(shape: ModelShape, k: int, n: int) -> MatMul:
    return MatMul(shape.weights.name, k, n, k * n * shape.weights.bytes_per_weight)


def _attention(shape: ModelShape, index: int, layer: int, n_ctx: int, kv_type: str) -> Unit:
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    products = (*(_matmul(shape, shape.n_embd, n) for n in (q, kv, kv)), _matmul(shape, q, shape.n_embd))
    row_bytes = 2.0 * kv * weight_type(kv_type).bytes_per_weight
    return Unit(
        index, layer, "attention", _bytes(products), round(row_bytes * n_ctx), _piece(products), matmuls=products,
        attention=Attention(kv_type, shape.head_dim, shape.n_head, shape.n_head_kv, row_bytes),
        small_ops=shape.small_ops("attention"),
    )  # fmt: skip


def _ffn(shape: ModelShape, index: int, layer: int) -> Unit:
    up = (_matmul(shape, shape.n_embd, shape.n_ff),) * (2 if shape.gated else 1)
    products = (*up, _matmul(shape, shape.n_ff, shape.n_embd))
    return Unit(
        index, layer, "ffn", _bytes(products), 0, _piece(products), matmuls=products, small_ops=shape.small_ops("ffn")
    )


def _experts(shape: ModelShape, index: int, layer: int) -> Unit:
    per_weight = shape.weights.bytes_per_weight * shape.n_expert
    products = tuple(
        Experts(shape.weights.name, k, n, shape.n_expert, shape.n_expert_used, k * n * per_weight)
        for k, n in ((shape.n_embd, shape.n_ff_expert),) * 2 + ((shape.n_ff_expert, shape.n_embd),)
    )
    router = (router_product(shape.n_embd, shape.n_expert),)
    return Unit(
        index, layer, "experts", _bytes(products), 0, _piece(products), experts=products, matmuls=router,
        small_ops=shape.small_ops("experts"),
    )  # fmt: skip


def router_product(n_embd: int, n_expert: int) -> MatMul:
    """The router is part of the small group, but computed with its experts."""
    return MatMul("F32", n_embd, n_expert, float(F32_BYTES * n_embd * n_expert))


def _output(shape: ModelShape, index: int) -> Unit:
    size = shape.n_vocab * shape.n_embd * shape.output.bytes_per_weight
    products = (MatMul(shape.output.name, shape.n_embd, shape.n_vocab, size),)
    return Unit(
        index,
        -1,
        "output",
        _bytes(products),
        0,
        _piece(products),
        matmuls=products,
        small_ops=shape.small_ops("output"),
    )


def _bytes(products: Sequence[MatMul | Experts]) -> int:
    return round(sum(product.weight_bytes for product in products))


def _piece(products: Sequence[MatMul | Experts]) -> int:
    return min(round(max(product.weight_bytes for product in products)), SHAPE_PIECE_BYTES)


def _small_bytes(shape: ModelShape) -> int:
    norms = 2 * shape.n_embd + 2 * shape.head_dim
    return F32_BYTES * shape.n_layer * (norms + shape.n_embd * shape.n_expert) + F32_BYTES * shape.n_embd


def scratch_bytes(shape: ModelShape, tokens: int) -> int:
    """Activations alive at once: residual, its norm and Q/K/V/output rows, or the feed-forward rows; and logits."""
    attention = 3 * shape.n_embd + 2 * shape.head_dim * (shape.n_head + shape.n_head_kv)
    hidden = 3 * shape.n_ff if not shape.sparse else 3 * shape.n_ff_expert * shape.n_expert_used
    back = shape.n_embd * (shape.n_expert_used if shape.sparse else 1)
    return F32_BYTES * (tokens * (max(attention, 2 * shape.n_embd + hidden + back)) + shape.n_vocab)
