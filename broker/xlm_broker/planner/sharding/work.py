"""What one sub-layer has to do in a step: operations and bytes, without any machine in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from xlm.protocol.link import Kind

F32_BYTES = 4
BEHIND_ATTENTION: Final = ("ffn", "experts", "shared_experts")
CELL_PAD: Final = 256  # llama.cpp looks at so many cells of a cache or a multiple
MASK_BYTES: Final = 2  # F16, for each token and cell


@dataclass(frozen=True, slots=True)
class MatMul:
    """``n`` x ``k`` weights of a type, applied to every token of the step."""

    type: str
    k: int
    n: int
    weight_bytes: float

    def flops(self, tokens: float) -> float:
        return 2.0 * self.k * self.n * tokens


@dataclass(frozen=True, slots=True)
class Experts:
    """The same for ``n_expert`` experts of which each token uses ``n_used``. ``weight_bytes``: all of them."""

    type: str
    k: int
    n: int
    n_expert: int
    n_used: int
    weight_bytes: float

    def flops(self, tokens: float) -> float:
        return 2.0 * self.k * self.n * tokens * self.n_used

    def used_share(self, tokens: float) -> float:
        """Expected share of experts that a step touches if the router is even: 1 - (1 - u/E)^n.

        Coupon collector's; a skewed router touches fewer, so that this is an upper estimate.
        """
        if self.n_used >= self.n_expert:
            return 1.0
        return float(1.0 - (1.0 - self.n_used / self.n_expert) ** tokens)


@dataclass(frozen=True, slots=True)
class Attention:
    """Reading the KV cache of one layer. ``kv_bytes_per_token``: K and V rows of one position."""

    kv_type: str
    head_dim: int
    n_head: int
    n_head_kv: int
    kv_bytes_per_token: float

    def flops(self, tokens: float, context: float) -> float:
        """QK^T and PV: two products of 2 flops for each head, position and component."""
        return 4.0 * self.n_head * self.head_dim * context * tokens


SmallOp = tuple[str, int]  # ggml's operation, elements of a row; a row for each token


def small_ops(
    kind: str, n_embd: int, *, q_width: int = 0, kv_width: int = 0, n_ff: int = 0, n_used: int = 1
) -> tuple[SmallOp, ...]:
    """What a sub-layer runs besides its products, as llama.cpp builds it (llama-graph.cpp): norm and its scale, ropes,
    cache rows (as copies), gate, residual; with experts the choice of them and the weighted sum of their rows.

    ``n_ff``: rows of the hidden layer, of all experts a token uses.
    """
    norm = (("RMS_NORM", n_embd), ("MUL", n_embd))
    gate, residual = ("SWIGLU", n_ff or 2 * n_embd), ("ADD", n_embd)
    if kind == "attention":
        q, kv = q_width or n_embd, kv_width or n_embd
        return (*norm, ("ROPE", q), ("ROPE", kv), ("CPY", kv), ("CPY", kv), residual)
    if kind == "experts":
        choice = (
            ("SOFT_MAX", n_embd),
            ("ARGSORT", n_embd),
            ("GET_ROWS", n_used),
            ("SUM_ROWS", n_used),
            ("DIV", n_used),
        )
        weighted = (("MUL", n_embd * n_used), *(("ADD", n_embd),) * max(1, n_used - 1))
        return (*norm, *choice, gate, *weighted, residual)
    return norm if kind == "output" else (*norm, gate, residual)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of placement. Sizes in bytes as on the device; ``kv_bytes`` at full context."""

    index: int
    layer: int
    kind: Kind
    device_bytes: int
    kv_bytes: int = 0
    piece_bytes: int = 0  # largest piece that must fit the ring at once
    matmuls: tuple[MatMul, ...] = ()
    experts: tuple[Experts, ...] = ()
    attention: Attention | None = None
    small_ops: tuple[SmallOp, ...] = ()
    last_token_only: bool = False  # sees the step's outputs, not its tokens


def of_outputs(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Behind the last attention llama.cpp goes on with the tokens alone that are to have a result."""
    found = tuple(units)
    last = max((unit.layer for unit in found), default=-1)
    ends = [unit.kind == "output" or (unit.kind in BEHIND_ATTENTION and unit.layer == last) for unit in found]
    return tuple(replace(unit, last_token_only=end) for unit, end in zip(found, ends, strict=True))


@dataclass(frozen=True)
class ModelWork:
    """A model as the time model sees it. ``units`` in order of execution; only what can be placed.

    ``scratch_bytes``: tokens of a step -> device bytes of its activations, for every tier of ``tier_tokens``.
    ``fallbacks``: what had to be assumed.
    """

    name: str
    units: tuple[Unit, ...]
    n_embd: int
    n_ctx: int
    n_ubatch: int
    small_bytes: int  # norms, router: resident whenever the device is used
    scratch_bytes: Mapping[int, int]
    n_sublayers: int  # length of a placement; indices without a unit stay on the CPU
    small_indices: tuple[int, ...] = ()
    fallbacks: tuple[str, ...] = field(default=())
    n_ctx_train: int = 0  # 0: not known
    n_sessions: int = 1  # conversations that the KV cache is for

    @property
    def weight_bytes(self) -> int:
        return sum(unit.device_bytes for unit in self.units) + self.small_bytes

    def activation_bytes(self, tokens: float) -> float:
        """A row of the residual, float32, for each token."""
        return F32_BYTES * self.n_embd * tokens


def with_sessions(work: ModelWork, sessions: int) -> ModelWork:
    """The same with a KV cache for so many conversations."""
    units = tuple(replace(unit, kv_bytes=unit.kv_bytes * sessions) for unit in work.units)
    return replace(work, units=units, n_sessions=work.n_sessions * sessions)
