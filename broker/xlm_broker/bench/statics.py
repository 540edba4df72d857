"""Settings of stock llama.cpp, and which of them is best for a budget.

A setting's times do not depend on the budget, only whether it fits does. So each is measured without a cap, with the
device memory it takes, and the best for a budget is the fastest that fits: an oracle, for each figure apart.

Families have one knob k, the more the more on the card. A survey at both ends of each family tells which ones can win
at a budget: those within ``NEAR`` of the best by a straight line between the ends. They are then measured at the
largest k that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

NEAR: Final = 1.1


class Setting(Struct, kw_only=True, frozen=True):
    """xlm_engine.bench.wire.Setting."""

    device: bool = True
    n_gpu_layers: int = 0
    on_cpu: str = ""
    kv_on_device: bool = True
    offload: bool = True
    repack: bool = False

    @property
    def words(self) -> str:
        """As llama.cpp's options."""
        if not self.device:
            return "CPU only" + (", repacked" if self.repack else "")
        parts = [f"-ngl {self.n_gpu_layers}"]
        parts += [f"-ot {self.on_cpu}=CPU"] if self.on_cpu else []
        parts += [] if self.kv_on_device else ["--no-kv-offload"]
        parts += [] if self.offload else ["--no-op-offload"]
        parts += ["--no-host"] if self.repack else []
        return " ".join(parts)


@dataclass(frozen=True)
class Family:
    """``make(k)`` for k in 0 … top. ``plain``: only n_gpu_layers varies, the paper's baseline."""

    name: str
    top: int
    make: Callable[[int], Setting]
    plain: bool = False


def families(n_layer: int, experts: bool) -> list[Family]:
    """All, for a model of so many layers; n_layer + 1 is the output matrix too."""
    top = n_layer + 1

    def layers(base: Setting) -> Callable[[int], Setting]:
        return lambda k: replace(base, n_gpu_layers=k)

    def feed_forward(base: Setting) -> Callable[[int], Setting]:
        return lambda k: replace(base, n_gpu_layers=top, on_cpu=_feed_forward_of(n_layer - k, experts))

    found = [
        Family("-ngl", top, layers(Setting()), plain=True),
        Family("-ngl, KV on the host", top, layers(Setting(kv_on_device=False))),
        Family("-ngl, no op offload", top, layers(Setting(offload=False))),
        Family("-ngl, repacked", top, layers(Setting(repack=True))),
        Family("-ot, feed-forward on the CPU", n_layer, feed_forward(Setting())),
        Family("-ot, repacked", n_layer, feed_forward(Setting(repack=True))),
    ]
    if experts:
        found.append(
            Family("-ot, experts on the CPU, KV on the host", n_layer, feed_forward(Setting(kv_on_device=False)))
        )
    return found


def without_device() -> list[Setting]:
    """Fits any budget."""
    return [Setting(device=False), Setting(device=False, repack=True)]


def _feed_forward_of(n_layers: int, experts: bool) -> str:
    """The feed-forward weights of the first layers; of a mixture, the experts and not the router."""
    if n_layers <= 0:
        return ""
    numbers = "|".join(str(layer) for layer in range(n_layers))
    return rf"blk\.({numbers})\.ffn_(gate|up|down)" + ("_exps" if experts else r"\.weight")


# -- figures and choices ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """ns; infinite where it was stopped because it took too long to matter."""

    ttft_ns: float
    token_ns: float

    def request_ns(self, tokens: int) -> float:
        return self.ttft_ns + tokens * self.token_ns


@dataclass(frozen=True, slots=True)
class Measured:
    setting: Setting
    plain: bool
    used_bytes: int
    times: Times


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest that fits, for each figure apart, and for the whole request."""

    ttft: Measured
    token: Measured
    request: Measured


def best(candidates: Iterable[Measured], budget_bytes: int, tokens: int, *, plain: bool) -> Best | None:
    """None where nothing fits. ``plain``: only n_gpu_layers varies."""
    fitting = [c for c in candidates if c.used_bytes <= budget_bytes and (c.plain or not plain)]
    if not fitting:
        return None
    return Best(
        ttft=min(fitting, key=lambda c: c.times.ttft_ns),
        token=min(fitting, key=lambda c: c.times.token_ns),
        request=min(fitting, key=lambda c: c.times.request_ns(tokens)),
    )


@dataclass(frozen=True)
class Surveyed:
    """A family at both ends: device bytes by context, times by (card, work)."""

    family: Family
    used_bytes: tuple[Mapping[int, int], Mapping[int, int]]
    times: tuple[Mapping[tuple[str, object], Times], Mapping[tuple[str, object], Times]]

    def fitting(self, n_ctx: int, budget_bytes: int) -> int:
        """The largest k whose memory, on the line between the ends, is within the budget; -1 if none."""
        low, high = (used[n_ctx] for used in self.used_bytes)
        if low > budget_bytes:
            return -1
        if high <= budget_bytes or high <= low:
            return self.family.top
        return min(self.family.top, int((budget_bytes - low) / (high - low) * self.family.top))

    def expected(self, k: int, at: tuple[str, object]) -> Times:
        share = k / max(1, self.family.top)
        low, high = (times[at] for times in self.times)
        return Times(_line(low.ttft_ns, high.ttft_ns, share), _line(low.token_ns, high.token_ns, share))


def _line(low: float, high: float, share: float) -> float:
    return high if share >= 1.0 else low if share <= 0.0 else low + (high - low) * share


def shortlist(
    surveyed: Sequence[Surveyed], n_ctx: int, budget_bytes: int, at: Sequence[tuple[str, object]]
) -> list[tuple[Family, int]]:
    """(family, k) worth measuring at this budget: plain ones, and those near the best in any figure anywhere."""
    fitting = [(s, s.fitting(n_ctx, budget_bytes)) for s in surveyed]
    fitting = [(s, k) for s, k in fitting if k >= 0]
    chosen = {id(s) for s, _ in fitting if s.family.plain}
    for place in at:
        expected = [(s, s.expected(k, place)) for s, k in fitting]
        first = min((t.ttft_ns for _, t in expected), default=0.0)
        token = min((t.token_ns for _, t in expected), default=0.0)
        chosen |= {id(s) for s, t in expected if t.ttft_ns <= NEAR * first or t.token_ns <= NEAR * token}
    return [(s.family, k) for s, k in fitting if id(s) in chosen]
