"""A loaded model, as the engine reports it, in the terms of the time model.

Shapes and types are those of the file's tensors where the engine sends them, heads and widths those of ``hparams``;
what is missing is assumed so that bytes and operations come out right, and the assumption is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Final

from xlm.errors import ShapeError
from xlm.protocol.link import ModelFacts, SubLayer, Weight
from xlm_broker.planner.memory import scratch_bytes, tier_tokens

from .quant import WeightType, weight_type
from .shapes import router_product
from .tensors import FileTensor, expert_products, grouped, products
from .work import Attention, Experts, MatMul, ModelWork, SmallOp, Unit, of_outputs, small_ops

ORDER: Final = ("attention", "extras", "shared_experts", "experts", "ffn", "output")  # within a layer
ASSUMED_GROUP: Final = 4  # query heads for each KV head
ASSUMED_HEAD_DIM: Final = 128
ASSUMED_EXPERTS: Final = (64, 8)  # in all, used by a token
SIZE_TOLERANCE: Final = 0.05  # between a sub-layer as the engine counts it and its tensors in the file ...
PADDING_BYTES: Final = 4096  # ... and for each tensor, for alignment


def work_from_facts(model: ModelFacts) -> ModelWork:
    """ShapeError shape_invalid where sizes are impossible."""
    _check(model)
    builder = _Builder(model, weight_type(model.quantisation))
    placeable = sorted((s for s in model.sublayers if s.kind in ORDER and s.device_bytes > 0), key=_position)
    units = of_outputs(builder.unit(sub) for sub in placeable)
    small = [s for s in model.sublayers if s.kind == "small"]
    return ModelWork(
        name=model.name,
        units=units,
        n_embd=builder.n_embd,
        n_ctx=max(1, model.n_ctx),
        n_ubatch=max(1, model.n_ubatch),
        small_bytes=sum(s.device_bytes + s.kv_bytes for s in small),
        scratch_bytes={tokens: scratch_bytes(model, tokens) for tokens in tier_tokens(model.n_ubatch)},
        n_sublayers=1 + max((s.index for s in model.sublayers), default=-1),
        small_indices=tuple(s.index for s in small),
        fallbacks=tuple(builder.fallbacks),
    )


def _check(model: ModelFacts) -> None:
    seen: set[int] = set()
    for sub in model.sublayers:
        if sub.index < 0 or sub.index in seen or min(sub.device_bytes, sub.kv_bytes, sub.largest_piece_bytes) < 0:
            raise ShapeError(f"sub-layer {sub.index} of {model.name} has impossible sizes", code="shape_invalid")
        seen.add(sub.index)


def _position(sub: SubLayer) -> tuple[int, int, int]:
    """Order of execution: by layer, within it mixer before feed-forward; what has no layer and is no extra, last."""
    late = sub.kind == "output" or (sub.layer < 0 and sub.kind != "extras")
    return (1 << 30 if late else sub.layer, ORDER.index(sub.kind), sub.index)


@dataclass
class _Builder:
    model: ModelFacts
    type: WeightType
    fallbacks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.type.known:
            self.note(f"unknown quantisation {self.model.quantisation!r}: times of {self.type.name}")
        self.n_embd = self.hyper("n_embd") or self._guessed_width()
        self.groups = grouped(FileTensor.of(w.name, w.type, w.n_columns, w.n_elements, w.n_bytes) for w in self.weights)
        for tensor in (t for tensors in self.groups.values() for t in tensors if not t.known):
            self.note(f"unknown quantisation of {tensor.name}: times of {tensor.type}")

    @property
    def weights(self) -> list[Weight]:
        return self.model.weights

    @property
    def first_model(self) -> int:
        return min((s.model_id for s in self.model.sublayers), default=0)

    def note(self, text: str) -> None:
        if text not in self.fallbacks:
            self.fallbacks.append(text)

    def hyper(self, name: str) -> int:
        return max(0, self.model.hparams.get(name, 0))

    def _guessed_width(self) -> int:
        """A mixer of grouped-query attention has about 2.5 n_embd^2 weights."""
        self.note("model width unknown: guessed from its attention")
        sizes = [s.device_bytes for s in self.model.sublayers if s.kind == "attention"]
        weights = (max(sizes) if sizes else 1 << 20) / self.type.bytes_per_weight
        return max(64, isqrt(round(weights / 2.5)) // 64 * 64)

    def unit(self, sub: SubLayer) -> Unit:
        sparse = sub.kind == "experts"
        experts = self._all_experts(sub) if sparse else ()
        return Unit(
            index=sub.index,
            layer=sub.layer,
            kind=sub.kind,
            device_bytes=sub.device_bytes,
            kv_bytes=sub.kv_bytes,
            piece_bytes=sub.largest_piece_bytes or sub.device_bytes,
            matmuls=(router_product(self.n_embd, self._expert_counts()[0]),) if sparse else self._products(sub),
            experts=experts,
            attention=self._attention(sub) if sub.kv_bytes else None,
            small_ops=self._small_ops(sub),
        )

    def _tensors(self, sub: SubLayer) -> list[FileTensor]:
        """Those of the sub-layer, if they are about what the engine counts (a second model has names of its own)."""
        found = self.groups.get((sub.layer, sub.kind), []) if sub.model_id == self.first_model else []
        counted, size = sum(t.n_bytes for t in found), max(sub.device_bytes, sub.host_bytes)
        return found if abs(counted - size) <= SIZE_TOLERANCE * size + PADDING_BYTES * len(found) else []

    def _products(self, sub: SubLayer) -> tuple[MatMul, ...]:
        return products(self._tensors(sub)) or (self._product(sub),)

    def _all_experts(self, sub: SubLayer) -> tuple[Experts, ...]:
        count, used = self._expert_counts()
        return expert_products(self._tensors(sub), count, used) or (self._experts(sub),)

    def _product(self, sub: SubLayer) -> MatMul:
        """All its matrices as one: what can be said without the file's tensors."""
        rows = max(1, round(sub.device_bytes / self.type.bytes_per_weight / self.n_embd))
        return MatMul(self.type.name, self.n_embd, rows, float(sub.device_bytes))

    def _small_ops(self, sub: SubLayer) -> tuple[SmallOp, ...]:
        dim, used = self.hyper("head_dim"), 1
        n_ff = self.hyper("n_ff")
        if sub.kind == "experts":
            used = self._expert_counts()[1]
            n_ff = used * (self.hyper("n_ff_expert") or n_ff)
        q, kv = self.hyper("n_head") * dim, self.hyper("n_head_kv") * dim
        return small_ops(sub.kind, self.n_embd, q_width=q, kv_width=kv, n_ff=n_ff, n_used=used)

    def _expert_counts(self) -> tuple[int, int]:
        count, used = self.hyper("n_expert"), self.hyper("n_expert_used")
        if not 0 < used <= count:
            count, used = ASSUMED_EXPERTS
            self.note(f"expert counts unknown: {used} of {count} used")
        return count, used

    def _experts(self, sub: SubLayer) -> Experts:
        count, used = self._expert_counts()
        rows = max(1, round(sub.device_bytes / self.type.bytes_per_weight / self.n_embd / count))
        return Experts(self.type.name, self.n_embd, rows, count, used, float(sub.device_bytes))

    def _attention(self, sub: SubLayer) -> Attention:
        kv_heads, dim = self.hyper("n_head_kv"), self.hyper("head_dim") or ASSUMED_HEAD_DIM
        row_bytes = sub.kv_bytes / max(1, self.model.n_ctx * max(1, self.model.n_sessions))
        if not kv_heads:
            self.note(f"heads unknown: {ASSUMED_GROUP} query heads for each KV head")
            kv_heads = max(1, round(row_bytes / (4 * dim)))
        heads = self.hyper("n_head") or ASSUMED_GROUP * kv_heads
        return Attention(weight_type(self.model.kv_type).name, dim, heads, kv_heads, row_bytes)
