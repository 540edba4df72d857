"""A loaded model, as the engine reports it, in the terms of the time model.

ModelFacts has sizes, not shapes. Where its ``hparams`` say heads and widths, they are used; else they are assumed
so that bytes and operations come out right, and the assumption is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Final

from xlm.errors import ShapeError
from xlm.protocol.link import ModelFacts, SubLayer
from xlm_broker.planner.memory import scratch_bytes, tier_tokens

from .quant import WeightType, weight_type
from .shapes import SMALL_OPS_ATTENTION, SMALL_OPS_EXPERTS, SMALL_OPS_FFN
from .work import Attention, Experts, MatMul, ModelWork, Unit

ORDER: Final = ("attention", "extras", "shared_experts", "experts", "ffn", "output")  # within a layer
ASSUMED_GROUP: Final = 4  # query heads for each KV head
ASSUMED_HEAD_DIM: Final = 128
ASSUMED_EXPERTS: Final = (64, 8)  # in all, used by a token
_SMALL_OPS: Final = {"attention": SMALL_OPS_ATTENTION, "experts": SMALL_OPS_EXPERTS, "output": 2}


def work_from_facts(model: ModelFacts) -> ModelWork:
    """ShapeError shape_invalid where sizes are impossible."""
    _check(model)
    builder = _Builder(model, weight_type(model.quantisation))
    placeable = sorted((s for s in model.sublayers if s.kind in ORDER and s.device_bytes > 0), key=_position)
    units = tuple(builder.unit(sub) for sub in placeable)
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
        experts = (self._experts(sub),) if sub.kind == "experts" else ()
        return Unit(
            index=sub.index,
            layer=sub.layer,
            kind=sub.kind,
            device_bytes=sub.device_bytes,
            kv_bytes=sub.kv_bytes,
            piece_bytes=sub.largest_piece_bytes or sub.device_bytes,
            matmuls=() if experts else (self._product(sub),),
            experts=experts,
            attention=self._attention(sub) if sub.kv_bytes else None,
            small_ops=_SMALL_OPS.get(sub.kind, SMALL_OPS_FFN),
            last_token_only=sub.kind == "output",
        )

    def _product(self, sub: SubLayer) -> MatMul:
        """All its matrices as one; a unit's time is a sum over them anyway."""
        rows = max(1, round(sub.device_bytes / self.type.bytes_per_weight / self.n_embd))
        return MatMul(self.type.name, self.n_embd, rows, float(sub.device_bytes))

    def _experts(self, sub: SubLayer) -> Experts:
        count, used = self.hyper("n_expert"), self.hyper("n_expert_used")
        if not 0 < used <= count:
            count, used = ASSUMED_EXPERTS
            self.note(f"expert counts unknown: {used} of {count} used")
        rows = max(1, round(sub.device_bytes / self.type.bytes_per_weight / self.n_embd / count))
        return Experts(self.type.name, self.n_embd, rows, count, used, float(sub.device_bytes))

    def _attention(self, sub: SubLayer) -> Attention:
        kv_heads, dim = self.hyper("n_head_kv"), self.hyper("head_dim") or ASSUMED_HEAD_DIM
        row_bytes = sub.kv_bytes / max(1, self.model.n_ctx)
        if not kv_heads:
            self.note(f"heads unknown: {ASSUMED_GROUP} query heads for each KV head")
            kv_heads = max(1, round(row_bytes / (4 * dim)))
        heads = self.hyper("n_head") or ASSUMED_GROUP * kv_heads
        return Attention("F16", dim, heads, kv_heads, row_bytes)
